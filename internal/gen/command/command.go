// Package command is the command line of the generators that keep facts: text,
// which is committed, and from which the file is packed that a package embeds.
//
//	gen facts SOURCES [-facts DIR]  adds what the sources say to the facts
//	gen check SOURCES [-facts DIR]  compares the sources with the facts
//	gen pack FACTS OUTPUT           packs the facts into the file
package command

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Generator is what differs between them.
type Generator struct {
	Sources string // the flags that name the sources, for the usage: "-src DIR"
	Facts   string // the facts' folder, unless -facts names one

	// Flags defines the sources' flags. Once they are parsed, what it returns is
	// called: to add to the facts in dir or, if check is set, to compare and
	// return how many differ. [ErrUsage] is what it returns if a flag is missing.
	Flags func(fl *flag.FlagSet) func(out io.Writer, dir string, check bool) (differ int, err error)
	// Encode packs the facts of a folder.
	Encode func(dir string) ([]byte, error)
	// Equal reports whether a packed file need not be written again; nil: the bytes are the same.
	Equal func(old, packed []byte) bool
}

// ErrUsage stands for the text that says how the generator is called.
var ErrUsage = errors.New("usage")

// Main runs the generator with the program's arguments, and ends the program.
func (g *Generator) Main() {
	if err := g.Run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Run runs the generator. Its reports go to out.
func (g *Generator) Run(args []string, out io.Writer) error {
	err := ErrUsage
	if len(args) > 0 {
		switch args[0] {
		case "facts", "check":
			err = g.sources(args[0], args[1:], out)
		case "pack":
			if len(args) == 3 {
				return g.pack(args[1], args[2])
			}
		}
	}
	if errors.Is(err, ErrUsage) {
		return fmt.Errorf("%w: gen facts|check %s [-facts DIR] | gen pack FACTS OUTPUT", ErrUsage, g.Sources)
	}
	return err
}

func (g *Generator) sources(verb string, args []string, out io.Writer) error {
	fl := flag.NewFlagSet(verb, flag.ContinueOnError)
	fl.SetOutput(out)
	dir := fl.String("facts", g.Facts, "folder of the facts")
	read := g.Flags(fl)
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return ErrUsage
	}
	differ, err := read(out, *dir, verb == "check")
	if err == nil && differ > 0 {
		err = fmt.Errorf("%d facts differ from %s", differ, *dir)
	}
	return err
}

func (g *Generator) pack(dir, output string) error {
	b, err := g.Encode(dir)
	if err != nil {
		return err
	}
	equal := g.Equal
	if equal == nil {
		equal = bytes.Equal
	}
	old, err := os.ReadFile(output)
	switch {
	case err == nil && equal(old, b):
		return nil // keeps the time stamp of what is up to date
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return os.WriteFile(output, b, 0o644)
}
