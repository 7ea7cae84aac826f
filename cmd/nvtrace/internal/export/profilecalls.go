package export

import (
	"cmp"
	"math"
	"strconv"

	"github.com/google/pprof/profile"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// library counts the library calls that an event ends, each with the time that
// it took itself. What happened during them has samples of its own.
func (p *Profile) library(ev *traces.Event, wanted bool) {
	f := p.in
	if ev.Kind == traces.KindCall && f != nil && wanted {
		f.Mark[api.ProfileMark] |= markWanted
	}
	for _, e := range p.tracker.Ended() {
		p.endCall(e, ev, false)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		p.endCall(f, ev, true)
	}
}

func (p *Profile) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	if f.Mark[api.ProfileMark]&markWanted == 0 {
		if returned {
			p.memory(f, nil)
		}
		return
	}
	k := sampleKey{task: taskKey{f.PID, f.TID}, api: p.stack(f), program: p.programOf(f.PID)}
	if q := f.Purpose(); q == api.Launching || q == api.Copying {
		if len(p.working) >= maxFlows {
			clear(p.working)
		}
		p.working[callKey{k.task, f.Start}] = k.api
	}
	status := "OK"
	switch {
	case !returned || f.End < 0:
		k.state, status = stateUntimed, "not observed"
	case f.Function.Failed(ev.Ret):
		k.state, k.errno, status = stateFailed, int32(ev.Ret), f.Function.ResultName(ev.Ret)
	}
	p.first = min(p.first, f.Start)
	p.last = max(p.last, f.Start, f.End)
	s := p.samples[k]
	switch {
	case s != nil:
	case len(p.samples) >= maxSamples:
		s = p.other()
	default:
		s = p.newSample(append(p.appendStack(nil, k.api), k.program))
		p.label(s, k.task, "status", status)
		p.samples[k] = s
	}
	s.Value[valueCalls]++
	s.Value[valueTime] += f.Self()
	if returned {
		p.memory(f, s)
	}
}

// work counts what a GPU did for a call.
func (p *Profile) work(ev *traces.Event) {
	w := ev.Work()
	k := callKey{taskKey{ev.PID, ev.TID}, w.Call}
	stack := p.working[k]
	delete(p.working, k)
	if w.Dur < 0 || ev.Flags&traces.FlagUnfinished != 0 {
		return
	}
	name, kernel := p.tracker.Describe(ev)
	if kernel {
		if name = cmp.Or(name, "(unknown kernel)"); p.Demangle != nil {
			name = p.Demangle(name)
		}
	}
	name = clip(name, maxName)
	key := sampleKey{task: k.task, program: p.programOf(ev.PID), api: stack, leaf: p.frame(name, "GPU"), stream: w.Stream, context: w.Context}
	s := p.samples[key]
	switch {
	case s != nil:
	case len(p.samples) >= maxSamples:
		s = p.other()
	default:
		s = p.newSample(append(p.appendStack([]*profile.Location{key.leaf}, stack), key.program))
		stream := "0x" + strconv.FormatUint(w.Stream, 16)
		if w.By == traces.ByProbe {
			stream = "not known"
		}
		device := p.tracker.Names.Device(ev.PID, w.Context)
		if number, channel, ok := traces.StreamChannel(w.Stream); ok {
			stream, device = "channel "+strconv.Itoa(channel), number
		} else if w.By.Outside() {
			device = w.Device
		}
		p.label(s, k.task, "kernel", clean(name), "stream", stream, "context", "0x"+strconv.FormatUint(w.Context, 16))
		if device >= 0 {
			s.Label["device"] = []string{strconv.Itoa(int(device))}
		}
		p.samples[key] = s
	}
	s.Value[valueGPU] += w.Dur
}

// memory counts what a call, which has returned, did to memory of GPUs; s is its sample.
func (p *Profile) memory(f *api.Frame, s *profile.Sample) {
	for _, m := range f.Memory() {
		if m.Failed || m.Host || m.Addr == 0 || p.At > 0 && f.Start > p.At {
			continue
		}
		k := memoryKey{f.PID, m.Addr}
		if old, known := p.live[k]; known {
			old.sample.Value[valueLive] -= int64(old.bytes)
			delete(p.live, k)
		}
		if m.Freed || s == nil || len(p.live) >= maxMaps || m.Size > math.MaxInt64/maxMaps {
			continue
		}
		p.live[k] = liveMemory{s, m.Size}
		s.Value[valueLive] += int64(m.Size)
		s.Value[valueAllocated] = addBytes(s.Value[valueAllocated], m.Size)
	}
}
