package cudart

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"nvtrace/ptrace/dso"
)

// A Function is one of the runtime's in a file.
type Function struct {
	Name       string
	Addr, Size uint64 // of its code, as the file has it
}

// Found is what a file has of the runtime.
type Found struct {
	// Releases are those that the functions are of: several where these are the same. None:
	// it is another one, whose functions have symbols.
	Releases  []string
	Functions []Function // by address
	// Missing are public functions of the release that were not found, or that look like another
	// one.
	Missing []string
}

// Release names the release, "13.1.80".
func (f *Found) Release() string {
	switch n := len(f.Releases); n {
	case 0:
		return "an unknown release"
	case 1:
		return f.Releases[0]
	default:
		return f.Releases[0] + " to " + f.Releases[n-1]
	}
}

// Major is the release's first number, 0 if it is not known.
func (f *Found) Major() (n int) {
	if len(f.Releases) > 0 {
		_, _ = fmt.Sscanf(f.Releases[len(f.Releases)-1], "%d.", &n)
	}
	return n
}

// errNone: there is no runtime in the file.
var errNone = errors.New("no CUDA runtime in it")

// index has the signatures by size.
type index struct {
	*Table
	bySize map[uint32][]*Signature
	counts []int // of signatures, by release
}

func newIndex(t *Table) *index {
	x := &index{Table: t, bySize: make(map[uint32][]*Signature), counts: make([]int, len(t.Releases))}
	for i := range t.Signatures {
		s := &t.Signatures[i]
		x.bySize[s.Size] = append(x.bySize[s.Size], s)
		for _, r := range s.Releases {
			x.counts[r]++
		}
	}
	for _, list := range x.bySize { // those with the same mask beside each other
		slices.SortStableFunc(list, func(a, b *Signature) int {
			return slices.CompareFunc(a.Mask, b.Mask, func(a, b Range) int {
				return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Len, b.Len))
			})
		})
	}
	return x
}

// mark is in every file with a runtime, which loads the driver by this name.
const mark = "libcuda.so.1"

// launch is a function that every runtime has.
const launch = "cudaLaunchKernel"

// Find looks for the runtime in an ELF file of x86-64; nil: there is none. A file that exports the runtime's
// functions is the runtime itself, and has none.
func Find(r io.ReaderAt) (*Found, error) { return known().look(r) }

// Find is [Find] by the signatures of t.
func (t *Table) Find(r io.ReaderAt) (*Found, error) { return newIndex(t).look(r) }

func (x *index) look(r io.ReaderAt) (found *Found, err error) {
	e, err := dso.Read(r)
	if err != nil {
		return nil, err
	}
	if e.Machine != elf.EM_X86_64 || !marked(e) {
		return nil, nil
	}
	dynamic, _ := e.DynamicSymbolsNamed(launch, "cudaMalloc")
	if slices.ContainsFunc(dynamic, func(s dso.Symbol) bool { return s.Name != launch || !s.Defined }) {
		return nil, nil
	}
	if found = x.find(e); found == nil {
		found = new(Found)
	}
	// Most files have been stripped of their symbols.
	if list, _ := e.SymbolsNamed(launch); len(list) > 0 {
		symbols, _ := e.Symbols()
		if named := ofSymbols(symbols); len(named) > 0 {
			found.Functions, found.Missing = named, nil
		}
	}
	if len(found.Functions) == 0 {
		return nil, nil
	}
	return found, nil
}

// marked reports whether a file may have a runtime in it.
func marked(e *dso.File) bool {
	const most = 64 << 20
	for _, s := range e.Sections() {
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_ALLOC == 0 || s.Flags&(elf.SHF_EXECINSTR|elf.SHF_WRITE) != 0 || s.Name == ".nv_fatbin" || s.Name == ".eh_frame" {
			continue
		}
		if has, err := e.Contains(&s, mark, most); err == nil && has {
			return true
		}
	}
	return false
}

// public reports whether a function is the runtime's, and not one of its own.
func public(name string) bool {
	name = strings.TrimPrefix(name, "__")
	return strings.HasPrefix(name, "cuda") && len(name) > 4 && name[4] >= 'A' && name[4] <= 'Z'
}

// ofSymbols returns the functions that a file names, if the runtime is among them.
func ofSymbols(symbols []dso.Symbol) (list []Function) {
	runtime := false
	at := make(map[uint64]bool)
	for i := range symbols {
		s := &symbols[i]
		if !s.Function() || s.Size == 0 || !public(s.Name) || at[s.Addr] {
			continue
		}
		at[s.Addr], runtime = true, runtime || s.Name == launch
		list = append(list, Function{Name: strings.Clone(s.Name), Addr: s.Addr, Size: s.Size})
	}
	if !runtime {
		return nil
	}
	slices.SortFunc(list, func(a, b Function) int { return int(int64(a.Addr - b.Addr)) })
	return list
}

// extent is a function's code.
type extent struct{ addr, size uint64 }

