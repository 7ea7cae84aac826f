package clitest

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/internal/testrec"
	"nvtrace/traces"
)

// Update is the flag by which goldens are rewritten.
var Update = flag.Bool("update", false, "rewrite the goldens")

// Quiet returns an environment for a verb, and what it prints.
func Quiet() (e *cli.Env, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return &cli.Env{Stdout: stdout, Stderr: stderr, Getenv: func(string) string { return "" }}, stdout, stderr
}

// ReadText returns what a file holds.
func ReadText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// WriteText makes a file.
func WriteText(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// OnlyFiles fails if a folder has others than these files.
func OnlyFiles(t *testing.T, dir string, want ...string) {
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

// CreateRecording starts a recording.
func CreateRecording(name string, h *traces.Header) (*traces.Writer, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return traces.NewFileWriter(f, h, nil)
}

// Run runs a verb and returns what it printed.
func Run(t testing.TB, verb func(*cli.Env, []string, []string) int, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &cli.Env{Stdin: os.Stdin, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	status = verb(e, args, nil)
	return status, out.String(), errs.String()
}

// Save writes a recording to a file of the test's folder.
func Save(t testing.TB, name string, r *testrec.Recording) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, r.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

// Golden compares files with an archive of testdata, or rewrites it.
func Golden(t *testing.T, name string, got []txtar.File) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *Update {
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Files: got}), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Parse(b).Files
	if len(want) != len(got) {
		t.Fatalf("%s has %d files, want %d", file, len(want), len(got))
	}
	for i, f := range got {
		if f.Name != want[i].Name || !bytes.Equal(f.Data, want[i].Data) {
			t.Errorf("%s: %s: got\n%s\nwant %s:\n%s", file, f.Name, f.Data, want[i].Name, want[i].Data)
		}
	}
}

// Want fails for each text that an output lacks.
func Want(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, s := range want {
		if !strings.Contains(got, s) {
			t.Errorf("%q is not in:\n%s", s, got)
		}
	}
}
