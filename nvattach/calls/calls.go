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

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/api"
	"nvtrace/nvattach/cudart"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
)

// Classes is how many classes of system calls a Tracer takes.
const Classes = 2

// The classes.
const (
	classMap     = iota // a file is mapped executable
	classProtect        // memory is made executable
)

// Options say which calls to record.
type Options struct {
	// Libraries are those whose functions are hooked.
	Libraries api.Selection
	Agent     *agent.Agent
	// Counts selects functions, by name, whose calls are counted and not recorded; nil: none. With
	// failed those that fail are recorded, without arguments.
	Counts func(name string) (count, failed bool)
	// Times has what functions of the driver have a GPU do timed, by events around it. They are
	// recorded, whatever Counts says.
	Times bool
	// Stops selects functions at whose calls the thread stops for OnStop, before they run; nil: none.
	// They are recorded, whatever Counts says.
	Stops  func(m api.Module, name string) bool
	OnStop func(t *ptrace.Task, r *agent.Record)
	// Launched, if not nil, is given the records of the driver's launching
	// functions, for whoever audits launches.
	Launched func(r *agent.Record)
	// Report is told, once for each library file, what could not be hooked; nil
	// for nobody.
	Report func(text string)
	Logger *slog.Logger // nil discards
}

// Tracer hooks the libraries of all processes of a run. It is a
// [ptrace.Handler] for the calls that [Tracer.Rules] select.
type Tracer struct {
	opts  Options
	class uint16
	files map[proc.FileKey]*library
}

// library is a file with functions to hook.
type library struct {
	path  string
	loads []elf.ProgHeader // executable ones
	funcs []function
	said  bool
	// driver has functions that events are made with, by address in the file.
	driver map[string]uint64
}

type function struct {
	addr, size uint64 // as in the file
	hook       *agent.Hook
}

// New makes a Tracer whose system calls have classes from class on.
func New(o *Options, class uint16) *Tracer {
	t := &Tracer{opts: *o, class: class, files: make(map[proc.FileKey]*library)}
	if t.opts.Logger == nil {
		t.opts.Logger = slog.New(slog.DiscardHandler)
	}
	return t
}

// Rules select the calls that map a library's code, and that make it executable.
func (t *Tracer) Rules() []ptrace.Rule {
	exec := []ptrace.ArgMatch{{Arg: 2, Mask: unix.PROT_EXEC, Value: unix.PROT_EXEC}}
	return []ptrace.Rule{
		{Names: []string{"mmap"}, Class: t.class + classMap, Args: exec},
		{Names: []string{"mprotect", "pkey_mprotect"}, Class: t.class + classProtect, Args: exec},
	}
}

// Enter implements [ptrace.Handler].
func (t *Tracer) Enter(_ *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	switch {
	case s.Compat:
	case s.Class == t.class+classProtect, s.Class == t.class+classMap && int32(uint32(s.Args[4])) >= 0:
		return ptrace.WantExit
	}
	return ptrace.Skip
}

// Exit implements [ptrace.Handler]. The library has been mapped, and nothing of
// it was executed.
func (t *Tracer) Exit(task *ptrace.Task, s *ptrace.Syscall) {
	switch {
	case s.Ret < 0 && s.Ret >= -4095:
		return
	case s.Class == t.class+classProtect:
		t.mapped(task, s.Args[0], s.Args[0]+s.Args[1])
		return
	case s.Class != t.class+classMap:
		return
	}
	link := proc.FD(task.TID, int32(uint32(s.Args[4])))
	path, err := os.Readlink(link)
	if err != nil {
		return
	}
	if p := t.opts.Agent.Find(task); p != nil {
		p.Unmapped(uint64(s.Ret), s.Args[1]) // what was there before is gone
	}
	open := func() (*os.File, proc.FileKey, error) { return proc.OpenRegular(link) }
	if lib := t.library(path, open); lib != nil {
		t.hook(task, lib, uint64(s.Ret), uint64(s.Ret)+s.Args[1], s.Args[5])
	}
}

// Task implements [ptrace.Handler]. A process that was there before the tracer
// has its libraries hooked as they are, and one that executes a program that program.
func (t *Tracer) Task(task *ptrace.Task, e *ptrace.TaskEvent) {
	switch {
	case e.Kind == ptrace.TaskNew && e.Attached && task.TID == task.PID:
		task.Interrupt(func(task *ptrace.Task) { t.mapped(task, 0, ^uint64(0)) })
	case e.Kind == ptrace.TaskExec && t.opts.Libraries.Has(api.Runtime):
		t.mapped(task, 0, ^uint64(0)) // the runtime may be linked into the program
	}
}

