package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
	"nvtrace/fatbin/sass/internal/syntax"
)

// shown is a word and what nvdisasm writes for it.
type shown struct {
	w    syntax.Word
	pc   uint64
	text string
}

// written is a text taken apart.
type written struct {
	names    []string // parts of the name, with their dots; what comes again has a number behind a blank
	operands []operandText
	kinds    string // one letter an operand: what can't be compared has different ones
}

type operandText struct {
	form  string // numbers are left out, numberMark stands for each
	nums  []numberText
	kinds string // of the numbers
}

type numberText struct {
	kind syntax.Kind
	text string
}

const numberMark = "\x00"

var numberPattern = regexp.MustCompile(`(?:^|[^A-Za-z0-9_.])((?:UR|UP|SB|R|P|B)\d+\b|URZ\b|UPT\b|RZ\b|PT\b|-?0x[0-9a-f]+|[+-]?(?:INF|QNAN|SNAN)\b|-?\d+(?:\.\d+)?(?:e[+-]\d+)?(?:$|\b))`)

func numberKind(s string) syntax.Kind {
	switch {
	case strings.Contains(s, "0x"):
		return syntax.Hex
	case strings.HasPrefix(s, "UR"):
		return syntax.UReg
	case strings.HasPrefix(s, "UP"):
		return syntax.UPred
	case strings.HasPrefix(s, "SB"):
		return syntax.Score
	case s[0] == 'R':
		return syntax.Reg
	case s[0] == 'P':
		return syntax.Pred
	case s[0] == 'B':
		return syntax.Barrier
	}
	return syntax.Float32
}

// split cuts a list at its commas, but not within brackets.
func split(s string) []string {
	var out []string
	depth, from := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '[', '{', '(':
			depth++
		case ']', '}', ')':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, s[from:i])
				from = i + 1
				if from < len(s) && s[from] == ' ' {
					from++
				}
			}
		}
	}
	return append(out, s[from:])
}

func operandOf(s string) operandText {
	var o operandText
	at := 0
	for _, m := range numberPattern.FindAllStringSubmatchIndex(s, -1) {
		n := numberText{numberKind(s[m[2]:m[3]]), s[m[2]:m[3]]}
		o.form += s[at:m[2]] + numberMark
		o.nums = append(o.nums, n)
		o.kinds += string(rune(n.kind))
		at = m[3]
	}
	o.form += s[at:]
	return o
}

// take takes a text apart.
func take(text string) written {
	name, rest, _ := strings.Cut(text, " ")
	var t written
	seen := make(map[string]int)
	for i, p := range strings.Split(name, ".") {
		if i > 0 {
			p = "." + p
		}
		if seen[p]++; seen[p] > 1 {
			p = fmt.Sprintf("%s %d", p, seen[p])
		}
		t.names = append(t.names, p)
	}
	if rest == "" {
		return t
	}
	for _, s := range split(rest) {
		o := operandOf(s)
		t.operands = append(t.operands, o)
		switch {
		case strings.Contains(s, "["):
			t.kinds += "["
		case len(o.nums) == 0:
			t.kinds += "-"
		default:
			t.kinds += string(rune(o.nums[0].kind))
		}
	}
	return t
}

// value returns the number that a text stands for, as one of the kinds that it can be of; false for a
// NaN, whose bits the text does not tell.
func value(kind syntax.Kind, s string, pc uint64) (int64, bool) {
	switch kind {
	case syntax.Reg, syntax.UReg, syntax.Pred, syntax.UPred, syntax.Barrier, syntax.Score:
		n, err := strconv.ParseInt(strings.TrimLeft(s, "URPBS"), 10, 64)
		return n, err == nil
	case syntax.Hex, syntax.Target:
		digits, negative := strings.CutPrefix(s, "-")
		n, err := strconv.ParseUint(digits[2:], 16, 64)
		v := int64(n)
		if negative {
			v = -v
		}
		if kind == syntax.Target {
			v -= int64(pc) + 16
		}
		return v, err == nil
	}
	if strings.HasSuffix(s, "NAN") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, false
	}
	switch kind {
	case syntax.BFloat:
		return int64(math.Float32bits(float32(f)) >> 16), true
	case syntax.Float32:
		return int64(math.Float32bits(float32(f))), true
	case syntax.Float64:
		return int64(math.Float64bits(f) >> 32), true
	}
	for h := range int64(1 << 16) {
		if math.Float64bits(syntax.Half(uint16(h))) == math.Float64bits(f) {
			return h, true
		}
	}
	return 0, false
}

