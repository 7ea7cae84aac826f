package fatbin

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Options of reading; nil is the zero value.
type Options struct {
	// MaxEntry bounds the content of one entry, in bytes; 0: 1 GiB.
	MaxEntry int64
	// Budget bounds the content of all entries that are decompressed with it, by as
	// many goroutines as there are; nil: each entry has one of its own.
	Budget *Budget
	// Everywhere looks for containers in all of a host file, and not just in
	// the sections that are made for them. Files without such sections are
	// searched anyway.
	Everywhere bool
}

func (o *Options) maxEntry() uint64 {
	if o == nil || o.MaxEntry <= 0 {
		return 1 << 30
	}
	return uint64(o.MaxEntry)
}

// ErrBudget says that the content of a file's entries is larger than so few bytes
// hold but for the purpose: a KiB of zstd can make 32 MiB. [ErrTooLarge] is in the
// chain, too.
var ErrBudget = fmt.Errorf("more content than such a file should hold: %w", ErrTooLarge)

// Budget bounds how much is decompressed.
type Budget struct {
	total int64
	left  atomic.Int64
}

// NewBudget returns a Budget of total bytes.
func NewBudget(total int64) *Budget {
	b := &Budget{total: total}
	b.left.Store(total)
	return b
}

// DefaultBudget returns how many bytes the entries in so many stored ones may
// decompress to: what compilers make has a tenth of that, at most.
func DefaultBudget(stored int64) int64 {
	const slack, ratio = 16 << 20, 256
	if stored > (math.MaxInt64-slack)/ratio {
		return math.MaxInt64
	}
	return slack + ratio*max(stored, 0)
}

func (b *Budget) take(n uint64) error {
	if n > math.MaxInt64 || b.left.Add(-int64(n)) < 0 {
		return fmt.Errorf("%d bytes: %w (limit %d)", n, ErrBudget, b.total)
	}
	return nil
}

// File is a file that holds code for GPUs, or may. It holds no more memory than
// tables of contents; the file itself is mapped. A File may be read by several
// goroutines.
type File struct {
	name   string
	data   []byte
	mapped bool
	opts   Options
	format Format
}

// Open maps a regular file. Close it after use. A file of an unknown format
// opens, and has no containers.
//
// What is reached through the File aliases the mapping and may not be used
// after Close. If another process shortens the file meanwhile, reading what is
// gone faults; [File.Guard] makes an error of that.
func Open(name string, o *Options) (*File, error) {
	// A named pipe opens without a writer, to be refused.
	fd, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	st, err := fd.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	size := st.Size()
	if size != int64(int(size)) {
		return nil, fmt.Errorf("%s: %d bytes: %w", name, size, ErrTooLarge)
	}
	var data []byte
	if size > 0 {
		data, err = unix.Mmap(int(fd.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("%s: mmap: %w", name, err)
		}
	}
	f := NewFile(name, data, o)
	f.mapped = len(data) > 0
	return f, nil
}

// NewFile makes a File of bytes in memory; name is for messages.
func NewFile(name string, data []byte, o *Options) *File {
	f := &File{name: name, data: data, format: Sniff(data)}
	if o != nil {
		f.opts = *o
	}
	return f
}

// Close unmaps the file.
func (f *File) Close() error {
	if !f.mapped {
		return nil
	}
	f.mapped = false
	data := f.data
	f.data = nil
	if err := unix.Munmap(data); err != nil {
		return fmt.Errorf("%s: munmap: %w", f.name, err)
	}
	return nil
}

// Guard calls fn and returns its error. If the mapped file shrinks and fn reads
// what is gone, Guard returns an error, where otherwise the process would end.
// What fn does in other goroutines is not guarded.
func (f *File) Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if _, fault := r.(interface{ Addr() uintptr }); !fault {
			panic(r)
		}
		err = fmt.Errorf("%s: the file shrank while it was read", f.name)
	}()
	return fn()
}

// Name returns the name that the file was opened by.
func (f *File) Name() string { return f.name }

// Size returns the file's size in bytes.
func (f *File) Size() int64 { return int64(len(f.data)) }

// Format says what the file is, by its first bytes.
func (f *File) Format() Format { return f.format }

// Containers walks the containers in the file's order, without decompressing.
// Errors (with a nil or an incomplete container) don't end the walk: what is
// damaged is passed over, and the next container is looked for.
//
// A bare cubin or PTX text is yielded as a container that [NewEntry] made, with
// Offset -1. Archives are walked member by member.
func (f *File) Containers() iter.Seq2[*Container, error] {
	return func(yield func(*Container, error) bool) {
		w := walk{file: f, yield: yield}
		if f.format != FormatArchive {
			w.part("", f.data, 0)
			return
		}
		for m, err := range archiveMembers(f.data) {
			if err != nil {
				w.send(nil, err)
				return
			}
			if !w.part(m.name, m.data, m.offset) {
				return
			}
		}
	}
}

