package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nvtrace/ptrace/proc"
	"nvtrace/ptx/emu"
)

// The special values of cuLaunchKernel's extra list.
const (
	launchParamEnd     = 0
	launchParamPointer = 1
	launchParamSize    = 2
)

// gather reads a kernel's parameters: args is an array of pointers to them, extra a
// list that has them in one buffer.
func (c *call) gather(f *function, args, extra uint64) ([]byte, result) {
	params := make([]byte, f.k.ParamBytes())
	list := f.k.Params()
	switch {
	case len(list) == 0:
		return params, success
	case args != 0:
		ptrs := c.words(args, len(list))
		if c.bad {
			return nil, errInvalidValue
		}
		// Mostly they lie side by side on the caller's stack: one read gets all.
		lo, hi := ptrs[0], uint64(0)
		for i, a := range ptrs {
			lo, hi = min(lo, a), max(hi, a+list[i].Size)
		}
		if hi-lo <= 8192 {
			b := make([]byte, hi-lo)
			if _, err := c.p.mem.ReadMem(lo, b); err == nil {
				for i, a := range ptrs {
					copy(params[list[i].Offset:][:list[i].Size], b[a-lo:])
				}
				return params, success
			}
		}
		for i, a := range ptrs {
			if !c.read(a, params[list[i].Offset:][:list[i].Size]) {
				return nil, errInvalidValue
			}
		}
		return params, success
	case extra != 0:
		return c.gatherExtra(params, extra)
	}
	return nil, errInvalidValue
}

// gatherExtra reads the parameters that cuLaunchKernel's extra leads to: pairs of a key and a
// value, up to CU_LAUNCH_PARAM_END. The buffer has the layout that the kernel's parameters have.
func (c *call) gatherExtra(params []byte, extra uint64) ([]byte, result) {
	var buf, size uint64
	for i := uint64(0); ; i += 2 {
		key := c.get64(extra + 8*i)
		if c.bad || i > 16 {
			return nil, errInvalidValue
		}
		if key == launchParamEnd {
			break
		}
		v := c.get64(extra + 8*i + 8)
		switch key {
		case launchParamPointer:
			buf = v
		case launchParamSize:
			size = c.get64(v)
		default:
			return nil, errInvalidValue
		}
	}
	if buf == 0 || size > 1<<16 || size < uint64(len(params)) {
		return nil, errInvalidValue
	}
	c.read(buf, params)
	return params, success
}

// checkLaunch compares a launch with the limits of device and kernel. Programs look for the
// largest block that can be launched by trying, so each limit has the error that a driver gives.
func (c *call) checkLaunch(l *launch) result {
	g := &c.p.sim.gpu
	bad := errInvalidValue
	if c.lib == libCudart12 {
		bad = errInvalidConfiguration // that of CUDA 13 gives what the driver gives, as seen on an H200
	}
	for _, d := range []emu.Dim3{l.grid, l.block} {
		if d.X == 0 || d.Y == 0 || d.Z == 0 {
			return bad
		}
	}
	threads := uint64(l.block.X) * uint64(l.block.Y) * uint64(l.block.Z)
	if l.block.X > 1024 || l.block.Y > 1024 || l.block.Z > 64 || threads > maxThreadsPerBlock {
		return bad
	}
	if l.grid.X > maxGridX || l.grid.Y > maxGridYZ || l.grid.Z > maxGridYZ {
		return bad
	}
	if n, _ := l.f.attribute(g, 0); threads > uint64(n) {
		return errInvalidValue // beyond __launch_bounds__, as seen on an H200
	}
	if n, _ := l.f.attribute(g, attrMaxDynamicShared); int64(l.shared) > int64(n) {
		return errInvalidValue
	}
	if l.cluster != (emu.Dim3{}) {
		k := l.cluster
		if g.Major < 9 || k.X == 0 || k.Y == 0 || k.Z == 0 || l.grid.X%k.X != 0 || l.grid.Y%k.Y != 0 || l.grid.Z%k.Z != 0 || uint64(k.X)*uint64(k.Y)*uint64(k.Z) > 16 {
			return errInvalidValue
		}
	}
	if n := g.RegistersPerBlock; n > 0 && int((threads+31)/32*32)*((l.f.registers()+7)/8*8) > n {
		return errOutOfResources
	}
	if l.cooperative {
		blocks := uint64(l.grid.X) * uint64(l.grid.Y) * uint64(l.grid.Z)
		if blocks > uint64(g.SMs*g.Occupancy(threads, l.f.k.SharedBytes()+uint64(l.shared), l.f.registers())) {
			return errCooperativeTooLarge
		}
	}
	return success
}

