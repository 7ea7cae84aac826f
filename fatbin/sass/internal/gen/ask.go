package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
)

// field is a bit field that names a register.
type field struct {
	pos, len uint8
	kind     sass.RegKind
	inverted bool // the word holds the complement: 0 is PT
}

type token struct {
	kind sass.RegKind
	num  int
	text string
}

// regToken reads the name of a register.
func regToken(a sass.Arch, s string) (sass.RegKind, int) {
	urz := 63
	if a >= 100 {
		urz = 255
	}
	switch s {
	case "RZ":
		return sass.GPR, 255
	case "URZ":
		return sass.UGPR, urz
	case "PT":
		return sass.Pred, 7
	case "UPT":
		return sass.UPred, 7
	}
	for _, k := range []sass.RegKind{sass.UGPR, sass.UPred, sass.GPR, sass.Pred, sass.Barrier} {
		if d, ok := strings.CutPrefix(s, k.String()); ok {
			if n, err := strconv.ParseUint(d, 10, 8); err == nil {
				return k, int(n)
			}
		}
	}
	return sass.NoReg, 0
}

func ident(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_'
}

func tokens(a sass.Arch, text string) []token {
	var out []token
	for i := 0; i < len(text); {
		j := i + 1
		if ident(text[i]) {
			for j < len(text) && ident(text[j]) {
				j++
			}
		}
		t := token{text: text[i:j]}
		// ".B1" and its like are parts of a register, not barriers.
		if i == 0 || text[i-1] != '.' {
			t.kind, t.num = regToken(a, t.text)
		}
		out = append(out, t)
		i = j
	}
	return out
}

// relative are instructions whose text depends on where they stand.
func relative(name string) bool { return flow[name] || name == "LEPC" }

// regFlip says that flipping bit p changed the number of a register, and nothing
// else, or that a register came or went that stands for none: PT, RZ, URZ.
func regFlip(arch sass.Arch, a, b []token, p int, rel bool) (field, bool) {
	if len(a) != len(b) {
		return appeared(arch, a, b, p)
	}
	var f field
	found := false
	for i := range a {
		if a[i].text == b[i].text || rel && strings.HasPrefix(a[i].text, "0x") && strings.HasPrefix(b[i].text, "0x") {
			continue
		}
		if a[i].kind == sass.NoReg || a[i].kind != b[i].kind {
			return field{}, false
		}
		d := a[i].num ^ b[i].num
		if d&(d-1) != 0 {
			return field{}, false
		}
		k := 0
		for d>>k != 1 {
			k++
		}
		if p-k < 0 {
			return field{}, false
		}
		g := field{pos: uint8(p - k), kind: a[i].kind}
		if found && g != f {
			return field{}, false
		}
		f, found = g, true
	}
	return f, found
}

// appeared says that b has one register more than a, or one less, whose number is
// that of no register with one bit flipped.
func appeared(arch sass.Arch, a, b []token, p int) (field, bool) {
	if len(a) > len(b) {
		a, b = b, a
	}
	if a[0].text != b[0].text {
		return field{}, false
	}
	counts := make(map[token]int)
	for _, t := range b {
		if t.kind != sass.NoReg {
			counts[t]++
		}
	}
	for _, t := range a {
		if t.kind != sass.NoReg {
			counts[t]--
		}
	}
	var more token
	for t, n := range counts {
		switch {
		case n == 0 || t.num == int(noReg(arch, t.kind)):
		case n == 1 && more.kind == sass.NoReg:
			more = t
		default:
			return field{}, false
		}
	}
	if more.kind == sass.NoReg || more.kind == sass.Barrier {
		return field{}, false
	}
	d := more.num ^ int(noReg(arch, more.kind))
	if d&(d-1) != 0 || d == 0 {
		return field{}, false
	}
	k := 0
	for d>>k != 1 {
		k++
	}
	if p < firstBit+k {
		return field{}, false
	}
	return field{pos: uint8(p - k), kind: more.kind}, true
}

