package calls

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach/api"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// driver compiles the driver that runs nothing, under a name.
func driver(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	compile(t, "-w", "-shared", "-fPIC", `-DLOG="/dev/null"`, "-o", file, "../capture/testdata/fakecuda.c")
	return file
}

func compile(t *testing.T, args ...string) {
	t.Helper()
	need.Tool(t, "gcc", "")
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
}

// TestLibrary looks for functions in files.
func TestLibrary(t *testing.T) {
	lib := driver(t, "libcuda.so.1")
	var said []string
	tr := New(&Options{Libraries: api.Selection(0).With(api.Driver), Report: func(s string) { said = append(said, s) }}, 0)
	l := tr.library(lib, opener(lib))
	if l == nil {
		t.Fatal(said)
	}
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[uint64]string)
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "cu") && s.Section != elf.SHN_UNDEF {
			want[s.Value] = s.Name
		}
	}
	if len(want) < 30 {
		t.Fatalf("the driver exports %d functions", len(want))
	}
	for _, fn := range l.funcs {
		if want[fn.addr] != fn.hook.Name {
			t.Errorf("%s is at %#x, where %q is, or was met before", fn.hook.Name, fn.addr, want[fn.addr])
		}
		delete(want, fn.addr)
	}
	if len(want) > 0 {
		t.Errorf("not hooked: %v", want)
	}
	if again := tr.library(lib, opener(lib)); again != l {
		t.Error("the file was read twice")
	}

	// Only libraries that are asked for.
	if New(&Options{Libraries: api.Selection(0).With(api.Runtime)}, 0).library(lib, opener(lib)) != nil {
		t.Error("functions of the driver, which was not asked for")
	}
	// What is no library is reported once.
	text := filepath.Join(t.TempDir(), "libcuda.so")
	if err := os.WriteFile(text, []byte("INPUT(-lcuda)"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if tr.library(text, opener(text)) != nil {
			t.Error("functions in a text")
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "functions are not recorded") {
		t.Errorf("told: %q", said)
	}
}

// program calls the driver: one function thrice, by two ways, one by a thread.
const program = `
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static void *other(void *init) { return ((int (*)(unsigned))init)(2), (void *)0; }
int main(int argc, char **argv) {
	void *lib = dlopen(argv[1], RTLD_NOW), *p;
	int (*init)(unsigned) = dlsym(lib, "cuInit"), (*address)(const char *, void **, int, unsigned long long, int *), status;
	address = dlsym(lib, "cuGetProcAddress_v2");
	if (argc > 2) write(1, "r", 1);
	while (argc > 2 && access(argv[2], F_OK)) usleep(1000);
	init(0);
	address("cuInit", &p, 12000, 0, &status);
	((int (*)(unsigned))p)(1);
	pthread_t t;
	pthread_create(&t, 0, other, init);
	pthread_join(t, 0);
	return 5;
}`

// sink gathers calls and their returns.
type sink struct {
	t     *testing.T
	calls []string
	open  int
}

// Event implements record.Sink.
func (s *sink) Event(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindCall:
		s.open++
		call := ev.Name
		if ev.Name == "cuInit" {
			call += string(rune('0' + ev.Args[0]))
		}
		s.calls = append(s.calls, call)
	case traces.KindReturn:
		s.open--
	}
}

// Idle implements record.Sink.
func (s *sink) Idle() {}

// options record the calls of the driver.
func options(s *sink) *record.Options {
	o := &record.Options{Sinks: []record.Sink{s}}
	o.Extend = func(r *record.Recorder) ([]record.Extension, error) {
		t := New(&Options{
			Libraries: api.Selection(0).With(api.Driver), Agent: r.Agent(), Report: func(text string) { s.t.Error(text) },
		}, record.ExtensionClass)
		return []record.Extension{ioctls.New(r, nil).Extension(), {Rules: t.Rules(), Handler: t}}, nil
	}
	return o
}

