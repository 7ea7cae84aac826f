package capture_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	"nvtrace/nvattach/capture"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// TestWatch: where the driver reads the program's own bytes, a change is found.
func TestWatch(t *testing.T) {
	p := needPrograms(t)
	out := trace(t, p, &capture.Options{Watch: true}, p.routes, "race")
	if maps.Equal(out.images(), out.driver) {
		t.Skip("the other thread never came in between")
	}
	if gaps := out.texts(traces.KindGap); len(gaps) == 0 || !strings.Contains(gaps[0], "changed while cuModuleLoadData read it") {
		t.Errorf("captured %v, the driver was given %v, gaps: %q", out.images(), out.driver, gaps)
	}
	out = trace(t, p, &capture.Options{Watch: true}, p.routes, "libdata")
	if gaps := out.texts(traces.KindGap); len(gaps) > 0 || !maps.Equal(out.images(), out.driver) {
		t.Errorf("captured %v, the driver was given %v, gaps: %q", out.images(), out.driver, gaps)
	}
}

// TestOwnLoader: a driver that a program puts into memory itself.
func TestOwnLoader(t *testing.T) {
	p := needPrograms(t)
	for _, how := range []string{"memory", "protect"} {
		out := trace(t, p, &capture.Options{}, p.routes, how, p.tiny)
		if out.status != 0 {
			t.Errorf("%s: ended with %#x", how, out.status)
		}
		if want := map[string]int{sum([]byte(ptxText)): 1}; !maps.Equal(out.images(), want) {
			t.Errorf("%s: captured %v, want %v", how, out.images(), want)
		}
	}
}

// TestOverwritten: a program that removes a breakpoint is found out.
func TestOverwritten(t *testing.T) {
	p := needPrograms(t)
	out := trace(t, p, &capture.Options{}, p.routes, "overwrite")
	if len(out.driver) != 1 || len(out.images()) != 0 {
		t.Fatalf("nothing went by: captured %v, the driver was given %v", out.images(), out.driver)
	}
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], "the breakpoint at cuModuleLoadData") {
		t.Errorf("gaps: %q", gaps)
	}
}

// TestLarge: a large image is copied while only its thread waits.
func TestLarge(t *testing.T) {
	p := needPrograms(t)
	big := []byte(ptxText + "// " + strings.Repeat("x", 5<<20) + "\n")
	file := filepath.Join(p.dir, "big.ptx")
	if err := os.WriteFile(file, big, 0o666); err != nil {
		t.Fatal(err)
	}
	store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
	if err != nil {
		t.Fatal(err)
	}
	out := trace(t, p, &capture.Options{Store: store}, p.routes, "image", file)
	checkComplete(t, out, store)
	if got, err := readImage(store, sum(big)); err != nil || !bytes.Equal(got, big) {
		t.Errorf("the store has another image: %v", err)
	}

	out = trace(t, p, &capture.Options{MaxImage: 1 << 20}, p.routes, "image", file)
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], "above the limit") {
		t.Errorf("an image above the limit: gaps %q", gaps)
	}
}

// TestReplace gives the driver another image by each kind of loader; one that the
// driver refuses is taken back.
func TestReplace(t *testing.T) {
	p := needPrograms(t)
	file := filepath.Join(p.dir, "replace.ptx")
	if err := os.WriteFile(file, []byte(ptxText), 0o666); err != nil {
		t.Fatal(err)
	}
	tests := [][]string{
		{p.routes, "dlsym"},
		{p.routes, "slot6"},
		{p.routes, "slot8"},
		{p.routes, "libdata"},
		{p.routes, "wrapper2"},
		{p.routes, "file", file},
		{p.routes, "libfile", file},
		{p.routes, "link"},
	}
	for _, argv := range tests {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s refused=%v", argv[1], refused), func(t *testing.T) {
				other := []byte(ptxText + "// another\n")
				if refused {
					other = []byte(ptxText + "// refuse\n")
				}
				var asked atomic.Int32
				o := capture.Options{Replace: func(c *capture.Captured) ([]byte, bool) {
					asked.Add(1)
					if sum(c.Data) != c.Image.SHA256 || c.PID == 0 || c.Function == "" {
						t.Errorf("asked with %d bytes of %s by %s", len(c.Data), c.Image.SHA256, c.Function)
					}
					return other, true
				}}
				out := trace(t, p, &o, argv...)
				if out.status != 0 {
					t.Fatalf("ended with %#x", out.status)
				}
				if asked.Load() == 0 {
					t.Fatal("nobody was asked for a replacement")
				}
				if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
					t.Errorf("gaps: %q", gaps)
				}
				checkReplaced(t, out, sum(other), refused)
			})
		}
	}
}

