package script

import (
	"strings"

	"nvtrace/nvattach/object"
)

// A probe is places and what happens there.
type probe struct {
	span
	points []point
	filter expr // nil: none
	body   *block
	side   side
	vars   []string // its variables, when it has been checked
}

// last is 1 for what is checked last.
func (b *probe) last() int {
	if h := b.points[0].host; h == "END" || h == "interval" {
		return 1
	}
	return 0
}

// A side is where a probe runs.
type side uint8

const (
	sideNone   side = iota
	sideKernel      // in the threads of kernels
	sideCalls       // at functions and system calls of the program
	sideEvents      // in nvtrace, on what the program does on the host
	sideEnds        // there, before and after all, and meanwhile: BEGIN, END and interval
)

// compiled reports whether probes there become eBPF.
func (s side) compiled() bool { return s == sideKernel || s == sideCalls }

// A point is one of a probe's places.
type point struct {
	span
	kind    *Kind  // of sideKernel and sideCalls
	section string // of an object, for it
	event   *HostKind
	glob    string // of names, for it
	host    string // "BEGIN", "END" or "interval"
	every   int64  // of an interval, in nanoseconds
}

// named returns what a point at functions or system calls names: the function, or the call.
func (p *point) named() string {
	at, err := object.ParseHostPoint(p.section)
	switch {
	case err != nil:
		return p.section // which was checked when it was read
	case at.Kind == object.HostSysEnters || at.Kind == object.HostSysExits:
		return "*"
	case at.Call != "":
		return at.Call
	case at.Func != "":
		return at.Func
	}
	_, name, _ := strings.Cut(p.section, ":")
	return name
}

// side is where the point is.
func (p *point) side() side {
	switch {
	case p.kind != nil && p.kind.host != object.HostNone:
		return sideCalls
	case p.kind != nil:
		return sideKernel
	case p.event != nil:
		return sideEvents
	}
	return sideEnds
}

// An expr is a part of the program with a value. Its type is known when it has been checked.
type expr interface {
	pos() span
	typ() *Type
}

// A value is what all expressions have.
type value struct {
	span
	t *Type
}

func (v *value) typ() *Type { return v.t }

type (
	intLit struct {
		value
		n int64
	}
	strLit struct {
		value
		s string
		n int64 // its number
	}
	// A nameRef is a built-in.
	nameRef struct {
		value
		name string
		def  *Builtin // nil: arg is set, or host
		host *HostBuiltin
		arg  int
	}
	varRef struct {
		value
		name string
	}
	mapRef struct {
		value
		name string
		keys []expr
		m    *mapInfo
	}
	unary struct {
		value
		op string
		x  expr
	}
	binExpr struct {
		value
		op   string
		x, y expr
	}
	choice struct {
		value
		c, x, y expr
	}
	call struct {
		value
		name span
		fn   *Function
		args []expr
		fmt  *format // of printf and time
		// scalar: it is a print of one value, or of a tuple's, which has become a printf.
		scalar, tuple bool
	}
	tuple struct {
		value
		elems []expr
	}
	// A member is $kv.0, a key, or $kv.1, a value, of what for goes through; $kv.0.1 is a
	// part of a key of several.
	member struct {
		value
		name string
		path []int
	}
)

// A stmt is a statement.
type stmt interface{ pos() span }

type (
	block struct {
		span
		list []stmt
	}
	callStmt struct {
		span
		call *call
	}
	// An assign is "to = x", or with an operator "to += x". "to++" is one of 1.
	assign struct {
		span
		to expr // *varRef or *mapRef
		op string
		x  expr
	}
	ifStmt struct {
		span
		c         expr
		then, els *block // els may be nil
	}
	whileStmt struct {
		span
		c    expr
		body *block
	}
	// A rangeStmt counts: for ($i : from..to), without to.
	rangeStmt struct {
		span
		v        *varRef
		from, to expr
		body     *block
	}
	// A forStmt goes through a map.
	forStmt struct {
		span
		name string
		over *mapRef
		body *block
	}
	unrollStmt struct {
		span
		n    int
		body *block
	}
	jump struct {
		span
		word string // break, continue or return
	}
)

// A mapInfo is what is known of a map from all its uses.
type mapInfo struct {
	name  string
	side  side    // whose it is: of kernels, or of events
	sided span    // where it is known
	first span    // where it is first used
	keyAt span    // where it is known which keys it has
	keys  []*Type // nil: it is one value
	keyed bool    // keys are known
	agg   aggregation
	aggAt span
	value *Type // of aggNone, nil until it is known
	lhist [3]int64
	// How its values are changed in kernels.
	assigned, added, ored, deleted bool
	read                           span // where a kernel reads it; end 0: nowhere
}

// array reports whether the map has no keys of the program's, and so is an array.
func (m *mapInfo) array() bool { return len(m.keys) == 0 }

// buckets returns the number of a histogram's, 1 for what is none.
func (m *mapInfo) buckets() int {
	switch m.agg {
	case aggHist:
		return histBuckets
	case aggLhist:
		return int((m.lhist[1]-m.lhist[0])/m.lhist[2]) + 2
	}
	return 1
}

// words returns how many numbers a value has.
func (m *mapInfo) words() int {
	switch m.agg {
	case aggAvg, aggStats:
		return 2
	case aggMin, aggMax: // in an array, with a 1 where there is a value
		if m.array() {
			return 2
		}
	}
	return 1
}

// Sizes of maps.
const (
	defaultKeys  = 16384
	fleetingKeys = 1 << 19 // of a map from which keys are deleted: one for each thread that a GPU runs at a time
	maxMapKeys   = 1 << 24
	maxKeyBytes  = 128
	histBuckets  = 66       // below 0, 0, and a power of two each
	ringBytes    = 1 << 16  // of printf, on each multiprocessor
	ringName     = "printf" // no name of a map, which begins with "@"
	stacksName   = "stacks" // likewise
	maxStacks    = 16384    // different ones
	textsName    = "texts"  // by their bytes the numbers of texts of the program's memory
	countName    = "text_count"
	maxTexts     = 16384 // different ones
	textBytes    = 64    // of a text, with the zero behind it
	stackFrames  = 16
)

// An ArgUse is a place where a program asks for args.NAME.
type ArgUse struct {
	Glob string // of the functions
	Name string
	Text bool // str(args.NAME)
	at   span
	l    *lexer
}

// A format is that of a printf.
type format struct {
	text  string // with every number's size said
	types []*Type
}
