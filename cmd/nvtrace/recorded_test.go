package main

import (
	"path/filepath"
	"regexp"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/script"
)

// zeros are numbers that a shows may only show where they were measured.
var zeros = regexp.MustCompile(`0 +(kernel launches|copies|other copies|allocations|frees|waits|loads of code|calls of the)|0 bytes in 0 allocations|No call failed|failed calls +none\n|"library_time": 0`)

// TestNotRecorded: of recordings without library calls, which also old ones are, no shows and no
// tool shows zeros for these.
func TestNotRecorded(t *testing.T) {
	names, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	views := map[string]struct {
		verb func(*cli.Env, []string, []string) int
		args []string
		says string // "": nothing, as it has no such numbers
	}{
		"stat":          {run.StatVerb, nil, `<not recorded> +kernel launches +#  --api records it\n`},
		"report":        {view.ReportVerb, nil, `in CUDA's libraries +not recorded \(--api\)|calls of CUDA's libraries: not recorded`},
		"report --json": {view.ReportVerb, []string{"--json"}, `"library_time": null`},
		"failures":      {view.FailuresVerb, nil, `No call of the driver failed; calls of CUDA's libraries: not recorded \(--api\)|nvtrace: .*: calls of CUDA's libraries: not recorded`},
		"failures json": {view.FailuresVerb, []string{"--json"}, `nvtrace: .*: calls of CUDA's libraries: not recorded \(--api\)`},
		"log":           {view.LogVerb, []string{"-e", "api=cu*"}, `not recorded \(--api\)`},
		"script":        {view.LogVerb, []string{"-e", "launch:* { @ = count(); } END { printf(\"%d\\n\", 0); }"}, `launch:\*: not recorded \(--api\)`},
	}
	for _, tool := range script.Tools() {
		shows := views["stat"]
		shows.verb, shows.args, shows.says = view.LogVerb, []string{"--tool", tool.Name}, `not recorded \(--api\)`
		switch p, err := script.Compile("", tool.Source); {
		case err != nil:
			t.Fatal(err)
		case p.Object != nil: // of kernels
			shows.says = "a recording has no kernels that run"
		case run.OnlyIoctls(p):
			shows.says = ""
		}
		views["tool "+tool.Name] = shows
	}
	for what, shows := range views {
		for _, name := range names {
			_, stdout, stderr := clitest.Run(t, shows.verb, append(shows.args, name)...)
			if bad := zeros.FindString(stdout + stderr); bad != "" {
				t.Errorf("%s of %s says %q", what, name, bad)
			}
			if !regexp.MustCompile(shows.says).MatchString(stdout + stderr) {
				t.Errorf("%s of %s does not say %s: %s%s", what, name, shows.says, stdout, stderr)
			}
		}
	}
}
