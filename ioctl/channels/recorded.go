package channels

import (
	"errors"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// Recorded is memory that was read before, by its addresses.
type Recorded map[uint64][]byte

// Maps implements [Memory]: of mappings nothing is known.
func (r Recorded) Maps() ([]proc.Mapping, error) { return nil, nil }

// Read implements [Memory]. It reads what begins at address.
func (r Recorded) Read(address uint64, b []byte) error {
	was, ok := r[address]
	if !ok || len(was) < len(b) {
		return errNotRecorded
	}
	copy(b, was)
	return nil
}

var errNotRecorded = errors.New("this memory was not recorded")

// ViewOfPieces returns a view of pieces that were read before. m has the QMDs that are in none of them.
func ViewOfPieces(m Memory, list []ChannelPieces) *View {
	v := &View{memory: m}
	for i := range list {
		c := list[i].Of
		v.channels = append(v.channels, c)
		for k := range list[i].Pieces {
			c.classify(m, &list[i].Pieces[k])
		}
	}
	return v
}

// Beside returns the QMDs that pieces of a channel refer to and that are in none of them, by address.
func (v *View) Beside(c *Channel, pieces []Piece) map[uint64][]byte {
	found := map[uint64][]byte{}
	r := v.Reader(c)
	read := r.ReadQMD
	if read == nil {
		return found
	}
	r.ReadQMD = func(address uint64, b []byte) bool {
		ok := read(address, b)
		if ok && len(found) < maxGraph {
			found[address] = append([]byte(nil), b...)
		}
		return ok
	}
	for i := range pieces {
		r.Read(pieces[i].Words, pieces[i].Address, func(channel.Work) bool { return true })
	}
	return found
}

// Add takes in a kernel's name that is known otherwise; source says whence.
func (n *Names) Add(program uint64, name, source string) {
	if n.byProgram == nil {
		n.byProgram = map[uint64]kernel{}
	}
	n.byProgram[program] = kernel{name: name, source: source}
}
