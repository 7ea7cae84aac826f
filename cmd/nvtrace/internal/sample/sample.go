// Package sample looks at processes' GPU channels again and again, from outside, and makes events and
// sums of what was running: nvtrace sample.
package sample

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/ioctl/channels"
	"nvtrace/traces"
)

// Options say how a process is looked at.
type Options struct {
	PID    int
	Every  time.Duration // between looks; 0: without pause, so that each work is seen by itself
	Names  bool          // search the process's memory for the names of kernels
	Access channels.Access
	// Interval is how often what was found so far is reported; 0: at the end only.
	Interval time.Duration
	// Now is the time of the recording in nanoseconds.
	Now func() int64
	// Event takes an event, which is valid only during the call. It is called by one goroutine.
	Event func(*traces.Event)
}

const (
	refreshEvery = time.Second           // looks for new channels
	waitForFirst = 20 * time.Millisecond // the same, until there is one
	maxHeld      = 1 << 18               // works that wait for the names of their kernels
)

// A sampler looks at one process.
type sampler struct {
	o     *Options
	watch *channels.Watch
	told  memory // asked for by the goroutine that looks
	shown memory // as of the latest sums
	rings string // as of the latest sums: see [traces.Sampled]
	batch batch  // that is being gathered, of looks without pause
	found []channels.ChannelCount
	sums  map[sumKey]*sum
	busy  map[int32]*busy
	names names
	held  map[uint64][]shown
	count int // of held
	first int64
	last  int64
	look  struct { // what ran at the look that is being made
		took    int64
		devices map[int32]int64 // of each GPU, how much of the look counts as busy
	}
	weights, squares float64 // of looks
	details          map[detailKey]string
	ev               traces.Event
}

// memory is what the driver has told of the GPU last.
type memory struct {
	of   channels.Memory
	page *channels.SharedPage
	gpu  channels.Shared
	told bool
}

// ask asks for it. What was told before stays where the process has ended.
func (m *memory) ask() {
	if d, ok := m.page.Read(m.of); ok {
		m.gpu, m.told = d, true
	}
}

// A shown is work that is to be told of: a span, or a miss.
type shown struct {
	channels.Span
	miss *channels.Miss // nil: it has its times
}

// A batch is what looks without pause have shown since the batch before.
type batch struct {
	works  []shown
	counts []channels.ChannelCount // nil: not counted
	memory memory
	rings  string
	until  int64
}

type sumKey struct {
	device  int32
	channel int
	work    channels.WorkID
}

type detailKey struct {
	work  channels.WorkID
	end   string
	look  bool
	named string
}

// Run looks at a process until ctx ends, or the process does. It returns an error only if the process can't
// be looked at at all.
func Run(ctx context.Context, o *Options) (*traces.Sampled, error) {
	p, err := channels.Open(o.PID, o.Access)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	s := &sampler{
		told: memory{of: p, page: new(channels.SharedPage)}, o: o, sums: map[sumKey]*sum{}, busy: map[int32]*busy{}, held: map[uint64][]shown{}, details: map[detailKey]string{},
	}
	s.names.pid = o.PID
	s.look.devices = map[int32]int64{}
	took := func(span *channels.Span) { s.took(&shown{Span: *span}) }
	if o.Every == 0 {
		took = func(span *channels.Span) { s.batch.works = append(s.batch.works, shown{Span: *span}) }
	}
	if s.watch, err = channels.NewWatch(p, o.Now, took); err != nil {
		return nil, err
	}
	if o.Every == 0 {
		s.watch.Missed = func(m *channels.Miss) {
			if miss := *m; m.Before != 0 {
				s.batch.works = append(s.batch.works, shown{Span: channels.Span{Channel: m.Channel, Device: m.Device, Work: m.Work, Bytes: m.Bytes}, miss: &miss})
			}
		}
		s.follow(ctx)
	} else {
		s.run(ctx)
	}
	return s.end(), nil
}

