package ptrace

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Raw system calls of the tracing thread. All but the blocking wait are made
// without telling Go's scheduler: they take well under a microsecond. A blocking
// wait must tell it, or garbage collection would stand still until the next stop.

//go:linkname nanotime runtime.nanotime
func nanotime() int64

// Now returns the time of the clock that [Syscall] and [TaskEvent] have: CLOCK_MONOTONIC,
// in ns.
func Now() int64 { return nanotime() }

// ptraceOp makes a ptrace request whose data is a number. ESRCH means that the
// task has died, or isn't stopped.
func ptraceOp(req, tid int, data uintptr) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(req), uintptr(tid), 0, data, 0, 0)
	return e
}

// waitAny waits for a stop or the end of any tracee or child of this thread
// (tid -1), or of one.
func waitAny(tid int, status *unix.WaitStatus) (int, unix.Errno) {
	var st int32
	r, _, e := unix.Syscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL|unix.WNOTHREAD, 0, 0, 0)
	*status = unix.WaitStatus(uint32(st))
	return int(r), e
}

// seize makes PTRACE_SEIZE, which may block, so that Go's scheduler is told.
func seize(tid int, opts uintptr) unix.Errno {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, opts, 0, 0)
	return e
}

// reapDead reaps a task that any thread of this process traces, if it has ended.
// A stop is left for the tracing thread.
func reapDead(tid int) (status unix.WaitStatus, ok bool) {
	var info [128]byte // siginfo_t: si_signo, si_errno, si_code
	_, _, e := unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(tid), uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, 0, 0)
	const cldExited, cldDumped = 1, 3 // asm-generic/siginfo.h: CLD_*; a stop has a higher one
	if code := info[8]; e != 0 || code < cldExited || code > cldDumped {
		return 0, false
	}
	var st int32
	r, _, e := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL|unix.WNOHANG, 0, 0, 0)
	return unix.WaitStatus(uint32(st)), e == 0 && int(r) == tid
}

// threadIsFree says whether this thread has no children or tracees yet, so that
// waiting for all of them can't take somebody else's.
func threadIsFree() bool {
	var info [128]byte
	_, _, e := unix.RawSyscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WNOTHREAD|unix.WALL, 0, 0)
	return e == unix.ECHILD
}

// getsOrphans says whether this thread is the one that the kernel gives the children of
// processes that have ended.
func getsOrphans() bool {
	if unix.Gettid() != os.Getpid() {
		return false
	}
	var reaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&reaper)), 0, 0, 0)
	return err != nil || reaper != 0 || os.Getpid() == 1
}

// syscallInfo is struct ptrace_syscall_info of linux/ptrace.h.
type syscallInfo struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	nr   uint64    // at an exit: the result
	args [6]uint64 // at an exit: the first byte is is_error
	data uint32    // at a seccomp stop: SECCOMP_RET_DATA
	_    uint32
}

func getSyscallInfo(tid int, info *syscallInfo) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(*info), uintptr(unsafe.Pointer(info)), 0, 0)
	return e
}

// getFilter reads the i-th filter of a stopped task, the youngest being the first. ENOENT: there are not
// so many.
func getFilter(tid, i int) (Program, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(i), 0, 0, 0)
	if e != 0 || n == 0 {
		return nil, e
	}
	b := make([]byte, n*insnSize)
	_, _, e = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(i), uintptr(unsafe.Pointer(&b[0])), 0, 0)
	return decodeProgram(b), e
}

// dispatches reports whether the kernel sends a stopped task a signal for its system calls (Linux 6.4 says so).
func dispatches(tid int) bool {
	const getConfig = 0x4211 // PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG (linux/ptrace.h)
	var config struct{ mode, selector, offset, length uint64 }
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, getConfig, uintptr(tid), unsafe.Sizeof(config), uintptr(unsafe.Pointer(&config)), 0, 0)
	return e == 0 && config.mode == unix.PR_SYS_DISPATCH_ON
}

func getEventMsg(tid int) (msg uintptr, e unix.Errno) {
	_, _, e = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0, uintptr(unsafe.Pointer(&msg)), 0, 0)
	return msg, e
}

// ntPrstatus selects the general registers (linux/elf.h: NT_PRSTATUS).
const ntPrstatus = 1

func regset(req, tid int, r *unix.PtraceRegs) unix.Errno {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(r)), Len: uint64(unsafe.Sizeof(*r))}
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(req), uintptr(tid), ntPrstatus, uintptr(unsafe.Pointer(&iov)), 0, 0)
	return e
}

func getRegs(tid int, r *unix.PtraceRegs) unix.Errno { return regset(unix.PTRACE_GETREGSET, tid, r) }

func setRegs(tid int, r *unix.PtraceRegs) unix.Errno { return regset(unix.PTRACE_SETREGSET, tid, r) }

// peekWord and pokeWord move a word of a stopped task's memory, whatever its
// protection.
func peekWord(tid int, addr uint64, w *[8]byte) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_PEEKTEXT, uintptr(tid), uintptr(addr), uintptr(unsafe.Pointer(w)), 0, 0)
	return e
}

