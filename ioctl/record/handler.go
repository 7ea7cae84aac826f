package record

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// maxPath bounds the path that is read of an open (PATH_MAX); nearly all fit
// into shortPath.
const (
	maxPath   = 4096
	shortPath = 256
)

// Recorder turns stops into events. All its methods run on the tracing thread.
type Recorder struct {
	opts    *Options
	rec     *record.Recorder
	agent   *agent.Agent
	threads record.Slot[thread]
	watcher func() *ioctl.Watcher // the first time takes a while
	tables  *rm.ABI               // of the driver as it was then known

	procs    map[int]*process
	started  bool // the program's first exec was seen
	atExec   bool // nothing can be injected now; the next call on a device does it
	nextFile uint32
	path     [maxPath]byte
	scratch  traces.Event
	mem      memory
	fast     fast
	// devices are the names of the device numbers that the agent may open.
	devices map[uint64]string
}

// thread is what the recorder keeps with each ptrace.Task: the event of the
// call that it is in.
type thread struct {
	ev     traces.Event
	class  uint16
	active bool
	file   *openFile  // behind ev.FD; nil: not a device's
	ends   []closedFD // what a call of close or close_range closes
}

// closedFD is a descriptor that a call closes.
type closedFD struct {
	fd   int32
	file *openFile
}

func (r *Recorder) process(pid int) *process {
	p := r.procs[pid]
	if p == nil {
		p = &process{pid: pid, fds: make(map[int32]*openFile)}
		r.procs[pid] = p
	}
	return p
}

// Enter implements ptrace.Handler.
func (r *Recorder) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	th := r.threads.Of(t)
	th.class = c.Class
	if c.Class != classIoctl || !r.current(t.PID, int32(uint32(c.Args[0]))) {
		r.sync(t.PID)
	}
	why := ""
	if r.rec.Explains() {
		why = r.reason(t, c)
	}
	var ok bool
	switch c.Class {
	case classIoctl:
		ok = r.enterIoctl(t, th, c)
	case classOpen:
		ok = r.enterOpen(t, th, c)
	case classClose:
		ok = r.enterClose(t, th, c)
	case classDup:
		ok = r.enterDup(t, th, c)
	case classMmap:
		ok = r.begin(t, th, c, traces.KindMmap, int32(uint32(c.Args[4])))
		if ok && c.Name() == "mmap2" { // counts the offset in units of 4096 bytes
			th.ev.Args[5] <<= 12
		}
	case classMunmap, classMremap:
		ok = r.enterUnmap(t, th, c)
	}
	if ok && r.rec.Explains() {
		if c.Class == classIoctl {
			why += request(&th.ev)
		}
		r.rec.Explain("device" + why)
	}
	th.active = ok
	if !ok {
		r.pass(t, c, true)
		return ptrace.Skip
	}
	if c.Class != classIoctl {
		r.pass(t, c, false)
	}
	if p := r.rec.Agent().Find(t); p != nil {
		p.Touched(t.TID)
	}
	if c.Class == classIoctl && r.opts.CountsOnly {
		th.active = false
		th.ev.Flags |= traces.FlagNoExit
		r.rec.Emit(&th.ev)
		return ptrace.Skip
	}
	return ptrace.WantExit
}

// fill starts th's event with what every call has.
func (r *Recorder) fill(t *ptrace.Task, th *thread, c *ptrace.Syscall, kind traces.Kind) {
	ev := &th.ev
	ev.Reset()
	th.file = nil
	ev.Kind, ev.PID, ev.TID = kind, int32(t.PID), int32(t.TID)
	ev.Time, ev.Args = r.rec.Time(c.Enter), c.Args
	if c.Compat {
		ev.Flags |= traces.FlagCompat
	}
	if r.own(t) {
		ev.Flags |= traces.FlagOwn
	}
}

// own reports whether a call at whose entry a thread is stands in a function that nvtrace calls in it.
func (r *Recorder) own(t *ptrace.Task) bool {
	if t.Calling() {
		return true
	}
	if r.agent == nil {
		return false
	}
	p := r.agent.Find(t)
	return p != nil && p.Timing(t)
}

// begin starts the event of a call on a descriptor; false where the descriptor
// is not a device's.
func (r *Recorder) begin(t *ptrace.Task, th *thread, c *ptrace.Syscall, kind traces.Kind, fd int32) bool {
	f := r.lookup(t, fd)
	if f == nil {
		return false
	}
	r.fill(t, th, c, kind)
	th.ev.FD, th.file = fd, f
	setFile(&th.ev, f)
	return true
}

func setFile(ev *traces.Event, f *openFile) {
	ev.File, ev.Dev, ev.Rdev = f.id, f.name, f.rdev
}

