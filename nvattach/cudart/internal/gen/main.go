// Command gen makes the table of package cudart. It reads static libraries of the CUDA runtime, and
// keeps names, sizes and hashes.
//
//	gen facts -release 13.1.80 -from PACKAGE -archive libcudart_static.a [-facts DIR]   adds a release
//	gen check -release 13.1.80 -from PACKAGE -archive libcudart_static.a [-facts DIR]   compares one
//	gen pack  FACTS OUTPUT                                                              packs the facts
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/internal/gen/command"
	"nvtrace/nvattach/cudart"
)

func main() { generator().Main() }

func generator() *command.Generator {
	return &command.Generator{
		Sources: "-release N.N.N -from PACKAGE -archive libcudart_static.a",
		Facts:   "nvattach/cudart/facts",
		Flags: func(fl *flag.FlagSet) func(io.Writer, string, bool) (int, error) {
			release := fl.String("release", "", "the release, as 13.1.80")
			from := fl.String("from", "", "the package that the archive is of")
			archive := fl.String("archive", "", "libcudart_static.a")
			return func(out io.Writer, dir string, check bool) (int, error) {
				if *release == "" || *archive == "" || *from == "" {
					return 0, command.ErrUsage
				}
				return add(out, &source{release: *release, from: *from}, *archive, dir, check)
			}
		},
		Encode: func(dir string) ([]byte, error) {
			f, err := readFacts(dir)
			if err != nil {
				return nil, err
			}
			return f.table().Encode()
		},
		// Another version of Go may compress in another way: what is up to date stays.
		Equal: func(old, packed []byte) bool {
			a, err1 := cudart.Decode(old)
			b, err2 := cudart.Decode(packed)
			return err1 == nil && err2 == nil && fmt.Sprint(a) == fmt.Sprint(b)
		},
	}
}

// source is where a release's facts are from.
type source struct {
	release, from, sum string // sum: the archive's SHA-256
}

// facts are what is known: of each signature, as a line of text has it, its releases.
type facts struct {
	sources []source
	lines   map[string][]string
}

// add adds a release, or compares it with the facts.
func add(out io.Writer, s *source, archive, dir string, check bool) (differ int, err error) {
	f, err := readFacts(dir)
	if errors.Is(err, fs.ErrNotExist) && !check {
		f, err = &facts{lines: map[string][]string{}}, nil
	}
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(archive)
	if err != nil {
		return 0, err
	}
	s.sum = fmt.Sprintf("%x", sha256.Sum256(b))
	list, err := signatures(b)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", archive, err)
	}
	fmt.Fprintf(out, "%s: %d functions\n", s.release, len(list))
	have := map[string]bool{}
	for _, line := range list {
		have[line] = true
	}
	for line, releases := range f.lines {
		if slices.Contains(releases, s.release) != have[line] {
			differ++
		}
	}
	for line := range have {
		if f.lines[line] == nil {
			differ++
		}
	}
	if check {
		return differ, nil
	}
	for line, releases := range f.lines {
		f.lines[line] = slices.DeleteFunc(releases, func(r string) bool { return r == s.release })
	}
	for line := range have {
		f.lines[line] = append(f.lines[line], s.release)
	}
	f.sources = append(slices.DeleteFunc(f.sources, func(o source) bool { return o.release == s.release }), *s)
	return 0, f.write(dir)
}

// compare orders releases.
func compare(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m - n
		}
	}
	return len(x) - len(y)
}

// The files of a folder of facts.
const (
	sourcesFile = "sources.txt"
	factsFile   = "signatures.txt"
)

func readFacts(dir string) (*facts, error) {
	f := &facts{lines: map[string][]string{}}
	b, err := os.ReadFile(filepath.Join(dir, sourcesFile))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) != 3 {
			return nil, fmt.Errorf("%s: %q is no release, package and sum", sourcesFile, line)
		}
		f.sources = append(f.sources, source{w[0], w[1], w[2]})
	}
	if b, err = os.ReadFile(filepath.Join(dir, factsFile)); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		at := strings.LastIndexByte(line, ' ')
		f.lines[line[:max(at, 0)]] = strings.Split(strings.TrimSpace(line[at+1:]), ",")
	}
	return f, nil
}

func (f *facts) write(dir string) error {
	slices.SortFunc(f.sources, func(a, b source) int { return compare(a.release, b.release) })
	var sources, lines []string
	for _, s := range f.sources {
		sources = append(sources, fmt.Sprintf("%s %s %s\n", s.release, s.from, s.sum))
	}
	for line, releases := range f.lines {
		if len(releases) > 0 {
			slices.SortFunc(releases, compare)
			lines = append(lines, line+" "+strings.Join(releases, ",")+"\n")
		}
	}
	slices.Sort(lines)
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, sourcesFile), []byte(strings.Join(sources, "")), 0o644),
		os.WriteFile(filepath.Join(dir, factsFile), []byte(strings.Join(lines, "")), 0o644))
}

// table makes what is packed.
func (f *facts) table() *cudart.Table {
	t := new(cudart.Table)
	places := map[string]uint16{}
	for i, s := range f.sources {
		places[s.release] = uint16(i)
		t.Releases = append(t.Releases, s.release)
	}
	for line, releases := range f.lines {
		s := parse(line)
		for _, r := range releases {
			s.Releases = append(s.Releases, places[r])
		}
		slices.Sort(s.Releases)
		t.Signatures = append(t.Signatures, s)
	}
	slices.SortFunc(t.Signatures, func(a, b cudart.Signature) int { return strings.Compare(format(&a), format(&b)) })
	return t
}

