package script

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ioctl/nearest"
	"nvtrace/nvattach/object"
)

// A parser reads a program. Its first error ends the work, by a panic with an *Error.
type parser struct {
	lexer
	tok   token
	depth int
	// filter is set while a filter is read, which ends with a slash in front of a brace.
	filter  bool
	strings []string // literals by number, from 1 on
	params  Params
	asked   map[string]bool // parameters that the program has
	argUses []ArgUse
	// stacksAt are the functions at whose returns stacks are asked for, some more than once.
	stacksAt []string
	stacks   bool // ustack is asked for at functions and system calls
	native   bool // and at calls of CUDA's libraries
	atIoctls bool // stacks are asked for at ioctls
	ranges   bool // NVTX ranges are asked for
	texts    bool // texts of memory are asked for at functions and system calls
	config   config
	loops    int // around the statement
	copies   int // of it, by unroll
}

// config is what a config block sets.
type config struct{ maxKeys int64 }

func (p *parser) advance() { p.tok = p.next() }

func (p *parser) deeper(s span) {
	if p.depth++; p.depth > maxDepth {
		p.fail(s, "nested too deeply: %d levels are the most", maxDepth)
	}
}

// want takes a token that must come now; open is what it closes or continues.
func (p *parser) want(text, why string) token {
	t := p.tok
	if !t.is(text) {
		p.fail(p.here(), "%s is missing %s, not %s", "'"+text+"'", why, t.describe())
	}
	p.advance()
	return t
}

// here is where something is missing.
func (p *parser) here() span { return p.tok.span }

func (p *parser) accept(text string) bool {
	if !p.tok.is(text) {
		return false
	}
	p.advance()
	return true
}

// program reads all probes.
func (p *parser) program() []*probe {
	var list []*probe
	p.space()
	if strings.HasPrefix(p.text[p.at:], "config") {
		p.configBlock()
	}
	for p.space(); p.at < len(p.text); p.space() {
		list = append(list, p.probe())
	}
	if len(list) == 0 {
		p.fail(span{len(p.text), len(p.text)}, "there is no probe; write for example kernel:* { @[kernel] = count(); }")
	}
	return list
}

// configBlock reads config = { max_map_keys = 1000; }.
func (p *parser) configBlock() {
	p.advance()
	p.advance()
	p.want("=", "behind config")
	p.want("{", "before the settings")
	for !p.tok.is("}") {
		name := p.tok
		if name.kind != tokName || name.text != "max_map_keys" {
			p.fail(name.span, "%s is no setting; there is max_map_keys", name.describe())
		}
		p.advance()
		p.want("=", "behind the setting")
		if p.tok.kind != tokInt || p.tok.n < 1 || p.tok.n > maxMapKeys {
			p.fail(p.tok.span, "max_map_keys is a number from 1 to %d", maxMapKeys)
		}
		p.config.maxKeys = p.tok.n
		p.advance()
		if !p.accept(";") && !p.accept(",") {
			break
		}
	}
	if !p.tok.is("}") {
		p.fail(p.tok.span, "'}' is missing behind the settings, not %s", p.tok.describe())
	}
}

func (p *parser) probe() *probe {
	b := &probe{span: span{at: p.at}}
	for {
		pt := p.point()
		b.points = append(b.points, pt)
		b.side = b.points[0].side()
		if b.side != pt.side() && pt.host == "" && b.side != sideEnds {
			p.fail(pt.span, "kernels and the host can't share statements: write two probes")
		}
		p.space()
		if p.at == len(p.text) || p.text[p.at] != ',' {
			break
		}
		p.at++
		p.space()
	}
	if i := slices.IndexFunc(b.points, func(x point) bool { return x.host != "" }); i >= 0 && len(b.points) > 1 {
		p.fail(b.points[i].span, "%s runs on the host, and can't share its statements with other probes", b.points[i].host)
	}
	p.advance()
	if p.tok.is("/") {
		open := p.tok.span
		p.filter = true
		p.advance()
		b.filter = p.expr()
		p.compared()
		p.filter = false
		if !p.tok.is("/") {
			p.fail(open.to(p.tok.span), "this filter has no end: write /%s/ before the '{'", "condition")
		}
		p.advance()
	}
	if p.tok.is("if") {
		p.fail(p.tok.span, "a filter stands between slashes: /condition/; if is a statement, behind the '{'")
	}
	if !p.tok.is("{") {
		p.fail(p.tok.span, "'{' is missing before the statements of the probe, not %s", p.tok.describe())
	}
	b.body = p.blockBody()
	b.end = b.body.end
	return b
}

