package gpu

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/mapmem"
)

// errNoVisit: the GPU's memory can be reached during visits only.
var errNoVisit = errors.New("no thread of the program is where it could copy the GPU's memory")

var _ mapmem.Memory = (*memory)(nil)

// chunkBytes is how much is copied at once.
const chunkBytes = stageBytes

// check says why bytes can't be reached.
func (m *memory) check(addr uint64, n int) error {
	if m.v == nil {
		return errNoVisit
	}
	if off := addr - m.addr; addr < m.addr || off > m.size || uint64(n) > m.size-off {
		return fmt.Errorf("memory %#x, %d bytes: outside of the maps, %d bytes at %#x", addr, n, m.size, m.addr)
	}
	return nil
}

// ReadMem implements [mapmem.Memory].
func (m *memory) ReadMem(addr uint64, buf []byte) error {
	if err := m.check(addr, len(buf)); err != nil {
		return err
	}
	for len(buf) > 0 {
		if b := m.span(addr); b != nil {
			n := copy(buf, b)
			buf, addr = buf[n:], addr+uint64(n)
			continue
		}
		c, at, err := m.chunk(addr)
		if err != nil {
			return err
		}
		n := copy(buf, c[at:])
		buf, addr = buf[n:], addr+uint64(n)
	}
	return nil
}

// span returns what is at addr and behind it in what was prefetched, if that is there.
func (m *memory) span(addr uint64) []byte {
	i, found := slices.BinarySearchFunc(m.spans, addr, func(s span, addr uint64) int { return cmp.Compare(s.addr, addr) })
	if found {
		return m.spans[i].data
	}
	if i == 0 {
		return nil
	}
	if s := &m.spans[i-1]; addr-s.addr < uint64(len(s.data)) {
		return s.data[addr-s.addr:]
	}
	return nil
}

// chunk returns the chunk that has addr, and where.
func (m *memory) chunk(addr uint64) (c []byte, at uint64, err error) {
	off := addr - m.addr
	first := off &^ (chunkBytes - 1)
	if c := m.chunks[first]; c != nil {
		return c, off - first, nil
	}
	if err := m.flush(); err != nil {
		return nil, 0, err
	}
	c = make([]byte, min(chunkBytes, m.size-first))
	if err := m.v.exchange(nil, 0, []step{
		call("cuMemcpyDtoHAsync_v2", m.v.stage(), m.addr+first, uint64(len(c)), m.stream),
		call("cuStreamSynchronize", m.stream),
	}, m.v.stage(), c); err != nil {
		return nil, 0, err
	}
	for _, w := range m.late {
		if at := w.addr - m.addr - first; at < uint64(len(c)) {
			copy(c[at:], w.data)
		}
	}
	m.chunks[first] = c
	return c, off - first, nil
}

// Prefetch implements [mapmem.Prefetcher]: one copy gathers all rows, or parts of them that there
// is room for.
func (m *memory) Prefetch(addr, stride uint64, width, rows int) {
	if m.v == nil || width <= 0 || rows <= 0 || m.has(addr, stride, width, rows) || m.flush() != nil {
		return
	}
	piece := min(width, stageBytes/rows)
	if piece == 0 || (width-1)/piece >= maxPieces {
		return // copied by the chunk
	}
	for off := 0; off < width; off += piece {
		n := min(piece, width-off)
		got := make([]byte, n*rows)
		if err := m.v.exchange(m.rows(addr+uint64(off), stride, n, rows, false), m.v.desc(), []step{
			call("cuMemcpy2DAsync_v2", m.v.desc(), m.stream), call("cuStreamSynchronize", m.stream),
		}, m.v.stage(), got); err != nil {
			break // what is read then is copied by itself
		}
		for i := range rows {
			m.spans = append(m.spans, span{addr + uint64(off) + stride*uint64(i), got[i*n : (i+1)*n]})
		}
	}
	slices.SortFunc(m.spans, func(a, b span) int { return cmp.Compare(a.addr, b.addr) })
}

// maxPieces is how many copies of parts of rows are made before chunks are as good.
const maxPieces = 16

// rows describes a copy of rows on the GPU, to the stage or from it (CUDA_MEMCPY2D, cuda.h).
func (m *memory) rows(addr, stride uint64, width, rows int, write bool) (desc []byte) {
	gpu := []uint64{0, 0, memoryDevice, 0, addr, 0, stride} // x, y, type, host, device, array, pitch
	host := []uint64{0, 0, memoryHost, m.v.stage(), 0, 0, uint64(width)}
	words := slices.Concat(gpu, host)
	if write {
		words = slices.Concat(host, gpu)
	}
	for _, w := range append(words, uint64(width), uint64(rows)) {
		desc = binary.LittleEndian.AppendUint64(desc, w)
	}
	return desc
}

// has reports whether all rows were copied.
func (m *memory) has(addr, stride uint64, width, rows int) bool {
	for i := range rows {
		if len(m.span(addr+stride*uint64(i))) < width {
			return false
		}
	}
	return true
}