// walk is one run over a file's containers.
type walk struct {
	file   *File
	yield  func(*Container, error) bool
	member string
}

// send yields, with the file's name before the error.
func (w *walk) send(c *Container, err error) bool {
	if err != nil {
		name := w.file.name
		if w.member != "" {
			name += "(" + w.member + ")"
		}
		err = fmt.Errorf("%s: %w", name, err)
	}
	return w.yield(c, err)
}

// part walks a file or a member of an archive. False: the consumer wants no more.
func (w *walk) part(member string, data []byte, base int64) bool {
	w.member = member
	switch format := Sniff(data); format {
	case FormatHost:
		return w.host(data, base)
	case FormatContainer:
		return w.region(region{data: data, base: base, strict: true})
	case FormatCubin, FormatPTX:
		return w.bare(format, data)
	case FormatOldContainer:
		return w.send(nil, formatError("container", uint64(base), "a fat binary of CUDA 3 or older (magic 0x%08x), which can't be read", uint32(oldMagic)))
	}
	if w.file.opts.Everywhere {
		return w.region(region{data: data, base: base})
	}
	return true
}

func (w *walk) bare(format Format, data []byte) bool {
	kind, arch := KindPTX, Arch{}
	if format == FormatCubin {
		kind = KindELF
		c, err := ParseCubin(data)
		if c == nil {
			return w.send(nil, err)
		}
		arch = c.Arch
	} else if target, _, _ := strings.Cut(ScanPTX(data).Target, ","); target != "" {
		arch, _ = ParseArch(strings.TrimSpace(target))
	}
	e, err := NewEntry(kind, arch, data, nil)
	if err != nil {
		return w.send(nil, err)
	}
	return w.send(&Container{Offset: -1, Member: w.member, Entries: []Entry{e}}, nil)
}

// fatSections are the sections that nvcc puts containers in: those of final and
// of relocatable (-rdc) code.
var fatSections = [...]string{".nv_fatbin", "__nv_relfatbin"}

func (w *walk) host(data []byte, base int64) bool {
	f, err := parseELF("ELF", data)
	if err != nil && !w.send(nil, err) {
		return false
	}
	found := false
	if err == nil && !w.file.opts.Everywhere {
		for i := range f.sections {
			s := &f.sections[i]
			if s.Name != fatSections[0] && s.Name != fatSections[1] || s.Type == shtNobits {
				continue
			}
			found = true
			b := f.bytes(uint32(i))
			if b == nil && s.Size > 0 {
				if !w.send(nil, formatError("section "+s.Name, s.Offset, "0x%x bytes, past the end of the file", s.Size)) {
					return false
				}
				continue
			}
			if !w.region(region{data: b, base: base + int64(s.Offset), section: s.Name, strict: true}) {
				return false
			}
		}
	}
	if found {
		return true
	}
	return w.region(region{data: data, base: base, elf: f})
}

// region is a range of bytes to look for containers in.
type region struct {
	data    []byte
	base    int64 // file offset of data
	section string
	elf     *elfFile // to name sections by offset, may be nil
	// strict: containers and zeros are all that should be there, and the rest
	// is an error. Otherwise whatever parses without an error is a container.
	strict bool
}

// containerStart begins every container: magic, version, header size.
var containerStart = []byte{0x50, 0xed, 0x55, 0xba, containerVersion, 0, containerHeader, 0}

func (w *walk) region(r region) bool {
	for p := 0; p < len(r.data); {
		gap := 0
		if !bytes.HasPrefix(r.data[p:], containerStart) {
			if gap = bytes.Index(r.data[p:], containerStart); gap < 0 {
				gap = len(r.data) - p
			}
		}
		if r.strict && gap > 0 && !allZero(r.data[p:p+gap]) {
			err := formatError("container", uint64(r.base)+uint64(p), "%d bytes that are neither a container nor padding", gap)
			if !w.send(nil, err) {
				return false
			}
		}
		if p += gap; p == len(r.data) {
			break
		}
		c, n, err := ParseContainer(r.data[p:])
		if err != nil && !r.strict {
			p += len(containerStart)
			continue
		}
		if c != nil {
			c.Offset, c.Member, c.Section = r.base+int64(p), w.member, r.section
			if r.elf != nil {
				c.Section = r.elf.sectionAt(uint64(p))
			}
		}
		if err != nil {
			err = fmt.Errorf("+0x%x: %w", r.base+int64(p), err)
		}
		if !w.send(c, err) {
			return false
		}
		p += max(n, len(containerStart))
	}
	return true
}

// sectionAt names the section that an offset in the file is in.
func (f *elfFile) sectionAt(off uint64) string {
	for i := range f.sections {
		s := &f.sections[i]
		if s.Type != shtNobits && s.Type != 0 && off >= s.Offset && off-s.Offset < s.Size {
			return s.Name
		}
	}
	return ""
}
