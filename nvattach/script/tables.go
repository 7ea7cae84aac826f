package script

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
)

// A Type says what a number stands for, and so how it is shown.
type Type struct {
	Name  string
	names map[int64]string              // of an enumeration
	site  func(s *nvattach.Site) string // of the number of a place: what is shown of it
}

// The types of expressions. A string is the number of a literal of the program.
var (
	typeInt   = &Type{Name: "number"}
	typeStr   = &Type{Name: "string"}
	typeKind  = &Type{Name: "kind", names: map[int64]string{1: "load", 2: "store", 3: "atomic", 4: "async"}}
	typeSpace = &Type{Name: "space", names: map[int64]string{0: "generic", 1: "global", 2: "shared", 3: "local", 4: "const", 5: "param"}}

	typeKernel = &Type{Name: "kernel", site: func(s *nvattach.Site) string { return kernelName(s.Kernel) }}
	typeSite   = &Type{Name: "site", site: (*nvattach.Site).String}
	typeOpcode = &Type{Name: "opcode", site: opcodeOf}
	typeSource = &Type{Name: "source", site: sourceOf}
	typePlace  = &Type{Name: "place", site: placeOf}
	// A stack is a process's number, and behind it the number of the stack in its map, from 1 on; 0
	// stands for none.
	typeStack = &Type{Name: "stack"}

	typeText = &Type{Name: "string"} // of an event
	// A text of the program's memory is its number in a map of texts, from 1 on; 0 stands for none.
	typeHeld = &Type{Name: "text"}
)

// enumeration returns the type that a word is a value of, nil if there is none.
func enumeration(word string) *Type {
	for _, t := range []*Type{typeKind, typeSpace} {
		for _, name := range t.names {
			if name == word {
				return t
			}
		}
	}
	return nil
}

// kernelName is a demangled name without its parameters.
func kernelName(mangled string) string {
	name := fatbin.Demangle(mangled)
	depth, cut := 0, len(name)
	for i := len(name) - 1; i >= 0 && strings.HasSuffix(name, ")"); i-- {
		switch name[i] {
		case ')':
			depth++
		case '(':
			if depth--; depth == 0 {
				cut = i
			}
		}
		if cut < len(name) {
			break
		}
	}
	if cut == 0 { // "(graph)"
		return name
	}
	return strings.TrimPrefix(name[:cut], "void ")
}

// opcodeOf returns the opcode of a place's instruction, without its guard.
func opcodeOf(s *nvattach.Site) string {
	words := strings.Fields(s.Text)
	if len(words) > 0 && strings.HasPrefix(words[0], "@") {
		words = words[1:]
	}
	if len(words) == 0 {
		return "(" + s.Kind.String() + ")"
	}
	return strings.TrimSuffix(words[0], ";")
}

// placeOf returns all that is known of a place, as JSON.
func placeOf(s *nvattach.Site) string {
	b, _ := json.Marshal(struct { // texts and numbers: it does not fail
		Kernel      string `json:"kernel"`
		Insn        uint32 `json:"insn"`
		Instruction string `json:"instruction"`
		File        string `json:"file,omitempty"`
		Line        uint32 `json:"line,omitempty"`
	}{s.Kernel, s.Insn, s.Text, s.File, s.Line})
	return string(b)
}

// sourceOf returns the file and line that a place was compiled from.
func sourceOf(s *nvattach.Site) string {
	if s.File == "" || s.Line == 0 {
		return "(no line: compile with -lineinfo)"
	}
	return fmt.Sprintf("%s:%d", path.Base(s.File), s.Line)
}

// A Kind is a kind of probes.
type Kind struct {
	Name   string
	Of     string // what stands behind the colon
	Doc    string
	Point  object.Kind
	fn     bool // of device functions
	opcode bool // a glob of opcodes follows
	host   object.HostKind
}

// Kinds are the probes that run in kernels.
var Kinds = []Kind{
	{Name: "kernel", Of: "KERNEL", Point: object.KindEntry, Doc: "every thread, before the kernel's first instruction"},
	{Name: "kernret", Of: "KERNEL", Point: object.KindExit, Doc: "every thread, where it leaves the kernel"},
	{Name: "mem", Of: "KERNEL", Point: object.KindMem, Doc: "every access to memory, before it"},
	{Name: "insn", Of: "OPCODE or insn:KERNEL:OPCODE", Point: object.KindInsn, opcode: true, Doc: "every instruction whose opcode matches, where its guard holds"},
	{Name: "block", Of: "KERNEL", Point: object.KindBlock, Doc: "every basic block, at its start"},
	{Name: "func", Of: "FUNCTION", Point: object.KindEntry, fn: true, Doc: "every thread, where it enters a device function"},
	{Name: "funcret", Of: "FUNCTION", Point: object.KindExit, fn: true, Doc: "every thread, where it leaves a device function"},
}