// point reads where a probe is. What follows its colon is no token, but raw text.
func (p *parser) point() point {
	p.space()
	from := p.at
	if p.at == len(p.text) || !isLetter(p.text[p.at]) {
		t := p.next()
		p.fail(t.span, "a probe is expected, not %s; write for example kernel:* { @[kernel] = count(); }", t.describe())
	}
	name := p.word(0)
	pt := point{span: span{from, p.at}}
	if name == "BEGIN" || name == "END" {
		pt.host = name
		return pt
	}
	if k := slices.IndexFunc(CallKinds, func(k Kind) bool { return k.Name == name }); k >= 0 {
		return p.callPoint(pt, &CallKinds[k])
	}
	if name == "interval" {
		return p.interval(pt)
	}
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	if k := slices.IndexFunc(HostKinds, func(k HostKind) bool { return k.Name == name }); k >= 0 {
		pt.event = &HostKinds[k]
		pt.glob = p.target(name, pt.event.Of, false)
		pt.end = p.at
		return pt
	}
	if i < 0 {
		if why := hostProbe(name); why != "" {
			p.fail(pt.span, "%s: %s", name, why)
		}
		kinds := append(names(Kinds, func(k *Kind) string { return k.Name }), names(HostKinds, func(k *HostKind) string { return k.Name })...)
		kinds = append(kinds, names(CallKinds, func(k *Kind) string { return k.Name })...)
		kinds = append(kinds, "interval", "BEGIN", "END")
		p.fail(pt.span, "there is no probe %s%s", name, like(name, kinds))
	}
	pt.kind = &Kinds[i]
	first := p.target(name, pt.kind.Of, pt.kind.opcode)
	fn, kernel, opcode := "", first, ""
	if pt.kind.fn {
		fn = "func:"
	}
	if pt.kind.opcode {
		kernel, opcode = "*", first
		if p.at < len(p.text) && p.text[p.at] == ':' {
			p.at++
			kernel, opcode = first, p.pattern(name, pt.kind.Of, false)
		}
	}
	pt.end = p.at
	if at := strings.LastIndexByte(kernel, ':'); at > 0 && pt.kind.Point == object.KindMem {
		word := kernel[at+1:]
		if t := enumeration(word); t != nil {
			p.fail(pt.span, "what is accessed, and how, a filter says: mem:%s /%s == \"%s\"/", kernel[:at], t.Name, word)
		}
	}
	pt.section = "cuda." + pt.kind.Point.String() + "/" + fn + kernel
	if pt.kind.opcode {
		pt.section += ":" + opcode
	}
	got, err := object.ParsePoint(pt.section, "")
	if err != nil || got.Kernel != kernel || got.Opcode != opcode || strings.Contains(strings.ReplaceAll(opcode, "::", ""), ":") {
		p.fail(pt.span, "a name can't have a colon of its own there: write a * instead of it")
	}
	return pt
}

// minInterval is the shortest time between two runs of an interval.
const minInterval = 1e6

// interval reads interval:1s, or as bpftrace has it interval:s:1.
func (p *parser) interval(pt point) point {
	const form = "an interval is interval:1s, interval:100ms or interval:s:1"
	if p.at == len(p.text) || p.text[p.at] != ':' {
		p.fail(pt.span, form)
	}
	p.at++
	t := p.glob(" \t\r\n,{/")
	pt.host, pt.end = "interval", p.at
	unit, n, ok := strings.Cut(t.text, ":")
	if !ok {
		if t.text == "" || t.text[0] < '0' || t.text[0] > '9' {
			p.fail(t.span, form)
		}
		pt.every = p.number(t.span, t.text)
	} else {
		every, err := strconv.ParseInt(n, 10, 64)
		if units[unit] == 0 || err != nil || every < 1 {
			p.fail(t.span, form)
		}
		if pt.every, err = times(every, units[unit]); err != nil {
			p.fail(t.span, form)
		}
	}
	if pt.every < minInterval {
		p.fail(t.span, "%s is too short: a millisecond is the least", t.text)
	}
	return pt
}

