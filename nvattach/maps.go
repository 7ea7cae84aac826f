package nvattach

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// MapOptions say how maps are laid out. Nil is the zero value.
type MapOptions struct {
	// SMs is the number of the GPU's multiprocessors; 0 means 256. A GPU with
	// more shares their places, which costs time and nothing else.
	SMs int
	// Threads is how many threads of a grid a per-thread map has values for; 0
	// means 1,048,576. Threads beyond get no value, and are counted.
	Threads uint64
	// RingBytes bounds the memory of one ring buffer, on all multiprocessors
	// together; 0 means 64 MiB.
	RingBytes uint64
	// PrintBytes is the same for the ring of bpf_printk; 0 means 16 MiB.
	PrintBytes uint64
	// MaxBytes bounds the memory of all maps; 0 means 1 GiB.
	MaxBytes uint64
	// AddOnly says of a map that all programs only add to its values and don't
	// read them back. Each multiprocessor then has a copy of its own, which reading
	// adds up; nil means no map is.
	AddOnly func(d *MapDef) []AddField
	// Adds says of a map which parts of its values programs add to, whatever else they do
	// with them; nil means that it is not known. Where two threads insert a key at once,
	// the later one's value is added to these.
	Adds func(d *MapDef) []AddField
	// Deletes says of a hash whether a program deletes keys of it; nil means that
	// one may, which makes replacing values dearer.
	Deletes func(d *MapDef) bool
	// Slots is how many counters of their own programs need; see [Maps.Counter].
	Slots int
	// Reads has room for the table of memory that programs in kernels read; see
	// [Maps.SetReadable].
	Reads bool
	// Shared are the host's maps, of which those that programs in kernels use, too, are
	// reachable from the GPU at the addresses that they have; nil: none are.
	Shared *Maps
	// Join are the host's maps, to which what kernels add to their parts of some is to be added,
	// see [HostRunner.NewJoin]; nil: none are.
	Join *Maps
	// Clock says of the host's maps that clocks are to be compared, also if no program in
	// kernels asks for the time.
	Clock bool

	host   bool                       // the maps are the host's
	shares func(d *MapDef) bool       // of the host's: whether programs in kernels use it, too
	joined func(d *MapDef) []AddField // of the host's: see Plan.joined
}

// An AddField is a part of a map's value that programs only add to.
type AddField struct {
	Offset uint32
	Size   uint32 // 4 or 8 bytes

	by joinOp // what else they do with it, see Plan.joined
}

// Alignments and sizes of the layout.
const (
	defaultSMs = 256
	maxSMs     = 4096
	arenaAlign = 256

	counterBytes = 8
)

// What the first line of the memory holds, so that woven code does not depend on
// it and can be kept from run to run.
const (
	processOff = 0  // u64 pid<<32 | tid, of bpf_get_current_pid_tgid
	deviceOff  = 8  // u64 ordinal of the GPU
	clockOff   = 16 // see Clock.bytes
	rankOff    = 40 // u64 rank of the process, as a signed number
	pinOff     = 64 // u64 on the host, which maps are there; see Maps.begin
)

// The counters that every [Maps] has, before those of maps and programs.
const (
	counterPrintDrops = iota // bpf_printk's that found no room
	counterFixed
)

// A Map is a map that has its place in a GPU's memory.
type Map struct {
	Def *MapDef
	// Name is the definition's, with "#2" behind it when another object's map of
	// the same name came before.
	Name   string
	Object *Object // nil for the ring of bpf_printk

	kind      layoutKind
	off       uint64 // in the arena
	size      uint64
	stride    uint64 // bytes from value to value
	copies    int    // of an array: 1, or one per multiprocessor
	copyBytes uint64 // from copy to copy; of a ring from part to part
	add       []AddField
	threads   uint64 // of a per-thread map
	hash      hashLayout
	stable    bool       // of a hash: no program deletes keys
	sums      []AddField // of a hash: parts of values that programs add to
	ring      ringLayout
	lpm       uint64 // of a trie: where the bits are of the prefixes' lengths that it has
	counter   int    // number of its counter of what was refused
	base      uint64
	shared    bool       // programs on the host and in kernels use it; its memory is the host's
	joins     []AddField // programs on the host and in kernels each have a part of it, see Plan.joined
}

