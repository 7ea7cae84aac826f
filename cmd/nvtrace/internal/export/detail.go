package export

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
)

// stop is the least of a step after which nothing is drawn.
const stop = math.MaxInt64

// stepsBlind are for a recording whose length is not known, say one that comes through a pipe.
var stepsBlind = []step{{25, 1e3}, {45, 16e3}, {60, 256e3}, {75, 4e6}, {85, 64e6}, {93, 1e9}, {99, stop}}

// Limit bounds the size of what the timeline writes, in bytes. survey is what was seen of
// the recording before, nil for nothing: then what comes late has less detail than what
// comes early. It must be called before the first event.
func (t *Timeline) Limit(size int64, survey *Survey) {
	const last = 2 << 10 // for what is written after the last step
	size = max(size-last, 1)
	t.max, t.steps = size, stepsBlind
	if survey != nil {
		t.least = survey.least(size)
		t.steps = []step{{88, 16 * max(t.least, 1e3)}, {95, 4096 * max(t.least, 1e3)}, {99, stop}}
	}
	t.next = percent(size, t.steps[0].percent)
}

func percent(size, p int64) int64 { return size/100*p + size%100*p/100 }

// Merged returns the duration below which calls were drawn together, 0 for none, and how
// many events were left out, since they found no room.
func (t *Timeline) Merged() (least int64, left uint64) { return t.least, t.left }

// full reports whether nothing more is to be drawn, now that there are so many bytes.
func (d *detail) full(size int64) bool {
	for d.max > 0 && d.least != stop && size >= d.next {
		d.least = max(d.least, d.steps[0].least)
		if d.steps = d.steps[1:]; len(d.steps) > 0 {
			d.next = percent(d.max, d.steps[0].percent)
		}
	}
	if d.least == stop {
		d.left++
		return true
	}
	return false
}

// runs last so many times as long as the longest call in them may.
const longRun = 16

func (r *run) count(name string, n uint64) {
	r.calls += n
	for i := range r.counts[:r.used] {
		if r.counts[i].name == name {
			r.counts[i].n += n
			return
		}
	}
	if r.used == len(r.counts) {
		r.others += n
		return
	}
	r.counts[r.used] = runCount{name, n}
	r.used++
}

// add takes in a call, and those that were made in it.
func (r *run) add(name string, start, end int64, inner *run) {
	if r.calls == 0 {
		r.start = start
	}
	r.end = end
	r.busy += end - start
	r.count(name, 1)
	if inner != nil {
		for i := range inner.counts[:inner.used] {
			r.count(inner.counts[i].name, inner.counts[i].n)
		}
		r.calls += inner.others
		r.others += inner.others
	}
}

// takes reports whether a call is near enough to be part of the run.
func (r *run) takes(start, end, least int64) bool {
	return r.calls == 0 || start-r.end <= least && end-r.start <= longRun*least
}

// within returns the run of the thread's innermost call.
func (th *thread) within() *run {
	if n := len(th.calls); n > 0 {
		return &th.calls[n-1].run
	}
	return &th.run
}

// merge adds a call that was short to the run that it is in.
func (t *Timeline) merge(th *thread, name string, start, end int64) {
	t.mergeWith(th, name, start, end, nil)
}

func (t *Timeline) mergeWith(th *thread, name string, start, end int64, inner *run) {
	r := th.within()
	if !r.takes(start, end, t.least) {
		t.beginAll(th)
		t.endRun(th, r)
	}
	r.add(name, start, end, inner)
}

// endRun draws a run of a thread's, the calls around it having begun.
func (t *Timeline) endRun(th *thread, r *run) {
	if r.calls > 0 {
		t.drawRun(th.seq, r, "api,merged")
	}
}

// drawRun draws a run, which is empty then.
func (t *Timeline) drawRun(seq *sequence, r *run, category string) {
	most := 0
	for i := range r.counts[:r.used] {
		if r.counts[i].n > r.counts[most].n {
			most = i
		}
	}
	name := r.counts[most].name
	if r.calls > 1 {
		name += " …"
	}
	o := &t.out
	o.start(seq, r.start, typeBegin)
	o.name(name)
	o.category(category)
	if r.calls > 1 {
		o.uint("calls", r.calls)
		o.int("ns_in_calls", r.busy)
		for i := range r.counts[:r.used] {
			o.uint(r.counts[i].name, r.counts[i].n)
		}
		if r.others > 0 {
			o.uint("other calls", r.others)
		}
	}
	o.finish(r.start)
	o.start(seq, r.end, typeEnd)
	o.finish(r.end)
	*r = run{}
}

// age begins the calls that have become too long to be drawn together.
func (t *Timeline) age(th *thread, now int64) {
	for i := range th.calls {
		if s := &th.calls[i]; !s.begun {
			if now-s.start < t.least {
				return
			}
			t.begin(th, i)
		}
	}
}

// beginAll begins all calls of a thread that are open.
func (t *Timeline) beginAll(th *thread) {
	for i := range th.calls {
		if !th.calls[i].begun {
			t.begin(th, i)
		}
	}
}

// maxStreams bounds the streams that have tracks of their own; a process's others share one.
const maxStreams = 1 << 12

// launched draws a launch on the track of its stream.
func (t *Timeline) launched(pid int32, l *launch, ns int64, alone bool) {
	k := streamKey{pid, l.stream}
	s := t.streams[k]
	if s == nil {
		name := "launches on the default stream"
		switch {
		case len(t.streams) >= maxStreams:
			t.endStreams()
			name = "launches" // of all streams that come from now on
		case l.stream != 0:
			name = "launches on stream 0x" + strconv.FormatUint(l.stream, 16)
		}
		s = &stream{seq: t.out.sequence(t.below(t.process(pid).track, name, rankStreams, nil))}
		t.streams[k] = s
	}
	name := cmp.Or(l.kernel, "(unknown kernel)")
	if !alone {
		ns = max(ns, s.end) // of other threads, which were seen later
		s.end = ns
		if !s.run.takes(ns, ns, t.least) {
			t.drawRun(s.seq, &s.run, "launch,merged")
		}
		s.run.add(name, ns, ns, nil)
		return
	}
	if s.run.calls > 0 {
		t.drawRun(s.seq, &s.run, "launch,merged")
	}
	o := &t.out
	o.start(s.seq, ns, typeInstant)
	o.name(name)
	o.category("launch")
	o.flowTo(l.flow)
	o.finish(ns)
}

// endStreams draws what is pending on the tracks of streams, and forgets these.
func (t *Timeline) endStreams() {
	for _, k := range slices.SortedFunc(maps.Keys(t.streams), streamKey.compare) {
		s := t.streams[k]
		if s.run.calls > 0 {
			t.drawRun(s.seq, &s.run, "launch,merged")
		}
		t.out.drop(s.seq)
	}
	clear(t.streams)
}

// levels of a survey: calls shorter than these are merged.
var levels = [...]int64{0, 250, 500, 1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6, 256e6, 1e9, 4e9}

// Bytes that things take in a timeline, by experience.
const (
	bytesCall   = 60
	bytesSystem = 110
	bytesWork   = 110
	bytesRun    = 70
	bytesRemark = 80
	bytesFailed = 300 // with the calls around it
)