// CallKinds are the probes at functions and system calls of the program.
var CallKinds = []Kind{
	{Name: "uprobe", Of: "FILE:FUNCTION", host: object.HostEntry, Doc: "functions of the program and its libraries, when they are entered"},
	{Name: "uretprobe", Of: "FILE:FUNCTION", host: object.HostReturn, Doc: "the same, when they return"},
	{Name: "usdt", Of: "FILE:PROVIDER:NAME", host: object.HostUSDT, Doc: "probes that a program was compiled with (sys/sdt.h)"},
	{Name: "syscall", Of: "NAME", host: object.HostSysEnter, Doc: "system calls, when they are made; * for all"},
	{Name: "sysret", Of: "NAME", host: object.HostSysExit, Doc: "the same, when they have returned"},
}

// CallBuiltins are what these find, beside arg0 to arg5 where the function or call begins.
var CallBuiltins = []Builtin{
	{Name: "retval", Type: typeInt, Doc: "what it returned, at uretprobe and sysret"},
	{Name: "nr", Type: typeInt, field: "id", Doc: "number of the system call"},
	{Name: "pid", Type: typeInt, helper: helper.ProcessThread, shift: 32, Doc: "process"},
	{Name: "tid", Type: typeInt, helper: helper.ProcessThread, low: true, Doc: "thread"},
	{Name: "uid", Type: typeInt, helper: helper.UserGroup, low: true, Doc: "user"},
	{Name: "gid", Type: typeInt, helper: helper.UserGroup, shift: 32, Doc: "group"},
	{Name: "comm", Type: typeHeld, Doc: "name of the thread"},
	{Name: "probe", Type: typeStr, Doc: "the probe, as it is written"},
	{Name: "func", Type: typeStr, Doc: "the function that the probe names, at uprobe and uretprobe; with globs use ustack"},
	{Name: "name", Type: typeStr, Doc: "the system call that the probe names, at syscall and sysret; with * use nr"},
	{Name: "cpu", Type: typeInt, helper: helper.Processor, Doc: "processor"},
	{Name: "nsecs", Type: typeInt, helper: helper.Time, Doc: "nanoseconds"},
	{Name: "elapsed", Type: typeInt, helper: helper.Time, since: true, Doc: "nanoseconds since nvtrace started"},
	{Name: "rand", Type: typeInt, helper: helper.Random, Doc: "a random number of 32 bits"},
	{Name: "ustack", Type: typeStack, Doc: "the functions that have called, the innermost sixteen, with the bytes from where each begins; in maps only"},
}

// callArgs are the fields of a context that arguments are in, and callResult the result.
var (
	callArgs = map[object.HostKind][]string{
		object.HostEntry:     {"di", "si", "dx", "cx", "r8", "r9"},
		object.HostUSDT:      make([]string, 12), // they are where the probe says
		object.HostSysEnter:  {"args[0]", "args[1]", "args[2]", "args[3]", "args[4]", "args[5]"},
		object.HostSysEnters: {"args[0]", "args[1]", "args[2]", "args[3]", "args[4]", "args[5]"},
	}
	callResult = map[object.HostKind]string{object.HostReturn: "ax", object.HostSysExit: "ret", object.HostSysExits: "ret"}
)

// A HostKind is a kind of probes on what the program does on the host, as nvtrace records
// it: in nvtrace, when it is known how it went.
type HostKind struct {
	Name string
	Of   string
	Doc  string
}

// HostKinds are the probes on the host.
var HostKinds = []HostKind{
	{Name: "ioctl", Of: "NAME", Doc: "device calls whose name, control command or class matches, when they have returned"},
	{Name: "api", Of: "FUNCTION", Doc: "calls of functions of CUDA's libraries, when they are entered"},
	{Name: "apiret", Of: "FUNCTION", Doc: "the same, when they have returned"},
	{Name: "alloc", Of: "FUNCTION", Doc: "calls that allocate memory for GPUs (cuMemAlloc_v2, cuMemCreate, …; * for all), when they have returned"},
	{Name: "free", Of: "FUNCTION", Doc: "calls that have given such memory back"},
	{Name: "launch", Of: "KERNEL", Doc: "launches of kernels, when the call is entered"},
	{Name: "image", Of: "FORMAT", Doc: "code images that are given to the driver: fatbin, cubin, ptx, archive, nvvm"},
}

