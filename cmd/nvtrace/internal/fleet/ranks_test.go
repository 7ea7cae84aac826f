package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/internal/need"
	"nvtrace/traces/ranks"
)

var (
	rounds = flag.Int("rounds", 1, "how often each fault is planted")
	size   = flag.Int("ranks", 4, "of a simulated job")
	one    = flag.String("planted", "all", "the only fault that is planted; \"\": none is")
)

// job is what simulated ranks are made of.
type job struct{ dir, nvtrace, train string }

// newJob compiles nvtrace, the stand-in for NCCL and the training.
func newJob(t *testing.T) *job {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	if need.Race {
		t.Skip("runs nvtrace without the race detector")
	}
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	j := &job{dir, filepath.Join(dir, "nvtrace"), filepath.Join(dir, "train")}
	lib := filepath.Join(dir, "libnccl.so.2")
	for _, words := range [][]string{
		{"gcc", "-O1", "-w", "-shared", "-fPIC", "-o", lib, "testdata/nccl.c", "-ldl", "-lrt"},
		{"gcc", "-O1", "-w", "-I../../../../nvattach/sim/testdata", "-o", j.train, "testdata/train.c", lib, "-ldl", "-lpthread", "-Wl,-rpath," + dir},
		{"go", "build", "-o", j.nvtrace, "nvtrace/cmd/nvtrace"},
	} {
		cmd := exec.Command(words[0], words[1:]...)
		if words[0] == "go" {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", words, err, b)
		}
	}
	return j
}

// rankEnv is the environment of a rank. What says of the test itself that it is a part of some job is not in it.
func rankEnv(rank, world int) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return ranks.Var(name)
	})
	return append(env, fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", world))
}

// run runs the ranks of a job at once, and returns the report of their recordings and its exit status.
func (j *job) run(t *testing.T, ranks, steps int, seconds string, fault ...string) (*fleet.Report, int) {
	t.Helper()
	dir := t.TempDir()
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() {
			cmd := exec.Command(j.nvtrace, append([]string{
				"--sim", "-q", "--api", "--gpu-times=events", "--modules=hash", "-o", filepath.Join(dir, "run.%r.nvt"), "--", j.train, dir, strconv.Itoa(steps),
			}, fault...)...)
			cmd.Env = append(rankEnv(rank, ranks), fmt.Sprintf("LOCAL_RANK=%d", rank), "SECONDS="+seconds)
			if len(fault) > 0 && fault[0] == "environment" {
				cmd.Args = slices.Insert(cmd.Args, 1, "--env", "--json="+filepath.Join(dir, "%r.json"))
				if fault[1] == strconv.Itoa(rank) {
					cmd.Env = append(cmd.Env, "NCCL_ALGO=Tree")
				}
			}
			out, err := cmd.CombinedOutput()
			if err != nil && seconds == "" || len(out) > 0 && err == nil && string(out) != fmt.Sprintf("rank %d has ended\n", rank) {
				t.Errorf("rank %d: %v\n%s", rank, err, out)
			}
		})
	}
	all.Wait()
	out, err := exec.Command(j.nvtrace, "fleet", "report", "--json", "--hang", "500ms", dir).Output()
	status := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		status = e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	r := new(fleet.Report)
	if err := json.Unmarshal(out, r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(r.Ranks) != ranks || r.World != ranks || r.Missing != nil {
		t.Errorf("%d ranks of %d, missing %v", len(r.Ranks), r.World, r.Missing)
	}
	return r, status
}

