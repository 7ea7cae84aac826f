package sass

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"slices"
	"sync"
)

//go:generate go run ./internal/gen pack facts/registers.txt ztable.bin

//go:embed ztable.bin
var packed []byte

// template is an operand without its register.
type template struct {
	kind     RegKind
	pos, len uint8 // len 0: always register fixed
	fixed    uint8
	count    uint8
	none     uint8 // the number that names no register: RZ, PT …
	flags    uint8
}

const (
	readFlag  = 1
	writeFlag = 2
)

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
	archList []Arch
)

// Archs returns the architectures of the table, in order.
func Archs() []Arch {
	loadOnce.Do(load)
	return slices.Clone(archList)
}

func table(a Arch) *archTable {
	loadOnce.Do(load)
	return tables[a]
}

// load unpacks the table. It is made by our own generator and tested, so that what
// is wrong with it is a mistake in the program.
func load() {
	b, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		panic("BUG: sass table: " + err.Error())
	}
	tables = make(map[Arch]*archTable)
	r := unpacker{b: b}
	for range r.uint() {
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
				archList = append(archList, a)
			}
			t[op&0xfff] = info
		}
		// All architectures of a block have fields of the same width, so the
		// same number stands for no register.
	}
	if r.err != nil {
		panic("BUG: sass table: " + r.err.Error())
	}
	slices.Sort(archList)
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
	o.flow, o.class = flowOf(op, o.name), classOf(o.name)
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
			if RegKind(f[1]) == Barrier || f[3] == 0 {
				ops[j].none = 255
			}
		}
		o.shapes = append(o.shapes, ops)
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
	return op, o
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

func popcount(w *[4]uint64) int {
	return bits.OnesCount64(w[0]) + bits.OnesCount64(w[1]) + bits.OnesCount64(w[2]) + bits.OnesCount64(w[3])
}
