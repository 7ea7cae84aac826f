package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
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

// TestCompletion: the shells that are here take the scripts, and hand the words on.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		status, text, _ := clitest.Run(t, versionVerb, "--completion", shell)
		if status != cli.ExitOK || !strings.Contains(text, " complete --shell "+shell+" -- ") {
			t.Fatal(status, text)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		check := exec.Command(path, "-n")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	if status, _, _ := clitest.Run(t, versionVerb, "--completion", "tcsh"); status != cli.ExitUsage {
		t.Errorf("a shell that is not known: %d", status)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		return
	}
	_, script, _ := clitest.Run(t, versionVerb, "--completion", "bash")
	// A function stands for nvtrace: it says which words it got, and what they can become.
	script += "\nnvtrace() { printf '%s\\n' \"$*\"; printf 'two words\\tabout\\n:files\\n'; }\n" +
		"COMP_WORDS=(nvtrace --sim = h2); COMP_CWORD=3; _nvtrace; printf '[%s]' \"${COMPREPLY[@]}\""
	cmd := exec.Command(bash, "-c", script)
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "h2 file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if want := "[complete --shell bash -- --sim = h2][two words][h2 file]"; err != nil || string(out) != want {
		t.Errorf("%q, want %q (%v)", out, want, err)
	}
}
