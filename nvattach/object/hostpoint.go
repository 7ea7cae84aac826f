package object

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ptx/bpf"
	"nvtrace/traces/glob"
)

// HostKind says at which places on the host a program runs.
type HostKind uint8

// The kinds of points on the host.
const (
	HostNone      HostKind = iota
	HostEntry              // where a function begins, or an instruction behind that
	HostReturn             // where a function returns
	HostSysEnter           // before a system call
	HostSysExit            // after a system call
	HostSysEnters          // before every system call
	HostSysExits           // after every system call
	HostAPI                // where a function of CUDA's libraries begins
	HostAPIReturn          // where one returns
	HostUSDT               // at a probe that a program has been compiled with
	HostEvent              // when a HostSource says so
)

// A HostPoint is what a section's name says of a place on the host.
type HostPoint struct {
	Kind HostKind
	// Binary is the file that the function is in: a path, or the last part of one, with
	// or without what follows ".so" there.
	Binary string
	// Func is the function: a glob that a symbol must match, mangled or demangled; "" where
	// Offset alone says the place, in the file's code.
	Func   string
	Offset uint64 // behind the function's first byte
	// Replace says of a HostEntry that the function is not run: it returns what the program does.
	Replace bool
	Call    string // the system call
	// Provider and Probe name a HostUSDT.
	Provider, Probe string
	// Source and Config are a HostEvent's: whose it is, and what its section says behind that
	// name.
	Source *HostSource
	Config string
}

// A HostSection is a kind of place on the host: how the rest of a section's name is read, what r1
// points to, and what programs may do that is not common to all.
type HostSection struct {
	parse    func(kind HostKind, rest string) (HostPoint, error)
	Kind     HostKind
	Context  *bpf.Context
	Override bool // the program may have the function or the call return something else
	Helpers  map[int32]*bpf.Helper
}

// HostKinds are the kinds by the first part of a section's name, without ".s" or ".multi"
// behind it.
var HostKinds = map[string]*HostSection{
	"uprobe":   {parse: parseFunction, Kind: HostEntry, Context: &PtRegs, Override: true},
	"ureplace": {parse: parseReplace, Kind: HostEntry, Context: &PtRegs, Override: true},
	// bpftime's name for a uprobe whose program may answer, by bpf_override_return.
	"uprobe_override": {parse: parseFunction, Kind: HostEntry, Context: &PtRegs, Override: true},
	"uretprobe":       {parse: parseFunction, Kind: HostReturn, Context: &PtRegs},
	sectionAPI:        {parse: parseAPI, Kind: HostAPI, Context: &apiCall, Override: true},
	sectionReturn:     {parse: parseAPI, Kind: HostAPIReturn, Context: &apiCall},
	"usdt":            {parse: parseUSDT, Kind: HostUSDT, Context: &PtRegs},
}

// Sections at calls of CUDA's libraries.
const (
	sectionAPI    = "cuda.api"
	sectionReturn = "cuda.apiret"
)

// SyscallKinds are the kinds of sections tracepoint/syscalls/ and tracepoint/raw_syscalls/,
// or tp/.
var SyscallKinds = map[string]*HostSection{
	"syscalls/sys_enter_":    {parse: parseCall, Kind: HostSysEnter, Context: &sysEnter, Override: true},
	"syscalls/sys_exit_":     {parse: parseCall, Kind: HostSysExit, Context: &sysExit},
	"raw_syscalls/sys_enter": {parse: parseCalls, Kind: HostSysEnters, Context: &sysEnter, Override: true},
	"raw_syscalls/sys_exit":  {parse: parseCalls, Kind: HostSysExits, Context: &sysExit},
}

// Of returns the description of the point's kind.
func (p *HostPoint) Of() *HostSection {
	if p.Source != nil {
		return p.Source.kind()
	}
	for _, kinds := range []map[string]*HostSection{HostKinds, SyscallKinds} {
		for _, k := range kinds {
			if k.Kind == p.Kind {
				return k
			}
		}
	}
	return nil
}