// checkInstead is checkLaunch, and puts a kernel that can be launched in the place of
// one that takes too many registers or too much shared memory, if there is one.
func (c *call) checkInstead(l *launch) result {
	r := c.checkLaunch(l)
	if r != errOutOfResources && r != errInvalidValue {
		return r
	}
	f := c.instead(l.f)
	if f == nil {
		return r
	}
	other, name := *l, l.f.name
	other.f = f
	if c.checkLaunch(&other) != success {
		return r
	}
	l.f = f
	if h := c.p.sim.opts.Hooks; h.Replaced != nil {
		h.Replaced(c.p, name, r == errInvalidValue)
	}
	return success
}

// instead returns a function that may take the place of one that was refused something, with the
// attributes of that; nil if there is none.
func (c *call) instead(f *function) *function {
	h := c.p.sim.opts.Hooks
	if h == nil || h.Instead == nil {
		return nil
	}
	name := h.Instead(c.p, f.name)
	if name == "" {
		return nil
	}
	other, r := c.function(f.mod, name)
	if r != success {
		return nil
	}
	most, set := other.attrs[attrMaxDynamicShared]
	maps.Copy(other.attrs, f.attrs)
	if set && most > other.attrs[attrMaxDynamicShared] { // which f was refused
		other.attrs[attrMaxDynamicShared] = most
	}
	return other
}

// setAttribute sets a CUfunction_attribute of a function, or of what may take its place.
func (c *call) setAttribute(f *function, id uint32, v int32) result {
	g := &c.p.sim.gpu
	r := setAttribute(g, f.attrs, f.k.SharedBytes(), id, v)
	if r != errInvalidValue || id != attrMaxDynamicShared || v < 0 {
		return r
	}
	if other := c.instead(f); other != nil {
		return setAttribute(g, other.attrs, other.k.SharedBytes(), id, v)
	}
	return r
}

// launch puts a kernel into a stream.
func (c *call) launch(s *stream, l *launch) result {
	if r := c.checkInstead(l); r != success {
		return r
	}
	p := c.p
	l.tid = int(c.th.id)
	w := &work{kind: nodeKernel, launch: l}
	w.kernel = func(x *cudaContext, id uint64) result { return p.execute(x, w.launch, id) }
	w.run = func(x *cudaContext) result { return w.kernel(x, 0) }
	o, r := c.submit(s, w)
	if r == success && p.blocking() {
		c.wait(o)
	}
	return r
}

// blocking reports whether the program's environment has launches wait for their kernels.
func (p *Process) blocking() bool {
	p.blocks.once.Do(func() {
		for _, v := range proc.Environ(p.pid) {
			if value, ok := strings.CutPrefix(v, "CUDA_LAUNCH_BLOCKING="); ok {
				p.blocks.on = value != "" && value != "0"
			}
		}
	})
	return p.blocks.on
}

// errTooLong is why a kernel is stopped that ran for longer than Options.Timeout.
var errTooLong = errors.New("the kernel ran longer than the simulation allows")

// execute runs a kernel to its end, with the %gridid id or, if that is 0, one of its own, on the goroutine of its operation. A hook may change cfg, or
// try the kernel first. A kernel that was stopped because its program has ended is no error of
// anybody's.
func (p *Process) execute(x *cudaContext, l *launch, id uint64) result {
	ctx := p.ctx
	if t := p.sim.opts.Timeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, errTooLong)
		defer cancel()
	}
	cfg := &emu.LaunchConfig{Grid: l.grid, Block: l.block, Cluster: l.cluster, SharedBytes: l.shared, Params: l.params, Cooperative: l.cooperative, ID: id}
	if l.cooperative {
		// What cooperative groups synchronise a grid with: two words, of which the
		// second is the barrier's count.
		ws, err := p.arena.alloc(64, 256, "grid workspace", deviceMemory)
		if err != nil {
			return errOutOfMemory
		}
		defer func() { _ = p.arena.Free(ws.Base) }()
		binary.LittleEndian.PutUint32(ws.Data, 8)
		cfg.EnvRegs[1], cfg.EnvRegs[2] = uint32(ws.Base>>32), uint32(ws.Base)
	}
	if h := p.sim.opts.Hooks; h != nil && h.Launch != nil {
		h.Launch(p, &Launch{
			Kernel: l.f.name, Image: l.f.mod.image, TID: l.tid, Grid: l.grid, Block: l.block, Shared: l.shared, p: p, of: l, cfg: cfg,
		})
	}
	begin := time.Now()
	st, err := x.dev.machine.Launch(ctx, l.f.k, cfg)
	p.sim.launched(l, st, time.Since(begin))
	if err == nil || p.ctx.Err() != nil {
		return success
	}
	r := faultResult(err)
	p.sim.fault(p, l, r, err)
	return r
}

