package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/internal/testrec"
	"nvtrace/traces"
)

func TestTreeGolden(t *testing.T) {
	file := clitest.Save(t, "scripted.nvt", testrec.Shared())
	var got []txtar.File
	for _, c := range []struct {
		name string
		verb func(*cli.Env, []string, []string) int
		args []string
	}{
		{"tree", objects.TreeVerb, nil},
		{"tree --all", objects.TreeVerb, []string{"--all"}},
		{"tree --at 20ms", objects.TreeVerb, []string{"--at", "20ms"}},
		{"tree --at peak", objects.TreeVerb, []string{"--at=peak"}},
		{"maps", verbs.MapsVerb, nil},
		{"maps --all --pid 100", verbs.MapsVerb, []string{"--all", "--pid", "100"}},
		{"failures", view.FailuresVerb, nil},
	} {
		status, out, errs := clitest.Run(t, c.verb, append([]string{file}, c.args...)...)
		wantErrs := ""
		if c.name == "failures" {
			wantErrs = "nvtrace: " + file + ": calls of CUDA's libraries: not recorded (--api)\n"
		}
		if status != cli.ExitOK || errs != wantErrs {
			t.Fatalf("%s: status %d, %s", c.name, status, errs)
		}
		got = append(got, txtar.File{Name: c.name, Data: []byte(out)})
		status, out, _ = clitest.Run(t, c.verb, append([]string{"--json", file}, c.args...)...)
		if status != cli.ExitOK || !json.Valid([]byte(out)) {
			t.Errorf("%s --json: status %d, %.100s", c.name, status, out)
		}
	}
	clitest.Golden(t, "tree.txtar", got)
}

func TestVerbUsage(t *testing.T) {
	file := clitest.Save(t, "s.nvt", testrec.Shared())
	for _, c := range []struct {
		verb func(*cli.Env, []string, []string) int
		args []string
		want int
	}{
		{view.DiffVerb, []string{file}, cli.ExitUsage},
		{view.DiffVerb, []string{file, file}, cli.ExitOK},
		{view.DiffVerb, []string{file, "--window", "5", file, "--json"}, cli.ExitOK},
		{view.DiffVerb, []string{file, file, "-e", "nonsense"}, cli.ExitUsage},
		{view.DiffVerb, []string{file, file, "-window", "-7"}, cli.ExitUsage},
		{view.DiffVerb, []string{file, "/nonexistent"}, cli.ExitFailed},
		{view.DiffVerb, []string{"-h"}, cli.ExitOK},
		{view.ABIVerb, []string{"diff", "580.142", "580.142"}, cli.ExitOK},
		{view.ABIVerb, []string{"diff", "570.211.01", "580.142", "*CHANNEL_ALLOC*"}, cli.ExitOK},
		{view.ABIVerb, []string{"diff", "535.54.03", "580.142", "*CHANNEL_ALLOC*"}, cli.ExitDiffers},
		{view.ABIVerb, []string{"diff", "580.142"}, cli.ExitUsage},
		{view.ABIVerb, []string{"diff", "580.142", "x"}, cli.ExitUsage},
		{view.ABIVerb, []string{"list"}, cli.ExitUsage},
		{view.AllowlistVerb, []string{"--format", "json", file}, cli.ExitOK},
		{view.AllowlistVerb, []string{"--format", "seccomp", file, "--succeeded"}, cli.ExitOK},
		{view.AllowlistVerb, []string{"--format", "nvproxy", file, file}, cli.ExitOK},
		{view.AllowlistVerb, []string{"--format", "xml", file}, cli.ExitUsage},
		{view.AllowlistVerb, nil, cli.ExitUsage},
		{view.AllowlistVerb, []string{"/nonexistent"}, cli.ExitFailed},
		{view.CheckVerb, []string{file}, cli.ExitUsage},
		{view.CheckVerb, []string{"--allow", "/nonexistent", file}, cli.ExitFailed},
		{objects.TreeVerb, nil, cli.ExitUsage},
		{objects.TreeVerb, []string{file, "--at", "soon"}, cli.ExitUsage},
		{objects.TreeVerb, []string{"/nonexistent"}, cli.ExitFailed},
		{verbs.MapsVerb, []string{file, "--live", "1"}, cli.ExitUsage},
		{verbs.MapsVerb, []string{"--live", "999999999"}, cli.ExitFailed},
		{verbs.MapsVerb, []string{file, "--at", "soon"}, cli.ExitUsage},
		{view.FailuresVerb, nil, cli.ExitUsage},
		{view.FailuresVerb, []string{"--json", file}, cli.ExitOK},
	} {
		status, out, errs := clitest.Run(t, c.verb, c.args...)
		if status != c.want {
			t.Errorf("%q: status %d, want %d\n%s%s", c.args, status, c.want, out, errs)
		}
		if (c.want == cli.ExitUsage || c.want == cli.ExitFailed) != (errs != "" && c.args != nil && out == "" || errs != "" && c.args == nil) && c.args != nil && c.args[0] != "-h" {
			t.Errorf("%q: stdout %q, stderr %q", c.args, out, errs)
		}
	}
}

