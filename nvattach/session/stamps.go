package session

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"slices"

	"nvtrace/nvattach"
)

// stampsObject is stamps/stamps.bpf.c, made by the Makefile beside that.
//
//go:embed stamps/stamps.bpf.o
var stampsObject []byte

// A Stamp is when a launch of a kernel began and ended on the GPU: when the first thread of its first
// block was there, and when the last of its threads left. It comes of programs in the kernel.
type Stamp struct {
	PID, Device int
	Context     uint64 // handle; 0: not known
	Kernel      string // mangled
	// Launch is the number that the launch had, %gridid: no other at that time. All launches of a
	// node of a graph have the same.
	Launch     uint64
	Start, End int64 // CLOCK_MONOTONIC in ns
	Margin     int64 // both may be off by so much either way, as clocks were compared
}

// Stamps returns the object whose programs note these times, for a plan.
func Stamps() (*nvattach.Object, error) {
	o, err := nvattach.LoadObject("times of kernels", stampsObject)
	if err == nil {
		o.Own = true
	}
	return o, err
}

// Names and sizes of stamps.bpf.c.
const (
	stampsRing    = "nvtrace_stamps"
	stampsRunning = "nvtrace_running"
	stampsMixed   = "nvtrace_mixed"
	stampBytes    = 32
	stampMixed    = 1<<64 - 1
)

// maxUntold bounds the stamps of a context that wait for its clock to be compared.
const maxUntold = 1 << 16

// untold are stamps that can't be told yet, as they are in the ring.
type untold struct {
	list [][stampBytes]byte
	lost uint64 // that found no room here
}

// isStamps reports whether a ring has stamps.
func isStamps(x *nvattach.Map) bool {
	return x.Object != nil && x.Object.Own && x.Def.Name == stampsRing
}

// stamp tells a record of such a ring, if it can. c.mu is held.
func (c *Context) stamp(data []byte) {
	if c.s.opts.Stamped == nil || len(data) != stampBytes {
		return
	}
	switch {
	case c.clock != nil:
		c.tell([stampBytes]byte(data))
	case len(c.untold.list) < maxUntold:
		c.untold.list = append(c.untold.list, [stampBytes]byte(data))
	default:
		c.untold.lost++
	}
}

// tell tells one; the clock is known.
func (c *Context) tell(b [stampBytes]byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	s := Stamp{
		PID: c.PID, Device: c.Device, Context: c.handle, Launch: word(0), Start: c.clock.Monotonic(word(1)), Margin: max(c.clock.MarginAt(word(1)), c.clock.MarginAt(word(2))),
		Kernel: c.s.opts.Plan.KernelOf(word(3)),
	}
	// The last thread looks at its clock before it counts itself, and the first one may be later than
	// others of a launch that is over at once.
	s.End = max(c.clock.Monotonic(word(2)), s.Start)
	c.s.opts.Stamped(s)
}

// setClock notes how the context's %globaltimer relates to the host's, and tells what waited for
// that.
func (c *Context) setClock(k nvattach.Clock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock = &k
	for _, b := range c.untold.list {
		c.tell(b)
	}
	c.untold.list = nil
}

// stampless says how many launches have no times. No kernel runs any more. c.mu is held.
func (c *Context) stampless() (lost []error) {
	say := func(n uint64, why string) {
		if n > 0 {
			lost = append(lost, fmt.Errorf("%s of kernels without a time on the GPU: %s", counted(n, "launch"), why))
		}
	}
	for i, x := range c.rings {
		if isStamps(x) {
			n, err := c.readers[i].Dropped(c.mem)
			if err == nil {
				say(n, "there were too many before them to be read")
			}
			say(c.readers[i].Lost, "the kernel died as it was noted")
		}
	}
	say(c.untold.lost+uint64(len(c.untold.list)), "the clock of the GPU could not be compared with the host's")
	for _, x := range c.maps.All {
		if x.Object == nil || !x.Object.Own || x.Def.Name != stampsRunning && x.Def.Name != stampsMixed {
			continue
		}
		t, err := c.maps.Read(c.mem, x)
		if err != nil {
			continue // the rings could not be read either
		}
		n := uint64(0)
		for i := range t.Rows {
			b := t.Rows[i].Value
			switch {
			case len(b) < 8:
			case x.Def.Name == stampsMixed:
				n += binary.LittleEndian.Uint64(b)
			case binary.LittleEndian.Uint64(b) != stampMixed && slices.ContainsFunc(b, func(c byte) bool { return c != 0 }):
				n++
			}
		}
		if x.Def.Name == stampsMixed {
			say(n, "others had their places at the same time, as they run on other GPUs or for very long")
		} else {
			say(n, "not all of their threads were seen to leave the kernel")
		}
	}
	return lost
}
