package view

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/traces/escape"
)

// StatFormat is how counters are printed.
type StatFormat struct {
	JSON cli.OptString
	CSV  bool
}

// StatOf prints the counters of a recording, or what it says recording would cost.
func StatOf(e *cli.Env, rf *cli.ReadFlags, f *StatFormat, forecast bool, name string) int {
	r, d, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	sink := NewSink(d, e)
	sink.Summarise(&r.Header)
	sink.Count()
	damage := e.Each(r, name, e.Notice, sink.Event)
	sink.Finish()
	if forecast {
		if h := sink.held(); !h.each() && !(h.any() && h.counted) {
			return e.Fail(cli.ExitFailed, "%s: %s; a forecast needs the number of all: nvtrace stat --forecast counts them while a program runs", name, h.silent())
		}
		s := sink.Forecast(r.Header.Argv)
		return e.Answer(&f.JSON, damage, s, func() error { return s.Text(e.Stdout) })
	}
	s := sink.Stat(r.Header.Argv)
	return e.Answer(&f.JSON, damage, s, func() error {
		if f.CSV {
			return s.CSV(e.Stdout, true)
		}
		return s.Text(e.Stdout)
	})
}

// Stat is what a run did, in numbers.
type Stat struct {
	Command  string        `json:"command"`
	Seconds  float64       `json:"seconds"` // since the start
	Counters []StatCounter `json:"counters"`
}

// StatCounter is one of the numbers.
type StatCounter struct {
	Name  string  `json:"name"`
	Value *uint64 `json:"value"`             // nil: not recorded
	Bytes *uint64 `json:"bytes,omitempty"`   // that were copied, as far as it is known
	Busy  *int64  `json:"busy_ns,omitempty"` // in which at least one thread was in such a call
	more  string  // for people
}

func (s *Totals) stat(m *Meter, argv []string) *Stat {
	v := s.outline(s.Summary.Report())
	c := &m.All
	result := &Stat{Command: v.program, Seconds: float64(v.Wall) / 1e9}
	if len(argv) > 0 && !v.attached {
		result.Command = strings.Join(argv, " ")
	}
	add := func(n uint64, what string) *StatCounter {
		result.Counters = append(result.Counters, StatCounter{Name: what, Value: &n})
		return &result.Counters[len(result.Counters)-1]
	}
	share := func(row *StatCounter, ns int64) {
		if row.Value == nil {
			return
		}
		if row.Busy = &ns; ns > 0 {
			row.more += v.share(ns)
		}
	}
	library := func(n uint64, what string) *StatCounter {
		row := add(n, what)
		if !s.held().each() {
			row.Value, row.more = nil, "--api records it"
		}
		return row
	}
	copies := func(k Copies, what string, spent *busy) {
		row := library(k.N, what)
		if k.Bytes > 0 { // else of rows, of which it is not known
			row.Bytes, row.more = &k.Bytes, cli.Grouped(k.Bytes)+" bytes, "
		}
		if k.N > 0 {
			share(row, spent.Time())
		}
	}
	t := &m.Spent
	if row := library(c.Launches, "kernel launches"); result.Seconds > 0 && c.Launches > 0 && row.Value != nil {
		row.more = fmt.Sprintf("%.1f /s", float64(c.Launches)/result.Seconds)
	}
	if c.Graphs > 0 {
		if row := add(c.Graphs, "graph launches"); result.Seconds > 0 {
			row.more = fmt.Sprintf("%.1f /s", float64(c.Graphs)/result.Seconds)
		}
	}
	copies(c.ToGPU, "copies to the GPU", &t.toGPU)
	copies(c.FromGPU, "copies from the GPU", &t.fromGPU)
	copies(c.onGPU, "other copies", &t.onGPU)
	library(c.allocs, "allocations")
	library(c.frees, "frees")
	share(library(c.syncs, "waits for the GPU"), t.Syncs.Time())
	share(library(c.loads, "loads of code"), t.loads.Time())
	of := "driver"
	if m.runtime && !m.driver {
		of = "runtime"
	}
	share(library(c.Calls, "calls of the "+of+"'s API"), s.gathered.library.Time())
	share(add(c.Ioctls, "device calls"), v.Driver)
	failed := "failed calls"
	if !s.held().each() {
		failed = "failed device calls"
	}
	add(c.Failed, failed)
	if c.unended > 0 {
		add(c.unended, "calls whose return was not recorded").more = "only launches are counted above"
	}
	if _, peak := s.memory(0); peak > 0 {
		add(peak, "bytes of GPU memory").more = cli.SizeText(peak) + " at most"
	}
	return result
}

