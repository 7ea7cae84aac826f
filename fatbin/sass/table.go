package sass

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

//go:generate go run ./internal/gen pack facts/registers.txt facts/scoreboards.txt ztable.bin

//go:embed ztable.bin
var packed []byte

// template is an operand without its register.
type template struct {
	kind     RegKind
	pos, len uint8 // len 0: always register fixed
	fixed    uint8
	count    uint8
	none     uint8 // the number that names no register: RZ, PT …
	invert   uint8 // bits of the number that the word holds the other way
	flags    uint8
}

const (
	readFlag     = 1
	writeFlag    = 2
	invertedFlag = 4
)

// reg returns the number of the register, and false if it names none.
func (t *template) reg(w Word) (uint8, bool) {
	if t.len == 0 {
		return t.fixed, true
	}
	n := uint8(w.Bits(uint(t.pos), uint(t.len))) ^ t.invert
	return n, n != t.none
}

// bitRun is a run of key bits: n bits from pos on, put at bit at.
type bitRun struct{ pos, n, at uint8 }

// opInfo is what is known of an opcode on an architecture.
type opInfo struct {
	name     string
	guard    RegKind
	writeBar bool // may set a write barrier
	readBar  bool
	flow     FlowKind
	class    class
	unit     uint8
	earlyUR  bool
	unnamed  bool // some shape writes a predicate that no field names
	key      []bitRun
	ones     Word // bits that are set in all words known
	zeros    Word // and those that are clear
	shapes   [][]template
	dense    []uint16          // shape+1 by key, where the key is short
	sparse   map[uint64]uint16 // the same, where it's long
}

// maxDense bounds the bits of a key for which there is an array.
const maxDense = 12

// archTable is indexed by opcode.
type archTable [4096]*opInfo

var (
	loadOnce sync.Once
	tables   map[Arch]*archTable
)

func table(a Arch) *archTable {
	loadOnce.Do(load)
	return tables[a]
}

// inflate decompresses what is embedded.
func inflate(what string, packed []byte) []byte {
	b, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		panic("BUG: sass " + what + ": " + err.Error())
	}
	return b
}

// load unpacks the table. It is made by our own generator and tested, so that what
// is wrong with it is a mistake in the program.
func load() {
	b := inflate("table", packed)
	tables = make(map[Arch]*archTable)
	r := unpacker{b: b}
	n := r.uint()
	for range n {
		archs := make([]Arch, r.uint())
		for i := range archs {
			archs[i] = Arch(r.uint())
		}
		op, info := r.op()
		for _, a := range archs {
			t := tables[a]
			if t == nil {
				t = new(archTable)
				tables[a] = t
			}
			// Which scoreboards it sets differs.
			own := *info
			t[op&0xfff] = &own
		}
	}
	for range r.uint() {
		t, op, flags := tables[Arch(r.uint())], r.uint(), r.uint()
		if t != nil && t[op&0xfff] != nil {
			t[op&0xfff].writeBar, t[op&0xfff].readBar = flags&1 != 0, flags&2 != 0
		}
	}
	if r.err != nil {
		panic("BUG: sass table: " + r.err.Error())
	}
}

var errTable = errors.New("it ends too early")

type unpacker struct {
	b   []byte
	err error
}

func (r *unpacker) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.err, r.b = errTable, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *unpacker) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.err, r.b = errTable, nil
		return make([]byte, min(n, 64))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *unpacker) bits() []byte { return r.bytes(r.uint()) }

func (r *unpacker) mask() Word {
	var w Word
	for _, p := range r.bits() {
		w = w.SetBits(uint(p), 1, 1)
	}
	return w
}

