package agent

import (
	"encoding/binary"
	"fmt"
)

// Plan says which ioctls the agent makes and logs by itself, and which memory
// they refer to. All others go the supervisor's way.
//
// It is data, and says what the supervisor's own tables say of a request, as far as that can be done
// with one or two pointers: the argument, memory that a pointer in it leads to, and memory that
// pointers in that lead to. The agent copies all of it before the call and after.
type Plan struct {
	Rules []Rule
	// Tables say how long memory is that a pointer leads to, by a number in the
	// argument (Rule.Select).
	Tables [][]Entry
	Nested []Nested
}

// Nested says what the pointers lead to that lie in memory that a pointer leads
// to itself. Such memory of another size goes the supervisor's way, and so does
// a call with more than 16 KiB behind those pointers.
type Nested struct {
	Size     uint32 // bytes, at most MaxNested
	Pointers []Pointer
}

// Pointer is one, of MaxPointers at most: at offset Ptr, to as many elements of Elem
// bytes as the 4 bytes at offset Count say.
type Pointer struct{ Ptr, Count, Elem uint32 }

// LengthNested is the Length of memory as long as the argument says, with pointers
// as in Plan.Nested[n].
func LengthNested(n int) Length { return Length(lenNested + uint32(n)) }

// Rule is one request on descriptors of one kind.
type Rule struct {
	Kind    uint8  // of the descriptor, see Process.SetKind; not 0
	Request uint32 // the second argument, its low 32 bits
	Size    uint32 // bytes of the argument, which are copied unless the argument is null
	// Follow: at Ptr the argument has a pointer to further memory, to be copied
	// unless it is null or of length 0. Size is at most MaxFollow then.
	Follow bool
	Ptr    uint8
	// Len is the offset of the length that the program claims, 4 bytes; NoField: none.
	Len uint8
	// Select is the offset of a number that is looked up in Tables[Table], 4 bytes;
	// NoField: Default serves always.
	Select  uint8
	Table   uint8
	Default Length // for numbers that the table does not have
	// Flags is the offset of 4 bytes in which any bit of Mask sends the call the
	// supervisor's way; NoField: none.
	Flags uint8
	Mask  uint32
	// Null is the offset of 8 bytes that must be 0, or the call goes the
	// supervisor's way; NoField: none.
	Null uint8
	Max  uint32 // a longer length goes the supervisor's way; at most MaxLength
}

// Entry is a line of a table.
type Entry struct {
	Value  uint32
	Length Length
}

// Length is a number of bytes, or one of the following.
type Length uint32

// What is no number of bytes.
const (
	LengthClaimed    Length = lenClaimed // what the argument says, see Rule.Len
	LengthSupervisor Length = lenSlow    // unknown: go the supervisor's way
)

// Bounds of a [Plan].
const (
	NoField     = 0xff
	MaxFollow   = 64       // bytes of an argument with a pointer that is followed
	MaxArgument = 16 << 10 // bytes of an argument without
	MaxLength   = 16 << 10 // bytes behind a pointer
	MaxNested   = maxNested
	MaxPointers = maxPointers
)

// EncodedPlan is a Plan as processes have it.
type EncodedPlan struct {
	bytes    []byte
	requests map[uint32]bool // that it is about
}

// Encode makes what [Agent.SetPlan] takes. It may be called by any goroutine.
func (p *Plan) Encode() (*EncodedPlan, error) {
	b, err := p.encode()
	if err != nil {
		return nil, err
	}
	e := &EncodedPlan{bytes: b, requests: make(map[uint32]bool)}
	for i := range p.Rules {
		e.requests[p.Rules[i].Request] = true
	}
	return e, nil
}

