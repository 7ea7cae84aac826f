package verbs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/live"
	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ioctl/allow"
	"nvtrace/ptrace/outside"
	"nvtrace/ptx"
	"nvtrace/traces"
)

// jsonRuns are command lines of verbs that print what programs read; R is a recording, O a file with GPU code, P
// one with PTX, M one with maps.
var jsonRuns = []string{
	"tool", "list", "list syscall:open*", "doctor", "stat R", "ps", "report R", "fleet report R", "tree R", "maps R", "maps pin ls",
	"failures R", "diff R R", "abi diff 580.142 595.45.04", "allowlist R", "check --allow A R", "attach --list",
	"annotate M", "ptx check P", "ptx sites P", "modules R", "fatbin ls O", "version", "version R",
}

// noJSON says why other verbs print none.
var noJSON = map[string]string{
	"run": "its --json is the summary", "ctl": "switches a run", "top": "a screen", "sample": "wants a process", "where": "wants a process", "pushbuffer": "lines of what was handed over",
	"log": "lines; export --format jsonl", "dump": "nothing to print", "export": "other formats", "replay": "runs a program", "sass": "listings of code",
}

// documents are results of which other packages write the text.
var documents = map[string]any{"allowlist": allow.Document{}, "ptx check": &ptx.CheckReport{}, "ptx sites": []ptx.SiteReport{}}

// ofProcesses are results of verbs that want a process or a run: values of the types that they print.
var ofProcesses = map[string]any{
	"sample":        []live.SampledProcess{{PID: 1, Sampled: &traces.Sampled{Devices: []traces.SampledDevice{{}}, Channels: []traces.SampledChannel{{}}, Works: []traces.SampledWork{{Name: "copy"}}}}},
	"where":         look.Places{{Threads: []outside.Thread{{}}}},
	"stat forecast": &view.Forecast{Ways: []view.WayForecast{{Flags: "-q"}}},
	"stat repeat":   view.OverRuns([]*view.Stat{{}, {}}, 2),
}

// TestJSON: each verb that prints a table prints one JSON document with --json, which is as docs/schema says, and
// docs/scripts.md names its members.
func TestJSON(t *testing.T) {
	dir := t.TempDir()
	allowed := filepath.Join(dir, "allow")
	recording := "../../../../traces/corpus/vectoradd.nvt"
	if status, _, stderr := call("allowlist", "-o", allowed, recording); status != cli.ExitOK {
		t.Fatal(stderr)
	}
	ptx := filepath.Join(dir, "k.ptx")
	if err := os.WriteFile(ptx, []byte(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	counted := filepath.Join(dir, "maps.json")
	const place = `[{"map": "@", "entries": [{"key": ["{\"kernel\":\"k\",\"insn\":1,\"instruction\":\"ret;\",\"file\":\"k.cu\",\"line\":2}"], "value": 3}]}]`
	if err := os.WriteFile(counted, []byte(place), 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../../docs/scripts.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `nvtrace ([^`]*)` \\|(.*)$").FindAllStringSubmatch(string(page), -1) {
		verb, _, _ := strings.Cut(m[1], " -")
		documented[verb] += m[2]
	}
	covered := make(map[string]bool)
	schemas := schemaSet{}
	names := strings.NewReplacer("R", recording, "O", "/bin/true", "P", ptx, "A", allowed, "M", counted)
	for _, line := range jsonRuns {
		words := strings.Fields(line)
		for i, w := range words {
			if len(w) == 1 {
				words[i] = names.Replace(w)
			}
		}
		covered[words[0]] = true
		if words[0] == "fatbin" || words[0] == "ptx" { // flags come first there, or anywhere
			words = slices.Insert(slices.Clone(words), 2, "--json")
		} else {
			words = append(words, "--json")
		}
		var out valued
		var errs bytes.Buffer
		status := Main(&cli.Env{Stdin: os.Stdin, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}, words)
		stdout, stderr := out.String(), errs.String()
		if status != cli.ExitOK && status != cli.ExitDiffers {
			t.Errorf("%s --json: status %d, %s", line, status, stderr)
			continue
		}
		var doc any
		d := json.NewDecoder(strings.NewReader(stdout))
		if err := d.Decode(&doc); err != nil {
			t.Errorf("%s --json: %v in %.200s", line, err, stdout)
			continue
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			t.Errorf("%s --json: more than one document", line)
		}
		members, ok := doc.(map[string]any)
		if list, is := doc.([]any); is && len(list) > 0 {
			members, ok = list[0].(map[string]any)
		}
		verb := words[0]
		if len(words) > 1 && regexp.MustCompile(`^(pin|report|diff|ls|check|sites)$`).MatchString(words[1]) {
			verb += " " + words[1]
		}
		if verb == "maps pin" {
			verb += " ls"
		}
		result := documents[verb]
		if len(out.values) == 1 {
			result = out.values[0]
		}
		if result == nil {
			t.Errorf("%s: no result was seen; what type is it of?", line)
			continue
		}
		schemas.add(t, verb, result, doc)
		for name := range maps.Keys(members) {
			if ok && !strings.Contains(documented[verb], "`"+name+"`") {
				t.Errorf("docs/scripts.md does not name %q of nvtrace %s --json, only %s", name, verb, documented[verb])
			}
		}
	}
	for verb, result := range ofProcesses {
		b, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		schemas.add(t, verb, result, doc)
	}
	schemas.check(t, "../../../../docs/schema")
	for _, v := range verbs() {
		if !covered[v.name] && noJSON[v.name] == "" {
			t.Errorf("%s: is there no JSON to be had? Add a line to jsonRuns, or the reason to noJSON", v.name)
		}
		if covered[v.name] && noJSON[v.name] != "" {
			t.Errorf("%s is in both lists", v.name)
		}
	}
}

// call runs a command line.
func call(words ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e := &cli.Env{Stdin: os.Stdin, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	status = Main(e, words)
	return status, out.String(), errs.String()
}
