package syntax

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Facts are how an opcode is written on some architectures.
type Facts struct {
	Archs  []int // 90 is sm_90
	Opcode int
	Op     *Op
}

// Write writes facts as text, behind a head of comments:
//
//	sm 75,80 op 981              architectures, opcode in hexadecimal
//	name TREE "LDG"              a part of the name, and a tree that says whether it is there
//	reuse 24 32 64               where the registers are that bits 122 to 124 say are used again
//	frames TREE                  which of the following lists of operands it has
//	frame                        begins a list
//	slot TREE                    an operand: which of the following forms
//	form "[%.64+%]" R24+8 x40+24 its text, with % for each number, and the numbers
//
// A tree is a value, or (TEST TREE TREE): where the test is false and where it is true. Tests are
// a bit, or whether a field is full, empty or has one bit set: 24+8=full. A number is a [Kind], its base if there is
// one, and runs of bits: 40+24, 40+14<<2; a run that is subtracted has a minus in front.
func Write(head string, facts []Facts) string {
	facts = slices.Clone(facts)
	slices.SortStableFunc(facts, func(x, y Facts) int {
		return cmp.Or(cmp.Compare(x.Opcode, y.Opcode), slices.Compare(x.Archs, y.Archs))
	})
	b := []byte(head)
	for _, f := range facts {
		b = append(b, "sm "...)
		for i, a := range f.Archs {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(a), 10)
		}
		b = fmt.Appendf(b, " op %03x\n", f.Opcode)
		for i, name := range f.Op.Names {
			b = append(f.Op.Has[i].append(append(b, "name "...)), ' ')
			b = append(strconv.AppendQuote(b, name), '\n')
		}
		if r := f.Op.Reuse; r != [3]uint8{} {
			b = fmt.Appendf(b, "reuse %d %d %d\n", r[0], r[1], r[2])
		}
		b = append(f.Op.Which.append(append(b, "frames "...)), '\n')
		for _, frame := range f.Op.Frames {
			b = append(b, "frame\n"...)
			for _, s := range frame {
				b = append(s.Which.append(append(b, "slot "...)), '\n')
				for _, form := range s.Forms {
					b = form.write(append(b, "form "...))
				}
			}
		}
	}
	return string(b)
}

var fieldStates = [...]string{"full", "empty", "one"}

func (t Test) append(b []byte) []byte {
	if t < 128 {
		return strconv.AppendUint(b, uint64(t), 10)
	}
	f := Fields[(t-128)/3]
	return fmt.Appendf(b, "%d+%d=%s", f[0], f[1], fieldStates[(t-128)%3])
}

func (t *Tree) append(b []byte) []byte {
	if len(t.Nodes) == 0 {
		return strconv.AppendInt(b, int64(t.Leaf), 10)
	}
	return t.appendNode(b, 0)
}

func (t *Tree) appendNode(b []byte, at int32) []byte {
	if at < 0 {
		return strconv.AppendInt(b, int64(^at), 10)
	}
	n := &t.Nodes[at]
	b = n.Test.append(append(b, '('))
	for _, next := range n.Next {
		b = t.appendNode(append(b, ' '), next)
	}
	return append(b, ')')
}

func (f *Form) write(b []byte) []byte {
	b = strconv.AppendQuote(b, strings.Join(f.Text, "%"))
	for i := range f.Nums {
		n := &f.Nums[i]
		b = append(b, ' ', byte(n.Kind))
		sep := ""
		if n.Base != 0 {
			b = strconv.AppendInt(b, n.Base, 10)
			sep = ","
		}
		for _, r := range n.Runs {
			b = append(b, sep...)
			sep = ","
			if r.Negative {
				b = append(b, '-')
			}
			b = fmt.Appendf(b, "%d+%d", r.Pos, r.N)
			if r.Shift > 0 {
				b = fmt.Appendf(b, "<<%d", r.Shift)
			}
		}
	}
	return append(b, '\n')
}

// Parse reads what [Write] writes.
func Parse(text string) (head string, facts []Facts, err error) {
	line := 0
	for s := range strings.Lines(text) {
		line++
		if strings.HasPrefix(s, "#") {
			head += s
			continue
		}
		if facts, err = parseLine(facts, strings.TrimSuffix(s, "\n")); err != nil {
			return "", nil, fmt.Errorf("line %d: %q: %w", line, s, err)
		}
	}
	return head, facts, nil
}

var errFacts = fmt.Errorf("the text is not as Write writes it")

