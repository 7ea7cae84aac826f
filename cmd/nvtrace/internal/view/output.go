package view

import (
	"io"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Sink is what a user is to see of a run or a recording: lines, a summary, counters, what a program
// prints. It implements record.Sink.
type Sink struct {
	*observe.Feed
	Errs   Once
	Live   bool        // the program runs
	Totals *Totals     // of the summary; nil for none
	Meter  *Meter      // of stat and top; nil: nothing is counted
	Script *hostScript // nil: there is no program with probes on the host
	Lines  *Lines      // nil: no lines
	holds  holdings
	heard  bool       // holds is registered
	env    *variables // nil: they are not gathered
}

// NewSink returns a sink for what d decodes that shows nothing yet.
func NewSink(d *ioctl.Decoder, e *cli.Env) *Sink {
	s := &Sink{Feed: observe.NewFeed(d), Errs: Once{E: e}}
	s.Notice = func(n string) { e.Notice("%s", n) }
	return s
}

// Show registers an observer, behind what notes which kinds of events come.
func (s *Sink) Show(o observe.Observer) {
	if !s.heard {
		s.heard = true
		s.Register(&s.holds)
	}
	s.Register(o)
}

// Idle implements record.Sink.
func (s *Sink) Idle() {
	if s.Lines != nil {
		s.Errs.Report(s.Lines.W.Flush())
	}
}

// Summarise makes the sink gather a summary.
func (s *Sink) Summarise(h *traces.Header) {
	s.holds.header = heldOf(h.API)
	s.Totals = newTotals(s.Decoder(), h, &s.holds, s.Live)
	s.Follow()
	s.Show(s.Totals)
}

// Count makes the sink count what processes do.
func (s *Sink) Count() {
	s.Meter = NewMeter()
	s.Follow()
	s.Show(s.Meter)
}

// TraceEnv makes the sink gather which environment variables were asked for.
func (s *Sink) TraceEnv() {
	s.env = &variables{api.NewEnvironment(false)}
	s.Follow()
	s.Show(s.env)
}

// OnHost makes the sink run a program's probes on the host; show puts out what they print. of is
// the header of the recording that the events are from, nil: the processes run.
func (s *Sink) OnHost(p *script.Program, of *traces.Header, show func(text string)) {
	if of != nil {
		s.holds.header = heldOf(of.API)
	}
	s.Script = newHostScript(p, of, show)
	s.Follow()
	s.Show(s.Script)
}

// PrintTo makes the sink print lines to w, as f says.
func (s *Sink) PrintTo(e *cli.Env, w io.Writer, h *traces.Header, f *LineFlags) (err error) {
	if s.Lines, err = newLines(e, w, h, f, s.Decoder(), &s.Errs, s.Live); err == nil {
		s.Show(s.Lines)
	}
	return err
}

// ShowAPI makes the sink print the calls of some libraries, where it prints lines.
func (s *Sink) ShowAPI(libs api.Selection) {
	s.Follow()
	if s.Lines != nil {
		s.Lines.showCalls(libs)
	}
}

// held says which library calls there are.
func (s *Sink) held() heldCalls { return s.holds.held(s.Totals.api()) }

// Unmatched says that the filter has selected nothing, if that is so.
func (s *Sink) Unmatched(exprs []string) {
	if len(exprs) > 0 && !s.Lines.matched {
		text := "nothing that happened matches -e " + strings.Join(exprs, " -e ")
		if strings.Contains(text, "api") && !s.held().any() {
			text += "; calls of CUDA's libraries: " + notRecorded
		}
		s.Notice(text)
	}
}

// Memory returns the GPU memory of a process, of all for 0: what lives, and the most that did.
func (s *Sink) Memory(pid int32) (now, peak uint64) { return s.Totals.memory(pid) }

// WriteReport draws the summary: what the run comes to, then the tables.
func (s *Sink) WriteReport(w io.Writer, r *ioctl.Report, l *Layout) error {
	return s.Totals.write(w, r, l)
}

// Stat returns the counters of a run up to now.
func (s *Sink) Stat(argv []string) *Stat { return s.Totals.stat(s.Meter, argv) }

// WriteEnv draws the table of environment variables.
func (s *Sink) WriteEnv(w io.Writer) error { return s.env.write(w) }

// Nothing reports whether nothing came of what nvtrace records by itself: no device was used, no
// library was called, no probe found anything.
func (s *Sink) Nothing(r *ioctl.Report) bool {
	return NoDevices(r) && s.Totals.api() == nil && s.Totals.gathered.found.json() == nil
}

// summaryJSON is a summary with its library calls.
type summaryJSON struct {
	*ioctl.Report
	Verdict *verdict    `json:"verdict"`
	API     *api.Report `json:"api,omitempty"`
	Probes  *foundJSON  `json:"probes,omitempty"`
	// Sampled is what looks from outside came to, by process.
	Sampled   map[int]*traces.Sampled `json:"sampled,omitempty"`
	Variables []api.Variable          `json:"variables,omitempty"`
	Place     *ranks.Place            `json:"place,omitempty"`
}

// WithAPI adds the library calls, if there were any, to a summary for JSON.
func (s *Sink) WithAPI(r *ioctl.Report) any {
	var place *ranks.Place
	if s.Totals.place.Rank != ranks.Unknown {
		place = &s.Totals.place
	}
	return summaryJSON{r, s.Totals.verdict(r), s.Totals.api(), s.Totals.gathered.found.json(), s.Totals.gathered.sampled, s.env.list(), place}
}
