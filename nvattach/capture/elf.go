package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Bounds of what is read of an ELF file. NVIDIA's driver stays far below.
const (
	maxProgs    = 1 << 10
	maxDynamic  = 64 << 10
	maxBloom    = 8 << 20
	maxChain    = 1 << 16 // symbols in one hash bucket
	maxLinear   = 1 << 16 // symbols looked at without a hash table
	maxSections = 1 << 16
	maxNames    = 1 << 20
	maxNote     = 64 << 10
)

// ELF constants (elf.h).
const (
	ehdrSize, phdrSize, shdrSize, symSize, dynSize = 64, 56, 64, 24, 16

	ptLoad, ptDynamic, ptNote = 1, 2, 4
	pfX                       = 1

	dtHash, dtStrtab, dtSymtab, dtStrsz, dtGNUHash = 4, 5, 6, 10, 0x6ffffef5

	sttFunc, sttIFunc = 2, 10
	noteGNUBuildID    = 3
)

var (
	// errNotELF is a file or memory that is no 64-bit little-endian ELF.
	errNotELF = errors.New("no 64-bit ELF")
	errELF    = errors.New("malformed ELF")
)

// image64 is an ELF file, or the memory that a loader laid one out in.
type image64 struct {
	r io.ReaderAt
	// memory: r is the laid out file, whose lowest address is at offset 0;
	// base is where that is. Otherwise r is the file.
	memory bool
	base   uint64

	progs   []prog
	shoff   uint64
	shnum   uint16
	shstr   uint16
	symtab  uint64
	strtab  uint64
	strsz   uint64
	gnuHash uint64
	sysHash uint64
}

// prog is a program header.
type prog struct {
	typ, flags           uint32
	off, vaddr, fsz, msz uint64
}

func (m *image64) read(off uint64, n int) ([]byte, error) {
	if off > 1<<62 {
		return nil, fmt.Errorf("+%#x: %w", off, errELF)
	}
	b := make([]byte, n)
	if k, err := m.r.ReadAt(b, int64(off)); k < n {
		return nil, fmt.Errorf("+%#x: %d of %d bytes: %w", off, k, n, cmpErr(err, errELF))
	}
	return b, nil
}

func cmpErr(err, other error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return other
	}
	return err
}

var le = binary.LittleEndian

// openELF reads the program headers and the dynamic section of a file, or of
// memory that begins with one.
func openELF(r io.ReaderAt, memory bool, base uint64) (*image64, error) {
	m := &image64{r: r, memory: memory, base: base}
	h, err := m.read(0, ehdrSize)
	if err != nil {
		return nil, errNotELF
	}
	if !bytes.Equal(h[:6], []byte("\x7fELF\x02\x01")) {
		return nil, errNotELF
	}
	phoff, phnum, phent := le.Uint64(h[32:]), int(le.Uint16(h[56:])), le.Uint16(h[54:])
	m.shoff, m.shnum, m.shstr = le.Uint64(h[40:]), le.Uint16(h[60:]), le.Uint16(h[62:])
	if phnum > maxProgs || phnum > 0 && phent != phdrSize {
		return nil, fmt.Errorf("%d program headers of %d bytes: %w", phnum, phent, errELF)
	}
	b, err := m.read(phoff, phnum*phdrSize)
	if err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	for ; len(b) > 0; b = b[phdrSize:] {
		m.progs = append(m.progs, prog{
			typ: le.Uint32(b), flags: le.Uint32(b[4:]), off: le.Uint64(b[8:]), vaddr: le.Uint64(b[16:]),
			fsz: le.Uint64(b[32:]), msz: le.Uint64(b[40:]),
		})
	}
	return m, m.readDynamic()
}

// readDynamic finds the symbol table as the program's loader does; section
// headers may lie or be missing.
func (m *image64) readDynamic() error {
	for _, p := range m.progs {
		if p.typ != ptDynamic {
			continue
		}
		b, err := m.content(&p, maxDynamic/dynSize*dynSize)
		if err != nil {
			return fmt.Errorf("dynamic section: %w", err)
		}
		for ; len(b) >= dynSize && le.Uint64(b) != 0; b = b[dynSize:] {
			v := le.Uint64(b[8:])
			if m.memory && v >= m.base { // the loader has relocated it
				v = v - m.base + m.low()
			}
			switch le.Uint64(b) {
			case dtHash:
				m.sysHash = v
			case dtStrtab:
				m.strtab = v
			case dtSymtab:
				m.symtab = v
			case dtStrsz:
				m.strsz = le.Uint64(b[8:])
			case dtGNUHash:
				m.gnuHash = v
			}
		}
		return nil
	}
	return nil
}

// content returns up to limit bytes of what a program header names.
func (m *image64) content(p *prog, limit uint64) ([]byte, error) {
	at, ok := m.at(p.vaddr)
	if !ok {
		at = p.off
	}
	return m.read(at, int(min(p.fsz, limit)))
}

