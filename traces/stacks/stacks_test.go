package stacks

import (
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestMerge: calls of Python stand where the interpreter's function that makes them does.
func TestMerge(t *testing.T) {
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
		for _, f := range Merge(c.native, py, c.entries, interpreter) {
			got = append(got, f.Func)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
	if got := Merge(stack, nil, nil, interpreter); len(got) != len(stack) {
		t.Errorf("without Python: %d calls", len(got))
	}
}
