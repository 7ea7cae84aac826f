package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/ioctl"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// outputs decodes the events of a run in this process: lines, a recording, a
// summary. It implements outlet.
type outputs struct {
	e      *env
	f      *runFlags
	header *traces.Header
	log    *logSink
	top    *top    // nil: no table while the program runs
	ticker *ticker // nil: no intervals
	file   *parts  // nil: not recorded
	flight *flight // nil: nothing is kept in memory
	names  outputNames
	closes []io.Closer
	gate   gate
	gaps   gapNotice
	args   []string // of the command line, before the command
	began  bool     // an event of the program came
	used   bool     // it used a GPU, or called a library
}

// newOutputs prepares what the events go to. No file is touched before ready.
func newOutputs(e *env, f *runFlags, args []string, h *traces.Header) (*outputs, error) {
	filter, err := ioctl.ParseFilter(f.lines.exprs...)
	if err != nil {
		return nil, err
	}
	o := &outputs{e: e, f: f, header: h, gaps: gapNotice{e: e}, args: args}
	o.log = &logSink{
		decoder: ioctl.NewDecoder(h), filter: filter,
		live: true, notice: func(n string) { e.notice("%s", n) },
		errs: once{e: e, what: "log: ", live: true},
	}
	if !f.printsLines() && !f.quiet || f.summary || f.json.set || f.stat || f.top {
		o.log.summarise(h)
	}
	if f.env {
		o.log.traceEnv()
	}
	if f.stat || f.top {
		o.log.meter = newMeter()
	}
	if f.top {
		tty := f.fullScreen(e)
		if tty == nil && f.pid() == 0 && isTerminal(e.stderr) && isTerminal(e.stdout) {
			e.notice("top: a line a second, as the program writes to this terminal, too; a table in full screen: nvtrace top -- command >output.txt")
		}
		o.top = newTop(o.log, e.stderr, tty)
	}
	if p := f.attach.scripts.program; p != nil && p.OnHost() {
		o.log.onHost(p, nil, func(text string) { fmt.Fprint(e.stderr, text) })
		o.log.script.shown = f.attach.shown
	}
	return o, nil
}

