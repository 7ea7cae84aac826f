package view

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// APIFlag is --api, --api=LIBRARIES or --api=none. Among the libraries may stand "all" and
// "count", which also say how.
type APIFlag struct {
	Given, None bool
	Libraries   api.Selection
	all         bool // calls are recorded that tell little, too
	Count       bool // no calls are recorded, but counted
}

// Register adds --api to a verb's flags; usage says what it is for there.
func (f *APIFlag) Register(fs *flag.FlagSet, usage string) { fs.Var(f, "api", usage) }

// String implements flag.Value.
func (f *APIFlag) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (f *APIFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (f *APIFlag) Set(list string) (err error) {
	if f.None = list == "none"; f.None {
		f.Given = false
		return nil
	}
	if list == "true" {
		list = ""
	}
	f.Given = true
	var names []string
	for word := range strings.SplitSeq(list, ",") {
		switch word = strings.TrimSpace(word); {
		case strings.EqualFold(word, "count"):
			f.Count = true
			continue
		case strings.EqualFold(word, "all"):
			f.all = true
		}
		names = append(names, word)
	}
	f.Libraries, err = api.ParseSelection(strings.Join(names, ","))
	return err
}

// Counts says which functions are counted in the program and not recorded, and whether those
// of them that fail are; nil: none.
func (f *APIFlag) Counts() func(name string) (count, failed bool) {
	switch {
	case f.Count:
		return func(string) (bool, bool) { return true, false }
	case !f.Given || f.all:
		return nil
	}
	return func(name string) (bool, bool) { return api.Query(name), true }
}

// APITrace follows library calls for a log or a summary.
type APITrace struct {
	Tracker *api.Tracker
	current *api.Frame   // what the latest event happened during
	last    int64        // latest time seen
	summary *api.Summary // nil: nothing is counted
	results map[resultKey]string
	latest  [16]struct { // by library
		key  resultKey
		name string
	}
	environ *api.Environment

	shown bool          // calls are printed
	libs  api.Selection // of which libraries
	style api.Style
	text  []byte
}

func newAPITrace() *APITrace { return &APITrace{Tracker: api.NewTracker()} }

// traceAPI makes the sink follow library calls.
func (s *Sink) traceAPI() *APITrace {
	if s.Api == nil {
		s.Api = newAPITrace()
	}
	return s.Api
}

// ShowAPI makes the sink print the calls of some libraries, once printTo has
// said how.
func (s *Sink) ShowAPI(libs api.Selection) {
	a := s.traceAPI()
	a.shown, a.libs = true, libs
	a.style = api.Style{Color: s.opts != nil && s.opts.Color, Demangle: fatbin.Demangle}
}

// appendJSON adds to an event's line of JSON what is known of library calls:
// "during" are the calls that it happened in, the outermost first; "decoded" is
// a call, or what came of it, in words.
func (a *APITrace) appendJSON(line []byte, ev *traces.Event) []byte {
	f := a.current
	end := len(line) - len("}\n")
	if f == nil || end < 0 || string(line[end:]) != "}\n" {
		return line
	}
	var more struct {
		During  []string `json:"during,omitempty"`
		Decoded string   `json:"decoded,omitempty"`
	}
	outer := f
	switch ev.Kind {
	case traces.KindCall:
		a.text = api.AppendCall(a.text[:0], f, ev, &a.Tracker.Names, &a.style)
		more.Decoded, outer = string(a.text), f.Parent
	case traces.KindReturn:
		a.text = api.AppendReturn(a.text[:0], f, ev, &a.style)
		more.Decoded, outer = strings.TrimLeft(string(a.text), " ="), f.Parent
	}
	for ; outer != nil; outer = outer.Parent {
		more.During = append(more.During, outer.Name)
	}
	slices.Reverse(more.During)
	b, err := json.Marshal(&more)
	if err != nil || len(b) <= len("{}") {
		return line
	}
	line = append(line[:end], ',')
	return append(append(line, b[1:]...), '\n')
}

// Finish prints and counts the calls that were open when a recording ended
// without saying so. Nothing may follow.
func (s *Sink) Finish() {
	if s.Api == nil {
		return
	}
	end := traces.Event{Kind: traces.KindEnd, FD: -1}
	s.Api.take(&end, new(ioctl.Call))
	if s.Lines != nil {
		s.apiLine(&end, false)
	}
}

// take follows an event, and completes what is known of it: how a library call
// ended.
func (a *APITrace) take(ev *traces.Event, c *ioctl.Call) {
	a.current = a.Tracker.Add(ev)
	a.last = max(a.last, ev.Time, ev.Time+ev.Dur)
	if a.summary != nil {
		a.summary.Add(ev, a.Tracker, a.current)
	}
	if a.environ != nil {
		a.environ.Add(ev, a.Tracker, a.current)
	}
	if f := a.current; ev.Kind == traces.KindReturn && f != nil && f.Function != nil && f.Function.Result.Status && ev.Flags&traces.FlagUnfinished == 0 {
		c.Returned = ioctl.Returned{Known: true, Failed: f.Function.Failed(ev.Ret), Name: a.resultName(f.Function, ev.Ret), Code: int32(ev.Ret)}
	}
}

// resultKey is what a function may return.
type resultKey struct {
	t    *api.Type
	code int32
}

// maxResults bounds the names that are remembered.
const maxResults = 1 << 12

// resultName is [api.Function.ResultName] with a memory.
func (a *APITrace) resultName(f *api.Function, ret int64) string {
	k := resultKey{f.Result, int32(ret)}
	last := &a.latest[f.Library%16]
	if last.key != k || last.key.t == nil {
		last.key, last.name = k, a.searchResult(f, ret, k)
	}
	return last.name
}

func (a *APITrace) searchResult(f *api.Function, ret int64, k resultKey) string {
	name, ok := a.results[k]
	if !ok {
		name = f.ResultName(ret)
		if a.results == nil || len(a.results) >= maxResults {
			a.results = make(map[resultKey]string)
		}
		a.results[k] = name
	}
	return name
}

// What a frame's Mark holds.
const (
	markWanted = 1 << iota // the filter selects the call
	markHidden             // its library is not asked for
	markOpened             // its line was printed, with a brace
)

// apiLine prints the lines that an event makes necessary: a call, the calls that
// the event is inside of, calls that have ended. It reports whether the event
// has had its line; wanted says that the filter selects it.
func (s *Sink) apiLine(ev *traces.Event, wanted bool) (done bool) {
	isCall := ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn
	a := s.Api
	if a == nil || !a.shown {
		return isCall
	}
	f := a.current
	if ev.Kind == traces.KindCall && f != nil {
		f.Note = api.AppendCall(f.Note[:0], f, ev, &a.Tracker.Names, &a.style)
		if wanted {
			f.Mark |= markWanted
		}
		if !a.libs.Has(f.Module.Library) && (f.Module.Library != api.Unknown || f.Function != nil) {
			f.Mark |= markHidden
		}
	}
	for _, e := range a.Tracker.Ended() {
		s.endCall(e, ev, false)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		if wanted { // by its result
			f.Mark |= markWanted
		}
		s.endCall(f, ev, true)
		return true
	}
	s.opts.Indent = 0
	switch {
	case ev.Kind == traces.KindCall:
		return true
	case ev.Kind == traces.KindReturn: // of a call that was not seen
		return !wanted || !a.libs.Has(api.MatchSymbol(ev.Name))
	case wanted:
		s.opts.Indent = s.openCalls(f)
	}
	return false
}

// depth is how far a call is moved to the right.
func depth(f *api.Frame) (n int) {
	for p := f.Parent; p != nil; p = p.Parent {
		if p.Mark&markHidden == 0 {
			n += 2
		}
	}
	return n
}

// openCalls prints the calls that are not printed yet and that a line is to
// stand in, the outermost first. It returns how far that line is moved to the right.
func (s *Sink) openCalls(f *api.Frame) int {
	if f == nil {
		return 0
	}
	indent := s.openCalls(f.Parent)
	if f.Mark&markHidden != 0 {
		return indent
	}
	if f.Mark&markOpened == 0 {
		f.Mark |= markOpened
		s.callLine(f, f.Start, append(f.Note, " {"...), indent)
	}
	return indent + 2
}

// endCall prints how a call ended, and the call where it has no line yet. ev is
// its return if returned is set.
func (s *Sink) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	opened := f.Mark&markOpened != 0
	if f.Mark&markHidden != 0 || !opened && f.Mark&markWanted == 0 {
		return
	}
	at := f.Start
	a := s.Api
	if opened {
		a.text = append(a.text[:0], '}')
		if at = f.End; at < 0 {
			at = a.last
		}
	} else {
		s.openCalls(f.Parent)
		a.text = append(a.text[:0], f.Note...)
	}
	if returned {
		a.text = api.AppendReturn(a.text, f, ev, &a.style)
	} else {
		a.text = api.AppendUnfinished(a.text, &a.style)
	}
	s.callLine(f, at, a.text, depth(f))
}

