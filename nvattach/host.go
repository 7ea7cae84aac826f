package nvattach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// A PlannedHost is a program for the host that was proven safe.
type PlannedHost struct {
	*object.HostProgram
	// Machine is the program as machine code.
	Machine *bpf.Machine

	unit *proof.Unit
	uses []bool // by unit.defs: maps that it refers to
	fuel uint32
	code *bpf.Program
	// slot is the first of its counters on the host: of returns that could not be seen, and
	// of runs that were ended by Machine.Ends[0], [1] ...
	slot int
	args map[uint64]bool // which arguments it asks for, see Arguments
}

// Arguments are the numbers of the arguments of a function, or of a USDT probe, that the program
// asks for by number, ascending. What it reads of the context itself is not among them.
func (q *PlannedHost) Arguments() []uint64 { return slices.Sorted(maps.Keys(q.args)) }

// asks has it noted which arguments the program asks for while it is proven.
func (q *PlannedHost) asks(helpers map[int32]*bpf.Helper) {
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

// verifyHost proves a program for the host safe.
func verifyHost(u *proof.Unit, prog *object.HostProgram, maps []bpf.Map, fuel uint32) (*PlannedHost, error) {
	if prog.Point.Function() && runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("program %s: functions on the host have probes on x86-64 only", prog.Name)
	}
	q := &PlannedHost{HostProgram: prog, unit: u, uses: make([]bool, len(u.Defs)), fuel: fuel}
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
				q.uses[k] = true
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
func (q *PlannedHost) assemble(list []bpf.Map) (err error) {
	env := q.env(list, nil)
	q.args = make(map[uint64]bool)
	q.asks(env.Helpers)
	skip := map[int]bool{}
	for {
		insns, stores := q.Insns, []int(nil)
		if !slices.ContainsFunc(q.Insns, proof.Strange) {
			insns, stores = atomics.Increments(q.Insns, q.unit.Object.AtomicMap, env.Helpers, skip)
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
func (q *PlannedHost) env(maps []bpf.Map, r *HostRunner) *bpf.Env {
	kind := q.Point.Of()
	return &bpf.Env{Maps: maps, Context: kind.Context, Narrow: true, Large: true, Helpers: hostHelpers(q.unit, kind, r), Fuel: q.fuel}
}

// calls reports whether the program calls a helper.
func (q *PlannedHost) calls(helper int32) bool {
	return slices.ContainsFunc(q.code.Insns, func(in asm.Instruction) bool { return in.IsBuiltinCall() && int32(in.Constant) == helper })
}

func (q *PlannedHost) prints() bool { return q.calls(helper.Print) || q.calls(helper.VPrint) }

// A HostThread is a thread that a program runs for. It is stopped meanwhile.
type HostThread interface {
	IDs() (pid, tid int)
	// Comm returns the thread's name.
	Comm() string
	// User returns the thread's user and group.
	User() (uid, gid uint32)
	CPU() int
	// Read reads memory; n is how much could be read.
	Read(addr uint64, buf []byte) (n int)
	// Write writes memory that the thread itself could write; n is how much.
	Write(addr uint64, buf []byte) (n int)
	Now() (monotonic uint64)
	// Callers lists where the thread is, and where its callers will be gone on with, n at most.
	Callers(n int) []uint64
}

// A HostCall is one run of a program.
type HostCall struct {
	Thread HostThread
	// Fields are the context's, in its order.
	Fields []uint64
	FuncIP uint64 // the address of the function
	// Arg returns an argument of a USDT probe, or of a function whose arguments are not where those of
	// C are; nil: there is none.
	Arg func(n uint64) (v uint64, ok bool)
	// Override is what the function or the call shall return instead, if Overridden is set:
	// the program's answer.
	Override   uint64
	Overridden bool
}

// A HostRunner runs programs on the host, one at a time, by the interpreter.
type HostRunner struct {
	*hostmaps.Writer
	programs []*PlannedHost
	maps     *mapmem.Maps
	mem      *mapmem.HostMemory
	print    func(cpu int, text string)
	record   func(x *mapmem.Map, r mapmem.Record)

	interpreters map[*PlannedHost]*bpf.Interpreter
	cpuIs        int // of the thread; -1: it was not asked for yet
	call         *HostCall
	unit         *proof.Unit
	held         [][]byte // records in the making, by their place
	random       uint64

	mu    sync.Mutex
	early map[hostEnd]uint64 // runs that were ended early
}

// hostEnd is why and where runs of a program were ended early.
type hostEnd struct {
	q   *PlannedHost
	why string
	at  int
}

// Run runs a program. An error says that it did what its proof excludes.
func (r *HostRunner) Run(q *PlannedHost, c *HostCall) error {
	in := r.interpreters[q]
	if in == nil {
		u := *q.unit
		u.Defs = nil
		in = &bpf.Interpreter{Env: q.env(u.EnvMaps(), r), Read: r.read, Write: r.write, Field: func(i int) uint64 { return r.call.Fields[i] }, Atomic: r.atomic}
		for _, d := range u.Defs {
			base := uint64(0)
			if x := r.maps.Of(d); x != nil {
				base = x.Base
			}
			in.Maps = append(in.Maps, base)
		}
		r.interpreters[q] = in
	}
	r.call, r.unit, r.held, r.cpuIs = c, q.unit, r.held[:0], -1
	res, err := in.Run(q.code)
	if err == nil && res.Early {
		r.mu.Lock()
		r.early[hostEnd{q, res.Why, res.At}]++
		r.mu.Unlock()
	}
	return err
}

// Losses tells of runs that were ended early, and of insertions without room.
func (r *HostRunner) Losses() []error { return r.lost(true) }

// Faults is Losses without insertions that found no room, for who shows the tables: these say it
// ([Table.Refused]).
func (r *HostRunner) Faults() []error { return r.lost(false) }

func (r *HostRunner) lost(refused bool) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []error
	for e, n := range r.early {
		list = append(list, fmt.Errorf("program %s: %d runs were ended at instruction %d: %s", e.q.Name, n, e.at, e.why))
	}
	list = append(list, r.counted(refused)...)
	slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return list
}

// counted tells of what was counted in the maps' memory; refused, of insertions without room, too.
func (r *HostRunner) counted(refused bool) (list []error) {
	tell := func(n uint64, err error, format string, args ...any) {
		if err == nil && n > 0 {
			list = append(list, fmt.Errorf(format, append(args, n)...))
		}
	}
	for _, x := range r.maps.All {
		if !refused {
			break
		}
		n, err := r.maps.Refused(r.mem, x)
		tell(n, err, "map %s: %d insertions found no room", x.Name)
	}
	n, err := r.maps.Counter(r.mem, mapmem.SlotBusyHomes)
	tell(n, err, "%d changes of maps were not made: another one was not finished")
	for _, q := range r.programs {
		n, err := r.maps.Counter(r.mem, q.slot)
		tell(n, err, "program %s: %d returns could not be seen", q.Name)
		for i := range q.Machine.Ends {
			n, err := r.maps.Counter(r.mem, q.slot+1+i)
			e := &q.Machine.Ends[i]
			tell(n, err, "program %[1]s: %[4]d runs were ended at %[2]s: %[3]v", q.Name, e.Where(), e.Kind)
		}
	}
	return list
}

// recordAt returns the memory of a record in the making.
func (r *HostRunner) recordAt(addr uint64, n int) ([]byte, bool) {
	i, off := (addr-mapmem.RecordBase)/mapmem.RecordStride, (addr-mapmem.RecordBase)%mapmem.RecordStride
	if addr < mapmem.RecordBase || i >= uint64(len(r.held)) || off > uint64(len(r.held[i])) || uint64(len(r.held[i]))-off < uint64(n) {
		return nil, false
	}
	return r.held[i][off : off+uint64(n)], true
}

func (r *HostRunner) read(addr uint64, buf []byte) error {
	if b, ok := r.recordAt(addr, len(buf)); ok {
		copy(buf, b)
		return nil
	}
	return r.mem.ReadMem(addr, buf)
}

func (r *HostRunner) write(addr uint64, buf []byte) error {
	if b, ok := r.recordAt(addr, len(buf)); ok {
		copy(b, buf)
		return nil
	}
	return r.mem.WriteMem(addr, buf)
}

func (r *HostRunner) atomic(addr uint64, n int, change func(old uint64) uint64) (uint64, error) {
	if b, ok := r.recordAt(addr, n); ok {
		var w [8]byte
		copy(w[:], b)
		old := binary.LittleEndian.Uint64(w[:])
		copy(b, binary.LittleEndian.AppendUint64(nil, change(old)))
		return old, nil
	}
	return r.mem.Change(addr, n, change)
}

// MapAt returns the map of that index in a program's code, nil if it has no place.
func (r *HostRunner) MapAt(q *PlannedHost, i int32) *mapmem.Map {
	if i < 0 || int(i) >= len(q.unit.Defs) {
		return nil
	}
	return r.maps.Of(q.unit.Defs[i])
}

// Maps returns the maps of the programs.
func (r *HostRunner) Maps() *mapmem.Maps { return r.maps }

// Counts returns the address of a program's counters: of returns that could not be seen, and
// of runs that were ended by the first of Machine.Ends, the second ...
func (r *HostRunner) Counts(q *PlannedHost) uint64 { return r.maps.CounterAddr(r.maps.Slots + q.slot) }