// An Event is something that a host's probe runs on.
type Event struct {
	Kind     string // of HostKinds
	Name     string // of the call
	Sub      string // what it is about: control command, class
	Device   string // the node that an ioctl is made on
	Library  string
	Kernel   string // mangled
	Stream   uint64
	Status   string
	Failed   bool
	PID, TID int32
	Rank     int    // of the process among those of its job, -1: none
	NVTX     string // the range that the thread is in
	PyStack  string // where atStack says: Python's stack where the call was made
	UStack   string // likewise: the functions that made it, among which are lines of Python
	Comm     string // name of the program that the process runs
	Time     int64  // since the start
	Duration int64
	Ret      int64
	Args     [6]uint64
	// Arg returns a parameter by its name: at apiret, of what the function writes, what it
	// wrote; Text what it points to. Both may be nil.
	Arg        func(name string) (n uint64, ok bool)
	Text       func(name string) (text string, ok bool)
	Format     string // of an image
	Size       int64
	Addr       uint64    // of memory
	Pinned     bool      // it is the host's, page-locked
	File       string    // that its bytes are in
	Grid       [3]uint32 // of a launch
	Block      [3]uint32
	demangled  string
	demangling bool // it was done
}

// kernel is the demangled name of what is launched.
func (e *Event) kernel() string {
	if !e.demangling {
		e.demangled, e.demangling = kernelName(e.Kernel), true
	}
	return e.demangled
}

// A HostBuiltin is a value that a host's probe finds.
type HostBuiltin struct {
	Name string
	Doc  string
	Type *Type
	at   []string
	of   func(e *Event) Value
}

// there reports whether the built-in can be had at a kind of probes.
func (b *HostBuiltin) there(k string) bool { return b.at == nil || slices.Contains(b.at, k) }

// HostBuiltins are in the order of the documentation. arg0 to arg5 are beside them, at
// api and launch.
var HostBuiltins = []HostBuiltin{
	{Name: "name", Type: typeText, Doc: "of the call", of: func(e *Event) Value { return text(e.Name) }},
	{Name: "sub", Type: typeText, at: []string{"ioctl"}, Doc: "what it is about: control command, class; may be empty", of: func(e *Event) Value { return text(e.Sub) }},
	{Name: "node", Type: typeText, at: []string{"ioctl"}, Doc: "the device: \"nvidiactl\"", of: func(e *Event) Value { return text(e.Device) }},
	{Name: "library", Type: typeText, at: []string{"api", "apiret", "alloc", "free", "launch", "image"}, Doc: "that the function is of; of an image, the file that called the loader", of: func(e *Event) Value { return text(e.Library) }},
	{Name: "format", Type: typeText, at: atImage, Doc: "of the image: \"ptx\", \"fatbin\", …", of: func(e *Event) Value { return text(e.Format) }},
	{Name: "size", Type: typeInt, at: []string{"image", "alloc", "free"}, Doc: "bytes of the image, or of the memory; at free known of cuMemRelease and cuMemUnmap, else 0", of: func(e *Event) Value { return number(e.Size) }},
	{Name: "addr", Type: typeInt, at: atMemory, Doc: "where the memory is; of cuMemCreate and of arrays, and what frees these, the handle", of: func(e *Event) Value { return number(int64(e.Addr)) }},
	{Name: "pinned", Type: typeInt, at: atMemory, Doc: "1 if it is page-locked memory of the host (cuMemHostAlloc)", of: func(e *Event) Value { return truthOf(e.Pinned) }},
	{Name: "file", Type: typeText, at: atImage, Doc: "file that its bytes are in; may be empty", of: func(e *Event) Value { return text(e.File) }},
	{Name: "kernel", Type: typeText, at: []string{"launch", "apiret"}, Doc: "name of the kernel; at apiret \"\" where the call launches none", of: func(e *Event) Value { return text(e.kernel()) }},
	{Name: "stream", Type: typeInt, at: []string{"launch"}, Doc: "handle of the stream", of: func(e *Event) Value { return number(int64(e.Stream)) }},
	{Name: "nctaid", Type: typeInt, at: atLaunch, Doc: "blocks of the grid; nctaid.x nctaid.y nctaid.z", of: func(e *Event) Value { return product(e.Grid) }},
	{Name: "ntid", Type: typeInt, at: atLaunch, Doc: "threads of a block; ntid.x ntid.y ntid.z", of: func(e *Event) Value { return product(e.Block) }},
	{Name: "status", Type: typeText, at: atReturn, Doc: "\"NV_OK\", \"CUDA_SUCCESS\", …", of: func(e *Event) Value { return text(e.Status) }},
	{Name: "failed", Type: typeInt, at: atReturn, Doc: "1 if it failed", of: func(e *Event) Value { return truthOf(e.Failed) }},
	{Name: "retval", Type: typeInt, at: atReturn, Doc: "what it returned", of: func(e *Event) Value { return number(e.Ret) }},
	{Name: "duration", Type: typeInt, at: atReturn, Doc: "nanoseconds that it took", of: func(e *Event) Value { return number(e.Duration) }},
	{Name: "nsecs", Type: typeInt, Doc: "nanoseconds since the start, also in intervals and in END; elapsed is the same", of: func(e *Event) Value { return number(e.Time) }},
	{Name: "pid", Type: typeInt, Doc: "process", of: func(e *Event) Value { return number(int64(e.PID)) }},
	{Name: "rank", Type: typeInt, Doc: "rank of the process among those of its job, as mpirun, srun or torchrun told it; -1: none", of: func(e *Event) Value { return number(int64(e.Rank)) }},
	{Name: "pystack", Type: typeText, at: atStack, Doc: "lines of Python that the call was made from, the innermost eight; empty where there are none. Each call stops its thread for that", of: func(e *Event) Value { return text(e.PyStack) }},
	{Name: "ustack", Type: typeText, at: atStack, Doc: "the functions that the call was made from, the innermost sixteen, with lines of Python in place of the interpreter's. Each call stops its thread for that", of: func(e *Event) Value { return text(e.UStack) }},
	{Name: "nvtx", Type: typeText, at: atThread, Doc: "the innermost NVTX range (push and pop) that the thread is in; empty outside of all", of: func(e *Event) Value { return text(e.NVTX) }},
	{Name: "comm", Type: typeText, Doc: "name of the program that the process runs", of: func(e *Event) Value { return text(e.Comm) }},
	{Name: "tid", Type: typeInt, Doc: "thread", of: func(e *Event) Value { return number(int64(e.TID)) }},
}

