package record

import (
	"sync"
	"time"

	"nvtrace/traces"
)

// Bounds of the queue between the tracing thread and the sinks.
const (
	// maxPending is how many bytes may wait, unless Options say otherwise, before the tracing
	// thread waits for the sinks: nothing is dropped, and memory stays bounded.
	maxPending = 64 << 20
	// wakeAfter is how many events make a sleeping consumer wake at once; fewer
	// are picked up after latency. A wake-up costs the tracing thread more than
	// recording an event does.
	wakeAfter = 1024
	latency   = 10 * time.Millisecond
	// freeBatches is how many empty batches are kept, which need not grow again, and maxKept
	// how large a buffer may be.
	freeBatches = 4
	maxKept     = 2 << 20
)

// batch is a run of events with their payload in one arena.
type batch struct {
	events []traces.Event
	segs   []traces.Seg
	arena  []byte
	bytes  int
}

// add copies an event with all it refers to.
func (b *batch) add(ev *traces.Event) {
	c := *ev
	if len(ev.Mem) > 0 {
		at := len(b.segs)
		for i := range ev.Mem {
			s := ev.Mem[i]
			same := len(s.In) > 0 && len(s.In) == len(s.Out) && &s.In[0] == &s.Out[0]
			s.In = b.keep(s.In)
			if same {
				s.Out = s.In
			} else {
				s.Out = b.keep(s.Out)
			}
			b.segs = append(b.segs, s)
		}
		c.Mem = b.segs[at:len(b.segs):len(b.segs)]
	}
	b.events = append(b.events, c)
	b.bytes += eventSize + segSize*len(c.Mem) + len(c.Path) + len(c.Text)
	for _, a := range c.Argv {
		b.bytes += len(a) + stringSize
	}
}

// What an event, a segment and a string take besides their bytes.
const (
	eventSize  = 256
	segSize    = 64
	stringSize = 16
)

// Sizes of arenas. The first is small: to get much memory takes long, and the
// program may be waiting.
const (
	firstArena = 32 << 10
	maxArena   = 1 << 20
)

// keep copies bytes into the arena; nil stays nil. A full arena is replaced,
// not grown: slices into the old one stay valid.
func (b *batch) keep(p []byte) []byte {
	switch {
	case p == nil:
		return nil
	case len(p) == 0:
		return []byte{}
	}
	if len(b.arena)+len(p) > cap(b.arena) {
		b.arena = make([]byte, 0, max(min(2*cap(b.arena), maxArena), firstArena, len(p)))
	}
	at := len(b.arena)
	b.arena = append(b.arena, p...)
	b.bytes += len(p)
	return b.arena[at:len(b.arena):len(b.arena)]
}

// reset empties the batch. What a burst made it grow to is given back.
func (b *batch) reset() {
	if len(b.events) > 8*wakeAfter || cap(b.arena) > maxArena {
		*b = batch{}
		return
	}
	clear(b.events)
	clear(b.segs) // they may refer to arenas before this one
	b.events, b.segs, b.arena, b.bytes = b.events[:0], b.segs[:0], b.arena[:0], 0
}

// queue carries events from the tracing thread to a consumer goroutine, in blocks; the last
// ones to who closes it.
type queue struct {
	max  int      // bytes that may wait
	drop *dropper // nil: who puts more waits

	mu      sync.Mutex
	room    sync.Cond       // the consumer took what waits
	fill    *traces.Batch   // the latest events
	full    []*traces.Batch // those before
	free    []*traces.Batch // empty
	waiting int             // events
	bytes   int             // in full

	wake   chan struct{} // buffered; tells the consumer that there is something
	closed chan struct{} // closed when no more events come

	consuming sync.Mutex // held by who calls the following
	block     func([]byte)
	idle      func() // there is nothing more for now
	buf       []byte
	ended     bool // all events have been seen
}

