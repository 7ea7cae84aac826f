package nvattach

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

	mapProgArray MapType = 3 // of programs, for tail calls; see expand
)

var mapTypeNames = map[MapType]string{
	MapHash: "hash", MapArray: "array", mapProgArray: "prog_array", MapPerfEventArray: "perf_event_array",
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
	if s := mapTypeNames[t]; s != "" {
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
	threadSection  = ".data.thread"
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
		m.Value = &btf.Array{Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: maxName}
	}
	if len(s.Contents) > 0 && m.Type == MapArray {
		b, ok := s.Contents[0].Value.([]byte)
		if !ok {
			return nil, fmt.Errorf("initial contents that are no bytes")
		}
		m.Data, m.Initial = true, b
		if m.Thread = name == threadSection; m.Thread && len(b) > maxThreadBytes {
			return nil, fmt.Errorf("%d bytes for each thread, which are kept in registers; %d is the most", len(b), maxThreadBytes)
		}
		return m, nil
	}
	return m, m.check()
}

// named reports whether the map's values are programs or maps of its object, by name.
func (m *MapDef) named() bool { return m.Type == mapProgArray || m.Type == MapArrayOfMaps }

// put makes a program or a map a value of the map.
func (m *MapDef) put(key uint32, name string) {
	list := &m.Programs
	switch m.Type {
	case mapProgArray:
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
		d.MaxEntries != in.MaxEntries && in.layout() != layoutHash:
		return fmt.Errorf("map %s has type %s, %d entries, keys of %d and values of %d bytes; maps in %s have type %s, %d entries, keys of %d and values of %d", d.Name,
			d.Type, d.MaxEntries, d.KeySize, d.ValueSize, m.Name, in.Type, in.MaxEntries, in.KeySize, in.ValueSize)
	}
	return nil
}

