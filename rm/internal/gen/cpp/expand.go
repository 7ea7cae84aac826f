package cpp

import (
	"slices"
	"strconv"
	"strings"

	"nvtrace/internal/gen/ctoken"
)

// empty is what an empty macro argument leaves beside ##.
const empty ctoken.Kind = 0

// maxWork bounds the tokens that expanding a unit's macros may handle; the
// largest of the driver needs a twentieth of it.
const maxWork = 100_000_000

// Expand replaces macros in a run of tokens.
func (p *Preprocessor) Expand(in []ctoken.Token) []ctoken.Token {
	var out []ctoken.Token
	work := slices.Clone(in) // a stack: the last one is next
	slices.Reverse(work)
	for len(work) > 0 && !p.spent(1) {
		t := work[len(work)-1]
		work = work[:len(work)-1]
		m := p.now[t.Text]
		if t.Kind != ctoken.Ident || m == nil || slices.Contains(t.Hide, t.Text) {
			out = append(out, t)
			continue
		}
		var body []ctoken.Token
		if m.Func {
			args, rest, ok := arguments(m, work)
			if !ok {
				out = append(out, t)
				continue
			}
			work = rest
			body = p.substitute(m, args)
		} else {
			body = paste(slices.Clone(m.Body))
		}
		hide := union(t.Hide, []string{m.Name})
		for i, b := range slices.Backward(body) {
			b.Hide = union(hide, b.Hide)
			if i == 0 {
				b.Space = t.Space
			}
			work = append(work, b)
		}
	}
	return out
}

// union joins two sets of macro names; it leaves both as they are.
func union(a, b []string) []string {
	out := a
	for _, n := range b {
		if !slices.Contains(out, n) {
			out = append(slices.Clip(out), n)
		}
	}
	return out
}

// spent counts tokens that are handled, and reports whether they have been too
// many: a few lines of macros can ask for any number.
func (p *Preprocessor) spent(n int) bool {
	if p.work < p.limit && p.work+n >= p.limit {
		p.fail("macros expand to more than %d tokens", p.limit)
	}
	p.work = min(p.work+n, p.limit)
	return p.work == p.limit
}

// arguments takes the arguments of a macro's call off the stack.
func arguments(m *Macro, work []ctoken.Token) (args [][]ctoken.Token, rest []ctoken.Token, ok bool) {
	n := len(work)
	if n == 0 || work[n-1].Text != "(" {
		return nil, nil, false
	}
	var cur []ctoken.Token
	depth := 0
	for n > 0 {
		a := work[n-1]
		n--
		if a.Kind == ctoken.Punct {
			switch a.Text {
			case "(":
				if depth++; depth == 1 {
					continue
				}
			case ")":
				if depth--; depth == 0 {
					return append(args, cur), work[:n], true
				}
			case ",":
				if depth == 1 && !(m.vararg && len(args) >= len(m.params)-1) {
					args, cur = append(args, cur), nil
					continue
				}
			}
		}
		cur = append(cur, a)
	}
	return nil, nil, false
}

// substitute puts arguments into a macro's body.
func (p *Preprocessor) substitute(m *Macro, args [][]ctoken.Token) []ctoken.Token {
	arg := func(name string) ([]ctoken.Token, bool) {
		i := slices.Index(m.params, name)
		if i < 0 || i >= len(args) {
			return nil, i >= 0
		}
		return args[i], true
	}
	var out []ctoken.Token
	b := m.Body
	for i := 0; i < len(b); i++ {
		t := b[i]
		if t.Kind == ctoken.Punct && t.Text == "#" && i+1 < len(b) {
			if a, ok := arg(b[i+1].Text); ok {
				out = append(out, ctoken.Token{Kind: ctoken.String, Text: stringize(a), Space: t.Space})
				i++
				continue
			}
		}
		a, ok := arg(t.Text)
		if t.Kind != ctoken.Ident || !ok {
			out = append(out, t)
			continue
		}
		if p.spent(len(a)) {
			return nil
		}
		pasted := i+1 < len(b) && b[i+1].Text == "##" || i > 0 && b[i-1].Text == "##"
		switch {
		case !pasted:
			if a = p.Expand(a); p.spent(len(a)) {
				return nil
			}
		case len(a) == 0:
			a = []ctoken.Token{{Kind: empty}}
		}
		for k, x := range a {
			if k == 0 {
				x.Space = t.Space
			}
			out = append(out, x)
		}
	}
	return paste(out)
}

func stringize(l []ctoken.Token) string {
	var b strings.Builder
	for i, t := range l {
		if i > 0 && t.Space {
			b.WriteByte(' ')
		}
		b.WriteString(t.Text)
	}
	return strconv.Quote(b.String())
}

// paste joins what stands beside ##.
func paste(in []ctoken.Token) []ctoken.Token {
	if !slices.ContainsFunc(in, func(t ctoken.Token) bool { return t.Text == "##" || t.Kind == empty }) {
		return in
	}
	var out []ctoken.Token
	for i := 0; i < len(in); i++ {
		if in[i].Kind != ctoken.Punct || in[i].Text != "##" || len(out) == 0 || i+1 == len(in) {
			out = append(out, in[i])
			continue
		}
		left, right := out[len(out)-1], in[i+1]
		joined := ctoken.Lex(left.Text + right.Text)
		if len(joined) == 0 {
			joined = []ctoken.Token{{Kind: empty}}
		}
		joined[0].Space = left.Space
		for j := range joined {
			joined[j].Hide = union(left.Hide, right.Hide)
		}
		out = append(out[:len(out)-1], joined...)
		i++
	}
	return slices.DeleteFunc(out, func(t ctoken.Token) bool { return t.Kind == empty })
}