// TestPlanted plants faults in a rank of a simulated job: the report names rank and cause. With -args -rounds 20 -ranks 8
// it counts how often; -planted NAME does that for one of them.
func TestPlanted(t *testing.T) {
	j := newJob(t)
	const rank, steps = 2, 30
	for _, tt := range []struct{ fault, kind, cause string }{
		{"", "", ""},
		{"sleep", fleet.Slow, "host"},
		{"kernel", fleet.Slow, "compute"},
		{"copies", fleet.Slow, "copy"},
		{"driver", fleet.Slow, "driver"},
		{"size", fleet.Mismatch, "signature differs"},
		{"image", fleet.Differs, "image"},
		{"environment", fleet.Differs, "environment NCCL_ALGO"},
		{"fails", fleet.Differs, "failing calls"},
		{"input", fleet.Slow, "host"},
		{"hog", fleet.Slow, "host"},
		{"missing", fleet.Hang, "missing enter"},
		{"stop", fleet.Hang, "missing enter"},
		{"kill", fleet.Hang, "missing enter"},
	} {
		if *one != "all" && *one != tt.fault {
			continue
		}
		if *rounds == 1 && *one == "all" && !slices.Contains([]string{"", "sleep", "size", "missing"}, tt.fault) {
			continue // they take seconds, and go the same ways; recordings that are made up have them, too
		}
		right, wrong, silent := 0, 0, 0
		// Who is slow can't always be told on a machine that is busy with something else: then it must not be guessed.
		tries := *rounds
		if tries == 1 && tt.kind == fleet.Slow {
			tries = 4
		}
		for i := 0; i < tries && (*rounds > 1 || right == 0); i++ {
			seconds, args := "", []string(nil)
			if tt.fault != "" {
				args = []string{tt.fault, strconv.Itoa(rank), "10"}
			}
			if tt.kind == fleet.Hang {
				seconds = "3"
			}
			r, status := j.run(t, *size, steps, seconds, args...)
			found := slices.DeleteFunc(slices.Clone(r.Findings), func(x fleet.Finding) bool { return x.Kind == fleet.Paused })
			switch {
			case len(found) == 0 && tt.kind == "", len(found) == 1 && found[0].Kind == tt.kind && found[0].Cause == tt.cause && slices.Equal(found[0].Ranks, []int{rank}):
				right++
			case len(found) == 0 || len(found) == 1 && found[0].Cause == fleet.CannotTell:
				silent++
				t.Logf("%q: %+v, %q", tt.fault, found, r.Notes)
			default:
				wrong++
				t.Logf("%q: %+v", tt.fault, found)
			}
			if want := tt.kind != "" && tt.kind != fleet.Differs; (status == 1) != want && len(found) == 1 {
				t.Errorf("%q: status %d", tt.fault, status)
			}
		}
		t.Logf("%q: %d right, %d not told, %d wrong", tt.fault, right, silent, wrong)
		if *rounds == 1 && (right != 1 || wrong > 0) {
			t.Errorf("%q: not found", tt.fault)
		}
	}
	if *one == "all" {
		t.Run("watch", func(t *testing.T) { j.watch(t, "-o", "run.%r.nvt") })
		t.Run("tables", func(t *testing.T) {
			j.watch(t, "--format", "parquet", "--interval", "200ms", "--prom", "run.%r.prom", "-o", ".")
		})
	}
}

// watch plants a rank that does not join a collective: fleet watch says so while the job hangs.
// output says by which flags ranks are recorded, with names in the folder that is watched.
func (j *job) watch(t *testing.T, output ...string) {
	const ranks, rank = 4, 2
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state.prom")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	watch := exec.CommandContext(ctx, j.nvtrace, "fleet", "watch", "--json", "--hang", "1s", "--every", "200ms", "--prom", state, dir)
	out, err := watch.StdoutPipe()
	if err == nil {
		err = watch.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i, word := range output {
		if word == "." || strings.HasPrefix(word, "run.") {
			output[i] = filepath.Join(dir, word)
		}
	}
	for i := range ranks {
		cmd := exec.CommandContext(ctx, j.nvtrace, append(append([]string{"--sim", "-q", "--api"}, output...), "--", j.train, dir, "30", "missing", strconv.Itoa(rank), "10")...)
		cmd.WaitDelay = 20 * time.Second
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.Env = rankEnv(i, ranks)
		all.Go(func() { _ = cmd.Run() }) // it hangs until it is ended
	}
	lines := json.NewDecoder(out)
	told := false
	for {
		var line struct {
			fleet.Change
			Report *fleet.Report
		}
		if err := lines.Decode(&line); err != nil {
			t.Errorf("the report at the end is missing: %v", err)
			break
		}
		if r := line.Report; r != nil {
			if len(r.Ranks) != ranks {
				t.Errorf("%d ranks at the end", len(r.Ranks))
			}
			break
		}
		x := line.Finding
		if x.Kind != fleet.Hang || line.State != fleet.Begun || told {
			t.Logf("%s %s %s %v", line.State, x.Kind, x.Cause, x.Ranks) // a busy machine's ranks may be slow at first
			continue
		}
		if x.Cause != "missing enter" || !slices.Equal(x.Ranks, []int{rank}) {
			continue // one rank has come to a collective, and others get no processor
		}
		if told = true; !strings.Contains(x.Text, "; rank 2 is now at train ") {
			t.Errorf("where rank 2 is: %s", x.Text)
		}
		at, err := time.Parse(time.RFC3339, line.Time)
		since, err2 := time.Parse(time.RFC3339, x.At)
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
		}
		t.Logf("told %v after the first rank began to wait", at.Sub(since))
		if b, err := os.ReadFile(state); err != nil || !strings.Contains(string(b), `nvtrace_fleet_rank_hung_seconds{job_id="",rank="2",`) {
			t.Errorf("%v, as metrics: %s", err, b)
		}
		if slices.Contains(output, "--prom") {
			openCollective(ctx, t, filepath.Join(dir, "run.0.prom"))
		}
		if err := watch.Process.Signal(syscall.SIGTERM); err != nil { // it prints the report
			t.Fatal(err)
		}
	}
	if !told {
		t.Error("the hang was not told")
	}
	cancel()
	all.Wait()
	_ = watch.Wait()
}

// openCollective waits until a rank's metrics say that it waits in a collective.
func openCollective(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	text := ""
	for ctx.Err() == nil {
		b, _ := os.ReadFile(name) // it is not there before the first second is over
		text = string(b)
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(line, "nvtrace_collective_open_seconds{"); ok && strings.Contains(value, `rank="0"`) && !strings.HasSuffix(value, "} 0\n") {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("no metric tells that the rank waits: %s", text)
}
