// Package helper lists the functions that eBPF programs call by number: a row each, with what it
// takes, what it means, and where programs can call it. What such a call does is written
// elsewhere, once for each place: as PTX in nvattach/proof, for a program at a stop in
// nvattach/hostrun, for one in the traced process in ptrace/agent's helpers.c. Tests compare these
// with the rows, and the header for authors is made of them.
package helper

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/ptx/bpf"
)

// Where is a set of places where a helper can be called.
type Where uint8

// The places: in kernels, as PTX; on the host at a stop of the thread, by the interpreter; on
// the host in the process itself, by the agent.
const (
	Kernel Where = 1 << iota
	Stop
	Process

	Host = Stop | Process
	All  = Kernel | Host
)

// String returns the places in words.
func (w Where) String() string {
	switch {
	case w == 0:
		return "nowhere"
	case w&Host == 0:
		return "kernels"
	case w&Kernel != 0:
		return "kernels, host"
	case w&Process == 0:
		return "host, at stops"
	}
	return "host"
}

// A Helper is a row.
type Helper struct {
	// Number is the kernel's up to 211, bpftime's from 500 on, and nvtrace's own from 600 on.
	Number int32
	Name   string // without the bpf_ of the kernel's
	In     Where
	Args   []bpf.ArgSpec // at most 5
	// HostArgs are those on the host, where they differ; nil: they don't.
	HostArgs []bpf.ArgSpec
	Ret      bpf.RetKind
	Pure     bool   // without a look at the result the call has no effect
	Max      uint64 // the highest number that it returns; 0: any
	Uniform  bool   // it looks at its arguments only: where these are the same in a warp, the result is
	// Collective: the threads of a warp that came to a site together call it together. With Common,
	// the result is the same in all of them.
	Collective, Common bool
	// C is its declaration in a header for authors: result, name, parameters; "": it has none. Helpers
	// of the kernel's that only the host has are in the header for the host.
	C string
	// Doc is what it does, for the header and for the reference.
	Doc string
	// Group is what the header says in front of it and of those that follow.
	Group string
}

// Kinds of arguments, for short.
var (
	any0    = bpf.ArgSpec{Kind: bpf.ArgAny}
	scalar  = bpf.ArgSpec{Kind: bpf.ArgScalar}
	number  = bpf.ArgSpec{Kind: bpf.ArgConst} // the same on every path
	aMap    = bpf.ArgSpec{Kind: bpf.ArgMap}
	key     = bpf.ArgSpec{Kind: bpf.ArgKey}
	value   = bpf.ArgSpec{Kind: bpf.ArgValue}
	context = bpf.ArgSpec{Kind: bpf.ArgContext}
	record  = bpf.ArgSpec{Kind: bpf.ArgRecord}
	out64   = bpf.ArgSpec{Kind: bpf.ArgWrite, Size: 8, Whole: true}
	text    = bpf.ArgSpec{Kind: bpf.ArgString, Size: bpf.StackSize}
)

// read and write are memory whose size is in another argument.
func read(size int) bpf.ArgSpec { return bpf.ArgSpec{Kind: bpf.ArgRead, SizeArg: size} }

func write(size int) bpf.ArgSpec { return bpf.ArgSpec{Kind: bpf.ArgWrite, SizeArg: size, Whole: true} }

// shared is a number in a map's value.
func shared(bytes int) bpf.ArgSpec { return bpf.ArgSpec{Kind: bpf.ArgShared, Size: bytes} }

func args(list ...bpf.ArgSpec) []bpf.ArgSpec { return list }

// Of returns the row of a number, nil if there is none.
func Of(number int32) *Helper {
	i, ok := slices.BinarySearchFunc(byNumber, number, func(h *Helper, n int32) int { return int(h.Number) - int(n) })
	if !ok {
		return nil
	}
	return byNumber[i]
}

// byNumber is the table in the order of numbers.
var byNumber = func() []*Helper {
	var list []*Helper
	for i := range table {
		list = append(list, &table[i])
	}
	slices.SortFunc(list, func(a, b *Helper) int { return int(a.Number) - int(b.Number) })
	return list
}()

// In returns the helpers that can be called at one of some places, by number.
func In(w Where) (list []*Helper) {
	for _, h := range byNumber {
		if h.In&w != 0 {
			list = append(list, h)
		}
	}
	return list
}

// always is bpf.Helper.Uniform of helpers that only look at their arguments.
func always(*bpf.CallInfo) bool { return true }

// Env returns what the verifier needs to know of the helper at a place, but what it checks of maps:
// who calls it adds that, and the helper's form there.
func (h *Helper) Env(w Where) *bpf.Helper {
	e := &bpf.Helper{Name: h.Name, Args: h.Args, Ret: h.Ret, Pure: h.Pure, Max: h.Max, Collective: h.Collective, Common: h.Common}
	if w&Host != 0 && h.HostArgs != nil {
		e.Args = h.HostArgs
	}
	if h.Uniform {
		e.Uniform = always
	}
	return e
}

// argNames are what helpers take, in words.
var argNames = map[bpf.ArgKind]string{
	bpf.ArgAny: "any", bpf.ArgScalar: "number", bpf.ArgConst: "constant", bpf.ArgMap: "map", bpf.ArgKey: "key", bpf.ArgValue: "value",
	bpf.ArgRead: "memory", bpf.ArgWrite: "memory to write", bpf.ArgContext: "context", bpf.ArgString: "text", bpf.ArgRecord: "record",
	bpf.ArgShared: "value of a map",
}

// Takes returns what it takes, in words.
func (h *Helper) Takes() string {
	var list []string
	for _, a := range h.Args {
		list = append(list, argNames[a.Kind])
	}
	return strings.Join(list, ", ")
}

// The lines of the header between which the declarations are.
const (
	begin = "/* Helpers. These lines are made of nvattach/helper: go test ./nvattach/helper -update */\n"
	end   = "/* End of the helpers. */\n"
)

// onHost reports whether a helper is declared in the header for the host.
func (h *Helper) onHost() bool { return h.In&Kernel == 0 && h.Number < Puts }

// header returns the text of a header, of the one for the host or the other, with the declarations in it.
func header(text string, host bool) (string, error) {
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the header lacks the line %q or %q", begin, end)
	}
	var b strings.Builder
	b.WriteString(before + begin)
	doc := ""
	for i := range table {
		h := &table[i]
		if h.C == "" || h.onHost() != host {
			continue
		}
		if h.Group != "" {
			b.WriteString("\n" + comment(h.Group) + "\n")
		}
		if h.Doc != doc {
			b.WriteString(comment(h.Doc))
		}
		doc = h.Doc
		result, rest, _ := strings.Cut(h.C, "(")
		fmt.Fprintf(&b, "static %s(%s = (void *)%d;\n", result, rest, h.Number)
	}
	b.WriteString("\n" + end + after)
	return b.String(), nil
}

// comment wraps a text as a comment of C.
func comment(text string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > 96 {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	lines = append(lines, line)
	return "/* " + strings.Join(lines, "\n * ") + " */\n"
}
