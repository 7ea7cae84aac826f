package run

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/host"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces/record"
)

// attachFlags say which probes run, and how their maps are shown.
type attachFlags struct {
	objects, kernels, programs cli.StringList
	clangFlags                 cli.StringList
	places                     cli.StringList // of programs on the host: program=file:function
	scripts                    probe.ScriptFlags
	settings                   cli.StringList // of maps: name[key]=value, or how they are shown
	vars                       cli.StringList
	interval                   time.Duration
	fuel                       uint
	strict                     bool
	threads                    uint64
	verify                     verifyFlag
	allowExit, require         bool
	json, verbose              bool
	pin                        string               // that maps on the host are called when the run has ended; "": they are gone
	mapsFile                   string               // that maps are written to; "": standard error
	mapsTo                     *mapsFile            // it
	shown                      func([]script.Shown) // puts what scripts on the host show there; nil: it is shown apart
	directSim                  bool                 // of the verb attach
	inMachineCode              bool
	untestedArch               bool

	planned  *nvattach.Plan // of start; nil: none
	unplaced []string       // host programs whose functions were not there
}

func (f *attachFlags) register(fs *flag.FlagSet) {
	fs.Var(&f.objects, "attach", "run the eBPF programs of `OBJECT`, or of its source FILE.bpf.c, which clang compiles, in the program's kernels and functions (repeated)")
	fs.Var(&f.clangFlags, "clang-flags", "give clang these `FLAGS`, too, for the sources of --attach: '-I include -DN=4' (repeated)")
	f.scripts.Register(fs)
	fs.Var(&f.kernels, "kernel", "only in kernels whose name, mangled or demangled, matches `GLOB` (repeated)")
	fs.Var(&f.programs, "prog", "only the programs whose name matches `GLOB` (repeated)")
	fs.Var(&f.places, "at", "run a host program at another function than its section says, or one whose section says none: `PROGRAM=FILE:FUNCTION` (repeated)")
	fs.Var(&f.settings, "map", "set entries of a map before the first kernel: `NAME[KEY]=VALUE`, NAME=@FILE (repeated)")
	fs.StringVar(&f.pin, "map-pin", "", "keep the maps of programs on the host when the run has ended, for nvtrace maps pin and the next run, as `NAME`")
	fs.Var(&f.vars, "set", "set a global variable of a probe: `VAR=VALUE` (repeated)")
	fs.Func("maps", "show maps as `FORMAT` text or json, or write them to a file: FILE.json, or another name with a . or /", func(s string) error {
		f.json, f.mapsFile = s == "json" || strings.HasSuffix(s, ".json"), ""
		if strings.ContainsAny(s, "./") {
			f.mapsFile = s
		} else if s != "json" && s != "text" {
			return errors.New("want text, json, or the name of a file with a . or / in it")
		}
		return nil
	})
	fs.DurationVar(&f.interval, "interval", 0, "show maps every `TIME` (1s), not at the end only")
	fs.BoolVar(&f.strict, "strict", false, "refuse probes that need checks at run time, or change a map's value in a way that loses other threads' changes")
	fs.UintVar(&f.fuel, "fuel", 0, "instructions that one run of a probe may execute, `N` (0: a million, as in Linux)")
	fs.Uint64Var(&f.threads, "map-threads", 0, "threads of a grid that per-thread maps have values for, `N` (0: 1048576)")
	fs.BoolVar(&f.allowExit, "allow-exit", false, "allow bpftime's helper 507, by which a probe ends the kernel's thread")
	fs.Var(&f.verify, "verify", "run each probed kernel's first launch with and without probes on copies of its memory, and compare; =`N`: each N-th launch, too")
	fs.BoolVar(&f.verbose, "v", false, "list each kernel that was probed, or was not and why, also those that were not launched; and have all tables of the summary")
	fs.BoolVar(&f.inMachineCode, "machine-code", true, "put probes into machine code where the driver takes that (GPUs of sm_90); =false: into PTX alone")
	fs.BoolVar(&f.untestedArch, "untested-arch", false, "put probes into the machine code of GPUs on which that was never tried, too")
	fs.BoolVar(&f.require, "require", false, "refuse an image in which a wanted kernel can't be probed")
}

// machineCode says into which machine code the probes are put.
func (f *attachFlags) machineCode() gpu.MachineCode {
	switch {
	case !f.inMachineCode:
		return gpu.NoMachineCode
	case f.untestedArch:
		return gpu.AnyMachineCode
	}
	return gpu.TestedMachineCode
}