func parseLine(facts []Facts, s string) ([]Facts, error) {
	what, rest, _ := strings.Cut(s, " ")
	if what == "sm" {
		f := Facts{Op: new(Op)}
		archs, op, ok := strings.Cut(rest, " op ")
		if !ok {
			return nil, errFacts
		}
		for n := range strings.SplitSeq(archs, ",") {
			a, err := strconv.Atoi(n)
			if err != nil {
				return nil, err
			}
			f.Archs = append(f.Archs, a)
		}
		n, err := strconv.ParseUint(op, 16, 12)
		f.Opcode = int(n)
		return append(facts, f), err
	}
	if len(facts) == 0 {
		return nil, errFacts
	}
	o := facts[len(facts)-1].Op
	switch what {
	case "name":
		t, rest, err := parseTree(rest)
		if err != nil {
			return nil, err
		}
		name, err := strconv.Unquote(strings.TrimSpace(rest))
		if err != nil {
			return nil, err
		}
		o.Names, o.Has = append(o.Names, name), append(o.Has, t)
		return facts, nil
	case "reuse":
		_, err := fmt.Sscan(rest, &o.Reuse[0], &o.Reuse[1], &o.Reuse[2])
		return facts, err
	case "frames":
		t, _, err := parseTree(rest)
		o.Which = t
		return facts, err
	case "frame":
		o.Frames = append(o.Frames, nil)
		return facts, nil
	}
	if len(o.Frames) == 0 {
		return nil, errFacts
	}
	frame := &o.Frames[len(o.Frames)-1]
	switch {
	case what == "slot":
		t, _, err := parseTree(rest)
		*frame = append(*frame, Slot{Which: t})
		return facts, err
	case what == "form" && len(*frame) > 0:
		f, err := parseForm(rest)
		slot := &(*frame)[len(*frame)-1]
		slot.Forms = append(slot.Forms, f)
		return facts, err
	}
	return nil, errFacts
}

func parseForm(s string) (Form, error) {
	q, err := strconv.QuotedPrefix(s)
	if err != nil {
		return Form{}, err
	}
	text, err := strconv.Unquote(q)
	if err != nil {
		return Form{}, err
	}
	f := Form{Text: strings.Split(text, "%")}
	for part := range strings.FieldsSeq(s[len(q):]) {
		n := Number{Kind: Kind(part[0])}
		for run := range strings.SplitSeq(part[1:], ",") {
			pos, rest, ok := strings.Cut(run, "+")
			if !ok {
				if run == "" {
					continue
				}
				if n.Base, err = strconv.ParseInt(run, 10, 64); err != nil {
					return f, err
				}
				continue
			}
			r := Run{Negative: pos[0] == '-'}
			bits, shift, _ := strings.Cut(rest, "<<")
			for _, x := range []struct {
				to   *uint8
				text string
			}{{&r.Pos, strings.TrimPrefix(pos, "-")}, {&r.N, bits}, {&r.Shift, cmp.Or(shift, "0")}} {
				v, err := strconv.ParseUint(x.text, 10, 7)
				if err != nil {
					return f, err
				}
				*x.to = uint8(v)
			}
			n.Runs = append(n.Runs, r)
		}
		f.Nums = append(f.Nums, n)
	}
	if len(f.Text) != len(f.Nums)+1 {
		return f, errFacts
	}
	return f, nil
}

// parseTree reads a tree, and returns what comes behind it.
func parseTree(s string) (Tree, string, error) {
	var t Tree
	root, rest, err := t.parse(s)
	if root < 0 {
		t.Leaf = ^root
	}
	return t, rest, err
}

func (t *Tree) parse(s string) (int32, string, error) {
	if !strings.HasPrefix(s, "(") {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		v, err := strconv.ParseInt(s[:n], 10, 31)
		return ^int32(v), s[n:], err
	}
	text, s, _ := strings.Cut(s[1:], " ")
	test, err := parseTest(text)
	if err != nil {
		return 0, "", err
	}
	at := int32(len(t.Nodes))
	t.Nodes = append(t.Nodes, Node{Test: test})
	for k := range 2 {
		next, rest, err := t.parse(s)
		if err != nil {
			return 0, "", err
		}
		t.Nodes[at].Next[k] = next
		ok := false
		if s, ok = strings.CutPrefix(rest, []string{" ", ")"}[k]); !ok {
			return 0, "", errFacts
		}
	}
	return at, s, nil
}

func parseTest(s string) (Test, error) {
	field, state, ok := strings.Cut(s, "=")
	if !ok {
		n, err := strconv.ParseUint(s, 10, 7)
		return Test(n), err
	}
	for i, f := range Fields {
		if field == fmt.Sprintf("%d+%d", f[0], f[1]) {
			if k := slices.Index(fieldStates[:], state); k >= 0 {
				return Test(128 + 3*i + k), nil
			}
		}
	}
	return 0, errFacts
}
