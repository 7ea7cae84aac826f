package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// apiFlag is --api, --api=LIBRARIES or --api=none. Among the libraries may stand "all" and
// "count", which also say how.
type apiFlag struct {
	set, none bool
	libraries api.Selection
	all       bool // calls are recorded that tell little, too
	count     bool // no calls are recorded, but counted
}

func (f *apiFlag) register(fs *flag.FlagSet, usage string) { fs.Var(f, "api", usage) }

// String implements flag.Value.
func (f *apiFlag) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (f *apiFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (f *apiFlag) Set(list string) (err error) {
	if f.none = list == "none"; f.none {
		f.set = false
		return nil
	}
	if list == "true" {
		list = ""
	}
	f.set = true
	var names []string
	for word := range strings.SplitSeq(list, ",") {
		switch word = strings.TrimSpace(word); {
		case strings.EqualFold(word, "count"):
			f.count = true
			continue
		case strings.EqualFold(word, "all"):
			f.all = true
		}
		names = append(names, word)
	}
	f.libraries, err = api.ParseSelection(strings.Join(names, ","))
	return err
}

// counts says which functions are counted in the program and not recorded, and whether those
// of them that fail are; nil: none.
func (f *apiFlag) counts() func(name string) (count, failed bool) {
	switch {
	case f.count:
		return func(string) (bool, bool) { return true, false }
	case !f.set || f.all:
		return nil
	}
	return func(name string) (bool, bool) { return api.Query(name), true }
}

// apiTrace follows library calls for a log or a summary.
type apiTrace struct {
	tracker *api.Tracker
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

func newAPITrace() *apiTrace { return &apiTrace{tracker: api.NewTracker()} }

// traceAPI makes the sink follow library calls.
func (s *logSink) traceAPI() *apiTrace {
	if s.api == nil {
		s.api = newAPITrace()
	}
	return s.api
}

// showAPI makes the sink print the calls of some libraries, once printTo has
// said how.
func (s *logSink) showAPI(libs api.Selection) {
	a := s.traceAPI()
	a.shown, a.libs = true, libs
	a.style = api.Style{Color: s.opts != nil && s.opts.Color, Demangle: fatbin.Demangle}
}

// appendJSON adds to an event's line of JSON what is known of library calls:
// "during" are the calls that it happened in, the outermost first; "decoded" is
// a call, or what came of it, in words.
func (a *apiTrace) appendJSON(line []byte, ev *traces.Event) []byte {
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
		a.text = api.AppendCall(a.text[:0], f, ev, &a.tracker.Names, &a.style)
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

// finish prints and counts the calls that were open when a recording ended
// without saying so. Nothing may follow.
func (s *logSink) finish() {
	if s.api == nil {
		return
	}
	end := traces.Event{Kind: traces.KindEnd, FD: -1}
	s.api.take(&end, new(ioctl.Call))
	if s.lines != nil {
		s.apiLine(&end, false)
	}
}

// take follows an event, and completes what is known of it: how a library call
// ended.
func (a *apiTrace) take(ev *traces.Event, c *ioctl.Call) {
	a.current = a.tracker.Add(ev)
	a.last = max(a.last, ev.Time, ev.Time+ev.Dur)
	if a.summary != nil {
		a.summary.Add(ev, a.tracker, a.current)
	}
	if a.environ != nil {
		a.environ.Add(ev, a.tracker, a.current)
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
func (a *apiTrace) resultName(f *api.Function, ret int64) string {
	k := resultKey{f.Result, int32(ret)}
	last := &a.latest[f.Library%16]
	if last.key != k || last.key.t == nil {
		last.key, last.name = k, a.searchResult(f, ret, k)
	}
	return last.name
}

func (a *apiTrace) searchResult(f *api.Function, ret int64, k resultKey) string {
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
func (s *logSink) apiLine(ev *traces.Event, wanted bool) (done bool) {
	isCall := ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn
	a := s.api
	if a == nil || !a.shown {
		return isCall
	}
	f := a.current
	if ev.Kind == traces.KindCall && f != nil {
		f.Note = api.AppendCall(f.Note[:0], f, ev, &a.tracker.Names, &a.style)
		if wanted {
			f.Mark |= markWanted
		}
		if !a.libs.Has(f.Module.Library) && (f.Module.Library != api.Unknown || f.Function != nil) {
			f.Mark |= markHidden
		}
	}
	for _, e := range a.tracker.Ended() {
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
func (s *logSink) openCalls(f *api.Frame) int {
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
func (s *logSink) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	opened := f.Mark&markOpened != 0
	if f.Mark&markHidden != 0 || !opened && f.Mark&markWanted == 0 {
		return
	}
	at := f.Start
	a := s.api
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
func (s *logSink) callLine(f *api.Frame, at int64, text []byte, indent int) {
	s.opts.Indent = indent
	ev := traces.Event{PID: f.PID, TID: f.TID, Time: at, FD: -1}
	s.buf = s.decoder.AppendText(s.buf[:0], &ev, text, s.opts)
	s.opts.Indent = 0
	_, err := s.lines.Write(s.buf)
	s.errs.report(err)
}

// apiReport returns what was counted of library calls, nil where there were none.
func (s *logSink) apiReport() *api.Report {
	if s.api == nil || s.api.summary == nil {
		return nil
	}
	if r := s.api.summary.Report(); r.Calls > 0 {
		return r
	}
	return nil
}

// traceEnv makes the sink gather which environment variables were asked for.
func (s *logSink) traceEnv() { s.traceAPI().environ = api.NewEnvironment(false) }

// variables returns the environment variables that were asked for.
func (s *logSink) variables() []api.Variable {
	if s.api == nil || s.api.environ == nil {
		return nil
	}
	return s.api.environ.Variables()
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

// withAPI adds the library calls, if there were any, to a summary for JSON.
func (s *logSink) withAPI(r *ioctl.Report) any {
	var place *ranks.Place
	if s.place.Rank != ranks.Unknown {
		place = &s.place
	}
	return summaryJSON{r, s.verdict(r), s.apiReport(), s.observer.found.json(), s.observer.sampled, s.variables(), place}
}

// writeEnv draws the table of environment variables.
func (s *logSink) writeEnv(w io.Writer) error {
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
		rows = append(rows, []string{v.Name, value, count(v.Reads), strings.Join(v.By, ", "), meaning})
	}
	return new(layout).write(w, []table{{"Environment variables that were asked for", []string{"name", "value", ">reads", "by", "meaning"}, rows, 0}})
}

// writeAPI draws the table of library calls, if there were any.
func (s *logSink) writeAPI(w io.Writer, l *layout) error {
	r := s.apiReport()
	if r == nil {
		return nil
	}
	var rows [][]string
	for _, c := range r.Functions {
		rows = append(rows, []string{
			count(c.Calls), count(c.Failed), duration(c.Total), duration(c.Self), count(c.Ioctls), duration(c.IoctlTime), c.Library, c.Name,
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
		r.Calls, orZero(duration(r.Time)), r.Failed, unfinished, r.Ioctls, orZero(duration(r.IoctlTime)))
	return err
}

// orZero is a duration in a sentence, where zero is not left out.
func orZero(s string) string {
	if s == "" {
		return "0 s"
	}
	return s
}
