package sass

import "encoding/binary"

// The halves of addresses by which two bodies that [Movable] compares differ.
const (
	PlaceA = 0x5555
	PlaceB = 0x2aaa
)

// Movable makes a body for memory at an address the upper half of which is high, of two
// that were compiled for memory elsewhere: at upper halves [PlaceA] and [PlaceB]. Where
// they differ, and only by these halves as they are, is where an address stands. False if
// they differ otherwise.
func Movable(a, b *Body, high uint16) (*Body, bool) {
	if len(a.code) != len(b.code) || a.Arch != b.Arch {
		return nil, false
	}
	out := *a
	out.code = make([]Word, len(a.code))
	out.halves = nil
	for i := range a.code {
		x, y := a.code[i].Append(nil), b.code[i].Append(nil)
		for k := 0; k < WordSize; k++ {
			if x[k] == y[k] {
				continue
			}
			if k+2 > WordSize || binary.LittleEndian.Uint16(x[k:]) != PlaceA || binary.LittleEndian.Uint16(y[k:]) != PlaceB {
				return nil, false
			}
			binary.LittleEndian.PutUint16(x[k:], high)
			out.halves = append(out.halves, i*WordSize+k)
			k++
		}
		out.code[i] = WordAt(x)
	}
	return &out, true
}
