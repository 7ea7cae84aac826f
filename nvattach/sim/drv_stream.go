package sim

import "time"

func drvStreams() map[string]handler {
	destroyStream := func(c *call) result { return c.destroyStream(c.arg(0)) }
	destroyEvent := func(c *call) result { return c.destroyEvent(c.arg(0)) }
	elapsed := func(c *call) result { return c.elapsed(c.arg(0), c.arg(1), c.arg(2)) }
	ctxOf := func(c *call) result {
		s, r := c.stream(c.arg(0))
		if r == success {
			c.put64(c.arg(1), s.ctx.handle)
		}
		return r
	}
	return map[string]handler{
		"cuStreamCreate":             func(c *call) result { return c.createStream(c.arg(0), c.u32(1), 0) },
		"cuStreamCreateWithPriority": func(c *call) result { return c.createStream(c.arg(0), c.u32(1), int32(c.u32(2))) },
		"cuStreamDestroy":            destroyStream, "cuStreamDestroy_v2": destroyStream,
		"cuStreamSynchronize": func(c *call) result { return c.streamSynchronize(c.arg(0)) },
		"cuStreamQuery":       func(c *call) result { return c.streamQuery(c.arg(0)) },
		"cuStreamWaitEvent":   func(c *call) result { return c.streamWaitEvent(c.arg(0), c.arg(1)) },
		"cuStreamAddCallback": func(c *call) result { return c.addCallback(c.arg(0), c.arg(1), c.arg(2)) },
		"cuStreamGetFlags":    func(c *call) result { return c.streamFlags(c.arg(0), c.arg(1)) },
		"cuStreamGetPriority": func(c *call) result { return c.streamPriority(c.arg(0), c.arg(1)) },
		"cuStreamGetCtx":      ctxOf,
		"cuStreamGetCtx_v2":   ctxOf,
		"cuStreamGetDevice": func(c *call) result {
			s, r := c.stream(c.arg(0))
			if r == success {
				c.put32(c.arg(1), uint32(s.ctx.dev.ordinal))
			}
			return r
		},
		"cuStreamGetId":          func(c *call) result { return c.streamID(c.arg(0), c.arg(1)) },
		"cuStreamAttachMemAsync": func(c *call) result { return c.streamNothing(c.arg(0)) },
		"cuStreamCopyAttributes": ok, "cuStreamSetAttribute": ok, "cuStreamGetAttribute": func(c *call) result {
			c.write(c.arg(2), make([]byte, 64))
			return success
		},
		"cuStreamWriteValue32_v2": func(c *call) result { return c.writeValue(4) },
		"cuStreamWriteValue64_v2": func(c *call) result { return c.writeValue(8) },
		"cuStreamWaitValue32_v2":  func(c *call) result { return c.waitValue(4) },
		"cuStreamWaitValue64_v2":  func(c *call) result { return c.waitValue(8) },
		"cuEventCreate":           func(c *call) result { return c.createEvent(c.arg(0), uint64(c.u32(1))) },
		"cuEventDestroy":          destroyEvent, "cuEventDestroy_v2": destroyEvent,
		"cuEventRecord":          func(c *call) result { return c.eventRecord(c.arg(0), c.arg(1)) },
		"cuEventRecordWithFlags": func(c *call) result { return c.eventRecord(c.arg(0), c.arg(1)) },
		"cuEventQuery": func(c *call) result {
			e, good := object[*event](c.p, c.arg(0))
			if !good {
				return errInvalidHandle
			}
			return e.query()
		},
		"cuEventSynchronize": func(c *call) result { return c.eventSynchronize(c.arg(0)) },
		"cuEventElapsedTime": elapsed, "cuEventElapsedTime_v2": elapsed,
		"cuLaunchHostFunc_v2": func(c *call) result { return c.hostFunc(c.arg(0), c.arg(1), c.arg(2)) },
		"cuLaunchHostFunc":    func(c *call) result { return c.hostFunc(c.arg(0), c.arg(1), c.arg(2)) },
	}
}

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

func (c *call) streamSynchronize(h uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	if s.cap != nil {
		return c.invalidate(s)
	}
	return c.syncStream(s)
}

func (c *call) streamQuery(h uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	if s.cap != nil {
		return c.invalidate(s)
	}
	if s.last != nil && !s.last.over() || s.isLegacy && len(s.before()) != 0 {
		return errNotReady
	}
	return s.ctx.status()
}

func (c *call) streamWaitEvent(h, ev uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	e, good := object[*event](c.p, ev)
	if !good {
		return errInvalidHandle
	}
	return c.waitEvent(s, e)
}

// addCallback is cuStreamAddCallback: fn(stream, status, data).
func (c *call) addCallback(h, fn, data uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	if fn == 0 {
		return errInvalidValue
	}
	if s.cap != nil {
		return c.invalidate(s)
	}
	c.needHelper()
	p := c.p
	_, r = c.submit(s, &work{kind: nodeHost, run: func(x *cudaContext) result { return p.callHost(fn, h, uint64(x.status()), data) }})
	return r
}

