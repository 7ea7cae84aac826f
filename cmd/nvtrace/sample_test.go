package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/live"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/traces"
)

// runWords runs a command line in this process.
func runWords(t *testing.T, words ...string) (text, errs string, status int) {
	t.Helper()
	var stdout, stderr strings.Builder
	status = verbs.Main(&cli.Env{Stdout: &stdout, Stderr: &stderr, Getenv: os.Getenv}, words)
	return stdout.String(), stderr.String(), status
}

// sampledRecording writes what nvtrace sample may have found, and returns the file's name.
func sampledRecording(t *testing.T, by traces.Witness) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.nvt")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := traces.NewFileWriter(f, &traces.Header{Schema: traces.SchemaVersion, Start: 1e18, Argv: []string{"train"}, PID: 7, API: "none"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(&traces.Event{Kind: traces.KindExec, Flags: traces.FlagAttached, PID: 7, TID: 7, FD: -1, Path: "/bin/train", Argv: []string{"train"}})
	work := func(kernel string, channel int, start, dur int64, subject uint64, detail string) {
		ev := traces.Event{PID: 7, TID: 7, FD: -1, Time: start + dur, Data: detail}
		ev.SetWork(&traces.Work{By: by, Kernel: kernel, Device: 1, Stream: traces.ChannelStream(1, channel), Start: start, Dur: dur, Margin: 40, EndMargin: 700, Subject: subject})
		w.Write(&ev)
	}
	for i := range int64(20) {
		work("_Z4kernv", 3, 1e6*i, 400_000, 0x7f00, `{"grid":[7,1,1],"block":[32,1,1],"named":"memory","end":"next"}`)
	}
	work("program 0x7f80", 3, 30e6, 1e6, 0x7f80, `{"grid":[1,1,1],"block":[1,1,1],"end":"seen"}`)
	work("", 12, 5e6, 2e6, 4096, `{"end":"stamped"}`)
	if by == traces.ByChannel {
		miss := traces.Event{PID: 7, TID: 7, FD: -1, Time: 31e6, Data: `{"grid":[7,1,1],"block":[32,1,1],"named":"memory"}`}
		miss.SetMiss(&traces.Miss{Kernel: "_Z4kernv", Device: 1, Stream: traces.ChannelStream(1, 3), After: 21e6, Before: 29e6, Subject: 0x7f00})
		w.Write(&miss)
	}
	s := &traces.Sampled{
		Wall: 31e6, Looks: 1000,
		Devices:  []traces.SampledDevice{{Device: 1, Busy: 10e6, BusyError: 31e4, ClockMargin: 900}},
		Channels: []traces.SampledChannel{{Device: 1, Channel: 3, Done: 25, Seen: 21, Unread: 1}, {Device: 1, Channel: 12, Copies: true, Done: 1, Seen: 1}},
		Works: []traces.SampledWork{
			{Device: 1, Channel: 3, Name: "_Z4kernv", Kernel: true, Seen: 20, Missed: 3, Time: 8e6, Max: 4e5, Share: .3, Error: .01},
			{Device: 1, Channel: 12, Name: "copy", Seen: 1, Time: 2e6, Max: 2e6, Share: .06, Error: .001},
		},
	}
	if by == traces.ByLook {
		s.Every = 1e7
		s.Works[0] = traces.SampledWork{Device: 1, Channel: 3, Name: "_Z4kernv", Kernel: true, Looks: 20, Time: 8e6, Share: .3, Error: .1}
	}
	ev := traces.Event{PID: 7, TID: 7, FD: -1, Time: 31e6}
	ev.SetSampled(s)
	w.Write(&ev)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSampledViews reads recordings of nvtrace sample by all that reads recordings.
