package record

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// maxPath bounds the path that is read of an open (PATH_MAX); nearly all fit
// into shortPath.
const (
	maxPath   = 4096
	shortPath = 256
)

// recorder turns stops into events. All its methods run on the tracing thread.
type recorder struct {
	opts    *Options
	watcher *ioctl.Watcher
	emit    func(*traces.Event)
	start   int64 // CLOCK_MONOTONIC at time 0

	procs    map[int]*process
	started  bool // the program's first exec was seen
	nextFile uint32
	events   uint64
	bytes    uint64
	path     [maxPath]byte
	scratch  traces.Event
	mem      memory
}

// thread is what the recorder keeps with each ptrace.Task: the event of the
// call that it is in.
type thread struct {
	ev     traces.Event
	class  uint16
	active bool
}

func (r *recorder) thread(t *ptrace.Task) *thread {
	if th, ok := t.Data.(*thread); ok {
		return th
	}
	th := new(thread)
	t.Data = th
	return th
}

func (r *recorder) process(pid int) *process {
	p := r.procs[pid]
	if p == nil {
		p = &process{pid: pid, fds: make(map[int32]*openFile)}
		r.procs[pid] = p
	}
	return p
}

// Enter implements ptrace.Handler.
func (r *recorder) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	th := r.thread(t)
	th.class = c.Class
	var ok bool
	switch c.Class {
	case classIoctl:
		ok = r.enterIoctl(t, th, c)
	case classOpen:
		ok = r.enterOpen(t, th, c)
	case classClose:
		ok = r.enterClose(t, th, c)
	case classDup:
		ok = r.begin(t, th, c, traces.KindDup, int32(uint32(c.Args[0])))
	case classMmap:
		ok = r.begin(t, th, c, traces.KindMmap, int32(uint32(c.Args[4])))
	case classMunmap, classMremap:
		ok = r.enterUnmap(t, th, c)
	}
	th.active = ok
	if !ok {
		return ptrace.Skip
	}
	if c.Class == classIoctl && r.opts.CountsOnly {
		th.active = false
		th.ev.Flags |= traces.FlagNoExit
		r.put(&th.ev)
		return ptrace.Skip
	}
	return ptrace.WantExit
}

// fill starts th's event with what every call has.
func (r *recorder) fill(t *ptrace.Task, th *thread, c *ptrace.Syscall, kind traces.Kind) {
	ev := &th.ev
	ev.Reset()
	ev.Kind, ev.PID, ev.TID = kind, int32(t.PID), int32(t.TID)
	ev.Time, ev.Args = c.Enter-r.start, c.Args
	if c.Compat {
		ev.Flags |= traces.FlagCompat
	}
}

// begin starts the event of a call on a descriptor; false where the descriptor
// is not a device's.
func (r *recorder) begin(t *ptrace.Task, th *thread, c *ptrace.Syscall, kind traces.Kind, fd int32) bool {
	f := r.lookup(t, fd)
	if f == nil {
		return false
	}
	r.fill(t, th, c, kind)
	th.ev.FD = fd
	setFile(&th.ev, f)
	return true
}

func setFile(ev *traces.Event, f *openFile) {
	ev.File, ev.Dev, ev.Rdev = f.id, f.name, f.rdev
}

func (r *recorder) enterIoctl(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	if !r.begin(t, th, c, traces.KindIoctl, int32(uint32(c.Args[0]))) {
		return false
	}
	r.watcher.Enter(&th.ev, r.mem.of(t))
	return true
}

func (r *recorder) enterOpen(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	at := c.Args[0]
	if name := c.Name(); name == "openat" || name == "openat2" {
		at = c.Args[1]
	}
	n, _ := t.ReadMem(at, r.path[:shortPath])
	path, _, whole := bytes.Cut(r.path[:n], []byte{0})
	if !whole && n == shortPath {
		n, _ = t.ReadMem(at, r.path[:])
		path, _, _ = bytes.Cut(r.path[:n], []byte{0})
	}
	if !r.opts.MayBeNode(path) {
		return false
	}
	r.fill(t, th, c, traces.KindOpen)
	th.ev.Path = string(path)
	return true
}

