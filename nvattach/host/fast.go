package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
	"nvtrace/ptx/bpf"
)

// fast runs programs in the traced processes: the agent's jumps lead to their machine code,
// which finds helpers and maps in memory that all processes share with this one.
type fast struct {
	agent    *agent.Agent
	programs *agent.Programs
	runner   *hostrun.Runner
	maps     map[*mapmem.Map]uint64 // as helpers have them
	added    map[*hostrun.Program]*added
	calls    bool // programs run at system calls
	// indexes are tables for unwinding by file; nil: it has none.
	indexes map[proc.FileKey]*index
	// unwinders are the places in files that must be known for exceptions; nil: there is none.
	unwinders map[proc.FileKey]*target
}

// added is a program in the memory of programs.
type added struct {
	ref agent.ProgramRef
	err error
}

func newFast(o *Options) (*fast, error) {
	f := &fast{
		agent: o.Agent, programs: o.Programs, runner: o.Runner,
		maps: make(map[*mapmem.Map]uint64), added: make(map[*hostrun.Program]*added),
		unwinders: make(map[proc.FileKey]*target), indexes: make(map[proc.FileKey]*index),
	}
	f.programs.OnLock = func(addr uint64) { f.runner.Unlock(addr) }
	texts := agent.MapLayout(f.runner.Maps().HostMap(f.runner.Maps().Print))
	if err := f.programs.SetTexts(&texts); err != nil {
		return nil, err
	}
	f.agent.SetPrograms(f.programs)
	return f, nil
}

// add puts a program into the memory of programs.
func (f *fast) add(q *hostrun.Program) (agent.ProgramRef, error) {
	a := f.added[q]
	if a == nil {
		a = new(added)
		a.ref, a.err = f.compile(q)
		f.added[q] = a
	}
	return a.ref, a.err
}

func (f *fast) compile(q *hostrun.Program) (r agent.ProgramRef, err error) {
	c := &agent.Code{Code: q.Machine.Code, Counts: f.runner.Counts(q)}
	for _, s := range q.Machine.Slots {
		v := uint64(0)
		switch s.Kind {
		case bpf.SlotHelper:
			var ok bool
			if v, ok = agent.Helper(s.N); !ok {
				return r, fmt.Errorf("helper %d is for stopped threads only", s.N)
			}
		case bpf.SlotRelease:
			v = agent.ReleaseHelper()
		default:
			x := f.runner.MapAt(q, s.N)
			if x == nil {
				return r, fmt.Errorf("map %d has no place", s.N)
			}
			if v = x.Addr(); s.Kind == bpf.SlotMap {
				if v, err = f.mapOf(x); err != nil {
					return r, err
				}
			}
		}
		c.Table = append(c.Table, v)
	}
	return f.programs.Add(c)
}

// startCalls has programs run at system calls in processes that come.
func (t *Tracer) startCalls() {
	f := t.fast
	var list []agent.CallProbe
	for nr := range uint64(mostCalls) {
		name := ptrace.SyscallName(nativeArch, nr)
		entries, returns := t.enters[nr], t.exits[nr]
		if slices.Contains(unseen, name) {
			returns = nil
		}
		if len(entries)+len(returns) == 0 {
			continue
		}
		probe, err := f.probe(entries, returns)
		if err != nil {
			t.slow[name] = err
			continue
		}
		t.attached.used(f, probe, slices.Concat(entries, returns))
		list = append(list, agent.CallProbe{Nr: nr, Probe: probe})
	}
	if len(list) == 0 {
		return
	}
	f.calls = true
	f.agent.SetCallProbes(list, func(nr uint64) (all, code bool) {
		all, code = t.opts.Asked(nr)
		switch nr {
		case unix.SYS_MMAP:
			all, code = all || t.usdt(), code || t.code()
		case unix.SYS_MPROTECT, unix.SYS_PKEY_MPROTECT:
			code = code || t.code()
		}
		return all, code
	})
}

// reroute has calls like the one that t is stopped at run their programs in the process from
// now on, where that can be.
func (f *fast) reroute(task *ptrace.Task, s *ptrace.Syscall) {
	if task.StopsAtAll() || f.agent.Owns(s.IP) {
		return
	}
	if p, err := f.agent.Process(task); err == nil {
		p.Update(task) // a program's first calls come before it has a thread pointer
		p.PatchSite(task, s.IP, s.Nr)
	}
}

