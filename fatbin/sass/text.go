package sass

import (
	_ "embed"
	"strconv"
	"sync"

	"nvtrace/fatbin/sass/internal/syntax"
)

//go:generate go run ./internal/gen squeeze facts/syntax.txt zsyntax.bin

//go:embed zsyntax.bin
var packedSyntax []byte

// syntaxes are how instructions are written, by opcode.
var syntaxes = sync.OnceValue(loadSyntaxes)

func loadSyntaxes() map[Arch]*[4096]*syntax.Op {
	_, facts, err := syntax.Parse(string(inflate("syntax", packedSyntax)))
	if err != nil {
		panic("BUG: sass syntax: " + err.Error())
	}
	out := make(map[Arch]*[4096]*syntax.Op)
	for _, f := range facts {
		for _, a := range f.Archs {
			t := out[Arch(a)]
			if t == nil {
				t = new([4096]*syntax.Op)
				out[Arch(a)] = t
			}
			t[f.Opcode] = f.Op
		}
	}
	return out
}

// syntax returns how the instruction is written; nil if that is not known.
func (i *Inst) syntax() *syntax.Op {
	if t := syntaxes()[i.Arch]; t != nil && i.op != nil {
		return t[i.Word.Opcode()]
	}
	return nil
}

// AppendText appends the instruction as nvdisasm writes it, pc being its place in the code, from which
// targets of branches are counted: "@!P0 LDG.E.64 R4, desc[UR4][R2.64+0x8]". A word of which that
// is not known is given as it is.
func (i *Inst) AppendText(b []byte, pc int) []byte {
	o := i.syntax()
	if o == nil {
		return append(b, i.Word.String()...)
	}
	if g, negated, ok := i.Guard(); ok {
		b = append(b, '@')
		if negated {
			b = append(b, '!')
		}
		b = append(appendReg(b, i.op.guard, g, true), ' ')
	}
	return o.Append(b, syntax.Word(i.Word), uint64(pc))
}

// FullName returns the name with its modifiers, "LDG.E.64"; where these are not known, what
// [Inst.Name] returns.
func (i *Inst) FullName() string {
	if o := i.syntax(); o != nil {
		return string(o.AppendName(nil, syntax.Word(i.Word)))
	}
	return i.Name()
}

func appendReg(b []byte, k RegKind, reg uint8, none bool) []byte {
	if none && (k == Pred || k == UPred) && reg == guardAlways || none && (k == GPR || k == UGPR) {
		last := "Z"
		if k == Pred || k == UPred {
			last = "T"
		}
		return append(append(b, k.String()...), last...)
	}
	return strconv.AppendUint(append(b, k.String()...), uint64(reg), 10)
}

// String returns what [Inst.AppendText] appends at the beginning of the code.
func (i *Inst) String() string { return string(i.AppendText(nil, 0)) }
