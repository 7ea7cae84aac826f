package gpu

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
		var m mapping
		var perm, dev string
		var ino uint64
		if n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d", &m.from, &m.to, &perm, &m.off, &dev, &ino); n < 6 || ino == 0 {
			continue
		}
		if i := strings.IndexByte(line, '/'); i >= 0 {
			m.path = strings.TrimSuffix(line[i:], "\n")
		}
		m.exec = strings.Contains(perm, "x")
		list = append(list, m)
	}
	return list, nil
}

var errNoLibrary = errors.New("no file is mapped there")

// libraryAt reads which functions the library exports whose code is at addr in a
// program.
func libraryAt(pid int, addr uint64) (*library, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return nil, err
	}
	for i := range maps {
		if m := &maps[i]; m.exec && m.from <= addr && addr < m.to {
			return openLibrary(pid, m, nil)
		}
	}
	return nil, fmt.Errorf("%#x: %w", addr, errNoLibrary)
}

// openLibrary reads the functions of a mapped file; keep, if not nil, selects
// them.
func openLibrary(pid int, m *mapping, keep func(name string) bool) (*library, error) {
	f, err := openMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	const page = 1<<12 - 1
	lib := &library{path: strings.TrimSuffix(m.path, " (deleted)"), syms: make(map[string]uint64)}
	found := false
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Off&^page <= m.off && m.off < p.Off+p.Filesz {
			lib.bias, found = m.from-m.off+p.Off-p.Vaddr, true
		}
	}
	if !found {
		return nil, fmt.Errorf("%s: mapped code at offset %#x is none of its segments", m.path, m.off)
	}
	symbols, err := e.DynamicSymbols()
	if errors.Is(err, elf.ErrNoSymbols) || len(symbols) == 0 {
		symbols, err = e.Symbols() // a static executable
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	for i := range symbols {
		s := &symbols[i]
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && (keep == nil || keep(s.Name)) {
			lib.syms[s.Name] = lib.bias + s.Value
		}
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

func findEnds(pid int) ends {
	var e ends
	maps, err := readMaps(pid)
	if err != nil {
		return e
	}
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	seen := make(map[string]bool)
	for i := range maps {
		m := &maps[i]
		base := filepath.Base(m.path)
		if !m.exec || seen[m.path] || m.path != exe && !strings.HasPrefix(base, "libc.") && !strings.HasPrefix(base, "libc-") &&
			!strings.HasPrefix(base, "ld-musl") {
			continue
		}
		lib, err := openLibrary(pid, m, func(name string) bool { return name == "exit" || name == "_exit" })
		if err != nil {
			continue
		}
		seen[m.path] = true
		if a, ok := lib.syms["exit"]; ok {
			e.exit = append(e.exit, a)
		}
		if a, ok := lib.syms["_exit"]; ok {
			e.last = append(e.last, a)
		}
	}
	return e
}
