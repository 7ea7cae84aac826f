package script

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ioctl/nearest"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/traces/glob"
)

// A checker finds the types of everything, and what maps are.
type checker struct {
	*parser
	maps    map[string]*mapInfo
	order   []*mapInfo
	vars    map[string]*Type    // of the probe at hand
	walked  map[string]*mapInfo // what for goes through, by the name of its variable
	counted map[string]bool     // variables by which for counts
	probe   *probe
	final   bool // every map is known: the second time
	inStr   bool // in the argument of str
	events  bool // there are probes on the host, and so it is known what the time is
}

// check checks the probes twice: what a map holds may be said behind where it is read.
func (p *parser) check(probes []*probe) []*mapInfo {
	c := &checker{parser: p, maps: make(map[string]*mapInfo)}
	c.events = slices.ContainsFunc(probes, func(b *probe) bool { return b.side == sideEvents })
	// What END reads, the others have filled, wherever it stands.
	inOrder := slices.SortedStableFunc(slices.Values(probes), func(a, b *probe) int { return cmp.Compare(a.last(), b.last()) })
	for _, c.final = range []bool{false, true} {
		for _, m := range c.order {
			m.keys, m.keyed = nil, false
		}
		for _, b := range inOrder {
			c.probe, c.vars, c.walked = b, make(map[string]*Type), make(map[string]*mapInfo)
			c.counted = make(map[string]bool)
			if b.filter != nil {
				if b.points[0].host == "BEGIN" {
					c.fail(b.filter.pos(), "BEGIN runs once, and has no filter")
				}
				c.truth(b.filter)
			}
			c.block(b.body)
			b.vars = slices.Sorted(maps.Keys(c.vars))
		}
	}
	for _, m := range c.order {
		c.conflicts(m)
	}
	c.ends(probes)
	return c.order
}

// ends refuses BEGIN and END in programs of which a part runs on the host, where that is
// another process than the one that has the kernels' maps.
func (c *checker) ends(probes []*probe) {
	has := map[side]*probe{}
	for _, b := range probes {
		has[b.side] = b
	}
	if b := has[sideEnds]; b != nil && (has[sideKernel] != nil || has[sideCalls] != nil) && has[sideEvents] != nil {
		c.fail(b.points[0].span, "%s can't stand in a program with probes both in kernels and on the host: use two programs", b.points[0].host)
	}
}

// conflicts refuses maps whose values could not be put together.
func (c *checker) conflicts(m *mapInfo) {
	switch {
	case m.agg == aggNone && m.value == nil:
		var filled []string
		for _, x := range c.order {
			if x.value != nil || x.agg != aggNone {
				filled = append(filled, x.name)
			}
		}
		hint := ""
		if near := nearest.Names(m.name, slices.Values(filled), 1); len(near) > 0 && len(m.name) > 1 {
			hint = "; did you mean " + near[0] + "?"
		}
		c.fail(m.first, "nothing is ever put into %s%s", m.name, hint)
	case m.agg != aggNone && m.read.end > 0:
		c.fail(m.read, "%s is %s, whose value is known at the end only: print it in END; what a kernel reads must be assigned", m.name, m.agg)
	case m.agg != aggNone && m.deleted:
		c.fail(m.first, "%s is %s, of which nothing can be deleted", m.name, m.agg)
	case m.ored && m.added:
		c.fail(m.first, "%s has |= and +=; of a map that has both, the values of several GPUs can't be put together", m.name)
	}
	const most = 1000
	if n := m.buckets(); m.agg == aggLhist && (n < 3 || n > most+2) {
		c.fail(m.aggAt, "lhist has %d steps; 1 to %d can be had", n-2, most)
	}
}

// String names an aggregation as it is written.
func (a aggregation) String() string {
	for i := range Functions {
		if f := &Functions[i]; f.agg == a && a != aggNone {
			return f.Name + "()"
		}
	}
	return "assigned"
}

func (c *checker) block(b *block) {
	for _, s := range b.list {
		c.stmt(s)
	}
}

