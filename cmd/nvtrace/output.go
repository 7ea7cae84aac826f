package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/object"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/escape"
	"nvtrace/traces/ranks"
	"nvtrace/traces/record"
)

// lineFlags are the flags that choose lines and how they look, the same for a
// live log and for a recording's.
type lineFlags struct {
	exprs             stringList
	programs          *stringList // where -e 'PROGRAM' goes; nil: nowhere
	wall, delta, took bool
	hex, all, handles bool
	width, elems      int
	color             string
}

// about says what else than a filter -e may be.
func (f *lineFlags) about() string {
	if f.programs == nil {
		return ""
	}
	return "with braces, run a program: 'kernel:* { @[kernel] = count(); }'; otherwise "
}

// An exprFlag is -e: a filter, or with braces a program for probes.
type exprFlag struct{ exprs, programs *stringList }

// String implements flag.Value.
func (f *exprFlag) String() string { return "" }

// Set implements flag.Value.
func (f *exprFlag) Set(s string) error {
	switch {
	case !isProgram(s) && f.programs != nil && strings.Contains(s, ":") && !strings.Contains(s, "="):
		return fmt.Errorf("what is to be done there is missing: '%s { @ = count(); }'; a filter is KEY=VALUE", s)
	case !isProgram(s) && f.programs != nil && strings.HasPrefix(strings.TrimSpace(s), "@"):
		return fmt.Errorf("a program says where it runs: 'kernel:* { %s; }'; nvtrace list shows where that can be", strings.TrimRight(strings.TrimSpace(s), ";"))
	case !isProgram(s):
		if hint := filterHint(s, f.programs != nil); hint != "" {
			return errors.New(hint)
		}
		return f.exprs.Set(s)
	case f.programs == nil:
		return errors.New("a program for probes wants a program to run: nvtrace -e 'PROGRAM' -- command [args]")
	}
	return f.programs.Set(s)
}

// filterHint says what may have been meant by a filter without "=", or by one of strace's.
func filterHint(s string, runs bool) string {
	name := strings.TrimPrefix(s, "trace=")
	if strings.Contains(name, "=") || name == "" {
		return ""
	}
	for _, l := range api.Libraries() {
		for f := range api.Functions(l) {
			if object.Glob(name, f.Name) || strings.HasPrefix(f.Name, name+"_v") {
				return fmt.Sprintf("a filter is KEY=VALUE: api=%s*", strings.TrimSuffix(name, "*"))
			}
		}
	}
	isCall := false
	for nr := range uint64(mostSyscalls) {
		isCall = isCall || ptrace.NativeSyscallName(nr) == name
	}
	if isCall && runs {
		return fmt.Sprintf("a filter is KEY=VALUE, of device calls and libraries' calls; system calls are counted by a program: 'syscall:%s { @ = count(); }'", name)
	}
	return ""
}

func (f *lineFlags) register(fs *flag.FlagSet) {
	fs.Var(&exprFlag{&f.exprs, f.programs}, "e", f.about()+"show only what matches `EXPR`: device=nvidia-uvm, ioctl=NV_ESC_RM_*, control=*GPU*, class=*CHANNEL*, status!=OK, api=cuMem*, pid=N; globs and comma lists, != negates (repeated, all must hold)")
	fs.BoolVar(&f.wall, "t", false, "show the time of day")
	fs.BoolVar(&f.delta, "r", false, "show the time since the previous line")
	fs.BoolVar(&f.took, "T", false, "show how long each call took")
	fs.BoolVar(&f.hex, "x", false, "add the raw bytes in hexadecimal")
	fs.BoolVar(&f.all, "z", false, "show members that are zero too")
	fs.BoolVar(&f.handles, "handles", false, "show handles in hexadecimal instead of the objects' names")
	fs.IntVar(&f.width, "w", 0, "cut lines at `N` characters (0: no limit)")
	fs.IntVar(&f.elems, "s", 32, "show at most `N` elements of an array or characters of a string (-1: all)")
	fs.StringVar(&f.color, "color", "auto", "`WHEN` to colour: auto, always or never (NO_COLOR is respected)")
}

