package view

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// TestPlaceOf: the line of Python at which a process is, and nothing of one that is not traced.
func TestPlaceOf(t *testing.T) {
	python := need.Tool(t, "python3", "NVTRACE_PYTHON")
	cmd := exec.CommandContext(t.Context(), python, "-u", "-c", "import sys\ndef step():\n    print('here')\n    sys.stdin.read()\n\nstep()\n")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if got := placeOf(cmd.Process.Pid); got != "<string>:3 step" && got != "<string>:4 step" {
		t.Errorf("%q", got)
	}
	if got := whereRank("another boot", int32(cmd.Process.Pid)); got != "" {
		t.Errorf("of another boot: %q", got)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if got := whereRank(strings.TrimSpace(string(boot)), int32(cmd.Process.Pid)); got != "" {
		t.Errorf("of a process that is not traced: %q", got)
	}
	_ = in.Close()
	_ = cmd.Wait()
	if got := placeOf(cmd.Process.Pid); got != "" {
		t.Errorf("of a process that has ended: %q", got)
	}
}
