package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// policy is the import graph: each package, then what of ours (and which
// guarded libraries) it may import. A package that is not listed may not exist.
// What is below a package's internal folder is part of it: it may import what
// the package may, the package itself, its like, and what generators share.
const policy = `
nvtrace/traces/escape        <
nvtrace/traces/glob          <
nvtrace/traces               < nvtrace/traces/escape github.com/klauspost/compress/zstd
nvtrace/ptrace/proc          <
nvtrace/ptrace               < nvtrace/ptrace/proc
nvtrace/ptrace/dso           < nvtrace/ptrace nvtrace/ptrace/proc github.com/ulikunitz/xz/lzma
nvtrace/ptrace/remote        < nvtrace/ptrace
nvtrace/ptrace/unwind        < nvtrace/ptrace nvtrace/ptrace/dso nvtrace/ptrace/proc
nvtrace/ptrace/jump          < nvtrace/ptrace/dso nvtrace/ptrace/proc nvtrace/ptrace/unwind
nvtrace/ptrace/agent         < nvtrace/ptrace nvtrace/ptrace/dso nvtrace/ptrace/jump nvtrace/ptrace/proc
nvtrace/ptrace/outside       < nvtrace/ptrace nvtrace/ptrace/proc nvtrace/ptrace/python nvtrace/ptrace/unwind
nvtrace/ptrace/python        < nvtrace/ptrace/dso nvtrace/ptrace/proc
nvtrace/rm                   <
nvtrace/ioctl/procmap     <
nvtrace/ioctl                < nvtrace/ioctl/procmap nvtrace/ioctl/nearest nvtrace/rm nvtrace/traces nvtrace/traces/escape nvtrace/traces/glob
nvtrace/ioctl/nearest        <
nvtrace/rm/channel           <
nvtrace/ioctl/channels       < nvtrace/fatbin nvtrace/ptrace/proc nvtrace/rm/channel nvtrace/rm
nvtrace/ioctl/query          < nvtrace/rm
nvtrace/ioctl/allow          < nvtrace/ioctl nvtrace/rm nvtrace/traces
nvtrace/ioctl/diff           < nvtrace/ioctl nvtrace/rm nvtrace/traces nvtrace/traces/glob
nvtrace/internal/testrec     < nvtrace/ioctl nvtrace/rm nvtrace/traces
nvtrace/traces/ranks         <
nvtrace/traces/record        < nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/traces nvtrace/traces/ranks
nvtrace/traces/stacks        < nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/python nvtrace/ptrace/unwind nvtrace/traces nvtrace/traces/record
nvtrace/ioctl/lookout        < nvtrace/ioctl/channels nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/ptrace/unwind nvtrace/traces nvtrace/traces/record nvtrace/traces/stacks
nvtrace/ioctl/record         < nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/ioctl nvtrace/rm nvtrace/traces nvtrace/traces/record
nvtrace/ioctl/replay         < nvtrace/ptrace nvtrace/ptrace/proc nvtrace/ioctl nvtrace/rm nvtrace/traces
nvtrace/nvattach/api/cuda    <
nvtrace/nvattach/owned       <
nvtrace/nvattach/preload     < nvtrace/ptrace/proc
nvtrace/nvattach/nvtx        < nvtrace/nvattach/preload
nvtrace/nvattach/interpose   < nvtrace/fatbin nvtrace/nvattach/preload
nvtrace/nvattach/capture     < nvtrace/fatbin nvtrace/nvattach/owned nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/dso nvtrace/ptrace/proc nvtrace/ptrace/remote nvtrace/traces nvtrace/nvattach/api/cuda
nvtrace/fatbin               < nvtrace/traces/escape github.com/klauspost/compress/zstd github.com/ianlancetaylor/demangle
nvtrace/fatbin/sass          < nvtrace/fatbin
nvtrace/nvattach/api         < nvtrace/traces nvtrace/traces/escape nvtrace/nvattach/api/cuda
nvtrace/ptx                  <
nvtrace/ptx/emu              < nvtrace/ptx
nvtrace/ptx/bpf              < nvtrace/ptx github.com/cilium/ebpf/asm
nvtrace/nvattach/sim         < nvtrace/traces/escape nvtrace/fatbin nvtrace/nvattach/preload nvtrace/ptrace/dso nvtrace/ptrace/proc nvtrace/ptx nvtrace/ptx/emu nvtrace/rm/channel nvtrace/nvattach/api/cuda
nvtrace/nvattach/values      < nvtrace/traces/escape github.com/cilium/ebpf/btf
nvtrace/nvattach/atomics     < nvtrace/ptx/bpf github.com/cilium/ebpf/asm
nvtrace/nvattach/helper      < nvtrace/ptx/bpf
nvtrace/nvattach/object      < nvtrace/fatbin nvtrace/nvattach/atomics nvtrace/nvattach/helper nvtrace/nvattach/values nvtrace/ptx/bpf nvtrace/traces/escape github.com/cilium/ebpf github.com/cilium/ebpf/asm github.com/cilium/ebpf/btf nvtrace/traces/glob
nvtrace/nvattach/mapmem      < nvtrace/nvattach/object nvtrace/nvattach/values nvtrace/traces/escape github.com/cilium/ebpf/btf
nvtrace/nvattach/hostmaps    < nvtrace/nvattach/helper nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/values
nvtrace/nvattach/emit        < nvtrace/nvattach/helper nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/ptx nvtrace/ptx/bpf
nvtrace/nvattach/proof       < nvtrace/fatbin nvtrace/fatbin/sass nvtrace/nvattach/atomics nvtrace/nvattach/emit nvtrace/nvattach/helper nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/ptx nvtrace/ptx/bpf github.com/cilium/ebpf/asm
nvtrace/nvattach/hostrun     < nvtrace/nvattach/atomics nvtrace/nvattach/helper nvtrace/nvattach/hostmaps nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/proof nvtrace/ptx/bpf github.com/cilium/ebpf/asm
nvtrace/nvattach             < nvtrace/nvattach/hostrun nvtrace/nvattach/atomics nvtrace/nvattach/emit nvtrace/nvattach/helper nvtrace/nvattach/hostmaps nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/proof nvtrace/nvattach/values nvtrace/fatbin nvtrace/fatbin/sass nvtrace/ptx nvtrace/ptx/bpf nvtrace/traces/escape github.com/cilium/ebpf github.com/cilium/ebpf/asm nvtrace/traces/glob
nvtrace/nvattach/script      < nvtrace/fatbin nvtrace/ioctl/nearest nvtrace/nvattach nvtrace/nvattach/helper nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/proof github.com/cilium/ebpf github.com/cilium/ebpf/asm nvtrace/traces/glob nvtrace/traces/escape
nvtrace/nvattach/sidecar     < nvtrace/fatbin nvtrace/nvattach nvtrace/ptx
nvtrace/nvattach/session     < nvtrace/fatbin nvtrace/nvattach nvtrace/nvattach/hostrun nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/sidecar nvtrace/nvattach/script nvtrace/traces/escape
nvtrace/nvattach/gpu         < nvtrace/fatbin nvtrace/fatbin/sass nvtrace/nvattach nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/capture nvtrace/nvattach/jit nvtrace/nvattach/preload nvtrace/nvattach/session nvtrace/nvattach/sim nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/dso nvtrace/ptrace/proc nvtrace/ptrace/remote nvtrace/ptx nvtrace/ptx/emu nvtrace/traces/ranks nvtrace/nvattach/api/cuda
nvtrace/nvattach/outcome     < nvtrace/fatbin nvtrace/nvattach/session nvtrace/nvattach/sim nvtrace/ptrace nvtrace/traces nvtrace/traces/record
nvtrace/nvattach/control     < nvtrace/nvattach/owned
nvtrace/nvattach/host        < nvtrace/ioctl/nearest nvtrace/nvattach nvtrace/nvattach/hostrun nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/api nvtrace/nvattach/control nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/dso nvtrace/ptrace/jump nvtrace/ptrace/proc nvtrace/ptrace/unwind nvtrace/ptx/bpf nvtrace/traces/glob
nvtrace/nvattach/cudart      < nvtrace/ptrace/dso
nvtrace/nvattach/calls       < nvtrace/nvattach/api nvtrace/nvattach/cudart nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/dso nvtrace/ptrace/proc
nvtrace/nvattach/jit         < nvtrace/nvattach/owned
nvtrace/examples/rminfo      < nvtrace/rm
nvtrace/examples/rmlaunch    < nvtrace/fatbin nvtrace/rm nvtrace/rm/channel
nvtrace/examples/events      < nvtrace/nvattach nvtrace/nvattach/hostrun nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/ptx/bpf nvtrace/traces/glob
nvtrace/bench/recording      < nvtrace/internal/testrec nvtrace/traces
nvtrace/cmd/nvtrace/internal/export < nvtrace/cmd/nvtrace/internal/observe nvtrace/cmd/nvtrace/internal/traits nvtrace/ioctl/procmap nvtrace/ioctl nvtrace/nvattach/api nvtrace/nvattach/nccl nvtrace/rm nvtrace/traces nvtrace/traces/escape github.com/google/pprof/profile github.com/klauspost/compress/zstd
nvtrace/nvattach/nccl        < nvtrace/nvattach/api nvtrace/traces
nvtrace/cmd/nvtrace/internal/prom <
nvtrace/cmd/nvtrace/internal/push < nvtrace/cmd/nvtrace/internal/prom github.com/google/pprof/profile
nvtrace/cmd/nvtrace/internal/telemetry < nvtrace/cmd/nvtrace/internal/export nvtrace/cmd/nvtrace/internal/observe nvtrace/cmd/nvtrace/internal/prom nvtrace/cmd/nvtrace/internal/push nvtrace/cmd/nvtrace/internal/view nvtrace/fatbin nvtrace/nvattach/api nvtrace/nvattach/nccl nvtrace/traces nvtrace/traces/ranks
nvtrace/cmd/nvtrace/internal/parquet < github.com/klauspost/compress/zstd
nvtrace/cmd/nvtrace/internal/fleet < nvtrace/cmd/nvtrace/internal/prom nvtrace/cmd/nvtrace/internal/observe nvtrace/cmd/nvtrace/internal/parquet nvtrace/cmd/nvtrace/internal/traits nvtrace/nvattach/nccl nvtrace/traces nvtrace/traces/escape nvtrace/traces/ranks
nvtrace/cmd/nvtrace/internal/ras <
nvtrace/cmd/nvtrace/internal/units <
nvtrace/cmd/nvtrace/internal/traits < nvtrace/cmd/nvtrace/internal/observe nvtrace/nvattach/api nvtrace/traces nvtrace/traces/ranks
nvtrace/cmd/nvtrace/internal/observe < nvtrace/ioctl nvtrace/nvattach/api nvtrace/traces
nvtrace/cmd/nvtrace/internal/places <
nvtrace/cmd/nvtrace/internal/cprobe < nvtrace/nvattach
nvtrace/cmd/nvtrace/internal/look < nvtrace/cmd/nvtrace/internal/units nvtrace/fatbin nvtrace/ioctl/channels nvtrace/ptrace/outside nvtrace/ptrace/proc nvtrace/rm/channel nvtrace/traces/escape
nvtrace/cmd/nvtrace/internal/sample < nvtrace/ioctl/channels nvtrace/traces
nvtrace/cmd/nvtrace/internal/cli < github.com/olekukonko/tablewriter github.com/olekukonko/tablewriter/tw nvtrace/cmd/nvtrace/internal/units nvtrace/ioctl nvtrace/nvattach/script nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/rm nvtrace/traces nvtrace/traces/escape nvtrace/traces/record
nvtrace/cmd/nvtrace/internal/clitest < nvtrace/cmd/nvtrace/internal/cli nvtrace/internal/testrec nvtrace/traces
nvtrace/cmd/nvtrace/internal/code < nvtrace/cmd/nvtrace/internal/cli nvtrace/fatbin nvtrace/fatbin/sass nvtrace/ptx nvtrace/ptx/emu nvtrace/traces/glob
nvtrace/cmd/nvtrace/internal/objects < nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/units nvtrace/cmd/nvtrace/internal/observe nvtrace/ioctl nvtrace/rm nvtrace/traces
nvtrace/cmd/nvtrace/internal/probe < nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/code nvtrace/cmd/nvtrace/internal/cprobe nvtrace/fatbin nvtrace/fatbin/sass nvtrace/ioctl nvtrace/nvattach nvtrace/nvattach/api nvtrace/nvattach/gpu nvtrace/nvattach/host nvtrace/nvattach/jit nvtrace/nvattach/mapmem nvtrace/nvattach/object nvtrace/nvattach/preload nvtrace/nvattach/script nvtrace/nvattach/sim nvtrace/ptrace nvtrace/ptrace/dso nvtrace/ptrace/proc nvtrace/ptrace/unwind nvtrace/traces/escape nvtrace/traces/glob
nvtrace/cmd/nvtrace/internal/view < nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/code nvtrace/cmd/nvtrace/internal/export nvtrace/cmd/nvtrace/internal/fleet nvtrace/cmd/nvtrace/internal/objects nvtrace/cmd/nvtrace/internal/probe nvtrace/cmd/nvtrace/internal/ras nvtrace/cmd/nvtrace/internal/units nvtrace/cmd/nvtrace/internal/observe nvtrace/fatbin nvtrace/fatbin/sass nvtrace/ioctl nvtrace/ioctl/allow nvtrace/ioctl/diff nvtrace/nvattach nvtrace/nvattach/api nvtrace/nvattach/calls nvtrace/nvattach/capture nvtrace/nvattach/gpu nvtrace/nvattach/object nvtrace/nvattach/script nvtrace/nvattach/session nvtrace/ptrace nvtrace/ptrace/proc nvtrace/rm nvtrace/traces nvtrace/traces/escape nvtrace/traces/ranks nvtrace/traces/record nvtrace/cmd/nvtrace/internal/prom nvtrace/nvattach/nccl nvtrace/ptrace/outside nvtrace/traces/glob
nvtrace/cmd/nvtrace/internal/live < nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/code nvtrace/cmd/nvtrace/internal/look nvtrace/cmd/nvtrace/internal/objects nvtrace/cmd/nvtrace/internal/places nvtrace/cmd/nvtrace/internal/probe nvtrace/cmd/nvtrace/internal/sample nvtrace/cmd/nvtrace/internal/view nvtrace/fatbin nvtrace/ioctl nvtrace/ioctl/channels nvtrace/ioctl/record nvtrace/nvattach/jit nvtrace/ptrace/proc nvtrace/rm nvtrace/rm/channel nvtrace/traces nvtrace/traces/escape nvtrace/traces/record nvtrace/ioctl/query nvtrace/cmd/nvtrace/internal/prom nvtrace/traces/ranks
nvtrace/cmd/nvtrace/internal/annotate < nvtrace/fatbin
nvtrace/cmd/nvtrace/internal/run < nvtrace/cmd/nvtrace/internal/telemetry nvtrace/cmd/nvtrace/internal/annotate nvtrace/cmd/nvtrace/internal/prom nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/live nvtrace/cmd/nvtrace/internal/look nvtrace/cmd/nvtrace/internal/probe nvtrace/cmd/nvtrace/internal/trackers nvtrace/cmd/nvtrace/internal/view nvtrace/fatbin nvtrace/ioctl nvtrace/ioctl/lookout nvtrace/ioctl/record nvtrace/ioctl/replay nvtrace/nvattach nvtrace/nvattach/api nvtrace/nvattach/calls nvtrace/nvattach/capture nvtrace/nvattach/control nvtrace/nvattach/gpu nvtrace/nvattach/host nvtrace/nvattach/hostmaps nvtrace/nvattach/hostrun nvtrace/nvattach/interpose nvtrace/nvattach/jit nvtrace/nvattach/mapmem nvtrace/nvattach/nvtx nvtrace/nvattach/object nvtrace/nvattach/outcome nvtrace/nvattach/owned nvtrace/nvattach/script nvtrace/nvattach/session nvtrace/nvattach/sim nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/ptrace/unwind nvtrace/ptx/emu nvtrace/traces nvtrace/traces/ranks nvtrace/traces/record nvtrace/traces/stacks nvtrace/traces/glob
nvtrace/cmd/nvtrace/internal/verbs < nvtrace/nvattach/proof nvtrace/cmd/nvtrace/internal/cli nvtrace/cmd/nvtrace/internal/code nvtrace/cmd/nvtrace/internal/live nvtrace/cmd/nvtrace/internal/objects nvtrace/cmd/nvtrace/internal/probe nvtrace/cmd/nvtrace/internal/run nvtrace/cmd/nvtrace/internal/view nvtrace/ioctl nvtrace/nvattach nvtrace/nvattach/helper nvtrace/nvattach/object nvtrace/nvattach/script nvtrace/rm nvtrace/traces nvtrace/traces/escape nvtrace/nvattach/api nvtrace/ptrace/proc
nvtrace/cmd/nvtrace          <
nvtrace/cmd/nvtrace/internal/trackers < nvtrace/ioctl/channels nvtrace/nvattach/api nvtrace/ptrace nvtrace/ptrace/agent nvtrace/ptrace/proc nvtrace/traces nvtrace/traces/record
`

