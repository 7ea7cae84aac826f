package ptx

import (
	"slices"
	"strings"
	"sync"
)

// A form is a line of formTable for one opcode.
type form struct {
	fields []formField
	args   int  // number of operands; 0 for any
	rest   bool // other modifiers are not looked at, but for types and sizes of vectors
	any    bool // nor are those
}

// A formField is a modifier of a form.
type formField struct {
	words    []string // of which it is one, with dots
	optional bool
	isType   bool
}

var opForms = sync.OnceValue(func() *[opCount][]form {
	var all [opCount][]form
	for line := range strings.Lines(formTable) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var f form
		for _, w := range words[1:] {
			f.add(w)
		}
		for name := range strings.SplitSeq(words[0], "|") {
			op := opOf(name)
			if op == OpUnknown {
				panic("BUG: ptx: form table: unknown opcode " + name)
			}
			all[op] = append(all[op], f)
		}
	}
	return &all
})

// add takes a word of the line.
func (f *form) add(w string) {
	if set := formSets[w]; strings.Contains(set, " ") {
		for w := range strings.FieldsSeq(set) {
			f.add(w)
		}
		return
	}
	switch {
	case w == "*":
		f.rest = true
		return
	case w == "**":
		f.rest, f.any = true, true
		return
	case w[0] == '/':
		f.args = int(w[1] - '0')
		return
	}
	w, optional := strings.CutSuffix(w, "?")
	field := formField{optional: optional}
	for alt := range strings.SplitSeq(w, "|") {
		if set, ok := formSets[alt]; ok {
			alt = set
		}
		for m := range strings.SplitSeq(alt, "|") {
			field.words = append(field.words, "."+m)
		}
	}
	field.isType = isTypeWord(field.words[0])
	f.fields = append(f.fields, field)
}

// formsSince is what formTable is of: older PTX has other forms, such as div.f32.
var formsSince = Need{Version: Version{2, 0}, SM: 20}

// isTypeWord reports whether a modifier is a type.
func isTypeWord(mod string) bool { return typeOf(mod) != TypeNone }

// HasForm reports whether there is an instruction of that opcode with these modifiers and
// that number of operands, in any version of the ISA from 2.0 on. Of opcodes whose forms it
// does not know it says so.
func HasForm(op Op, mods []string, args int) bool {
	forms := opForms()[op]
	for i := range forms {
		if f := &forms[i]; (f.args == 0 || f.args == args) && f.matches(mods) {
			return true
		}
	}
	return len(forms) == 0
}

// matches reports whether each modifier is one of the form's, and each that it must have is
// there.
func (f *form) matches(mods []string) bool {
	var taken uint32 // fields that have their modifier
	for _, m := range mods {
		i := f.field(m, taken)
		switch {
		case i >= 0:
			taken |= 1 << i
		case !f.rest || !f.any && (isTypeWord(m) || m == ".v2" || m == ".v4" || m == ".v8"):
			return false
		}
	}
	for i := range f.fields {
		if taken>>i&1 == 0 && !f.fields[i].optional {
			return false
		}
	}
	return true
}

// field returns which field the modifier is for, -1 for none. Types are taken in order.
func (f *form) field(mod string, taken uint32) int {
	for i := range f.fields {
		if taken>>i&1 != 0 {
			continue
		}
		if slices.Contains(f.fields[i].words, mod) {
			return i
		}
		if f.fields[i].isType && isTypeWord(mod) && !f.any {
			return -1
		}
	}
	return -1
}