func (c *checker) stmt(s stmt) {
	switch s := s.(type) {
	case *block:
		c.block(s)
	case *callStmt:
		c.call(s.call)
	case *assign:
		c.assign(s)
	case *ifStmt:
		c.truth(s.c)
		c.block(s.then)
		if s.els != nil {
			c.block(s.els)
		}
	case *whileStmt:
		c.truth(s.c)
		c.block(s.body)
	case *unrollStmt:
		c.block(s.body)
	case *forStmt:
		c.forStmt(s)
	case *rangeStmt:
		c.number(s.from)
		c.number(s.to)
		if c.walked[s.v.name] != nil || c.counted[s.v.name] {
			c.fail(s.v.span, "%s is in use already", s.v.name)
		}
		if t := c.vars[s.v.name]; t != nil && t != typeInt {
			c.fail(s.v.span, "%s is a %s, and can't become a number", s.v.name, t.Name)
		}
		c.vars[s.v.name] = typeInt
		c.counted[s.v.name] = true
		c.block(s.body)
		delete(c.counted, s.v.name)
	case *jump:
	default:
		panic(fmt.Sprintf("BUG: statement %T", s))
	}
}

// forStmt checks a walk through a map, which kernels can't make: other threads change it.
func (c *checker) forStmt(s *forStmt) {
	if c.probe.side.compiled() {
		c.fail(s.span, "for goes through a map on the host: put it into END { … }")
	}
	if len(s.over.keys) > 0 {
		c.fail(s.over.span, "for goes through a whole map: for ($kv : %s)", s.over.name)
	}
	if c.walked[s.name] != nil || c.vars[s.name] != nil {
		c.fail(s.span, "%s is in use already", s.name)
	}
	x := c.info(s.over)
	s.over.m = x
	c.walked[s.name] = x
	c.block(s.body)
	delete(c.walked, s.name)
}

// member checks $kv.0 and $kv.1.
func (c *checker) member(x *member) {
	m := c.walked[x.name]
	if m == nil {
		c.fail(x.span, "%s has no members; those of for ($kv : @x) have: $kv.0 is the key, $kv.1 the value", x.name)
	}
	x.t = typeInt
	switch {
	case x.path[0] == 1 && len(x.path) == 1:
		if m.agg == aggHist || m.agg == aggLhist {
			c.fail(x.span, "%s is %s, and no number: print(%s) shows it", m.name, m.agg, m.name)
		}
		if m.agg == aggNone && m.value != nil {
			x.t = m.value
		}
		return
	case x.path[0] != 0 || len(x.path) > 2:
		c.fail(x.span, "$kv.0 is the key, $kv.1 the value; $kv.0.1 a part of a key")
	case !m.keyed:
		return
	case len(m.keys) == 0:
		c.fail(x.span, "%s has no key", m.name)
	case len(x.path) == 1 && len(m.keys) > 1:
		c.fail(x.span, "the key of %s has %d parts: %s.0.0, %s.0.1 …", m.name, len(m.keys), x.name, x.name)
	case len(x.path) == 2 && x.path[1] >= len(m.keys):
		c.fail(x.span, "the key of %s has %d %s", m.name, len(m.keys), plural(len(m.keys), "part"))
	}
	part := 0
	if len(x.path) == 2 {
		part = x.path[1]
	}
	x.t = m.keys[part]
}

// call checks a call that is a statement.
func (c *checker) call(x *call) {
	if c.printed(x) {
		return
	}
	if x.fn.hostOnly && c.probe.side.compiled() {
		c.fail(x.span, "%s runs on the host: put it into END { … }", x.fn.Name)
	}
	switch x.fn.Name {
	case "printf":
		c.printf(x)
	case "time":
		c.time(x)
	case "delete":
		m, ok := x.args[0].(*mapRef)
		if !ok || len(m.keys) == 0 {
			c.fail(x.args[0].pos(), "delete wants a key of a map: delete(@x[key])")
		}
		c.mapRef(m)
		c.unchanged(m)
		m.m.deleted = m.m.deleted || c.probe.side.compiled()
	default: // print, clear, zero
		m, ok := x.args[0].(*mapRef)
		if !ok || len(m.keys) > 0 {
			c.fail(x.args[0].pos(), "%s wants a map: %s(@x)", x.fn.Name, x.fn.Name)
		}
		if c.probe.points[0].host == "BEGIN" {
			c.fail(x.span, "in BEGIN there is nothing to %s yet: put it into END { … }", x.fn.Name)
		}
		m.m = c.info(m)
		if x.fn.Name != "print" {
			c.unchanged(m)
		}
		for _, a := range x.args[1:] {
			if n, ok := a.(*intLit); !ok || n.n < 1 {
				c.fail(a.pos(), "%s wants numbers of 1 or more: %s", x.fn.Name, x.fn.Args)
			}
		}
	}
}

