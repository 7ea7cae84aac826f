// Package calls records the calls of CUDA's libraries in traced programs: it
// knows when a library is mapped, which functions it exports, and has package
// agent hook them before any thread can call one. Whatever route a program
// takes to a function, it ends there.
//
// What the calls mean is package api's business; this one copies what that
// wants to print.
package calls

import (
	"debug/elf"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/nvattach/cudart"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// Options say which calls to record.
type Options struct {
	// Libraries are those whose functions are hooked.
	Libraries api.Selection
	Agent     *agent.Agent
	// Counts selects functions, by name, whose calls are counted and not recorded; nil: none. With
	// failed those that fail are recorded, without arguments.
	Counts func(name string) (count, failed bool)
	// Inner has calls that say little counted by the recorded calls that they are made within, see api.Module.Minor
	// and agent.Hook.Inner, and those that Counts selects, too.
	Inner bool
	// Times has what functions of the driver have a GPU do timed, by an event behind it. They are
	// recorded, whatever Counts says.
	Times bool
	// NoLaunches leaves launches out of that: kernels are timed otherwise.
	NoLaunches bool
	// NoKernels, if not nil, is asked when a process has got the CUDA driver: true leaves its launches of kernels out,
	// but not those of graphs.
	NoKernels func(pid int) bool
	// Stops says at which calls of a function the thread stops for OnStop; nil: at none. Functions whose
	// calls stop before they run are recorded, whatever Counts says.
	Stops  func(m api.Module, name string) Stop
	OnStop func(t *ptrace.Task, r *agent.Record)
	// Mapped, if not nil, is told what a process has got mapped instead of what was there.
	Mapped func(t *ptrace.Task, start, end uint64)
	// Launched, if not nil, is given the records of the driver's launching
	// functions and of cuKernelGetFunction, for whoever audits launches.
	Launched func(r *agent.Record)
	// Submitted, if not nil, is given the records of calls that s can read.
	Submitted func(s *api.Submitter, r *agent.Record)
	// Driver, if not nil, is told of a process that has got the CUDA driver.
	Driver func(pid int)
	// Report is told, once for each library file, what could not be hooked; nil
	// for nobody.
	Report func(text string)
	Logger *slog.Logger // nil discards
}

// Stop says when the thread stops at a function's calls.
type Stop struct {
	Call   bool       // before they run: OnStop gets an agent.KindCall
	Failed bool       // when they have failed: it gets an agent.KindReturn
	Rate   agent.Rate // of both
}

// Tracer hooks the libraries of all processes of a run. It is a
// [ptrace.Handler] for the calls that [Tracer.Rules] select.
type Tracer struct {
	opts  Options
	code  dso.Watcher
	files map[proc.FileKey]*library
}

// library is a file with functions to hook.
type library struct {
	path  string
	file  *dso.File // detached
	funcs []function
	said  bool
	// driver has functions that events are made with, by address in the file.
	driver map[string]uint64
}

type function struct {
	addr, size uint64 // as in the file
	hook       *agent.Hook
	beside     *agent.Hook // for processes whose kernels are timed otherwise; nil: hook
}

// New makes a Tracer whose system calls have the class.
func New(o *Options, class uint16) *Tracer {
	t := &Tracer{opts: *o, files: make(map[proc.FileKey]*library)}
	t.code = dso.Watcher{Class: class, Mapped: t.mapped}
	if t.opts.Logger == nil {
		t.opts.Logger = slog.New(slog.DiscardHandler)
	}
	return t
}

// Rules select the calls that map a library's code, and that make it executable.
func (t *Tracer) Rules() []ptrace.Rule { return t.code.Rules() }

// Enter implements [ptrace.Handler].
func (t *Tracer) Enter(task *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	return t.code.Enter(task, s)
}

// Exit implements [ptrace.Handler].
func (t *Tracer) Exit(task *ptrace.Task, s *ptrace.Syscall) { t.code.Exit(task, s) }

// Task implements [ptrace.Handler]. A process that was there before the tracer has its libraries
// hooked as they are; one that executes a program, the runtime that may be linked into that.
func (t *Tracer) Task(task *ptrace.Task, e *ptrace.TaskEvent) { t.code.Task(task, e) }

// mapped hooks the functions of libraries that a process has got.
func (t *Tracer) mapped(task *ptrace.Task, e *dso.Event) {
	if p := t.opts.Agent.Find(task); p != nil && e.Why == dso.ByMap {
		p.Unmapped(e.Start, e.End-e.Start) // what was there before is gone
	}
	if t.opts.Mapped != nil {
		t.opts.Mapped(task, e.Start, e.End)
	}
	for _, m := range e.Files() {
		if lib := t.library(m.Path, m.Open); lib != nil {
			t.hook(task, lib, &m.Mapping)
		}
	}
}

// library returns what to hook of the file that open opens, nil for nothing. path is what
// the program knows it as.
func (t *Tracer) library(path string, open func() (*os.File, proc.FileKey, error)) *library {
	module := api.Match(filepath.Base(path))
	if (module.Library == api.Unknown || !t.opts.Libraries.Has(module.Library)) && !t.opts.Libraries.Has(api.Runtime) {
		return nil
	}
	f, key, err := open()
	if errors.Is(err, proc.ErrNotRegular) {
		return nil
	}
	if err != nil {
		if module.Library != api.Unknown {
			t.report("%s: its functions are not recorded: %v", path, err)
		}
		return nil
	}
	defer f.Close()
	if lib, ok := t.files[key]; ok {
		return lib
	}
	var lib *library
	if module.Library != api.Unknown && t.opts.Libraries.Has(module.Library) {
		if lib, err = t.read(f, path, module); err != nil {
			t.report("%s: its functions are not recorded: %v", path, err)
		}
	}
	if t.opts.Libraries.Has(api.Runtime) && module.Library != api.Driver && module.Library != api.Runtime && err == nil {
		lib = t.addRuntime(lib, f, path)
	}
	t.files[key] = lib
	return lib
}

// NoteRuntime stands between a file's name and the release of the runtime that is linked
// into it, in the note that [Options.Report] gets.
const NoteRuntime = " has the CUDA runtime in it ("

// addRuntime adds the functions of a CUDA runtime that is linked into a file statically. lib is
// what else the file has, nil for nothing, which is returned then if there is none.
func (t *Tracer) addRuntime(lib *library, f *os.File, path string) *library {
	found, err := cudart.Find(f)
	if err != nil || found == nil {
		return lib
	}
	if lib == nil {
		e, err := dso.Read(f)
		if err != nil {
			return nil
		}
		lib = newLibrary(e, path)
	}
	module := api.Module{Library: api.Runtime, Major: found.Major()}
	hooked := 0
	for _, x := range found.Functions {
		if spec, ok := module.HookFor(x.Name); ok {
			lib.funcs = append(lib.funcs, function{addr: x.Addr, size: x.Size, hook: t.newHook(path, x.Name, module, &spec, t.opts.NoLaunches)})
			hooked++
		}
	}
	text := fmt.Sprintf("%s%s%s): %d of its functions are recorded", path, NoteRuntime, found.Release(), hooked)
	if n := len(found.Missing); n > 0 {
		text += fmt.Sprintf("; %d were not found, or are several with the same code, among them %s", n, found.Missing[0])
	}
	t.report("%s", text)
	return lib
}

// newLibrary describes a file.
func newLibrary(e *dso.File, path string) *library {
	e.Detach()
	return &library{path: path, file: e}
}

func (t *Tracer) report(format string, args ...any) {
	if t.opts.Report != nil {
		t.opts.Report(fmt.Sprintf(format, args...))
	}
}

// read lists the functions that a library exports.
func (t *Tracer) read(f *os.File, path string, module api.Module) (*library, error) {
	e, err := dso.Read(f)
	if err != nil {
		return nil, err
	}
	if e.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("machine %v: only x86-64 is known", e.Machine)
	}
	symbols, err := e.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	lib := newLibrary(e, path)
	at := make(map[uint64]bool)
	for i := range symbols {
		s := &symbols[i]
		if !s.Function() || s.Size == 0 {
			continue
		}
		if t.opts.Times && module.Library == api.Driver && eventFunction(s.Name) {
			if lib.driver == nil {
				lib.driver = make(map[string]uint64)
			}
			lib.driver[s.Name] = s.Addr
		}
		spec, ok := module.HookFor(s.Name)
		if !ok || at[s.Addr] {
			continue // of two names of one function the first in the table serves
		}
		at[s.Addr] = true
		name := strings.Clone(s.Name)
		f := function{addr: s.Addr, size: s.Size, hook: t.newHook(path, name, module, &spec, t.opts.NoLaunches)}
		if f.hook.Work != nil && t.opts.NoKernels != nil {
			f.beside = t.newHook(path, name, module, &spec, !strings.Contains(name, "GraphLaunch"))
			if f.beside.Work != nil {
				f.beside.Work.Behind = true
			}
		}
		lib.funcs = append(lib.funcs, f)
	}
	return lib, nil
}