// What is below shared imports nothing of ours that the policy does not list, and nothing
// that becomes part of nvtrace imports it: it is for tests, and below generators for the programs that
// make our tables and embedded files.
const (
	shared     = "nvtrace/internal/"
	generators = shared + "gen/"
)

// guarded are libraries that only packages named in the policy may import.
var guarded = []string{
	"github.com/olekukonko/", "github.com/cilium/ebpf", "github.com/google/pprof",
	"github.com/klauspost/compress", "github.com/ianlancetaylor/demangle", "github.com/ulikunitz/xz",
	"google.golang.org/", "go.opentelemetry.io/",
}

func parsePolicy(t *testing.T, text string) map[string][]string {
	t.Helper()
	allowed := make(map[string][]string)
	for line := range strings.Lines(strings.TrimSpace(text)) {
		pkg, deps, ok := strings.Cut(line, "<")
		if !ok {
			t.Fatalf("policy line without '<': %q", line)
		}
		allowed[strings.TrimSpace(pkg)] = strings.Fields(deps)
	}
	return allowed
}

// violations holds imports (lines "package: import import …") against a policy.
func violations(allowed map[string][]string, imports string) []string {
	var bad []string
	for line := range strings.Lines(strings.TrimSpace(imports)) {
		pkg, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		pkg = strings.TrimSuffix(pkg, ":")
		owner, _, internal := strings.Cut(pkg, "/internal/")
		if allowed[pkg] != nil {
			owner = pkg
		}
		deps, known := allowed[owner]
		if !known && !strings.HasPrefix(pkg, shared) {
			bad = append(bad, pkg+" is not in the policy")
			continue
		}
		for imp := range strings.FieldsSeq(rest) {
			ours := strings.HasPrefix(imp, "nvtrace/") && imp != owner && !strings.HasPrefix(imp, owner+"/internal/")
			if internal && strings.HasPrefix(imp, generators) {
				continue
			}
			isGuarded := slices.ContainsFunc(guarded, func(g string) bool { return strings.HasPrefix(imp, g) })
			if (ours || isGuarded) && !slices.Contains(deps, imp) {
				bad = append(bad, pkg+" may not import "+imp)
			}
		}
	}
	return bad
}

