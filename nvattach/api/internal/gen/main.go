// Command gen makes the tables of package api. It reads declarations from
// NVIDIA's public headers and keeps names and numbers.
//
//	gen facts -release 13.0 -cuda DIR[,DIR...] [-facts DIR]   adds or replaces a release in the facts
//	gen check -release 13.0 -cuda DIR[,DIR...] [-facts DIR]   compares a release with the facts
//	gen pack  FACTS OUTPUT                                    packs the facts into the binary
//
// The folders are searched for folders called include. gcc preprocesses.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"nvtrace/nvattach/api/internal/gen/facts"
	"nvtrace/nvattach/api/internal/gen/harvest"
	"nvtrace/nvattach/api/internal/gen/pack"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: gen facts|check -release N.N -cuda DIR[,DIR...] [-facts DIR] | gen pack FACTS OUTPUT")

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch verb := args[0]; verb {
	case "facts", "check":
		fl := flag.NewFlagSet(verb, flag.ContinueOnError)
		release := fl.String("release", "", "the toolkit's release, as 13.0")
		cuda := fl.String("cuda", "", "folders with the headers, separated by commas")
		dir := fl.String("facts", "nvattach/api/facts", "folder of the facts")
		if err := fl.Parse(args[1:]); err != nil {
			return err
		}
		if *release == "" || *cuda == "" || fl.NArg() > 0 {
			return errUsage
		}
		return headers(out, verb, *release, strings.Split(*cuda, ","), *dir)
	case "pack":
		if len(args) != 3 {
			return errUsage
		}
		return packFile(args[1], args[2])
	}
	return errUsage
}

// headers extracts a release and adds or compares it.
func headers(out io.Writer, verb, release string, dirs []string, dir string) error {
	results, err := harvest.Extract(release, dirs...)
	if err != nil {
		return err
	}
	known := map[string]*facts.Set{}
	sets, err := facts.Read(dir)
	if err != nil && verb == "check" {
		return err
	}
	for _, s := range sets {
		known[s.Library] = s
	}
	differ := 0
	for _, r := range results {
		s := known[r.Library]
		if s == nil {
			s = facts.NewSet(r.Library)
		}
		before, err := s.Append(nil)
		if err != nil {
			return err
		}
		s.Add(r.Release)
		for t, found := range map[*facts.Table]map[string]any{&s.Types: r.Types, &s.Funcs: r.Funcs} {
			for name, fact := range found {
				if err := t.Put(name, release, fact); err != nil {
					return err
				}
			}
		}
		after, err := s.Append(nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %s: %d functions, %d types\n", r.Library, release, len(r.Funcs), len(r.Types))
		if verb == "facts" {
			if err := s.Write(dir); err != nil {
				return err
			}
		} else if !slices.Equal(before, after) {
			fmt.Fprintf(out, "%s differs from %s\n", r.Library, dir)
			differ++
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d libraries differ from %s", differ, dir)
	}
	return nil
}

func packFile(dir, output string) error {
	sets, err := facts.Read(dir)
	if err != nil {
		return err
	}
	b, err := pack.Encode(sets)
	if err != nil {
		return err
	}
	// Another version of Go may compress in another way: what is up to date stays.
	if old, err := os.ReadFile(output); err == nil && pack.Equal(old, b) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(output, b, 0o644)
}
