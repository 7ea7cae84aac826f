package hostrun

import (
	"fmt"
	"slices"

	"nvtrace/nvattach/mapmem"
)

// A Join has the host's maps take in what kernels of one GPU context have added to its parts
// of them.
type Join struct {
	maps *mapmem.Maps
	to   *Runner
	last map[*mapmem.Map][]mapmem.Row // what was read of the parts, and is in the host's maps
}

// NewJoin returns what joins maps of a GPU to those of the host; nil if there is none to be joined.
func (r *Runner) NewJoin(m *mapmem.Maps) *Join {
	if !slices.ContainsFunc(m.All, (*mapmem.Map).Joined) {
		return nil
	}
	return &Join{maps: m, to: r, last: make(map[*mapmem.Map][]mapmem.Row)}
}

// Add reads the GPU's parts, and adds to the host's what came there since the last time. Programs
// and kernels may run.
func (j *Join) Add(mem mapmem.Memory) error {
	for _, x := range j.maps.All {
		to := j.to.maps.Of(x.Def)
		if !x.Joined() || to == nil {
			continue
		}
		t, err := j.maps.Read(mem, x)
		if err != nil {
			return err
		}
		was := j.last[x]
		j.last[x] = t.Rows
		for i := range t.Rows {
			var before []byte
			if was != nil {
				before = was[i].Value
			}
			if err := j.addRow(to, uint64(i), before, t.Rows[i].Value, x.Joins); err != nil {
				return fmt.Errorf("map %s: %w", x.Name, err)
			}
		}
	}
	return nil
}

// addRow has entry i of the host's map take in that a value has changed; before is nil where that was 0.
func (j *Join) addRow(to *mapmem.Map, i uint64, before, now []byte, fields []mapmem.AddField) error {
	for _, f := range fields {
		n, was := f.Of(now), uint64(0)
		if before != nil {
			was = f.Of(before)
		}
		if n == was {
			continue
		}
		at := to.Base + i*to.Stride + uint64(f.Offset)
		if _, err := j.to.mem.Change(at, int(f.Size), func(old uint64) uint64 { return f.By.Of(old, was, n) }); err != nil {
			return err
		}
	}
	return nil
}
