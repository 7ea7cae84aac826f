package object

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Limits of what an object may hold. They bound memory and time, and are far
// above what compilers make of real probes.
const (
	maxObjectBytes  = 64 << 20
	maxZeroBytes    = 64 << 20 // of .bss and other sections that take no room in the file
	maxObjectMaps   = 256
	maxObjectProgs  = 1024
	maxObjectInsns  = 1 << 20
	maxSectionCount = 1 << 14
)

// ErrObject is in the chain of errors about a file that is not an eBPF object,
// or not one that can be used.
var ErrObject = errors.New("not a usable eBPF object")

// An Object is an ELF file with eBPF programs and maps, as clang makes it.
type Object struct {
	Name     string         // as given to Load
	Programs []*Program     // for a GPU, in the order of their names
	Host     []*HostProgram // for the host, likewise
	Ignored  []Ignored      // those that are not run
	sources  []*HostSource
	loose    []*HostProgram // of these, the ones that only need a place; see PlaceProgram
	Maps     []*MapDef      // data sections included, in the order of their names
	Vars     []Var          // global variables that can be set
	// Script says that it is made of a program of package script: that shows sites by what
	// they are, so that nobody needs a list of their numbers, and its author writes no C.
	Script bool
	// Own says that it is nvtrace's own, beside what its user attaches: what is chosen of kernels and
	// programs does not concern it, and its maps are not shown.
	Own bool
	// Beside has its programs run in those kernels only in which others do.
	Beside bool
}

// A Program is one that runs on a GPU.
type Program struct {
	Name    string
	Section string
	Point   Point
	// Insns are its instructions, those of the functions it calls behind them,
	// as cilium/ebpf's loader links them; source lines are in the metadata.
	Insns  asm.Instructions
	Object *Object
}

// An Ignored is a program of an object that is not run, and why.
type Ignored struct{ Name, Section, Reason string }

// TailCalled reports whether an array of programs has the program. It runs where it is called, then, also
// if it is one of those that are ignored because their section says no place.
func (o *Object) TailCalled(name string) bool {
	return slices.ContainsFunc(o.Maps, func(m *MapDef) bool {
		return slices.Contains(slices.Collect(maps.Values(m.Programs)), name)
	})
}

// A Var is a global variable.
type Var struct {
	Name    string
	Map     *MapDef // the section it is in
	Offset  uint32
	Size    uint32
	Type    btf.Type // nil without BTF
	Const   bool     // in .rodata
	Initial []byte   // its value in the file
}

// Open loads the object in a file. Its programs may be for events of the sources, beside
// what the package knows.
func Open(name string, sources ...*HostSource) (*Object, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxObjectBytes {
		return nil, Markf(ErrObject, "%s: %d bytes and mode %v, but it must be a regular file of at most %d bytes", name, st.Size(), st.Mode(), maxObjectBytes)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return Load(name, data, sources...)
}

// Load reads an object; name is for messages. Programs for the host are no
// error, see [Object.Ignored]. An error has ErrObject in its chain and says in one
// line what is wrong with the file.
func Load(name string, data []byte, sources ...*HostSource) (o *Object, err error) {
	if err := checkSources(sources); err != nil {
		return nil, err
	}
	defer func() {
		// debug/elf and the BTF reader index what a file says in places.
		if r := recover(); r != nil {
			o, err = nil, Markf(ErrObject, "%s: damaged (%v)", name, r)
		}
	}()
	f, err := checkELF(data)
	if err != nil {
		return nil, Markf(ErrObject, "%s: %s", name, oneLine(err))
	}
	data = strongMaps(data, f)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
	if err != nil && strings.Contains(err.Error(), "missing BTF") {
		err = fmt.Errorf("%w; maps are described by types: build it with clang -g", err)
	}
	if err != nil {
		return nil, Markf(ErrObject, "%s: %s", name, oneLine(err))
	}
	useUSDT(spec)
	o = &Object{Name: name, sources: sources}
	if err := o.fill(spec); err != nil {
		return nil, Markf(ErrObject, "%s: %s", name, oneLine(err))
	}
	return o, nil
}

// New makes an object of programs and maps that come from no file, as
// [Load] does of those of one; name is for messages.
func New(name string, spec *ebpf.CollectionSpec) (*Object, error) {
	o := &Object{Name: name}
	if err := o.fill(spec); err != nil {
		return nil, Markf(ErrObject, "%s: %s", name, oneLine(err))
	}
	return o, nil
}

// oneLine returns an error's text in one line of bounded length.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > 400 {
		s = s[:400] + "…"
	}
	return s
}