// find looks for functions that have signatures: the cheapest first, until no release can be the
// file's, or those of what else can be are all looked at.
func (x *index) find(e *dso.File) *Found {
	list, err := extents(e)
	if err != nil {
		return nil
	}
	bySize := make(map[uint32][]extent)
	for _, f := range list {
		if len(x.bySize[uint32(f.size)]) > 0 && f.size < maxFunction && inCode(e, f) {
			bySize[uint32(f.size)] = append(bySize[uint32(f.size)], f)
		}
	}
	sizes := slices.Collect(maps.Keys(x.bySize))
	const read = 1 << 10 // what reading a function costs, in bytes that are summed
	cost := func(size uint32) int { return (read + int(size)*len(x.bySize[size])) * len(bySize[size]) }
	slices.SortFunc(sizes, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(cost(a), cost(b)), cmp.Compare(a, b))
	})
	at := make(map[*Signature][]extent) // where each is, two at most
	race := newRace(x)
	var code []byte
	for _, size := range sizes {
		wanted := slices.DeleteFunc(slices.Clone(x.bySize[size]), func(s *Signature) bool { return !race.wants(s) })
		if len(wanted) == 0 {
			continue
		}
		code = slices.Grow(code[:0], int(size))[:size]
		for _, f := range bySize[size] {
			if e.ReadAt(code, f.addr) != nil {
				continue
			}
			var sum uint64
			for i, s := range wanted {
				if i == 0 || !slices.Equal(s.Mask, wanted[i-1].Mask) {
					sum = s.Of(code)
				}
				if sum == s.Sum && len(at[s]) < 2 {
					at[s] = append(at[s], f)
				}
			}
		}
		for _, s := range wanted {
			race.note(s, len(at[s]) == 1)
		}
		if race.over() {
			return nil
		}
	}
	return x.choose(at)
}

// inCode reports whether a function is in a segment of code, as a whole.
func inCode(e *dso.File, f extent) bool {
	return slices.ContainsFunc(e.Progs, func(p elf.ProgHeader) bool {
		return dso.IsCode(&p) && f.addr >= p.Vaddr && f.addr-p.Vaddr <= p.Filesz && f.size <= p.Filesz-(f.addr-p.Vaddr)
	})
}

// race knows which releases a file can still be found to have.
type race struct {
	index *index
	found []int // signatures that are in the file once, by release
	most  []int // what found can become
	best  int   // the highest of found
}

func newRace(x *index) *race {
	return &race{index: x, found: make([]int, len(x.counts)), most: slices.Clone(x.counts)}
}

// open reports whether choose can choose a release.
func (r *race) open(release int) bool {
	return r.most[release] >= r.best && enough(r.most[release], r.index.counts[release])
}

// wants reports whether it matters where a signature is.
func (r *race) wants(s *Signature) bool {
	return slices.ContainsFunc(s.Releases, func(release uint16) bool { return r.open(int(release)) })
}

// note enters whether a signature is in the file once.
func (r *race) note(s *Signature, once bool) {
	for _, release := range s.Releases {
		if !once {
			r.most[release]--
			continue
		}
		r.found[release]++
		r.best = max(r.best, r.found[release])
	}
}

// over reports whether the file can have none of the releases.
func (r *race) over() bool {
	for release := range r.most {
		if r.open(release) {
			return false
		}
	}
	return true
}

// enough reports whether n functions of a release's are so many that a file has it.
func enough(n, of int) bool { return n > 0 && n >= of/2 }

// choose finds the release that most functions are of.
func (x *index) choose(at map[*Signature][]extent) *Found {
	counts := make([]int, len(x.Releases))
	for s, list := range at {
		if len(list) == 1 {
			for _, r := range s.Releases {
				counts[r]++
			}
		}
	}
	found := new(Found)
	chosen := 0
	for r, n := range counts { // of those with most functions, the one that has no others
		if n > counts[chosen] || n == counts[chosen] && x.counts[r] < x.counts[chosen] {
			chosen = r
		}
	}
	if len(counts) == 0 || !enough(counts[chosen], x.counts[chosen]) {
		return nil
	}
	for r, n := range counts {
		if n == counts[chosen] && x.counts[r] == x.counts[chosen] {
			found.Releases = append(found.Releases, x.Releases[r])
		}
	}
	byAddr := make(map[uint64][]*Signature)
	for i := range x.Signatures {
		s := &x.Signatures[i]
		switch list := at[s]; {
		case !slices.Contains(s.Releases, uint16(chosen)):
		case len(list) == 1:
			byAddr[list[0].addr] = append(byAddr[list[0].addr], s)
		default:
			found.Missing = append(found.Missing, s.Name)
		}
	}
	for addr, list := range byAddr {
		if len(list) > 1 { // one code with several names
			for _, s := range list {
				found.Missing = append(found.Missing, s.Name)
			}
			continue
		}
		found.Functions = append(found.Functions, Function{Name: list[0].Name, Addr: addr, Size: uint64(list[0].Size)})
	}
	slices.Sort(found.Missing)
	slices.SortFunc(found.Functions, func(a, b Function) int { return int(int64(a.Addr - b.Addr)) })
	return found
}

// extents returns the functions of a file, from the table for unwinding stacks, which stripped files have
// too (the Linux Standard Base's .eh_frame). Addresses in it are taken for relative ones of 4 bytes, as
// compilers for x86-64 write them; others lead to no function.
func extents(e *dso.File) ([]extent, error) {
	const most = 256 << 20
	frames := e.Section(".eh_frame")
	if frames == nil {
		return nil, errNone
	}
	b, err := e.Data(frames, most)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	var list []extent
	for off := uint64(0); off+16 <= uint64(len(b)); {
		length := uint64(le.Uint32(b[off:]))
		if length == 0 || length == 0xffffffff { // the end, or one of a kind that nobody writes
			break
		}
		if fde := b[off:]; le.Uint32(fde[4:]) != 0 { // else what several have in common
			list = append(list, extent{frames.Addr + off + 8 + uint64(int64(int32(le.Uint32(fde[8:])))), uint64(le.Uint32(fde[12:]))})
		}
		off += 4 + length
	}
	return list, nil
}