// any reports whether there is something to attach; programs have been compiled.
func (f *attachFlags) any() bool { return len(f.objects) > 0 || f.scripts.Object() != nil }

// plan loads the objects and proves their programs safe.
func (f *attachFlags) plan(e *cli.Env, more ...*object.Object) (*nvattach.Plan, []object.Setting, error) {
	objs := slices.DeleteFunc(slices.Clone(more), func(o *object.Object) bool { return o == nil })
	for _, name := range f.objects {
		o, err := probe.OpenProbes(e, name, probe.Words(f.clangFlags))
		if err != nil {
			return nil, nil, err
		}
		objs = append(objs, o)
	}
	for _, text := range f.places {
		if err := object.PlaceProgram(objs, text); err != nil {
			return nil, nil, err
		}
	}
	if f.pin != "" {
		if _, err := newPinFolder(e.Getenv, f.pin); err != nil {
			return nil, nil, fmt.Errorf("--map-pin: %w", err)
		}
		if f.scripts.Object() != nil {
			return nil, nil, errors.New("--map-pin keeps maps of objects; what a script counts is shown at its end")
		}
	}
	settings, err := f.scripts.Begin()
	if err != nil {
		return nil, nil, err
	}
	if o := f.scripts.Object(); o != nil {
		objs = append(objs, o)
	}
	for _, text := range f.settings {
		s, err := object.ParseMapSetting(text)
		if err != nil {
			return nil, nil, err
		}
		if done, err := object.SetNamed(objs, s); err != nil {
			return nil, nil, err
		} else if done {
			continue
		}
		settings = append(settings, s)
	}
	for _, text := range f.vars {
		s, err := object.ParseVarSetting(text)
		if err != nil {
			return nil, nil, err
		}
		if err := object.SetVar(objs, s); err != nil {
			return nil, nil, err
		}
	}
	if !slices.ContainsFunc(objs, func(o *object.Object) bool { return len(o.Programs) > 0 && !o.Beside }) {
		objs = slices.DeleteFunc(objs, func(o *object.Object) bool { return o.Beside })
	}
	plan, err := nvattach.NewPlan(objs, &nvattach.PlanOptions{
		AllowExit: f.allowExit, Fuel: uint32(min(f.fuel, math.MaxUint32)), Kernels: f.kernels, Programs: f.programs, Strict: f.strict,
	})
	if err != nil {
		return nil, nil, err
	}
	f.scripts.Planned(plan)
	return plan, settings, nil
}

// start begins a session of the probes, nil if there are none. stamps, if not nil, is that of
// [session.Stamps] among them, and stamped is told.
func (f *attachFlags) start(e *cli.Env, stamps *object.Object, stamped func(session.Stamp)) (*session.Session, error) {
	if !f.any() && stamps == nil {
		return nil, nil
	}
	plan, settings, err := f.plan(e, stamps)
	if err != nil {
		return nil, err
	}
	f.planned = plan
	if err := host.Check(plan); err != nil {
		return nil, err
	}
	if err := rehearse(plan, settings, f.threads); err != nil {
		return nil, err
	}
	for _, q := range plan.Programs {
		for _, w := range q.Warnings() {
			e.Notice("%s", w)
		}
	}
	for _, o := range plan.Objects {
		for _, i := range o.Ignored {
			if o.TailCalled(i.Name) {
				continue
			}
			if f.require && f.chosen(i.Name) {
				return nil, fmt.Errorf("%w: %s: program %s is not run: %s", errRequired, o.Name, i.Name, i.Reason)
			}
			e.Notice("%s: program %s is not run: %s", o.Name, i.Name, i.Reason)
		}
	}
	for _, p := range plan.Programs {
		if p.Point.Kind == object.KindRun {
			e.Notice("%s: program %s is not run: it is a kernel of its own; nvtrace attach --run %s runs it", p.Object.Name, p.Name, p.Name)
		}
	}
	if _, apart := plan.SharedMaps(); len(apart) > 0 {
		e.Notice("programs in kernels and on the host both use %s: each side sees its own contents, which are shown apart", strings.Join(apart, ", "))
	}
	o := &session.Options{
		Plan: plan, Settings: settings, Out: e.Stderr, Interval: f.interval, Required: f.require, Verify: int(f.verify),
		Maps: mapmem.MapOptions{Threads: f.threads}, Verbose: f.verbose, Script: f.scripts.InKernels(), Began: f.scripts.Began,
	}
	if stamps != nil && slices.Contains(plan.Objects, stamps) {
		o.Stamped = stamped
	}
	if p := f.scripts.InKernels(); p != nil && f.interval == 0 {
		o.Interval = time.Duration(p.Every())
	}
	if f.json {
		o.Format = session.FormatJSON
	}
	if f.mapsFile != "" {
		f.mapsTo = new(mapsFile)
		o.Out, o.Notices = f.mapsTo, e.Stderr
	}
	s := session.New(o)
	if f.json || f.mapsFile != "" { // one document holds what probes on the host show, too
		f.shown = s.Show
	}
	return s, nil
}

