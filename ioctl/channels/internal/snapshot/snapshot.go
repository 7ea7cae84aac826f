// Package snapshot keeps what of a process's memory says what its GPU channels are at, so that tests
// can find and read channels without a GPU.
package snapshot

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"nvtrace/ptrace/proc"
)

const (
	pageSize    = 0x1000
	nameBack    = 96      // from the address of a program back to the pointer to its name
	imageAround = 0x10000 // of the image on either side of the name
)

// Snapshot is a process's mappings of devices, and those pages of its memory that were kept. It
// implements channels.Memory.
type Snapshot struct {
	Mappings []proc.Mapping
	Pages    map[uint64][]byte // by their address; pages of zeros of devices' mappings are left out

	touched map[uint64]bool // pages that were read; nil: not noted
}

// Note has Read note which pages are wanted, for Prune.
func (s *Snapshot) Note() { s.touched = map[uint64]bool{} }

// Prune drops the pages that nobody has read since Note.
func (s *Snapshot) Prune() {
	for page := range s.Pages {
		if !s.touched[page] {
			delete(s.Pages, page)
		}
	}
}

// Maps implements channels.Memory.
func (s *Snapshot) Maps() ([]proc.Mapping, error) { return s.Mappings, nil }

// Read implements channels.Memory. A page of a device that was not kept reads as zeros.
func (s *Snapshot) Read(address uint64, b []byte) error {
	for len(b) > 0 {
		page, offset := address&^(pageSize-1), address%pageSize
		n := min(uint64(len(b)), pageSize-offset)
		switch m := proc.At(s.Mappings, address); {
		case s.Pages[page] != nil:
			if s.touched != nil {
				s.touched[page] = true
			}
			copy(b[:n], s.Pages[page][offset:])
		case m != nil && m.Read && strings.HasPrefix(m.Path, "/dev/nvidia"):
			clear(b[:n])
		default:
			return fmt.Errorf("%#x was not kept", address)
		}
		b, address = b[n:], address+n
	}
	return nil
}

// Save writes the snapshot to a file.
func (s *Snapshot) Save(name string) error {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := errors.Join(gob.NewEncoder(z).Encode(s), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}

// Load reads a snapshot.
func Load(name string) (*Snapshot, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var s Snapshot
	return &s, gob.NewDecoder(z).Decode(&s)
}

// Take keeps a process's memory of GPU devices (mappings of at most limit bytes) and each page of its other
// writable memory that holds one of the programs' addresses, with the pages that pointers near
// such an address point to: there the names of kernels stand.
func Take(pid int, limit uint64, programs []uint64) (*Snapshot, error) {
	mem, err := os.Open(proc.Path(pid, "mem"))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	maps, err := proc.Maps(pid)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Pages: map[uint64][]byte{}}
	for _, m := range maps {
		switch {
		case strings.HasPrefix(m.Path, "/dev/nvidia") && m.Read && m.End-m.Start <= limit:
			s.device(mem, &m)
		case m.Read && m.Write && m.Private:
			s.structures(mem, &m, programs)
		}
		if strings.HasPrefix(m.Path, "/dev/nvidia") || m.Read && m.Write && m.Private {
			s.Mappings = append(s.Mappings, m)
		}
	}
	return s, nil
}

// device keeps the pages of a device's mapping that aren't empty.
func (s *Snapshot) device(mem io.ReaderAt, m *proc.Mapping) {
	zeros := make([]byte, pageSize)
	for at := m.Start; at < m.End; at += pageSize {
		b := make([]byte, pageSize)
		if _, err := mem.ReadAt(b, int64(at)); err == nil && !bytes.Equal(b, zeros) {
			s.Pages[at] = b
		}
	}
}

// structures keeps the pages of ordinary memory in which a program's address stands.
func (s *Snapshot) structures(mem io.ReaderAt, m *proc.Mapping, programs []uint64) {
	for at := m.Start; at < m.End; at += pageSize {
		b := make([]byte, pageSize)
		if _, err := mem.ReadAt(b, int64(at)); err != nil {
			continue
		}
		for i := 0; i+8 <= len(b); i += 8 {
			if !slices.Contains(programs, binary.LittleEndian.Uint64(b[i:])) {
				continue
			}
			for j := max(0, i-0x100) &^ 7; j <= i; j += 8 {
				s.keep(mem, binary.LittleEndian.Uint64(b[j:]))
			}
			if i >= nameBack { // the image around the name
				at := binary.LittleEndian.Uint64(b[i-nameBack:])
				for page := at - min(at, imageAround); page < at+imageAround; page += pageSize {
					s.keep(mem, page)
				}
			}
			s.Pages[at] = b
			s.keep(mem, at-1) // the pointer may stand on the page before
		}
	}
}

// keep keeps the page that an address lies on, if there is one.
func (s *Snapshot) keep(mem io.ReaderAt, address uint64) {
	page := address &^ (pageSize - 1)
	if b := make([]byte, pageSize); address < 1<<47 && s.Pages[page] == nil {
		if _, err := mem.ReadAt(b, int64(page)); err == nil {
			s.Pages[page] = b
		}
	}
}
