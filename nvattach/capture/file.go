package capture

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
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

const pageSize = 4096

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

// loadFile captures an image in a file. The driver opens it itself, so that errors
// are its own; when it has returned, the same name must still lead to the same
// file in the same state.
func (c *Capture) loadFile(t *ptrace.Task, th *thread, k *call) {
	retry := th.retry != nil
	th.retry = nil
	k.caller = c.callerAlone(t, k)
	c.onReturn(t, th, k, c.loaded)
	addr := k.arg(t, k.h.fn.image)
	k.path = &pathArg{fd: -1}
	k.path.name, k.err = t.ReadString(addr, maxPath)
	if k.err != nil {
		return
	}
	f, key, path, err := openInTask(t, addr)
	if err != nil {
		k.err = fmt.Errorf("%s: %w", k.path.name, err)
		return
	}
	k.path.file, k.path.key, k.watch = f, key, true
	if key.Size > c.o.MaxImage {
		k.err = fmt.Errorf("%s: %d bytes: %w of %d", path, key.Size, fatbin.ErrTooLarge, c.o.MaxImage)
		return
	}
	p := &part{size: key.Size, format: sniff(f, key.Size), file: path}
	k.parts = []*part{p}
	replace := c.o.Replace != nil && !retry && !k.nested
	work := func() []byte {
		p.sum, p.kept, p.stored, k.err = copyImage(c.o.Store, f, p.size, p.text(k), nil)
		if replace && k.err == nil {
			return c.replacement(t.PID, t.TID, k)
		}
		return nil
	}
	if !replace && p.size <= inlineBytes {
		work()
		return
	}
	c.aside(t, k, work, func(t *ptrace.Task, k *call, image []byte) {
		if image == nil {
			return
		}
		if err := c.replaceFile(t, k, image); err != nil {
			k.given = ""
			c.note(t, "image %.12s could not be replaced: %v", p.sum, err)
		}
	})
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

// closePath ends what a call with a path needed, and makes sure that the driver
// saw the file that was captured.
func (c *Capture) closePath(t *ptrace.Task, k *call, result int32) {
	if k.path == nil || k.path.file == nil {
		return
	}
	k.path.file.Close()
	k.path.file = nil
	if k.path.fd >= 0 {
		_, _ = t.Syscall(unix.SYS_CLOSE, uint64(k.path.fd)) // it may have been closed by the program
		return
	}
	if result != 0 {
		return
	}
	name, err := t.ReadString(k.arg(t, k.h.fn.image), maxPath)
	if err != nil || name != k.path.name {
		c.gap(t, "the path %q changed while %s of process %d used it", k.path.name, k.h.name(), t.PID)
		return
	}
	f, key, _, err := openInTask(t, k.arg(t, k.h.fn.image))
	if err == nil {
		f.Close()
	}
	if err != nil || key != k.path.key {
		c.gap(t, "%s changed while %s of process %d read it", k.path.name, k.h.name(), t.PID)
	}
}
