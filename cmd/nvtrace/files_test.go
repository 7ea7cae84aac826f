package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/cmd/nvtrace/internal/view"
)

// TestVerbsKeepInputs: no verb writes over what it reads.
func TestVerbsKeepInputs(t *testing.T) {
	dir := t.TempDir()
	fresh := func(name string) string {
		to := filepath.Join(dir, name)
		clitest.WriteText(t, to, clitest.ReadText(t, "../../traces/corpus/rminfo.nvt"), 0o644)
		return to
	}
	for _, tt := range []struct {
		what string
		run  func(e *cli.Env, in string) int
	}{
		{"export -o", func(e *cli.Env, in string) int {
			return view.ExportVerb(e, []string{"--format", "perfetto", in, "-o", in}, nil)
		}},
		{"export raw -o", func(e *cli.Env, in string) int {
			return view.ExportVerb(e, []string{"--format", "raw", in, "-o", in}, nil)
		}},
		{"allowlist", func(e *cli.Env, in string) int { return view.AllowlistVerb(e, []string{"-o", in, in}, nil) }},
		{"report", func(e *cli.Env, in string) int { return view.ReportVerb(e, []string{"--json=" + in, in}, nil) }},
		{"failures", func(e *cli.Env, in string) int { return view.FailuresVerb(e, []string{"--json=" + in, in}, nil) }},
		{"tree", func(e *cli.Env, in string) int { return objects.TreeVerb(e, []string{"--json=" + in, in}, nil) }},
		{"maps", func(e *cli.Env, in string) int { return verbs.MapsVerb(e, []string{"--json=" + in, in}, nil) }},
		{"modules", func(e *cli.Env, in string) int { return view.ModulesVerb(e, []string{"--json=" + in, in}, nil) }},
		{"diff", func(e *cli.Env, in string) int {
			return view.DiffVerb(e, []string{"--json=" + in, "../../traces/corpus/rminfo.nvt", in}, nil)
		}},
	} {
		in := fresh(strings.ReplaceAll(tt.what, " ", "_") + ".nvt")
		before := clitest.ReadText(t, in)
		e, _, stderr := clitest.Quiet()
		if status := tt.run(e, in); status != cli.ExitFailed || !strings.Contains(stderr.String(), "write to another file") {
			t.Errorf("%s: status %d, %s", tt.what, status, stderr)
		}
		if clitest.ReadText(t, in) != before {
			t.Errorf("%s destroyed its input", tt.what)
		}
	}
}

// TestRawIsPrivate: a copy of a recording is as private as one, and whatever can be read
// of a damaged one is kept.
func TestRawIsPrivate(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "copy.jsonl")
	e, _, stderr := clitest.Quiet()
	if status := view.ExportVerb(e, []string{"--format", "raw", "-o", out, "../../traces/corpus/rminfo.nvt"}, nil); status != cli.ExitOK {
		t.Fatal(stderr)
	}
	st, err := os.Stat(out)
	if err != nil || st.Mode().Perm() != cli.ModePrivate {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	whole := clitest.ReadText(t, out)
	cut := filepath.Join(dir, "cut.jsonl")
	clitest.WriteText(t, cut, whole[:len(whole)*2/3], 0o600)
	e, _, _ = clitest.Quiet()
	if status := view.ExportVerb(e, []string{"--format", "raw", "-o", out, cut}, nil); status != cli.ExitFailed {
		t.Errorf("a damaged recording: status %d", status)
	}
	if got := clitest.ReadText(t, out); got == "" || len(got) >= len(whole) || !strings.HasPrefix(whole, got) {
		t.Errorf("%d bytes of %d were kept", len(got), len(whole)*2/3)
	}
}

var _ io.Writer = (*cli.WholeFile)(nil)

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
		e, _, _ := clitest.Quiet()
		e.Tracing = tt.tracing
		dir := t.TempDir()
		for i, mode := range tt.inputs {
			in := filepath.Join(dir, strconv.Itoa(i))
			clitest.WriteText(t, in, "input", mode)
			e.Reads(in)
		}
		out := filepath.Join(dir, "out")
		if tt.before != 0 {
			clitest.WriteText(t, out, "before", tt.before)
		}
		if err := e.WriteFile(out, []byte("output"), cli.ModeFile); err != nil {
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
	clitest.WriteText(t, target, "kept", 0o600)
	clitest.WriteText(t, file, "kept", 0o600)
	if err := errors.Join(os.Symlink(target, link), os.Lchown(link, other, other), os.Chown(file, other, other)); err != nil {
		t.Fatal(err)
	}
	e, _, _ := clitest.Quiet()
	if err := e.WriteFile(link, []byte("output"), cli.ModeFile); err == nil || !strings.Contains(err.Error(), "is a link of user 12345") {
		t.Errorf("a link: %v", err)
	}
	if g, err := cli.OpenGrown(link, cli.ModePrivate); err == nil {
		t.Errorf("%s was opened", g.Name())
	}
	if clitest.ReadText(t, target) != "kept" {
		t.Error("a link was followed")
	}
	g, err := cli.OpenGrown(file, cli.ModePrivate)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Begin(); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("a recording in another user's file: %v", err)
	}
	g.Abandon()
	if clitest.ReadText(t, file) != "kept" {
		t.Error("another user's file was written")
	}
	// What replaces the file is this user's.
	if err := e.WriteFile(file, []byte("output"), cli.ModePrivate); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(file)
	if sys, ok := st.Sys().(*syscall.Stat_t); err != nil || !ok || sys.Uid != 0 || st.Mode().Perm() != cli.ModePrivate {
		t.Errorf("%+v, %v", st, err)
	}
}
