package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/nvattach/jit"
)

const (
	dryPTX = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [p];
	st.global.u64 [%rd1], %rd1;
	ret;
}
.visible .entry other()
{
	ret;
}
`
	countObject = "../../nvattach/testdata/obj/example_count.bpf.o"
)

// dryFile writes a file for a test.
func dryFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// attach runs the verb.
func attach(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var out, errs bytes.Buffer
	status = verbs.Main(&cli.Env{Stdout: &out, Stderr: &errs, Getenv: os.Getenv}, append([]string{"attach"}, args...))
	return status, out.String(), errs.String()
}

func holds(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

// fakeJIT compiles testdata/fakejit.c.
func fakeJIT(t *testing.T) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	out := filepath.Join(t.TempDir(), jit.LibraryName)
	if b, err := exec.Command("gcc", "-w", "-shared", "-fPIC", "-o", out, "testdata/fakejit.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

func TestDryRun(t *testing.T) {
	lib, image, woven := fakeJIT(t), dryFile(t, "k.ptx", dryPTX, 0o600), filepath.Join(t.TempDir(), "woven.ptx")
	status, out, errs := attach(t, "--dry-run", "--jit", lib, "--kernel", "k", "-o", woven, countObject, image)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, %s", status, errs)
	}
	holds(t, out, "image 1, as a whole, on sm_90\n  k\n",
		"on_entry             entry   at instruction 0     entry", "on_exit              exit    at instruction 2     ret;",
		"registers 10 -> 90, stack 0 -> 8 bytes, spilled 4 -> 20 bytes; blocks of 256 threads on a multiprocessor 3 -> 2, occupancy 38% -> 25%",
		"written to "+woven)
	if strings.Contains(out, "other") {
		t.Errorf("a kernel that --kernel does not name:\n%s", out)
	}
	text, err := os.ReadFile(woven)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, string(text), ".target sm_90a", ".entry other()", "red.")

	status, out, _ = attach(t, "--dry-run", "--jit", lib, "-o", "-", countObject, image)
	if status != cli.ExitOK {
		t.Errorf("status %d", status)
	}
	holds(t, out, "  other\n", ".entry other()")
}

// TestDryRunPTXAS: the toolkit's assembler in place of the driver's.
func TestDryRunPTXAS(t *testing.T) {
	fake := dryFile(t, "ptxas", `#!/bin/sh