// String returns the section's name.
func (p HostPoint) String() string {
	switch p.Kind {
	case HostEntry, HostReturn:
		s := "uprobe/"
		switch {
		case p.Kind == HostReturn:
			s = "uretprobe/"
		case p.Replace:
			s = "ureplace/"
		}
		s += p.Binary + ":"
		if p.Func == "" {
			return s + fmt.Sprintf("%#x", p.Offset)
		}
		if s += p.Func; p.Offset > 0 {
			s += fmt.Sprintf("+%#x", p.Offset)
		}
		return s
	case HostAPI:
		return sectionAPI + "/" + p.Func
	case HostAPIReturn:
		return sectionReturn + "/" + p.Func
	case HostEvent:
		return p.Source.Section + "/" + p.Config
	case HostUSDT:
		return "usdt/" + p.Binary + ":" + p.Provider + ":" + p.Probe
	case HostSysEnter:
		return "tracepoint/syscalls/sys_enter_" + p.Call
	case HostSysExit:
		return "tracepoint/syscalls/sys_exit_" + p.Call
	case HostSysEnters:
		return "tracepoint/raw_syscalls/sys_enter"
	case HostSysExits:
		return "tracepoint/raw_syscalls/sys_exit"
	}
	return "none"
}

// errNoTarget is said of sections that leave the place to a loader of their own.
var errNoTarget = errors.New("its section names no function, which its own loader would; write uprobe/FILE:FUNCTION there, or give --at PROGRAM=FILE:FUNCTION")

// ParseHostPoint reads a section's name:
//
//	uprobe/FILE:FUNCTION   uprobe/FILE:FUNCTION+OFFSET   uprobe/FILE:OFFSET
//	uretprobe/FILE:FUNCTION
//	cuda.api/FUNCTION                    cuda.apiret/FUNCTION
//	usdt/FILE:PROVIDER:PROBE
//	tracepoint/syscalls/sys_enter_NAME   tracepoint/syscalls/sys_exit_NAME
//	tracepoint/raw_syscalls/sys_enter    tracepoint/raw_syscalls/sys_exit
//
// uprobe.s, uprobe.multi and the like are read as uprobe, tp as tracepoint. FILE is a
// path, or the name of a file without a folder; FUNCTION may be a glob. A section that is
// something else is no error and gives HostNone.
func ParseHostPoint(section string) (HostPoint, error) {
	kind, rest, _ := strings.Cut(section, "/")
	if kind == "tracepoint" || kind == "tp" {
		for prefix, k := range SyscallKinds {
			if name, ok := strings.CutPrefix(rest, prefix); ok {
				return k.parse(k.Kind, name)
			}
		}
		return HostPoint{}, nil
	}
	if k := HostKinds[sectionKind(section)]; k != nil {
		return k.parse(k.Kind, rest)
	}
	return HostPoint{}, nil
}

// sectionKind is the first part of a section's name, without ".s" or ".multi" behind it.
func sectionKind(section string) string {
	kind, _, _ := strings.Cut(section, "/")
	return strings.TrimSuffix(strings.TrimSuffix(kind, ".s"), ".multi")
}

// parseFunction reads FILE:FUNCTION+OFFSET.
func parseFunction(kind HostKind, rest string) (HostPoint, error) {
	if rest == "" {
		return HostPoint{}, errNoTarget
	}
	p := HostPoint{Kind: kind}
	at := fileEnd(rest)
	if at < 0 {
		return p, fmt.Errorf("the function is missing behind %q; write FILE:FUNCTION", rest)
	}
	p.Binary, p.Func = rest[:at], rest[at+1:]
	name, offset, plus := strings.Cut(p.Func, "+")
	if n, err := strconv.ParseUint(offset, 0, 64); plus && err == nil && !strings.HasPrefix(name, "operator") {
		p.Func, p.Offset = name, n
	}
	if n, err := strconv.ParseUint(p.Func, 0, 64); err == nil && p.Offset == 0 {
		p.Func, p.Offset = "", n
	}
	switch {
	case p.Binary == "":
		return p, fmt.Errorf("the file is missing before %q; write FILE:FUNCTION", rest)
	case p.Func == "" && p.Offset == 0:
		return p, fmt.Errorf("the function is missing behind %q; write FILE:FUNCTION", rest)
	case kind == HostReturn && p.Func != "" && p.Offset > 0:
		return p, errors.New("an offset into a function that is to return; leave it out")
	}
	return p, nil
}

