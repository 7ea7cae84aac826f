package verbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/cprobe"
	"nvtrace/internal/need"
)

// wrongFlags are command lines as people mistype them, words by spaces, and what of the answer says what to do.
var wrongFlags = []struct{ line, want string }{
	{"-o -- true", "-o needs FILE: record to FILE"},
	{"-o run.txt -- true", "the name must end in .nvt (compressed) or .jsonl (text)"},
	{"-p", "-p needs PID: attach to the running process"},
	{"-p abc", "not a process id"},
	{"-p 1 -- true", "-p 1 and a command exclude each other"},
	{"-e", "-e needs EXPR"},
	{"-e {}", "no command; type: nvtrace -- command [args]"},
	{"-e pid=x -- true", `pid "x" is not a number`},
	{"-e gpu=x -- true", `unknown key "gpu"; it is one of device, ioctl`},
	{"-e kernel:* -- true", "what is to be done there is missing: 'kernel:* { @ = count(); }'"},
	{"--api=drvier -- true", "want all or some of driver,runtime"},
	{"--api driver", "the value of --api is joined to it: nvtrace --api=driver"},
	{"--color=yes -- true", "want auto, always or never"},
	{"--fast=no -- true", "want auto or off"},
	{"--gpu-times=event -- true", "want auto, events, tracker"},
	{"--stacks=launchs -- true", "did you mean launch?"},
	{"--stacks -- true", "alloc, free, sync, launch, failed"},
	{"--interval 5 --attach x.o -- true", "want a time with its unit, such as 1.5s or 200ms"},
	{"--interval -1s --attach x.o -- true", "want a time of 0 or more"},
	{"--maps=xml --attach x.o -- true", "want text, json, or the name of a file"},
	{"--at main -e kernel:*{@=count();} -- true", "want PROGRAM=FILE:FUNCTION"},
	{"--kernel x -- true", "--kernel wants probes in kernels: --attach, or a program"},
	{"--verify=x --attach x.o -- true", "want how many launches there are"},
	{"--fuel x --attach x.o -- true", "want a number, 0 or more"},
	{"--hold 5ms --attach x.o -- true", "--hold is for a program that runs already: -p PID"},
	{"--hold 1s --attach x.o -p 1", "want more than 0, and 200ms at most"},
	{"--hold 5ms -p 1", "--hold wants probes in kernels: --attach"},
	{"--set x -- true", "--set wants probes in kernels: --attach"},
	{"--param 5 -- true", "--param wants a program: -e 'PROGRAM' or --script FILE"},
	{"--tool leeks -- true", "did you mean leaks?"},
	{"--sim=h300 -- true", "there are h200, h100, a100"},
	{"--sim -p 1", "--sim needs a program that nvtrace starts"},
	{"--sim-gpus 0 --sim -- true", "want 1 to 16"},
	{"--flight x -- true", "want seconds, or a time with its unit"},
	{"--delay x -- true", "want a time with its unit"},
	{"--start-on nosuch --api -- true", "want NVTX:NAME, step:N, cudaProfilerStart"},
	{"--orphans=x -- true", "want auto, wait, kill or detach"},
	{"--on-tracer-death=x -- true", "want kill or live"},
	{"--seccomp=x -- true", "want auto or off"},
	{"--modules=x -- true", "want hash, refs, or nothing"},
	{"--interpose=x -- true", "want auto, off or only"},
	{"--overflow=x -- true", "want wait or drop"},
	{"--require -- true", "--require wants probes in kernels: --attach"},
	{"--modles -- true", "did you mean --modules?"},
	{"-f -- true", "all processes and threads are followed: leave it out"},
	{"./app -x", "to trace a program, type: nvtrace -- ./app -x"},
	{"repotr run.nvt", "did you mean report?"},
	{"run.nvt", "to read a recording: nvtrace report run.nvt"},
	{"report", "nvtrace report run.nvt"},
	{"report a.nvt b.nvt", "to compare the ranks of a job: nvtrace fleet report a.nvt b.nvt"},
	{"report /proc/self/status", "not an nvtrace recording: it looks like text"},
	{"log -e x run.nvt", "write KEY=VALUE, where KEY is one of device"},
	{"export --format xml x.nvt", "want jsonl, raw, perfetto, pprof or parquet"},
	{"export --format parquet x.nvt", "say which by -o DIR"},
	{"diff a.nvt", "nvtrace diff a.nvt b.nvt"},
	{"abi diff 580.142", "want: nvtrace abi diff 570.211.01 580.142"},
	{"abi diff 1 2", "want one like 580.159.04"},
	{"maps pin dump", "maps pin wants ls, dump NAME"},
	{"maps pin dump nosuch", "see nvtrace maps pin ls"},
	{"check run.nvt", "nvtrace allowlist good.nvt > FILE, then nvtrace check --allow FILE run.nvt"},
	{"allowlist", "nvtrace allowlist run.nvt"},
	{"replay run.nvt", "nvtrace replay run.nvt -- command [args]"},
	{"attach", "to run them, type: nvtrace --attach probe.o -- command [args]"},
	{"attach 1234", "nvtrace -p 1234 --attach probe.o"},
	{"attach --disable x", "attach --list shows them"},
	{"ptx fmt", "nvtrace ptx fmt FILE.ptx, or - for stdin"},
	{"ptx chek x.ptx", "want fmt, check, sites or run"},
	{"fatbin ls", "nvtrace fatbin ls FILE"},
	{"sass dis", "nvtrace sass dis FILE"},
	{"sass dsi x", "want dis, sites or check"},
	{"annotate", "type: nvtrace annotate -- command [args]"},
	{"stat", "type: nvtrace stat -- command [args]; of a program that runs: its PID"},
	{"stat --repeat 0 -- true", "want 1 to 10000 runs"},
	{"stat --interval 1ms -- true", "want 10ms or more"},
	{"ps train.py", "pgrep -f finds a program's, nvtrace ps those that have a GPU"},
	{"where", "nvtrace where PID"},
	{"sample x", "a command stands behind --"},
	{"ctl 1 foo", "want start, stop or mark TEXT"},
	{"ctl x start", "nvtrace ctl PID start"},
	{"fleet report", "nvtrace fleet report DIR"},
	{"fleet watch", "nvtrace fleet watch DIR"},
	{"list kernl:x", "did you mean kernel?"},
	{"list kernel:x", "nvtrace list 'kernel:x' FILE..., or -- command"},
	{"list uprobe:x", "nvtrace list 'uprobe:/path/of/file:GLOB'"},
	{"list syscall:opn", "did you mean open?"},
	{"tool leaks", "type: nvtrace tool leaks -- command [args]"},
	{"tool leaks x -- true", "put -- before the command: nvtrace tool leaks -- x true"},
	{"tool --source", "tool --source wants the name of a tool"},
	{"version --completion ksh", "want bash, zsh or fish"},
	{"help flgs", "did you mean flags?"},
}

