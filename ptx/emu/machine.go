package emu

import (
	"context"
	"fmt"

	"nvtrace/ptx"
)

// defaultDevice returns a device with the limits of compute capability 9.0 and few
// multiprocessors.
func defaultDevice() Device {
	return Device{
		Name: "nvtrace PTX machine", Major: 9, Minor: 0, SMs: 8,
		MaxThreadsPerBlock: 1024, MaxThreadsPerSM: 2048, SharedPerBlock: 227 << 10,
		ClockKHz: 1_000_000, TotalMemory: 4 << 30,
	}
}

// fill sets the zero fields.
func (d *Device) fill() {
	def := defaultDevice()
	if d.Name == "" {
		d.Name = def.Name
	}
	if d.Major == 0 {
		d.Major, d.Minor = def.Major, def.Minor
	}
	orInt := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	orInt(&d.SMs, def.SMs)
	orInt(&d.MaxThreadsPerBlock, def.MaxThreadsPerBlock)
	orInt(&d.MaxThreadsPerSM, def.MaxThreadsPerSM)
	orInt(&d.ClockKHz, def.ClockKHz)
	if d.SharedPerBlock == 0 {
		d.SharedPerBlock = def.SharedPerBlock
	}
	if d.TotalMemory == 0 {
		d.TotalMemory = def.TotalMemory
	}
}

// Device returns the device's description.
func (m *Machine) Device() Device { return m.dev }

// Memory returns the machine's global address space.
func (m *Machine) Memory() Memory { return m.mem }

// Alloc allocates global memory; it needs a Memory that is an [Allocator], as
// the default one is.
func (m *Machine) Alloc(size uint64, name string) (Region, error) {
	a, ok := m.mem.(Allocator)
	if !ok {
		return Region{}, errf(ErrInvalid, "the machine's memory cannot allocate")
	}
	return a.Alloc(size, 256, name)
}

// ReadMem copies global memory at addr to buf, for the host. An error wraps
// ErrAddress and means that not all of it is in one allocation.
func (m *Machine) ReadMem(addr uint64, buf []byte) error {
	b, err := m.hostBytes(addr, uint64(len(buf)))
	copy(buf, b)
	return err
}

// WriteMem copies buf to global memory at addr, for the host, read-only
// allocations included. Errors are those of ReadMem.
func (m *Machine) WriteMem(addr uint64, buf []byte) error {
	b, err := m.hostBytes(addr, uint64(len(buf)))
	copy(b, buf)
	return err
}

// hostBytes returns n bytes of one allocation.
func (m *Machine) hostBytes(addr, n uint64) ([]byte, error) {
	r, ok := m.mem.Region(addr)
	if !ok || !r.contains(addr, n) {
		return nil, errf(ErrAddress, "%d bytes at %#x of global memory", n, addr)
	}
	return r.Data[addr-r.Base:][:n], nil
}

// Kernel returns the kernel of that name, compiled.
//
// Instructions that the machine does not have are no error here: they fail when
// they are reached. Returns an error that wraps ErrInvalid if there is no such
// kernel or its text has no meaning.
func (mod *Module) Kernel(name string) (*Kernel, error) {
	mod.mu.Lock()
	defer mod.mu.Unlock()
	if k := mod.kernels[name]; k != nil {
		return k, nil
	}
	for _, u := range mod.units {
		fn := u.file.Lookup(name)
		if fn == nil || fn.Kind != ptx.FuncEntry || !fn.HasBody() {
			continue
		}
		k, err := mod.compileKernel(u, fn, name)
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
		mod.kernels[name] = k
		return k, nil
	}
	return nil, errf(ErrInvalid, "no kernel named %q; there are %v", name, mod.Kernels())
}

func (mod *Module) compileKernel(u *unit, fn *ptx.Func, name string) (*Kernel, error) {
	prog, err := compileProgram(mod, u, fn)
	if err != nil {
		return nil, err
	}
	k := &Kernel{mod: mod, name: name, prog: prog}
	decls := u.file.Params(fn)
	for i, p := range prog.params {
		k.params = append(k.params, KernelParam{p.off, p.size, decls[i].Type})
	}
	for _, a := range u.file.Attrs(fn) {
		switch u.file.Text(a.Name) {
		case ".reqntid":
			k.reqTid = dimOf(u.file.Args(&a))
		case ".maxntid":
			k.maxTid = dimOf(u.file.Args(&a))
		case ".reqnctapercluster":
			k.reqCta = dimOf(u.file.Args(&a))
		}
	}
	return k, nil
}

// dimOf reads the operands of .reqntid.
func dimOf(args []ptx.Operand) Dim3 {
	d := [3]uint32{1, 1, 1}
	for i := range min(len(args), 3) {
		d[i] = uint32(args[i].Bits)
	}
	return Dim3{d[0], d[1], d[2]}
}

// MaxThreads returns the threads of a block that .maxntid or .reqntid of the
// kernel allow, 0 when it has neither.
func (k *Kernel) MaxThreads() int {
	switch {
	case k.reqTid != Dim3{}:
		return int(k.reqTid.count())
	case k.maxTid != Dim3{}:
		return int(k.maxTid.count())
	}
	return 0
}