// noReg is the number that stands for no register.
func noReg(a sass.Arch, k sass.RegKind) uint8 {
	switch k {
	case sass.GPR:
		return 255
	case sass.UGPR:
		return sass.URZ(a)
	}
	return 7
}

func flip(w sass.Word, p int) sass.Word {
	return w.SetBits(uint(p), 1, w.Bits(uint(p), 1)^1)
}

func readSeeds(file string) (map[sass.Arch][]sass.Word, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := make(map[sass.Arch][]sass.Word)
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var a sass.Arch
		var w sass.Word
		if _, err := fmt.Sscanf(sc.Text(), "%d %x %x", &a, &w.Lo, &w.Hi); err != nil {
			return nil, err
		}
		out[a] = append(out[a], w)
	}
	return out, nil
}

// firstBit and lastBit bound what is mutated: behind opcode and guard, before the control half.
const firstBit, lastBit = 16, 105

func mnemonic(text string) string {
	if strings.HasPrefix(text, "@") {
		_, text, _ = strings.Cut(text, " ")
	}
	m, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	return m
}

func base(text string) string {
	m, _, _ := strings.Cut(mnemonic(text), ".")
	return m
}

// flow are the instructions whose registers are not asked for by life ranges, as
// they would cut the sequence.
var flow = map[string]bool{
	"BRA": true, "BRX": true, "BRXU": true, "JMP": true, "JMX": true, "JMXU": true, "CALL": true, "RET": true, "EXIT": true,
	"BSSY": true, "BSYNC": true, "BREAK": true, "KILL": true, "RTT": true, "WARPSYNC": true, "BPT": true, "PRET": true, "ENDCOLLECTIVE": true,
}

// operand is a [sass.Operand] without its register.
type operand struct {
	field
	implicit    uint8 // the register, if len is 0
	count       uint8
	read, write bool
}

func (p operand) String() string {
	s := ""
	if p.read {
		s += "r"
	}
	if p.write {
		s += "w"
	}
	if p.len == 0 {
		return fmt.Sprintf("%s:%s%d*%d", s, p.kind, p.implicit, p.count)
	}
	if p.inverted {
		return fmt.Sprintf("%s:%s~@%d+%d*%d", s, p.kind, p.pos, p.len, p.count)
	}
	return fmt.Sprintf("%s:%s@%d+%d*%d", s, p.kind, p.pos, p.len, p.count)
}

// shape is what a word does to registers, as text.
func shape(ops []operand) string {
	var b []string
	for _, p := range ops {
		b = append(b, p.String())
	}
	slices.Sort(b)
	return strings.Join(b, " ")
}

// The numbers that fields get, by position, so that life ranges tell which field
// names a register. Fields at places that are not listed share a number: of two of them in
// one instruction each would seem to have the other's registers, too.
var numbers = map[uint8]uint8{16: 48, 24: 8, 32: 16, 64: 24, 40: 40, 0: 32}

var predNumbers = map[uint8]uint8{12: 6, 81: 0, 84: 1, 87: 2, 68: 3, 77: 4, 0: 5}

func number(f field) uint8 {
	m := numbers
	if f.kind == sass.Pred || f.kind == sass.UPred {
		m = predNumbers
	}
	n, ok := m[f.pos]
	if !ok {
		n = m[0]
	}
	return n & (1<<f.len - 1)
}

func assign(w sass.Word, fs []field) sass.Word {
	for _, f := range fs {
		n := uint64(number(f))
		if f.inverted {
			n = ^n
		}
		w = w.SetBits(uint(f.pos), uint(f.len), n)
	}
	return w
}

