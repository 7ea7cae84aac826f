package cc

import (
	"slices"
	"strconv"
	"strings"
)

// maxExpansions bounds the work on one run of text.
const maxExpansions = 2_000_000

// Expand replaces macros in a run of tokens.
func (p *Preprocessor) Expand(in []Token) []Token {
	var out []Token
	work := slices.Clone(in) // a stack: the last one is next
	slices.Reverse(work)
	for steps := 0; len(work) > 0; {
		t := work[len(work)-1]
		work = work[:len(work)-1]
		m := p.now[t.Text]
		if t.Kind != Ident || m == nil || slices.Contains(t.hide, t.Text) || steps > maxExpansions {
			out = append(out, t)
			continue
		}
		var body []Token
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
		steps++
		hide := append(slices.Clone(t.hide), m.Name)
		for i := len(body) - 1; i >= 0; i-- {
			b := body[i]
			if len(b.hide) == 0 {
				b.hide = hide
			} else {
				b.hide = append(slices.Clone(b.hide), hide...)
			}
			if i == 0 {
				b.space = t.space
			}
			work = append(work, b)
		}
	}
	return out
}

// arguments takes the arguments of a macro's call off the stack.
func arguments(m *Macro, work []Token) (args [][]Token, rest []Token, ok bool) {
	n := len(work)
	if n == 0 || work[n-1].Text != "(" {
		return nil, nil, false
	}
	var cur []Token
	depth := 0
	for n > 0 {
		a := work[n-1]
		n--
		if a.Kind == Punct {
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
func (p *Preprocessor) substitute(m *Macro, args [][]Token) []Token {
	arg := func(name string) ([]Token, bool) {
		i := slices.Index(m.params, name)
		if i < 0 || i >= len(args) {
			return nil, i >= 0
		}
		return args[i], true
	}
	var out []Token
	b := m.Body
	for i := 0; i < len(b); i++ {
		t := b[i]
		if t.Kind == Punct && t.Text == "#" && i+1 < len(b) {
			if a, ok := arg(b[i+1].Text); ok {
				out = append(out, Token{Kind: String, Text: stringize(a), space: t.space})
				i++
				continue
			}
		}
		a, ok := arg(t.Text)
		if t.Kind != Ident || !ok {
			out = append(out, t)
			continue
		}
		pasted := i+1 < len(b) && b[i+1].Text == "##" || i > 0 && b[i-1].Text == "##"
		switch {
		case !pasted:
			a = p.Expand(a)
		case len(a) == 0:
			a = []Token{{Kind: empty}}
		}
		for k, x := range a {
			if k == 0 {
				x.space = t.space
			}
			out = append(out, x)
		}
	}
	return paste(out)
}

func stringize(l []Token) string {
	var b strings.Builder
	for i, t := range l {
		if i > 0 && t.space {
			b.WriteByte(' ')
		}
		b.WriteString(t.Text)
	}
	return strconv.Quote(b.String())
}

// paste joins what stands beside ##.
func paste(in []Token) []Token {
	if !slices.ContainsFunc(in, func(t Token) bool { return t.Text == "##" || t.Kind == empty }) {
		return in
	}
	var out []Token
	for i := 0; i < len(in); i++ {
		if in[i].Kind != Punct || in[i].Text != "##" || len(out) == 0 || i+1 == len(in) {
			out = append(out, in[i])
			continue
		}
		left, right := out[len(out)-1], in[i+1]
		joined := Lex(left.Text + right.Text)
		if len(joined) == 0 {
			joined = []Token{{Kind: empty}}
		}
		joined[0].space = left.space
		for j := range joined {
			joined[j].hide = append(slices.Clone(left.hide), right.hide...)
		}
		out = append(out[:len(out)-1], joined...)
		i++
	}
	return slices.DeleteFunc(out, func(t Token) bool { return t.Kind == empty })
}
