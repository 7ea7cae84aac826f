package hostrun

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// A Program is a program for the host that was proven safe.
type Program struct {
	*object.HostProgram
	// Machine is the program as machine code.
	Machine *bpf.Machine

	Unit *proof.Unit
	Uses []bool // by Unit.Defs: maps that it refers to
	fuel uint32
	code *bpf.Program
	// FirstCounter is the first of its counters on the host: of returns that could not be seen, and
	// of runs that were ended by Machine.Ends[0], [1] ...
	FirstCounter int
	args         map[uint64]bool // which arguments it asks for, see Arguments
}

// Arguments are the numbers of the arguments of a function, or of a USDT probe, that the program
// asks for by number, ascending. What it reads of the context itself is not among them.
func (q *Program) Arguments() []uint64 { return slices.Sorted(maps.Keys(q.args)) }

// asks has it noted which arguments the program asks for while it is proven.
func (q *Program) asks(helpers map[int32]*bpf.Helper) {
	for _, id := range []int32{helper.FuncArg, helper.USDTArg} {
		if h := helpers[id]; h != nil {
			h.Check = func(c *bpf.CallInfo) error {
				if c.Consts[1].Known {
					q.args[c.Consts[1].Value] = true
				}
				return nil
			}
		}
	}
}

// Prove proves a program for the host safe.
func Prove(u *proof.Unit, prog *object.HostProgram, maps []bpf.Map, fuel uint32) (*Program, error) {
	if prog.Point.Function() && runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("program %s: functions on the host have probes on x86-64 only", prog.Name)
	}
	q := &Program{HostProgram: prog, Unit: u, Uses: make([]bool, len(u.Defs)), fuel: fuel}
	for i := range prog.Insns {
		in := &prog.Insns[i]
		if !in.IsLoadFromMap() {
			continue
		}
		d := u.Object.Map(in.Reference())
		if d == nil {
			continue
		}
		if !d.Supported() || d.PerThread() || d.PerBlock() || d.Thread {
			return nil, fmt.Errorf("program %s: map %s has type %s, which can't be had on the host; there are hash, array, percpu_hash, percpu_array, lru_hash, lru_percpu_hash, lpm_trie, queue, stack, bloom_filter, ringbuf, perf_event_array, stack_trace and array_of_maps", prog.Name, d.Name, d.Type)
		}
		for _, d := range u.Object.Reached(d) {
			if k := slices.Index(u.Defs, d); k >= 0 {
				q.Uses[k] = true
			}
		}
	}
	if err := q.assemble(maps); err != nil {
		return nil, err
	}
	return q, nil
}

// assemble compiles the program, with what it adds to values of maps made atomic: threads
// of all processes do that at once.
func (q *Program) assemble(list []bpf.Map) (err error) {
	env := q.env(list, nil)
	q.args = make(map[uint64]bool)
	q.asks(env.Helpers)
	skip := map[int]bool{}
	for {
		insns, stores := q.Insns, []int(nil)
		if !slices.ContainsFunc(q.Insns, proof.Strange) {
			insns, stores = atomics.Increments(q.Insns, q.Unit.Object.AtomicMap, env.Helpers, skip)
		}
		q.code = &bpf.Program{Name: q.Name, Insns: insns}
		q.Machine, err = bpf.Assemble(q.code, env)
		why, ok := errors.AsType[*bpf.RefusedError](err)
		if !ok || !slices.Contains(stores, why.Insn) || len(skip) >= proof.MostSkipped {
			break
		}
		skip[why.Insn] = true // at an address that is not aligned, for instance
	}
	if err == nil {
		return nil
	}
	q.code = &bpf.Program{Name: q.Name, Insns: q.Insns}
	q.Machine, err = bpf.Assemble(q.code, env) // refused for what it says itself, if at all
	return err
}

// env is what the program finds around it.
func (q *Program) env(maps []bpf.Map, r *Runner) *bpf.Env {
	kind := q.Point.Of()
	return &bpf.Env{Maps: maps, Context: kind.Context, Narrow: true, Large: true, Helpers: helpers(q.Unit, kind, r), Fuel: q.fuel}
}

// Calls reports whether the program calls a helper.
func (q *Program) Calls(helper int32) bool {
	return slices.ContainsFunc(q.code.Insns, func(in asm.Instruction) bool { return in.IsBuiltinCall() && int32(in.Constant) == helper })
}

// Prints reports whether the program may print.
func (q *Program) Prints() bool { return q.Calls(helper.Print) || q.Calls(helper.VPrint) }
