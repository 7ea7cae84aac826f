package emu

import (
	"errors"
	"fmt"
	"strings"

	"nvtrace/ptx"
)

// Errors that a launch or a load can wrap.
var (
	// ErrNotImplemented marks an instruction, modifier or feature that the
	// machine does not execute. It never guesses a result instead.
	ErrNotImplemented = errors.New("not implemented by the PTX machine")
	// ErrInvalid marks code or an argument that breaks the PTX ISA's rules.
	ErrInvalid = errors.New("invalid")
	// ErrAddress marks an access outside every allocation.
	ErrAddress = errors.New("illegal address")
	// ErrMisaligned marks an access at an address that is no multiple of its size.
	ErrMisaligned = errors.New("misaligned address")
	// ErrOutOfMemory marks an allocation beyond a limit.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrBudget marks a launch that used up its instruction budget.
	ErrBudget = errors.New("instruction budget used up")
	// ErrDeadlock marks a launch in which no thread can go on.
	ErrDeadlock = errors.New("deadlock")
	// ErrTrap marks a kernel that executed trap.
	ErrTrap = errors.New("trap")
	// ErrAssert marks a kernel that failed an assert.
	ErrAssert = errors.New("assertion failed")
	// ErrStack marks calls nested too deeply or too much local memory.
	ErrStack = errors.New("stack overflow")
)

// Dim3 is a size or a position in up to three dimensions.
type Dim3 struct{ X, Y, Z uint32 }

// String returns "(x,y,z)".
func (d Dim3) String() string { return fmt.Sprintf("(%d,%d,%d)", d.X, d.Y, d.Z) }

// count returns the product of the dimensions.
func (d Dim3) count() uint64 { return uint64(d.X) * uint64(d.Y) * uint64(d.Z) }

// at returns the position of the n'th element, x fastest.
func (d Dim3) at(n uint64) Dim3 {
	x, y := uint64(d.X), uint64(d.Y)
	return Dim3{uint32(n % x), uint32(n / x % y), uint32(n / (x * y))}
}

// A Fault says where execution failed: which kernel, instruction and thread.
type Fault struct {
	Kernel string       // the launched kernel
	Func   string       // the function the instruction is in
	Pos    ptx.Position // of the instruction
	Text   string       // the instruction as written
	Block  Dim3         // %ctaid of the thread
	Thread Dim3         // %tid of the thread
	Err    error        // what happened, wrapping one of the package's errors
}

// Error returns "kernel K: file:line:col: text: thread (x,y,z) of block (x,y,z): what",
// in one line, with a space where the text has tabs or more.
func (f *Fault) Error() string {
	in := ""
	if f.Func != f.Kernel {
		in = " in " + f.Func
	}
	return fmt.Sprintf("kernel %s%s: %v: %s: thread %v of block %v: %v", f.Kernel, in, f.Pos, oneLine(f.Text), f.Thread, f.Block, f.Err)
}

// oneLine returns an instruction as written, with single spaces.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// errf returns an error that wraps kind and says more.
func errf(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{kind}, args...)...)
}
