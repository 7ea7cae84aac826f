package remote_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/remote"
)

const program = `
int door(int n) { return n + 1; }
void store(long *out, const char *text) { long n = 0; while (text[n]) n++; out[511] = n; }
int deep(int n) { volatile char room[1 << 16]; room[0] = n; return n ? deep(n - 1) + room[0] : 7; }
int main(void) { return door(40) == 41 ? 0 : 1; }
`

// TestScratch has a program call functions of its own, one of which takes much stack, and go on as if
// nothing had been.
func TestScratch(t *testing.T) {
	t.Parallel()
	need.Tool(t, "gcc", "")
	prog := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(prog+".c", []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("gcc", "-O0", "-rdynamic", "-o", prog, prog+".c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	addrs := make(map[string]uint64)
	var done bool
	var remoteBase uint64
	var s remote.Scratch
	finish := func(task *ptrace.Task) {
		if err := s.Unmap(task); err != nil || s.Mapped() {
			t.Error(err)
		}
		if n, err := task.ReadMem(remoteBase, make([]byte, 8)); err == nil {
			t.Errorf("%d bytes are there after Unmap", n)
		}
		done = true
		task.Release(nil)
	}
	deep := func(task *ptrace.Task) {
		err := s.Call(task, addrs["deep"], []uint64{16}, func(task *ptrace.Task, ret uint64, err error) {
			if int32(ret) != 7+16*17/2 || err != nil || task.Calling() {
				t.Errorf("deep: %d, %v", int32(ret), err)
			}
			finish(task)
		})
		if err != nil || !task.Calling() {
			t.Error(err)
		}
	}
	work := func(task *ptrace.Task) {
		var err error
		if s, err = remote.Map(task); err != nil {
			t.Error(err)
			return
		}
		remoteBase = s.Word(0)
		maps, err := proc.Maps(task.PID)
		if m := proc.At(maps, s.Base()); err != nil || m == nil || m.Access() != "---" {
			t.Errorf("the stack has no end: %+v, %v", m, err)
		}
		text := append(bytes.Repeat([]byte("x"), remote.StageBytes-1), 0)
		if _, err := task.WriteMem(s.Stage(), text); err != nil {
			t.Error(err)
		}
		err = s.Call(task, addrs["store"], []uint64{s.Word(0), s.Stage()}, func(task *ptrace.Task, _ uint64, err error) {
			var b [8]byte
			_, rerr := task.ReadMem(s.Word(remote.Words-1), b[:])
			if err != nil || rerr != nil || !bytes.Equal(b[:], []byte{0xff, 0xff, 0xf, 0, 0, 0, 0, 0}) {
				t.Errorf("store: %x, %v, %v", b, err, rerr)
			}
			deep(task)
		})
		if err != nil {
			t.Error(err)
		}
	}
	w := &dso.Watcher{Mapped: func(task *ptrace.Task, e *dso.Event) {
		for _, m := range e.Files() {
			if m.Path != prog {
				continue
			}
			file, _, err := m.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			f, err := dso.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			bias, _ := f.Bias(&m.Mapping)
			found, _ := f.Lookup("door", "store", "deep")
			for name, x := range found {
				addrs[name] = bias + x.Addr
			}
			if _, err := task.SetBreakpoint(addrs["door"], func(task *ptrace.Task, _ *ptrace.Breakpoint) {
				task.Hold()
				task.Interrupt(work)
			}); err != nil {
				t.Error(err)
			}
		}
	}}
	res, err := ptrace.Run(need.Limit(t), &ptrace.Options{Argv: []string{prog}, Rules: w.Rules()}, w)
	if err != nil || res.Status != unix.WaitStatus(0) || !done {
		t.Errorf("%+v, %v, all calls made: %t", res, err, done)
	}
}
