package verbs

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/cmd/nvtrace/internal/live"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// verb is a word of the command line and what it does.
type verb struct {
	name, args, short string
	// run gets the words before and after the first "--".
	run func(e *cli.Env, args, command []string) int
}

func verbs() []verb {
	return []verb{
		{"run", "[flags] -- command [args]", "trace a program (the default)", run.Verb},
		{"tool", "[NAME [PARAMETER...] [flags] -- command [args]] | --source NAME", "answer a common question by a ready-made program; alone: list them", run.ToolVerb},
		{"list", "[KIND:GLOB [FILE...] [-- command]]", "list what can be probed: kernels of a program, functions, device calls", probe.ListVerb},
		{"doctor", "[FILE...] [-- command]", "say what works on this machine, and what to type for the rest", live.DoctorVerb},
		{"stat", "[flags] -- command [args]", "count what a program does: launches, copies, waits, memory, failures", run.StatVerb},
		{"annotate", "[flags] -- command [args] | maps.json", "count instructions or accesses beside the lines of kernels' source, or their code", run.AnnotateVerb},
		{"top", "[flags] -- command [args] | PID", "show each second what processes do with the GPU", run.TopVerb},
		{"ps", "[flags] [PID...]", "say what the GPU is at for processes that run, from outside", live.PsVerb},
		{"sample", "[flags] PID | -- command [args]", "say how long GPUs are at which kernels, by looks from outside: nothing is stopped", live.SampleVerb},
		{"where", "[flags] PID", "say what a process's GPU channels and threads are at: is it hung, and in what", live.WhereVerb},
		{"pushbuffer", "[flags] PID|FILE", "print what a process handed to the GPU's channels last", live.PushbufferVerb},
		{"report", "[flags] run.nvt", "print the summary of a recording", view.ReportVerb},
		{"fleet", "report|watch|merge [flags] DIR|run.nvt... | ras [flags] [HOST]", "compare the ranks of a job: which is slow or hangs, since when, in what; watch: while it runs; merge: draw them on one timeline; ras: ask NCCL itself", view.FleetVerb},
		{"log", "[flags] run.nvt", "print a recording's calls, a line each", view.LogVerb},
		{"dump", "PID", "have nvtrace --flight write what it keeps of a program", run.DumpVerb},
		{"ctl", "PID start|stop|mark TEXT", "begin or end recording library calls of a run, or put a mark into its recording", run.CtlVerb},
		{"export", "--format FORMAT [flags] run.nvt", "convert a recording", view.ExportVerb},
		{"tree", "[flags] run.nvt", "draw the driver's objects, their memory, what was not freed", objects.TreeVerb},
		{"maps", "[flags] run.nvt | PID | pin ls|dump|set|rm", "list the device memory that processes map, and what it is; maps of probes that outlive runs", MapsVerb},
		{"failures", "[flags] run.nvt", "explain failed calls", view.FailuresVerb},
		{"diff", "[flags] a.nvt b.nvt", "compare two runs", view.DiffVerb},
		{"abi", "diff [flags] VERSION VERSION [NAMES]", "compare the tables of two driver versions", view.ABIVerb},
		{"allowlist", "[--format FORMAT] [flags] run.nvt...", "list what runs need: text, json, seccomp, nvproxy", view.AllowlistVerb},
		{"check", "--allow FILE [flags] run.nvt...", "say what runs use beyond a list", view.CheckVerb},
		{"replay", "[flags] run.nvt -- command [args]", "run a program with its device calls answered from a recording", run.ReplayVerb},
		{"attach", "[flags] probe.o...", "look into probe objects: programs, places, maps; --dry-run, --run", run.AttachVerb},
		{"ptx", "fmt|check|sites|run FILE", "work with PTX: format, check, list probe sites, execute on the CPU", code.PTXVerb},
		{"modules", "[flags] run.nvt", "list the code images that were loaded, by whom, and their kernels", view.ModulesVerb},
		{"fatbin", "ls|extract FILE...", "list and extract the GPU code in executables, libraries, fat binaries", code.FatbinVerb},
		{"sass", "dis|sites|check FILE...", "print machine code with live registers, find probe sites, check control codes", code.SassVerb},
		{"version", "[run.nvt...]", "print the versions of nvtrace and the drivers it knows, or of recordings", versionVerb},
	}
}

// Main runs the command line and returns the exit status.
func Main(e *cli.Env, words []string) int {
	// The last that text goes through, whoever made it.
	out, errs := escape.NewWriter(e.Stdout), escape.NewWriter(e.Stderr)
	e.Stdout, e.Stderr = out, errs
	status := main2(e, words)
	_, _ = out.Flush(), errs.Flush() // halves of characters, at most
	return status
}

