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
	"cmp"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/internal/gen/command"
	"nvtrace/nvattach/api/internal/gen/facts"
	"nvtrace/nvattach/api/internal/gen/harvest"
	"nvtrace/nvattach/api/internal/gen/pack"
)

func main() { generator().Main() }

func generator() *command.Generator {
	return &command.Generator{
		Sources: "-release N.N -cuda DIR[,DIR...]",
		Facts:   "nvattach/api/facts",
		Flags: func(fl *flag.FlagSet) func(io.Writer, string, bool) (int, error) {
			release := fl.String("release", "", "the toolkit's release, as 13.0")
			cuda := fl.String("cuda", "", "folders with the headers, separated by commas")
			return func(out io.Writer, dir string, check bool) (int, error) {
				if *release == "" || *cuda == "" {
					return 0, command.ErrUsage
				}
				return headers(out, *release, strings.Split(*cuda, ","), dir, check)
			}
		},
		Encode: func(dir string) ([]byte, error) {
			sets, err := facts.Read(dir)
			if err != nil {
				return nil, err
			}
			return pack.Encode(sets)
		},
		// Another version of Go may compress in another way: what is up to date stays.
		Equal: pack.Equal,
	}
}

// headers extracts a release, and adds it to the facts or compares it with them.
func headers(out io.Writer, release string, dirs []string, dir string, check bool) (differ int, err error) {
	results, err := harvest.Extract(release, dirs...)
	if err != nil {
		return 0, err
	}
	known := map[string]*facts.Set{}
	sets, err := facts.Read(dir)
	if err != nil && check {
		return 0, err
	}
	for _, s := range sets {
		known[s.Library] = s
	}
	for _, r := range results {
		s := known[r.Library]
		if s == nil {
			s = facts.NewSet(r.Library)
		}
		before, err := s.Append(nil)
		if err != nil {
			return 0, err
		}
		s.Add(r.Release)
		for t, found := range map[*facts.Table]map[string]any{&s.Types: r.Types, &s.Funcs: r.Funcs} {
			for name, fact := range found {
				if err := t.Put(name, release, fact); err != nil {
					return 0, err
				}
			}
		}
		after, err := s.Append(nil)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(out, "%s %s: %d functions, %d types\n", r.Library, release, len(r.Funcs), len(r.Types))
		if !check {
			if err := s.Write(dir); err != nil {
				return 0, err
			}
			continue
		}
		n := changed(before, after)
		if n > 0 {
			fmt.Fprintf(out, "%s differs from %s\n", r.Library, dir)
		}
		differ += n
	}
	return differ, nil
}

// changed counts the facts, a line each, that are not the same in two texts.
func changed(before, after []byte) int {
	a, b := slices.Sorted(strings.Lines(string(before))), slices.Sorted(strings.Lines(string(after)))
	gone, come := 0, 0
	for len(a) > 0 && len(b) > 0 {
		switch cmp.Compare(a[0], b[0]) {
		case -1:
			a, gone = a[1:], gone+1
		case 1:
			b, come = b[1:], come+1
		default:
			a, b = a[1:], b[1:]
		}
	}
	return max(gone+len(a), come+len(b))
}