// lesson is what is known of the words of an opcode.
type lesson struct {
	all   []shown
	tests [][4]uint64 // of each word, which tests hold
	parts []written
	at    map[syntax.Word]int
	pairs []neighbours
	// byPlace says that parts of names are told apart by where they are, too.
	byPlace bool
}

// neighbours are two words that differ in one bit, which a has not.
type neighbours struct {
	a, b int
	bit  uint8
}

func (s *lesson) add(list []shown) {
	for _, x := range list {
		if !usable(x.text) {
			continue
		}
		if _, ok := s.at[x.w]; ok {
			continue
		}
		i := len(s.all)
		s.at[x.w] = i
		s.all = append(s.all, x)
		s.parts = append(s.parts, take(x.text))
		var holds [4]uint64
		for t := range syntax.Test(syntax.Tests) {
			if x.w.Holds(t) {
				holds[t/64] |= 1 << (t % 64)
			}
		}
		s.tests = append(s.tests, holds)
		for bit := range uint8(128) {
			y := x.w
			if bit < 64 {
				y.Lo ^= 1 << bit
			} else {
				y.Hi ^= 1 << (bit - 64)
			}
			j, ok := s.at[y]
			switch {
			case !ok:
			case x.w.Field(uint(bit), 1) == 0:
				s.pairs = append(s.pairs, neighbours{i, j, bit})
			default:
				s.pairs = append(s.pairs, neighbours{j, i, bit})
			}
		}
	}
}

// tree learns to tell for each of some words which of some values it has. The words are given by their
// indices.
func (s *lesson) tree(words []int, target func(i int) int) syntax.Tree {
	values := make([]int, len(s.all))
	for i := range values {
		values[i] = -1
	}
	for _, i := range words {
		values[i] = target(i)
	}
	// What a bit does is seen where two words differ in it alone.
	var causal [128]bool
	for _, p := range s.pairs {
		if va, vb := values[p.a], values[p.b]; va >= 0 && vb >= 0 && va != vb {
			causal[p.bit] = true
		}
	}
	var first, rest []syntax.Test
	for k, f := range syntax.Fields {
		for p := f[0]; p < f[0]+f[1]; p++ {
			if causal[p] {
				t := syntax.Test(128 + 3*k)
				first = append(first, t, t+1, t+2)
				break
			}
		}
	}
	for p := range syntax.Test(105) {
		switch {
		case p < 12:
		case causal[p]:
			first = append(first, p)
		default:
			rest = append(rest, p)
		}
	}
	l := treeLearner{s: s, values: values, first: first, rest: rest}
	root := l.node(words)
	if root < 0 {
		return syntax.Tree{Leaf: ^root}
	}
	// The root is node 0.
	return syntax.Tree{Nodes: l.nodes}
}

// holds says whether a test is true of a word.
func (s *lesson) holds(i int, t syntax.Test) bool { return s.tests[i][t/64]>>(t%64)&1 != 0 }

type treeLearner struct {
	s           *lesson
	values      []int // by word
	first, rest []syntax.Test
	nodes       []syntax.Node
}

func (l *treeLearner) node(words []int) int32 {
	counts := make(map[int]int)
	for _, i := range words {
		counts[l.values[i]]++
	}
	if len(counts) == 1 {
		return ^int32(l.values[words[0]])
	}
	best, gain := l.best(words, counts, l.first)
	if gain <= 0 {
		best, gain = l.best(words, counts, l.rest)
	}
	if gain <= 0 {
		most, n := 0, 0
		for v, c := range counts {
			if c > n || c == n && v < most {
				most, n = v, c
			}
		}
		return ^int32(most)
	}
	var parts [2][]int
	for _, i := range words {
		if l.s.holds(i, best) {
			parts[1] = append(parts[1], i)
		} else {
			parts[0] = append(parts[0], i)
		}
	}
	at := len(l.nodes)
	l.nodes = append(l.nodes, syntax.Node{Test: best})
	for k := range parts {
		next := l.node(parts[k])
		l.nodes[at].Next[k] = next
	}
	return int32(at)
}

