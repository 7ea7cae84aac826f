package cli

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"nvtrace/ioctl"
	"nvtrace/nvattach/script"
)

// NewFlagSet makes a verb's flags. Help that was asked for goes to stdout; a
// bad flag is one line on stderr.
func NewFlagSet(e *Env, verb, args string) *flag.FlagSet {
	fs := flag.NewFlagSet("nvtrace "+verb, flag.ContinueOnError)
	line := &flagError{e: e, verb: verb, set: fs}
	fs.SetOutput(line)
	fs.Usage = func() {
		switch {
		case line.said:
		case e.Help != nil:
			e.Help(fs)
		default:
			head := "usage: nvtrace " + verb
			for _, line := range Wrap(args, HelpWidth-len(head)-1) {
				fmt.Fprintf(e.Stdout, "%s %s\n", head, line)
				head = strings.Repeat(" ", len(head))
			}
			if verb == "run" {
				fmt.Fprint(e.Stdout, Examples)
				writeGroups(e.Stdout, fs, RunGroups)
				return
			}
			writeFlags(e.Stdout, fs)
		}
		line.said = false
	}
	return fs
}

// flagError is where package flag prints what is wrong, before it calls Usage.
type flagError struct {
	e    *Env
	verb string
	set  *flag.FlagSet
	said bool
}

// Write implements io.Writer.
func (f *flagError) Write(b []byte) (int, error) {
	f.said = true
	text := f.reword(strings.TrimSuffix(string(b), "\n"))
	if strings.HasSuffix(text, "?") {
		f.e.Notice("%s (nvtrace %s -h lists the flags)", text, f.verb)
	} else {
		f.e.Notice("%s; nvtrace %s -h lists the flags", text, f.verb)
	}
	return len(b), nil
}

// reword puts what package flag says into the words of the help: flags of more
// than a letter have two dashes, and a value that can't be parsed is said with
// what it should be.
func (f *flagError) reword(text string) string {
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		return f.undefined(strings.TrimPrefix(name, "-"))
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return f.empty(strings.TrimPrefix(name, "-"))
	}
	// Package flag takes what can stand alone for a boolean.
	text = strings.Replace(text, "invalid boolean value", "invalid value", 1)
	head, rest, ok := strings.Cut(text, " -")
	if at := strings.Index(text, "\" for "); strings.HasPrefix(text, "invalid value") && at >= 0 {
		// The value, which is quoted, may have dashes of its own.
		head, rest, ok = strings.Cut(text[at:], " -")
		head = text[:at] + head
	}
	if !ok {
		return text
	}
	name, _, _ := strings.Cut(rest, ":")
	dashes := " --"
	if len(name) == 1 {
		dashes = " -"
	}
	rest = strings.TrimPrefix(rest, "-")
	for _, vague := range []string{": parse error", ": value out of range"} {
		if cut, is := strings.CutSuffix(rest, vague); is {
			rest = cut + f.wanted(name)
		}
	}
	return head + dashes + rest
}

// empty is said of a flag without its value: what it is for.
func (f *flagError) empty(name string) string {
	fl := f.set.Lookup(name)
	if fl == nil {
		return dashed(name) + " needs a value"
	}
	value, usage := flag.UnquoteUsage(fl)
	usage, _, _ = strings.Cut(usage, ". ")
	usage, _, _ = strings.Cut(usage, "; ")
	return fmt.Sprintf("%s needs %s: %s", dashed(name), value, usage)
}

// dashed is a flag as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// otherNames are what flags of a run are called elsewhere, and what nvtrace does instead
// of strace's, bpftrace's, nsys's and ncu's.
var otherNames = map[string]string{
	"f": "all processes and threads are followed: leave it out", "ff": "all processes and threads are followed: leave it out",
	"c": "a summary is printed at the end: leave it out (with --ioctl-log: --summary)", "C": "with --ioctl-log, --summary prints the summary too",
	"y": "descriptors are shown with their devices: leave it out", "yy": "descriptors are shown with their devices: leave it out",
	"k": "--stacks=alloc,sync,launch,failed records from where calls were made", "kk": "what fails is told without it: leave it out",
	"E": "set the variable for nvtrace itself: env NAME=VALUE nvtrace …", "u": "run nvtrace itself as that user",
	"output": "it is -o FILE", "pid": "it is -p PID", "quiet": "it is -q", "follow": "all processes and threads are followed: leave it out",
	"help": "it is -h", "V": "it is nvtrace version",
	"B": "lines are put out as they come: leave it out", "unsafe": "programs are proven safe, and need no leave: leave it out",
	"d": "where programs would go shows nvtrace attach --dry-run", "dd": "where programs would go shows nvtrace attach --dry-run",
	"I": "programs of -e need no headers: leave it out", "include": "programs of -e need no headers: leave it out",
	"trace": "it is --api=driver,runtime,nvtx,…", "stats": "a summary is printed at the end; that of a recording by nvtrace report run.nvt",
	"export": "of a recording: nvtrace export --format FORMAT run.nvt", "capture-range": "it is --start-on=cudaProfilerStart or NVTX:NAME",
	"kernel-name": "kernels are named in a program: -e 'kernel:GLOB { … }'; those of --attach by --kernel",
}

