package bpf

import (
	"strconv"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
)

// A Site is one place in a kernel that gets a program.
type Site struct {
	// Version and Target are those of the module.
	Version ptx.Version
	Target  ptx.Target
	// Prefix begins the names of all registers and labels; it must be such that
	// they hide nothing that Field or the maps' symbols name. "" means "nvb".
	Prefix string
	// Field returns the value of field i of the context: a 64-bit register
	// or an integer, with the bits beyond the field's size 0. It is asked once
	// for each field that the program reads, at the start of the program.
	Field func(g *Gen, i int) (ptx.Arg, error)
	// Slot returns the address of use k of Report.Slots, a 64-bit register. It is asked as Field is.
	Slot func(g *Gen, k int) (ptx.Arg, error)
	// Once has one thread run the program for all of a block, or a grid, that come to the site: all of
	// them do. It must not be more than Report.Once.
	Once Extent
	// Text is the context's string, for a context that is one.
	Text []byte
	// TextAddr is where Context.Text bytes with Text, padded with zeros, lie in
	// global memory. Needed if [Report.TextInMemory].
	TextAddr Addr
	// Maps are the addresses of the values of entry 0 for maps that are Direct,
	// by index. Other entries are not looked at. Of a map that is Thread, Symbol is
	// what the names of the 64-bit registers with its 8-byte words begin with; their
	// numbers follow.
	Maps []Addr
	// Failed, if not nil, writes code for threads whose run of the program was
	// ended early, for instance to count them. [Gen.Why] says what ended it.
	Failed func(g *Gen) error
	// Result, if not nil, gets the number that the program returns: 0 from an exit
	// that some paths come to with a pointer, or with nothing, in r0.
	Result func(g *Gen, r0 ptx.Arg) error
	// Reconverge makes the threads that came in together leave together, by
	// activemask and bar.warp.sync. Without effect on targets that lack these
	// and for programs without a branch.
	Reconverge bool
	// ToolsPatch: the code is compiled with --compile-as-tools-patch, which refuses
	// instructions that need uniform registers, such as redux.
	ToolsPatch bool

	mark bool // it is a Template's
}

// Alone reports whether the target has no means to tell which threads of a warp have the same
// number, and so for which of them one can speak: there each is alone.
func (s *Site) Alone() bool {
	return !ptx.Needs("match.any.sync.b32").Met(s.Version, s.Target) || !ptx.Needs("activemask.b32").Met(s.Version, s.Target)
}

// An Addr is an address in global memory: a variable of the module, or a number.
type Addr struct {
	Symbol string // "" for a number
	Value  uint64 // the number, or the offset from the symbol
}

// A Report says what a program does and needs, however it is put into a kernel.
type Report struct {
	Insns        int    // instructions, callees in place of the calls
	Registers    int    // upper bound of 64-bit registers that hold eBPF registers and stack
	LocalBytes   int    // bytes of local memory; 0 unless the stack is accessed at computed offsets
	ProvenLoops  int    // loops whose number of rounds is known and fits the fuel
	FueledLoops  int    // loops that take fuel as they run
	Branches     int    // conditional jumps that are not decided by the analysis
	Checks       int    // tests that end the program, those of loops' fuel not counted
	Ends         []End  // why and where a run may be ended early; [Gen.Why] is an index
	Races        []Race // ascending by instruction
	TextInMemory bool   // the context's text is read at computed offsets
	Fields       []int  // indices of the context's fields that are read, ascending
	Helpers      []int32
	Maps         []MapUse  // by index of Env.Maps
	Slots        []SlotUse // that may be, or, with Env.Slots, are
	// Once says for how many threads one can run the program, if it makes the additions of all: it does the
	// same in each of them.
	Once Extent
}

// An EndKind says why a run of a program is ended early.
type EndKind uint8

// The kinds of early ends.
const (
	EndNull  EndKind = iota // NULL is followed, or calculated with
	EndBound                // an access outside of its object
	EndAlign                // an atomic operation at an address that is no multiple of its size
	EndLoop                 // the fuel is spent
)

// String returns what happened.
func (k EndKind) String() string {
	return [...]string{
		EndNull: "NULL dereference", EndBound: "access out of bounds", EndAlign: "unaligned atomic operation", EndLoop: "loop bound reached",
	}[k]
}

// An End is a test that ends a run: where, and what for.
type End struct {
	Kind     EndKind
	Insn     int    // index of the instruction in Program.Insns; of a loop, its first
	Source   string // the source line, "" if the object has none
	Position string // its file and number, "probe.bpf.c:12"; "" if the object does not say
}

// Where returns the source position, or the instruction's number.
func (e *End) Where() string {
	if e.Position != "" {
		return e.Position
	}
	return "instruction " + strconv.Itoa(e.Insn)
}

// A Race is a value of a map that a program reads and writes back changed: what other
// threads write in between is lost.
type Race struct {
	Map      int // index in Env.Maps
	Insn     int // of the store, or of the call that writes, in Program.Insns
	Call     bool
	Size     int       // bytes that are written
	Op       asm.ALUOp // what the store's register was calculated by last; asm.InvalidALUOp if that is not known
	Source   string    // the source line, "" if the object has none
	Position string    // its file and number, "" if the object does not say
}

// A MapUse says how a program uses a map.
type MapUse struct {
	Used    bool // in any way
	Lookups bool // a helper returned values of it
	Helpers bool // handed to helpers that do not return values of it, such as update
	Loads   bool // values are read
	Stores  bool // values are written, but not by atomics
	Atomics bool // atomics other than those in Adds
	// Strays: some of Atomics are not in Merges.
	Strays bool
	// Adds are the parts of the value that are added to atomically without a
	// look at the result. One with a computed offset spans all that it may reach.
	Adds []AddRange
	// Merges are atomic operations that may be done in any order, and several times, without a look at
	// the result: "or", and what helpers do with memory of ArgShared.
	Merges []Merge
	// Apart: what is stored in a value that is in registers may be different in the
	// threads of a warp.
	Apart bool
	// Calls are the calls of helpers that are handed the map.
	Calls []MapCall
}

// A MapCall is a call of a helper with a map.
type MapCall struct {
	Helper int32
	Info   *CallInfo // not to be changed
}

// AddOnly reports whether the program does nothing with the map's values but add
// to them atomically, so that the map may be kept as several copies whose sum is
// the value.
func (u *MapUse) AddOnly() bool {
	return len(u.Adds) > 0 && !u.Helpers && !u.Loads && !u.Stores && !u.Atomics
}

// MergeOnly reports whether the program does nothing with the map's values but what is in Adds
// and Merges.
func (u *MapUse) MergeOnly() bool {
	return len(u.Adds)+len(u.Merges) > 0 && !u.Helpers && !u.Loads && !u.Stores && !u.Strays
}

// A Merge is one of [MapUse].Merges.
type Merge struct {
	Helper int32 // 0: "or"
	AddRange
}

// An AddRange is a part of a value that is added to.
type AddRange struct {
	Offset int // of the first byte that may be touched
	End    int // behind the last
	Size   int // of each addition: 4 or 8 bytes
}
