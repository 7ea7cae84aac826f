package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/traces"
	"nvtrace/traces/record"
)

func quietEnv() (e *env, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return &env{stdout: stdout, stderr: stderr, getenv: func(string) string { return "" }}, stdout, stderr
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeText(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// onlyFiles fails if a folder has others than these files.
func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", dir, got, want)
	}
}

func TestWholeFile(t *testing.T) {
	e, _, _ := quietEnv()
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	if err := e.writeFile(name, []byte("one"), modeFile); err != nil || readText(t, name) != "one" {
		t.Fatal(err)
	}
	// What is there stays until the new one is whole, and if that fails.
	f, err := e.createWhole(name, modeFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half"); err != nil {
		t.Fatal(err)
	}
	if got := readText(t, name); got != "one" {
		t.Errorf("%q is there while the new file is written", got)
	}
	broken := errors.New("broken")
	if err := f.finish(broken); !errors.Is(err, broken) {
		t.Error(err)
	}
	if got := readText(t, name); got != "one" {
		t.Errorf("a file that was not finished left %q", got)
	}
	onlyFiles(t, dir, "out")
	// Through a link, which stays; the owner's mode, too.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := e.writeFile(link, []byte("two"), modeFile); err != nil || readText(t, name) != "two" {
		t.Error(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	// What nobody else is to read.
	if err := e.writeFile(name, []byte("three"), modePrivate); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != modePrivate {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	// A link to nothing makes what it names, as the shell's > does.
	if err := errors.Join(os.Remove(name), e.writeFile(link, []byte("four"), modeFile)); err != nil || readText(t, name) != "four" {
		t.Error(err)
	}
	// A pipe is written to, with its one reader.
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		b, _ := os.ReadFile(pipe)
		read <- string(b)
	}()
	if err := e.writeFile(pipe, []byte("five"), modeFile); err != nil {
		t.Error(err)
	}
	if got := <-read; got != "five" {
		t.Errorf("%q came through the pipe", got)
	}
	onlyFiles(t, dir, "out", "pipe")
	if err := e.writeFile(filepath.Join(dir, "no/out"), nil, modeFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
	if err := e.writeFile(dir, nil, modeFile); err == nil {
		t.Error("a folder was written to")
	}
	if err := e.writeFile("/dev/full", []byte("x"), modeFile); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
}

// TestWholeFileNamed: where a file system has no files without names.
func TestWholeFileNamed(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "out")
	for _, failed := range []error{errors.New("broken"), nil} {
		name := besideName(to)
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := &wholeFile{File: f, to: to, named: name}
		if _, err := w.WriteString("text"); err != nil {
			t.Fatal(err)
		}
		if err := w.finish(failed); !errors.Is(err, failed) {
			t.Error(err)
		}
		if failed != nil {
			onlyFiles(t, dir)
		}
	}
	onlyFiles(t, dir, "out")
}

func TestGrownFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "run.nvt")
	writeText(t, name, "old", 0o644)
	first, err := openGrown(name, modePrivate)
	if err != nil {
		t.Fatal(err)
	}
	if got := readText(t, name); got != "old" {
		t.Errorf("%q is there before the program has begun", got)
	}
	if g, err := openGrown(name, modePrivate); !errors.Is(err, errBusy) {
		g.Close()
		t.Errorf("a second run opened the file, too: %v", err)
	}
	if err := first.begin(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Size() != 0 || st.Mode().Perm() != modePrivate {
		t.Errorf("begun: %d bytes, mode %v, %v", st.Size(), st.Mode(), err)
	}
	first.Close()
	// When it has ended, the next may.
	next, err := openGrown(name, modePrivate)
	if err != nil {
		t.Fatal(err)
	}
	next.abandon()
	onlyFiles(t, dir, "run.nvt")
	// What was made for nothing goes.
	other, err := openGrown(filepath.Join(dir, "other"), modeFile)
	if err != nil {
		t.Fatal(err)
	}
	other.abandon()
	onlyFiles(t, dir, "run.nvt")
	// A pipe without a reader does not keep a program waiting.
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err := openGrown(pipe, modeFile); err == nil || !strings.Contains(err.Error(), "nobody reads this pipe") {
		g.Close()
		t.Errorf("a pipe without a reader: %v", err)
	}
}

