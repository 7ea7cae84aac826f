package run

import (
	"strings"
	"testing"

	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// TestMerged: calls of Python stand where the interpreter's function that makes them does.
func TestMerged(t *testing.T) {
	native := func(file, f string) traces.StackFrame {
		return traces.StackFrame{Language: traces.LanguageNative, File: file, Func: f}
	}
	python := func(f string) traces.StackFrame {
		return traces.StackFrame{Language: "python", File: "/app/a.py", Func: f, Line: 7}
	}
	const interpreter = "/usr/lib/libpython3.12.so.1.0"
	const eval = "_PyEval_EvalFrameDefault"
	stack := []traces.StackFrame{
		native("/lib/torch.so", "malloc"), native(interpreter, "cfunction_call"), native(interpreter, eval), native(interpreter, "vectorcall"),
		native("/lib/ext.so", "callback"), native(interpreter, eval+".cold"), native(interpreter, "Py_RunMain"), native("/lib/libc.so.6", "start"),
	}
	py := []traces.StackFrame{python("inner"), python("outer"), python("called"), python("main")}
	for _, c := range []struct {
		name    string
		native  []traces.StackFrame
		entries []bool
		want    string
	}{
		{"two calls", stack, []bool{false, true, false, true}, "malloc inner outer callback called main start"},
		{"three, of which one was not found", stack, []bool{true, true, false, true}, "malloc inner callback outer start called main"},
		{"the stack could not be followed", stack[:1], []bool{false, true, false, true}, "malloc inner outer called main"},
		{"the interpreter says less", stack, []bool{false, false, false, true}, "malloc inner outer called main callback start"},
		{"no functions", nil, []bool{false, true, false, true}, "inner outer called main"},
	} {
		var got []string
		for _, f := range merged(c.native, py, c.entries, interpreter) {
			got = append(got, f.Func)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
	if got := merged(stack, nil, nil, interpreter); len(got) != len(stack) {
		t.Errorf("without Python: %d calls", len(got))
	}
}

// TestStackFlag: which calls --stacks means, and how many of them.
func TestStackFlag(t *testing.T) {
	driver, runtime := api.Match("libcuda.so.1"), api.Match("libcudart.so.12")
	often := agent.Rate{Pause: stackPause, Burst: stackBurst}
	for _, c := range []struct {
		flag   string
		module api.Module
		name   string
		want   calls.Stop
	}{
		{"alloc", driver, "cuMemAlloc_v2", calls.Stop{Call: true, Rate: often}},
		{"alloc", runtime, "cudaMalloc", calls.Stop{}},
		{"launch/1000", driver, "cuLaunchKernel", calls.Stop{Call: true, Rate: agent.Rate{Every: 1000}}},
		{"launch/1000", driver, "cuGraphLaunch", calls.Stop{Call: true, Rate: agent.Rate{Every: 1000}}},
		{"launch/1000", driver, "cuMemAlloc_v2", calls.Stop{}},
		{"launch/1000,cuLaunch*/1", driver, "cuLaunchKernel", calls.Stop{Call: true, Rate: agent.Rate{Every: 1}}},
		{"cuLaunch*/10,launch/1000", driver, "cuLaunchKernel", calls.Stop{Call: true, Rate: agent.Rate{Every: 10}}},
		{"launch/10,launch", driver, "cuLaunchKernel", calls.Stop{Call: true, Rate: agent.Rate{Every: 10}}},
		{"sync", driver, "cuStreamSynchronize", calls.Stop{Call: true, Rate: often}},
		{"failed", runtime, "cudaMalloc", calls.Stop{Failed: true, Rate: often}},
		{"failed,alloc/5", driver, "cuMemAlloc_v2", calls.Stop{Call: true, Failed: true, Rate: agent.Rate{Every: 5}}},
		{"cudaMalloc", runtime, "cudaMalloc", calls.Stop{Call: true, Rate: often}},
	} {
		var f stackFlag
		if err := f.Set(c.flag); err != nil {
			t.Fatal(err)
		}
		if got := f.wants(c.module, c.name); got != c.want {
			t.Errorf("--stacks=%s of %s: %+v, want %+v", c.flag, c.name, got, c.want)
		}
	}
	var f stackFlag
	if err := f.Set("cudaMalloc*,alloc"); err != nil || f.libraries() != api.Selection(0).With(api.Driver).With(api.Runtime) {
		t.Errorf("libraries %v, %v", f.libraries(), err)
	}
	for _, bad := range []string{"", "alloc,", "alloc/0", "alloc/x", "failed/2", "/3", "a["} {
		if err := new(stackFlag).Set(bad); err == nil {
			t.Errorf("--stacks=%s is taken", bad)
		}
	}
}