// callPoint reads the function or system call of a probe. The path of a file has slashes:
// a filter stands behind a space.
func (p *parser) callPoint(pt point, kind *Kind) point {
	pt.kind = kind
	if p.at == len(p.text) || p.text[p.at] != ':' {
		p.fail(pt.span, "%s needs a name: %s:%s", kind.Name, kind.Name, kind.Of)
	}
	p.at++
	t := p.glob(" \t\r\n,{")
	pt.end = p.at
	all := t.text == "*"
	switch kind.host {
	case object.HostEntry:
		pt.section = "uprobe/" + t.text
	case object.HostReturn:
		pt.section = "uretprobe/" + t.text
	case object.HostUSDT:
		pt.section = "usdt/" + anyParts(t.text)
	case object.HostSysEnter, object.HostSysExit:
		way := map[object.HostKind]string{object.HostSysEnter: "sys_enter", object.HostSysExit: "sys_exit"}[kind.host]
		pt.section = "tracepoint/syscalls/" + way + "_" + t.text
		if all {
			pt.section = "tracepoint/raw_syscalls/" + way
		} else if strings.ContainsAny(t.text, "*?[]") {
			p.fail(t.span, "a system call is named in full, or * for all; several stand behind commas: %s:read,%s:write", kind.Name, kind.Name)
		}
	}
	if t.text == "" {
		p.fail(t.span, "a name is missing: %s:%s", kind.Name, kind.Of)
	}
	if at, err := object.ParseHostPoint(pt.section); err != nil && kind.host == object.HostUSDT {
		p.fail(t.span, "%q: write %s:%s", t.text, kind.Name, kind.Of)
	} else if err != nil {
		p.fail(pt.span, "%v", err)
	} else if at.Kind == object.HostNone {
		p.fail(pt.span, "%s is no place on the host: %s:%s", t.text, kind.Name, kind.Of)
	}
	return pt
}

