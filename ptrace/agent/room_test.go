package agent

import (
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/testprog"
	"nvtrace/ptrace/proc"
)

// TestLeavesRoom: memory for rings does not take the last of a process's address space.
func TestLeavesRoom(t *testing.T) {
	cmd := exec.Command("cat")
	testprog.Start(t, cmd)
	pid := cmd.Process.Pid
	used := func() uint64 {
		n, err := strconv.ParseUint(proc.Stat(pid, pid, proc.StatSize), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const size = 16 << 20
	if !leavesRoom(pid, size) {
		t.Error("without a limit there is no room")
	}
	for _, tt := range []struct {
		room uint64
		want bool
	}{{size, false}, {3 * size, false}, {16 * size, true}} {
		var limit unix.Rlimit
		err := unix.Prlimit(pid, unix.RLIMIT_AS, nil, &limit)
		if limit.Cur = used() + tt.room; err == nil {
			err = unix.Prlimit(pid, unix.RLIMIT_AS, &limit, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := leavesRoom(pid, size); got != tt.want {
			t.Errorf("%d of %d bytes: %v", size, tt.room, got)
		}
	}
	if !leavesRoom(1<<30, size) {
		t.Error("of no process something is known")
	}
}