// printed makes a printf of print(x) where x is no map, and reports whether it is one.
func (c *checker) printed(x *call) bool {
	if !x.scalar {
		if x.fn.Name != "print" {
			return false
		}
		if m, ok := x.args[0].(*mapRef); ok && len(m.keys) == 0 {
			return false
		}
		if len(x.args) > 1 {
			c.fail(x.span, "top and div are for maps: print(@x, top, div); of a value it is print(n)")
		}
		values := x.args
		if tu, ok := x.args[0].(*tuple); ok {
			values, x.tuple = flat(tu.elems), true
		}
		x.scalar, x.fn, x.args = true, function("printf"), append([]expr{nil}, values...)
	}
	if len(x.args)-1 > maxPrintArgs {
		c.fail(x.span, "%d values are the most", maxPrintArgs)
	}
	var verbs []string
	for _, v := range x.args[1:] {
		verb := "%s"
		if c.expr(v) == typeInt {
			verb = "%d"
		}
		verbs = append(verbs, verb)
	}
	format := strings.Join(verbs, ", ") + "\n"
	if x.tuple {
		format = "(" + strings.Join(verbs, ", ") + ")\n"
	}
	x.args[0] = &strLit{value{x.span, typeStr}, format, c.number1(format)}
	c.printf(x)
	return true
}

// unchanged refuses to change a map of kernels in an interval: it would change what was
// read, not what kernels go on with.
func (c *checker) unchanged(m *mapRef) {
	if c.probe.points[0].host == "interval" && m.m.side.compiled() {
		c.fail(m.span, "%s is of %s, which go on with it: an interval can print it only", m.name, sideNames[m.m.side])
	}
}

// info returns what is known of a map.
func (c *checker) info(m *mapRef) *mapInfo {
	x := c.maps[m.name]
	if x == nil {
		x = &mapInfo{name: m.name, first: m.span}
		c.maps[m.name] = x
		c.order = append(c.order, x)
	}
	if s := c.probe.side; s != sideEnds {
		if x.side == sideNone {
			x.side, x.sided = s, m.span
		} else if x.side != s {
			c.fail(m.span, "%s is of %s at %s; kernels and the host have maps of their own: give this one another name", m.name, sideNames[x.side], c.where(x.sided))
		}
	}
	return x
}

var sideNames = map[side]string{sideKernel: "kernels", sideCalls: "functions and system calls", sideEvents: "the host"}

// mapRef checks the keys of a value of a map.
func (c *checker) mapRef(m *mapRef) *mapInfo {
	x := c.info(m)
	m.m = x
	var keys []*Type
	for _, k := range m.keys {
		if _, nested := k.(*tuple); nested {
			c.fail(k.pos(), "a tuple can't be a part of a key: write its parts, @[a, b]")
		}
		keys = append(keys, c.expr(k))
	}
	if !x.keyed {
		x.keys, x.keyed, x.keyAt = keys, true, m.span
		if n := 8 * len(keys); n > maxKeyBytes {
			c.fail(m.span, "a key has %d parts; %d are the most", len(keys), maxKeyBytes/8)
		}
		return x
	}
	if len(keys) != len(x.keys) {
		c.fail(m.span, "%s has %s here, but %s at %s", m.name, parts(len(keys)), parts(len(x.keys)), c.where(x.keyAt))
	}
	for i, k := range keys {
		if k != x.keys[i] && !(!c.probe.side.compiled() && alikeTexts(k, x.keys[i])) {
			c.fail(m.keys[i].pos(), "part %d of the key is a %s here, but a %s at %s", i+1, k.Name, x.keys[i].Name, c.where(x.keyAt))
		}
	}
	return x
}

func parts(n int) string {
	if n == 0 {
		return "no key"
	}
	return fmt.Sprintf("a key of %d %s", n, plural(n, "part"))
}