// anyParts has * for what is left out of FILE:PROVIDER:NAME, as bpftrace has it: ":NAME",
// "::NAME" and "FILE::NAME".
func anyParts(name string) string {
	parts := strings.Split(name, ":")
	if len(parts) == 2 && parts[0] == "" {
		parts = []string{"", "", parts[1]}
	}
	for i := range parts[:len(parts)-1] {
		if parts[i] == "" && len(parts) == 3 {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ":")
}

// target reads the colon behind the name of a kind of probes, and the pattern behind it.
func (p *parser) target(name, of string, cut bool) string {
	if p.at == len(p.text) || p.text[p.at] != ':' {
		p.fail(span{p.at - len(name), p.at}, "%s needs a name: %s:%s, or %s:* for all", name, name, of, name)
	}
	p.at++
	return p.pattern(name, of, cut)
}

// pattern reads a pattern; with cut it ends at a colon, but for "::", which is part of
// names and opcodes.
func (p *parser) pattern(name, of string, cut bool) string {
	stops := " \t\r\n,{/"
	if cut {
		stops += ":"
	}
	t := p.glob(stops)
	for cut && strings.HasPrefix(p.text[p.at:], "::") {
		p.at += 2
		more := p.glob(stops)
		t.text, t.end = t.text+"::"+more.text, more.end
	}
	if t.text == "" {
		p.fail(t.span, "a name is missing: %s:%s, or %s:* for all", name, of, name)
	}
	return t.text
}

// blockBody reads statements between braces, the first of which is the current token. The
// last is not followed by a look at the next token: what comes behind it may be a point.
func (p *parser) blockBody() *block {
	b := &block{span: p.tok.span}
	p.deeper(b.span)
	open := p.tok.span
	p.advance()
	for !p.tok.is("}") {
		if p.tok.kind == tokEOF {
			p.fail(open, "this '{' has no '}'")
		}
		if p.accept(";") {
			continue
		}
		s, braced := p.stmt()
		b.list = append(b.list, s)
		switch {
		case p.tok.is("}"), braced, p.accept(";"):
		case p.tok.kind == tokEOF:
			p.fail(open, "this '{' has no '}'")
		default:
			p.fail(p.tok.span, "';' is missing before %s", p.tok.describe())
		}
	}
	b.end = p.tok.end
	p.depth--
	return b
}

// body reads a block within another.
func (p *parser) body(of string) *block {
	if !p.tok.is("{") {
		p.fail(p.tok.span, "'{' is missing behind %s, not %s", of, p.tok.describe())
	}
	b := p.blockBody()
	p.advance()
	return b
}

// stmt reads a statement; braced says that it ends with a brace and needs no semicolon.
func (p *parser) stmt() (s stmt, braced bool) {
	at := p.tok.span
	switch {
	case p.tok.kind == tokName && p.tok.text == "if":
		return p.ifStmt(), true
	case p.tok.is("while"):
		p.advance()
		c := p.condition("while")
		p.loops++
		b := p.body("the condition")
		p.loops--
		return &whileStmt{at.to(b.span), c, b}, true
	case p.tok.is("unroll"):
		return p.unroll(), true
	case p.tok.is("for"):
		return p.forStmt(), true
	case p.tok.is("break") || p.tok.is("continue") || p.tok.is("return"):
		word := p.tok.text
		if word != "return" && p.loops == 0 {
			p.fail(at, "%s is in no while", word)
		}
		p.advance()
		return &jump{at, word}, false
	case p.tok.is("else"):
		p.fail(at, "this else follows no if")
	case p.tok.is("++") || p.tok.is("--"):
		op := p.tok.text
		p.advance()
		x := p.primary()
		return p.step(at.to(x.pos()), x, op), false
	}
	if p.tok.kind == tokName {
		name := p.tok
		x := p.primary()
		if c, ok := x.(*call); ok {
			if c.fn.agg != aggNone {
				p.fail(c.span, "the result of %s is not kept: assign it to a map, @ = %s", c.fn.Name, c.fn.Args)
			}
			if c.fn.result != nil {
				p.fail(c.span, "the result of %s is not kept: assign it, $x = %s", c.fn.Name, c.fn.Args)
			}
			return &callStmt{c.span, c}, false
		}
		if slices.Contains(declarators, name.text) && (p.tok.kind == tokName || p.tok.kind == tokVar) {
			p.fail(name.span, "a variable is not declared: it begins with $, and is there when it is assigned to: $x = 1")
		}
		if p.tok.is("=") {
			p.fail(name.span.to(x.pos()), "%s can't be assigned to; $%s is a variable, @%s a map", p.text[name.at:x.pos().end], name.text, name.text)
		}
		p.fail(x.pos(), "this does nothing; a statement is an assignment, a call, if or while")
	}
	if p.tok.kind != tokMap && p.tok.kind != tokVar {
		p.fail(at, "a statement is expected, not %s", p.tok.describe())
	}
	to := p.primary()
	switch op := p.tok.text; {
	case p.tok.is("++") || p.tok.is("--"):
		end := p.tok.span
		p.advance()
		return p.step(at.to(end), to, op), false
	case p.tok.kind == tokPunct && (op == "=" || len(op) > 1 && strings.HasSuffix(op, "=") && !slices.Contains([]string{"==", "!=", "<=", ">="}, op)):
		p.advance()
		x := p.expr()
		return &assign{at.to(x.pos()), to, strings.TrimSuffix(op, "="), x}, false
	case p.tok.is("==") || p.tok.is("["):
		p.fail(p.tok.span, "this is no statement; to assign, write %s = …", p.text[at.at:to.pos().end])
	}
	p.fail(at.to(to.pos()), "this does nothing; write %s = …, or %s++", p.text[at.at:to.pos().end], p.text[at.at:to.pos().end])
	return nil, false
}

// declarators are words by which other languages declare variables.
var declarators = []string{
	"let", "var", "auto", "const", "unsigned", "char", "short", "int", "long", "float", "double",
	"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "u8", "u16", "u32", "u64",
}

// step is x++ or x--.
func (p *parser) step(s span, x expr, op string) stmt {
	switch x.(type) {
	case *varRef, *mapRef:
		return &assign{s, x, op[:1], &intLit{value{s, typeInt}, 1}}
	}
	p.fail(x.pos(), "%s wants a map or a variable", op)
	return nil
}

// compared refuses an "=" behind a condition.
func (p *parser) compared() {
	if p.tok.is("=") {
		p.fail(p.tok.span, "a value is compared with ==; = assigns, and is a statement")
	}
}

func (p *parser) condition(of string) expr {
	p.want("(", "behind "+of)
	c := p.expr()
	p.compared()
	p.want(")", "behind the condition of "+of)
	return c
}

func (p *parser) ifStmt() stmt {
	s := &ifStmt{span: p.tok.span}
	p.deeper(s.span)
	p.advance()
	s.c = p.condition("if")
	s.then = p.body("the condition")
	s.end = s.then.end
	if p.tok.is("else") {
		p.advance()
		if p.tok.is("if") {
			more := p.ifStmt()
			s.els = &block{more.pos(), []stmt{more}}
		} else {
			s.els = p.body("else")
		}
		s.end = s.els.end
	}
	p.depth--
	return s
}

// forStmt reads for ($kv : @map) { … } and for ($i : 0..10) { … }.
func (p *parser) forStmt() stmt {
	at := p.tok.span
	p.advance()
	const form = "for goes through a map, for ($kv : @x) { … }, or through numbers, for ($i : 0..10) { … }; a loop with a condition is while"
	if !p.accept("(") || p.tok.kind != tokVar {
		p.fail(p.tok.span, form)
	}
	v := p.tok
	p.advance()
	if !p.accept(":") {
		p.fail(p.tok.span, form)
	}
	body := func(of string) *block {
		p.want(")", "behind "+of)
		p.loops++
		defer func() { p.loops-- }()
		return p.body(of)
	}
	first := p.expr()
	if p.accept("..") {
		s := &rangeStmt{v: &varRef{value{v.span, typeInt}, v.text}, from: first, to: p.expr()}
		s.body = body("the numbers")
		s.span = at.to(s.body.span)
		return s
	}
	over, ok := first.(*mapRef)
	if !ok {
		p.fail(first.pos(), form)
	}
	s := &forStmt{name: v.text, over: over}
	s.body = body("the map")
	s.span = at.to(s.body.span)
	return s
}

// maxUnroll bounds unroll, as bpftrace does.
const maxUnroll = 100

// maxCopies bounds what several in one another repeat.
const maxCopies = 1000

func (p *parser) unroll() stmt {
	at := p.tok.span
	p.advance()
	p.want("(", "behind unroll")
	n := p.tok
	if n.kind != tokInt || n.n < 1 || n.n > maxUnroll {
		p.fail(n.span, "unroll wants a number from 1 to %d; a loop of a computed length is while", maxUnroll)
	}
	p.advance()
	p.want(")", "behind the number of unroll")
	loops, copies := p.loops, p.copies
	p.loops, p.copies = 0, max(copies, 1)*int(n.n)
	if p.copies > maxCopies {
		p.fail(at, "these unroll in one another would repeat their statements %d times; %d are the most", p.copies, maxCopies)
	}
	b := p.body("unroll")
	p.loops, p.copies = loops, copies
	return &unrollStmt{at.to(b.span), int(n.n), b}
}

// levels are the operators of two operands, those that bind least first.
var levels = [][]string{
	{"||"},
	{"&&"},
	{"|"},
	{"^"},
	{"&"},
	{"==", "!="},
	{"<", "<=", ">", ">="},
	{"<<", ">>"},
	{"+", "-"},
	{"*", "/", "%"},
}

func (p *parser) expr() expr {
	p.deeper(p.tok.span)
	defer func() { p.depth-- }()
	c := p.operators(0)
	if !p.tok.is("?") {
		return c
	}
	p.advance()
	x := p.expr()
	p.want(":", "between the two values of ?")
	y := p.expr()
	return &choice{value{c.pos().to(y.pos()), nil}, c, x, y}
}

// ends reports whether the current token is the slash behind a filter.
func (p *parser) ends() bool {
	if !p.filter || !p.tok.is("/") {
		return false
	}
	l := p.lexer
	l.space()
	return l.at == len(l.text) || l.text[l.at] == '{'
}

func (p *parser) operators(level int) expr {
	if level == len(levels) {
		return p.unary()
	}
	x := p.operators(level + 1)
	for p.tok.kind == tokPunct && slices.Contains(levels[level], p.tok.text) && !p.ends() {
		op := p.tok.text
		p.advance()
		y := p.operators(level + 1)
		x = &binExpr{value{x.pos().to(y.pos()), nil}, op, x, y}
	}
	return x
}

func (p *parser) unary() expr {
	t := p.tok
	if t.kind != tokPunct || !slices.Contains([]string{"!", "-", "~", "+"}, t.text) {
		return p.primary()
	}
	p.deeper(t.span)
	defer func() { p.depth-- }()
	p.advance()
	x := p.unary()
	if t.text == "+" {
		return x
	}
	if n, ok := x.(*intLit); ok && t.text == "-" {
		return &intLit{value{t.span.to(n.span), typeInt}, -n.n}
	}
	return &unary{value{t.span.to(x.pos()), nil}, t.text, x}
}

// list reads expressions up to a closing token.
func (p *parser) list(open span, closing string) ([]expr, span) {
	var l []expr
	for !p.tok.is(closing) {
		l = append(l, p.expr())
		if !p.accept(",") {
			break
		}
		if p.tok.is(closing) {
			p.fail(p.tok.span, "a value is missing behind the comma")
		}
	}
	end := p.tok.span
	if !p.tok.is(closing) {
		if p.tok.kind == tokEOF {
			p.fail(open, "this '%s' has no '%s'", p.text[open.at:open.end], closing)
		}
		p.fail(end, "',' or '%s' is missing before %s", closing, p.tok.describe())
	}
	p.advance()
	return l, end
}

func (p *parser) primary() expr {
	t := p.tok
	switch t.kind {
	case tokInt:
		p.advance()
		return &intLit{value{t.span, typeInt}, t.n}
	case tokString:
		p.advance()
		return &strLit{value{t.span, typeStr}, t.text, p.number1(t.text)}
	case tokVar:
		p.advance()
		if x := p.parameter(t); x != nil {
			return x
		}
		if p.tok.is(".") {
			return p.member(t)
		}
		return &varRef{value{t.span, nil}, t.text}
	case tokMap:
		p.advance()
		m := &mapRef{value: value{t.span, nil}, name: t.text}
		if p.tok.is("[") && p.tok.at == t.end {
			open := p.tok.span
			p.advance()
			var end span
			m.keys, end = p.list(open, "]")
			m.span = t.span.to(end)
			if len(m.keys) == 0 {
				p.fail(open.to(end), "a key is missing between the brackets")
			}
			m.keys = flat(m.keys)
		}
		return m
	case tokName:
		return p.named()
	}
	if t.is("(") {
		p.advance()
		filter := p.filter
		p.filter = false
		l, end := p.list(t.span, ")")
		p.filter = filter
		switch len(l) {
		case 0:
			p.fail(t.span.to(end), "a value is missing between the parentheses")
		case 1:
			if n, ok := l[0].(*nameRef); ok && slices.Contains(declarators, n.name) {
				if casts[n.name].bits == 0 {
					p.fail(t.span.to(end), "there is no cast to %s; there are int8, int16, int32, int64 and uint8, uint16, uint32, uint64", n.name)
				}
				p.deeper(t.span)
				defer func() { p.depth-- }()
				x := p.unary()
				return &unary{value{t.span.to(x.pos()), nil}, n.name, x}
			}
			return l[0]
		}
		return &tuple{value{t.span.to(end), nil}, l}
	}
	if t.kind == tokEOF {
		p.fail(t.span, "a value is missing at the end of the program")
	}
	if t.is("*") {
		p.fail(t.span, "there are no pointers: read8(addr) to read64(addr) read numbers of memory")
	}
	p.fail(t.span, "a value is expected, not %s", t.describe())
	return nil
}

// flat returns the parts of a key: @[(a, b), c] is @[a, b, c].
func flat(keys []expr) (list []expr) {
	for _, k := range keys {
		if tu, ok := k.(*tuple); ok {
			list = append(list, flat(tu.elems)...)
		} else {
			list = append(list, k)
		}
	}
	return list
}

// A cast keeps the low bits of a number, the highest of which may be its sign.
type cast struct {
	bits   int
	signed bool
}

// casts are by the names of their types.
var casts = map[string]cast{
	"int8": {8, true}, "int16": {16, true}, "int32": {32, true}, "int64": {64, true},
	"uint8": {8, false}, "uint16": {16, false}, "uint32": {32, false}, "uint64": {64, false},
}

// of casts a number.
func (c cast) of(n int64) int64 {
	if n <<= 64 - c.bits; c.signed {
		return n >> (64 - c.bits)
	}
	return int64(uint64(n) >> (64 - c.bits))
}

// member reads the numbers behind $kv.
func (p *parser) member(v token) expr {
	x := &member{value: value{v.span, nil}, name: v.text}
	for p.accept(".") {
		n := p.tok
		if n.kind != tokInt || n.n < 0 || n.n > maxKeyBytes {
			p.fail(n.span, "a number is missing behind the dot: %s.0 is the key, %s.1 the value", v.text, v.text)
		}
		x.path, x.end = append(x.path, int(n.n)), n.end
		p.advance()
	}
	return x
}

// number1 returns the number of a string.
func (p *parser) number1(s string) int64 {
	i := slices.Index(p.strings, s)
	if i < 0 {
		i = len(p.strings)
		p.strings = append(p.strings, s)
	}
	return int64(i + 1)
}

// named reads a built-in or a call.
func (p *parser) named() expr {
	t := p.tok
	p.advance()
	if p.tok.is("(") {
		return p.call(t)
	}
	n := &nameRef{value: value{t.span, nil}, name: t.text}
	if p.tok.is(".") {
		p.advance()
		if p.tok.kind != tokName {
			p.fail(p.tok.span, "a member is missing behind the dot: tid.x")
		}
		n.name, n.end = t.text+"."+p.tok.text, p.tok.end
		p.advance()
	}
	return n
}

func (p *parser) call(name token) expr {
	fn := function(name.text)
	if fn == nil {
		if why := noFunction[name.text]; why != "" {
			p.fail(name.span, "there is no %s: %s", name.text, why)
		}
		if builtin(name.text) != nil {
			p.fail(name.span, "%s is no function; leave the parentheses out", name.text)
		}
		p.fail(name.span, "there is no function %s%s", name.text, like(name.text, names(Functions, func(f *Function) string { return f.Name })))
	}
	open := p.tok.span
	p.advance()
	filter := p.filter
	p.filter = false
	args, end := p.list(open, ")")
	p.filter = filter
	c := &call{value: value{name.span.to(end), nil}, name: name.span, fn: fn, args: args}
	if len(args) < fn.least || len(args) > fn.most {
		p.fail(c.span, "%s has %d %s; it is %s", fn.Name, len(args), plural(len(args), "argument"), fn.Args)
	}
	return c
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// parameter returns the value of a parameter, nil if a variable is none.
func (p *parser) parameter(t token) expr {
	name := t.text[1:]
	given, ok := p.params.Named[name]
	if n, err := strconv.Atoi(name); err == nil {
		if given, ok = "0", n >= 1; ok && n <= len(p.params.Positional) {
			given = p.params.Positional[n-1]
		}
		if !ok {
			p.fail(t.span, "parameters are $1, $2 …")
		}
	}
	if !ok {
		return nil
	}
	if p.asked == nil {
		p.asked = make(map[string]bool)
	}
	p.asked[name] = true
	l := lexer{name: p.name, text: given}
	if n, err := l.parameterNumber(); err == nil {
		return &intLit{value{t.span, typeInt}, n}
	}
	return &strLit{value{t.span, typeStr}, given, p.number1(given)}
}

// surplus refuses parameters that the program does not have.
func (p *parser) surplus() {
	most := 0
	var names []string
	for name := range p.asked {
		if n, err := strconv.Atoi(name); err == nil {
			most = max(most, n)
		} else {
			names = append(names, name)
		}
	}
	if n := len(p.params.Positional); n > most {
		has := "no parameters"
		if most > 0 {
			has = fmt.Sprintf("%d %s", most, plural(most, "parameter"))
		}
		p.fail(span{}, "the program has %s, and %d %s given", has, n, map[bool]string{true: "was", false: "were"}[n == 1])
	}
	for name := range p.params.Named {
		if !p.asked[name] {
			hint := ""
			if near := nearest.Names(name, slices.Values(names), 1); len(near) > 0 {
				hint = "; did you mean $" + near[0] + "?"
			}
			p.fail(span{}, "the program has no parameter $%s%s", name, hint)
		}
	}
}
