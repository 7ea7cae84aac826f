package verbs

import (
	"bytes"
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/run"
)

// TestHelp: help fits into 80 columns, and each flag of a run is in one of its groups.
func TestHelp(t *testing.T) {
	for _, v := range verbs() {
		var out, errs bytes.Buffer
		e := &cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
		if status := v.run(e, []string{"-h"}, nil); status != cli.ExitOK || errs.Len() > 0 {
			t.Errorf("%s -h: %d %s", v.name, status, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.HelpWidth {
				t.Errorf("%s -h has a line of %d columns: %s", v.name, n, line)
			}
		}
	}
	var all bytes.Buffer
	if err := usage(&all); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(all.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.HelpWidth {
			t.Errorf("nvtrace help has a line of %d columns: %s", n, line)
		}
	}
	grouped := make(map[string]int)
	set := run.NewFlags(&cli.Env{}).Set
	for _, g := range cli.RunGroups {
		for _, name := range g.Names {
			if grouped[name]++; set.Lookup(name) == nil {
				t.Errorf("%s has no flag %s", g.Title, name)
			}
		}
	}
	set.VisitAll(func(f *flag.Flag) {
		if grouped[f.Name] != 1 {
			t.Errorf("flag %s is in %d groups", f.Name, grouped[f.Name])
		}
	})
}

// TestHelpCommands: what help says to type is there.
func TestHelpCommands(t *testing.T) {
	var names []string
	for _, v := range verbs() {
		names = append(names, v.name)
	}
	commands := regexp.MustCompile(`nvtrace ([a-z]+)( [a-z0-9]+)?`).FindAllStringSubmatch(whatToType, -1)
	for _, m := range commands {
		if m[1] == "help" {
			continue
		}
		if !slices.Contains(names, m[1]) {
			t.Errorf("there is no verb %s", m[1])
		}
		if m[1] == "tool" {
			if _, err := probe.FindTool(strings.TrimSpace(m[2])); err != nil {
				t.Error(err)
			}
		}
	}
	for _, name := range []string{"divergence", "bankconflict", "imbalance", "occupancy", "hotlines"} {
		if _, err := probe.FindTool(name); err != nil {
			t.Error(err)
		}
	}
	if len(commands) < 12 {
		t.Errorf("%d commands", len(commands))
	}
	for _, topic := range topics {
		status, out, stderr := clitest.Run(t, func(e *cli.Env, args, _ []string) int { return helpVerb(e, args) }, topic.name)
		if status != cli.ExitOK || stderr != "" || !strings.HasPrefix(out, "# ") {
			t.Errorf("help %s: %d %s", topic.name, status, stderr)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "|") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") < 3 {
				t.Errorf("help %s: a row without cells: %s", topic.name, line)
			}
		}
	}
}