// checkReplaced holds the driver's log against the events of a run in which every
// image was to be replaced.
func checkReplaced(t *testing.T, out *outcome, other string, refused bool) {
	t.Helper()
	if refused {
		if out.driver[other] != 0 || !maps.Equal(out.images(), out.driver) {
			t.Errorf("captured %v, the driver was given %v", out.images(), out.driver)
		}
		if notes := out.texts(traces.KindNote); !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, "refused the replacement") }) {
			t.Errorf("notes: %q", notes)
		}
		return
	}
	if out.driver[other] == 0 {
		t.Errorf("the driver was given %v, and not %.12s", out.driver, other)
	}
	said := false
	for _, ev := range out.events {
		if ev.Kind == traces.KindImage && ev.Image.Replaced != "" {
			said = true
			if ev.Image.Replaced != other || ev.Image.SHA256 == other && ev.Name != "cuModuleLoadData" {
				t.Errorf("image %.12s replaced by %.12s", ev.Image.SHA256, ev.Image.Replaced)
			}
		}
	}
	if !said {
		t.Error("no event tells of the replacement")
	}
}

// TestKilledWhileHeld: a program that is killed while its image is being replaced
// takes nobody along.
func TestKilledWhileHeld(t *testing.T) {
	p := needPrograms(t)
	gone := make(chan struct{})
	o := capture.Options{Replace: func(c *capture.Captured) ([]byte, bool) {
		if err := unix.Kill(c.PID, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		for unix.Kill(c.PID, 0) == nil { // until it is reaped
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
		close(gone)
		return []byte(ptxText), true
	}}
	out := trace(t, p, &o, p.routes, "dlsym")
	<-gone
	if !out.status.Signaled() || len(out.driver) != 0 {
		t.Errorf("ended with %#x, the driver was given %v", out.status, out.driver)
	}
	if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
		t.Errorf("gaps: %q", gaps)
	}
}

// TestSlotCache: what one run learns of hidden loaders serves the next, and what
// is wrong in it does no harm.
func TestSlotCache(t *testing.T) {
	p := needPrograms(t)
	cache := filepath.Join(t.TempDir(), "deep", "slots.json")
	o := capture.Options{Cache: cache}
	trace(t, p, &o, p.routes, "slot6")
	first, err := os.ReadFile(cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"CUDART_INTERFACE[1]", "CUDART_INTERFACE[6]", "CUDART_INTERFACE[8]"} {
		if !strings.Contains(string(first), s) {
			t.Errorf("%s is not in the cache:\n%s", s, first)
		}
	}
	out := trace(t, p, &o, p.routes, "slot6")
	if gaps := out.texts(traces.KindGap); len(gaps) > 0 || !maps.Equal(out.images(), out.driver) {
		t.Errorf("captured %v, the driver was given %v, gaps %q", out.images(), out.driver, gaps)
	}
	if second, err := os.ReadFile(cache); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the cache changed: %v", err)
	}

	wrong := bytes.ReplaceAll(first, []byte(`"offset": `), []byte(`"offset": 1`))
	if err := os.WriteFile(cache, wrong, 0o666); err != nil {
		t.Fatal(err)
	}
	out = trace(t, p, &o, p.routes, "slot6")
	if out.status != 0 || !maps.Equal(out.images(), out.driver) {
		t.Errorf("with a wrong cache: ended with %#x, captured %v, the driver was given %v", out.status, out.images(), out.driver)
	}
	if notes := out.texts(traces.KindNote); !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, "as an earlier run found") }) {
		t.Errorf("nobody said that the cache was wrong: %q", notes)
	}
	if err := os.WriteFile(cache, []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if out = trace(t, p, &o, p.routes, "slot6"); !maps.Equal(out.images(), out.driver) {
		t.Errorf("with a damaged cache: captured %v, the driver was given %v", out.images(), out.driver)
	}
}