// where is the line and column of a part of the text.
func (c *checker) where(s span) string {
	e := c.errorAt(s, "")
	return fmt.Sprintf("%d:%d", e.Line, e.Col)
}

func (c *checker) assign(s *assign) {
	if v, ok := s.to.(*varRef); ok {
		c.assignVar(s, v)
		return
	}
	m, ok := s.to.(*mapRef)
	if !ok {
		c.fail(s.to.pos(), "only a map or a variable can be assigned to")
	}
	if x, ok := s.x.(*call); ok && x.fn.agg != aggNone {
		c.aggregate(s, m, x)
		return
	}
	x := c.mapRef(m)
	c.unchanged(m)
	t := c.expr(s.x)
	if b, ok := s.x.(*binExpr); ok && s.op == "" && (b.op == "+" || b.op == "-" || b.op == "|") && c.same(m, b.x) {
		// Threads would lose each other's changes of "@x = @x + 1".
		s.op, s.x = b.op, b.y
	}
	if x.agg != aggNone {
		c.fail(s.span, "%s is %s at %s; it can't be assigned to, too", x.name, x.agg, c.where(x.aggAt))
	}
	if x.value != nil && x.value != t {
		c.fail(s.x.pos(), "%s is a %s at %s, but a %s here", x.name, x.value.Name, c.where(x.aggAt), t.Name)
	}
	if x.value == nil {
		x.value, x.aggAt = t, s.span
	}
	switch {
	case s.op == "":
		x.assigned = true
	case t != typeInt:
		c.fail(s.span, "%s= wants numbers", s.op)
	case s.op == "+" || s.op == "-":
		x.added = true
	case s.op == "|":
		x.ored = true
	case c.probe.side.compiled():
		c.fail(s.span, "%s= on a map that all threads share would lose changes; there are +=, -=, |=, ++ and --, and variables", s.op)
	}
}

// same reports whether an expression reads the value that is assigned to.
func (c *checker) same(m *mapRef, x expr) bool {
	y, ok := x.(*mapRef)
	return ok && m.name == y.name && c.text[m.at:m.end] == c.text[y.at:y.end]
}

func (c *checker) assignVar(s *assign, v *varRef) {
	if c.walked[v.name] != nil {
		c.fail(v.span, "%s is what for goes through, and can't be assigned to", v.name)
	}
	if c.counted[v.name] {
		c.fail(v.span, "%s is what for counts, and can't be assigned to", v.name)
	}
	t := c.expr(s.x)
	if x, ok := s.x.(*call); ok && x.fn.result == nil {
		c.fail(x.span, "%s is kept in maps: @x = %s", x.fn.Name, x.fn.Args)
	}
	old := c.vars[v.name]
	switch {
	case s.op != "" && old == nil:
		c.fail(v.span, "%s has no value yet: assign one before", v.name)
	case s.op != "" && (t != typeInt || old != typeInt):
		c.fail(s.span, "%s= wants numbers", s.op)
	case old != nil && old != t:
		c.fail(s.x.pos(), "%s is a %s, and can't become a %s", v.name, old.Name, t.Name)
	}
	v.t = t
	c.vars[v.name] = t
}

// aggregate checks @x = count() and the like.
func (c *checker) aggregate(s *assign, m *mapRef, x *call) {
	if s.op != "" {
		c.fail(s.span, "%s is assigned with =", x.fn.Args)
	}
	if c.probe.points[0].host == "BEGIN" {
		c.fail(s.span, "BEGIN can assign values, but nothing is counted there")
	}
	info := c.mapRef(m)
	c.unchanged(m)
	for _, a := range x.args {
		if t := c.expr(a); t != typeInt {
			c.fail(a.pos(), "%s wants a number, and this is a %s", x.fn.Name, t.Name)
		}
	}
	var l [3]int64
	if x.fn.agg == aggLhist {
		for i := range l {
			n, ok := x.args[i+1].(*intLit)
			if !ok {
				c.fail(x.args[i+1].pos(), "the bounds and the step of lhist are literals")
			}
			l[i] = n.n
		}
		const bound = 1 << 40
		if l[2] < 1 || l[0] >= l[1] || l[0] < -bound || l[1] > bound || (l[1]-l[0])%l[2] != 0 {
			c.fail(x.span, "lhist(n, min, max, step) wants min below max, and steps that fit between")
		}
	}
	switch {
	case info.agg == aggNone && info.value != nil:
		c.fail(s.span, "%s is assigned to at %s; it can't be %s, too", info.name, c.where(info.aggAt), x.fn.Args)
	case info.agg != aggNone && info.agg != x.fn.agg:
		c.fail(s.span, "%s is %s at %s; it can't be %s, too", info.name, info.agg, c.where(info.aggAt), x.fn.Args)
	case info.agg == aggLhist && info.lhist != l:
		c.fail(x.span, "%s has other steps at %s", info.name, c.where(info.aggAt))
	}
	if info.agg == aggNone {
		info.agg, info.aggAt, info.lhist = x.fn.agg, s.span, l
	}
}

