package mapmem

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"nvtrace/nvattach/object"
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
	AddOnly func(d *object.MapDef) []AddField
	// Adds says of a map which parts of its values programs add to, whatever else they do
	// with them; nil means that it is not known. Where two threads insert a key at once,
	// the later one's value is added to these.
	Adds func(d *object.MapDef) []AddField
	// Deletes says of a hash whether a program deletes keys of it; nil means that
	// one may, which makes replacing values dearer.
	Deletes func(d *object.MapDef) bool
	// KeyPlaces says of a hash whose values are only added to how many keys have places of their own
	// beside it, and PlacedKeys which those are that were taken so far; nil ones are not known yet. Nil: none have.
	KeyPlaces  func(d *object.MapDef) int
	PlacedKeys func(d *object.MapDef) [][]byte
	// Slots is how many counters of their own programs need; see [Maps.Counter].
	Slots int
	// Reads has room for the table of memory that programs in kernels read; see
	// [Maps.SetReadable].
	Reads bool
	// Shared are the host's maps, of which those that programs in kernels use, too, are
	// reachable from the GPU at the addresses that they have; nil: none are.
	Shared *Maps
	// Join are the host's maps, to which what kernels add to their parts of some is to be added,
	// see [nvtrace/nvattach/hostrun.Runner.NewJoin]; nil: none are.
	Join *Maps
	// Clock says of the host's maps that clocks are to be compared, also if no program in
	// kernels asks for the time.
	Clock bool

	Host   bool                              // the maps are the host's
	Shares func(d *object.MapDef) bool       // of the host's: whether programs in kernels use it, too
	Joined func(d *object.MapDef) []AddField // of the host's: see Plan.joined
}

// An AddField is a part of a map's value that programs only add to.
type AddField struct {
	Offset uint32
	Size   uint32 // 4 or 8 bytes

	By JoinOp // what else they do with it, see Plan.joined
}

// Alignments and sizes of the layout.
const (
	defaultSMs = 256
	maxSMs     = 4096
	arenaAlign = 256

	CounterBytes = 8
)

// What the first line of the memory holds, so that woven code does not depend on
// it and can be kept from run to run.
const (
	ProcessOff = 0  // u64 pid<<32 | tid, of bpf_get_current_pid_tgid
	DeviceOff  = 8  // u64 ordinal of the GPU
	ClockOff   = 16 // see Clock.bytes
	RankOff    = 40 // u64 rank of the process, as a signed number
	pinOff     = 64 // u64 on the host, which maps are there; see Maps.begin
)

// The counters that every [Maps] has, before those of maps and programs.
const (
	counterPrintDrops = iota // bpf_printk's that found no room
	counterFixed
)

// A Map is a map that has its place in a GPU's memory.
type Map struct {
	Def *object.MapDef
	// Name is the definition's, with "#2" behind it when another object's map of
	// the same name came before.
	Name   string
	Object *object.Object // nil for the ring of bpf_printk

	Kind      object.LayoutKind
	Off       uint64 // in the arena
	size      uint64
	Stride    uint64 // bytes from value to value
	Copies    int    // of an array: 1, or one per multiprocessor
	CopyBytes uint64 // from copy to copy; of a ring from part to part
	add       []AddField
	Threads   uint64 // of a per-thread map
	Hash      hashLayout
	Stable    bool // of a hash: no program deletes keys
	// Of a hash: how many keys have places of their own, see MapOptions.KeyPlaces, and how far it is from
	// those of one multiprocessor to those of the next.
	KeyPlaces     int
	KeyPlaceBytes uint64
	keyPlaceOff   uint64
	placedKeys    func(d *object.MapDef) [][]byte
	Sums          []AddField // of a hash: parts of values that programs add to
	Ring          object.RingLayout
	Lpm           uint64 // of a trie: where the bits are of the prefixes' lengths that it has
	Counter       int    // number of its counter of what was refused
	Base          uint64
	OfHost        bool       // programs on the host and in kernels use it; its memory is the host's
	Joins         []AddField // programs on the host and in kernels each have a part of it, see Plan.joined
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

	Block    uint64 // bytes of the maps that each block has, which are not in All
	byDef    map[*object.MapDef]*Map
	size     uint64
	Base     uint64
	counters uint64 // offset of the counters
	Counted  uint64 // bytes from multiprocessor to multiprocessor
	Readable uint64 // offset of the table of memory, 0: there is none
	Slots    int    // number of the first of the programs' counters
	nslots   int
	Cookie   uint64 // see ringLayout
}

