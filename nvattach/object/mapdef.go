package object

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/values"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// MapType is a map's type by number: enum bpf_map_type of uapi/linux/bpf.h, and
// bpftime's, which are 1500 and more.
type MapType uint32

// The types of maps that can be had on a GPU.
const (
	MapHash           MapType = 1
	MapArray          MapType = 2
	MapPerfEventArray MapType = 4
	MapPerCPUHash     MapType = 5
	MapPerCPUArray    MapType = 6
	MapRingbuf        MapType = 27

	// bpftime's: a hash, one array per thread, and one for all, each in memory of
	// the GPU, of the host (…Host) or of the kernel too (Shared), and a ring
	// buffer. Where the memory is makes no difference to a program, and here all
	// are in the GPU's.
	MapGPUHash          MapType = 1501
	MapGPUThreadArray   MapType = 1502
	MapGPUArray         MapType = 1503
	MapGPUSharedArray   MapType = 1504
	MapGPUThreadHost    MapType = 1512
	MapGPUArrayHost     MapType = 1513
	MapGPURingbuf       MapType = 1527
	bpfFlagReadOnlyProg         = 1 << 7 // BPF_F_RDONLY_PROG

	// nvtrace's own: an array that each block of threads has for itself, in shared memory.
	MapBlockArray MapType = 1600

	MapLRUHash       MapType = 9
	MapLRUPerCPUHash MapType = 10

	// Those that only the host has.
	MapStackTrace  MapType = 7
	MapLPMTrie     MapType = 11
	MapQueue       MapType = 22
	MapStack       MapType = 23
	MapBloomFilter MapType = 30

	MapArrayOfMaps MapType = 12

	MapProgArray MapType = 3 // of programs, for tail calls; see expand
)

// MapTypeNames are the types of maps.
var MapTypeNames = map[MapType]string{
	MapHash: "hash", MapArray: "array", MapProgArray: "prog_array", MapPerfEventArray: "perf_event_array",
	MapPerCPUHash: "percpu_hash", MapPerCPUArray: "percpu_array", 7: "stack_trace", 8: "cgroup_array",
	9: "lru_hash", 10: "lru_percpu_hash", 11: "lpm_trie", MapArrayOfMaps: "array_of_maps", 13: "hash_of_maps",
	14: "devmap", 15: "sockmap", 16: "cpumap", 17: "xskmap", 18: "sockhash", 19: "cgroup_storage",
	20: "reuseport_sockarray", 21: "percpu_cgroup_storage", 22: "queue", 23: "stack", 24: "sk_storage",
	25: "devmap_hash", 26: "struct_ops", MapRingbuf: "ringbuf", 28: "inode_storage", 29: "task_storage",
	30: "bloom_filter", 31: "user_ringbuf", 32: "cgrp_storage", 33: "arena",
	MapGPUHash: "gpu_hash", MapGPUThreadArray: "gpu_thread_array", MapGPUArray: "gpu_array",
	MapGPUSharedArray: "gpu_kernel_shared_array", MapGPUThreadHost: "gpu_thread_array_host",
	MapGPUArrayHost: "gpu_array_host", MapGPURingbuf: "gpu_ringbuf", MapBlockArray: "block_array",
}

// String returns the type's name, "percpu_array", or its number.
func (t MapType) String() string {
	if s := MapTypeNames[t]; s != "" {
		return s
	}
	return fmt.Sprintf("map_type(%d)", uint32(t))
}

// A MapDef is a map as an object defines it.
type MapDef struct {
	Name       string
	Type       MapType
	KeySize    uint32
	ValueSize  uint32
	MaxEntries uint32
	Flags      uint32
	Extra      uint64            // map_extra
	Key, Value btf.Type          // nil where the object doesn't say
	Data       bool              // a section of global variables
	ReadOnly   bool              // programs may not write to it
	Initial    []byte            // contents of a data section
	Programs   map[uint32]string // of an array of programs: their names
	Inner      *MapDef           // of an array of maps: what they are like; it is none of the object's
	Maps       map[uint32]string // of an array of maps: their names
	Thread     bool              // a data section of which each thread has one, in registers
}

// Bounds of keys and values: a key is compared inside a probe, a value copied.
const (
	maxKeyBytes = 512
)

// threadSection holds the variables of which each thread has its own, and
// maxThreadBytes is how many bytes of them there can be.
const (
	ThreadSection  = ".data.thread"
	maxThreadBytes = 128
)

