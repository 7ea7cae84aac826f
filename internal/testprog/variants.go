package testprog

// A Variant is a way in which compilers are told to make code. What probes and hooks find at a function's
// beginning, and behind its end, depends on it.
type Variant struct {
	Name  string
	Flags []string // of gcc
}

// Variants are eight: all levels of optimisation, and landing pads (endbr64) and room for patches with and
// without each other. Distributions differ in what they do without being told, so all is said.
var Variants = []Variant{
	{"O0", []string{"-O0", "-fcf-protection=full"}},
	{"O1", []string{"-O1", "-fcf-protection=full"}},
	{"O1 patchable", []string{"-O1", "-fcf-protection=none", "-fpatchable-function-entry=2"}},
	{"O2 patchable", []string{"-O2", "-fcf-protection=full", "-fpatchable-function-entry=4,2"}},
	{"O3", []string{"-O3", "-fcf-protection=none", "-no-pie"}},
	{"Og", []string{"-Og", "-fcf-protection=full"}},
	{"Os patchable", []string{"-Os", "-fcf-protection=full", "-fpatchable-function-entry=2"}},
	{"Os", []string{"-Os", "-fcf-protection=none"}},
}
