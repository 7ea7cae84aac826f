package agent

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
)

// maxImage bounds the files that are looked into, in bytes.
const maxImage = 16 << 20

// siteLen is how much of the code Process.patchSite looks at, up to the end of the system
// call instruction.
const siteLen = len5 + between + 2

// FindImage looks into the library at path. It may be called by any goroutine.
func (a *Agent) FindImage(path string) (*Image, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxImage {
		return nil, fmt.Errorf("%s: %d bytes, at most %d are looked into", path, st.Size(), maxImage)
	}
	f, err := dso.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("%s: not of this architecture", path)
	}
	starts, err := f.Starts()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	im := new(Image)
	for _, p := range f.Progs {
		if !dso.IsCode(&p) {
			continue
		}
		code := io.NewSectionReader(file, int64(p.Off), int64(p.Filesz))
		if err := im.scan(a, &segment{code, p.Vaddr, starts}); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return im, nil
}

// segment is the code of a file.
type segment struct {
	io.ReaderAt
	at     uint64   // its address
	starts []uint64 // of functions
}

// scan finds the sites in code.
func (im *Image) scan(a *Agent, code *segment) error {
	// Through a window that the caches hold; the next one begins with what a site at its
	// beginning needs of this one.
	const window = 1 << 16
	buf := make([]byte, window)
	for off := int64(0); ; off += window - (siteLen - 1) {
		n, err := code.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for end := 0; len(im.sites) < maxSites; {
			i := bytes.Index(buf[end:n], syscallInsn)
			if i < 0 {
				break
			}
			if end += i + len(syscallInsn); end >= siteLen {
				im.add(a, code, buf[end-siteLen:end], code.at+uint64(off)+uint64(end))
			}
		}
		if err != nil { // the end
			return nil
		}
	}
}

// add enters the system call before address ip if it is one that can be rerouted. b is
// the code up to there.
func (im *Image) add(a *Agent, code *segment, b []byte, ip uint64) {
	for mov := len(b) - len(syscallInsn) - len5; mov >= 0; mov-- {
		if b[mov] != movOpcode {
			continue
		}
		nr := uint64(binary.LittleEndian.Uint32(b[mov+1:]))
		if !a.Passable(nr) {
			continue
		}
		if got, err := findMov(b, movNumber(nr)); err == nil && got == mov && code.onPath(ip, ip-uint64(len(b)-mov)) {
			im.sites = append(im.sites, imageSite{ip, nr, bytes.Clone(b)})
			return
		}
	}
}

// movOpcode begins `mov $imm,%eax`.
const movOpcode = 0xb8

// onPath says whether the instructions of the function around a site, one after the
// other from its beginning, come by mov and ip, addresses: bytes that look like the
// system call and what loads its number may lie across others.
func (s *segment) onPath(ip, mov uint64) bool {
	const longest = 1 << 14 // of a function, up to there
	i, exact := slices.BinarySearch(s.starts, mov)
	if !exact {
		i--
	}
	if i < 0 || s.starts[i] < s.at || mov-s.starts[i] > longest {
		return false
	}
	from := s.starts[i]
	text := make([]byte, ip-from)
	if n, _ := s.ReadAt(text, int64(from-s.at)); n < len(text) {
		return false
	}
	met := false
	for pos := 0; pos < len(text); {
		met = met || from+uint64(pos) == mov
		in, err := decodeInsn(text[pos:])
		if err != nil {
			return false
		}
		if pos += in.Len; pos == len(text) {
			return met && in.Op == x86asm.SYSCALL
		}
	}
	return false
}

// SetImages says which libraries the processes most likely have.
func (a *Agent) SetImages(list []*Image) { a.images = list }

// others returns the sites of the libraries of Agent.SetImages of which ip is one, or
// one that is patched already. Each library is taken once. That the file is what is mapped is told by the
// code at its sites, not by its name: the process may have another root folder.
func (p *Process) others(t *ptrace.Task, ip uint64) (list []place) {
	if p.imaged == nil {
		p.imaged = make(map[*Image]bool)
	}
	for _, im := range p.a.images {
		if p.imaged[im] {
			continue
		}
		base, ok := im.find(p, t, ip)
		for known, patched := range p.sites {
			if patched && !ok {
				base, ok = im.find(p, t, known)
			}
		}
		if !ok {
			continue
		}
		p.imaged[im] = true
		for i := range im.sites {
			at := base + im.sites[i].ip
			if _, known := p.sites[at]; !known && at != ip && p.passable(im.sites[i].nr) {
				list = append(list, place{at, im.sites[i].nr})
			}
		}
	}
	return list
}

// find returns where the file is mapped if ip is behind one of its sites.
func (im *Image) find(p *Process, t *ptrace.Task, ip uint64) (base uint64, ok bool) {
	const page = 4096
	for i := range im.sites {
		if base = ip - im.sites[i].ip; base%page == 0 && im.isAt(p, t, base) {
			return base, true
		}
	}
	return 0, false
}

// isAt says whether the file is mapped there, to judge by its sites.
func (im *Image) isAt(p *Process, t *ptrace.Task, base uint64) bool {
	for i := range im.sites {
		s := &im.sites[i]
		var b [siteLen]byte
		from := base + s.ip - uint64(len(b))
		n, _ := t.ReadText(from, b[:])
		// What is patched is different now.
		if n < len(b) || !p.sites[base+s.ip] && !bytes.Equal(b[:], s.code) {
			return false
		}
	}
	return true
}
