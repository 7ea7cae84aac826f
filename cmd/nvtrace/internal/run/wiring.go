package run

// What runs beside a program is put together here, and nowhere else: the simulated GPU, probes in
// kernels and on the host, the capture of images, recorded calls, stacks.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ioctls "nvtrace/ioctl/record"

	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/cmd/nvtrace/internal/trackers"
	"nvtrace/fatbin"
	"nvtrace/ioctl/lookout"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/control"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/host"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/nvtx"
	"nvtrace/nvattach/outcome"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces/record"
	"nvtrace/traces/stacks"
)

// setUp starts what runs beside the program: the capture of images, probes, a
// simulated GPU.
func (s *tracing) setUp(command []string) (err error) {
	f := s.f
	stamps, err := f.stamps()
	if err != nil {
		return err
	}
	if s.probes, err = f.attach.start(s.e, stamps, s.stamped); err != nil {
		return err
	}
	if f.pid() != 0 {
		err = f.attachable()
	} else {
		err = f.sim.decide(s.e, f.attach.kernelProbes())
	}
	if err != nil {
		return err
	}
	if s.modules, err = f.modules.start(s.e, f.recording()); err != nil {
		return err
	}
	if s.shim, err = startInterposer(s); err != nil {
		return err
	}
	if f.sim.gpu.Given {
		if err := f.attach.replaced(s.e, command[0]); err != nil {
			return err
		}
		hooked, loads := s.probes, s.modules
		if f.sim.probes.driver {
			hooked, loads = nil, nil
		}
		if s.sim, err = startSimulation(s.e, &f.sim, command, hooked, s.refuse, loads); err != nil {
			return err
		}
		s.sim.prepare(&s.opts)
	}
	if f.recorded().Has(api.NVTX) && f.pid() == 0 {
		s.takeRanges()
	}
	if p := f.attach.scripts.Program; p != nil && p.Ranges() && f.pid() != 0 {
		return errors.New("nvtx: NVTX ranges are recorded of programs that nvtrace starts, not of one that runs already")
	}
	if f.attach.kernelProbes() && (s.sim == nil || f.sim.probes.driver) {
		if f.onDeath == deathLive {
			return errors.New("--attach and --gpu-times=probe have the program call its driver, and would leave it in the midst of that if nvtrace were killed; leave --on-tracer-death=live out")
		}
		s.startGPU()
	}
	s.opts.Extend = s.extend
	return nil
}

// takeRanges has the program load the library by which its NVTX ranges are recorded.
func (s *tracing) takeRanges() {
	env := s.opts.Ptrace.Env
	if env == nil {
		env = os.Environ()
	}
	lib, env, err := nvtx.Install(os.TempDir(), env)
	if err != nil { // what else is recorded does not need it
		s.e.Step("NVTX ranges are not recorded: " + err.Error())
		return
	}
	s.nvtx, s.opts.Ptrace.Env = lib, env
}

// extend says what is recorded: ioctls, and what flags ask for beside them.
func (s *tracing) extend(r *record.Recorder) ([]record.Extension, error) {
	s.recorder.Store(r)
	if a := r.Agent(); a != nil && (s.f.recorded() != 0 || s.modules != nil || s.live()) {
		for _, pid := range s.f.pids {
			a.Prepare(pid, gpu.IsDriver)
		}
	}
	wanted := s.f.stacks
	at := stacks.New(r, wanted.given() || s.f.attach.scripts.Native())
	atIoctls := s.f.attach.scripts.AtIoctls()
	if atIoctls {
		s.ioctls.Fast, s.ioctls.Entered = ioctls.FastOff, at.Entered
	}
	list := []record.Extension{ioctls.New(r, &s.ioctls).Extension()}
	s.shim.noteTo(r)
	o := &calls.Options{
		Libraries: s.f.recorded(), Agent: r.Agent(), Counts: s.f.countedOnly(), Inner: s.f.countedOnly() != nil && s.f.api.Inner(), Times: s.f.gpuTimes != "off" && s.f.gpuTimes != timesByTracker, NoLaunches: s.f.gpuTimes == timesByProbe, Logger: s.opts.Logger,
		Report: func(text string) { r.Note(nil, text) },
	}
	switch {
	case s.f.gpuTimes == timesByTracker:
		t := trackers.New(r, s.f.pid() == 0)
		o.Submitted, o.Driver = t.Record, t.Begin
		list = append(list, t.Extension())
	case s.f.gpuTimes == timesByBoth:
		t := trackers.NewBeside(r, s.f.pid() == 0)
		o.Submitted, o.NoKernels = t.Record, t.Chooses
		list = append(list, t.Extension())
	}
	if s.sim != nil && s.sim.captured != nil {
		list = append(list, s.sim.extend(r))
	} else if c := s.modules; c != nil {
		if o.Libraries.Has(api.Driver) {
			c.opts.LaunchesShared, c.opts.LookupsShared = true, true
			o.Launched = func(rec *agent.Record) { c.capture.Load().LaunchRecord(rec) }
		}
		list = append(list, c.extend(r))
	}
	if s.gpu != nil {
		list = append(list, s.extendGPU(r, o)...)
	}
	if s.f.flight > 0 {
		h := lookout.New(r, &lookout.Options{Hang: time.Duration(s.f.hang), Look: new(look.Processes).LookFor, Busy: look.Busy, Sentences: look.Sentences})
		list = append(list, record.Extension{Rules: h.Rules(), Handler: h, Finish: h.Finish})
	}
	for _, name := range s.f.attach.scripts.StacksAt() {
		wanted.list = append(slices.Clip(wanted.list), stackRule{what: name, each: true})
	}
	if wanted.given() {
		o.Stops, o.OnStop, o.Mapped = wanted.wants, at.Stopped, at.Mapped
	}
	if wanted.given() || atIoctls {
		list = append(list, record.Extension{Handler: at, Finish: at.Finish})
	}
	if o.Libraries != 0 {
		list = append(list, record.ThreadNames(r))
		t := calls.New(o, record.ExtensionClass)
		list = append(list, record.Extension{Rules: t.Rules(), Handler: t, Finish: func() {
			if text := t.Untimed(); text != "" {
				r.Note(nil, text)
			}
		}})
	}
	if s.probes != nil { // behind the hooks of calls, which see what programs have functions return
		if err := s.extendHost(r.Agent(), &list); err != nil {
			return nil, err
		}
	}
	if s.sim != nil || s.probes != nil { // the last, when the others have ended
		end := outcome.New(s.outcome(r))
		list = append(list, record.Extension{Handler: end, Finish: end.Finish})
	}
	return list, nil
}

