package ptx

import (
	"fmt"
	"strings"
)

// AccessClass groups the instructions that touch memory by how they name it.
type AccessClass uint8

// The access classes.
const (
	AccessLoad     AccessClass = iota // ld, ldu
	AccessStore                       // st
	AccessAtomic                      // atom: reads, writes, gives the old value
	AccessReduce                      // red: atom without result
	AccessAsync                       // cp.async, st.async, red.async, st.bulk: done later, by the thread's own address
	AccessBulk                        // cp.async.bulk, cp.reduce.async.bulk and their tensor forms (TMA)
	AccessMatrix                      // ldmatrix, stmatrix, wmma.load, wmma.store: a warp's rows
	AccessWgmma                       // wgmma.mma_async: shared memory through matrix descriptors
	AccessTmem                        // tcgen05.*: tensor memory, shared memory through descriptors
	AccessMulti                       // multimem.*
	AccessMbarrier                    // mbarrier.*: the barrier object
	AccessTexture                     // tex, tld4
	AccessSurface                     // suld, sust, sured
	AccessHint                        // prefetch, prefetchu, discard, applypriority, cp.async.bulk.prefetch: no data is seen by the program
	AccessMap                         // tensormap.*: a tensor map object
)

var accessNames = [...]string{
	"load", "store", "atomic", "reduce", "async", "bulk", "matrix", "wgmma", "tmem", "multimem",
	"mbarrier", "texture", "surface", "hint", "tensormap",
}

// String returns the class in a word.
func (c AccessClass) String() string {
	if int(c) < len(accessNames) {
		return accessNames[c]
	}
	return fmt.Sprintf("AccessClass(%d)", uint8(c))
}

// AccessFlags are properties of an [Access].
type AccessFlags uint16

// The access flags.
const (
	AccessReads       AccessFlags = 1 << iota // data is read from the address
	AccessWrites                              // data is written to the address
	AccessVolatile                            // .volatile or .mmio: may not be repeated or dropped
	AccessNonCoherent                         // .nc, or ldu: a read-only cache
	AccessUniform                             // ldu: the same address in every thread of the warp
	AccessTensor                              // the address is a tensor map with coordinates
	AccessDescriptor                          // the address is within a matrix descriptor operand
	AccessOverwrites                          // the destination overwrites the address register: save it before, to know it after
	AccessPolicy                              // .L2::cache_hint with a cache-policy operand
)

// NoOperand is the value of an operand number that stands for none.
const NoOperand = 255

// An Access is one memory access of an instruction. An instruction that reads
// one place and writes another (cp.async) has two.
type Access struct {
	Stmt  uint32
	Class AccessClass
	Flags AccessFlags
	Space Space
	Sub   string // sub-qualifier of the space: "::cluster", "::cta", "::entry", "::func"; ""
	Type  Type   // of one element; TypeNone when the instruction has none
	Vec   uint8  // elements per thread: 1, 2, 4 or 8
	Bytes uint32 // per thread, or per row address of AccessMatrix; 0 when not known from the text
	Addr  uint8  // number of the operand that holds the address or descriptor; NoOperand when the instruction has no such operand
	Size  uint8  // number of the operand that gives the size in bytes (bulk copies); NoOperand
	Op    string // operation of an atomic or reduction: ".add"
	Sem   string // .weak .relaxed .acquire .release .acq_rel .sc; "" when not written
	Scope string // .cta .cluster .gpu .sys; "" when not written
	Cache string // cache operator: .ca .cg .cs .lu .cv .wb .wt; ""
	Evict string // eviction priority, the last if there are two: ".L1::no_allocate"; ""
	Fetch string // prefetch size: ".L2::128B"; ""
}

// accessScan decodes one instruction.
type accessScan struct {
	sc   *siteScan
	i    uint32
	s    *Stmt
	args []Operand
	a    Access
	word string // first modifier that is none of the known ones
	n    int    // number of state spaces seen
	to   Space  // the second state space (cp.async.bulk.DST.SRC)
	toS  string
}

