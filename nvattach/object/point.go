package object

import (
	"cmp"
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/traces/glob"
)

// Kind says at which places of a kernel a program runs.
type Kind uint8

// The kinds of points.
const (
	// KindNone is for what is not run on a GPU.
	KindNone Kind = iota
	// KindEntry runs once in every thread, before the kernel's first instruction.
	KindEntry
	// KindExit runs once in every thread, where it leaves the kernel.
	KindExit
	// KindMem runs before every access to memory.
	KindMem
	// KindInsn runs before every instruction whose opcode matches.
	KindInsn
	// KindBlock runs at the start of every basic block.
	KindBlock
	// KindCapture is bpftime's kprobe/__memcapture: it runs after every ld and st
	// of a module, with the text of the instruction as its context.
	KindCapture
	// KindRun is bpftime's kprobe/__directly_run: a kernel of its own, which is
	// launched on request.
	KindRun
)

var kindNames = [...]string{"none", "entry", "exit", "mem", "insn", "block", "memcapture", "run"}

// String returns the kind as sections spell it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Point is what a section's name says: where a program runs.
type Point struct {
	Kind Kind
	// Kernel is a glob that a kernel's mangled or demangled name must match;
	// empty for KindCapture and KindRun.
	Kernel string
	// Func says that Kernel names device functions (.func) instead.
	Func bool
	// Exact says that Kernel is a mangled name and not a glob: bpftime's rule.
	Exact bool
	// Opcode is the glob of a KindInsn: "ld.global.*".
	Opcode string
}

// String returns the section's name in nvtrace's spelling.
func (p Point) String() string {
	switch p.Kind {
	case KindNone:
		return "none"
	case KindCapture:
		return "kprobe/__memcapture"
	case KindRun:
		return "kprobe/__directly_run"
	}
	s := "cuda." + p.Kind.String() + "/"
	if p.Func {
		s += FuncPrefix
	}
	s += p.Kernel
	if p.Kind == KindInsn {
		s += ":" + p.Opcode
	}
	return s
}

const (
	// FuncPrefix begins a point at a device function instead of a kernel.
	FuncPrefix = "func:"
	// gpuProgram begins the name of every program for a GPU in bpftime's objects.
	gpuProgram = "cuda__"
	// kernelPrefix may stand in front of a kernel's name there.
	kernelPrefix = "cuda_"
)

// ParsePoint reads a section's name, given the name of the program in it:
//
//	cuda.entry/GLOB   cuda.exit/GLOB   cuda.mem/GLOB   cuda.block/GLOB
//	cuda.insn/GLOB:OPCODEGLOB
//	kprobe/KERNEL   kretprobe/KERNEL      of a program cuda__…
//	kprobe/__memcapture   kprobe/__directly_run
//
// GLOB is matched with the mangled and with the demangled name of a kernel, '*'
// being any text and '?' any byte; with "func:" in front it is about device
// functions. A section of nvtrace's that is not written well is an error. A
// section that is something else (a program for the host) is no error and gives
// KindNone.
func ParsePoint(section, program string) (Point, error) {
	if kind, _, _ := strings.Cut(section, "/"); kind == sectionAPI || kind == sectionReturn {
		return Point{}, nil // on the host
	}
	if kind, rest, ok := strings.Cut(section, "/"); ok && strings.HasPrefix(kind, "cuda.") {
		return parseCUDA(section, kind[len("cuda."):], rest)
	}
	if strings.HasPrefix(section, "cuda.") {
		return Point{}, fmt.Errorf("section %q: a kernel is missing; write %s/NAME, or %s/* for all", section, section, section)
	}
	kind, kernel, ok := strings.Cut(section, "/")
	if kind == "cuda" {
		return Point{}, fmt.Errorf("section %q: the place in the kernel is missing; write cuda.entry/%s, or cuda.exit, cuda.mem, cuda.insn or cuda.block", section, cmp.Or(kernel, "KERNEL"))
	}
	if !ok || !strings.HasPrefix(program, gpuProgram) {
		return Point{}, nil
	}
	p := Point{Kernel: kernel, Exact: true}
	switch kind {
	case "kprobe":
		p.Kind = KindEntry
	case "kretprobe":
		p.Kind = KindExit
	default:
		return Point{}, nil
	}
	switch kernel {
	case "":
		return Point{}, fmt.Errorf("section %q: a kernel is missing", section)
	case "__memcapture":
		if p.Kind == KindEntry {
			return Point{Kind: KindCapture}, nil
		}
	case "__directly_run":
		if p.Kind == KindEntry {
			return Point{Kind: KindRun}, nil
		}
	}
	// libbpf takes KERNEL+OFFSET; an offset in a kernel's code means nothing here.
	if strings.Contains(kernel, "+") {
		return Point{}, fmt.Errorf("section %q: an offset into a kernel is not supported", section)
	}
	p.Kernel = strings.TrimPrefix(kernel, kernelPrefix)
	return p, nil
}

func parseCUDA(section, kind, rest string) (Point, error) {
	var p Point
	switch kind {
	case "entry":
		p.Kind = KindEntry
	case "exit":
		p.Kind = KindExit
	case "mem":
		p.Kind = KindMem
	case "block":
		p.Kind = KindBlock
	case "insn":
		p.Kind = KindInsn
		// A demangled name has colons, an opcode has them as well
		// (".shared::cta"), so it is the first single one that separates.
		at := singleColon(strings.TrimPrefix(rest, FuncPrefix))
		if at < 0 {
			return Point{}, fmt.Errorf("section %q: the opcode is missing; write cuda.insn/KERNEL:OPCODE, for example cuda.insn/*:ld.global.*", section)
		}
		at += len(rest) - len(strings.TrimPrefix(rest, FuncPrefix))
		rest, p.Opcode = rest[:at], rest[at+1:]
		if p.Opcode == "" {
			return Point{}, fmt.Errorf("section %q: the opcode is empty; write * for all", section)
		}
	default:
		return Point{}, fmt.Errorf("section %q: nothing is called cuda.%s; there are cuda.entry, cuda.exit, cuda.mem, cuda.insn and cuda.block", section, kind)
	}
	p.Kernel, p.Func = strings.CutPrefix(rest, FuncPrefix)
	if p.Kernel == "" {
		return Point{}, fmt.Errorf("section %q: a kernel is missing; write its name, or * for all", section)
	}
	return p, nil
}

// singleColon returns the place of the first ':' that has no other beside it.
func singleColon(s string) int {
	for i := 0; i < len(s); i++ {
		if s[i] != ':' {
			continue
		}
		if i+1 < len(s) && s[i+1] == ':' {
			i++
			continue
		}
		return i
	}
	return -1
}

// Matches reports whether a kernel of that mangled name is meant, and if fn is
// set a device function.
func (p Point) Matches(mangled string, fn bool) bool {
	switch p.Kind {
	case KindNone, KindRun:
		return false
	case KindCapture:
		return true
	}
	if fn != p.Func {
		return false
	}
	if p.Exact {
		return mangled == p.Kernel
	}
	if glob.Match(p.Kernel, mangled) {
		return true
	}
	d := fatbin.Demangle(mangled)
	if d == mangled {
		return false
	}
	if glob.Match(p.Kernel, d) {
		return true
	}
	// A name without parameters means all that are called so.
	name, _, _ := strings.Cut(d, "(")
	return glob.Match(p.Kernel, name[strings.LastIndexByte(name, ' ')+1:])
}