// backwards returns the arrows of the policy between folders that run in a circle: a folder at
// the top of the repository that imports another, from which imports lead back to it. What
// stands in one folder is then above the whole other.
func backwards(allowed map[string][]string) (list []string) {
	top := func(pkg string) string {
		folder, _, _ := strings.Cut(strings.TrimPrefix(pkg, "nvtrace/"), "/")
		return folder
	}
	arrows := make(map[string]map[string]bool)
	for pkg, deps := range allowed {
		for _, imp := range deps {
			if from, to := top(pkg), top(imp); strings.HasPrefix(imp, "nvtrace/") && from != to {
				if arrows[from] == nil {
					arrows[from] = make(map[string]bool)
				}
				arrows[from][to] = true
			}
		}
	}
	var leads func(from, to string, seen map[string]bool) bool
	leads = func(from, to string, seen map[string]bool) bool {
		if from == to {
			return true
		}
		seen[from] = true
		for next := range arrows[from] {
			if !seen[next] && leads(next, to, seen) {
				return true
			}
		}
		return false
	}
	for from := range arrows {
		for to := range arrows[from] {
			if leads(to, from, make(map[string]bool)) {
				list = append(list, from+" imports "+to+", which leads back")
			}
		}
	}
	slices.Sort(list)
	return list
}