// Text prints them in the form of perf stat.
func (s *Stat) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n GPU counter stats for '%s':\n\n", cli.Printable(s.Command))
	for i := range s.Counters {
		s.Counters[i].write(&b)
	}
	fmt.Fprintf(&b, "\n%18.6f seconds elapsed\n\n", s.Seconds)
	b.WriteString(" Times of calls are those in which at least one thread was in such a call.\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *StatCounter) write(b *strings.Builder) {
	value := "<not recorded>"
	if c.Value != nil {
		value = cli.Grouped(*c.Value)
	}
	line := fmt.Sprintf("%18s      %-26s", value, c.Name)
	if c.more != "" {
		line += " #  " + c.more
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// CSV prints a line for each counter, below a line that names the columns.
func (s *Stat) CSV(w io.Writer, head bool) error {
	out := csv.NewWriter(w)
	if head {
		_ = out.Write([]string{"seconds", "counter", "value", "bytes", "busy_ns"}) // the error stays
	}
	for _, c := range s.Counters {
		row := []string{strconv.FormatFloat(s.Seconds, 'f', 6, 64), c.Name, "not recorded", "", ""}
		if c.Value != nil {
			row[2] = strconv.FormatUint(*c.Value, 10)
		}
		if c.Bytes != nil {
			row[3] = strconv.FormatUint(*c.Bytes, 10)
		}
		if c.Busy != nil {
			row[4] = strconv.FormatInt(*c.Busy, 10)
		}
		_ = out.Write(row)
	}
	out.Flush()
	return out.Error()
}

// Since returns what was counted since an earlier time; those that count no events are as they are now.
func (s *Stat) Since(before *Stat) *Stat {
	result := &Stat{Command: s.Command, Seconds: s.Seconds}
	for _, c := range s.Counters {
		for i := range before.Counters {
			if o := &before.Counters[i]; o.Name == c.Name && o.Value != nil && c.Value != nil && !strings.HasPrefix(c.Name, "bytes") {
				c.Value, c.Bytes, c.Busy, c.more = less(c.Value, o.Value), less(c.Bytes, o.Bytes), less(c.Busy, o.Busy), ""
			}
		}
		result.Counters = append(result.Counters, c)
	}
	return result
}

func less[T uint64 | int64](a, b *T) *T {
	if a == nil || b == nil {
		return a
	}
	d := *a - *b
	return &d
}

// A StatLines prints counters again and again: what was counted in each interval.
type StatLines struct {
	sink   *Sink
	argv   []string
	w      io.Writer
	format StatFormat
	began  time.Time
	before *Stat
	errs   Once
}

// NewStatLines makes one for a run.
func NewStatLines(e *cli.Env, s *Sink, argv []string, f StatFormat) *StatLines {
	return &StatLines{sink: s, argv: argv, w: e.Stderr, format: f, began: time.Now(), errs: Once{E: e, What: "stat: ", Live: true}}
}

// Print prints the counters of an interval.
func (l *StatLines) Print() {
	now := l.sink.Stat(l.argv)
	now.Seconds = time.Since(l.began).Seconds() // an event may be long ago
	shown, first := now, l.before == nil
	if !first {
		shown = now.Since(l.before)
	}
	l.before = now
	switch {
	case l.format.JSON.Given:
		b, err := json.Marshal(shown)
		if err == nil {
			_, err = l.w.Write(append(escape.Lines(b), '\n'))
		}
		l.errs.Report(err)
	case l.format.CSV:
		l.errs.Report(shown.CSV(l.w, first))
	default:
		l.errs.Report(shown.lines(l.w, first))
	}
}

// lines prints those that are not zero, as perf stat -I does.
func (s *Stat) lines(w io.Writer, first bool) error {
	var b strings.Builder
	if first {
		b.WriteString("#     seconds              count  counter\n")
	}
	at, some := fmt.Sprintf("%13.6f", s.Seconds), false
	for _, c := range s.Counters {
		if c.Value != nil && *c.Value > 0 {
			fmt.Fprintf(&b, "%s %18s  %s\n", at, cli.Grouped(*c.Value), c.Name)
			some = true
		}
	}
	if !some {
		fmt.Fprintf(&b, "%s %18s  (nothing happened)\n", at, "0")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ReadStat reads what was printed as JSON.
func ReadStat(b []byte) (*Stat, error) {
	s := new(Stat)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, err
	}
	if len(s.Counters) == 0 {
		return nil, errors.New("there are no counters")
	}
	return s, nil
}