func (s *sink) check() {
	s.t.Helper()
	want := []string{"cuInit0", "cuGetProcAddress_v2", "cuInit1", "cuInit2"}
	if !slices.Equal(s.calls, want) || s.open != 0 {
		s.t.Errorf("calls %q, %d of them open; want %q", s.calls, s.open, want)
	}
}

func compileProgram(t *testing.T) (bin, lib string) {
	t.Helper()
	lib = driver(t, "libcuda.so.1")
	bin = filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(bin+".c", []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-o", bin, bin+".c", "-ldl", "-lpthread")
	return bin, lib
}

// TestRun records a program from its start.
func TestRun(t *testing.T) {
	bin, lib := compileProgram(t)
	s := &sink{t: t}
	o := options(s)
	o.Ptrace = ptrace.Options{Argv: []string{bin, lib}}
	res, err := record.Run(context.Background(), o)
	if err != nil || res.Status.ExitStatus() != 5 {
		t.Fatalf("status %v: %v", res.Status, err)
	}
	s.check()
}

// TestReopen records a program that opens and closes a library, which comes to lie
// at the same place, again and again; with jumps and with breakpoints.
func TestReopen(t *testing.T) {
	lib := driver(t, "libcuda.so.1")
	bin := filepath.Join(t.TempDir(), "reopen")
	const source = `
#include <dlfcn.h>
int main(int argc, char **argv) {
	for (int i = 0; i < 9; i++) {
		void *lib = dlopen(argv[1], RTLD_NOW);
		((int (*)(unsigned))dlsym(lib, "cuInit"))(i);
		dlclose(lib);
	}
	return 0;
}`
	if err := os.WriteFile(bin+".c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-o", bin, bin+".c", "-ldl")
	for _, mode := range []ptrace.SeccompMode{ptrace.SeccompAuto, ptrace.SeccompOff} {
		s := &sink{t: t}
		o := options(s)
		o.Ptrace = ptrace.Options{Argv: []string{bin, lib}, Seccomp: mode}
		if _, err := record.Run(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 9 {
			want = append(want, "cuInit"+string(rune('0'+i)))
		}
		if !slices.Equal(s.calls, want) || s.open != 0 {
			t.Errorf("mode %d: calls %q, %d of them open", mode, s.calls, s.open)
		}
	}
}

// TestProtect records a program that is a loader itself: it maps the library, and makes its
// code executable afterwards, page by page, and more than once.
func TestProtect(t *testing.T) {
	lib := driver(t, "libcuda.so.1")
	bin := filepath.Join(t.TempDir(), "loader")
	const source = `
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int fd = open(argv[1], O_RDONLY);
	static char image[1 << 20];
	long n = read(fd, image, sizeof image);
	Elf64_Ehdr *e = (void *)image;
	Elf64_Phdr *p = (void *)(image + e->e_phoff);
	unsigned long end = 0;
	for (int i = 0; i < e->e_phnum; i++) if (p[i].p_type == PT_LOAD) end = p[i].p_vaddr + p[i].p_memsz;
	char *base = mmap(0, end + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < e->e_phnum; i++) if (p[i].p_type == PT_LOAD) {
		unsigned long from = p[i].p_vaddr & -4096, skew = p[i].p_vaddr - from;
		mmap(base + from, p[i].p_filesz + skew, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, p[i].p_offset - skew);
	}
	for (int pass = 0; pass < 3; pass++)
		for (int i = 0; i < e->e_phnum; i++) if (p[i].p_type == PT_LOAD && p[i].p_flags & PF_X)
			for (unsigned long at = p[i].p_vaddr & -4096; at < p[i].p_vaddr + p[i].p_memsz; at += 4096)
				mprotect(base + at, 4096, PROT_READ | PROT_EXEC);
	Elf64_Shdr *s = (void *)(image + e->e_shoff);
	for (int i = 0; i < e->e_shnum; i++) if (s[i].sh_type == SHT_DYNSYM)
		for (Elf64_Sym *y = (void *)(image + s[i].sh_offset); (char *)y < image + s[i].sh_offset + s[i].sh_size; y++)
			if (!strcmp(image + s[s[i].sh_link].sh_offset + y->st_name, "cuInit")) {
				((int (*)(unsigned))(base + y->st_value))(0);
				return n < 0;
			}
	return 9;
}`
	if err := os.WriteFile(bin+".c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-o", bin, bin+".c")
	for _, mode := range []ptrace.SeccompMode{ptrace.SeccompAuto, ptrace.SeccompOff} {
		s := &sink{t: t}
		o := options(s)
		o.Ptrace = ptrace.Options{Argv: []string{bin, lib}, Seccomp: mode}
		res, err := record.Run(context.Background(), o)
		if err != nil || res.Status != 0 {
			t.Fatalf("status %v: %v", res.Status, err)
		}
		if !slices.Equal(s.calls, []string{"cuInit0"}) || s.open != 0 {
			t.Errorf("mode %d: calls %q, %d of them open", mode, s.calls, s.open)
		}
	}
}

// interrupted calls then when a process that was there before has been interrupted, by
// which the handlers before it have hooked its libraries.
type interrupted struct{ then func() }

func (h *interrupted) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }
func (h *interrupted) Exit(*ptrace.Task, *ptrace.Syscall)                 {}

func (h *interrupted) Task(task *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskNew && e.Attached && task.TID == task.PID {
		task.Interrupt(func(*ptrace.Task) { h.then() })
	}
}

// TestAttach records a program whose libraries are there already.
func TestAttach(t *testing.T) {
	bin, lib := compileProgram(t)
	flag := filepath.Join(t.TempDir(), "go")
	cmd := exec.Command(bin, lib, flag)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has what it will call
		t.Fatal(err)
	}
	s := &sink{t: t}
	o := options(s)
	extend := o.Extend
	o.Extend = func(r *record.Recorder) ([]record.Extension, error) {
		list, err := extend(r)
		return append(list, record.Extension{Handler: &interrupted{then: func() {
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Error(err)
			}
		}}}), err
	}
	if _, err := record.Attach(need.Limit(t), cmd.Process.Pid, o); err != nil {
		t.Fatal(err)
	}
	s.check()
}

