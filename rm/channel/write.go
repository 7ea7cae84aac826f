package channel

import (
	"slices"
	"strings"
)

// A Writer makes a piece of pushbuffer, by the names of methods. A name that the class doesn't have
// panics: it is a mistake of the caller's ([Class.Has] asks).
type Writer struct {
	Words []uint32
}

// Methods writes values to a method of a class and those that follow it.
func (w *Writer) Methods(c *Class, subchannel uint8, name string, values ...uint32) {
	w.Words = append(w.Words, header(Increasing, c.offset(name), subchannel, len(values)))
	w.Words = append(w.Words, values...)
}

// Bind has a subchannel speak to a class from here on (SET_OBJECT).
func (w *Writer) Bind(c *Class, subchannel uint8) {
	w.Words = append(w.Words, header(Increasing, 0, subchannel, 1), uint32(c.Number))
}

// Fields writes to a method what fields say by name, as in "OPERATION=RELEASE PAYLOAD_SIZE=32BIT";
// those that are not named are zero.
func (w *Writer) Fields(c *Class, subchannel uint8, name, fields string) {
	m, _ := c.Method(c.offset(name))
	var data uint32
	for field := range strings.FieldsSeq(fields) {
		key, value, _ := strings.Cut(field, "=")
		f := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == key })
		v := -1
		if f >= 0 {
			v = slices.IndexFunc(m.Fields[f].Values, func(v Value) bool { return v.Name == value })
		}
		if v < 0 {
			panic("BUG: method " + name + " of class " + c.Name + " has no " + field)
		}
		data |= uint32(m.Fields[f].Values[v].Number << m.Fields[f].Low)
	}
	w.Methods(c, subchannel, name, data)
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

// Has says whether the class has a method of that name in the headers.
func (c *Class) Has(name string) bool { return c.index(name) >= 0 }

func (c *Class) index(name string) int {
	return slices.IndexFunc(c.methods, func(m Method) bool { return m.Name == name })
}

// offset returns a method's offset by its name.
func (c *Class) offset(name string) uint16 {
	i := c.index(name)
	if i < 0 {
		panic("BUG: class " + c.Name + " has no method " + name)
	}
	return c.methods[i].Offset
}

// Encode returns the entry as it stands in a ring. It returns false for what a ring can't hold: a
// control entry, an odd address, one of more than 40 bits, or a piece that is too long.
func (e Entry) Encode() (uint64, bool) {
	if e.Words == 0 || e.Words >= 1<<21 || e.Address&3 != 0 || e.Address>>40 != 0 {
		return 0, false
	}
	high := e.Address>>32 | uint64(e.Words)<<10
	if e.Subroutine {
		high |= 1 << 9
	}
	if e.Sync {
		high |= 1 << 31
	}
	return high<<32 | e.Address&0xffffffff, true
}