// accessDecoders maps an opcode to what finds its accesses.
var accessDecoders = [opCount]func(*accessScan){
	OpLd: (*accessScan).load, OpLdu: (*accessScan).load, OpSt: (*accessScan).store,
	OpAtom: (*accessScan).atomic, OpRed: (*accessScan).atomic,
	OpCp: (*accessScan).copy, OpLdmatrix: (*accessScan).matrix, OpStmatrix: (*accessScan).matrix, OpWmma: (*accessScan).wmma,
	OpWgmma: (*accessScan).wgmma, OpTcgen05: (*accessScan).tcgen05, OpMultimem: (*accessScan).multimem,
	OpMbarrier: (*accessScan).mbarrier, OpTex: (*accessScan).texture, OpTld4: (*accessScan).texture,
	OpSuld: (*accessScan).surface, OpSust: (*accessScan).surface, OpSured: (*accessScan).surface,
	OpPrefetch: (*accessScan).hint, OpPrefetchu: (*accessScan).hint, OpDiscard: (*accessScan).hint, OpApplypriority: (*accessScan).hint,
	OpTensormap: (*accessScan).tensormap, OpClusterlaunchcontrol: (*accessScan).mbarrier,
}

// begin reads the modifiers that mean the same in every memory instruction.
func (x *accessScan) begin(c AccessClass, fl AccessFlags) {
	x.a = Access{Stmt: x.i, Class: c, Flags: fl, Vec: 1, Addr: NoOperand, Size: NoOperand}
	for m := range x.sc.f.mods(x.s) {
		x.modifier(m)
	}
	x.a.Bytes = uint32(x.a.Type.Size()) * uint32(x.a.Vec)
}

func (x *accessScan) modifier(m string) {
	switch m {
	case ".global", ".param", ".local", ".const":
		sp, _ := spaceOf(m)
		x.space(sp, "")
	case ".v2", ".v4", ".v8":
		x.a.Vec = m[2] - '0'
	case ".volatile", ".mmio":
		x.a.Flags |= AccessVolatile
	case ".nc":
		x.a.Flags |= AccessNonCoherent
	case ".weak", ".relaxed", ".acquire", ".release", ".acq_rel", ".sc":
		x.a.Sem = m
	case ".cta", ".cluster", ".gpu", ".sys":
		x.a.Scope = m
	case ".ca", ".cg", ".cs", ".lu", ".cv", ".wb", ".wt":
		x.a.Cache = m
	case ".add", ".min", ".max", ".inc", ".dec", ".exch", ".cas", ".and", ".or", ".xor":
		x.a.Op = m
	default:
		x.rareModifier(m)
	}
}

func (x *accessScan) rareModifier(m string) {
	if t := typeOf(m); t != TypeNone {
		x.a.Type = t
		return
	}
	if sp, ok := spaceOf(m); ok {
		x.space(sp, m[len(sp.String()):])
		return
	}
	switch {
	case m == ".L2::cache_hint":
		x.a.Flags |= AccessPolicy
	case strings.HasPrefix(m, ".L2::evict"), strings.HasPrefix(m, ".L1::"):
		x.a.Evict = m
	case strings.HasPrefix(m, ".L2::"):
		x.a.Fetch = m
	case x.word == "":
		x.word = m
	}
}

func (x *accessScan) space(sp Space, sub string) {
	if x.n++; x.n == 1 {
		x.a.Space, x.a.Sub = sp, sub
		return
	}
	x.to, x.toS = sp, sub
}

// emit adds the access; addr is the number of its address operand.
func (x *accessScan) emit(addr int) {
	if addr >= 0 && addr < len(x.args) {
		x.a.Addr = uint8(addr)
	}
	x.sc.st.Accesses = append(x.sc.st.Accesses, x.a)
}

