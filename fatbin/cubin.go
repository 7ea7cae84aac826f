package fatbin

import (
	"fmt"
	"slices"
	"strings"
)

// Cubin is an ELF file with machine code for one GPU architecture.
//
// There are two generations. Tools up to CUDA 12 write ABI version 7, with the
// toolkit's version in the ELF version field; those of CUDA 13 write ABI version
// 8, with both in notes. Slices and values alias the image.
type Cubin struct {
	ABI         int    // 7, or 8 from CUDA 13 on
	Arch        Arch   // the suffix is "" in files of ABI 8 without a note
	ELFFlags    uint32 // as they are
	Relocatable bool   // to be linked (-rdc), as opposed to final
	Toolkit     string // "12.4"; "" if the file doesn't say
	Producer    string // the tool that wrote it and its version, where a note says
	Options     string // what the tool was called with, where a note says
	Kernels     []Kernel
	Functions   []Function // device functions that were not inlined
	Variables   []Variable // __device__, __constant__ and __shared__ variables
	References  bool       // there are texture or surface references, which programs bind
	Attrs       []Attr     // of .nv.info, which concern the file or name a symbol
	Sections    []Section
}

// Kernel is a function that can be launched. Numbers are as the compiler left
// them; linking may change a relocatable file's.
type Kernel struct {
	Name    string // mangled
	Symbol  uint32 // index in the symbol table
	Section uint32 // index of its .text section
	Offset  uint64 // of the code, from the section's start
	Size    uint64 // of the code, in bytes

	Registers    int       // per thread; 0 if the file doesn't say
	MaxRegisters int       // bound that the compiler kept; 255 if there was none
	Barriers     int       // named barriers in use
	Frame        int       // stack frame of the function itself, in bytes per thread
	MinStack     int       // stack that it needs, with what it calls; -1 if unknown
	MaxStack     int       // most stack it can use; 0 if the file doesn't say
	Shared       uint64    // static shared memory in bytes, with what the architecture reserves
	Constant     uint64    // bytes of its constant bank 0, parameters included
	MaxThreads   [3]uint32 // __launch_bounds__, 0 if none
	ReqThreads   [3]uint32 // .reqntid, 0 if none
	Cluster      [3]uint32 // blocks in a cluster, 0 if not set
	Cooperative  bool      // has instructions of cooperative groups
	Syscalls     bool      // calls the device runtime: printf, malloc, assert

	Params     []Param
	ParamBase  int // where parameters begin in constant bank 0
	ParamBytes int // their size with padding

	Attrs []Attr // of .nv.info.NAME
}

// Param is a kernel's parameter.
type Param struct {
	Offset int // from [Kernel.ParamBase], in bytes
	Size   int // in bytes
}

// Function is a device function.
type Function struct {
	Name      string // mangled
	Section   uint32
	Offset    uint64
	Size      uint64
	Registers int // 0 if the file doesn't say
	Frame     int
}

// Variable is a named object in the module's memory.
type Variable struct {
	Name    string // mangled
	Section string // ".nv.global", ".nv.constant3", …; "" if it is defined elsewhere
	Offset  uint64
	Size    uint64
}

// Symbol types and flags, and the sections' flag bits for barriers.
const (
	sttObject    = 1
	sttFunc      = 2
	sttLOOS      = 10   // and above: textures, surfaces and samplers
	stoEntry     = 0x10 // of st_other: a kernel
	barrierShift = 20   // of a .text section's flags, ABI 7
	barrierMask  = 0x7f
	shtNVInfo    = 0x70000000
)

// ParseCubin reads a cubin. [ErrFormat] is in the chain of its errors. Unknown
// sections and attributes are kept; a section that can't be read as attributes
// is an error, with what could be read.
func ParseCubin(data []byte) (*Cubin, error) {
	const what = "cubin"
	f, err := parseELF(what, data)
	if err != nil {
		return nil, err
	}
	if f.machine != machineCUDA {
		return nil, formatError(what, 18, "machine %d, want %d", f.machine, machineCUDA)
	}
	c := &Cubin{ABI: int(f.abi), ELFFlags: f.flags, Relocatable: f.typ == etRel, Sections: f.sections}
	c.identify(f)
	p := cubinParser{f: f, c: c, kernels: make(map[uint32]int), functions: make(map[uint32]int), budget: newBudget(len(data))}
	if err := p.symbols(); err != nil {
		return nil, err
	}
	if err := p.attributes(); err != nil {
		return c, err
	}
	p.sizes()
	return c, nil
}

