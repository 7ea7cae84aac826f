package bpf

import "nvtrace/ptx"

// An Env is what a program finds around it. It is not changed, and must not be
// while a [Verified] made with it is in use.
type Env struct {
	// Context is what r1 points to. Nil: there is none; the program may pass r1
	// on to helpers that take a context, but not read through it.
	Context *Context
	// Maps are the object's maps, global data included.
	Maps []Map
	// Helpers by number. What is not here is refused.
	Helpers map[int32]*Helper
	// Narrow allows atomic additions, ands, ors and xors of 1 and 2 bytes that return
	// nothing. No compiler writes them; a caller that makes atomic operations of loads
	// and stores may.
	Narrow bool
	// Large lets helpers access up to a megabyte through one pointer, which no back end that
	// makes code for each byte can do.
	Large bool
	// Elected says that what is added atomically, without a result, is added by one thread of a warp, so
	// that nobody looks whether others add to the same address.
	Elected bool
	// Slots, if not nil, says of calls of helpers with Slot whether the site has a place for the value
	// of the call's key, which must be one that is known at the site; the program adds a number that is not 0 to the value then.
	Slots func(c *CallInfo) bool
	// Fuel is how many instructions one run of a program may execute. It is ended
	// at the head of a loop that would go beyond that; a may_goto leaves its loop
	// instead. 0 means DefaultFuel.
	Fuel uint32
	// MaxInsns limits the instructions of a program, with the bodies of called
	// functions put in place of the calls. 0 means DefaultMaxInsns.
	MaxInsns int
}

const (
	// DefaultFuel is Env.Fuel when it is 0.
	DefaultFuel = 1_000_000
	// DefaultMaxInsns is Env.MaxInsns when it is 0.
	DefaultMaxInsns = 1 << 14
	// MaxCallDepth is how many functions may be active at once, as in Linux.
	MaxCallDepth = 8
	// StackSize is the number of bytes of stack of each function.
	StackSize = 512
)

// A Context is the object that r1 points to: a structure whose fields a [Site]
// computes, or a text.
type Context struct {
	// Fields can be read in whole or in part, at constant offsets.
	Fields []Field
	// Text is not 0 if the context is a read-only string instead, of which so
	// many bytes can be read; a site's text is padded to them with zeros.
	Text int
}

// A Field is a member of a context.
type Field struct {
	Name   string
	Offset int // in bytes
	Size   int // 1, 2, 4 or 8 bytes
	// Uniform says that all threads of a warp see the same at a site, at any time.
	// Saying so is never needed; additions of such numbers are made together.
	Uniform bool
	// Clock says that threads that read it together see the same.
	Clock bool
	// Placed says that it is a number that is known where the program is put.
	Placed bool
	// Below, if it is not 0, says that it is less than that, which is MostSlots at most.
	Below int
	// Alike says which threads see the same at a site, wherever they are.
	Alike Extent
}

// A Map is what programs need to know of a map. Its index in [Env.Maps]
// identifies it everywhere else.
type Map struct {
	Name       string
	KeySize    uint32
	ValueSize  uint32
	MaxEntries uint32
	// Align is what every value's address is a multiple of: 1, 2, 4 or 8.
	// 0 means the highest of these that divides ValueSize. Narrower values are
	// accessed in parts; atomics on them are refused. The value of a map that is
	// Direct, a record and a context's text in memory begin at a multiple of 8.
	Align int
	// Direct allows the program to use addresses inside the value of entry 0
	// without a lookup; so for global data (.data, .bss, .rodata).
	Direct bool
	// ReadOnly forbids stores, as for .rodata.
	ReadOnly bool
	// Contents is the value of a map that is Direct and ReadOnly; loads at
	// constant offsets become constants. May be nil.
	Contents []byte
	// Thread says of a map that is Direct that every thread has a value of its own,
	// in registers that the [Site] names. It is accessed at constant offsets only.
	Thread bool
	// Together says of a map that is Thread that programs only store what is the same
	// in all threads of a warp, or was when they stored it together; see
	// [MapUse].Apart. Saying so is never needed.
	Together bool
	// Inner is 1 more than the index of a map that this one's values are like, which are maps
	// themselves: a lookup gives one of them, or NULL. 0: its values are no maps. On the host
	// only.
	Inner int
	// Each says that values of multiprocessors are shown each by itself.
	Each bool
	// System makes atomic operations have system scope: the memory is the
	// host's, or several devices use it.
	System bool
	// Block says that a map's values are in the memory that the threads of a block share.
	// What a helper with RetValue returns is then a generic address in it. Not for maps that
	// are Direct.
	Block bool
}

// An ArgKind says what a helper takes.
type ArgKind uint8

