package script

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"nvtrace/nvattach/helper"
)

// maxSteps bounds BEGIN and END.
const maxSteps = 1_000_000

// An interp runs what runs on the host.
type interp struct {
	s     *store
	vars  map[string]Value
	out   strings.Builder
	steps int
	// name returns a built-in; nil: there are none.
	name func(x *nameRef) Value
	text func(name string) (string, bool) // of parameters; may be nil
	// read returns the number in n bytes of memory, where programs are that read it.
	read func(addr uint64, n int32) int64
	at   map[string]walk // where for is, by the name of its variable
	end  bool            // it is in END
}

// stepsOfEntry are those that each entry of a map may take beside maxSteps.
const stepsOfEntry = 1000

// A walk is what for has come to.
type walk struct {
	t *table
	e *entry
}

// errSteps ends a run that takes too long.
type errSteps struct{}

// flow is how a statement ended.
type flow uint8

const (
	onward flow = iota
	broken
	continued
	returned
)

// run runs a probe, and returns why it was ended early, "" if it was not.
func (in *interp) run(b *probe) (why string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case errSteps:
			why = fmt.Sprintf("%s: ended after %d steps", b.points[0].host, maxSteps)
		default:
			panic(r)
		}
	}()
	in.vars, in.end = make(map[string]Value), b.points[0].host == "END"
	if b.filter == nil || in.truth(b.filter) {
		in.block(b.body)
	}
	return ""
}

func (in *interp) block(b *block) flow {
	for _, s := range b.list {
		if f := in.stmt(s); f != onward {
			return f
		}
	}
	return onward
}

func (in *interp) stmt(s stmt) flow {
	if in.steps++; in.steps > maxSteps {
		panic(errSteps{})
	}
	switch s := s.(type) {
	case *block:
		return in.block(s)
	case *callStmt:
		in.call(s.call)
	case *assign:
		in.assign(s)
	case *ifStmt:
		if in.truth(s.c) {
			return in.block(s.then)
		} else if s.els != nil {
			return in.block(s.els)
		}
	case *whileStmt:
		for in.truth(s.c) {
			if in.steps++; in.steps > maxSteps {
				panic(errSteps{})
			}
			if f := in.block(s.body); f == broken {
				break
			} else if f == returned {
				return f
			}
		}
	case *forStmt:
		return in.forStmt(s)
	case *rangeStmt:
		for n, end := in.expr(s.from).N, in.expr(s.to).N; n < end; n++ {
			if in.steps++; in.steps > maxSteps {
				panic(errSteps{})
			}
			in.vars[s.v.name] = number(n)
			if f := in.block(s.body); f == broken {
				break
			} else if f == returned {
				return f
			}
		}
	case *unrollStmt:
		for range s.n {
			if f := in.block(s.body); f != onward {
				return f
			}
		}
	case *jump:
		return map[string]flow{"break": broken, "continue": continued, "return": returned}[s.word]
	}
	return onward
}

// forStmt goes through a map, in the order in which it is printed. What is put into it
// meanwhile is not gone through.
func (in *interp) forStmt(s *forStmt) flow {
	t := in.s.tables[s.over.m.name]
	if in.at == nil {
		in.at = make(map[string]walk)
	}
	defer delete(in.at, s.name)
	outermost := len(in.at) == 0
	for _, e := range t.sorted() {
		if in.steps++; outermost { // the map's size bounds the walk; one within another takes its steps from it
			in.steps = max(in.steps-stepsOfEntry, 0)
		}
		if in.steps > maxSteps {
			panic(errSteps{})
		}
		in.at[s.name] = walk{t, e}
		if f := in.block(s.body); f == broken {
			break
		} else if f == returned {
			return f
		}
	}
	return onward
}

// member is a part of the entry that for has come to.
func (in *interp) member(x *member) Value {
	w := in.at[x.name]
	switch {
	case x.path[0] == 1 && w.t.m.agg != aggNone:
		return number(w.t.shown(w.e))
	case x.path[0] == 1:
		return w.e.text
	case len(x.path) == 1:
		return w.e.key[0]
	}
	return w.e.key[x.path[1]]
}

func (in *interp) assign(s *assign) {
	if v, ok := s.to.(*varRef); ok {
		x := in.expr(s.x)
		if s.op != "" {
			x = number(operate(s.op, in.vars[v.name].N, x.N))
		}
		in.vars[v.name] = x
		return
	}
	to := s.to.(*mapRef)
	t := in.s.tables[to.m.name]
	if c, ok := s.x.(*call); ok {
		n := int64(0)
		if len(c.args) > 0 {
			n = in.expr(c.args[0]).N
		}
		if e := in.insert(t, in.key(to)); e != nil {
			t.add(e, n)
		}
		return
	}
	x := in.expr(s.x)
	e := in.insert(t, in.key(to))
	if e == nil {
		return
	}
	if s.op != "" {
		x = number(operate(s.op, e.n, x.N))
	}
	e.n, e.text = x.N, x
}

