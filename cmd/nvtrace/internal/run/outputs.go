package run

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/live"
	"nvtrace/cmd/nvtrace/internal/prom"
	"nvtrace/cmd/nvtrace/internal/telemetry"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ioctl"
	"nvtrace/nvattach/outcome"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// outputs decodes the events of a run in this process: lines, a recording, a
// summary. It implements outlet.
type outputs struct {
	e      *cli.Env
	f      *runFlags
	header *traces.Header
	log    *view.Sink
	top    *live.Top          // nil: no table while the program runs
	ticker *ticker            // nil: no intervals
	lines  *view.StatLines    // counters of intervals; nil: only at the end
	file   *parts             // nil: not recorded
	flight *flight            // nil: nothing is kept in memory
	tables *view.Intervals    // nil: no tables are written
	prom   *prom.Target       // nil: nobody gets metrics
	counts *telemetry.Metrics // for prom and push
	push   *telemetry.Sending // nil: nothing is sent
	names  outputNames
	heard  func() // is called before the flight recorder says something
	closes []io.Closer
	gate   gate
	gaps   gapNotice
	args   []string // of the command line, before the command
	began  bool     // an event of the program came
	used   bool     // it used a GPU, or called a library
}

// newOutputs prepares what the events go to. No file is touched before ready.
func newOutputs(e *cli.Env, f *runFlags, args []string, h *traces.Header) (*outputs, error) {
	filter, err := ioctl.ParseFilter(f.lines.Exprs...)
	if err != nil {
		return nil, err
	}
	o := &outputs{e: e, f: f, header: h, gaps: gapNotice{e: e}, args: args}
	o.log = view.NewSink(ioctl.NewDecoder(h), e)
	o.log.Live, o.log.Filter, o.log.Errs = true, filter, view.Once{E: e, What: "log: ", Live: true}
	if !f.printsLines() && !f.quiet || f.summary || f.json.Given || f.stat.Given || f.top || f.forecast {
		o.log.Summarise(h)
	}
	if f.env {
		o.log.TraceEnv()
	}
	if f.stat.Given || f.top {
		o.log.Count()
	}
	if f.top {
		tty := f.fullScreen(e)
		if tty == nil && f.pid() == 0 && cli.IsTerminal(e.Stderr) && cli.IsTerminal(e.Stdout) {
			e.Notice("top: a line a second, as the program writes to this terminal, too; a table in full screen: nvtrace top -- command >output.txt")
		}
		o.top = live.NewTop(o.log, e.Stderr, tty)
	}
	if p := f.attach.scripts.Program; p != nil && p.OnHost() {
		o.log.OnHost(p, nil, func(text string) { fmt.Fprint(e.Stderr, text) })
		o.log.Script.Shown = f.attach.shown
	}
	return o, nil
}

