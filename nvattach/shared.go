package nvattach

import (
	"errors"
	"os"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// onHost reports whether a program on the host uses a map.
func (p *Plan) onHost(d *object.MapDef) bool {
	return slices.ContainsFunc(p.Host, func(q *hostrun.Program) bool {
		i := slices.Index(q.Unit.Defs, d)
		return i >= 0 && q.Uses[i]
	})
}

// onGPU reports whether a program in kernels uses a map, or nobody does.
func (p *Plan) onGPU(d *object.MapDef) bool {
	return !p.onHost(d) || slices.ContainsFunc(p.Programs, func(q *proof.Program) bool {
		i := slices.Index(q.Unit.Defs, d)
		return i >= 0 && i < len(q.Report.Maps) && q.Report.Maps[i].Used
	})
}

// shares reports whether programs on the host and in kernels use a map, which both reach in the
// host's memory.
func (p *Plan) shares(d *object.MapDef) bool { return d.Sharable() && p.both(d) && !p.joins(d) }

func (p *Plan) both(d *object.MapDef) bool { return p.onHost(d) && p.onGPU(d) }

// SharedMaps returns the names of maps that programs in kernels and on the host use: those
// that lie in memory of both, and those of which each side has contents of its own that are shown
// apart.
func (p *Plan) SharedMaps() (one, apart []string) {
	for _, o := range p.Objects {
		for _, d := range o.Maps {
			switch {
			case !p.both(d) || d.ReadOnly || d.Ring() || p.joins(d): // records and sums are shown, whoever they are from
			case p.shares(d):
				one = append(one, d.Name)
			default:
				apart = append(apart, d.Name)
			}
		}
	}
	return one, apart
}

// ChangedByBoth returns the names of shared maps that programs on both sides change, by
// atomic operations or by update and delete, which lock by these: a GPU's and a processor's
// are atomic to each other only where the link between them carries them (CUDA's device
// attribute HOST_NATIVE_ATOMIC_SUPPORTED), as PCI Express does not.
func (p *Plan) ChangedByBoth() (names []string) {
	for _, o := range p.Objects {
		for _, d := range o.Maps {
			if p.shares(d) && !d.ReadOnly && !d.Ring() && p.changedInKernels(d) && p.changedOnHost(d) {
				names = append(names, d.Name)
			}
		}
	}
	return names
}

func (p *Plan) changedInKernels(d *object.MapDef) bool {
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool {
		i := slices.Index(q.Unit.Defs, d)
		if i < 0 || i >= len(q.Report.Maps) {
			return false
		}
		u := &q.Report.Maps[i]
		return len(u.Adds) > 0 || u.Atomics || u.Helpers
	})
}

func (p *Plan) changedOnHost(d *object.MapDef) bool {
	return slices.ContainsFunc(p.Host, func(q *hostrun.Program) bool {
		i := slices.Index(q.Unit.Defs, d)
		return i >= 0 && q.Uses[i] && slices.ContainsFunc(q.Insns, func(in asm.Instruction) bool {
			return in.OpCode.Class() == asm.StXClass && in.OpCode.Mode() == asm.AtomicMode ||
				in.IsBuiltinCall() && (in.Constant == int64(asm.FnMapUpdateElem) || in.Constant == int64(asm.FnMapDeleteElem))
		})
	})
}

// use is which programs of an object have a map in their code.
type use struct{ host, gpu bool }

// uses says which maps programs of the object have in their code, or reach by an array of maps.
func uses(o *object.Object, programs []*object.Program, host []*object.HostProgram) map[string]use {
	list := make(map[string]use)
	note := func(insns asm.Instructions, f func(*use)) {
		for i := range insns {
			if in := &insns[i]; in.IsLoadFromMap() {
				d := o.Map(in.Reference())
				if d == nil {
					continue
				}
				for _, d := range o.Reached(d) {
					u := list[d.Name]
					f(&u)
					list[d.Name] = u
				}
			}
		}
	}
	for _, q := range programs {
		note(q.Insns, func(u *use) { u.gpu = true })
	}
	for _, q := range host {
		note(q.Insns, func(u *use) { u.host = true })
	}
	return list
}

// Shows reports whether the contents of a map are of interest on the host, or on a GPU.
func (p *Plan) Shows(x *mapmem.Map, host bool) bool {
	switch {
	case x.Object != nil && x.Object.Own:
		return false
	case len(p.Host) == 0 || x.Object == nil:
		return true
	}
	if host {
		return p.onHost(x.Def)
	}
	return !x.OfHost && !x.Joined() && p.onGPU(x.Def)
}

// NewHostMaps lays out the maps of the plan's objects on the host, all processes' together,
// with a value for each CPU where they have that. alloc makes the memory, all zero or
// as an earlier run with the same maps has left it; nil: programs run in this process alone. The error
// matches ErrPinned if it has others.
func (p *Plan) NewHostMaps(o *mapmem.MapOptions, alloc func(size uint64) ([]byte, error)) (*mapmem.Maps, *mapmem.HostMemory, error) {
	opt := mapmem.MapOptions{SMs: mapmem.PossibleCPUs(), PrintBytes: 1, Slots: p.hostSlots, Host: true, Shares: p.shares, Joined: p.joined, Clock: p.Clocks(), Deletes: func(d *object.MapDef) bool {
		return p.hostDeletes(d) || p.shares(d) && p.deletes(d)
	}}
	if o != nil {
		opt.MaxBytes, opt.Clock = o.MaxBytes, opt.Clock || o.Clock
	}
	if slices.ContainsFunc(p.Host, (*hostrun.Program).Prints) {
		opt.PrintBytes = 0
	}
	m, err := mapmem.NewMapsOf(p.Objects, &opt, p.onHost)
	if err != nil {
		return nil, nil, err
	}
	if alloc == nil {
		alloc = func(size uint64) ([]byte, error) { return make([]byte, size), nil }
	}
	data, err := alloc(m.Size())
	if err != nil {
		return nil, nil, err
	}
	mem := &mapmem.HostMemory{B: mapmem.Buffer{Base: mapmem.HostBase, Data: data}}
	if err := errors.Join(m.Place(mapmem.HostBase), m.Begin(mem, os.Getpid(), p.Objects)); err != nil {
		return nil, nil, err
	}
	return m, mem, nil
}

// hostDeletes reports whether a program on the host may delete keys of a map.
func (p *Plan) hostDeletes(d *object.MapDef) bool {
	return slices.ContainsFunc(p.Host, func(q *hostrun.Program) bool {
		i := slices.Index(q.Unit.Defs, d)
		return i >= 0 && q.Uses[i] && q.Calls(helper.MapDelete)
	})
}
