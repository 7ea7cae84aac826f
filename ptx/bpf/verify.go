package bpf

import (
	"errors"

	"nvtrace/ptx"
)

// Verified is a program that was proven safe in its Env. It is safe for
// concurrent use.
type Verified struct {
	report Report
}

// Verify checks that p is safe in env and prepares it for [Verified.Emit]. The
// error is a *RefusedError if the program is at fault.
func Verify(p *Program, env *Env) (*Verified, error) {
	return nil, errors.New("being written")
}

// Report says what the program does and needs.
func (v *Verified) Report() *Report { return &v.report }

// Emit writes the program for one site: PTX statements, to be put in a scope of
// their own as [ptx.Weaver] does.
func (v *Verified) Emit(s *Site) (string, error) { return "", errors.New("being written") }

// A Gen is the code of one program at one site while it is being written.
type Gen struct {
	*ptx.Builder // the code so far; what is written is added to it
}

// Site returns the site that the code is for.
func (g *Gen) Site() *Site { return nil }

// Reg declares a new register.
func (g *Gen) Reg(t ptx.Type) ptx.Arg { return ptx.Arg{} }

// Label returns a new label, to be placed with [ptx.Builder.Label].
func (g *Gen) Label() string { return "" }

// End returns the label of the program's regular end.
func (g *Gen) End() string { return "" }

// Address returns a 64-bit register with the address a.
func (g *Gen) Address(a Addr) ptx.Arg { return ptx.Arg{} }

// A Call is one call of a helper while its code is being written.
type Call struct {
	CallInfo
	Args [5]Value
	Used bool // the result is read, or may be
}

// A Value is an argument of a call.
type Value struct{}

// Const returns the argument when it is the same number on every path.
func (v *Value) Const() (uint64, bool) { return 0, false }

// Range returns the lowest and the highest value of a number, unsigned.
func (v *Value) Range() (lo, hi uint64) { return 0, 0 }

// Reg returns the number: a 64-bit register, which must not be written, or an
// integer constant. For a pointer it is 0: the program's pointers are not
// addresses that others could use.
func (v *Value) Reg() ptx.Arg { return ptx.Arg{} }

// Size returns how many bytes the pointer's ArgSpec lets the helper access; 0
// for numbers, and for a NULL pointer with size 0.
func (v *Value) Size() int { return 0 }

// Load returns size (1 to 8) bytes at offset off behind the pointer as an
// unsigned little-endian number: a 64-bit register, which must not be written,
// or an integer. It costs nothing for a stack in registers.
func (v *Value) Load(off, size int) ptx.Arg { return ptx.Arg{} }

// Store sets size (1 to 8) bytes at offset off behind the pointer to the low
// bytes of x, a 64-bit register or an integer.
func (v *Value) Store(off, size int, x ptx.Arg) {}

// Bytes returns the memory behind the pointer if it is the same on every path;
// for an ArgString up to the NUL, without it.
func (v *Value) Bytes() ([]byte, bool) { return nil, false }
