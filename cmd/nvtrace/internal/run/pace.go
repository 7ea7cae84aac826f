package run

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/telemetry"
	"nvtrace/traces"
)

// baselineFlag is --baseline=FILE[,PERCENT%]: a recording of a run as it should be, and how much slower another may be.
type baselineFlag struct {
	text, file string
	margin     float64 // 0.1 for 10 %
}

const defaultMargin = 0.1

// String implements flag.Value.
func (f *baselineFlag) String() string { return f.text }

// Set implements flag.Value.
func (f *baselineFlag) Set(text string) error {
	*f = baselineFlag{text: text, file: text, margin: defaultMargin}
	if i := strings.LastIndexByte(text, ','); i >= 0 && strings.HasSuffix(text, "%") {
		percent, err := strconv.ParseFloat(text[i+1:len(text)-1], 64)
		if err != nil || percent <= 0 || math.IsInf(percent, 0) {
			return errors.New("want FILE, or FILE,20% where runs may be so much slower")
		}
		f.file, f.margin = text[:i], percent/100
	}
	if f.file == "" {
		return errors.New("want the name of a recording")
	}
	return nil
}

// check opens the recording, so that one that is missing is told before the program begins.
func (f *baselineFlag) check() error {
	r, err := traces.Open(f.file)
	if err != nil {
		return fmt.Errorf("--baseline: %w", err)
	}
	return r.Close()
}

// read returns the pace of the recording.
func (f *baselineFlag) read() (*pace, error) {
	r, err := traces.Open(f.file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := newPace(r.Header.PID)
	if err := cli.Each(r, func(string, ...any) {}, p.event); err != nil {
		return nil, err
	}
	return p, nil
}

// pace is how fast a program gets on: how long its steps take, and how long it takes itself.
type pace struct {
	pid     int32
	begin   int64
	whole   int64 // 0: it has not ended
	threads map[int32]*steps
}

// steps are those of a thread.
type steps struct {
	last  int64
	times map[int]int // how many took how long, by the logarithm
	n     int
}

// Bounds of what is kept.
const (
	maxPaced = 64 // threads
	finer    = 64 // of the logarithms: times are off by half a percent
	fewSteps = 8  // of fewer no typical time can be told
)

func newPace(pid int32) *pace {
	return &pace{pid: pid, begin: -1, threads: make(map[int32]*steps)}
}

// event takes in what a program does.
func (p *pace) event(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindExec:
		if ev.PID == p.pid && p.begin < 0 {
			p.begin = ev.Time
		}
	case traces.KindExit:
		if ev.PID == p.pid && ev.TID == ev.PID {
			p.whole = ev.Time - max(p.begin, 0)
		}
	case traces.KindCall:
		if text, ok := telemetry.RangeText(ev); ok && telemetry.IsStep(text) {
			p.step(ev.TID, ev.Time)
		}
	}
}

func (p *pace) step(tid int32, at int64) {
	s := p.threads[tid]
	if s == nil {
		if len(p.threads) >= maxPaced {
			return
		}
		s = &steps{times: make(map[int]int)}
		p.threads[tid] = s
	} else if ns := at - s.last; ns > 0 {
		s.times[int(math.Round(math.Log2(float64(ns))*finer))]++
		s.n++
	}
	s.last = at
}

// typical is the median of the steps' times, of the thread that has most; 0: there were too few.
func (p *pace) typical() time.Duration {
	var most *steps
	for _, tid := range slices.Sorted(maps.Keys(p.threads)) {
		if s := p.threads[tid]; most == nil || s.n > most.n {
			most = s
		}
	}
	if most == nil || most.n < fewSteps {
		return 0
	}
	seen := 0
	for _, k := range slices.Sorted(maps.Keys(most.times)) {
		if seen += most.times[k]; 2*seen >= most.n {
			return time.Duration(math.Exp2(float64(k) / finer))
		}
	}
	return 0
}

// slower says by how much a run was slower than the baseline; "": it was not, by more than the margin. compared is false
// where nothing could be compared.
func (f *baselineFlag) slower(base, run *pace) (text string, compared bool) {
	what, was, is := "a step takes", base.typical(), run.typical()
	if was == 0 || is == 0 {
		what, was, is = "the program took", time.Duration(base.whole), time.Duration(run.whole)
	}
	if was <= 0 || is <= 0 {
		return "", false
	}
	if float64(is) <= float64(was)*(1+f.margin) {
		return "", true
	}
	return fmt.Sprintf("%s %s, %.0f %% more than in %s (%s)", what, cli.Duration(int64(is)), 100*(float64(is)/float64(was)-1), f.file, cli.Duration(int64(was))), true
}
