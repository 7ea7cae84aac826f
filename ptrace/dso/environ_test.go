package dso

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
)

// TestEnviron: what a program sets itself is in its environment, however it is linked.
func TestEnviron(t *testing.T) {
	need.Tool(t, "gcc", "")
	source := filepath.Join(t.TempDir(), "set.c")
	const text = `#include <stdio.h>
#include <stdlib.h>
extern char **environ;
int main(int argc, char **argv)
{
	setenv("CUDA_FORCE_JIT", "1", 1);
	setenv("LATER", "a value", 1);
	unsetenv("GONE");
	if (argc > 1)
		puts(environ[0]);
	puts("set");
	fflush(stdout);
	return getchar();
}`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"-fPIE", "-pie"}, {"-fno-pie", "-no-pie"}, {"-static"}} {
		bin := filepath.Join(t.TempDir(), "set")
		if out, err := exec.Command("gcc", append(flags, "-o", bin, source)...).CombinedOutput(); err != nil {
			t.Logf("%v: %v\n%s", flags, err, out)
			continue
		}
		cmd := exec.Command(bin)
		cmd.Env = []string{"GONE=1", "KEPT=2"}
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		got := Environ(cmd.Process.Pid)
		slices.Sort(got)
		if want := []string{"CUDA_FORCE_JIT=1", "KEPT=2", "LATER=a value"}; !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", flags, got, want)
		}
		in.Close()
		_ = cmd.Wait() // it ends with what it could not read
	}
	if got := Environ(os.Getpid()); !slices.Equal(got, os.Environ()) {
		t.Errorf("of a program without a C library: %q", got)
	}
}
