package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"nvtrace/traces"
)

// Bounds of what a timeline keeps to draw what GPUs did.
const (
	maxWorks = 1 << 12 // that may still be told of out of order
	maxFlows = 1 << 16 // launches whose work has not been told of
)

// launching notes which arrow leads from a launch that is drawn.
func (t *Timeline) launching(key callKey, flow uint64) {
	if t.gpu.flows == nil || len(t.gpu.flows) >= maxFlows {
		t.gpu.flows = make(map[callKey]uint64)
	}
	t.gpu.flows[key] = flow
}

// work takes in what a GPU did. Records of that come in no order.
func (t *Timeline) work(ev *traces.Event) {
	w := gpuWork{Work: ev.Work(), task: taskKey{ev.PID, ev.TID}, by: clip(ev.Name, maxName)}
	if w.Start < 0 || w.Dur < 0 || w.Start+w.Dur < 0 {
		return // no recorder says so
	}
	key := callKey{w.task, w.Call}
	if w.By.Called() {
		w.flow = t.gpu.flows[key]
		delete(t.gpu.flows, key)
	}
	if ev.Data != "" {
		w.detail = ev.Detail()
	}
	name, kernel := t.tracker.Describe(ev)
	if kernel {
		name = cmp.Or(t.kernelName(name), "(unknown kernel)")
	}
	w.name = t.callName([]byte(clip(name, maxName)))
	t.gpu.works = append(t.gpu.works, w)
	if len(t.gpu.works) == maxWorks {
		t.drawWorks(maxWorks / 2)
	}
}

// drawWorks draws the n earliest works that wait.
func (t *Timeline) drawWorks(n int) {
	slices.SortStableFunc(t.gpu.works, func(a, b gpuWork) int { return cmp.Compare(a.Start, b.Start) })
	for i := range t.gpu.works[:n] {
		t.drawWork(&t.gpu.works[i])
	}
	t.gpu.works = append(t.gpu.works[:0], t.gpu.works[n:]...)
}

// drawWork draws a work on the track of its stream, where works follow each other: they overlap
// no more than clocks that were compared anew may have it.
func (t *Timeline) drawWork(w *gpuWork) {
	s := t.gpuStream(w.task.pid, t.gpu.probed.streamOf(w.task.pid, &w.Work))
	start := max(w.Start, s.end)
	end := max(start, w.Start+w.Dur)
	s.end = end
	if w.Dur < t.least {
		if !s.run.takes(start, end, t.least) {
			t.drawRun(s.seq, &s.run, "gpu,merged")
		}
		s.run.add(w.name, start, end, nil)
		return
	}
	if s.run.calls > 0 {
		t.drawRun(s.seq, &s.run, "gpu,merged")
	}
	o := &t.out
	o.start(s.seq, start, typeBegin)
	o.name(w.name)
	o.category("gpu")
	if w.flow != 0 {
		o.flowTo(w.flow)
	}
	switch w.By {
	case traces.ByProbe:
		o.str("by", "a probe")
		o.int("launch", int64(w.Launch))
	case traces.ByChannel:
		o.str("by", "the channel")
		o.str("the end is", w.detail.End)
		o.int("end may be off by, ns", w.EndMargin)
	case traces.ByTracker:
		o.str("by", w.by)
		o.str("times from", "the channel")
		o.str("the end is", w.detail.End)
		o.int("end may be off by, ns", w.EndMargin)
		o.int("thread", int64(w.task.tid))
		o.int("after the call began, ns", w.Start-w.Call)
	case traces.ByLook:
		o.str("by", "a look, for which the time since the one before stands")
	default:
		o.str("by", w.by)
		o.int("thread", int64(w.task.tid))
		o.int("after the call began, ns", w.Start-w.Call)
	}
	if d := &w.detail; len(d.Grid) > 0 {
		o.str("grid", fmt.Sprint(d.Grid))
		o.str("block", fmt.Sprint(d.Block))
	}
	if w.detail.Named != "" {
		o.str("name from", w.detail.Named)
	}
	o.int("start may be off by, ns", w.Margin)
	if w.Context != 0 {
		o.hex("context", w.Context)
	}
	o.finish(start)
	o.start(s.seq, end, typeEnd)
	o.finish(end)
}

// gpuStream returns the track of what a GPU did on a stream.
func (t *Timeline) gpuStream(pid int32, handle uint64) *stream {
	k := streamKey{pid, handle}
	s := t.gpu.streams[k]
	if s == nil {
		name := gpuStreamName(handle)
		if len(t.gpu.streams) >= maxStreams {
			t.endGPUStreams()
			name = "GPU" // on all streams that come from now on
		}
		if t.gpu.streams == nil {
			t.gpu.streams = make(map[streamKey]*stream)
		}
		s = &stream{seq: t.out.sequence(t.below(t.process(pid).track, name, rankStreams, nil))}
		t.gpu.streams[k] = s
	}
	return s
}

// gpuStreamName is what a stream is called in views of what GPUs did.
func gpuStreamName(handle uint64) string {
	switch lane := ^handle; {
	case lane == 0:
		return "GPU, kernels by probes"
	case lane < maxLanes:
		return "GPU, kernels by probes, at the same time " + strconv.FormatUint(lane, 10)
	}
	if device, channel, ok := traces.StreamChannel(handle); ok {
		return fmt.Sprintf("GPU %d, channel %d", device, channel)
	}
	if handle == 0 {
		return "GPU, default stream"
	}
	return "GPU, stream 0x" + strconv.FormatUint(handle, 16)
}

// endGPUStreams draws what is pending on the tracks of streams, and forgets these.
func (t *Timeline) endGPUStreams() {
	for _, k := range slices.SortedFunc(maps.Keys(t.gpu.streams), streamKey.compare) {
		s := t.gpu.streams[k]
		if s.run.calls > 0 {
			t.drawRun(s.seq, &s.run, "gpu,merged")
		}
		t.out.drop(s.seq)
	}
	clear(t.gpu.streams)
}
