package capture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrepareNodes calls the helper for what is missing, and for nothing else.
func TestPrepareNodes(t *testing.T) {
	root := t.TempDir()
	calls := filepath.Join(root, "calls")
	helper := filepath.Join(root, "usr/bin/nvidia-modprobe")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	o := &NodeOptions{Root: root}
	if err := PrepareNodes(t.Context(), o); err != nil {
		t.Errorf("without the helper: %v", err)
	}
	write(helper, "#!/bin/sh\necho \"$@\" >> "+calls+"\n", 0o755)
	write(filepath.Join(root, "proc/driver/nvidia/gpus/0000:01:00.0/information"), "Model: \t\t X\nDevice Minor: \t 1\n", 0o644)
	write(filepath.Join(root, "dev/nvidiactl"), "", 0o644)
	write(filepath.Join(root, "dev/nvidia0"), "", 0o644)
	if err := PrepareNodes(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(calls)
	if err != nil || string(b) != "-u -c 0\n-c 1\n" {
		t.Errorf("called with %q: %v", b, err)
	}
	write(filepath.Join(root, "dev/nvidia1"), "", 0o644)
	write(filepath.Join(root, "dev/nvidia-uvm"), "", 0o644)
	if err := os.Remove(calls); err != nil {
		t.Fatal(err)
	}
	if err := PrepareNodes(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(calls); err == nil {
		t.Error("the helper was called although nothing was missing")
	}
	write(helper, "#!/bin/sh\necho no such module >&2\nexit 1\n", 0o755)
	if err := os.Remove(filepath.Join(root, "dev/nvidia-uvm")); err != nil {
		t.Fatal(err)
	}
	if err := PrepareNodes(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such module") {
		t.Errorf("a helper that fails: %v", err)
	}
}
