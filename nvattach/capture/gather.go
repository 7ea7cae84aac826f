package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"nvtrace/fatbin"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

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
var errUnknown = errors.New("the image's format is not known")

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

// memory is what images are read from and copies are written to.
type memory interface {
	ReadAt(b []byte, addr int64) (int, error)
	WriteAt(b []byte, addr int64) (int, error)
}

// readWord reads 8 bytes.
func readWord(t *ptrace.Task, addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := t.ReadMem(addr, b[:]); err != nil {
		return 0, err
	}
	return le.Uint64(b[:]), nil
}
