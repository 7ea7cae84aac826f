package nvattach

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// assemble runs NVIDIA's assembler over woven text, if it is there: $NVTRACE_PTXAS, or
// ptxas in PATH. It returns what it says about the kernels' resources.
func assemble(tb testing.TB, src, arch string) string {
	tb.Helper()
	path := os.Getenv("NVTRACE_PTXAS")
	if path == "" {
		path, _ = exec.LookPath("ptxas")
	}
	if path == "" {
		if slices.Contains(strings.Split(os.Getenv("NVTRACE_REQUIRE"), ","), "ptxas") {
			tb.Fatal("no ptxas: set NVTRACE_PTXAS or PATH")
		}
		return ""
	}
	in := filepath.Join(tb.TempDir(), "woven.ptx")
	if err := os.WriteFile(in, []byte(src), 0o644); err != nil {
		tb.Fatal(err)
	}
	out, err := exec.Command(path, "-v", "-arch="+arch, "-o", os.DevNull, in).CombinedOutput()
	if err != nil {
		tb.Errorf("ptxas: %v: %.2000s\n%s", err, out, src)
	}
	return string(out)
}
