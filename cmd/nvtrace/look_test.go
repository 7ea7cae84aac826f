package main

import (
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
)

// TestPSWords wants bad words refused.
func TestPSWords(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"ps", "train.py"}, `ps wants process ids, and "train.py" is none`},
		{[]string{"ps", "--", "./app"}, "ps looks at processes that run"},
		{[]string{"pushbuffer"}, "pushbuffer wants one process or file"},
		{[]string{"pushbuffer", "-o", "x.nvt", "train.py"}, `pushbuffer wants process ids, and "train.py" is none`},
		{[]string{"pushbuffer", "-n", "0", "1"}, "pushbuffer wants one process"},
	} {
		var out, errs strings.Builder
		if status := verbs.Main(&cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}, test.args); status != cli.ExitUsage || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%q: status %d, %q", test.args, status, errs.String())
		}
	}
}