// NewMaps lays out the maps of the objects. A map whose type can't be had on a
// GPU gets no place; programs that use it are refused later. An error says which
// map is too large.
func NewMaps(objs []*object.Object, o *MapOptions) (*Maps, error) {
	return NewMapsOf(objs, o, func(*object.MapDef) bool { return true })
}

// NewMapsOf lays out those maps that are wanted.
func NewMapsOf(objs []*object.Object, o *MapOptions, wanted func(*object.MapDef) bool) (*Maps, error) {
	if o == nil {
		o = &MapOptions{}
	}
	opt := *o
	SetDefault(&opt.SMs, defaultSMs)
	SetDefault(&opt.Threads, 1<<20)
	SetDefault(&opt.RingBytes, 64<<20)
	SetDefault(&opt.PrintBytes, 16<<20)
	SetDefault(&opt.MaxBytes, 1<<30)
	if opt.SMs < 0 || opt.SMs > maxSMs {
		return nil, fmt.Errorf("maps: %d multiprocessors; 1 to %d can be", opt.SMs, maxSMs)
	}
	opt.MaxBytes = min(opt.MaxBytes, object.MaxArena)
	m := &Maps{SMs: opt.SMs, Host: opt.Host, byDef: make(map[*object.MapDef]*Map), Cookie: object.RingCookie}
	many, names := map[string]int{}, map[string]int{}
	for _, obj := range objs {
		for _, d := range obj.Maps {
			many[d.Name]++
		}
	}
	for _, obj := range objs {
		for _, d := range obj.Maps {
			if !d.Supported() || d.Thread || d.HostOnly() && !opt.Host || !wanted(d) {
				continue
			}
			if d.PerBlock() {
				m.addBlock(d, obj)
				continue
			}
			x := &Map{Def: d, Name: d.Name, Object: obj, Kind: d.Layout()}
			if y := opt.sharedMap(d); y != nil {
				same := *y
				x = &same
				x.Sums = opt.sumsOf(d)
			} else if opt.Shares != nil {
				x.OfHost, x.Joins = opt.Shares(d), opt.Joined(d)
			} else if y := opt.joinedMap(d); y != nil {
				x.Joins = y.Joins
			}
			x.Counter = counterFixed + len(m.All)
			if many[d.Name] > 1 {
				x.Name = short(obj) + ":" + d.Name
			}
			if names[x.Name]++; names[x.Name] > 1 { // objects of one name, too
				x.Name = fmt.Sprintf("%s#%d", x.Name, names[x.Name])
			}
			m.All = append(m.All, x)
			m.byDef[d] = x
		}
	}
	m.Print = &Map{Def: &object.MapDef{Name: "printk", Type: object.MapRingbuf}, Name: "printk", Kind: object.LayoutRing, Counter: counterPrintDrops}
	m.Slots, m.nslots = counterFixed+len(m.All), opt.Slots
	m.Counted = object.RoundUp(uint64(m.Slots+m.nslots)*CounterBytes, object.LineBytes)
	m.counters = object.LineBytes
	m.size = m.counters + m.Counted*uint64(m.SMs)
	if opt.Reads && !opt.Host {
		m.layReadable()
	}
	for _, x := range append(slices.Clip(m.All), m.Print) {
		if !x.OfHost {
			if err := m.add(x, &opt); err != nil {
				return nil, err
			}
		}
	}
	if opt.Host {
		return m, m.addShared(&opt)
	}
	return m, nil
}

// add gives a map its place behind those that have theirs.
func (m *Maps) add(x *Map, o *MapOptions) error {
	if err := x.lay(m, o); err != nil {
		return fmt.Errorf("map %s: %w", x.Name, err)
	}
	x.Off = m.size
	m.size = object.RoundUp(m.size+x.size, arenaAlign)
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
	m.size = object.RoundUp(m.size, sharePages)
	m.SharedOffset = m.size
	if o.Clock {
		m.clockLine = m.size
		m.size += arenaAlign
	}
	for _, x := range m.All {
		if x.OfHost {
			if err := m.add(x, o); err != nil {
				return err
			}
		}
	}
	if m.size == m.SharedOffset {
		m.size, m.SharedOffset = end, 0
		return nil
	}
	m.size = object.RoundUp(m.size, sharePages)
	m.SharedSize = m.size - m.SharedOffset
	return nil
}

// sharedMap returns the host's map of a definition, if it is shared with the GPU.
func (o *MapOptions) sharedMap(d *object.MapDef) *Map {
	if o.Shared == nil {
		return nil
	}
	if x := o.Shared.Of(d); x != nil && x.OfHost {
		return x
	}
	return nil
}