// ran reports whether programs have run in the process at a call that stops nevertheless.
func (f *fast) ran(task *ptrace.Task, s *ptrace.Syscall) bool {
	return f.calls && f.agent.Owns(s.IP) && !task.StopsAtAll() && f.agent.RunsCalls(task)
}

// mapOf returns what helpers take for a map.
func (f *fast) mapOf(x *mapmem.Map) (uint64, error) {
	if f.maps[x] == 0 {
		layout := agent.MapLayout(f.runner.Maps().HostMap(x))
		if x.Def.Inner != nil {
			inner, err := f.innerMaps(x)
			if err != nil {
				return 0, err
			}
			layout.Base, layout.Stride = inner, 8
		}
		at, err := f.programs.Map(&layout)
		if err != nil {
			return 0, err
		}
		f.maps[x] = at
	}
	return f.maps[x], nil
}

// innerMaps puts the values of an array of maps where nobody but this process can change them.
func (f *fast) innerMaps(x *mapmem.Map) (addr uint64, err error) {
	values := make([]uint64, x.Def.MaxEntries)
	for i, name := range x.Def.Maps {
		if values[i], err = f.mapOf(f.runner.Maps().Of(x.Object.Map(name))); err != nil {
			return 0, err
		}
	}
	return f.programs.Table(values)
}

// probe adds what runs at one place.
func (f *fast) probe(entries, returns []*hostrun.Program) (uint64, error) {
	var lists [2][]agent.ProgramRef
	for i, programs := range [][]*hostrun.Program{entries, returns} {
		for _, q := range programs {
			r, err := f.add(q)
			if err != nil {
				return 0, fmt.Errorf("program %s: %w", q.Name, err)
			}
			lists[i] = append(lists[i], r)
		}
	}
	return f.programs.Probe(lists[0], lists[1])
}

// errInside: a jump needs room that only a function's beginning is known to have.
var errInside = errors.New("no function begins there")

// errCaller: where threads don't stop, a function whose return is watched returns to the agent.
var errCaller = errors.New("what the function does depends on its return address")

// errMoved: so it does at stops, in programs that outlive nvtrace.
var errMoved = fmt.Errorf("%w, which is changed in programs that outlive nvtrace (-p, --on-tracer-death=live)", errCaller)

// hook describes what the agent is to do at a target.
func (f *fast) hook(x *target, a *attachments) (*agent.Hook, error) {
	if x.hook != nil || x.slow != nil {
		return x.hook, x.slow
	}
	if x.chooses != nil {
		return nil, errors.New("the function only chooses another one (an ifunc)")
	}
	x.slow = func() error {
		if !x.begins {
			return errInside
		}
		probe, err := f.probe(x.entries, x.returns)
		if err != nil {
			return err
		}
		x.hook = &agent.Hook{Name: x.name, Probe: probe, Returns: len(x.returns) > 0}
		a.used(f, probe, slices.Concat(x.entries, x.returns))
		return nil
	}()
	return x.hook, x.slow
}

// unwinds reports whether exceptions may come through code of the agent's: to functions whose return
// is watched, or from a system call.
func (t *Tracer) unwinds() bool {
	return t.fast != nil && t.fast.calls || slices.ContainsFunc(t.opts.Plan.Host, func(q *hostrun.Program) bool { return q.Point.Returns() })
}

// unwinder returns the place of the function in a mapped file by which exceptions and
// backtraces find out about functions, nil if it has none.
func (f *fast) unwinder(task *ptrace.Task, m *dso.Code) *target {
	exe, _ := os.Readlink(proc.Path(task.PID, "exe")) // "" when it has died
	if m.Path != exe && !strings.HasPrefix(filepath.Base(m.Path), "libgcc_s") {
		return nil
	}
	file, key, err := m.Open()
	if err != nil {
		return nil
	}
	defer file.Close()
	x, known := f.unwinders[key]
	if !known {
		x = findUnwinder(file)
		if probe, err := f.programs.Unwind(); x != nil && err == nil {
			x.hook = &agent.Hook{Name: x.name, Probe: probe}
		}
		f.unwinders[key] = x
	}
	return x
}