// outcome says what there is beside the program.
func (s *tracing) outcome(r *record.Recorder) *outcome.Options {
	o := &outcome.Options{Recorder: r, Probes: s.probes, InKernels: s.f.attach.kernelProbes()}
	if s.sim != nil {
		o.Sim = s.sim.sim
	}
	if s.gpu != nil {
		o.Close = s.gpu.Close
	}
	if p := s.f.attach.planned; p != nil {
		o.Own = p.Own()
	}
	return o
}

// tearDown ends what setUp started, and has it show what it found.
func (s *tracing) tearDown() {
	s.shim.close()
	if err := s.nvtx.Remove(); err != nil {
		s.e.Notice("%v", err)
	}
	s.closeGPU()
	s.e.Step("probes' work ended")
	s.modules.close()
	if s.probes != nil {
		if err := s.probes.Close(); err != nil {
			s.e.Notice("probes: %v", err)
		}
		if err := s.f.attach.mapsTo.close(); err != nil {
			s.e.Notice("%v", err)
		}
	}
	if s.sim != nil {
		s.sim.Finish(s.f.quiet)
	}
}

// extendHost adds the probes on the host, if there are any, to a recording.
func (s *tracing) extendHost(a *agent.Agent, list *[]record.Extension) error {
	var shared *agent.Programs
	programs := false // run in the process
	if s.gpu != nil {
		s.gpu.SetOwn(func(t *ptrace.Task, addr uint64) error {
			if p := a.Find(t); p != nil {
				p.OwnStack(addr)
			}
			if !programs {
				return nil
			}
			p, err := a.Process(t)
			if err == nil {
				err = p.Own(t, addr)
			}
			return err
		})
	}
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
		err = pin.describe(s.e, s.f.attach.objects, s.f.attach.clangFlags, s.f.attach.planned, runner)
	}
	if err != nil || runner == nil {
		return pin.explain(err)
	}
	programs = shared != nil
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

// startGPU prepares to run probes on the machine's GPUs.
func (s *tracing) startGPU() {
	if err := capture.PrepareNodes(context.Background(), nil); err != nil {
		s.e.Notice("device nodes: %v", err)
	}
	s.gpu = gpu.New(&gpu.Options{
		Session: s.probes, Logger: s.opts.Logger, MachineCode: s.f.attach.machineCode(),
		Report: func(text string) { s.e.Notice("probes: %s", text) },
		Refuse: s.refuse, Ending: s.ending, Running: s.f.pid() != 0, Hold: s.f.attach.hold,
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

// counted returns the function that gets the number of a kernel's launches; nil with --verify, whose trials would
// be among them.
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
				o.LookupsShared = true
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

// refuse ends the program, since a kernel can't be probed.
func (s *tracing) refuse(err error) { s.cancel(fmt.Errorf("%w: %w", errRequired, err)) }

// controlled is the socket by which others switch a run's probes; nil: there is none.
type controlled struct{ *control.Server }

func (c *controlled) end() {
	if c != nil {
		_ = c.Close() // there is nobody to tell
	}
}

// control lets others look at the probes on the host, and switch them.
func (s *tracing) control(t control.Target) {
	server, err := control.Serve(control.Folder(), t)
	if err != nil {
		s.e.Notice("nvtrace attach can't list or switch the programs of this run: %v", err)
		return
	}
	s.controlled = &controlled{server}
}
