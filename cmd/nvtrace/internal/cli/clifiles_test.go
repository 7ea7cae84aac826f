package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/traces"
)

func TestWholeFile(t *testing.T) {
	e, _, _ := quietEnv()
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	if err := e.WriteFile(name, []byte("one"), ModeFile); err != nil || readText(t, name) != "one" {
		t.Fatal(err)
	}
	// What is there stays until the new one is whole, and if that fails.
	f, err := e.CreateWhole(name, ModeFile)
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
	if err := f.Finish(broken); !errors.Is(err, broken) {
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
	if err := e.WriteFile(link, []byte("two"), ModeFile); err != nil || readText(t, name) != "two" {
		t.Error(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	// What nobody else is to read.
	if err := e.WriteFile(name, []byte("three"), ModePrivate); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != ModePrivate {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	// A link to nothing makes what it names, as the shell's > does.
	if err := errors.Join(os.Remove(name), e.WriteFile(link, []byte("four"), ModeFile)); err != nil || readText(t, name) != "four" {
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
	if err := e.WriteFile(pipe, []byte("five"), ModeFile); err != nil {
		t.Error(err)
	}
	if got := <-read; got != "five" {
		t.Errorf("%q came through the pipe", got)
	}
	onlyFiles(t, dir, "out", "pipe")
	if err := e.WriteFile(filepath.Join(dir, "no/out"), nil, ModeFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
	if err := e.WriteFile(dir, nil, ModeFile); err == nil {
		t.Error("a folder was written to")
	}
	if err := e.WriteFile("/dev/full", []byte("x"), ModeFile); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
}

// TestPublic: what is for other users can be read by them, though the inputs can't be, and replaces none of these.
func TestPublic(t *testing.T) {
	dir := t.TempDir()
	secret, out := filepath.Join(dir, "secret"), filepath.Join(dir, "out")
	if err := os.WriteFile(secret, nil, ModePrivate); err != nil {
		t.Fatal(err)
	}
	var e Env
	for range 3 { // as a watch reads it again
		e.Reads(secret)
	}
	if len(e.inputs) != 1 {
		t.Errorf("%d inputs", len(e.inputs))
	}
	defer unix.Umask(unix.Umask(0o022))
	mode := func() fs.FileMode {
		st, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	if err := e.WritePublic(out, []byte("for all")); err != nil || mode() != 0o644 {
		t.Errorf("mode %v: %v", mode(), err)
	}
	if err := e.WriteFile(out, []byte("for one"), ModeFile); err != nil || mode() != ModePrivate {
		t.Errorf("mode %v: %v", mode(), err)
	}
	if err := e.WritePublic(secret, nil); err == nil {
		t.Error("an input was written to")
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
		w := &WholeFile{File: f, to: to, named: name}
		if _, err := w.WriteString("text"); err != nil {
			t.Fatal(err)
		}
		if err := w.Finish(failed); !errors.Is(err, failed) {
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
	first, err := OpenGrown(name, ModePrivate)
	if err != nil {
		t.Fatal(err)
	}
	if got := readText(t, name); got != "old" {
		t.Errorf("%q is there before the program has begun", got)
	}
	if g, err := OpenGrown(name, ModePrivate); !errors.Is(err, ErrBusy) {
		g.Close()
		t.Errorf("a second run opened the file, too: %v", err)
	}
	if err := first.Begin(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Size() != 0 || st.Mode().Perm() != ModePrivate {
		t.Errorf("begun: %d bytes, mode %v, %v", st.Size(), st.Mode(), err)
	}
	first.Close()
	// When it has ended, the next may.
	next, err := OpenGrown(name, ModePrivate)
	if err != nil {
		t.Fatal(err)
	}
	next.Abandon()
	onlyFiles(t, dir, "run.nvt")
	// What was made for nothing goes.
	other, err := OpenGrown(filepath.Join(dir, "other"), ModeFile)
	if err != nil {
		t.Fatal(err)
	}
	other.Abandon()
	onlyFiles(t, dir, "run.nvt")
	// A pipe without a reader does not keep a program waiting.
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err := OpenGrown(pipe, ModeFile); err == nil || !strings.Contains(err.Error(), "nobody reads this pipe") {
		g.Close()
		t.Errorf("a pipe without a reader: %v", err)
	}
}

func TestRefuseInput(t *testing.T) {
	e, _, _ := quietEnv()
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	writeText(t, in, "input", 0o644)
	e.Reads(in)
	e.Reads(filepath.Join(dir, "missing"))
	e.Reads("/dev/null")
	hard, soft := filepath.Join(dir, "hard"), filepath.Join(dir, "soft")
	if err := errors.Join(os.Link(in, hard), os.Symlink("in", soft)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{in, hard, soft, filepath.Join(dir, ".", "in")} {
		if err := e.WriteFile(name, []byte("output"), ModeFile); err == nil || !strings.Contains(err.Error(), "write to another file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := readText(t, in); got != "input" {
		t.Errorf("the input is %q", got)
	}
	for _, name := range []string{filepath.Join(dir, "missing"), "/dev/null", filepath.Join(dir, "out")} {
		if err := e.WriteFile(name, []byte("output"), ModeFile); err != nil {
			t.Error(err)
		}
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
		if got, err := ExpandName(name, h, 3, getenv); err != nil || got != want {
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
		if got, err := ExpandName(name, h, 3, getenv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := ExpandName("%r.nvt", &traces.Header{}, 1, getenv); err == nil || !strings.Contains(err.Error(), "there is no rank") {
		t.Errorf("without a rank: %q, %v", got, err)
	}
}