// low returns the page of the lowest address that the file asks for.
func (m *image64) low() uint64 {
	low := ^uint64(0)
	for _, p := range m.progs {
		if p.typ == ptLoad {
			low = min(low, p.vaddr&^(pageSize-1))
		}
	}
	if low == ^uint64(0) {
		return 0
	}
	return low
}

// at returns the offset in r of an address.
func (m *image64) at(vaddr uint64) (uint64, bool) {
	if m.memory {
		low := m.low()
		return vaddr - low, vaddr >= low
	}
	return m.fileOffset(vaddr)
}

// fileOffset returns the offset in the file of an address.
func (m *image64) fileOffset(vaddr uint64) (uint64, bool) {
	for _, p := range m.progs {
		if p.typ == ptLoad && vaddr >= p.vaddr && vaddr-p.vaddr < p.fsz {
			return vaddr - p.vaddr + p.off, true
		}
	}
	return 0, false
}

// executable reports whether an address is in a segment that may be executed.
func (m *image64) executable(vaddr uint64) bool {
	for _, p := range m.progs {
		if p.typ == ptLoad && p.flags&pfX != 0 && vaddr >= p.vaddr && vaddr-p.vaddr < p.fsz {
			return true
		}
	}
	return false
}

func (m *image64) readAt(vaddr uint64, n int) ([]byte, error) {
	off, ok := m.at(vaddr)
	if !ok {
		return nil, fmt.Errorf("address %#x is in no segment: %w", vaddr, errELF)
	}
	return m.read(off, n)
}

// symbol is an exported function.
type symbol struct {
	vaddr, size uint64
	ifunc       bool // the address is that of a resolver
}

// lookup finds the exported functions among names. It reads a hash table's
// filter first, which answers for nearly every library that it has none of them.
func (m *image64) lookup(names []string) (map[string]symbol, error) {
	switch {
	case m.symtab == 0 || m.strtab == 0:
		return nil, nil
	case m.gnuHash != 0:
		return m.lookupGNU(names)
	case m.sysHash != 0:
		return m.lookupSysV(names)
	}
	return m.lookupLinear(names)
}