// follow looks without pause. What the looks show goes to another goroutine, so that what is done with it holds
// nobody up: the rings of channels go round in milliseconds.
func (s *sampler) follow(ctx context.Context) {
	const maxBatches = 1 << 10
	batches := make(chan batch, maxBatches)
	s.first = s.o.Now()
	send := func(now int64) {
		s.last = now
		batches <- s.batch
		s.batch = batch{}
	}
	var ended sync.WaitGroup
	ended.Go(func() {
		for b := range batches {
			for i := range b.works {
				s.took(&b.works[i])
			}
			s.named(s.names.collect())
			if b.counts != nil {
				s.found, s.shown, s.rings = b.counts, b.memory, b.rings
				s.tell(b.until)
			}
		}
	})
	refreshed, told := s.first, s.first
	_ = s.watch.Follow(ctx, func() error { // it ends when the process does
		now := s.o.Now()
		if s.o.Interval > 0 && now-told >= int64(s.o.Interval) {
			told = now
			s.batch.counts, s.batch.memory, s.batch.rings, s.batch.until = s.watch.Counts(), s.told, s.watch.Rings(), now
		}
		send(now)
		every := refreshEvery
		if s.watch.Channels() == 0 {
			every = waitForFirst
		}
		if now-refreshed < int64(every) {
			return nil
		}
		refreshed = now
		s.told.ask()
		return s.watch.Refresh()
	})
	send(s.o.Now())
	close(batches)
	ended.Wait()
}

// run looks each time that it is to.
func (s *sampler) run(ctx context.Context) {
	now := s.o.Now()
	refreshed, told, next := now, now, now
	s.first, s.last = now, now
	for ctx.Err() == nil {
		if s.watch.Look() != nil {
			return // it has ended
		}
		now = s.o.Now()
		s.looked(now)
		every := refreshEvery
		if s.watch.Channels() == 0 {
			every = waitForFirst
		}
		if now-refreshed >= int64(every) {
			refreshed = now
			s.told.ask()
			if s.watch.Refresh() != nil {
				return
			}
		}
		s.named(s.names.collect())
		if s.o.Interval > 0 && now-told >= int64(s.o.Interval) {
			told = now
			s.found, s.shown, s.rings = s.watch.Counts(), s.told, s.watch.Rings()
			s.tell(now)
		}
		next = max(next+int64(s.o.Every), now)
		wait(ctx, time.Duration(next-now))
	}
}

// wait waits for a time, or for ctx.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// looked takes in that a look has been made.
func (s *sampler) looked(now int64) {
	took := float64(s.look.took)
	if s.look.took == 0 {
		took = float64(now - s.last)
	}
	s.weights += took
	s.squares += took * took
	for device, part := range s.look.devices {
		s.device(device).looks += float64(part)
	}
	clear(s.look.devices)
	s.look.took = 0
	s.last = now
}

func (s *sampler) device(n int32) *busy {
	b := s.busy[n]
	if b == nil {
		b = new(busy)
		s.busy[n] = b
	}
	return b
}

// deviceOf returns the number of a GPU's node.
func deviceOf(path string) int32 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(path, "/dev/nvidia"), 10, 16)
	return int32(n)
}

// took takes in what the watch tells of.
func (s *sampler) took(span *shown) {
	if span.miss == nil {
		s.add(&span.Span)
	}
	if s.o.Names && span.Work.Program != 0 && s.names.wants(span.Work.Program) && s.count < maxHeld {
		s.held[span.Work.Program] = append(s.held[span.Work.Program], *span)
		s.count++
		return
	}
	s.event(span)
}

// add adds up a span.
func (s *sampler) add(span *channels.Span) {
	device := deviceOf(span.Device)
	k := sumKey{device, span.Channel, span.Work}
	a := s.sums[k]
	if a == nil {
		a = new(sum)
		s.sums[k] = a
	}
	if span.Look {
		s.look.took = span.Unclamped
		s.look.devices[device] = max(s.look.devices[device], span.Dur)
		a.look(span.Dur)
	} else {
		a.seen(span)
		s.device(device).add(span.Start, span.Start+span.Dur)
	}
}

