package run

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/telemetry"
	"nvtrace/nvattach/api"
	"nvtrace/ptrace/agent"
	"nvtrace/traces/record"
)

// startFlag is --start-on: a call, or a moment, from which on library calls are recorded.
type startFlag struct {
	text   string
	nvtx   string         // the name of a range or mark; "": none
	step   *regexp.Regexp // of a range or mark; nil: none
	number int            // of the step
	passed int            // ranges that are called step, without a number
	at     time.Time      // zero: none
	every  time.Duration  // its next multiple; 0: none
	file   string         // when it exists; "": none
	signal unix.Signal    // when nvtrace gets it; 0: none
}

// startWords is what --start-on can be.
const startWords = "NVTX:NAME, step:N, cudaProfilerStart, @TIME, /10s, file:NAME or signal:USR1"

// profilerStart is the call that begins a recording by its own name.
const profilerStart = "cudaProfilerStart"

// String implements flag.Value.
func (f *startFlag) String() string { return f.text }

// Set implements flag.Value.
func (f *startFlag) Set(text string) (err error) {
	*f = startFlag{text: text}
	kind, name, named := strings.Cut(text, ":")
	switch {
	case text == profilerStart:
	case strings.HasPrefix(text, "@"):
		f.at, err = parseMoment(text[1:], time.Now())
	case strings.HasPrefix(text, "/"):
		if f.every, err = time.ParseDuration(text[1:]); err == nil && f.every <= 0 {
			err = errors.New("want a time such as /10s")
		}
	case !named || name == "":
		err = errors.New("want " + startWords)
	case kind == "NVTX":
		f.nvtx = name
	case kind == "step":
		if f.number, err = strconv.Atoi(name); err != nil || f.number < 0 {
			return errors.New("want the number of a step: step:550")
		}
		f.step = regexp.MustCompile(fmt.Sprintf(`(?i)(?:step|iter|iteration)[ _#:=-]*0*%d(?:\D|$)`, f.number))
	case kind == "file":
		f.file = name
	case kind == "signal" && (name == "USR1" || name == "SIGUSR1"):
		f.signal = unix.SIGUSR1
	case kind == "signal" && (name == "USR2" || name == "SIGUSR2"):
		f.signal = unix.SIGUSR2
	case kind == "signal":
		err = errors.New("want signal:USR1 or signal:USR2")
	default:
		err = errors.New("want " + startWords)
	}
	return err
}

// parseMoment reads a time of day, of the calendar, or seconds since 1970.
func parseMoment(text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if seconds, ferr := strconv.ParseFloat(text, 64); err != nil && ferr == nil && math.Abs(seconds) < 1<<33 {
		at, err = time.Unix(0, int64(seconds*1e9)), nil
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if clock, cerr := time.Parse(layout, text); err != nil && cerr == nil {
			y, m, d := now.Date()
			at, err = time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), now.Location()), nil
		}
	}
	switch {
	case err != nil:
		return at, errors.New("want @15:04:05, @2026-01-31T15:04:05Z or @ and seconds since 1970")
	case at.Before(now):
		return at, fmt.Errorf("%s has passed", at.Format(time.RFC3339))
	}
	return at, nil
}

func (f *startFlag) given() bool { return f.text != "" }

// call reports whether it is a call that the recording starts with.
func (f *startFlag) call() bool { return f.nvtx != "" || f.step != nil || f.text == profilerStart }

// after returns how long after the beginning of the recording a moment is that is known by then.
func (f *startFlag) after(begin time.Time) time.Duration {
	switch {
	case f.every > 0:
		ns := begin.UnixNano()
		return time.Duration(int64(f.every) - ns%int64(f.every))
	case !f.at.IsZero():
		return max(f.at.Sub(begin), 0)
	}
	return 0
}

// library returns the one that the call is of.
func (f *startFlag) library() api.Library {
	if f.nvtx != "" || f.step != nil {
		return api.NVTX
	}
	return api.Driver // in which that of the runtime ends
}

// is reports whether a call is the one.
func (f *startFlag) is(rec *agent.Record) bool {
	if rec.Hook == nil {
		return false
	}
	if f.nvtx == "" && f.step == nil {
		return rec.Hook.Name == "cuProfilerStart" || rec.Hook.Name == profilerStart
	}
	at := 0 // the argument that is the text
	switch rec.Hook.Name {
	case "nvtxMark", "nvtxRangePush":
	case "nvtxRangeStart":
		at = 1
	default:
		return false
	}
	for i := range rec.Segs {
		if s := &rec.Segs[i]; s.Addr == rec.Args[at] {
			text, _, _ := bytes.Cut(s.In, []byte{0})
			return f.named(text)
		}
	}
	return false
}

// named reports whether a range or mark of that name is the one.
func (f *startFlag) named(text []byte) bool {
	switch {
	case f.nvtx != "":
		return string(text) == f.nvtx
	case telemetry.IsNextStep(text):
		f.passed++ // the first one is step 1
		return f.passed == f.number
	}
	return f.step.Match(text)
}

// filePause is how long a file may be there unseen. Notice of it would not come from other hosts.
const filePause = 20 * time.Millisecond

// begins begins the recording of calls, if the file is there that it waits for. It returns whether
// there is nothing to wait for any more.
func (f *startFlag) begins(r *record.Recorder) bool {
	if f.file == "" {
		return true
	}
	if _, err := os.Stat(f.file); err != nil {
		return false
	}
	r.Begin()
	return true
}

// await begins it when there is the file.
func (f *startFlag) await(r *record.Recorder) {
	for !f.begins(r) {
		time.Sleep(filePause)
	}
}