// Maps is the memory that the maps of some objects need on one GPU: one
// allocation, in which each has its place.
//
// The order of use: NewMaps; allocate Size bytes on the GPU, all zero; Place; Init;
// weave programs, whose code has the addresses in it; then Read and Drain at any
// time, also while kernels run.
type Maps struct {
	All  []*Map // in the objects' order
	SMs  int
	Host bool // they are the host's, where CPUs take the place of multiprocessors
	// SharedOffset is where the part of the host's memory begins, whole pages, that GPUs
	// reach, and SharedSize its size. It begins with a line of 256 bytes by which clocks are
	// compared, if Plan.Clocks.
	SharedOffset, SharedSize uint64
	clockLine                uint64 // its offset, 0: there is none
	Print                    *Map   // the ring of bpf_printk

	block    uint64 // bytes of the maps that each block has, which are not in All
	byDef    map[*MapDef]*Map
	size     uint64
	base     uint64
	counters uint64 // offset of the counters
	counted  uint64 // bytes from multiprocessor to multiprocessor
	readable uint64 // offset of the table of memory, 0: there is none
	slots    int    // number of the first of the programs' counters
	nslots   int
	cookie   uint64 // see ringLayout
}

// NewMaps lays out the maps of the objects. A map whose type can't be had on a
// GPU gets no place; programs that use it are refused later. An error says which
// map is too large.
func NewMaps(objs []*Object, o *MapOptions) (*Maps, error) {
	return newMaps(objs, o, func(*MapDef) bool { return true })
}

// newMaps lays out those maps that are wanted.
func newMaps(objs []*Object, o *MapOptions, wanted func(*MapDef) bool) (*Maps, error) {
	if o == nil {
		o = &MapOptions{}
	}
	opt := *o
	setDefault(&opt.SMs, defaultSMs)
	setDefault(&opt.Threads, 1<<20)
	setDefault(&opt.RingBytes, 64<<20)
	setDefault(&opt.PrintBytes, 16<<20)
	setDefault(&opt.MaxBytes, 1<<30)
	if opt.SMs < 0 || opt.SMs > maxSMs {
		return nil, fmt.Errorf("maps: %d multiprocessors; 1 to %d can be", opt.SMs, maxSMs)
	}
	opt.MaxBytes = min(opt.MaxBytes, maxArena)
	m := &Maps{SMs: opt.SMs, Host: opt.host, byDef: make(map[*MapDef]*Map), cookie: ringCookie}
	many, names := map[string]int{}, map[string]int{}
	for _, obj := range objs {
		for _, d := range obj.Maps {
			many[d.Name]++
		}
	}
	for _, obj := range objs {
		for _, d := range obj.Maps {
			if !d.Supported() || d.Thread || d.HostOnly() && !opt.host || !wanted(d) {
				continue
			}
			if d.PerBlock() {
				m.addBlock(d, obj)
				continue
			}
			x := &Map{Def: d, Name: d.Name, Object: obj, kind: d.layout()}
			if y := opt.sharedMap(d); y != nil {
				same := *y
				x = &same
				x.sums = opt.sumsOf(d)
			} else if opt.shares != nil {
				x.shared, x.joins = opt.shares(d), opt.joined(d)
			} else if y := opt.joinedMap(d); y != nil {
				x.joins = y.joins
			}
			x.counter = counterFixed + len(m.All)
			if many[d.Name] > 1 {
				x.Name = obj.short() + ":" + d.Name
			}
			if names[x.Name]++; names[x.Name] > 1 { // objects of one name, too
				x.Name = fmt.Sprintf("%s#%d", x.Name, names[x.Name])
			}
			m.All = append(m.All, x)
			m.byDef[d] = x
		}
	}
	m.Print = &Map{Def: &MapDef{Name: "printk", Type: MapRingbuf}, Name: "printk", kind: layoutRing, counter: counterPrintDrops}
	m.slots, m.nslots = counterFixed+len(m.All), opt.Slots
	m.counted = roundUp(uint64(m.slots+m.nslots)*counterBytes, lineBytes)
	m.counters = lineBytes
	m.size = m.counters + m.counted*uint64(m.SMs)
	if opt.Reads && !opt.host {
		m.layReadable()
	}
	for _, x := range append(slices.Clip(m.All), m.Print) {
		if !x.shared {
			if err := m.add(x, &opt); err != nil {
				return nil, err
			}
		}
	}
	if opt.host {
		return m, m.addShared(&opt)
	}
	return m, nil
}