const (
	memoryHost   = cuda.CU_MEMORYTYPE_HOST
	memoryDevice = cuda.CU_MEMORYTYPE_DEVICE
)

// WriteMem implements [mapmem.Memory]. The GPU sees it when something else is read, or at the end of
// the visit.
func (m *memory) WriteMem(addr uint64, buf []byte) error { return m.write(&m.writes, addr, buf) }

// WriteLate implements [mapmem.Prefetcher]. The GPU sees it at the end of the visit.
func (m *memory) WriteLate(addr uint64, buf []byte) error { return m.write(&m.late, addr, buf) }

func (m *memory) write(list *[]write, addr uint64, buf []byte) error {
	if err := m.check(addr, len(buf)); err != nil {
		return err
	}
	for data := buf; len(data) > 0; {
		off := addr - m.addr
		n := min(uint64(len(data)), chunkBytes-off%chunkBytes)
		if c := m.chunks[off&^(chunkBytes-1)]; c != nil {
			copy(c[off%chunkBytes:], data[:n])
		}
		for i := range m.spans {
			if s := &m.spans[i]; s.addr < addr+n && addr < s.addr+uint64(len(s.data)) {
				copy(s.data[max(addr, s.addr)-s.addr:], data[max(addr, s.addr)-addr:n])
			}
		}
		*list = append(*list, write{addr, bytes.Clone(data[:n])})
		data, addr = data[n:], addr+n
	}
	return nil
}

// flush makes the GPU see what was written, flushLate also what was written late.
func (m *memory) flush() error {
	list := m.writes
	m.writes = nil
	return m.send(list)
}

func (m *memory) flushLate() error {
	list := append(m.writes, m.late...)
	m.writes, m.late = nil, nil
	return m.send(list)
}

// send copies what was written, in its order.
func (m *memory) send(list []write) error {
	for len(list) > 0 {
		if err := m.v.room(); err != nil {
			return err
		}
		sent, err := 0, error(nil)
		if stride, rows := regular(list); rows >= minRows {
			sent, err = rows, m.sendRows(list[:rows], stride)
		} else {
			sent, err = m.sendSome(list)
		}
		if err != nil {
			return err
		}
		list = list[sent:]
	}
	return nil
}

// minRows is from how many writes on that are as long and as far from each other one copy is made.
const minRows = 4

// regular returns how many writes at the beginning are as long and as far from each other.
func regular(list []write) (stride uint64, n int) {
	first := &list[0]
	n = 1
	for ; n < len(list) && len(list[n].data) == len(first.data) && (n+1)*len(first.data) <= stageBytes; n++ {
		d := list[n].addr - list[n-1].addr
		if n == 1 {
			stride = d
		}
		if d != stride || d < uint64(len(first.data)) || d > maxPitch {
			break
		}
	}
	return stride, n
}

// maxPitch bounds what rows are apart (CU_DEVICE_ATTRIBUTE_MAX_PITCH is 2^31 - 1).
const maxPitch = 1 << 30

// sendRows copies writes by one copy of rows.
func (m *memory) sendRows(list []write, stride uint64) error {
	var stage []byte
	for i := range list {
		stage = append(stage, list[i].data...)
	}
	if err := m.v.poke(m.v.stage(), stage); err != nil {
		return err
	}
	return m.v.exchange(m.rows(list[0].addr, stride, len(list[0].data), len(list), true), m.v.desc(), []step{
		call("cuMemcpy2DAsync_v2", m.v.desc(), m.stream), call("cuStreamSynchronize", m.stream),
	}, 0, nil)
}

// sendSome copies the first writes by a copy each, up to where sendRows can do more.
func (m *memory) sendSome(list []write) (n int, err error) {
	var stage []byte
	var steps []step
	for ; n < len(list) && len(stage)+len(list[n].data) <= stageBytes; n++ {
		if _, rows := regular(list[n:]); n > 0 && rows >= minRows {
			break
		}
		w := &list[n]
		steps = append(steps, call("cuMemcpyHtoDAsync_v2", w.addr, m.v.stage()+uint64(len(stage)), uint64(len(w.data)), m.stream))
		stage = append(stage, w.data...)
	}
	return n, m.v.exchange(stage, m.v.stage(), append(steps, call("cuStreamSynchronize", m.stream)), 0, nil)
}

// open makes the memory reachable by a visit, close ends that.
func (m *memory) open(v *visit) {
	m.v, m.chunks, m.spans, m.writes, m.late = v, make(map[uint64][]byte), nil, nil, nil
}

// close makes the GPU see what was written; without a visit it does nothing.
func (m *memory) close() error {
	if m.v == nil {
		return nil
	}
	err := m.flushLate()
	m.v, m.chunks, m.spans, m.writes, m.late = nil, nil, nil, nil, nil
	return err
}
