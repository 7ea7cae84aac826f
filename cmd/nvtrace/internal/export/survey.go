package export

import (
	"slices"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// Survey sees a recording before a Timeline does, and estimates how large that becomes.
type Survey struct {
	threads map[laneKey]*surveyed
	probed  probedLanes
	fixed   int64
	done    [len(levels)]int64 // bytes of threads that were forgotten
}

// surveyed is what a call, or a thread, comes to at each level.
type surveyed struct {
	calls []surveyed // of a thread: those that are open
	frame *api.Frame
	start int64
	bytes [len(levels)]int64
	first [len(levels)]int64 // of the run that goes on
	end   [len(levels)]int64 // of it; stop: there is none
}

// NewSurvey returns a Survey that has seen nothing yet.
func NewSurvey() *Survey {
	return &Survey{threads: make(map[laneKey]*surveyed)}
}

// Observe implements observe.Observer. What calls mean does not matter to it.
func (s *Survey) Observe(e *observe.Event) {
	ev, f := e.Event, e.Frame
	key := laneKey{task: taskKey{ev.PID, ev.TID}}
	switch {
	case ev.Kind == traces.KindCall && f != nil:
		th := s.thread(key)
		th.calls = append(th.calls, surveyed{frame: f, start: ev.Time})
	case ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn:
	case isCall(ev.Kind):
		c := surveyed{start: ev.Time}
		s.thread(key).holder().take(&c, ev.Time+max(ev.Dur, 0), bytesSystem)
	case ev.Kind == traces.KindGPU:
		w := ev.Work()
		c := surveyed{start: w.Start}
		s.thread(laneKey{task: taskKey{pid: ev.PID}, gpu: true, stream: s.probed.streamOf(ev.PID, &w)}).take(&c, w.Start+w.Dur, bytesWork)
	default:
		s.fixed += bytesRemark
	}
	if ev.Kind == traces.KindEnd {
		return
	}
	for _, f := range e.Tracker.Ended() {
		s.end(f, max(f.End, f.Start))
	}
	if ev.Kind == traces.KindReturn && f != nil {
		if f.Function.Failed(ev.Ret) {
			s.fixed += bytesFailed
		}
		s.end(f, max(f.End, f.Start))
	}
}

func (s *Survey) thread(key laneKey) *surveyed {
	th := s.threads[key]
	if th == nil {
		if len(s.threads) >= maxTasks {
			for _, o := range s.threads {
				for k := range levels {
					s.done[k] += o.total(k)
				}
			}
			clear(s.threads)
		}
		th = new(surveyed)
		s.threads[key] = th
		s.fixed += bytesRemark
	}
	return th
}

// holder returns the innermost call of a thread, or the thread.
func (th *surveyed) holder() *surveyed {
	if n := len(th.calls); n > 0 {
		return &th.calls[n-1]
	}
	return th
}

// end takes in that a call has ended.
func (s *Survey) end(f *api.Frame, at int64) {
	th := s.threads[laneKey{task: taskKey{f.PID, f.TID}}]
	if th == nil || len(th.calls) == 0 || th.calls[len(th.calls)-1].frame != f {
		return
	}
	c := th.calls[len(th.calls)-1]
	th.calls = th.calls[:len(th.calls)-1]
	th.holder().take(&c, at, bytesCall)
}

// take takes in a call that lasted until then, and takes so many bytes itself.
func (th *surveyed) take(c *surveyed, end, size int64) {
	for k, least := range levels {
		if end-c.start >= least {
			th.bytes[k] += size + c.bytes[k]
			th.end[k], th.first[k] = 0, 0
			continue
		}
		if th.first[k] == 0 && th.end[k] == 0 || c.start-th.end[k] > least || end-th.first[k] > longRun*least {
			th.bytes[k] += bytesRun
			th.first[k] = c.start
		}
		th.end[k] = end
	}
}

// total is what a thread comes to.
func (th *surveyed) total(k int) int64 {
	n := th.bytes[k]
	for i := range th.calls {
		n += bytesCall + th.calls[i].bytes[k]
	}
	return n
}

// least returns from which duration on calls can be drawn one by one in so many bytes.
func (s *Survey) least(size int64) int64 {
	for k, least := range levels {
		n := s.fixed + s.done[k]
		for _, th := range s.threads {
			n += th.total(k)
		}
		if n <= percent(size, 85) {
			return least
		}
	}
	return levels[len(levels)-1]
}

// maxLanes is how many of these tracks a process has.
const maxLanes = 16

// streamOf returns the handle of the work's stream, or one that no stream has, for such a track.
func (l *probedLanes) streamOf(pid int32, w *traces.Work) uint64 {
	if w.By != traces.ByProbe {
		return w.Stream
	}
	if *l == nil || len(*l) >= maxTasks {
		*l = make(probedLanes)
	}
	ends := (*l)[pid]
	i := slices.IndexFunc(ends, func(end int64) bool { return end <= w.Start })
	switch {
	case i >= 0:
	case len(ends) < maxLanes:
		i = len(ends)
		ends = append(ends, 0)
	default:
		i = maxLanes - 1
	}
	ends[i] = max(ends[i], w.Start+w.Dur)
	(*l)[pid] = ends
	return ^uint64(i)
}
