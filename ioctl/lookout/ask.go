package lookout

import (
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// socket is where a Lookout is asked: the abstract name of a program's.
func socket(pid int32) string { return "@nvtrace-look-" + strconv.Itoa(int(pid)) }

// Ask has the Lookout of a program record what its threads and channels are at, and returns the
// number of the look. It is not ok where none answers in time.
func Ask(pid int32, wait time.Duration) (number int, ok bool) {
	c, err := net.DialTimeout("unix", socket(pid), wait)
	if err != nil {
		return 0, false
	}
	defer c.Close()
	if u, is := c.(*net.UnixConn); !is || !SameUser(u) || c.SetDeadline(time.Now().Add(wait)) != nil {
		return 0, false
	}
	answer, err := io.ReadAll(io.LimitReader(c, 32))
	if err != nil {
		return 0, false
	}
	number, err = strconv.Atoi(string(answer))
	return number, err == nil
}

// SameUser says whether the other side is of this process's user, or root.
func SameUser(c *net.UnixConn) (same bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	})
	return same && err == nil
}