// identify fills in what the header and the notes say.
func (c *Cubin) identify(f *elfFile) {
	const (
		accelV7 = 0x800 // EF_CUDA_ACCELERATORS of ABI 7
		accelV8 = 0x8   // the same of ABI 8; the tools of 13.0 don't set it for sm_90a
	)
	accel := f.flags&accelV7 != 0
	if c.ABI >= 8 {
		c.Arch.SM, accel = f.flags>>8&0xff, f.flags&accelV8 != 0
	} else {
		c.Arch.SM = f.flags & 0xff
		c.Toolkit = toolkitText(f.version)
	}
	if accel {
		c.Arch.Suffix = 'a'
	}
	// .note.nv.cuinfo: u16 version, u16 architecture, u32 toolkit.
	if d := f.note(".note.nv.cuinfo"); len(d) >= 8 {
		c.Toolkit = toolkitText(u32(d[4:]))
	}
	// .note.nv.tkinfo: six words, then strings that the last four point at:
	// tool, version, build, options.
	d := f.note(".note.nv.tkinfo")
	if len(d) < 24 {
		return
	}
	text := func(i int) string {
		s, _ := cstring(d[24:], uint64(u32(d[8+4*i:])))
		return strings.TrimSpace(string(s))
	}
	c.Producer = strings.TrimSpace(text(0) + ", " + text(1))
	c.Options = text(3)
	if words := strings.Fields(c.Options); accel || c.ABI >= 8 {
		for i, w := range words {
			if w != "-arch" || i+1 == len(words) {
				continue
			}
			if a, err := ParseArch(words[i+1]); err == nil && a.SM == c.Arch.SM {
				c.Arch = a
			}
		}
	}
}

// toolkitText reads the decimal coding of versions: 124 is 12.4.
func toolkitText(v uint32) string {
	if v < 20 || v > 9999 {
		return "" // 1 is ELF's own version
	}
	return fmt.Sprintf("%d.%d", v/10, v%10)
}

type cubinParser struct {
	f         *elfFile
	c         *Cubin
	kernels   map[uint32]int // symbol index → index in c.Kernels
	functions map[uint32]int
	budget    *budget
}

// symbols finds kernels, functions and variables.
func (p *cubinParser) symbols() error {
	index := p.f.symtab()
	if index < 0 {
		return nil
	}
	table, strs := p.f.symbols(uint32(index))
	for i := uint64(1); ; i++ {
		s, ok := symbolAt(table, i)
		if !ok {
			return nil
		}
		typ := s.info & 0xf
		p.c.References = p.c.References || typ >= sttLOOS
		if typ != sttFunc && typ != sttObject {
			continue
		}
		raw, ok := cstring(strs, uint64(s.name))
		if !ok || !p.budget.spend(len(raw)) {
			return formatError("cubin", p.f.sections[index].Offset+i*elfSymSize, "symbol %d has no name in the string table", i)
		}
		name := string(raw)
		switch {
		case typ == sttObject:
			v := Variable{Name: name, Offset: s.value, Size: s.size}
			if uint64(s.section) < uint64(len(p.c.Sections)) && s.section != 0 {
				v.Section = p.c.Sections[s.section].Name
			}
			p.c.Variables = append(p.c.Variables, v)
		case s.section == 0: // defined elsewhere
		case s.other&stoEntry != 0:
			p.kernels[uint32(i)] = len(p.c.Kernels)
			p.c.Kernels = append(p.c.Kernels, Kernel{
				Name: name, Symbol: uint32(i), Section: s.section, Offset: s.value, Size: s.size,
				MinStack: -1,
			})
		default:
			p.functions[uint32(i)] = len(p.c.Functions)
			p.c.Functions = append(p.c.Functions, Function{Name: name, Section: s.section, Offset: s.value, Size: s.size})
		}
	}
}

// attributes reads every .nv.info section.
func (p *cubinParser) attributes() error {
	byName := make(map[string]int, len(p.c.Kernels))
	for i := range p.c.Kernels {
		byName[p.c.Kernels[i].Name] = i
	}
	for i := range p.f.sections {
		s := &p.f.sections[i]
		if s.Type != shtNVInfo {
			continue
		}
		b := p.f.bytes(uint32(i))
		if !p.budget.spend(len(b)) {
			return formatError("cubin", s.Offset, "sections of attributes overlap")
		}
		attrs, err := parseAttrs(b)
		if s.Name == ".nv.info" {
			p.c.Attrs = append(p.c.Attrs, attrs...)
			p.global(attrs)
		} else if name, ok := hasPrefixName(s.Name, ".nv.info."); ok {
			if k, ok := byName[name]; ok {
				p.c.Kernels[k].Attrs = attrs
				p.c.Kernels[k].apply(attrs)
			}
		}
		if err != nil {
			return fmt.Errorf("cubin: section %s: %w", s.Name, err)
		}
	}
	return nil
}

