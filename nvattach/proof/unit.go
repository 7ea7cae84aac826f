package proof

import (
	"strconv"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Unit is the compilation of one object's programs: the maps and helpers that
// they find, and the place that code is being written for.
type Unit struct {
	Object    *object.Object
	Maps      *mapmem.Maps
	Defs      []*object.MapDef // as in bpf.Env.Maps
	Formats   *Formats
	HostClock bool     // programs run on the host, too, whose clock is theirs
	AllowExit bool     // bpftime's helper 507 is allowed
	Weak      bool     // the module's target has no memory model
	Block     string   // its variable with the maps that each block has
	Apart     bool     // and nothing that compares a warp's threads
	At        *Place   // the place that code is being written for
	Program   *Program // the program
	// Returned is the register in which functions keep what they return.
	Returned string
	Slots    func(*bpf.CallInfo) bool // calls of nvtrace_map_value that have a place, while a program is proven
}

// Formats numbers the formats of bpf_printk.
type Formats struct {
	List []string
	ids  map[string]uint32
}

// Number returns the number of a format. A new format gets the next one.
func (f *Formats) Number(s string) uint32 {
	if n := f.ids[s]; n != 0 {
		return n
	}
	if f.ids == nil {
		f.ids = make(map[string]uint32)
	}
	f.List = append(f.List, s)
	f.ids[s] = uint32(len(f.List))
	return f.ids[s]
}

// genSink writes to a program's code.
type genSink struct{ *bpf.Gen }

// NewReg implements sink.
func (s genSink) NewReg(t ptx.Type) string { return s.Reg(t).String() }

// NewLabel implements sink.
func (s genSink) NewLabel() string { return s.Label() }

// Code returns what writes code for maps into a program.
func (u *Unit) Code(g *bpf.Gen) *emit.Code {
	return &emit.Code{S: genSink{g}, M: u.Maps, Weak: u.Weak, Apart: u.Apart, Block: u.Block}
}

// argBytes is what a pointer among a helper's arguments points at.
type argBytes struct {
	c *emit.Code
	v *bpf.Value
}

// Load implements bytesArg.
func (a argBytes) Load(off uint64, size int) string {
	x := a.v.Load(int(off), size).String()
	if size == 8 {
		return x
	}
	if n, err := strconv.ParseUint(x, 0, 64); err == nil {
		return strconv.FormatUint(n&(1<<(8*size)-1), 10)
	}
	if n, err := strconv.ParseInt(x, 0, 64); err == nil {
		return strconv.FormatUint(uint64(n)&(1<<(8*size)-1), 10)
	}
	return a.c.Low(x)
}

// Register64 is a result for the compiler.
func Register64(r string) ptx.Arg {
	if n, err := strconv.ParseInt(r, 0, 64); err == nil {
		return ptx.Imm(n)
	}
	return ptx.TypedReg(ptx.B64, r)
}

// A form is what a helper does in a kernel: it writes the call's code.
type form func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error)