func TestSampledViews(t *testing.T) {
	for _, by := range []traces.Witness{traces.ByChannel, traces.ByLook} {
		file := sampledRecording(t, by)
		out := func(words ...string) string {
			t.Helper()
			text, errs, status := runWords(t, words...)
			if status != cli.ExitOK {
				t.Fatalf("%q: status %d, %s", words, status, errs)
			}
			return text
		}
		want := func(what, text string, list ...string) {
			t.Helper()
			for _, w := range list {
				if !strings.Contains(text, w) {
					t.Errorf("%v: %s has no %q:\n%s", by, what, w, text)
				}
			}
		}
		report := []string{"Process 7, looked at without pause: 1,000 looks", "GPU 1 busy 32.3 % ± 1.0 %", "26 submissions done, of 84.6 % the time was seen, 1 were not read", "missed", "kern()", "copy"}
		if by == traces.ByLook {
			report = []string{"Process 7, looked at each 10ms", "GPU 1 busy 32.3 %", "looks", "kern()"}
		}
		want("report", out("report", file), report...)
		want("report --json", out("report", "--json", file), `"sampled"`, `"clock_margin": 900`, `"device": 1`)
		want("log", out("log", file), "on channel 3 of GPU 1", "GPU: copy from", "--- looked at from outside: 1000 looks in 31ms")
		want("export --format jsonl", out("export", "--format", "jsonl", file), `"named":"memory"`, `"end":"stamped"`, `"looks":1000`)
		dir := t.TempDir()
		profile := filepath.Join(dir, "p.pb.gz")
		out("export", "--format", "pprof", "-o", profile, file)
		text, err := exec.Command("go", "tool", "pprof", "-sample_index=gpu", "-top", "-unit=ms", profile).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		want("pprof", string(text), "8ms 72.73%  kern", "2ms 18.18%  copy")
		trace := filepath.Join(dir, "p.perfetto")
		out("export", "--format", "perfetto", "-o", trace, file)
		b, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		want("perfetto", string(b), "GPU 1, channel 3", "GPU 1, channel 12", "kern", "program 0x7f80", "name from")
		out("export", "--format", "parquet", "-o", filepath.Join(dir, "tables"), file)
		page := filepath.Join(dir, "page.html")
		out("report", "--html", page, file)
	}
}

// TestTrackerViews reads works that are joined to their calls: all is as by events, and says whence it is.
func TestTrackerViews(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.nvt")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := traces.NewFileWriter(f, &traces.Header{Schema: traces.SchemaVersion, Start: 1e18, Argv: []string{"train"}, PID: 7, API: "driver"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, FD: -1, Path: "/bin/train", Argv: []string{"train"}})
	const lib = "/lib/libcuda.so.1"
	for i := range int64(20) {
		begin := 1e6 * i
		w.Write(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 8, FD: -1, Name: "cuLaunchKernel", Path: lib, Time: begin, Args: [6]uint64{0xf1}})
		w.Write(&traces.Event{Kind: traces.KindReturn, PID: 7, TID: 8, FD: -1, Name: "cuLaunchKernel", Path: lib, Time: begin, Dur: 5_000})
		ev := traces.Event{PID: 7, TID: 8, FD: -1, Time: begin + 900_000, Name: "cuLaunchKernel", Path: lib, Data: `{"grid":[7,1,1],"block":[32,1,1],"named":"launch","end":"next"}`}
		want := traces.Work{By: traces.ByTracker, Call: begin, Device: 1, Stream: 0x77, Start: begin + 9_000, Dur: 400_000, Margin: 40, EndMargin: 700, Subject: 0xf1}
		ev.SetWork(&want)
		if got := ev.Work(); got != want {
			t.Fatalf("%+v is written, %+v read", want, got)
		}
		w.Write(&ev)
	}
	miss := traces.Event{PID: 7, TID: 8, FD: -1, Time: 21e6, Name: "cuLaunchKernel", Path: lib, Data: `{"grid":[7,1,1],"block":[32,1,1],"named":"launch"}`}
	want := traces.Miss{Called: true, Call: 19e6, Device: 1, Stream: 0x77, After: 19_100_000, Before: 20_300_000, Subject: 0xf1}
	miss.SetMiss(&want)
	if got := miss.Miss(); got != want {
		t.Fatalf("%+v is written, %+v read", want, got)
	}
	w.Write(&miss)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(dir, "p.perfetto")
	for _, tt := range []struct {
		words []string
		want  []string
	}{
		{[]string{"report", file}, []string{"20 kernels and copies on 1 stream of GPU 1", "     20  8.00 ms  400 µs", "while the thread with its next work was"}},
		{[]string{"report", "--json", file}, []string{`"by": "tracker"`, `"device": 1`}},
		{[]string{"log", "--api", file}, []string{"--- GPU: cuLaunchKernel from 0.000009 s on, for 400µs, on stream 0x77, by the channel ---"}},
		{[]string{"log", file}, []string{"--- GPU: cuLaunchKernel at a time that was not seen, between 0.019100 and 0.020300 s, on stream 0x77 ---"}},
		{[]string{"export", "--format", "jsonl", file}, []string{`"missed":{"call":19000000,"after":19100000,"before":20300000,"stream":"0x77","subject":"0xf1","device":1,"named":"launch"}`}},
		{[]string{"export", "--format", "jsonl", file}, []string{`"device":1,"end_margin":700,"named":"launch","end":"next"`}},
		{[]string{"export", "--format", "parquet", "-o", filepath.Join(dir, "tables"), file}, nil},
		{[]string{"export", "--format", "perfetto", "-o", trace, file}, nil},
	} {
		text, errs, status := runWords(t, tt.words...)
		if status != cli.ExitOK {
			t.Fatalf("%q: status %d, %s", tt.words, status, errs)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q has no %q:\n%s", tt.words, want, text)
			}
		}
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GPU, stream 0x77", "time not seen: cuLaunchKernel", "before_ns", "times from", "after the call began, ns", "end may be off by, ns"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the timeline has no %q", want)
		}
	}
}

