package ioctl

// ownWork follows what the driver takes for functions that nvtrace calls in a program (traces.FlagOwn). It
// keeps that until the program ends its context, or itself: what gives it back is nvtrace's own work, too.
type ownWork struct{ made map[ownKey]bool }

// ownKey names a thing: an object of the resource manager by client and handle, the others by process
// and address or number.
type ownKey struct {
	kind ownKind
	of   uint32
	id   uint64
}

type ownKind uint8

const (
	ownObject ownKind = iota
	ownRange
	ownGroup
	ownMapping
)

// maxOwn bounds the things that are remembered.
const maxOwn = 1 << 16

// taken notes that a call has made something, own that it is nvtrace's own work. A name that the program
// takes is not nvtrace's any more.
func (w *ownWork) taken(k ownKey, own bool) {
	switch {
	case !own:
		delete(w.made, k)
	case len(w.made) < maxOwn:
		if w.made == nil {
			w.made = make(map[ownKey]bool)
		}
		w.made[k] = true
	}
}

// given reports whether what a call gives back is nvtrace's; over says that it is gone then.
func (w *ownWork) given(k ownKey, over bool) bool {
	own := w.made[k]
	if own && over {
		delete(w.made, k)
	}
	return own
}