// fullScreen returns the terminal for top, nil where there is none, or where a program
// that nvtrace starts writes to it.
func (f *runFlags) fullScreen(e *env) *os.File {
	if !isTerminal(e.stderr) || f.pid() == 0 && isTerminal(e.stdout) || e.getenv("TERM") == "dumb" {
		return nil
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return tty
}

// printsLines reports whether calls are shown as they happen. Library calls are, unless
// something else was asked for.
func (f *runFlags) printsLines() bool {
	return f.log.set || f.api.set && !f.summary && !f.json.set && f.out == ""
}

// open opens the files, when the program has begun: only now what was in them may go.
func (o *outputs) open() (err error) {
	o.e.tracing = true // here, too, where another process decodes
	if o.names, err = o.f.names(o.header, o.e.getenv); err != nil {
		return err
	}
	for _, name := range o.f.attach.objects {
		o.e.reads(name)
	}
	var files []*grownFile
	defer func() {
		if err != nil {
			for _, g := range files {
				g.abandon()
			}
		}
	}()
	add := func(name string) (*grownFile, error) {
		if err := o.e.refuseInput(name); err != nil {
			return nil, err
		}
		g, err := openGrown(name, modePrivate)
		if err != nil {
			return nil, err
		}
		files = append(files, g)
		return g, nil
	}
	var log, recording *grownFile
	if o.names.log != "" {
		if log, err = add(o.names.log); err != nil {
			return err
		}
	}
	if o.names.json != "" { // it is written at the end; until then nobody else may
		g, err := add(o.names.json)
		if err != nil {
			return err
		}
		o.closes = append(o.closes, g)
	}
	if o.f.flight > 0 {
		o.flight = &flight{
			e: o.e, window: time.Duration(o.f.flight), hang: time.Duration(o.f.hang), header: o.header,
			name: func(dump int) (string, error) {
				name, err := expandName(o.f.out, o.header, dump, o.e.getenv)
				if ext := filepath.Ext(name); dump > 1 && !strings.Contains(o.f.out, "%n") { // what an earlier one says may be the cause
					name = strings.TrimSuffix(name, ext) + "." + strconv.Itoa(dump) + ext
				}
				return name, err
			},
		}
		o.flight.begin(int(o.header.PID))
	} else if o.names.recording != "" {
		if recording, err = add(o.names.recording); err != nil {
			return err
		}
		if err := recording.begin(); err != nil {
			return err
		}
		file := &parts{
			rotation: o.f.rotate, e: o.e, header: o.header, errs: once{e: o.e, live: true},
			name: func(part int) (string, error) { return expandName(o.f.out, o.header, part, o.e.getenv) },
		}
		if err := file.open(recording, 1); err != nil {
			return err
		}
		o.file = file
	}
	to := o.e.stderr
	if log != nil {
		if err := log.begin(); err != nil {
			return err
		}
		to, o.closes = log, append(o.closes, log)
	}
	if !o.f.printsLines() {
		return nil
	}
	if o.f.api.set {
		o.log.showAPI(o.f.api.libraries)
	}
	return o.log.printTo(o.e, to, o.header, &o.f.lines)
}

// sinks implements outlet.
func (o *outputs) sinks() []record.Sink { return []record.Sink{&o.gate} }

// each returns the outputs, which are open. The recording comes first: whatever happens in
// decoding an event, it is in the file.
func (o *outputs) each() []record.Sink {
	var sinks []record.Sink
	if o.file != nil {
		sinks = append(sinks, o.file)
	}
	if o.flight != nil {
		sinks = append(sinks, o.flight)
	}
	if o.f.pid() != 0 {
		sinks = append(sinks, &attachNotice{e: o.e, pids: o.f.pids})
	}
	if o.e.sink != nil {
		sinks = append(sinks, o.e.sink)
	}
	line := o.log.lines != nil && o.f.log.value == ""
	table := o.log.summary != nil && !o.f.quiet && !o.f.json.set
	if !line && !table { // nothing else tells it on stderr
		sinks = append(sinks, &o.gaps)
	}
	if o.top != nil {
		o.top.begin()
		return append(sinks, o.top, &beginning{o})
	}
	if s := o.f.attach.scripts.program; o.log.script != nil && s.Every() > 0 && s.Object == nil {
		o.ticker = startTicker(o.log, time.Duration(s.Every()))
		return append(sinks, o.ticker, &beginning{o})
	}
	return append(sinks, o.log, &beginning{o})
}

// beginning notes that the program has begun, and that there was something to show. It implements record.Sink.
type beginning struct{ o *outputs }

// Event implements record.Sink.
func (b *beginning) Event(ev *traces.Event) {
	b.o.began = b.o.began || ev.Kind != traces.KindEnd
	switch ev.Kind {
	case traces.KindOpen, traces.KindIoctl, traces.KindCall, traces.KindReturn, traces.KindImage:
		b.o.used = true
	}
}

// Idle implements record.Sink.
func (b *beginning) Idle() {}

// ready implements outlet.
func (o *outputs) ready() error {
	if err := o.open(); err != nil {
		return err
	}
	o.gate.open(record.Guard(o.each(), func(msg string) { o.e.notice("%s", msg) }, nil))
	return nil
}

// finish puts out what is pending, and prints the summary of a program that
// has begun. An output that failed has been reported, and does not change how
// the program ended.
func (o *outputs) finish() {
	if o.file != nil {
		o.file.close()
	}
	if o.flight != nil {
		o.flight.close()
	}
	if o.top != nil && o.began {
		o.top.end()
	}
	if o.ticker != nil {
		o.ticker.end()
	}
	o.log.finish()
	o.log.Idle()
	o.gaps.finish()
	if o.began {
		o.conclude()
	}
	for _, c := range o.closes { // their locks end
		o.log.errs.report(c.Close())
	}
}

// conclude prints what is printed at the end of a program.
func (o *outputs) conclude() {
	if o.log.lines != nil {
		o.log.unmatched(o.f.lines.exprs)
	}
	if o.log.script != nil {
		o.log.script.finish(o.log.notice)
	}
	var err error
	if o.f.stat {
		err = o.log.writeStat(o.e.stderr, o.header.Argv)
	}
	if o.log.summary != nil {
		err = errors.Join(err, o.summarise())
	}
	if o.f.env && !o.f.json.set {
		err = errors.Join(err, o.log.writeEnv(o.e.stderr))
	}
	if err != nil {
		o.e.notice("summary: %v", err)
	}
	if lack := o.lacks(); lack != "" {
		o.e.notice("%s", lack)
	}
	if hint := o.simulated(); hint != "" {
		o.e.notice("no NVIDIA driver on this machine; %s", hint)
	}
}

// lacks says what a simulated GPU lacks that all probes of a program on the host are at, "" if nothing.
func (o *outputs) lacks() string {
	f := o.f
	switch {
	case o.used || f.pid() != 0 || !f.sim.chosen(f.attach.any()):
		return ""
	case onlyIoctls(f.attach.scripts.program):
		return "a simulated GPU gets no device calls; its calls are api:*"
	}
	return ""
}

// onlyIoctls reports whether a program has probes at device calls alone.
func onlyIoctls(p *script.Program) bool {
	return p != nil && p.OnHost() && !slices.ContainsFunc(p.HostPlaces(), func(s string) bool { return !strings.HasPrefix(s, "ioctl:") })
}

// simulated says how the run is to be typed for a simulated GPU where it has seen nothing for want of a
// driver; "" if that is not so.
func (o *outputs) simulated() string {
	f := o.f
	switch {
	case o.used || f.pid() != 0 || f.sim.no || f.sim.chosen(f.attach.any()) || o.e.devices != nil || hasDriver():
		return ""
	case f.recorded() == 0 && f.attach.any(), onlyIoctls(f.attach.scripts.program): // which a simulated GPU shows as little of
		return ""
	}
	flags := []string{"--sim"}
	if f.recorded() == 0 && !f.attach.scripts.given() && !f.modules.modules.set { // it gets no device calls
		flags = append(flags, "--api")
	}
	const most = 200
	text := "nvtrace " + shellText(slices.Concat(typed(o.args, flags), []string{"--"}, o.header.Argv))
	if len(text) > most || len(o.header.Argv) == 0 {
		return "on a simulated GPU: add " + strings.Join(flags, " ")
	}
	return "on a simulated GPU: " + text
}

// typed returns the words of a command line with flags added, as they stand before the command: those
// of a tool, of stat and of top begin with the verb.
func typed(args, flags []string) []string {
	cut := func(own ...string) bool {
		ok := len(args) >= len(own) && slices.Equal(args[:len(own)], own)
		if ok {
			args = args[len(own):]
		}
		return ok
	}
	var words []string
	switch {
	case len(args) > 1 && args[0] == "--tool":
		words, args = append([]string{"tool"}, strings.Split(args[1], ",")...), args[2:]
		cut("-q")
	case cut("--stat", "-q"):
		words = []string{"stat"}
	case cut("--top", "-q"):
		words = []string{"top"}
	}
	return slices.Concat(words, flags, args)
}

// layout is how the summary is drawn.
func (o *outputs) layout() *layout {
	l := liveLayout(o.names.recording)
	l.brief = o.f.attach.any() && !o.f.attach.verbose
	return l
}

func (o *outputs) summarise() error {
	if o.f.quiet && !o.f.json.set {
		return nil
	}
	report := o.log.summary.Report()
	if o.f.json.set {
		return o.e.writeJSON(o.e.stderr, o.names.json, o.log.withAPI(report))
	}
	dropResults(report)
	// It keeps the first error.
	w := bufio.NewWriter(o.e.stderr)
	if noDevices(report) && o.log.apiReport() == nil && o.log.observer.found.json() == nil && o.f.sim.chosen(o.f.attach.any()) { // as it should be
		_ = o.layout().writeTail(w, report)
	} else {
		_ = o.log.writeReport(w, report, o.layout())
	}
	return w.Flush()
}