// add gives a map its place behind those that have theirs.
func (m *Maps) add(x *Map, o *MapOptions) error {
	if err := x.lay(m, o); err != nil {
		return fmt.Errorf("map %s: %w", x.Name, err)
	}
	x.off = m.size
	m.size = roundUp(m.size+x.size, arenaAlign)
	if m.size > o.MaxBytes {
		return fmt.Errorf("map %s: %d bytes make it %d for all maps, more than the limit of %d; give the map fewer entries, or fewer threads or ring bytes where it has some for each", x.Name, x.size, m.size, o.MaxBytes)
	}
	return nil
}

// sharePages is what the beginning and the size are multiples of, of memory that a GPU is to
// reach: the size of a page on every machine.
const sharePages = 64 << 10

// addShared gives the maps that GPUs reach their places, in pages of their own.
func (m *Maps) addShared(o *MapOptions) error {
	end := m.size
	m.size = roundUp(m.size, sharePages)
	m.SharedOffset = m.size
	if o.Clock {
		m.clockLine = m.size
		m.size += arenaAlign
	}
	for _, x := range m.All {
		if x.shared {
			if err := m.add(x, o); err != nil {
				return err
			}
		}
	}
	if m.size == m.SharedOffset {
		m.size, m.SharedOffset = end, 0
		return nil
	}
	m.size = roundUp(m.size, sharePages)
	m.SharedSize = m.size - m.SharedOffset
	return nil
}

// sharedMap returns the host's map of a definition, if it is shared with the GPU.
func (o *MapOptions) sharedMap(d *MapDef) *Map {
	if o.Shared == nil {
		return nil
	}
	if x := o.Shared.Of(d); x != nil && x.shared {
		return x
	}
	return nil
}

// joinedMap returns the host's map of a definition, if the GPU's is a part of it.
func (o *MapOptions) joinedMap(d *MapDef) *Map {
	if o.Join == nil {
		return nil
	}
	if x := o.Join.Of(d); x != nil && len(x.joins) > 0 {
		return x
	}
	return nil
}

// sumsOf is Adds of a hash.
func (o *MapOptions) sumsOf(d *MapDef) []AddField {
	if o.Adds == nil || d.layout() != layoutHash {
		return nil
	}
	return o.Adds(d)
}