// global gives the numbers in .nv.info to the symbols that they name.
func (p *cubinParser) global(attrs []Attr) {
	for i := range attrs {
		symbol, value, ok := attrs[i].symbolValue()
		if !ok {
			continue
		}
		k, isKernel := p.kernels[symbol]
		fn, isFunction := p.functions[symbol]
		switch id := attrs[i].ID; {
		case id == AttrRegCount && isKernel:
			p.c.Kernels[k].Registers = int(value)
		case id == AttrFrameSize && isKernel:
			p.c.Kernels[k].Frame = int(value)
		case id == AttrMinStackSize && isKernel:
			p.c.Kernels[k].MinStack = int(int32(value)) // 0xffffffff: recursion, or calls that only linking knows
		case id == AttrMaxStackSize && isKernel:
			p.c.Kernels[k].MaxStack = int(value)
		case id == AttrRegCount && isFunction:
			p.c.Functions[fn].Registers = int(value)
		case id == AttrFrameSize && isFunction:
			p.c.Functions[fn].Frame = int(value)
		}
	}
}

// apply fills in what a kernel's own attributes say.
func (k *Kernel) apply(attrs []Attr) {
	type ordered struct {
		ordinal int
		Param
	}
	var params []ordered
	for i := range attrs {
		a := &attrs[i]
		switch a.ID {
		case AttrKParamInfo, AttrKParamInfoV2:
			if len(a.Value) < 12 {
				continue
			}
			q := ordered{int(u16(a.Value[4:])), Param{Offset: int(u16(a.Value[6:]))}}
			if q.Size = int(u16(a.Value[8:])); a.ID == AttrKParamInfo {
				q.Size = int(u32(a.Value[8:]) >> 18) // above alignment, space and bank
			}
			params = append(params, q)
		case AttrParamCBank:
			if len(a.Value) >= 8 {
				k.ParamBase, k.ParamBytes = int(u16(a.Value[4:])), int(u16(a.Value[6:]))
			}
		case AttrMaxRegisters:
			k.MaxRegisters = a.half()
		case AttrMaxThreads:
			k.MaxThreads = a.triple()
		case AttrReqThreads:
			k.ReqThreads = a.triple()
		case AttrCluster:
			k.Cluster = a.triple()
		case AttrNumBarriers:
			if len(a.Value) > 0 {
				k.Barriers = int(a.Value[0])
			}
		case AttrCoopGroup:
			k.Cooperative = true
		case AttrSyscallOffsets:
			k.Syscalls = true
		}
	}
	slices.SortStableFunc(params, func(a, b ordered) int { return a.ordinal - b.ordinal })
	for _, q := range params {
		k.Params = append(k.Params, q.Param)
	}
}

// triple reads three words; zeros if there are fewer.
func (a *Attr) triple() (t [3]uint32) {
	if len(a.Value) >= 12 {
		t = [3]uint32{u32(a.Value), u32(a.Value[4:]), u32(a.Value[8:])}
	}
	return t
}

// sizes fills in what the sections say about kernels.
func (p *cubinParser) sizes() {
	byName := make(map[string]*Kernel, len(p.c.Kernels))
	for i := range p.c.Kernels {
		byName[p.c.Kernels[i].Name] = &p.c.Kernels[i]
	}
	for i := range p.f.sections {
		s := &p.f.sections[i]
		if name, ok := hasPrefixName(s.Name, ".nv.shared."); ok && byName[name] != nil {
			byName[name].Shared = s.Size
		}
		if name, ok := hasPrefixName(s.Name, ".nv.constant0."); ok && byName[name] != nil {
			byName[name].Constant = s.Size
		}
		if name, ok := hasPrefixName(s.Name, ".text."); ok && byName[name] != nil && p.c.ABI < 8 {
			k := byName[name]
			k.Barriers = int(s.Flags >> barrierShift & barrierMask)
			// Up to sm_8x the top byte repeats the registers.
			if k.Registers == 0 {
				k.Registers = int(s.Info >> 24)
			}
		}
	}
}