// checkELF refuses what the loader would spend memory on without bound, and says
// clearly what a file is that is no object at all.
func checkELF(data []byte) (*elf.File, error) {
	if len(data) > maxObjectBytes {
		return nil, fmt.Errorf("%d bytes, more than %d", len(data), maxObjectBytes)
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		if len(data) < 4 || string(data[:4]) != elf.ELFMAG {
			return nil, errors.New("no ELF file; build it with clang -target bpf -g -O2")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("what its header says lies beyond the file's %d bytes: truncated?", len(data))
		}
		return nil, err
	}
	switch {
	case f.Machine != elf.EM_BPF && f.Machine != elf.EM_NONE:
		return nil, fmt.Errorf("made for %v; build it with clang -target bpf -g -O2", f.Machine)
	case f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian:
		return nil, fmt.Errorf("%v, %v; a GPU needs a 64-bit little-endian object", f.Class, f.Data)
	case f.Type != elf.ET_REL:
		return nil, fmt.Errorf("%v; it must be relocatable, as clang -c makes it", f.Type)
	case len(f.Sections) > maxSectionCount:
		return nil, fmt.Errorf("%d sections, more than %d", len(f.Sections), maxSectionCount)
	}
	zero := uint64(0)
	for _, s := range f.Sections {
		switch {
		case s.Flags&elf.SHF_COMPRESSED != 0:
			return nil, fmt.Errorf("section %q is compressed", s.Name)
		case s.Type == elf.SHT_NOBITS:
			zero += min(s.Size, maxZeroBytes+1)
		case s.Type != elf.SHT_NULL && (s.Offset > uint64(len(data)) || s.FileSize > uint64(len(data))-s.Offset):
			return nil, fmt.Errorf("section %q: %d bytes at %#x, beyond the file's %d bytes: truncated?", s.Name, s.FileSize, s.Offset, len(data))
		}
	}
	if zero > maxZeroBytes {
		return nil, fmt.Errorf("more than %d bytes of .bss", maxZeroBytes)
	}
	return f, nil
}

func (o *Object) fill(spec *ebpf.CollectionSpec) error {
	if len(spec.Maps) > maxObjectMaps {
		return fmt.Errorf("%d maps, more than %d", len(spec.Maps), maxObjectMaps)
	}
	if len(spec.Programs) > maxObjectProgs {
		return fmt.Errorf("%d programs, more than %d", len(spec.Programs), maxObjectProgs)
	}
	insns := 0
	for _, name := range sortedKeys(spec.Programs) {
		p := spec.Programs[name]
		if insns += len(p.Instructions); insns > maxObjectInsns {
			return fmt.Errorf("more than %d instructions", maxObjectInsns)
		}
		pt, err := ParsePoint(p.SectionName, name)
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		if pt.Kind == KindNone {
			o.addHost(name, p)
			continue
		}
		o.Programs = append(o.Programs, &Program{Name: name, Section: p.SectionName, Point: pt, Insns: p.Instructions, Object: o})
	}
	for _, name := range sortedKeys(spec.Maps) {
		m, err := newMapDef(name, spec.Maps[name])
		if err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
		o.Maps = append(o.Maps, m)
	}
	for _, m := range o.Maps {
		for i, name := range m.Maps {
			if err := o.putMap(m, i, name); err != nil {
				return fmt.Errorf("map %s: %w", m.Name, err)
			}
		}
	}
	for _, name := range sortedKeys(spec.Variables) {
		v := spec.Variables[name]
		m := o.Map(v.SectionName)
		if m == nil || m.Thread {
			continue // its section is not referred to, or each thread has its own
		}
		x := Var{Name: name, Map: m, Offset: v.Offset, Size: uint32(len(v.Value)), Const: m.ReadOnly, Initial: v.Value}
		if v.Type != nil {
			x.Type = v.Type.Type
		}
		o.Vars = append(o.Vars, x)
	}
	return nil
}