// hostFunc is cuLaunchHostFunc: fn(data).
func (c *call) hostFunc(h, fn, data uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	if fn == 0 {
		return errInvalidValue
	}
	c.needHelper()
	_, r = c.submit(s, c.hostWork(fn, data))
	return r
}

func (c *call) hostWork(fn, data uint64) *work {
	p := c.p
	w := &work{kind: nodeHost, host: [2]uint64{fn, data}}
	w.run = func(*cudaContext) result { return p.callHost(w.host[0], w.host[1]) }
	return w
}

func (c *call) streamFlags(h, out uint64) result {
	s, r := c.stream(h)
	if r == success {
		c.put32(out, uint32(bool32(s.nonblocking)))
	}
	return r
}

func (c *call) streamPriority(h, out uint64) result {
	s, r := c.stream(h)
	if r == success {
		c.put32(out, uint32(s.prio))
	}
	return r
}

func (c *call) streamID(h, out uint64) result {
	s, r := c.stream(h)
	if r == success {
		c.put64(out, s.id)
	}
	return r
}

// writeValue is cuStreamWriteValue(stream, address, value, flags).
func (c *call) writeValue(size uint64) result {
	s, r := c.stream(c.arg(0))
	if r != success {
		return r
	}
	dst, v := c.arg(1), c.arg(2)
	b, _ := c.p.arena.bytes(dst, size)
	if b == nil || dst%size != 0 {
		return errInvalidValue
	}
	_, r = c.submit(s, &work{kind: nodeEmpty, run: func(*cudaContext) result {
		storeWord(b, v)
		return success
	}})
	return r
}

// waitValue is cuStreamWaitValue(stream, address, value, flags): flags 0 waits for
// at least the value in cyclic order, 1 for the value, 2 for a common bit.
func (c *call) waitValue(size uint64) result {
	s, r := c.stream(c.arg(0))
	if r != success {
		return r
	}
	addr, want, how := c.arg(1), c.arg(2), c.u32(3)&3
	b, _ := c.p.arena.bytes(addr, size)
	if b == nil || addr%size != 0 || how > 2 {
		return errInvalidValue
	}
	p := c.p
	_, r = c.submit(s, &work{kind: nodeEmpty, run: func(*cudaContext) result {
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

func (c *call) destroyEvent(h uint64) result {
	if _, good := object[*event](c.p, h); !good {
		return errInvalidHandle
	}
	delete(c.p.objects, h)
	return success
}

func (c *call) eventRecord(ev, h uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	e, good := object[*event](c.p, ev)
	if !good {
		return errInvalidHandle
	}
	return c.record(e, s)
}

func (c *call) eventSynchronize(h uint64) result {
	e, good := object[*event](c.p, h)
	if !good {
		return errInvalidHandle
	}
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

func drvCaptures() map[string]handler {
	begin := func(c *call) result {
		s, r := c.stream(c.arg(0))
		if r != success {
			return r
		}
		return c.beginCapture(s, c.u32(1), nil, nil)
	}
	return map[string]handler{
		"cuStreamBeginCapture": func(c *call) result {
			s, r := c.stream(c.arg(0))
			if r != success {
				return r
			}
			return c.beginCapture(s, 0, nil, nil)
		},
		"cuStreamBeginCapture_v2":              begin,
		"cuStreamBeginCaptureToGraph":          func(c *call) result { return c.captureToGraph() },
		"cuStreamEndCapture":                   func(c *call) result { return c.streamEndCapture(c.arg(0), c.arg(1)) },
		"cuStreamIsCapturing":                  func(c *call) result { return c.isCapturing(c.arg(0), c.arg(1)) },
		"cuStreamGetCaptureInfo":               func(c *call) result { return c.captureInfo(0) },
		"cuStreamGetCaptureInfo_v2":            func(c *call) result { return c.captureInfo(2) },
		"cuStreamGetCaptureInfo_v3":            func(c *call) result { return c.captureInfo(3) },
		"cuThreadExchangeStreamCaptureMode":    func(c *call) result { return c.exchangeMode() },
		"cuStreamUpdateCaptureDependencies":    func(c *call) result { return c.updateCapture(3) },
		"cuStreamUpdateCaptureDependencies_v2": func(c *call) result { return c.updateCapture(4) },
	}
}

// captureToGraph is (stream, graph, nodes, edges, n, mode).
func (c *call) captureToGraph() result {
	s, r := c.stream(c.arg(0))
	if r != success {
		return r
	}
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

func (c *call) streamEndCapture(h, out uint64) result {
	s, r := c.stream(h)
	if r != success {
		return r
	}
	g, r := c.endCapture(s)
	if r != success {
		c.maybe64(out, 0)
		return r
	}
	c.put64(out, g.handle)
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

func (c *call) isCapturing(h, out uint64) result {
	s, r := c.stream(h)
	if r == success {
		c.put32(out, captureStatus(s))
	}
	return r
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