// ValuesAt returns the names of the values that probes of a kind find, in the order of the documentation.
func ValuesAt(kind string) (list []string) {
	for i := range Kinds {
		for j := range Builtins {
			if Kinds[i].Name == kind && Builtins[j].there(&Kinds[i]) && Builtins[j].Doc != "" {
				list = append(list, Builtins[j].Name)
			}
		}
	}
	for i := range HostKinds {
		for j := range HostBuiltins {
			if HostKinds[i].Name == kind && HostBuiltins[j].there(kind) {
				list = append(list, HostBuiltins[j].Name)
			}
		}
	}
	for i := range CallKinds {
		k := &CallKinds[i]
		for j := range CallBuiltins {
			b := &CallBuiltins[j]
			if k.Name != kind || b.Name == "retval" && callResult[k.host] == "" || (b.Name == "nr" || b.Name == "name") && !strings.HasPrefix(k.Name, "sys") ||
				b.Name == "func" && k.host != object.HostEntry && k.host != object.HostReturn {
				continue
			}
			list = append(list, b.Name)
		}
	}
	switch kind {
	case "api":
		return append(list, "args.NAME", "arg0", "…")
	case "apiret":
		return append(list, "args.NAME")
	case "ioctl", "image", "alloc", "free", "uretprobe", "sysret":
		return list
	}
	return append(list, "arg0", "…")
}

var (
	atLaunch = []string{"launch"}
	atMemory = []string{"alloc", "free"}
	atReturn = []string{"ioctl", "apiret", "alloc", "free"}
	atStack  = []string{"ioctl", "apiret", "alloc", "free", "launch"}
	atThread = []string{"ioctl", "api", "apiret", "alloc", "free", "launch"}
	atImage  = []string{"image"}
)

func product(d [3]uint32) Value { return number(int64(d[0]) * int64(d[1]) * int64(d[2])) }

// hostAxes are the parts of nctaid and ntid, and names that mean the same as others.
var hostAxes = slices.Concat([]HostBuiltin{
	{Name: "elapsed", Type: typeInt, of: func(e *Event) Value { return number(e.Time) }},
}, hostAxis("nctaid", func(e *Event) *[3]uint32 { return &e.Grid }), hostAxis("ntid", func(e *Event) *[3]uint32 { return &e.Block }))

