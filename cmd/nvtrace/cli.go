package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/traces/escape"
	"nvtrace/traces/record"
)

// Exit statuses of nvtrace itself, those of env(1) and timeout(1). A traced
// program's own status is passed on.
const (
	exitOK       = 0
	exitDiffers  = 1   // of verbs that compare
	exitUsage    = 2   // a bad command line, where no program was to be started
	exitFailed   = 125 // nvtrace failed
	exitNoExec   = 126 // the program can't be executed
	exitNotFound = 127 // the program was not found
)

// env is what a verb may touch.
type env struct {
	stdin          *os.File
	stdout, stderr io.Writer
	getenv         func(string) string
	devices        *devices            // nil: the machine's own; tests set others
	self           string              // the file to execute for another nvtrace; "" none
	sink           record.Sink         // gets each event that is decoded, too; for tests, which plant faults
	debug          *slog.Logger        // of debugVar; without it, it discards
	inputs         []input             // files that the verb reads
	tracing        bool                // what is written holds the memory of running programs
	help           func(*flag.FlagSet) // gets a verb's flags instead of their being printed; nil: none
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
		{"tool", "[NAME [PARAMETER...] [flags] -- command [args]] | --source NAME", "answer a common question by a ready-made program; alone: list them", toolVerb},
		{"list", "[KIND:GLOB [FILE...] [-- command]]", "list what can be probed: kernels of a program, functions, device calls", listVerb},
		{"doctor", "[FILE...] [-- command]", "say what works on this machine, and what to type for the rest", doctorVerb},
		{"stat", "[flags] -- command [args]", "count what a program does: launches, copies, waits, memory, failures", statVerb},
		{"top", "[flags] -- command [args] | PID", "show each second what processes do with the GPU", topVerb},
		{"ps", "[flags] [PID...]", "say what the GPU is at for processes that run, from outside", psVerb},
		{"sample", "[flags] PID | -- command [args]", "say how long GPUs are at which kernels, by looks from outside: nothing is stopped", sampleVerb},
		{"where", "[flags] PID", "say what a process's GPU channels and threads are at: is it hung, and in what", whereVerb},
		{"pushbuffer", "[flags] PID", "print what a process handed to the GPU's channels last", pushbufferVerb},
		{"report", "[flags] run.nvt", "print the summary of a recording", reportVerb},
		{"fleet", "report [flags] DIR|run.nvt...", "compare the ranks of a job: which is slow or hangs, since when, in what", fleetVerb},
		{"log", "[flags] run.nvt", "print a recording's calls, a line each", logVerb},
		{"dump", "PID", "have nvtrace --flight write what it keeps of a program", dumpVerb},
		{"export", "--format FORMAT [flags] run.nvt", "convert a recording", exportVerb},
		{"tree", "[flags] run.nvt", "draw the driver's objects, their memory, what was not freed", treeVerb},
		{"maps", "[flags] run.nvt | PID | pin ls|dump|set|rm", "list the device memory that processes map, and what it is; maps of probes that outlive runs", mapsVerb},
		{"failures", "[flags] run.nvt", "explain failed calls", failuresVerb},
		{"diff", "[flags] a.nvt b.nvt", "compare two runs", diffVerb},
		{"abi", "diff [flags] VERSION VERSION [NAMES]", "compare the tables of two driver versions", abiVerb},
		{"allowlist", "[--format FORMAT] [flags] run.nvt...", "list what runs need: text, json, seccomp, nvproxy", allowlistVerb},
		{"check", "--allow FILE [flags] run.nvt...", "say what runs use beyond a list", checkVerb},
		{"replay", "[flags] run.nvt -- command [args]", "run a program with its device calls answered from a recording", replayVerb},
		{"attach", "[flags] probe.o...", "look into probe objects: programs, places, maps; --dry-run, --run", attachVerb},
		{"ptx", "fmt|check|sites|run FILE", "work with PTX: format, check, list probe sites, execute on the CPU", ptxVerb},
		{"modules", "[flags] run.nvt", "list the code images that were loaded, by whom, and their kernels", modulesVerb},
		{"fatbin", "ls|extract FILE...", "list and extract the GPU code in executables, libraries, fat binaries", fatbinVerb},
		{"sass", "dis|sites|check FILE...", "print machine code with live registers, find probe sites, check control codes", sassVerb},
		{"version", "[run.nvt...]", "print the versions of nvtrace and the drivers it knows, or of recordings", versionVerb},
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
	// The last that text goes through, whoever made it.
	out, errs := escape.NewWriter(e.stdout), escape.NewWriter(e.stderr)
	e.stdout, e.stderr = out, errs
	status := main2(e, words)
	_, _ = out.Flush(), errs.Flush() // halves of characters, at most
	return status
}

