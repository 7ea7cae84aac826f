package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"nvtrace/fatbin"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// thread is what is known of a traced thread: the watched calls that it is in,
// the innermost last.
type thread struct {
	calls []*call
	retry *call // is to be made again, with what the program gave
}

// call is one call of a watched function.
type call struct {
	h      *hook
	addr   uint64
	entry  ptrace.Regs
	start  int64
	caller string // the library that called

	image   uint64                  // the image argument
	wrapper *fatbin.WrapperPointers // the image argument is a wrapper
	parts   []*part
	place   *placement // where our copy is
	watch   bool       // the driver reads the program's own bytes
	path    *pathArg
	nested  bool
	given   string  // hash of the replacement
	lookups Lookups // of the module
	id      uuid    // of the table that is asked for
	err     error   // the image could not be captured
	busy    bool    // it is being copied on another goroutine, to which parts and err belong
}

// part is one of the images of a call.
type part struct {
	addr   uint64 // in the program; 0: from a file
	size   int64
	format fatbin.Format
	sum    string
	kept   int64 // bytes that were hashed: PTX without its NUL
	stored error // why the store lacks it

	file   string
	offset int64
	pinned bool   // lies in a file, where the program can't write
	at     uint64 // in our copy, from its start
}

// arg returns an argument; those beyond the sixth are on the stack.
func (k *call) arg(t *ptrace.Task, i int8) uint64 {
	if i < 6 {
		return k.entry.Arg(int(i))
	}
	v, _ := readWord(t, k.entry.SP()+8*(uint64(i)-5))
	return v
}

// readWord reads 8 bytes.
func readWord(t *ptrace.Task, addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := t.ReadMem(addr, b[:]); err != nil {
		return 0, err
	}
	return le.Uint64(b[:]), nil
}

// dropAbandoned drops the calls that were left without a return.
func (th *thread) dropAbandoned(sp uint64) {
	for n := len(th.calls); n > 0 && th.calls[n-1].entry.SP() <= sp; n-- {
		th.calls = th.calls[:n-1]
	}
}

// hit is called at a watched function's entry.
func (c *Capture) hit(t *ptrace.Task, b *ptrace.Breakpoint) {
	p := c.process(t)
	h := p.hooks[b.Addr]
	if h == nil || p.querier == t {
		return // of a process whose state is gone, or called for us
	}
	regs, err := t.Regs()
	if err != nil {
		return // it died
	}
	if ret, err := readWord(t, regs.SP()); err == nil && agent.CalledByUs(ret) {
		return // called for nvtrace, which knows what it loads
	}
	c.author.stats.Hits++
	if c.debug {
		began := time.Now()
		defer func() { c.log.Debug("hit", "tid", t.TID, "function", h.name(), "took", time.Since(began)) }()
	}
	th := c.thread(t)
	k := &call{h: h, addr: b.Addr, entry: *regs, start: c.now()}
	if th.retry != nil && th.retry.addr == k.addr && th.retry.entry.SP() == regs.SP() {
		k.start = th.retry.start
	} else {
		th.retry = nil
	}
	th.dropAbandoned(regs.SP())
	if th.retry == nil {
		c.count(t, k)
	}
	k.nested = slices.ContainsFunc(th.calls, func(o *call) bool { return o.h.fn.act < actTable })
	switch h.fn.act {
	case actLoad, actLinkAdd:
		c.load(t, th, k)
	case actLoadFile, actLinkAddFile:
		c.loadFile(t, th, k)
	case actLinkEnd:
		k.caller = c.callerAlone(t, k)
		c.onReturn(t, th, k, c.linked)
	case actTable:
		if _, err := t.ReadMem(k.arg(t, h.fn.image), k.id[:]); err == nil {
			c.onReturn(t, th, k, c.tableGiven)
		}
	case actUnload, actLinkDestroy:
		c.ask(t, p)
		c.onReturn(t, th, k, c.unloaded)
	case actLookup, actEnumerate:
		c.ask(t, p)
		c.onReturn(t, th, k, c.lookedUp)
	case actLaunch:
		if h.early {
			c.earlyLaunch(t, b, k)
		} else {
			c.launchAt(t, k)
		}
	case actSlot:
		c.slotCalled(t, b, th, k)
	}
}

// onReturn has f called when the call returns.
func (c *Capture) onReturn(t *ptrace.Task, th *thread, k *call, f func(t *ptrace.Task, k *call, result int32)) {
	th.calls = append(th.calls, k)
	err := t.OnReturn(func(t *ptrace.Task, ret uint64) {
		th := c.thread(t) // of the child, if it was forked meanwhile
		if i := slices.Index(th.calls, k); i >= 0 {
			th.calls = th.calls[:i]
		}
		if c.debug {
			began := time.Now()
			defer func() { c.log.Debug("returned", "tid", t.TID, "function", k.h.name(), "took", time.Since(began)) }()
		}
		f(t, k, int32(ret))
	})
	if err != nil {
		th.calls = th.calls[:len(th.calls)-1]
		c.gap(t, "the result of %s in process %d can't be seen: %v", k.h.name(), t.PID, err)
	}
}

