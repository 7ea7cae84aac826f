package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"nvtrace/nvattach"
)

// errNoVisit: the GPU's memory can be reached during visits only.
var errNoVisit = errors.New("no thread of the program is where it could copy the GPU's memory")

// memory is the memory of a context's maps, as nvattach reads it: during a visit
// through the driver, a chunk at a time, which is kept until the visit's end.
//
// Kernels go on meanwhile, so that a visit sees each word as it was at some moment of the visit, and
// no two words at the same one. Readers of rings and tables must cope with that. Writes are put off
// until something is read that was not before, or the visit ends, so that many small ones go together.
type memory struct {
	addr, size uint64
	stream     uint64 // of the visit, which waits for no other

	v      *visit // nil: none
	chunks map[uint64][]byte
	lines  map[uint64][]byte // of Prefetch, by address
	writes []write
}

// write is one that the GPU has not seen yet.
type write struct {
	addr uint64
	data []byte
}

var _ nvattach.Memory = (*memory)(nil)

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

// ReadMem implements [nvattach.Memory].
func (m *memory) ReadMem(addr uint64, buf []byte) error {
	if err := m.check(addr, len(buf)); err != nil {
		return err
	}
	if line := m.lines[addr&^(lineBytes-1)]; line != nil {
		if at := addr & (lineBytes - 1); at+uint64(len(buf)) <= uint64(len(line)) {
			copy(buf, line[at:])
			return nil
		}
	}
	for len(buf) > 0 {
		c, at, err := m.chunk(addr)
		if err != nil {
			return err
		}
		n := copy(buf, c[at:])
		buf, addr = buf[n:], addr+uint64(n)
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
	m.chunks[first] = c
	return c, off - first, nil
}

// lineBytes is what the addresses of prefetched rows are multiples of.
const lineBytes = 128

// Prefetch implements [nvattach.Prefetcher]: one copy gathers all rows.
func (m *memory) Prefetch(addr, stride uint64, width, rows int) {
	size := width * rows
	if m.v == nil || size == 0 || size > stageBytes || width > lineBytes || addr%lineBytes != 0 || stride%lineBytes != 0 || m.flush() != nil {
		return
	}
	if m.has(addr, stride, width, rows) {
		return
	}
	// CUDA_MEMCPY2D (cuda.h) lies behind what is copied to.
	var desc []byte
	for _, w := range []uint64{
		0, 0, memoryDevice, 0, addr, 0, stride, // source: x, y, type, host, device, array, pitch
		0, 0, memoryHost, m.v.stage(), 0, 0, uint64(width), // destination
		uint64(width), uint64(rows),
	} {
		desc = binary.LittleEndian.AppendUint64(desc, w)
	}
	got := make([]byte, size)
	if err := m.v.exchange(desc, m.v.desc(), []step{
		call("cuMemcpy2DAsync_v2", m.v.desc(), m.stream), call("cuStreamSynchronize", m.stream),
	}, m.v.stage(), got); err != nil {
		return // what is read then is copied by itself
	}
	for i := range rows {
		m.lines[addr+stride*uint64(i)] = got[i*width : (i+1)*width]
	}
}

// has reports whether all rows were copied, and not written since.
func (m *memory) has(addr, stride uint64, width, rows int) bool {
	for i := range rows {
		if len(m.lines[addr+stride*uint64(i)]) < width {
			return false
		}
	}
	return true
}

const (
	memoryHost   = 1 // CU_MEMORYTYPE_HOST
	memoryDevice = 2 // CU_MEMORYTYPE_DEVICE
)

// WriteMem implements [nvattach.Memory]. The GPU sees it at the end of the visit.
func (m *memory) WriteMem(addr uint64, buf []byte) error {
	if err := m.check(addr, len(buf)); err != nil {
		return err
	}
	delete(m.lines, addr&^(lineBytes-1))
	for data := buf; len(data) > 0; {
		off := addr - m.addr
		n := min(uint64(len(data)), chunkBytes-off%chunkBytes)
		if c := m.chunks[off&^(chunkBytes-1)]; c != nil {
			copy(c[off%chunkBytes:], data[:n])
		}
		m.writes = append(m.writes, write{addr, bytes.Clone(data[:n])})
		data, addr = data[n:], addr+n
	}
	return nil
}

// flush makes the GPU see what was written.
func (m *memory) flush() error {
	for len(m.writes) > 0 {
		var stage []byte
		var steps []step
		n := 0
		for ; n < len(m.writes) && len(stage)+len(m.writes[n].data) <= stageBytes; n++ {
			w := &m.writes[n]
			steps = append(steps, call("cuMemcpyHtoDAsync_v2", w.addr, m.v.stage()+uint64(len(stage)), uint64(len(w.data)), m.stream))
			stage = append(stage, w.data...)
		}
		m.writes = m.writes[n:]
		if err := m.v.room(); err != nil {
			return err
		}
		if err := m.v.exchange(stage, m.v.stage(), append(steps, call("cuStreamSynchronize", m.stream)), 0, nil); err != nil {
			return err
		}
	}
	return nil
}

// open makes the memory reachable by a visit, close ends that.
func (m *memory) open(v *visit) {
	m.v, m.chunks, m.lines, m.writes = v, make(map[uint64][]byte), make(map[uint64][]byte), nil
}

// close makes the GPU see what was written; without a visit it does nothing.
func (m *memory) close() error {
	if m.v == nil {
		return nil
	}
	err := m.flush()
	m.v, m.chunks, m.lines, m.writes = nil, nil, nil, nil
	return err
}