// callLine prints a line of a call's.
func (s *Sink) callLine(f *api.Frame, at int64, text []byte, indent int) {
	s.opts.Indent = indent
	ev := traces.Event{PID: f.PID, TID: f.TID, Time: at, FD: -1}
	s.buf = s.Decoder.AppendText(s.buf[:0], &ev, text, s.opts)
	s.opts.Indent = 0
	_, err := s.Lines.Write(s.buf)
	s.Errs.Report(err)
}

// ApiReport returns what was counted of library calls, nil where there were none.
func (s *Sink) ApiReport() *api.Report {
	if s.Api == nil || s.Api.summary == nil {
		return nil
	}
	if r := s.Api.summary.Report(); r.Calls > 0 {
		return r
	}
	return nil
}

// TraceEnv makes the sink gather which environment variables were asked for.
func (s *Sink) TraceEnv() { s.traceAPI().environ = api.NewEnvironment(false) }

// variables returns the environment variables that were asked for.
func (s *Sink) variables() []api.Variable {
	if s.Api == nil || s.Api.environ == nil {
		return nil
	}
	return s.Api.environ.Variables()
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
	if s.place.Rank != ranks.Unknown {
		place = &s.place
	}
	return summaryJSON{r, s.verdict(r), s.ApiReport(), s.Observer.Found.Json(), s.Observer.sampled, s.variables(), place}
}