// TestCaution: reports say what a recording does not tell.
func TestCaution(t *testing.T) {
	r := testrec.Shared()
	for _, ev := range r.Events[10:20] {
		ev.Flags |= traces.FlagNoExit
	}
	r.Note(&traces.Event{Kind: traces.KindLost, FD: -1, Ret: 3})
	file := clitest.Save(t, "s.nvt", r)
	for _, verb := range []func(*cli.Env, []string, []string) int{objects.TreeVerb, verbs.MapsVerb, view.FailuresVerb} {
		status, _, errs := clitest.Run(t, verb, file)
		if status != cli.ExitOK || !strings.Contains(errs, "calls were recorded without their results") || !strings.Contains(errs, "3 events were not recorded") {
			t.Errorf("status %d: %s", status, errs)
		}
	}
	cut := filepath.Join(t.TempDir(), "cut.nvt")
	b := r.Bytes()
	if err := os.WriteFile(cut, b[:len(b)*2/3], 0o666); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []func(*cli.Env, []string, []string) int{objects.TreeVerb, verbs.MapsVerb, view.FailuresVerb, view.AllowlistVerb} {
		status, out, errs := clitest.Run(t, verb, cut)
		if status != cli.ExitFailed || out == "" || !strings.Contains(errs, "damaged") {
			t.Errorf("a damaged recording: status %d, stdout %.60q, stderr %s", status, out, errs)
		}
	}
	if status, out, errs := clitest.Run(t, view.DiffVerb, file, cut); status != cli.ExitFailed || out == "" || !strings.Contains(errs, "damaged") {
		t.Errorf("diff with a damaged recording: status %d, stdout %.60q, stderr %s", status, out, errs)
	}
}

// TestCheckVerb: the round trip by files.
func TestCheckVerb(t *testing.T) {
	file := clitest.Save(t, "s.nvt", testrec.Shared())
	list := filepath.Join(t.TempDir(), "list")
	if status, _, errs := clitest.Run(t, view.AllowlistVerb, "-o", list, file); status != cli.ExitOK {
		t.Fatal(errs)
	}
	status, out, _ := clitest.Run(t, view.CheckVerb, "--allow", list, file)
	if status != cli.ExitOK || out != file+": lacks nothing\n" {
		t.Errorf("status %d: %s", status, out)
	}
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(b), "\n"), func(l string) bool { return strings.HasPrefix(l, "class   0x40 ") })
	if err := os.WriteFile(list, []byte(strings.Join(lines, "")), 0o666); err != nil {
		t.Fatal(err)
	}
	status, out, _ = clitest.Run(t, view.CheckVerb, "--allow", list, file)
	if want := file + ": uses what the list does not allow:\n  class 0x40 NV01_MEMORY_LOCAL_USER: first at 0.009000 by pid 100, once\n"; status != cli.ExitDiffers || out != want {
		t.Errorf("status %d: %s, want %s", status, out, want)
	}
	status, out, _ = clitest.Run(t, view.CheckVerb, "--json", "--allow", list, file)
	if status != cli.ExitDiffers || !strings.Contains(out, `"nr": "0x40"`) {
		t.Errorf("status %d: %s", status, out)
	}
}
