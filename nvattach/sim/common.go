package sim

import (
	"slices"
	"strings"
)

// context returns the context that a call works in. The runtime makes the
// device's primary one if the thread has none.
func (c *call) context() (*cudaContext, result) {
	if r := c.ready(); r != success {
		return nil, r
	}
	x := c.th.current()
	switch {
	case x != nil && !x.destroyed:
	case c.entry.runtime:
		x = c.p.primary(c.p.devices[c.th.device])
		c.th.setCurrent(x)
	default:
		return nil, errInvalidContext
	}
	return x, x.status()
}

// unsafe refuses calls that may not be made during a capture whose mode says so: an
// allocation, for one, might wait for the stream. A global capture forbids them to all threads, one
// of a thread to that thread; a thread can lift that for itself
// (cuThreadExchangeStreamCaptureMode), which is its mode.
func (c *call) unsafe() result {
	x := c.th.current()
	if x == nil || c.th.mode == 2 {
		return success
	}
	for s := range x.streams {
		if k := s.cap; k != nil && k.origin == s && k.mode != 2 && (k.thread == c.th.id || k.mode == 0 && c.th.mode == 0) {
			k.invalid = true
			return errCaptureUnsupported
		}
	}
	return success
}

// sync waits for everything in the context and returns its state.
func (c *call) sync(x *cudaContext) result {
	c.wait(x.all()...)
	return x.status()
}

// stream returns the stream of a handle, creating the special ones: 1 is CU_STREAM_LEGACY, 2
// CU_STREAM_PER_THREAD, and 0 either, by whether the entry is one of those for programs that were
// compiled with --default-stream per-thread (_ptsz, _ptds).
func (c *call) stream(h uint64) (*stream, result) {
	x, r := c.context()
	if r != success {
		return nil, r
	}
	if h == 0 {
		if h = 1; c.entry.ptds {
			h = 2
		}
	}
	switch h {
	case 1:
		return x.legacy, success
	case 2:
		s := x.perThread[c.th.id]
		if s == nil {
			if len(x.perThread) >= maxThreads {
				return nil, errOutOfMemory
			}
			s = c.p.newStream(x, false)
			x.perThread[c.th.id] = s
		}
		return s, success
	}
	s, ok := object[*stream](c.p, h)
	if !ok {
		return nil, errInvalidHandle
	}
	return s, success
}

// needsContext succeeds in a context; for settings that mean nothing here.
func needsContext(c *call) result {
	_, r := c.context()
	return r
}

// ok is the handler of what needs no doing.
func ok(*call) result { return success }

// entryAddr returns where the program has an entry; 0 if it has not.
func (p *Process) entryAddr(lib int, symbol string) uint64 {
	i, has := p.sim.cat.index[lib][symbol]
	if !has || p.libs[lib] == 0 {
		return 0
	}
	return p.libs[lib] + 16*uint64(i)
}

// hint adds a hint, once. Hints are sentences for the user, about what can't work and how it would.
func (s *Sim) hint(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.report.Hints) < reportMax && !slices.Contains(s.report.Hints, text) {
		s.report.Hints = append(s.report.Hints, text)
	}
}

// lookup finds the export for a name as cuGetProcAddress takes it: the newest
// that the CUDA version has. ok is false if the name is unknown, found if it is
// known but newer.
func (c *catalog) lookup(name string, cuda int, ptds bool) (symbol string, found, ok bool) {
	vs := c.versions[name]
	for _, v := range vs {
		isPtds := strings.HasSuffix(v.symbol, "_ptsz") || strings.HasSuffix(v.symbol, "_ptds")
		if v.since <= cuda && (!isPtds || ptds) {
			symbol = v.symbol
		}
	}
	if ptds && symbol != "" && !strings.HasSuffix(symbol, "_ptsz") && !strings.HasSuffix(symbol, "_ptds") {
		for _, suffix := range []string{"_ptsz", "_ptds"} {
			if _, has := c.index[libCUDA][symbol+suffix]; has {
				symbol += suffix
				break
			}
		}
	}
	return symbol, len(vs) != 0, symbol != ""
}
