package view

import (
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestHungAt: lines of Python say more of a wait than the functions that have led to it from there.
func TestHungAt(t *testing.T) {
	native := traces.StackFrame{Language: traces.LanguageNative, File: "/lib/torch.so", Func: "_ZN5torch4waitEv"}
	python := traces.StackFrame{Language: "python", File: "/app/a.py", Func: "f", Line: 7}
	for _, c := range []struct {
		stack []traces.StackFrame
		want  string
	}{
		{nil, ""},
		{[]traces.StackFrame{native, native, native, native, python}, "/app/a.py:7 f"},
		{[]traces.StackFrame{native}, "torch.so torch::wait"},
	} {
		if got := strings.Join(hungAt(c.stack), "|"); got != c.want {
			t.Errorf("%v: %q, want %q", c.stack, got, c.want)
		}
	}
}
