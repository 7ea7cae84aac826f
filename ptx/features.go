package ptx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// String returns "8.4".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Less reports whether v is older than w.
func (v Version) Less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// A Target is a GPU architecture as .target names it.
type Target struct {
	SM     uint16 // 90 of sm_90a; 0 for none
	Suffix byte   // 'a' architecture-specific, 'f' family-specific, 0 neither
}

// ParseTarget parses "sm_90a".
func ParseTarget(s string) (Target, bool) {
	digits, ok := strings.CutPrefix(s, "sm_")
	if !ok || digits == "" {
		return Target{}, false
	}
	var t Target
	if last := digits[len(digits)-1]; last == 'a' || last == 'f' {
		t.Suffix, digits = last, digits[:len(digits)-1]
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	t.SM = uint16(n)
	return t, err == nil && n > 0
}

// String returns "sm_90a".
func (t Target) String() string {
	s := fmt.Sprintf("sm_%d", t.SM)
	if t.Suffix != 0 {
		s += string(rune(t.Suffix))
	}
	return s
}

// Target returns the architecture of the .target directive; zero when there is
// none.
func (f *File) Target() Target {
	for _, name := range f.Targets {
		if t, ok := ParseTarget(name); ok {
			return t
		}
	}
	return Target{}
}

// A Need is what a feature of the language needs: a version of the ISA, and a
// target at least SM or one of Only.
type Need struct {
	Version Version
	SM      uint16 // 0: any
	Only    string // "90a 100f": exactly these targets and, for one with f, its family's later members; "" for any
}

// Met reports whether a module of version v for target t may use the feature.
func (n Need) Met(v Version, t Target) bool { return !v.Less(n.Version) && n.metBy(t) }

func (n Need) metBy(t Target) bool {
	if t.SM < n.SM {
		return false
	}
	if n.Only == "" {
		return true
	}
	for w := range strings.FieldsSeq(n.Only) {
		o, _ := ParseTarget("sm_" + w)
		if t == o || o.Suffix == 'f' && t.Suffix != 0 && t.SM/10 == o.SM/10 && t.SM >= o.SM {
			return true
		}
	}
	return false
}

// String returns "PTX ISA 8.0, sm_90a".
func (n Need) String() string {
	s := "PTX ISA " + n.Version.String()
	switch {
	case n.Only != "":
		s += ", sm_" + strings.Join(strings.Fields(n.Only), " or sm_")
	case n.SM != 0:
		s += fmt.Sprintf(", sm_%d", n.SM)
	}
	return s
}

// and returns what both need. Of two lists of targets the later one counts: it
// belongs to the more special form.
func (n Need) and(o Need) Need {
	if n.Version.Less(o.Version) {
		n.Version = o.Version
	}
	n.SM = max(n.SM, o.SM)
	if o.Only != "" {
		n.Only = o.Only
	}
	return n
}

// A FeatureError says that a statement uses what the module's .version or
// .target does not have.
type FeatureError struct {
	At      Position
	Feature string // "cp.async.bulk"
	Need    Need
	Version Version // of the file
	Target  Target  // of the file
	Gone    bool    // the other way round: what Need describes no longer has the feature
	Never   bool    // no version has it, for any target
}

// Error returns "file:line:col: cp.async.bulk needs PTX ISA 8.0, sm_90; the
// file says 7.8, sm_80".
func (e *FeatureError) Error() string {
	switch {
	case e.Never:
		return fmt.Sprintf("%s: there is no %s", e.At, e.Feature)
	case e.Gone:
		return fmt.Sprintf("%s: %s is gone from %s on; the file says %s, %s", e.At, e.Feature, e.Need, e.Version, e.Target)
	}
	return fmt.Sprintf("%s: %s needs %s; the file says %s, %s", e.At, e.Feature, e.Need, e.Version, e.Target)
}

// feature is a row of the table, its pattern taken apart.
type feature struct {
	name string
	mods []string
	args int // exact number of operands; 0 for any
	need Need
}

// featureIndex finds the rows of an opcode.
type featureIndex struct {
	byOp  [opCount][]feature
	words map[string]Need // directives, special registers and targets
}

var features = sync.OnceValue(func() *featureIndex {
	x := &featureIndex{words: map[string]Need{}}
	for line := range strings.Lines(featureTable) {
		cols := strings.Fields(line)
		if len(cols) < 2 {
			continue
		}
		var need Need
		major, minor, _ := strings.Cut(cols[1], ".")
		a, err1 := strconv.Atoi(major)
		b, err2 := strconv.Atoi(minor)
		if err1 != nil || err2 != nil {
			panic("BUG: ptx: feature table: " + line)
		}
		need.Version = Version{uint8(a), uint8(b)}
		if len(cols) > 2 {
			n, err := strconv.Atoi(cols[2])
			if err != nil {
				panic("BUG: ptx: feature table: " + line)
			}
			need.SM = uint16(n)
		}
		need.Only = strings.Join(cols[min(3, len(cols)):], " ")
		x.add(cols[0], need)
	}
	return x
})

func (x *featureIndex) add(pattern string, need Need) {
	if pattern[0] == '.' || pattern[0] == '%' || strings.HasPrefix(pattern, "sm_") {
		x.words[pattern] = need
		return
	}
	row := feature{need: need}
	pattern, n, _ := strings.Cut(pattern, "/")
	row.args, _ = strconv.Atoi(n)
	word, mods, _ := strings.Cut(pattern, ".")
	row.name = pattern
	for mods != "" {
		var m string
		m, mods, _ = strings.Cut(mods, ".")
		row.mods = append(row.mods, "."+m)
	}
	ops := []string{word}
	if strings.Contains(word, "|") {
		ops = strings.Split(word, "|")
	}
	for _, name := range ops {
		op := opOf(name)
		if op == OpUnknown {
			panic("BUG: ptx: feature table: unknown opcode " + name)
		}
		r := row
		r.name = name + strings.TrimSuffix(pattern[len(word):], "*")
		x.byOp[op] = append(x.byOp[op], r)
	}
}

// matches reports whether an instruction with these modifiers and number of
// operands is a case of the row. A modifier of the row that ends in * stands
// for all that begin so.
func (r *feature) matches(mods []string, args int) bool {
	if r.args != 0 && r.args != args {
		return false
	}
	for _, want := range r.mods {
		found := false
		for _, m := range mods {
			head, wild := strings.CutSuffix(want, "*")
			if m == want || wild && strings.HasPrefix(m, head) {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// Needs returns what an instruction needs, given as its opcode with all
// modifiers, "red.relaxed.gpu.global.add.u64". An unknown opcode needs nothing
// that is known here.
func Needs(opcode string) Need {
	word, rest := opcode, ""
	if i := strings.IndexByte(opcode, '.'); i >= 0 {
		word, rest = opcode[:i], opcode[i:]
	}
	var mods []string
	for rest != "" {
		var m string
		if m, rest = nextMod(rest); m != "" {
			mods = append(mods, m)
		}
	}
	need, _ := needOf(opOf(word), mods, 0)
	return need
}

// needOf joins the needs of all rows that match and names the last of them.
func needOf(op Op, mods []string, args int) (need Need, name string) {
	rows := features().byOp[op]
	for i := range rows {
		if rows[i].matches(mods, args) {
			old := need
			need = need.and(rows[i].need)
			if need != old {
				name = rows[i].name
			}
		}
	}
	return need, name
}

// CheckFeatures returns every use of an instruction, modifier, directive or
// special register that the .version or .target of f does not have, in source
// order.
func (f *File) CheckFeatures() []*FeatureError {
	c := featureCheck{f: f, target: f.Target()}
	for i := range f.Stmts {
		switch s := &f.Stmts[i]; s.Kind {
		case StmtInstr:
			c.instr(s)
		case StmtDirective:
			c.word(s.Pos, f.Text(s.Name))
			if f.Text(s.Name) == ".target" {
				c.word(s.Pos, c.target.String())
			}
		case StmtPrototype:
			c.word(s.Pos, ".callprototype")
		case StmtDecl:
			c.decl(f.Decl(s))
		case StmtFunc:
			for _, d := range f.Params(f.Func(s)) {
				c.decl(&d)
			}
			attrs := f.Attrs(f.Func(s))
			for j := range attrs {
				c.word(attrs[j].Pos, f.Text(attrs[j].Name))
			}
		}
	}
	return c.errs
}

// noSync is where shfl and vote without .sync ended (PTX ISA §9.7.9, notes).
var noSync = Need{Version: Version{6, 4}, SM: 70}

type featureCheck struct {
	f      *File
	target Target
	mods   []string
	errs   []*FeatureError
}

func (c *featureCheck) need(at Pos, name string, n Need) {
	if !n.Met(c.f.Version, c.target) {
		c.errs = append(c.errs, &FeatureError{At: c.f.Position(at), Feature: name, Need: n, Version: c.f.Version, Target: c.target})
	}
}

func (c *featureCheck) word(at Pos, word string) {
	if n, ok := features().words[word]; ok {
		c.need(at, word, n)
	}
}

func (c *featureCheck) decl(d *Decl) {
	if d.Type == B128 {
		c.word(d.Pos, ".b128")
	}
	opaque := d.Type == TexRef || d.Type == SamplerRef || d.Type == SurfRef
	if d.Ptr && opaque && strings.Contains(c.f.Text(Span{d.Pos, d.TypeWord.Pos}), ".ptr") { // pointers to others are older
		c.word(d.Pos, ".ptr")
	}
	if d.Linkage&Managed != 0 {
		c.word(d.Pos, ".managed")
	}
	if d.Linkage&UnifiedAt != 0 {
		c.word(d.Pos, ".unified")
	}
	if d.Linkage&Common != 0 {
		c.word(d.Pos, ".common")
	}
}

func (c *featureCheck) instr(s *Stmt) {
	c.mods = c.f.AppendMods(c.mods[:0], s)
	args := c.f.Args(s)
	if n, name := needOf(s.Op, c.mods, len(args)); name != "" {
		c.need(s.Pos, name, n)
	}
	if (s.Op == OpShfl || s.Op == OpVote) && noSync.Met(c.f.Version, c.target) && !slices.Contains(c.mods, ".sync") {
		c.errs = append(c.errs, &FeatureError{At: c.f.Position(s.Pos), Feature: s.Op.String() + " without .sync", Need: noSync, Version: c.f.Version, Target: c.target, Gone: true})
	}
	if formsSince.Met(c.f.Version, c.target) && !HasForm(s.Op, c.mods, len(args)) {
		c.never(s.Pos, c.f.FullOpcode(s))
	}
	if s.Op == OpApplypriority || s.Op == OpDiscard {
		c.size(s, args)
	}
	if s.Op != OpMov {
		return
	}
	// Special registers are operands of mov only.
	for i := range args {
		name := c.f.Text(args[i].Name)
		if !strings.HasPrefix(name, "%") {
			continue
		}
		if n, ok := features().words[name]; ok {
			c.need(args[i].Pos, name, n)
		} else { // %envreg0 …
			c.word(args[i].Pos, strings.TrimRight(name, "0123456789"))
		}
	}
}

func (c *featureCheck) never(at Pos, what string) {
	c.errs = append(c.errs, &FeatureError{At: c.f.Position(at), Feature: what, Version: c.f.Version, Target: c.target, Never: true})
}

// size checks how many bytes applypriority and discard are of: 128 (PTX ISA §9.7.9).
func (c *featureCheck) size(s *Stmt, args []Operand) {
	if len(args) != 2 || args[1].Kind == OperandInt && args[1].Bits == 128 {
		return
	}
	c.never(args[1].Pos, fmt.Sprintf("%s of %s bytes, only of 128", s.Op, c.f.Text(args[1].Span())))
}
