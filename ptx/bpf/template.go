package bpf

import (
	"fmt"
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// A Template is a program's code for sites that differ in nothing but the fields
// of the context. It is not changed by its use.
type Template struct {
	v    *Verified
	site Site
	text string
}

// Template writes the program's code once for many sites like s. s.Field is not
// called, and may be nil.
func (v *Verified) Template(s *Site) (*Template, error) {
	t := &Template{v: v, site: *s}
	if t.site.Prefix == "" {
		t.site.Prefix = defaultPrefix
	}
	body := t.site
	body.Field = func(_ *Gen, i int) (ptx.Arg, error) { return ptx.TypedReg(ptx.B64, t.field(i)), nil }
	var err error
	t.text, err = v.Emit(&body)
	return t, err
}

// field is the register of a field of the context.
func (t *Template) field(i int) string { return "%" + t.site.Prefix + "f" + strconv.Itoa(i) }

// Emit writes the program for one site, as [Verified.Emit] does; field is that
// site's [Site].Field.
func (t *Template) Emit(field func(g *Gen, i int) (ptx.Arg, error)) (string, error) {
	v := t.v
	if len(v.fields) == 0 {
		return t.text, nil
	}
	if field == nil {
		return "", fmt.Errorf("program %s: the site has no fields for the context", v.p.Name)
	}
	g := v.gen(&t.site)
	g.prefix += "v"
	var regs []string
	for _, i := range v.fields {
		x, err := field(g, i)
		if err != nil {
			return "", fmt.Errorf("field %s of the context: %w", v.env.Context.Fields[i].Name, err)
		}
		regs = append(regs, t.field(i))
		g.Line("mov.b64 " + t.field(i) + ", " + x.String() + ";")
	}
	setup, err := g.Source()
	if g.err != nil {
		err = g.err
	}
	if err != nil {
		return "", fmt.Errorf("program %s: %w", v.p.Name, err)
	}
	if g.coder.next != v.coder.next { // registers of the setup itself
		setup = g.declarations() + setup
	}
	return "\t.reg .b64 " + strings.Join(regs, ", ") + ";\n" + setup + t.text, nil
}
