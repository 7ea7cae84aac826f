package capture

import (
	"errors"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/ptrace"
	"nvtrace/ptrace/remote"
	"nvtrace/traces"
)

// chunk is memory that was mapped into the program for copies of images. The
// program can't write to it.
type chunk struct {
	base, size, used uint64
	refs             int
	shared           bool // for several copies; read-only from the start, written by force
}

// placement is a place in a chunk.
type placement struct {
	ch         *chunk
	base, size uint64
}

const (
	arenaBytes = 1 << 20
	smallBytes = 64 << 10 // what shares a chunk with others
	alignBytes = 64
)

func align(n uint64) uint64 { return (n + alignBytes - 1) &^ (alignBytes - 1) }

// layout of a copied wrapper: the wrapper, its list, the containers.
const wrapperBytes = 24

func (k *call) listAt() uint64 { return align(wrapperBytes) }

// reserve finds room for a copy of what the program could change while the
// driver reads it. inline: the copy is made on the tracing thread.
func (c *Capture) reserve(t *ptrace.Task, k *call, inline bool) error {
	size := uint64(0)
	if k.wrapper != nil {
		size = align(wrapperBytes)
		if k.wrapper.List != 0 {
			size += align(8 * uint64(len(k.parts)+1))
		}
	}
	for _, p := range k.parts {
		if !p.pinned {
			p.at = size
			size += align(uint64(p.size) + 1) // text ends in a NUL whatever another thread does to the program's
		}
	}
	if size == 0 {
		return nil
	}
	var err error
	k.place, err = c.room(t, size, inline)
	return err
}

// room maps memory.
func (c *Capture) room(t *ptrace.Task, size uint64, inline bool) (*placement, error) {
	p := c.process(t)
	if inline && size <= smallBytes {
		if p.arena == nil || p.arena.size-p.arena.used < size {
			base, err := remote.Alloc(t, arenaBytes, unix.PROT_READ)
			if err != nil {
				return nil, err
			}
			p.arena = &chunk{base: base, size: arenaBytes, shared: true}
		}
		ch := p.arena
		at := &placement{ch: ch, base: ch.base + ch.used, size: size}
		ch.used += size
		ch.refs++
		return at, nil
	}
	whole := (size + pageSize - 1) &^ (pageSize - 1)
	base, err := remote.Alloc(t, whole, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, err
	}
	return &placement{ch: &chunk{base: base, size: whole, used: whole, refs: 1}, base: base, size: size}, nil
}

// drop gives a placement back; nil is none.
func (c *Capture) drop(t *ptrace.Task, p *placement) {
	if p == nil {
		return
	}
	if p.ch.refs--; p.ch.refs > 0 {
		return
	}
	if p.ch.shared && c.process(t).arena == p.ch {
		p.ch.used = 0
		return
	}
	if err := remote.Free(t, p.ch.base, p.ch.size); err != nil {
		c.log.Debug("unmap", "pid", t.PID, "err", err)
	}
}

// memory is how a placement is written on the tracing thread.
func (p *placement) memory(t *ptrace.Task) memory {
	if p != nil && p.ch.shared {
		return forcedMemory{taskMemory{t}}
	}
	return taskMemory{t}
}

// write puts bytes at an offset of the placement.
func (p *placement) write(m memory, off uint64, b []byte) error {
	if off > p.size || uint64(len(b)) > p.size-off {
		panic("BUG: a copy beyond its room")
	}
	_, err := m.WriteAt(b, int64(p.base+off))
	return err
}

// WriteAt implements io.WriterAt.
func (m taskMemory) WriteAt(b []byte, addr int64) (int, error) {
	return m.t.WriteMem(uint64(addr), b)
}

// forcedMemory also writes what the program can't.
type forcedMemory struct{ taskMemory }