// fullScreen returns the terminal for top, nil where there is none, or where a program
// that nvtrace starts writes to it.
func (f *runFlags) fullScreen(e *cli.Env) *os.File {
	if !cli.IsTerminal(e.Stderr) || f.pid() == 0 && cli.IsTerminal(e.Stdout) || e.Getenv("TERM") == "dumb" {
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
	return f.log.Given || f.api.Given && !f.summary && !f.json.Given && f.out == "" && !f.forecast && f.prom == "" && !f.push.Given()
}

// open opens the files, when the program has begun: only now what was in them may go.
func (o *outputs) open() (err error) {
	o.e.Tracing = true // here, too, where another process decodes
	if o.names, err = o.f.names(o.header, o.e.Getenv); err != nil {
		return err
	}
	for _, name := range o.f.attach.objects {
		o.e.Reads(name)
	}
	var files []*cli.GrownFile
	defer func() {
		if err != nil {
			for _, g := range files {
				g.Abandon()
			}
		}
	}()
	add := func(name string) (*cli.GrownFile, error) {
		if err := o.e.RefuseInput(name); err != nil {
			return nil, err
		}
		g, err := cli.OpenGrown(name, cli.ModePrivate)
		if err != nil {
			return nil, err
		}
		files = append(files, g)
		return g, nil
	}
	if o.f.prom != "" {
		if o.names.prom, err = cli.ExpandName(o.f.prom, o.header, 1, o.e.Getenv); err != nil {
			return fmt.Errorf("--prom=%w", err)
		}
		if o.prom, err = prom.Open(o.names.prom, telemetry.PromOffset(o.header), o.e.WritePublic); err != nil {
			o.e.Notice("--prom: %v; nobody gets metrics", err) // the program does not need them
			o.prom = nil
		} else {
			o.closes = append(o.closes, o.prom)
		}
	}
	var log, recording *cli.GrownFile
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
			e: o.e, window: time.Duration(o.f.flight), hang: time.Duration(o.f.hang), header: o.header, heard: o.heard,
			name: func(dump int) (string, error) {
				name, err := cli.ExpandName(o.f.out, o.header, dump, o.e.Getenv)
				if ext := filepath.Ext(name); dump > 1 && !strings.Contains(o.f.out, "%n") { // what an earlier one says may be the cause
					name = strings.TrimSuffix(name, ext) + "." + strconv.Itoa(dump) + ext
				}
				return name, err
			},
		}
		if b := &o.f.baseline; b.file != "" {
			o.e.Reads(b.file)
			o.flight.baseline, o.flight.pace = b, newPace(o.header.PID)
		}
		o.flight.begin(int(o.header.PID))
	} else if o.names.tables != "" {
		only, err := view.ParseTables(o.f.onlyTables)
		if err != nil {
			return err
		}
		if o.tables, err = o.log.WriteTables(o.e, o.header, o.names.tables, o.f.runName, o.f.rank, only); err != nil {
			return err
		}
		if err := os.MkdirAll(o.names.tables, 0o777); err != nil {
			return err
		}
	} else if o.names.recording != "" {
		if recording, err = add(o.names.recording); err != nil {
			return err
		}
		if err := recording.Begin(); err != nil {
			return err
		}
		file := &parts{
			rotation: o.f.rotate, e: o.e, header: o.header, errs: view.Once{E: o.e, Live: true},
			name: func(part int) (string, error) { return cli.ExpandName(o.f.out, o.header, part, o.e.Getenv) },
		}
		if err := file.open(recording, 1); err != nil {
			return err
		}
		o.file = file
	}
	to := o.e.Stderr
	if log != nil {
		if err := log.Begin(); err != nil {
			return err
		}
		to, o.closes = log, append(o.closes, log)
	}
	if !o.f.printsLines() {
		return nil
	}
	if err := o.log.PrintTo(o.e, to, o.header, &o.f.lines); err != nil {
		return err
	}
	if o.f.api.Given {
		o.log.ShowAPI(o.f.api.Libraries)
	}
	return nil
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
	if o.e.Sink != nil {
		sinks = append(sinks, o.e.Sink)
	}
	line := o.log.Lines != nil && o.f.log.Value == ""
	table := o.log.Totals != nil && !o.f.quiet && !o.f.json.Given
	if !line && !table { // nothing else tells it on stderr
		sinks = append(sinks, &o.gaps)
	}
	if o.top != nil {
		o.top.Begin()
		return append(sinks, o.top, &beginning{o})
	}
	var ticks []tick
	if s := o.f.attach.scripts.Program; o.log.Script != nil && s.Every() > 0 && s.Object == nil {
		ticks = append(ticks, tick{time.Duration(s.Every()), o.log.Script.Tick})
	}
	if every := o.f.attach.interval; o.f.stat.Given && every > 0 {
		o.lines = view.NewStatLines(o.e, o.log, o.header.Argv, view.StatFormat{JSON: o.f.json, CSV: o.f.stat.Value == "csv"})
		ticks = append(ticks, tick{every, func(time.Time) { o.lines.Print() }})
	}
	if o.tables != nil {
		ticks = append(ticks, tick{cmp.Or(o.f.attach.interval, usualPart), func(now time.Time) { o.tables.Next(now, false) }})
	}
	if o.prom != nil || o.f.push.Given() {
		o.counts = telemetry.NewMetrics(o.log, o.header)
	}
	if o.prom != nil {
		ticks = append(ticks, tick{time.Second, o.measure})
	}
	if o.f.push.Given() {
		var err error
		if o.push, err = telemetry.NewSending(&o.f.push, o.log, o.header, o.counts, o.e.Getenv, o.e.Notice); err != nil {
			o.e.Notice("%v; nothing is sent", err) // the program does not need it
		} else {
			for _, t := range o.push.Ticks() {
				ticks = append(ticks, tick{t.Every, t.Do})
			}
		}
	}
	if ticks != nil {
		o.ticker = startTicker(o.log, ticks)
		return append(sinks, o.ticker, &beginning{o})
	}
	return append(sinks, o.log, &beginning{o})
}

// measure gives metrics to who wants them.
func (o *outputs) measure(now time.Time) {
	if err := o.prom.Put(o.counts.Measure(now).Text()); err != nil {
		o.e.Notice("--prom: %v", err)
	}
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
	o.gate.open(record.Guard(o.each(), func(msg string) { o.e.Notice("%s", msg) }, nil))
	return nil
}

// Finish puts out what is pending, and prints the summary of a program that
// has begun. An output that failed has been reported, and does not change how
// the program ended.
func (o *outputs) Finish() {
	if o.file != nil {
		o.file.close()
	}
	if o.flight != nil {
		o.flight.close()
	}
	if o.top != nil && o.began {
		o.top.End()
	}
	if o.ticker != nil {
		o.ticker.end()
	}
	if o.prom != nil && o.counts != nil {
		o.measure(time.Now())
	}
	if o.tables != nil && o.began {
		o.tables.Next(time.Now(), true)
	}
	o.log.Finish()
	o.log.Idle()
	o.gaps.Finish()
	if o.began {
		o.conclude()
	}
	if o.push != nil {
		o.push.End(time.Now())
	}
	for _, c := range o.closes { // their locks end
		o.log.Errs.Report(c.Close())
	}
}