// TestNoted: what the interposer alone saw is a gap; what both saw is none.
func TestNoted(t *testing.T) {
	p := needPrograms(t)
	for _, lie := range []bool{false, true} {
		var c *capture.Capture
		var loads []*traces.Event
		o := capture.Options{Settle: func() {
			for _, ev := range loads {
				n := capture.Note{PID: int(ev.PID), TID: 1, Function: ev.Name, Image: ev.Args[1]}
				if lie {
					n.Image++
				}
				c.Noted(n)
			}
		}}
		out := traceWith(t, p, &o, func(made *capture.Capture) { c = made }, func(ev *traces.Event) {
			if ev.Kind == traces.KindImage {
				loads = append(loads, ev.Clone())
			}
		}, p.routes, "dlsym")
		gaps := out.texts(traces.KindGap)
		if lie != (len(gaps) == 1 && strings.Contains(gaps[0], "the interposer saw process")) || len(loads) != 1 {
			t.Errorf("lie %v, %d loads: gaps %q", lie, len(loads), gaps)
		}
	}
}

// TestFullStore: a store without room is one gap, whatever is missing, and no
// trouble for the program.
func TestFullStore(t *testing.T) {
	p := needPrograms(t)
	for what, limit := range map[string]int64{"limit": 300, "gone": 0} {
		run := filepath.Join(t.TempDir(), "run.nvt")
		store, err := capture.CreateStore(run, limit)
		if err != nil {
			t.Fatal(err)
		}
		if what == "gone" {
			if err := os.RemoveAll(capture.StoreDir(run)); err != nil {
				t.Fatal(err)
			}
		}
		out := trace(t, p, &capture.Options{Store: store}, p.routes, "many")
		if out.status != 0 || !maps.Equal(out.images(), out.driver) {
			t.Errorf("%s: ended with %#x, captured %v, the driver was given %v", what, out.status, out.images(), out.driver)
		}
		if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], "missing in the module store") {
			t.Errorf("%s: gaps: %q", what, gaps)
		}
	}
}

// TestAttach: in a process that runs already, what it loads from now on is
// captured, and it is said that this is not all.
func TestAttach(t *testing.T) {
	p := needPrograms(t)
	_ = os.Remove(p.log)
	cmd := exec.Command(p.routes, "wait")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+p.dir)
	in, said := testprog.Start(t, cmd)
	if _, err := said.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	out := new(outcome)
	c := capture.New(&capture.Options{Emit: func(ev *traces.Event) { out.events = append(out.events, ev.Clone()) }}, 1)
	attached := &once{Handler: c, then: func() { in.Close() }}
	res, err := ptrace.Attach(need.Limit(t), cmd.Process.Pid, &ptrace.Options{Rules: c.Rules(), NoSignals: true}, attached)
	if err != nil {
		t.Fatal(err)
	}
	c.Finish()
	c.Close()
	_ = cmd.Wait() // the tracer has waited for it
	if !res.Ended || res.Status != 0 {
		t.Errorf("ended with %#x", res.Status)
	}
	want := map[string]int{sum([]byte(ptxText)): 1}
	if got := out.images(); !maps.Equal(got, want) {
		t.Errorf("captured %v, want %v", got, want)
	}
	if gaps := out.texts(traces.KindGap); len(gaps) != 1 || !strings.Contains(gaps[0], "before nvtrace attached") {
		t.Errorf("gaps: %q", gaps)
	}
}

// once is a handler that does something after the first task was reported.
type once struct {
	ptrace.Handler
	then func()
	done bool
}

func (o *once) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	o.Handler.Task(t, e)
	if !o.done {
		o.done = true
		o.then()
	}
}

// TestChurn: children that are forked while the driver is being mapped where it was
// before have its breakpoints, and all images are captured.
func TestChurn(t *testing.T) {
	p := needPrograms(t)
	bin := filepath.Join(t.TempDir(), "churn")
	if b, err := exec.Command("gcc", "-O1", "-o", bin, "testdata/churn.c", "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	out := trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, bin, filepath.Join(p.dir, "libcuda.so.1"))
	if out.status != 0 || !maps.Equal(out.images(), out.driver) || out.stats.Images != 180 {
		t.Errorf("ended with %#x, captured %d of %d images", out.status, out.stats.Images, len(out.driver))
	}
	if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
		t.Errorf("gaps: %q", gaps[:min(len(gaps), 3)])
	}
}

// readImage returns what a store has for an image.
func readImage(s *capture.Store, hash string) ([]byte, error) {
	name, err := s.Path(hash)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(name)
	if err == nil && sum(b) != hash {
		err = fmt.Errorf("%s has another hash", name)
	}
	return b, err
}