func newMapDef(name string, s *ebpf.MapSpec) (*MapDef, error) {
	m := &MapDef{
		Name: name, Type: MapType(s.Type), KeySize: s.KeySize, ValueSize: s.ValueSize, MaxEntries: s.MaxEntries,
		Flags: s.Flags, Extra: s.MapExtra, Key: s.Key, Value: s.Value, ReadOnly: s.Flags&bpfFlagReadOnlyProg != 0,
	}
	for _, kv := range s.Contents {
		key, ok := kv.Key.(uint32)
		if name, isName := kv.Value.(string); ok && isName {
			m.put(key, name)
		}
	}
	if m.Type == MapArrayOfMaps && s.InnerMap != nil {
		inner, err := newMapDef(name+" values", s.InnerMap) // a name that no map can have
		if err != nil {
			return nil, fmt.Errorf("its values: %w", err)
		}
		m.Inner = inner
		m.Value = &btf.Array{Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: MaxName}
	}
	if len(s.Contents) > 0 && m.Type == MapArray {
		b, ok := s.Contents[0].Value.([]byte)
		if !ok {
			return nil, fmt.Errorf("initial contents that are no bytes")
		}
		m.Data, m.Initial = true, b
		if m.Thread = name == ThreadSection; m.Thread && len(b) > maxThreadBytes {
			return nil, fmt.Errorf("%d bytes for each thread, which are kept in registers; %d is the most", len(b), maxThreadBytes)
		}
		return m, nil
	}
	return m, m.check()
}

// named reports whether the map's values are programs or maps of its object, by name.
func (m *MapDef) named() bool { return m.Type == MapProgArray || m.Type == MapArrayOfMaps }

// put makes a program or a map a value of the map.
func (m *MapDef) put(key uint32, name string) {
	list := &m.Programs
	switch m.Type {
	case MapProgArray:
	case MapArrayOfMaps:
		list = &m.Maps
	default:
		return
	}
	if *list == nil {
		*list = make(map[uint32]string)
	}
	(*list)[key] = name
}

// fits reports that a map can't be a value of m, an array of maps.
func (m *MapDef) fits(d *MapDef) error {
	in := m.Inner
	switch {
	case d.Type != in.Type || d.KeySize != in.KeySize || d.ValueSize != in.ValueSize || d.Flags != in.Flags || d.Extra != in.Extra,
		d.MaxEntries != in.MaxEntries && in.Layout() != LayoutHash:
		return fmt.Errorf("map %s has type %s, %d entries, keys of %d and values of %d bytes; maps in %s have type %s, %d entries, keys of %d and values of %d", d.Name,
			d.Type, d.MaxEntries, d.KeySize, d.ValueSize, m.Name, in.Type, in.MaxEntries, in.KeySize, in.ValueSize)
	}
	return nil
}

// MaxName is how much of the name of a map is shown that is another's value.
const MaxName = 128

// mostInner bounds the values of an array of maps.
const mostInner = 1 << 16

// checkInner is check of an array of maps.
func (m *MapDef) checkInner() error {
	switch {
	case m.KeySize != 4:
		return fmt.Errorf("a key of %d bytes; that of an array has 4", m.KeySize)
	case m.MaxEntries == 0 || m.MaxEntries > mostInner:
		return fmt.Errorf("max_entries is %d; 1 to %d can be had", m.MaxEntries, mostInner)
	case m.Inner == nil:
		return errors.New("it does not say what maps its values are; give it __array(values, struct { ... })")
	case m.Inner.Type == MapArrayOfMaps || m.Inner.Type == MapProgArray || m.Inner.Type == MapPerfEventArray || m.Inner.PerThread() || m.Inner.PerBlock() || !m.Inner.Supported():
		return fmt.Errorf("its values are of type %s, which can't be had", m.Inner.Type)
	}
	return nil
}