// kernelProbes reports whether programs run in kernels.
func (f *attachFlags) kernelProbes() bool { return f.planned != nil && len(f.planned.Programs) > 0 }

// extendHost adds the probes on the host, if there are any, to a recording.
func (s *tracing) extendHost(a *agent.Agent, list *[]record.Extension) error {
	var shared *agent.Programs
	pin := s.f.attach.pinned(s.e)
	runner, err := s.probes.AddHost(func(size uint64) ([]byte, error) {
		in, err := pin.open()
		if err != nil {
			return nil, err
		}
		if in == nil && s.atStops() {
			return make([]byte, size), nil
		}
		if shared, err = s.programs(a, size, in); err != nil && in != nil {
			return nil, err
		}
		if err != nil {
			s.e.Notice("programs on the host run at stops, which are slower, and not in the traced processes: %v", err)
			return make([]byte, size), nil
		}
		return shared.Data()[:size], nil
	})
	if err == nil && runner == nil && s.live() {
		shared, err = s.programs(a, 0, nil)
	}
	if err == nil && shared != nil && len(s.f.attach.planned.Host) == 0 { // it is memory alone
		err = shared.SetTexts(new(agent.MapLayout))
		a.SetPrograms(shared)
	}
	if err == nil && shared == nil && s.live() {
		err = errors.New("-p: no code of nvtrace can be put into the program, by which programs would get into its kernels")
	}
	if pin != nil && err == nil {
		err = pin.describe(s.e, &s.f.attach, runner)
	}
	if err != nil || runner == nil {
		return pin.explain(err)
	}
	if s.gpu != nil && shared != nil {
		s.gpu.SetOwn(func(t *ptrace.Task, addr uint64) error {
			p, err := a.Process(t)
			if err == nil {
				err = p.Own(t, addr)
			}
			return err
		})
	}
	if maps := runner.Maps(); maps.SharedSize > 0 && shared != nil {
		s.share(a, maps, shared.Data())
	}
	if len(s.f.attach.planned.Host) == 0 { // kernels reach the memory, and nothing runs on the host
		return nil
	}
	others := slices.Clone(*list)
	t, err := host.New(&host.Options{
		Plan: s.f.attach.planned, Runner: runner, Report: s.probes.Report, Logger: s.opts.Logger, Agent: a, Programs: shared,
		Asked: func(nr uint64) (all, code bool) { return record.Wanted(others, nr) },
		Place: func(q *hostrun.Program) string { return s.f.attach.placeOf(q.Object, q.Name, q.Section) },
	}, record.ExtensionClass)
	if err != nil {
		return err
	}
	s.f.attach.scripts.Named(t.Name)
	s.control(t)
	s.probes.SetPlace(func(addr uint64, returned bool) string { return placeText(t.NameAnywhere(addr, returned)) })
	*list = append(*list, record.Extension{Rules: t.Rules(), Handler: t, Finish: func() {
		s.controlled.end()
		s.f.attach.unplaced = t.Unmatched()
		for _, text := range s.f.attach.unplaced {
			s.probes.Report(text)
		}
		ofDriver := func(q *hostrun.Program) bool { return strings.HasPrefix(filepath.Base(q.Point.Binary), "libcuda") }
		if len(s.f.attach.unplaced) > 0 && s.sim == nil && s.f.pid() == 0 && !HasDriver() && slices.ContainsFunc(s.f.attach.planned.Host, ofDriver) {
			s.probes.Report("no NVIDIA driver on this machine; on a simulated GPU: add --sim")
		}
		if slow := t.Slow(); slow != "" {
			s.probes.Report(slow)
		}
	}})
	return nil
}

// atStops reports whether programs on the host are to run at stops. Those in kernels may share maps with them; and in
// programs that outlive nvtrace, exceptions do not find their way through functions whose returns are seen at stops.
func (s *tracing) atStops() bool {
	return s.f.fast == "off" && !s.f.attach.kernelProbes() && s.f.onDeath != deathLive && s.f.pid() == 0
}