// encode writes the plan as the agent reads it: hash tables with open addressing.
func (p *Plan) encode() ([]byte, error) {
	b := make([]byte, planSize)
	le := binary.LittleEndian
	if len(p.Rules) > numRules/2 || len(p.Tables) > numTables {
		return nil, fmt.Errorf("plan: %d rules, %d tables, at most %d and %d are possible", len(p.Rules), len(p.Tables), numRules/2, numTables)
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if err := r.check(p); err != nil {
			return nil, fmt.Errorf("plan: request %#x: %w", r.Request, err)
		}
		at := int((r.Request ^ uint32(r.Kind)<<24) * 0x9e3779b1 >> 23)
		for b[at*ruleSize+8] != 0 {
			at = (at + 1) % numRules
		}
		e := b[at*ruleSize:][:ruleSize]
		le.PutUint32(e, r.Request)
		le.PutUint32(e[4:], r.Size)
		copy(e[8:], []byte{r.Kind, 0, r.Ptr, r.Len, r.Select, r.Flags, r.Table, r.Null})
		if r.Follow {
			e[9] = 1
		}
		le.PutUint32(e[16:], r.Mask)
		le.PutUint32(e[20:], uint32(r.Default))
		le.PutUint32(e[24:], r.Max)
	}
	if err := p.encodeNested(b[planNested:]); err != nil {
		return nil, err
	}
	for i := range numTables {
		t := b[numRules*ruleSize+i*numEntries*8:][:numEntries*8]
		for j := range numEntries {
			le.PutUint32(t[8*j+4:], lenEmpty)
		}
		if i >= len(p.Tables) {
			continue
		}
		if n := len(p.Tables[i]); n > numEntries*3/4 {
			return nil, fmt.Errorf("plan: table of %d entries, at most %d are possible", n, numEntries*3/4)
		}
		for _, e := range p.Tables[i] {
			at := int(e.Value * 0x9e3779b1 >> 21)
			for le.Uint32(t[8*at+4:]) != lenEmpty {
				at = (at + 1) % numEntries
			}
			le.PutUint32(t[8*at:], e.Value)
			le.PutUint32(t[8*at+4:], uint32(e.Length))
		}
	}
	return b, nil
}

// encodeNested writes the descriptions of nested pointers.
func (p *Plan) encodeNested(b []byte) error {
	if len(p.Nested) > numNested {
		return fmt.Errorf("plan: %d kinds of nested pointers, at most %d are possible", len(p.Nested), numNested)
	}
	le := binary.LittleEndian
	for i, n := range p.Nested {
		e := b[i*nestedSize:]
		if n.Size > MaxNested || len(n.Pointers) > MaxPointers {
			return fmt.Errorf("plan: %d bytes with %d nested pointers", n.Size, len(n.Pointers))
		}
		le.PutUint32(e, n.Size)
		le.PutUint32(e[4:], uint32(len(n.Pointers)))
		for j, q := range n.Pointers {
			if uint64(q.Ptr)+8 > uint64(n.Size) || uint64(q.Count)+4 > uint64(n.Size) {
				return fmt.Errorf("plan: a nested pointer at %d, its count at %d of %d bytes", q.Ptr, q.Count, n.Size)
			}
			le.PutUint32(e[8+12*j:], q.Ptr)
			le.PutUint32(e[12+12*j:], q.Count)
			le.PutUint32(e[16+12*j:], q.Elem)
		}
	}
	return nil
}

// check makes sure that the agent stays within the argument.
func (r *Rule) check(p *Plan) error {
	in := func(at uint8, n uint32) bool { return at == NoField || uint32(at)+n <= r.Size }
	switch {
	case r.Kind == 0:
		return fmt.Errorf("no kind of descriptor")
	case r.Size > MaxArgument:
		return fmt.Errorf("%d bytes of argument", r.Size)
	case !r.Follow:
		return nil
	case r.Size > MaxFollow || r.Max > MaxLength:
		return fmt.Errorf("%d bytes of argument, %d behind its pointer", r.Size, r.Max)
	case r.Ptr == NoField || !in(r.Ptr, 8) || !in(r.Len, 4) || !in(r.Select, 4) || !in(r.Flags, 4) || !in(r.Null, 8):
		return fmt.Errorf("a field outside of the argument")
	case r.Select != NoField && int(r.Table) >= len(p.Tables):
		return fmt.Errorf("no table %d", r.Table)
	}
	return nil
}
