package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Exit statuses of nvtrace itself, those of env(1) and timeout(1). A traced
// program's own status is passed on.
const (
	exitOK       = 0
	exitDiffers  = 1 // of verbs that compare
	exitUsage    = 2
	exitFailed   = 125 // nvtrace failed
	exitNoExec   = 126 // the program can't be executed
	exitNotFound = 127 // the program was not found
)

// env is what a verb may touch.
type env struct {
	stdin          *os.File
	stdout, stderr io.Writer
	getenv         func(string) string
	devices        *devices // nil: the machine's own; tests set others
}

// verb is a word of the command line and what it does.
type verb struct {
	name, args, short string
	// run gets the words before and after the first "--".
	run func(e *env, args, command []string) int
}

func verbs() []verb {
	return []verb{
		{"run", "[flags] -- command [args]", "trace a program (the default)", runVerb},
		{"report", "[flags] run.nvt", "print the summary of a recording", reportVerb},
		{"log", "[flags] run.nvt", "print a recording's calls, a line each", logVerb},
		{"export", "--format FORMAT [flags] run.nvt", "convert a recording", exportVerb},
		{"tree", "[flags] run.nvt", "draw the driver's objects, their memory, what was not freed", treeVerb},
		{"maps", "[flags] run.nvt | --live PID", "list the device memory that processes map, and what it is", mapsVerb},
		{"failures", "[flags] run.nvt", "explain failed calls", failuresVerb},
		{"diff", "[flags] a.nvt b.nvt", "compare two runs or driver versions", diffVerb},
		{"abi", "diff [flags] VERSION VERSION [NAMES]", "compare the tables of two driver versions", abiVerb},
		{"allowlist", "[--format FORMAT] [flags] run.nvt...", "list what runs need: text, json, seccomp, nvproxy", allowlistVerb},
		{"check", "--allow FILE [flags] run.nvt...", "say what runs use beyond a list", checkVerb},
		{"replay", "[flags] run.nvt -- command [args]", "run a program with its device calls answered from a recording", replayVerb},
		{"ptx", "fmt|check|sites|run FILE", "work with PTX: format, check, list probe sites, execute on the CPU", ptxVerb},
		{"version", "", "print nvtrace's version and the driver versions it knows", versionVerb},
	}
}

// splitArgs cuts the words at the first "--".
func splitArgs(words []string) (args, command []string, cut bool) {
	if i := slices.Index(words, "--"); i >= 0 {
		return words[:i], words[i+1:], true
	}
	return words, nil, false
}

// main1 runs the command line and returns the exit status.
func main1(e *env, words []string) int {
	args, command, cut := splitArgs(words)
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		return helpVerb(e, args[1:])
	}
	if len(args) == 0 && !cut {
		usage(e.stderr)
		return exitUsage
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return runVerb(e, args, command)
	}
	for _, v := range verbs() {
		if v.name == args[0] {
			return v.run(e, args[1:], command)
		}
	}
	fmt.Fprintf(e.stderr, "nvtrace: %q is not a verb of nvtrace; to trace a program, type: nvtrace -- %s\n",
		args[0], strings.Join(words, " "))
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, `nvtrace shows what a process does with an NVIDIA GPU.

  nvtrace -- ./app args                 run a program, print a summary of its driver calls at exit
  nvtrace --ioctl-log -- ./app args     print each call on /dev/nvidia*, decoded, as it happens
  nvtrace -o run.nvt -- ./app args      record; read the recording with the verbs below
  nvtrace -p PID                        attach to a running process

Verbs:
`)
	for _, v := range verbs() {
		fmt.Fprintf(w, "  %-10s %-38s %s\n", v.name, v.args, v.short)
	}
	fmt.Fprint(w, "\nnvtrace VERB -h lists a verb's flags. The exit status is the program's; 125: nvtrace failed,\n126: the program can't be executed, 127: it was not found.\n")
}

func helpVerb(e *env, args []string) int {
	if len(args) > 0 {
		for _, v := range verbs() {
			if v.name == args[0] {
				return v.run(e, []string{"-h"}, nil)
			}
		}
		fmt.Fprintf(e.stderr, "nvtrace: no verb %q\n", args[0])
		return exitUsage
	}
	usage(e.stdout)
	return exitOK
}

// fail prints one line and returns the status.
func (e *env) fail(status int, format string, args ...any) int {
	fmt.Fprintf(e.stderr, "nvtrace: "+format+"\n", args...)
	return status
}

// notice prints one line that does not change the status.
func (e *env) notice(format string, args ...any) { e.fail(exitOK, format, args...) }