// load captures an image in memory.
func (c *Capture) load(t *ptrace.Task, th *thread, k *call) {
	retry := th.retry != nil
	th.retry = nil
	maps := proc.NewView(t.PID)
	defer maps.Close()
	k.caller = c.callerOf(t, maps, &k.entry)
	c.onReturn(t, th, k, c.loaded)
	if k.err = c.gather(t, k, maps); k.err != nil || len(k.parts) == 0 {
		return
	}
	replace := c.o.Replace != nil && !retry && !k.nested
	k.watch = c.o.Watch || k.nested
	var total int64
	for _, p := range k.parts {
		total += p.size
	}
	inline := !replace && total <= inlineBytes
	if !k.watch {
		if err := c.reserve(t, k, inline); err != nil {
			c.log.Debug("no room for a copy", "pid", t.PID, "err", err)
			k.watch = true
		}
	}
	if inline {
		c.copyParts(k.place.memory(t), k)
		c.give(t, k, nil)
		return
	}
	c.aside(t, k, func() []byte {
		c.copyParts(processMemory{t.TID}, k)
		if replace && k.err == nil {
			return c.replacement(t.PID, t.TID, k)
		}
		return nil
	}, c.give)
}

// inlineBytes is how much is copied on the tracing thread itself.
const inlineBytes = 256 << 10

// aside does work for a call on a goroutine of its own, while the thread waits
// and the others go on.
func (c *Capture) aside(t *ptrace.Task, k *call, work func() []byte, then func(t *ptrace.Task, k *call, image []byte)) {
	t.Hold()
	k.busy = true
	c.work.Go(func() {
		began := time.Now()
		image := work()
		c.log.Debug("held for an image", "tid", t.TID, "took", time.Since(began))
		t.Release(func(t *ptrace.Task) {
			k.busy = false
			then(t, k, image)
		})
	})
}

// gather finds out which bytes make up the image.
func (c *Capture) gather(t *ptrace.Task, k *call, maps *proc.View) error {
	addr := k.arg(t, k.h.fn.image)
	k.image = addr
	if addr == 0 {
		return nil // the driver refuses it
	}
	if k.h.fn.size != none {
		return c.gatherSized(t, k, maps, addr)
	}
	var head [24]byte
	n, _ := t.ReadMem(addr, head[:])
	if fatbin.Sniff(head[:n]) != fatbin.FormatWrapper {
		p, err := c.findPart(t, maps, addr)
		if err != nil {
			return err
		}
		k.parts = append(k.parts, p)
		return nil
	}
	w, err := fatbin.ParseWrapper(head[:n])
	if err != nil {
		return err
	}
	k.wrapper = &w
	if w.Container != 0 {
		p, err := c.findPart(t, maps, w.Container)
		if err != nil {
			return err
		}
		k.parts = append(k.parts, p)
	}
	for i := 0; w.List != 0; i++ {
		if i == maxList {
			return fmt.Errorf("a list of more than %d containers: %w", maxList, fatbin.ErrTooLarge)
		}
		at, err := readWord(t, w.List+8*uint64(i))
		if err != nil {
			return fmt.Errorf("list of containers: %w", err)
		}
		if at == 0 {
			break
		}
		p, err := c.findPart(t, maps, at)
		if err != nil {
			return err
		}
		k.parts = append(k.parts, p)
	}
	return nil
}

// maxList bounds the containers of one wrapper.
const maxList = 1 << 16

// gatherSized is for images whose size is an argument.
func (c *Capture) gatherSized(t *ptrace.Task, k *call, maps *proc.View, addr uint64) error {
	size := k.arg(t, k.h.fn.size)
	if size == 0 {
		return nil
	}
	if size > uint64(c.o.MaxImage) || size > math.MaxInt64 {
		return fmt.Errorf("image: %d bytes: %w of %d", size, fatbin.ErrTooLarge, c.o.MaxImage)
	}
	p := &part{addr: addr, size: int64(size)}
	p.format = sniff(offsetReader{taskMemory{t}, addr}, p.size)
	c.pin(t.PID, maps, p)
	k.parts = append(k.parts, p)
	return nil
}

