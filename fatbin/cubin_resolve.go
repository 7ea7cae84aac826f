package fatbin

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// relocAddress is the relocation that puts a symbol's address into 8 bytes.
const relocAddress = 2

// ResolveSymbols returns a cubin whose code and constants refer to symbols at given addresses,
// by their names, instead of to those that it defines. The driver puts the others in place, as
// before. [ErrNotEditable] is in the error's chain where the cubin refers to one of them in a way
// that can't be changed, or has two of a name.
func ResolveSymbols(cubin []byte, at map[string]uint64) ([]byte, error) {
	f, err := parseELF("cubin", cubin)
	if err != nil {
		return nil, err
	}
	table := f.symtab()
	if table < 0 {
		return nil, formatError("cubin", 0, "no symbols")
	}
	symbols, strs := f.symbols(uint32(table))
	wanted, found := make(map[uint64]uint64), make(map[string]bool)
	for i := uint64(0); ; i++ {
		s, ok := symbolAt(symbols, i)
		if !ok {
			break
		}
		name, ok := cstring(strs, uint64(s.name))
		addr, is := at[string(name)]
		if !ok || !is || s.section == 0 {
			continue
		}
		if found[string(name)] {
			return nil, fmt.Errorf("cubin: it has two symbols %s: %w", name, ErrNotEditable)
		}
		found[string(name)], wanted[i] = true, addr
	}
	out := slices.Clone(cubin)
	for i := range f.sections {
		s := &f.sections[i]
		if s.Type != shtRela && s.Type != shtRel || uint64(s.Info) >= uint64(len(f.sections)) || isApart(f.sections[s.Info].Name) {
			continue
		}
		kept, err := f.resolve(out, i, wanted)
		if err != nil {
			return nil, err
		}
		header := u64(cubin[40:]) + uint64(i)*elfSectionSize
		binary.LittleEndian.PutUint64(out[header+32:], kept)
	}
	return out, nil
}

// isApart reports whether a section is none that kernels read: tools do, or the variables in it
// are not used any more.
func isApart(name string) bool {
	return strings.HasPrefix(name, ".debug") || strings.HasPrefix(name, ".nv_debug") || strings.HasPrefix(name, ".nv.global")
}

// resolve applies the relocations for symbols of a section of relocations, takes them out, and
// returns how many bytes of others stay.
func (f *elfFile) resolve(out []byte, index int, wanted map[uint64]uint64) (kept uint64, err error) {
	s := &f.sections[index]
	of := &f.sections[s.Info]
	size, addends := uint64(elfRelSize), s.Type == shtRela
	if addends {
		size = elfRelaSize
	}
	b := f.bytes(uint32(index))
	for ; uint64(len(b)) >= size; b = b[size:] {
		addr, ok := wanted[u64(b[8:])>>32]
		if !ok {
			copy(out[s.Offset+kept:], b[:size])
			kept += size
			continue
		}
		place, there := cut(out, of.Offset, of.Size)
		off := u64(b)
		if kind := u32(b[8:]); kind != relocAddress || of.Type == shtNobits || !there || off > uint64(len(place)) || uint64(len(place))-off < 8 {
			return 0, fmt.Errorf("cubin: relocation %d at 0x%x of %s: %w", kind, off, of.Name, ErrNotEditable)
		}
		plus := u64(place[off:])
		if addends {
			plus = u64(b[16:])
		}
		binary.LittleEndian.PutUint64(place[off:], addr+plus)
	}
	return kept, nil
}