// elsewhere says what stands in nvtrace for a flag that means something else in bpftrace than in
// strace, by the words behind it; "" if that is not what was meant.
func (f *flagError) elsewhere(name string) string {
	next := f.set.Arg(0)
	switch {
	case name == "l":
		words := []string{"nvtrace", "list"}
		kind, _, _ := strings.Cut(next, ":")
		if next != "" && !strings.HasPrefix(next, "-") {
			words = append(words, next)
		} else if next == "" {
			return "nvtrace list lists what there is to probe"
		}
		if slices.ContainsFunc(script.Kinds, func(k script.Kind) bool { return k.Name == kind }) || kind == "launch" {
			words = append(words, "--", "command")
		}
		return ShellText(words) + " lists what there is to probe"
	case name == "c" && next != "" && !strings.HasPrefix(next, "-"):
		return "the command stands behind --, the last: nvtrace … -- " + next
	case name == "f" && (next == "json" || next == "text"):
		return "it is --maps=" + next
	}
	return ""
}

// undefined says what may have been meant by a flag that there is not.
func (f *flagError) undefined(name string) string {
	text := "there is no flag " + dashed(name)
	if hint := cmp.Or(f.elsewhere(name), otherNames[name]); hint != "" && f.verb == "run" {
		return text + ": " + hint
	}
	var names []string
	f.set.VisitAll(func(fl *flag.Flag) { names = append(names, dashed(fl.Name)) })
	if len(name) == 1 {
		return text
	}
	return text + ioctl.Suggest(dashed(name), slices.Values(names))
}

// wanted says what the value of a flag must be.
func (f *flagError) wanted(name string) string {
	fl := f.set.Lookup(name)
	if fl == nil {
		return ""
	}
	got, ok := fl.Value.(flag.Getter)
	if !ok {
		return ""
	}
	switch got.Get().(type) {
	case time.Duration:
		return ": want a time with its unit, such as 1.5s or 200ms"
	case uint, uint64:
		return ": want a number, 0 or more"
	case int, int64:
		return ": want a number"
	}
	return ""
}

// flagColumn is where the description of a flag begins.
const flagColumn = 20

// flagGroup is a part of a verb's help.
type flagGroup struct {
	Title string
	Names []string
}

// writeGroups lists flags by group, then those that are in none.
func writeGroups(w io.Writer, fs *flag.FlagSet, groups []flagGroup) {
	rest := flag.NewFlagSet("", flag.ContinueOnError)
	grouped := make(map[string]bool)
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s:\n", g.Title)
		for _, name := range g.Names {
			grouped[name] = true
			writeFlag(w, fs.Lookup(name))
		}
	}
	fs.VisitAll(func(f *flag.Flag) {
		if !grouped[f.Name] {
			rest.Var(f.Value, f.Name, f.Usage)
		}
	})
	writeFlags(w, rest)
}

// writeFlags lists flags, in the order of their names.
func writeFlags(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) { writeFlag(w, f) })
}