func setDefault[T int | uint64](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// lay computes the layout of one map.
func (x *Map) lay(m *Maps, o *MapOptions) error {
	d := x.Def
	x.stride = roundUp(uint64(d.ValueSize), 8)
	switch x.kind {
	case layoutArray:
		entries := uint64(d.MaxEntries)
		x.copies = 1
		if o.AddOnly != nil && !d.PerSM() {
			x.add = o.AddOnly(d)
		}
		x.copyBytes = mul(entries, x.stride)
		if d.PerSM() || len(x.add) > 0 {
			x.copies = m.SMs
			x.copyBytes = roundUp(x.copyBytes, lineBytes)
		}
		x.size = mul(x.copyBytes, uint64(x.copies))
		if len(x.add) > 0 && x.size > o.MaxBytes/4 {
			// Copies are only for speed.
			x.add, x.copies, x.size = nil, 1, x.copyBytes
		}
	case layoutThread:
		x.threads = o.Threads
		x.size = mul(mul(uint64(d.MaxEntries), x.stride), x.threads)
	case layoutHash:
		x.stable = o.Deletes != nil && !o.Deletes(d) && !d.lru()
		x.sums = o.sumsOf(d)
		if o.AddOnly != nil && !d.PerSM() && !d.lru() {
			x.add = o.AddOnly(d)
		}
		x.hash = newHashLayout(d, m.SMs, d.PerSM() || len(x.add) > 0)
		if len(x.add) > 0 && x.hash.size > o.MaxBytes/4 {
			x.add, x.hash = nil, newHashLayout(d, m.SMs, false)
		}
		x.size = x.hash.size
	case layoutRing:
		x.layRing(m, o)
	case layoutQueue:
		x.size = queueHead + mul(uint64(d.MaxEntries), x.stride)
	case layoutBloom:
		x.size = bloomHead + x.stride + d.bloomBits()/8
	}
	if d.Type == MapLPMTrie {
		x.lpm = x.size
		x.size += prefixLengths / 8
	}
	return nil
}

func (x *Map) layRing(m *Maps, o *MapOptions) {
	limit := o.RingBytes
	if x == m.Print {
		limit = o.PrintBytes
	}
	want, record := x.Def.ringBytes()
	if want == 0 {
		want = limit
	}
	parts := m.SMs
	if m.Host {
		want, parts = max(want, hostRing), 1
	}
	x.ring = newRingLayout(want, limit/uint64(parts), record)
	x.ring.parts = parts
	x.copyBytes = x.ring.size
	x.size = mul(x.ring.size, uint64(parts))
}

// Size returns the bytes of memory that the maps need.
func (m *Maps) Size() uint64 { return m.size }

// Place says where the maps are: at base, which must be a multiple of 256, as
// cuMemAlloc's addresses are.
func (m *Maps) Place(base uint64) error {
	if base == 0 || base%arenaAlign != 0 || base+m.size < base {
		return fmt.Errorf("maps: address %#x; it must be a multiple of %d with %d bytes behind it", base, arenaAlign, m.size)
	}
	m.base = base
	for _, x := range m.All {
		if m.Host || !x.shared {
			x.base = base + x.off
		}
	}
	m.Print.base = base + m.Print.off
	return nil
}

// Placed reports whether Place was called.
func (m *Maps) Placed() bool { return m.base != 0 }

// Of returns the map of a definition, or nil if it has no place.
func (m *Maps) Of(d *MapDef) *Map { return m.byDef[d] }

// Find returns the map of that name: Map.Name, or the first that its object calls so, or
// "object:name" where several objects have one. nil if there is none.
func (m *Maps) Find(name string) *Map {
	obj, short, qualified := strings.Cut(name, ":")
	for _, x := range m.All {
		if x.Name == name {
			return x
		}
	}
	for _, x := range m.All {
		if x.Def.Name == name || qualified && x.Def.Name == short && x.Object != nil && strings.HasSuffix(x.Object.Name, obj) {
			return x
		}
	}
	return nil
}

// short returns the object's name without folder and extension.
func (o *Object) short() string {
	name := filepath.Base(o.Name)
	return strings.TrimSuffix(strings.TrimSuffix(name, ".o"), ".bpf")
}

// Addr returns the address of the map's memory.
func (x *Map) Addr() uint64 { return x.base }

// Size returns the bytes of memory that the map takes.
func (x *Map) Size() uint64 { return x.size }

// Shared reports whether programs on the host and in kernels use the map, whose memory is
// the host's.
func (x *Map) Shared() bool { return x.shared }

// Joined reports whether programs on the host and in kernels use the map, only add to it and the like, and
// each side has a part of its own. The host's becomes the sum, see [Join].
func (x *Map) Joined() bool { return len(x.joins) > 0 }

// Striped reports whether each multiprocessor adds to a copy of its own.
func (x *Map) Striped() bool { return len(x.add) > 0 }

// Init writes the initial contents of data sections, and what programs can ask
// for of their process: its number and that of the GPU. All other memory must be
// zero already.
func (m *Maps) Init(mem Memory, pid, device int) error {
	if err := m.head(mem, pid, device); err != nil {
		return err
	}
	for _, x := range m.All {
		if x.Def.Data && (m.Host || !x.shared && !x.Joined()) {
			if err := mem.WriteMem(x.base, x.Def.Initial); err != nil {
				return fmt.Errorf("map %s: %w", x.Name, err)
			}
		}
	}
	return nil
}

// head writes the first line of the memory.
func (m *Maps) head(mem Memory, pid, device int) error {
	head := binary.LittleEndian.AppendUint64(nil, uint64(uint32(pid))<<32|uint64(uint32(pid)))
	head = binary.LittleEndian.AppendUint64(head, uint64(device))
	if err := mem.WriteMem(m.base, head); err != nil {
		return fmt.Errorf("maps: %w", err)
	}
	return nil
}

// SetRank has programs find a process's rank, -1: none. Until then it is 0.
func (m *Maps) SetRank(mem Memory, rank int) error {
	return mem.WriteMem(m.base+rankOff, binary.LittleEndian.AppendUint64(nil, uint64(rank)))
}

// counterAddr returns the address of a counter in the line of multiprocessor 0;
// those of the others follow each m.counted bytes.
func (m *Maps) counterAddr(n int) uint64 { return m.base + m.counters + uint64(n)*counterBytes }

// Counter returns the sum of one of the programs' counters over all
// multiprocessors; slot is 0 to MapOptions.Slots-1.
func (m *Maps) Counter(mem Memory, slot int) (uint64, error) {
	if slot < 0 || slot >= m.nslots {
		return 0, fmt.Errorf("maps: there is no counter %d of %d", slot, m.nslots)
	}
	return m.sum(mem, m.slots+slot)
}

// highest returns the highest number that a multiprocessor has in one of the programs'
// counters.
func (m *Maps) highest(mem Memory, slot int) (uint64, error) {
	var b [counterBytes]byte
	most := uint64(0)
	for sm := range m.SMs {
		if err := mem.ReadMem(m.counterAddr(m.slots+slot)+uint64(sm)*m.counted, b[:]); err != nil {
			return 0, fmt.Errorf("maps: counters: %w", err)
		}
		most = max(most, binary.LittleEndian.Uint64(b[:]))
	}
	return most, nil
}

// Refused returns how often the map had no room: insertions into a full hash,
// records that a full ring dropped, threads beyond those of a per-thread map.
func (m *Maps) Refused(mem Memory, x *Map) (uint64, error) { return m.sum(mem, x.counter) }

func (m *Maps) sum(mem Memory, n int) (uint64, error) {
	var b [counterBytes]byte
	sum := uint64(0)
	for sm := range m.SMs {
		if err := mem.ReadMem(m.counterAddr(n)+uint64(sm)*m.counted, b[:]); err != nil {
			return 0, fmt.Errorf("maps: counters: %w", err)
		}
		sum += binary.LittleEndian.Uint64(b[:])
	}
	return sum, nil
}

// blockAlign is what the size of the variable is a multiple of: what a launch adds to shared memory lies
// behind all variables, and kernels may rely on an alignment that they do not say.
const blockAlign = 1 << 10

// addBlock gives a map that each block has its place in the block's memory.
func (m *Maps) addBlock(d *MapDef, o *Object) {
	m.byDef[d] = &Map{Def: d, Name: d.Name, Object: o, kind: layoutArray, stride: roundUp(uint64(d.ValueSize), 8), copies: 1, size: d.blockBytes(), base: m.block}
	m.block += d.blockBytes()
}

// ofBlocks returns the definition of a map that each block has, by its name; nil if there is none.
func (m *Maps) ofBlocks(name string) *MapDef {
	for d := range m.byDef {
		if d.PerBlock() && d.Name == name {
			return d
		}
	}
	return nil
}

// blockSize is the size of that variable.
func (m *Maps) blockSize() uint64 { return roundUp(m.block, blockAlign) }

// A joinOp says what two parts of a number are together.
type joinOp uint8

// of returns what old becomes by a part that was before, and is now.
func (op joinOp) of(old, before, now uint64) uint64 {
	switch op {
	case joinOr:
		return old | now
	case joinMax:
		return max(old, now)
	}
	return old + now - before
}

// of returns the field's number in a value.
func (f AddField) of(v []byte) uint64 {
	if f.Size == 4 {
		return uint64(binary.LittleEndian.Uint32(v[f.Offset:]))
	}
	return binary.LittleEndian.Uint64(v[f.Offset:])
}

const (
	joinAdd joinOp = iota
	joinOr
	joinMax
)
