package view

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// gathered is what the first lines of a summary say and its tables do not: how
// much of the time was spent in the driver and in CUDA's libraries, and which code
// came to the GPU.
type gathered struct {
	driver, library busy
	purposes        [api.Purposes]purpose
	images          map[string]struct{}
	kernels         int
	found           found
	gpus            *api.GPUTimes
	times           *GPUTimes // what gpus came to, once there is nothing to come
	memory          *api.Allocations
	lines           *api.LineTimes
	hang            *api.Hang
	channels        map[int32]*channelsAt   // of processes whose GPU channels were looked at, as of the latest look
	from            int64                   // library calls from before were dropped; 0: none were
	sampled         map[int]*traces.Sampled // what looks from outside came to, by process
}

// channelsAt is what a process's channels were at, but for those that were idle.
type channelsAt struct {
	PID      int32           `json:"pid"`
	Time     int64           `json:"time"`
	Said     []string        `json:"said"`
	Channels json.RawMessage `json:"channels,omitempty"` // as nvtrace ps --json has them
}

// GPUTimes is what GPUs did.
type GPUTimes struct {
	Contexts []api.GPUTime  `json:"contexts"`
	Works    []api.WorkTime `json:"works"`
}

// gpuTimes returns what GPUs did, nil where that was not recorded. Nothing may be added afterwards.
func (o *gathered) gpuTimes() *GPUTimes {
	if o.times == nil && o.gpus != nil {
		o.times = new(GPUTimes)
		o.times.Contexts, o.times.Works = o.gpus.Report()
	}
	if o.times == nil || len(o.times.Works) == 0 {
		return nil
	}
	return o.times
}

// hanging is what was not over when nothing went on.
type hanging struct {
	Threads []api.WaitingThread `json:"threads,omitempty"`
	Streams []api.HungStream    `json:"streams,omitempty"`
	GPUs    []channelsAt        `json:"gpus,omitempty"`
}

// hanging returns that, nil where there was nothing.
func (o *gathered) hanging() *hanging {
	if o.hang == nil {
		return nil
	}
	h := new(hanging)
	for _, pid := range slices.Sorted(maps.Keys(o.channels)) {
		h.GPUs = append(h.GPUs, *o.channels[pid])
	}
	if h.Threads, h.Streams = o.hang.Report(); len(h.Threads)+len(h.Streams)+len(h.GPUs) == 0 {
		return nil
	}
	return h
}

// addChannels takes in what a process's channels were at.
func (o *gathered) addChannels(ev *traces.Event) {
	if ev.Text == "" {
		delete(o.channels, ev.PID) // all were idle
		return
	}
	if o.channels == nil {
		o.channels = make(map[int32]*channelsAt)
	}
	if o.channels[ev.PID] == nil && len(o.channels) >= maxChannelsAt {
		return
	}
	at := &channelsAt{PID: ev.PID, Time: ev.Time, Said: strings.Split(strings.TrimSpace(ev.Text), "\n")}
	if json.Valid([]byte(ev.Data)) { // else it was cut
		at.Channels = json.RawMessage(ev.Data)
	}
	o.channels[ev.PID] = at
}

// maxChannelsAt bounds what a hostile recording has us keep.
const maxChannelsAt = 64

// maxImageNames bounds what a hostile recording may have us remember.
const maxImageNames = 1 << 16