// WriteAt implements io.WriterAt.
func (m forcedMemory) WriteAt(b []byte, addr int64) (int, error) {
	if err := m.t.PokeText(uint64(addr), b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// errMoved is an image that another thread changes while it is copied.
var errMoved = errors.New("the image's size changes while it is read")

// substitute makes the loader's arguments name our copy, or image.
func (c *Capture) substitute(t *ptrace.Task, k *call, image []byte) error {
	if image != nil {
		return c.replace(t, k, image)
	}
	if k.place == nil {
		return nil
	}
	m := k.place.memory(t)
	for _, p := range k.parts {
		if p.pinned {
			continue
		}
		if err := k.place.write(m, p.at+uint64(p.size), []byte{0}); err != nil {
			return err
		}
		if k.h.fn.size != none {
			continue
		}
		// What was copied says how long it is. Another thread may have changed that
		// since the size was taken.
		n, err := fatbin.Extent(offsetReader{taskMemory{t}, k.place.base + p.at}, c.o.MaxImage)
		if err != nil || n != p.size {
			k.err = errMoved
			return errMoved
		}
	}
	if err := c.writeWrapper(m, k); err != nil {
		return err
	}
	target := k.place.base
	if k.wrapper == nil {
		target += k.parts[0].at
	}
	return c.pass(t, k, target)
}

// writeWrapper puts a wrapper in front of the containers; its pointers name our
// copies of them, or where they lie in a file.
func (c *Capture) writeWrapper(m memory, k *call) error {
	w := k.wrapper
	if w == nil {
		return nil
	}
	address := func(p *part) uint64 {
		if p.pinned {
			return p.addr
		}
		return k.place.base + p.at
	}
	var head [wrapperBytes]byte
	if _, err := m.ReadAt(head[:], int64(k.image)); err != nil { // the word that is nobody's business stays
		return err
	}
	rest := k.parts
	if w.Container != 0 {
		le.PutUint64(head[8:], address(rest[0]))
		rest = rest[1:]
	}
	if w.List != 0 {
		le.PutUint64(head[16:], k.place.base+k.listAt())
		list := make([]byte, 8*(len(rest)+1))
		for i, p := range rest {
			le.PutUint64(list[8*i:], address(p))
		}
		if err := k.place.write(m, k.listAt(), list); err != nil {
			return err
		}
	}
	return k.place.write(m, 0, head[:])
}

// pass protects the copy and changes the argument.
func (c *Capture) pass(t *ptrace.Task, k *call, target uint64) error {
	if ch := k.place.ch; !ch.shared {
		if _, err := t.Syscall(unix.SYS_MPROTECT, ch.base, ch.size, unix.PROT_READ); err != nil {
			return err
		}
	}
	r, err := t.Regs()
	if err != nil {
		return err
	}
	r.SetArg(int(k.h.fn.image), target)
	return t.SetRegs(r)
}

// replacement asks for another image. It runs on a goroutine of its own.
func (c *Capture) replacement(pid, tid int, k *call) []byte {
	p := k.parts[0]
	data := make([]byte, p.kept)
	if k.path != nil {
		if n, err := k.path.file.ReadAt(data, 0); n < len(data) {
			c.log.Debug("read for replacement", "err", err)
			return nil
		}
	} else {
		at := p.addr
		if k.place != nil && !p.pinned {
			at = k.place.base + p.at // what the driver would get
		}
		if _, err := (processMemory{tid}).ReadAt(data, int64(at)); err != nil {
			c.log.Debug("read for replacement", "err", err)
			return nil
		}
	}
	im := &Captured{
		PID: pid, TID: tid, Function: k.h.name(), Library: k.caller, Data: data, Linked: c.made.has(p.sum),
		Image: traces.Image{SHA256: p.sum, Size: p.kept, Format: p.format.Word(), File: p.file, Offset: p.offset, Origin: "breakpoint"},
	}
	image, ok := c.o.Replace(im)
	k.lookups = im.Lookups
	if !ok || len(image) == 0 {
		return nil
	}
	sum, err := c.o.Store.Put(image)
	if err != nil {
		c.log.Debug("store a replacement", "err", err)
	}
	k.given = sum
	return image
}

// inputTypes are the CUjitInputType of formats (cuda.h).
var inputTypes = map[fatbin.Format]uint64{
	fatbin.FormatCubin: 0, fatbin.FormatPTX: 1, fatbin.FormatContainer: 2, fatbin.FormatArchive: 4, fatbin.FormatLTOIR: 5,
}

// replace gives the driver another image. A wrapper stays one, of version 1: its
// list belonged to the original.
func (c *Capture) replace(t *ptrace.Task, k *call, image []byte) error {
	c.drop(t, k.place)
	k.place = nil
	offset := uint64(0)
	if k.wrapper != nil {
		offset = align(wrapperBytes)
	}
	place, err := c.room(t, offset+uint64(len(image))+1, false)
	if err != nil {
		k.given = ""
		return err
	}
	k.place = place
	m := place.memory(t)
	err = place.write(m, offset, image)
	if err == nil && k.wrapper != nil {
		var head [wrapperBytes]byte
		le.PutUint32(head[0:], 0x466243B1) // fatbinary_section.h: FATBINC_MAGIC
		le.PutUint32(head[4:], 1)
		le.PutUint64(head[8:], place.base+offset)
		err = place.write(m, 0, head[:])
	}
	if err == nil {
		err = c.pass(t, k, place.base)
	}
	if err != nil {
		k.given = ""
		return err
	}
	c.author.stats.Replaced++
	if k.h.fn.size == none {
		return nil
	}
	r, err := t.Regs()
	if err != nil {
		return err
	}
	format := fatbin.Sniff(image[:min(len(image), 64<<10)])
	size := uint64(len(image))
	if format == fatbin.FormatPTX {
		size++ // the linker wants the NUL counted
	}
	r.SetArg(int(k.h.fn.size), size)
	if kind, ok := inputTypes[format]; ok {
		r.SetArg(int(k.h.fn.kind), kind)
	}
	return t.SetRegs(r)
}

// keep decides how long our copy must live: with the module, where the driver may
// come back to it. Programs free images of other calls right after them, so that
// the driver can't.
func (c *Capture) keep(t *ptrace.Task, k *call, result int32, handle uint64) {
	if k.place == nil {
		return
	}
	stays := k.h.fn.lib || k.h.slot.table != "" || k.wrapper != nil
	if result != 0 || !stays {
		c.drop(t, k.place)
		return
	}
	if handle != 0 {
		p := c.process(t)
		p.kept[handle] = append(p.kept[handle], k.place)
	}
}
