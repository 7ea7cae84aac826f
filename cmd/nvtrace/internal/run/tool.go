package run

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/script"
)

// ToolVerb runs one of the programs that come with nvtrace.
func ToolVerb(e *cli.Env, args, command []string) int {
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
	if _, err := probe.BadParameter(parameters); err != nil || name != "" && command != nil || slices.Contains(args, "-p") {
		return runTool(e, name, parameters, args, command)
	}
	if how := misplacedTool(e, name, parameters, args); how != "" {
		return e.Fail(cli.ExitFailed, "%s", how)
	}
	fs := cli.NewFlagSet(e, "tool", "[NAME [PARAMETER...] [flags of run] -- command [args]] | --source NAME")
	var asJSON cli.OptString
	asJSON.RegisterJSON(fs)
	source := fs.Bool("source", false, "print the program of NAME, to read or to change")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if name != "" {
		names = append([]string{name}, names...)
	}
	switch {
	case *source && len(names) == 1:
		t, err := probe.FindTool(names[0])
		if err == nil {
			_, err = fmt.Fprint(e.Stdout, t.Source)
		}
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	case *source:
		return e.Fail(cli.ExitUsage, "tool --source wants the name of a tool")
	case len(names) > 0:
		if _, err := probe.FindTool(names[0]); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return e.Fail(cli.ExitFailed, "no command; type: nvtrace tool %s -- command [args]", names[0])
	}
	return listTools(e, &asJSON)
}

// misplacedTool says how to type the command of a tool that has flags of a run and no "--"; "" if that is not so.
func misplacedTool(e *cli.Env, name string, parameters, args []string) string {
	if name == "" || len(args) == 0 {
		return ""
	}
	quiet := *e
	quiet.Stderr = io.Discard
	f := NewFlags(&quiet)
	if word := strings.TrimLeft(strings.SplitN(args[0], "=", 2)[0], "-"); f.Set.Lookup(word) == nil || f.Set.Parse(args) != nil {
		return ""
	}
	words := append([]string{"nvtrace", "tool", name}, parameters...)
	words = append(append(words, args[:len(args)-f.Set.NArg()]...), "--")
	if f.Set.NArg() == 0 {
		return "no command; type: " + cli.ShellText(words) + " command [args]"
	}
	return fmt.Sprintf("%q: put -- before the command: %s", f.Set.Arg(0), cli.ShellText(append(words, f.Set.Args()...)))
}

// runTool runs a program of ours on a command. Its answer is all that is shown.
func runTool(e *cli.Env, name string, parameters, args, command []string) int {
	if name == "" {
		return e.Fail(cli.ExitFailed, "no tool; nvtrace tool lists them")
	}
	if _, err := probe.FindTool(name); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if i, err := probe.BadParameter(parameters); err != nil {
		if c := parameters[i][0]; c >= '0' && c <= '9' {
			return e.Fail(cli.ExitFailed, "%s: %v", name, err)
		}
		if command == nil && view.IsRecording(parameters[i]) {
			return e.Fail(cli.ExitFailed, "%q: of a recording: nvtrace log --tool %s %s", parameters[i], strings.Join(append([]string{name}, parameters[:i]...), ","), cli.ShellText(parameters[i:]))
		}
		return e.Fail(cli.ExitFailed, "%q: put -- before the command: nvtrace tool %s -- %s", parameters[i], strings.Join(append([]string{name}, parameters[:i]...), " "),
			cli.ShellText(slices.Concat(parameters[i:], args, command)))
	}
	words := []string{"--tool", strings.Join(append([]string{name}, parameters...), ",")}
	if !slices.Contains(args, "--summary") {
		words = append(words, "-q")
	}
	return Verb(e, append(words, args...), command)
}

func listTools(e *cli.Env, asJSON *cli.OptString) int {
	tools := script.Tools()
	width := 0
	for i := range tools {
		width = max(width, len(tools[i].Name))
	}
	var b strings.Builder
	for i := range tools {
		head := fmt.Sprintf("%-*s  ", width, tools[i].Name)
		for _, line := range cli.Wrap(tools[i].Doc, cli.HelpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	b.WriteString("\nnvtrace tool NAME -- ./app runs one; nvtrace tool --source NAME prints its program.\n")
	list := make([]toolDoc, 0, len(tools))
	for i := range tools {
		list = append(list, toolDoc{tools[i].Name, tools[i].Doc})
	}
	return e.Answer(asJSON, nil, map[string][]toolDoc{"tools": list}, func() error {
		_, err := io.WriteString(e.Stdout, b.String())
		return err
	})
}

// toolDoc is a tool, for programs.
type toolDoc struct {
	Name  string `json:"name"`
	About string `json:"about"`
}
