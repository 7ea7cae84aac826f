package script

import (
	"slices"

	"github.com/cilium/ebpf"

	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// A Program is one that was compiled.
type Program struct {
	// Object is what goes into kernels; nil if the program has BEGIN and END only.
	Object *object.Object
	// Sites returns the places that programs were put at, as [nvattach.Plan.Sites] does.
	// It must be set before anything is shown that names them.
	Sites func() []nvattach.Site
	// Name says what the function is called that an address of a process is in; returned, that the
	// address is behind a call. Without it addresses are numbers.
	Name func(pid int, addr uint64, returned bool) string

	probes   []*probe
	maps     []*mapInfo
	strings  []string
	formats  []*call // printf of kernels, by number
	maxKeys  int64   // of config, 0: not set
	argUses  []ArgUse
	stacksAt []string
	start    int64
	atIoctls bool // stacks are asked for at ioctls
	ranges   bool // NVTX ranges are asked for
	stacks   bool // ustack is asked for at functions and system calls
	native   bool // and at calls of CUDA's libraries
	texts    bool // texts of the program's memory are asked for
	warnings []string
	places   map[string]string // of eBPF programs: the probe as it is written
	elapsed  int64             // of intervals, as far as maps of kernels were shown
	warned   map[string]uint64 // by a map's name: how many insertions without room were told of while the program ran
	lexer    *lexer
}

// describeMaps adds the definitions of the maps. What has no keys is an array, whose
// counters cost least.
func (p *Program) describeMaps(spec *ebpf.CollectionSpec) {
	for _, m := range p.maps {
		if !m.side.compiled() {
			continue
		}
		s := &ebpf.MapSpec{Name: m.name, ValueSize: uint32(8 * m.words())}
		if m.array() {
			s.Type, s.KeySize, s.MaxEntries = ebpf.Array, 4, uint32(m.buckets())
		} else {
			s.Type, s.KeySize, s.MaxEntries = ebpf.Hash, uint32(8*len(m.keys)), uint32(p.keys(m))
			if m.buckets() > 1 {
				s.KeySize += 8
			}
		}
		spec.Maps[m.name] = s
	}
	if p.stacks {
		spec.Maps[stacksName] = &ebpf.MapSpec{Name: stacksName, Type: ebpf.StackTrace, KeySize: 4, ValueSize: 8 * stackFrames, MaxEntries: maxStacks}
	}
	if p.texts {
		spec.Maps[textsName] = &ebpf.MapSpec{Name: textsName, Type: ebpf.Hash, KeySize: textBytes, ValueSize: 8, MaxEntries: maxTexts}
		spec.Maps[countName] = &ebpf.MapSpec{Name: countName, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	}
	if len(p.formats) > 0 {
		spec.Maps[ringName] = &ebpf.MapSpec{Name: ringName, Type: ebpf.RingBuf, MaxEntries: ringBytes}
	}
}

// constant returns the number of a text of the program's own.
func (p *Program) constant(s string) int64 {
	i := slices.Index(p.strings, s)
	if i < 0 {
		i = len(p.strings)
		p.strings = append(p.strings, s)
	}
	return int64(i + 1)
}

// keys returns how many keys a map has room for.
func (p *Program) keys(m *mapInfo) int64 {
	switch {
	case p.maxKeys > 0:
		return p.maxKeys
	case m.deleted:
		return fleetingKeys
	}
	return defaultKeys
}

// Warnings say what is likely to be a mistake, though it is none of the language's.
func (p *Program) Warnings() []string { return p.warnings }

// Place returns the probe that one of the object's programs is of, as it is written.
func (p *Program) Place(program string) string { return p.places[program] }

// Owns reports whether a map is the program's, which then shows it.
func (p *Program) Owns(m *mapmem.Map) bool { return p.Object != nil && m.Object == p.Object }