// attribute says which fields name the registers of u; wide if an operand has
// more registers than the first assignment keeps apart.
func attribute(all []field, w sass.Word, u use) (ops []operand, wide bool) {
	// Of fields at the same bits that hold a number or its complement, one has the
	// number that was given.
	var fs []field
	for _, f := range all {
		v := uint8(w.Bits(uint(f.pos), uint(f.len)))
		if f.inverted {
			v = ^v & (1<<f.len - 1)
		}
		other := slices.ContainsFunc(all, func(g field) bool { return g.pos == f.pos && g.kind == f.kind && g.inverted != f.inverted })
		if !other || v == number(f) {
			fs = append(fs, f)
		}
	}
	for pass, set := range []sass.Set{u.read, u.write} {
		for _, k := range []sass.RegKind{sass.GPR, sass.UGPR, sass.Pred, sass.UPred} {
			limit := 255
			if k == sass.Pred || k == sass.UPred {
				limit = 7
			}
			starts := make(map[int][]field)
			for _, f := range fs {
				if f.kind == k {
					starts[int(number(f))] = append(starts[int(number(f))], f)
				}
			}
			for i := 0; i < limit; i++ {
				if !set.Has(k, uint8(i)) {
					continue
				}
				j := i + 1
				for j < limit && set.Has(k, uint8(j)) && starts[j] == nil {
					j++
				}
				// One that goes on up to the next field's number may go on behind it.
				if j-i > 8 || j-i == 8 && set.Has(k, uint8(j)) {
					wide = true
				}
				p := operand{implicit: uint8(i), count: uint8(j - i), read: pass == 0, write: pass == 1}
				p.kind = k
				if len(starts[i]) > 0 {
					for _, f := range starts[i] {
						p.field, p.implicit = f, 0
						ops = append(ops, p)
					}
				} else {
					// A flipped bit of a field that the text didn't show.
					var near []field
					for _, f := range fs {
						if d := int(number(f)) ^ i; f.kind == k && d&(d-1) == 0 {
							near = append(near, f)
						}
					}
					if len(near) == 1 {
						p.field, p.implicit = near[0], 0
					}
					ops = append(ops, p)
				}
				i = j - 1
			}
		}
	}
	return ops, wide
}

// variant is a word that was asked for, and what it does.
type variant struct {
	word  sass.Word
	text  string
	shape string
}

// opFacts is what was found out about an opcode on an architecture.
type opFacts struct {
	op       uint16
	name     string
	fields   []field // those that words were found to use
	all      []field // those that any word was
	variants []variant
	key      sass.Word // the bits that decide what is done to registers

	guard             sass.RegKind // what names the guard: Pred, UPred or none
	writeBar, readBar bool         // scoreboards that it may set
}

func activeFields(a sass.Arch, w sass.Word, texts []string) []field {
	found := make(map[field]int)
	b := tokens(a, texts[0])
	rel := relative(base(texts[0]))
	for p := firstBit; p < lastBit; p++ {
		x := texts[p-firstBit+1]
		if x == "" {
			continue
		}
		if f, ok := regFlip(a, b, tokens(a, x), p, rel); ok {
			found[f]++
		}
	}
	var out []field
	for f, l := range found {
		f.len = map[sass.RegKind]uint8{sass.GPR: 8, sass.UGPR: 6, sass.Pred: 3, sass.UPred: 3, sass.Barrier: 4}[f.kind]
		if f.kind == sass.UGPR && a >= 100 {
			f.len = 8
		}
		if f.kind == sass.Pred || f.kind == sass.UPred {
			// The number that is shown is what the word holds, or its complement.
			v := int(w.Bits(uint(f.pos), 3))
			same, other := false, false
			shown := slices.ContainsFunc(b, func(t token) bool { return t.kind == f.kind && t.num == v })
			shownInverted := slices.ContainsFunc(b, func(t token) bool { return t.kind == f.kind && t.num == 7-v })
			for k := range 3 {
				x := tokens(a, texts[int(f.pos)+k-firstBit+1])
				n := v ^ 1<<k
				same = same || slices.ContainsFunc(x, func(t token) bool { return t.kind == f.kind && t.num == n && n != 7 })
				other = other || slices.ContainsFunc(x, func(t token) bool { return t.kind == f.kind && t.num == 7-n && n != 0 })
			}
			f.inverted = other && !same || other && shownInverted && !shown || other && v == 0 && !shown
		}
		if l >= 2 {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(x, y field) int { return int(x.pos) - int(y.pos) })
	return out
}

func (o *oracle) flips(a sass.Arch, words []sass.Word) ([][]string, error) {
	const n = lastBit - firstBit + 1
	ws := make([]sass.Word, 0, len(words)*n)
	for _, w := range words {
		ws = append(ws, w)
		for p := firstBit; p < lastBit; p++ {
			ws = append(ws, flip(w, p))
		}
	}
	texts, err := o.texts(a, ws)
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(words))
	for i := range out {
		out[i] = texts[i*n:][:n]
	}
	return out, nil
}