// main2 runs the command line with outputs that are safe to write to.
func main2(e *cli.Env, words []string) int {
	if why := cli.NoThreads(); why != "" && (len(words) == 0 || words[0] != run.DecodeWord) {
		return e.Fail(cli.ExitFailed, "%s", why)
	}
	e.Debug = cli.DebugLogger(e)
	for _, v := range verbs() {
		e.Verbs = append(e.Verbs, v.name)
	}
	if len(words) > 0 && words[0] == completeWord {
		return completeVerb(e, words[1:])
	}
	args, command, cut := cli.SplitArgs(words)
	traces := len(command) > 0 && tracesCommand(args)
	switch why := cli.NoDescriptors(); {
	case why != "" && traces:
		return e.Untraced(why, command)
	case why != "":
		return e.Fail(cli.ExitFailed, "%s", why)
	}
	if why := cli.NoProc(); why != "" && traces {
		return e.Untraced(why, command)
	}
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		return helpVerb(e, args[1:])
	}
	if len(args) == 0 && !cut {
		_ = usage(e.Stderr)
		return cli.ExitUsage
	}
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-version") {
		return versionVerb(e, args[1:], command)
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || cli.IsPID(args[0]) {
		return run.Verb(e, args, command)
	}
	for _, v := range verbs() {
		if v.name == args[0] {
			return v.run(e, args[1:], command)
		}
	}
	if args[0] == run.DecodeWord {
		return run.DecodeVerb(e, args[1:], command)
	}
	if probe.ScriptFile(args[0]) {
		args, command = probe.ScriptCommand(words)
		return run.Verb(e, args, command)
	}
	return noVerb(e, args[0], words)
}

// tracesCommand reports whether the words before a command have it traced.
func tracesCommand(args []string) bool {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || probe.ScriptFile(args[0]) {
		return true
	}
	return slices.Contains([]string{"run", "tool", "stat", "annotate", "top", "sample"}, args[0])
}

// noVerb says what may have been meant by a first word that is no verb. The
// status is that of a program which could not be traced, as one may stand there.
func noVerb(e *cli.Env, word string, words []string) int {
	hint := ""
	if near := ioctl.Suggest(word, slices.Values(e.Verbs)); near != "" && !strings.Contains(word, "/") {
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
		return e.Fail(cli.ExitFailed, "%q is not a verb of nvtrace%s; to read a recording: nvtrace report %s, nvtrace log %s", word, hint, words[1], words[1])
	case word == "profile" || word == "launch" || word == "start": // of nsys
		return e.Fail(cli.ExitFailed, "%q is not a verb of nvtrace; to record when GPUs did what: nvtrace -q --gpu-times=events -o run.nvt -- command, and then nvtrace report run.nvt", word)
	case strings.HasSuffix(word, ".bt") || strings.HasSuffix(word, ".nt"):
		return e.Fail(cli.ExitFailed, "%q is not a verb of nvtrace; to run a program for probes: nvtrace --script %s", word, cli.ShellText(append([]string{word}, rest...)))
	}
	i := slices.Index(words, "--")
	if _, err := probe.FindTool(word); err == nil {
		if i < 0 {
			words = append([]string{word, "--"}, words[1:]...)
		}
		return e.Fail(cli.ExitFailed, "%q is a tool: nvtrace tool %s", word, cli.ShellText(words))
	}
	if i > 0 { // the words before it are none of a command
		words = words[i+1:]
		switch word {
		case "record":
			hint = " (to record: nvtrace --api -o run.nvt -- " + cli.ShellText(words) + ")"
		case "trace", "exec":
			hint = " (nvtrace alone traces)"
		}
	}
	return e.Fail(cli.ExitFailed, "%q is not a verb of nvtrace%s; to trace a program, type: nvtrace -- %s",
		word, hint, strings.Join(words, " "))
}