// best returns the test that tells most, and how much.
func (l *treeLearner) best(words []int, counts map[int]int, tests []syntax.Test) (syntax.Test, float64) {
	index := make(map[int]int, len(counts))
	for v := range counts {
		index[v] = len(index)
	}
	class := make([]int, len(words))
	for k, i := range words {
		class[k] = index[l.values[i]]
	}
	all := make([]int, len(counts))
	for _, c := range class {
		all[c]++
	}
	whole := entropy(all, len(words))
	var best syntax.Test
	most := 0.0
	with := make([]int, len(counts))
	without := make([]int, len(counts))
	for _, t := range tests {
		clear(with)
		n := 0
		for k, i := range words {
			if l.s.holds(i, t) {
				with[class[k]]++
				n++
			}
		}
		if n == 0 || n == len(words) {
			continue
		}
		for c := range all {
			without[c] = all[c] - with[c]
		}
		rest := (float64(n)*entropy(with, n) + float64(len(words)-n)*entropy(without, len(words)-n)) / float64(len(words))
		if g := whole - rest; g > most+1e-9 {
			best, most = t, g
		}
	}
	if most == 0 {
		// Where no test alone tells anything, two together may: any that parts the words.
		for _, t := range tests {
			n := 0
			for _, i := range words {
				if l.s.holds(i, t) {
					n++
				}
			}
			if n > 0 && n < len(words) {
				return t, 1e-9
			}
		}
	}
	return best, most
}

func entropy(counts []int, n int) float64 {
	h := 0.0
	for _, c := range counts {
		if c > 0 {
			p := float64(c) / float64(n)
			h -= p * math.Log2(p)
		}
	}
	return h
}

// number learns what number stands at a place of some words' operands.
func (s *lesson) number(words []int, text func(i int) numberText) (syntax.Number, bool) {
	kinds := []syntax.Kind{text(words[0]).kind}
	switch kinds[0] {
	case syntax.Hex:
		kinds = append(kinds, syntax.Target)
	case syntax.Float32:
		kinds = append(kinds, syntax.Float16, syntax.BFloat, syntax.Float64)
	}
	for _, k := range kinds {
		if v, ok := s.values(k, words, text); ok {
			if n, ok := s.sum(k, v); ok {
				return n, true
			}
			if n, ok := s.field(k, v); ok {
				return n, true
			}
		}
	}
	return syntax.Number{}, false
}

// numberValues are the numbers of words, read as one kind of number.
type numberValues struct {
	is   map[int]int64
	none []int // words in whose text no register is named: RZ, PT
}

func (s *lesson) values(kind syntax.Kind, words []int, text func(i int) numberText) (numberValues, bool) {
	v := numberValues{is: make(map[int]int64, len(words))}
	for _, i := range words {
		t := text(i).text
		switch n, ok := value(kind, t, s.all[i].pc); {
		case t == "RZ" || t == "URZ" || t == "PT" || t == "UPT":
			v.none = append(v.none, i)
		case ok:
			v.is[i] = n
		case !strings.HasSuffix(t, "NAN"): // a NaN's bits are not in its text
			return v, false
		}
	}
	return v, true
}

// right says whether a number is what the texts have.
func (s *lesson) right(n *syntax.Number, v numberValues) bool {
	for i, want := range v.is {
		if n.Value(s.all[i].w) != want || n.None(s.all[i].w) {
			return false
		}
	}
	return !slices.ContainsFunc(v.none, func(i int) bool { return !n.None(s.all[i].w) })
}

