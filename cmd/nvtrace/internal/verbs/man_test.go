package verbs

import (
	"os/exec"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
)

// The manual page and the completions name each verb with its flags.
func TestManual(t *testing.T) {
	status, man, _ := clitest.Run(t, versionVerb, "--man")
	if status != cli.ExitOK {
		t.Fatal(status)
	}
	for _, v := range verbs() {
		if !strings.Contains(man, ".SS nvtrace "+v.name+" ") {
			t.Errorf("the manual has no section on %s", v.name)
		}
	}
	for _, want := range []string{".B \\-\\-ioctl\\-log", ".B \\-\\-attach \\fI", ".B \\-o"} {
		if !strings.Contains(man, want) {
			t.Errorf("the manual lacks %s", want)
		}
	}
	for line := range strings.Lines(man) {
		if strings.HasPrefix(line, "'") {
			t.Errorf("a line that troff takes for a request: %q", line)
		}
	}
}

// bash offers verbs and the flags of the verb that is typed.
func TestCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	_, script, _ := clitest.Run(t, versionVerb, "--completion", "bash")
	for _, tt := range []struct{ line, want string }{
		{"nvtrace rep", "report\nreplay\n"},
		{"nvtrace report --js", "--json\n"},
		{"nvtrace --ioctl-", "--ioctl-log\n"},
		{"nvtrace fatbin ex", "extract\n"},
	} {
		words := strings.Fields(tt.line)
		cmd := exec.Command(bash, "-c", script+"\nCOMP_WORDS=("+strings.Join(words, " ")+"); COMP_CWORD="+string(rune('0'+len(words)-1))+"; _nvtrace; printf '%s\\n' \"${COMPREPLY[@]}\"")
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != tt.want {
			t.Errorf("%s: %q, want %q (%v)", tt.line, out, tt.want, err)
		}
	}
	if status, _, _ := clitest.Run(t, versionVerb, "--completion", "fish"); status != cli.ExitUsage {
		t.Errorf("a shell that is not known: %d", status)
	}
}