func usage(w io.Writer) error {
	var b strings.Builder
	b.WriteString("nvtrace shows what a process does with an NVIDIA GPU.\n\n" +
		"usage: nvtrace [flags] -- command [args]    nvtrace VERB ...\n" + whatToType + cli.Examples + "\nFlags (nvtrace run -h explains them):\n")
	for _, g := range cli.RunGroups {
		var names []string
		for _, name := range g.Names {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			names = append(names, dashes+name)
		}
		head := fmt.Sprintf("  %-10s ", g.Title)
		for _, line := range cli.Wrap(strings.Join(names, " "), cli.HelpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nVerbs:\n")
	for _, v := range verbs() {
		head := fmt.Sprintf("  %-10s ", v.name)
		for _, line := range cli.Wrap(v.short, cli.HelpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nTopics (nvtrace help TOPIC):\n")
	for _, t := range topics {
		head := fmt.Sprintf("  %-10s ", t.name)
		for _, line := range cli.Wrap(t.short, cli.HelpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nnvtrace VERB -h lists a verb's arguments and flags. The exit status is the\nprogram's; 125: nvtrace failed, 126: the program can't be executed, 127: it was\nnot found.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func helpVerb(e *cli.Env, args []string) int {
	if len(args) > 0 {
		for _, v := range verbs() {
			if v.name == args[0] {
				return v.run(e, []string{"-h"}, nil)
			}
		}
		for _, t := range topics {
			if t.name == args[0] {
				if _, err := io.WriteString(e.Stdout, t.text()); err != nil {
					return e.Fail(cli.ExitFailed, "%v", err)
				}
				return cli.ExitOK
			}
		}
		if doc, ok := probe.Doc(args[0]); ok {
			if _, err := io.WriteString(e.Stdout, doc); err != nil {
				return e.Fail(cli.ExitFailed, "%v", err)
			}
			return cli.ExitOK
		}
		if run.NewFlags(e).Set.Lookup(strings.TrimLeft(args[0], "-")) != nil {
			return e.Fail(cli.ExitUsage, "%s is a flag: nvtrace run -h says what it is for", args[0])
		}
		t, err := probe.FindTool(args[0])
		if err != nil {
			known := slices.Clone(e.Verbs)
			for _, c := range wordsOf("help", nil) {
				known = append(known, c.word)
			}
			return e.Fail(cli.ExitUsage, "no verb %q, no topic, and no tool%s; nvtrace help and nvtrace tool list them", args[0], ioctl.Suggest(args[0], slices.Values(known)))
		}
		if _, err := io.WriteString(e.Stdout, "# "+toolText(t)); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	}
	if err := usage(e.Stdout); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

func versionVerb(e *cli.Env, args, _ []string) int {
	fs := cli.NewFlagSet(e, "version", "[run.nvt...]")
	var asJSON cli.OptString
	asJSON.RegisterJSON(fs)
	man := fs.Bool("man", false, "print the manual page, for man -l -")
	shell := fs.String("completion", "", "print the completion for a `SHELL`: bash, zsh or fish")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if *man || *shell != "" {
		write := writeMan
		if *shell != "" {
			write = func(w io.Writer) error { return writeCompletion(w, *shell) }
		}
		if err := write(e.Stdout); err != nil {
			return e.Fail(cli.ExitUsage, "%v", err)
		}
		return cli.ExitOK
	}
	if err := e.Inputs(names); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	known := rm.Versions()
	r := &versions{Version: cli.Version, Drivers: driverRange{len(known), known[0].String(), known[len(known)-1].String()}, Recordings: []versionOf{}}
	var b bytes.Buffer
	fmt.Fprintf(&b, "nvtrace %s\ndriver versions known: %d, %s to %s\n", r.Version, r.Drivers.Known, r.Drivers.First, r.Drivers.Last)
	for _, name := range names {
		of, err := versionOfFile(&b, name)
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		r.Recordings = append(r.Recordings, *of)
	}
	return e.Answer(&asJSON, nil, r, func() error {
		_, err := e.Stdout.Write(b.Bytes())
		return err
	})
}

// versions is what version says, for programs.
type versions struct {
	Version    string      `json:"version"`
	Drivers    driverRange `json:"drivers"` // that are known
	Recordings []versionOf `json:"recordings"`
}

type driverRange struct {
	Known int    `json:"known"`
	First string `json:"first"`
	Last  string `json:"last"`
}

type versionOf struct {
	File   string `json:"file"`
	Tool   string `json:"tool"`   // nvtrace's version
	Driver string `json:"driver"` // "" if it is not known
	Host   string `json:"host,omitempty"`
}

// versionOfFile describes a recording, for programs and for people.
func versionOfFile(b *bytes.Buffer, name string) (*versionOf, error) {
	r, err := traces.Open(name)
	if err != nil {
		return nil, err
	}
	driver := "unknown"
	if r.Header.Driver != "" {
		driver = cli.DriverText(r.Header.Driver)
	}
	fmt.Fprintf(b, "%s: recorded by nvtrace %s, driver %s\n", name, cli.Printable(r.Header.Tool), driver)
	view.WritePlace(b, &r.Header)
	return &versionOf{name, r.Header.Tool, r.Header.Driver, r.Header.Host}, r.Close()
}

// MapsVerb is about mappings of device memory, or about pinned maps.
func MapsVerb(e *cli.Env, args, command []string) int {
	if len(args) > 0 && args[0] == "pin" {
		return run.PinVerb(e, args[1:])
	}
	return objects.MapsOf(e, args, command, live.Maps)
}