// format writes a signature: name, size, sum, and of each part that linkers change its offset and length.
func format(s *cudart.Signature) string {
	var mask []string
	for _, r := range s.Mask {
		mask = append(mask, fmt.Sprintf("%x+%x", r.Off, r.Len))
	}
	return fmt.Sprintf("%s %d %016x %s", s.Name, s.Size, s.Sum, strings.Join(append(mask, "."), ","))
}

// parse reads what format has written.
func parse(line string) (s cudart.Signature) {
	var mask string
	if _, err := fmt.Sscanf(line, "%s %d %x %s", &s.Name, &s.Size, &s.Sum, &mask); err != nil {
		panic(fmt.Sprintf("BUG: %q: %v", line, err))
	}
	for part := range strings.SplitSeq(mask, ",") {
		var r cudart.Range
		if n, _ := fmt.Sscanf(part, "%x+%x", &r.Off, &r.Len); n == 2 {
			s.Mask = append(s.Mask, r)
		}
	}
	return s
}

// object returns the object of the runtime in an archive.
func object(b []byte) ([]byte, error) {
	const magic, headLen = "!<arch>\n", 60
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, errors.New("no archive")
	}
	for b = b[len(magic):]; len(b) >= headLen; {
		size, err := strconv.Atoi(strings.TrimSpace(string(b[48:58])))
		if err != nil || size > len(b)-headLen {
			return nil, errors.New("a damaged archive")
		}
		if body := b[headLen:][:size]; bytes.HasPrefix(body, []byte(elf.ELFMAG)) {
			return body, nil
		}
		b = b[min(headLen+size+size%2, len(b)):]
	}
	return nil, errors.New("no object in the archive")
}

// internal are the names that CUDA 11 gives functions which are not public.
var internal = regexp.MustCompile(`^__cudart\d+$`)

// signatures returns those of the runtime's public functions in an archive, as lines.
func signatures(archive []byte) ([]string, error) {
	b, err := object(archive)
	if err != nil {
		return nil, err
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	symbols, err := e.Symbols()
	if err != nil {
		return nil, err
	}
	changed := map[int][]cudart.Range{} // by section
	for _, s := range e.Sections {
		if s.Type != elf.SHT_RELA { //nolint:misspell // ELF's name
			continue
		}
		data, err := s.Data()
		if err != nil {
			return nil, err
		}
		for ; len(data) >= 24; data = data[24:] {
			off, info := e.ByteOrder.Uint64(data), e.ByteOrder.Uint64(data[8:])
			changed[int(s.Info)] = append(changed[int(s.Info)], relocated(off, elf.R_X86_64(info&0xffffffff)))
		}
	}
	var list []string
	for i := range symbols {
		s := &symbols[i]
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 || int(s.Section) >= len(e.Sections) || !strings.HasPrefix(strings.TrimPrefix(s.Name, "__"), "cuda") || internal.MatchString(s.Name) || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		section := e.Sections[s.Section]
		code := make([]byte, s.Size)
		if _, err := section.ReadAt(code, int64(s.Value)); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		sig := cudart.Signature{Name: s.Name, Size: uint32(s.Size), Mask: masked(changed[int(s.Section)], uint32(s.Value), uint32(s.Size))}
		sig.Sum = sig.Of(code)
		list = append(list, format(&sig))
	}
	return list, nil
}

// relocated returns what linkers may change for a relocation.
func relocated(off uint64, kind elf.R_X86_64) cudart.Range {
	r := cudart.Range{Off: uint32(off), Len: 4}
	switch kind {
	case elf.R_X86_64_64:
		r.Len = 8
	case elf.R_X86_64_GOTPCREL, elf.R_X86_64_GOTPCRELX, elf.R_X86_64_REX_GOTPCRELX: // and the instruction
		r.Off, r.Len = r.Off-3, 7
	case elf.R_X86_64_TLSGD, elf.R_X86_64_TLSLD, elf.R_X86_64_DTPOFF32, elf.R_X86_64_GOTTPOFF, elf.R_X86_64_TPOFF32: // and those around
		r.Off, r.Len = r.Off-8, 20
	}
	return r
}

// masked returns the ranges within a function, apart and in order.
func masked(list []cudart.Range, from, size uint32) (out []cudart.Range) {
	for _, r := range list {
		lo, hi := max(int64(r.Off)-int64(from), 0), min(int64(r.Off)+int64(r.Len)-int64(from), int64(size))
		if lo < hi {
			out = append(out, cudart.Range{Off: uint32(lo), Len: uint32(hi - lo)})
		}
	}
	slices.SortFunc(out, func(a, b cudart.Range) int { return int(a.Off) - int(b.Off) })
	n := 0
	for i, r := range out { // those that meet are one
		if last := &out[max(n-1, 0)]; i > 0 && r.Off <= last.Off+last.Len {
			last.Len = max(last.Len, r.Off+r.Len-last.Off)
			continue
		}
		out[n] = r
		n++
	}
	return out[:n]
}
