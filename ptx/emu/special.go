package emu

import (
	"strconv"
	"strings"

	"nvtrace/ptx"
)

// A specialReg computes a special register for one lane.
type specialReg func(w *warp, lane int) uint64

// dimRegs are the special registers with components.
var dimRegs = map[string]func(w *warp, lane int) Dim3{
	"%tid":            func(w *warp, lane int) Dim3 { return w.tid(lane) },
	"%ntid":           func(w *warp, _ int) Dim3 { return w.wk.launch.cfg.Block },
	"%ctaid":          func(w *warp, _ int) Dim3 { return w.block.id },
	"%nctaid":         func(w *warp, _ int) Dim3 { return w.wk.launch.cfg.Grid },
	"%clusterid":      func(w *warp, _ int) Dim3 { return w.block.cluster.id },
	"%nclusterid":     func(w *warp, _ int) Dim3 { return w.wk.launch.clusters },
	"%cluster_ctaid":  func(w *warp, _ int) Dim3 { return w.block.inCluster },
	"%cluster_nctaid": func(w *warp, _ int) Dim3 { return w.wk.launch.cfg.Cluster },
}

// specialRegs are the scalar special registers (PTX ISA §10). Clocks and the
// timer follow a model: one tick an instruction of a warp.
var specialRegs = map[string]specialReg{
	"%laneid":             func(_ *warp, lane int) uint64 { return uint64(lane) },
	"%warpid":             func(w *warp, _ int) uint64 { return uint64(w.index) },
	"%nwarpid":            func(w *warp, _ int) uint64 { return uint64(w.wk.launch.machine.dev.MaxThreadsPerSM / warpSize) },
	"%smid":               func(w *warp, _ int) uint64 { return uint64(w.block.sm) },
	"%nsmid":              func(w *warp, _ int) uint64 { return uint64(w.wk.launch.machine.dev.SMs) },
	"%gridid":             func(w *warp, _ int) uint64 { return w.wk.launch.id },
	"%lanemask_eq":        func(_ *warp, lane int) uint64 { return 1 << lane },
	"%lanemask_le":        func(_ *warp, lane int) uint64 { return 1<<(lane+1) - 1 },
	"%lanemask_lt":        func(_ *warp, lane int) uint64 { return 1<<lane - 1 },
	"%lanemask_ge":        func(_ *warp, lane int) uint64 { return 0xffffffff &^ (1<<lane - 1) },
	"%lanemask_gt":        func(_ *warp, lane int) uint64 { return 0xffffffff &^ (1<<(lane+1) - 1) },
	"%clock":              func(w *warp, _ int) uint64 { return w.now() & 0xffffffff },
	"%clock_hi":           func(w *warp, _ int) uint64 { return w.now() >> 32 },
	"%clock64":            func(w *warp, _ int) uint64 { return w.now() },
	"%globaltimer":        func(w *warp, _ int) uint64 { return w.timer() },
	"%globaltimer_lo":     func(w *warp, _ int) uint64 { return w.timer() & 0xffffffff },
	"%globaltimer_hi":     func(w *warp, _ int) uint64 { return w.timer() >> 32 },
	"%dynamic_smem_size":  func(w *warp, _ int) uint64 { return uint64(w.wk.launch.cfg.SharedBytes) },
	"%total_smem_size":    func(w *warp, _ int) uint64 { return w.wk.launch.sharedLen },
	"%aggr_smem_size":     func(w *warp, _ int) uint64 { return w.wk.launch.sharedLen },
	"%cluster_ctarank":    func(w *warp, _ int) uint64 { return uint64(w.block.rank) },
	"%cluster_nctarank":   func(w *warp, _ int) uint64 { return uint64(len(w.block.cluster.blocks)) },
	"%current_graph_exec": func(*warp, int) uint64 { return 0 },
}

// timedRegs change while a kernel runs.
var timedRegs = map[string]bool{
	"%clock": true, "%clock_hi": true, "%clock64": true, "%globaltimer": true, "%globaltimer_lo": true, "%globaltimer_hi": true,
}

// special returns an operand with a special register's value.
func (x *insn) special(a *ptx.Operand, name string) (int32, error) {
	f, ok := specialRegs[name]
	if d, dim := dimRegs[name]; dim {
		f, ok = component(d, a.Sel), a.Sel <= ptx.SelW
	}
	if rest, env := strings.CutPrefix(name, "%envreg"); env {
		n, err := strconv.Atoi(rest)
		f, ok = func(w *warp, _ int) uint64 {
			if n < len(w.wk.launch.cfg.EnvRegs) {
				return uint64(w.wk.launch.cfg.EnvRegs[n])
			}
			return 0
		}, err == nil && n >= 0 && n < 32
	}
	if strings.HasPrefix(name, "%pm") && len(name) == 4 {
		f, ok = func(*warp, int) uint64 { return 0 }, true
	}
	if !ok {
		if strings.HasPrefix(name, "%") {
			return 0, errf(ErrNotImplemented, "register %s", x.text(a.Span()))
		}
		return 0, errf(ErrInvalid, "unknown name %q", name)
	}
	d := x.temp()
	timed := timedRegs[name]
	x.hidden(func(w *warp, m uint32) {
		r := &w.regs[d]
		if timed { // the same for all lanes, but not for groups that come at other times
			v := f(w, 0)
			for ; m != 0; m &= m - 1 {
				r[firstLane(m)] = v
			}
			return
		}
		for i := range r {
			r[i] = f(w, i)
		}
	})
	return d, nil
}

func component(d func(w *warp, lane int) Dim3, sel ptx.Selector) specialReg {
	switch sel {
	case ptx.SelY:
		return func(w *warp, lane int) uint64 { return uint64(d(w, lane).Y) }
	case ptx.SelZ:
		return func(w *warp, lane int) uint64 { return uint64(d(w, lane).Z) }
	case ptx.SelW:
		return func(*warp, int) uint64 { return 0 }
	}
	return func(w *warp, lane int) uint64 { return uint64(d(w, lane).X) }
}

// tid is the position of a lane in its block.
func (w *warp) tid(lane int) Dim3 {
	return w.wk.launch.cfg.Block.at(uint64(w.index*warpSize + lane))
}

// now is the clock: the warp instructions that this worker has executed.
func (w *warp) now() uint64 { return w.wk.ticks + w.warpCount - w.sliceStart }

// timer is the global timer in nanoseconds.
func (w *warp) timer() uint64 {
	m := w.wk.launch.machine
	if m.opts.Now != nil {
		return m.opts.Now()
	}
	return modelEpoch + w.wk.launch.id*1_000_000 + w.now()
}

// modelEpoch is where the modelled global timer starts.
const modelEpoch = 1_000_000_000