// sum finds the weight of each bit from words that differ in it alone.
func (s *lesson) sum(kind syntax.Kind, v numberValues) (syntax.Number, bool) {
	var weight [128]int64
	var known [128]bool
	for _, p := range s.pairs {
		va, ok := v.is[p.a]
		if !ok {
			continue
		}
		vb, ok := v.is[p.b]
		if !ok {
			continue
		}
		d := vb - va
		if known[p.bit] && weight[p.bit] != d {
			return syntax.Number{}, false
		}
		known[p.bit], weight[p.bit] = true, d
	}
	n := syntax.Number{Kind: kind}
	for p := range uint8(128) {
		d := weight[p]
		if d == 0 {
			continue
		}
		r := syntax.Run{Pos: p, N: 1, Negative: d < 0 && d != math.MinInt64} // 1<<63 is both
		m := uint64(d)
		if r.Negative {
			m = -m
		}
		if m&(m-1) != 0 {
			return syntax.Number{}, false
		}
		r.Shift = uint8(bits.TrailingZeros64(m))
		if k := len(n.Runs) - 1; k >= 0 && n.Runs[k].Pos+n.Runs[k].N == p && n.Runs[k].Shift+n.Runs[k].N == r.Shift && n.Runs[k].Negative == r.Negative {
			n.Runs[k].N++
			continue
		}
		n.Runs = append(n.Runs, r)
	}
	for i, want := range v.is {
		n.Base = want - n.Value(s.all[i].w)
		break
	}
	// Without any bit that counts, it takes many words to tell that a number is always the same.
	return n, len(v.is) > 0 && (len(n.Runs) > 0 || len(v.is) >= 50) && s.right(&n, v)
}

// field finds a field that has the number in all words.
func (s *lesson) field(kind syntax.Kind, v numberValues) (syntax.Number, bool) {
	if len(v.is) < 4 {
		return syntax.Number{}, false
	}
	lens := map[syntax.Kind][]uint8{
		syntax.Reg: {8}, syntax.UReg: {6, 8}, syntax.Pred: {3}, syntax.UPred: {3}, syntax.Barrier: {4}, syntax.Score: {3},
	}[kind]
	scaled := lens == nil
	if scaled {
		for n := uint8(32); n >= 4; n-- {
			lens = append(lens, n)
		}
	}
	for _, n := range lens {
		for pos := uint8(16); pos+n <= lastBit; pos++ {
			f := syntax.Number{Kind: kind, Runs: []syntax.Run{{Pos: pos, N: n}}}
			others := []syntax.Number{f}
			switch kind {
			case syntax.Pred, syntax.UPred:
				others = append(others, syntax.Number{Kind: kind, Base: 7, Runs: []syntax.Run{{Pos: pos, N: n, Negative: true}}})
			case syntax.UReg:
				others = append(others, syntax.Number{Kind: kind, Base: 1, Runs: f.Runs})
			}
			if scaled {
				others = append(others,
					syntax.Number{Kind: kind, Runs: []syntax.Run{{Pos: pos, N: n - 1}, {Pos: pos + n - 1, N: 1, Shift: n - 1, Negative: true}}},
					syntax.Number{Kind: kind, Runs: []syntax.Run{{Pos: pos, N: n, Shift: 2}}})
			}
			for _, f := range others {
				if s.right(&f, v) {
					return f, true
				}
			}
		}
	}
	return syntax.Number{}, false
}

// learn learns how an opcode is written.
func (s *lesson) learn() (*syntax.Op, error) {
	o := new(syntax.Op)
	everything := make([]int, len(s.all))
	for i := range everything {
		everything[i] = i
	}
	names, ok := []string(nil), false
	if !s.byPlace {
		names, ok = s.order()
		s.byPlace = !ok
	}
	if s.byPlace {
		for i := range s.parts {
			for j, n := range s.parts[i].names {
				n, _, _ = strings.Cut(n, " ")
				s.parts[i].names[j] = fmt.Sprintf("%s %02d", n, j)
			}
		}
		if names, ok = s.order(); !ok {
			return nil, errors.New("parts of the name come in different orders")
		}
	}
	for _, name := range names {
		t := s.tree(everything, func(i int) int {
			if slices.Contains(s.parts[i].names, name) {
				return 1
			}
			return 0
		})
		name, _, _ = strings.Cut(name, " ")
		o.Names, o.Has = append(o.Names, name), append(o.Has, t)
	}
	frames := make(map[string]int)
	var lists [][]int
	for i := range s.parts {
		k, ok := frames[s.parts[i].kinds]
		if !ok {
			k = len(lists)
			frames[s.parts[i].kinds] = k
			lists = append(lists, nil)
		}
		lists[k] = append(lists[k], i)
	}
	o.Which = s.tree(everything, func(i int) int { return frames[s.parts[i].kinds] })
	for _, words := range lists {
		var slots []syntax.Slot
		for k := range s.parts[words[0]].operands {
			slot, err := s.slot(words, k)
			if err != nil {
				return nil, err
			}
			slots = append(slots, slot)
		}
		o.Frames = append(o.Frames, slots)
	}
	return o, nil
}

