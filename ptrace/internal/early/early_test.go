package early_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"nvtrace/ptrace/internal/early"
)

// TestNoFile runs itself under a soft limit of 100, which the Go runtime raises.
func TestNoFile(t *testing.T) {
	if os.Getenv("EARLY_CHILD") != "" {
		r, ok := early.NoFile()
		if !ok {
			t.Fatal("prlimit failed")
		}
		os.Stdout.WriteString("soft=" + strconv.FormatUint(r.Cur, 10) + "\n")
		return
	}
	c := exec.Command("sh", "-c", `ulimit -Sn 100; exec "$0" -test.run=TestNoFile`, os.Args[0])
	c.Env = append(os.Environ(), "EARLY_CHILD=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "soft=100\n") {
		t.Errorf("limit not the original one:\n%s", out)
	}
}
