package run

import (
	"testing"

	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/ptrace/agent"
)

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