// check refuses definitions that the kernel would refuse as well.
func (m *MapDef) check() error {
	switch m.Type {
	case MapArrayOfMaps:
		return m.checkInner()
	case MapRingbuf, MapPerfEventArray:
		if m.MaxEntries > math.MaxInt32 {
			return fmt.Errorf("max_entries %d is too large", m.MaxEntries)
		}
		return nil
	case MapGPURingbuf:
		if m.ValueSize == 0 || m.ValueSize > values.MaxBytes {
			return fmt.Errorf("a value size of %d; it is the largest record, 1 to %d bytes", m.ValueSize, values.MaxBytes)
		}
	case MapArray, MapPerCPUArray, MapGPUThreadArray, MapGPUArray, MapGPUSharedArray, MapGPUThreadHost, MapGPUArrayHost, MapBlockArray:
		if m.KeySize != 4 {
			return fmt.Errorf("a key of %d bytes; that of an array has 4", m.KeySize)
		}
	case MapStackTrace:
		if m.KeySize != 4 || m.ValueSize%8 != 0 || m.ValueSize > 8*maxStack {
			return fmt.Errorf("keys of %d and values of %d bytes; those of stacks have 4, and 8 for each of up to %d callers", m.KeySize, m.ValueSize, maxStack)
		}
	case MapQueue, MapStack, MapBloomFilter:
		if m.KeySize != 0 {
			return fmt.Errorf("a key of %d bytes; a %s has none", m.KeySize, m.Type)
		}
	case MapLPMTrie:
		if m.KeySize <= LpmHead || m.KeySize > LpmHead+maxPrefixBytes {
			return fmt.Errorf("a key of %d bytes; the length of a prefix and 1 to %d bytes are possible", m.KeySize, maxPrefixBytes)
		}
	case MapHash, MapPerCPUHash, MapGPUHash, MapLRUHash, MapLRUPerCPUHash:
		if m.KeySize == 0 || m.KeySize > maxKeyBytes {
			return fmt.Errorf("a key of %d bytes; 1 to %d can be had", m.KeySize, maxKeyBytes)
		}
	default:
		// Maps that only programs for the host use may be of any type.
		return nil
	}
	switch {
	case m.MaxEntries == 0:
		return errors.New("max_entries is 0; write __uint(max_entries, N) in its definition")
	case m.ValueSize == 0 || m.ValueSize > values.MaxBytes:
		return fmt.Errorf("a value of %d bytes; 1 to %d can be had", m.ValueSize, values.MaxBytes)
	case m.PerBlock() && m.BlockBytes() > maxBlockBytes:
		return fmt.Errorf("it takes %d bytes of each block's shared memory, and %d is the most", m.BlockBytes(), maxBlockBytes)
	}
	return nil
}

// maxStack is how many callers a stack has, at most, as in Linux.
const maxStack = 127

// HostOnly reports whether maps of this type can be had on the host alone.
func (m *MapDef) HostOnly() bool {
	switch m.Type {
	case MapStackTrace, MapLPMTrie, MapQueue, MapStack, MapBloomFilter, MapArrayOfMaps:
		return true
	}
	return false
}

// Sharable reports whether programs on the host and in kernels can have one map of this type:
// those with values apart by CPU or multiprocessor can't, since the one is not the other.
func (m *MapDef) Sharable() bool {
	switch m.Layout() {
	case LayoutArray, LayoutHash:
		return !m.PerSM() && !m.PerBlock() && !m.HostOnly() && !m.Lru() && !m.ReadOnly && !m.Thread
	}
	return false
}

// Lru reports whether the map drops entries that were not used of late when it is full.
func (m *MapDef) Lru() bool { return m.Type == MapLRUHash || m.Type == MapLRUPerCPUHash }

// Supported reports whether maps of this type can be had, on a GPU or, see HostOnly, on the host.
func (m *MapDef) Supported() bool { return m.Layout() != layoutNone }

// LayoutKind says how a map lies in memory.
type LayoutKind uint8

// The layouts of maps.
const (
	layoutNone   LayoutKind = iota
	LayoutArray             // max_entries values, perhaps once per multiprocessor
	LayoutThread            // max_entries rows of a value per thread
	LayoutHash              // open addressing
	LayoutRing              // a ring of records per multiprocessor
	LayoutQueue             // values without keys, the oldest or the youngest first
	LayoutBloom             // a set of bits
	LayoutMaps              // nowhere: which maps are in it is known before programs run
)

// Layout returns how the map's memory is laid out, LayoutNone if it can't be had.
func (m *MapDef) Layout() LayoutKind {
	switch m.Type {
	case MapArray, MapPerCPUArray, MapGPUArray, MapGPUSharedArray, MapGPUArrayHost, MapStackTrace, MapBlockArray:
		return LayoutArray
	case MapGPUThreadArray, MapGPUThreadHost:
		return LayoutThread
	case MapHash, MapPerCPUHash, MapGPUHash, MapLRUHash, MapLRUPerCPUHash, MapLPMTrie:
		return LayoutHash
	case MapQueue, MapStack:
		return LayoutQueue
	case MapBloomFilter:
		return LayoutBloom
	case MapArrayOfMaps:
		return LayoutMaps
	case MapRingbuf, MapPerfEventArray, MapGPURingbuf:
		return LayoutRing
	}
	return layoutNone
}

