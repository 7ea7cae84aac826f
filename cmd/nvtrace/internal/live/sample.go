package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/cmd/nvtrace/internal/sample"
	"nvtrace/cmd/nvtrace/internal/view"
	ioctls "nvtrace/ioctl/record"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// sampleFlags are those of nvtrace sample.
type sampleFlags struct {
	pids  cli.PIDList
	every time.Duration
	last  time.Duration
	out   string
	quiet bool
	names bool
	rings *bool
	json  cli.OptString
	rows  int
	prom  string
}

// SampleVerb looks at processes' channels again and again.
func SampleVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "sample", "[flags] PID... | -p PID | -- command [args]")
	var f sampleFlags
	fs.Var(&f.pids, "p", "look at the running process `PID`; several: -p 1,2 or repeated")
	fs.DurationVar(&f.every, "every", 10*time.Millisecond, "look each `TIME`; 0: without pause, to see each kernel and copy by itself, for which a processor is busy")
	fs.DurationVar(&f.last, "for", 0, "end after `TIME`, such as 30s (0: when the processes do, or by Ctrl-C)")
	fs.StringVar(&f.out, "o", "", "record into `FILE`, such as run.nvt")
	fs.BoolVar(&f.quiet, "q", false, "print no summary")
	fs.BoolVar(&f.names, "names", true, "search the processes' memory for the names of kernels, beside the looks")
	f.rings = ringsFlag(fs)
	fs.IntVar(&f.rows, "rows", view.DefaultRows, "`N` rows of the summary's table at most (0: all)")
	fs.StringVar(&f.prom, "prom", "", "give metrics to Prometheus, each second: `WHERE` is :PORT, or the name of a file for node_exporter (its textfile collector wants it to end in .prom)")
	f.json.RegisterJSON(fs)
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	for _, w := range words {
		if err := f.pids.Set(w); err != nil {
			return e.Fail(cli.ExitUsage, "sample wants process ids, and %q is none; a command stands behind --", w)
		}
	}
	switch {
	case len(f.pids) > 0 && len(command) > 0:
		return e.Fail(cli.ExitUsage, "-p %d and a command exclude each other", f.pids[0])
	case len(f.pids) == 0 && len(command) == 0:
		return e.Fail(cli.ExitUsage, "sample looks at processes that run, or at a command: nvtrace sample PID, nvtrace sample -- command [args]")
	case f.every < 0 || f.last < 0 || f.rows < 0:
		return e.Fail(cli.ExitUsage, "--every, --for and --rows want no negative values")
	}
	if f.prom == "" {
		return takeSamples(e, &f, command, nil)
	}
	if err := prom.Check(f.prom); err != nil {
		return e.Fail(cli.ExitUsage, "--prom=%v", err)
	}
	to, err := prom.Open(f.prom, 0, e.WritePublic)
	if err != nil {
		return e.Fail(cli.ExitFailed, "--prom: %v", err)
	}
	var metrics *sampleMetrics
	status = takeSamples(e, &f, command, func(h *traces.Header) record.Sink {
		metrics = newSampleMetrics(e, h, to, f.names)
		return metrics
	})
	if metrics != nil {
		metrics.end()
	}
	return status
}

// A sampling is a run of nvtrace sample, or of top from outside.
type sampling struct {
	e      *cli.Env
	f      *sampleFlags
	start  time.Time
	ctx    context.Context
	stop   context.CancelFunc
	header *traces.Header
	sinks  []record.Sink
	each   time.Duration // how often sums are reported

	mu      sync.Mutex // of what follows, and of the sinks
	running sync.WaitGroup
	known   map[int]bool
	results map[int]*traces.Sampled
	failed  map[int]error
	events  uint64
}