// named tells of what has waited for names.
func (s *sampler) named(programs []uint64) {
	for _, p := range programs {
		for i := range s.held[p] {
			s.event(&s.held[p][i])
		}
		s.count -= len(s.held[p])
		delete(s.held, p)
	}
}

// event makes an event of work.
func (s *sampler) event(span *shown) {
	name, named := s.nameOf(span.Work)
	w := traces.Work{
		Start: span.Start, Dur: span.Dur, Margin: span.Margin, EndMargin: span.EndMargin, By: traces.ByChannel,
		Kernel: name, Device: deviceOf(span.Device), Subject: span.Work.Program,
	}
	if span.Look {
		w.By = traces.ByLook
	}
	if span.Work.Kind == channels.CopySpan {
		w.Kernel, w.Subject = "", span.Bytes
	}
	w.Stream = traces.ChannelStream(w.Device, span.Channel)
	ev := &s.ev
	ev.Reset()
	ev.Time, ev.PID, ev.TID = s.o.Now(), int32(s.o.PID), int32(s.o.PID)
	ev.SetWork(&w)
	if m := span.miss; m != nil {
		ev.Name, ev.Path, ev.Ret = "", "", 0
		ev.SetMiss(&traces.Miss{After: m.After, Before: m.Before, Stream: w.Stream, Subject: w.Subject, Device: w.Device, Kernel: w.Kernel})
	}
	ev.Data = s.detail(span, named)
	s.o.Event(ev)
}

// nameOf returns what a work is called, and whence a kernel's name is.
func (s *sampler) nameOf(id channels.WorkID) (name, named string) {
	if id.Kind == channels.CopySpan {
		return "copy", ""
	}
	if found := s.names.of(id.Program); found.name != "" {
		name, named = found.name, found.source
	} else if id.Program != 0 {
		name = fmt.Sprintf("program %#x", id.Program)
	}
	switch {
	case id.Kind != channels.GraphSpan:
		return name, named
	case id.Graph != 0:
		return fmt.Sprintf("(graph at %#x)", id.Graph), named
	case id.Kernels == 0 || name == "":
		return "(graph)", named
	}
	return fmt.Sprintf("(graph of %d kernels, first %s)", id.Kernels, name), named
}

// maxDetails bounds what is kept of texts.
const maxDetails = 1 << 14

// detail returns an event's Data.
func (s *sampler) detail(span *shown, named string) string {
	k := detailKey{span.Work, span.End.String(), span.Look, named}
	if span.miss != nil {
		k.end = ""
	}
	text, ok := s.details[k]
	if ok {
		return text
	}
	d := traces.WorkDetail{Named: named, Kernels: span.Work.Kernels}
	if !span.Look {
		d.End = k.end
	}
	if span.Work.Kind == channels.KernelSpan {
		d.Grid, d.Block = span.Work.Grid[:], span.Work.Block[:]
	}
	b, err := json.Marshal(&d)
	if err != nil {
		panic("BUG: a work's detail as JSON: " + err.Error())
	}
	if len(s.details) >= maxDetails {
		clear(s.details)
	}
	s.details[k] = string(b)
	return s.details[k]
}

// tell makes an event of what was found so far.
func (s *sampler) tell(now int64) *traces.Sampled {
	r := s.sampled(now)
	ev := &s.ev
	ev.Reset()
	ev.Time, ev.PID, ev.TID = now, int32(s.o.PID), int32(s.o.PID)
	ev.SetSampled(r)
	s.o.Event(ev)
	return r
}

// end tells of what still waits, and of what was found.
func (s *sampler) end() *traces.Sampled {
	s.told.ask()
	s.found, s.shown, s.rings = s.watch.Counts(), s.told, s.watch.Rings()
	s.names.finish()
	s.named(s.names.collect())
	s.named(slices.Collect(maps.Keys(s.held)))
	return s.tell(s.last)
}
