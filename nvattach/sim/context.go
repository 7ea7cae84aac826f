package sim

import (
	"slices"
	"sync"
)

// current returns the thread's current context, nil if there is none.
func (t *thread) current() *cudaContext {
	if len(t.stack) == 0 {
		return nil
	}
	return t.stack[len(t.stack)-1]
}

// setCurrent replaces the current context; nil pops it.
func (t *thread) setCurrent(x *cudaContext) {
	switch {
	case x == nil && len(t.stack) > 0:
		t.stack = t.stack[:len(t.stack)-1]
	case x == nil:
	case len(t.stack) == 0:
		t.stack = append(t.stack, x)
	default:
		t.stack[len(t.stack)-1] = x
	}
}

// initialise is cuInit.
func (p *Process) initialise() result {
	if p.poisoned {
		return errNotInitialized
	}
	p.inited = true
	return success
}

// context returns the context that a call works in. The runtime makes the
// device's primary one if the thread has none.
func (c *call) context() (*cudaContext, result) {
	p := c.p
	if c.entry.runtime {
		if r := p.initialise(); r != success {
			return nil, r
		}
		if x := c.th.current(); x != nil && !x.destroyed {
			return x, x.status()
		}
		x := p.primary(p.devices[c.th.device])
		c.th.setCurrent(x)
		return x, x.status()
	}
	if !p.inited {
		return nil, errNotInitialized
	}
	x := c.th.current()
	if x == nil || x.destroyed {
		return nil, errInvalidContext
	}
	return x, x.status()
}

// newContext makes a context of a device.
func (p *Process) newContext(d *device) *cudaContext {
	x := &cudaContext{dev: d, perThread: map[uint64]*stream{}, streams: map[*stream]bool{}, limits: defaultLimits(), modules: map[*module]bool{}}
	x.legacy = p.newStream(x, false)
	x.legacy.isLegacy = true
	if x.handle = p.add(x); x.handle == 0 {
		return nil
	}
	return x
}

// defaultLimits are the values of CUlimit: stack size, printf's buffer, heap, …
func defaultLimits() map[uint32]uint64 {
	return map[uint32]uint64{0: 1024, 1: 1 << 20, 2: 8 << 20, 3: 2, 4: 2048, 5: 64, 6: 0}
}

// primary returns the device's primary context, made on first use.
func (p *Process) primary(d *device) *cudaContext {
	if d.primary == nil || d.primary.destroyed {
		d.primary = p.newContext(d)
		d.primary.primary, d.primary.flags = true, d.flags
	}
	return d.primary
}

// destroy ends a context: its work is waited for, its modules are unloaded.
func (c *call) destroy(x *cudaContext) {
	c.sync(x)
	if x.destroyed {
		return // by another thread meanwhile
	}
	x.destroyed = true
	for m := range x.modules {
		m.unload()
	}
	for h, o := range c.p.objects {
		switch o := o.(type) {
		case *stream:
			if o.ctx == x {
				delete(c.p.objects, h)
			}
		case *event:
			if o.ctx == x {
				delete(c.p.objects, h)
			}
		case *function:
			if o.mod.ctx == x {
				delete(c.p.objects, h)
			}
		case *module:
			if o.ctx == x {
				delete(c.p.objects, h)
			}
		}
	}
	delete(c.p.objects, x.handle)
	for _, t := range c.p.threads {
		t.stack = slices.DeleteFunc(t.stack, func(y *cudaContext) bool { return y == x })
	}
}

// freeMemoryOf gives back what the program allocated on a device.
func (c *call) freeMemoryOf(d *device) {
	a := c.p.arena
	a.mu.RLock()
	var rs []*region
	for _, r := range a.regions {
		if r.dev == d.ordinal && r.Name == userAllocation {
			rs = append(rs, r)
		}
	}
	a.mu.RUnlock()
	for _, r := range rs {
		c.release(r)
	}
}

// deviceOf returns the device with a driver's ordinal.
func (c *call) deviceOf(ordinal uint64) (*device, result) {
	if !c.p.inited && !c.entry.runtime {
		return nil, errNotInitialized
	}
	if int64(int32(ordinal)) < 0 || int(int32(ordinal)) >= len(c.p.devices) {
		return nil, errInvalidDevice
	}
	return c.p.devices[int32(ordinal)], success
}

// printfBuffer collects what kernels print until a call that synchronises.
type printfBuffer struct {
	mu   sync.Mutex
	text []byte
}

const printfMax = 16 << 20

// Write implements [io.Writer]. As on a GPU, what does not fit is lost.
func (b *printfBuffer) Write(t []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.text)+len(t) <= printfMax {
		b.text = append(b.text, t...)
	}
	return len(t), nil
}

func (b *printfBuffer) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.text
	b.text = nil
	return t
}
