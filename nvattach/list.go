package nvattach

import (
	"fmt"
	"io"
	"strings"

	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
	"nvtrace/traces/escape"
)

// List writes what the analysis found out about each program of the plan.
func (p *Plan) List(w io.Writer) error {
	var b strings.Builder
	for _, q := range p.Programs {
		r := &q.Report
		fmt.Fprintf(&b, "%s (%s): %d instructions, up to %d registers", escape.String(q.Name), escape.String(q.Point.String()), r.Insns, r.Registers)
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
		for _, e := range r.Ends {
			fmt.Fprintf(&b, "  tested at run time: %v at %s\n", e.Kind, e.Where())
		}
		for _, w := range q.Warnings() {
			fmt.Fprintf(&b, "  warning: %s\n", w)
		}
		for i := range r.Maps {
			if u := &r.Maps[i]; u.Used {
				b.WriteString(escape.Line("  %s %s: %s", q.Unit.Defs[i].Type, q.Unit.Defs[i].Name, usage(u, q.Unit.Defs[i])))
			}
		}
	}
	for _, q := range p.Host {
		b.WriteString(escape.Line("%s (%s): on the host, %d bytes of machine code", q.Name, q.Point, len(q.Machine.Code)))
		for i := range q.Machine.Ends {
			e := &q.Machine.Ends[i]
			b.WriteString(escape.Line("  tested at run time: %v at %s", e.Kind, e.Where()))
		}
	}
	for _, o := range p.Objects {
		for _, d := range o.Maps {
			switch {
			case d.ReadOnly:
			case p.joins(d):
				b.WriteString(escape.Line("%s: kernels have a part in the GPU's memory, which is joined with the host's", d.Name))
			case p.shares(d):
				b.WriteString(escape.Line("%s: kernels use it in the host's memory", d.Name))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func usage(u *bpf.MapUse, d *object.MapDef) string {
	switch {
	case u.AddOnly() && d.PerBlock():
		return "only added to"
	case u.AddOnly():
		return "only added to: a copy for each multiprocessor"
	}
	var words []string
	for _, x := range []struct {
		on   bool
		word string
	}{{u.Lookups, "looked up"}, {u.Helpers, "changed by helpers"}, {u.Loads, "read"}, {u.Stores, "written"}, {u.Atomics, "changed atomically"}} {
		if x.on {
			words = append(words, x.word)
		}
	}
	return strings.Join(words, ", ")
}
