package view

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// logLine takes a line of a log apart: thread, indent, text.
var logLine = regexp.MustCompile(`^\[ *\d+ +(\d+)\] +[\d.]+ ( *)(.*)$`)

// TestNestedLines prints random programs of several threads, with filters and
// selections, and holds each thread's lines against the rules: what is opened is
// closed, in order, and everything is indented by what it is in.
func TestNestedLines(t *testing.T) {
	libs := []struct{ file, name string }{
		{"libcuda.so.1", "cuInit"}, {"libcuda.so.1", "cuCtxSynchronize"}, {"libcudart.so.12", "cudaMalloc"}, {"libcublas.so.12", "cublasCreate_v2"}, {"x.so", "other"},
	}
	selections := []string{"all", "driver", "runtime,cublas"}
	filters := [][]string{nil, {"ioctl=*"}, {"api=cu*"}, {"tid=2"}}
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 7))
		filter, err := ioctl.ParseFilter(filters[seed%4]...)
		if err != nil {
			t.Fatal(err)
		}
		selection, err := api.ParseSelection(selections[seed%3])
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
		sink := NewSink(ioctl.NewDecoder(nil), e)
		sink.Filter, sink.Notice = filter, func(string) {}
		if err := sink.PrintTo(e, &out, nil, &LineFlags{color: "never"}); err != nil {
			t.Fatal(err)
		}
		sink.ShowAPI(selection)
		for _, ev := range randomCalls(r, libs) {
			sink.Event(ev)
		}
		sink.Finish()
		sink.Idle()
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if err := checkNesting(lines, selections[seed%3]); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, &out)
		}
		if seed%12 == 0 && len(lines) < 50 {
			t.Errorf("seed %d: only %d lines", seed, len(lines))
		}
	}
}

// randomCalls makes calls, returns, longjmps, ioctls and ends of threads.
func randomCalls(r *rand.Rand, libs []struct{ file, name string }) (events []*traces.Event) {
	type open struct {
		name string
		at   int64
	}
	stacks := map[int32][]open{}
	for now := int64(0); now < 300_000; now += 1000 {
		tid := int32(1 + r.IntN(3))
		ev := &traces.Event{PID: 1, TID: tid, Time: now, FD: -1}
		s := stacks[tid]
		switch n := r.IntN(10); {
		case n < 4 && len(s) < 8:
			l := libs[r.IntN(len(libs))]
			ev.Kind, ev.Path, ev.Name = traces.KindCall, l.file, l.name
			stacks[tid] = append(s, open{l.name, now})
		case n < 7 && len(s) > 0:
			at := len(s) - 1
			if r.IntN(6) == 0 {
				at = r.IntN(len(s))
			}
			ev.Kind, ev.Name, ev.Time, ev.Dur = traces.KindReturn, s[at].name, s[at].at, now-s[at].at
			stacks[tid] = s[:at]
		case n < 9:
			ev.Kind, ev.Dur, ev.Dev, ev.Rdev = traces.KindIoctl, 100, "nvidiactl", 195<<8|255
			ev.Args = [6]uint64{3, 0xc020462a, 0x5000}
		case n == 9 && tid != 1 && r.IntN(5) == 0:
			ev.Kind = traces.KindExit
			stacks[tid] = nil
		default:
			continue
		}
		events = append(events, ev)
	}
	return events
}

// checkNesting holds lines against the rules.
func checkNesting(lines []string, selection string) error {
	depth := map[string]int{}
	for i, line := range lines {
		m := logLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("line %d is no line: %q", i+1, line)
		}
		tid, indent, text := m[1], len(m[2]), m[3]
		if strings.HasPrefix(text, "}") {
			depth[tid]--
		}
		if indent != 2*depth[tid] {
			return fmt.Errorf("line %d is indented by %d, in %d calls: %q", i+1, indent, depth[tid], line)
		}
		if strings.HasSuffix(text, " {") {
			depth[tid]++
		}
		if selection == "driver" && strings.Contains(text, "cudaMalloc") || selection == "runtime,cublas" && strings.Contains(text, "cuInit") {
			return fmt.Errorf("line %d is of a library that was not asked for: %q", i+1, line)
		}
	}
	for tid, n := range depth {
		if n != 0 {
			return fmt.Errorf("thread %s: %d calls are not closed", tid, n)
		}
	}
	return nil
}
