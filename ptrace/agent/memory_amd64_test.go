package agent

import (
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// strict is /proc/PID/mem of a kernel that lets nobody override the protection of
// memory (proc_mem.force_override=never).
type strict struct {
	memory
	pid     int
	refused int
}

func (m *strict) WriteAt(b []byte, addr int64) (int, error) {
	maps, err := proc.Maps(m.pid)
	if err != nil {
		return 0, err
	}
	if at := proc.At(maps, uint64(addr)); at != nil && !at.Write {
		m.refused++
		return 0, unix.EIO
	}
	return m.memory.WriteAt(b, addr)
}

// TestStrictMemory: hooks are set where /proc/PID/mem writes no code.
func TestStrictMemory(t *testing.T) {
	tr := newTracer(t)
	var m *strict
	tr.mark = func(tk *ptrace.Task, c *ptrace.Syscall) {
		p, err := tr.a.Process(tk)
		if err != nil {
			t.Fatal(err)
		}
		m = &strict{memory: p.mem, pid: tk.PID}
		p.mem = m
		if err := p.Hook(tk, c.Args[3], &Hook{Name: "fib"}); err != nil {
			t.Error(err)
		}
	}
	if out := tr.run(compile(t, "testdata/hooks.c"), "fib"); out != "fib 987\n" {
		t.Error(out)
	}
	if calls, returns, _ := tr.nesting(); calls != 3193 || returns != calls || m.refused == 0 {
		t.Errorf("%d calls, %d returns; %d writes of code refused", calls, returns, m.refused)
	}
}
