// Command gen makes the driver tables of package rm. It reads declarations from
// source trees of NVIDIA's open kernel modules and keeps names and numbers.
//
//	gen facts   -src DIR [-tag TAG,...] [-facts DIR]  adds versions to the facts
//	gen check   -src DIR [-tag TAG,...] [-facts DIR]  compares versions with the facts
//	gen pack    FACTS OUTPUT                          packs the facts into the binary
//
// With -tag, -src is a git repository, whose tags are read without a checkout.
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

	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/gen/harvest"
	"nvtrace/rm/internal/gen/pack"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: gen facts|check -src DIR [-tag TAG,...] [-facts DIR] | gen pack FACTS OUTPUT")

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch verb := args[0]; verb {
	case "facts", "check":
		fl := flag.NewFlagSet(verb, flag.ContinueOnError)
		src := fl.String("src", "", "source tree of the open kernel modules, or with -tag a git repository")
		tags := fl.String("tag", "", "versions to read from the repository, separated by commas")
		dir := fl.String("facts", "rm/facts", "folder of the facts")
		if err := fl.Parse(args[1:]); err != nil {
			return err
		}
		if *src == "" || fl.NArg() > 0 {
			return errUsage
		}
		return versions(out, verb, *src, *tags, *dir)
	case "pack":
		if len(args) != 3 {
			return errUsage
		}
		return packFile(args[1], args[2])
	}
	return errUsage
}

// versions extracts one source tree or several tags, and adds or compares each.
func versions(out io.Writer, verb, src, tags, dir string) error {
	set, err := facts.Read(dir)
	if errors.Is(err, fs.ErrNotExist) && verb == "facts" {
		set, err = facts.NewSet(), nil
	}
	if err != nil {
		return err
	}
	differ := 0
	one := func(fsys fs.FS) error {
		f, n, err := harvest.Extract(fsys)
		if err != nil {
			return err
		}
		if verb == "facts" {
			fmt.Fprintf(out, "%s: %s\n", f.Version, n)
			return set.Add(f)
		}
		diff, err := set.Compare(f)
		if err != nil {
			return err
		}
		differ += len(diff)
		fmt.Fprintf(out, "%s: %s: %d facts differ\n", f.Version, n, len(diff))
		for _, d := range diff[:min(len(diff), 20)] {
			fmt.Fprintln(out, "\t"+d)
		}
		return nil
	}
	if tags == "" {
		err = one(os.DirFS(src))
	}
	for tag := range strings.SplitSeq(tags, ",") {
		if tag == "" || err != nil {
			continue
		}
		var tree fs.FS
		if tree, err = harvest.Tag(src, tag); err == nil {
			err = one(tree)
		}
	}
	switch {
	case err != nil:
		return err
	case verb == "facts":
		return set.Write(dir)
	case differ > 0:
		return fmt.Errorf("%d facts differ from %s", differ, dir)
	}
	return nil
}

func packFile(dir, output string) error {
	set, err := facts.Read(dir)
	if err != nil {
		return err
	}
	b, err := pack.Encode(set)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(output); err == nil && slices.Equal(old, b) {
		return nil // keep the time stamp of what is up to date
	}
	return os.WriteFile(output, b, 0o644)
}
