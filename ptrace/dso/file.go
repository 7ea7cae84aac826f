// Package dso knows the code that programs map: executables, libraries, the vdso (dynamic
// shared objects). A [Watcher] says when a process gets code, before any of it can run; a
// [File] says where in it functions are; [proc.Mapping] where that is in the process.
//
// It refuses to know why somebody asks. Files are a stranger's: whatever they hold, reading
// them ends, in memory bounded by a small multiple of their size.
package dso

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"nvtrace/ptrace/proc"
)

// Bounds of what is read of an ELF file. The largest libraries of CUDA and of its
// users stay far below.
const (
	maxProgs    = 1 << 10
	maxDynamic  = 64 << 10
	maxBloom    = 8 << 20
	maxChain    = 1 << 16 // symbols in one hash bucket
	maxLinear   = 1 << 16 // symbols looked at without a hash table
	maxSections = 1 << 16
	maxNames    = 16 << 20 // bytes of sections' names
	maxNote     = 64 << 10
	maxString   = 4 << 10 // bytes of a string of the dynamic section
	maxTable    = 1 << 30 // bytes of symbols, or of their names
	maxStarts   = 1 << 20 // functions in the table for unwinding stacks
)

// Sizes of ELF structures (elf.h).
const ehdrSize, phdrSize, shdrSize, symSize, dynSize = 64, 56, 64, 24, 16

const pageSize = 4096

var (
	// ErrNotELF is a file or memory that is no 64-bit little-endian ELF.
	ErrNotELF = errors.New("no 64-bit ELF")
	errELF    = errors.New("malformed ELF")
)

var le = binary.LittleEndian

// A File is an ELF file, or the memory that a loader laid one out in. Addresses are as the
// file has them: where code is in a process, [File.Bias] and [proc.Mapping.Addr] say. Its
// methods may be used by one goroutine at a time.
type File struct {
	Machine elf.Machine
	Progs   []elf.ProgHeader
	// Headers is where the program headers begin, an offset in the file.
	Headers uint64

	r io.ReaderAt
	// memory: r is the laid out file, whose lowest address is at offset 0;
	// base is where that is. Otherwise r is the file.
	memory bool
	base   uint64

	dynamic  []elf.Dyn64
	symtab   uint64
	strtab   uint64
	strsz    uint64
	gnuHash  uint64
	sysHash  uint64
	shoff    uint64
	shnum    uint16
	shstr    uint16
	sections []elf.SectionHeader // nil: not read yet
}

// Read reads the program headers and the dynamic section of a file. Other methods
// read what they need of r when they are called.
func Read(r io.ReaderAt) (*File, error) { return read(&File{r: r}) }

// ReadMemory is Read of the memory, from address base on, that a loader has laid a file out
// in and relocated; r has that at offset 0.
func ReadMemory(r io.ReaderAt, base uint64) (*File, error) {
	return read(&File{r: r, memory: true, base: base})
}

func read(f *File) (*File, error) {
	h, err := f.read(0, ehdrSize)
	if err != nil || !bytes.Equal(h[:6], []byte("\x7fELF\x02\x01")) {
		return nil, ErrNotELF
	}
	f.Machine, f.Headers = elf.Machine(le.Uint16(h[18:])), le.Uint64(h[32:])
	f.shoff, f.shnum, f.shstr = le.Uint64(h[40:]), le.Uint16(h[60:]), le.Uint16(h[62:])
	phnum, phent := int(le.Uint16(h[56:])), le.Uint16(h[54:])
	if phnum > maxProgs || phnum > 0 && phent != phdrSize {
		return nil, fmt.Errorf("%d program headers of %d bytes: %w", phnum, phent, errELF)
	}
	b, err := f.read(f.Headers, phnum*phdrSize)
	if err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	for ; len(b) > 0; b = b[phdrSize:] {
		f.Progs = append(f.Progs, elf.ProgHeader{
			Type: elf.ProgType(le.Uint32(b)), Flags: elf.ProgFlag(le.Uint32(b[4:])), Off: le.Uint64(b[8:]), Vaddr: le.Uint64(b[16:]),
			Paddr: le.Uint64(b[24:]), Filesz: le.Uint64(b[32:]), Memsz: le.Uint64(b[40:]), Align: le.Uint64(b[48:]),
		})
	}
	return f, f.readDynamic()
}

// Detach lets go of what the file is read from. What needs no reading works on: Offset, Bias.
func (f *File) Detach() { f.r = nil }

// readDynamic finds the symbol table as the program's loader does; section
// headers may lie or be missing.
func (f *File) readDynamic() error {
	i := slices.IndexFunc(f.Progs, func(p elf.ProgHeader) bool { return p.Type == elf.PT_DYNAMIC })
	if i < 0 {
		return nil
	}
	b, err := f.content(&f.Progs[i], maxDynamic/dynSize*dynSize)
	if err != nil {
		return fmt.Errorf("dynamic section: %w", err)
	}
	for ; len(b) >= dynSize && le.Uint64(b) != 0; b = b[dynSize:] {
		d := elf.Dyn64{Tag: int64(le.Uint64(b)), Val: le.Uint64(b[8:])}
		f.dynamic = append(f.dynamic, d)
		at := d.Val
		if f.memory && at >= f.base { // the loader has relocated it
			at = at - f.base + f.low()
		}
		switch elf.DynTag(d.Tag) {
		case elf.DT_HASH:
			f.sysHash = at
		case elf.DT_STRTAB:
			f.strtab = at
		case elf.DT_SYMTAB:
			f.symtab = at
		case elf.DT_STRSZ:
			f.strsz = d.Val
		case elf.DT_GNU_HASH:
			f.gnuHash = at
		}
	}
	return nil
}

