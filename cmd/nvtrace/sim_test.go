package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/internal/need"
)

// cudaPrograms returns the folder of the CUDA programs that make testdata-cuda
// builds, "" if it is not there.
func cudaPrograms(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/cuda-programs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "table.sh")); err == nil {
		return dir
	}
	if need.Required("nvcc") {
		t.Fatal("no CUDA programs: make testdata-cuda")
	}
	return ""
}

// TestSimScripts runs programs on the simulated GPU, as a user does.
func TestSimScripts(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	var gcc bool
	for name, source := range map[string]string{
		"planted": "nvattach/sim/testdata/planted.c", "vectoradd": "examples/cuda/vectoradd_driver.c", "endless": "nvattach/sim/testdata/endless.c", "errors": "nvattach/sim/testdata/drv_errors.c",
		"links": "nvattach/sim/testdata/drv_link.c", "forks": "nvattach/sim/testdata/drv_fork.c", "times": "nvattach/sim/testdata/drv_times.c", "hang": "nvattach/sim/testdata/hang.c", "ranges": "nvattach/nvtx/testdata/client.c",
		"callers": "cmd/nvtrace/testdata/callers.c", "victim": "nvattach/host/testdata/victim.c", "usdt": "nvattach/host/testdata/usdt.c", "largest": "nvattach/gpu/testdata/shared.c", "mapped": "nvattach/sim/testdata/mapped.c",
	} {
		gcc = compileVictim(t, filepath.Join(root, source), filepath.Join(tools, name))
	}
	cuda := cudaPrograms(t)
	if cuda == "" {
		t.Log("no CUDA programs (make testdata-cuda): scripts that need them are skipped")
	}
	cache := os.Getenv("GOCACHE")
	if folder, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(folder, "go-build")
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/sim", UpdateScripts: *clitest.Update, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PROBES", filepath.Join(root, "examples/probes"))
			env.Setenv("OBJECTS", filepath.Join(root, "nvattach/testdata/obj"))
			env.Setenv("CUDA", cuda)
			env.Setenv("GOCACHE", cache) // go tool pprof is built where it is first used: not once a script
			env.Setenv("PATH", tools+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("NO_COLOR", "1")
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "gcc":
				return gcc, nil
			case "cuda":
				return cuda != "", nil
			case "driver":
				return run.HasDriver(), nil
			}
			return false, fmt.Errorf("no condition %s", cond)
		},
	})
}

// simThreads are the threads that the report at the end counts for a kernel.
var simThreads = regexp.MustCompile(`(?m)launches +(\d+) threads`)

// TestSimPrograms runs CUDA programs on the simulated GPU, without and with probes.
// The table, which has been made on real GPUs, too, says how often each probe is
// hit; the threads that enter kernels must also be those that were launched.
func TestSimPrograms(t *testing.T) {
	dir := cudaPrograms(t)
	if dir == "" {
		t.Skip("no CUDA programs: make testdata-cuda")
	}
	want, err := os.ReadFile("../../nvattach/sim/testdata/table.want")
	if err != nil {
		t.Fatal(err)
	}
	nvtrace := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, nvtrace)
	got, err := exec.Command(filepath.Join(dir, "table.sh"), nvtrace, "--sim").Output()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v; the table is\n%s\nwant\n%s", err, got, want)
	}
	programs := 0
	for line := range strings.Lines(string(want)) {
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "ok" {
			continue
		}
		programs++
		entered, err := strconv.Atoi(f[3])
		if err != nil || f[0] == "rdc" { // its kernels fail, or the driver links them and they run unprobed
			continue
		}
		out, err := exec.Command(nvtrace, "--sim", "--", filepath.Join(dir, f[0])).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", f[0], err, out)
		}
		launched := 0
		for _, m := range simThreads.FindAllSubmatch(out, -1) {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			launched += n
		}
		if launched != entered || f[4] != f[3] {
			t.Errorf("%s: %d threads were launched, %s entered, %s left", f[0], launched, f[3], f[4])
		}
	}
	if programs < 20 {
		t.Errorf("%d programs", programs)
	}
}

// TestVerifySimulated: on the simulated GPU, too, launches run with and without programs.
func TestVerifySimulated(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	nvtrace := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, nvtrace)
	for source, want := range map[string]string{
		"examples/cuda/vectoradd_driver.c": "probed vectorAdd.* \\(1 site\\)\n  verified: 3 buffers, 600,000 bytes equal\n",
		// Its kernels store the time.
		"nvattach/sim/testdata/drv_stamps.c": "probed node0 \\(1 site\\)\n  verified: 2 buffers, 4 bytes equal; 16 bytes in words that differ ",
	} {
		app := filepath.Join(t.TempDir(), "app")
		if !compileVictim(t, "../../"+source, app) {
			t.Skip("no gcc")
		}
		out, err := exec.Command(nvtrace, "-q", "--sim", "--verify", "-e", "kernel:* { @ = count(); }", "--", app).CombinedOutput()
		if err != nil || !regexp.MustCompile("(?m)^"+want).Match(out) || strings.Contains(string(out), "DIFFERS") {
			t.Errorf("%s: %v\n%s", source, err, out)
		}
	}
}