// joinedMap returns the host's map of a definition, if the GPU's is a part of it.
func (o *MapOptions) joinedMap(d *object.MapDef) *Map {
	if o.Join == nil {
		return nil
	}
	if x := o.Join.Of(d); x != nil && len(x.Joins) > 0 {
		return x
	}
	return nil
}

// sumsOf is Adds of a hash.
func (o *MapOptions) sumsOf(d *object.MapDef) []AddField {
	if o.Adds == nil || d.Layout() != object.LayoutHash {
		return nil
	}
	return o.Adds(d)
}

// SetDefault sets what is 0.
func SetDefault[T int | uint64](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// lay computes the layout of one map.
func (x *Map) lay(m *Maps, o *MapOptions) error {
	d := x.Def
	x.Stride = object.RoundUp(uint64(d.ValueSize), 8)
	switch x.Kind {
	case object.LayoutArray:
		entries := uint64(d.MaxEntries)
		x.Copies = 1
		if o.AddOnly != nil && !d.PerSM() {
			x.add = o.AddOnly(d)
		}
		x.CopyBytes = object.Mul(entries, x.Stride)
		if d.PerSM() || len(x.add) > 0 {
			x.Copies = m.SMs
			x.CopyBytes = object.RoundUp(x.CopyBytes, object.LineBytes)
		}
		x.size = object.Mul(x.CopyBytes, uint64(x.Copies))
		if len(x.add) > 0 && x.size > o.MaxBytes/4 {
			// Copies are only for speed.
			x.add, x.Copies, x.size = nil, 1, x.CopyBytes
		}
	case object.LayoutThread:
		x.Threads = o.Threads
		x.size = object.Mul(object.Mul(uint64(d.MaxEntries), x.Stride), x.Threads)
	case object.LayoutHash:
		x.Stable = o.Deletes != nil && !o.Deletes(d) && !d.Lru()
		x.Sums = o.sumsOf(d)
		if o.AddOnly != nil && !d.PerSM() && !d.Lru() {
			x.add = o.AddOnly(d)
		}
		x.Hash = newHashLayout(d, m.SMs, d.PerSM() || len(x.add) > 0)
		if len(x.add) > 0 && x.Hash.size > o.MaxBytes/4 {
			x.add, x.Hash = nil, newHashLayout(d, m.SMs, false)
		}
		x.size = x.Hash.size
		x.layKeyPlaces(m, o)
	case object.LayoutRing:
		x.layRing(m, o)
	case object.LayoutQueue:
		x.size = queueHead + object.Mul(uint64(d.MaxEntries), x.Stride)
	case object.LayoutBloom:
		x.size = BloomHead + x.Stride + d.BloomBits()/8
	}
	if d.Type == object.MapLPMTrie {
		x.Lpm = x.size
		x.size += object.PrefixLengths / 8
	}
	return nil
}

// hostRing is the least size of a ring on the host: it is emptied from time to time, not
// when something is in it.
const hostRing = 1 << 20

func (x *Map) layRing(m *Maps, o *MapOptions) {
	limit := o.RingBytes
	if x == m.Print {
		limit = o.PrintBytes
	}
	want, record := x.Def.RingBytes()
	if want == 0 {
		want = limit
	}
	parts := m.SMs
	if m.Host {
		want, parts = max(want, hostRing), 1
	}
	x.Ring = object.NewRingLayout(want, limit/uint64(parts), record)
	x.Ring.Parts = parts
	x.CopyBytes = x.Ring.Size
	x.size = object.Mul(x.Ring.Size, uint64(parts))
}

// Size returns the bytes of memory that the maps need.
func (m *Maps) Size() uint64 { return m.size }

// Place says where the maps are: at base, which must be a multiple of 256, as
// cuMemAlloc's addresses are.
func (m *Maps) Place(base uint64) error {
	if base == 0 || base%arenaAlign != 0 || base+m.size < base {
		return fmt.Errorf("maps: address %#x; it must be a multiple of %d with %d bytes behind it", base, arenaAlign, m.size)
	}
	m.Base = base
	for _, x := range m.All {
		if m.Host || !x.OfHost {
			x.Base = base + x.Off
		}
	}
	m.Print.Base = base + m.Print.Off
	return nil
}

// Placed reports whether Place was called.
func (m *Maps) Placed() bool { return m.Base != 0 }

// Of returns the map of a definition, or nil if it has no place.
func (m *Maps) Of(d *object.MapDef) *Map { return m.byDef[d] }

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
func short(o *object.Object) string {
	name := filepath.Base(o.Name)
	return strings.TrimSuffix(strings.TrimSuffix(name, ".o"), ".bpf")
}

// Addr returns the address of the map's memory.
func (x *Map) Addr() uint64 { return x.Base }

// Size returns the bytes of memory that the map takes.
func (x *Map) Size() uint64 { return x.size }

// Shared reports whether programs on the host and in kernels use the map, whose memory is
// the host's.
func (x *Map) Shared() bool { return x.OfHost }

// Joined reports whether programs on the host and in kernels use the map, only add to it and the like, and
// each side has a part of its own. The host's becomes the sum, see [nvtrace/nvattach/hostrun.Join].
func (x *Map) Joined() bool { return len(x.Joins) > 0 }

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
		if x.Def.Data && (m.Host || !x.OfHost && !x.Joined()) {
			if err := mem.WriteMem(x.Base, x.Def.Initial); err != nil {
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
	if err := mem.WriteMem(m.Base, head); err != nil {
		return fmt.Errorf("maps: %w", err)
	}
	return nil
}

// SetRank has programs find a process's rank, -1: none. Until then it is 0.
func (m *Maps) SetRank(mem Memory, rank int) error {
	return mem.WriteMem(m.Base+RankOff, binary.LittleEndian.AppendUint64(nil, uint64(rank)))
}

// CounterAddr returns the address of a counter in the line of multiprocessor 0;
// those of the others follow each m.counted bytes.
func (m *Maps) CounterAddr(n int) uint64 { return m.Base + m.counters + uint64(n)*CounterBytes }

// Counter returns the sum of one of the programs' counters over all
// multiprocessors; slot is 0 to MapOptions.Slots-1.
func (m *Maps) Counter(mem Memory, slot int) (uint64, error) {
	if slot < 0 || slot >= m.nslots {
		return 0, fmt.Errorf("maps: there is no counter %d of %d", slot, m.nslots)
	}
	return m.sum(mem, m.Slots+slot)
}

// Highest returns the highest number that a multiprocessor has in one of the programs'
// counters.
func (m *Maps) Highest(mem Memory, slot int) (uint64, error) {
	var b [CounterBytes]byte
	most := uint64(0)
	for sm := range m.SMs {
		if err := mem.ReadMem(m.CounterAddr(m.Slots+slot)+uint64(sm)*m.Counted, b[:]); err != nil {
			return 0, fmt.Errorf("maps: counters: %w", err)
		}
		most = max(most, binary.LittleEndian.Uint64(b[:]))
	}
	return most, nil
}

// Refused returns how often the map had no room: insertions into a full hash,
// records that a full ring dropped, threads beyond those of a per-thread map.
func (m *Maps) Refused(mem Memory, x *Map) (uint64, error) { return m.sum(mem, x.Counter) }

func (m *Maps) sum(mem Memory, n int) (uint64, error) {
	var b [CounterBytes]byte
	sum := uint64(0)
	for sm := range m.SMs {
		if err := mem.ReadMem(m.CounterAddr(n)+uint64(sm)*m.Counted, b[:]); err != nil {
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
func (m *Maps) addBlock(d *object.MapDef, o *object.Object) {
	m.byDef[d] = &Map{Def: d, Name: d.Name, Object: o, Kind: object.LayoutArray, Stride: object.RoundUp(uint64(d.ValueSize), 8), Copies: 1, size: d.BlockBytes(), Base: m.Block}
	m.Block += d.BlockBytes()
}

// ofBlocks returns the definition of a map that each block has, by its name; nil if there is none.
func (m *Maps) ofBlocks(name string) *object.MapDef {
	for d := range m.byDef {
		if d.PerBlock() && d.Name == name {
			return d
		}
	}
	return nil
}

// BlockSize is the size of that variable.
func (m *Maps) BlockSize() uint64 { return object.RoundUp(m.Block, blockAlign) }

// A JoinOp says what two parts of a number are together.
type JoinOp uint8

// Of returns what old becomes by a part that was before, and is now.
func (op JoinOp) Of(old, before, now uint64) uint64 {
	switch op {
	case JoinOr:
		return old | now
	case JoinMax:
		return max(old, now)
	}
	return old + now - before
}

// Of returns the field's number in a value.
func (f AddField) Of(v []byte) uint64 {
	if f.Size == 4 {
		return uint64(binary.LittleEndian.Uint32(v[f.Offset:]))
	}
	return binary.LittleEndian.Uint64(v[f.Offset:])
}

// What joining two values of a field does.
const (
	JoinAdd JoinOp = iota
	JoinOr
	JoinMax
)
