package mapmem

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"nvtrace/nvattach/object"
)

// A HostMemory is memory that maps on the host lie in: of this process's, and of the
// traced ones', if programs run there.
type HostMemory struct {
	mu sync.Mutex
	B  Buffer
}

// HostBase is the address that maps on the host begin at, in traced processes, too: behind what the
// agent has (ptrace/agent/layout.go), where sanitizers leave a program its memory.
const HostBase = 0x5508_0000_0000

// recordBase is where the records are, for programs, that programs are writing in this
// process.
const (
	RecordBase   = 1 << 45
	RecordStride = 1 << 32
)

// ReadMem implements [Memory]. What is one aligned word is read at once.
func (m *HostMemory) ReadMem(addr uint64, buf []byte) error {
	s, err := m.B.at(addr, len(buf))
	switch {
	case err != nil:
		return err
	case len(buf) == 8 && addr%8 == 0:
		binary.LittleEndian.PutUint64(buf, Load64(s, 0))
	case len(buf) == 4 && addr%4 == 0:
		binary.LittleEndian.PutUint32(buf, Load32(s, 0))
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		copy(buf, s)
	}
	return nil
}

// WriteMem implements [Memory]. What is one aligned word is written at once.
func (m *HostMemory) WriteMem(addr uint64, buf []byte) error {
	s, err := m.B.at(addr, len(buf))
	switch {
	case err != nil:
		return err
	case len(buf) == 8 && addr%8 == 0:
		Store64(s, 0, binary.LittleEndian.Uint64(buf))
	case len(buf) == 4 && addr%4 == 0:
		Store32(s, 0, binary.LittleEndian.Uint32(buf))
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		copy(s, buf)
	}
	return nil
}

// Change is [nvtrace/ptx/bpf.Interpreter].Atomic.
func (m *HostMemory) Change(addr uint64, n int, change func(old uint64) uint64) (uint64, error) {
	word := addr &^ 7
	if n == 4 || n == 2 || n == 1 {
		word = addr &^ 3
	}
	size := 8
	if n != 8 {
		size = 4
	}
	s, err := m.B.at(word, size)
	if err != nil {
		return 0, err
	}
	if addr%uint64(n) != 0 {
		return 0, fmt.Errorf("an atomic operation of %d bytes at %#x", n, addr)
	}
	for {
		if n == 8 {
			if old := Load64(s, 0); Swap64(s, 0, old, change(old)) {
				return old, nil
			}
			continue
		}
		was := Load32(s, 0)
		shift := 8 * (addr - word)
		mask := uint32(1<<(8*n) - 1)
		old := uint64(was >> shift & mask)
		if Swap32(s, 0, was, was&^(mask<<shift)|uint32(change(old))&mask<<shift) {
			return old, nil
		}
	}
}

// PossibleCPUs is how many CPUs the machine may have: 1 more than the highest number.
func PossibleCPUs() int {
	n := runtime.NumCPU()
	if b, err := os.ReadFile("/sys/devices/system/cpu/possible"); err == nil {
		text := strings.TrimSpace(string(b))
		if last, err := strconv.Atoi(text[strings.LastIndexAny(text, "-,")+1:]); err == nil && last+1 > n {
			n = last + 1
		}
	}
	return min(n, maxSMs)
}

// A HostMap is how a map on the host is laid out, for helpers in traced processes.
type HostMap struct {
	Kind             uint32 // 1: hash, 2: array, 3: ring of records, 4: queue, 5: stack, 6: bloom filter, 7: LPM trie
	Key, Value       uint32 // bytes
	Entries          uint32
	Base, Stride     uint64
	Copy, CPUs       uint64 // bytes from CPU to CPU, 0: there is one value for all
	Slots, Homes     uint64
	Keys, KeyOff     uint64
	SlotSize, Values uint64
	Stable           uint64
	LRU              uint64
	LPM              uint64
	Units, Largest   uint64
	Refused, Busy    uint64 // addresses of counters
}

// HostMap describes a map on the host.
func (m *Maps) HostMap(x *Map) HostMap {
	h := HostMap{
		Key: x.Def.KeySize, Value: x.Def.ValueSize, Entries: x.Def.MaxEntries, Base: x.Base, Stride: x.Stride, CPUs: uint64(m.SMs),
		Refused: m.CounterAddr(x.Counter), Busy: m.CounterAddr(m.Slots + SlotBusyHomes),
	}
	switch x.Kind {
	case object.LayoutHash:
		l := &x.Hash
		h.Kind, h.Slots, h.Homes, h.Keys, h.KeyOff, h.SlotSize, h.Values = 1, l.Slots, l.HomeOff, l.SlotOff, l.KeyOff, l.SlotSize, l.ValueOff
		if l.Copies > 1 {
			h.Copy = l.SmBytes
		}
		if x.Stable {
			h.Stable = 1
		}
		if x.Def.Lru() {
			h.LRU = 1
		}
		if x.Lpm > 0 {
			h.Kind, h.LPM = 7, x.Lpm
		}
	case object.LayoutQueue:
		if h.Kind = 4; x.Def.Type == object.MapStack {
			h.Kind = 5
		}
	case object.LayoutBloom:
		h.Kind, h.Slots, h.Homes = 6, x.Def.BloomBits(), x.Def.BloomHashes()
	case object.LayoutRing:
		h.Kind, h.Units, h.Largest = 3, x.Ring.Units, x.Ring.MaxRecord
	default:
		h.Kind = 2
		if x.Copies > 1 {
			h.Copy = x.CopyBytes
		}
	}
	return h
}

// SlotBusyHomes is the counter of changes of hashes that gave up waiting for another one.
const SlotBusyHomes = 0

// A ClockLine is memory of the host that kernels reach, by which clocks are compared.
type ClockLine struct {
	addr uint64
	data []byte
}

// ClockLine returns the line by which clocks are compared, in data, the memory of the host's
// maps; nil if there is none.
func (m *Maps) ClockLine(data []byte) *ClockLine {
	if m.clockLine == 0 {
		return nil
	}
	return &ClockLine{addr: m.Base + m.clockLine, data: data[m.clockLine:][:arenaAlign]}
}

// Addr is its address in kernels.
func (l *ClockLine) Addr() uint64 { return l.addr }

// Load and Store access a word at an offset at once.
func (l *ClockLine) Load(off uint64) uint64 { return Load64(l.data, off) }

// Store is told with Load.
func (l *ClockLine) Store(off, v uint64) { Store64(l.data, off, v) }
