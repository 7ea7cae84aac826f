package sim

import (
	"slices"
	"time"

	"nvtrace/rm/channel"
)

// fail makes the context unusable, if r does that.
func (x *cudaContext) fail(r result) {
	if r != success {
		x.failed.CompareAndSwap(0, uint32(r))
	}
}

func (x *cudaContext) status() result { return result(x.failed.Load()) }

// An operation is work in a stream: done is closed when it is over, after when was set. That
// orders all that it did before all that waits for it. when is for cuEventElapsedTime.
type operation struct {
	done chan struct{}
	when time.Time
	// ends are the semaphores that channels have for its end, or that of what it waits for.
	ends []channel.Semaphore
}

// over reports whether it has ended.
func (o *operation) over() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// newStream makes a stream of a context. It has no handle yet.
func (p *Process) newStream(x *cudaContext, nonblocking bool) *stream {
	s := &stream{ctx: x, nonblocking: nonblocking, id: p.sim.ids.Add(1)}
	x.streams[s] = true
	p.channelOf(s) // before its first launch, so that nvtrace knows of it
	return s
}

// before are the operations that the next one of the stream waits for.
func (s *stream) before() []*operation {
	var ops []*operation
	add := func(o *operation) {
		if o != nil && !o.over() {
			ops = append(ops, o)
		}
	}
	add(s.last)
	switch {
	case s.isLegacy:
		for t := range s.ctx.streams {
			if t != s && !t.nonblocking {
				add(t.last)
			}
		}
	case !s.nonblocking:
		add(s.ctx.legacy.last)
	}
	return ops
}

// enqueue adds an operation. The error of run, if any, is the context's from then
// on, and what comes later is not run. Called with the process locked; run is called without
// the lock, on a goroutine that Process.users counts, and must not use what the lock guards.
//
// What does nothing and waits for nothing, an event on an idle stream, is over at once: another goroutine
// might not get a processor for milliseconds, while those that serve calls are in system calls.
func (p *Process) enqueue(s *stream, waits []*operation, run func() result) *operation {
	return p.enqueueLaunches(s, waits, nil, run)
}

// maxWaits is how many semaphores of a submission are to be seen.
const maxWaits = 8

// enqueueLaunches is enqueue for an operation that runs kernels.
func (p *Process) enqueueLaunches(s *stream, waits []*operation, launches []*launch, run func() result) *operation {
	deps := append(s.before(), slices.DeleteFunc(waits, (*operation).over)...)
	o := &operation{done: make(chan struct{})}
	s.last = o
	if run == nil && len(deps) == 0 {
		o.when = time.Now()
		close(o.done)
		return o
	}
	for _, d := range deps {
		if len(o.ends)+len(d.ends) <= maxWaits {
			o.ends = append(o.ends, d.ends...)
		}
	}
	seen, number, end := p.push(s, o, launches, o.ends)
	if seen != nil {
		o.ends = []channel.Semaphore{end}
	}
	p.pending.Add(1)
	p.users.Go(func() {
		for _, d := range deps {
			<-d.done
		}
		if seen != nil {
			seen.pass(number)
		}
		if run != nil && s.ctx.status() == success && p.ctx.Err() == nil {
			s.ctx.fail(run())
		}
		if seen != nil {
			seen.end(number)
		}
		o.when = time.Now()
		close(o.done)
		p.pending.Add(-1)
		select {
		case p.drained <- struct{}{}:
		default:
		}
	})
	return o
}

// callHost has the program call fn, and waits for that.
func (p *Process) callHost(fn uint64, args ...uint64) result {
	h := &hostCall{fn: fn, done: make(chan struct{})}
	copy(h.args[:], args)
	select {
	case p.callbacks <- h:
	case <-p.dead:
		return success
	}
	select {
	case <-h.done:
	case <-p.dead:
	}
	return success
}

// answer calls h on the program's side of c.
func (h *hostCall) answer(c *conn) error {
	defer close(h.done)
	_, err := c.do(&reply{action: actCall, result: h.fn, a: [5]uint64{h.args[0], h.args[1], h.args[2], h.args[3]}})
	return err
}

// runCallbacks serves the program's thread for callbacks.
func (p *Process) runCallbacks(c *conn) {
	for {
		select {
		case h := <-p.callbacks:
			if h.answer(c) != nil {
				return
			}
		case <-p.dead:
			return
		}
	}
}

// needHelper sees to it that the program has a thread for callbacks, if it can.
func (c *call) needHelper() {
	p := c.p
	if !p.canThread.Load() || !p.helper.CompareAndSwap(false, true) {
		return
	}
	if r, err := c.conn.do(&reply{action: actHelper}); err != nil || r == 0 {
		p.canThread.Store(false)
	}
}