// writeFlag describes a flag, with one dash if it has one letter, as flags are documented.
func writeFlag(w io.Writer, f *flag.Flag) {
	value, text := flag.UnquoteUsage(f)
	name := "--" + f.Name
	if len(f.Name) == 1 {
		name = "-" + f.Name
	}
	alone, ok := f.Value.(interface{ IsBoolFlag() bool })
	switch {
	case ok && alone.IsBoolFlag() && value != "":
		name += "[=" + value + "]"
	case value != "":
		name += " " + strings.ToUpper(value)
	}
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
		text += " (default " + f.DefValue + ")"
	}
	head := fmt.Sprintf("  %-*s ", flagColumn-3, name)
	if len(head) > flagColumn {
		fmt.Fprintf(w, "  %s\n", name)
		head = strings.Repeat(" ", flagColumn)
	}
	for _, line := range Wrap(text, HelpWidth-flagColumn) {
		fmt.Fprintf(w, "%s%s\n", head, line)
		head = strings.Repeat(" ", flagColumn)
	}
}

// HelpWidth is how wide help is at most: a terminal's usual width.
const HelpWidth = 80

// Wrap breaks a text into lines of at most so many characters, where it has spaces.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// Parse parses a verb's flags; ok is false where the verb must return status.
func Parse(fs *flag.FlagSet, args []string) (status int, ok bool) {
	switch err := fs.Parse(SplitShort(fs, args)); {
	case errors.Is(err, flag.ErrHelp):
		return ExitOK, false
	case err != nil:
		return ExitUsage, false
	}
	negative := ""
	fs.Visit(func(f *flag.Flag) {
		if got, ok := f.Value.(flag.Getter); ok {
			if d, ok := got.Get().(time.Duration); ok && d < 0 {
				negative = f.Name
			}
		}
	})
	if negative != "" {
		fmt.Fprintf(fs.Output(), "invalid value %q for flag -%s: want a time of 0 or more\n", fs.Lookup(negative).Value, negative)
		return ExitUsage, false
	}
	return 0, true
}

// SplitShort takes apart flags of one letter that stand in one word, as getopt does: -tT, -tt, -qo FILE, -s100.
func SplitShort(fs *flag.FlagSet, args []string) []string {
	list := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		word := args[i]
		if len(word) < 2 || word[0] != '-' || word == "--" { // flags end here
			return append(list, args[i:]...)
		}
		name, _, joined := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		f := fs.Lookup(name)
		switch {
		case f == nil && word[1] != '-' && !joined:
			list = append(list, splitWord(fs, word)...)
			if last := fs.Lookup(strings.TrimPrefix(list[len(list)-1], "-")); last == nil || alone(last) {
				continue
			}
		case f == nil || joined || alone(f):
			list = append(list, word)
			continue
		default:
			list = append(list, word)
		}
		if i++; i < len(args) { // the flag's value
			list = append(list, args[i])
		}
	}
	return list
}

// splitWord takes a word apart; one that is not made of flags of one letter stays as it is. What follows a flag
// with a value must be a number, as -output is no -o with a file utput.
func splitWord(fs *flag.FlagSet, word string) (list []string) {
	for i := 1; i < len(word); i++ {
		f := fs.Lookup(word[i : i+1])
		if f == nil {
			return []string{word}
		}
		list = append(list, "-"+f.Name)
		if alone(f) {
			continue
		}
		if rest := word[i+1:]; rest != "" {
			if rest[0] < '0' || rest[0] > '9' {
				return []string{word}
			}
			list[len(list)-1] += "=" + rest
		}
		break
	}
	return list
}

// alone reports whether a flag may stand without a value.
func alone(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// ParseAnywhere parses flags that may stand before, between and after the
// words, which it returns.
func ParseAnywhere(fs *flag.FlagSet, args []string) (words []string, status int, ok bool) {
	for {
		if status, ok := Parse(fs, args); !ok {
			return nil, status, false
		}
		if fs.NArg() == 0 {
			return words, 0, true
		}
		words = append(words, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

// OneRecording parses the arguments of a verb that reads one recording, whose
// name it returns.
func (e *Env) OneRecording(fs *flag.FlagSet, args, command []string) (name string, status int, ok bool) {
	words, status, ok := ParseAnywhere(fs, args)
	if ok && (len(words) != 1 || command != nil) {
		verb := strings.TrimPrefix(fs.Name(), "nvtrace ")
		if verb == "report" && len(words) > 1 && command == nil {
			return "", e.Fail(ExitUsage, "report wants one recording; to compare the ranks of a job: nvtrace fleet report %s", ShellText(words)), false
		}
		return "", e.Fail(ExitUsage, "%s wants one recording: nvtrace %s run.nvt", verb, verb), false
	}
	if !ok {
		return "", status, false
	}
	return words[0], ExitOK, true
}