// TestFolders: no arrow between folders runs back up.
func TestFolders(t *testing.T) {
	for _, arrow := range backwards(parsePolicy(t, policy)) {
		t.Error(arrow)
	}
	planted := "nvtrace/traces <\nnvtrace/traces/views < nvtrace/ioctl\nnvtrace/ioctl < nvtrace/rm nvtrace/traces\nnvtrace/rm <\n"
	want := []string{"ioctl imports traces, which leads back", "traces imports ioctl, which leads back"}
	if got := backwards(parsePolicy(t, planted)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestImportGraph(t *testing.T) {
	allowed := parsePolicy(t, policy)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}: {{join .Imports " "}}`, "nvtrace/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, v := range violations(allowed, string(out)) {
		t.Error(v)
	}
	planted := "nvtrace/rm: fmt nvtrace/ptx\nnvtrace/ptrace: github.com/olekukonko/tablewriter\nnvtrace/new: fmt\nnvtrace/traces: io\n" +
		"nvtrace/rm/internal/gen: nvtrace/rm nvtrace/rm/internal/wire nvtrace/internal/gen/ctoken nvtrace/ioctl\nnvtrace/ioctl: nvtrace/rm/internal/wire\n" +
		"nvtrace/internal/gen/ctoken: fmt nvtrace/internal/gen/built nvtrace/rm\nnvtrace/rm: nvtrace/internal/gen/ctoken\n" +
		"nvtrace/ioctl: nvtrace/internal/need\n"
	want := []string{
		"nvtrace/rm may not import nvtrace/ptx",
		"nvtrace/ptrace may not import github.com/olekukonko/tablewriter",
		"nvtrace/new is not in the policy",
		"nvtrace/rm/internal/gen may not import nvtrace/ioctl",
		"nvtrace/ioctl may not import nvtrace/rm/internal/wire",
		"nvtrace/internal/gen/ctoken may not import nvtrace/rm",
		"nvtrace/rm may not import nvtrace/internal/gen/ctoken",
		"nvtrace/ioctl may not import nvtrace/internal/need",
	}
	if got := violations(allowed, planted); !slices.Equal(got, want) {
		t.Errorf("planted violations: got %q, want %q", got, want)
	}
}

// TestTables: one package draws tables, so that all look alike and the library can be replaced.
func TestTables(t *testing.T) {
	var users []string
	for pkg, deps := range parsePolicy(t, policy) {
		if slices.ContainsFunc(deps, func(d string) bool { return strings.HasPrefix(d, "github.com/olekukonko/") }) {
			users = append(users, pkg)
		}
	}
	if want := []string{"nvtrace/cmd/nvtrace/internal/cli"}; !slices.Equal(users, want) {
		t.Errorf("tables are drawn by %q, want %q", users, want)
	}
}

// TestPinned: what the build and the tests fetch is told by its hash: Go's modules in
// go.sum, tools that are run by their version (Go's checksum database), wheels by
// --require-hashes.
func TestPinned(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z", "Makefile", ".ci", "*.sh", "*.py", "*.mk", "*/Makefile").Output()
	if err != nil {
		t.Skipf("git: %v", err)
	}
	seen := 0
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "\\\n", " ")
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			if strings.Contains(line, "pip install") || strings.Contains(line, "pip download") {
				seen++
				if !strings.Contains(line, "--require-hashes") {
					t.Errorf("%s: without --require-hashes: %s", name, line)
				}
			}
			if strings.Contains(line, "curl ") || strings.Contains(line, "wget ") || strings.Contains(line, "@latest") {
				t.Errorf("%s: fetches what no hash tells: %s", name, line)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d lines fetch wheels: the test looks in the wrong place", seen)
	}
}
