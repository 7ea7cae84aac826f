package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach/object"
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

// TestUSDTNearest: a probe that is not there is named with those that are called like it.
func TestUSDTNearest(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-o", bin, "testdata/usdt.c")
	r := rigWith(t, "../testdata/obj/weak.bpf.o", true, func(objs []*object.Object) error {
		return object.PlaceProgram(objs, "on_probe="+bin+":zoo:frist")
	})
	if status := r.run(bin); status != 0 {
		t.Errorf("exit %d, %q", status, r.stdout.String())
	}
	if got := r.tracer.Unmatched(); len(got) != 1 || !strings.HasSuffix(got[0], "has no probe zoo:frist; did you mean first?") {
		t.Errorf("%q", got)
	}
}

// TestUSDTLibbpf: objects that have libbpf's functions for arguments, at a place that is given.
func TestUSDTLibbpf(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-o", bin, "testdata/usdt.c")
	for _, inside := range []bool{true, false} {
		r := rigWith(t, "../testdata/obj/weak.bpf.o", inside, func(objs []*object.Object) error {
			return object.PlaceProgram(objs, "on_probe="+bin+":zoo:first")
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

// nowhere is a file without variables.
func nowhere(name string) (uint64, error) { return 0, errors.New("no variable " + name) }

// TestUSDTVariables: arguments in global variables, and those of which it is said why they can't be read.
func TestUSDTVariables(t *testing.T) {
	regs := make([]uint64, 21)
	regs[10] = 3
	read := func(addr uint64, b []byte) int {
		for i := range b {
			b[i] = byte(addr >> (8 * i))
		}
		return len(b)
	}
	resolve := func(name string) (uint64, error) {
		if name != "limit" {
			return nowhere(name)
		}
		return 0x2000, nil
	}
	const bias = 0x55550000
	for text, want := range map[string]uint64{
		"8@limit(%rip)": 0x55552000, "8@limit+8(%rip)": 0x55552008, "-8@8+limit(%rip)": 0x55552008, "2@limit-16(%rip)": 0x1ff0, "8@limit": 0x55552000,
		"8@limit(,%rax,8)": 0x55552018, "8@limit+4(%rax)": 0x55552007, "8@$limit": 0x55552000, "8@$limit+4": 0x55552004, "8@$0xffffffffffffffff": ^uint64(0),
	} {
		a := parseUSDTArgs(text, resolve)[0]
		if v, ok := a.value(regs, bias, read); !ok || v != want {
			t.Errorf("%s is %#x, %v (%v), want %#x", text, v, ok, a.err, want)
		}
	}
	for text, want := range map[string]string{
		"8f@%xmm0": "floating-point", "4f@8(%rsp)": "floating-point", "8@%xmm3": "vector register", "8@gone(%rip)": "no variable gone", "8@16(%rip)": "form that is not known",
		"4@%fs:count@tpoff": "each thread has for itself", "8@limit@GOTPCREL(%rip)": "no variable limit@GOTPCREL", "8@limit+limit(%rip)": "form", "8@-limit(%rip)": "form", "8@limit(%rip,%rax)": "form",
	} {
		if a := parseUSDTArgs(text, resolve)[0]; a.err == nil || !strings.Contains(a.err.Error(), want) || a.text != text {
			t.Errorf("%s: %v, want %s", text, a.err, want)
		}
	}
}

// TestUSDTGlobals: a program's variables are read wherever it lies, and what can't be read is refused.
func TestUSDTGlobals(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "zoo.c")
	text, err := os.ReadFile("testdata/usdt.c")
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Replace(string(text), "8@%1 -4@$-7 1@%2", "8@limits+8(%%rip) -4@$-7 1@%2", 1)
	made = strings.Replace(made, "#define PROBE", "static long limits[2] __attribute__((used)) = {1, 0x77};\n#define PROBE", 1)
	for _, pie := range []string{"-pie", "-no-pie"} {
		bin := filepath.Join(dir, "zoo")
		if err := os.WriteFile(source, []byte(made), 0o600); err != nil {
			t.Fatal(err)
		}
		compile(t, "-O1", "-w", "-fPIE", pie, "-o", bin, source)
		r := rigOf(t, "../testdata/obj/usdt.bpf.o", false, "on_first")
		if status := r.run(bin); status != 0 || r.variable("firsts") != 7 || r.variable("memory") != 0x77 {
			t.Errorf("%s: exit %d, %d probes, memory %#x, said %q", pie, status, r.variable("firsts"), r.variable("memory"), r.said)
		}
		compile(t, "-O1", "-w", "-s", "-fPIE", pie, "-o", bin, source)
		r = rigOf(t, "../testdata/obj/usdt.bpf.o", false, "on_first")
		want := "arg1, 8@limits+8(%rip), is in the variable limits, which the file does not list"
		if status := r.run(bin); status != 0 || r.variable("firsts") != 0 || !strings.Contains(strings.Join(r.said, ""), want) {
			t.Errorf("%s, stripped: exit %d, %d probes, said %q", pie, status, r.variable("firsts"), r.said)
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
		list := parseUSDTArgs(text, nowhere)
		if v, ok := list[0].value(regs, 0, read); !ok || v != want {
			t.Errorf("%s is %#x, %v, want %#x", text, v, ok, want)
		}
	}
	for _, text := range []string{"8", "8@", "3@%rax", "8@%xmm0", "8f@%xmm0", "8@foo", "8@$x", "8@(%rax", "8@x(%rax)", "8@(%rax,%zz)", "8@(%rax,%rbx,y)", "@", "-@%rax"} {
		if _, ok := parseUSDTArgs(text, nowhere)[0].value(regs, 0, read); ok {
			t.Errorf("%q is an argument", text)
		}
	}
	if n := len(parseUSDTArgs(strings.Repeat("8@%rax ", 100), nowhere)); n != maxUSDTArgs {
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
