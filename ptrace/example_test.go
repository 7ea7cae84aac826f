package ptrace_test

import (
	"context"
	"fmt"

	"nvtrace/ptrace"
)

// opens prints the files that a program opens.
type opens struct{}

func (opens) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if path, err := t.ReadString(c.Args[1], 4096); err == nil && path == "/dev/zero" {
		fmt.Println(c.Name(), path)
		return ptrace.WantExit
	}
	return ptrace.Skip
}

func (opens) Exit(_ *ptrace.Task, c *ptrace.Syscall) { fmt.Println("succeeded:", c.Ret >= 0) }
func (opens) Task(*ptrace.Task, *ptrace.TaskEvent)   {}

func Example() {
	res, err := ptrace.Run(context.Background(), &ptrace.Options{
		Argv:  []string{"/bin/sh", "-c", "exec 3</dev/zero; exit 7"},
		Rules: []ptrace.Rule{{Names: []string{"openat"}}},
	}, opens{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("exit status", res.Status.ExitStatus())
	// Output:
	// openat /dev/zero
	// succeeded: true
	// exit status 7
}
