package ptrace

import (
	"os"
	"syscall"
	"unsafe"

	"nvtrace/ptrace/internal/early"

	"golang.org/x/sys/unix"
)

// A child is made by a raw clone, as Go's package syscall does it, since before its
// exec it must wait until it is being traced and install a filter. These are the
// runtime's hooks for that. The hook for the child writes to the runtime's memory,
// which the child shares with this process: dropHandlers takes its place.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// stage is a step of the child's way to its program.
type stage uint32

const (
	stageNone stage = iota
	stageSync
	stageLimit
	stageChdir
	stageDup
	stageNNP
	stageSeccomp
	stageExec
)

var stageNames = [...]string{
	stageNone: "start", stageSync: "sync", stageLimit: "setrlimit", stageChdir: "chdir", stageDup: "dup",
	stageNNP: "no_new_privs", stageSeccomp: "seccomp", stageExec: "exec",
}

// handshake lies in memory that parent and child share, also where they share no
// other, so that the child can report without a system call, which its filter might
// stop.
//
// The child stores with plain instructions: the race detector's atomics could
// wait for a lock that another thread held at the fork. Every word is complete in
// itself, so that order does not matter.
type handshake struct {
	failure  uint32 // errno, and stage << 16
	seccomp  uint32 // errno with which the filter was refused, where that is no failure
	nnp      uint32 // 1: no_new_privs was set
	listener uint32 // the child's descriptor of the listener, plus 1
	fetched  uint32 // set by the parent when it has its own
	released uint32 // set by the parent when the child may go on
}

// sockFprog is struct sock_fprog of linux/filter.h.
type sockFprog struct {
	n      uint16
	_      [6]byte
	filter *Insn
}

// plan is all that the child needs, made before the fork: the child can't
// allocate, lock, grow its stack, or call anything that might.
type plan struct {
	path     *byte
	dir      *byte // nil: stay
	argv     **byte
	envv     **byte
	fds      []int32 // what becomes descriptor i; -1: as it is
	limit    *early.Rlimit
	prog     *sockFprog // nil: no filter
	flags    uintptr    // of seccomp
	optional bool       // go on without the filter if it is refused
	spins    int        // looks at the page before it waits for the pipe
	sync     int        // read end of the pipe that says go
	syncW    int        // its write end, which the child must not keep open
	mask     uint64     // its signal mask
	apart    bool       // in a process group of its own, with all signals ignored
	page     *handshake
	stack    uintptr // the upper end of the child's stack
}

// childRoom is what parent and child share: the handshake, then the child's stack,
// which takes functions that may not grow it, so less than a KiB.
const childRoom = 4 * pageSize

// newHandshake maps the shared pages.
func newHandshake() ([]byte, *handshake, error) {
	b, err := unix.Mmap(-1, 0, childRoom, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return b, (*handshake)(unsafe.Pointer(&b[0])), nil
}

// end returns the address behind b.
func end(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) + uintptr(len(b)) }

// fprog makes the kernel's form of p.
func (p Program) fprog() *sockFprog {
	if len(p) == 0 {
		return nil
	}
	return &sockFprog{n: uint16(len(p)), filter: &p[0]}
}

// bytes returns struct sock_fprog and the filter behind it, as they must lie at
// address addr of another process.
func (p Program) bytes(addr uint64) []byte {
	var h [16]byte
	*(*uint16)(unsafe.Pointer(&h[0])) = uint16(len(p))
	*(*uint64)(unsafe.Pointer(&h[8])) = addr + uint64(len(h))
	return append(h[:], unsafe.Slice((*byte)(unsafe.Pointer(&p[0])), len(p)*int(unsafe.Sizeof(p[0])))...)
}

// fork starts the child. The caller holds syscall.ForkLock, so that no
// descriptor is inherited that is about to be marked close-on-exec, and keeps p
// until a child that it lets go has execed or ended.
//
//go:norace
func (p *plan) fork() (pid int, e unix.Errno) {
	beforeFork() // blocks all signals
	r, e := cloneChild(p.stack, p)
	afterFork()
	return int(r), e
}

// childMain is all that the child does.
//
//go:norace
//go:nosplit
func childMain(p *plan) {
	page := p.page // p is kept for a child that is let go, the page for any
	dropHandlers()
	st, e := runChild(p)
	store(&page.failure, uint32(e)|uint32(st)<<16)
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// signalSetSize is the size of the kernel's sigset_t, and lastSignal the last
// signal's number.
const (
	signalSetSize = 8
	lastSignal    = 64
)

// dropHandlers takes the runtime's signal handlers off, which are for this process
// and not for the child.
//
//go:norace
//go:nosplit
func dropHandlers() {
	const ignored = 1      // SIG_IGN, which exec keeps
	var old, dfl [4]uint64 // struct kernel_sigaction: handler, flags, restorer, mask
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		_, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&old)), signalSetSize, 0, 0)
		if e == 0 && old[0] > ignored {
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&dfl)), 0, signalSetSize, 0, 0)
		}
	}
}

