package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/ioctl"
	"nvtrace/nvattach/script"
)

// findTool returns a program that comes with nvtrace.
func findTool(name string) (*script.Tool, error) {
	tools := script.Tools()
	var names []string
	for i := range tools {
		if tools[i].Name == name {
			return &tools[i], nil
		}
		names = append(names, tools[i].Name)
	}
	return nil, fmt.Errorf("there is no tool %q%s; nvtrace tool lists them", name, ioctl.Suggest(name, slices.Values(names)))
}

// toolProgram returns the program that a value of --tool names.
func toolProgram(value string) (name, text string, params script.Params, err error) {
	words := strings.Split(value, ",")
	t, err := findTool(words[0])
	if err != nil {
		return "", "", params, err
	}
	for _, w := range words[1:] {
		n, err := toolParameter(w)
		if err != nil {
			return "", "", params, fmt.Errorf("%s: %w", t.Name, err)
		}
		params.Positional = append(params.Positional, strconv.FormatInt(n, 10))
	}
	return t.Name, t.Source, params, nil
}

// toolParameter reads a time, and returns its nanoseconds.
func toolParameter(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		if n != 0 {
			return 0, fmt.Errorf("%s is a time: of what? write %ss for seconds", s, s)
		}
		return n, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return int64(d), nil
	}
	return 0, fmt.Errorf("%q: a parameter is a time such as 10s", s)
}

// badParameter returns which of a tool's parameters is the first that is none, and why; -1 if all are.
func badParameter(parameters []string) (int, error) {
	for i, s := range parameters {
		if _, err := toolParameter(s); err != nil {
			return i, err
		}
	}
	return -1, nil
}

// toolVerb runs one of the programs that come with nvtrace.
func toolVerb(e *env, args, command []string) int {
	var parameters []string
	name := ""
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if name == "" {
			name = args[0]
		} else {
			parameters = append(parameters, args[0])
		}
		args = args[1:]
	}
	if _, err := badParameter(parameters); err != nil || name != "" && command != nil || slices.Contains(args, "-p") {
		return runTool(e, name, parameters, args, command)
	}
	if how := misplacedTool(e, name, parameters, args); how != "" {
		return e.fail(exitFailed, "%s", how)
	}
	fs := newFlagSet(e, "tool", "[NAME [PARAMETER...] [flags of run] -- command [args]] | --source NAME")
	source := fs.Bool("source", false, "print the program of NAME, to read or to change")
	names, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if name != "" {
		names = append([]string{name}, names...)
	}
	switch {
	case *source && len(names) == 1:
		t, err := findTool(names[0])
		if err == nil {
			_, err = fmt.Fprint(e.stdout, t.Source)
		}
		if err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		return exitOK
	case *source:
		return e.fail(exitUsage, "tool --source wants the name of a tool")
	case len(names) > 0:
		if _, err := findTool(names[0]); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		return e.fail(exitFailed, "no command; type: nvtrace tool %s -- command [args]", names[0])
	}
	return e.listTools()
}

// misplacedTool says how to type the command of a tool that has flags of a run and no "--"; "" if that is not so.
func misplacedTool(e *env, name string, parameters, args []string) string {
	if name == "" || len(args) == 0 {
		return ""
	}
	quiet := *e
	quiet.stderr = io.Discard
	f := newRunFlags(&quiet)
	if word := strings.TrimLeft(strings.SplitN(args[0], "=", 2)[0], "-"); f.set.Lookup(word) == nil || f.set.Parse(args) != nil {
		return ""
	}
	words := append([]string{"nvtrace", "tool", name}, parameters...)
	words = append(append(words, args[:len(args)-f.set.NArg()]...), "--")
	if f.set.NArg() == 0 {
		return "no command; type: " + shellText(words) + " command [args]"
	}
	return fmt.Sprintf("%q: put -- before the command: %s", f.set.Arg(0), shellText(append(words, f.set.Args()...)))
}

// runTool runs a program of ours on a command. Its answer is all that is shown.
func runTool(e *env, name string, parameters, args, command []string) int {
	if name == "" {
		return e.fail(exitFailed, "no tool; nvtrace tool lists them")
	}
	if _, err := findTool(name); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if i, err := badParameter(parameters); err != nil {
		if c := parameters[i][0]; c >= '0' && c <= '9' {
			return e.fail(exitFailed, "%s: %v", name, err)
		}
		if command == nil && isRecording(parameters[i]) {
			return e.fail(exitFailed, "%q: of a recording: nvtrace log --tool %s %s", parameters[i], strings.Join(append([]string{name}, parameters[:i]...), ","), shellText(parameters[i:]))
		}
		return e.fail(exitFailed, "%q: put -- before the command: nvtrace tool %s -- %s", parameters[i], strings.Join(append([]string{name}, parameters[:i]...), " "),
			shellText(slices.Concat(parameters[i:], args, command)))
	}
	words := []string{"--tool", strings.Join(append([]string{name}, parameters...), ",")}
	if !slices.Contains(args, "--summary") {
		words = append(words, "-q")
	}
	return runVerb(e, append(words, args...), command)
}

func (e *env) listTools() int {
	tools := script.Tools()
	width := 0
	for i := range tools {
		width = max(width, len(tools[i].Name))
	}
	var b strings.Builder
	for i := range tools {
		head := fmt.Sprintf("%-*s  ", width, tools[i].Name)
		for _, line := range wrap(tools[i].Doc, helpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nnvtrace tool NAME -- ./app runs one; nvtrace tool --source NAME prints its program.\n")
	if _, err := fmt.Fprint(e.stdout, b.String()); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}
