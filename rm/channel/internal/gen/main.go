// Gen reads the class headers of NVIDIA's open repositories and writes what they define as facts:
// the methods of a class, the fields of their data and the values of these, and the layouts of its
// queue meta data (QMD).
//
//	go run ./rm/channel/internal/gen -doc DIR -ogkm DIR [-check] rm/channel/facts
//
// DIR are checkouts (or bare git directories) of open-gpu-doc and open-gpu-kernel-modules. With
// -check it compares instead of writing. It stops, and writes nothing, at a header that it can't read.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A source is one header: which repository has it, and where.
type source struct{ repository, path string }

// A class is made of its sources in order: a later one adds what an earlier one lacks.
type class struct {
	number  string // four hexadecimal digits, lower case
	sources []source
}

const (
	openDoc     = "open-gpu-doc"
	openModules = "open-gpu-kernel-modules"
)

// classes lists the classes of channels from Volta on: host (GPFIFO), compute and copy engines.
// The host classes of Hopper and Blackwell are only in the kernel modules, with few methods:
// the others are those of the class before (c76f), which the reader of the facts knows.
func classes() []class {
	var list []class
	for _, number := range []string{"c36f", "c46f", "c56f", "c76f"} {
		list = append(list, class{number, []source{{openDoc, "classes/host/cl" + number + ".h"}}})
	}
	for _, number := range []string{"c86f", "c96f", "ca6f"} {
		list = append(list, class{number, []source{{openModules, "src/common/sdk/nvidia/inc/class/cl" + number + ".h"}}})
	}
	for _, number := range []string{"c3c0", "c5c0", "c6c0", "c7c0", "c9c0", "cbc0", "cdc0", "cec0"} {
		list = append(list, class{number, []source{
			{openDoc, "classes/compute/cl" + number + ".h"}, {openDoc, "classes/compute/cl" + number + "qmd.h"},
		}})
	}
	for _, number := range []string{"c3b5", "c5b5", "c6b5", "c7b5", "c8b5", "c9b5", "cab5"} {
		list = append(list, class{number, []source{{openDoc, "classes/dma-copy/cl" + number + ".h"}}})
	}
	return list
}

func main() {
	doc := flag.String("doc", "", "checkout of open-gpu-doc")
	modules := flag.String("ogkm", "", "checkout of open-gpu-kernel-modules")
	check := flag.Bool("check", false, "compare with the facts in place of writing them")
	flag.Parse()
	if *doc == "" || *modules == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: gen -doc DIR -ogkm DIR [-check] FACTS")
		os.Exit(2)
	}
	if err := run(map[string]string{openDoc: *doc, openModules: *modules}, flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(dirs map[string]string, facts string, check bool) error {
	files := map[string][]byte{}
	for _, c := range classes() {
		text, err := factsOf(c, dirs)
		if err != nil {
			return fmt.Errorf("class %s: %w", c.number, err)
		}
		files[filepath.Join(facts, c.number+".txt")] = text
	}
	for name, text := range files {
		if !check {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, text) {
			return fmt.Errorf("%s differs from what the headers say", name)
		}
	}
	return nil
}

// factsOf returns the text of a class's facts file.
func factsOf(c class, dirs map[string]string) ([]byte, error) {
	var out bytes.Buffer
	r := reader{number: c.number}
	for _, s := range c.sources {
		commit, err := git(dirs[s.repository], "rev-parse", "HEAD")
		if err != nil {
			return nil, err
		}
		text, err := git(dirs[s.repository], "show", "HEAD:"+s.path)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "# %s %s %s\n", s.repository, strings.TrimSpace(commit), s.path)
		if err := r.read(text); err != nil {
			return nil, fmt.Errorf("%s: %w", s.path, err)
		}
	}
	if r.name == "" {
		return nil, fmt.Errorf("no header defines the number 0x%s", c.number)
	}
	fmt.Fprintf(&out, "class %s\n", r.name)
	out.Write(r.out.Bytes())
	return out.Bytes(), nil
}

// git runs git in dir and returns what it prints.
func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s in %s: %w", strings.Join(args, " "), dir, err)
	}
	return string(out), nil
}
