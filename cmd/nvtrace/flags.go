package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// newFlagSet makes a verb's flags. Help that was asked for goes to stdout; a
// bad flag is one line on stderr.
func newFlagSet(e *env, verb, args string) *flag.FlagSet {
	fs := flag.NewFlagSet("nvtrace "+verb, flag.ContinueOnError)
	line := &flagError{e: e, verb: verb}
	fs.SetOutput(line)
	fs.Usage = func() {
		if !line.said {
			fmt.Fprintf(e.stdout, "usage: nvtrace %s %s\n", verb, args)
			writeFlags(e.stdout, fs)
		}
		line.said = false
	}
	return fs
}

// flagError is where package flag prints what is wrong, before it calls Usage.
type flagError struct {
	e    *env
	verb string
	said bool
}

// Write implements io.Writer.
func (f *flagError) Write(b []byte) (int, error) {
	f.said = true
	// Package flag takes what can stand alone for a boolean.
	text := strings.Replace(strings.TrimSuffix(string(b), "\n"), "invalid boolean value", "invalid value", 1)
	f.e.notice("%s; nvtrace %s -h lists the flags", text, f.verb)
	return len(b), nil
}

// flagColumn is where the description of a flag begins.
const flagColumn = 20

// writeFlags lists flags, those of one letter with one dash, as they are
// documented.
func writeFlags(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) {
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
		sep := " "
		if len(name) >= flagColumn-2 {
			sep = "\n" + strings.Repeat(" ", flagColumn)
		} else {
			name = fmt.Sprintf("%-*s", flagColumn-3, name)
		}
		fmt.Fprintf(w, "  %s%s%s\n", name, sep, text)
	})
}

// parse parses a verb's flags; ok is false where the verb must return status.
func parse(fs *flag.FlagSet, args []string) (status int, ok bool) {
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK, false
	case err != nil:
		return exitUsage, false
	}
	return 0, true
}