// Strings returns the strings that the dynamic section has under a tag: elf.DT_NEEDED, the libraries
// that a file is linked with, elf.DT_RUNPATH.
func (f *File) Strings(tag elf.DynTag) []string {
	var list []string
	for _, d := range f.dynamic {
		at, ok := f.at(f.strtab + d.Val)
		if elf.DynTag(d.Tag) != tag || !ok {
			continue
		}
		b := make([]byte, maxString)
		n, _ := f.r.ReadAt(b, int64(at)) // as much as there is
		if s, _, ended := bytes.Cut(b[:n], []byte{0}); ended {
			list = append(list, string(s))
		}
	}
	return list
}

// HasInterpreter reports whether a loader brings the file's libraries into the process. An
// executable for which that is not so is linked statically.
func (f *File) HasInterpreter() bool {
	return slices.ContainsFunc(f.Progs, func(p elf.ProgHeader) bool { return p.Type == elf.PT_INTERP })
}

// HasExports reports whether there is a dynamic symbol table, in which Lookup looks.
func (f *File) HasExports() bool { return f.symtab != 0 && f.strtab != 0 }

// Offset returns where in the file the code at an address is; false if no code is there.
func (f *File) Offset(addr uint64) (uint64, bool) {
	if !f.executable(addr) {
		return 0, false
	}
	return f.at(addr)
}

// FileOffset returns where in the file what is at an address is; false if nothing of the file is there.
func (f *File) FileOffset(addr uint64) (uint64, bool) { return f.at(addr) }

// executable reports whether an address is in a segment that may be executed.
func (f *File) executable(addr uint64) bool {
	return slices.ContainsFunc(f.Progs, func(p elf.ProgHeader) bool { return IsCode(&p) && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz })
}

// IsCode reports whether a program header is that of code.
func IsCode(p *elf.ProgHeader) bool { return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 }

// Bias returns what is to be added to the file's addresses where m maps a part of it; false if m's
// offset lies in none of its segments.
func (f *File) Bias(m *proc.Mapping) (bias uint64, ok bool) {
	alike := false
	for i := range f.Progs {
		p := &f.Progs[i]
		if p.Type != elf.PT_LOAD || m.Offset < p.Off&^(pageSize-1) || m.Offset >= p.Off+p.Filesz || alike && IsCode(p) != m.Exec {
			continue
		}
		// Neighbours may share a page of the file. Then the mapping's rights tell them apart.
		bias, ok, alike = m.Start-m.Offset+p.Off-p.Vaddr, true, IsCode(p) == m.Exec
	}
	return bias, ok
}

// ReadAt reads what the file has at an address: as many bytes as b is long, or it fails.
func (f *File) ReadAt(b []byte, addr uint64) error {
	off, ok := f.at(addr)
	if !ok {
		return noSegment(addr)
	}
	return f.readInto(b, off)
}

func noSegment(addr uint64) error {
	return fmt.Errorf("address %#x is in no segment: %w", addr, errELF)
}

// low returns the page of the lowest address that the file asks for.
func (f *File) low() uint64 {
	low := ^uint64(0)
	for i := range f.Progs {
		if p := &f.Progs[i]; p.Type == elf.PT_LOAD {
			low = min(low, p.Vaddr&^(pageSize-1))
		}
	}
	if low == ^uint64(0) {
		return 0
	}
	return low
}

// at returns the offset in r of an address.
func (f *File) at(addr uint64) (uint64, bool) {
	if f.memory {
		low := f.low()
		return addr - low, addr >= low
	}
	for i := range f.Progs {
		if p := &f.Progs[i]; p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			return addr - p.Vaddr + p.Off, true
		}
	}
	return 0, false
}

// content returns up to limit bytes of what a program header names.
func (f *File) content(p *elf.ProgHeader, limit uint64) ([]byte, error) {
	at, ok := f.at(p.Vaddr)
	if !ok {
		at = p.Off
	}
	return f.read(at, int(min(p.Filesz, limit)))
}

func (f *File) readAddr(addr uint64, n int) ([]byte, error) {
	off, ok := f.at(addr)
	if !ok {
		return nil, noSegment(addr)
	}
	return f.read(off, n)
}

// read returns n bytes, a number that the caller has bounded.
func (f *File) read(off uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if err := f.readInto(b, off); err != nil {
		return nil, err
	}
	return b, nil
}

// readInto fills b.
func (f *File) readInto(b []byte, off uint64) error {
	if off > 1<<62 {
		return fmt.Errorf("+%#x: %w", off, errELF)
	}
	if k, err := f.r.ReadAt(b, int64(off)); k < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = errELF
		}
		return fmt.Errorf("+%#x: %d of %d bytes: %w", off, k, len(b), err)
	}
	return nil
}

// readLong is read of what may be long: memory is taken if the file turns out to have
// the last byte.
func (f *File) readLong(off, size, most uint64) ([]byte, error) {
	if size > most {
		return nil, fmt.Errorf("+%#x: %d bytes, at most %d are read: %w", off, size, most, errELF)
	}
	if size > 0 {
		if err := f.readInto(make([]byte, 1), off+size-1); err != nil {
			return nil, err
		}
	}
	return f.read(off, int(size))
}