// newHook describes what to copy of a function's calls. untimed says that launches are timed otherwise.
func (t *Tracer) newHook(path, name string, module api.Module, spec *api.HookSpec, untimed bool) *agent.Hook {
	h := &agent.Hook{Name: name, Library: path, StackWords: min(spec.StackWords, agent.MaxStackWords)}
	outs := 0
	for _, d := range spec.Derefs {
		out := d.Out && outs < agent.MaxOutDerefs
		if len(h.Derefs) == agent.MaxDerefs || !d.In && !out {
			continue
		}
		if out {
			outs++
		}
		h.Derefs = append(h.Derefs, agent.Deref{
			Arg: d.Arg, Off: d.Off, Len: min(d.Len, agent.MaxDeref), CString: d.CString, In: d.In, Out: out,
		})
	}
	if t.opts.Launched != nil && module.Library == api.Driver && (strings.Contains(name, "Launch") || strings.HasPrefix(name, "cuGraph") || name == "cuKernelGetFunction") {
		launched := t.opts.Launched
		h.OnRecord = func(_ *agent.Process, r *agent.Record) { launched(r) }
	}
	f := module.Lookup(name)
	if s := f.Submits(); s != nil && t.opts.Submitted != nil {
		submitted, before := t.opts.Submitted, h.OnRecord
		h.OnRecord = func(p *agent.Process, r *agent.Record) {
			if before != nil {
				before(p, r)
			}
			submitted(s, r)
		}
	}
	if t.opts.Times && module.Library == api.Driver {
		h.Waits = f.Waits()
		if arg, ok := f.EndsContext(); ok {
			h.Ends = &arg
		}
		if w, ok := f.Work(); ok && !(w.Launch && untimed) {
			h.Work = &agent.Work{Stream: w.Stream, StreamAt: w.StreamAt, Subject: w.Subject, PerThread: w.PerThread, Early: w.Early, Orders: w.Orders, Behind: untimed}
		}
	}
	if t.opts.Stops != nil {
		onStop := t.opts.OnStop
		stop := t.opts.Stops(module, name)
		if h.Rate = stop.Rate; stop.Call {
			h.Stop, h.OnStop = true, func(task *ptrace.Task, _ *agent.Process, r *agent.Record) { onStop(task, r) }
		}
		if stop.Failed && f != nil && f.Result.Status {
			h.OnFail = func(task *ptrace.Task, _ *agent.Process, r *agent.Record) {
				if f.Failed(r.Ret) {
					onStop(task, r)
				}
			}
		}
	}
	if t.opts.Counts != nil && h.OnRecord == nil && h.Work == nil && !h.Stop {
		h.Count, h.Failed = t.opts.Counts(name)
		h.Failed = h.Failed && f != nil && f.Result.Status
	}
	if t.opts.Inner && h.OnRecord == nil && h.Work == nil && !h.Stop && h.OnFail == nil && (h.Count || module.Minor(name)) {
		h.Inner, h.Failed = true, f != nil && f.Result.Status
	}
	return h
}

