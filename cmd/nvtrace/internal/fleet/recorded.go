// Package fleet finds out of the recordings of a job's ranks which of them is slow or hangs, since when, in what, and
// which differ. It takes recordings in parts, one after the other, and keeps of each what a communicator's members must know of each other.
//
// It refuses to know files and flags. Where recordings do not tell, it says so.
package fleet

import (
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// purposeNames are what a slow rank is slow in.
var purposeNames = [nccl.Purposes]string{"compute", "copy", "driver", "host"}

// Part is what a rank's recording tells beyond the part before. Times are in nanoseconds since the recording's start.
type Part struct {
	File  string // of the recording, by which parts of one belong together
	Host  string
	Boot  string
	PID   int32 // of its process, as its host counts; 0: not known
	Start int64 // of the recording, by the host's clock
	Place ranks.Place
	// Events is how many there were, Last the time of the last one so far.
	Events uint64
	Last   int64
	// Complete says that the recording has its end.
	Complete bool
	GPU      bool // times of GPUs were recorded
	Comms    []nccl.Progress
	Ops      []nccl.Done // that are over; Comm is an index in Comms
	Traits   []traits.Trait
	State    traits.State
}

// Recorded makes parts of a recording. It is an observer.
type Recorded struct {
	File   string
	Header traces.Header
	Place  ranks.Place
	// Complete says that the recording has its end.
	Complete bool

	events  uint64 // since the last part
	last    int64
	process *nccl.Process
	traits  *traits.Gatherer
}

// NewRecorded begins with a recording.
func NewRecorded(file string, h *traces.Header) *Recorded {
	return &Recorded{File: file, Header: *h, Place: ranks.Of(h.Rank), process: nccl.NewProcess(), traits: traits.New(h)}
}

// Observe implements observe.Observer.
func (r *Recorded) Observe(e *observe.Event) {
	r.events++
	r.traits.Observe(e, r.process.Observe(e.Event, e.Frame, e.Tracker))
	if e.Kind != traces.KindEnd {
		r.last = max(r.last, e.Time, e.Time+e.Dur)
	}
}

// Part returns what came since the part before; end says that no more will come.
func (r *Recorded) Part(end bool) *Part {
	p := &Part{
		File: r.File, Host: r.Header.Host, Boot: r.Header.Boot, PID: r.Header.PID, Start: r.Header.Start, Place: r.Place, Events: r.events, Last: r.last, Complete: r.Complete,
		GPU: r.process.GPU, Ops: r.process.Take(end), Comms: r.process.Progress(), Traits: r.traits.Take(), State: r.traits.State(),
	}
	r.events = 0
	return p
}