// Name returns the kernel's name.
func (k *Kernel) Name() string { return k.name }

// Params returns the layout of the parameter buffer.
func (k *Kernel) Params() []KernelParam { return k.params }

// ParamBytes returns the size of the parameter buffer.
func (k *Kernel) ParamBytes() uint64 { return k.prog.paramLen }

// SharedBytes returns the static shared memory of the kernel.
func (k *Kernel) SharedBytes() uint64 { return k.prog.sharedLen }

// LocalBytes returns the local memory of a thread outside calls.
func (k *Kernel) LocalBytes() uint64 { return k.prog.entry.localSize + k.mod.localLen }

// missing returns an error for every instruction of the kernel and the functions
// it calls that the machine cannot execute; a launch fails if it gets to one.
func (k *Kernel) missing() []error { return k.prog.missing }

// Registers returns the number of register slots of the kernel, which is not
// what a GPU's assembler would use.
func (k *Kernel) Registers() int { return k.prog.entry.nregs }

// NewID returns a %gridid for launches that come one after the other, as those of a node of a graph,
// which keeps its over all of the graph's launches.
func (m *Machine) NewID() uint64 { return m.launches.Add(1) }

// Launch runs the kernel to its end. The error is a *[Fault] when a thread failed,
// when the budget was used up or ctx ended; it then says where. Memory keeps what
// was written until then.
func (m *Machine) Launch(ctx context.Context, k *Kernel, cfg *LaunchConfig) (Stats, error) {
	l, err := m.prepare(k, cfg)
	if err != nil {
		return Stats{}, fmt.Errorf("launch of %s: %w", k.name, err)
	}
	return l.run(ctx)
}

// prepare checks the configuration.
func (m *Machine) prepare(k *Kernel, cfg *LaunchConfig) (*launch, error) {
	if cfg == nil {
		cfg = &LaunchConfig{}
	}
	l := &launch{machine: m, kernel: k, prog: k.prog, cfg: *cfg, id: cfg.ID}
	if l.id == 0 {
		l.id = m.NewID()
	}
	if l.cfg.Cluster == (Dim3{}) {
		l.cfg.Cluster = k.reqCta
	}
	l.explicit = l.cfg.Cluster != (Dim3{})
	for _, d := range []*Dim3{&l.cfg.Grid, &l.cfg.Block, &l.cfg.Cluster} {
		d.X, d.Y, d.Z = max(d.X, 1), max(d.Y, 1), max(d.Z, 1)
	}
	g, b, c := l.cfg.Grid, l.cfg.Block, l.cfg.Cluster
	l.sharedLen = k.prog.dynBase + uint64(l.cfg.SharedBytes)
	switch {
	case b.count() > uint64(m.dev.MaxThreadsPerBlock):
		return nil, errf(ErrInvalid, "block %v has more than %d threads", b, m.dev.MaxThreadsPerBlock)
	case g.X > 1<<31-1 || g.Y > 65535 || g.Z > 65535:
		return nil, errf(ErrInvalid, "grid %v, the limit is (2147483647,65535,65535)", g)
	case g.X%c.X != 0 || g.Y%c.Y != 0 || g.Z%c.Z != 0 || c.count() > 16:
		return nil, errf(ErrInvalid, "clusters of %v blocks in a grid of %v", c, g)
	case k.maxTid != Dim3{} && b.count() > k.maxTid.count():
		return nil, errf(ErrInvalid, "block %v, the kernel allows %d threads", b, k.maxTid.count())
	case k.reqTid != Dim3{} && k.reqTid != b:
		return nil, errf(ErrInvalid, "block %v, the kernel requires %v", b, k.reqTid)
	case k.reqCta != Dim3{} && k.reqCta != c:
		return nil, errf(ErrInvalid, "cluster %v, the kernel requires %v", c, k.reqCta)
	case l.sharedLen > m.dev.SharedPerBlock:
		return nil, errf(ErrInvalid, "%d bytes of shared memory, a block may have %d", l.sharedLen, m.dev.SharedPerBlock)
	case uint64(len(cfg.Params)) < k.prog.paramLen:
		return nil, errf(ErrInvalid, "%d bytes of parameters, the kernel has %d", len(cfg.Params), k.prog.paramLen)
	case l.cfg.Cooperative && g.count() > 1<<16:
		return nil, errf(ErrInvalid, "cooperative grid of %d blocks, the limit is 65536", g.count())
	}
	l.params = alignedBytes(len(cfg.Params))
	copy(l.params, cfg.Params)
	l.clusters = Dim3{g.X / c.X, g.Y / c.Y, g.Z / c.Z}
	l.stackLimit, l.maxDepth = m.opts.StackLimit, m.opts.MaxDepth
	if l.budget = l.cfg.Budget; l.budget == 0 {
		l.budget = m.opts.Budget
	}
	return l, nil
}
