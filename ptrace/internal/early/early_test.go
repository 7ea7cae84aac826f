package early_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
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

// TestMask runs itself under masks, also of signals that the runtime unblocks.
func TestMask(t *testing.T) {
	if want := os.Getenv("EARLY_MASK"); want != "" {
		m, ok := early.Mask()
		if got := strconv.FormatUint(m, 16); !ok || got != want {
			t.Errorf("mask %s, %v; want %s", got, ok, want)
		}
		return
	}
	python := need.Tool(t, "python3", "")
	for _, mask := range []uint64{0, 1 << 16, 1<<14 | 1<<33, ^uint64(0) &^ (1<<8 | 1<<18)} {
		set := fmt.Sprintf("import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_SETMASK, [s for s in range(1, 65) if %d >> (s-1) & 1 and s not in (32, 33)])\nos.execv(sys.argv[1], sys.argv[1:])", mask)
		c := exec.Command(python, "-c", set, os.Args[0], "-test.run=TestMask")
		c.Env = append(os.Environ(), "EARLY_MASK="+strconv.FormatUint(mask&^(3<<31), 16)) // the C library keeps two
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%#x: %v\n%s", mask, err, out)
		}
	}
}