// PerSM reports whether each multiprocessor has values of its own: what is a CPU
// for the kernel's per-CPU maps is a multiprocessor here.
func (m *MapDef) PerSM() bool {
	return m.Type == MapPerCPUArray || m.Type == MapPerCPUHash || m.Type == MapLRUPerCPUHash
}

// PerThread reports whether each thread of a grid has a value of its own.
func (m *MapDef) PerThread() bool { return m.Layout() == LayoutThread }

// PerBlock reports whether each block of threads has values of its own, see blocks.go.
func (m *MapDef) PerBlock() bool { return m.Type == MapBlockArray }

// RingBytes returns how large the map, a ring buffer, wants to be on each multiprocessor,
// and the size of its largest record; 0 for what the definition does not say.
// The values of a perf event array are descriptors on Linux, and those of a BPF ring
// buffer have no size there: that of their type says only how records are shown.
func (m *MapDef) RingBytes() (want, record uint64) {
	switch m.Type {
	case MapPerfEventArray:
		return 0, 0 // max_entries is the number of CPUs
	case MapGPURingbuf:
		// max_entries records for each thread that can be on a multiprocessor.
		record = uint64(m.ValueSize)
		return Mul(Mul(uint64(m.MaxEntries), 2048), UnitBytes*UnitsFor(record)), record
	}
	return uint64(m.MaxEntries), 0
}

// MaxRecord returns the bytes that a record of the map, a ring buffer, can have where
// there is memory enough.
func (m *MapDef) MaxRecord() uint64 {
	want, record := m.RingBytes()
	if want == 0 && record == 0 {
		return maxRecordBytes - RecordHead
	}
	return NewRingLayout(min(want, maxRecordBytes), MaxArena, record).MaxRecord
}

// Ring reports whether the map is a stream of records.
func (m *MapDef) Ring() bool { return m.Layout() == LayoutRing }

// AtomicMap is what package atomics needs to know of a map of the object.
func (o *Object) AtomicMap(name string) *atomics.Map {
	d := o.Map(name)
	if d == nil {
		return nil
	}
	return &atomics.Map{
		Name: d.Name, KeySize: d.KeySize, ValueSize: d.ValueSize, PerThread: d.PerThread(), Data: d.Data,
		Array: d.Layout() == LayoutArray, Hash: d.Layout() == LayoutHash,
	}
}

// maxBlockBytes bounds the maps of all objects that a block has together.
const maxBlockBytes = 8 << 10

// BlockBytes returns what the map takes of a block's shared memory.
func (m *MapDef) BlockBytes() uint64 {
	return Mul(uint64(m.MaxEntries), RoundUp(uint64(m.ValueSize), 8))
}

// RoundUp returns n rounded up to a multiple of to, a power of two; what would
// overflow stays as large as it can be.
func RoundUp(n, to uint64) uint64 {
	if n > -to {
		return -to
	}
	return (n + to - 1) &^ (to - 1)
}

// Mul multiplies sizes; an overflow gives a size above every limit.
func Mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 || lo > MaxArena {
		return 2 * MaxArena
	}
	return lo
}

// BloomHashes is how many bits a value has: map_extra, or as many as in Linux.
func (m *MapDef) BloomHashes() uint64 {
	if n := m.Extra & 15; n > 0 {
		return n
	}
	return 5
}

// KeyBytes is the size of what is looked up: of a bloom filter, a value.
func (m *MapDef) KeyBytes() uint32 {
	if m.Type == MapBloomFilter {
		return m.ValueSize
	}
	return m.KeySize
}

// BloomBits is how many bits there are: as many as in Linux.
func (m *MapDef) BloomBits() uint64 {
	n := Mul(uint64(m.MaxEntries), m.BloomHashes()) / 5 * 7
	return max(uint64(1)<<bits.Len64(max(n, 1)-1), 512)
}

// A trie is a hash whose keys are prefixes: their length, in bits, and as many bits, with those
// behind them 0. prefixLengths is how many lengths there can be; bits behind the hash say which
// there have been.
const (
	LpmHead        = 4
	maxPrefixBytes = 256
	PrefixLengths  = 8*maxPrefixBytes + 64
)

// MaxArena is the most that all maps can take.
const MaxArena = 1 << 40