// truth checks a condition.
func (c *checker) truth(x expr) {
	if t := c.expr(x); t != typeInt {
		c.fail(x.pos(), "a condition is a number, and this is a %s; compare it", t.Name)
	}
}

func (c *checker) number(x expr) {
	if t := c.expr(x); t != typeInt {
		c.fail(x.pos(), "a number is wanted, and this is a %s", t.Name)
	}
}

// expr finds the type of an expression.
func (c *checker) expr(x expr) *Type {
	switch x := x.(type) {
	case *intLit:
	case *strLit:
		if x.t == typeHeld {
			x.t = typeStr // until it is known again with what it is compared
		}
		if c.probe.side == sideEvents {
			x.t = typeText
		}
	case *nameRef:
		c.name(x)
	case *varRef:
		if x.t = c.vars[x.name]; x.t == nil {
			known := slices.Sorted(maps.Keys(c.vars))
			hint := "; assign it before"
			if len(known) > 0 {
				hint = like(x.name, known)
			}
			c.fail(x.span, "%s has no value yet%s", x.name, hint)
		}
	case *mapRef:
		c.readMap(x)
	case *unary:
		c.number(x.x)
		x.t = typeInt
	case *binExpr:
		c.binary(x)
	case *choice:
		c.truth(x.c)
		x.t = c.expr(x.x)
		if t := c.expr(x.y); t != x.t {
			c.fail(x.y.pos(), "the values of ? are a %s and a %s", x.t.Name, t.Name)
		}
	case *call:
		if x.fn.agg != aggNone {
			c.fail(x.span, "%s is kept in maps, and is no value: @x = %s", x.fn.Name, x.fn.Args)
		}
		if x.fn.result == nil {
			c.fail(x.span, "%s is a statement, and has no value", x.fn.Name)
		}
		c.valued(x)
	case *member:
		c.member(x)
	case *tuple:
		c.fail(x.span, "a tuple can only be a key: @[a, b]")
	default:
		panic(fmt.Sprintf("BUG: expression %T", x))
	}
	return x.typ()
}

// valued checks a call that has a value.
func (c *checker) valued(x *call) {
	x.t = x.fn.result
	if x.fn.Name == "strncmp" {
		c.strncmp(x)
		return
	}
	if x.fn.Name == "str" && c.probe.side == sideCalls {
		x.t = typeHeld
		c.number(x.args[0])
		if len(x.args) > 1 {
			if n, ok := x.args[1].(*intLit); !ok || n.n < 1 || n.n > textBytes {
				c.fail(x.args[1].pos(), "the size of str is a number from 1 to %d", textBytes)
			}
		}
		c.texts = true
		return
	}
	if x.fn.Name == "str" {
		if len(x.args) > 1 {
			c.fail(x.args[1].pos(), "how much of a parameter's text there is was decided when it was recorded: str(args.NAME)")
		}
		c.inStr = true
		defer func() { c.inStr = false }()
		n, ok := x.args[0].(*nameRef)
		if _, named := argName(n, ok); !named {
			c.fail(x.args[0].pos(), "str wants a parameter of a function: str(args.NAME)")
		}
		c.expr(n)
		if c.probe.side != sideEvents {
			c.fail(x.span, "str is for probes on the host: api, apiret, uprobe, syscall and the like")
		}
		return
	}
	if x.fn.Name == "len" {
		m, ok := x.args[0].(*mapRef)
		if !ok || len(m.keys) > 0 || c.probe.side.compiled() {
			c.fail(x.span, "len wants a map, and is known on the host: len(@x)")
		}
		m.m = c.info(m)
		return
	}
	reads := x.fn.bytes > 0
	if c.probe.side != sideKernel && x.fn.helper != helper.Popc && !(reads && c.probe.side == sideCalls) {
		where := "in kernels"
		if reads {
			where += " and at functions and system calls"
		}
		c.fail(x.span, "%s is known %s only", x.fn.Name, where)
	}
	for _, a := range x.args {
		c.number(a)
	}
}

