package sim

import "maps"

// registerEntry is the entry by which programs register an image.
const registerEntry = "__cudaRegisterFatBinary"

// The runtime's registrations are bounded like all objects.
func (s *runtimeState) full() bool { return len(s.bins)+len(s.funcs)+len(s.vars) >= maxObjects }

// init makes the maps. Handles begin where no object's do.
func (s *runtimeState) init() {
	s.next = 0x5d00_0000_0000
	s.bins, s.funcs, s.vars = map[uint64]*fatBinary{}, map[uint64]hostName{}, map[uint64]hostName{}
}

// inherit copies the registrations of the parent of a fork, without what it has
// loaded.
func (s *runtimeState) inherit(parent *runtimeState) {
	parent.mu.Lock()
	defer parent.mu.Unlock()
	s.next = parent.next
	twin := map[*fatBinary]*fatBinary{}
	for h, b := range parent.bins {
		n := &fatBinary{wrapper: b.wrapper, caller: b.caller, ready: map[*cudaContext]bool{}}
		twin[b] = n
		s.bins[h] = n
	}
	move := func(m hostName) hostName { return hostName{twin[m.bin], m.name, m.ptr} }
	for _, b := range parent.bins {
		for _, m := range b.managed {
			twin[b].managed = append(twin[b].managed, move(m))
		}
	}
	for a, f := range parent.funcs {
		if twin[f.bin] != nil {
			s.funcs[a] = move(f)
		}
	}
	for a, v := range parent.vars {
		if twin[v.bin] != nil {
			s.vars[a] = move(v)
		}
	}
}

// set changes one of the maps.
func (s *runtimeState) set(m map[uint64]hostName, at uint64, v hostName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[at] = v
}