func TestRefuseInput(t *testing.T) {
	e, _, _ := quietEnv()
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	writeText(t, in, "input", 0o644)
	e.reads(in)
	e.reads(filepath.Join(dir, "missing"))
	e.reads("/dev/null")
	hard, soft := filepath.Join(dir, "hard"), filepath.Join(dir, "soft")
	if err := errors.Join(os.Link(in, hard), os.Symlink("in", soft)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{in, hard, soft, filepath.Join(dir, ".", "in")} {
		if err := e.writeFile(name, []byte("output"), modeFile); err == nil || !strings.Contains(err.Error(), "write to another file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := readText(t, in); got != "input" {
		t.Errorf("the input is %q", got)
	}
	for _, name := range []string{filepath.Join(dir, "missing"), "/dev/null", filepath.Join(dir, "out")} {
		if err := e.writeFile(name, []byte("output"), modeFile); err != nil {
			t.Error(err)
		}
	}
}

// TestVerbsKeepInputs: no verb writes over what it reads.
func TestVerbsKeepInputs(t *testing.T) {
	dir := t.TempDir()
	fresh := func(name string) string {
		to := filepath.Join(dir, name)
		writeText(t, to, readText(t, "../../traces/corpus/rminfo.nvt"), 0o644)
		return to
	}
	for _, tt := range []struct {
		what string
		run  func(e *env, in string) int
	}{
		{"export -o", func(e *env, in string) int {
			return exportVerb(e, []string{"--format", "perfetto", in, "-o", in}, nil)
		}},
		{"export raw -o", func(e *env, in string) int { return exportVerb(e, []string{"--format", "raw", in, "-o", in}, nil) }},
		{"allowlist", func(e *env, in string) int { return allowlistVerb(e, []string{"-o", in, in}, nil) }},
		{"report", func(e *env, in string) int { return reportVerb(e, []string{"--json=" + in, in}, nil) }},
		{"failures", func(e *env, in string) int { return failuresVerb(e, []string{"--json=" + in, in}, nil) }},
		{"tree", func(e *env, in string) int { return treeVerb(e, []string{"--json=" + in, in}, nil) }},
		{"maps", func(e *env, in string) int { return mapsVerb(e, []string{"--json=" + in, in}, nil) }},
		{"modules", func(e *env, in string) int { return modulesVerb(e, []string{"--json=" + in, in}, nil) }},
		{"diff", func(e *env, in string) int {
			return diffVerb(e, []string{"--json=" + in, "../../traces/corpus/rminfo.nvt", in}, nil)
		}},
	} {
		in := fresh(strings.ReplaceAll(tt.what, " ", "_") + ".nvt")
		before := readText(t, in)
		e, _, stderr := quietEnv()
		if status := tt.run(e, in); status != exitFailed || !strings.Contains(stderr.String(), "write to another file") {
			t.Errorf("%s: status %d, %s", tt.what, status, stderr)
		}
		if readText(t, in) != before {
			t.Errorf("%s destroyed its input", tt.what)
		}
	}
}

// TestRawIsPrivate: a copy of a recording is as private as one, and whatever can be read
// of a damaged one is kept.
func TestRawIsPrivate(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "copy.jsonl")
	e, _, stderr := quietEnv()
	if status := exportVerb(e, []string{"--format", "raw", "-o", out, "../../traces/corpus/rminfo.nvt"}, nil); status != exitOK {
		t.Fatal(stderr)
	}
	st, err := os.Stat(out)
	if err != nil || st.Mode().Perm() != modePrivate {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	whole := readText(t, out)
	cut := filepath.Join(dir, "cut.jsonl")
	writeText(t, cut, whole[:len(whole)*2/3], 0o600)
	e, _, _ = quietEnv()
	if status := exportVerb(e, []string{"--format", "raw", "-o", out, cut}, nil); status != exitFailed {
		t.Errorf("a damaged recording: status %d", status)
	}
	if got := readText(t, out); got == "" || len(got) >= len(whole) || !strings.HasPrefix(whole, got) {
		t.Errorf("%d bytes of %d were kept", len(got), len(whole)*2/3)
	}
}

func TestExpandName(t *testing.T) {
	h := &traces.Header{PID: 77, Host: "node7", Start: 1_760_000_000_123_000_000, Rank: map[string]string{"SLURM_PROCID": "2"}}
	getenv := func(name string) string { return map[string]string{"JOB": "a/b", "SET": "x"}[name] }
	for name, want := range map[string]string{
		"run.nvt":               "run.nvt",
		"run.%p.nvt":            "run.77.nvt",
		"%h/%r.nvt":             "node7/2.nvt",
		"%q{JOB}%q{SET}-%t.nvt": "a_bx-20251009T085320.123Z.nvt",
		"100%%.nvt":             "100%.nvt",
		"run.%n.nvt":            "run.3.nvt",
	} {
		if got, err := expandName(name, h, 3, getenv); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"100%.nvt":      "%.: want %p (process id)",
		"x%":            "a % at the end",
		"%q{UNSET}.nvt": "%q{UNSET}: the environment variable is not set",
		"%qJOB.nvt":     "want %q{NAME}",
		"%q{}.nvt":      "want %q{NAME}",
		"%q{JOB.nvt":    "want %q{NAME}",
	} {
		if got, err := expandName(name, h, 3, getenv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := expandName("%r.nvt", &traces.Header{}, 1, getenv); err == nil || !strings.Contains(err.Error(), "there is no rank") {
		t.Errorf("without a rank: %q, %v", got, err)
	}
}

// TestMapsFile: maps are written to a file from the program's beginning on, by one run.
func TestMapsFile(t *testing.T) {
	e, _, _ := quietEnv()
	dir := t.TempDir()
	name := filepath.Join(dir, "maps.json")
	writeText(t, name, "old", 0o644)
	var runs [2]attachFlags
	for i := range runs {
		runs[i].mapsTo = new(mapsFile)
		if _, err := runs[i].mapsTo.Write([]byte("too early")); err != nil {
			t.Error(err)
		}
	}
	if err := runs[0].beginMaps(e, name); err != nil {
		t.Fatal(err)
	}
	if err := runs[1].beginMaps(e, name); !errors.Is(err, errBusy) {
		t.Errorf("two runs write one file: %v", err)
	}
	runs[0].mapsTo.abandon() // another output was refused
	if err := errors.Join(runs[0].mapsTo.close(), runs[1].mapsTo.close()); err != nil || readText(t, name) != "old" {
		t.Errorf("runs that did not begin: %v", err)
	}
	if err := runs[1].beginMaps(e, name); err != nil {
		t.Fatal(err)
	}
	if _, err := runs[1].mapsTo.Write([]byte("maps")); err != nil {
		t.Error(err)
	}
	if err := runs[1].mapsTo.close(); err != nil || readText(t, name) != "maps" {
		t.Error(err)
	}
	onlyFiles(t, dir, "maps.json")
	e.reads(name)
	if err := runs[0].beginMaps(e, name); err == nil || !strings.Contains(err.Error(), "write to another file") {
		t.Errorf("an input: %v", err)
	}
}

// heldSink notes the events that come, by their times.
type heldSink struct {
	times []int64
	idle  int
}

func (s *heldSink) Event(ev *traces.Event) { s.times = append(s.times, ev.Time) }
func (s *heldSink) Idle()                  { s.idle++ }

// TestGate: events that come before the outputs are open are not lost, nor late; those of
// a program that did not begin are nobody's.
func TestGate(t *testing.T) {
	var g gate
	ev := new(traces.Event)
	for i := range 3 {
		ev.Time = int64(i) // the same memory each time, as sinks get it
		g.Event(ev)
	}
	g.Idle()
	s := new(heldSink)
	g.open(record.Guard([]record.Sink{s}, nil, nil))
	if s.idle == 0 {
		t.Error("what came before was not put out")
	}
	ev.Time = 3
	g.Event(ev)
	if !slices.Equal(s.times, []int64{0, 1, 2, 3}) {
		t.Errorf("events %v", s.times)
	}
}

// TestVersionPlace: version tells where a recording was made.
func TestVersionPlace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run.nvt")
	w, err := createRecording(name, &traces.Header{
		Tool: "v1", Driver: "580.142", Host: "node7", Boot: "b0", GPUs: []string{"GPU-1", "GPU-2"}, Container: "c0ffee",
		Rank: map[string]string{"RANK": "3", "WORLD_SIZE": "8\x1b[2J"},
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	e, stdout, _ := quietEnv()
	if status := versionVerb(e, []string{name}, nil); status != exitOK {
		t.Fatal(status)
	}
	wantText(t, stdout.String(), "recorded by nvtrace v1, driver 580.142", "on host node7, boot b0, container c0ffee",
		"GPUs: GPU-1, GPU-2", `ranks: RANK=3, WORLD_SIZE=8\x1b[2J`)
}

var _ io.Writer = (*wholeFile)(nil)

// createRecording starts a recording.
func createRecording(name string, h *traces.Header) (*traces.Writer, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return traces.NewFileWriter(f, h, nil)
}

// TestNotMoreReadable: what is made of files is for nobody who may not read all of them, whatever
// was there before.
func TestNotMoreReadable(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, tt := range []struct {
		inputs  []fs.FileMode
		tracing bool
		before  fs.FileMode // of the output; 0: there is none
		want    fs.FileMode
	}{
		{want: 0o666},
		{inputs: []fs.FileMode{0o644}, want: 0o644},
		{inputs: []fs.FileMode{0o600}, want: 0o600},
		{inputs: []fs.FileMode{0o400}, want: 0o600},
		{inputs: []fs.FileMode{0o644, 0o640}, want: 0o640},
		{inputs: []fs.FileMode{0o755, 0o600}, want: 0o600},
		{inputs: []fs.FileMode{0o600}, before: 0o644, want: 0o600},
		{inputs: []fs.FileMode{0o644}, before: 0o666, want: 0o644},
		{inputs: []fs.FileMode{0o644}, before: 0o600, want: 0o600},
		{tracing: true, want: 0o600},
		{tracing: true, before: 0o664, want: 0o600},
	} {
		e, _, _ := quietEnv()
		e.tracing = tt.tracing
		dir := t.TempDir()
		for i, mode := range tt.inputs {
			in := filepath.Join(dir, strconv.Itoa(i))
			writeText(t, in, "input", mode)
			e.reads(in)
		}
		out := filepath.Join(dir, "out")
		if tt.before != 0 {
			writeText(t, out, "before", tt.before)
		}
		if err := e.writeFile(out, []byte("output"), modeFile); err != nil {
			t.Error(err)
		}
		if st, err := os.Stat(out); err != nil || st.Mode().Perm() != tt.want {
			t.Errorf("%+v: mode %v, %v", tt, st.Mode(), err)
		}
	}
}

// TestForeignOutputs: what another user has laid where an output goes is neither followed nor
// written to, unless everybody may read what comes.
func TestForeignOutputs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user's")
	}
	const other = 12345
	dir := t.TempDir()
	target, link, file := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	writeText(t, target, "kept", 0o600)
	writeText(t, file, "kept", 0o600)
	if err := errors.Join(os.Symlink(target, link), os.Lchown(link, other, other), os.Chown(file, other, other)); err != nil {
		t.Fatal(err)
	}
	e, _, _ := quietEnv()
	if err := e.writeFile(link, []byte("output"), modeFile); err == nil || !strings.Contains(err.Error(), "is a link of user 12345") {
		t.Errorf("a link: %v", err)
	}
	if g, err := openGrown(link, modePrivate); err == nil {
		t.Errorf("%s was opened", g.Name())
	}
	if readText(t, target) != "kept" {
		t.Error("a link was followed")
	}
	g, err := openGrown(file, modePrivate)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.begin(); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("a recording in another user's file: %v", err)
	}
	g.abandon()
	if readText(t, file) != "kept" {
		t.Error("another user's file was written")
	}
	// What replaces the file is this user's.
	if err := e.writeFile(file, []byte("output"), modePrivate); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(file)
	if sys, ok := st.Sys().(*syscall.Stat_t); err != nil || !ok || sys.Uid != 0 || st.Mode().Perm() != modePrivate {
		t.Errorf("%+v, %v", st, err)
	}
}
