package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach"
)

// TestUSDT: probes that a program or a library has been compiled with, their arguments, and
// the counter by which a program sees that somebody looks.
func TestUSDT(t *testing.T) {
	dir := t.TempDir()
	bin, lib, app := filepath.Join(dir, "zoo"), filepath.Join(dir, "lib", "zoo"), filepath.Join(dir, "app")
	compile(t, "-O1", "-w", "-o", bin, "testdata/usdt.c")
	if err := os.Mkdir(filepath.Dir(lib), 0o700); err != nil {
		t.Fatal(err)
	}
	compile(t, "-O1", "-w", "-shared", "-fPIC", "-DLIBRARY", "-o", lib, "testdata/usdt.c")
	source := filepath.Join(dir, "app.c")
	if err := os.WriteFile(source, []byte("int run(void); int main(void) { return run(); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-o", app, source, lib)
	for _, what := range []string{bin, app} {
		for _, inside := range []bool{true, false} {
			if out, _ := untraced(t, what); out != "0\n" {
				t.Fatalf("without probes %q", out)
			}
			r := rigOf(t, "../testdata/obj/usdt.bpf.o", inside, "on_first", "on_second")
			if status := r.run(what); status != 0 || r.stdout.String() != "7\n" {
				t.Errorf("exit %d, %q", status, r.stdout.String())
			}
			for name, want := range map[string]int64{
				"firsts": 7, "seconds": 7, "sum": 28, "doubled": 4 * 28, "memory": 0x123456789a + 7, "constant": -7, "bytes": 3, "none": -2,
			} {
				if got := r.variable(name); got != want {
					t.Errorf("%s is %d, want %d", name, got, want)
				}
			}
			if len(r.said) > 0 || len(r.tracer.Unmatched()) > 0 {
				t.Errorf("said %q, unmatched %q", r.said, r.tracer.Unmatched())
			}
		}
	}
}

// TestUSDTLibbpf: objects that have libbpf's functions for arguments, at a place that is given.
func TestUSDTLibbpf(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-o", bin, "testdata/usdt.c")
	for _, inside := range []bool{true, false} {
		r := rigWith(t, "../testdata/obj/weak.bpf.o", inside, func(objs []*nvattach.Object) error {
			return nvattach.PlaceProgram(objs, "on_probe="+bin+":zoo:first")
		})
		if status := r.run(bin); status != 0 {
			t.Errorf("exit %d, %q", status, r.stdout.String())
		}
		for name, want := range map[string]int64{"sum": 28, "third": -7, "count": 4, "beyond": -2} {
			if got := r.variable(name); got != want {
				t.Errorf("%s is %d, want %d", name, got, want)
			}
		}
		if len(r.plan.Objects[0].Maps) != 1 {
			t.Errorf("%d maps", len(r.plan.Objects[0].Maps))
		}
	}
}

// TestUSDTArgs: what compilers write, and what is none.
func TestUSDTArgs(t *testing.T) {
	regs := make([]uint64, 21)
	for i := range regs {
		regs[i] = 0x1000 * uint64(i)
	}
	regs[10] = 0xfffffffffedcba98 // rax
	read := func(addr uint64, b []byte) int {
		for i := range b {
			b[i] = byte(addr>>(8*i)) | 0x80
		}
		return len(b)
	}
	for text, want := range map[string]uint64{
		"8@%rax": 0xfffffffffedcba98, "4@%eax": 0xfedcba98, "-4@%eax": 0xfffffffffedcba98, "2@%ax": 0xba98, "-1@%al": 0xffffffffffffff98, "1@%ah": 0xba,
		"8@$-5": ^uint64(4), "4@$0x10": 16, "8@%r8": 0x9000, "8@%r15": 0, "4@%r9d": 0x8000,
		"2@-16(%rbp)": 0xbff0, "1@(%rdi,%r8,2)": 0x80, "2@8(%rsp)": 0xb088, "2@(,%r8,4)": 0xc080,
	} {
		list := parseUSDTArgs(text)
		if v, ok := list[0].value(regs, read); !ok || v != want {
			t.Errorf("%s is %#x, %v, want %#x", text, v, ok, want)
		}
	}
	for _, text := range []string{"8", "8@", "3@%rax", "8@%xmm0", "8f@%xmm0", "8@foo", "8@$x", "8@(%rax", "8@x(%rax)", "8@(%rax,%zz)", "8@(%rax,%rbx,y)", "@", "-@%rax"} {
		if _, ok := parseUSDTArgs(text)[0].value(regs, read); ok {
			t.Errorf("%q is an argument", text)
		}
	}
	if n := len(parseUSDTArgs(strings.Repeat("8@%rax ", 100))); n != maxUSDTArgs {
		t.Errorf("%d arguments", n)
	}
}

// TestAPI: functions of CUDA's libraries, by the names that programs write.
func TestAPI(t *testing.T) {
	dir := t.TempDir()
	lib, bin := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "fake")
	compile(t, "-O1", "-shared", "-fPIC", "-DLIBRARY", "-o", lib, "testdata/fake.c")
	compile(t, "-O1", "-o", bin, "testdata/fake.c", lib)
	for _, inside := range []bool{true, false} {
		r := rigOf(t, "../testdata/obj/usdt.bpf.o", inside, "on_a*")
		if status := r.run(bin); status != 0 || r.stdout.String() != "6\n" {
			t.Errorf("exit %d, %q", status, r.stdout.String())
		}
		for name, want := range map[string]int64{"calls": 4, "size": 160, "returned": 4, "failed": 1, "all": 5} {
			if got := r.variable(name); got != want {
				t.Errorf("%s is %d, want %d", name, got, want)
			}
		}
		if len(r.said) > 0 || len(r.tracer.Unmatched()) > 0 {
			t.Errorf("said %q, unmatched %q", r.said, r.tracer.Unmatched())
		}
	}
}
