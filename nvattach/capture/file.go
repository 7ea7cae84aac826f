package capture

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// pathArg is a file that a program names to a loader.
type pathArg struct {
	name string // as given
	file *os.File
	key  proc.FileKey
	fd   int64 // descriptor in the program that a replacement is in; -1: none
}

// maxPath is PATH_MAX.
const maxPath = 4096

// openInTask opens the file that the string at addr names as the task would: with
// its root, working directory and rights.
func openInTask(t *ptrace.Task, addr uint64) (*os.File, proc.FileKey, string, error) {
	at := int64(unix.AT_FDCWD)
	fd, err := t.Syscall(unix.SYS_OPENAT, uint64(at), addr, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, proc.FileKey{}, "", err
	}
	link := proc.FD(t.TID, int32(fd))
	f, key, err := proc.OpenRegular(link)
	path, _ := os.Readlink(link)
	if _, e := t.Syscall(unix.SYS_CLOSE, uint64(fd)); err == nil && e != nil {
		err = e
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, proc.FileKey{}, "", err
	}
	return f, key, path, nil
}

// replaceFile gives the loader the path of another file: one in memory, which is
// open in the program while the call lasts.
func (c *Capture) replaceFile(t *ptrace.Task, k *call, image []byte) error {
	place, err := c.room(t, alignBytes, true)
	if err != nil {
		return err
	}
	k.place = place
	if err := place.write(place.memory(t), 0, []byte("nvtrace\x00")); err != nil {
		return err
	}
	var fd int64
	err = proc.WithoutExec(unix.MFD_CLOEXEC, func(flags int) (err error) {
		fd, err = t.Syscall(unix.SYS_MEMFD_CREATE, place.base, uint64(flags))
		return err
	})
	if err != nil {
		return fmt.Errorf("memfd_create in %d: %w", t.PID, err)
	}
	k.path.fd = fd
	out, err := os.OpenFile(proc.FD(t.TID, int32(fd)), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = out.Write(image)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	name := "/proc/self/fd/" + strconv.FormatInt(fd, 10) + "\x00"
	if err := place.write(place.memory(t), 0, []byte(name)); err != nil {
		return err
	}
	c.author.stats.Replaced++
	return c.pass(t, k, place.base)
}