// order returns the parts of names in an order that all names keep, and false if there is none.
func (s *lesson) order() ([]string, bool) {
	before := make(map[[2]string]bool)
	count := make(map[string]int)
	for i := range s.parts {
		n := s.parts[i].names
		for j := range n {
			count[n[j]]++
			for k := j + 1; k < len(n); k++ {
				before[[2]string{n[j], n[k]}] = true
			}
		}
	}
	var left, out []string
	for n := range count {
		left = append(left, n)
	}
	slices.Sort(left)
	for len(left) > 0 {
		k := slices.IndexFunc(left, func(n string) bool {
			return !slices.ContainsFunc(left, func(m string) bool { return m != n && before[[2]string{m, n}] })
		})
		if k < 0 {
			return nil, false
		}
		out = append(out, left[k])
		left = slices.Delete(left, k, k+1)
	}
	return out, true
}

// slot learns the k-th operand of words that have operands of the same kinds.
func (s *lesson) slot(words []int, k int) (syntax.Slot, error) {
	var slot syntax.Slot
	// Numbers are the same in all forms with the same ones, as far as they are linear so; otherwise in each form.
	numbers := make(map[string][]syntax.Number)
	byKinds := group(words, func(i int) string { return s.parts[i].operands[k].kinds })
	for kinds, list := range byKinds {
		if n, ok := s.numbers(list, k); ok {
			numbers[kinds] = n
		}
	}
	which := make(map[int]int)
	byForm := group(words, func(i int) string { return s.parts[i].operands[k].form + "\x01" + s.parts[i].operands[k].kinds })
	for _, key := range slices.Sorted(maps.Keys(byForm)) {
		list := byForm[key]
		form, kinds, _ := strings.Cut(key, "\x01")
		nums, ok := numbers[kinds]
		if !ok {
			nums, ok = s.numbers(list, k)
		}
		if ok {
			for _, i := range list {
				which[i] = len(slot.Forms)
			}
			slot.Forms = append(slot.Forms, syntax.Form{Text: strings.Split(form, numberMark), Nums: nums})
			continue
		}
		// The parts of the name decide, perhaps, what numbers are.
		var rest []int
		for _, list := range sorted(group(list, func(i int) string { return strings.Join(s.parts[i].names, "") })) {
			nums, ok := s.numbers(list, k)
			if !ok {
				rest = append(rest, list...)
				continue
			}
			f := syntax.Form{Text: strings.Split(form, numberMark), Nums: nums}
			n := slices.IndexFunc(slot.Forms, func(g syntax.Form) bool { return reflect.DeepEqual(f, g) })
			if n < 0 {
				n = len(slot.Forms)
				slot.Forms = append(slot.Forms, f)
			}
			for _, i := range list {
				which[i] = n
			}
		}
		// Numbers that are none of the word's: as text.
		literal := make(map[string]int)
		for _, i := range rest {
			text := s.literal(i, k)
			n, ok := literal[text]
			if !ok {
				if len(literal) == 300 {
					return slot, fmt.Errorf("operand %d: %q: the numbers are no sums of bits", k, strings.ReplaceAll(form, numberMark, "#"))
				}
				n = len(slot.Forms)
				literal[text] = n
				slot.Forms = append(slot.Forms, syntax.Form{Text: []string{text}})
			}
			which[i] = n
		}
	}
	slot.Which = s.tree(words, func(i int) int { return which[i] })
	return slot, nil
}

// literal is an operand as it is written.
func (s *lesson) literal(i, k int) string {
	o := &s.parts[i].operands[k]
	var b strings.Builder
	for j, part := range strings.Split(o.form, numberMark) {
		b.WriteString(part)
		if j < len(o.nums) {
			b.WriteString(o.nums[j].text)
		}
	}
	return b.String()
}

func (s *lesson) numbers(words []int, k int) ([]syntax.Number, bool) {
	out := make([]syntax.Number, 0, 2)
	for j := range s.parts[words[0]].operands[k].nums {
		n, ok := s.number(words, func(i int) numberText { return s.parts[i].operands[k].nums[j] })
		if !ok {
			return nil, false
		}
		out = append(out, n)
	}
	return out, true
}

