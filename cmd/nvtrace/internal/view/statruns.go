package view

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// StatRuns are the counters of several runs of a command.
type StatRuns struct {
	Command  string         `json:"command"`
	Runs     int            `json:"runs"`  // that were counted
	Asked    int            `json:"asked"` // how many there were to be
	Seconds  Spread         `json:"seconds"`
	Counters []StatOverRuns `json:"counters"`
}

// StatOverRuns is a counter over runs.
type StatOverRuns struct {
	Name  string  `json:"name"`
	Value *Spread `json:"value"` // nil: not recorded
}

// Spread is a mean, and how far it may be off: its standard error.
type Spread struct {
	Mean  float64 `json:"mean"`
	Error float64 `json:"standard_error"`
	Least float64 `json:"min"`
	Most  float64 `json:"max"`
}

// OverRuns sums runs up, of as many as were asked for. A counter that one of them lacks was 0 there.
func OverRuns(runs []*Stat, asked int) *StatRuns {
	r := &StatRuns{Command: runs[0].Command, Runs: len(runs), Asked: asked}
	seconds := make([]float64, len(runs))
	values, names, recorded := make(map[string][]float64), []string(nil), make(map[string]bool)
	for i, run := range runs {
		seconds[i] = run.Seconds
		for _, c := range run.Counters {
			if values[c.Name] == nil {
				values[c.Name] = make([]float64, len(runs))
				names = append(names, c.Name)
			}
			if c.Value != nil {
				values[c.Name][i], recorded[c.Name] = float64(*c.Value), true
			}
		}
	}
	r.Seconds = *spread(seconds)
	for _, name := range names {
		c := StatOverRuns{Name: name}
		if recorded[name] {
			c.Value = spread(values[name])
		}
		r.Counters = append(r.Counters, c)
	}
	return r
}

// Nothing reports whether nothing was counted in any run.
func (r *StatRuns) Nothing() bool {
	for _, c := range r.Counters {
		if c.Value != nil && c.Value.Most > 0 {
			return false
		}
	}
	return true
}

func spread(values []float64) *Spread {
	s := &Spread{Least: values[0], Most: values[0]}
	n := float64(len(values))
	for _, v := range values {
		s.Mean += v / n
		s.Least, s.Most = min(s.Least, v), max(s.Most, v)
	}
	for _, v := range values {
		s.Error += (v - s.Mean) * (v - s.Mean)
	}
	if n > 1 {
		s.Error = math.Sqrt(s.Error / (n - 1) / n)
	}
	return s
}

// percent is how far off the mean may be, as a part of it.
func (s *Spread) percent() string {
	if s.Mean == 0 {
		return ""
	}
	return fmt.Sprintf("( +- %.2f %% )", 100*s.Error/s.Mean)
}

// Text prints them in the form of perf stat -r.
func (r *StatRuns) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n GPU counter stats for '%s' (%d runs):\n\n", cli.Printable(r.Command), r.Runs)
	for _, c := range r.Counters {
		value, off := "<not recorded>", ""
		if c.Value != nil {
			value, off = cli.Grouped(uint64(math.Round(c.Value.Mean))), c.Value.percent()
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("%18s      %-36s %s", value, c.Name, off), " ") + "\n")
	}
	fmt.Fprintf(&b, "\n%18.6f seconds elapsed                      %s\n\n", r.Seconds.Mean, r.Seconds.percent())
	b.WriteString(" Means of the runs; behind them the standard error of the mean.\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// CSV prints a line for each counter.
func (r *StatRuns) CSV(w io.Writer) error {
	var b strings.Builder
	b.WriteString("counter,mean,standard_error,min,max\n")
	line := func(name string, s *Spread) {
		if s == nil {
			fmt.Fprintf(&b, "%s,not recorded,,,\n", name)
			return
		}
		b.WriteString(name)
		for _, v := range []float64{s.Mean, s.Error, s.Least, s.Most} {
			b.WriteString("," + strconv.FormatFloat(v, 'f', -1, 64))
		}
		b.WriteString("\n")
	}
	for _, c := range r.Counters {
		line(c.Name, c.Value)
	}
	line("seconds", &r.Seconds)
	fmt.Fprintf(&b, "runs,%d,,,\n", r.Runs)
	_, err := io.WriteString(w, b.String())
	return err
}
