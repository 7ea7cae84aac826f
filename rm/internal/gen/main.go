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
	"strings"

	"nvtrace/internal/gen/command"
	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/gen/harvest"
	"nvtrace/rm/internal/gen/pack"
)

func main() { generator().Main() }

func generator() *command.Generator {
	return &command.Generator{
		Sources: "-src DIR [-tag TAG,...]",
		Facts:   "rm/facts",
		Flags: func(fl *flag.FlagSet) func(io.Writer, string, bool) (int, error) {
			src := fl.String("src", "", "source tree of the open kernel modules, or with -tag a git repository")
			tags := fl.String("tag", "", "versions to read from the repository, separated by commas")
			return func(out io.Writer, dir string, check bool) (int, error) {
				if *src == "" {
					return 0, command.ErrUsage
				}
				return versions(out, *src, *tags, dir, check)
			}
		},
		Encode: func(dir string) ([]byte, error) {
			set, err := facts.Read(dir)
			if err != nil {
				return nil, err
			}
			return pack.Encode(set)
		},
	}
}

// versions extracts one source tree or several tags, and adds or compares each.
func versions(out io.Writer, src, tags, dir string, check bool) (differ int, err error) {
	set, err := facts.Read(dir)
	if errors.Is(err, fs.ErrNotExist) && !check {
		set, err = facts.NewSet(), nil
	}
	if err != nil {
		return 0, err
	}
	one := func(fsys fs.FS) error {
		f, n, err := harvest.Extract(fsys)
		if err != nil {
			return err
		}
		if !check {
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
	if err == nil && !check {
		err = set.Write(dir)
	}
	return differ, err
}