// address returns the number of the nth operand of the form [..], -1 for none.
func (x *accessScan) address(n int) int {
	for i := range min(len(x.args), NoOperand) {
		if x.args[i].Kind == OperandAddr {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return -1
}

// overwritten reports whether the destination, operand 0, holds the register
// that the address operand is based on.
func (x *accessScan) overwritten(addr int) bool {
	if addr <= 0 {
		return false
	}
	f := x.sc.f
	base := f.Text(x.args[addr].Name)
	return f.mentions(&x.args[0], base)
}

// mentions reports whether o is or holds the name.
func (f *File) mentions(o *Operand, name string) bool {
	if o.Kind == OperandName && f.Text(o.Name) == name {
		return true
	}
	kids := f.Kids(o)
	for i := range kids {
		if f.mentions(&kids[i], name) {
			return true
		}
	}
	return false
}

func (x *accessScan) load() {
	x.begin(AccessLoad, AccessReads)
	if x.s.Op == OpLdu {
		x.a.Flags |= AccessNonCoherent | AccessUniform
	}
	addr := x.address(0)
	if x.overwritten(addr) {
		x.a.Flags |= AccessOverwrites
	}
	x.emit(addr)
}

func (x *accessScan) store() {
	x.begin(AccessStore, AccessWrites)
	switch x.word {
	case ".async":
		x.a.Class = AccessAsync
	case ".bulk":
		x.a.Class, x.a.Size = AccessAsync, 1
		x.a.Bytes = x.constant(1)
	}
	x.emit(x.address(0))
}

func (x *accessScan) atomic() {
	c := AccessAtomic
	if x.s.Op == OpRed {
		c = AccessReduce
	}
	x.begin(c, AccessReads|AccessWrites)
	if x.word == ".async" {
		x.a.Class = AccessAsync
	}
	addr := x.address(0)
	if c == AccessAtomic && x.overwritten(addr) {
		x.a.Flags |= AccessOverwrites
	}
	x.emit(addr)
}

// constant returns operand i if it is a constant that fits, or 0.
func (x *accessScan) constant(i int) uint32 {
	if i < len(x.args) && x.args[i].Kind == OperandInt && x.args[i].Bits < 1<<32 {
		return uint32(x.args[i].Bits)
	}
	return 0
}

// copy decodes cp.async, cp.async.bulk and its tensor, reduce and prefetch forms.
func (x *accessScan) copy() {
	x.begin(AccessAsync, 0)
	bulk, tensor, prefetch, reduce, waits := false, false, false, false, false
	for m := range x.sc.f.mods(x.s) {
		switch m {
		case ".bulk":
			bulk = true
		case ".tensor":
			tensor = true
		case ".prefetch":
			prefetch = true
		case ".reduce":
			reduce = true
		case ".commit_group", ".wait_group", ".wait_all":
			waits = true
		case ".mbarrier":
			x.a.Class = AccessMbarrier
		}
	}
	switch {
	case waits:
	case x.a.Class == AccessMbarrier: // cp.async.mbarrier.arrive
		x.a.Flags = AccessReads | AccessWrites
		if x.n == 0 {
			x.a.Space = SpaceGeneric
		}
		x.emit(x.address(0))
	case prefetch:
		x.a.Class = AccessHint
		x.bulkSize(1, tensor)
		x.emit(x.address(0))
	default:
		x.copies(bulk, tensor, reduce)
	}
}

// bulkSize notes the operand that holds the size, if the form has one.
func (x *accessScan) bulkSize(at int, tensor bool) {
	if tensor {
		x.a.Flags |= AccessTensor
		x.a.Bytes = 0
		return
	}
	if at < len(x.args) {
		x.a.Size, x.a.Bytes = uint8(at), x.constant(at)
	}
}

// copies emits the write to the destination, the first space and operand, and
// the read of the source, the second.
func (x *accessScan) copies(bulk, tensor, reduce bool) {
	if bulk {
		x.a.Class = AccessBulk
	}
	x.bulkSize(2, tensor)
	from, fromSub := x.to, x.toS
	write := x.a
	write.Flags |= AccessWrites
	if reduce {
		write.Flags |= AccessReads
	}
	read := x.a
	read.Space, read.Sub = from, fromSub
	read.Flags |= AccessReads
	if tensor {
		// The tensor map is the operand of the global side only.
		side := &write
		if read.Space == SpaceGlobal {
			side = &read
		}
		write.Flags &^= AccessTensor
		read.Flags &^= AccessTensor
		side.Flags |= AccessTensor
	}
	x.a = write
	x.emit(0)
	x.a = read
	x.emit(1)
}

// rowBytes is what one row address of ldmatrix and stmatrix covers: eight
// 16-bit or sixteen 8-bit elements.
const rowBytes = 16

func (x *accessScan) matrix() {
	fl := AccessReads
	if x.s.Op == OpStmatrix {
		fl = AccessWrites
	}
	x.begin(AccessMatrix, fl)
	x.a.Bytes = rowBytes
	addr := x.address(0)
	if x.s.Op == OpLdmatrix && x.overwritten(addr) {
		x.a.Flags |= AccessOverwrites
	}
	x.emit(addr)
}

func (x *accessScan) wmma() {
	x.begin(AccessMatrix, 0)
	switch x.word {
	case ".load":
		x.a.Flags |= AccessReads
	case ".store":
		x.a.Flags |= AccessWrites
	default:
		return
	}
	x.a.Bytes = 0
	x.emit(x.address(0))
}

// wgmma: operand 0 is the accumulator, 1 is matrix A in registers or by
// descriptor, 2 is matrix B by descriptor.
func (x *accessScan) wgmma() {
	x.begin(AccessWgmma, AccessReads|AccessDescriptor)
	if x.word != ".mma_async" {
		return
	}
	x.a.Space, x.a.Bytes, x.a.Type = SpaceShared, 0, TypeNone
	if len(x.args) > 1 && x.args[1].Kind == OperandName {
		x.emit(1)
	}
	x.emit(2)
}

func (x *accessScan) tcgen05() {
	x.begin(AccessTmem, 0)
	x.a.Space, x.a.Sub, x.a.Bytes = SpaceTmem, "", 0
	switch x.word {
	case ".ld":
		x.a.Flags |= AccessReads
	case ".st":
		x.a.Flags |= AccessWrites
	case ".shift":
		x.a.Flags |= AccessReads | AccessWrites
	case ".cp":
		x.a.Flags |= AccessWrites
		x.emit(0)
		x.a.Flags, x.a.Space = AccessReads|AccessDescriptor, SpaceShared
		x.emit(1)
		return
	case ".mma":
		x.a.Flags |= AccessReads | AccessWrites
		x.emit(0)
		x.a.Flags = AccessReads
		for i := 1; i <= 2 && i < len(x.args); i++ {
			x.a.Space = SpaceTmem
			if x.args[i].Kind != OperandAddr {
				x.a.Space, x.a.Flags = SpaceShared, AccessReads|AccessDescriptor
			}
			x.emit(i)
		}
		return
	default:
		return
	}
	x.emit(x.address(0))
}

func (x *accessScan) multimem() {
	x.begin(AccessMulti, AccessReads|AccessWrites)
	switch x.word {
	case ".ld_reduce":
		x.a.Flags &^= AccessWrites
	case ".st":
		x.a.Flags &^= AccessReads
	case ".cp":
		x.copies(true, false, false)
		return
	}
	x.emit(x.address(0))
}

func (x *accessScan) mbarrier() {
	x.begin(AccessMbarrier, AccessReads|AccessWrites)
	x.a.Bytes = 8
	if addr := x.address(0); addr >= 0 {
		x.emit(addr)
	}
}

func (x *accessScan) texture() {
	x.begin(AccessTexture, AccessReads)
	x.a.Bytes = 0
	x.emit(x.address(0))
}

func (x *accessScan) surface() {
	fl := AccessReads
	switch x.s.Op {
	case OpSust:
		fl = AccessWrites
	case OpSured:
		fl |= AccessWrites
	}
	x.begin(AccessSurface, fl)
	x.emit(x.address(0))
}

func (x *accessScan) hint() {
	x.begin(AccessHint, 0)
	x.a.Bytes = x.constant(1)
	if addr := x.address(0); addr >= 0 {
		x.emit(addr)
	}
}

func (x *accessScan) tensormap() {
	x.begin(AccessMap, AccessReads|AccessWrites)
	x.a.Bytes = 0
	if x.address(1) >= 0 { // tensormap.cp_fenceproxy [dst], [src], size
		x.copies(false, false, false)
		return
	}
	x.emit(x.address(0))
}