// putMap makes a map of the object a value of another, an array of maps.
func (o *Object) putMap(m *MapDef, i uint32, name string) error {
	d := o.Map(name)
	switch {
	case d == nil:
		return fmt.Errorf("there is no map %s to be its value", name)
	case i >= m.MaxEntries:
		return fmt.Errorf("an index of %d; it has %d entries", i, m.MaxEntries)
	}
	if err := m.fits(d); err != nil {
		return err
	}
	m.put(i, name)
	return nil
}

// addHost adds a program that is none for a GPU.
func (o *Object) addHost(name string, p *ebpf.ProgramSpec) {
	at, err := parseHost(p.SectionName, o.sources)
	switch {
	case err != nil:
		o.Ignored = append(o.Ignored, Ignored{Name: name, Section: p.SectionName, Reason: o.loosen(name, p, err.Error())})
	case at.Kind == HostNone:
		o.Ignored = append(o.Ignored, Ignored{Name: name, Section: p.SectionName, Reason: o.loosen(name, p, ignoredReason(p.SectionName))})
	default:
		o.Host = append(o.Host, &HostProgram{Name: name, Section: p.SectionName, Point: at, Insns: p.Instructions, Object: o})
	}
}

// looseKinds are the kinds of sections whose programs a loader of their own may put at a
// function.
var looseKinds = map[string]HostKind{"uprobe": HostEntry, "ureplace": HostEntry, "uprobe_override": HostEntry, "uretprobe": HostReturn, "usdt": HostUSDT, "kprobe": HostEntry, "kretprobe": HostReturn}

// loosen keeps a program that could run if somebody said where, and has why it is not run say so.
func (o *Object) loosen(name string, p *ebpf.ProgramSpec, why string) string {
	if kind := looseKinds[sectionKind(p.SectionName)]; kind != HostNone {
		if !strings.Contains(why, "--at ") {
			why += "; --at PROGRAM=FILE:FUNCTION has it run at a function"
		}
		o.loose = append(o.loose, &HostProgram{Name: name, Section: p.SectionName, Point: HostPoint{Kind: kind, Replace: sectionKind(p.SectionName) == "ureplace"}, Insns: p.Instructions, Object: o})
	}
	return why
}

// PlaceProgram says where a program runs, "PROGRAM=FILE:FUNCTION", as a section would: one
// whose section does not, or another place than that says; ",cookie=NUMBER" behind it is what
// bpf_get_attach_cookie returns there. A program that has been placed already runs there, too.
// ErrSetting is in the chain of the error.
func PlaceProgram(objs []*Object, text string) error {
	name, target, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return Markf(ErrSetting, "%s: want PROGRAM=FILE:FUNCTION", text)
	}
	var names []string
	for _, o := range objs {
		for _, p := range slices.Concat(o.Host, o.loose) {
			if p.Name != name {
				names = append(names, p.Name)
				continue
			}
			if !p.Point.Function() {
				return Markf(ErrSetting, "%s: %s in section %q runs at system calls", text, name, p.Section)
			}
			if k := p.Point.Kind; k != HostEntry && k != HostReturn && k != HostUSDT {
				return Markf(ErrSetting, "%s: %s in section %q runs at no function of a file", text, name, p.Section)
			}
			target, cookie, err := cutCookie(target)
			if err != nil {
				return Markf(ErrSetting, "%s: %v", text, err)
			}
			parse := parseFunction
			switch {
			case p.Point.Replace:
				parse = parseReplace
			case p.Point.Kind == HostUSDT:
				parse = parseUSDT
			}
			at, err := parse(p.Point.Kind, target)
			if err != nil {
				return Markf(ErrSetting, "%s: %v", text, err)
			}
			if p.placed++; p.placed > 1 {
				again := *p
				again.Name = fmt.Sprintf("%s#%d", name, p.placed)
				p = &again
			}
			p.Point, p.Cookie = at, cookie
			if !slices.Contains(o.Host, p) {
				o.Host = append(o.Host, p)
				slices.SortFunc(o.Host, func(a, b *HostProgram) int { return cmp.Compare(a.Name, b.Name) })
				o.Ignored = slices.DeleteFunc(o.Ignored, func(i Ignored) bool { return i.Name == name })
			}
			return nil
		}
	}
	return Markf(ErrSetting, "%s: no program for functions on the host is called %s%s", text, name, Known("; there are ", names))
}