// sniff says what the image at the beginning of r is. PTX can have a long comment
// first.
func sniff(r io.ReaderAt, size int64) fatbin.Format {
	head := make([]byte, min(size, 64))
	n, _ := r.ReadAt(head, 0)
	f := fatbin.Sniff(head[:n])
	if f != fatbin.FormatUnknown || size <= int64(n) {
		return f
	}
	head = make([]byte, min(size, sniffBytes))
	n, _ = r.ReadAt(head, 0)
	return fatbin.Sniff(head[:n])
}

// sniffBytes is how much of an image is looked at to tell what it is.
const sniffBytes = 64 << 10

// errUnknown is an image of an unknown format, so that nobody can tell where it
// ends. The driver is given what the program gave.
var errUnknown = errors.New("its format is not known")

// saysVersion reports whether text has a .version directive: PTX can begin with
// long comments.
func saysVersion(r io.ReaderAt, size int64) bool {
	const word = ".version"
	b := make([]byte, sniffBytes)
	for off := int64(0); off < size; off += sniffBytes - int64(len(word)) {
		n, _ := r.ReadAt(b[:min(size-off, sniffBytes)], off)
		if bytes.Contains(b[:n], []byte(word)) {
			return true
		}
		if n < sniffBytes {
			return false
		}
	}
	return false
}

// findPart finds the extent of the image at addr.
func (c *Capture) findPart(t *ptrace.Task, maps *proc.View, addr uint64) (*part, error) {
	r := offsetReader{taskMemory{t}, addr}
	format := sniff(r, sniffBytes)
	if format == fatbin.FormatHost {
		return nil, errUnknown // it says its size, but not to a driver
	}
	size, err := fatbin.Extent(r, c.o.MaxImage)
	if err != nil {
		return nil, err
	}
	// What nothing is known of does not end at a NUL.
	if format == fatbin.FormatUnknown {
		if size <= sniffBytes || !saysVersion(r, size) {
			return nil, errUnknown
		}
		format = fatbin.FormatPTX
	}
	p := &part{addr: addr, size: size, format: format}
	c.pin(t.PID, maps, p)
	return p, nil
}

// pin finds out whether an image lies in a file and can't be written to.
func (c *Capture) pin(pid int, maps *proc.View, p *part) {
	m := maps.At(p.addr)
	if m == nil || m.Inode == 0 || !m.Contains(p.addr, uint64(p.size)) {
		return
	}
	p.file, p.offset = m.Path, int64(p.addr-m.Start+m.Offset)
	p.pinned = m.Immutable() && c.pinFile(pid, m)
}

// copyParts hashes and stores the images of a call, and puts copies where the
// driver will read them. It may run on any goroutine.
func (c *Capture) copyParts(mem memory, k *call) {
	store := c.o.Store
	for _, p := range k.parts {
		to := func(int64, []byte) error { return nil }
		if k.place != nil && !p.pinned {
			to = func(off int64, b []byte) error { return k.place.write(mem, p.at+uint64(off), b) }
		}
		s := store
		if p.pinned && !c.o.Files {
			s = nil
		}
		var err error
		if p.sum, p.kept, p.stored, err = copyImage(s, offsetReader{mem, p.addr}, p.size, p.text(k), to); err != nil {
			k.err = err
			return
		}
	}
}

// text reports whether a NUL at the end is no part of the image, but its mark.
func (p *part) text(k *call) bool {
	return p.format == fatbin.FormatPTX || p.format == fatbin.FormatUnknown && k.h.fn.size == none && k.path == nil
}

// memory is what images are read from and copies are written to.
type memory interface {
	ReadAt(b []byte, addr int64) (int, error)
	WriteAt(b []byte, addr int64) (int, error)
}

// give lets the loader read our copy, or image in its place.
func (c *Capture) give(t *ptrace.Task, k *call, image []byte) {
	if k.err != nil {
		return // the driver gets what the program gave; loaded reports it
	}
	if err := c.substitute(t, k, image); err != nil {
		k.watch = true
		c.log.Debug("the driver reads the program's own image", "pid", t.PID, "err", err)
	}
}

// loaded is called when a loader has returned.
func (c *Capture) loaded(t *ptrace.Task, k *call, result int32) {
	if k.given != "" && result != 0 {
		c.note(t, "the driver refused the replacement %.12s of image %.12s in %s (error %d); it was given the original",
			k.given, k.parts[0].sum, k.h.name(), result)
		if c.o.Refused != nil {
			c.o.Refused(t.PID, t.TID, k.given, result)
		}
		if c.again(t, k) {
			return
		}
	}
	if k.err != nil && result == 0 {
		c.gap(t, "an image that process %d gave to %s at %#x could not be copied: %v", t.PID, k.h.name(), k.arg(t, k.h.fn.image), k.err)
	}
	if k.err == nil && k.watch && result == 0 {
		c.compare(t, k)
	}
	c.closePath(t, k, result)
	var handle uint64
	switch {
	case k.h.fn.act == actLinkAdd || k.h.fn.act == actLinkAddFile:
		handle = k.arg(t, k.h.fn.owner)
	case result == 0:
		handle, _ = readWord(t, k.arg(t, k.h.fn.out))
	}
	if result == 0 && k.h.fn.out != none && k.err == nil && len(k.parts) > 0 {
		p := c.process(t)
		p.noteModule(handle, k.parts[0].image(k, handle), k.lookups)
		if k.h.fn.lib && len(p.libraries) < maxHandles {
			p.libraries[handle] = true
		}
	}
	c.report(t, k, 0, result, handle)
	c.keep(t, k, result, handle)
}

