package nvattach

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nvtrace/internal/need"
)

// assemble runs NVIDIA's assembler over woven text, if it is there: $NVTRACE_PTXAS, or
// ptxas in PATH. It returns what it says about the kernels' resources.
func assemble(tb testing.TB, src, arch string, options ...string) string {
	tb.Helper()
	out, ok := tryAssemble(tb, src, arch, options...)
	if !ok {
		tb.Errorf("ptxas: %.2000s\n%s", out, src)
	}
	return out
}

// tryAssemble reports whether ptxas takes a text, and what it says. Without ptxas it
// says yes and nothing.
func tryAssemble(tb testing.TB, src, arch string, options ...string) (string, bool) {
	tb.Helper()
	path := os.Getenv("NVTRACE_PTXAS")
	if path == "" {
		path, _ = exec.LookPath("ptxas")
	}
	if path == "" {
		if need.Required("ptxas") {
			tb.Fatal("no ptxas: set NVTRACE_PTXAS or PATH")
		}
		return "", true
	}
	in := filepath.Join(tb.TempDir(), "woven.ptx")
	if err := os.WriteFile(in, []byte(src), 0o644); err != nil {
		tb.Fatal(err)
	}
	args := append([]string{"-v", "-arch=" + arch, "-o", os.DevNull, in}, options...)
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err == nil
}
