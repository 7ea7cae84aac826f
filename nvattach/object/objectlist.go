package object

import (
	"io"
	"maps"
	"slices"
	"strings"

	"nvtrace/nvattach/values"
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
		if m.Type != MapProgArray && (!m.Supported() || m.HostOnly()) {
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
