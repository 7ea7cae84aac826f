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
	body.mark = true
	body.Field = func(_ *Gen, i int) (ptx.Arg, error) { return ptx.TypedReg(ptx.B64, t.field(i)), nil }
	body.Slot = func(_ *Gen, k int) (ptx.Arg, error) { return ptx.TypedReg(ptx.B64, t.slot(k)), nil }
	var err error
	t.text, err = v.Emit(&body)
	return t, err
}

// field is the register of a field of the context.
func (t *Template) field(i int) string { return "%" + t.site.Prefix + "f" + strconv.Itoa(i) }

// slot is that of a slot.
func (t *Template) slot(k int) string { return "%" + t.site.Prefix + "k" + strconv.Itoa(k) }

// Emit writes the program for one site, as [Verified.Emit] does; field is that
// site's [Site].Field, and slot its Slot.
func (t *Template) Emit(field, slot func(g *Gen, i int) (ptx.Arg, error)) (string, error) {
	v := t.v
	if len(v.fields) == 0 && !v.slotted {
		return strings.Replace(t.text, setupMark, "", 1), nil
	}
	if field == nil && len(v.fields) > 0 {
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
	for k := range v.report.Slots {
		if !v.slotted {
			break
		}
		x, err := slot(g, k)
		if err != nil {
			return "", fmt.Errorf("slot %d: %w", k, err)
		}
		regs = append(regs, t.slot(k))
		g.Line("mov.b64 " + t.slot(k) + ", " + x.String() + ";")
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
	before, after, _ := strings.Cut(t.text, setupMark)
	return "\t.reg .b64 " + strings.Join(regs, ", ") + ";\n" + before + setup + after, nil
}