// strncmp checks a comparison of texts.
func (c *checker) strncmp(x *call) {
	n, ok := x.args[2].(*intLit)
	if !ok || n.n < 1 || n.n > textBytes {
		c.fail(x.args[2].pos(), "how many bytes strncmp compares is a number from 1 to %d", textBytes)
	}
	for _, a := range x.args[:2] {
		if t := c.expr(a); t == typeInt || t.site != nil || t.names != nil || t == typeStack {
			c.fail(a.pos(), "strncmp compares texts, and this is a %s", t.Name)
		}
	}
	switch c.probe.side {
	case sideCalls:
		if _, literal := x.args[1].(*strLit); !literal || !holds(x.args[0]) {
			c.fail(x.span, "here strncmp compares str(addr) or comm with a literal: strncmp(str(arg0), \"text\", 4)")
		}
	case sideKernel:
		c.fail(x.span, "kernels have no texts")
	}
}

// holds reports whether an expression is a text that is read where it stands.
func holds(x expr) bool {
	switch x := x.(type) {
	case *nameRef:
		return x.def != nil && x.def.Type == typeHeld
	case *call:
		return x.fn.Name == "str"
	}
	return false
}

// argName returns the name of args.NAME.
func argName(x *nameRef, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	return strings.CutPrefix(x.name, "args.")
}

func (c *checker) readMap(x *mapRef) {
	m := c.mapRef(x)
	if c.probe.side.compiled() && m.read.end == 0 {
		m.read = x.span
	}
	switch {
	case m.agg == aggHist || m.agg == aggLhist || m.agg == aggStats:
		if !c.probe.side.compiled() {
			c.fail(x.span, "%s is %s, and no number: print(%s) shows it", m.name, m.agg, m.name)
		}
		x.t = typeInt
	case m.value == nil: // of an aggregation, or not known yet
		x.t = typeInt
	default:
		x.t = m.value
	}
}

func (c *checker) name(x *nameRef) {
	switch c.probe.side {
	case sideEvents:
		c.hostName(x)
		return
	case sideCalls:
		c.callName(x)
		return
	case sideEnds:
		if host := hostBuiltin(x.name); c.events && (x.name == "nsecs" || x.name == "elapsed") {
			x.host, x.t = host, host.Type
			return
		}
		if _, isArg := argument(x.name); builtin(x.name) != nil || hostBuiltin(x.name) != nil || isArg {
			c.fail(x.span, "%s is known at probes only, not in %s", x.name, c.probe.points[0].host)
		}
	}
	if n, ok := argument(x.name); ok {
		x.arg, x.t = n, typeInt
		return
	}
	x.def = builtin(x.name)
	if x.def == nil {
		stem, axis, dotted := strings.Cut(x.name, ".")
		if why := absent[stem]; why != "" {
			c.fail(x.span, "there is no %s: %s", stem, why)
		}
		if b := builtin(stem); dotted && b != nil {
			c.fail(x.span, "%s has no member %s; tid, ctaid, ntid and nctaid have .x .y .z", stem, axis)
		}
		if function(x.name) != nil {
			c.fail(x.span, "%s is a function: %s", x.name, function(x.name).Args)
		}
		if t := enumeration(x.name); t != nil {
			c.fail(x.span, "there is no %s; a %s is written as a string: \"%s\"", x.name, t.Name, x.name)
		}
		c.fail(x.span, "there is no %s%s", x.name, c.alike(x.name))
	}
	for i := range c.probe.points {
		k := c.probe.points[i].kind
		if k == nil {
			continue
		}
		if x.name == "retval" && !k.fn {
			c.fail(x.span, "a kernel returns nothing: its results are in memory, and mem:KERNEL sees the stores; retval is known at funcret")
		}
		if !x.def.there(k) {
			var have []string
			for j := range Kinds {
				if x.def.there(&Kinds[j]) {
					have = append(have, Kinds[j].Name)
				}
			}
			c.fail(x.span, "%s is not known at %s, but at %s", x.name, k.Name, list(have))
		}
	}
	x.t = x.def.Type
}

