package record

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// TestPass: calls that the agent makes without a stop are those that are no
// events, and only those.
func TestPass(t *testing.T) {
	bin := compile(t, "testdata/paths.c", "-no-pie", "-Wno-unused-result", "-Wno-nonnull")
	dir := t.TempDir()
	for _, name := range []string{"nvidia7", "alias", "nvidia-caps"} {
		if name == "nvidia-caps" {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			name += "/cap1"
		}
		if err := os.Symlink("/dev/zero", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	argv := []string{
		bin, "some", "/dev/zero", "/dev/full", "/dev/nvidia-not-there", "/dev//null", "dev/zero", "", "/", "/dev", "/dev/", "/devzero",
		dir + "/nvidia7", dir + "/alias", dir + "/nvidia-caps/cap1", dir + "/nvidia7/x", "/proc/self/fd/0", "/proc/self/fdinfo/0",
		dir + strings.Repeat("/.", 59) + "/nvidia7", dir + strings.Repeat("/.", 2000) + "/nvidia7", strings.Repeat("/", 191), strings.Repeat("/", 192),
	}
	for _, paths := range [][]agent.Path{nil, {{Prefix: "/dev/"}}, nodePaths(), {{Part: "nvidia"}, {Prefix: "/", Part: "zero"}}} {
		t.Run(fmt.Sprint(paths), func(t *testing.T) {
			o := options{Options: Options{NodePaths: paths}}
			if paths == nil {
				o.MayBeNode = func([]byte) bool { return true }
			}
			o.Fast = FastOff
			_, slow, was := runRecorded(t, o, argv...)
			o.Fast = FastAuto
			_, fast, res := runRecorded(t, o, argv...)
			compareEvents(t, lines(slow), lines(fast))
			kinds := map[traces.Kind]int{}
			for _, ev := range fast {
				kinds[ev.Kind]++
			}
			t.Logf("%d stops instead of %d, %v, %+v", res.Stops, was.Stops, kinds, res.Agent)
			if kinds[traces.KindOpen] < 8 || kinds[traces.KindDup] < 100 || kinds[traces.KindMmap] < 90 || kinds[traces.KindClose] < 200 {
				t.Errorf("events %v", kinds)
			}
			if paths != nil && res.Stops >= was.Stops*9/10 {
				t.Errorf("%d stops instead of %d", res.Stops, was.Stops)
			}
		})
	}
}

// BenchmarkPass is the cost of calls that are about no device, in a process that
// uses one: untraced, and under the recorder.
func BenchmarkPass(b *testing.B) {
	bin := compile(b, "testdata/paths.c", "-no-pie", "-Wno-unused-result", "-Wno-nonnull")
	const calls = 20000
	times := func(printed string) (open, mmap float64) {
		if _, err := fmt.Sscan(printed, &open, &mmap); err != nil {
			b.Fatalf("%q: %v", printed, err)
		}
		return open, mmap
	}
	var was, is [2]float64
	for b.Loop() {
		out, err := exec.Command(bin, "bench", strconv.Itoa(calls)).Output()
		if err != nil {
			b.Fatal(err)
		}
		open, mmap := times(string(out))
		was[0], was[1] = was[0]+open, was[1]+mmap
		printed, res := runDiscarded(b, options{}, bin, "bench", strconv.Itoa(calls))
		if res.Stops > 200 {
			b.Fatalf("%d stops", res.Stops)
		}
		open, mmap = times(printed)
		is[0], is[1] = is[0]+open, is[1]+mmap
	}
	n := float64(b.N)
	b.ReportMetric(is[0]/n, "ns/open+close")
	b.ReportMetric(is[0]/was[0], "x-open+close")
	b.ReportMetric(is[1]/n, "ns/mmap+munmap")
	b.ReportMetric(is[1]/was[1], "x-mmap+munmap")
}
