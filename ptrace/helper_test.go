package ptrace

import (
	"context"
	"fmt"
	"os"
)

// helper is the main function of the processes that tests start of their own
// binary.
func helper(name string, args []string) int {
	os.Unsetenv("PTRACE_HELPER")
	switch name {
	case "run": // a minimal nvtrace
		h := &tape{verdict: WantExit}
		res, err := Run(context.Background(), &Options{Argv: args, Rules: victimRules()}, h)
		if err != nil {
			fmt.Fprintln(os.Stderr, "run:", err)
			return 125
		}
		if res.Status.Signaled() {
			return 128 + int(res.Status.Signal())
		}
		return res.Status.ExitStatus()
	}
	fmt.Fprintln(os.Stderr, "no such helper:", name)
	return 99
}