// cutCookie takes the cookie off a place.
func cutCookie(target string) (place string, cookie uint64, err error) {
	const mark = ",cookie="
	i := strings.LastIndex(target, mark)
	if i < 0 {
		return target, 0, nil
	}
	cookie, err = strconv.ParseUint(target[i+len(mark):], 0, 64)
	if err != nil {
		return "", 0, fmt.Errorf("cookie %s is no number of 64 bits", target[i+len(mark):])
	}
	return target[:i], cookie, nil
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// ignoredReason says why a program is neither for a GPU nor for the host.
func ignoredReason(section string) string {
	kind, _, _ := strings.Cut(section, "/")
	switch kind {
	case "kprobe", "kretprobe":
		return "a program for the kernel: one for a GPU in such a section has a name that begins with " + gpuProgram + ", or is in a section cuda.…"
	}
	return fmt.Sprintf("programs of kind %s are not supported; on the host there are uprobe, uretprobe, usdt, tracepoint/syscalls and tracepoint/raw_syscalls, in kernels cuda.entry, cuda.exit, cuda.mem, cuda.insn and cuda.block", kind)
}

// Map returns the map of that name, or nil.
func (o *Object) Map(name string) *MapDef {
	i, ok := slices.BinarySearchFunc(o.Maps, name, func(m *MapDef, n string) int { return cmp.Compare(m.Name, n) })
	if !ok {
		return nil
	}
	return o.Maps[i]
}

// Program returns the program of that name, or nil.
func (o *Object) Program(name string) *Program {
	for _, p := range o.Programs {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// CheckBlocks refuses maps of blocks that are too large together.
func CheckBlocks(objs []*Object) error {
	size := uint64(0)
	for _, o := range objs {
		for _, d := range o.Maps {
			if d.PerBlock() {
				size += d.BlockBytes()
			}
		}
	}
	if size > maxBlockBytes {
		return fmt.Errorf("the maps of type %s take %d bytes of each block's shared memory, and %d is the most", MapBlockArray, size, maxBlockBytes)
	}
	return nil
}

// CheckPlace refuses a map for a program that can't have it where it runs.
func (m *MapDef) CheckPlace(p *Program) error {
	if !m.PerBlock() {
		return nil
	}
	why := ""
	switch {
	case p.Point.Func:
		why = "device functions, which kernels call that do not begin with such a map"
	case p.Point.Kind == KindCapture || p.Point.Kind == KindRun:
		why = p.Point.String()
	default:
		return nil
	}
	return fmt.Errorf("program %s: map %s has type %s, which programs in %s can't have", p.Name, m.Name, m.Type, why)
}

// A HostProgram is one that runs on the host.
type HostProgram struct {
	Name    string
	Section string
	Point   HostPoint
	Insns   asm.Instructions
	Object  *Object
	Cookie  uint64 // what bpf_get_attach_cookie returns

	placed int // how often PlaceProgram was told where it runs
}

// Reached lists a map and, of an array of maps, those that are in it.
func (o *Object) Reached(d *MapDef) []*MapDef {
	list := []*MapDef{d}
	for _, name := range d.Maps {
		list = append(list, o.Map(name))
	}
	return list
}
