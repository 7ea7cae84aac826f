package channels

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/ptrace/proc"
)

// Names are the names of kernels by the address of their first instruction. libcuda keeps both in
// one structure of the program's memory, so that a search for the address finds the name.
type Names struct {
	byProgram map[uint64]kernel
	missing   map[uint64]time.Time // programs that were not found, and when they were searched for
	found     []uint64             // where names were found, for the next search; maxFound of them

	// Searched is how many bytes were read so far.
	Searched uint64

	// Until ends searches that take longer; zero: they take as long as they take.
	Until time.Time
}

// A kernel is what is known of one.
type kernel struct {
	name   string
	source string         // whence the name is
	params []fatbin.Param // known says whether they are
	known  bool
}

// Of returns a kernel's name, or "" if it has not been found.
func (n *Names) Of(program uint64) string { return n.byProgram[program].name }

// Where names are found.
const (
	InMemory  = "memory" // libcuda's structures in the process's memory
	Simulated = "sim"    // what the simulated GPU tells
)

// Source says where a kernel's name was found; "": it was not.
func (n *Names) Source(program uint64) string { return n.byProgram[program].source }

// Params returns the parameters of a kernel whose name has been found, or false if they are not known.
func (n *Names) Params(program uint64) ([]fatbin.Param, bool) {
	k := n.byProgram[program]
	return k.params, k.known
}

const (
	nameOffset    = 8   // of the pointer to the name in libcuda's structure
	programOffset = 104 // of the program's address
	minNameSize   = 2
	maxNameSize   = 4096 // of a mangled name
	searchChunk   = 1 << 20
	maxFound      = 64 // mappings with names
	maxMissing    = 1 << 16

	// searchAgain is when what was not found is searched for again: a search takes long.
	searchAgain = 10 * time.Second
)

// Search looks for the names of programs in a process's writable memory. What has been found
// before is not looked for again; what is not found stays without a name.
func (n *Names) Search(m Memory, programs []uint64) error {
	if n.byProgram == nil {
		n.byProgram = map[uint64]kernel{}
	}
	wanted := map[uint64]bool{}
	for _, p := range programs {
		if p != 0 && n.byProgram[p].name == "" && time.Since(n.missing[p]) > searchAgain {
			wanted[p] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	maps, err := m.Maps()
	if err != nil {
		return err
	}
	maps = slices.DeleteFunc(slices.Clone(maps), func(m proc.Mapping) bool {
		return !simulatedNames(&m) && (!m.Read || !m.Write || !m.Private || strings.HasPrefix(m.Path, "/dev/"))
	})
	slices.SortStableFunc(maps, n.order)
	for i := range maps {
		if n.searchMapping(m, &maps[i], wanted); len(wanted) == 0 || n.late() {
			break
		}
	}
	if n.missing == nil || len(n.missing) > maxMissing {
		n.missing = map[uint64]time.Time{}
	}
	for p := range wanted {
		n.missing[p] = time.Now()
	}
	return nil
}

// order has mappings searched first in which names were found before, then the heap, then small ones: what
// libcuda allocates is small, and large ones are the program's data.
func (n *Names) order(a, b proc.Mapping) int {
	rank := func(m *proc.Mapping) int {
		switch {
		case slices.ContainsFunc(n.found, func(at uint64) bool { return m.Contains(at, 1) }):
			return 0
		case m.Path == "[heap]":
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.End-a.Start, b.End-b.Start))
}

// late reports whether the search has taken as long as it may.
func (n *Names) late() bool { return !n.Until.IsZero() && time.Now().After(n.Until) }

// searchMapping searches one mapping, a chunk at a time.
func (n *Names) searchMapping(m Memory, mapping *proc.Mapping, wanted map[uint64]bool) {
	low, high := bounds(wanted)
	buffer := make([]byte, searchChunk)
	for at := mapping.Start; at < mapping.End && !n.late(); at += searchChunk {
		b := buffer[:min(searchChunk, mapping.End-at)]
		n.Searched += readPages(m, at, b)
		for i := 0; i+8 <= len(b); i += 8 {
			v := binary.LittleEndian.Uint64(b[i:])
			if v < low || v > high || !wanted[v] {
				continue
			}
			if k := n.nameAt(m, at+uint64(i)); k.name != "" {
				if k.source = InMemory; simulatedNames(mapping) {
					k.source = Simulated
				}
				n.byProgram[v] = k
				if len(n.found) < maxFound && !slices.ContainsFunc(n.found, func(f uint64) bool { return mapping.Contains(f, 1) }) {
					n.found = append(n.found, at+uint64(i))
				}
				if delete(wanted, v); len(wanted) == 0 {
					return
				}
			}
		}
	}
}

// readPages reads memory of which pages may be missing: these are zeros. It returns how much was read.
func readPages(m Memory, at uint64, b []byte) (size uint64) {
	if m.Read(at, b) == nil {
		return uint64(len(b))
	}
	for i := 0; i < len(b); i += pageSize {
		page := b[i:min(i+pageSize, len(b))]
		if m.Read(at+uint64(i), page) != nil {
			clear(page)
			continue
		}
		size += uint64(len(page))
	}
	return size
}

// bounds returns the least and the greatest of the programs.
func bounds(programs map[uint64]bool) (low, high uint64) {
	low = ^uint64(0)
	for p := range programs {
		low, high = min(low, p), max(high, p)
	}
	return low, high
}

// nameAt returns the kernel whose structure of libcuda's the program's address at at is part of, if it is
// part of one. The structure (a CUfunction, as drivers of 580 have it) begins with a mark of two
// ones, the pointer to the name, and two numbers of things in a module, each with flags behind it. Other
// structures hold the address, too, and some have a pointer to another kernel's name near it.
func (n *Names) nameAt(m Memory, at uint64) (k kernel) {
	words, err := readWords(m, at-programOffset, 8)
	if err != nil || words[0] != 1 || words[1] != 1 || !counts(words[4:6]) || !counts(words[6:8]) {
		return k
	}
	nameAt, err := readLong(m, at-programOffset+nameOffset)
	if err != nil {
		return k
	}
	if k.name = symbolAt(m, nameAt); k.name != "" {
		k.params, k.known = params(m, nameAt, k.name)
	}
	return k
}

// counts reports whether a number can count things in a module, with flags behind it.
func counts(words []uint32) bool { return words[0] < 1<<20 && words[1] < 1<<8 }

// symbolAt returns the symbol at an address, or "".
func symbolAt(m Memory, p uint64) string {
	if p < 1<<16 {
		return ""
	}
	var name []byte
	var chunk [64]byte
	for len(name) < maxNameSize {
		// Up to the next multiple of the chunk's size, so that no page is touched that the text doesn't reach.
		from := p + uint64(len(name))
		b := chunk[:len(chunk)-int(from%uint64(len(chunk)))]
		if m.Read(from, b) != nil {
			return ""
		}
		for _, ch := range b {
			switch {
			case ch == 0 && len(name) >= minNameSize:
				return string(name)
			case ch == '_', ch == '$', ch == '.', 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9' && len(name) > 0:
				name = append(name, ch)
			default:
				return ""
			}
		}
	}
	return ""
}