// eventFunctions are those of the driver that agent.Driver has.
func eventFunctions(d *agent.Driver) map[string]*uint64 {
	return map[string]*uint64{
		"cuCtxGetCurrent": &d.CtxGetCurrent, "cuStreamIsCapturing": &d.StreamIsCapturing,
		"cuThreadExchangeStreamCaptureMode": &d.ThreadExchangeStreamCaptureMode,
		"cuEventCreate":                     &d.EventCreate, "cuEventDestroy_v2": &d.EventDestroy, "cuEventRecord": &d.EventRecord,
		"cuEventQuery": &d.EventQuery, "cuEventElapsedTime": &d.EventElapsedTime,
		"cuStreamCreate": &d.StreamCreate, "cuDevicePrimaryCtxGetState": &d.PrimaryCtxState,
	}
}

func eventFunction(name string) bool { return eventFunctions(new(agent.Driver))[name] != nil }

// time has what the program puts on its GPUs timed, if m, a part of the driver, has the functions
// for that.
func (t *Tracer) time(task *ptrace.Task, lib *library, m *proc.Mapping) {
	process := t.opts.Agent.Find(task)
	if process == nil {
		t.report("%s: what it has the GPU do is not timed: its process has no agent", lib.path)
		return
	}
	var d agent.Driver
	for name, at := range eventFunctions(&d) {
		if f, has := lib.driver[name]; has {
			if addr, ok := lib.addr(m, f, 1); ok {
				*at = addr
			}
		}
	}
	if d.EventRecord == 0 {
		return // they are in another part
	}
	if err := process.Time(task, &d); err != nil {
		t.report("%s: what it has the GPU do is not timed: %v", lib.path, err)
	}
}

