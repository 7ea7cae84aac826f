package export

import (
	"bytes"
	"cmp"
	"fmt"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// drawRange draws what a call of the library for NVTX says, on a track of the thread's, and
// reports whether it says something of that. Ranges with a number, which may begin and end on
// different threads, stay calls.
func (t *Timeline) drawRange(ev *traces.Event, f *api.Frame) bool {
	if f.Module.Library != api.NVTX {
		return false
	}
	th := t.thread(taskKey{f.PID, f.TID})
	kind := uint64(0)
	switch f.Name {
	case "nvtxRangePush":
		kind = typeBegin
	case "nvtxRangePop":
		if th.ranges == nil || th.ranges.open == 0 {
			return true // of one from before the recording
		}
		kind = typeEnd
	case "nvtxMark":
		kind = typeInstant
	default:
		return false
	}
	r := th.ranges
	if r == nil {
		name := fmt.Sprintf("NVTX, thread %d", f.TID)
		r = &rangeTrack{seq: t.out.sequence(t.below(t.process(f.PID).track, name, rankRanges, nil)), end: th.end}
		th.ranges = r
	}
	r.end = max(r.end, ev.Time)
	o := &t.out
	o.start(r.seq, r.end, kind)
	switch kind {
	case typeBegin:
		r.open++
	case typeEnd:
		r.open--
	}
	if kind != typeEnd {
		o.name(cmp.Or(stringArg(ev, 0), "(no text)"))
		o.category("nvtx")
		if domain := stringArg(ev, 1); domain != "" {
			o.str("domain", domain)
		}
	}
	o.finish(r.end)
	return true
}

// stringArg returns the string that an argument of a call pointed to.
func stringArg(ev *traces.Event, arg int) string {
	for i := range ev.Mem {
		if s := &ev.Mem[i]; s.Addr == ev.Args[arg] && s.Addr != 0 {
			text, _, _ := bytes.Cut(s.In, []byte{0})
			return clip(clean(string(text)), maxName)
		}
	}
	return ""
}

// endRanges ends the ranges that are open on a thread's track.
func (t *Timeline) endRanges(th *thread) {
	r := th.ranges
	if r == nil {
		return
	}
	for end := max(r.end, th.end); r.open > 0; r.open-- {
		t.out.start(r.seq, end, typeEnd)
		t.out.finish(end)
	}
	t.out.drop(r.seq)
	th.ranges = nil
}