// The kinds of arguments.
const (
	ArgAny     ArgKind = iota // anything, even a register that was never written; [Value.Reg] gives the address of a map's value, and 0 for other pointers
	ArgScalar                 // a number
	ArgConst                  // a number that is the same on every path: [Value.Const] knows it
	ArgMap                    // a map; the same one on every path
	ArgKey                    // pointer to a key of the call's map, which is read
	ArgValue                  // pointer to a value of the call's map, which is read
	ArgRead                   // pointer to Size bytes that are read; NULL is refused
	ArgWrite                  // pointer to Size bytes that may be written; NULL is refused
	ArgContext                // the context, or NULL
	ArgString                 // pointer to a text, with its NUL at most Size bytes, that is the same on every path: [Value.Bytes] knows those before the NUL
	ArgRecord                 // what a helper returned that has RetRecord; the call gives it back
	ArgShared                 // pointer to Size bytes of a map's value, aligned so, which the helper changes atomically; [Value.Reg] gives their address
)

// An ArgSpec describes one argument.
type ArgSpec struct {
	Kind ArgKind
	// Size in bytes for ArgRead, ArgWrite, ArgShared and ArgString; 0: the argument SizeArg
	// has it, whose highest possible value counts. ValueBytes of ArgWrite: that of a value of
	// the call's map.
	Size int
	// SizeArg is the index of the argument (0 to 4) with the size. A constant
	// size may be 0, and then nothing is accessed and the pointer may be NULL.
	SizeArg int
	// Whole says of ArgWrite that the helper writes all of the bytes whatever it returns. Else
	// some of them may be as they were: what lay there is no number afterwards unless it was.
	Whole bool
	// Reads says of ArgWrite that the helper also looks at what is there.
	Reads bool
}

// ValueBytes is an [ArgSpec].Size.
const ValueBytes = -1

// A RetKind says what a helper returns.
type RetKind uint8

// The kinds of results.
const (
	RetScalar RetKind = iota // a number
	RetVoid                  // nothing: r0 is not readable afterwards
	RetValue                 // pointer to a value of the call's map, or NULL; the map that is the value, if [Map].Inner
	RetRecord                // pointer to as many bytes as the argument of kind ArgConst says, or NULL; must be given back on every path
	RetNever                 // the thread does not come back
)

// A Helper is a function that programs call by number.
type Helper struct {
	Name string
	Args []ArgSpec // at most 5
	Ret  RetKind
	// Pure: without a look at the result the call has no effect.
	Pure bool
	// Refuse is a reason not to allow the helper, for the [RefusedError]; Hint
	// says what to do about it.
	Refuse, Hint string
	// Max is the highest number that a RetScalar can be; 0 means any.
	Max uint64
	// Uniform, if not nil, says of a call whose arguments are the same in all threads
	// of a warp whether what it returns and writes is, too.
	Uniform func(c *CallInfo) bool
	// Collective: the threads of a warp that came to the site together make the call
	// together, by [Gen.Together]; a program that they may not all make it in is refused. With
	// Common, what it returns is then the same in all of them.
	Collective, Common bool
	// Slot: it returns the value of a key, always if the site has a place for it. See Env.Slots.
	Slot bool
	// Alike says, of a call whose arguments are the same in some threads, in which of them what it returns
	// and writes is, too.
	Alike Extent
	// Repeats: to make the call again with the same arguments changes nothing.
	Repeats bool
	// Check can refuse a call for what its constants are, for instance the flags
	// or the kind of map. It may be nil, and returns a reason.
	Check func(c *CallInfo) error
	// NeverNull, of a helper that has RetValue, may say that this call always
	// returns a value, an array's lookup of a key that is in range for instance;
	// the program's own test for NULL then costs nothing. Nil: any call may fail.
	NeverNull func(c *CallInfo) bool
	// Emit writes the call's code and returns the result: a 64-bit register or
	// an integer; the zero Arg for RetVoid and RetNever. Registers come from
	// [Gen.Reg], labels from [Gen.Label].
	Emit func(g *Gen, c *Call) (ptx.Arg, error)
	// Release, of a helper that returns a record, writes code that gives the
	// record at address rec (a 64-bit register, not 0) back unused. It is
	// needed when a program ends early.
	Release func(g *Gen, rec ptx.Arg) error
	// Interpret is the helper for [Interpreter.Run]; its result is r0.
	Interpret func(in *Interpreter, args [5]uint64) (uint64, error)
}

// A CallInfo is what is known of a call before code is written.
type CallInfo struct {
	Insn   int // index of the instruction in Program.Insns
	Map    int // index of the call's map, -1 for none
	Consts [5]struct {
		Known bool
		Value uint64
	} // arguments that are the same number on every path
	// Bytes is the memory behind arguments that are read, a key for instance,
	// where it is the same on every path; nil elsewhere. It must not be changed.
	Bytes [5][]byte
	// Most is the highest number that the memory behind arguments that are read
	// may hold, as a little-endian one; MaxUint64 where that is not known.
	Most [5]uint64
	// Size is how many bytes the helper may access behind arguments that are pointers
	// to memory of the program's, at most; 0 for others.
	Size [5]int
}
