package export

import (
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// ownership follows who has allocated memory of GPUs.
type ownership struct {
	memory  *api.Allocations
	shown   map[shownOwner]uint64
	changed bool
}

type shownOwner struct {
	pid  int32
	name string
}

func newOwnership() ownership {
	return ownership{memory: api.NewAllocations(), shown: make(map[shownOwner]uint64)}
}

// observe takes in an event, and calls put for each owner that has more or less from then on.
func (o *ownership) observe(ev *traces.Event, f *api.Frame, l *ledger, put func(*api.OwnerMemory)) {
	o.memory.Add(ev, f)
	o.changed = o.changed || ev.Kind == traces.KindIoctl || f != nil && len(f.Memory()) > 0
	if !o.changed || ev.Kind != traces.KindReturn || f == nil || f.Parent != nil {
		return
	}
	o.changed = false
	o.memory.Context(ev.PID, l.account(ev.PID).have[quantityVidmem])
	for _, x := range o.memory.Now() {
		k := shownOwner{x.PID, x.Owner}
		if live, ok := o.shown[k]; !ok && x.Live > 0 || ok && live != x.Live {
			o.shown[k] = x.Live
			put(&x)
		}
	}
}