func hostAxis(name string, of func(e *Event) *[3]uint32) (list []HostBuiltin) {
	for i, axis := range []string{".x", ".y", ".z"} {
		list = append(list, HostBuiltin{Name: name + axis, Type: typeInt, at: atLaunch, of: func(e *Event) Value { return number(int64(of(e)[i])) }})
	}
	return list
}

func hostBuiltin(name string) *HostBuiltin {
	for i := range hostAxes {
		if hostAxes[i].Name == name {
			return &hostAxes[i]
		}
	}
	for i := range HostBuiltins {
		if HostBuiltins[i].Name == name {
			return &HostBuiltins[i]
		}
	}
	return nil
}

// elsewhere says of probes that people know from bpftrace, or that nvtrace has in another
// way, what to do.
var elsewhere = map[string]string{
	"tracepoint": "of the system calls there are syscall:NAME and sysret:NAME",
	"t":          "of the system calls there are syscall:NAME and sysret:NAME",
	"U":          "it is usdt:FILE:PROVIDER:NAME",
	"u":          "it is uprobe:FILE:FUNCTION",
	"ur":         "it is uretprobe:FILE:FUNCTION",
	"profile":    "a GPU's threads can't be sampled: count at block:* instead",
	"kretfunc":   "it is kernret:KERNEL",
	"kernelret":  "it is kernret:KERNEL",
	"kretkernel": "it is kernret:KERNEL",
	"retkernel":  "it is kernret:KERNEL",
	"launchret":  "a launch returns before its kernel has run: apiret:cuLaunchKernel* is where the call returns, kernret:KERNEL where the kernel's threads end",
	"load":       "it is mem:KERNEL /kind == \"load\"/",
	"store":      "it is mem:KERNEL /kind == \"store\"/",
	"atomic":     "it is mem:KERNEL /kind == \"atomic\"/",
	"sysenter":   "it is syscall:NAME",
	"sysexit":    "it is sysret:NAME",
	"exit":       "it is kernret:KERNEL, or END",
	"entry":      "it is kernel:KERNEL",
}

func hostProbe(name string) string {
	switch name {
	case "kprobe", "kretprobe", "kfunc", "fentry", "fexit", "k", "kr", "rawtracepoint", "software", "hardware", "watchpoint", "iter":
		return "bpftrace has it; here there are kernel, mem, insn, block and others in kernels, and ioctl, api, apiret, launch, uprobe and syscall on the host"
	}
	return elsewhere[name]
}

// A Builtin is a value that a program finds where it runs.
type Builtin struct {
	Name  string
	Doc   string
	Type  *Type
	field string // of the context; "" where linear, helper or arg say what it is
	at    []object.Kind
	fn    bool // of device functions only
	// compute calculates it from fields; see (*gen).linear.
	linear []string
	helper int32
	args   []string // fields that it is given
	shift  int32    // of what it returns
	low    bool     // its low 32 bits count
	since  bool     // it is a time: counted from the start
}

var (
	atMem    = []object.Kind{object.KindMem}
	atPlaces = []object.Kind{object.KindMem, object.KindInsn, object.KindBlock}
	atInsn   = []object.Kind{object.KindInsn}
	atInsns  = []object.Kind{object.KindMem, object.KindInsn}
	atBlock  = []object.Kind{object.KindBlock}
)