// insert returns the entry of a key, nil if there is no room for one more.
func (in *interp) insert(t *table, key []Value) *entry {
	if int64(len(t.entries)) >= in.s.p.keys(t.m) && t.entries[keyText(key)] == nil {
		t.refused++
		return nil
	}
	return t.entry(key)
}

func (in *interp) key(x *mapRef) []Value {
	var key []Value
	for _, k := range x.keys {
		key = append(key, in.expr(k))
	}
	return key
}

func (in *interp) call(c *call) {
	if c.fn.Name == "printf" {
		var values []Value
		for _, a := range c.args[1:] {
			values = append(values, in.expr(a))
		}
		in.out.WriteString(c.fmt.sprintf(values))
		return
	}
	if c.fn.Name == "time" {
		in.out.WriteString(strftime(c.fmt.text, time.Now()))
		return
	}
	x := c.args[0].(*mapRef)
	t := in.s.tables[x.m.name]
	switch c.fn.Name {
	case "delete":
		delete(t.entries, keyText(in.key(x)))
	case "print":
		o := printOptions{div: 1}
		for i, a := range c.args[1:] {
			if n := a.(*intLit).n; i == 0 {
				o.top = int(min(n, 1<<30))
			} else {
				o.div = n
			}
		}
		t.print(&in.out, o)
		in.out.WriteString(in.s.full(t, in.end))
	case "clear":
		clear(t.entries)
	case "zero":
		for _, e := range t.entries {
			e.n, e.count, e.text = 0, 0, number(0)
			clear(e.buckets)
		}
	}
}

func (in *interp) truth(x expr) bool { return in.expr(x).N != 0 }

// expr calculates an expression. Numbers have 64 bits and a sign; a division by 0 gives 0,
// the remainder of one the dividend, as in eBPF.
func (in *interp) expr(x expr) Value {
	if in.steps++; in.steps > maxSteps {
		panic(errSteps{})
	}
	switch x := x.(type) {
	case *intLit:
		return in.s.value(x.n, x.t)
	case *strLit:
		return Value{N: x.n, Text: x.s, IsText: true}
	case *nameRef:
		return in.name(x)
	case *varRef:
		return in.vars[x.name]
	case *mapRef:
		t := in.s.tables[x.m.name]
		e := t.entries[keyText(in.key(x))]
		switch {
		case e == nil:
			return in.s.value(0, x.t)
		case x.m.agg != aggNone:
			return number(t.shown(e))
		}
		return e.text
	case *unary:
		v := in.expr(x.x).N
		switch x.op {
		case "-":
			return number(-v)
		case "~":
			return number(^v)
		case "!":
			return truthOf(v == 0)
		}
		return number(casts[x.op].of(v))
	case *binExpr:
		return in.binary(x)
	case *choice:
		if in.truth(x.c) {
			return in.expr(x.x)
		}
		return in.expr(x.y)
	case *member:
		return in.member(x)
	case *call:
		if x.fn.helper == helper.Popc {
			return number(int64(bits.OnesCount64(uint64(in.expr(x.args[0]).N))))
		}
		if x.fn.bytes > 0 {
			return number(in.read(uint64(in.expr(x.args[0]).N), x.fn.bytes))
		}
		if x.fn.Name == "strncmp" {
			n := int(in.expr(x.args[2]).N)
			a, b := in.expr(x.args[0]).String(), in.expr(x.args[1]).String()
			return truthOf(a[:min(n, len(a))] != b[:min(n, len(b))])
		}
		if m, ok := x.args[0].(*mapRef); ok {
			return number(int64(len(in.s.tables[m.m.name].entries)))
		}
		name, _ := argName(x.args[0].(*nameRef), true)
		s := ""
		if in.text != nil {
			s, _ = in.text(name)
		}
		return text(s)
	}
	panic(fmt.Sprintf("BUG: expression %T", x))
}

func (in *interp) binary(x *binExpr) Value {
	switch x.op {
	case "&&":
		return truthOf(in.truth(x.x) && in.truth(x.y))
	case "||":
		return truthOf(in.truth(x.x) || in.truth(x.y))
	}
	a, b := in.expr(x.x), in.expr(x.y)
	if a.IsText || b.IsText {
		return truthOf((a.String() == b.String()) == (x.op == "=="))
	}
	return number(operate(x.op, a.N, b.N))
}

// operate does what an operator of two numbers does.
func operate(op string, a, b int64) int64 {
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "/":
		if b == 0 {
			return 0
		}
		return a / b
	case "%":
		if b == 0 {
			return a
		}
		return a % b
	case "&":
		return a & b
	case "|":
		return a | b
	case "^":
		return a ^ b
	case "<<":
		return a << (uint64(b) & 63)
	case ">>":
		return a >> (uint64(b) & 63)
	case "==":
		return truthOf(a == b).N
	case "!=":
		return truthOf(a != b).N
	case "<":
		return truthOf(a < b).N
	case "<=":
		return truthOf(a <= b).N
	case ">":
		return truthOf(a > b).N
	case ">=":
		return truthOf(a >= b).N
	}
	panic("BUG: operator " + op)
}