// parseReplace is parseFunction of a section ureplace/…
func parseReplace(kind HostKind, rest string) (HostPoint, error) {
	p, err := parseFunction(kind, rest)
	if err == nil && p.Offset > 0 {
		err = errors.New("an offset; what is replaced is a function from its beginning on")
	}
	p.Replace = true
	return p, err
}

// fileEnd returns where the colon behind the file is: a C++ name has colons, too.
func fileEnd(s string) int {
	slash := strings.LastIndexByte(s, '/')
	if at := strings.IndexByte(s, ':'); at < slash { // of the folder's name
		if at := strings.IndexByte(s[slash+1:], ':'); at >= 0 {
			return slash + 1 + at
		}
	}
	return strings.IndexByte(s, ':')
}

// parseAPI reads the name of a function of CUDA's libraries.
func parseAPI(kind HostKind, rest string) (HostPoint, error) {
	if rest == "" {
		return HostPoint{}, fmt.Errorf("the function is missing; write %s/cuLaunchKernel, for example", sectionAPI)
	}
	return HostPoint{Kind: kind, Func: rest}, nil
}

// parseUSDT reads FILE:PROVIDER:PROBE. Provider and probe may be globs.
func parseUSDT(kind HostKind, rest string) (HostPoint, error) {
	if rest == "" {
		return HostPoint{}, errors.New("its section names no probe, which its own loader would; write usdt/FILE:PROVIDER:PROBE there, or give --at PROGRAM=FILE:PROVIDER:PROBE")
	}
	at := fileEnd(rest)
	provider, probe, ok := strings.Cut(rest[at+1:], ":")
	if at <= 0 || !ok || provider == "" || probe == "" {
		return HostPoint{}, fmt.Errorf("%q: write usdt/FILE:PROVIDER:PROBE", rest)
	}
	return HostPoint{Kind: kind, Binary: rest[:at], Provider: provider, Probe: probe}, nil
}

func parseCall(kind HostKind, rest string) (HostPoint, error) {
	if rest == "" {
		return HostPoint{}, errors.New("the system call is missing; write tracepoint/syscalls/sys_enter_openat, for example")
	}
	return HostPoint{Kind: kind, Call: rest}, nil
}

func parseCalls(kind HostKind, rest string) (HostPoint, error) {
	if rest != "" {
		return HostPoint{}, nil
	}
	return HostPoint{Kind: kind}, nil
}

// HostContextFields returns the fields of the context of a kind of point.
func HostContextFields(k HostKind) (list []ContextField) {
	p := HostPoint{Kind: k}
	for _, f := range p.Of().Context.Fields {
		list = append(list, ContextField{f.Name, f.Offset, f.Size})
	}
	return list
}

// Function reports whether the point is in code, and not at a system call.
func (p *HostPoint) Function() bool {
	switch p.Kind {
	case HostEntry, HostReturn, HostAPI, HostAPIReturn, HostUSDT:
		return true
	}
	return false
}

// API reports whether the function is any of CUDA's libraries.
func (p *HostPoint) API() bool { return p.Kind == HostAPI || p.Kind == HostAPIReturn }

// Returns reports whether the point is where a function returns.
func (p *HostPoint) Returns() bool { return p.Kind == HostReturn || p.Kind == HostAPIReturn }

// anyFile stands for all files, where probes are that files name themselves (USDT).
const anyFile = "*"

