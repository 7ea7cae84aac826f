package sim

import "time"

// drvStreams are functions about streams and events.
func drvStreams() map[string]handler {
	destroyStream := func(c *call) result { return c.destroyStream(c.arg(0)) }
	destroyEvent := withObject(0, func(c *call, _ *event) result {
		delete(c.p.objects, c.arg(0))
		return success
	})
	elapsed := func(c *call) result { return c.elapsed(c.arg(0), c.arg(1), c.arg(2)) }
	record := withStream(1, func(c *call, s *stream) result {
		e, r := lookup[*event](c, c.arg(0))
		if r != success {
			return r
		}
		return c.record(e, s)
	})
	hostFunc := withStream(0, (*call).hostFunc)
	// A stream's properties: (stream, value).
	put32 := func(property func(s *stream) uint32) handler {
		return withStream(0, func(c *call, s *stream) result {
			c.put32(c.arg(1), property(s))
			return success
		})
	}
	put64 := func(property func(s *stream) uint64) handler {
		return withStream(0, func(c *call, s *stream) result {
			c.put64(c.arg(1), property(s))
			return success
		})
	}
	ctxOf := put64(func(s *stream) uint64 { return s.ctx.handle })
	return map[string]handler{
		"cuStreamCreate":             func(c *call) result { return c.createStream(c.arg(0), c.u32(1), 0) },
		"cuStreamCreateWithPriority": func(c *call) result { return c.createStream(c.arg(0), c.u32(1), int32(c.u32(2))) },
		"cuStreamDestroy":            destroyStream, "cuStreamDestroy_v2": destroyStream,
		"cuStreamSynchronize": withStream(0, (*call).streamSynchronize),
		"cuStreamQuery":       withStream(0, (*call).streamQuery),
		"cuStreamWaitEvent": withStream(0, func(c *call, s *stream) result {
			e, r := lookup[*event](c, c.arg(1))
			if r != success {
				return r
			}
			return c.waitEvent(s, e)
		}),
		"cuStreamAddCallback": withStream(0, (*call).addCallback),
		"cuStreamGetFlags":    put32(func(s *stream) uint32 { return uint32(bool32(s.nonblocking)) }),
		"cuStreamGetPriority": put32(func(s *stream) uint32 { return uint32(s.prio) }),
		"cuStreamGetCtx":      ctxOf, "cuStreamGetCtx_v2": ctxOf,
		"cuStreamGetDevice":      put32(func(s *stream) uint32 { return uint32(s.ctx.dev.ordinal) }),
		"cuStreamGetId":          put64(func(s *stream) uint64 { return s.id }),
		"cuStreamAttachMemAsync": func(c *call) result { return c.streamNothing(c.arg(0)) },
		"cuStreamCopyAttributes": ok, "cuStreamSetAttribute": ok, "cuStreamGetAttribute": func(c *call) result {
			c.write(c.arg(2), make([]byte, 64))
			return success
		},
		"cuStreamWriteValue32_v2": withStream(0, func(c *call, s *stream) result { return c.writeValue(s, 4) }),
		"cuStreamWriteValue64_v2": withStream(0, func(c *call, s *stream) result { return c.writeValue(s, 8) }),
		"cuStreamWaitValue32_v2":  withStream(0, func(c *call, s *stream) result { return c.waitValue(s, 4) }),
		"cuStreamWaitValue64_v2":  withStream(0, func(c *call, s *stream) result { return c.waitValue(s, 8) }),
		"cuEventCreate":           func(c *call) result { return c.createEvent(c.arg(0), uint64(c.u32(1))) },
		"cuEventDestroy":          destroyEvent, "cuEventDestroy_v2": destroyEvent,
		"cuEventRecord": record, "cuEventRecordWithFlags": record,
		"cuCtxRecordEvent": func(c *call) result {
			x, found := object[*cudaContext](c.p, c.arg(0))
			if !found {
				return errInvalidContext
			}
			e, r := lookup[*event](c, c.arg(1))
			if r != success {
				return r
			}
			return c.recordContext(x, e)
		},
		"cuEventQuery":       withObject(0, func(_ *call, e *event) result { return e.query() }),
		"cuEventSynchronize": withObject(0, (*call).eventSynchronize),
		"cuEventElapsedTime": elapsed, "cuEventElapsedTime_v2": elapsed,
		"cuLaunchHostFunc": hostFunc, "cuLaunchHostFunc_v2": hostFunc,
	}
}

// createStream makes a stream. Priorities are kept and read back; streams run beside each other in
// whatever order the machine has.
func (c *call) createStream(out uint64, flags uint32, prio int32) result {
	x, r := c.context()
	if r != success {
		return r
	}
	if flags > 1 {
		return errInvalidValue
	}
	s := c.p.newStream(x, flags == 1)
	s.prio = max(min(prio, 0), -5)
	if s.handle = c.p.add(s); s.handle == 0 {
		delete(x.streams, s)
		return errOutOfMemory
	}
	c.put64(out, s.handle)
	return success
}