func newQueue(block func([]byte), idle func()) *queue {
	q := &queue{
		max: maxPending, fill: new(traces.Batch), block: block, idle: idle,
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	q.room.L = &q.mu
	return q
}

// put hands over a copy of ev. While too many bytes are pending it waits, or drops the
// event, if it may.
func (q *queue) put(ev *traces.Event) {
	if q.drop.goesOn(ev) {
		return
	}
	q.mu.Lock()
	for q.bytes+q.fill.Size() > q.max {
		q.notify() // it may be letting a burst gather
		if q.drop.begins(ev) {
			q.mu.Unlock()
			return
		}
		q.room.Wait()
	}
	if q.drop != nil && q.drop.lost > 0 && (ev.Kind == traces.KindEnd || q.bytes+q.fill.Size() < q.max/2) {
		q.add(&traces.Event{Kind: traces.KindLost, Time: ev.Time, FD: -1, Ret: q.drop.lost})
		q.drop.lost = 0
	}
	q.add(ev)
	n := q.waiting
	q.mu.Unlock()
	if n == 1 || n == wakeAfter {
		q.notify()
	}
}

// add puts a copy of ev behind what waits.
func (q *queue) add(ev *traces.Event) {
	if q.fill.Full() {
		q.next()
	}
	q.fill.Add(ev)
	q.waiting++
}

// next has later events go into another batch.
func (q *queue) next() {
	q.full = append(q.full, q.fill)
	q.bytes += q.fill.Size()
	if n := len(q.free); n > 0 {
		q.fill, q.free = q.free[n-1], q.free[:n-1]
	} else {
		q.fill = new(traces.Batch)
	}
}

// notify tells the consumer that there is something.
func (q *queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default: // it will be told already
	}
}

// close says that no more events come, and sees to the last ones itself: somebody
// waits, and to wake the consumer takes a while.
func (q *queue) close() {
	close(q.closed)
	q.consumeAll(true)
}

// consumeAll gives out what is pending: the last of all events, or not.
func (q *queue) consumeAll(last bool) {
	q.consuming.Lock()
	defer q.consuming.Unlock()
	if q.ended {
		return
	}
	for q.drain() > 0 {
	}
	q.idle()
	q.ended = last
}

// consume gives out events until the queue is closed.
func (q *queue) consume() {
	timer := time.NewTimer(latency)
	for {
		q.consumeAll(false)
		select {
		case <-q.wake:
		case <-q.closed:
			return
		}
		// Let a burst gather: one wake-up for many events.
		timer.Reset(latency)
		select {
		case <-timer.C:
		case <-q.wake:
		case <-q.closed:
			return
		}
	}
}

// drain gives out the pending events and returns how many there were.
func (q *queue) drain() int {
	q.mu.Lock()
	if q.fill.Len() > 0 {
		q.next()
	}
	list, n := q.full, q.waiting
	q.full, q.waiting, q.bytes = nil, 0, 0
	q.room.Broadcast()
	q.mu.Unlock()
	for _, b := range list {
		q.buf = b.AppendTo(q.buf[:0])
		q.mu.Lock()
		if len(q.free) < freeBatches {
			q.free = append(q.free, b)
		}
		q.mu.Unlock()
		q.block(q.buf)
	}
	if cap(q.buf) > maxKept {
		q.buf = nil // one giant event need not stay in memory
	}
	return n
}

// dropper drops library calls, with all that they call, where there is no room for them. A nil
// one drops nothing.
type dropper struct {
	depth map[int32]int // calls of threads that are being dropped and have not returned
	lost  int64         // events that were dropped and not reported yet
}

// goesOn reports whether an event belongs to a call that is being dropped.
func (d *dropper) goesOn(ev *traces.Event) bool {
	if d == nil || d.depth[ev.TID] == 0 {
		return false
	}
	switch ev.Kind {
	case traces.KindCall:
		if ev.Flags&traces.FlagNoExit == 0 {
			d.depth[ev.TID]++
		}
	case traces.KindReturn:
		if d.depth[ev.TID]--; d.depth[ev.TID] == 0 {
			delete(d.depth, ev.TID)
		}
	case traces.KindExit:
		delete(d.depth, ev.TID)
		return false
	default: // what is no library call is kept
		return false
	}
	d.lost++
	return true
}

// begins reports whether an event is to be dropped: a library call is, its return with it.
func (d *dropper) begins(ev *traces.Event) bool {
	if d == nil || ev.Kind != traces.KindCall {
		return false
	}
	if ev.Flags&traces.FlagNoExit == 0 {
		d.depth[ev.TID] = 1
	}
	d.lost++
	return true
}