// takeSamples looks at processes. more makes what gets the events, too; it may be nil.
func takeSamples(e *cli.Env, f *sampleFlags, command []string, more func(*traces.Header) record.Sink) int {
	s := &sampling{e: e, f: f, known: map[int]bool{}, results: map[int]*traces.Sampled{}, failed: map[int]error{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	defer s.stop()
	pid := 0
	if len(f.pids) > 0 {
		pid = f.pids[0]
	}
	s.header = record.NewHeader(command, pid, cli.Version)
	s.header.GPUs, s.header.API = ioctls.GPUs(), "none"
	s.start = time.Now()
	s.header.Start = s.start.UnixNano()
	if more != nil {
		s.sinks, s.each = append(s.sinks, more(s.header)), topEvery/2
	}
	var program *exec.Cmd
	if len(command) > 0 {
		program = exec.Command(command[0], command[1:]...)
		program.Stdin, program.Stdout, program.Stderr = e.Stdin, cli.Beneath(e.Stdout), cli.Beneath(e.Stderr)
		if err := program.Start(); err != nil {
			return e.Fail(notStarted(err), "%v", err)
		}
		s.header.PID = int32(program.Process.Pid)
	}
	finish, err := s.open()
	if err != nil {
		if program != nil { // it goes on as if it had been started alone
			e.Fail(cli.ExitFailed, "%v; the program runs without being looked at", err)
			return waitFor(program)
		}
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	status := cli.ExitOK
	if program != nil {
		status = s.command(program, signals)
	} else {
		s.processes(signals)
	}
	s.stop()
	s.running.Wait()
	if err := finish(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := s.report(program != nil); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if program == nil && len(s.results) == 0 {
		return cli.ExitFailed
	}
	return status
}

// notStarted is the exit status where a command could not be started.
func notStarted(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return cli.ExitNotFound
	}
	return cli.ExitNoExec
}

// waitFor waits for a program, and returns its status as a shell has it.
func waitFor(program *exec.Cmd) int {
	_ = program.Wait() // its state tells
	if ws, ok := program.ProcessState.Sys().(interface {
		Signaled() bool
		Signal() unix.Signal
	}); ok && ws.Signaled() {
		const bySignal = 128
		return bySignal + int(ws.Signal())
	}
	return program.ProcessState.ExitCode()
}

// open opens the recording.
func (s *sampling) open() (finish func() error, err error) {
	s.e.Tracing = true
	if s.f.out == "" {
		return func() error { return nil }, nil
	}
	name, err := cli.ExpandName(s.f.out, s.header, 0, s.e.Getenv)
	if err != nil {
		return nil, err
	}
	g, err := cli.OpenGrown(name, cli.ModePrivate)
	if err != nil {
		return nil, err
	}
	if err := g.Begin(); err != nil {
		g.Abandon()
		return nil, err
	}
	w, err := traces.NewFileWriter(g.File, s.header, nil)
	if err != nil {
		return nil, err
	}
	s.sinks = append(s.sinks, &cli.FileSink{W: w})
	return func() error {
		cost := traces.Cost{Events: s.events, Wall: s.now()}
		var usage unix.Rusage
		if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
			cost.TracerCPU = usage.Utime.Nano() + usage.Stime.Nano()
		}
		w.Write(&traces.Event{Kind: traces.KindEnd, Time: s.now(), FD: -1, Cost: &cost})
		return w.Close()
	}, nil
}

// now is the time of the recording.
func (s *sampling) now() int64 { return int64(time.Since(s.start)) }

// event gives an event to the sinks.
func (s *sampling) event(ev *traces.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events++
	for _, sink := range s.sinks {
		sink.Event(ev)
	}
}

// look begins to look at a process, if nobody does yet.
func (s *sampling) look(pid int) {
	s.mu.Lock()
	begun := s.known[pid]
	s.known[pid] = true
	s.mu.Unlock()
	if begun {
		return
	}
	s.event(&traces.Event{
		Kind: traces.KindExec, Flags: traces.FlagAttached | traces.FlagImplicit, PID: int32(pid), TID: int32(pid), Time: s.now(), FD: -1,
		Path: proc.Exe(pid), Argv: proc.Cmdline(pid),
	})
	s.running.Go(func() {
		r, err := sample.Run(s.ctx, &sample.Options{
			PID: pid, Every: s.f.every, Names: s.f.names, Access: access(s.f.rings), Interval: s.each, Now: s.now, Event: s.event,
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.failed[pid] = err
			return
		}
		s.results[pid] = r
	})
}

// over is a channel that tells when the time that was asked for is over.
func (s *sampling) over() <-chan time.Time {
	if s.f.last == 0 {
		return nil
	}
	return time.After(s.f.last)
}

// processes looks at processes that run, and those that they have started, until they have ended.
func (s *sampling) processes(signals <-chan os.Signal) {
	for _, pid := range s.f.pids {
		s.look(pid)
	}
	over := s.over()
	const often = 200 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		gone := true
		for _, pid := range s.f.pids {
			s.lookBelow(pid)
			state, there := proc.Status(pid, "State")
			gone = gone && (!there || strings.HasPrefix(strings.TrimSpace(state), "Z"))
		}
		if gone {
			return
		}
		select {
		case <-signals:
			return
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// lookBelow begins to look at what a process has started.
func (s *sampling) lookBelow(root int) {
	for _, pid := range descendants(root) {
		if cli.HasGPU(fmt.Sprintf("/proc/%d/", pid)) {
			s.look(pid)
		}
	}
}

// command looks at the processes of a command until it has ended, and returns its status.
func (s *sampling) command(program *exec.Cmd, signals <-chan os.Signal) int {
	ended := make(chan int, 1)
	go func() { ended <- waitFor(program) }()
	over := s.over()
	const often = 20 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		if s.ctx.Err() == nil {
			s.lookBelow(program.Process.Pid)
		}
		select {
		case status := <-ended:
			return status
		case <-over:
			s.stop() // the program goes on
			over = nil
		case sig := <-signals:
			if sig == unix.SIGTERM { // SIGINT is the terminal's, and the program has got it, too
				_ = program.Process.Signal(sig)
			}
		case <-tick.C:
		}
	}
}

// descendants returns a process and those that it has started.
func descendants(pid int) []int {
	parents := map[int]int{}
	for _, p := range proc.All() {
		if parent, ok := proc.StatusNumber(p, "PPid"); ok {
			parents[p] = parent
		}
	}
	var list []int
	for p := range parents {
		for q, steps := p, 0; q != 0 && steps < len(parents); q, steps = parents[q], steps+1 {
			if q == pid {
				list = append(list, p)
				break
			}
		}
	}
	slices.Sort(list)
	return list
}

// A SampledProcess is what looks at a process have come to, for programs.
type SampledProcess struct {
	PID int `json:"pid"`
	*traces.Sampled
}

// report says what was found.
func (s *sampling) report(command bool) error {
	for _, pid := range view.SortedKeys(s.failed) {
		if !command { // what a command starts may be over before it can be opened
			s.e.Notice("%v", s.failed[pid])
		}
	}
	w := s.e.Stdout
	if command {
		w = s.e.Stderr
	}
	if s.f.json.Given {
		list := []SampledProcess{}
		for _, pid := range view.SortedKeys(s.results) {
			list = append(list, SampledProcess{pid, s.results[pid]})
		}
		return s.e.WriteJSON(w, s.f.json.Value, list)
	}
	if s.f.quiet {
		return nil
	}
	if command && len(s.results) == 0 {
		s.e.Notice("no process of the command had a GPU open when it was looked at")
		return nil
	}
	l := view.ReportLayout(s.f.rows)
	used := 0
	for _, r := range s.results {
		used += min(len(r.Channels)+len(r.Works), 1)
	}
	for _, pid := range view.SortedKeys(s.results) {
		if r := s.results[pid]; used > 0 && len(r.Channels)+len(r.Works) == 0 {
			continue // a launcher, say, of which others have the GPU
		}
		if err := view.WriteSampled(w, l, pid, s.results[pid]); err != nil {
			return err
		}
	}
	return nil
}
