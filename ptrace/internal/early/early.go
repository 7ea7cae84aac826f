// Package early remembers what this process was started with, and what Go changes: the
// soft limit of open files, and the signal mask.
//
// Package os raises the limit to the hard one when a Go program starts, and the
// original is kept where only package syscall's own exec can see it. A program
// that is started by a raw fork would inherit the raised limit. Variables of a
// package that imports nothing are initialised in the order of import paths,
// hence before package syscall's.
package early

// Rlimit is struct rlimit64.
type Rlimit struct{ Cur, Max uint64 }

// noFile is set before any other package could change the limit.
var noFile, noFileOK = get()

func get() (r Rlimit, ok bool) {
	ok = getNoFile(&r) == 0
	return r, ok
}

// getNoFile is prlimit64(0, RLIMIT_NOFILE, NULL, r).
//
//go:noescape
func getNoFile(r *Rlimit) int64

// NoFile returns RLIMIT_NOFILE as it was at the start of the process.
func NoFile() (Rlimit, bool) { return noFile, noFileOK }