// beneath returns what is below an output: for bytes that are no text, and what only
// nvtrace writes.
func beneath(w io.Writer) io.Writer {
	if e, ok := w.(*escape.Writer); ok {
		return e.Unwrap()
	}
	return w
}

// content returns where a verb's result goes that is not nvtrace's text but the file's
// or the kernel's own, byte for byte, unless a terminal shows it.
func (e *env) content() io.Writer {
	if isTerminal(e.stdout) {
		return e.stdout
	}
	return beneath(e.stdout)
}

// main2 runs the command line with outputs that are safe to write to.
func main2(e *env, words []string) int {
	if why := noThreads(); why != "" && (len(words) == 0 || words[0] != decodeWord) {
		return e.fail(exitFailed, "%s", why)
	}
	e.debug = debugLogger(e)
	args, command, cut := splitArgs(words)
	traces := len(command) > 0 && tracesCommand(args)
	switch why := noDescriptors(); {
	case why != "" && traces:
		return e.untraced(why, command)
	case why != "":
		return e.fail(exitFailed, "%s", why)
	}
	if why := noProc(); why != "" && traces {
		return e.untraced(why, command)
	}
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		return helpVerb(e, args[1:])
	}
	if len(args) == 0 && !cut {
		_ = usage(e.stderr)
		return exitUsage
	}
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-version") {
		return versionVerb(e, args[1:], command)
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || isPID(args[0]) {
		return runVerb(e, args, command)
	}
	for _, v := range verbs() {
		if v.name == args[0] {
			return v.run(e, args[1:], command)
		}
	}
	if args[0] == decodeWord {
		return decodeVerb(e, args[1:], command)
	}
	if scriptFile(args[0]) {
		args, command = scriptCommand(words)
		return runVerb(e, args, command)
	}
	return e.noVerb(args[0], words)
}

// tracesCommand reports whether the words before a command have it traced.
func tracesCommand(args []string) bool {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || scriptFile(args[0]) {
		return true
	}
	return slices.Contains([]string{"run", "tool", "stat", "top", "sample"}, args[0])
}

