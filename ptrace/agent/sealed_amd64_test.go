package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// TestSealed: nobody can shorten the memory that the program shares with this process,
// which would die of SIGBUS at its next look.
func TestSealed(t *testing.T) {
	bin := compile(t, "testdata/hooks.c")
	tr := newTracer(t)
	shared, tried := 0, 0
	tr.mark = func(task *ptrace.Task, c *ptrace.Syscall) {
		p, err := tr.a.Process(task)
		if err == nil {
			err = p.Hook(task, c.Args[3], &Hook{Name: "fib"})
		}
		if err != nil {
			t.Error(err)
			return
		}
		maps, err := proc.Maps(task.PID)
		if err != nil {
			t.Error(err)
			return
		}
		for i := range maps {
			m := &maps[i]
			if !strings.Contains(m.Path, "memfd:nvtrace") {
				continue
			}
			shared++
			file, err := os.OpenFile(fmt.Sprintf("/proc/%d/map_files/%x-%x", task.PID, m.Start, m.End), os.O_RDWR, 0)
			if errors.Is(err, fs.ErrPermission) {
				continue
			}
			if err != nil {
				t.Error(err)
				continue
			}
			tried++
			if err := file.Truncate(0); !errors.Is(err, unix.EPERM) {
				t.Errorf("shared memory at %#x was cut off: %v", m.Start, err)
			}
			file.Close()
		}
	}
	if out := tr.run(bin, "fib"); out != "fib 987\n" {
		t.Error(out)
	}
	if shared == 0 {
		t.Error("no shared memory was found")
	}
	if tried == 0 {
		need.Missing(t, "root", "needs root to open what another process has mapped")
	}
}

// TestOpenMemory: what is no memory that was just made is not taken for it.
func TestOpenMemory(t *testing.T) {
	made := func(flags int) int {
		fd, err := unix.MemfdCreate("test", flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("something"); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, fd := range map[string]int{"a file": int(file.Fd()), "a pipe": int(r.Fd()), "sealed memory": made(unix.MFD_CLOEXEC)} {
		if f, err := openMemory(os.Getpid(), uint64(fd), 4096); err == nil {
			f.Close()
			t.Errorf("%s was taken", name)
		}
	}
	if st, err := file.Stat(); err != nil || st.Size() != 9 {
		t.Errorf("the file was changed: %v, %v", st, err)
	}
	f, err := openMemory(os.Getpid(), uint64(made(unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)), 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("it was cut off: %v", err)
	}
}

// TestOpenNotExecutable: memory that can't be executed, as the kernel makes it where vm.memfd_noexec is 1, is
// what the process has just made.
func TestOpenNotExecutable(t *testing.T) {
	fd, err := unix.MemfdCreate("nvtrace", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		t.Skip("the kernel has no such memory")
	}
	defer unix.Close(fd)
	f, err := openMemory(os.Getpid(), uint64(fd), 4096)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