func (r *recorder) enterClose(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	p := r.process(t.PID)
	if c.Name() == "close_range" {
		if len(p.inRange(uint32(c.Args[0]), uint32(c.Args[1]))) == 0 {
			return false
		}
		r.fill(t, th, c, traces.KindClose)
		return true
	}
	f := p.fds[int32(uint32(c.Args[0]))]
	if f == nil {
		return false
	}
	r.fill(t, th, c, traces.KindClose)
	th.ev.FD = int32(uint32(c.Args[0]))
	setFile(&th.ev, f)
	// From the entry on another thread may be given the same number.
	p.forget(th.ev.FD)
	return true
}

func (r *recorder) enterUnmap(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	kind := traces.KindMunmap
	if c.Class == classMremap {
		kind = traces.KindMremap
	}
	if !r.process(t.PID).mapped(c.Args[0], c.Args[1]) {
		return false
	}
	r.fill(t, th, c, kind)
	return true
}

// Exit implements ptrace.Handler.
func (r *recorder) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	th := r.thread(t)
	if !th.active {
		return
	}
	th.active = false
	ev := &th.ev
	ev.Ret, ev.Dur = c.Ret, c.Exit-c.Enter
	if c.Restarted {
		ev.Flags |= traces.FlagRestarted
	}
	switch th.class {
	case classIoctl:
		r.watcher.Exit(ev, r.mem.of(t))
	case classOpen:
		if !r.exitOpen(t, ev) {
			return
		}
	case classClose:
		if c.Name() == "close_range" {
			r.exitCloseRange(t, ev)
			return
		}
	case classDup:
		r.exitDup(t, ev)
	case classMmap:
		if ev.Ret >= 0 || ev.Ret < -4095 {
			r.process(t.PID).addMap(uint64(ev.Ret), ev.Args[1])
		}
	case classMunmap:
		if ev.Ret == 0 {
			r.process(t.PID).dropMap(ev.Args[0], ev.Args[1])
		}
	}
	r.put(ev)
}

// exitOpen enters the new descriptor into the table; false where it is not a
// device's. A failed open is recorded by its path alone.
func (r *recorder) exitOpen(t *ptrace.Task, ev *traces.Event) bool {
	if ev.Ret < 0 {
		return bytes.Contains([]byte(ev.Path), []byte("nvidia")) && len(ev.Path) > 5 && ev.Path[:5] == "/dev/"
	}
	fd := int32(ev.Ret)
	f := r.identify(t.PID, fd)
	if f == nil {
		return false
	}
	ev.FD = fd
	setFile(ev, f)
	r.hold(t, fd, f)
	return true
}

func (r *recorder) exitDup(t *ptrace.Task, ev *traces.Event) {
	if ev.Ret < 0 {
		return
	}
	p := r.process(t.PID)
	if f := p.fds[ev.FD]; f != nil {
		fd := int32(ev.Ret)
		if old := p.fds[fd]; old != nil && fd != ev.FD {
			r.implicitClose(ev, fd, old)
		}
		p.fds[fd] = f
	}
}

func (r *recorder) exitCloseRange(t *ptrace.Task, ev *traces.Event) {
	const closeRangeCloexec = 1 << 2 // include/uapi/linux/close_range.h
	if ev.Ret < 0 || ev.Args[2]&closeRangeCloexec != 0 {
		return
	}
	p := r.process(t.PID)
	for _, fd := range p.inRange(uint32(ev.Args[0]), uint32(ev.Args[1])) {
		f := p.forget(fd)
		ev.FD = fd
		setFile(ev, f)
		r.put(ev)
	}
}

// implicitClose records that a descriptor ended without a close call of its own.
func (r *recorder) implicitClose(at *traces.Event, fd int32, f *openFile) {
	r.scratch = traces.Event{
		Kind: traces.KindClose, Flags: traces.FlagImplicit, PID: at.PID, TID: at.TID,
		Time: at.Time, FD: fd, Args: [6]uint64{uint64(uint32(fd))},
	}
	setFile(&r.scratch, f)
	r.put(&r.scratch)
}

