package gpu

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"nvtrace/nvattach/capture"
	"nvtrace/ptrace/proc"
)

// library is a library that a program has mapped.
type library struct {
	path string
	bias uint64 // address in the program minus that in the file
	syms map[string]uint64
}

var errNoLibrary = errors.New("no file is mapped there")

// libraryAt reads which functions the library exports whose code is at addr in a
// program.
func (tr *Tracer) libraryAt(pid int, maps []proc.Mapping, addr uint64) (*library, error) {
	for i := range maps {
		if m := &maps[i]; m.Exec && m.Start <= addr && addr < m.End {
			return tr.library(pid, m)
		}
	}
	return nil, fmt.Errorf("%#x: %w", addr, errNoLibrary)
}

// symbolFile is what is known of a library's file.
type symbolFile struct {
	once  sync.Once
	loads []elf.ProgHeader  // executable ones
	funcs map[string]uint64 // addresses in the file
	err   error
}

// library reads the functions of a mapped file, once for each file.
func (tr *Tracer) library(pid int, m *proc.Mapping) (*library, error) {
	f, key, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tr.mu.Lock()
	s := tr.files[key]
	if s == nil {
		s = new(symbolFile)
		tr.files[key] = s
	}
	tr.mu.Unlock()
	s.once.Do(func() { s.err = s.read(f) })
	if s.err != nil {
		return nil, fmt.Errorf("%s: %w", m.Path, s.err)
	}
	return s.at(m)
}

// Mapped is for [capture.Options]: a process has mapped a driver. What must be known
// of that is found out beside the program, before it is needed.
func (tr *Tracer) Mapped(pid int, path string, addr, size, off uint64) {
	if !filepath.IsAbs(path) {
		return
	}
	m := &proc.Mapping{Start: addr, End: addr + size, Offset: off, Exec: true, Path: path}
	tr.work.Go(func() {
		began := time.Now()
		if _, err := tr.library(pid, m); err != nil {
			tr.log.Debug("the driver's functions", "path", path, "err", err)
			return
		}
		tr.compiler(strings.TrimSuffix(path, " (deleted)"))
		tr.log.Debug("driver read", "pid", pid, "path", path, "took", time.Since(began))
	})
}

// openLibrary reads the functions of a mapped file.
func openLibrary(pid int, m *proc.Mapping) (*library, error) {
	f, _, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var s symbolFile
	if err := s.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Path, err)
	}
	return s.at(m)
}

func (s *symbolFile) read(f *os.File) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return err
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			s.loads = append(s.loads, p.ProgHeader)
		}
	}
	symbols, err := e.DynamicSymbols()
	if errors.Is(err, elf.ErrNoSymbols) || len(symbols) == 0 {
		symbols, err = e.Symbols() // a static executable
	}
	if err != nil {
		return err
	}
	s.funcs = make(map[string]uint64, len(symbols))
	for i := range symbols {
		y := &symbols[i]
		if elf.ST_TYPE(y.Info) == elf.STT_FUNC && y.Section != elf.SHN_UNDEF {
			s.funcs[y.Name] = y.Value
		}
	}
	return nil
}

// at returns the library where a part of its code is mapped.
func (s *symbolFile) at(m *proc.Mapping) (*library, error) {
	const page = 1<<12 - 1
	lib := &library{path: strings.TrimSuffix(m.Path, " (deleted)"), syms: make(map[string]uint64, len(s.funcs))}
	found := false
	for i := range s.loads {
		if p := &s.loads[i]; p.Off&^page <= m.Offset && m.Offset < p.Off+p.Filesz {
			lib.bias, found = m.Start-m.Offset+p.Off-p.Vaddr, true
		}
	}
	if !found {
		return nil, fmt.Errorf("%s: mapped code at offset %#x is none of its segments", m.Path, m.Offset)
	}
	for name, addr := range s.funcs {
		lib.syms[name] = lib.bias + addr
	}
	return lib, nil
}

// ends are the functions of a program's C libraries that end it.
type ends struct {
	exit []uint64 // exit, which runs what is to be done at the end, the driver's own end included
	last []uint64 // _exit, which does not
}

func findEnds(pid int, maps []proc.Mapping) ends {
	var e ends
	exe, _ := os.Readlink(proc.Path(pid, "exe"))
	seen := make(map[string]bool)
	for i := range maps {
		m := &maps[i]
		base := filepath.Base(m.Path)
		if !m.Exec || seen[m.Path] || m.Path != exe && !strings.HasPrefix(base, "libc.") && !strings.HasPrefix(base, "libc-") &&
			!strings.HasPrefix(base, "ld-musl") {
			continue
		}
		syms, err := endsIn(pid, m)
		if err != nil {
			continue
		}
		seen[m.Path] = true
		if a, ok := syms["exit"]; ok {
			e.exit = append(e.exit, a)
		}
		if a, ok := syms["_exit"]; ok {
			e.last = append(e.last, a)
		}
	}
	return e
}

// endsIn returns where in a program these functions of a mapped file are.
func endsIn(pid int, m *proc.Mapping) (map[string]uint64, error) {
	f, _, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	offs, err := capture.Exports(f, "exit", "_exit")
	if errors.Is(err, capture.ErrNoExports) { // a static executable
		lib, err := openLibrary(pid, m)
		if err != nil {
			return nil, err
		}
		return lib.syms, nil
	}
	if err != nil {
		return nil, err
	}
	syms := make(map[string]uint64)
	for name, off := range offs {
		if off >= m.Offset && off-m.Offset < m.End-m.Start {
			syms[name] = m.Start + off - m.Offset
		}
	}
	return syms, nil
}
