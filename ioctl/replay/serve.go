package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/rm"
)

// server answers one program. All but the signal forwarding happens on the
// goroutine that calls serve.
type server struct {
	rec     *recording
	child   *ptrace.Child
	opts    *Options
	log     *slog.Logger
	watcher *ioctl.Watcher
	decoder *ioctl.Decoder

	listener int
	files    map[inode]*openFile
	lastFile uint32
	clients  map[uint32]*liveClient
	heads    map[**answer]int
	names    map[uint32]string // of system calls, by number
	virtual  map[string][]byte // files below /proc and /sys that the recording knows
	misses   map[string]int    // index in res.Misses
	abort    *MissError
	res      Result
}

// inode identifies a file.
type inode struct{ dev, ino uint64 }

// maxMisses bounds the misses that are kept.
const maxMisses = 1000

// rules select the calls that can concern a device. Terminal requests are the
// ioctls that ordinary programs make; no driver here has requests of that type.
func rules() []ptrace.Rule {
	return []ptrace.Rule{
		{
			Names: []string{"ioctl"},
			Args:  []ptrace.ArgMatch{{Arg: 1, Op: ptrace.NotEqual, Mask: 0xff00, Value: 'T' << 8, Low: true}},
		},
		{Names: []string{
			"open", "openat", "openat2", "creat",
			"stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
			"getxattr", "lgetxattr", "listxattr", "llistxattr", "mknod", "mknodat", "chmod", "fchmodat", "symlink", "symlinkat",
		}},
	}
}

func newServer(rec *recording, child *ptrace.Child, o *Options, log *slog.Logger) *server {
	return &server{
		rec: rec, child: child, opts: o, log: log,
		watcher:  ioctl.NewWatcher(rec.header.Driver),
		decoder:  ioctl.NewDecoder(&rec.header),
		listener: int(child.Listener.Fd()),
		files:    make(map[inode]*openFile),
		clients:  make(map[uint32]*liveClient),
		heads:    make(map[**answer]int),
		names:    make(map[uint32]string),
		virtual:  rec.virtualFiles(),
		misses:   make(map[string]int),
		res:      Result{PID: child.PID},
	}
}

// serve answers until the program and all its descendants have ended.
func (s *server) serve(ctx context.Context) error {
	runtime.LockOSThread() // sync wake-ups want one thread
	defer runtime.UnlockOSThread()
	setSyncWakeUp(s.listener)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // can't fail: the counter is far from its limit
	})
	defer func() {
		if !stop() {
			<-woken
		}
		unix.Close(wake)
	}()
	fds := []unix.PollFd{
		{Fd: int32(s.listener), Events: unix.POLLIN},
		{Fd: int32(s.child.Pidfd.Fd()), Events: unix.POLLIN},
		{Fd: int32(wake), Events: unix.POLLIN},
	}
	served := false
	for !served || !s.res.Ended {
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("poll the seccomp listener: %w", err)
		}
		if fds[0].Revents&unix.POLLIN != 0 {
			if err := s.receive(); err != nil {
				s.kill()
				return err
			}
		} else if fds[0].Revents != 0 { // hang-up: nobody is left under the filter
			served, fds[0].Fd = true, -1
		}
		if fds[1].Revents != 0 && s.reap() {
			fds[1].Fd = -1
		}
		if fds[2].Revents != 0 {
			fds[2].Fd = -1
			s.kill()
			s.waitDead()
			return context.Cause(ctx)
		}
		if s.abort != nil {
			s.kill()
			s.waitDead()
			return s.abort
		}
	}
	return nil
}

// reap fetches the program's status once it has ended.
func (s *server) reap() bool {
	var ws unix.WaitStatus
	pid, err := unix.Wait4(s.child.PID, &ws, unix.WNOHANG, nil)
	if pid == s.child.PID {
		s.res.Status, s.res.Ended = ws, true
		return true
	}
	if errors.Is(err, unix.ECHILD) { // somebody else in this process waited for it
		s.log.Warn("the program's exit status was taken by another waiter", "pid", s.child.PID)
		s.res.Ended = true
		return true
	}
	return false
}

// kill ends the program. Its descendants lose their listener with us.
func (s *server) kill() {
	_ = unix.PidfdSendSignal(int(s.child.Pidfd.Fd()), unix.SIGKILL, nil, 0) // ESRCH: it ended by itself
}

