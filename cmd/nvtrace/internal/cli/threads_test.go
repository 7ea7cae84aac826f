package cli

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestThreadsLeft: what is left of a limit of threads is compared with what nvtrace takes.
func TestThreadsLeft(t *testing.T) {
	for _, x := range []struct {
		limit, used uint64
		want        string
	}{{1000, 900, ""}, {100, 68, ""}, {100, 69, "31 are left"}, {100, 200, "0 are left"}} {
		if got := fewThreads(x.limit, x.used); got != "" != (x.want != "") || !strings.Contains(got, x.want) {
			t.Errorf("%d of %d: %q, want %q", x.used, x.limit, got, x.want)
		}
	}
	if n := tasks(os.Getuid()); n < uint64(runtime.NumGoroutine())/100+1 {
		t.Errorf("%d tasks of this user", n)
	}
}
