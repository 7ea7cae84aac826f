package ptx

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// ptxas returns the path of NVIDIA's assembler: $NVTRACE_PTXAS, or ptxas in PATH. The PyPI packages
// nvidia-cuda-nvcc-cu12 and nvidia-cuda-nvcc have it.
func ptxas(tb testing.TB) string {
	tb.Helper()
	return need.Tool(tb, "ptxas", "NVTRACE_PTXAS")
}

// assemble runs ptxas over src and returns what it prints and whether it
// accepted it. The architecture is the source's own target.
func assemble(tb testing.TB, as, src, arch string, args ...string) (string, bool) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "x.ptx")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		tb.Fatal(err)
	}
	ctx := need.Limit(tb)
	level := "-O1"
	if strings.Contains(src, ", debug") {
		level = "-O0" // ptxas does not optimise what it can debug
	}
	cmd := exec.CommandContext(ctx, as, append([]string{"-arch=" + arch, level, file, "-o", os.DevNull}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err == nil
}

// weaveEverywhere puts probes at every legal site of f: entries, ways out,
// before and behind every instruction, and in the module and bodies.
func weaveEverywhere(tb testing.TB, f *File) string {
	tb.Helper()
	const code = "\t.reg .b32 %unused;\n\tmov.u32 %unused, 1;\nlabel:"
	w := NewWeaver(f)
	w.Module(".global .align 8 .b8 " + w.Fresh('_', "cell") + "[8];\n.global .align 4 .b32 " + w.Fresh('_', "flag") + ";")
	for _, st := range f.AllSites() {
		w.Declare(st.Func, ".reg .b64 "+w.Fresh('%', "shared")+";")
		if err := w.Entry(st, code); err != nil {
			tb.Fatal(err)
		}
		for i := range st.Exits {
			if err := w.Exit(st, &st.Exits[i], code); err != nil {
				tb.Fatal(err)
			}
		}
		for i := st.Func.Open + 1; i < st.Func.Close; i++ {
			s := &f.Stmts[i]
			if s.Kind != StmtInstr {
				continue
			}
			if err := w.Before(st, i, code); err != nil {
				tb.Fatal(err)
			}
			if f.flowOf(s) != flowNext {
				if err := w.After(st, i, code); err == nil {
					tb.Errorf("%s: a probe behind %s is not refused", f.Position(s.Pos), f.FullOpcode(s))
				}
				continue
			}
			if err := w.After(st, i, code); err != nil {
				tb.Fatal(err)
			}
			if err := w.Around(st, i, "\t.reg .b64 %both;\n\tmov.u64 %both, 2;", "\tmov.u64 %both, 3;"); err != nil {
				tb.Fatal(err)
			}
		}
	}
	out, err := w.Source()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// TestWeaveParses: probes everywhere, and the result is PTX with the same
// functions, exits and accesses.
func TestWeaveParses(t *testing.T) {
	need.OneThread(t)
	for name, src := range corpus(t) {
		f := mustParse(t, name, src)
		g, err := Parse(name, weaveEverywhere(t, f), nil)
		if err != nil {
			t.Errorf("woven: %v", err)
			continue
		}
		before, after := f.AllSites(), g.AllSites()
		if len(before) != len(after) {
			t.Errorf("%s: %d functions become %d", name, len(before), len(after))
			continue
		}
		for i := range before {
			a, b := before[i], after[i]
			if len(a.Exits) != len(b.Exits) || len(a.Accesses) != len(b.Accesses) || len(a.Calls) != len(b.Calls) || len(a.Chains) != len(b.Chains) {
				t.Errorf("%s: %s: sites differ after weaving", name, a.Name)
			}
		}
	}
}

// TestWeaveAssembles: with no-ops at every legal site, ptxas accepts a file
// exactly when it accepted the original; the formatted file too.
func TestWeaveAssembles(t *testing.T) {
	need.OneThread(t)
	as := ptxas(t)
	for name, src := range corpus(t) {
		f := mustParse(t, name, src)
		if strings.Contains(name, "hard/") || testing.Short() && len(src) > 1<<14 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arch := f.Target().String()
			out, base := assemble(t, as, src, arch, "-c")
			if strings.Contains(out, "is not defined for option 'gpu-name'") {
				arch = "sm_75" // an older target than this ptxas knows: the least it does
				out, base = assemble(t, as, src, arch, "-c")
			}
			if !base {
				t.Skipf("ptxas does not take the original: %.200s", out)
			}
			if out, ok := assemble(t, as, weaveEverywhere(t, f), arch, "-c"); !ok {
				t.Errorf("woven: ptxas: %.2000s", out)
			}
			if out, ok := assemble(t, as, format(t, f), arch, "-c"); !ok {
				t.Errorf("formatted: ptxas: %.2000s", out)
			}
		})
	}
}
