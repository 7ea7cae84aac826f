package dso_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
)

// handler checks each event of a program.
type handler struct {
	dso.Watcher
	t      *testing.T
	events map[string][]dso.Why // by the base name of the file
	looked map[string]bool      // files of which a function's code was compared
}

// mapped compares a function's code in the process with that in the file.
func (h *handler) mapped(t *ptrace.Task, e *dso.Event) {
	for _, m := range e.Files() {
		name := filepath.Base(m.Path)
		h.events[name] = append(h.events[name], e.Why)
		file, key, err := m.Open()
		if err != nil {
			h.t.Errorf("%s: %v", m.Path, err)
			continue
		}
		f, err := dso.Read(file)
		if err != nil || m.Inode != 0 && key.Inode != m.Inode {
			h.t.Errorf("%s, inode %d: %v", m.Path, key.Inode, err)
			continue
		}
		bias, ok := f.Bias(&m.Mapping)
		if !ok {
			h.t.Errorf("%s: +%#x is in no segment", m.Path, m.Offset)
		}
		starts, _ := f.Starts()
		for _, addr := range starts {
			off, ok := f.Offset(addr)
			if !ok {
				continue
			}
			at, ok := m.Addr(off, 16)
			if !ok {
				continue
			}
			want, got := make([]byte, 16), make([]byte, 16)
			if at != bias+addr {
				h.t.Errorf("%s: %#x is at %#x or %#x", m.Path, addr, at, bias+addr)
			}
			if err := f.ReadAt(want, addr); err != nil {
				break // the last of the file
			}
			if n, err := t.ReadMem(at, got); n < len(got) || !bytes.Equal(got, want) {
				h.t.Errorf("%s: %x at %#x, want %x: %v", m.Path, got[:n], at, want, err)
			}
			h.looked[name] = true
			break
		}
		file.Close()
	}
}

const program = `
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int fd = open(argv[1], O_RDONLY);
	void *p = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (mprotect(p, 4096, PROT_READ | PROT_EXEC)) return 2;
	mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	write(1, "r", 1);
	char c;
	return read(0, &c, 1) < 0;
}
`

// build compiles the program, and copies it for its own use.
func build(t *testing.T) (prog, data string) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	prog, data = filepath.Join(dir, "program"), filepath.Join(dir, "data")
	if err := os.WriteFile(prog+".c", []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("gcc", "-w", "-o", prog, prog+".c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	b, err := os.ReadFile(prog)
	if err == nil {
		err = os.WriteFile(data, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return prog, data
}

func newHandler(t *testing.T) *handler {
	h := &handler{t: t, events: make(map[string][]dso.Why), looked: make(map[string]bool)}
	h.Mapped = h.mapped
	return h
}

// TestWatcher: a program and its libraries are reported when they are mapped, and a file when its
// mapping is made executable.
func TestWatcher(t *testing.T) {
	t.Parallel()
	prog, data := build(t)
	h := newHandler(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	res, err := ptrace.Run(need.Limit(t), &ptrace.Options{Argv: []string{prog, data}, Rules: h.Rules(), Stdin: null, Stdout: null}, h)
	if err != nil || res.Status.ExitStatus() != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	for name, want := range map[string][]dso.Why{"program": {dso.ByExec}, "libc.so.6": {dso.ByMap}, "data": {dso.ByProtect}} {
		if got := h.events[name]; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v of %v", name, got, want, h.events)
		}
	}
	if !h.looked["program"] || !h.looked["libc.so.6"] {
		t.Errorf("no code was compared but of %v", h.looked)
	}
}

// TestAttached: what a program has mapped before is reported once.
func TestAttached(t *testing.T) {
	t.Parallel()
	prog, data := build(t)
	h := newHandler(t)
	cmd := exec.Command(prog, data)
	cmd.Stderr = os.Stderr
	in, out := testprog.Start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	done := h.Mapped
	h.Mapped = func(task *ptrace.Task, e *dso.Event) {
		done(task, e)
		in.Close()
	}
	if _, err := ptrace.Attach(need.Limit(t), cmd.Process.Pid, &ptrace.Options{Rules: h.Rules()}, h); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"program", "libc.so.6", "data"} {
		if got := h.events[name]; !slices.Equal(got, []dso.Why{dso.Attached}) {
			t.Errorf("%s: %v of %v", name, got, h.events)
		}
	}
}
