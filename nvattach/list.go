package nvattach

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"nvtrace/nvattach/values"
	"nvtrace/ptx/bpf"
	"nvtrace/traces/escape"
)

// List writes what is in an object for a reader: programs with their points, maps,
// variables that can be set, and what is not run.
func (o *Object) List(w io.Writer) error {
	var b strings.Builder
	b.WriteString(escape.Line("%s", o.Name))
	for _, p := range o.Programs {
		b.WriteString(escape.Line("  program  %-24s %s, %d instructions", p.Name, p.Point, len(p.Insns)))
	}
	for _, p := range o.Host {
		b.WriteString(escape.Line("  program  %-24s %s, %d instructions, on the host", p.Name, p.Point, len(p.Insns)))
	}
	for _, i := range o.Ignored {
		if o.TailCalled(i.Name) {
			b.WriteString(escape.Line("  program  %-24s runs by tail calls", i.Name))
			continue
		}
		b.WriteString(escape.Line("  ignored  %-24s %s: %s", i.Name, i.Section, i.Reason))
	}
	for _, m := range o.Maps {
		switch {
		case m.Data:
			continue
		case m.Ring():
			b.WriteString(escape.Line("  map      %-24s %s", m.Name, m.Type))
		default:
			b.WriteString(escape.Line("  map      %-24s %s of %d: key %d bytes, value %d bytes", m.Name, m.Type, m.MaxEntries, m.KeySize, m.ValueSize))
		}
		if m.PerBlock() {
			b.WriteString(escape.Line("           %-24s each block's own, in shared memory: not shown", ""))
		}
		for _, i := range slices.Sorted(maps.Keys(m.Programs)) {
			b.WriteString(escape.Line("           %-24s [%d] is program %s", "", i, m.Programs[i]))
		}
		for _, i := range slices.Sorted(maps.Keys(m.Maps)) {
			b.WriteString(escape.Line("           %-24s [%d] is map %s", "", i, m.Maps[i]))
		}
		if m.Type != mapProgArray && (!m.Supported() || m.HostOnly()) {
			b.WriteString(escape.Line("           %-24s can't be had on a GPU", ""))
		}
	}
	for i := range o.Vars {
		v := &o.Vars[i]
		value := v.Initial
		if end := uint64(v.Offset) + uint64(v.Size); end <= uint64(len(v.Map.Initial)) {
			value = v.Map.Initial[v.Offset:end] // what --set has changed, too
		}
		b.WriteString(escape.Line("  variable %-24s %s: %s", v.Name, v.Map.Name, values.Append(nil, v.Type, value)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

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
				b.WriteString(escape.Line("  %s %s: %s", q.unit.defs[i].Type, q.unit.defs[i].Name, usage(u, q.unit.defs[i])))
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

func usage(u *bpf.MapUse, d *MapDef) string {
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
