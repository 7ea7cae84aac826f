package early

import "unsafe"

// mask is set while the first thread's own copy of it is untouched.
var mask, maskOK = findMask()

// Mask returns the signal mask that this process was started with. Go's runtime lets
// through those signals that it wants itself, and keeps the original where only it can
// see it. ok is false where that has changed its place; then it is the present mask.
func Mask() (m uint64, ok bool) { return mask, maskOK }

// unblocked are the signals that the runtime wants: those that end a Go program or make it
// panic (SIGHUP to SIGFPE, SIGSEGV, SIGTERM, SIGSTKFLT, SIGSYS), SIGCHLD, SIGURG,
// SIGPROF, and 32 to 34.
const unblocked uint64 = 0xff | 1<<10 | 1<<14 | 1<<15 | 1<<16 | 1<<22 | 1<<26 | 1<<30 | 7<<31

// Where things are in the runtime's structs g and m: the thread, and behind its id the
// goroutine for signals, the stack for signals (5 words) and the mask (runtime2.go).
const (
	threadOfG = 48
	searched  = 32 // words of struct m in which the id must be
	maskAfter = 7
)

func findMask() (m uint64, ok bool) {
	var now uint64
	if sigmask(&now) != 0 {
		return 0, false
	}
	tid := gettid()
	thread := *(**[searched + maskAfter]uint64)(unsafe.Add(getg(), threadOfG))
	for i := range searched {
		if thread[i] == tid {
			m = thread[i+maskAfter]
			break
		}
	}
	const urgent = 1 << 22 // SIGURG, which GODEBUG=asyncpreemptoff=1 leaves as it is
	if m&^unblocked != now && m&^(unblocked&^urgent) != now {
		return now, false
	}
	return m, true
}

// getg returns the address of the running goroutine's struct g, which does not move.
func getg() unsafe.Pointer

// gettid is gettid(2).
func gettid() uint64

// sigmask is rt_sigprocmask(SIG_SETMASK, NULL, m, 8).
//
//go:noescape
func sigmask(m *uint64) int64
