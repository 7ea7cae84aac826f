package run

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/trackers"
	"nvtrace/cmd/nvtrace/internal/view"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/nvtx"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
	"nvtrace/traces/record"
)

// runFlags are the flags of tracing a program.
type runFlags struct {
	lines          view.LineFlags
	log, json      cli.OptString
	out, seccomp   string
	summary, quiet bool
	stat           statFlag
	top            bool
	counts, munmap bool
	onDeath        string
	fast, shim     string
	api            view.APIFlag
	gpuTimes       string
	stacks         stackFlag
	env            bool
	modules        moduleFlags
	attach         attachFlags
	sim            simFlags
	orphans        string
	pids           cli.PIDList
	allGPU         bool
	rotate         rotation
	ranks          ranks.Set
	flight, hang   cli.SecondsFlag
	overflow       string
	buffer         string
	delay          time.Duration
	startOn        startFlag
	duration       time.Duration
	Set            *flag.FlagSet
}

// NewFlags makes the flags of tracing a program.
func NewFlags(e *cli.Env) *runFlags {
	f := &runFlags{Set: cli.NewFlagSet(e, "run", "[flags] -- command [args]")}
	f.Set.Var(&f.log, "ioctl-log", "print each device call, to stderr or with =`FILE` to a file")
	f.Set.BoolVar(&f.summary, "summary", false, "print the summary also with --ioctl-log")
	f.Set.Var(&f.stat, "stat", "count launches, copies, allocations, waits and failures, and print them at the end; =`csv`: as comma-separated values; with --json as JSON in place of the summary")
	f.Set.BoolVar(&f.top, "top", false, "show each second what processes do: a table in full screen with -p or where stdout is redirected, else a line")
	f.Set.BoolVar(&f.quiet, "q", false, "print no summary")
	f.Set.Var(&f.json, "json", "print the summary as JSON, to stderr or with =`FILE` to a file")
	f.Set.StringVar(&f.out, "o", "", "record to `FILE` (.nvt compressed, .jsonl plain); %p in its name: the process id; %h: host; %r: rank; %t: start; %q{NAME}: environment")
	f.Set.Var(&f.rotate, "rotate", "go on in another file when one has `SIZE`, such as 1G; =1G,5 keeps the last 5; %n in the name of -o is the file's number")
	f.Set.Var(&f.ranks, "ranks", "trace the ranks in `LIST`, such as 0,8,16-23; the command runs untraced in others")
	f.Set.Var(&f.flight, "flight", "keep the library calls of the last `SECONDS` in memory, and write the -o file only when the program fails or hangs, or on nvtrace dump PID")
	f.hang = cli.SecondsFlag(time.Minute)
	f.Set.Var(&f.hang, "hang", "with --flight: a library call that does not return, or a channel of the GPU that does not get on, for `SECONDS` is a hang; 0: never")
	f.Set.StringVar(&f.overflow, "overflow", "wait", "when events come faster than they can be written, `WHAT` happens: wait, the program waits; drop, library calls are left out and counted")
	f.Set.StringVar(&f.buffer, "buffer", "64M", "how much may wait in memory before that, as a `SIZE`")
	f.Set.DurationVar(&f.delay, "delay", 0, "record library calls from `TIME` after the start on (device calls always: later ones refer to them)")
	f.Set.Var(&f.startOn, "start-on", "record library calls from the first `CALL` on, and count --delay and --duration from there: NVTX:NAME, a range or mark of that name; cudaProfilerStart")
	f.Set.DurationVar(&f.duration, "duration", 0, "record library calls for `TIME`; with -p detach then")
	f.Set.Var(&f.pids, "p", "attach to the running process `PID` instead of starting a command; several: -p 1,2 or repeated")
	f.Set.BoolVar(&f.allGPU, "all-gpu-processes", false, "attach to all running processes that have a GPU open and can be attached to")
	f.Set.StringVar(&f.seccomp, "seccomp", "auto", "`MODE` auto: a seccomp filter picks the calls to stop at; off: stop at every call")
	f.Set.BoolVar(&f.counts, "counts", false, "count ioctls only: no results, times or written bytes; where ioctls stop, at half the cost")
	f.Set.BoolVar(&f.munmap, "munmap", false, "record munmap and mremap of device mappings too")
	f.Set.StringVar(&f.onDeath, "on-tracer-death", "kill", "if the tracing process is killed by SIGKILL, `WHAT` becomes of the program: kill, or live (opening files, and what else nvtrace stops at, then fails with ENOSYS; with --seccomp=off nothing does)")
	f.Set.StringVar(&f.orphans, "orphans", "auto", "processes that outlive the program, `HOW`: wait, kill, detach (with --seccomp=off), or auto: detach with --seccomp=off, otherwise wait and say so")
	f.Set.StringVar(&f.fast, "fast", "auto", "record ioctls and run host programs inside the program, without stops, `WHEN` auto: where it can be done; off: never")
	f.api.Register(f.Set, "record the calls of CUDA's libraries, and show them with the ioctls they cause; =`LIBRARIES` driver,runtime,cublas,…; queries such as cudaGetDevice are only counted, with =all they are recorded, with =count every call is only counted")
	f.Set.StringVar(&f.gpuTimes, "gpu-times", "off", "record when GPUs ran kernels, graphs, copies and sets, `HOW`: events, by an event of the driver behind each; tracker, kernels and graphs by what the GPU writes to its channels, at no cost to the program, but nvtrace keeps two processors busy and some kernels have no time; probe, kernels by a probe in each, also those in graphs; auto: kernels by trackers where the machine has four processors for each process with a GPU, the rest by events, and by probes in kernels that get programs anyway (--attach, -e); off. Implies --api")
	f.Set.Var(&f.stacks, "stacks", "record from where calls were made, functions and lines of Python: `CALLS` alloc, free, sync, launch, failed, or names such as cuMemcpy*, by commas; with /N at one call in N, else as often as costs 2 %. Implies --api")
	f.Set.BoolVar(&f.env, "env", false, "list the environment variables that CUDA's libraries ask for")
	f.modules.register(f.Set)
	f.Set.StringVar(&f.shim, "interpose", "auto", "preload the interposer, a second view of what is loaded, `WHEN` auto: with --modules; off: never; only: instead of ptrace, which records images and nothing else")
	f.attach.register(f.Set)
	f.sim.register(f.Set)
	f.lines.Programs = &f.attach.scripts.Texts
	f.lines.Register(f.Set)
	return f
}

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
	if err := f.implied(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := f.span(); err != nil {
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

// idle refuses flags that say something about probes, or about a simulated GPU,
// where there are none.
func (f *runFlags) idle() (err error) {
	probes, gpu := flag.NewFlagSet("", flag.ContinueOnError), flag.NewFlagSet("", flag.ContinueOnError)
	new(attachFlags).register(probes)
	new(simFlags).register(gpu)
	f.Set.Visit(func(fl *flag.Flag) {
		switch {
		case f.gpuTimes == timesByProbe && (fl.Name == "machine-code" || fl.Name == "untested-arch"): // these are for that, too
		case fl.Name == "interval" && f.stat.Given:
		case probes.Lookup(fl.Name) != nil && fl.Name != "script" && fl.Name != "tool" && !f.attach.any():
			err = fmt.Errorf("--%s wants probes in kernels: --attach, or a program such as -e 'kernel:* { … }'", fl.Name)
		case gpu.Lookup(fl.Name) != nil && fl.Name != "no-sim" && !f.sim.gpu.Given && !f.attach.any():
			err = fmt.Errorf("--%s wants --sim", fl.Name)
		}
	})
	if f.shim == shimOnly && (f.attach.any() || f.attach.scripts.Given() || f.api.Given || f.log.Given || f.env) {
		err = errors.New("--interpose=only records images and nothing else; --attach, --api, --ioctl-log and --env need ptrace")
	}
	return err
}

// implied checks what belongs to calls that are recorded: times of GPUs, and stacks.
func (f *runFlags) implied() error {
	switch f.gpuTimes {
	case "off", "auto", "events":
	case timesByTracker:
		if f.shim == shimOnly {
			return errors.New("--interpose=only records images and nothing else; --gpu-times=tracker needs ptrace")
		}
	case timesByProbe:
		switch {
		case f.pid() != 0:
			return errors.New("-p: --gpu-times=probe needs a program that nvtrace starts; a program that runs already can have --gpu-times=events")
		case f.attach.verify > 0:
			return errors.New("--verify runs kernels several times, and --gpu-times=probe would count each: leave one of them out")
		case f.shim == shimOnly:
			return errors.New("--interpose=only records images and nothing else; --gpu-times=probe needs ptrace")
		}
	default:
		return fmt.Errorf("--gpu-times=%s: want auto, events, tracker, probe or off", f.gpuTimes)
	}
	if f.gpuTimes == "off" && !f.stacks.given() {
		return nil
	}
	if f.api.None {
		return errors.New("--gpu-times and --stacks belong to calls of libraries: leave --api=none out")
	}
	if !f.api.Given && !f.top && !f.stat.Given { // which show no calls
		return f.api.Set("")
	}
	return nil
}

// timesByProbe is the value of --gpu-times by which kernels are timed by probes.
const timesByProbe = "probe"

// timesByTracker is the value by which they are timed by what GPUs write to channels.
const timesByTracker = "tracker"

// stamps returns the object whose programs note when launches began and ended; nil: they are not
// noted.
func (f *runFlags) stamps() (*object.Object, error) {
	beside := f.gpuTimes == "auto" && f.attach.any() && f.pid() == 0 && f.attach.verify == 0
	if f.gpuTimes != timesByProbe && !beside {
		return nil, nil
	}
	o, err := session.Stamps()
	if err == nil {
		o.Beside = beside
	}
	return o, err
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

// span checks what says when and into which files is recorded.
func (f *runFlags) span() error {
	switch {
	case f.rotate.size > 0 && !strings.Contains(strings.ReplaceAll(f.out, "%%", ""), "%n"):
		return errors.New("--rotate wants -o with %n in the name, which becomes the number of the file: -o run.%n.nvt")
	case f.flight > 0 && (f.out == "" || !f.api.Given || f.rotate.size > 0):
		return errors.New("--flight keeps library calls for a file: add --api and -o FILE, and not --rotate")
	case f.startOn.given() && (f.pid() != 0 || !f.recorded().Has(f.startOn.library())):
		return fmt.Errorf("--start-on=%s waits for a call of a program that nvtrace starts, and that is recorded: add --api", f.startOn.text)
	case f.pid() == 0 && (f.delay != 0 || f.duration != 0) && !f.api.Given:
		return errors.New("--delay and --duration are for library calls: add --api")
	}
	return nil
}

// programStatus turns the status of a bad command line into one that can't be
// taken for the traced program's.
func programStatus(status int) int {
	if status == cli.ExitUsage {
		return cli.ExitFailed
	}
	return status
}

// misplaced says how to type a command line that has a word before the "--".
func (f *runFlags) misplaced(e *cli.Env, args, command []string) string {
	word, before, after := f.Set.Arg(0), args[:len(args)-f.Set.NArg()], f.Set.Args()[1:]
	if len(before) > 0 && slices.Contains(e.Verbs, word) && (word == "tool" || command != nil || slices.Contains(before, "-p")) {
		words := append(append([]string{word}, after...), before...)
		if command != nil {
			words = append(append(words, "--"), command...)
		}
		return fmt.Sprintf("%q is a verb, and stands first: nvtrace %s", word, cli.ShellText(words))
	}
	if n := len(before); n > 0 && f.takes(before[n-1], word, command != nil) {
		joined := before[n-1] + "=" + word
		if command == nil {
			after, command = nil, append(after, command...)
		}
		if len(command) == 0 {
			command = []string{"command"}
		}
		words := append(append(slices.Clone(before[:n-1]), joined), after...)
		return fmt.Sprintf("%q: the value of %s is joined to it: nvtrace %s -- %s", word, before[n-1],
			strings.Join(words, " "), strings.Join(command, " "))
	}
	return fmt.Sprintf("%q: put -- before the command: nvtrace %s-- %s", word, flagText(args, f.Set.NArg()),
		cli.ShellText(append(f.Set.Args(), command...)))
}

// takes reports whether a word that follows a flag was meant for its value, which must be
// joined to it, as the flag may stand alone. cut says that the command line has a "--".
func (f *runFlags) takes(typed, word string, cut bool) bool {
	name := strings.TrimLeft(typed, "-")
	fl := f.Set.Lookup(name)
	if fl == nil || strings.HasPrefix(word, "-") {
		return false
	}
	switch name {
	case "ioctl-log", "json":
		return cut // else the word is the command
	case "sim":
		_, err := sim.FindGPU(word)
		return err == nil
	case "api":
		_, err := api.ParseSelection(word)
		return err == nil
	case "modules":
		return word == "hash" || word == "refs"
	case "verify":
		_, err := strconv.Atoi(word)
		return err == nil
	}
	return false
}

// flagText returns the flags as they were typed, with a space behind, for an
// error that shows how to type it.
func flagText(args []string, rest int) string {
	flags := args[:len(args)-rest]
	if len(flags) == 0 {
		return ""
	}
	return cli.ShellText(flags) + " "
}

// deathLive is the value of --on-tracer-death with which the program lives on.
const deathLive = "live"

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

// outlet is where the events of a run go. ready is called when the program has begun, which
// gets to its first instruction only if it returns nil; before, no file is touched.
type outlet interface {
	sinks() []record.Sink
	ready() error
	Finish()
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
	s.opts.Sinks = s.out.sinks()
	d, apart := s.out.(*decoding)
	if apart {
		s.opts.Ptrace.Forked = d.start
		if d.journal != nil {
			s.opts.Ptrace.Planted = d.journal.Planted
		}
	}
	s.opts.OnFault = func(msg string) { e.Notice("%s", msg) }
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
	if s.modules, err = f.modules.start(s.e, f.out); err != nil {
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
		if s.e.Getenv(SimDriverProbes) != "" {
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
	if f.attach.kernelProbes() && (s.sim == nil || s.e.Getenv(SimDriverProbes) != "") {
		if f.onDeath == deathLive {
			return errors.New("--attach and --gpu-times=probe have the program call its driver, and would leave it in the midst of that if nvtrace were killed; leave --on-tracer-death=live out")
		}
		s.startGPU()
	}
	s.opts.Extend = s.extend
	return nil
}

// attachable refuses what a program that runs already can't have.
func (f *runFlags) attachable() error {
	switch {
	case f.sim.gpu.Given:
		return errors.New("-p: --sim needs a program that nvtrace starts")
	case f.attach.kernelProbes() && (f.attach.verify > 0 || f.attach.require):
		return errors.New("-p: --verify and --require need a program that nvtrace starts")
	case f.attach.kernelProbes() && f.fast == "off":
		return errors.New("-p: programs get into kernels by code of nvtrace in the program; leave --fast=off out")
	}
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

// countedOnly says which library functions are only counted: none where a program of -e or --env
// wants to see calls.
func (f *runFlags) countedOnly() func(name string) (count, failed bool) {
	if f.attach.scripts.Libraries != 0 || f.env {
		return nil
	}
	return f.api.Counts()
}

// recorded returns the libraries whose calls are recorded.
func (f *runFlags) recorded() (libraries api.Selection) {
	if f.api.Given {
		libraries = f.api.Libraries
	}
	for _, l := range api.Libraries() {
		if f.attach.scripts.Libraries.Has(l) {
			libraries = libraries.With(l)
		}
	}
	if f.stat.Given || f.top || f.gpuTimes != "off" {
		libraries = libraries.With(api.Driver)
	}
	libraries |= f.stacks.libraries()
	if f.env {
		libraries = libraries.With(api.Driver).With(api.LibC)
	}
	return libraries
}

// extend says what is recorded: ioctls, and what flags ask for beside them.
func (s *tracing) extend(r *record.Recorder) ([]record.Extension, error) {
	s.recorder.Store(r)
	list := []record.Extension{ioctls.New(r, &s.ioctls).Extension()}
	s.shim.noteTo(r)
	o := &calls.Options{
		Libraries: s.f.recorded(), Agent: r.Agent(), Counts: s.f.countedOnly(), Times: s.f.gpuTimes != "off" && s.f.gpuTimes != timesByTracker, NoLaunches: s.f.gpuTimes == timesByProbe, Logger: s.opts.Logger,
		Report: func(text string) { r.Note(nil, text) },
	}
	switch {
	case s.f.gpuTimes == timesByTracker:
		t := trackers.New(r, s.f.pid() == 0)
		o.Submitted, o.Driver = t.Record, t.Begin
		list = append(list, t.Extension())
	case s.f.gpuTimes == "auto" && !s.f.attach.any():
		t := trackers.NewBeside(r, s.f.pid() == 0)
		o.Submitted, o.NoKernels = t.Record, t.Chooses
		list = append(list, t.Extension())
	}
	if s.sim != nil && s.sim.captured != nil {
		list = append(list, s.sim.extend(r))
	} else if c := s.modules; c != nil {
		if o.Libraries.Has(api.Driver) {
			c.opts.LaunchesShared = true
			o.Launched = func(rec *agent.Record) { c.capture.Load().LaunchRecord(rec) }
		}
		list = append(list, c.extend(r))
	}
	if s.gpu != nil {
		list = append(list, s.extendGPU(r, o)...)
	}
	if s.f.flight > 0 {
		h := newLookout(newStacks(r, false), time.Duration(s.f.hang))
		list = append(list, record.Extension{Rules: h.rules(), Handler: h, Finish: h.Finish})
	}
	wanted := s.f.stacks
	at := newStacks(r, wanted.given() || s.f.attach.scripts.Native())
	for _, name := range s.f.attach.scripts.StacksAt() {
		wanted.list = append(slices.Clip(wanted.list), stackRule{what: name, each: true})
	}
	if wanted.given() {
		o.Stops, o.OnStop, o.Mapped = wanted.wants, at.stopped, at.mapped
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
		end := &results{recorder: r, tracing: s}
		list = append(list, record.Extension{Handler: end, Finish: end.Finish})
	}
	return list, nil
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
		ctx, stop = context.WithTimeout(ctx, s.f.delay+s.f.duration)
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
	s.begun = err == nil
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
	if f.startOn.given() {
		s.opts.StartOn = f.startOn.is
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