// Builtins are in the order of the documentation. arg0, arg1 … are beside them.
var Builtins = slices.Concat([]Builtin{
	{Name: "kernel", Type: typeKernel, field: "site", Doc: "name of the kernel, or of the device function"},
	{Name: "tid", Type: typeInt, linear: []string{"ctaid", "tid"}, Doc: "number of the thread in its grid; tid.x tid.y tid.z: in its block"},
	{Name: "ctaid", Type: typeInt, linear: []string{"ctaid"}, Doc: "number of the block in its grid; ctaid.x ctaid.y ctaid.z"},
	{Name: "ntid", Type: typeInt, linear: []string{"ntid"}, Doc: "threads of a block; ntid.x ntid.y ntid.z"},
	{Name: "nctaid", Type: typeInt, linear: []string{"nctaid"}, Doc: "blocks of the grid; nctaid.x nctaid.y nctaid.z"},
}, axes("tid", "thread"), axes("ctaid", "block"), axes("ntid", "block_dim"), axes("nctaid", "grid"), []Builtin{
	{Name: "smid", Type: typeInt, field: "sm", Doc: "multiprocessor"},
	{Name: "warpid", Type: typeInt, field: "warp", Doc: "slot of the warp on the multiprocessor; it may change"},
	{Name: "laneid", Type: typeInt, field: "lane", Doc: "0 to 31"},
	{Name: "nsecs", Type: typeInt, field: "time", Doc: "the GPU's global timer, in nanoseconds"},
	{Name: "cycles", Type: typeInt, field: "clock", Doc: "cycles of the multiprocessor"},
	{Name: "launch", Type: typeInt, helper: helper.Launch, Doc: "a number that no other launch has"},
	{Name: "activemask", Type: typeInt, helper: helper.Active, Doc: "the warp's threads that run the probe now, a bit each"},
	{Name: "wavefronts", Type: typeInt, helper: helper.Wavefronts, args: []string{"addr", "size"}, at: atMem, Doc: "passes in which shared memory serves the warp's threads that are here: 1 without bank conflicts"},
	{Name: "pid", Type: typeInt, helper: helper.ProcessThread, shift: 32, Doc: "the process that launched the kernel"},
	{Name: "rank", Type: typeInt, helper: helper.Rank, Doc: "rank of the process among those of its job, as mpirun, srun or torchrun told it; -1: none"},
	{Name: "device", Type: typeInt, helper: helper.Device, Doc: "ordinal of the GPU"},
	{Name: "rand", Type: typeInt, helper: helper.Random, Doc: "a random number of 32 bits"},
	{Name: "retval", Type: typeInt, at: []object.Kind{object.KindExit}, fn: true, Doc: "what a device function returns, up to 8 bytes of it"},
	{Name: "site", Type: typeSite, field: "site", Doc: "the place: kernel, line of the source, instruction"},
	{Name: "place", Type: typePlace, field: "site", at: atPlaces, Doc: "the place as JSON, which `nvtrace annotate` reads: kernel, insn, instruction, file, line"},
	{Name: "addr", Type: typeInt, field: "addr", at: atMem, Doc: "address of the access, in its space"},
	{Name: "size", Type: typeInt, field: "size", at: atMem, Doc: "bytes of the access; 0 if only the machine knows"},
	{Name: "kind", Type: typeKind, field: "kind", at: atMem, Doc: "\"load\", \"store\", \"atomic\" or \"async\""},
	{Name: "space", Type: typeSpace, field: "space", at: atMem, Doc: "\"global\", \"shared\", \"local\", \"const\", or \"generic\" where only the address says"},
	{Name: "value", Type: typeInt, field: "value", at: atMem, Doc: "what is stored, was loaded, is copied (`cp.async`), or what an atomic gave; of vectors the first 8 bytes, the next are value2"},
	{Name: "value2", Type: typeInt, field: "value2", at: atMem, Doc: "the 8 bytes behind value, of vectors; 0 in machine code but of copies and ldmatrix"},
	{Name: "opcode", Type: typeOpcode, field: "site", at: atInsns, Doc: "the instruction's opcode"},
	{Name: "source", Type: typeSource, field: "site", at: atPlaces, Doc: "file and line, if compiled with -lineinfo"},
	{Name: "line", Type: typeInt, field: "line", at: atPlaces, Doc: "line of the source, 0 if it is not known"},
	{Name: "insn", Type: typeInt, field: "insn", at: atPlaces, Doc: "instructions of the kernel before the place"},
	{Name: "block", Type: typeInt, field: "block_id", at: atPlaces, Doc: "number of the basic block"},
	{Name: "guarded", Type: typeInt, field: "guarded", at: atInsn, Doc: "1 if the instruction has a guard, which holds in the threads that are here"},
	{Name: "operand0", Type: typeInt, field: "operand0", at: atInsn, Doc: "an operand of the instruction, as it is before; of most, operand0 is where the result goes. 0 of what is no number, and in machine code"},
	{Name: "operand1", Type: typeInt, field: "operand1", at: atInsn, Doc: "the next; operand2 and operand3 likewise"},
	{Name: "operand2", Type: typeInt, field: "operand2", at: atInsn},
	{Name: "operand3", Type: typeInt, field: "operand3", at: atInsn},
	{Name: "insns", Type: typeInt, field: "insns", at: atBlock, Doc: "instructions in the basic block"},
})

func axes(name, field string) []Builtin {
	var list []Builtin
	for _, axis := range []string{".x", ".y", ".z"} {
		list = append(list, Builtin{Name: name + axis, Type: typeInt, field: field + axis})
	}
	return list
}

func builtin(name string) *Builtin {
	for i := range Builtins {
		if Builtins[i].Name == name {
			return &Builtins[i]
		}
	}
	return nil
}

// there reports whether the built-in can be had at a kind of places.
func (b *Builtin) there(k *Kind) bool {
	return b.at == nil || slices.Contains(b.at, k.Point) && (k.fn || !b.fn)
}

