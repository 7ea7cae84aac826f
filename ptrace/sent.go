package ptrace

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Signals that are sent to this process are caught by a handler of our own, since Go's
// tells neither who has sent one nor how, and takes those for faults of this process that
// mean one (SIGSEGV) or ends it with a crash report (SIGABRT). It writes what it is told to
// a pipe.

// Of si_code (asm-generic/siginfo.h): a signal sent by kill(2).
const siUser = 0

// siginfoSize is the size of the kernel's siginfo_t.
const siginfoSize = 128

// catcher has the handler installed for as long as anybody wants a signal.
var catcher struct {
	mu    sync.Mutex
	users []*signals
	pipe  int                       // what the handler writes is read here
	old   map[unix.Signal]sigaction // what the handler stands in place of
}

// What the handler reads.
var (
	sentPipe  int32   = -1 // its end of the pipe, which stays open
	goHandler uintptr      // of the runtime
	faultSet  = uint64(1<<unix.SIGSEGV | 1<<unix.SIGBUS | 1<<unix.SIGILL | 1<<unix.SIGFPE | 1<<unix.SIGTRAP | 1<<unix.SIGSYS)
)

// Assembly reads them, which the linters don't see.
var _, _ = &goHandler, &faultSet

// add has the signals that s wants caught. Those that were ignored when this process
// started stay so.
func (s *signals) add() error {
	c := &catcher
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.users, s) {
		return nil
	}
	if sentPipe < 0 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		sentPipe, c.old = int32(p[1]), make(map[unix.Signal]sigaction)
		c.pipe = p[0]
		go readSent(os.NewFile(uintptr(p[0]), "signals"))
	}
	for _, sig := range s.want {
		const ignored = 1 // SIG_IGN
		var act sigaction
		if _, ok := c.old[sig]; ok || rtSigaction(sig, nil, &act) != 0 || act.handler <= ignored {
			continue
		}
		c.old[sig], goHandler = act, act.handler
		act.handler = onSignalPC()
		rtSigaction(sig, &act, nil)
	}
	c.users = append(c.users, s)
	return nil
}

// remove ends that.
func (s *signals) remove() {
	c := &catcher
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users = slices.DeleteFunc(c.users, func(o *signals) bool { return o == s })
	for sig, act := range c.old {
		if !slices.ContainsFunc(c.users, func(o *signals) bool { return slices.Contains(o.want, sig) }) {
			rtSigaction(sig, &act, nil)
			delete(c.old, sig)
		}
	}
}

// readSent waits for what the handler writes.
func readSent(pipe *os.File) {
	c, err := pipe.SyscallConn()
	if err != nil {
		return // can't be: it is open, and stays so
	}
	_ = c.Read(func(uintptr) bool {
		catcher.mu.Lock()
		defer catcher.mu.Unlock()
		drain()
		return false // wait for more
	})
}

// drain gives all signals that were written to all who want them. The caller holds
// catcher.mu.
func drain() (n int) {
	var b [siginfoSize]byte
	for {
		k, err := unix.Read(catcher.pipe, b[:])
		if err == unix.EINTR {
			continue
		}
		if k < len(b) {
			return n
		}
		n++
		ne := binary.NativeEndian
		got := sent{unix.Signal(ne.Uint32(b[:])), int32(ne.Uint32(b[8:])), int32(ne.Uint32(b[16:]))}
		if got.code > siUser { // by the kernel: there is no process in it
			got.from = 0
		}
		for _, s := range catcher.users {
			if slices.Contains(s.want, got.sig) {
				s.batch = append(s.batch, got)
				select {
				case s.ch <- got.sig:
				default: // it knows that there is something
				}
			}
		}
	}
}

// collect takes what is known of a signal that this process has got. It returns false if
// there is more that is not known yet: what waits, or what the handler is about to write.
func (s *signals) collect(sig unix.Signal) (list []sent, all bool) {
	set, ok := signalSet(os.Getpid(), "ShdPnd")
	all = ok && set&signalBit(sig) == 0 && !handling()
	catcher.mu.Lock()
	defer catcher.mu.Unlock()
	drain()
	s.batch = slices.DeleteFunc(s.batch, func(g sent) bool {
		if g.sig == sig {
			list = append(list, g)
		}
		return g.sig == sig
	})
	return list, all
}

// waits says whether one of the signals is there that no thread has taken yet.
func (s *signals) waits() bool {
	set, _ := signalSet(os.Getpid(), "ShdPnd")
	return slices.ContainsFunc(s.want, func(sig unix.Signal) bool { return set&signalBit(sig) != 0 })
}

// handling says whether a thread of this process may be in the handler, while which lasts
// all signals are blocked.
func handling() bool {
	const all = ^uint64(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1))
	tids, err := proc.Threads(os.Getpid())
	if err != nil {
		return true
	}
	for _, tid := range tids {
		if set, ok := signalSet(tid, "SigBlk"); ok && set == all {
			return true
		}
	}
	return false
}

// onSignalPC returns the address of the handler.
func onSignalPC() uintptr