// conclude prints what is printed at the end of a program.
func (o *outputs) conclude() {
	if o.log.Lines != nil {
		o.log.Unmatched(o.f.lines.Exprs)
	}
	if o.log.Script != nil {
		o.log.Script.Finish(o.log.Notice)
	}
	var err error
	switch {
	case o.f.forecast:
		err = o.writeForecast()
	case o.f.stat.Given:
		err = o.writeStat()
	}
	if o.log.Totals != nil {
		err = errors.Join(err, o.summarise())
	}
	if o.f.env && !o.f.json.Given {
		err = errors.Join(err, o.log.WriteEnv(o.e.Stderr))
	}
	if err != nil {
		o.e.Notice("summary: %v", err)
	}
	if lack := o.lacks(); lack != "" {
		o.e.Notice("%s", lack)
	}
	if hint := o.simulated(); hint != "" {
		o.e.Notice("no NVIDIA driver on this machine; %s", hint)
	}
}

// writeStat prints the counters.
func (o *outputs) writeStat() error {
	if o.lines != nil {
		o.lines.Print() // what came after the last whole interval
		if o.f.json.Value == "" && (o.f.json.Given || o.f.stat.Value == "csv") {
			return nil // without a total
		}
	}
	s := o.log.Stat(o.header.Argv)
	switch {
	case o.f.json.Given:
		return o.e.WriteJSON(o.e.Stderr, o.names.json, s)
	case o.f.stat.Value == "csv":
		return s.CSV(o.e.Stderr, true)
	}
	return s.Text(o.e.Stderr)
}

// writeForecast prints what recording would cost.
func (o *outputs) writeForecast() error {
	f := o.log.Forecast(o.header.Argv)
	if o.f.json.Given {
		return o.e.WriteJSON(o.e.Stderr, o.names.json, f)
	}
	return f.Text(o.e.Stderr)
}

// lacks says what a simulated GPU lacks that all probes of a program on the host are at, "" if nothing.
func (o *outputs) lacks() string {
	f := o.f
	switch {
	case o.used || f.pid() != 0 || !f.sim.chosen(f.attach.any()):
		return ""
	case OnlyIoctls(f.attach.scripts.Program):
		return "a simulated GPU gets no device calls; its calls are api:*"
	}
	return ""
}

// OnlyIoctls reports whether a program has probes at device calls alone.
func OnlyIoctls(p *script.Program) bool {
	return p != nil && p.OnHost() && !slices.ContainsFunc(p.HostPlaces(), func(s string) bool { return !strings.HasPrefix(s, "ioctl:") })
}

// simulated says how the run is to be typed for a simulated GPU where it has seen nothing for want of a
// driver; "" if that is not so.
func (o *outputs) simulated() string {
	f := o.f
	switch {
	case f.json.Given && (f.stat.Given || f.forecast || f.json.Value == ""), f.stat.Value == "csv": // which is for a program
		return ""
	case o.used || f.pid() != 0 || f.sim.no || f.sim.chosen(f.attach.any()) || o.e.Devices != nil || HasDriver():
		return ""
	case f.recorded() == 0 && f.attach.any(), OnlyIoctls(f.attach.scripts.Program): // which a simulated GPU shows as little of
		return ""
	}
	flags := []string{"--sim"}
	if f.recorded() == 0 && !f.attach.scripts.Given() && !f.modules.modules.Given { // it gets no device calls
		flags = append(flags, "--api")
	}
	const most = 200
	text := "nvtrace " + cli.ShellText(slices.Concat(typed(o.args, flags), []string{"--"}, o.header.Argv))
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
	case cut("--stat=csv", "-q"):
		words = []string{"stat", "--csv"}
	case cut("--forecast", "-q"):
		words = []string{"stat", "--forecast"}
	case cut("--top", "-q"):
		words = []string{"top"}
	}
	return slices.Concat(words, flags, args)
}

// layout is how the summary is drawn.
func (o *outputs) layout() *view.Layout {
	l := view.LiveLayout(o.names.recording)
	l.Brief = o.f.attach.any() && !o.f.attach.verbose
	return l
}

func (o *outputs) summarise() error {
	if o.f.quiet && !o.f.json.Given || (o.f.stat.Given || o.f.forecast) && o.f.json.Given {
		return nil
	}
	report := o.log.Totals.Summary.Report()
	if o.f.json.Given {
		return o.e.WriteJSON(o.e.Stderr, o.names.json, o.log.WithAPI(report))
	}
	report.Notes = slices.DeleteFunc(report.Notes, func(text string) bool { // they are said by who has found them
		return outcome.IsNote(text) || record.Said(text)
	})
	w := cli.NewPage(o.e.Stderr)
	if o.log.Nothing(report) && o.f.sim.chosen(o.f.attach.any()) { // as it should be
		_ = o.layout().WriteTail(w, report)
	} else {
		_ = o.log.WriteReport(w, report, o.layout())
	}
	_, err := o.e.Stderr.Write(w.Bytes())
	return err
}