// sorted returns the lists of groups in the order of their keys.
func sorted(groups map[string][]int) [][]int {
	var out [][]int
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[k])
	}
	return out
}

func group(words []int, by func(i int) string) map[string][]int {
	out := make(map[string][]int)
	for _, i := range words {
		k := by(i)
		out[k] = append(out[k], i)
	}
	return out
}

// misses returns the words of a list whose text an op does not give.
func misses(o *syntax.Op, list []shown) []shown {
	var out []shown
	for _, x := range list {
		if !usable(x.text) {
			continue
		}
		if string(o.Append(nil, x.w, x.pc)) != x.text {
			out = append(out, x)
		}
	}
	return out
}

// variants makes words that are like those of a list.
func variants(rng *rand.Rand, list []syntax.Word, n int) []syntax.Word {
	out := make([]syntax.Word, 0, n)
	put := func(w *syntax.Word, pos, n uint, v uint64) {
		s := sass.Word{Lo: w.Lo, Hi: w.Hi}.SetBits(pos, n, v)
		w.Lo, w.Hi = s.Lo, s.Hi
	}
	reg := func(ones uint64) uint64 {
		if rng.IntN(4) == 0 {
			return ones
		}
		return rng.Uint64() & ones
	}
	for range n {
		w := list[rng.IntN(len(list))]
		for range 1 + rng.IntN(3) {
			switch rng.IntN(8) {
			case 0:
				put(&w, uint(16+rng.IntN(89)), 1, rng.Uint64()&1)
				put(&w, uint(16+rng.IntN(89)), 1, rng.Uint64()&1)
			case 1:
				put(&w, 16, 8, reg(255))
				put(&w, 24, 8, reg(255))
			case 2:
				put(&w, 32, 8, reg(255))
				put(&w, 64, 8, reg(255))
			case 3:
				for _, p := range []uint{68, 77, 81, 84, 87} {
					if rng.IntN(2) == 0 {
						put(&w, p, 3, reg(7))
					}
				}
			case 4:
				put(&w, 72, 8, rng.Uint64()&255)
			case 5:
				switch rng.IntN(5) {
				case 0:
					put(&w, 32, 32, 0)
				case 1:
					put(&w, 32, 32, 1<<rng.IntN(32))
				case 2:
					put(&w, 32, 32, rng.Uint64()&0xffff)
				case 3:
					put(&w, 40, 24, 0)
				default:
					put(&w, 32, 32, rng.Uint64()&(1<<32-1))
				}
			case 6:
				o := list[rng.IntN(len(list))]
				put(&w, 72, 33, o.Field(72, 33))
			case 7:
				o := list[rng.IntN(len(list))]
				lo := uint(16 + rng.IntN(80))
				n := uint(1 + rng.IntN(24))
				put(&w, lo, n, o.Field(lo, n))
			}
		}
		out = append(out, w)
	}
	return out
}

// flips makes the words that differ from w in one bit, apart from the opcode, the guard and the scheduling.
func flips(w syntax.Word) []syntax.Word {
	var out []syntax.Word
	for p := uint(16); p < lastBit; p++ {
		s := sass.Word{Lo: w.Lo, Hi: w.Hi}
		s = s.SetBits(p, 1, 1-s.Bits(p, 1))
		out = append(out, syntax.Word{Lo: s.Lo, Hi: s.Hi})
	}
	return out
}

// show disassembles words, each of which is given an always true guard and no scheduling.
func (o *oracle) show(a sass.Arch, words []syntax.Word) ([]shown, error) {
	list := make([]sass.Word, len(words))
	for i, w := range words {
		list[i] = plain(sass.Word{Lo: w.Lo, Hi: w.Hi}.SetBits(12, 4, 7))
	}
	texts, at, err := o.textsAt(a, list)
	if err != nil {
		return nil, err
	}
	out := make([]shown, len(words))
	for i := range out {
		// Some numbers have a blank behind them.
		out[i] = shown{syntax.Word{Lo: list[i].Lo, Hi: list[i].Hi}, at[i], strings.ReplaceAll(texts[i], " ,", ",")}
	}
	return out, nil
}
