package proc

import (
	"os"
	"slices"
	"testing"
)

func TestProcess(t *testing.T) {
	t.Setenv("NVTRACE_SET_LATER", "1")
	pid := os.Getpid()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := Exe(pid); got != exe {
		t.Errorf("executable %q, want %q", got, exe)
	}
	if got := Cmdline(pid); !slices.Equal(got, os.Args) {
		t.Errorf("arguments %q, want %q", got, os.Args)
	}
	if got := Environ(pid); len(got) == 0 || slices.Contains(got, "NVTRACE_SET_LATER=1") {
		t.Errorf("environment %q", got)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := FDs(pid); !slices.Contains(got, int32(f.Fd())) || !slices.IsSorted(got) {
		t.Errorf("descriptors %v, without %d", got, f.Fd())
	}
	const none = 1 << 30 // above any pid_max
	if Exe(none) != "" || Cmdline(none) != nil || FDs(none) != nil {
		t.Error("a process that does not exist has properties")
	}
}
