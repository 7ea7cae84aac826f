package capture

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/ptrace"
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
	given   string                     // hash of the replacement
	lookups Lookups                    // of the module
	id      uuid                       // of the table that is asked for
	known   func(handle, given uint64) // is told what a look-up need not stop for again; nil: nobody is
	err     error                      // the image could not be captured
	busy    bool                       // it is being copied on another goroutine, to which parts and err belong
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

// dropAbandoned drops the calls that were left without a return.
func (th *thread) dropAbandoned(sp uint64) {
	for n := len(th.calls); n > 0 && th.calls[n-1].entry.SP() <= sp; n-- {
		th.calls = th.calls[:n-1]
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

// text reports whether a NUL at the end is no part of the image, but its mark.
func (p *part) text(k *call) bool {
	return p.format == fatbin.FormatPTX || p.format == fatbin.FormatUnknown && k.h.fn.size == none && k.path == nil
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
	if result == 0 && k.h.fn.out != none {
		c.forgetFound(t) // of what was in the place of what was loaded
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

// linked is called when a linker has finished.
func (c *Capture) linked(t *ptrace.Task, k *call, result int32) {
	if result != 0 {
		return
	}
	addr, err1 := readWord(t, k.arg(t, k.h.fn.out))
	size, err2 := readWord(t, k.arg(t, k.h.fn.size))
	if err1 != nil || err2 != nil || addr == 0 || size == 0 {
		return
	}
	if size > uint64(c.o.MaxImage) {
		c.gap(t, "the result of cuLinkComplete in process %d has %d bytes, above the limit of %d", t.PID, size, c.o.MaxImage)
		return
	}
	r := offsetReader{taskMemory{t}, addr}
	p := &part{addr: addr, size: int64(size), format: sniff(r, int64(size))}
	if n, err := fatbin.Extent(r, p.size); err == nil {
		p.size = n // as a loader will find it
	}
	if p.sum, p.kept, p.stored, k.err = copyImage(c.o.Store, r, p.size, p.format == fatbin.FormatPTX, nil); k.err == nil {
		k.parts = []*part{p}
		if c.o.Replace != nil { // who else would ask
			c.made.add(p.sum)
		}
	}
	// It is no input: no gap if it can't be read, for it comes back to a loader.
	if k.err == nil {
		c.report(t, k, 0, result, k.arg(t, k.h.fn.owner))
	}
}

// count notes a hit for the comparison with the interposer.
func (c *Capture) count(t *ptrace.Task, k *call) {
	if c.o.Settle == nil || k.h.fn.act >= actLinkEnd || len(c.hits) >= maxNotes {
		return // nobody will compare
	}
	addr := k.entry.Arg(int(k.h.fn.image))
	for _, name := range k.h.names {
		c.hits[Note{PID: t.PID, Function: name, Image: addr}]++
	}
}

// loadFile captures an image in a file. The driver opens it itself, so that errors
// are its own; when it has returned, the same name must still lead to the same
// file in the same state.
func (c *Capture) loadFile(t *ptrace.Task, th *thread, k *call) {
	retry := th.retry != nil
	th.retry = nil
	k.caller = c.callerAlone(t, k)
	c.onReturn(t, th, k, c.loaded)
	addr := k.arg(t, k.h.fn.image)
	k.path = &pathArg{fd: -1}
	k.path.name, k.err = t.ReadString(addr, maxPath)
	if k.err != nil {
		return
	}
	f, key, path, err := openInTask(t, addr)
	if err != nil {
		k.err = fmt.Errorf("%s: %w", k.path.name, err)
		return
	}
	k.path.file, k.path.key, k.watch = f, key, true
	if key.Size > c.o.MaxImage {
		k.err = fmt.Errorf("%s: %d bytes: %w of %d", path, key.Size, fatbin.ErrTooLarge, c.o.MaxImage)
		return
	}
	p := &part{size: key.Size, format: sniff(f, key.Size), file: path}
	k.parts = []*part{p}
	replace := c.o.Replace != nil && !retry && !k.nested
	work := func() []byte {
		p.sum, p.kept, p.stored, k.err = copyImage(c.o.Store, f, p.size, p.text(k), nil)
		if replace && k.err == nil {
			return c.replacement(t.PID, t.TID, k)
		}
		return nil
	}
	if !replace && p.size <= inlineBytes {
		work()
		return
	}
	c.aside(t, k, work, func(t *ptrace.Task, k *call, image []byte) {
		if image == nil {
			return
		}
		if err := c.replaceFile(t, k, image); err != nil {
			k.given = ""
			c.note(t, "image %.12s could not be replaced: %v", p.sum, err)
		}
	})
}

// closePath ends what a call with a path needed, and makes sure that the driver
// saw the file that was captured.
func (c *Capture) closePath(t *ptrace.Task, k *call, result int32) {
	if k.path == nil || k.path.file == nil {
		return
	}
	k.path.file.Close()
	k.path.file = nil
	if k.path.fd >= 0 {
		_, _ = t.Syscall(unix.SYS_CLOSE, uint64(k.path.fd)) // it may have been closed by the program
		return
	}
	if result != 0 {
		return
	}
	name, err := t.ReadString(k.arg(t, k.h.fn.image), maxPath)
	if err != nil || name != k.path.name {
		c.gap(t, "the path %q changed while %s of process %d used it", k.path.name, k.h.name(), t.PID)
		return
	}
	f, key, _, err := openInTask(t, k.arg(t, k.h.fn.image))
	if err == nil {
		f.Close()
	}
	if err != nil || key != k.path.key {
		c.gap(t, "%s changed while %s of process %d read it", k.path.name, k.h.name(), t.PID)
	}
}

// callerAlone is callerOf where nothing else is asked of the process's mappings.
func (c *Capture) callerAlone(t *ptrace.Task, k *call) string {
	maps := proc.NewView(t.PID)
	defer maps.Close()
	return c.callerOf(t, maps, &k.entry)
}

// callerOf names the library that called a function at whose entry the registers
// are regs. The interposer's call was made for somebody further up, whose return
// address its frame has.
func (c *Capture) callerOf(t *ptrace.Task, maps *proc.View, regs *ptrace.Regs) string {
	ret, err := readWord(t, regs.SP())
	if err != nil {
		return ""
	}
	lib := libraryAt(maps, ret)
	if c.o.Shim == "" || lib != c.o.Shim {
		return lib
	}
	fp := framePointer(regs)
	for range 4 {
		var frame [16]byte
		if fp <= regs.SP() || fp-regs.SP() > maxShimStack {
			break
		}
		if n, _ := t.ReadMem(fp, frame[:]); n < len(frame) {
			break
		}
		m := maps.At(le.Uint64(frame[8:]))
		if m == nil || !m.Exec {
			break
		}
		if m.Path != lib {
			return libraryAt(maps, le.Uint64(frame[8:]))
		}
		fp = le.Uint64(frame[:])
	}
	return lib
}
