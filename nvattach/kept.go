package nvattach

import (
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// kept is code that many modules get alike.
type kept struct {
	templates map[keptKey]*template
	checked   map[keptCheck]bool
	bodies    map[bodyKey]*compiledBody
	codes     map[codeKey]*compiledBody // of programs of KindCapture
}

// mostKept bounds the templates that are kept.
const mostKept = 1024

// A keptKey is what a program's code depends on that says nothing of its place.
type keptKey struct {
	q    *proof.Program
	maps *mapmem.Maps
	dialect
}

// A keptCheck is a checkKey in a module of some version and target.
type keptCheck struct {
	checkKey
	dialect
}

// A checkKey is a kind of place at which a program's code was checked: the opcode
// with modifiers of the instruction, "" for the entry and the end of a body.
type checkKey struct {
	q      *proof.Program
	opcode string
}

// A dialect is what a module may say.
type dialect struct {
	version ptx.Version
	target  ptx.Target
	stem    string // of names that are new in it
	patch   bool   // it is compiled with --compile-as-tools-patch
	each    bool   // see bodyForm
	leave   bool   // it is where all threads of a kernel leave; see allLeave
}

// A template is a program's code in a module.
type template struct {
	*bpf.Template
	before string // code in front of it
}

// A bodyKey is what a compiled program depends on.
type bodyKey struct {
	q      *proof.Program
	maps   *mapmem.Maps
	sm     uint32
	form   bodyForm
	params string // of the kernel, for a program that asks for its arguments
	line   string // of the place, for one of KindCapture
}

// A codeKey is what the compiled form of a program's text depends on.
type codeKey struct {
	text string
	sm   uint32
}

// compiledBody is a program as machine code, or why there is none.
type compiledBody struct {
	params []proof.BodyParam
	code   *sass.Body
	err    error
	fixed  bool // for the memory of this run
}

// A bodyForm says for which places a Body is.
type bodyForm struct {
	guarded bool // of instructions with a guard: threads that are not active do nothing
	copies  bool // of asynchronous copies, of which it loads the value itself
	rows    bool // of ldmatrix, likewise
	sum     sumForm
	each    bool // every thread runs it, also where one could for others
	leave   bool // it is where all threads of a kernel leave; see allLeave
	plain   bool // keys have no places
	keys    int  // with sum: for so many combinations of keys, whose places come one behind the other; 0: keys have none
}

// A sumForm says how a Body makes a program's sums.
type sumForm uint8

const (
	sumNone sumForm = iota // it is the program itself
	sumHere                // of numbers that come as parameters, alike in all threads
	sumEnd                 // of those that the thread has added up
)