// ignoreSignals has all signals ignored, those that wait, too.
//
//go:norace
//go:nosplit
func ignoreSignals() {
	ignore := [4]uint64{1} // struct kernel_sigaction: SIG_IGN
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, signalSetSize, 0, 0)
	}
}

// runChild becomes the program; it returns only if that failed.
//
//go:noinline
//go:norace
//go:nosplit
func runChild(p *plan) (stage, syscall.Errno) {
	var b [1]byte
	syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(p.syncW), 0, 0)
	for n := p.spins; n > 0 && load(&p.page.released) == 0; n-- {
	}
	for load(&p.page.released) == 0 {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(p.sync), uintptr(unsafe.Pointer(&b)), 1)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || n != 1 { // the parent died or gave up
			return stageSync, syscall.ECANCELED
		}
		break
	}
	if p.limit != nil {
		if _, _, e := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE, uintptr(unsafe.Pointer(p.limit)), 0, 0, 0); e != 0 {
			return stageLimit, e
		}
	}
	if p.dir != nil {
		if _, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(p.dir)), 0, 0); e != 0 {
			return stageChdir, e
		}
	}
	if e := dupFiles(p.fds); e != 0 {
		return stageDup, e
	}
	if p.apart {
		syscall.RawSyscall(syscall.SYS_SETPGID, 0, 0, 0) // can't fail: it leads no session
		ignoreSignals()                                  // and only now no more of them come
	}
	// Only now: a signal that dumps core would end this process too on kernels before
	// 5.16, as it shares the memory. Not behind the filter, which might select the call.
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&p.mask)), 0, signalSetSize, 0, 0)
	if p.prog != nil {
		if st, e := p.install(); e != 0 {
			return st, e
		}
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(p.path)), uintptr(unsafe.Pointer(p.argv)), uintptr(unsafe.Pointer(p.envv)))
	return stageExec, e
}

// dupFiles puts every file in its place. Those that stand in the place of
// another are moved out of the way first.
//
//go:norace
//go:nosplit
func dupFiles(fds []int32) syscall.Errno {
	for i, fd := range fds {
		if fd >= 0 && int(fd) < i {
			r, _, e := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_DUPFD_CLOEXEC, uintptr(len(fds)))
			if e != 0 {
				return e
			}
			fds[i] = int32(r)
		}
	}
	for i, fd := range fds {
		var e syscall.Errno
		switch {
		case fd < 0:
		case int(fd) == i: // dup3 refuses it; clear close-on-exec
			_, _, e = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFD, 0)
		default:
			_, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(fd), uintptr(i), 0)
		}
		if e != 0 {
			return e
		}
	}
	return 0
}

// install installs the filter. No_new_privs is set only if the kernel insists:
// it takes away what set-user-ID programs are for.
//
//go:norace
//go:nosplit
func (p *plan) install() (stage, syscall.Errno) {
	fd, e := p.seccomp()
	if e == syscall.EACCES {
		if _, _, e := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
			return stageNNP, e
		}
		store(&p.page.nnp, 1)
		fd, e = p.seccomp()
	}
	if e != 0 {
		if !p.optional {
			return stageSeccomp, e
		}
		store(&p.page.seccomp, uint32(e))
		return stageNone, 0
	}
	if p.flags&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 {
		store(&p.page.listener, uint32(fd)+1)
		// The listener closes on exec, and any system call might ask it.
		for load(&p.page.fetched) == 0 {
		}
	}
	return stageNone, 0
}

// seccomp makes the call. The filter is no sandbox: without SPEC_ALLOW, kernels
// before 5.16 would slow the program down to protect others from it. Kernels
// before 4.17 don't know the flag.
//
//go:norace
//go:nosplit
func (p *plan) seccomp() (uintptr, syscall.Errno) {
	prog := uintptr(unsafe.Pointer(p.prog))
	r, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, p.flags|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, prog)
	if e == syscall.EINVAL {
		r, _, e = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, p.flags, prog)
	}
	return r, e
}

// load and store are not inlined, so that the compiler can't move them.
//
//go:noinline
//go:norace
//go:nosplit
func load(p *uint32) uint32 { return *p }

//go:noinline
//go:norace
//go:nosplit
func store(p *uint32, v uint32) { *p = v }

// cstrings returns what execve wants.
func cstrings(s []string) (**byte, error) {
	p, err := syscall.SlicePtrFromStrings(s)
	if err != nil {
		return nil, err
	}
	return &p[0], nil
}
