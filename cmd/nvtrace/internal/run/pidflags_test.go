package run

import (
	"io"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// TestPIDFlags puts -p before process ids, and before nothing else.
func TestPIDFlags(t *testing.T) {
	e := &cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	for _, test := range []struct{ args, want string }{
		{"1234", "-p 1234"},
		{"--api 1234", "--api -p 1234"},
		{"1234 --flight 5 -o run.nvt", "-p 1234 --flight 5 -o run.nvt"},
		{"--flight 5 -o 7", "--flight 5 -o 7"},
		{"-p 12 34", "-p 12 -p 34"},
		{"./1234", "./1234"},
		{"0", "0"},
		{"007", "007"},
		{"-5", "-5"},
		{"99999999999", "99999999999"},
		{"app 1234", "app 1234"},
	} {
		if got := strings.Join(pidFlags(e, strings.Fields(test.args), nil), " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.args, got, test.want)
		}
	}
	if got := pidFlags(e, []string{"7"}, []string{"app"}); len(got) != 1 {
		t.Errorf("before a command: %q", got)
	}
}
