package nvattach

import (
	"fmt"
	"io"
	"strings"
)

// List writes what is in an object for a reader: programs with their points, maps,
// variables that can be set, and what is not run.
func (o *Object) List(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", o.Name)
	for _, p := range o.Programs {
		fmt.Fprintf(&b, "  program  %-24s %s, %d instructions\n", p.Name, p.Point, len(p.Insns))
	}
	for _, i := range o.Ignored {
		fmt.Fprintf(&b, "  ignored  %-24s %s: %s\n", i.Name, i.Section, i.Reason)
	}
	for _, m := range o.Maps {
		switch {
		case m.Data:
			continue
		case m.Ring():
			fmt.Fprintf(&b, "  map      %-24s %s\n", m.Name, m.Type)
		default:
			fmt.Fprintf(&b, "  map      %-24s %s of %d: key %d bytes, value %d bytes\n", m.Name, m.Type, m.MaxEntries, m.KeySize, m.ValueSize)
		}
		if !m.Supported() {
			fmt.Fprintf(&b, "           %-24s can't be had on a GPU\n", "")
		}
	}
	for i := range o.Vars {
		v := &o.Vars[i]
		value := v.Initial
		if end := uint64(v.Offset) + uint64(v.Size); end <= uint64(len(v.Map.Initial)) {
			value = v.Map.Initial[v.Offset:end] // what --set has changed, too
		}
		fmt.Fprintf(&b, "  variable %-24s %s: %s\n", v.Name, v.Map.Name, AppendValue(nil, v.Type, value))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// List writes what the analysis found out about each program of the plan.
func (p *Plan) List(w io.Writer) error {
	var b strings.Builder
	for _, q := range p.Programs {
		r := &q.Report
		fmt.Fprintf(&b, "%s (%s): %d instructions, up to %d registers", q.Name, q.Point, r.Insns, r.Registers)
		if r.LocalBytes > 0 {
			fmt.Fprintf(&b, ", %d bytes of local memory", r.LocalBytes)
		}
		if r.Checks > 0 {
			fmt.Fprintf(&b, ", %d run-time checks", r.Checks)
		}
		if n := r.ProvenLoops + r.FueledLoops; n > 0 {
			fmt.Fprintf(&b, ", %d loops (%d take fuel)", n, r.FueledLoops)
		}
		if q.Increments > 0 {
			fmt.Fprintf(&b, ", %d increments made atomic", q.Increments)
		}
		b.WriteByte('\n')
		for i := range r.Maps {
			if u := &r.Maps[i]; u.Used {
				fmt.Fprintf(&b, "  %s %s: %s\n", q.unit.defs[i].Type, q.unit.defs[i].Name, usage(u.Lookups, u.Helpers, u.Loads, u.Stores, u.Atomics, u.AddOnly()))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func usage(lookups, helpers, loads, stores, atomics, addOnly bool) string {
	if addOnly {
		return "only added to: a copy for each multiprocessor"
	}
	var words []string
	for _, x := range []struct {
		on   bool
		word string
	}{{lookups, "looked up"}, {helpers, "changed by helpers"}, {loads, "read"}, {stores, "written"}, {atomics, "changed atomically"}} {
		if x.on {
			words = append(words, x.word)
		}
	}
	return strings.Join(words, ", ")
}
