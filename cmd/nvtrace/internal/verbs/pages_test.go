package verbs

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/probe"
)

var (
	docFence = regexp.MustCompile("(?ms)^```.*?^```")
	docLine  = regexp.MustCompile(`(?m)^(?:\$ .*?|    )\b(nvtrace .*)$`)
	docCode  = regexp.MustCompile("`(nvtrace [^`]*)`")
	// What stands between quotes, in a command of its own or in a comment is no flag.
	docQuoted = regexp.MustCompile(`'[^']*'|"[^"]*"|\$\(.*?\)|\s#\s.*`)
	docFlag   = regexp.MustCompile(`^--?([a-zA-Z][a-z-]*)`)
)

// TestPagesCommands: verbs, tools and flags in commands on the pages exist, also in those that no test can run.
func TestPagesCommands(t *testing.T) {
	known := make(map[string]documented)
	for _, d := range documentedVerbs() {
		known[d.name] = d
	}
	const root = "../../../../"
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	n := 0
	for _, file := range append(pages, root+"README.md", root+"nvattach/script/README.md") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		page := string(b)
		var commands []string
		for _, m := range docLine.FindAllStringSubmatch(page, -1) {
			commands = append(commands, m[1])
		}
		for _, m := range docCode.FindAllStringSubmatch(docFence.ReplaceAllString(page, ""), -1) {
			commands = append(commands, strings.Join(strings.Fields(m[1]), " "))
		}
		for _, c := range commands {
			n++
			if why := badCommand(c, known); why != "" {
				t.Errorf("%s: %s: %s", filepath.Base(file), c, why)
			}
		}
	}
	if n < 200 {
		t.Errorf("%d commands were found", n)
	}
	for c, bad := range map[string]bool{
		"nvtrace -q --sim -- ./app --no-such": false, "nvtrace stat --json -- ./app": false, "nvtrace -tT -- ./app": false,
		"nvtrace --no-such -- ./app": true, "nvtrace stta -- ./app": true, "nvtrace tool nothing -- ./app": true, "nvtrace report --gpu-times run.nvt": true,
	} {
		if (badCommand(c, known) != "") != bad {
			t.Errorf("%s: %q", c, badCommand(c, known))
		}
	}
}

// badCommand says what is wrong with a command, "" if nothing is.
func badCommand(c string, known map[string]documented) string {
	c = docQuoted.ReplaceAllString(c, " QUOTED")
	if i := strings.IndexAny(c, "|;&>)"); i >= 0 { // another command
		c = c[:i]
	}
	words := strings.Fields(c)[1:]
	if i := slices.Index(words, "--"); i >= 0 {
		words = words[:i]
	}
	verb := "run"
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != "QUOTED" && words[0] != "…" {
		verb, words = words[0], words[1:]
	}
	if verb == "help" || verb == "VERB" {
		return ""
	}
	d, ok := known[verb]
	if !ok {
		return "there is no verb " + verb
	}
	if verb == "tool" && len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != "NAME" {
		if _, err := probe.FindTool(words[0]); err != nil {
			return err.Error()
		}
	}
	for _, w := range words {
		m := docFlag.FindStringSubmatch(w)
		if m == nil || m[1] == "h" {
			continue
		}
		has := func(name string) bool {
			list := d.flags
			if slices.Contains([]string{"tool", "stat", "annotate", "top"}, verb) { // they run programs
				list = append(slices.Clone(list), known["run"].flags...)
			}
			return slices.ContainsFunc(list, func(f *flag.Flag) bool { return f.Name == name })
		}
		if has(m[1]) {
			continue
		}
		// Short flags in one word, of which the last may have a value: -qo.
		if !strings.HasPrefix(w, "--") && has(m[1][:1]) {
			continue
		}
		return verb + " has no flag " + w
	}
	return ""
}