// share has kernels reach the maps that programs on the host use, too; data is the memory of
// the host's maps.
func (s *tracing) share(a *agent.Agent, maps *mapmem.Maps, data []byte) {
	if s.sim != nil {
		at, size := maps.SharedOffset, maps.SharedSize
		s.sim.sim.Share(mapmem.HostBase+at, data[at:at+size:at+size])
	}
	if s.gpu != nil {
		s.gpu.SetShare(func(t *ptrace.Task) error {
			p, err := a.Process(t)
			if err == nil {
				err = p.Runs(t)
			}
			return err
		}, maps.ClockLine(data))
	}
}

// live reports whether programs run in kernels of programs that run already.
func (s *tracing) live() bool { return s.gpu != nil && s.f.pid() != 0 }

// programs makes the memory of programs that run in processes, with size bytes for the maps of
// those on the host, in a file if that is not nil.
func (s *tracing) programs(a *agent.Agent, size uint64, in *os.File) (*agent.Programs, error) {
	if !s.live() {
		return agent.NewPrograms(mapmem.HostBase, size, in)
	}
	page := uint64(os.Getpagesize())
	size = (size + page - 1) / page * page
	g, err := agent.NewPrograms(mapmem.HostBase, size+gpu.LiveMemory, in)
	if err == nil {
		s.gpu.Live(a, g.Data()[size:], mapmem.HostBase+size)
	}
	return g, err
}

// chosen reports whether --prog, if it is given, chooses a program.
func (f *attachFlags) chosen(program string) bool {
	return len(f.programs) == 0 || slices.ContainsFunc(f.programs, func(g string) bool { return object.Glob(g, program) })
}

// unmatched says which selectors have matched no kernel. With --require, that is an
// error.
func (f *attachFlags) unmatched(e *cli.Env) error {
	if len(f.unplaced) > 0 && f.require {
		return fmt.Errorf("%w: %s", errRequired, f.unplaced[0])
	}
	if !f.kernelProbes() {
		return nil
	}
	for _, q := range f.planned.Unplaced() {
		text := f.placeOf(q.Object, q.Name, q.Section) + ": no instruction of the kernels that were loaded has the opcode " + q.Point.Opcode
		if !strings.HasSuffix(q.Point.Opcode, "*") {
			text += "; it has all its parts, as ld.global.f32 does, or ends in a *: " + q.Point.Opcode + "*"
		}
		e.Notice("%s", text)
	}
	met, list := f.planned.Met(), f.planned.Unmatched()
	if len(met) == 0 && !f.require {
		return nil // the session has said it
	}
	const most = 4
	for i, u := range list {
		if i == most {
			e.Notice("%d more selectors match no kernel", len(list)-most)
			break
		}
		what := "--kernel " + u.Pattern
		if u.Program != nil {
			what = f.placeOf(u.Program.Object, u.Program.Name, u.Program.Section)
		}
		text := what + ": the program loaded no kernel of that name"
		if len(met) == 0 {
			text = what + ": the program loaded no kernel"
		} else if near := ioctl.Suggest(u.Pattern, slices.Values(met)); near != "" {
			text += near
		} else {
			text += "; it loaded " + cli.SomeOf(met, 5)
		}
		if f.require {
			return fmt.Errorf("%w: %s", errRequired, text)
		}
		e.Notice("%s", text)
	}
	return nil
}

// placeOf says where a program of an object is to run, as it was asked for.
func (f *attachFlags) placeOf(o *object.Object, name, section string) string {
	if o == f.scripts.Object() {
		return f.scripts.Program.Place(name)
	}
	return fmt.Sprintf("program %s, section %s", name, section)
}

// startGPU prepares to run probes on the machine's GPUs.
func (s *tracing) startGPU() {
	if err := capture.PrepareNodes(context.Background(), nil); err != nil {
		s.e.Notice("device nodes: %v", err)
	}
	s.gpu = gpu.New(&gpu.Options{
		Session: s.probes, Logger: s.opts.Logger, InProgram: s.e.Getenv(driverCompiles) != "", MachineCode: s.f.attach.machineCode(),
		Report: func(text string) { s.e.Notice("probes: %s", text) },
		Refuse: s.refuse, Ending: s.ending, Running: s.f.pid() != 0,
	}, record.ExtensionClass)
	if s.live() {
		s.opts.Ptrace.Leave = s.gpu.Leave
		if s.modules != nil {
			s.modules.opts.Replace = s.gpu.Collect
		}
		return // what is loaded from now on gets programs as what was loaded before does
	}
	if s.modules != nil {
		o := &s.modules.opts
		o.Replace, o.Refused, o.Mapped, o.Launched, o.Counted = s.gpu.Replace, s.gpu.Refused, s.gpu.Mapped, s.probes.Ran, s.counted()
		s.probes.LooksAtLaunches()
	}
}