// absent says of names that people know from bpftrace or CUDA what they are here.
var absent = map[string]string{
	"cpu": "the multiprocessor is smid", "threadIdx": "it is tid.x", "blockIdx": "it is ctaid.x", "blockDim": "it is ntid.x", "gridDim": "it is nctaid.x",
	"sm": "it is smid", "warp": "it is warpid", "lane": "it is laneid", "thread": "it is tid", "time": "it is nsecs", "clock": "it is cycles", "grid": "it is nctaid",
	"comm":    "a kernel has no command; pid is the process",
	"address": "it is addr", "bytes": "it is size", "len": "it is size", "type": "it is kind", "bb": "it is block", "name": "it is kernel",
	"kname": "it is kernel", "kernel_name": "it is kernel", "kernelName": "it is kernel", "op": "it is opcode", "file": "it is source",
	"duration": "subtract two nsecs: nvtrace tool kernels does, for kernels, and blocklat, for blocks",
	"ustack":   "a kernel's stack is not known; site names the place, and uprobe:libcuda:cuLaunchKernel { @[ustack] = count(); } who launches", "kstack": "a kernel's stack is not known; site names the place",
	"pystack": "a kernel runs after the call that launched it: apiret:cuLaunchKernel* knows it", "probe": "it is kernel, or site", "func": "it is kernel, or site",
	"args": "a kernel's parameters have no names: they are arg0, arg1 …", "elapsed": "subtract two nsecs", "uid": "pid is the process", "gid": "pid is the process",
	"stream": "a thread does not know its stream", "nvtx": "a thread on the host is in a range: launch:* { @[nvtx, kernel] = count(); }",
}

// absentOnHost says so of names at probes on the host.
var absentOnHost = map[string]string{
	"func": "it is name", "probe": "it is name", "function": "it is name", "call": "it is name", "cmd": "it is sub", "device": "it is node, where a device call is made",
	"grid": "it is nctaid", "gridDim": "it is nctaid", "block": "it is ntid", "blockDim": "it is ntid", "ret": "it is retval", "time": "it is nsecs",
	"kstack": "what calls in the driver is not known; ioctl knows ustack and pystack",
}

// A Function is called in a statement, or, if it is an aggregation, assigned to a map.
type Function struct {
	Name     string
	Args     string // as it is written
	Doc      string
	least    int // arguments
	most     int
	agg      aggregation
	hostOnly bool
	result   *Type // of what has a value
	helper   int32 // that calculates it in kernels; 0: it can't be had there
	bytes    int32 // that it reads of memory at its argument
}

// An aggregation is what becomes of the values that are given to a map.
type aggregation uint8

const (
	aggNone aggregation = iota // the value that was assigned last
	aggCount
	aggSum
	aggMin
	aggMax
	aggAvg
	aggStats
	aggHist
	aggLhist
)

