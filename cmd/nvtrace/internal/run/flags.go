package run

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/cmd/nvtrace/internal/telemetry"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/traces/ranks"
)

// runFlags are the flags of tracing a program.
type runFlags struct {
	lines          view.LineFlags
	log, json      cli.OptString
	out, seccomp   string
	format         string
	runName, rank  string
	onlyTables     string
	prom           string
	push           telemetry.Options
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
	quietSuccess   bool
	baseline       baselineFlag
	overflow       string
	buffer         string
	delay          time.Duration
	startOn        startFlag
	duration       time.Duration
	forecast       bool
	Set            *flag.FlagSet
}

// NewFlags makes the flags of tracing a program.
func NewFlags(e *cli.Env) *runFlags {
	f := &runFlags{Set: cli.NewFlagSet(e, "run", "[flags] -- command [args]")}
	f.Set.Var(&f.log, "ioctl-log", "print each device call, to stderr or with =`FILE` to a file")
	f.Set.BoolVar(&f.summary, "summary", false, "print the summary also with --ioctl-log")
	f.Set.Var(&f.stat, "stat", "count launches, copies, allocations, waits and failures, and print them at the end; =`csv`: as comma-separated values; with --json as JSON in place of the summary")
	f.Set.BoolVar(&f.forecast, "forecast", false, "count library calls, and say at the end what each way of recording would cost; with -p of 2 s, or of --duration")
	f.Set.BoolVar(&f.top, "top", false, "show each second what processes do: a table in full screen with -p or where stdout is redirected, else a line")
	f.Set.BoolVar(&f.quiet, "q", false, "print no summary")
	f.Set.Var(&f.json, "json", "print the summary as JSON, to stderr or with =`FILE` to a file")
	f.Set.StringVar(&f.out, "o", "", "record to `FILE` (.nvt compressed, .jsonl plain); %p in its name: the process id; %h: host; %r: rank; %t: start; %q{NAME}: environment")
	f.Set.StringVar(&f.format, "format", "", "with -o: `FORMAT` parquet writes tables into the folder of -o while the program runs, a part each --interval (30s), in place of a recording")
	f.Set.StringVar(&f.runName, "run", "", "with --format=parquet: the tables are of the run `NAME` (default: the launcher's job, or the folder's name)")
	f.Set.StringVar(&f.rank, "rank", "", "with --format=parquet: the tables are of rank `N` (default: what the launcher said, or 0)")
	f.Set.StringVar(&f.prom, "prom", "", "give metrics to Prometheus, each second: `WHERE` is :PORT, to which a rank's number on its host is added, or the name of a file for node_exporter's textfile collector (run.%r.prom)")
	f.Set.StringVar(&f.push.OTLP, "otlp", "", "send metrics, and spans of the run, its steps and what takes long, to the OpenTelemetry collector at `URL` (http://localhost:4318, grpc://localhost:4317); env: where OTEL_EXPORTER_OTLP_ENDPOINT says. OpenTelemetry's other variables say how")
	f.push.Long = 100 * time.Millisecond
	f.Set.DurationVar(&f.push.Long, "otlp-long", f.push.Long, "calls, NVTX ranges and collectives of `TIME` and longer have spans; steps always have")
	f.Set.StringVar(&f.push.Profiles, "profiles", "", "send a profile each 15 s, as export --format=pprof makes one, to `WHERE`: pyroscope=URL, parca=URL, or otlp: to the collector of --otlp, by a protocol that is an alpha version")
	f.Set.StringVar(&f.onlyTables, "tables", "", "with --format=parquet: write only the tables in `LIST`, such as collectives,histograms,failures")
	f.Set.Var(&f.rotate, "rotate", "go on in another file when one has `SIZE`, such as 1G; =1G,5 keeps the last 5; %n in the name of -o is the file's number")
	f.Set.Var(&f.ranks, "ranks", "trace the ranks in `LIST`, such as 0,8,16-23; the command runs untraced in others")
	f.Set.Var(&f.flight, "flight", "keep the library calls of the last `SECONDS` in memory, and write the -o file only when the program fails or hangs, or on nvtrace dump PID")
	f.hang = cli.SecondsFlag(time.Minute)
	f.Set.Var(&f.hang, "hang", "with --flight: a library call that does not return, or a channel of the GPU that does not get on, for `SECONDS` is a hang; 0: never")
	f.Set.BoolVar(&f.quietSuccess, "quiet-success", false, "for runs that are always traced: print nothing and keep no recording, but of a program that fails, hangs or is slower than --baseline. Stands for -q --flight 60 --api=nccl,nvtx, which other flags change")
	f.Set.Var(&f.baseline, "baseline", "with --flight: a run is slow whose steps, or which itself, takes a tenth longer than in the recording `FILE`; =FILE,20%: a fifth. A step is an NVTX range or mark such as step 7")
	f.Set.StringVar(&f.overflow, "overflow", "wait", "when events come faster than they can be written, `WHAT` happens: wait, the program waits; drop, library calls are left out and counted")
	f.Set.StringVar(&f.buffer, "buffer", "64M", "how much may wait in memory before that, as a `SIZE`")
	f.Set.DurationVar(&f.delay, "delay", 0, "record library calls from `TIME` after the start on (device calls always: later ones refer to them)")
	f.Set.Var(&f.startOn, "start-on", "record library calls from `WHEN` on, and count --delay and --duration from there: NVTX:NAME, the first range or mark of that name; step:N, one that names step N; cudaProfilerStart; @TIME, a time of day; /10s, the next whole ten seconds of the clock, the same on all hosts; file:NAME, when that file exists; signal:USR1, when nvtrace gets it")
	f.Set.DurationVar(&f.duration, "duration", 0, "record library calls for `TIME`; with -p detach then")
	f.Set.Var(&f.pids, "p", "attach to the running process `PID` instead of starting a command; several: -p 1,2 or repeated")
	f.Set.BoolVar(&f.allGPU, "all-gpu-processes", false, "attach to all running processes that have a GPU open and can be attached to")
	f.Set.StringVar(&f.seccomp, "seccomp", "auto", "`MODE` auto: a seccomp filter picks the calls to stop at; off: stop at every call")
	f.Set.BoolVar(&f.counts, "counts", false, "count ioctls only: no results, times or written bytes; where ioctls stop, at half the cost")
	f.Set.BoolVar(&f.munmap, "munmap", false, "record munmap and mremap of device mappings too")
	f.Set.StringVar(&f.onDeath, "on-tracer-death", "kill", "if the tracing process is killed by SIGKILL, `WHAT` becomes of the program: kill, or live (opening files, and what else nvtrace stops at, then fails with ENOSYS; with --seccomp=off nothing does)")
	f.Set.StringVar(&f.orphans, "orphans", "auto", "processes that outlive the program, `HOW`: wait, kill, detach (with --seccomp=off), or auto: detach with --seccomp=off, otherwise wait and say so")
	f.Set.StringVar(&f.fast, "fast", "auto", "record ioctls and run host programs inside the program, without stops, `WHEN` auto: where it can be done; off: never")
	f.api.Register(f.Set, "record the calls of CUDA's libraries, and show them with the ioctls they cause; =`LIBRARIES` driver,runtime,cublas,…; queries such as cudaGetDevice, and calls that libraries make within others and that say little, are only counted, with =all they are recorded, with =count every call is only counted")
	f.Set.StringVar(&f.gpuTimes, "gpu-times", "off", "record when GPUs ran kernels, graphs, copies and sets, `HOW`: events, by an event of the driver behind each; tracker, kernels and graphs by what the GPU writes to its channels, at no cost to the program, but nvtrace keeps two processors busy and some kernels have no time; tracker+events, kernels by trackers where there are four processors for each process with a GPU, and the rest by events; probe, kernels by a probe in each, also those in graphs; auto: by events, and by probes in kernels that get programs anyway (--attach, -e); off. Implies --api")
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

// maxHold is the time of which threads may be held for --hold.
const maxHold = 200 * time.Millisecond

// idle refuses flags that say something about probes, or about a simulated GPU,
// where there are none.
func (f *runFlags) idle() (err error) {
	probes, gpu := flag.NewFlagSet("", flag.ContinueOnError), flag.NewFlagSet("", flag.ContinueOnError)
	new(attachFlags).register(probes)
	new(simFlags).register(gpu)
	f.Set.Visit(func(fl *flag.Flag) {
		switch {
		case f.gpuTimes == timesByProbe && (fl.Name == "machine-code" || fl.Name == "untested-arch"): // these are for that, too
		case fl.Name == "hold" && f.pid() == 0:
			err = errors.New("--hold is for a program that runs already: -p PID")
		case fl.Name == "hold" && (f.attach.hold <= 0 || f.attach.hold > maxHold):
			err = fmt.Errorf("--hold %s: want more than 0, and 200ms at most, which is no bound", f.attach.hold)
		case fl.Name == "otlp-long" && f.push.OTLP == "":
			err = errors.New("--otlp-long is for spans: add --otlp URL")
		case fl.Name == "interval" && (f.stat.Given || f.format != ""):
		case fl.Name == "v":
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
	if err := f.forecasts(); err != nil {
		return err
	}
	switch f.gpuTimes {
	case "off", "auto", "events":
	case timesByTracker, timesByBoth:
		if f.shim == shimOnly {
			return fmt.Errorf("--interpose=only records images and nothing else; --gpu-times=%s needs ptrace", f.gpuTimes)
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
		return fmt.Errorf("--gpu-times=%s: want auto, events, tracker, tracker+events, probe or off", f.gpuTimes)
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

// forecasts has calls counted for a forecast.
func (f *runFlags) forecasts() error {
	if !f.forecast {
		return nil
	}
	if f.stat.Given || f.top || f.attach.any() || f.attach.scripts.Given() || f.gpuTimes != "off" {
		return errors.New("--forecast counts calls and nothing else: leave --stat, --top, --gpu-times and programs out")
	}
	if f.pid() != 0 && f.duration == 0 {
		f.duration = 2 * time.Second
	}
	if f.api.Given || f.api.None {
		return errors.New("--forecast counts the calls of all libraries: leave --api out")
	}
	return f.api.Set("count")
}

// timesByProbe is the value of --gpu-times by which kernels are timed by probes.
const timesByProbe = "probe"

// timesByTracker is the value by which they are timed by what GPUs write to channels.
const timesByTracker = "tracker"

// timesByBoth is the value by which kernels are timed in this way where there are processors for it, and all else by events.
const timesByBoth = "tracker+events"

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

// live checks what belongs to what others are told while the program runs.
func (f *runFlags) live(getenv func(string) string) error {
	if f.prom == "" && !f.push.Given() {
		return nil
	}
	if f.top {
		return errors.New("top goes without --prom, --otlp and --profiles")
	}
	if f.prom != "" {
		if err := prom.Check(f.prom); err != nil {
			return fmt.Errorf("--prom=%w", err)
		}
	}
	return f.push.Check(getenv)
}

// tables checks what belongs to tables that are written while the program runs.
func (f *runFlags) tables() error {
	switch {
	case f.format == "" && (f.runName != "" || f.rank != "" || f.onlyTables != ""):
		return errors.New("--run, --rank and --tables are for --format=parquet")
	case f.format == "":
		return nil
	case f.format != "parquet":
		return fmt.Errorf("--format=%s: while a program runs, tables can be written (parquet); a recording gets any format later: nvtrace export --format FORMAT run.nvt", f.format)
	case f.out == "" || f.out == "-":
		return errors.New("--format=parquet writes a folder of files: say which by -o DIR")
	case f.flight > 0 || f.rotate.size > 0 || f.top:
		return errors.New("--flight, --rotate and top go without --format=parquet")
	case f.attach.interval != 0 && f.attach.interval < minPart:
		return fmt.Errorf("--interval %s: a part of tables takes %s at least", f.attach.interval, minPart)
	}
	_, err := view.ParseTables(f.onlyTables)
	return err
}

// minPart is the shortest time of a part of tables, part the usual one.
const (
	minPart   = 100 * time.Millisecond
	usualPart = 30 * time.Second
)

// recording is the name of the recording that is written, as it was typed; "": there is none.
func (f *runFlags) recording() string {
	if f.format != "" {
		return ""
	}
	return f.out
}

// span checks what says when and into which files is recorded.
func (f *runFlags) span() error {
	switch {
	case f.rotate.size > 0 && !strings.Contains(strings.ReplaceAll(f.out, "%%", ""), "%n"):
		return errors.New("--rotate wants -o with %n in the name, which becomes the number of the file: -o run.%n.nvt")
	case f.flight > 0 && (f.out == "" || !f.api.Given || f.rotate.size > 0):
		return errors.New("--flight keeps library calls for a file: add --api and -o FILE, and not --rotate")
	case f.baseline.file != "" && f.flight == 0:
		return errors.New("--baseline is for --flight and --quiet-success, which keep a recording of a run that is slower")
	case f.baseline.file != "" && f.pid() != 0:
		return errors.New("-p: --baseline needs a program that nvtrace starts")
	case f.baseline.file != "" && f.baseline.check() != nil:
		return f.baseline.check()
	case f.startOn.call() && (f.pid() != 0 || !f.recorded().Has(f.startOn.library())):
		return fmt.Errorf("--start-on=%s waits for a call of a program that nvtrace starts, and that is recorded: add --api", f.startOn.text)
	case f.startOn.given() && f.recorded() == 0:
		return errors.New("--start-on is for library calls: add --api")
	case f.startOn.signal != 0 && f.pid() != 0:
		return errors.New("-p: --start-on=signal:NAME needs a program that nvtrace starts; nvtrace ctl PID start does the same")
	case f.pid() == 0 && (f.delay != 0 || f.duration != 0) && !f.api.Given:
		return errors.New("--delay and --duration are for library calls: add --api")
	}
	return nil
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

// programStatus turns the status of a bad command line into one that can't be
// taken for the traced program's.
func programStatus(status int) int {
	if status == cli.ExitUsage {
		return cli.ExitFailed
	}
	return status
}

// deathLive is the value of --on-tracer-death with which the program lives on.
const deathLive = "live"

// flagText returns the flags as they were typed, with a space behind, for an
// error that shows how to type it.
func flagText(args []string, rest int) string {
	flags := args[:len(args)-rest]
	if len(flags) == 0 {
		return ""
	}
	return cli.ShellText(flags) + " "
}

// pid is the first process to attach to, 0 if a command is started.
func (f *runFlags) pid() int {
	if len(f.pids) == 0 {
		return 0
	}
	return f.pids[0]
}

// shimOnly is the value of --interpose for running without ptrace.
const shimOnly = "only"

// statFlag is --stat.
type statFlag struct{ cli.OptString }

// Set implements flag.Value.
func (f *statFlag) Set(s string) error {
	if s == "false" {
		f.Given = false
		return nil
	}
	if s != "true" && s != "csv" {
		return errors.New("want csv, or nothing")
	}
	return f.OptString.Set(s)
}