// WriteEnv draws the table of environment variables.
func (s *Sink) WriteEnv(w io.Writer) error {
	list := s.variables()
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no reads of environment variables by CUDA's libraries are in the record (--env records them)")
		return err
	}
	var rows [][]string
	for _, v := range list {
		value, meaning := "", v.Meaning
		switch {
		case v.Value != "":
			value = v.Value
		case v.Set:
			value = "(set)"
		}
		switch {
		case meaning == "" && v.Internal:
			meaning = "(the driver's own, not documented)"
		case v.Known != "" && v.Known != "driver":
			meaning = v.Known + ": " + meaning
		}
		rows = append(rows, []string{v.Name, value, cli.Count(v.Reads), strings.Join(v.By, ", "), meaning})
	}
	return new(Layout).write(w, []table{{"Environment variables that were asked for", []string{"name", "value", ">reads", "by", "meaning"}, rows, 0}})
}

// writeAPI draws the table of library calls, if there were any.
func (s *Sink) writeAPI(w io.Writer, l *Layout) error {
	r := s.ApiReport()
	if r == nil {
		return nil
	}
	var rows [][]string
	for _, c := range r.Functions {
		rows = append(rows, []string{
			cli.Count(c.Calls), cli.Count(c.Failed), cli.Duration(c.Total), cli.Duration(c.Self), cli.Count(c.Ioctls), cli.Duration(c.IoctlTime), c.Library, c.Name,
		})
	}
	header := []string{">calls", ">failed", ">total", ">self", ">ioctls", ">in ioctls", "library", "call"}
	if err := l.write(w, []table{{"API calls by time, with the ioctls they caused", header, rows, fewAPI}}); err != nil {
		return err
	}
	unfinished := ""
	if r.Unfinished > 0 {
		unfinished = fmt.Sprintf(", %d of them not seen to return", r.Unfinished)
	}
	if r.Counted > 0 {
		unfinished += fmt.Sprintf(", %d counted in the program, whose times are not in the sum", r.Counted)
	}
	_, err := fmt.Fprintf(w, "%d API calls in %s, %d failed%s; %d ioctls in %s were made during them\n",
		r.Calls, cli.OrZero(cli.Duration(r.Time)), r.Failed, unfinished, r.Ioctls, cli.OrZero(cli.Duration(r.IoctlTime)))
	return err
}
