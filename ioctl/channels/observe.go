package channels

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An observer reads the pages with semaphores, and tells what in them has changed.
type observer struct {
	memory   Memory
	now      func() int64
	want     atomic.Pointer[pageList]
	list     *pageList // that buffer and before are of
	fresh    bool      // before has nothing yet
	buffer   []byte
	before   []byte
	observed int64 // when the latest look began
}

// A pageList says which pages are read, in this order: those with ends of kernels, those with trackers, and the
// first ones again. Of the two readings of an end the first tells what was running at that moment, as the
// tracker that is read after it says of what; the second tells what was over, as a kernel's semaphore is reset
// before its tracker is written.
type pageList struct {
	ends, trackers []uint64
	order          []uint64
}

func newPageList(ends, trackers []uint64) *pageList {
	return &pageList{ends, trackers, slices.Concat(ends, trackers, ends)}
}

// An observation is what one look has shown.
type observation struct {
	since int64 // when the look before began: until then nothing had changed
	from  int64 // this one began
	to    int64 // it ended
	words []changedWord
	fresh *pageList // other pages are read from now on, whose words that aren't 0 are all here; nil: the same
}

// A changedWord is 64 bits that have changed. early: as read before the trackers.
type changedWord struct {
	address, value uint64
	early          bool
}

// observationPool has observations to be used again.
var observationPool = sync.Pool{New: func() any { return new(observation) }}

// look reads the pages. It returns nil if nothing has changed and always isn't set.
func (o *observer) look(always bool) (*observation, error) {
	if want := o.want.Load(); want != o.list {
		o.list, o.fresh = want, true
		o.buffer, o.before = make([]byte, pageSize*len(want.order)), make([]byte, pageSize*len(want.order))
	}
	from := o.now()
	if err := o.read(); err != nil {
		return nil, err
	}
	to := o.now()
	since := o.observed
	o.observed = from
	if !always && !o.fresh && bytes.Equal(o.buffer, o.before) {
		return nil, nil
	}
	ob := observationPool.Get().(*observation)
	*ob = observation{since: since, from: from, to: to, words: ob.words[:0]}
	if o.fresh {
		ob.fresh, o.fresh = o.list, false
	}
	for i, page := range o.list.order {
		o.changes(ob, page, i)
	}
	o.buffer, o.before = o.before, o.buffer
	return ob, nil
}

// changes notes what has changed in one page.
func (o *observer) changes(ob *observation, page uint64, index int) {
	const chunk = 256
	now, old := o.buffer[index*pageSize:][:pageSize], o.before[index*pageSize:][:pageSize]
	for at := 0; at < pageSize; at += chunk {
		if bytes.Equal(now[at:at+chunk], old[at:at+chunk]) {
			continue
		}
		for i := at; i < at+chunk; i += 8 {
			if v := binary.LittleEndian.Uint64(now[i:]); v != binary.LittleEndian.Uint64(old[i:]) {
				ob.words = append(ob.words, changedWord{page + uint64(i), v, index < len(o.list.ends)})
			}
		}
	}
}

// read reads all pages.
func (o *observer) read() error {
	if len(o.list.order) == 0 {
		_, err := o.memory.Maps()
		return err
	}
	if g, ok := o.memory.(gatherer); ok && g.ReadPages(o.list.order, o.buffer) == nil {
		return nil
	}
	failed, read := error(nil), 0
	for i, a := range o.list.order {
		if err := o.memory.Read(a, o.buffer[i*pageSize:][:pageSize]); err != nil {
			failed = err // the process may have unmapped it
			copy(o.buffer[i*pageSize:][:pageSize], o.before[i*pageSize:])
			continue
		}
		read++
	}
	if read == 0 {
		return failed
	}
	return nil
}

// A gatherer reads many pages in one step.
type gatherer interface {
	ReadPages(addresses []uint64, b []byte) error
}

// Follow looks without pause until ctx ends, or the process does. One thread does nothing but look; what looks
// have shown is understood on the caller's goroutine, which calls tick each time that it has nothing else to
// do, and at least each millisecond.
func (w *Watch) Follow(ctx context.Context, tick func() error) error {
	w.follow = true
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	const (
		ahead     = 1 << 14 // observations that may wait
		heartbeat = 100_000 // nanoseconds after which a look tells that nothing has changed
		tickEvery = 1_000_000
	)
	seen := make(chan *observation, ahead)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// A thread that ended would leave its children, which other goroutines have started, to the process's first
		// thread: a tracer that waits there for all of its own would wait for them, too.
		defer runtime.UnlockOSThread()
		defer close(seen)
		told := int64(0)
		for ctx.Err() == nil {
			ob, err := w.observer.look(w.observer.observed-told > heartbeat)
			w.looks.Add(1)
			if len(w.observer.list.order) == 0 {
				time.Sleep(time.Millisecond) // there is nothing to look at yet
			}
			switch {
			case err != nil:
				failed <- err
				return
			case ob != nil:
				told = ob.from
				seen <- ob
			}
		}
	}()
	ticked := w.Now()
	for ob := range seen {
		w.digest(ob)
		observationPool.Put(ob)
		if now := w.Now(); now-ticked > tickEvery {
			ticked = now
			if err := tick(); err != nil {
				stop()
				for range seen { // until the other one has noticed
				}
				return err
			}
		}
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
