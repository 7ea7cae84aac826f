package channel

import (
	"fmt"
	"iter"
)

// An Op says how a header's data is spread over methods (NVC56F_DMA_SEC_OP_* in clc56f.h).
type Op uint8

// What a header can ask for.
const (
	Increasing    Op = 1 // each word goes to the next method
	NotIncreasing Op = 3 // all words go to one method
	Immediate     Op = 4 // the data is in the header
	IncreaseOnce  Op = 5 // the first word goes to the method, the others to the next one
	EndSegment    Op = 7
)

func (o Op) String() string {
	switch o {
	case Increasing:
		return "inc"
	case NotIncreasing:
		return "noninc"
	case Immediate:
		return "immd"
	case IncreaseOnce:
		return "1inc"
	case EndSegment:
		return "end"
	}
	return fmt.Sprintf("op%d", uint8(o))
}

// A Command is one header of a pushbuffer with its data.
type Command struct {
	Address    uint64 // of the header
	Header     uint32
	Op         Op
	Subchannel uint8
	Method     uint16 // byte offset of the first method
	Data       []uint32
	Cut        bool // the piece ends before the data that the header announces
}

// Commands yields the commands in a piece of pushbuffer that begins at address. Any words are
// fine: what is no header that the hardware knows becomes a command with its number as Op and no data.
func Commands(words []uint32, address uint64) iter.Seq[Command] {
	return func(yield func(Command) bool) {
		for i := 0; i < len(words); {
			h := words[i]
			c := Command{
				Address: address + 4*uint64(i), Header: h,
				Op: Op(h >> 29), Subchannel: uint8(h >> 13 & 7), Method: uint16(h&0xfff) * 4,
			}
			i++
			switch c.Op {
			case Increasing, NotIncreasing, IncreaseOnce:
				n := int(h >> 16 & 0x1fff)
				if n > len(words)-i {
					n, c.Cut = len(words)-i, true
				}
				c.Data = words[i : i+n]
				i += n
			case Immediate:
				c.Data = []uint32{h >> 16 & 0x1fff}
			}
			if !yield(c) {
				return
			}
		}
	}
}

// Target returns the byte offset of the method that the i-th word of the command's data goes to.
func (c *Command) Target(i int) uint16 {
	switch {
	case c.Op == Increasing:
		return c.Method + uint16(4*i)
	case c.Op == IncreaseOnce && i > 0:
		return c.Method + 4
	}
	return c.Method
}

// firstEngineMethod is where the methods of engines begin: those below it are the host's, on any
// subchannel, except SET_OBJECT, which the host passes on.
const firstEngineMethod = 0x100

// Subchannels says which class each subchannel of a channel speaks to; nil where that isn't known.
// A channel binds them once, by SET_OBJECT, so that later pieces don't say it.
type Subchannels struct {
	Host   *Class
	Engine [8]*Class
}

// Bind notes what a command binds.
func (s *Subchannels) Bind(c *Command) {
	if c.Method == 0 && len(c.Data) > 0 {
		if class := ClassOf(uint16(c.Data[0])); class != nil {
			s.Engine[c.Subchannel] = class
		}
	}
}

// Method returns the method at an offset of a subchannel, and its index in an array; nil if it has
// no name.
func (s *Subchannels) Method(subchannel uint8, offset uint16) (m *Method, index int) {
	class := s.Engine[subchannel&7]
	if offset < firstEngineMethod {
		class = s.Host
	}
	if class == nil {
		return nil, 0
	}
	return class.Method(offset)
}
