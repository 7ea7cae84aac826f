package gpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

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
	file  *dso.File
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
	return tr.libraryOf(f, key, m)
}

// libraryOf is library of a file that is open.
func (tr *Tracer) libraryOf(f *os.File, key proc.FileKey, m *proc.Mapping) (*library, error) {
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

// IsDriver reports whether a file is called as the driver's library is.
func IsDriver(path string) bool { return strings.HasPrefix(filepath.Base(path), "libcuda.so") }

// mappedDriver returns the functions of a driver that a process has mapped; nil if it is none, or
// can't be read.
func (tr *Tracer) mappedDriver(m *dso.Code) *library {
	f, key, err := m.Open()
	if err != nil {
		tr.log.Debug("the driver's functions", "path", m.Path, "err", err)
		return nil
	}
	defer f.Close()
	lib, err := tr.libraryOf(f, key, &m.Mapping)
	if err != nil {
		tr.log.Debug("the driver's functions", "path", m.Path, "err", err)
		return nil
	}
	if lib.syms["cuLaunchKernel"] == 0 {
		return nil
	}
	return lib
}

// Mapped is for [nvtrace/nvattach/capture.Options]: a process has mapped a driver. What must be known
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
	return readLibrary(f, m)
}

// readLibrary is openLibrary where the file is open.
func readLibrary(f *os.File, m *proc.Mapping) (*library, error) {
	var s symbolFile
	if err := s.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Path, err)
	}
	return s.at(m)
}

// read reads the functions of a file: those that it exports, by their addresses in it.
func (s *symbolFile) read(f *os.File) (err error) {
	if s.file, err = dso.Read(f); err != nil {
		return err
	}
	defer s.file.Detach()
	symbols, err := s.file.DynamicSymbols()
	if err == nil && len(symbols) == 0 {
		symbols, err = s.file.Symbols() // a static executable
	}
	if err != nil {
		return err
	}
	s.funcs = make(map[string]uint64, len(symbols))
	for i := range symbols {
		if y := &symbols[i]; y.Function() {
			s.funcs[y.Name] = y.Addr
		}
	}
	return nil
}

// at returns the library where a part of its code is mapped.
func (s *symbolFile) at(m *proc.Mapping) (*library, error) {
	bias, ok := s.file.Bias(m)
	if !ok {
		return nil, fmt.Errorf("%s: mapped code at offset %#x is none of its segments", m.Path, m.Offset)
	}
	lib := &library{path: strings.TrimSuffix(m.Path, " (deleted)"), bias: bias, syms: make(map[string]uint64, len(s.funcs))}
	for name, addr := range s.funcs {
		lib.syms[name] = bias + addr
	}
	return lib, nil
}

// ends are the functions of a program's C libraries that end it.
type ends struct {
	exit []uint64 // exit, which runs what is to be done at the end, the driver's own end included
	last []uint64 // _exit, which does not
}

// findEnds looks for these functions in the executable and in what is called like a C library. There
// may be several: a static executable has its own. A stripped one has none that can be found:
// whether the driver may still be called at its end can't be told, and what was read last is shown.
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
	e, err := dso.Read(f)
	if err != nil {
		return nil, err
	}
	if !e.HasExports() { // a static executable
		lib, err := readLibrary(f, m)
		if err != nil {
			return nil, err
		}
		return lib.syms, nil
	}
	found, err := e.Lookup("exit", "_exit")
	if err != nil {
		return nil, err
	}
	syms := make(map[string]uint64)
	for name, s := range found {
		off, ok := e.Offset(s.Addr)
		if addr, mapped := m.Addr(off, 1); ok && mapped {
			syms[name] = addr
		}
	}
	return syms, nil
}