// wait waits for operations, without the process's lock, and gives the program
// what kernels have printed. In a program without a thread for callbacks the waiting thread
// calls what its streams ask for: nobody else can, and the operations would never end.
func (c *call) wait(ops ...*operation) {
	var todo []*operation
	for _, o := range ops {
		if o != nil && !o.over() {
			todo = append(todo, o)
		}
	}
	if len(todo) != 0 {
		var calls chan *hostCall
		if !c.p.canThread.Load() {
			calls = c.p.callbacks
		}
		c.unlock()
		for _, o := range todo {
			c.waitOne(o, calls)
		}
		c.lock()
	}
	if text := c.p.printf.take(); len(text) != 0 {
		c.print(text)
	}
}

// waitOne waits for one. calls is nil where another thread answers callbacks.
func (c *call) waitOne(o *operation, calls chan *hostCall) {
	for {
		select {
		case <-o.done:
			return
		case h := <-calls:
			_ = h.answer(c.conn)
		case <-c.p.dead:
			return
		}
	}
}

// all are the last operations of the context's streams.
func (x *cudaContext) all() []*operation {
	var ops []*operation
	for s := range x.streams {
		ops = append(ops, s.last)
	}
	return ops
}

// syncStream waits for a stream and returns its context's state.
func (c *call) syncStream(s *stream) result {
	if s.isLegacy {
		c.wait(append(s.before(), s.last)...)
	} else {
		c.wait(s.last)
	}
	return s.ctx.status()
}

// submit puts work into a stream, or into the graph that the stream is captured
// to. It also returns the operation, nil in a capture. The legacy stream would wait for streams
// that are being captured, which can't be: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
func (c *call) submit(s *stream, w *work) (*operation, result) {
	if s.cap == nil {
		c.room(s)
	}
	if s.cap != nil {
		return nil, s.cap.add(s, w)
	}
	if s.isLegacy && c.p.capturing(s.ctx) {
		return nil, errCaptureImplicit
	}
	if r := s.ctx.status(); r != success {
		return nil, r
	}
	run, launches := w.run, w.launches()
	return c.p.enqueueLaunches(s, nil, launches, func() result { return run(s.ctx) }), success
}

// An event is a CUevent. It stands for the last operation that it was recorded behind; in a
// capture, for the nodes that were then the last ones of the stream.
type event struct {
	ctx    *cudaContext
	flags  uint64
	last   *operation // of its last record
	cap    *capture   // recorded in a capture
	capped []*node
}

// eventNoTiming is CU_EVENT_DISABLE_TIMING.
const eventNoTiming = 2

// record records the event in a stream.
func (c *call) record(e *event, s *stream) result {
	if s.cap != nil {
		e.cap, e.capped = s.cap, append([]*node(nil), s.capLast...)
		return success
	}
	if r := s.ctx.status(); r != success {
		return r
	}
	e.cap = nil
	e.last = c.p.enqueue(s, nil, nil)
	return success
}

// recordContext records what all streams of a context are at.
func (c *call) recordContext(x *cudaContext, e *event) result {
	switch {
	case e.ctx != x:
		return errInvalidContext
	case c.p.capturing(x):
		return errCaptureUnsupported
	case x.status() != success:
		return x.status()
	}
	var waits []*operation
	for _, o := range x.all() {
		if o != nil && !o.over() {
			waits = append(waits, o)
		}
	}
	e.cap = nil
	e.last = c.p.enqueue(&stream{ctx: x, nonblocking: true}, waits, nil)
	return success
}

// waitEvent makes a stream wait for an event.
func (c *call) waitEvent(s *stream, e *event) result {
	if e.cap != nil {
		return e.cap.join(s, e.capped)
	}
	if s.cap != nil {
		return errCaptureIsolation
	}
	if e.last != nil && !e.last.over() {
		c.p.enqueue(s, []*operation{e.last}, nil)
	}
	return success
}

// query returns 0 or errNotReady.
func (e *event) query() result {
	switch {
	case e.cap != nil:
		return errCapturedEvent
	case e.last == nil || e.last.over():
		return e.ctx.status()
	}
	return errNotReady
}

// elapsed returns the milliseconds from e to f.
func (e *event) elapsed(f *event) (float32, result) {
	switch {
	case (e.flags|f.flags)&eventNoTiming != 0 || e.last == nil || f.last == nil:
		return 0, errInvalidHandle
	case !e.last.over() || !f.last.over():
		return 0, errNotReady
	}
	return float32(f.last.when.Sub(e.last.when).Seconds() * 1e3), success
}
