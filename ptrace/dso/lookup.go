package dso

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"fmt"
)

// Lookup finds the exported functions among names, indirect ones included. It reads a
// hash table's filter first, which answers for nearly every library that it has none of
// them, so that little of a large one is read.
func (f *File) Lookup(names ...string) (map[string]Symbol, error) {
	switch {
	case f.symtab == 0 || f.strtab == 0:
		return nil, nil
	case f.gnuHash != 0:
		return f.lookupGNU(names)
	case f.sysHash != 0:
		return f.lookupSysV(names)
	}
	return f.lookupLinear(names)
}

// lookupGNU uses DT_GNU_HASH: u32 buckets, first symbol, filter words, shift;
// then u64 filter words, u32 buckets, and a u32 hash for each symbol, whose
// lowest bit ends a bucket.
func (f *File) lookupGNU(names []string) (map[string]Symbol, error) {
	h, err := f.readAddr(f.gnuHash, 16)
	if err != nil {
		return nil, fmt.Errorf("hash table: %w", err)
	}
	nbuckets, first, words, shift := le.Uint32(h), le.Uint32(h[4:]), le.Uint32(h[8:]), le.Uint32(h[12:])
	if nbuckets == 0 || words == 0 {
		return nil, nil
	}
	if uint64(words)*8 > maxBloom {
		return nil, fmt.Errorf("hash table with a filter of %d words: %w", words, errELF)
	}
	bloom, err := f.readAddr(f.gnuHash+16, int(words)*8)
	if err != nil {
		return nil, fmt.Errorf("hash table: %w", err)
	}
	buckets := f.gnuHash + 16 + uint64(words)*8
	chains := buckets + uint64(nbuckets)*4
	found := make(map[string]Symbol)
	for _, name := range names {
		hash := gnuHash(name)
		word := le.Uint64(bloom[hash/64%words*8:])
		if word>>(hash%64)&1 == 0 || word>>(hash>>(shift%32)%64)&1 == 0 {
			continue
		}
		b, err := f.readAddr(buckets+uint64(hash%nbuckets)*4, 4)
		if err != nil {
			return found, fmt.Errorf("hash table: %w", err)
		}
		for i, n := le.Uint32(b), 0; i >= first && i != 0 && n < maxChain; i, n = i+1, n+1 {
			link, err := f.readAddr(chains+uint64(i-first)*4, 4)
			if err != nil {
				return found, fmt.Errorf("hash table: %w", err)
			}
			v := le.Uint32(link)
			if v|1 == hash|1 {
				if err := f.match(uint64(i), name, found); err != nil {
					return found, err
				}
			}
			if v&1 != 0 {
				break
			}
		}
	}
	return found, nil
}

func gnuHash(name string) uint32 {
	h := uint32(5381)
	for i := range len(name) {
		h = h*33 + uint32(name[i])
	}
	return h
}

// lookupSysV uses DT_HASH: u32 buckets, symbols; then the buckets, and the next
// symbol of each symbol.
func (f *File) lookupSysV(names []string) (map[string]Symbol, error) {
	h, err := f.readAddr(f.sysHash, 8)
	if err != nil {
		return nil, fmt.Errorf("hash table: %w", err)
	}
	nbuckets, nsyms := le.Uint32(h), le.Uint32(h[4:])
	if nbuckets == 0 {
		return nil, nil
	}
	found := make(map[string]Symbol)
	for _, name := range names {
		var hash uint32
		for i := range len(name) {
			hash = hash<<4 + uint32(name[i])
			hash = (hash ^ hash>>24&0xf0) & 0x0fffffff
		}
		at := f.sysHash + 8 + uint64(hash%nbuckets)*4
		for range maxChain {
			b, err := f.readAddr(at, 4)
			if err != nil {
				return found, fmt.Errorf("hash table: %w", err)
			}
			i := le.Uint32(b)
			if i == 0 || i >= nsyms {
				break
			}
			if err := f.match(uint64(i), name, found); err != nil {
				return found, err
			}
			at = f.sysHash + 8 + uint64(nbuckets)*4 + uint64(i)*4
		}
	}
	return found, nil
}

// lookupLinear looks at symbol after symbol, up to the strings, which follow as a
// rule.
func (f *File) lookupLinear(names []string) (map[string]Symbol, error) {
	n := uint64(maxLinear)
	if f.strtab > f.symtab {
		n = min(n, (f.strtab-f.symtab)/symSize)
	}
	wanted := make(map[string]bool, len(names))
	longest := 0
	for _, name := range names {
		wanted[name] = true
		longest = max(longest, len(name))
	}
	found := make(map[string]Symbol)
	for i := uint64(1); i < n; i++ {
		b, err := f.readAddr(f.symtab+i*symSize, symSize)
		if err != nil {
			return found, nil // the table's length is not known: it ends here
		}
		off, ok := f.at(f.strtab + uint64(le.Uint32(b)))
		if !ok {
			continue
		}
		text := make([]byte, longest+1)
		k, _ := f.r.ReadAt(text, int64(off))
		name, _, ended := bytes.Cut(text[:k], []byte{0})
		if ended && wanted[string(name)] {
			f.take(b, string(name), found)
		}
	}
	return found, nil
}

// match enters symbol i if it is called name.
func (f *File) match(i uint64, name string, found map[string]Symbol) error {
	b, err := f.readAddr(f.symtab+i*symSize, symSize)
	if err != nil {
		return fmt.Errorf("symbol %d: %w", i, err)
	}
	if f.strsz != 0 && uint64(le.Uint32(b)) >= f.strsz {
		return nil
	}
	text, err := f.readAddr(f.strtab+uint64(le.Uint32(b)), len(name)+1)
	if err != nil || text[len(name)] != 0 || string(text[:len(name)]) != name {
		return nil
	}
	f.take(b, name, found)
	return nil
}

// take enters a symbol that is a defined function.
func (f *File) take(b []byte, name string, found map[string]Symbol) {
	s := parseSymbol(b, name)
	if _, has := found[name]; !has && (s.Function() || s.Indirect()) && f.executable(s.Addr) {
		found[name] = s
	}
}

// ntGNUBuildID is NT_GNU_BUILD_ID (elf.h).
const ntGNUBuildID elf.NType = 3

// BuildID returns the file's build id in hexadecimal, "" for none.
func (f *File) BuildID() string {
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		b, err := f.content(&p, maxNote)
		if err != nil {
			continue
		}
		for len(b) >= 12 {
			nameSize, size, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
			desc := 12 + (nameSize+3)&^3
			if desc+size > uint64(len(b)) {
				break
			}
			if elf.NType(typ) == ntGNUBuildID && string(b[12:12+nameSize]) == "GNU\x00" && size <= 64 {
				return hex.EncodeToString(b[desc : desc+size])
			}
			b = b[min(desc+(size+3)&^3, uint64(len(b))):] // some linkers leave the last note's padding out
		}
	}
	return ""
}
