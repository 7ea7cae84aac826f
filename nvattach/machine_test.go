package nvattach

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
)

// compileBody returns what compiles bodies by NVIDIA's assembler, which stands in for the
// driver's compiler: both take the same options.
func compileBody(tb testing.TB, arch string) func(text string) ([]byte, error) {
	tb.Helper()
	path := need.Tool(tb, "ptxas", "NVTRACE_PTXAS")
	dir := tb.TempDir()
	return func(text string) ([]byte, error) {
		in, out := filepath.Join(dir, "body.ptx"), filepath.Join(dir, "body.cubin")
		if err := os.WriteFile(in, []byte(text), 0o644); err != nil {
			return nil, err
		}
		if msg, err := exec.Command(path, "--compile-as-tools-patch", "-arch="+arch, "-o", out, in).CombinedOutput(); err != nil {
			tb.Errorf("ptxas: %s\n%s", msg, text)
			return nil, err
		}
		return os.ReadFile(out)
	}
}

// Programs are put into machine code: what was there stays where it was, exits and
// registers are as the new code needs them.
func TestMachineCode(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	before, err := fatbin.ParseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	compile := compileBody(t, "sm_90")
	for _, o := range testObjects(t) {
		plan, maps := placedPlan(t, o)
		r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compile})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range r.Unprobed {
			t.Logf("%s: %s: %s", o.Name, u.Kernel, u.Reason)
		}
		if !r.Changed {
			continue
		}
		after, err := fatbin.ParseCubin(r.Image)
		if err != nil {
			t.Fatalf("%s: %v", o.Name, err)
		}
		for _, k := range r.Kernels {
			t.Logf("%s: %s: %d sites, notes %v", o.Name, k.Name, k.Sites(), k.Notes)
			if !k.Machine {
				t.Errorf("%s: %+v", o.Name, k)
			}
			if k.Sites() == 0 && k.Name == "_Z7nothingv" { // it has no such place
				continue
			}
			was, is := kernelNamed(t, before, k.Name), kernelNamed(t, after, k.Name)
			if is.Size <= was.Size || is.Registers < was.Registers || is.Offset != was.Offset {
				t.Errorf("%s: %s: size %d -> %d, registers %d -> %d", o.Name, k.Name, was.Size, is.Size, was.Registers, is.Registers)
			}
		}
	}
}

func kernelNamed(t *testing.T, c *fatbin.Cubin, name string) *fatbin.Kernel {
	t.Helper()
	for i := range c.Kernels {
		if c.Kernels[i].Name == name {
			return &c.Kernels[i]
		}
	}
	t.Fatalf("no kernel %s", name)
	return nil
}
