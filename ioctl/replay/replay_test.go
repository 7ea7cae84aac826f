package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// outcome is what a replayed program did.
type outcome struct {
	Result
	stdout, stderr string
	err            error
}

// replay runs argv under a recording.
func replay(t testing.TB, rec []byte, o *Options, argv ...string) outcome {
	t.Helper()
	var opts Options
	if o != nil {
		opts = *o
	}
	dir := t.TempDir()
	files := make([]*os.File, 2)
	for i := range files {
		f, err := os.Create(filepath.Join(dir, []string{"out", "err"}[i]))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	opts.Stdout, opts.Stderr = files[0], files[1]
	opts.NoSignals = true
	res, err := run(need.Limit(t), bytes.NewReader(rec), argv, &opts)
	skipUnsupported(t, err)
	out := outcome{Result: res, err: err}
	for i, to := range []*string{&out.stdout, &out.stderr} {
		b, err := os.ReadFile(files[i].Name())
		if err != nil {
			t.Fatal(err)
		}
		*to = string(b)
	}
	return out
}

// want fails the test unless the program ended with that status.
func (o *outcome) want(t testing.TB, status int) {
	t.Helper()
	if o.err != nil || !o.Ended || o.Status.ExitStatus() != status {
		t.Fatalf("error %v, ended %v, status %#x, want exit %d\nstdout:\n%s\nstderr:\n%s\nmisses: %v", o.err, o.Ended, o.Status, status, o.stdout, o.stderr, o.Misses)
	}
}

// skipUnsupported skips the test where this machine can't replay, unless
// NVTRACE_REQUIRE lists replay.
func skipUnsupported(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrUnsupported) {
		return
	}
	need.Missing(t, "replay", err.Error())
}

// built are the programs that tests run, built once.
var built sync.Map

func buildOnce(t testing.TB, name string, build func(out string) *exec.Cmd) string {
	t.Helper()
	once, _ := built.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "replay") //nolint:usetesting // outlives the test that builds it
		if err != nil {
			return "", err
		}
		out := filepath.Join(dir, name)
		cmd := build(out)
		if b, err := cmd.CombinedOutput(); err != nil {
			return "", errors.New(cmd.String() + ": " + err.Error() + "\n" + string(b))
		}
		return out, nil
	}))
	out, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMain(m *testing.M) {
	code := m.Run()
	built.Range(func(_, v any) bool {
		if out, err := v.(func() (string, error))(); err == nil {
			os.RemoveAll(filepath.Dir(out))
		}
		return true
	})
	os.Exit(code)
}

func rminfo(t testing.TB) string {
	return buildOnce(t, "rminfo", func(out string) *exec.Cmd {
		cmd := exec.Command("go", "build", "-o", out, "nvtrace/examples/rminfo")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		return cmd
	})
}

const h200Text = `driver 580.159.04
gpu 0: NVIDIA H200
  uuid    GPU-01234567-89ab-cdef-0123-456789abcdef
  pci     0000:01:00.0, id 10de:2335, subsystem 10de:18be
  arch    GH100 (architecture 0x180, implementation 0x0, revision 0xa1)
  memory  147456 MiB (of 153600 MiB; heap 146432 MiB), 6144 bits wide
`

func TestRminfo(t *testing.T) {
	s := newScript(t)
	s.rminfo(3, 0xc1d00042, h200)
	rec := s.bytes()
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"once", nil},
		{"repeat", []string{"--repeat", "20"}},
		{"threads", []string{"--threads", "8", "--repeat", "5"}},
		{"fork", []string{"--fork", "--threads", "2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := replay(t, rec, &Options{Strict: true}, append([]string{rminfo(t)}, tt.args...)...)
			got.want(t, 0)
			if got.stdout != h200Text {
				t.Errorf("stdout:\n%s\nwant:\n%s", got.stdout, h200Text)
			}
			if got.Missed != 0 || got.Inexact != 0 || got.Answered == 0 || got.Unused != 0 {
				t.Errorf("answered %d, repeated %d, inexact %d, missed %d, unused %d: %v", got.Answered, got.Repeated, got.Inexact, got.Missed, got.Unused, got.Misses)
			}
		})
	}
}

func TestExecErrors(t *testing.T) {
	s := newScript(t)
	s.rminfo(3, 0xc1d00042, h200)
	got := replay(t, s.bytes(), nil, "/nonexistent/program")
	if !errors.Is(got.err, ptrace.ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", got.err)
	}
	if _, err := run(t.Context(), strings.NewReader("hello"), []string{"true"}, nil); err == nil {
		t.Error("replaying text that is no recording succeeded")
	}
	if _, err := run(t.Context(), bytes.NewReader(newScript(t).bytes()), []string{"true"}, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("replaying an empty recording: %v, want ErrEmpty", err)
	}
}

// A replay leaves no descriptors behind in this process.
func TestNoLeak(t *testing.T) {
	s := newScript(t)
	s.rminfo(3, 0xc1d00042, h200)
	rec := s.bytes()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	once := func() {
		res, err := run(t.Context(), bytes.NewReader(rec), []string{rminfo(t), "--repeat", "10"}, &Options{Stdout: devNull(t)})
		skipUnsupported(t, err)
		if err != nil || res.Status != 0 || res.Opens != 20 {
			t.Fatalf("error %v, status %#x, %d opens", err, res.Status, res.Opens)
		}
	}
	once() // what the runtime opens once is open now
	before := open()
	for range 3 {
		once()
	}
	if after := open(); after > before+3 { // devNull's
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func devNull(t *testing.T) *os.File {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// run replays a recording that is in memory.
func run(ctx context.Context, rec io.Reader, argv []string, o *Options) (Result, error) {
	r, err := traces.NewReader(rec)
	if err != nil {
		return Result{}, err
	}
	defer r.Close()
	return Run(ctx, r, argv, o)
}