// callName checks a built-in of a probe at functions and system calls.
func (c *checker) callName(x *nameRef) {
	var have []string
	for i := range CallBuiltins {
		have = append(have, CallBuiltins[i].Name)
		if CallBuiltins[i].Name == x.name {
			x.def = &CallBuiltins[i]
		}
	}
	for i := range c.probe.points {
		k := c.probe.points[i].kind
		if n, ok := argument(x.name); ok {
			args := callArgs[k.host]
			if n >= len(args) {
				if len(args) == 0 {
					c.fail(x.span, "%s is not known at %s, where the function has returned: keep it at %s, by tid", x.name, k.Name, strings.Replace(k.Name, "ret", "", 1))
				}
				c.fail(x.span, "there are arg0 to arg%d", len(args)-1)
			}
			x.arg = n
			continue
		}
		switch {
		case x.def == nil:
			c.fail(x.span, "there is no %s at %s%s", x.name, k.Name, like(x.name, have))
		case x.name == "retval" && callResult[k.host] == "":
			c.fail(x.span, "retval is not known at %s, but where it returns", k.Name)
		case x.name == "name" && !strings.HasPrefix(k.Name, "sys"):
			c.fail(x.span, "name is not known at %s, but at syscall and sysret; it is func", k.Name)
		case x.name == "func" && k.host != object.HostEntry && k.host != object.HostReturn:
			c.fail(x.span, "func is not known at %s, but at uprobe and uretprobe; probe is the probe as it is written", k.Name)
		case x.name == "func" && glob.Is(c.probe.points[i].named()) || x.name == "name" && c.probe.points[i].named() == "*":
			c.fail(x.span, "%s is known where the probe names one; %s matches several", x.name, c.probe.points[i].section)
		case x.name == "nr" && !strings.HasPrefix(k.Name, "sys"):
			c.fail(x.span, "nr is not known at %s, but at syscall and sysret", k.Name)
		}
	}
	if x.t = typeInt; x.def != nil {
		x.t = x.def.Type
	}
	c.stacks = c.stacks || x.t == typeStack
	c.texts = c.texts || x.t == typeHeld
}

// alikeTexts reports whether two types are both shown as text, so that on the host one can
// stand for the other.
func alikeTexts(a, b *Type) bool { return a != typeInt && b != typeInt }

// hostName checks a built-in of a probe on the host.
func (c *checker) hostName(x *nameRef) {
	have := func(k string) (list []string) {
		for i := range HostBuiltins {
			if HostBuiltins[i].there(k) {
				list = append(list, HostBuiltins[i].Name)
			}
		}
		return list
	}
	const most = 5 // of the arguments in registers
	n, isArg := argument(x.name)
	x.host = hostBuiltin(x.name)
	if x.name == "args" {
		c.fail(x.span, "a parameter is missing: args.NAME")
	}
	if name, ok := argName(x, true); ok {
		x.t = typeInt
		for i := range c.probe.points {
			pt := &c.probe.points[i]
			if k := pt.event.Name; k != "api" && k != "apiret" {
				c.fail(x.span, "args is not known at %s, but at api and apiret", k)
			}
			if c.final {
				c.argUses = append(c.argUses, ArgUse{Glob: pt.glob, Name: name, Text: c.inStr, at: x.span, l: &c.lexer})
			}
		}
		return
	}
	if isArg && n > most {
		c.fail(x.span, "there are arg0 to arg%d, the arguments in registers", most)
	}
	for i := range c.probe.points {
		k := c.probe.points[i].event.Name
		switch {
		case isArg && k != "api" && k != "launch":
			c.fail(x.span, "%s is not known at %s, but at api and launch", x.name, k)
		case isArg:
		case x.host == nil:
			if b := builtin(x.name); b != nil {
				c.fail(x.span, "%s is known in kernels only, not at %s", x.name, k)
			}
			stem, _, _ := strings.Cut(x.name, ".")
			if why := absentOnHost[stem]; why != "" {
				c.fail(x.span, "there is no %s at %s: %s", stem, k, why)
			}
			if name := strings.ToUpper(x.name); name == x.name && strings.Contains(name, "_") {
				c.fail(x.span, "there is no %s; a status is a string: \"%s\"", x.name, x.name)
			}
			c.fail(x.span, "there is no %s%s", x.name, like(x.name, have(k)))
		case !x.host.there(k):
			c.fail(x.span, "%s is not known at %s, but at %s", x.name, k, list(x.host.at))
		}
	}
	if x.arg, x.t = n, typeInt; x.host != nil {
		x.t = x.host.Type
	}
	c.ranges = c.ranges || x.name == "nvtx"
	if x.name == "pystack" || x.name == "ustack" {
		c.native = c.native || x.name == "ustack"
		for i := range c.probe.points {
			at := c.probe.points[i].glob
			switch k := c.probe.points[i].event.Name; k {
			case "apiret":
			case "ioctl":
				c.atIoctls = true
				continue
			case "launch": // of which kernel is not known where the thread stops
				at = "launch:*"
			default:
				at = k + ":" + at
			}
			c.stacksAt = append(c.stacksAt, at)
		}
	}
}