// maxName is how much of the name of a map is shown that is another's value.
const maxName = 128

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
	case m.Inner.Type == MapArrayOfMaps || m.Inner.Type == mapProgArray || m.Inner.Type == MapPerfEventArray || m.Inner.PerThread() || m.Inner.PerBlock() || !m.Inner.Supported():
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
		if m.KeySize <= lpmHead || m.KeySize > lpmHead+maxPrefixBytes {
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
		return fmt.Errorf("max_entries is 0")
	case m.ValueSize == 0 || m.ValueSize > values.MaxBytes:
		return fmt.Errorf("a value of %d bytes; 1 to %d can be had", m.ValueSize, values.MaxBytes)
	case m.PerBlock() && m.blockBytes() > maxBlockBytes:
		return fmt.Errorf("it takes %d bytes of each block's shared memory, and %d is the most", m.blockBytes(), maxBlockBytes)
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

// sharable reports whether programs on the host and in kernels can have one map of this type:
// those with values apart by CPU or multiprocessor can't, since the one is not the other.
func (m *MapDef) sharable() bool {
	switch m.layout() {
	case layoutArray, layoutHash:
		return !m.PerSM() && !m.PerBlock() && !m.HostOnly() && !m.lru() && !m.ReadOnly && !m.Thread
	}
	return false
}

// lru reports whether the map drops entries that were not used of late when it is full.
func (m *MapDef) lru() bool { return m.Type == MapLRUHash || m.Type == MapLRUPerCPUHash }

// Supported reports whether maps of this type can be had, on a GPU or, see HostOnly, on the host.
func (m *MapDef) Supported() bool { return m.layout() != layoutNone }

// layoutKind says how a map lies in memory.
type layoutKind uint8

const (
	layoutNone   layoutKind = iota
	layoutArray             // max_entries values, perhaps once per multiprocessor
	layoutThread            // max_entries rows of a value per thread
	layoutHash              // open addressing
	layoutRing              // a ring of records per multiprocessor
	layoutQueue             // values without keys, the oldest or the youngest first
	layoutBloom             // a set of bits
	layoutMaps              // nowhere: which maps are in it is known before programs run
)

func (m *MapDef) layout() layoutKind {
	switch m.Type {
	case MapArray, MapPerCPUArray, MapGPUArray, MapGPUSharedArray, MapGPUArrayHost, MapStackTrace, MapBlockArray:
		return layoutArray
	case MapGPUThreadArray, MapGPUThreadHost:
		return layoutThread
	case MapHash, MapPerCPUHash, MapGPUHash, MapLRUHash, MapLRUPerCPUHash, MapLPMTrie:
		return layoutHash
	case MapQueue, MapStack:
		return layoutQueue
	case MapBloomFilter:
		return layoutBloom
	case MapArrayOfMaps:
		return layoutMaps
	case MapRingbuf, MapPerfEventArray, MapGPURingbuf:
		return layoutRing
	}
	return layoutNone
}

// PerSM reports whether each multiprocessor has values of its own: what is a CPU
// for the kernel's per-CPU maps is a multiprocessor here.
func (m *MapDef) PerSM() bool {
	return m.Type == MapPerCPUArray || m.Type == MapPerCPUHash || m.Type == MapLRUPerCPUHash
}

// PerThread reports whether each thread of a grid has a value of its own.
func (m *MapDef) PerThread() bool { return m.layout() == layoutThread }

// PerBlock reports whether each block of threads has values of its own, see blocks.go.
func (m *MapDef) PerBlock() bool { return m.Type == MapBlockArray }

// ringBytes returns how large the map, a ring buffer, wants to be on each multiprocessor,
// and the size of its largest record; 0 for what the definition does not say.
// The values of a perf event array are descriptors on Linux, and those of a BPF ring
// buffer have no size there: that of their type says only how records are shown.
func (m *MapDef) ringBytes() (want, record uint64) {
	switch m.Type {
	case MapPerfEventArray:
		return 0, 0 // max_entries is the number of CPUs
	case MapGPURingbuf:
		// max_entries records for each thread that can be on a multiprocessor.
		record = uint64(m.ValueSize)
		return mul(mul(uint64(m.MaxEntries), 2048), unitBytes*unitsFor(record)), record
	}
	return uint64(m.MaxEntries), 0
}

// maxRecord returns the bytes that a record of the map, a ring buffer, can have where
// there is memory enough.
func (m *MapDef) maxRecord() uint64 {
	want, record := m.ringBytes()
	if want == 0 && record == 0 {
		return maxRecordBytes - recordHead
	}
	return newRingLayout(min(want, maxRecordBytes), maxArena, record).maxRecord
}

// Ring reports whether the map is a stream of records.
func (m *MapDef) Ring() bool { return m.layout() == layoutRing }

// atomicMap is what package atomics needs to know of a map of the object.
func (o *Object) atomicMap(name string) *atomics.Map {
	d := o.Map(name)
	if d == nil {
		return nil
	}
	return &atomics.Map{
		Name: d.Name, KeySize: d.KeySize, ValueSize: d.ValueSize, PerThread: d.PerThread(), Data: d.Data,
		Array: d.layout() == layoutArray, Hash: d.layout() == layoutHash,
	}
}

// maxBlockBytes bounds the maps of all objects that a block has together.
const maxBlockBytes = 8 << 10

// blockBytes returns what the map takes of a block's shared memory.
func (m *MapDef) blockBytes() uint64 {
	return mul(uint64(m.MaxEntries), roundUp(uint64(m.ValueSize), 8))
}

// roundUp returns n rounded up to a multiple of to, a power of two; what would
// overflow stays as large as it can be.
func roundUp(n, to uint64) uint64 {
	if n > -to {
		return -to
	}
	return (n + to - 1) &^ (to - 1)
}

// mul multiplies sizes; an overflow gives a size above every limit.
func mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 || lo > maxArena {
		return 2 * maxArena
	}
	return lo
}

// bloomHashes is how many bits a value has: map_extra, or as many as in Linux.
func (m *MapDef) bloomHashes() uint64 {
	if n := m.Extra & 15; n > 0 {
		return n
	}
	return 5
}

// keyBytes is the size of what is looked up: of a bloom filter, a value.
func (m *MapDef) keyBytes() uint32 {
	if m.Type == MapBloomFilter {
		return m.ValueSize
	}
	return m.KeySize
}

// bloomBits is how many bits there are: as many as in Linux.
func (m *MapDef) bloomBits() uint64 {
	n := mul(uint64(m.MaxEntries), m.bloomHashes()) / 5 * 7
	return max(uint64(1)<<bits.Len64(max(n, 1)-1), 512)
}

// A trie is a hash whose keys are prefixes: their length, in bits, and as many bits, with those
// behind them 0. prefixLengths is how many lengths there can be; bits behind the hash say which
// there have been.
const (
	lpmHead        = 4
	maxPrefixBytes = 256
	prefixLengths  = 8*maxPrefixBytes + 64
)

// maxArena is the most that all maps can take.
const maxArena = 1 << 40