// noVerb says what may have been meant by a first word that is no verb. The
// status is that of a program which could not be traced, as one may stand there.
func (e *env) noVerb(word string, words []string) int {
	var names []string
	for _, v := range verbs() {
		names = append(names, v.name)
	}
	hint := ""
	if near := ioctl.Suggest(word, slices.Values(names)); near != "" && !strings.Contains(word, "/") {
		hint = " (" + strings.TrimPrefix(near, "; ") + ")"
	}
	if strings.HasSuffix(word, ".nvt") {
		hint = " (to read a recording: nvtrace report " + word + ")"
	}
	rest := words[1:]
	if !slices.Contains(rest, "--") {
		rest = append([]string{"--"}, rest...)
	}
	if rest[len(rest)-1] == "--" {
		rest = append(slices.Clone(rest), "command")
	}
	switch {
	case len(words) > 1 && strings.HasSuffix(words[1], ".nvt"):
		return e.fail(exitFailed, "%q is not a verb of nvtrace%s; to read a recording: nvtrace report %s, nvtrace log %s", word, hint, words[1], words[1])
	case word == "profile" || word == "launch" || word == "start": // of nsys
		return e.fail(exitFailed, "%q is not a verb of nvtrace; to record when GPUs did what: nvtrace -q --gpu-times=events -o run.nvt -- command, and then nvtrace report run.nvt", word)
	case strings.HasSuffix(word, ".bt") || strings.HasSuffix(word, ".nt"):
		return e.fail(exitFailed, "%q is not a verb of nvtrace; to run a program for probes: nvtrace --script %s", word, shellText(append([]string{word}, rest...)))
	}
	i := slices.Index(words, "--")
	if _, err := findTool(word); err == nil {
		if i < 0 {
			words = append([]string{word, "--"}, words[1:]...)
		}
		return e.fail(exitFailed, "%q is a tool: nvtrace tool %s", word, shellText(words))
	}
	if i > 0 { // the words before it are none of a command
		words = words[i+1:]
		switch word {
		case "record":
			hint = " (to record: nvtrace --api -o run.nvt -- " + shellText(words) + ")"
		case "trace", "exec":
			hint = " (nvtrace alone traces)"
		}
	}
	return e.fail(exitFailed, "%q is not a verb of nvtrace%s; to trace a program, type: nvtrace -- %s",
		word, hint, strings.Join(words, " "))
}

func usage(w io.Writer) error {
	var b strings.Builder
	b.WriteString("nvtrace shows what a process does with an NVIDIA GPU.\n\n" +
		"usage: nvtrace [flags] -- command [args]    nvtrace VERB ...\n" + whatToType + examples + "\nFlags (nvtrace run -h explains them):\n")
	for _, g := range runGroups {
		var names []string
		for _, name := range g.names {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			names = append(names, dashes+name)
		}
		head := fmt.Sprintf("  %-10s ", g.title)
		for _, line := range wrap(strings.Join(names, " "), helpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nVerbs:\n")
	for _, v := range verbs() {
		head := fmt.Sprintf("  %-10s ", v.name)
		for _, line := range wrap(v.short, helpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nTopics (nvtrace help TOPIC):\n")
	for _, t := range topics {
		head := fmt.Sprintf("  %-10s ", t.name)
		for _, line := range wrap(t.short, helpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nnvtrace VERB -h lists a verb's arguments and flags. The exit status is the\nprogram's; 125: nvtrace failed, 126: the program can't be executed, 127: it was\nnot found.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func helpVerb(e *env, args []string) int {
	if len(args) > 0 {
		for _, v := range verbs() {
			if v.name == args[0] {
				return v.run(e, []string{"-h"}, nil)
			}
		}
		for _, t := range topics {
			if t.name == args[0] {
				if _, err := io.WriteString(e.stdout, t.text()); err != nil {
					return e.fail(exitFailed, "%v", err)
				}
				return exitOK
			}
		}
		if doc, ok := probeDoc(args[0]); ok {
			if _, err := io.WriteString(e.stdout, doc); err != nil {
				return e.fail(exitFailed, "%v", err)
			}
			return exitOK
		}
		if newRunFlags(e).set.Lookup(strings.TrimLeft(args[0], "-")) != nil {
			return e.fail(exitUsage, "%s is a flag: nvtrace run -h says what it is for", args[0])
		}
		t, err := findTool(args[0])
		if err != nil {
			return e.fail(exitUsage, "no verb %q, no topic, and no tool; nvtrace help and nvtrace tool list them", args[0])
		}
		if _, err := io.WriteString(e.stdout, "# "+toolText(t)); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		return exitOK
	}
	if err := usage(e.stdout); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

// fail prints a message, as a rule one line, and returns the status. Names of
// files and programs in it can't steer a terminal.
func (e *env) fail(status int, format string, args ...any) int {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		fmt.Fprintf(e.stderr, "nvtrace: %s\n", printable(line))
	}
	return status
}

// notice prints one line that does not change the status.
func (e *env) notice(format string, args ...any) { e.fail(exitOK, format, args...) }
