package traces

import (
	"slices"
	"testing"
)

// TestStack has stacks come back as they were set, and what later versions add skipped.
func TestStack(t *testing.T) {
	want := []StackFrame{
		{Language: LanguageNative, File: "/usr/lib/libc10.so", Func: "_ZN3c106MallocEv", Offset: 0x7fffffffffff},
		{Language: LanguageNative, Offset: 0x1234},
		{Language: "python", File: "/app/tr\u00e4in.py", Func: "step", Line: 12},
	}
	var e Event
	e.SetStack(want)
	if got := e.Stack(); !slices.Equal(got, want) {
		t.Errorf("%s is %+v, want %+v", e.Data, got, want)
	}
	for i, text := range []string{"libc10.so _ZN3c106MallocEv", "0x1234", "tr\u00e4in.py:12 step"} {
		if got := want[i].String(); got != text {
			t.Errorf("%+v is %q, want %q", want[i], got, text)
		}
	}
	if got := (&StackFrame{Language: LanguageNative, File: "/a/b.so", Offset: 0x10}).String(); got != "b.so+0x10" {
		t.Errorf("without a symbol: %q", got)
	}
	if e.SetStack(nil); e.Data != "[]" {
		t.Errorf("no calls are %s", e.Data)
	}
	e.Data = `[["rust","a.rs","f",3,-5,"more"],["native","a","b",0,1e300]]`
	if got := e.Stack(); len(got) != 2 || got[0].Offset != 0 || got[1].Offset != 1<<53 {
		t.Errorf("%+v", got)
	}
}