// InFile reports whether a file of that path is meant.
func (p *HostPoint) InFile(path string) bool {
	if p.Binary == anyFile {
		return p.Kind == HostUSDT
	}
	if strings.HasPrefix(p.Binary, "/") {
		return path == p.Binary
	}
	if strings.Contains(p.Binary, "/") {
		return strings.HasSuffix(path, "/"+strings.TrimPrefix(p.Binary, "./"))
	}
	base := path[strings.LastIndexByte(path, '/')+1:]
	if base == p.Binary {
		return true
	}
	// libc means libc.so.6, and libc.so does.
	rest, ok := strings.CutPrefix(base, p.Binary)
	return ok && (strings.HasPrefix(rest, ".so") || strings.HasSuffix(p.Binary, ".so") && strings.HasPrefix(rest, "."))
}

// Matches reports whether a function of that symbol is meant.
func (p *HostPoint) Matches(symbol string) bool {
	if p.Func == "" {
		return false
	}
	if glob.Match(p.Func, symbol) {
		return true
	}
	if p.API() {
		return glob.Match(p.Func, versioned.ReplaceAllString(symbol, ""))
	}
	if !strings.HasPrefix(symbol, "_Z") && !strings.HasPrefix(symbol, "_R") {
		return false
	}
	d := fatbin.Demangle(symbol)
	if d == symbol {
		return false
	}
	return glob.Match(p.Func, d) || glob.Match(p.Func, bareName(d))
}

// bareName is a demangled name without what the function returns and takes: "ns::f<int, 4>" of
// "void ns::f<int, 4>(int)".
func bareName(d string) string {
	from, depth := 0, 0
	for i := 0; i < len(d); i++ {
		switch d[i] {
		case '<':
			depth++
		case '>':
			depth--
		case ' ':
			if depth == 0 {
				from = i + 1
			}
		case '(':
			if depth > 0 {
				continue
			}
			const anonymous = "(anonymous namespace)"
			if strings.HasPrefix(d[i:], anonymous) {
				i += len(anonymous) - 1
				continue
			}
			return d[from:i]
		}
	}
	return d[from:]
}

// PtRegs is struct pt_regs of x86-64.
var PtRegs = words("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax", "ip", "cs", "flags", "sp", "ss")

// versioned is what stands behind the names of functions of which there are several: by
// cuda.h's and cuda_runtime_api.h's definitions, programs that say cuMemAlloc call
// cuMemAlloc_v2.
var versioned = regexp.MustCompile(`(_v[0-9]+)?(_ptsz|_ptds)?$`)

// apiCall is ptRegs with the names of arguments and results in place of those registers';
// see struct nvtrace_api.
var apiCall = words("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "arg5", "arg4", "ret", "arg3", "arg2", "arg1", "arg0", "orig_ax", "ip", "cs", "flags", "sp", "ss")

// words is a context of numbers of 8 bytes.
func words(names ...string) bpf.Context {
	var c bpf.Context
	for i, name := range names {
		c.Fields = append(c.Fields, bpf.Field{Name: name, Offset: 8 * i, Size: 8})
	}
	return c
}

// syscallContext is struct trace_event_raw_sys_enter or _exit: a head that says little, the
// number of the call, and what follows.
func syscallContext(names ...string) bpf.Context {
	c := bpf.Context{Fields: []bpf.Field{
		{Name: "common_type", Offset: 0, Size: 2},
		{Name: "common_flags", Offset: 2, Size: 1},
		{Name: "common_preempt_count", Offset: 3, Size: 1},
		{Name: "common_pid", Offset: 4, Size: 4},
		{Name: "id", Offset: 8, Size: 8},
	}}
	for i, name := range names {
		c.Fields = append(c.Fields, bpf.Field{Name: name, Offset: 16 + 8*i, Size: 8})
	}
	return c
}

var (
	sysEnter = syscallContext("args[0]", "args[1]", "args[2]", "args[3]", "args[4]", "args[5]")
	sysExit  = syscallContext("ret")
)

// A ContextField is a field of the context that programs of a kind of point find.
type ContextField struct {
	Name         string // as include/nvtrace_gpu.bpf.h has it, without the "t." of a thread's
	Offset, Size int
}
