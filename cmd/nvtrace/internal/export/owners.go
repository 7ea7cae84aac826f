package export

import (
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// ownership follows who has allocated memory of GPUs.
type ownership struct {
	memory  *api.Allocations
	shown   map[shownOwner]uint64
	changed map[int32]bool // processes whose memory may have, since it was looked at
}

type shownOwner struct {
	pid  int32
	name string
}

func newOwnership() ownership {
	return ownership{memory: api.NewAllocations(), shown: make(map[shownOwner]uint64), changed: make(map[int32]bool)}
}

// observe takes in an event, and calls put for each owner that has more or less from then on.
func (o *ownership) observe(ev *traces.Event, f *api.Frame, t *api.Tracker, l *ledger, put func(*api.OwnerMemory)) {
	o.memory.Add(ev, f)
	if ev.Kind == traces.KindIoctl || f != nil && len(f.Memory()) > 0 {
		o.changed[ev.PID] = true
	}
	if ev.Kind != traces.KindReturn || f == nil || f.Parent != nil || !o.changed[ev.PID] || t.Allocating(ev.PID) {
		return
	}
	delete(o.changed, ev.PID)
	o.memory.Context(ev.PID, l.account(ev.PID).have[quantityVidmem])
	for _, x := range o.memory.Now() {
		k := shownOwner{x.PID, x.Owner}
		if live, ok := o.shown[k]; !ok && x.Live > 0 || ok && live != x.Live {
			o.shown[k] = x.Live
			put(&x)
		}
	}
}