// counted returns what is told of launches that were counted; nil where trials would be
// among them.
func (s *tracing) counted() func(kernel string, n uint64) {
	if s.probes.Verify() {
		return nil
	}
	return s.probes.CountLaunches
}

// ending has the launches of a process told that is about to end.
func (s *tracing) ending(t *ptrace.Task, last bool) {
	switch {
	case s.loads != nil:
		s.loads.Ending(t, last)
	case s.modules != nil && s.modules.capture.Load() != nil:
		s.modules.capture.Load().Ending(t, last)
	}
}

// SimDriverProbes is an environment variable for tests: probes get into programs
// on the simulated GPU through its driver in the program, as on a real GPU.
const SimDriverProbes = "NVTRACE_TEST_DRIVER_PROBES"

// driverCompiles is an environment variable for tests: woven modules are compiled by
// the driver, in the program.
const driverCompiles = "NVTRACE_TEST_DRIVER_COMPILES"

// refuse ends the program, since a kernel can't be probed.
func (s *tracing) refuse(err error) { s.cancel(fmt.Errorf("%w: %w", errRequired, err)) }

// errRequired: --require, and a kernel can't be probed.
var errRequired = errors.New("--require")

// extendGPU adds probes to a recording, and the capture of images that they
// need, if that is not there for its own sake; hooked are the functions that are
// recorded beside that.
func (s *tracing) extendGPU(r *record.Recorder, hooked *calls.Options) []record.Extension {
	list := []record.Extension{{Rules: s.gpu.Rules(), Handler: s.gpu}}
	if s.modules == nil && s.live() {
		s.loads = capture.New(&capture.Options{Replace: s.gpu.Collect, Cache: capture.DefaultCache(), Logger: s.opts.Logger}, record.ExtensionClass)
		list = append(list, record.Extension{Rules: s.loads.Rules(), Handler: s.loads, Finish: s.loads.Finish})
	} else if s.modules == nil {
		o := &capture.Options{
			Emit: r.Emit, Now: r.Now, Cache: capture.DefaultCache(), Replace: s.gpu.Replace, Refused: s.gpu.Refused,
			Mapped: s.gpu.Mapped, Logger: s.opts.Logger,
		}
		if o.Agent, o.Flush = r.Agent(), r.Flush; o.Agent != nil {
			o.Audit, o.LaunchesCheap, o.Launched, o.Counted = capture.AuditHooks, true, s.probes.Ran, s.counted()
			s.probes.LooksAtLaunches()
			if o.LaunchesShared = hooked.Libraries.Has(api.Driver); o.LaunchesShared {
				hooked.Launched = func(rec *agent.Record) { s.loads.LaunchRecord(rec) }
			}
		}
		s.loads = capture.New(o, record.ExtensionClass)
		list = append(list, record.Extension{Rules: s.loads.Rules(), Handler: s.loads, Finish: s.loads.Finish})
	}
	return list
}

// closeGPU ends what startGPU began.
func (s *tracing) closeGPU() {
	if s.gpu == nil {
		return
	}
	s.gpu.Close()
	if st := s.gpu.Stats(); !s.f.quiet && st.Images > 0 {
		s.e.Notice("probes: %d images rewritten in %v (%d compiled, %d more from the cache); maps read %d times, for which threads waited %v",
			st.Images, st.Rewriting.Round(time.Millisecond), st.Compiled-st.Cached, st.Cached, st.Visits, st.Visiting.Round(100*time.Microsecond))
	}
	if s.loads != nil {
		s.loads.Close()
	}
}

