package nvattach

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// A HostMemory is memory that maps on the host lie in: of this process's, and of the
// traced ones', if programs run there.
type HostMemory struct {
	mu sync.Mutex
	b  Buffer
}

// HostBase is the address that maps on the host begin at, in traced processes, too: behind what the
// agent has (ptrace/agent/layout.go), where sanitizers leave a program its memory.
const HostBase = 0x5508_0000_0000

// recordBase is where the records are, for programs, that programs are writing in this
// process.
const (
	recordBase   = 1 << 45
	recordStride = 1 << 32
)

// ReadMem implements [Memory]. What is one aligned word is read at once.
func (m *HostMemory) ReadMem(addr uint64, buf []byte) error {
	s, err := m.b.at(addr, len(buf))
	switch {
	case err != nil:
		return err
	case len(buf) == 8 && addr%8 == 0:
		binary.LittleEndian.PutUint64(buf, load64(s, 0))
	case len(buf) == 4 && addr%4 == 0:
		binary.LittleEndian.PutUint32(buf, load32(s, 0))
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		copy(buf, s)
	}
	return nil
}

// WriteMem implements [Memory]. What is one aligned word is written at once.
func (m *HostMemory) WriteMem(addr uint64, buf []byte) error {
	s, err := m.b.at(addr, len(buf))
	switch {
	case err != nil:
		return err
	case len(buf) == 8 && addr%8 == 0:
		store64(s, 0, binary.LittleEndian.Uint64(buf))
	case len(buf) == 4 && addr%4 == 0:
		store32(s, 0, binary.LittleEndian.Uint32(buf))
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		copy(s, buf)
	}
	return nil
}

// change is [bpf.Interpreter].Atomic.
func (m *HostMemory) change(addr uint64, n int, change func(old uint64) uint64) (uint64, error) {
	word := addr &^ 7
	if n == 4 || n == 2 || n == 1 {
		word = addr &^ 3
	}
	size := 8
	if n != 8 {
		size = 4
	}
	s, err := m.b.at(word, size)
	if err != nil {
		return 0, err
	}
	if addr%uint64(n) != 0 {
		return 0, fmt.Errorf("an atomic operation of %d bytes at %#x", n, addr)
	}
	for {
		if n == 8 {
			if old := load64(s, 0); swap64(s, 0, old, change(old)) {
				return old, nil
			}
			continue
		}
		was := load32(s, 0)
		shift := 8 * (addr - word)
		mask := uint32(1<<(8*n) - 1)
		old := uint64(was >> shift & mask)
		if swap32(s, 0, was, was&^(mask<<shift)|uint32(change(old))&mask<<shift) {
			return old, nil
		}
	}
}

// possibleCPUs is how many CPUs the machine may have: 1 more than the highest number.
func possibleCPUs() int {
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
		Key: x.Def.KeySize, Value: x.Def.ValueSize, Entries: x.Def.MaxEntries, Base: x.base, Stride: x.stride, CPUs: uint64(m.SMs),
		Refused: m.counterAddr(x.counter), Busy: m.counterAddr(m.slots + slotBusyHomes),
	}
	switch x.kind {
	case layoutHash:
		l := &x.hash
		h.Kind, h.Slots, h.Homes, h.Keys, h.KeyOff, h.SlotSize, h.Values = 1, l.slots, l.homeOff, l.slotOff, l.keyOff, l.slotSize, l.valueOff
		if l.copies > 1 {
			h.Copy = l.smBytes
		}
		if x.stable {
			h.Stable = 1
		}
		if x.Def.lru() {
			h.LRU = 1
		}
		if x.lpm > 0 {
			h.Kind, h.LPM = 7, x.lpm
		}
	case layoutQueue:
		if h.Kind = 4; x.Def.Type == MapStack {
			h.Kind = 5
		}
	case layoutBloom:
		h.Kind, h.Slots, h.Homes = 6, x.Def.bloomBits(), x.Def.bloomHashes()
	case layoutRing:
		h.Kind, h.Units, h.Largest = 3, x.ring.units, x.ring.maxRecord
	default:
		h.Kind = 2
		if x.copies > 1 {
			h.Copy = x.copyBytes
		}
	}
	return h
}

// slotBusyHomes is the counter of changes of hashes that gave up waiting for another one.
const slotBusyHomes = 0

// hostRing is the least size of a ring on the host: it is emptied from time to time, not
// when something is in it.
const hostRing = 1 << 20

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
	return &ClockLine{addr: m.base + m.clockLine, data: data[m.clockLine:][:arenaAlign]}
}

// Addr is its address in kernels.
func (l *ClockLine) Addr() uint64 { return l.addr }

// Load and Store access a word at an offset at once.
func (l *ClockLine) Load(off uint64) uint64 { return load64(l.data, off) }

// Store is told with Load.
func (l *ClockLine) Store(off, v uint64) { store64(l.data, off, v) }