// mapped hooks the libraries whose code a process has mapped already, as far as it
// lies within a range. Their functions may be hooked.
func (t *Tracer) mapped(task *ptrace.Task, lo, hi uint64) {
	maps, err := proc.Maps(task.PID)
	if err != nil {
		return
	}
	for i := range maps {
		m := &maps[i]
		if m.Inode == 0 || !m.Exec || m.Start >= hi || m.End <= lo || !strings.HasPrefix(m.Path, "/") {
			continue
		}
		open := func() (*os.File, proc.FileKey, error) { return proc.OpenMapped(task.PID, m) }
		if lib := t.library(m.Path, open); lib != nil {
			t.hook(task, lib, m.Start, m.End, m.Offset)
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

// addRuntime adds the functions of a CUDA runtime that is linked into a file statically. lib is
// what else the file has, nil for nothing, which is returned then if there is none.
func (t *Tracer) addRuntime(lib *library, f *os.File, path string) *library {
	found, err := cudart.Find(f)
	if err != nil || found == nil {
		return lib
	}
	if lib == nil {
		e, err := elf.NewFile(f)
		if err != nil {
			return nil
		}
		lib = newLibrary(e, path)
	}
	module := api.Module{Library: api.Runtime, Major: found.Major()}
	hooked := 0
	for _, x := range found.Functions {
		if spec, ok := module.HookFor(x.Name); ok {
			lib.funcs = append(lib.funcs, function{x.Addr, x.Size, t.newHook(path, x.Name, module, &spec)})
			hooked++
		}
	}
	text := fmt.Sprintf("%s has the CUDA runtime in it (%s): %d of its functions are recorded", path, found.Release(), hooked)
	if n := len(found.Missing); n > 0 {
		text += fmt.Sprintf("; %d were not found, or are several with the same code, among them %s", n, found.Missing[0])
	}
	t.report("%s", text)
	return lib
}

// newLibrary describes a file.
func newLibrary(e *elf.File, path string) *library {
	lib := &library{path: path}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			lib.loads = append(lib.loads, p.ProgHeader)
		}
	}
	return lib
}

func (t *Tracer) report(format string, args ...any) {
	if t.opts.Report != nil {
		t.opts.Report(fmt.Sprintf(format, args...))
	}
}

// read lists the functions that a library exports.
func (t *Tracer) read(f *os.File, path string, module api.Module) (*library, error) {
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, err
	}
	if e.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("machine %v: only x86-64 is known", e.Machine)
	}
	lib := newLibrary(e, path)
	symbols, err := e.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	at := make(map[uint64]bool)
	for i := range symbols {
		s := &symbols[i]
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || s.Size == 0 {
			continue
		}
		if t.opts.Times && module.Library == api.Driver && eventFunction(s.Name) {
			if lib.driver == nil {
				lib.driver = make(map[string]uint64)
			}
			lib.driver[s.Name] = s.Value
		}
		spec, ok := module.HookFor(s.Name)
		if !ok || at[s.Value] {
			continue // of two names of one function the first in the table serves
		}
		at[s.Value] = true
		lib.funcs = append(lib.funcs, function{s.Value, s.Size, t.newHook(path, s.Name, module, &spec)})
	}
	return lib, nil
}

// newHook describes what to copy of a function's calls.
func (t *Tracer) newHook(path, name string, module api.Module, spec *api.HookSpec) *agent.Hook {
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
	if t.opts.Launched != nil && module.Library == api.Driver && (strings.Contains(name, "Launch") || strings.HasPrefix(name, "cuGraph")) {
		launched := t.opts.Launched
		h.OnRecord = func(_ *agent.Process, r *agent.Record) { launched(r) }
	}
	f := module.Lookup(name)
	if t.opts.Times && module.Library == api.Driver {
		h.Waits = f.Waits()
		if arg, ok := f.EndsContext(); ok {
			h.Ends = &arg
		}
		if w, ok := f.Work(); ok {
			h.Work = &agent.Work{Stream: w.Stream, StreamAt: w.StreamAt, Subject: w.Subject, PerThread: w.PerThread}
		}
	}
	if t.opts.Stops != nil && t.opts.Stops(module, name) {
		onStop := t.opts.OnStop
		h.Stop, h.OnStop = true, func(task *ptrace.Task, _ *agent.Process, r *agent.Record) { onStop(task, r) }
	}
	if t.opts.Counts != nil && h.OnRecord == nil && h.Work == nil && !h.Stop {
		h.Count, h.Failed = t.opts.Counts(name)
		h.Failed = h.Failed && f != nil && f.Result.Status
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

// time has what the program puts on its GPUs timed, if the part of the driver that is mapped
// from from up to to has the functions for that.
func (t *Tracer) time(task *ptrace.Task, lib *library, from, to, off uint64) {
	process := t.opts.Agent.Find(task)
	if process == nil {
		t.report("%s: what it has the GPU do is not timed: its process has no agent", lib.path)
		return
	}
	var d agent.Driver
	for name, at := range eventFunctions(&d) {
		for _, p := range lib.loads {
			if addr := lib.driver[name]; addr != 0 && addr-p.Vaddr < p.Filesz {
				if inFile := addr - p.Vaddr + p.Off; inFile >= off && inFile-off < to-from {
					*at = from + inFile - off
				}
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

// hook hooks the functions of a library whose file is mapped from off on, at from up
// to to, but for those that are hooked already.
func (t *Tracer) hook(task *ptrace.Task, lib *library, from, to, off uint64) {
	process := t.opts.Agent.Find(task)
	for _, p := range lib.loads {
		var list []agent.Target
		for _, f := range lib.funcs {
			if f.addr-p.Vaddr >= p.Filesz {
				continue
			}
			at := f.addr - p.Vaddr + p.Off // in the file
			if at < off || at-off >= to-from || f.size > to-from-(at-off) {
				continue
			}
			if addr := from + at - off; process == nil || !process.Hooked(addr) {
				list = append(list, agent.Target{Addr: addr, Size: f.size, Hook: f.hook})
			}
		}
		if len(list) == 0 {
			continue
		}
		t.opts.Agent.HookAllOrBreak(task, list)
		var failed []string
		for i := range list {
			if err := list[i].Err; err != nil {
				t.opts.Logger.Debug("not hooked", "library", lib.path, "function", list[i].Hook.Name, "error", err)
				failed = append(failed, list[i].Hook.Name)
			}
		}
		if len(failed) > 0 && !lib.said {
			lib.said = true
			t.report("%s: %d of %d functions are not recorded, among them %s", lib.path, len(failed), len(list), failed[0])
		}
	}
	if lib.driver != nil {
		t.time(task, lib, from, to, off)
	}
}
