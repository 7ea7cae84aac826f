package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"nvtrace/fatbin/sass"
)

// A new architecture has most opcodes in common with those that are known. What
// is known of an opcode is adopted if it foretells what life ranges say of all
// words that were found on the new one; only the other opcodes are asked for bit
// by bit.

// known is an opcode's block, read back.
type known struct {
	block  string
	name   string
	key    []int
	ones   []int
	zeros  []int
	shapes map[uint64][]operand
	text   map[uint64]string
}

func parseKnown(block string) (*known, error) {
	k := &known{block: block, shapes: make(map[uint64][]operand), text: make(map[uint64]string)}
	lines := strings.Split(strings.TrimSpace(block), "\n")
	k.name = strings.Fields(lines[0])[1]
	var err error
	for _, l := range lines[1:] {
		l = strings.TrimSpace(l)
		w := strings.Fields(l)
		switch w[0] {
		case "key":
			if k.key, err = parseBits(w[1]); err != nil {
				return nil, err
			}
			continue
		case "ones":
			if k.ones, err = parseBits(w[1]); err != nil {
				return nil, err
			}
			if k.zeros, err = parseBits(w[3]); err != nil {
				return nil, err
			}
			continue
		}
		names, vals, _ := strings.Cut(l, " = ")
		var ops []operand
		for s := range strings.FieldsSeq(names) {
			if s == "none" {
				continue
			}
			b, err := packOperand(nil, s)
			if err != nil {
				return nil, err
			}
			p := operand{implicit: b[4], count: b[5], read: b[0]&1 != 0, write: b[0]&2 != 0}
			p.kind, p.pos, p.len, p.inverted = sass.RegKind(b[1]), b[2], b[3], b[0]&4 != 0
			ops = append(ops, p)
		}
		for v := range strings.SplitSeq(vals, ",") {
			lo, hi, two := strings.Cut(v, "-")
			var i, j uint64
			if _, err := fmt.Sscanf(lo, "%x", &i); err != nil {
				return nil, err
			}
			j = i
			if two {
				if _, err := fmt.Sscanf(hi, "%x", &j); err != nil {
					return nil, err
				}
			}
			for ; i <= j; i++ {
				k.shapes[i] = ops
			}
		}
	}
	return k, nil
}

func (k *known) legal(w sass.Word) bool {
	for _, p := range k.ones {
		if w.Bits(uint(p), 1) == 0 {
			return false
		}
	}
	for _, p := range k.zeros {
		if w.Bits(uint(p), 1) != 0 {
			return false
		}
	}
	return true
}

// narrow makes the fields of uniform registers as wide as they are on an
// architecture.
func narrow(a sass.Arch, block string) string {
	from, to := "+8*", "+6*"
	if a >= 100 {
		from, to = to, from
	}
	f := strings.Fields(block)
	for i := range f {
		if strings.Contains(f[i], ":UR@") {
			block = strings.ReplaceAll(block, f[i], strings.Replace(f[i], from, to, 1))
		}
	}
	return block
}

// adopt returns the blocks that hold for the seeds of an architecture, and the
// seeds of the opcodes for which none does.
func (o *oracle) adopt(a sass.Arch, seeds []sass.Word, blocks []string) (taken []string, rest []sass.Word, err error) {
	byOp := make(map[uint16][]*known)
	for _, b := range blocks {
		var op uint16
		if _, err := fmt.Sscanf(b[:3], "%x", &op); err != nil {
			return nil, nil, err
		}
		k, err := parseKnown(narrow(a, b))
		if err != nil {
			return nil, nil, err
		}
		if !slices.ContainsFunc(byOp[op], func(x *known) bool { return x.block == k.block }) {
			byOp[op] = append(byOp[op], k)
		}
	}
	texts, err := o.texts(a, seeds)
	if err != nil {
		return nil, nil, err
	}
	type test struct {
		k    *known
		ops  []operand
		word sass.Word
	}
	bad := make(map[*known]string)
	var tests []test
	var words []sass.Word
	seen := make(map[*known]map[sass.Word]bool)
	for i, w := range seeds {
		for _, k := range byOp[w.Opcode()] {
			if base(texts[i]) != k.name {
				bad[k] = fmt.Sprintf("%v is %q", w, texts[i])
			}
			if flow[k.name] || bad[k] != "" {
				continue
			}
			ops, ok := k.shapes[pick(w, k.key)]
			if !ok || !k.legal(w) {
				bad[k] = fmt.Sprintf("%v: %s is not among its words", w, texts[i])
				continue
			}
			x := w.SetBits(12, 4, 7)
			for _, p := range ops {
				if p.len != 0 && p.kind != sass.Barrier {
					x = assign(x, []field{p.field})
				}
			}
			if seen[k] == nil {
				seen[k] = make(map[sass.Word]bool)
			}
			// What differs only in immediates is one word.
			if y := x.SetBits(16, 48, 0); seen[k][y] {
				continue
			} else {
				seen[k][y] = true
			}
			tests = append(tests, test{k, ops, x})
			words = append(words, x)
		}
	}
	if texts, err = o.texts(a, words); err != nil {
		return nil, nil, err
	}
	var legal []test
	words = words[:0]
	for i, t := range tests {
		if texts[i] == "" {
			bad[t.k] = fmt.Sprintf("%v is illegal", t.word)
			continue
		}
		legal = append(legal, t)
		words = append(words, t.word)
	}
	uses, err := o.uses(a, words)
	if err != nil {
		return nil, nil, err
	}
	for i, t := range legal {
		var want use
		for _, p := range t.ops {
			if p.kind == sass.Barrier {
				continue
			}
			n := p.implicit
			if p.len != 0 {
				n = number(p.field)
			}
			if p.read {
				want.read.Add(p.kind, n, p.count)
			}
			if p.write {
				want.write.Add(p.kind, n, p.count)
			}
		}
		if want != uses[i] {
			bad[t.k] = fmt.Sprintf("%v uses %s and %s, not %s and %s", t.word, uses[i].read.String(), uses[i].write.String(), want.read.String(), want.write.String())
		}
	}
	n := 0
	done := make(map[uint16]bool)
	for _, w := range seeds {
		op := w.Opcode()
		if ok, tried := done[op]; tried {
			if !ok {
				rest = append(rest, w)
			}
			continue
		}
		done[op] = false
		for _, k := range byOp[op] {
			if bad[k] == "" {
				done[op] = true
				taken = append(taken, k.block)
				break
			}
			fmt.Fprintf(os.Stderr, "%s: %03x %s: %s\n", a, op, k.name, bad[k])
		}
		if !done[op] {
			rest = append(rest, w)
			n++
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d opcodes are as elsewhere, %d are not\n", a, len(taken), n)
	return taken, rest, nil
}