// options returns the line options for output that goes to w.
func (f *lineFlags) options(e *env, h *traces.Header, w io.Writer) (*ioctl.LineOptions, error) {
	o := &ioctl.LineOptions{Duration: f.took, Width: f.width, Elems: f.elems, Zeros: f.all, Hex: f.hex, Demangle: fatbin.Demangle}
	if h != nil {
		o.Start = h.Start
	}
	switch {
	case f.width < 0:
		return nil, fmt.Errorf("-w %d: want a number of characters, or 0 for no limit", f.width)
	case f.elems < -1:
		return nil, fmt.Errorf("-s %d: want a number of elements, or -1 for all", f.elems)
	case f.wall && f.delta:
		return nil, fmt.Errorf("-t and -r exclude each other")
	case f.wall:
		o.Clock = ioctl.ClockWall
	case f.delta:
		o.Clock = ioctl.ClockDelta
	}
	switch f.color {
	case "always":
		o.Color = true
	case "never":
	case "auto":
		o.Color = isTerminal(w) && e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb"
	default:
		return nil, fmt.Errorf("--color=%s: want auto, always or never", f.color)
	}
	return o, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := beneath(w).(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// once reports the first error of an output, and no more.
type once struct {
	e    *env
	what string
	live bool // of a program that is being traced
	said bool
}

func (o *once) report(err error) {
	if err == nil || o.said {
		return
	}
	o.said = true
	rest := ""
	if o.live {
		rest = "; the program goes on, what was written before can be read"
	}
	o.e.notice("%s%v%s", o.what, err, rest)
}

// attachNotice says that attaching succeeded, as soon as it has. It implements
// record.Sink.
type attachNotice struct {
	e    *env
	pids pidList
	said bool
}

// Event implements record.Sink.
func (a *attachNotice) Event(ev *traces.Event) {
	if !a.said && ev.Flags&traces.FlagAttached != 0 {
		a.said = true
		what := "process"
		if len(a.pids) > 1 {
			what = "processes"
		}
		a.e.notice("attached to %s %s; Ctrl-C detaches", what, a.pids.String())
		for _, pid := range a.pids {
			if proc.FirstEnded(pid) {
				a.e.notice("the first thread of process %d has ended, so that the kernel does not tell what the process has mapped: "+
					"its functions have no probes and are not recorded; programs that it starts do", pid)
			}
		}
	}
}

// Idle implements record.Sink.
func (a *attachNotice) Idle() {}

// gapNotice tells of what the recording lacks, where nobody would read it
// otherwise. It implements record.Sink.
type gapNotice struct {
	e *env
	n int
}

// Event implements record.Sink.
func (g *gapNotice) Event(ev *traces.Event) {
	if ev.Kind != traces.KindGap {
		return
	}
	if g.n++; g.n <= fewGaps {
		g.e.notice("incomplete: %s", ev.Text)
	}
}

// Idle implements record.Sink.
func (g *gapNotice) Idle() {}

// finish says how many more there were.
func (g *gapNotice) finish() {
	if more := g.n - fewGaps; more > 0 {
		g.e.notice("incomplete: %d more reasons", more)
	}
}

// logSink prints a line for each event that the filter selects.
type logSink struct {
	decoder  *ioctl.Decoder
	filter   *ioctl.Filter
	opts     *ioctl.LineOptions
	names    *lineNames     // nil: handles stay numbers
	summary  *ioctl.Summary // fed from the same decoding; nil for none
	book     *failureBook   // of the summary; nil for none
	page     *export.Page   // likewise
	observer observer       // of the summary
	api      *apiTrace      // of library calls; nil: they are left out
	lines    *bufio.Writer  // nil: no lines
	script   *hostScript    // nil: there is no program with probes on the host
	meter    *meter         // of stat and top; nil: nothing is counted
	matched  bool           // an event was selected by the filter
	header   heldCalls      // what the header says of library calls
	place    ranks.Place    // which of several processes it is, as its launcher says
	heard    bool           // one of them came
	imaged   bool           // something of code images came
	live     bool           // leave out the record that ends a recording
	errs     once
	buf      []byte
	call     ioctl.Call // of the event at hand; one for all, as it is large
	notice   func(string)
}

// Event implements record.Sink.
func (s *logSink) Event(ev *traces.Event) {
	s.listen(ev.Kind)
	if s.api == nil && s.lines == nil && s.script == nil && (ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn || ev.Kind == traces.KindGPU) {
		return // nobody is to be shown anything of it
	}
	s.decoder.DecodeTo(&s.call, ev)
	c := &s.call
	if s.api != nil {
		s.api.take(ev, c)
	}
	if s.script != nil {
		s.script.event(ev, c, s.decoder, s.api)
	}
	if s.summary != nil {
		s.summary.Add(ev, c)
		s.book.add(ev, c, s.api.current, s.decoder)
		s.observer.add(ev, s.api.tracker, s.api.current)
	}
	if s.meter != nil {
		s.meter.add(ev, c, s.api.current, &s.api.tracker.Names)
	}
	if s.page != nil {
		s.page.Add(ev, c)
	}
	if s.names != nil {
		s.names.around(ev, c, func() { s.line(ev, c) })
	} else {
		s.line(ev, c)
	}
	if n := s.decoder.Notice(); n != "" {
		s.notice(n)
	}
}

// isRemark reports whether a kind of event is about the recording, and no event of
// the program: filters let those through.
func isRemark(k traces.Kind) bool {
	return k == traces.KindNote || k == traces.KindLost || k == traces.KindGap || k == traces.KindEnd
}

// unmatched says that the filter has selected nothing, if that is so.
func (s *logSink) unmatched(exprs []string) {
	if len(exprs) > 0 && !s.matched {
		text := "nothing that happened matches -e " + strings.Join(exprs, " -e ")
		if strings.Contains(text, "api") && !s.held().any() {
			text += "; calls of CUDA's libraries: " + notRecorded
		}
		s.notice(text)
	}
}

// line prints the event if it is wanted.
func (s *logSink) line(ev *traces.Event, c *ioctl.Call) {
	if s.lines == nil {
		return
	}
	wanted := s.filter.Match(ev, c) && (!s.live || ev.Kind != traces.KindEnd)
	s.matched = s.matched || wanted && !isRemark(ev.Kind)
	if s.apiLine(ev, wanted) || !wanted {
		return
	}
	s.buf = s.decoder.AppendCall(s.buf[:0], ev, c, s.opts)
	_, err := s.lines.Write(s.buf)
	s.errs.report(err)
}

// printTo makes the sink print lines to w, as f says.
func (s *logSink) printTo(e *env, w io.Writer, h *traces.Header, f *lineFlags) (err error) {
	if s.opts, err = f.options(e, h, w); err != nil {
		return err
	}
	w = beneath(w)
	if s.opts.Color {
		w = escape.NewWriter(w, ioctl.Colors()...)
	} else {
		w = escape.NewWriter(w)
	}
	s.lines = bufio.NewWriterSize(w, 64<<10)
	if !f.handles {
		s.names = newLineNames(s.decoder)
		s.opts.Name = s.names.namer()
	}
	return nil
}

// summarise makes the sink gather a summary.
func (s *logSink) summarise(h *traces.Header) {
	s.summary, s.book = ioctl.NewSummary(h), newFailureBook(s.decoder)
	s.header, s.observer.from, s.place = heldOf(h.API), h.CallsFrom, ranks.Of(h.Rank)
	s.traceAPI().summary = api.NewSummary()
}

// Idle implements record.Sink.
func (s *logSink) Idle() {
	if s.lines != nil {
		s.errs.report(s.lines.Flush())
	}
}

// fileSink writes a recording.
type fileSink struct {
	w *traces.Writer
}

// Event implements record.Sink.
func (s *fileSink) Event(ev *traces.Event) { s.w.Write(ev) }

// Idle implements record.Sink. The writer flushes by itself; an idle moment is
// the time to put out what is left.
func (s *fileSink) Idle() {
	if s.w.Pending() > 0 {
		_ = s.w.Flush() // the error sticks, and OnError has told it
	}
}

// Block implements record.BlockSink.
func (s *fileSink) Block(block []byte) { s.w.WriteBlock(block) }

// gate holds the events back that come before the outputs are open, and drops them if
// that never happens: then nothing of the program has begun. It implements record.BlockSink,
// and so does what it opens for.
type gate struct {
	opened atomic.Bool
	mu     sync.Mutex
	next   record.BlockSink // nil before open
	held   [][]byte         // blocks, by then
}

// open gives next all events, those that came before too. It may be called on another
// goroutine than Block.
func (g *gate) open(next record.BlockSink) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = next
	for _, b := range g.held {
		next.Block(b)
	}
	g.held = nil
	next.Idle() // when the last of them came, nobody could put it out
	g.opened.Store(true)
}

// Block implements record.BlockSink.
func (g *gate) Block(block []byte) {
	if g.opened.Load() {
		g.next.Block(block)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != nil {
		g.next.Block(block)
	} else {
		g.held = append(g.held, slices.Clone(block))
	}
}

// Event implements record.Sink, for who has an event alone.
func (g *gate) Event(ev *traces.Event) {
	var b traces.Batch
	b.Add(ev)
	g.Block(b.AppendTo(nil))
}

// Idle implements record.Sink.
func (g *gate) Idle() {
	if g.opened.Load() {
		g.next.Idle()
	}
}

// sizeText prints a number of bytes as a person reads it.
func sizeText(n uint64) string { return units.Bytes(n) }