// rtRegistration are the functions that nvcc's constructors call. They need no
// CUDA that works: a program registers its kernels whether it comes to use them or not.
func rtRegistration() map[string]handler {
	return map[string]handler{
		registerEntry: func(c *call) result {
			s := &c.p.rt
			if s.full() {
				return c.returns(0)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.next += 64
			s.bins[s.next] = &fatBinary{wrapper: c.arg(0), caller: c.req.caller, ready: map[*cudaContext]bool{}}
			return c.returns(s.next)
		},
		"__cudaRegisterFatBinaryEnd": ok, "__cudaRegisterUnifiedTable": ok, "__cudaRegisterHostVar": ok,
		"__cudaUnregisterFatBinary": func(c *call) result {
			s := &c.p.rt
			if b := s.bins[c.arg(0)]; b != nil {
				if b.lib != nil {
					c.unloadLibrary(b.lib)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.bins, c.arg(0))
				maps.DeleteFunc(s.funcs, func(_ uint64, f hostName) bool { return f.bin == b })
				maps.DeleteFunc(s.vars, func(_ uint64, v hostName) bool { return v.bin == b })
			}
			return success
		},
		"__cudaRegisterFunction": func(c *call) result {
			if b, name, good := c.registered(); good {
				c.p.rt.set(c.p.rt.funcs, c.arg(1), hostName{b, name, 0})
			}
			return success
		},
		"__cudaRegisterVar": func(c *call) result {
			if b, name, good := c.registered(); good {
				c.p.rt.set(c.p.rt.vars, c.arg(1), hostName{b, name, 0})
			}
			return success
		},
		"__cudaRegisterManagedVar": func(c *call) result {
			if b, name, good := c.registered(); good {
				v := hostName{b, name, c.arg(1)}
				c.p.rt.set(c.p.rt.vars, c.arg(1), v)
				c.p.rt.set(c.p.rt.vars, c.arg(2), v)
				c.p.rt.mu.Lock()
				b.managed = append(b.managed, v)
				c.p.rt.mu.Unlock()
			}
			return success
		},
		"__cudaInitModule": func(c *call) result {
			b := c.p.rt.bins[c.arg(0)]
			if b == nil {
				return c.returns(0)
			}
			_, r := c.binModule(b)
			c.keep(r)
			return c.returns(uint64(bool32(r == success)))
		},
		"__cudaGetKernel": func(c *call) result {
			if _, known := c.p.rt.funcs[c.arg(1)]; !known {
				return c.keep(errInvalidDeviceFunction)
			}
			// The stub's address is the handle: it stays good in a child after fork.
			c.put64(c.arg(0), c.arg(1))
			return success
		},
	}
}

// registered reads what is common to registrations: handle, -, -, device name.
func (c *call) registered() (*fatBinary, string, bool) {
	b := c.p.rt.bins[c.arg(0)]
	if b == nil || c.p.rt.full() {
		return nil, "", false
	}
	name, good := c.cstring(c.arg(3))
	return b, name, good
}

// library loads a registered image. Hooks are told of it as an image that the registration gave,
// not the call in which it is loaded, which can be any.
func (c *call) library(b *fatBinary) (*codeLibrary, result) {
	if b.lib != nil {
		return b.lib, success
	}
	r := c.through(&underlying{name: "cuLibraryLoadData", args: []uint64{0, b.wrapper, 0, 0, 0, 0, 0, 0}, into: 1, blob: make([]byte, 8)}, func(args [6]uint64) result {
		if b.lib != nil {
			return success // another thread has come first
		}
		c.given = b
		defer func() { c.given = nil }()
		l, r := c.newLibrary(b.wrapper)
		c.loaded(0, r) // what failed; the call may have other images
		if r != success {
			return r
		}
		b.lib = l
		c.maybe64(args[0], l.handle)
		return success
	})
	if r != success {
		return nil, r
	}
	return b.lib, success
}

// binModule returns a registered image's module in the current context, with the
// addresses of its managed variables told.
func (c *call) binModule(b *fatBinary) (*module, result) {
	x, r := c.context()
	if r != success {
		return nil, r
	}
	l, r := c.library(b)
	if r != success {
		return nil, r
	}
	m, r := c.moduleIn(l, x)
	if r == success && !b.ready[x] {
		b.ready[x] = true
		for _, v := range b.managed {
			if d, found := m.emu.Variable(v.name); found {
				c.put64(v.ptr, d.Addr)
			}
		}
	}
	return m, r
}

// hostFunction returns the function of a kernel as the runtime's API names it: the
// address of its stub, a cudaKernel_t or a cudaFunction_t.
func (c *call) hostFunction(h uint64) (*function, result) {
	f, known := c.p.rt.funcs[h]
	if !known {
		fn, r := c.resolve(h)
		if r == errInvalidHandle && c.lib == libCudart12 {
			r = errInvalidDeviceFunction // that of CUDA 13 says invalid handle, as seen on an H200
		}
		return fn, r
	}
	if _, r := c.binModule(f.bin); r != success {
		return nil, r
	}
	k, r := c.registeredKernel(f)
	if r == errNotFound {
		r = errInvalidDeviceFunction
	}
	if r != success {
		return nil, r
	}
	x, r := c.context()
	if r != success {
		return nil, r
	}
	return c.functionOf(k, x)
}

// registeredKernel returns a kernel of a library that is loaded.
func (c *call) registeredKernel(f hostName) (*kernel, result) {
	if k := f.bin.lib.kernels[f.name]; k != nil {
		return k, success
	}
	var k *kernel
	r := c.through(&underlying{name: "cuLibraryGetKernel", args: []uint64{0, f.bin.lib.handle, c.p.text(f.name)}, into: 1, blob: make([]byte, 8)}, func(args [6]uint64) (r result) {
		if k, r = c.kernel(f.bin.lib, f.name); r == success {
			c.maybe64(args[0], k.handle)
		}
		return r
	})
	return k, r
}

// symbol returns the address and size of a device variable.
func (c *call) symbol(h uint64) (addr, size uint64, r result) {
	v, known := c.p.rt.vars[h]
	if !known {
		return 0, 0, errInvalidSymbol
	}
	m, r := c.binModule(v.bin)
	if r != success {
		return 0, 0, r
	}
	d, found := m.emu.Variable(v.name)
	if !found {
		return 0, 0, errInvalidSymbol
	}
	return d.Addr, d.Size, success
}

// keep remembers an error for cudaGetLastError. Every function of the runtime that returns an
// error goes through it, except those that ask for the last one, and registrations.
func (c *call) keep(r result) result {
	if r == success && c.bad {
		r = errInvalidValue
	}
	if r != success {
		c.th.lastErr = r
	}
	return r
}
