package gpu

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/capture"
)

// library is a library that a program has mapped.
type library struct {
	path string
	bias uint64 // address in the program minus that in the file
	syms map[string]uint64
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	from, to, off uint64
	exec          bool
	path          string
}

func readMaps(pid int) ([]mapping, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var list []mapping
	for line := range strings.Lines(string(b)) {
		if m, ok := parseMapping(line); ok {
			list = append(list, m)
		}
	}
	return list, nil
}

// parseMapping reads a line like
//
//	7f0c5a000000-7f0c5a200000 r-xp 00028000 08:01 1234    /usr/lib/libc.so.6
//
// ok is false if no file is mapped there.
func parseMapping(line string) (m mapping, ok bool) {
	span, rest, _ := strings.Cut(line, " ")
	perm, rest, _ := strings.Cut(rest, " ")
	off, rest, _ := strings.Cut(rest, " ")
	_, rest, _ = strings.Cut(rest, " ")
	ino, _, _ := strings.Cut(rest, " ")
	from, to, _ := strings.Cut(span, "-")
	var errs [4]error
	var inode uint64
	m.from, errs[0] = strconv.ParseUint(from, 16, 64)
	m.to, errs[1] = strconv.ParseUint(to, 16, 64)
	m.off, errs[2] = strconv.ParseUint(off, 16, 64)
	inode, errs[3] = strconv.ParseUint(strings.TrimSpace(ino), 10, 64)
	if errors.Join(errs[:]...) != nil || inode == 0 {
		return m, false
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		m.path = strings.TrimSuffix(rest[i:], "\n")
	}
	m.exec = strings.Contains(perm, "x")
	return m, true
}

var errNoLibrary = errors.New("no file is mapped there")

// libraryAt reads which functions the library exports whose code is at addr in a
// program.
func (tr *Tracer) libraryAt(pid int, maps []mapping, addr uint64) (*library, error) {
	for i := range maps {
		if m := &maps[i]; m.exec && m.from <= addr && addr < m.to {
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

// fileKey is a file's identity.
type fileKey struct {
	dev, ino, size uint64
	mtime          unix.Timespec
}

// library reads the functions of a mapped file, once for each file.
func (tr *Tracer) library(pid int, m *mapping) (*library, error) {
	f, err := openMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	key := fileKey{st.Dev, st.Ino, uint64(st.Size), st.Mtim}
	tr.mu.Lock()
	s := tr.files[key]
	if s == nil {
		s = new(symbolFile)
		tr.files[key] = s
	}
	tr.mu.Unlock()
	s.once.Do(func() { s.err = s.read(f) })
	if s.err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, s.err)
	}
	return s.at(m)
}

// Mapped is for [capture.Options]: a process has mapped a driver. What must be known
// of that is found out beside the program, before it is needed.
func (tr *Tracer) Mapped(pid int, path string, addr, size, off uint64) {
	if !filepath.IsAbs(path) {
		return
	}
	m := &mapping{from: addr, to: addr + size, off: off, exec: true, path: path}
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
func openLibrary(pid int, m *mapping) (*library, error) {
	f, err := openMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var s symbolFile
	if err := s.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
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
func (s *symbolFile) at(m *mapping) (*library, error) {
	const page = 1<<12 - 1
	lib := &library{path: strings.TrimSuffix(m.path, " (deleted)"), syms: make(map[string]uint64, len(s.funcs))}
	found := false
	for i := range s.loads {
		if p := &s.loads[i]; p.Off&^page <= m.off && m.off < p.Off+p.Filesz {
			lib.bias, found = m.from-m.off+p.Off-p.Vaddr, true
		}
	}
	if !found {
		return nil, fmt.Errorf("%s: mapped code at offset %#x is none of its segments", m.path, m.off)
	}
	for name, addr := range s.funcs {
		lib.syms[name] = lib.bias + addr
	}
	return lib, nil
}

// openMapped opens the file behind a mapping, as the program sees it.
func openMapped(pid int, m *mapping) (*os.File, error) {
	var first error
	for _, name := range []string{
		fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.from, m.to), // root's; right also for deleted files
		fmt.Sprintf("/proc/%d/root%s", pid, m.path), m.path,
	} {
		f, err := os.Open(name)
		if err == nil {
			return f, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// ends are the functions of a program's C libraries that end it.
type ends struct {
	exit []uint64 // exit, which runs what is to be done at the end, the driver's own end included
	last []uint64 // _exit, which does not
}

func findEnds(pid int, maps []mapping) ends {
	var e ends
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	seen := make(map[string]bool)
	for i := range maps {
		m := &maps[i]
		base := filepath.Base(m.path)
		if !m.exec || seen[m.path] || m.path != exe && !strings.HasPrefix(base, "libc.") && !strings.HasPrefix(base, "libc-") &&
			!strings.HasPrefix(base, "ld-musl") {
			continue
		}
		syms, err := endsIn(pid, m)
		if err != nil {
			continue
		}
		seen[m.path] = true
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
func endsIn(pid int, m *mapping) (map[string]uint64, error) {
	f, err := openMapped(pid, m)
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
		if off >= m.off && off-m.off < m.to-m.from {
			syms[name] = m.from + off - m.off
		}
	}
	return syms, nil
}