// index is a table for unwinding.
type index struct {
	*unwind.Index
	made uint64 // its address in all processes; 0: the file has it
	file *dso.File
}

// describe tells helpers in a process how to follow stacks through code that it has got.
func (f *fast) describe(task *ptrace.Task, e *dso.Event) {
	p, err := f.agent.Process(task)
	if err != nil {
		return
	}
	var list []agent.CodeFile
	add := func(m *proc.Mapping, x *index) {
		if x == nil {
			return
		}
		if bias, ok := x.file.Bias(m); ok {
			at := x.made
			if at == 0 {
				at = x.Addr + bias
			}
			list = append(list, agent.CodeFile{Start: m.Start, End: m.End, Base: x.Base + bias, Index: at, Count: x.Count})
		}
	}
	for _, m := range e.Files() {
		file, key, err := m.Open()
		if err != nil {
			continue // frame pointers are followed there
		}
		x, known := f.indexes[key]
		if !known {
			x = f.index(file)
			f.indexes[key] = x
		}
		file.Close()
		add(&m.Mapping, x)
	}
	if e.Why == dso.ByExec || e.Why == dso.Attached {
		maps, _ := proc.Maps(task.PID) // none, if it died
		for i := range maps {
			if m := &maps[i]; m.Path == "[vdso]" {
				b := make([]byte, min(m.End-m.Start, 1<<20))
				n, _ := task.ReadMem(m.Start, b)
				add(m, f.index(bytes.NewReader(b[:n])))
			}
		}
	}
	_ = p.AddFiles(task, list) // where programs can't run in the process, none asks
}

// index finds the table for unwinding of a file, nil if there is none.
func (f *fast) index(r io.ReaderAt) *index {
	e, err := dso.Read(r)
	if err != nil {
		return nil
	}
	x := &index{file: e}
	if x.Index, err = unwind.IndexOf(e); err != nil {
		return nil
	}
	if x.Data != nil {
		if x.made, err = f.programs.Index(x.Data); err != nil {
			return nil
		}
		x.Data = nil
	}
	e.Detach()
	return x
}

func findUnwinder(r io.ReaderAt) *target {
	e, err := dso.Read(r)
	if err != nil {
		return nil
	}
	symbols, _ := e.DynamicSymbols()
	if !e.HasInterpreter() {
		all, _ := e.Symbols() // of a static program, unless it is stripped
		symbols = append(symbols, all...)
	}
	for i := range symbols {
		s := &symbols[i]
		if s.Name != agent.Unwinder || !s.Defined {
			continue
		}
		if off, ok := e.Offset(s.Addr); ok {
			return &target{offset: off, name: s.Name, begins: true}
		}
	}
	return nil
}

// errGo: code in a process runs on the thread's stack, and Go has its own.
var errGo = errors.New("the function is Go's, whose stacks are too small and are moved")

// A place is a target in a process's memory.
type place struct {
	addr uint64
	x    *target
}

// landing is how long a landing pad (endbr64) is, behind which a function's jump is.
const landing = 4

// run has programs run in the process at those places of a list where that can be, and
// returns the others.
func (f *fast) run(task *ptrace.Task, list []place, a *attachments) (rest []place, why []error) {
	all := func(err error) ([]place, []error) {
		return list, slices.Repeat([]error{err}, len(list))
	}
	p, err := f.agent.Process(task)
	if err != nil {
		return all(err)
	}
	if err := p.Runs(task); err != nil {
		return all(err)
	}
	var hooks []agent.Target
	var places []place
	for _, at := range list {
		p.Unmapped(at.addr, landing+1) // what was there before is gone
		if p.Probed(at.addr) {
			continue
		}
		h, err := f.hook(at.x, a)
		if err != nil {
			rest, why = append(rest, at), append(why, err)
			continue
		}
		hooks, places = append(hooks, agent.Target{Addr: at.addr, Hook: h}), append(places, at)
	}
	if len(hooks) == 0 {
		return rest, why
	}
	err = p.HookAll(task, hooks)
	for i := range hooks {
		if err != nil {
			hooks[i].Err = err
		}
		if hooks[i].Err != nil {
			rest, why = append(rest, places[i]), append(why, hooks[i].Err)
			continue
		}
		a.at(places[i].x)
	}
	return rest, why
}