// again has the call made once more, with what the program gave.
func (c *Capture) again(t *ptrace.Task, k *call) bool {
	now, err := t.Regs()
	if err != nil {
		return false
	}
	var ret [8]byte
	le.PutUint64(ret[:], now.IP())
	if _, err := t.WriteMem(k.entry.SP(), ret[:]); err != nil {
		return false
	}
	r := k.entry
	if err := t.SetRegs(&r); err != nil {
		return false
	}
	c.drop(t, k.place)
	c.closePath(t, k, -1)
	c.thread(t).retry = k
	return true
}

// compare makes sure that what the driver read in the program's own memory is
// what was captured.
func (c *Capture) compare(t *ptrace.Task, k *call) {
	for _, p := range k.parts {
		if p.pinned || p.addr == 0 {
			continue
		}
		sum, _, _, err := copyImage(nil, offsetReader{taskMemory{t}, p.addr}, p.size, p.text(k), nil)
		if err == nil && sum != p.sum && k.h.guess {
			// It gives the image up, as what destroys a link's state does, or writes it. What
			// comes of it enters by a loader.
			c.log.Debug("image gone after a hidden slot", "slot", k.h.name(), "pid", t.PID)
			continue
		}
		if err == nil && sum != p.sum {
			c.gap(t, "the image at %#x of process %d changed while %s read it: the driver may have seen other bytes than %.12s",
				p.addr, t.PID, k.h.name(), p.sum)
		}
	}
}

// report emits the images of a call. One that the thread did not return from has
// FlagUnfinished.
func (c *Capture) report(t *ptrace.Task, k *call, flags traces.Flags, result int32, handle uint64) {
	if k.h.fn.act >= actTable || k.busy {
		return // killed before the driver was given anything
	}
	if errors.Is(k.err, errUnknown) {
		ev := c.imageEvent(t, k, flags, result)
		ev.Image = &traces.Image{Format: fatbin.FormatUnknown.Word(), Handle: handle, Origin: "breakpoint"}
		c.author.image(ev)
	}
	if k.err != nil {
		if flags != 0 {
			c.gap(t, "process %d ended in %s with an image that could not be copied: %v", t.PID, k.h.name(), k.err)
		}
		return
	}
	if k.nested && c.sameAsOuter(t, k) {
		return
	}
	if len(k.parts) > 0 {
		c.author.load()
	}
	for _, p := range k.parts {
		ev := c.imageEvent(t, k, flags, result)
		ev.Image = p.image(k, handle)
		c.author.image(ev)
		if p.stored != nil {
			c.gap(t, "images are missing in the module store: %v", cause(p.stored))
		}
	}
}

// imageEvent makes the event of a call, but for the image.
func (c *Capture) imageEvent(t *ptrace.Task, k *call, flags traces.Flags, result int32) *traces.Event {
	ev := c.event(t, traces.KindImage)
	ev.Flags, ev.Ret, ev.Name, ev.Path = flags, int64(result), k.h.name(), k.caller
	ev.Dur, ev.Time = ev.Time-k.start, k.start
	for i := range ev.Args {
		ev.Args[i] = k.entry.Arg(i)
	}
	return ev
}

// image describes a part for an event.
func (p *part) image(k *call, handle uint64) *traces.Image {
	m := &traces.Image{
		SHA256: p.sum, Size: p.kept, Format: p.format.Word(), File: p.file, Offset: p.offset, Handle: handle,
		Origin: "breakpoint",
	}
	if p == k.parts[0] {
		m.Replaced = k.given
	}
	return m
}

// sameAsOuter reports whether a call inside the driver loads what an outer one
// was given.
func (c *Capture) sameAsOuter(t *ptrace.Task, k *call) bool {
	for _, p := range k.parts {
		if !slices.ContainsFunc(c.thread(t).calls, func(o *call) bool {
			return o != k && slices.ContainsFunc(o.parts, func(q *part) bool { return q.sum == p.sum }) ||
				o.given != "" && o.given == p.sum
		}) {
			return false
		}
	}
	return true
}

// cause returns what went wrong with a file, without the file's name, which
// differs each time.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