// hold notes that a process holds a device descriptor and, at its first one,
// makes the calls that matter from then on visible.
func (r *recorder) hold(t *ptrace.Task, fd int32, f *openFile) {
	p := r.process(t.PID)
	p.fds[fd] = f
	if p.narrow || p.refused {
		return
	}
	err := t.InjectFilter(nil)
	if errors.Is(err, ptrace.ErrInject) {
		r.note(t, fmt.Sprintf("process %d: every system call stops from here on: %v", t.PID, err))
		err = t.TraceAll(nil)
	}
	if err != nil {
		p.refused = true
		r.note(t, fmt.Sprintf("process %d: close, dup and mmap of device files can't be followed: %v", t.PID, err))
		return
	}
	p.narrow = true
}

// lookup returns the open file behind a descriptor, nil if it is not a device's.
// A descriptor that came in unseen (inherited, SCM_RIGHTS, pidfd_getfd,
// io_uring) is found out here, and recorded as such.
func (r *recorder) lookup(t *ptrace.Task, fd int32) *openFile {
	p := r.process(t.PID)
	f := p.fds[fd]
	if f != nil && p.narrow {
		return f
	}
	rdev, path, ok := r.opts.Stat(t.PID, fd)
	if !ok {
		p.forget(fd)
		return nil
	}
	name, ok := r.opts.NodeName(rdev, path)
	if !ok {
		p.forget(fd)
		return nil
	}
	if f != nil && f.rdev == rdev && f.name == name {
		return f
	}
	f = r.known(t.PID, fd, rdev)
	if f == nil {
		f = r.newFile(name, rdev)
	}
	r.implicitDup(t, fd, f)
	r.hold(t, fd, f)
	return f
}

// identify returns the open file of a descriptor that was just opened, nil if
// it is not a device's.
func (r *recorder) identify(pid int, fd int32) *openFile {
	rdev, path, ok := r.opts.Stat(pid, fd)
	if !ok {
		return nil
	}
	name, ok := r.opts.NodeName(rdev, path)
	if !ok {
		return nil
	}
	return r.newFile(name, rdev)
}

func (r *recorder) newFile(name string, rdev uint64) *openFile {
	r.nextFile++
	return &openFile{id: r.nextFile, name: name, rdev: rdev}
}

// known finds the open file that a descriptor shares with one that was seen
// before, nil if none.
func (r *recorder) known(pid int, fd int32, rdev uint64) *openFile {
	for _, p := range r.procs {
		for other, f := range p.fds {
			if f.rdev == rdev && (p.pid != pid || other != fd) && kcmpFile(pid, fd, p.pid, other) {
				return f
			}
		}
	}
	return nil
}

// implicitDup records a descriptor that appeared without an open or dup.
func (r *recorder) implicitDup(t *ptrace.Task, fd int32, f *openFile) {
	r.scratch = traces.Event{
		Kind: traces.KindDup, Flags: traces.FlagImplicit, PID: int32(t.PID), TID: int32(t.TID),
		Time: r.now(), FD: fd, Ret: int64(fd), Args: [6]uint64{uint64(uint32(fd))},
	}
	setFile(&r.scratch, f)
	r.put(&r.scratch)
}

func (r *recorder) note(t *ptrace.Task, text string) {
	r.scratch = traces.Event{Kind: traces.KindNote, Time: r.now(), FD: -1, Text: text}
	if t != nil {
		r.scratch.PID, r.scratch.TID = int32(t.PID), int32(t.TID)
	}
	r.put(&r.scratch)
}

func (r *recorder) now() int64 { return monotonic() - r.start }

func (r *recorder) put(ev *traces.Event) {
	r.events++
	for i := range ev.Mem {
		r.bytes += uint64(len(ev.Mem[i].In))
	}
	r.emit(ev)
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // can't fail for this clock
	return ts.Nano()
}
