package testprog

import (
	"os/exec"
	"testing"
)

// TestStart: a program is talked to, and does not outlive its test.
func TestStart(t *testing.T) {
	cmd := exec.Command("cat")
	t.Run("started", func(t *testing.T) {
		in, out := Start(t, cmd)
		if _, err := in.Write([]byte("line\n")); err != nil {
			t.Fatal(err)
		}
		if line, err := out.ReadString('\n'); line != "line\n" || err != nil {
			t.Errorf("%q, %v", line, err)
		}
	})
	if s := cmd.ProcessState; s == nil || s.Success() {
		t.Errorf("it ended with %v, and was to be killed", s)
	}
}
