package capture

import (
	"cmp"
	"fmt"

	"nvtrace/fatbin"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// Hidden tables that are not known, and slots that nobody has described: a slot
// that is called with a pointer to a code image takes code, whatever it does with
// it. That image is kept as a linker's input is: the driver is handed the program's
// own pointer, and the bytes are compared when the slot has returned.

// maxIdle is how often a slot is called without an image before it is let alone:
// some are called for every function of the runtime.
const maxIdle = 1 << 12

// inDriver reports whether an address lies in the code of a driver that is watched.
func (p *process) inDriver(addr uint64) bool {
	for i := range p.spaces {
		if s := &p.spaces[i]; addr >= s.start && addr < s.end {
			return true
		}
	}
	return false
}

// readSlots reads a table. It begins with its size in bytes; one that doesn't ends
// with the first word that isn't the address of code.
func (c *Capture) readSlots(t *ptrace.Task, at uint64) ([]uint64, error) {
	first, err := readWord(t, at)
	if err != nil {
		return nil, err
	}
	sized := first < 8*maxSlots
	count := uint64(maxSlots)
	if sized {
		count = first / 8
	}
	view := proc.NewView(t.PID)
	defer view.Close()
	var list []uint64
	for i := range count {
		addr, err := readWord(t, at+8*i)
		if err != nil {
			break
		}
		if m := view.At(addr); m == nil || !m.Exec {
			if !sized {
				break
			}
			addr = 0
		}
		list = append(list, addr)
	}
	return list, nil
}

// slotCalled is called at the entry of a function of which nothing is known.
func (c *Capture) slotCalled(t *ptrace.Task, b *ptrace.Breakpoint, th *thread, k *call) {
	if k.nested {
		return // the driver's own use
	}
	for i := range int8(6) {
		if !sniffsAsImage(t, k.arg(t, i)) {
			continue
		}
		h := *k.h
		h.idle, h.guess = 0, true
		h.fn = function{name: h.fn.name, act: actLinkAdd, image: i, size: none, kind: none, owner: 0, out: none}
		k.h.idle, k.h = 0, &h
		c.note(t, "slot %s of the driver was called by %s with a code image as argument %d", h.name(), c.callerLibrary(t, k), i)
		c.loadAsIs(t, th, k)
		return
	}
	if k.h.idle++; k.h.idle >= maxIdle {
		c.log.Debug("not watched any more", "slot", k.h.name(), "pid", t.PID)
		delete(c.process(t).hooks, k.addr)
		c.remove(b)
	}
}

func (c *Capture) callerLibrary(t *ptrace.Task, k *call) string {
	return cmp.Or(c.callerAlone(t, k), "code that is in no file")
}

// sniffsAsImage reports whether an argument is a pointer to code.
func sniffsAsImage(t *ptrace.Task, addr uint64) bool {
	if addr < pageSize {
		return false
	}
	var word [8]byte
	if n, _ := t.ReadMem(addr, word[:]); n < len(word) {
		return false
	}
	head := make([]byte, pageSize)
	n, _ := t.ReadMem(addr, head)
	switch fatbin.Sniff(head[:n]) {
	case fatbin.FormatContainer, fatbin.FormatWrapper, fatbin.FormatCubin, fatbin.FormatPTX:
		return true
	}
	return false
}

// loadAsIs captures an image that the driver reads where the program has it.
func (c *Capture) loadAsIs(t *ptrace.Task, th *thread, k *call) {
	view := proc.NewView(t.PID)
	defer view.Close()
	k.caller, k.watch = c.callerOf(t, view, &k.entry), true
	c.onReturn(t, th, k, c.loaded)
	if k.err = c.gather(t, k, view); k.err != nil {
		k.err = fmt.Errorf("argument %d: %w", k.h.fn.image, k.err)
		return
	}
	var total int64
	for _, p := range k.parts {
		total += p.size
	}
	if total <= inlineBytes {
		c.copyParts(taskMemory{t}, k)
		return
	}
	c.aside(t, k, func() []byte {
		c.copyParts(processMemory{t.TID}, k)
		return nil
	}, func(*ptrace.Task, *call, []byte) {})
}