// Observe implements observe.Observer.
func (o *gathered) Observe(e *observe.Event) {
	ev, t, f := e.Event, e.Tracker, e.Frame
	if o.gpus == nil {
		o.gpus = api.NewGPUTimes()
	}
	o.gpus.Add(ev, t, f)
	if o.memory == nil {
		o.memory = api.NewAllocations()
		o.memory.Demangle = fatbin.DemangleShort
	}
	o.memory.Add(ev, f)
	if o.lines == nil {
		o.lines = api.NewLineTimes(fatbin.DemangleShort)
	}
	o.lines.Add(ev, t, f)
	if o.hang == nil {
		o.hang = api.NewHang()
	}
	o.hang.Add(ev, t, f)
	timed := ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0
	switch ev.Kind {
	case traces.KindOpen, traces.KindClose, traces.KindMmap, traces.KindMunmap, traces.KindMremap, traces.KindIoctl:
		if timed {
			o.driver.add(ev.Time, ev.Time+ev.Dur)
		}
	case traces.KindReturn:
		if timed && f != nil && f.Parent == nil {
			o.library.add(max(f.Start, o.from), f.End)
		}
		if timed && f != nil {
			if p := f.Purpose(); p != api.NoPurpose {
				o.purposes[p].add(f, o.from)
			}
		}
	case traces.KindImage:
		if ev.Image != nil && len(o.images) < maxImageNames {
			if o.images == nil {
				o.images = make(map[string]struct{})
			}
			o.images[ev.Image.SHA256] = struct{}{}
		}
	case traces.KindKernel:
		o.kernels++
	case traces.KindChannels:
		o.addChannels(ev)
	case traces.KindSampled:
		if r := ev.Sampled(); r != nil && (o.sampled[int(ev.PID)] != nil || len(o.sampled) < maxMetered) {
			if o.sampled == nil {
				o.sampled = make(map[int]*traces.Sampled)
			}
			o.sampled[int(ev.PID)] = r
		}
	case traces.KindGPU, traces.KindMissed, traces.KindPushbuffer, traces.KindStack:
	default:
		o.found.Observe(e)
	}
}

// purpose is the time of calls that were made for something.
type purpose struct {
	busy
	calls uint64
	by    map[string]*int64 // time of each function
	name  string            // of the latest call
	last  *int64            // by[name]
}

// add takes in a call that has returned. What was before from does not count.
func (p *purpose) add(f *api.Frame, from int64) {
	p.busy.add(max(f.Start, from), f.End)
	p.calls++
	if p.last == nil || p.name != f.Name {
		if p.by == nil {
			p.by = make(map[string]*int64)
		}
		p.name, p.last = f.Name, p.by[f.Name]
		if p.last == nil {
			p.last = new(int64)
			p.by[f.Name] = p.last // the names are those of functions that are known
		}
	}
	*p.last += max(f.End-max(f.Start, from), 0)
}

// most returns the function that took most of the time.
func (p *purpose) most() (name string) {
	for _, n := range slices.Sorted(maps.Keys(p.by)) {
		if name == "" || *p.by[n] > *p.by[name] {
			name = n
		}
	}
	return name
}

// spent is a line of where the time went.
type spent struct {
	Purpose string `json:"purpose"`
	Time    int64  `json:"time"` // in which at least one thread was at it
	Calls   uint64 `json:"calls"`
	Most    string `json:"most"` // the function that took most of it
}

// spent returns what calls of the driver and the runtime were made for, what took longest first.
func (o *gathered) spent() (list []spent) {
	for i := range o.purposes {
		if p := &o.purposes[i]; p.calls > 0 {
			list = append(list, spent{api.Purpose(i).String(), p.Time(), p.calls, p.most()})
		}
	}
	slices.SortStableFunc(list, func(a, b spent) int { return cmp.Compare(b.Time, a.Time) })
	return list
}

// memoryReport returns what lines allocated, nil where that is not known.
func (o *gathered) memoryReport() *api.MemoryReport {
	if o.memory == nil {
		return nil
	}
	return o.memory.Report()
}

// owners returns who allocated memory of GPUs, nil where that is not known.
func (o *gathered) owners() []api.OwnerMemory {
	if o.memory == nil {
		return nil
	}
	return o.memory.Owners()
}

// lineTimes returns where threads waited, nil where that is not known.
func (o *gathered) lineTimes() *api.LineReport {
	if o.lines == nil {
		return nil
	}
	return o.lines.Report()
}