// destroyStream takes the handle away; what is in the stream is still done.
func (c *call) destroyStream(h uint64) result {
	if _, r := c.context(); r != success {
		return r
	}
	s, good := object[*stream](c.p, h)
	if !good {
		return errInvalidHandle
	}
	delete(c.p.objects, h)
	if s.last != nil && !s.last.over() { // the context's synchronisation still has to know it
		x := s.ctx
		x.legacy.last = c.p.enqueue(&stream{ctx: x, nonblocking: true, last: s.last}, []*operation{x.lastLegacy()}, nil)
	}
	delete(s.ctx.streams, s)
	c.p.endChannel(s)
	return success
}

// lastLegacy is the legacy stream's last operation, one that is over if it has none.
func (x *cudaContext) lastLegacy() *operation {
	if x.legacy.last == nil {
		x.legacy.last = doneOperation()
	}
	return x.legacy.last
}

// doneOperation is an operation that was over from the start.
func doneOperation() *operation {
	o := &operation{done: make(chan struct{}), when: time.Now()}
	close(o.done)
	return o
}

// streamSynchronize and streamQuery make a capture of the stream invalid: there is nothing to wait for.
func (c *call) streamSynchronize(s *stream) result {
	if s.cap != nil {
		return c.invalidate(s)
	}
	return c.syncStream(s)
}

func (c *call) streamQuery(s *stream) result {
	if s.cap != nil {
		return c.invalidate(s)
	}
	if s.last != nil && !s.last.over() || s.isLegacy && len(s.before()) != 0 {
		return errNotReady
	}
	return s.ctx.status()
}

// addCallback is cuStreamAddCallback(stream, fn, data, flags): fn(stream, status, data).
func (c *call) addCallback(s *stream) result {
	h, fn, data := c.arg(0), c.arg(1), c.arg(2)
	if fn == 0 {
		return errInvalidValue
	}
	if s.cap != nil {
		return c.invalidate(s)
	}
	c.needHelper()
	p := c.p
	_, r := c.submit(s, &work{kind: nodeHost, run: func(x *cudaContext) result { return p.callHost(fn, h, uint64(x.status()), data) }})
	return r
}

// hostFunc is cuLaunchHostFunc(stream, fn, data).
func (c *call) hostFunc(s *stream) result {
	fn := c.arg(1)
	if fn == 0 {
		return errInvalidValue
	}
	c.needHelper()
	_, r := c.submit(s, c.hostWork(fn, c.arg(2)))
	return r
}

// hostWork is the work of calling a function of the program.
func (c *call) hostWork(fn, data uint64) *work {
	p := c.p
	w := &work{kind: nodeHost, host: [2]uint64{fn, data}}
	w.run = func(*cudaContext) result { return p.callHost(w.host[0], w.host[1]) }
	return w
}

// writeValue is cuStreamWriteValue(stream, address, value, flags).
func (c *call) writeValue(s *stream, size uint64) result {
	dst, v := c.arg(1), c.arg(2)
	b, _ := c.p.arena.bytes(dst, size)
	if b == nil || dst%size != 0 {
		return errInvalidValue
	}
	_, r := c.submit(s, &work{kind: nodeEmpty, run: func(*cudaContext) result {
		storeWord(b, v)
		return success
	}})
	return r
}

// waitValue is cuStreamWaitValue(stream, address, value, flags): flags 0 waits for
// at least the value in cyclic order, 1 for the value, 2 for a common bit. The program may write the
// value by a plain store to memory that it shares, of which nobody is told: the word is looked at again
// and again, until the program ends.
func (c *call) waitValue(s *stream, size uint64) result {
	addr, want, how := c.arg(1), c.arg(2), c.u32(3)&3
	b, _ := c.p.arena.bytes(addr, size)
	if b == nil || addr%size != 0 || how > 2 {
		return errInvalidValue
	}
	p := c.p
	_, r := c.submit(s, &work{kind: nodeEmpty, run: func(*cudaContext) result {
		for p.ctx.Err() == nil {
			v := loadWord(b)
			reached := int64(v-want) >= 0
			if size == 4 {
				reached = int32(uint32(v)-uint32(want)) >= 0
			}
			if how == 0 && reached || how == 1 && v == want || how == 2 && v&want != 0 {
				break
			}
			time.Sleep(20 * time.Microsecond)
		}
		return success
	}})
	return r
}

// createEvent makes an event; flags are those of CUevent_flags.
func (c *call) createEvent(out, flags uint64) result {
	x, r := c.context()
	if r != success {
		return r
	}
	if flags > 7 {
		return errInvalidValue
	}
	h := c.p.add(&event{ctx: x, flags: flags})
	if h == 0 {
		return errOutOfMemory
	}
	c.put64(out, h)
	return success
}

