package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/internal/need"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// testDevices makes memory devices pass for NVIDIA's nodes, so that recording
// can be tested where there are none.
var testDevices = &cli.Devices{
	NodeName: func(rdev uint64, _ string) (string, bool) {
		name, ok := map[uint64]string{unix.Mkdev(1, 7): "nvidiactl", unix.Mkdev(1, 5): "nvidia0"}[rdev]
		return name, ok
	},
	MayBeNode: func(p []byte) bool { return strings.HasPrefix(string(p), "/dev/") },
}

// agentDevices are the same, where what opens nothing below /dev need not stop.
var agentDevices = &cli.Devices{NodeName: testDevices.NodeName, NodePaths: []agent.Path{{Prefix: "/dev/"}}}

// built are the programs that tests have built, by package: linking one takes seconds, and twenty tests want nvtrace.
var built = struct {
	dir  string
	file map[string]string
}{file: map[string]string{}}

// tests runs them, and removes what they have built.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "nvtrace-built-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built.dir = dir
	return t.m.Run()
}

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){
		"nvtrace": func() {
			e := &cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Self: "/proc/self/exe"}
			switch os.Getenv("TEST_DEVICES") {
			case "":
			case "agent":
				e.Devices = agentDevices
			default:
				e.Devices = testDevices
			}
			if os.Getenv("TEST_ALONE") != "" { // without a decoding process
				e.Self = ""
			}
			if os.Getenv("TEST_SUBREAPER") != "" {
				if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
					panic(err)
				}
			}
			if what := os.Getenv("TEST_SINK"); what != "" {
				e.Sink = &faultySink{what: what}
			}
			os.Exit(verbs.Main(e, os.Args[1:]))
		},
	})
}

// faultySink goes wrong when some events have come.
type faultySink struct {
	what string
	n    int
	keep [][]byte
}

// Event implements record.Sink.
func (s *faultySink) Event(*traces.Event) {
	if s.n++; s.n != 15 {
		return
	}
	switch s.what {
	case "panic":
		panic("a test")
	case "memory":
		_ = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
		for {
			s.keep = append(s.keep, make([]byte, 1<<24))
		}
	}
}

// Idle implements record.Sink.
func (s *faultySink) Idle() {}

func TestScripts(t *testing.T) {
	need.Signals()
	corpus, err := filepath.Abs("../../traces/corpus")
	if err != nil {
		t.Fatal(err)
	}
	nvattach, err := filepath.Abs("../../nvattach")
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	build(t, filepath.Join(tools, "rminfo"), "../../examples/rminfo")
	haveGCC := compileVictim(t, "testdata/victim.c", filepath.Join(tools, "victim"))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *clitest.Update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("CORPUS", corpus)
			env.Setenv("NVATTACH", nvattach)
			env.Setenv("PATH", tools+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("NO_COLOR", "1")
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "gcc":
				return haveGCC, nil
			case "root":
				return os.Getuid() == 0, nil
			case "tmpfs": // may be mounted
				return exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "none", t.TempDir()).Run() == nil, nil
			}
			return false, nil
		},
	})
}

func build(t *testing.T, out, pkg string) {
	t.Helper()
	if built.file[pkg] == "" {
		file := filepath.Join(built.dir, strconv.Itoa(len(built.file)))
		cmd := exec.Command("go", "build", "-o", file, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", pkg, err, b)
		}
		built.file[pkg] = file
	}
	// A copy, since some tests change what belongs to the file. It is another program's, as a file that is open for
	// writing in a process that is forked meanwhile can't be run.
	if b, err := exec.Command("cp", built.file[pkg], out).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, b)
	}
}

// buildNvtrace builds nvtrace as users have it. The race detector is not in it, so a test that runs it has
// nothing for the detector to see, and ends here.
func buildNvtrace(t *testing.T, out string) {
	t.Helper()
	if need.Race {
		t.Skip("runs nvtrace without the race detector")
	}
	build(t, out, ".")
}

// compileVictim compiles a C program; false where there is no gcc.
func compileVictim(t *testing.T, source, out string, args ...string) bool {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if need.Required("gcc") {
			t.Fatal("gcc is required (NVTRACE_REQUIRE) and not installed")
		}
		t.Log("no gcc: scripts that need a compiled program are skipped")
		return false
	}
	if b, err := exec.Command("gcc", append([]string{"-O1", "-Wall", "-o", out, source}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return true
}