func pokeWord(tid int, addr uint64, w *[8]byte) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_POKETEXT, uintptr(tid), uintptr(addr),
		uintptr(*(*uint64)(unsafe.Pointer(w))), 0, 0)
	return e
}

// pwrite and pread move bytes through a descriptor, without telling Go's
// scheduler.
func pwrite(fd int, addr uint64, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(addr), 0, 0)
	return int(n), e
}

func pread(fd int, addr uint64, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(addr), 0, 0)
	return int(n), e
}

// siginfo is the head of the kernel's siginfo_t on 64-bit machines.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	addr               uint64 // of a fault
	_                  [104]byte
}

func getSiginfo(tid int, si *siginfo) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(si)), 0, 0)
	return e
}

func setSiginfo(tid int, si *siginfo) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(si)), 0, 0)
	return e
}

// pendingSignals reads signals that wait for a stopped task, from the n-th on.
func pendingSignals(tid int, from uint64, si []siginfo) (int, unix.Errno) {
	args := struct { // struct ptrace_peeksiginfo_args of linux/ptrace.h
		off   uint64
		flags uint32
		nr    int32
	}{off: from, nr: int32(len(si))}
	n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_PEEKSIGINFO, uintptr(tid), uintptr(unsafe.Pointer(&args)),
		uintptr(unsafe.Pointer(&si[0])), 0, 0)
	return int(n), e
}

// waitNow is waitAny for one task, without blocking; 0: nothing has happened.
func waitNow(tid int, status *unix.WaitStatus) (int, unix.Errno) {
	var st int32
	r, _, e := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL|unix.WNOTHREAD|unix.WNOHANG, 0, 0, 0)
	*status = unix.WaitStatus(uint32(st))
	return int(r), e
}

// peekStop is waitAny, but what it returns stays to be waited for. Without block it
// returns 0 if nothing has happened.
func peekStop(tid int, block bool, status *unix.WaitStatus) (int, unix.Errno) {
	var info struct { // siginfo_t of SIGCHLD
		signo, errno, code, _ int32
		pid, uid, status      int32
		_                     [100]byte
	}
	which, options := unix.P_ALL, uintptr(unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL|unix.WNOTHREAD)
	if tid > 0 {
		which = unix.P_PID
	}
	wait := unix.Syscall6
	if !block {
		wait = unix.RawSyscall6
		options |= unix.WNOHANG
	}
	_, _, e := wait(unix.SYS_WAITID, uintptr(which), uintptr(tid), uintptr(unsafe.Pointer(&info)), options, 0, 0)
	const exited, killed, dumped = 1, 2, 3 // asm-generic/siginfo.h: CLD_*; a stop has a higher one
	switch st := unix.WaitStatus(uint32(info.status)); info.code {
	case exited:
		*status = st << 8
	case killed:
		*status = st
	case dumped:
		*status = st | 0x80
	default:
		*status = st<<8 | 0x7f
	}
	return int(info.pid), e
}

// yield lets other threads of the machine run.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// sameMemory asks whether two tasks share their memory; known is false where
// the kernel does not tell.
func sameMemory(a, b int) (same, known bool) {
	const kcmpVM = 1 // linux/kcmp.h: KCMP_VM
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return r == 0, e == 0
}

// sigmask makes PTRACE_GETSIGMASK or PTRACE_SETSIGMASK.
func sigmask(req, tid int, mask *uint64) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(req), uintptr(tid), unsafe.Sizeof(*mask), uintptr(unsafe.Pointer(mask)), 0, 0)
	return e
}

// rseqConfig is struct ptrace_rseq_configuration of linux/ptrace.h.
type rseqConfig struct {
	abi                    uint64 // address of the task's struct rseq; 0: it has none
	size, signature, flags uint32
	_                      uint32
}

func getRseq(tid int, c *rseqConfig) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_RSEQ_CONFIGURATION, uintptr(tid), unsafe.Sizeof(*c), uintptr(unsafe.Pointer(c)), 0, 0)
	return e
}

// sigaction is the kernel's struct sigaction, the same on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	saNoCldStop = 0x1        // SA_NOCLDSTOP
	saRestart   = 0x10000000 // SA_RESTART
)

func rtSigaction(sig unix.Signal, act, old *sigaction) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}

func rtSigprocmask(how int, set, old *uint64) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, uintptr(how), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}

// exists says whether a file exists, without allocating; path ends in NUL.
func exists(path []byte) bool {
	at := unix.AT_FDCWD
	_, _, e := unix.RawSyscall6(unix.SYS_FACCESSAT, uintptr(at), uintptr(unsafe.Pointer(&path[0])), unix.F_OK, 0, 0, 0)
	return e == 0
}

// threadCPU returns the CPU time of the calling thread in ns.
func threadCPU() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

// insnSize is the size of struct sock_filter.
const insnSize = 8

// decodeProgram is the opposite of what Program.bytes does.
func decodeProgram(b []byte) Program {
	p := make(Program, len(b)/insnSize)
	for i := range p {
		in := b[i*insnSize:]
		p[i] = Insn{binary.LittleEndian.Uint16(in), in[2], in[3], binary.LittleEndian.Uint32(in[4:])}
	}
	return p
}