eval "in=\${$#}"
used=20; grep -q red. "$in" && used=21
echo "ptxas info    : Compiling entry function 'k' for '$2'"
echo "ptxas info    : Used $used registers"
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo none > "$2"; shift; done
`, 0o700)
	status, out, errs := attach(t, "--dry-run", "--ptxas", fake, "--arch", "sm_90", countObject, dryFile(t, "k.ptx", dryPTX, 0o600))
	if status != cli.ExitOK {
		t.Fatalf("status %d, %s", status, errs)
	}
	holds(t, out, "registers 20 -> 21, ")
}

// TestDryRunMachineCode: programs in machine code are shown as that, with what they cost.
func TestDryRunMachineCode(t *testing.T) {
	assembler := need.Tool(t, "ptxas", "NVTRACE_PTXAS")
	for _, image := range []string{"kernels.13.0.sm_90a.cubin", "kernels.13.0.fatbin"} {
		woven := filepath.Join(t.TempDir(), "woven.sass")
		run := func(flags ...string) (int, string, string) {
			args := append([]string{"--dry-run", "--ptxas", assembler, "--kernel", "add", "--arch", "sm_90", "-o", woven}, flags...)
			return attach(t, append(args, countObject, "../../fatbin/testdata/"+image)...)
		}
		status, out, errs := run()
		if status != cli.ExitOK || errs != "" {
			t.Fatalf("%s: status %d, %s", image, status, errs)
		}
		holds(t, out, "on sm_90\n  add\n", "on_entry             entry   at instruction 0     entry",
			"    registers 12 -> ", ", stack 0 -> 0 bytes, code 512 -> ", "occupancy 100% -> 100%\n", "bytes of disassembly\n")
		if strings.Contains(out, "spilled") {
			t.Errorf("%s: %s", image, out)
		}
		text, err := os.ReadFile(woven)
		if err != nil {
			t.Fatal(err)
		}
		holds(t, string(text), "sm_90 add: ", "\n+ 00000  ", " BRA 0x", "\n  00010  ", " S2R R0, SR_", "  live R")
		kept, changed := 0, 0
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.HasPrefix(line, "+ "):
				changed++
			case strings.HasPrefix(line, "  0"):
				kept++
			}
		}
		if kept < 28 || kept > 31 || changed < 10 { // the first instruction, an exit or two, and what is behind
			t.Errorf("%s: %d lines as before, %d others", image, kept, changed)
		}
	}
	// With the flag off, and for GPUs on which that was never run, it says so.
	_, out, _ := attach(t, "--dry-run", "--machine-code=false", "--ptxas", assembler, countObject, "../../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	holds(t, out, "not probed: only machine code", "--machine-code=false leaves it alone")
	_, out, _ = attach(t, "--dry-run", "--ptxas", assembler, countObject, "../../fatbin/testdata/kernels.11.8.sm_80.cubin")
	holds(t, out, "not probed: only machine code", "--untested-arch tries them")
	_, out, _ = attach(t, "--dry-run", "--untested-arch", "--ptxas", assembler, countObject, "../../fatbin/testdata/kernels.11.8.sm_80.cubin")
	holds(t, out, "on sm_80\n", "occupancy ")
}

// TestDryRunFiles: images as nvcc leaves them beside the one with the kernels, without
// entries, or with machine code and no kernel, are nothing to tell of.
func TestDryRunFiles(t *testing.T) {
	entry := func(kind fatbin.Kind, arch string, data []byte) fatbin.Entry {
		t.Helper()
		a, err := fatbin.ParseArch(arch)
		if err != nil {
			t.Fatal(err)
		}
		e, err := fatbin.NewEntry(kind, a, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	cubin, err := os.ReadFile("../../fatbin/testdata/kernels.11.8.sm_80.cubin") // of kernels that are not called k
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, images ...[]fatbin.Entry) string {
		var b []byte
		for _, entries := range images {
			b = (&fatbin.Container{Entries: entries}).Append(b)
		}
		return dryFile(t, name, string(b), 0o600)
	}
	ptx := []fatbin.Entry{entry(fatbin.KindPTX, "sm_90a", []byte(dryPTX))}
	code := []fatbin.Entry{entry(fatbin.KindELF, "sm_80", cubin)}
	for _, tt := range []struct {
		name, kernel, arch, file string
		status                   int
		want                     string
	}{
		{"beside others", "k", "", file("a.fatbin", code, nil, ptx), cli.ExitOK, "a.fatbin: image 3, at offset "},
		{"beside others, for one GPU", "k", "sm_90", file("b.fatbin", code, nil, ptx), cli.ExitOK, "b.fatbin: image 3, at offset "},
		{"for another GPU", "k", "sm_100", file("c.fatbin", code, ptx), cli.ExitFailed, "image 1 has neither PTX nor machine code for sm_100\nnvtrace: image 2 has"},
		{"nothing but machine code", "*", "", file("d.fatbin", code), cli.ExitOK, "on sm_80\n"},
		{"no entries", "*", "", file("e.fatbin", nil), cli.ExitOK, "no kernel that a program wants; images: 1"},
	} {
		status, out, errs := attach(t, "--dry-run", "--ptxas", "true", "--kernel", tt.kernel, "--arch", tt.arch, countObject, tt.file)
		if status != tt.status || (errs == "") != (status == cli.ExitOK) {
			t.Errorf("%s: status %d, want %d; %s", tt.name, status, tt.status, errs)
		}
		holds(t, out+errs, tt.want)
		if strings.Contains(out+errs, "sm_0") {
			t.Errorf("%s: of a GPU that is none:\n%s%s", tt.name, out, errs)
		}
	}
}

func TestDryRunRefusals(t *testing.T) {
	image := dryFile(t, "k.ptx", dryPTX, 0o600)
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		want   string // on standard output or error
	}{
		{"no image", []string{countObject}, cli.ExitUsage, "wants probe objects and images"},
		{"no such image", []string{countObject, "no/image"}, cli.ExitFailed, "stat no/image: no such file"},
		{"no object", []string{image}, cli.ExitUsage, "attach wants probe objects"},
		{"no GPU code", []string{countObject, "testdata/where.py"}, cli.ExitFailed, "neither an ELF file"},
		{"no compiler there", []string{"--ptxas", "/no/ptxas", countObject, image}, cli.ExitFailed, "--ptxas: "},
		{"two compilers", []string{"--ptxas", "true", "--jit", "x", countObject, image}, cli.ExitFailed, "exclude each other"},
		{"bad architecture", []string{"--arch", "rm_1", countObject, image}, cli.ExitUsage, "--arch: "},
		{"no wanted kernel", []string{"--kernel", "nothing*", "--ptxas", "true", countObject, image}, cli.ExitOK, "no kernel that a program wants; images: 1"},
		{"bad PTX, required", []string{"--require", "--ptxas", "true", countObject, dryFile(t, "bad.ptx", strings.Replace(dryPTX, "ret;", "ret", 1), 0o600)}, cli.ExitFailed, "k\n    not probed: "},
		{"no such map", []string{"--map", "none[0]=1", "--ptxas", "true", countObject, image}, cli.ExitFailed, "there is no map none"},
		{"a run", []string{"--run", "x", countObject, image}, cli.ExitUsage, "--dry-run and --run exclude each other"},
		{"how often", []string{"--interval", "1s", countObject, image}, cli.ExitUsage, "--interval wants a program"},
		{"bad PTX", []string{"--ptxas", "true", countObject, dryFile(t, "bad.ptx", strings.Replace(dryPTX, "ret;", "ret", 1), 0o600)}, cli.ExitOK, "k\n    not probed: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, out, errs := attach(t, append([]string{"--dry-run"}, tt.args...)...)
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			holds(t, out+errs, tt.want)
		})
	}
	t.Run("refused by the compiler", func(t *testing.T) {
		status, out, _ := attach(t, "--dry-run", "--jit", fakeJIT(t), countObject, dryFile(t, "k.ptx", dryPTX+"// refuse\n", 0o600))
		if status != cli.ExitFailed {
			t.Errorf("status %d", status)
		}
		holds(t, out, "compiling the module with probes for sm_90a: ", "k bad")
	})
}

// TestDryNoImage: a file without GPU code is named once, and advice is the verb's own.
func TestDryNoImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("hello, world"), 0o666); err != nil {
		t.Fatal(err)
	}
	status, out, errs := attach(t, "--dry-run", "../../examples/probes/count.bpf.o", file)
	want := "nvtrace: " + file + ": neither an ELF file, an archive, a fat binary, a cubin nor PTX\n"
	if status != cli.ExitFailed || out != "" || errs != want {
		t.Errorf("%d %q %q, want %q", status, out, errs, want)
	}
}

// TestDryRunProgram: of a program, PTX that it holds as text is looked at, and the libraries that it
// is linked with.
func TestDryRunProgram(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	build := func(args ...string) {
		t.Helper()
		cmd := exec.Command("gcc", args...)
		cmd.Dir = dir
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
	}
	source := func(name, code string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source("empty.c", "int none;\n")
	source("lib.c", "const char *code(void) { return "+strings.ReplaceAll(strconv.Quote(dryPTX), `\t`, " ")+"; }\n")
	source("main.c", "const char *code(void);\nint main(void) { return !code(); }\n")
	source("none.c", "int main(void) { return 0; }\n")
	build("-shared", "-fPIC", "-o", "libempty.so", "empty.c")
	build("-shared", "-fPIC", "-o", "libcode.so", "lib.c")
	build("-o", "with", "main.c", "-Wl,--no-as-needed", "-L.", "-lcode", "-lempty", "-Wl,-rpath,$ORIGIN")
	build("-o", "within", "main.c", "lib.c")
	build("-o", "without", "none.c", "-Wl,--no-as-needed", "-L.", "-lempty", "-Wl,-rpath,$ORIGIN")
	lib, path := fakeJIT(t), func(name string) string { return filepath.Join(dir, name) }
	for name, file := range map[string]string{"with": "libcode.so", "within": "within"} {
		status, out, errs := attach(t, "--dry-run", "--jit", lib, countObject, path(name))
		if status != cli.ExitOK || errs != "" {
			t.Errorf("%s: status %d, %s", name, status, errs)
		}
		holds(t, out, path(file)+": image 1, text at offset 0x", "on sm_90\n  k\n")
	}
	status, out, errs := attach(t, "--dry-run", countObject, path("without"))
	if want := "nvtrace: " + path("without") + ": no code for GPUs is in it, nor in the libraries that it is linked with\n"; status != cli.ExitFailed || out != "" || errs != want {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
}