func (c *call) eventSynchronize(e *event) result {
	if e.cap != nil {
		return errCapturedEvent
	}
	c.wait(e.last)
	return e.ctx.status()
}

func (c *call) elapsed(out, from, to uint64) result {
	a, good := object[*event](c.p, from)
	b, good2 := object[*event](c.p, to)
	if !good || !good2 {
		return errInvalidHandle
	}
	ms, r := a.elapsed(b)
	if r == success {
		c.putF32(out, ms)
	}
	return r
}

// drvCaptures are functions about captures of streams.
func drvCaptures() map[string]handler {
	return map[string]handler{
		"cuStreamBeginCapture":        withStream(0, func(c *call, s *stream) result { return c.beginCapture(s, 0, nil, nil) }),
		"cuStreamBeginCapture_v2":     withStream(0, func(c *call, s *stream) result { return c.beginCapture(s, c.u32(1), nil, nil) }),
		"cuStreamBeginCaptureToGraph": withStream(0, (*call).captureToGraph),
		"cuStreamEndCapture":          withStream(0, (*call).streamEndCapture),
		"cuStreamIsCapturing": withStream(0, func(c *call, s *stream) result {
			c.put32(c.arg(1), captureStatus(s))
			return success
		}),
		"cuStreamGetCaptureInfo":               func(c *call) result { return c.captureInfo(0) },
		"cuStreamGetCaptureInfo_v2":            func(c *call) result { return c.captureInfo(2) },
		"cuStreamGetCaptureInfo_v3":            func(c *call) result { return c.captureInfo(3) },
		"cuThreadExchangeStreamCaptureMode":    (*call).exchangeMode,
		"cuStreamUpdateCaptureDependencies":    func(c *call) result { return c.updateCapture(3) },
		"cuStreamUpdateCaptureDependencies_v2": func(c *call) result { return c.updateCapture(4) },
	}
}

// captureToGraph is (stream, graph, nodes, edges, n, mode).
func (c *call) captureToGraph(s *stream) result {
	g, good := object[*graph](c.p, c.arg(1))
	if !good {
		return errInvalidValue
	}
	deps, r := c.nodes(c.arg(2), c.arg(4))
	if r != success {
		return r
	}
	return c.beginCapture(s, c.u32(5), g, deps)
}

func (c *call) streamEndCapture(s *stream) result {
	g, r := c.endCapture(s)
	if r != success {
		c.maybe64(c.arg(1), 0)
		return r
	}
	c.put64(c.arg(1), g.handle)
	return success
}

// captureStatus is 0 none, 1 active, 2 invalidated.
func captureStatus(s *stream) uint32 {
	switch {
	case s.cap == nil:
		return 0
	case s.cap.invalid:
		return 2
	}
	return 1
}

// captureInfo is (stream, status, id) and from version 2 on (…, graph,
// dependencies, count), from 3 on with edges before the count.
func (c *call) captureInfo(version int) result {
	s, r := c.stream(c.arg(0))
	if r != success {
		return r
	}
	c.put32(c.arg(1), captureStatus(s))
	if s.cap == nil {
		return success
	}
	c.maybe64(c.arg(2), s.cap.id)
	if version < 2 {
		return success
	}
	c.maybe64(c.arg(3), s.cap.g.handle)
	if c.arg(4) != 0 {
		m, r := c.p.arena.alloc(max(8*uint64(len(s.capLast)), 8), 8, "capture", internalMemory)
		if r != nil {
			return errOutOfMemory
		}
		for i, n := range s.capLast {
			storeWord(m.Data[8*i:8*i+8], n.handle)
		}
		c.put64(c.arg(4), m.Base)
	}
	if version == 3 {
		c.maybe64(c.arg(5), 0)
	}
	c.maybe64(c.arg(version+3), uint64(len(s.capLast)))
	return success
}

// exchangeMode is cuThreadExchangeStreamCaptureMode: the new mode is read from where the old one is
// written.
func (c *call) exchangeMode() result {
	mode := uint64(c.get32(c.arg(0)))
	if mode > 2 {
		return errInvalidValue
	}
	c.put32(c.arg(0), uint32(c.th.mode))
	c.th.mode = mode
	return success
}

// updateCapture is (stream, nodes, …, n, flags) with n as argument i-1.
func (c *call) updateCapture(i int) result {
	s, r := c.stream(c.arg(0))
	if r != success {
		return r
	}
	if s.cap == nil {
		return errIllegalState
	}
	deps, r := c.nodes(c.arg(1), c.arg(i-1))
	if r != success {
		return r
	}
	if c.u32(i) == 0 {
		deps = append(s.capLast, deps...)
	}
	s.capLast = deps
	return success
}