// TestWrongFlags: each has one line, which says what to do, and a status that says so.
func TestWrongFlags(t *testing.T) {
	for _, c := range wrongFlags {
		status, stdout, stderr := call(strings.Fields(c.line)...)
		if status != cli.ExitFailed && status != cli.ExitUsage || stdout != "" {
			t.Errorf("%s: status %d, %q", c.line, status, stdout)
		}
		if !strings.HasPrefix(stderr, "nvtrace: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s:\n%s\nwant %q in one line", c.line, stderr, c.want)
		}
	}
	if len(wrongFlags) < 60 {
		t.Errorf("only %d", len(wrongFlags))
	}
}

// TestWrongProbes: what is said of sources in C that are wrong. Each is compiled, which takes some 60 ms.
func TestWrongProbes(t *testing.T) {
	need.Tool(t, "clang", cprobe.ClangVar)
	text, err := os.ReadFile("testdata/wrong.bpf.c.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n== ")
	cases := strings.Split(rest, "\n== ")
	name := filepath.Join(t.TempDir(), "wrong.bpf.c")
	for _, c := range cases {
		want, source, _ := strings.Cut(c, "\n")
		if err := os.WriteFile(name, []byte(source+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := call("attach", name)
		if status != cli.ExitFailed && status != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s\nstatus %d, %s%s\nwant %q", source, status, stdout, stderr, want)
		}
	}
	if len(cases) < 60 {
		t.Errorf("only %d", len(cases))
	}
}