func (r *Recorder) enterIoctl(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	if !r.begin(t, th, c, traces.KindIoctl, int32(uint32(c.Args[0]))) {
		return false
	}
	r.speed(t, r.process(t.PID), c)
	if r.opts.Entered != nil {
		r.opts.Entered(t, "ioctl", th.ev.Time)
	}
	r.watcher().Enter(&th.ev, r.mem.of(t))
	return true
}

func (r *Recorder) enterOpen(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
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

func (r *Recorder) enterClose(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	const closeRangeCloexec = 1 << 2 // include/uapi/linux/close_range.h
	p := r.process(t.PID)
	first, last := uint32(c.Args[0]), uint32(c.Args[0])
	if c.Name() == "close_range" {
		if last = uint32(c.Args[1]); c.Args[2]&closeRangeCloexec != 0 {
			return false // closes nothing yet
		}
	}
	th.ends = th.ends[:0]
	if first == last { // the common case, without a look at all descriptors
		if f := p.fds[int32(first)]; f != nil {
			th.ends = append(th.ends, closedFD{int32(first), f})
		}
	} else {
		for _, fd := range p.inRange(first, last) {
			th.ends = append(th.ends, closedFD{fd, p.fds[fd]})
		}
	}
	if len(th.ends) == 0 {
		return false
	}
	r.withdraw(p, th.ends)
	for _, e := range th.ends {
		p.beginClose(e.fd, th)
	}
	r.fill(t, th, c, traces.KindClose)
	return true
}

// exitClose records what a call closed; also one that will not be seen to
// return.
func (r *Recorder) exitClose(t *ptrace.Task, th *thread) {
	p := r.process(t.PID)
	if p.agent != nil {
		r.rec.Flush() // what got a number meanwhile makes the end known before
	}
	for _, e := range th.ends {
		if p.closing[e.fd] == th {
			delete(p.closing, e.fd)
		}
		th.ev.FD = e.fd
		setFile(&th.ev, e.file)
		r.rec.Emit(&th.ev)
	}
	th.ends = th.ends[:0]
}

// reused makes sure that the end of a descriptor is recorded before its number
// means something else: the call that closed it may be seen to return later than
// the one that got the number, by a call that returned at a time. One that began
// later closes what that call opened.
func (r *Recorder) reused(p *process, fd int32, when int64) {
	by := p.closing[fd]
	if by == nil || by.ev.Time > when {
		return
	}
	delete(p.closing, fd)
	for i, e := range by.ends {
		if e.fd == fd {
			ev := by.ev
			ev.FD, ev.Dur = fd, r.rec.Now()-ev.Time
			setFile(&ev, e.file)
			r.rec.Emit(&ev)
			by.ends = slices.Delete(by.ends, i, i+1)
			return
		}
	}
}

// enterDup also wants to see a dup2 that puts something else in the place of a
// device descriptor.
func (r *Recorder) enterDup(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	r.withdrawTarget(t, c)
	if r.begin(t, th, c, traces.KindDup, int32(uint32(c.Args[0]))) {
		return true
	}
	if name := c.Name(); name != "dup2" && name != "dup3" || r.process(t.PID).fds[int32(uint32(c.Args[1]))] == nil {
		return false
	}
	r.fill(t, th, c, traces.KindDup)
	th.ev.FD = int32(uint32(c.Args[0]))
	return true
}

func (r *Recorder) enterUnmap(t *ptrace.Task, th *thread, c *ptrace.Syscall) bool {
	kind := traces.KindMunmap
	if c.Class == classMremap {
		kind = traces.KindMremap
	}
	p := r.process(t.PID)
	if !p.mapped(c.Args[0], c.Args[1]) {
		return false
	}
	// From the entry on another thread may be given the same addresses.
	p.dropMap(c.Args[0], c.Args[1])
	r.fill(t, th, c, kind)
	return true
}

// failed reports whether the result of a call that returns an address is an
// error.
func failed(ret int64) bool { return ret < 0 && ret >= -4095 }

// Exit implements ptrace.Handler.
func (r *Recorder) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	th := r.threads.Of(t)
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
		r.watcher().Exit(ev, r.mem.of(t))
		r.replan() // it may have told the version
	case classOpen:
		if !r.exitOpen(t, ev) {
			return
		}
	case classClose:
		r.exitClose(t, th)
		return
	case classDup:
		if !r.exitDup(t, th) {
			return
		}
	case classMmap:
		if r.opts.Munmap && !failed(ev.Ret) {
			r.process(t.PID).addMap(uint64(ev.Ret), ev.Args[1])
		}
	case classMremap:
		if !failed(ev.Ret) {
			r.process(t.PID).addMap(uint64(ev.Ret), ev.Args[2])
		}
	}
	r.rec.Emit(ev)
}

