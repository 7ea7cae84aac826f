package dso

import (
	"bytes"
	"os"
	"strings"

	"nvtrace/ptrace/proc"
)

// Bounds of what Environ reads.
const (
	maxEnviron  = 1 << 14 // variables
	maxVariable = 1 << 12 // bytes of one; longer ones are cut
)

// Environ returns the environment that a process has now, as "NAME=value": what its C library's
// environ leads to, so that what the program itself has set is in it. Where there is no such symbol, it
// is the environment that the process began with; nil if unknown.
func Environ(pid int) []string {
	maps, err := proc.Maps(pid)
	if err != nil {
		return nil
	}
	mem, err := os.Open(proc.Path(pid, "mem"))
	if err != nil {
		return proc.Environ(pid)
	}
	defer mem.Close()
	at := environAt(pid, maps)
	var list []string
	for vector := wordAt(mem, at); vector != 0 && len(list) < maxEnviron; vector += 8 {
		addr := wordAt(mem, vector)
		if addr == 0 {
			return list
		}
		list = append(list, textAt(mem, addr))
	}
	return proc.Environ(pid)
}

// environAt returns where the pointer is; 0 if it is not found. A program that the variable was
// copied into (by a copy relocation) has the one that all use, and is mapped first.
func environAt(pid int, maps []proc.Mapping) uint64 {
	for i := range maps {
		m := &maps[i]
		program := i == 0 || m.Path == maps[0].Path
		if !m.Exec || !program && !strings.Contains(m.Path, "/libc.so") && !strings.Contains(m.Path, "/libc-2.") && !strings.Contains(m.Path, "/ld-musl") {
			continue
		}
		if at := environIn(pid, m); at != 0 {
			return at
		}
	}
	return 0
}

func environIn(pid int, m *proc.Mapping) uint64 {
	r, _, err := proc.OpenMapped(pid, m)
	if err != nil {
		return 0
	}
	defer r.Close()
	f, err := Read(r)
	if err != nil {
		return 0
	}
	bias, ok := f.Bias(m)
	if !ok {
		return 0
	}
	for _, symbols := range []func(...string) ([]Symbol, error){f.DynamicSymbolsNamed, f.SymbolsNamed} {
		list, _ := symbols("environ", "__environ") // a file without has none
		for i := range list {
			if list[i].Defined {
				return list[i].Addr + bias
			}
		}
	}
	return 0
}

func wordAt(mem *os.File, addr uint64) uint64 {
	var b [8]byte
	if _, err := mem.ReadAt(b[:], int64(addr)); err != nil || addr == 0 {
		return 0
	}
	return le.Uint64(b[:])
}

// textAt reads a string, never from a page that it does not reach.
func textAt(mem *os.File, addr uint64) string {
	var text []byte
	for len(text) < maxVariable {
		b := make([]byte, 256-addr%256)
		n, _ := mem.ReadAt(b, int64(addr))
		before, _, ended := bytes.Cut(b[:n], []byte{0})
		if text = append(text, before...); ended || n < len(b) {
			break
		}
		addr += uint64(n)
	}
	return string(text)
}