// Untimed says what was not timed of what GPUs did, "" for nothing.
func (t *Tracer) Untimed() string {
	u := t.opts.Agent.Stats().Untimed
	var list []string
	for _, c := range []struct {
		n   uint64
		why string
	}{
		{u.Captured, "captured into graphs, which are timed as a whole"},
		{u.Full, "with too many before them on their way"},
		{u.Failed, "for which the driver had no events"},
		{u.Pending, "not over when the program was last seen to wait for the GPU"},
	} {
		if c.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", c.n, c.why))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "launches, copies and sets without a time on the GPU: " + strings.Join(list, "; ")
}

// addr returns where m, a part of the library, has size bytes of code that are at addr in the file.
func (l *library) addr(m *proc.Mapping, addr, size uint64) (uint64, bool) {
	off, ok := l.file.Offset(addr)
	if !ok {
		return 0, false
	}
	return m.Addr(off, size)
}

// hook hooks the functions of a library that are in m, a part of it, but for those that are hooked
// already.
func (t *Tracer) hook(task *ptrace.Task, lib *library, m *proc.Mapping) {
	process := t.opts.Agent.Find(task)
	driver := api.Match(filepath.Base(lib.path)).Library == api.Driver
	beside, asked := false, false
	var list []agent.Target
	for _, f := range lib.funcs {
		addr, ok := lib.addr(m, f.addr, f.size)
		if !ok || process != nil && process.Hooked(addr) {
			continue
		}
		if !asked && driver && t.opts.NoKernels != nil {
			beside, asked = t.opts.NoKernels(task.PID), true
		}
		hook := f.hook
		if beside && f.beside != nil {
			hook = f.beside
		}
		list = append(list, agent.Target{Addr: addr, Hook: hook})
	}
	if len(list) > 0 {
		t.hookAll(task, lib, list)
		if t.opts.Driver != nil && driver {
			t.opts.Driver(task.PID)
		}
	}
	if lib.driver != nil {
		t.time(task, lib, m)
	}
}

func (t *Tracer) hookAll(task *ptrace.Task, lib *library, list []agent.Target) {
	t.opts.Agent.HookAllOrBreak(task, list)
	var failed []string
	var why error // of the first
	for i := range list {
		if err := list[i].Err; err != nil {
			if why == nil {
				why = err
			}
			t.opts.Logger.Debug("not hooked", "library", lib.path, "function", list[i].Hook.Name, "error", err)
			failed = append(failed, list[i].Hook.Name)
		}
	}
	if len(failed) > 0 && !lib.said {
		lib.said = true
		t.report("%s: %d of %d functions are not recorded, among them %s: %v", lib.path, len(failed), len(list), failed[0], why)
	}
}
