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

// initialise is cuInit. A child that was forked from a process which had initialised CUDA
// gets CUDA_ERROR_NOT_INITIALIZED for good, which is what the driver says.
func (p *Process) initialise() result {
	if p.poisoned {
		return errNotInitialized
	}
	p.inited = true
	return success
}

// ready succeeds once the program has called cuInit, which the runtime does by
// itself.
func (c *call) ready() result {
	switch {
	case c.entry.runtime:
		return c.p.initialise()
	case !c.p.inited:
		return errNotInitialized
	}
	return success
}

// newContext makes a context of a device; it has no handle yet.
func (p *Process) newContext(d *device) *cudaContext {
	x := &cudaContext{dev: d, perThread: map[uint64]*stream{}, streams: map[*stream]bool{}, limits: defaultLimits(), modules: map[*module]bool{}}
	x.legacy = p.newStream(x, false)
	x.legacy.isLegacy = true
	return x
}

// defaultLimits are the values of CUlimit (cuda.h), by number: stack size, printf's buffer,
// malloc's heap, depth of synchronisation, pending launches, bytes of an L2 fetch, persisting L2.
func defaultLimits() map[uint32]uint64 {
	return map[uint32]uint64{0: 1024, 1: 1 << 20, 2: 8 << 20, 3: 2, 4: 2048, 5: 64, 6: 0}
}

// primary returns the device's primary context, made on first use.
func (p *Process) primary(d *device) *cudaContext {
	if d.primary == nil || d.primary.destroyed {
		x := p.newContext(d)
		x.primary, x.flags = true, d.flags
		x.handle = p.name(x) // also where there are too many objects: it is one a device
		d.primary = x
	}
	return d.primary
}

// endPrimary ends the device's primary context, if there is one, with what was
// allocated on the device: cudaDeviceReset, or the last cuDevicePrimaryCtxRelease. Waiting for the
// context gives up the lock, so that another thread may have come first.
func (c *call) endPrimary(d *device) {
	x := d.primary
	if x == nil {
		return
	}
	c.destroy(x)
	if d.primary == x { // else another thread did it meanwhile
		c.freeMemoryOf(d)
		d.primary = nil
	}
}

// destroy ends a context: its work is waited for, its modules are unloaded, and handles of
// what was made in it mean nothing from then on. All objects are looked through, as programs
// destroy contexts rarely.
func (c *call) destroy(x *cudaContext) {
	c.sync(x)
	if x.destroyed {
		return // by another thread meanwhile
	}
	x.destroyed = true
	for m := range x.modules {
		m.unload()
	}
	for s := range x.streams {
		c.p.endChannel(s)
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

// freeMemoryOf gives back what the program allocated on a device. Memory that it has mapped is no context's, and stays.
func (c *call) freeMemoryOf(d *device) {
	a := c.p.arena
	a.mu.RLock()
	var rs []*region
	for _, r := range a.regions {
		if r.dev == d.ordinal && r.Name == userAllocation && r.kind != mappedMemory {
			rs = append(rs, r)
		}
	}
	a.mu.RUnlock()
	for _, r := range rs {
		c.release(r)
	}
	for _, o := range c.p.objects {
		if a, ok := o.(*array); ok && a.dev == d.ordinal && a.of == nil {
			c.p.endArray(a)
		}
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

// printfBuffer collects what kernels print until a call that synchronises, which is when a
// driver copies its buffer to stdout. It is written to by goroutines of kernels.
type printfBuffer struct {
	mu   sync.Mutex
	text []byte
}

// printfMax bounds what is kept of it, in bytes, whatever cuCtxSetLimit says.
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