// faultResult is what CUDA says about a kernel that failed this way.
func faultResult(err error) result {
	switch {
	case errors.Is(err, errTooLong):
		return errTimeout
	case errors.Is(err, emu.ErrAddress):
		return errIllegalAddress
	case errors.Is(err, emu.ErrMisaligned):
		return errMisaligned
	case errors.Is(err, emu.ErrAssert):
		return errAssert
	case errors.Is(err, emu.ErrStack):
		return errStackError
	case errors.Is(err, emu.ErrNotImplemented), errors.Is(err, emu.ErrInvalid):
		return errIllegalInstruction
	case errors.Is(err, emu.ErrDeadlock), errors.Is(err, emu.ErrBudget):
		return errTimeout
	}
	return errLaunchFailed
}

// launchConfig reads a CUlaunchConfig or a cudaLaunchConfig_t: 56 bytes,
//
//	driver:   u32[3] grid, u32[3] block, u32 shared, stream at 32, attributes at 40, u32 count at 48
//	runtime:  u32[3] grid, u32[3] block, u64 shared at 24, stream at 32, attributes at 40, u32 count at 48
//
// An attribute is 72 bytes: u32 id, and its value at 8.
func (c *call) launchConfig(addr uint64) (l launch, stream uint64) {
	var b [56]byte
	if !c.read(addr, b[:]) {
		return l, 0
	}
	le := binary.LittleEndian
	u := func(i int) uint32 { return le.Uint32(b[4*i:]) }
	l.grid, l.block, l.shared = emu.Dim3{X: u(0), Y: u(1), Z: u(2)}, emu.Dim3{X: u(3), Y: u(4), Z: u(5)}, u(6)
	if c.entry.runtime && le.Uint64(b[24:]) > 1<<31 {
		l.shared = 1 << 31
	}
	stream = le.Uint64(b[32:])
	attrs, n := le.Uint64(b[40:]), u(12)
	if attrs == 0 || n > 64 {
		return l, stream
	}
	for i := range uint64(n) {
		var a [72]byte
		if !c.read(attrs+72*i, a[:]) {
			return l, stream
		}
		switch le.Uint32(a[:]) {
		case 2: // cooperative
			l.cooperative = le.Uint32(a[8:]) != 0
		case 4: // cluster
			l.cluster = emu.Dim3{X: le.Uint32(a[8:]), Y: le.Uint32(a[12:]), Z: le.Uint32(a[16:])}
		}
	}
	return l, stream
}

// Try runs a kernel of the same module, which has the same parameters, as this launch
// will run its own, but on copies of the memory: the program sees nothing of it. All
// runs of one launch begin with the same memory. It may be called in Hooks.Launch
// only.
func (l *Launch) Try(kernel string) (*Outcome, error) {
	if l.try == nil {
		l.try = &try{arena: l.p.arena, taken: make(map[uint64]emu.Region)}
	}
	k, err := l.of.f.mod.emu.Kernel(kernel)
	if err != nil {
		return nil, err
	}
	s := l.p.sim
	v := &view{of: l.try, copies: make(map[uint64]emu.Region), own: make(map[uint64]bool)}
	// With the host's time, what a kernel stores of clocks is not the same in two runs, as on a GPU.
	m := emu.New(&emu.Options{Memory: v, Device: s.gpu.machine(), Workers: s.opts.Workers, Now: hostTime})
	limit := tryTime
	if t := s.opts.Timeout; t > 0 {
		limit = min(limit, t)
	}
	ctx, cancel := context.WithTimeoutCause(l.p.ctx, limit, errTooLong)
	defer cancel()
	st, err := m.Launch(ctx, k, l.cfg)
	v.mu.Lock()
	own := v.own
	v.own = make(map[uint64]bool)
	v.mu.Unlock()
	for base := range own {
		err = errors.Join(err, l.p.arena.Free(base))
	}
	if errors.Is(err, errTooLong) {
		err = fmt.Errorf("%w within %v", ErrNoEnd, limit)
	}
	return &Outcome{Stats: st, view: v}, err
}

// Touched returns the allocations that runs of Try have looked at, as they were
// before, by address. What kernels can't write is not among them.
func (l *Launch) Touched() []emu.Region {
	if l.try == nil {
		return nil
	}
	l.try.mu.Lock()
	defer l.try.mu.Unlock()
	var list []emu.Region
	for base, r := range l.try.taken {
		if _, there := l.p.arena.Region(base); there && !r.ReadOnly {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b emu.Region) int { return cmp.Compare(a.Base, b.Base) })
	return list
}