// TestStatic records a program that the runtime is linked into, and that has been stripped.
func TestStatic(t *testing.T) {
	nvcc := need.Tool(t, "nvcc", "NVTRACE_NVCC")
	dir := t.TempDir()
	src, bin, lib := filepath.Join(dir, "main.c"), filepath.Join(dir, "main"), filepath.Join(filepath.Dir(filepath.Dir(nvcc)), "lib")
	const source = `
int cudaMalloc(void **, unsigned long), cudaGetLastError(void), cudaMemset(void *, int, unsigned long);
int main(void) { void *p; cudaMemset(0, cudaMalloc(&p, 5), 0); return cudaGetLastError() == 0; }`
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-s", "-o", bin, src, "-L"+lib, "-L"+lib+"64", "-lcudart_static", "-lpthread", "-ldl", "-lrt")
	s := &sink{t: t}
	var said []string
	o := &record.Options{Sinks: []record.Sink{s}}
	o.Extend = func(r *record.Recorder) ([]record.Extension, error) {
		tr := New(&Options{
			Libraries: api.Selection(0).With(api.Runtime), Agent: r.Agent(), Report: func(text string) { said = append(said, text) },
		}, record.ExtensionClass)
		return []record.Extension{ioctls.New(r, nil).Extension(), {Rules: tr.Rules(), Handler: tr}}, nil
	}
	o.Ptrace = ptrace.Options{Argv: []string{bin}}
	if _, err := record.Run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if want := []string{"cudaMalloc", "cudaMemset", "cudaGetLastError"}; !slices.Equal(s.calls, want) || s.open != 0 {
		t.Errorf("calls %q, %d of them open; want %q", s.calls, s.open, want)
	}
	if len(said) != 1 || !strings.Contains(said[0], "has the CUDA runtime in it (1") {
		t.Errorf("said %q", said)
	}
}

// opener opens a file for a library.
func opener(name string) func() (*os.File, proc.FileKey, error) {
	return func() (*os.File, proc.FileKey, error) { return proc.OpenRegular(name) }
}
