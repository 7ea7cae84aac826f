// Package need is for tests that want what not every machine has: a tool, a
// kernel's feature. Where it is missing, they are skipped and say so; but they
// fail if the environment's NVTRACE_REQUIRE lists it (names, separated by commas),
// so that a run which has to be whole does not pass by leaving tests out.
package need

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Required reports whether the run must have something.
func Required(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("NVTRACE_REQUIRE"), ","), what)
}

// Missing ends a test for which something is not there. why says what to do.
func Missing(t testing.TB, what, why string) {
	t.Helper()
	if Required(what) {
		t.Fatalf("%s is required (NVTRACE_REQUIRE): %s", what, why)
	}
	t.Skip(why)
}

// OneThread leaves a test out where the race detector is in it: all of it is done by one goroutine, so the
// detector can see nothing in it, and makes it several times slower.
func OneThread(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("the race detector has nothing to see in one goroutine")
	}
}

// Tool returns the path of a program: what the environment's variable env names,
// unless env is "", or what is found in PATH. Without one the test ends as with
// [Missing].
func Tool(t testing.TB, name, env string) string {
	t.Helper()
	why := name + " is not installed"
	if env != "" {
		if path := os.Getenv(env); path != "" {
			return path
		}
		why += ", and " + env + " names none"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, name, why)
	}
	return path
}
