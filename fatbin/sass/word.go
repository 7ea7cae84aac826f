package sass

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Arch is the number of an architecture: 90 for sm_90, also for sm_90a.
type Arch uint16

// String returns "sm_90".
func (a Arch) String() string { return "sm_" + strconv.Itoa(int(a)) }

// ParseArch reads "sm_90", "sm_90a", "sm_100f" or "90".
func ParseArch(s string) (Arch, error) {
	n, err := strconv.ParseUint(strings.TrimRight(strings.TrimPrefix(s, "sm_"), "af"), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("architecture %q: want for example sm_90", s)
	}
	return Arch(n), nil
}

// WordSize is the size of an instruction in bytes.
const WordSize = 16

// Word is one instruction. In memory Lo comes first, both are little-endian.
type Word struct{ Lo, Hi uint64 }

// WordAt reads the word at the beginning of b, which has at least 16 bytes.
func WordAt(b []byte) Word {
	return Word{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:WordSize])}
}

// Words reads code. What is behind the last whole word is left out.
func Words(code []byte) []Word {
	out := make([]Word, len(code)/WordSize)
	for i := range out {
		out[i] = WordAt(code[i*WordSize:])
	}
	return out
}

// Append appends the word's 16 bytes.
func (w Word) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, w.Lo), w.Hi)
}

// String returns both halves as nvdisasm -hex prints them, in one line.
func (w Word) String() string { return fmt.Sprintf("0x%016x 0x%016x", w.Lo, w.Hi) }

// Opcode returns bits 0 to 11. Of arithmetic, bits 9 to 11 say where the operands
// are: registers, immediate, constant bank or uniform register.
func (w Word) Opcode() uint16 { return uint16(w.Lo & 0xfff) }

// Bits returns n bits (0 to 64) from bit pos on.
func (w Word) Bits(pos, n uint) uint64 {
	var v uint64
	switch {
	case pos >= 64:
		v = w.Hi >> (pos - 64)
	case pos == 0:
		v = w.Lo
	default:
		v = w.Lo>>pos | w.Hi<<(64-pos)
	}
	return v & (1<<n - 1)
}

// SetBits returns the word with n bits (0 to 64) from bit pos on replaced by the
// lowest bits of v.
func (w Word) SetBits(pos, n uint, v uint64) Word {
	mask := uint64(1)<<n - 1
	v &= mask
	if pos >= 64 {
		w.Hi = w.Hi&^(mask<<(pos-64)) | v<<(pos-64)
		return w
	}
	w.Lo = w.Lo&^(mask<<pos) | v<<pos
	if pos+n > 64 {
		w.Hi = w.Hi&^(mask>>(64-pos)) | v>>(64-pos)
	}
	return w
}

// Control is the part of a word that schedules it: bits 105 to 125.
type Control struct {
	Stall    uint8 // cycles until the next instruction of the warp may issue, 0 to 15
	Yield    bool  // bit 109: set keeps issuing from this warp, clear lets another go first
	WriteBar uint8 // scoreboard that is busy until the results are written, 7 is none
	ReadBar  uint8 // scoreboard that is busy until the operands are read, 7 is none
	Wait     uint8 // mask of the scoreboards 0 to 5 that must be idle before it issues
	Reuse    uint8 // mask of the operands that stay in the operand cache
}

// NoBar is a [Control.WriteBar] or ReadBar that stands for no scoreboard.
const NoBar = 7

// boards is the mask of the scoreboards that the instruction sets.
func (c Control) boards() uint8 {
	var m uint8
	for _, b := range []uint8{c.WriteBar, c.ReadBar} {
		if b < unguarded {
			m |= 1 << b
		}
	}
	return m
}

// Bits of the control half.
const (
	stallPos, yieldPos, writeBarPos, readBarPos, waitPos, reusePos = 105, 109, 110, 113, 116, 122
)

// Control returns the word's control half.
func (w Word) Control() Control {
	c := w.Hi >> (stallPos - 64)
	return Control{
		Stall:    uint8(c & 0xf),
		Yield:    c>>4&1 != 0,
		WriteBar: uint8(c >> 5 & 7),
		ReadBar:  uint8(c >> 8 & 7),
		Wait:     uint8(c >> 11 & 0x3f),
		Reuse:    uint8(c >> 17 & 0xf),
	}
}

// WithControl returns the word with another control half. Bits 126 and 127 stay.
func (w Word) WithControl(c Control) Word {
	v := uint64(c.Stall&0xf) | uint64(c.WriteBar&7)<<5 | uint64(c.ReadBar&7)<<8 | uint64(c.Wait&0x3f)<<11 | uint64(c.Reuse&0xf)<<17
	if c.Yield {
		v |= 1 << 4
	}
	const mask = 1<<21 - 1
	w.Hi = w.Hi&^(mask<<(stallPos-64)) | v<<(stallPos-64)
	return w
}

// String returns the control half in the way that others write it: wait mask,
// read barrier, write barrier, yield, stall, as in "B--2---:R-:W0:-:S04".
func (c Control) String() string {
	b := make([]byte, 0, 24)
	b = append(b, 'B')
	for i := range 6 {
		if c.Wait>>i&1 != 0 {
			b = append(b, '0'+byte(i))
		} else {
			b = append(b, '-')
		}
	}
	bar := func(letter byte, n uint8) {
		b = append(b, ':', letter)
		if n == NoBar {
			b = append(b, '-')
		} else {
			b = append(b, '0'+n)
		}
	}
	bar('R', c.ReadBar)
	bar('W', c.WriteBar)
	b = append(b, ':')
	if c.Yield {
		b = append(b, '-')
	} else {
		b = append(b, 'Y')
	}
	b = append(b, ':', 'S', '0'+c.Stall/10, '0'+c.Stall%10)
	return string(b)
}

// unguarded is the first index, behind the scoreboards, of what nothing will tell
// about: of a store, say, whose registers the code doesn't use again, or of a load
// that a later one of the same unit stands for. Units are counted from 1.
const (
	unguarded = 6
	units     = 3
)
