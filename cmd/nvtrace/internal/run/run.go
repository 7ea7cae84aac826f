package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/nvtx"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
	"nvtrace/traces/record"
)

// Verb traces a program. Every status of its own is one that env(1) keeps
// from the program's: 125 for a bad command line too.
func Verb(e *cli.Env, args, command []string) int {
	f := NewFlags(e)
	args = pidFlags(e, cli.SplitShort(f.Set, args), command)
	if status, ok := cli.Parse(f.Set, args); !ok {
		return programStatus(status)
	}
	if f.Set.NArg() == 0 {
		var err error
		if args, err = f.attach.scripts.FromStdin(e, args); err == nil {
			err = e.Inputs(f.attach.objects)
		}
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	attach := len(f.pids) > 0 || f.allGPU
	switch {
	case f.Set.NArg() > 0:
		return e.Fail(cli.ExitFailed, "%s", f.misplaced(e, args, command))
	case len(f.pids) > 0 && f.allGPU:
		return e.Fail(cli.ExitFailed, "-p and --all-gpu-processes exclude each other")
	case f.allGPU && len(command) > 0:
		return e.Fail(cli.ExitFailed, "--all-gpu-processes and a command exclude each other")
	case attach && len(command) > 0:
		return e.Fail(cli.ExitFailed, "-p %d and a command exclude each other", f.pids[0])
	case !attach && len(command) == 0:
		return e.Fail(cli.ExitFailed, "no command; type: nvtrace -- command [args]")
	}
	if f.ranks.Given() {
		switch rank := ranks.Rank(os.Environ()); {
		case attach:
			return e.Fail(cli.ExitFailed, "--ranks chooses among the processes of a launcher, each of which starts nvtrace with a command; leave -p out")
		case rank == ranks.Unknown:
			return e.Fail(cli.ExitFailed, "--ranks: there is no rank: no launcher has set one of %s", strings.Join(ranks.Names(), ", "))
		case !f.ranks.Has(rank):
			return e.Become(command)
		}
	}
	if f.allGPU {
		if err := f.choosePIDs(e); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		args = append([]string{"-p", f.pids.Words()}, args...) // the process that decodes attaches to none
	}
	if err := f.attach.scripts.Load(e); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	f.attach.scripts.Warn(e)
	if err := f.setQuiet(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := f.implied(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := errors.Join(f.span(), f.tables(), f.live(e.Getenv)); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := f.idle(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if p := f.attach.scripts.Program; p != nil && len(p.Wants("image")) > 0 && !f.modules.modules.Given {
		_ = f.modules.modules.Set("hash") // nothing but a probe wants them
		if f.shim == "auto" {
			f.shim = "off"
		}
	}
	if _, err := f.lines.Options(e, nil, e.Stderr); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return f.run(e, args, command)
}

// stamped records when a launch began and ended.
func (s *tracing) stamped(t session.Stamp) {
	r := s.recorder.Load()
	if r == nil {
		return
	}
	ev := traces.Event{Time: ptrace.Now(), PID: int32(t.PID), TID: int32(t.PID), FD: -1}
	ev.SetWork(&traces.Work{
		Start: r.Time(t.Start), Dur: t.End - t.Start, Context: t.Context, Margin: t.Margin, Kernel: t.Kernel, Launch: t.Launch,
	})
	r.Send(&ev)
}

// tracing is one run of the verb.
type tracing struct {
	e    *cli.Env
	f    *runFlags
	opts record.Options
	out  outlet

	ioctls ioctls.Options

	modules    *moduleCapture      // nil: images are not captured
	shim       *interposer         // nil: nothing is preloaded
	nvtx       *nvtx.Library       // nil: ranges are not recorded
	probes     *session.Session    // nil: nothing is attached
	sim        *simulation         // nil: the machine's own GPUs
	controlled *controlled         // nil: nobody can switch the probes
	switchable net.Listener        // nil: nobody can switch the recording of calls
	gpu        *gpu.Tracer         // nil: nothing is attached there
	loads      *capture.Capture    // of images for probes alone
	cancel     func(error)         // ends the program
	machine    chan *traces.Header // what takes a moment to ask for
	waiting    *time.Timer         // until it is told for what; nil: for nothing
	begun      bool                // the program has: there may be something to show
	recorder   atomic.Pointer[record.Recorder]

	// catchPipe has SIGPIPE caught, once: where nobody reads stderr any more, the program
	// goes on. A write then fails, and does not end nvtrace, and with it the program.
	catchPipe func()
}

func (f *runFlags) run(e *cli.Env, args, command []string) int {
	s := &tracing{e: e, f: f, catchPipe: sync.OnceFunc(func() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) })}
	go s.catchPipe() // two threads take a while for it
	e.Step("began")
	if err := s.configure(command); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	err := s.setUp(command)
	e.Step("set up")
	if err == nil {
		s.describe(command)
		s.out, err = startOutlet(e, f, args, s.opts.Header)
	}
	if err != nil {
		s.probes = nil // nothing ran: they have nothing to show
		s.tearDown()
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	e.Step("outputs begun")
	quiet := f.hold(&e.Stderr)
	if o, ok := s.out.(*outputs); ok {
		o.heard = quiet.release
	}
	s.opts.Sinks = s.out.sinks()
	d, apart := s.out.(*decoding)
	if apart {
		s.opts.Ptrace.Forked = d.start
		if d.journal != nil {
			s.opts.Ptrace.Planted = d.journal.Planted
		}
	}
	s.opts.OnFault = func(msg string) { e.Notice("%s", msg) }
	s.opts.Say, s.opts.CountStops = s.opts.OnFault, f.attach.verbose
	var res record.Result
	if f.shim == shimOnly {
		stopQuits()
		res, err = s.shim.run(s)
	} else {
		res, err = s.trace()
	}
	if s.waiting != nil {
		s.waiting.Stop()
	}
	if err != nil || res.Ended && res.Status != 0 {
		quiet.release()
	}
	e.Step("program ended, all is given out")
	s.out.Finish()
	if !s.begun {
		s.probes = nil // as above
	}
	s.tearDown()
	if apart {
		d.reap()
	}
	e.Step("outputs ended")
	if res.Latter != nil && f.attach.verbose {
		for _, line := range stopLines(res.Latter) {
			e.Notice("%s", line)
		}
	}
	if errors.Is(err, errOutlet) {
		return cli.ExitFailed // the other process has said why
	}
	if errors.Is(err, errRequired) {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if early, ok := errors.AsType[*ptrace.EndedError](err); ok { // as without nvtrace
		if !asked(early.Status) {
			e.Notice("%v", err)
		}
		return endAs(early.Status)
	}
	if err != nil && !res.Ended {
		return e.Fail(failStatus(err), "%v", err)
	}
	if err != nil {
		e.Notice("%v", err)
	}
	if s.probes != nil {
		if err := f.attach.unmatched(e); err != nil {
			quiet.release()
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	if !res.Ended { // detached
		return cli.ExitOK
	}
	return endAs(res.Status)
}

// describe says what will be traced, and which devices there are: setUp may have loaded
// their driver.
func (s *tracing) describe(command []string) {
	nodes := ioctls.MachineNodes()
	s.opts.Header = record.NewHeader(command, s.f.pid(), cli.Version)
	s.opts.Header.API = s.f.recordedText()
	s.opts.Delay += s.f.startOn.after(time.Unix(0, s.opts.Header.Start))
	ioctls.DescribeDriver(s.opts.Header, nodes)
	s.ioctls.NodeName = nodes.Name
	s.machine = make(chan *traces.Header, 1)
	go func() {
		s.machine <- &traces.Header{GPUs: ioctls.GPUs(), Container: record.Container(s.f.pid())}
	}()
	if d := s.e.Devices; d != nil {
		s.ioctls.NodeName, s.ioctls.MayBeNode, s.ioctls.NodePaths, s.ioctls.Stat = d.NodeName, d.MayBeNode, d.NodePaths, d.Stat
	}
}

// trace runs or attaches to the program. Where the outputs can't be opened, the
// program ends before its first instruction.
func (s *tracing) trace() (record.Result, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	s.cancel = cancel
	var failed error // of opening the outputs
	s.opts.Ptrace.Started = func(pid int) {
		s.e.Step("program executed")
		if failed = s.ready(pid); failed != nil {
			cancel(failed)
		}
		s.e.Step("program let go")
	}
	if s.f.pid() == 0 {
		res, err := record.Run(ctx, &s.opts)
		if failed != nil { // how the program was ended is not how it ends
			return record.Result{Result: new(ptrace.Result)}, failed
		}
		if cause := context.Cause(ctx); errors.Is(cause, errRequired) {
			err = cause // also if the program ended before it was ended
		}
		return res, err
	}
	s.opts.Ptrace.Others = s.f.pids[1:]
	if d, ok := s.out.(*decoding); ok {
		d.prepare()
	}
	if s.f.duration > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.opts.Delay+s.opts.Duration)
		defer stop()
	}
	// The first SIGINT, SIGTERM or SIGHUP detaches; a second one ends nvtrace, as
	// it must where a thread sleeps in a driver and can't be detached.
	res, err := record.Attach(ctx, s.f.pid(), &s.opts)
	if failed != nil {
		return record.Result{Result: new(ptrace.Result)}, failed
	}
	return res, err
}

// waits says, if that lasts, what nvtrace waits for though the program has ended: processes
// under a filter can't go on without it.
func (s *tracing) waits(pids []int) {
	const patience, most = time.Second, 4
	s.waiting = time.AfterFunc(patience, func() {
		var names []string
		for _, pid := range pids {
			comm := proc.Comm(pid)
			if comm != "" && len(names) == most {
				names = append(names, "…")
				break
			}
			if comm != "" {
				names = append(names, fmt.Sprintf("%d (%s)", pid, comm))
			}
		}
		if len(names) > 0 {
			s.e.Notice("the program has ended; waiting for what it left behind: %s; see --orphans", strings.Join(names, ", "))
		}
	})
}

// ready is called when the program has begun, or nvtrace has attached to it. It returns
// when the outputs are open, and what they replace is gone.
func (s *tracing) ready(pid int) error {
	s.catchPipe()
	h := s.opts.Header
	h.PID = int32(pid)
	select {
	case machine := <-s.machine:
		h.GPUs, h.Container = machine.GPUs, machine.Container
	case <-time.After(maxAsking):
		s.e.Step("the driver does not tell about its GPUs")
	}
	names, err := s.f.names(h, s.e.Getenv)
	if err != nil {
		return err
	}
	s.e.Tracing = true
	if err := s.modules.check(names.recording); err != nil {
		return err
	}
	if err := s.f.attach.beginMaps(s.e, names.maps); err != nil {
		return err
	}
	if err := s.out.ready(); err != nil {
		s.f.attach.mapsTo.abandon()
		return err
	}
	err = s.modules.begin(names.recording)
	if s.begun = err == nil; s.begun && s.f.recorded() != 0 {
		f := &s.f.startOn
		r := s.recorder.Load()
		if s.switchable, err = listenSwitch(r); err != nil { // the program is traced all the same
			s.e.Notice("nvtrace ctl can't begin and end the recording of this run: %v", err)
			err = nil
		}
		if !f.begins(r) {
			go f.await(r)
		}
	}
	return err
}

// maxAsking is how long a program waits for what the driver tells of its GPUs. A driver
// that hangs may never tell.
const maxAsking = time.Second

// configure checks the flags that concern tracing.
func (s *tracing) configure(command []string) error {
	f := s.f
	po := &s.opts.Ptrace
	po.Argv = command
	switch f.onDeath {
	case "kill":
	case deathLive:
		po.NoExitKill = true
	default:
		return fmt.Errorf("--on-tracer-death=%s: want kill or live", f.onDeath)
	}
	switch f.fast {
	case "auto":
	case "off":
		s.ioctls.Fast = ioctls.FastOff
	default:
		return fmt.Errorf("--fast=%s: want auto or off", f.fast)
	}
	switch f.seccomp {
	case "auto":
	case "off":
		po.Seccomp = ptrace.SeccompOff
	default:
		return fmt.Errorf("--seccomp=%s: want auto or off", f.seccomp)
	}
	switch f.orphans {
	case "auto":
		po.Orphans, po.Waiting = ptrace.OrphansAuto, s.waits
	case "wait":
	case "kill":
		po.Orphans = ptrace.OrphansKill
	case "detach":
		if po.Seccomp != ptrace.SeccompOff {
			return errors.New("--orphans=detach needs --seccomp=off: under a filter they could not live without nvtrace")
		}
		po.Orphans = ptrace.OrphansDetach
	default:
		return fmt.Errorf("--orphans=%s: want auto, wait, kill or detach", f.orphans)
	}
	s.ioctls.CountsOnly, s.ioctls.Munmap = f.counts, f.munmap
	s.opts.Delay, s.opts.Duration = f.delay, f.duration
	if f.startOn.call() {
		s.opts.StartOn = f.startOn.is
	}
	s.opts.Await = f.startOn.file != "" || f.startOn.signal != 0
	if f.startOn.signal != 0 {
		po.Got = func(sig unix.Signal) {
			if r := s.recorder.Load(); r != nil && sig == f.startOn.signal {
				r.Begin()
			}
		}
	}
	if s.opts.Drop = f.overflow == "drop"; !s.opts.Drop && f.overflow != "wait" {
		return fmt.Errorf("--overflow=%s: want wait or drop", f.overflow)
	}
	const least, most = 1 << 20, 1 << 40
	var err error
	if s.opts.Buffer, err = cli.ParseSize(f.buffer); err != nil || s.opts.Buffer < least || s.opts.Buffer > most {
		return fmt.Errorf("--buffer=%s: want a size from 1M on, such as 1G", f.buffer)
	}
	s.opts.Logger, s.ioctls.Logger, po.Logger = s.e.Debug, s.e.Debug, s.e.Debug
	return nil
}
