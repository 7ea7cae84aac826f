package bpf

import "errors"

// An Interpreter runs programs on the CPU, one instruction after the other, as
// a thread alone would. Pointers know the object they came from: an access
// outside of it ends the program, as it does in compiled code.
type Interpreter struct {
	Env *Env
	// Read and Write access the memory that maps and records are in.
	Read, Write func(addr uint64, buf []byte) error
	// Field returns field i of the context.
	Field func(i int) uint64
	// Text is the context's string.
	Text []byte
	// Maps are the addresses of the values of maps that are Direct, by index.
	Maps []uint64
	// MaxSteps ends a program after so many instructions; 0 means 1<<20.
	MaxSteps int
}

// A Result is how a run ended.
type Result struct {
	R0    uint64 // what the program returned
	Early bool   // it was ended: an access out of bounds, no fuel, or a RetNever helper
	Why   string // for Early
	Steps int    // instructions
}

// Run runs p. An error says that the program does what Verify refuses, or that
// a helper or the memory failed.
func (in *Interpreter) Run(p *Program) (Result, error) {
	return Result{}, errors.New("being written")
}

// Map returns the index of the map that a helper's argument stands for.
func (in *Interpreter) Map(arg uint64) (int, bool) { return 0, false }

// ReadMem copies memory that the program can read, stack and context text
// included, for helpers.
func (in *Interpreter) ReadMem(addr uint64, buf []byte) error { return nil }

// WriteMem copies buf to memory that the program can write, for helpers.
func (in *Interpreter) WriteMem(addr uint64, buf []byte) error { return nil }
