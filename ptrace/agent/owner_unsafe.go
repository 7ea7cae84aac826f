package agent

import (
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An owner has the kernel note in the memory of traced processes when the thread that
// traces them has ended: each has a word that is in the list of robust futexes of that
// thread (set_robust_list(2)), as if it were a lock that the thread holds. Even SIGKILL does not
// keep the kernel from going through that list (exit_robust_list, kernel/futex/core.c), so that an agent
// can tell by a load whether there is a supervisor. Go's runtime has no such list of its own
// (nvtrace is built without cgo).
type owner struct {
	tid   int
	head  *robustHead
	words [][]byte // of struct shared from next on, in the order of the list
}

// robustHead is struct robust_list_head of linux/futex.h. Entries are the addresses of
// their successors.
type robustHead struct {
	next    uintptr
	offset  int // of a futex, from its entry
	pending uintptr
}

// own adds the word of a process's shared memory. It is called on the tracing thread.
func (w *owner) own(shared []byte) error {
	tid := unix.Gettid()
	if w.head == nil || tid != w.tid {
		// The kernel reads it until the thread ends, which is later than anything here does.
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		w.tid, w.head = tid, (*robustHead)(unsafe.Pointer(&page[0]))
		w.head.offset = sharedOwner - sharedNext
		w.link()
		if _, _, e := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(w.head)), unsafe.Sizeof(*w.head), 0); e != 0 {
			return os.NewSyscallError("set_robust_list", e)
		}
	}
	word := shared[sharedNext : sharedOwner+4]
	w.words = append(w.words, word)
	w.link()
	store32(shared, sharedOwner, uint32(tid))
	return nil
}

// disown takes the word of a process's shared memory out, before that is unmapped.
func (w *owner) disown(shared []byte) {
	w.words = slices.DeleteFunc(w.words, func(b []byte) bool { return &b[0] == &shared[sharedNext] })
	if w.head != nil {
		w.link()
	}
}

// link makes the list. Whenever it is interrupted, all that it leads to is there.
func (w *owner) link() {
	next := uintptr(unsafe.Pointer(w.head)) // its end is its head
	for _, b := range slices.Backward(w.words) {
		store64(b, 0, uint64(next))
		next = uintptr(unsafe.Pointer(&b[0]))
	}
	w.head.next = next
}