// idleAttach refuses flags of the verb that would do nothing: those that say something
// about a run where there is none, or about a dry run.
func idleAttach(fs *flag.FlagSet, dry, direct bool) (err error) {
	ofDry := flag.NewFlagSet("", flag.ContinueOnError)
	new(probe.DryFlags).Register(ofDry)
	fs.Visit(func(fl *flag.Flag) {
		name, dashes := fl.Name, "--"
		if len(name) == 1 {
			dashes = "-"
		}
		switch {
		case (ofDry.Lookup(name) != nil || name == "require") && !dry:
			err = fmt.Errorf("%s wants --dry-run", dashes+name)
		case (name == "sim" || name == "maps") && !direct:
			err = fmt.Errorf("--%s wants --run", name)
		case name == "v":
			err = errors.New("-v wants a program: nvtrace -v --attach probe.o -- command [args]")
		case name == "interval" || name == "verify":
			err = fmt.Errorf("--%s wants a program: nvtrace --%s --attach probe.o -- command [args]", name, name)
		case name == "dry-run" && direct:
			err = errors.New("--dry-run and --run exclude each other")
		}
	})
	return err
}

// AttachVerb looks at probe objects without running them.
func AttachVerb(e *cli.Env, args, command []string) int {
	var f attachFlags
	var dry probe.DryFlags
	var direct cli.StringList
	var list, header bool
	var folder string
	fs := cli.NewFlagSet(e, "attach", "[--list] [flags] [probe.o...] | --dry-run [flags] probe.o... IMAGE... | [--maps json] run.nvt")
	fs.BoolVar(&list, "list", true, "list the programs, their places in kernels, and the maps; without objects those that run now, with their IDs")
	fs.BoolVar(&header, "header", false, "print the header that sources of probes include, "+nvattach.HeaderName)
	fs.StringVar(&folder, "init", "", "make the folder `DIR` with a probe in C to begin with, its Makefile, the headers, and flags for editors")
	f.register(fs)
	fs.Var(&f.scripts.Texts, "e", "look into `PROGRAM`, as nvtrace -e runs it")
	dry.Register(fs)
	fs.Var(&direct, "run", "run a program of kprobe/__directly_run on the GPU, or on the PTX machine where there is none, and show the maps: `PROG[:COUNT[:GRID:BLOCK]]` (repeated)")
	fs.BoolVar(&f.directSim, "sim", false, "with --run, take the PTX machine even where there is a GPU")
	var run controlFlags
	run.register(fs)
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if run.what != "" || list && len(names) == 0 && command == nil && !f.any() && given(fs, "list") {
		return run.do(e, names)
	}
	if folder != "" {
		return probe.InitProbes(e, folder)
	}
	if header {
		if _, err := fmt.Fprint(e.Stdout, nvattach.Header); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	}
	if len(names) == 1 && command == nil && view.IsRecording(names[0]) {
		return view.AttachedVerb(e, names[0], &cli.OptString{Given: f.json})
	}
	if err := e.Inputs(names); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	var images []string
	for _, name := range names {
		if dry.On && !probe.IsProbeObject(name) {
			images = append(images, name)
		} else {
			f.objects = append(f.objects, name)
		}
	}
	if dry.On && len(images) == 0 {
		for _, name := range f.objects { // one that is not there may be meant for an image
			if _, err := os.Stat(name); err != nil {
				return e.Fail(cli.ExitFailed, "%v", err)
			}
		}
		return e.Fail(cli.ExitUsage, "attach --dry-run wants probe objects and images: PTX, fat binaries, executables or libraries")
	}
	if err := f.scripts.Load(e); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if !f.any() || command != nil {
		return e.Fail(cli.ExitUsage, "attach wants probe objects; to run them, type: nvtrace --attach probe.o -- command [args]")
	}
	if err := idleAttach(fs, dry.On, len(direct) > 0); err != nil {
		return e.Fail(cli.ExitUsage, "attach: %v", err)
	}
	plan, settings, err := f.plan(e)
	if err == nil {
		err = rehearse(plan, settings, f.threads)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if len(direct) > 0 {
		return f.directly(e, plan, settings, direct)
	}
	if dry.On {
		dry.Require, dry.Machine = f.require, f.machineCode()
		return dry.Run(e, plan, &mapmem.MapOptions{Threads: f.threads}, images)
	}
	var b strings.Builder
	for _, o := range plan.Objects {
		err = errors.Join(err, o.List(&b))
	}
	if err = errors.Join(err, plan.List(&b)); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if _, err := fmt.Fprint(e.Stdout, b.String()); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

// placeText says where code is: "function+0x1f (file)", or "file+0x1234" without a symbol.
func placeText(at unwind.Place) string {
	file := path.Base(at.File)
	switch {
	case at.File == "":
		return ""
	case at.Func == "":
		return fmt.Sprintf("%s+%#x", file, at.Offset)
	default:
		return fmt.Sprintf("%s+%#x (%s)", fatbin.Demangle(at.Func), at.Into, file)
	}
}
