package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/internal/need"
	"nvtrace/nvattach/script"
)

// A block of commands on a page, as users type them. Words behind "```console", which readers do not see, say how
// the test is to take it:
//
//	gpu        not run: it needs a GPU, or a program that has one
//	elsewhere  not run: it needs a cluster, a container, root, the network, or is run by another test
//	running    PID is that of a program that runs on the simulated GPU
//	status=N   commands may end with N instead of 0
//	excerpt    what is shown are lines of the output, in that order
//	numbers    numbers and their units are examples
//
// A block "```c append=FILE" is written to the end of that file.
//
// Without excerpt, all of the output is shown, except what the program prints itself and lines that say "probed …".
// A command below which nothing is shown may print anything. In what is shown, … is any text, and a line of … any
// lines.
type docBlock struct {
	line     int
	marks    []string
	commands []docCommand
	file     string // that body is appended to
	body     []string
}

type docCommand struct{ text, shown string }

// docFlags are given to each command of a page that traces a program, besides --sim.
var docFlags = regexp.MustCompile(`<!-- commands are run with: (.*) -->`)

// docMarks are the words that a block may have.
var docMarks = regexp.MustCompile(`^(gpu|elsewhere|running|excerpt|numbers|status=\d+)$`)

// docBlocks takes the blocks out of a page. A block of commands that is not called console is an error.
func docBlocks(page string) (blocks []docBlock, err error) {
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], "    nvtrace ") {
			err = errors.Join(err, fmt.Errorf("line %d: a command that is not in a block ```console", i+1))
		}
		info, ok := strings.CutPrefix(lines[i], "```")
		if !ok {
			continue
		}
		b := docBlock{line: i + 1}
		words := strings.Fields(info)
		from := i + 1
		for i = from; i < len(lines) && lines[i] != "```"; {
			i++
		}
		body := lines[from:i]
		if len(words) == 2 && words[0] == "c" && strings.HasPrefix(words[1], "append=") {
			blocks = append(blocks, docBlock{line: b.line, file: strings.TrimPrefix(words[1], "append="), body: body})
			continue
		}
		if len(words) == 0 || words[0] != "console" {
			if slices.ContainsFunc(body, func(l string) bool { return strings.HasPrefix(l, "$ ") || strings.HasPrefix(l, "nvtrace ") }) {
				err = errors.Join(err, fmt.Errorf("line %d: a block of commands that does not begin with ```console", b.line))
			}
			continue
		}
		b.marks = words[1:]
		for _, m := range b.marks {
			if !docMarks.MatchString(m) {
				err = errors.Join(err, fmt.Errorf("line %d: no such mark: %s", b.line, m))
			}
		}
		for len(body) > 0 {
			text, ok := strings.CutPrefix(body[0], "$ ")
			if body = body[1:]; !ok {
				err = errors.Join(err, fmt.Errorf("line %d: a block of commands begins with \"$ \"", b.line))
				break
			}
			for len(body) > 0 && (strings.HasSuffix(text, `\`) || strings.Count(shellComment.ReplaceAllString(text, ""), "'")%2 == 1) {
				text += "\n" + body[0]
				body = body[1:]
			}
			n := slices.IndexFunc(body, func(l string) bool { return strings.HasPrefix(l, "$ ") })
			if n < 0 {
				n = len(body)
			}
			b.commands = append(b.commands, docCommand{text, strings.Join(body[:n], "\n")})
			body = body[n:]
		}
		blocks = append(blocks, b)
	}
	return blocks, err
}

// shellComment is the comment of a command.
var shellComment = regexp.MustCompile(`\s#.*`)

// has reports whether a block has a mark.
func (b *docBlock) has(mark string) bool { return slices.Contains(b.marks, mark) }

// run reports whether the test runs a block.
func (b *docBlock) run() bool { return !b.has("gpu") && !b.has("elsewhere") }

// status reports whether a command of the block may end with a status.
func (b *docBlock) status(n int) bool { return n == 0 || b.has("status="+strconv.Itoa(n)) }

// tracesIt finds the commands that trace a program.
var tracesIt = regexp.MustCompile(`\bnvtrace ((?:run|stat|top|tool|annotate|sample|-\S+) (?:'[^']*'|[^'\n|;&])*?)?-- `)

// simulated has a command line run its program on the simulated GPU.
func simulated(line, flags string) string {
	return tracesIt.ReplaceAllStringFunc(line, func(s string) string {
		if strings.Contains(s, "--sim ") {
			return s
		}
		return strings.TrimSuffix(s, "-- ") + strings.TrimLeft(flags+" --sim -- ", " ")
	})
}

// number is a number with its unit, or without.
var number = regexp.MustCompile(`-?[0-9]+([.,][0-9]+)*( ?(ns|µs|ms|s|B|KiB|MiB|GiB)\b)?`)

// alike makes all numbers, their units and the room between words the same.
func alike(text string) string {
	text = number.ReplaceAllString(text, "0")
	return strings.ReplaceAll(regexp.MustCompile(` +`).ReplaceAllString(text, " "), "[ ", "[")
}

// docOutput is what the program of the pages prints itself.
const docOutput = "vectorAdd of 50000 elements on NVIDIA H200: ok"

// match compares what a page shows of a command with what that printed.
func (b *docBlock) match(shown, out string) bool {
	if shown == "" {
		return true
	}
	if b.has("numbers") {
		shown, out = alike(shown), alike(out)
	}
	var kept []string
	for l := range strings.SplitSeq(strings.TrimRight(out, "\n"), "\n") {
		if strings.HasPrefix(l, "probed ") && !strings.Contains(shown, "probed ") || l == docOutput && !strings.Contains(shown, docOutput) {
			continue
		}
		kept = append(kept, strings.TrimRight(l, " "))
	}
	var rx strings.Builder
	rx.WriteString(`\A`)
	lines := strings.Split(strings.TrimRight(shown, "\n"), "\n")
	for i, l := range lines {
		if l == "…" {
			rx.WriteString(`(?:.*\n)*?`)
			continue
		}
		if b.has("excerpt") {
			rx.WriteString(`(?:.*\n)*?`)
		}
		var q strings.Builder
		for n, part := range strings.Split(l, "…") {
			if n > 0 {
				q.WriteString(".*")
			}
			q.WriteString(regexp.QuoteMeta(part))
		}
		rx.WriteString(q.String() + `\n`)
		if i == len(lines)-1 && b.has("excerpt") {
			rx.WriteString(`(?:.*\n)*`)
		}
	}
	text := strings.TrimRight(strings.Join(kept, "\n"), "\n") + "\n"
	return regexp.MustCompile(rx.String() + `\z`).MatchString(text)
}

// TestDocCommands: every command on the pages runs on the simulated GPU or on recordings, and prints what the page
// shows, or it is marked as one that can't be run here. Commands of a page run in its order, in one shell.
func TestDocCommands(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	// Not a script that stands for Python and starts dozens of programs.
	python, err := exec.Command(need.Tool(t, "python3", ""), "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	nvtrace, vectoradd, hang := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "vectoradd"), filepath.Join(dir, "hang")
	if !compileVictim(t, "../../examples/cuda/vectoradd_driver.c", vectoradd) || !compileVictim(t, "../../nvattach/sim/testdata/hang.c", hang) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	for _, name := range []string{"python", "python3"} {
		if err := os.Symlink(strings.TrimSpace(string(python)), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = exec.LookPath("clang")
	clang := err == nil
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	var ran, left atomic.Int64
	t.Run("pages", func(t *testing.T) {
		for _, file := range append(pages, "../../README.md") {
			name := filepath.Base(file)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := docBlocks(string(b))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				flags := ""
				if m := docFlags.FindStringSubmatch(string(b)); m != nil {
					flags = m[1]
				}
				p := docPage{flags: flags, clang: clang, tools: dir}
				p.run(t, blocks)
				ran.Add(p.ran)
				left.Add(p.left)
			})
		}
	})
	t.Logf("%d commands were run, %d are marked as such that can't be", ran.Load(), left.Load())
	if ran.Load() < 100 && clang && wholePages() {
		t.Errorf("%d commands were run", ran.Load())
	}
}

// wholePages reports whether all pages were to be run.
func wholePages() bool { return !strings.Contains(flag.Lookup("test.run").Value.String(), "/") }

// docPage runs the commands of a page.
type docPage struct {
	flags     string
	clang     bool
	tools     string // the folder with nvtrace and vectoradd
	ran, left int64
}

// run runs the blocks of a page in a folder that has what users have: the repository's files, a program, recordings.
func (p *docPage) run(t *testing.T, blocks []docBlock) {
	dir := t.TempDir()
	for _, name := range []string{"bench", "examples", "fatbin", "nvattach", "ptx", "traces"} {
		abs, err := filepath.Abs("../../" + name)
		if err = errors.Join(err, os.Symlink(abs, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	copies := map[string]string{
		"train.py": "testdata/where.py", "app": p.tools + "/vectoradd", "vectoradd": p.tools + "/vectoradd", "bin/vectoradd": p.tools + "/vectoradd",
		"c.nvt": "../../traces/corpus/threads.nvt", "libfoo.so": "../../fatbin/testdata/libtwo.13.0.so", "foo.cubin": "../../fatbin/testdata/kernels.13.0.sm_90a.cubin",
		"foo.ptx": "../../ptx/testdata/kernels/basic/saxpy.nvcc13.0.sm_80.ptx",
	}
	for _, name := range []string{"run.nvt", "a.nvt", "b.nvt", "good.nvt", "bad.nvt"} {
		copies[name] = "../../traces/corpus/vectoradd.nvt"
	}
	for to, from := range copies {
		b, err := os.ReadFile(from)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755), os.WriteFile(filepath.Join(dir, to), b, 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	var sh strings.Builder
	type result struct {
		block *docBlock
		docCommand
		out, status string
	}
	var results []result
	for i := range blocks {
		b := &blocks[i]
		if b.file != "" {
			fmt.Fprintf(&sh, "cat >>%s <<'THE END'\n%s\nTHE END\n", b.file, strings.Join(b.body, "\n"))
			continue
		}
		if !b.run() {
			p.left += int64(len(b.commands))
			continue
		}
		for _, c := range b.commands {
			if !p.clang && strings.Contains(c.text, ".bpf.c") {
				if need.Required("clang") {
					t.Fatal("clang is required (NVTRACE_REQUIRE) and not installed")
				}
				continue
			}
			r := result{block: b, docCommand: c}
			r.out, r.status = filepath.Join(dir, fmt.Sprint(".out", len(results))), filepath.Join(dir, fmt.Sprint(".status", len(results)))
			line := simulated(c.text, p.flags)
			if b.has("running") {
				line = strings.NewReplacer("PID", "$PID", "$(pgrep -x app)", "$PID", "$(pgrep -of train.py)", "$PID").Replace(line)
			}
			fmt.Fprintf(&sh, "{ %s\n} >%s 2>&1; echo $? >%s\n", line, r.out, r.status)
			results = append(results, r)
		}
	}
	if len(results) == 0 {
		return
	}
	// A script in a file, whose commands may read stdin.
	file := filepath.Join(dir, ".commands.sh")
	if err := os.WriteFile(file, []byte(sh.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+p.tools+":"+os.Getenv("PATH"), "NO_COLOR=1", "TMPDIR="+t.TempDir(), "NVTRACE_CACHE="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that all of it can be ended
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if slices.ContainsFunc(blocks, func(b docBlock) bool { return b.has("running") }) {
		cmd.Env = append(cmd.Env, "PID="+strconv.Itoa(p.start(t)))
	}
	b, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		t.Errorf("%v: %s", err, b)
	}
	for _, r := range results {
		out, err := os.ReadFile(r.out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(r.status)
		status, err := strconv.Atoi(strings.TrimSpace(string(text)))
		switch {
		case err != nil:
			t.Errorf("line %d: %s: did not end", r.block.line, r.text)
		case !r.block.status(status):
			t.Errorf("line %d: %s: status %d: %.2000s", r.block.line, r.text, status, out)
		case !r.block.match(r.shown, string(out)):
			t.Errorf("line %d: $ %s\n%.2000s\nthe page shows\n%s", r.block.line, r.text, out, r.shown)
		default:
			p.ran++
		}
	}
}

// start starts a program whose kernel waits on the simulated GPU, and returns its process.
func (p *docPage) start(t *testing.T) int {
	t.Helper()
	dir := t.TempDir()
	var stderr strings.Builder
	cmd := exec.Command(filepath.Join(p.tools, "nvtrace"), "-q", "--sim", "--sim-timeout", "1h", "--", filepath.Join(p.tools, "hang"))
	cmd.Dir, cmd.Stderr = dir, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(dir, "go"), nil, 0o644) // its kernel ends
		_ = cmd.Wait()
	})
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			for pid := range strings.FieldsSeq(string(b)) {
				comm, _ := os.ReadFile("/proc/" + pid + "/comm")
				if string(comm) != "hang\n" {
					continue
				}
				if out, _ := exec.Command(cmd.Path, "ps", "--names", pid).Output(); strings.Contains(string(out), "forever") {
					n, _ := strconv.Atoi(pid)
					return n
				}
			}
		}
	}
	t.Fatalf("the program with a kernel that waits did not come to it: %s", &stderr)
	return 0
}

// gpuScript has TestGPUScript write what the pages mark gpu, for a machine with a GPU.
var gpuScript = flag.String("gpu-script", "", "TestGPUScript: write the commands that pages mark gpu to this `file`")

// TestGPUScript: commands that need a GPU are a script, which runs each and says how it ended. In a folder with
// nvtrace in the path, vectoradd and train.py, and $PID a training that runs: go test -run TestGPUScript -gpu-script
// FILE, and bash FILE there. A command that does not end by itself gets what Ctrl-C sends.
func TestGPUScript(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	var sh strings.Builder
	n := 0
	sh.WriteString("mkdir -p out\n")
	for _, file := range append(pages, "../../README.md") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := docBlocks(string(b))
		if err != nil {
			t.Fatal(err)
		}
		for i := range blocks {
			if !blocks[i].has("gpu") {
				continue
			}
			for _, c := range blocks[i].commands {
				n++
				line := gpuPID.ReplaceAllString(shellComment.ReplaceAllString(c.text, ""), "$1 $$PID")
				fmt.Fprintf(&sh, "cat >.command <<'THE END'\n%s\nTHE END\ntimeout -k 5 -s INT ${LIMIT:-15} bash .command </dev/null >out/%02d.txt 2>&1; echo \"%02d $? %s:%d\" >>out/ended.txt\n",
					line, n, n, filepath.Base(file), blocks[i].line)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d commands need a GPU", n)
	}
	if out, err := exec.Command("bash", "-n", "-c", sh.String()).CombinedOutput(); err != nil {
		t.Errorf("the script is none: %v: %s", err, out)
	}
	if *gpuScript != "" {
		if err := os.WriteFile(*gpuScript, []byte(sh.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// gpuPID is what stands for a process on pages.
var gpuPID = regexp.MustCompile(`(-p|sample|top|where|pushbuffer) (PID|[0-9]{3,}|\$\(pgrep[^)]*\))`)

// TestDocBlocks: what is taken out of pages, and what counts as the same output.
func TestDocBlocks(t *testing.T) {
	for _, tt := range []struct {
		name, marks, shown, out string
		want                    bool
	}{
		{"same", "", "a\nb", "a\nb\n", true},
		{"a line is missing", "", "a", "a\nb\n", false},
		{"a line too many", "", "a\nb", "a\n", false},
		{"nothing shown", "", "", "a\n", true},
		{"probed", "", "a", "a\nprobed f (1 site)\n", true},
		{"probed shown", "", "a\nprobed f (2 sites)", "a\nprobed f (1 site)\n", false},
		{"any text", "", "a … c", "a b c\n", true},
		{"any lines", "", "a\n…", "a\nb\nc\n", true},
		{"any lines before", "", "…\nc", "a\nb\nc\n", true},
		{"excerpt", "excerpt", "b\nd", "a\nb\nc\nd\ne\n", true},
		{"excerpt in another order", "excerpt", "d\nb", "a\nb\nc\nd\ne\n", false},
		{"another number", "", "took 1.5 ms", "took 2 ms\n", false},
		{"numbers", "numbers", "took 1.5 ms of 7", "took  812 µs of 12\n", true},
		{"numbers, another word", "numbers", "took 1.5 ms", "gave 1.5 ms\n", false},
	} {
		b := docBlock{marks: strings.Fields(tt.marks)}
		if got := b.match(tt.shown, tt.out); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	blocks, err := docBlocks("# T\n\n```console gpu\n$ a 'b\nc' d\nout\n$ e\n```\n```c\nx\n```\n")
	if err != nil || len(blocks) != 1 || blocks[0].run() || !slices.Equal(blocks[0].commands, []docCommand{{"a 'b\nc' d", "out"}, {"e", ""}}) {
		t.Errorf("%v %+v", err, blocks)
	}
	for _, page := range []string{"```console gup\n$ a\n```\n", "```\n$ nvtrace\n```\n", "    nvtrace ps\n", "```console\nnvtrace ps\n```\n"} {
		if _, err := docBlocks(page); err == nil {
			t.Errorf("no error: %q", page)
		}
	}
	for line, want := range map[string]string{
		"nvtrace -- ./app":                  "nvtrace --sim -- ./app",
		"nvtrace -e 'a -- b' -- ./app":      "nvtrace -e 'a -- b' -q --sim -- ./app",
		"nvtrace stat --sim -- ./app | cat": "nvtrace stat --sim -- ./app | cat",
		"nvtrace doctor -- ./app":           "nvtrace doctor -- ./app",
	} {
		flags := "-q"
		if !strings.Contains(want, "-q") {
			flags = ""
		}
		if got := simulated(line, flags); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}

func TestDocs(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(readme), "\n"); n > 200 {
		t.Errorf("README.md has %d lines; 200 are the most", n)
	}
	for _, tool := range script.Tools() {
		b, err := os.ReadFile(filepath.Join("../../docs/samples", tool.Name+".txt"))
		if err != nil || len(b) == 0 {
			t.Errorf("tool %s has no sample: %v", tool.Name, err)
		}
	}
}

// TestDiffOfDocs: the lines that docs/launch.md shows of a diff are in it, in that order; and
// all calls of the recording have names.
func TestDiffOfDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/launch.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "$ nvtrace diff traces/corpus/vectoradd.nvt traces/corpus/rmlaunch.nvt\n")
	shown, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("docs/launch.md has no diff")
	}
	t.Chdir("../..")
	status, out, stderr := clitest.Run(t, view.DiffVerb, "traces/corpus/vectoradd.nvt", "traces/corpus/rmlaunch.nvt")
	if status != cli.ExitDiffers {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for line := range strings.Lines(shown) {
		if line == "…\n" {
			continue
		}
		if _, out, found = strings.Cut(out, line); !found {
			t.Errorf("not there, or not in that order: %s", line)
		}
	}
	if _, out, _ = clitest.Run(t, view.ReportVerb, "traces/corpus/rmlaunch.nvt"); !strings.Contains(out, "\n49 ioctls in 20.0 ms, 0 failed, 0 unknown;") {
		t.Errorf("the report of rmlaunch has calls without a name, or others than were recorded:\n%s", out)
	}
}
