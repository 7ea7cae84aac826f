package rm

import (
	"fmt"
	"iter"

	"nvtrace/rm/internal/wire"
)

// Status is the resource manager's result of a call, NV_STATUS; the ioctl(2)
// itself succeeds either way.
type Status uint32

// OK is success.
const OK Status = 0

// String returns the driver's name of the status, "NV_STATUS(0x1234)" if it is
// not known.
func (s Status) String() string { return Newest().StatusName(s) }

// StatusName returns the name that the version has for a status, else the
// newest name that any version has, else "NV_STATUS(0x1234)". (One number was
// reused so far: 139, in 595.)
func (a *ABI) StatusName(s Status) string {
	t := &a.t.tab[wire.StatusTab]
	key := t.find(uint32(s))
	for at := a.at; key >= 0 && at >= 0; at-- {
		if n, ok := t.at(key, at); ok {
			return a.t.name(n)
		}
	}
	for at := len(a.t.versions) - 1; key >= 0 && at > a.at; at-- {
		if n, ok := t.at(key, at); ok {
			return a.t.name(n)
		}
	}
	return fmt.Sprintf("NV_STATUS(%#x)", uint32(s))
}

// statuses iterates over the statuses that the version names, in ascending order.
func (a *ABI) statuses() iter.Seq[Status] {
	return func(yield func(Status) bool) {
		t := &a.t.tab[wire.StatusTab]
		for i := range t.n {
			if _, ok := t.at(i, a.at); ok && !yield(Status(t.key(i))) {
				return
			}
		}
	}
}