// waitDead waits for the killed program, whose threads may be waiting for us:
// a kill gets them out of that.
func (s *server) waitDead() {
	for !s.res.Ended {
		fds := []unix.PollFd{{Fd: int32(s.child.Pidfd.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		s.reap()
	}
}

// forwardSignals passes signals on until the returned function is called.
func (s *server) forwardSignals() (stop func()) {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range ch {
			n, ok := sig.(unix.Signal)
			if !ok || (n == unix.SIGINT || n == unix.SIGQUIT) && inForeground() {
				continue // the terminal has sent it to the program, too
			}
			_ = unix.PidfdSendSignal(int(s.child.Pidfd.Fd()), n, nil, 0)
		}
	}()
	return func() {
		signal.Stop(ch)
		close(ch)
		<-done
	}
}

// inForeground reports whether this process is in its terminal's foreground
// process group.
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// task is a thread of the program that waits for an answer.
type task struct {
	tid int
	pid int // 0 until asked for
}

// process returns the id of the task's process.
func (t *task) process() int {
	if t.pid == 0 {
		t.pid = t.tid
		if pid, ok := proc.StatusNumber(t.tid, "Tgid"); ok {
			t.pid = pid
		}
	}
	return t.pid
}

// reply is the answer to a notification. The zero reply lets the call run.
type reply struct {
	done   bool
	ret    int64 // negative errno on failure
	fd     int   // a descriptor to hand over instead of ret; closed afterwards
	mode   uint32
	commit func() // called when the reply has reached the program; may be nil
	undo   func() // called when it has not, since a signal interrupted the call; may be nil
}

func answered(ret int64) reply { return reply{done: true, ret: ret, fd: -1} }

// receive takes one notification and answers it. An error means that nothing
// can be answered any more.
func (s *server) receive() error {
	var n notification
	if _, e := ioctlPtr(s.listener, ioctlRecv, &n); e != 0 {
		if e == unix.ENOENT {
			return nil // the task was killed, or a signal came first
		}
		return fmt.Errorf("seccomp: receive a notification: %w", e)
	}
	r := s.dispatch(&n)
	var e unix.Errno
	switch {
	case !r.done:
		_, e = ioctlPtr(s.listener, ioctlSend, &response{id: n.id, flags: respContinue})
	case r.fd >= 0:
		e = s.hand(&n, &r)
	case r.ret < 0 && r.ret > -4096:
		_, e = ioctlPtr(s.listener, ioctlSend, &response{id: n.id, err: int32(r.ret)})
	default:
		_, e = ioctlPtr(s.listener, ioctlSend, &response{id: n.id, val: r.ret})
	}
	switch e {
	case 0:
		if r.commit != nil {
			r.commit()
		}
	case unix.ENOENT, unix.EINPROGRESS: // the call was interrupted, or the task died: it comes again, or never
		if r.undo != nil {
			r.undo()
		}
	default:
		return fmt.Errorf("seccomp: answer call %d of thread %d: %w", n.nr, n.pid, e)
	}
	return nil
}

// hand answers with a new descriptor in the program. What keeps the program
// from having one (EMFILE) is the call's error.
func (s *server) hand(n *notification, r *reply) unix.Errno {
	defer unix.Close(r.fd)
	_, e := ioctlPtr(s.listener, ioctlAddFD, &addFD{id: n.id, flags: addFDSend, srcFD: uint32(r.fd), newMode: r.mode})
	if e == 0 || e == unix.ENOENT || e == unix.EINPROGRESS {
		return e
	}
	r.commit = nil
	_, e = ioctlPtr(s.listener, ioctlSend, &response{id: n.id, err: -int32(e)})
	return e
}

// valid reports whether the task still waits: what was read from its memory
// and from /proc was its own, and not another's that was given its number.
func (s *server) valid(n *notification) bool {
	id := n.id
	_, e := ioctlPtr(s.listener, ioctlIDValid, &id)
	return e == 0
}

// dispatch decides what a call gets.
func (s *server) dispatch(n *notification) reply {
	t := &task{tid: int(n.pid)}
	name, ok := s.names[uint32(n.nr)]
	if !ok {
		name = ptrace.SyscallName(n.arch, uint64(n.nr))
		s.names[uint32(n.nr)] = name
	}
	if name == "ioctl" {
		return s.ioctl(n, t)
	}
	return s.path(n, t, name)
}

// ioctl answers an ioctl on a device file.
func (s *server) ioctl(n *notification, t *task) reply {
	f := s.fileOf(t, int32(uint32(n.args[0])))
	if f == nil {
		return reply{}
	}
	q := s.ask(t, f, n.args)
	if !s.valid(n) {
		return reply{}
	}
	if i := q.faulty(); i >= 0 {
		// The driver copies all it needs before it does anything.
		if i > q.arg && s.refuse(q, statusInvalidAddress) {
			return answered(0)
		}
		return answered(-int64(unix.EFAULT))
	}
	m := s.find(q)
	a := m.answer
	if a == nil || m.how == inexact && s.opts.Strict {
		return s.miss(q, m)
	}
	h := s.newHandle(q, a)
	r := answered(a.ret)
	var writes []write
	r.undo = func() {
		for _, w := range writes {
			_ = t.writeMem(w.addr, w.old) // it fails if the task is gone
		}
	}
	for _, w := range s.compose(q, a, h) {
		if err := t.writeMem(w.addr, w.data); err != nil {
			s.log.Debug("can't write an answer", "error", err)
			r.undo()
			return answered(-int64(unix.EFAULT))
		}
		writes = append(writes, w)
	}
	r.commit = func() {
		s.commit(q, a, h)
		s.count(q, m)
	}
	return r
}

// count does the statistics of an answered call.
func (s *server) count(q *question, m match) {
	a := m.answer
	s.res.Answered++
	switch m.how {
	case repeated:
		s.res.Repeated++
	case inexact:
		s.res.Inexact++
		if q.ev.Ret = a.ret; a.ret < 0 {
			q.call.Errno = int32(-a.ret)
		}
		if at := s.statusAt(q); at >= 0 && q.arg < len(a.parts) {
			q.call.Status, q.call.HasStatus = rm.Status(word(a.parts[q.arg].out, at)), true
		}
		s.note(q, fmt.Sprintf("answered from event %d, %s", a.index, m.why()), true)
	}
	s.log.Debug("answered", "tid", q.task.tid, "event", a.index, "quality", m.how, "result", a.ret)
}

// why says what is inexact about a match.
func (m *match) why() string {
	where, what := "", ""
	if m.elsewhere {
		where = "on another object"
	}
	switch {
	case m.diff == 1:
		what = "whose input differs in 1 word"
	case m.diff > 1:
		what = fmt.Sprintf("whose input differs in %d words", m.diff)
	}
	if where != "" && what != "" {
		where += ", "
	}
	return where + what
}

// Statuses of the resource manager (nvstatuscodes.h).
const (
	statusInvalidAddress = 0x1e // NV_ERR_INVALID_ADDRESS
	statusNotSupported   = 0x56 // NV_ERR_NOT_SUPPORTED
)

// miss answers a call that the recording has no answer for; near is the
// closest that it has.
func (s *server) miss(q *question, near match) reply {
	reason := "not in the recording"
	switch {
	case near.answer != nil:
		reason = fmt.Sprintf("not in the recording like this (nearest is event %d, %s)", near.answer.index, near.why())
	case q.subject != nil && s.rec.asked(q.id):
		reason = "not in the recording with parameters of this size"
	}
	r := answered(-int64(unix.ENOTTY))
	if s.opts.OnMiss == MissStatus && s.refuse(q, statusNotSupported) {
		r = answered(0)
		q.call.Status, q.call.HasStatus = statusNotSupported, true
	} else {
		q.call.Errno = int32(unix.ENOTTY)
	}
	q.ev.Ret = r.ret
	r.commit = func() {
		s.res.Missed++
		m := s.note(q, reason, false)
		if s.opts.OnMiss == MissAbort {
			s.abort = &MissError{m}
		}
	}
	return r
}

// refuse writes a status to the call's argument; false if it has none.
func (s *server) refuse(q *question, status byte) bool {
	at := s.statusAt(q)
	return at >= 0 && q.task.writeMem(q.parts[q.arg].addr+uint64(at), []byte{status, 0, 0, 0}) == nil
}

// statusAt returns the offset of the status in the call's argument, -1 if it
// has none.
func (s *server) statusAt(q *question) int {
	if len(q.call.Parts) <= q.arg {
		return -1
	}
	p := &q.call.Parts[q.arg]
	at := s.rec.layouts.statusOffset(p.Struct)
	if p.Array || at+4 > len(p.In) {
		return -1
	}
	return at
}

// asked reports whether the recording has the call with parameters of another size.
func (r *recording) asked(id ident) bool {
	for _, a := range r.answers {
		if a.id.dev == id.dev && a.id.req == id.req && a.id.sub == id.sub {
			return true
		}
	}
	return false
}

// note keeps a miss for the report.
func (s *server) note(q *question, reason string, inexact bool) Miss {
	line := s.decoder.AppendCall(nil, &q.ev, &q.call, &ioctl.LineOptions{Clock: ioctl.ClockNone, NoPID: true})
	return s.noteLine(string(bytes.TrimSpace(line)), reason, inexact)
}

func (s *server) noteLine(line, reason string, inexact bool) Miss {
	m := Miss{Line: line, Reason: reason, Count: 1, Inexact: inexact}
	k := line + "\x00" + reason
	if i, ok := s.misses[k]; ok {
		s.res.Misses[i].Count++
		return s.res.Misses[i]
	}
	if len(s.res.Misses) < maxMisses {
		s.misses[k] = len(s.res.Misses)
		s.res.Misses = append(s.res.Misses, m)
	}
	return m
}

// finish returns the result.
func (s *server) finish() Result {
	for _, a := range s.rec.answers {
		if !a.used {
			s.res.Unused++
		}
	}
	return s.res
}

var _ ioctl.Memory = (*task)(nil)