// TestSampleWords tries command lines of nvtrace sample.
func TestSampleWords(t *testing.T) {
	for _, tt := range []struct {
		words  string
		status int
		want   string
	}{
		{"sample", cli.ExitUsage, "sample looks at processes that run, or at a command"},
		{"sample x", cli.ExitUsage, `sample wants process ids, and "x" is none`},
		{"sample -p 1 -- true", cli.ExitUsage, "exclude each other"},
		{"sample --every -1s 1", cli.ExitUsage, "want a time of 0 or more"},
		{"sample -- no-such-program", cli.ExitNotFound, "not found"},
		{"sample -q -- sh -c exit+3", 3, ""},
		{"sample -- true", cli.ExitOK, "no process of the command had a GPU open"},
		{"sample 4194305", cli.ExitFailed, "no process 4194305"},
	} {
		words := strings.Fields(tt.words)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "+", " ")
		}
		_, errs, status := runWords(t, words...)
		if status != tt.status || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: status %d, want %d; %q, want %q", tt.words, status, tt.status, errs, tt.want)
		}
	}
}

// TestSampleProcess looks at a process without a GPU, until it ends.
func TestSampleProcess(t *testing.T) {
	for _, every := range []string{"0", "5ms"} {
		cmd := exec.Command("sleep", "0.3")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = cmd.Wait() }()
		text, errs, status := runWords(t, "sample", "--every", every, strconv.Itoa(cmd.Process.Pid))
		if status != cli.ExitOK || !strings.Contains(text, "No channel of a GPU was in use.") {
			t.Errorf("every %s: status %d: %s%s", every, status, text, errs)
		}
	}
}

// TestOnlyPIDs tells when top can look from outside.
func TestOnlyPIDs(t *testing.T) {
	for words, want := range map[string]int{"-p 5": 1, "-p=5,6": 2, "--p 5": 1, "5 -p 6": 2, "": 0, "-p 5 --api": 0, "-p x": 0, "--gpu-times=events -p 5": 0, "-p": 0} {
		pids, ok := live.OnlyPIDs(strings.Fields(words))
		if ok != (want > 0) || ok && len(pids) != want {
			t.Errorf("%q: %v, %v; want %d processes", words, pids, ok, want)
		}
	}
}
