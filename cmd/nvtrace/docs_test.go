package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/script"
)

// shellWords takes apart a command whose quotes are single.
func shellWords(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2])
	}
	return words
}

// TestOneLinersOfDocs runs each command of docs/one-liners.md on the simulated GPU. It must
// show what stands below it, but for …, which is any text.
func TestOneLinersOfDocs(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	page, err := os.ReadFile("../../docs/one-liners.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	nvtrace := filepath.Join(dir, "nvtrace")
	if !compileVictim(t, "../../examples/cuda/vectoradd_driver.c", filepath.Join(dir, "vectoradd")) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for example := range strings.SplitSeq("\n"+block[1], "\n$ ") {
			line, want, _ := strings.Cut(example, "\n")
			if line == "" {
				continue
			}
			ran++
			words := shellWords(line)
			if words[0] != "nvtrace" {
				t.Fatalf("not a command of nvtrace: %s", line)
			}
			var stderr strings.Builder
			cmd := exec.Command(nvtrace, append([]string{"-q", "--sim"}, words[1:]...)...)
			cmd.Dir, cmd.Stderr = dir, &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v: %s", line, err, &stderr)
				continue
			}
			var got strings.Builder
			for l := range strings.Lines(stderr.String()) {
				if !strings.HasPrefix(l, "probed ") {
					got.WriteString(l)
				}
			}
			rx := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSuffix(want, "\n")), "…", ".+")
			if !regexp.MustCompile(`^` + rx + `\n*$`).MatchString(got.String()) {
				t.Errorf("$ %s\n%swant\n%s", line, got.String(), want)
			}
		}
	}
	if ran < 20 {
		t.Errorf("%d one-liners", ran)
	}
}

// TestDocs: the pages have what they must, and no more lines than they may.
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