const (
	sample     = 8
	maxFlipped = 6
)

// asked is a word to be asked for.
type asked struct {
	facts *opFacts
	fs    []field
	word  sass.Word
	text  string
	shape string
	from  int // index of the word of which this one is a flip, or its own
}

// x0 is the name of the instruction at index i of which.
func x0(list []asked, which []int, i int) string { return base(list[which[i]].text) }

// more are the fields of the opcode that the word's own don't overlap.
func (x *asked) more() []field {
	var in sass.Word
	for _, f := range x.fs {
		in = in.SetBits(uint(f.pos), uint(f.len), 1<<f.len-1)
	}
	var out []field
	for _, f := range x.facts.all {
		if in.Bits(uint(f.pos), uint(f.len)) == 0 && f.kind != sass.Barrier {
			in = in.SetBits(uint(f.pos), uint(f.len), 1<<f.len-1)
			out = append(out, f)
		}
	}
	return out
}

// hidden says that a field of w names no register.
func hidden(a sass.Arch, f field, w sass.Word) bool {
	v := w.Bits(uint(f.pos), uint(f.len))
	if f.inverted {
		return v == 0
	}
	return f.kind != sass.Barrier && v == uint64(noReg(a, f.kind))
}

// names counts how often a text names the register that f gets.
func names(a sass.Arch, text string, f field) int {
	n := 0
	for _, t := range tokens(a, text) {
		if t.kind == f.kind && t.num == int(number(f)) {
			n++
		}
	}
	return n
}

// usable says that nvdisasm has a name for all parts of an instruction.
func usable(text string) bool {
	return text != "" && !strings.Contains(text, "INVALID") && !strings.Contains(text, "???")
}

// measure fills in the shapes.
func (o *oracle) measure(a sass.Arch, list []asked) error {
	var words []sass.Word
	var which []int
	for i, x := range list {
		if !flow[x.facts.name] {
			words = append(words, x.word)
			which = append(which, i)
		}
	}
	uses, err := o.uses(a, words)
	if err != nil {
		return err
	}
	firstUses := uses
	var wide, unnamed []int
	var again []sass.Word
	for i, u := range uses {
		x := &list[which[i]]
		ops, w := attribute(x.facts.fields, x.word, u)
		x.shape = shape(ops)
		if w {
			wide = append(wide, which[i])
		} else if slices.ContainsFunc(ops, func(p operand) bool { return p.len == 0 }) {
			unnamed = append(unnamed, i)
			again = append(again, assign(x.word, x.more()))
		}
	}
	// A flipped bit may have made use of another field: number them all.
	shown, err := o.texts(a, again)
	if err != nil {
		return err
	}
	n := 0
	for i := range unnamed {
		if usable(shown[i]) && base(shown[i]) == x0(list, which, unnamed[i]) {
			unnamed[n], again[n] = unnamed[i], again[i]
			n++
		}
	}
	second, err := o.uses(a, again[:n])
	if err != nil {
		return err
	}
	for i, u := range second {
		x := &list[which[unnamed[i]]]
		ops, w := attribute(slices.Concat(x.facts.fields, x.facts.all), again[i], u)
		if !w && !slices.ContainsFunc(ops, func(p operand) bool { return p.len == 0 }) {
			x.shape = shape(ops)
		}
	}
	// Fields that name more than 8 registers are asked for one by one.
	var single []sass.Word
	var of []int
	var named []field
	for _, i := range wide {
		for _, f := range list[i].fs {
			if f.kind != sass.GPR {
				continue
			}
			w := list[i].word
			for _, g := range list[i].fs {
				if g.kind == sass.GPR {
					w = w.SetBits(uint(g.pos), uint(g.len), 255)
				}
			}
			single = append(single, w.SetBits(uint(f.pos), uint(f.len), 0))
			of, named = append(of, i), append(named, f)
		}
	}
	texts, err := o.texts(a, single)
	if err != nil {
		return err
	}
	for i := range single {
		if texts[i] == "" {
			single[i] = nopWord
		}
	}
	if uses, err = o.uses(a, single); err != nil {
		return err
	}
	found := make(map[int][]operand)
	for i, u := range uses {
		x := &list[of[i]]
		if texts[i] == "" {
			fmt.Fprintf(os.Stderr, "%s: %s is illegal with only the register at bit %d\n", a, x.text, named[i].pos)
			found[of[i]] = append(found[of[i]], operand{field: named[i], count: 128, read: true, write: true})
			continue
		}
		ops, _ := attribute(nil, x.word, u)
		for _, p := range ops {
			if p.kind == sass.GPR {
				if p.implicit != 0 {
					fmt.Fprintf(os.Stderr, "%s: %s: R%d\n", a, x.text, p.implicit)
				}
				p.field = named[i]
				found[of[i]] = append(found[of[i]], p)
			}
		}
	}
	byWord := make(map[int]use)
	for j, i := range which {
		byWord[i] = firstUses[j]
	}
	for i, ops := range found {
		u := byWord[i]
		u.read.R, u.write.R = [4]uint64{}, [4]uint64{}
		rest, _ := attribute(list[i].facts.fields, list[i].word, u)
		list[i].shape = shape(append(ops, rest...))
	}
	return nil
}

