package allow

import (
	"path"
	"slices"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// Lack is something that a run uses and a list does not allow.
type Lack struct {
	Use
	Name  string
	Size  uint32 // of the parameters, where HasSize
	Sized bool   // the list has the number, but not with parameters of this size
	Allow []uint32
	Count uint64
	Time  int64 // of the first use, ns since the recording's start
	PID   int32 // that made it
	OK    uint64
}

// Checker holds recordings against a list. It is for one goroutine, and for one
// recording; make another for the next.
type Checker struct {
	list  *List
	lacks map[lackKey]*Lack
	order []*Lack
	buf   []used
}

type lackKey struct {
	Use
	size uint32
}

// NewChecker returns a Checker for a list.
func NewChecker(l *List) *Checker { return &Checker{list: l, lacks: make(map[lackKey]*Lack)} }

// Add takes in an event and its call, as d has decoded it.
func (k *Checker) Add(ev *traces.Event, call *ioctl.Call, d *ioctl.Decoder) {
	k.buf = uses(k.buf[:0], ev, call, d.ABI(ev.PID))
	for i := range k.buf {
		u := &k.buf[i]
		e := k.list.entry(u.Use)
		sized := e != nil
		if sized && (e.Sizes == nil || !u.has || slices.Contains(e.Sizes, u.size)) {
			continue
		}
		key := lackKey{Use: u.Use}
		if sized {
			key.size = u.size
		}
		l := k.lacks[key]
		if l == nil {
			l = &Lack{Use: u.Use, Name: u.name, Size: u.size, Sized: sized, Time: ev.Time, PID: ev.PID}
			if sized {
				l.Allow = e.Sizes
			}
			k.lacks[key] = l
			k.order = append(k.order, l)
		}
		l.Count++
		if !call.Failed() {
			l.OK++
		}
	}
}

// Lacks returns what the list lacks, in the order of first use.
func (k *Checker) Lacks() []*Lack { return k.order }

// matchNode matches a node below /dev with a pattern of a list.
func matchNode(pattern, node string) bool {
	ok, err := path.Match(pattern, node)
	return err == nil && ok
}

// checkPattern reports a malformed pattern.
func checkPattern(pattern string) error {
	_, err := path.Match(pattern, "")
	return err
}

// literalNode makes a pattern of a node's name.
func literalNode(node string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(node)
}
