package nvtx

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nvtrace/internal/gen/built"
	"nvtrace/internal/need"
)

// TestLibrary: a program that uses NVTX works with the library, which is removed afterwards.
func TestLibrary(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	client := filepath.Join(dir, "client")
	if msg, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-o", client, "testdata/client.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	lib, env, err := Install(dir, []string{"A=B"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), client)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	const want = "push -2\npush -2\npop -2\npop -2\nstart 1\ndomain push -2\ndomain pop -2\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}
	if err := lib.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "nvtrace-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, _, err := Install(dir, env); !errors.Is(err, ErrTaken) {
		t.Errorf("beside another tool: %v", err)
	}
}

// TestBuilt: the library is of its source.
func TestBuilt(t *testing.T) {
	if err := built.Check("lib/zstamp.txt"); err != nil {
		t.Fatal(err)
	}
	need.Tool(t, "gcc", "")
	if why, ok := built.Reproducible("lib/zstamp.txt"); !ok {
		t.Skip(why)
	}
	out := filepath.Join(t.TempDir(), "lib.so")
	if msg, err := exec.CommandContext(t.Context(), "go", "run", "./internal/gen", "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, library) {
		t.Error("the same compiler makes another library of the same source")
	}
}