// lookupGNU uses DT_GNU_HASH: u32 buckets, first symbol, filter words, shift;
// then u64 filter words, u32 buckets, and a u32 hash for each symbol, whose
// lowest bit ends a bucket.
func (m *image64) lookupGNU(names []string) (map[string]symbol, error) {
	h, err := m.readAt(m.gnuHash, 16)
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
	bloom, err := m.readAt(m.gnuHash+16, int(words)*8)
	if err != nil {
		return nil, fmt.Errorf("hash table: %w", err)
	}
	buckets := m.gnuHash + 16 + uint64(words)*8
	chains := buckets + uint64(nbuckets)*4
	found := make(map[string]symbol)
	for _, name := range names {
		hash := gnuHash(name)
		word := le.Uint64(bloom[hash/64%words*8:])
		if word>>(hash%64)&1 == 0 || word>>(hash>>(shift%32)%64)&1 == 0 {
			continue
		}
		b, err := m.readAt(buckets+uint64(hash%nbuckets)*4, 4)
		if err != nil {
			return found, fmt.Errorf("hash table: %w", err)
		}
		for i, n := le.Uint32(b), 0; i >= first && i != 0 && n < maxChain; i, n = i+1, n+1 {
			link, err := m.readAt(chains+uint64(i-first)*4, 4)
			if err != nil {
				return found, fmt.Errorf("hash table: %w", err)
			}
			v := le.Uint32(link)
			if v|1 == hash|1 {
				if err := m.match(uint64(i), name, found); err != nil {
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
func (m *image64) lookupSysV(names []string) (map[string]symbol, error) {
	h, err := m.readAt(m.sysHash, 8)
	if err != nil {
		return nil, fmt.Errorf("hash table: %w", err)
	}
	nbuckets, nsyms := le.Uint32(h), le.Uint32(h[4:])
	if nbuckets == 0 {
		return nil, nil
	}
	found := make(map[string]symbol)
	for _, name := range names {
		var hash uint32
		for i := range len(name) {
			hash = hash<<4 + uint32(name[i])
			hash = (hash ^ hash>>24&0xf0) & 0x0fffffff
		}
		at := m.sysHash + 8 + uint64(hash%nbuckets)*4
		for range maxChain {
			b, err := m.readAt(at, 4)
			if err != nil {
				return found, fmt.Errorf("hash table: %w", err)
			}
			i := le.Uint32(b)
			if i == 0 || i >= nsyms {
				break
			}
			if err := m.match(uint64(i), name, found); err != nil {
				return found, err
			}
			at = m.sysHash + 8 + uint64(nbuckets)*4 + uint64(i)*4
		}
	}
	return found, nil
}

// lookupLinear looks at symbol after symbol, up to the strings, which follow as a
// rule.
func (m *image64) lookupLinear(names []string) (map[string]symbol, error) {
	n := uint64(maxLinear)
	if m.strtab > m.symtab {
		n = min(n, (m.strtab-m.symtab)/symSize)
	}
	wanted := make(map[string]bool, len(names))
	longest := 0
	for _, name := range names {
		wanted[name] = true
		longest = max(longest, len(name))
	}
	found := make(map[string]symbol)
	for i := uint64(1); i < n; i++ {
		b, err := m.readAt(m.symtab+i*symSize, symSize)
		if err != nil {
			return found, nil // the table's length is not known: it ends here
		}
		s, err := m.readAt(m.strtab+uint64(le.Uint32(b)), 2)
		if err != nil || string(s) != "cu" {
			continue
		}
		off, _ := m.at(m.strtab + uint64(le.Uint32(b)))
		text := make([]byte, longest+1)
		k, _ := m.r.ReadAt(text, int64(off))
		name, _, ended := bytes.Cut(text[:k], []byte{0})
		if ended && wanted[string(name)] {
			m.take(b, string(name), found)
		}
	}
	return found, nil
}

// match enters symbol i if it is called name.
func (m *image64) match(i uint64, name string, found map[string]symbol) error {
	b, err := m.readAt(m.symtab+i*symSize, symSize)
	if err != nil {
		return fmt.Errorf("symbol %d: %w", i, err)
	}
	if m.strsz != 0 && uint64(le.Uint32(b)) >= m.strsz {
		return nil
	}
	text, err := m.readAt(m.strtab+uint64(le.Uint32(b)), len(name)+1)
	if err != nil || text[len(name)] != 0 || string(text[:len(name)]) != name {
		return nil
	}
	m.take(b, name, found)
	return nil
}

// take enters a symbol that is a defined function.
func (m *image64) take(b []byte, name string, found map[string]symbol) {
	typ, section := b[4]&0xf, le.Uint16(b[6:])
	s := symbol{vaddr: le.Uint64(b[8:]), size: le.Uint64(b[16:]), ifunc: typ == sttIFunc}
	if _, has := found[name]; !has && section != 0 && (typ == sttFunc || typ == sttIFunc) && m.executable(s.vaddr) {
		found[name] = s
	}
}

// ErrNoExports says that a file has no dynamic symbols.
var ErrNoExports = errors.New("no dynamic symbols")

// Exports finds functions that an ELF file exports, and returns their offsets in the
// file. It reads little of a large library. The error matches [ErrNoExports] for a
// static executable.
func Exports(r io.ReaderAt, names ...string) (map[string]uint64, error) {
	m, err := openELF(r, false, 0)
	if err != nil {
		return nil, err
	}
	if m.symtab == 0 || m.strtab == 0 {
		return nil, ErrNoExports
	}
	found, err := m.lookup(names)
	if err != nil {
		return nil, err
	}
	offs := make(map[string]uint64, len(found))
	for name, s := range found {
		if off, ok := m.fileOffset(s.vaddr); ok {
			offs[name] = off
		}
	}
	return offs, nil
}

// buildID returns the file's build id in hexadecimal, "" for none.
func (m *image64) buildID() string {
	for _, p := range m.progs {
		if p.typ != ptNote {
			continue
		}
		b, err := m.content(&p, maxNote)
		if err != nil {
			continue
		}
		for len(b) >= 12 {
			nameSize, size, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
			desc := 12 + (nameSize+3)&^3
			end := desc + (size+3)&^3
			if end > uint64(len(b)) {
				break
			}
			if typ == noteGNUBuildID && string(b[12:12+nameSize]) == "GNU\x00" && size <= 64 {
				return hex.EncodeToString(b[desc : desc+size])
			}
			b = b[end:]
		}
	}
	return ""
}

// gpuCode returns how many bytes of fat binaries the section headers name. It is
// information, so that a file whose section headers are gone has none.
func (m *image64) gpuCode() int64 {
	n := int(m.shnum)
	if m.memory || n == 0 || n > maxSections || int(m.shstr) >= n {
		return 0
	}
	table, err := m.read(m.shoff, n*shdrSize)
	if err != nil {
		return 0
	}
	str := table[int(m.shstr)*shdrSize:]
	size := le.Uint64(str[32:])
	if size > maxNames {
		return 0
	}
	names, err := m.read(le.Uint64(str[24:]), int(size))
	if err != nil {
		return 0
	}
	total := int64(0)
	for ; len(table) > 0; table = table[shdrSize:] {
		at := uint64(le.Uint32(table))
		if at >= uint64(len(names)) {
			continue
		}
		name, _, _ := bytes.Cut(names[at:], []byte{0})
		if s := string(name); s == ".nv_fatbin" || s == "__nv_relfatbin" {
			total = max(total, total+int64(le.Uint64(table[32:])))
		}
	}
	return total
}
