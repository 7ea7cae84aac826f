package channel

import "encoding/binary"

// A Writer makes a piece of pushbuffer, by the names of methods. A name that the class doesn't have
// panics: it is a mistake of the caller's.
type Writer struct {
	Words []uint32
}

// Methods writes values to a method of a class and those that follow it.
func (w *Writer) Methods(c *Class, subchannel uint8, name string, values ...uint32) {
	w.Words = append(w.Words, header(Increasing, c.offset(name), subchannel, len(values)))
	w.Words = append(w.Words, values...)
}

// Inline has a compute engine write words to memory.
func (w *Writer) Inline(c *Class, subchannel uint8, address uint64, words []uint32) {
	w.Methods(c, subchannel, "OFFSET_OUT_UPPER", uint32(address>>32), uint32(address))
	w.Methods(c, subchannel, "LINE_LENGTH_IN", uint32(4*len(words)), 1)
	w.Methods(c, subchannel, "LAUNCH_DMA", 0x41)
	w.Words = append(w.Words, header(NotIncreasing, c.offset("LOAD_INLINE_DATA"), subchannel, len(words)))
	w.Words = append(w.Words, words...)
}

// Acquire has the host side wait until a semaphore has reached a value.
func (w *Writer) Acquire(host *Class, subchannel uint8, s Semaphore) {
	const circular = 3
	w.Methods(host, subchannel, "SEM_ADDR_LO", uint32(s.Address), uint32(s.Address>>32), uint32(s.Payload), 0, circular)
}

// Release has a compute engine write a payload and, behind it, the GPU's time.
func (w *Writer) Release(c *Class, subchannel uint8, s Semaphore) {
	const flushDisable = 4 // as libcuda has it
	w.Methods(c, subchannel, "SET_REPORT_SEMAPHORE_A", uint32(s.Address>>32), uint32(s.Address), uint32(s.Payload), flushDisable)
}

func header(op Op, offset uint16, subchannel uint8, n int) uint32 {
	return uint32(op)<<29 | uint32(n)<<16 | uint32(subchannel)<<13 | uint32(offset)/4
}

// offset returns a method's offset by its name.
func (c *Class) offset(name string) uint16 {
	for i := range c.methods {
		if c.methods[i].Name == name {
			return c.methods[i].Offset
		}
	}
	panic("BUG: class " + c.Name + " has no method " + name)
}

// MakeQMD makes a QMD of the class's latest version, by the names of its fields: what [Class.ParseQMD] reads.
func (c *Class) MakeQMD(fields map[string]uint64) []uint32 {
	l := c.qmds[len(c.qmds)-1]
	b := make([]byte, qmdSizes[l.Major])
	set := func(p part, v uint64) {
		if !p.known {
			panic("BUG: a field that the QMD doesn't have")
		}
		for bit := p.low; bit <= p.high; bit++ {
			b[bit/8] |= byte(v>>(bit-p.low)&1) << (bit % 8)
		}
	}
	set(l.launch.major, uint64(l.Major))
	set(l.launch.minor, uint64(l.Minor))
	for name, v := range fields {
		set(l.partOf(name), v)
	}
	words := make([]uint32, len(b)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}

// RingEntry returns the entry of a ring that has the GPU fetch a piece: what [ParseEntry] reads.
func RingEntry(address uint64, words int) uint64 {
	return address&^3&(1<<40-1) | uint64(words)<<42 | 1<<41
}
