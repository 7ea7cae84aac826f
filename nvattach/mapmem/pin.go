package mapmem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"nvtrace/nvattach/object"
)

// A Pin says where maps on the host lie in memory that stays when a run has ended.
type Pin struct {
	CPUs    int         `json:"cpus"`
	Size    uint64      `json:"size"`
	Counted uint64      `json:"counted"` // bytes from CPU to CPU, of counters
	Maps    []PinnedMap `json:"maps"`
}

// A PinnedMap is a map of a Pin.
type PinnedMap struct {
	Object  int    `json:"object"` // index
	Name    string `json:"name"`
	Offset  uint64 `json:"offset"`
	Counter int    `json:"counter"`
}

// ErrPinned says that memory has maps of another layout.
var ErrPinned = errors.New("the pin has other maps than the program")

// Pin describes the maps, which are the host's, for [Pin.Open]; records of rings are none's
// to keep.
func (m *Maps) Pin(objs []*object.Object) *Pin {
	p := &Pin{CPUs: m.SMs, Size: m.size, Counted: m.Counted}
	for _, x := range m.All {
		if !x.Def.Ring() && !x.Def.ReadOnly && x.Kind != object.LayoutMaps {
			p.Maps = append(p.Maps, PinnedMap{slices.Index(objs, x.Object), x.Def.Name, x.Off, x.Counter})
		}
	}
	return p
}

// sum tells layouts apart; it is not 0.
func (p *Pin) sum(objs []*object.Object) uint64 {
	b, _ := json.Marshal(p) // of numbers and strings only
	for i := range p.Maps {
		d := objs[p.Maps[i].Object].Map(p.Maps[i].Name)
		b = fmt.Appendf(b, " %d %d %d %d %d", d.Type, d.KeySize, d.ValueSize, d.MaxEntries, d.Extra)
	}
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:]) | 1
}

// Begin prepares memory of the host for the maps: as it was left by a run with the same ones,
// but for records and counts of what was lost, or from the beginning.
func (m *Maps) Begin(mem *HostMemory, pid int, objs []*object.Object) error {
	data, sum := mem.B.Data, m.Pin(objs).sum(objs)
	switch Load64(data, pinOff) {
	case 0:
		err := m.Init(mem, pid, 0)
		Store64(data, pinOff, sum)
		return err
	case sum:
	default:
		return ErrPinned
	}
	clear(data[m.counters : m.counters+m.Counted*uint64(m.SMs)])
	for _, x := range append(slices.Clip(m.All), m.Print) {
		if x.Def.Ring() {
			clear(data[x.Off : x.Off+x.size])
		}
	}
	return m.head(mem, pid, 0)
}

// Open returns the maps of objects that lie in memory, which may be in use.
func (p *Pin) Open(objs []*object.Object, data []byte) (*Maps, *HostMemory, error) {
	if p.CPUs < 1 || p.CPUs > maxSMs || p.Size > uint64(len(data)) || p.Counted > p.Size {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrPinned, len(data))
	}
	m := &Maps{SMs: p.CPUs, Host: true, size: p.Size, Base: HostBase, counters: object.LineBytes, Counted: p.Counted, byDef: make(map[*object.MapDef]*Map)}
	for _, q := range p.Maps {
		if q.Object < 0 || q.Object >= len(objs) || q.Counter < 0 || uint64(q.Counter)*CounterBytes >= p.Counted {
			return nil, nil, fmt.Errorf("map %s: %w", q.Name, ErrPinned)
		}
		d := objs[q.Object].Map(q.Name)
		if d == nil || !d.Supported() {
			return nil, nil, fmt.Errorf("map %s: %w", q.Name, ErrPinned)
		}
		x := &Map{Def: d, Name: d.Name, Object: objs[q.Object], Kind: d.Layout(), Off: q.Offset, Base: HostBase + q.Offset, Counter: q.Counter}
		if err := x.lay(m, &MapOptions{MaxBytes: object.MaxArena, Host: true}); err != nil {
			return nil, nil, err
		}
		if q.Offset > p.Size || x.size > p.Size-q.Offset || q.Offset%object.LineBytes != 0 {
			return nil, nil, fmt.Errorf("map %s: %w", q.Name, ErrPinned)
		}
		m.All = append(m.All, x)
		m.byDef[d] = x
	}
	if p.Counted*uint64(p.CPUs) > p.Size {
		return nil, nil, ErrPinned
	}
	if Load64(data, pinOff) != p.sum(objs) {
		return nil, nil, ErrPinned
	}
	return m, &HostMemory{B: Buffer{Base: HostBase, Data: data[:p.Size]}}, nil
}
