package ptrace

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// helper is the main function of the processes that tests start of their own
// binary.
func helper(name string, args []string) int {
	os.Unsetenv("PTRACE_HELPER")
	if call := os.Getenv("PTRACE_FORBID"); call != "" {
		if err := forbid([]Rule{{Names: []string{call}, Class: uint16(unix.EPERM)}}); err != nil {
			fmt.Println("forbid:", err)
			return 98
		}
	}
	o := &Options{Argv: args, Rules: victimRules(), ExtraRules: dupRules()}
	h := &tape{verdict: WantExit}
	name, variant, _ := strings.Cut(name, "-")
	switch variant {
	case "nofilter":
		o.Seccomp = SeccompOff
	case "allstop":
		o.noCopies = true
	case "survive":
		o.NoExitKill = true
	case "ends":
		o.NoExitKill = true
		o.Rules = append(o.Rules, endingRule)
	case "gets": // a signal that no thread has taken when the program has ended
		o.Started = func(int) { _ = unix.Kill(os.Getpid(), unix.SIGUSR1) }
		o.Ended = func(*Result) {
			set, _ := signalSet(os.Getpid(), "ShdPnd")
			catcher.mu.Lock()
			defer catcher.mu.Unlock()
			_, caught := catcher.old[unix.SIGUSR1]
			fmt.Println("waits", set&signalBit(unix.SIGUSR1) != 0, "caught", caught)
		}
	case "lingers":
		o.Ended = func(*Result) {
			fmt.Println(os.Getpid())
			_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it has gone
		}
	}
	if f := helpers[name]; f != nil {
		return f(o, h, args)
	}
	switch name {
	case "run": // a minimal nvtrace
		res, err := Run(context.Background(), o, h)
		if err != nil {
			fmt.Fprintln(os.Stderr, "run:", err)
			return 125
		}
		if res.Status.Signaled() {
			return 128 + int(res.Status.Signal())
		}
		return res.Status.ExitStatus()
	case "launch":
		return launchAndAnswer(o)
	case "swap":
		return swap(o, h)
	case "report": // reads and injects wherever it can, and says how it went
		return report(o, h)
	case "attach": // says so when it has, and lets go on SIGINT
		pid, err := strconv.Atoi(args[0])
		if err == nil {
			o.Started = func(pid int) { fmt.Println(pid) }
			_, err = Attach(context.Background(), pid, o, h)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	}
	fmt.Fprintln(os.Stderr, "no such helper:", name)
	return 99
}

// helpers are those of one architecture.
var helpers = map[string]func(o *Options, h *tape, args []string) int{}

func report(o *Options, h *tape) int {
	h.onEnter = func(t *Task, c *Syscall) {
		if c.Class != 1 {
			return
		}
		var b [8]byte
		if n, err := t.ReadMem(c.Args[2], b[:]); n != len(b) {
			h.problem(err.Error())
		}
		if err := t.InjectFilter(nil); err != nil {
			h.problem(err.Error())
		}
	}
	res, err := Run(context.Background(), o, h)
	if err != nil {
		fmt.Println("run:", err)
		return 1
	}
	fmt.Printf("status=%#x calls=%d %v nnp=%t reason=%s\n", uint32(res.Status), h.enters, res.Mode, res.NoNewPrivs, res.Reason)
	for _, p := range h.problems {
		fmt.Println(p)
	}
	return min(len(h.problems), 1)
}
