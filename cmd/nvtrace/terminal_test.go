package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// evilText does to a terminal what text can, begins a line that looks like one of
// nvtrace's, and ends the string that it is in.
const evilText = "e\x1b[2J\x1b[31m\u0085\u009b2J\u202e\u2066\u200b\ufeff\x9b2J\r\nFORGED: all is well\x07\x00\"<"

// evilRecording writes what a stranger may: each text of a recording that has all
// kinds of events holds evilText.
func evilRecording(t *testing.T, source string) string {
	t.Helper()
	r, err := traces.Open("../../traces/corpus/" + source)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := r.Header
	h.Tool, h.Arch, h.Kernel, h.Argv = h.Tool+evilText, h.Arch+evilText, h.Kernel+evilText, []string{evilText, evilText}
	name := filepath.Join(t.TempDir(), "evil.jsonl")
	w, err := clitest.CreateRecording(name, &h)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := cli.Each(r, func(string, ...any) {}, func(ev *traces.Event) {
		if ev.Kind == traces.KindEnd {
			return
		}
		for _, s := range []*string{&ev.Name, &ev.Path, &ev.Text} {
			if *s != "" {
				*s += evilText
			}
		}
		for i := range ev.Argv {
			ev.Argv[i] += evilText
		}
		if n++; n%7 == 0 && ev.Dev != "" { // the others are still decoded
			ev.Dev += evilText
		}
		w.Write(ev)
		if n == 20 {
			for _, ev := range evilEvents(ev.PID, ev.TID, ev.Time) {
				w.Write(&ev)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

func evilEvents(pid, tid int32, at int64) []traces.Event {
	image := func(hash string) *traces.Image {
		return &traces.Image{SHA256: hash, Size: 100, Format: "fatbin" + evilText, File: "/x" + evilText, Origin: evilText, Replaced: evilText}
	}
	var list []traces.Event
	for _, ev := range []traces.Event{
		{Kind: traces.KindExec, Path: evilText, Argv: []string{evilText, evilText}},
		{Kind: traces.KindOpen, Path: "/dev/nvidia0" + evilText, Ret: -2},
		{Kind: traces.KindOpen, Path: "/dev/nvidia0" + evilText, Dev: evilText, Ret: 9},
		{Kind: traces.KindIoctl, Dev: evilText, Args: [6]uint64{9, 0x46}, Ret: -22},
		{Kind: traces.KindMmap, Dev: evilText, Args: [6]uint64{0, 4096, 3, 1, 9}, Ret: 0x700000000000},
		{Kind: traces.KindCall, Name: "cuInit" + evilText, Path: "/lib/libcuda.so.1" + evilText},
		{Kind: traces.KindReturn, Name: "cuInit" + evilText, Path: "/lib/libcuda.so.1" + evilText, Ret: 100, Dur: 5},
		{Kind: traces.KindCall, Name: "cuMemAlloc_v2", Path: "/lib/libcuda.so.1" + evilText},
		{Kind: traces.KindReturn, Name: "cuMemAlloc_v2", Path: "/lib/libcuda.so.1" + evilText, Ret: 2},
		{Kind: traces.KindImage, Name: "cuModuleLoad" + evilText, Path: "/lib/x.so" + evilText, Image: image(strings.Repeat("a", 64))},
		{Kind: traces.KindImage, Name: "cuModuleLoad" + evilText, Path: "/lib/x.so" + evilText, Image: image(evilText)},
		{Kind: traces.KindKernel, Name: "kernel" + evilText, Image: image(evilText)},
		{Kind: traces.KindKernel, Name: "kernel" + evilText, Image: image(strings.Repeat("a", 64))},
		{Kind: traces.KindNote, Text: evilText},
		{Kind: traces.KindNote, Text: "modules: captured" + evilText},
		{Kind: traces.KindGap, Text: evilText},
		{Kind: traces.KindLost, Text: evilText, Ret: 3},
		{Kind: traces.KindOther, Name: "future" + evilText, Text: evilText},
	} {
		ev.PID, ev.TID, ev.Time = pid, tid, at
		if ev.Dev == "" {
			ev.FD = -1
		} else {
			ev.FD, ev.File = 9, 77
		}
		list = append(list, ev)
	}
	return list
}

// checkText fails where an output could act on a terminal, or holds a line that the
// recording wrote.
func checkText(t *testing.T, what string, out []byte) {
	t.Helper()
	for i := 0; i < len(out); {
		r, n := utf8.DecodeRune(out[i:])
		if r == utf8.RuneError && n == 1 || escape.Acts(r) && r != '\n' && r != '\t' {
			t.Errorf("%s: %q at %d: …%.60q", what, out[i:i+n], i, out[max(0, i-30):])
			return
		}
		i += n
	}
	for line := range bytes.Lines(out) {
		if bytes.HasPrefix(bytes.TrimLeft(line, " |\t"), []byte("FORGED")) {
			t.Errorf("%s has a line of the recording's: %.100q", what, line)
			return
		}
	}
}

// evilRun runs a command line and checks what it prints, and writes to files.
func evilRun(t *testing.T, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	status := verbs.Main(e, args)
	what := fmt.Sprintf("%q (status %d)", args, status)
	checkText(t, what, out.Bytes())
	checkText(t, what+", stderr", errs.Bytes())
	if out.Len()+errs.Len() == 0 {
		t.Errorf("%s: no output", what)
	}
}

// TestTerminalRecording: no verb lets what stands in a recording act on a terminal.
func TestTerminalRecording(t *testing.T) {
	for _, source := range []string{"vectoradd.nvt", "processes.nvt"} {
		name := evilRecording(t, source)
		dir := t.TempDir()
		out := func(n string) string { return filepath.Join(dir, n) }
		for _, args := range [][]string{
			{"report"},
			{"report", "--json"},
			{"log"},
			{"log", "-z", "-x", "-T", "-s", "-1"},
			{"log", "--api"},
			{"log", "--color=never", "-w", "80"},
			{"export", "--format", "jsonl"},
			{"export", "--format", "raw"},
			{"export", "--format", "raw", "-o", out("raw")},
			{"tree"},
			{"tree", "--all"},
			{"tree", "--json"},
			{"maps"},
			{"maps", "--json"},
			{"failures"},
			{"failures", "--json"},
			{"allowlist"},
			{"allowlist", "--format", "json"},
			{"allowlist", "--format", "seccomp"},
			{"allowlist", "--format", "nvproxy"},
			{"allowlist", "-o", out("list")},
			{"modules"},
			{"modules", "-v"},
			{"modules", "--json"},
			{"modules", "--why", "kernel"},
			{"version"},
			{"report", "--json=" + out("json")},
		} {
			if len(args) == 3 && args[1] == "-o" || len(args) == 5 || strings.HasPrefix(args[len(args)-1], "--json=") {
				var errs bytes.Buffer
				e := &cli.Env{Stdout: &errs, Stderr: &errs, Getenv: func(string) string { return "" }}
				verbs.Main(e, append(args, name))
				checkText(t, fmt.Sprintf("%q", args), errs.Bytes())
				continue
			}
			evilRun(t, append(args, name)...)
		}
		evilRun(t, "diff", name, "../../traces/corpus/rminfo.nvt")
		evilRun(t, "diff", "--json", name, "../../traces/corpus/rminfo.nvt")
		verbs.Main(&cli.Env{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Getenv: func(string) string { return "" }},
			[]string{"allowlist", "-o", out("allow"), "../../traces/corpus/rminfo.nvt"})
		evilRun(t, "check", "--allow", out("allow"), name)
		evilRun(t, "check", "--json", "--allow", out("allow"), name)
		evilRun(t, "check", "--allow", out("list"), "../../traces/corpus/rminfo.nvt")
		files, err := os.ReadDir(dir)
		if err != nil || len(files) < 4 {
			t.Errorf("%d files, %v", len(files), err)
		}
		for _, f := range files {
			b, err := os.ReadFile(out(f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			checkText(t, "the file "+f.Name(), b)
		}
	}
}

// TestTerminalColours: the colours of lines stay, and only they.
func TestTerminalColours(t *testing.T) {
	var out, errs bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	verbs.Main(e, []string{"log", "--color=always", evilRecording(t, "vectoradd.nvt")})
	text := out.String()
	if !strings.Contains(text, "\x1b[1m") {
		t.Error("there are no colours")
	}
	for _, seq := range []string{"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[33m"} {
		text = strings.ReplaceAll(text, seq, "")
	}
	checkText(t, "log --color=always", []byte(text))
	if strings.Contains(out.String(), "\x1b[31m\\u0085") || strings.Contains(out.String(), "\x1b[31m\\xc2") {
		t.Error("a text of the recording's is coloured")
	}
}

// evilFile copies a file with a name in it replaced by an evil one of the same length.
func evilFile(t *testing.T, source, name, evil string) string {
	t.Helper()
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if len(evil) > len(name) || !bytes.Contains(b, []byte(name)) {
		t.Fatalf("%q can't take the place of %q in %s", evil, name, source)
	}
	evil += strings.Repeat("x", len(name)-len(evil))
	file := filepath.Join(t.TempDir(), filepath.Base(source))
	if err := os.WriteFile(file, bytes.ReplaceAll(b, []byte(name), []byte(evil)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTerminalFiles: nor do verbs that read objects, images and PTX.
func TestTerminalFiles(t *testing.T) {
	const evil = "\x1b[2J\u009b\nFORGED"
	count := "../../examples/probes/count.bpf.o"
	ptx := filepath.Join(t.TempDir(), "evil.ptx")
	text := ".version 7.0\n.target sm_80\n.address_size 64\n// \x1b[2J \u009b2J\r\n.visible .entry k() { \x1b[2J\u202e ; ret; }\n"
	if err := os.WriteFile(ptx, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	evilRun(t, "ptx", "check", ptx)
	evilRun(t, "ptx", "sites", ptx)
	evilRun(t, "attach", "--dry-run", count, ptx)
	evilRun(t, "attach", ptx)
	for _, evil := range []string{"\x1b[2J", "\u009b2J", "\u202e", "\nFORGED"} {
		for _, name := range []string{"threads", "cuda.entry/*", "count_threads", "cuda.entry"} {
			b, err := os.ReadFile(count)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(b, []byte(name)) && len(evil) <= len(name) {
				evilRun(t, "attach", evilFile(t, count, name, evil))
				evilRun(t, "attach", "--json", evilFile(t, count, name, evil))
			}
		}
	}
	for _, file := range []string{"kernels.13.0.sm_90a.cubin", "kernels.12.4.fatbin", "libtwo.13.0.so", "libtwo.13.0.a"} {
		source := "../../fatbin/testdata/" + file
		evilRun(t, "fatbin", "ls", "-k", source)
		b, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"_ZN6shapes6reduce", "kernels.cu", "two.cu", "one.cu", "two.o"} {
			if e := evil[:min(len(evil), len(name))]; bytes.Contains(b, []byte(name)) {
				bad := evilFile(t, source, name, e)
				evilRun(t, "fatbin", "ls", "-k", bad)
				evilRun(t, "fatbin", "ls", "--json", bad)
				evilRun(t, "fatbin", "extract", "--out", t.TempDir(), bad)
				evilRun(t, "attach", "--dry-run", count, bad)
			}
		}
	}
}