func (r *unpacker) op() (uint16, *opInfo) {
	op := uint16(r.uint())
	o := &opInfo{name: string(r.bytes(r.uint()))}
	o.guard = RegKind(r.bytes(1)[0])
	flags := r.bytes(1)[0]
	o.writeBar, o.readBar = flags&1 != 0, flags&2 != 0
	o.flow, o.class, o.unit = flowOf(op, o.name), classOf(o.name), unitOf(o.name)
	o.earlyUR = readsUniformEarly(o.name)
	key := r.bits()
	for i, p := range key {
		if n := len(o.key); n > 0 && o.key[n-1].pos+o.key[n-1].n == p {
			o.key[n-1].n++
			continue
		}
		o.key = append(o.key, bitRun{p, 1, uint8(i)})
	}
	o.ones, o.zeros = r.mask(), r.mask()
	if len(key) <= maxDense {
		o.dense = make([]uint16, 1<<len(key))
	} else {
		o.sparse = make(map[uint64]uint16)
	}
	shapes := r.uint()
	for i := range shapes {
		ops := make([]template, r.uint())
		for j := range ops {
			f := r.bytes(6)
			ops[j] = template{flags: f[0], kind: RegKind(f[1]), pos: f[2], len: f[3], fixed: f[4], count: f[5]}
			ops[j].none = uint8(1<<f[3] - 1)
			if f[0]&invertedFlag != 0 {
				ops[j].invert = 7
			}
			if RegKind(f[1]) == Barrier || f[3] == 0 {
				ops[j].none = 255
			}
			if f[3] == 0 && f[0]&writeFlag != 0 && (ops[j].kind == Pred || ops[j].kind == UPred) {
				o.unnamed = true
			}
		}
		o.shapes = append(o.shapes, append(ops, implicit(o.name)...))
		last := uint64(0)
		for range r.uint() {
			lo := last + r.uint()
			hi := lo + r.uint()
			for v := lo; v <= hi && r.err == nil; v++ {
				if o.dense != nil {
					o.dense[v&uint64(len(o.dense)-1)] = uint16(i + 1)
				} else {
					o.sparse[v] = uint16(i + 1)
				}
			}
			last = hi
		}
	}
	if op == opBRA && len(o.shapes) == 1 {
		o.divergent()
	}
	return op, o
}

// divergent makes two shapes of BRA's: only BRA.DIV and its like, with bit 91 set,
// have a uniform register.
func (o *opInfo) divergent() {
	var without, with []template
	for _, t := range o.shapes[0] {
		if t.kind == UGPR {
			t.count = 1
		} else {
			without = append(without, t)
		}
		with = append(with, t)
	}
	o.shapes = [][]template{without, with}
	o.key = []bitRun{{pos: 91, n: 1}}
	o.dense, o.sparse = []uint16{1, 2}, nil
}

// implicit are operands that nvdisasm prints as PR or UPR, all predicates, and that
// its life ranges leave out.
func implicit(name string) []template {
	switch name {
	case "P2R":
		return []template{{kind: Pred, count: 7, none: 255, flags: readFlag}}
	case "UP2UR":
		return []template{{kind: UPred, count: 7, none: 255, flags: readFlag}}
	case "R2P":
		return []template{{kind: Pred, count: 7, none: 255, flags: writeFlag}}
	case "UR2UP":
		return []template{{kind: UPred, count: 7, none: 255, flags: writeFlag}}
	}
	return nil
}

// shape finds the operands of a word; false if the table lacks it.
func (o *opInfo) shape(w Word) ([]template, bool) {
	if w.Lo&o.ones.Lo != o.ones.Lo || w.Hi&o.ones.Hi != o.ones.Hi || w.Lo&o.zeros.Lo|w.Hi&o.zeros.Hi != 0 {
		return nil, false
	}
	var k uint64
	for _, r := range o.key {
		k |= w.Bits(uint(r.pos), uint(r.n)) << r.at
	}
	var i uint16
	if o.dense != nil {
		i = o.dense[k]
	} else {
		i = o.sparse[k]
	}
	if i == 0 {
		return nil, false
	}
	return o.shapes[i-1], true
}