// Functions are in the order of the documentation.
var Functions = []Function{
	{Name: "count", Args: "count()", agg: aggCount, Doc: "counts"},
	{Name: "sum", Args: "sum(n)", least: 1, most: 1, agg: aggSum, Doc: "adds up"},
	{Name: "min", Args: "min(n)", least: 1, most: 1, agg: aggMin, Doc: "keeps the lowest"},
	{Name: "max", Args: "max(n)", least: 1, most: 1, agg: aggMax, Doc: "keeps the highest"},
	{Name: "avg", Args: "avg(n)", least: 1, most: 1, agg: aggAvg, Doc: "the average"},
	{Name: "stats", Args: "stats(n)", least: 1, most: 1, agg: aggStats, Doc: "count, average and total"},
	{Name: "hist", Args: "hist(n)", least: 1, most: 1, agg: aggHist, Doc: "a histogram of powers of two"},
	{Name: "lhist", Args: "lhist(n, min, max, step)", least: 4, most: 4, agg: aggLhist, Doc: "a histogram of equal steps"},
	{Name: "printf", Args: "printf(format, …)", least: 1, most: 1 + maxPrintArgs, Doc: "prints: %d %u %x %o %c %p of numbers, %s of names and strings"},
	{Name: "first", Args: "first(n)", least: 1, most: 1, result: typeInt, helper: helper.First, Doc: "1 in one thread of those of the warp that are here with the same n, 0 in the others: added up, how many different n there are"},
	{Name: "match", Args: "match(n)", least: 1, most: 1, result: typeInt, helper: helper.Match, Doc: "the mask of the warp's threads that are here with the same n"},
	{Name: "ballot", Args: "ballot(n)", least: 1, most: 1, result: typeInt, helper: helper.Ballot, Doc: "the mask of the warp's threads in which n is not 0, of all that came to the probe together. Refused where threads may have parted, as behind a condition on the thread"},
	{Name: "any", Args: "any(n)", least: 1, most: 1, result: typeInt, helper: helper.Any, Doc: "1 if n is not 0 in one of them"},
	{Name: "all", Args: "all(n)", least: 1, most: 1, result: typeInt, helper: helper.AllOf, Doc: "1 if n is not 0 in all of them"},
	{Name: "shuffle", Args: "shuffle(n, lane)", least: 2, most: 2, result: typeInt, helper: helper.Shuffle, Doc: "the n of the thread of that lane, 0 if it is not there"},
	{Name: "popc", Args: "popc(n)", least: 1, most: 1, result: typeInt, helper: helper.Popc, Doc: "how many bits of n are 1"},
	{Name: "read8", Args: "read8(addr)", least: 1, most: 1, result: typeInt, helper: helper.ReadUser, bytes: 1, Doc: "the number in so many bits of memory; 0 where it can't be read, which never ends anything"},
	{Name: "read16", Args: "read16(addr)", least: 1, most: 1, result: typeInt, helper: helper.ReadUser, bytes: 2, Doc: "the same of 16 bits"},
	{Name: "read32", Args: "read32(addr)", least: 1, most: 1, result: typeInt, helper: helper.ReadUser, bytes: 4, Doc: "the same of 32 bits"},
	{Name: "read64", Args: "read64(addr)", least: 1, most: 1, result: typeInt, helper: helper.ReadUser, bytes: 8, Doc: "the same of 64 bits"},
	{Name: "len", Args: "len(@x)", least: 1, most: 1, hostOnly: true, result: typeInt, Doc: "how many keys are in a map"},
	{Name: "str", Args: "str(args.NAME) or str(addr)", least: 1, most: 2, hostOnly: true, result: typeText, Doc: "the text that a parameter points to, as far as it was recorded. At functions and system calls the text at an address, of at most 63 bytes (str(addr, n): n - 1)"},
	{Name: "strncmp", Args: "strncmp(a, b, n)", least: 3, most: 3, hostOnly: true, result: typeInt, Doc: "0 if the first n bytes of two texts are equal, else 1; at functions and system calls of a text and a literal"},
	{Name: "time", Args: "time(format)", most: 1, hostOnly: true, Doc: "prints the time of day, as strftime does: %H:%M:%S"},
	{Name: "delete", Args: "delete(@x[key])", least: 1, most: 1, Doc: "takes a key out of a map whose values are assigned"},
	{Name: "print", Args: "print(@x), print(@x, top), print(@x, top, div), print(n)", least: 1, most: 3, hostOnly: true, Doc: "prints a map, of it the highest, divided; or, everywhere, a value or a tuple: print((a, b))"},
	{Name: "clear", Args: "clear(@x)", least: 1, most: 1, hostOnly: true, Doc: "empties a map, so that it is not shown"},
	{Name: "zero", Args: "zero(@x)", least: 1, most: 1, hostOnly: true, Doc: "sets all values of a map to 0"},
}

func function(name string) *Function {
	for i := range Functions {
		if Functions[i].Name == name {
			return &Functions[i]
		}
	}
	return nil
}

// noFunction says of functions that people know from bpftrace why they are not here.
var noFunction = map[string]string{
	"exit":     "a program that is traced is not ended; nvtrace returns when it does",
	"quantize": "it is hist(n)", "lquantize": "it is lhist(n, min, max, step)", "trace": "it is printf(format, …)",
	"kstack": "a kernel's stack is not known", "ustack": "a kernel's stack is not known",
	"system": "programs start no others", "join": "there are no arrays of strings",
	"has_key": "a key that is not there reads as 0",
	"or":      "bits are put together by @x |= n", "kptr": "an address is a number as it is", "uptr": "an address is a number as it is",
	"buf": "read64(addr) reads numbers of memory", "ksym": "ustack and site name places", "usym": "ustack and site name places",
	"nsecs_of": "it is nsecs", "strftime": "it is time(format)", "average": "it is avg(n)", "percentile": "hist(n) shows how values are spread",
}

func names[T any](all []T, name func(*T) string) []string {
	list := make([]string, 0, len(all))
	for i := range all {
		list = append(list, name(&all[i]))
	}
	return list
}

// maxPrintArgs bounds the values of a printf, as bpf_trace_vprintk does.
const maxPrintArgs = 12