// exitOpen enters the new descriptor into the table; false where it is not a
// device's. A failed open is recorded by its path alone.
func (r *Recorder) exitOpen(t *ptrace.Task, ev *traces.Event) bool {
	if ev.Ret < 0 {
		return failedOpen(ev.Path)
	}
	fd := int32(ev.Ret)
	f := r.identify(t.PID, fd)
	if f == nil {
		return false
	}
	ev.FD = fd
	setFile(ev, f)
	r.learn(f.rdev, f)
	r.reused(r.process(t.PID), fd, ev.Time+ev.Dur)
	r.hold(t, fd, f)
	return true
}

// failedOpen says whether an open is recorded although it failed.
func failedOpen(path string) bool {
	return len(path) > 5 && strings.HasPrefix(path, "/dev/") && strings.Contains(path, "nvidia")
}

// exitDup enters the new descriptor into the table. It reports whether the call
// was about a device's descriptor.
func (r *Recorder) exitDup(t *ptrace.Task, th *thread) bool {
	ev := &th.ev
	if ev.Ret < 0 {
		r.restoreTarget(r.process(t.PID), ev)
		return th.file != nil
	}
	p, fd := r.process(t.PID), int32(ev.Ret)
	if old := p.fds[fd]; old != nil && fd != ev.FD {
		p.forget(fd)
		r.implicitClose(ev, fd, old)
	}
	r.reused(p, fd, ev.Time+ev.Dur)
	if th.file != nil { // as it was at entry: another thread may have closed the original
		r.setFD(p, fd, th.file)
	}
	return th.file != nil
}

// implicitClose records that a descriptor ended without a close call of its own.
func (r *Recorder) implicitClose(at *traces.Event, fd int32, f *openFile) {
	r.scratch = traces.Event{
		Kind: traces.KindClose, Flags: traces.FlagImplicit, PID: at.PID, TID: at.TID,
		Time: at.Time, FD: fd, Args: [6]uint64{uint64(uint32(fd))},
	}
	setFile(&r.scratch, f)
	r.rec.Emit(&r.scratch)
}

// hold notes that a process holds a device descriptor and, at its first one,
// makes the calls that matter from then on visible.
func (r *Recorder) hold(t *ptrace.Task, fd int32, f *openFile) {
	r.setFD(r.process(t.PID), fd, f)
	r.narrow(t)
}

// narrow makes the calls that change descriptors visible.
func (r *Recorder) narrow(t *ptrace.Task) {
	p := r.process(t.PID)
	if p.narrow || p.refused || r.atExec {
		return
	}
	err := t.InjectFilter(nil)
	if errors.Is(err, ptrace.ErrInject) {
		r.rec.Note(t, fmt.Sprintf("process %d: every system call stops from here on: %v", t.PID, err))
		err = t.TraceAll(nil)
	}
	if err != nil {
		p.refused = true
		r.rec.Note(t, fmt.Sprintf("process %d: close, dup and mmap of device files can't be followed: %v", t.PID, err))
		return
	}
	p.narrow = true
	r.useAgent(t, p)
}

// lookup returns the open file behind a descriptor, nil if it is not a device's.
// A descriptor that came in unseen (inherited, SCM_RIGHTS, pidfd_getfd,
// io_uring) is found out here, and recorded as such.
func (r *Recorder) lookup(t *ptrace.Task, fd int32) *openFile {
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
		r.narrow(t)
		return f
	}
	if f = p.beingClosed(fd); f != nil && f.rdev == rdev {
		return f // the kernel has not got to it yet
	}
	f = r.known(t.PID, fd, rdev)
	if f == nil {
		f = r.newFile(name, rdev)
	}
	r.reused(p, fd, r.rec.Now())
	r.implicitDup(t, fd, f)
	r.hold(t, fd, f)
	return f
}

// identify returns the open file of a descriptor that was just opened, nil if
// it is not a device's.
func (r *Recorder) identify(pid int, fd int32) *openFile {
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

func (r *Recorder) newFile(name string, rdev uint64) *openFile {
	r.nextFile++
	return &openFile{id: r.nextFile, name: name, rdev: rdev}
}

// known finds the open file that a descriptor shares with one that was seen
// before, nil if none.
func (r *Recorder) known(pid int, fd int32, rdev uint64) *openFile {
	for _, p := range r.procs {
		r.sync(p.pid)
		for other, f := range p.fds {
			if f.rdev == rdev && (p.pid != pid || other != fd) && kcmpFile(pid, fd, p.pid, other) {
				return f
			}
		}
	}
	return nil
}

// implicitDup records a descriptor that appeared without an open or dup.
func (r *Recorder) implicitDup(t *ptrace.Task, fd int32, f *openFile) {
	r.scratch = traces.Event{
		Kind: traces.KindDup, Flags: traces.FlagImplicit, PID: int32(t.PID), TID: int32(t.TID),
		Time: r.rec.Now(), FD: fd, Ret: int64(fd), Args: [6]uint64{uint64(uint32(fd))},
	}
	setFile(&r.scratch, f)
	r.rec.Emit(&r.scratch)
}