// alike is like for built-ins, of which those that can't be had here are left out.
func (c *checker) alike(name string) string {
	var have []string
	for i := range Builtins {
		b := &Builtins[i]
		if k := c.probe.points[0].kind; k != nil && b.there(k) && b.Doc != "" {
			have = append(have, b.Name)
		}
	}
	if len(have) == 0 {
		return ""
	}
	return like(name, have)
}

// maxArg bounds the kernel's parameters.
const maxArg = 4095

// argument reads arg0, arg1 ….
func argument(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "arg")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && n <= maxArg && strconv.Itoa(n) == digits
}

func (c *checker) binary(x *binExpr) {
	x.t = typeInt
	tx, ty := c.expr(x.x), c.expr(x.y)
	if tx == typeInt && ty == typeInt {
		return
	}
	if x.op != "==" && x.op != "!=" {
		for _, o := range []expr{x.x, x.y} {
			if o.typ() != typeInt {
				c.fail(o.pos(), "%s wants numbers, and this is a %s", x.op, o.typ().Name)
			}
		}
	}
	for _, o := range []expr{x.x, x.y} {
		if o.typ() == typeStack {
			c.fail(x.span, "a stack has its text when a map is shown, and can't be compared")
		}
		if o.typ().site != nil {
			hint := "name it in the probe"
			switch o.typ() {
			case typeKernel:
				hint = "name the kernel in the probe, as in kernel:NAME"
			case typeOpcode:
				hint = "name the opcode in the probe, as in insn:ld.global*"
			}
			c.fail(x.span, "the %s is a name that is known when it is shown; it can't be compared: %s", o.typ().Name, hint)
		}
	}
	if tx == typeHeld && ty == typeStr || tx == typeStr && ty == typeHeld {
		for _, o := range []expr{x.x, x.y} {
			lit, ok := o.(*strLit)
			switch {
			case ok && len(lit.s) >= textBytes:
				c.fail(lit.span, "of texts %d bytes are kept: use strncmp", textBytes-1)
			case ok:
				lit.t = typeHeld
			case o.typ() == typeStr:
				c.fail(o.pos(), "a text is compared with a literal, or with another text")
			}
		}
		return
	}
	if tx == ty || alikeTexts(tx, ty) && tx.names == nil && ty.names == nil {
		return
	}
	x.x, x.y = c.named2(x.x, ty), c.named2(x.y, tx)
	if x.x.typ() != x.y.typ() {
		c.fail(x.span, "a %s is compared with a %s", tx.Name, ty.Name)
	}
}

// named2 makes a string that names a value of an enumeration that value.
func (c *checker) named2(x expr, t *Type) expr {
	s, ok := x.(*strLit)
	if !ok || t.names == nil {
		return x
	}
	for n, name := range t.names {
		if name == s.s {
			return &intLit{value{s.span, t}, n}
		}
	}
	c.fail(s.span, "no %s is called %q%s", t.Name, s.s, like(s.s, slices.Sorted(maps.Values(t.names))))
	return nil
}