var nopWord = sass.Word{Lo: 0x7918, Hi: 0x000fc00000000000}

func ask(o *oracle, a sass.Arch, seeds []sass.Word) ([]opFacts, error) {
	byOp := make(map[uint16][]sass.Word)
	for _, w := range seeds {
		byOp[w.Opcode()] = append(byOp[w.Opcode()], w)
	}
	var some []sass.Word
	for _, ws := range byOp {
		step := max(1, (len(ws)+sample-1)/sample)
		for i := 0; i < len(ws); i += step {
			some = append(some, ws[i])
		}
	}
	texts, err := o.flips(a, some)
	if err != nil {
		return nil, err
	}
	// All fields of an opcode, and of what names predicates the bits: seeds that
	// differ in nothing else are one.
	opFields := make(map[uint16][]field)
	preds := make(map[uint16]sass.Word)
	for i, w := range some {
		op := w.Opcode()
		for _, f := range activeFields(a, w, texts[i]) {
			if !slices.Contains(opFields[op], f) {
				opFields[op] = append(opFields[op], f)
			}
			if f.pos >= 64 && f.len == 3 {
				preds[op] = preds[op].SetBits(uint(f.pos), 3, 7)
			}
		}
	}
	type key struct {
		op uint16
		hi uint64
	}
	seen := make(map[key]bool)
	some = some[:0]
	for _, w := range seeds {
		k := key{w.Opcode(), w.Hi >> 8 &^ (preds[w.Opcode()].Hi >> 8)}
		if !seen[k] {
			seen[k] = true
			some = append(some, w.SetBits(12, 4, 7))
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d opcodes, %d seeds, %d without predicates\n", a, len(byOp), len(seeds), len(some))
	every := make(map[uint16]int) // of so many seeds of an opcode one has its bits flipped
	for _, w := range some {
		every[w.Opcode()]++
	}
	for op, n := range every {
		every[op] = (n + maxFlipped - 1) / maxFlipped
	}
	flipped := make(map[uint16]int)
	facts := make(map[uint16]*opFacts)
	var list []asked
	actives := make([][]field, len(some))
	for at := 0; at < len(some); at += 2000 {
		part := some[at:min(at+2000, len(some))]
		texts, err := o.flips(a, part)
		if err != nil {
			return nil, err
		}
		for i, w := range part {
			op := w.Opcode()
			found := activeFields(a, w, texts[i])
			if !flow[base(texts[i][0])] {
				actives[at+i] = found
			}
			for _, f := range found {
				if !slices.Contains(opFields[op], f) {
					opFields[op] = append(opFields[op], f)
				}
			}
		}
	}
	for at := 0; at < len(some); at += 2000 {
		part := some[at:min(at+2000, len(some))]
		active := actives[at:][:len(part)]
		norm := make([]sass.Word, len(part))
		var tries []sass.Word
		first, err := o.texts(a, part)
		if err != nil {
			return nil, err
		}
		for i, w := range part {
			norm[i] = assign(w, active[i])
			if flow[base(first[i])] {
				continue
			}
			// A register that is none may not be printed.
			for _, f := range opFields[w.Opcode()] {
				if hidden(a, f, w) {
					tries = append(tries, assign(norm[i], []field{f}))
				}
			}
		}
		shown, err := o.texts(a, tries)
		if err != nil {
			return nil, err
		}
		before, err := o.texts(a, norm)
		if err != nil {
			return nil, err
		}
		for i, w := range part {
			all := norm[i]
			if flow[base(first[i])] {
				continue
			}
			for _, f := range opFields[w.Opcode()] {
				if hidden(a, f, w) {
					if usable(shown[0]) && base(shown[0]) == base(before[i]) && names(a, shown[0], f) > names(a, before[i], f) && !slices.Contains(active[i], f) {
						active[i] = append(active[i], f)
						all = assign(all, []field{f})
					}
					shown, tries = shown[1:], tries[1:]
				}
			}
			norm[i] = all
		}
		plainTexts, err := o.texts(a, norm)
		if err != nil {
			return nil, err
		}
		var chosen []sass.Word
		at := make(map[int]int)
		for i, w := range norm {
			if flipped[w.Opcode()]%every[w.Opcode()] == 0 {
				at[i] = len(chosen)
				chosen = append(chosen, w)
			}
			flipped[w.Opcode()]++
		}
		chosenTexts, err := o.flips(a, chosen)
		if err != nil {
			return nil, err
		}
		texts := make([][]string, len(norm))
		for i := range norm {
			if j, ok := at[i]; ok {
				texts[i] = chosenTexts[j]
			} else {
				texts[i] = plainTexts[i : i+1]
			}
		}
		for i, w := range norm {
			op := w.Opcode()
			f := facts[op]
			if f == nil {
				f = &opFacts{op: op, all: opFields[op]}
				facts[op] = f
			}
			if texts[i][0] == "" {
				fmt.Fprintf(os.Stderr, "%s: %s: illegal with other registers: %s\n", a, part[i], w)
				continue
			}
			if f.name == "" {
				f.name = base(texts[i][0])
				if flow[f.name] {
					f.fields = opFields[op]
				}
			}
			var in sass.Word
			for _, x := range active[i] {
				in = in.SetBits(uint(x.pos), uint(x.len), 1<<x.len-1)
				if !slices.Contains(f.fields, x) {
					f.fields = append(f.fields, x)
				}
			}
			first := len(list)
			list = append(list, asked{f, active[i], w, texts[i][0], "", first})
			for p := firstBit; p < lastBit && len(texts[i]) > 1; p++ {
				if in.Bits(uint(p), 1) == 0 && usable(texts[i][p-firstBit+1]) {
					list = append(list, asked{f, active[i], flip(w, p), texts[i][p-firstBit+1], "", first})
				}
			}
		}
	}
	if err := o.measure(a, list); err != nil {
		return nil, err
	}
	for _, x := range list {
		f := x.facts
		f.variants = append(f.variants, variant{x.word, x.text, x.shape})
		if base := list[x.from]; base.shape != x.shape {
			d := sass.Word{Lo: base.word.Lo ^ x.word.Lo, Hi: base.word.Hi ^ x.word.Hi}
			f.key = sass.Word{Lo: f.key.Lo | d.Lo, Hi: f.key.Hi | d.Hi}
		}
	}
	if err := o.enumerate(a, facts, list); err != nil {
		return nil, err
	}
	if err := o.guards(a, facts); err != nil {
		return nil, err
	}
	var out []opFacts
	for _, f := range facts {
		if len(f.variants) > 0 {
			out = append(out, *f)
		}
	}
	slices.SortFunc(out, func(x, y opFacts) int { return int(x.op) - int(y.op) })
	return out, nil
}

// enumerate asks for combinations of key bits that were not seen, as long as each
// round finds legal ones.
func (o *oracle) enumerate(a sass.Arch, facts map[uint16]*opFacts, list []asked) error {
	fs := make(map[*opFacts]map[sass.Word]asked)
	for _, f := range facts {
		for f.settle() {
		}
		fs[f] = make(map[sass.Word]asked)
	}
	for _, x := range list {
		fs[x.facts][and(x.word, x.facts.key)] = x
	}
	tried := make(map[sass.Word]bool)
	for range 6 {
		var next []asked
		var words []sass.Word
		for f, seen := range fs {
			if len(seen) > 512 || flow[f.name] {
				continue
			}
			for _, x := range seen {
				for p := firstBit; p < lastBit; p++ {
					if f.key.Bits(uint(p), 1) == 0 {
						continue
					}
					y := x
					y.word = flip(x.word, p)
					k := and(y.word, f.key).SetBits(0, 12, uint64(f.op))
					if _, ok := seen[and(y.word, f.key)]; ok || tried[k] {
						continue
					}
					tried[k] = true
					next = append(next, y)
					words = append(words, y.word)
				}
			}
		}
		texts, err := o.texts(a, words)
		if err != nil {
			return err
		}
		var legal []asked
		for i := range next {
			if usable(texts[i]) {
				next[i].text = texts[i]
				legal = append(legal, next[i])
			}
		}
		if len(legal) == 0 {
			return nil
		}
		if err := o.measure(a, legal); err != nil {
			return err
		}
		for _, x := range legal {
			f := x.facts
			f.variants = append(f.variants, variant{x.word, x.text, x.shape})
			fs[f][and(x.word, f.key)] = x
		}
	}
	return nil
}

// guards finds out what the guard is, and which barriers an instruction may set.
func (o *oracle) guards(a sass.Arch, facts map[uint16]*opFacts) error {
	var ops []*opFacts
	var words []sass.Word
	for _, f := range facts {
		if len(f.variants) == 0 {
			continue
		}
		w := f.variants[0].word
		ops = append(ops, f)
		c := w.Control()
		wr, rd := c, c
		wr.WriteBar, rd.ReadBar = 0, 0
		words = append(words, w.SetBits(12, 3, 3), w.WithControl(wr), w.WithControl(rd))
	}
	texts, err := o.texts(a, words)
	if err != nil {
		return err
	}
	for i, f := range ops {
		switch t := texts[i*3]; {
		case strings.HasPrefix(t, "@UP3 "):
			f.guard = sass.UPred
		case strings.HasPrefix(t, "@P3 "):
			f.guard = sass.Pred
		case t != "":
			fmt.Fprintf(os.Stderr, "%s: guarded %s is %s\n", a, f.variants[0].text, t)
		}
		f.writeBar, f.readBar = texts[i*3+1] != "", texts[i*3+2] != ""
	}
	return nil
}

// settle adds a bit to the key if words that agree in the key differ in shape.
func (f *opFacts) settle() bool {
	first := make(map[sass.Word]variant)
	votes := make(map[int]int)
	for _, v := range f.variants {
		k := and(v.word, f.key)
		w, ok := first[k]
		if !ok {
			first[k] = v
			continue
		}
		if w.shape == v.shape {
			continue
		}
		for p := firstBit; p < lastBit; p++ {
			if v.word.Bits(uint(p), 1) != w.word.Bits(uint(p), 1) {
				votes[p]++
			}
		}
	}
	best := -1
	for p, n := range votes {
		if best < 0 || n > votes[best] || n == votes[best] && p > best {
			best = p
		}
	}
	if best < 0 {
		return false
	}
	f.key = f.key.SetBits(uint(best), 1, 1)
	return true
}

func and(a, b sass.Word) sass.Word { return sass.Word{Lo: a.Lo & b.Lo, Hi: a.Hi & b.Hi} }
