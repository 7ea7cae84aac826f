// Package built looks after files that generators compile and that are
// committed. Another compiler makes other bytes of the same meaning, so such a
// file is made again only when its sources have changed: a stamp, a text beside
// it, lists them with their hashes, and the file's own: nobody can slip in another
// without changing the stamp, and where the compiler is the same, a test makes the
// file again.
//
// Paths are relative to the folder that the program runs in: that of the package
// which embeds the file, for go generate and go test.
package built

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Make calls compile and writes the stamp, unless the stamp says that the files
// which the patterns name ([filepath.Glob]) are as they were, and that the outputs,
// which compile writes, are what it wrote.
func Make(stamp string, patterns, outputs []string, compile func() error) error {
	_, err := os.ReadFile(stamp)
	switch {
	case err == nil && Check(stamp) == nil && covers(stamp, patterns, outputs):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := list(patterns); err != nil {
		return err
	}
	if err := compile(); err != nil {
		return err
	}
	sources, err := list(patterns) // it may have written one
	if err != nil {
		return err
	}
	made, err := list(outputs)
	if err != nil {
		return err
	}
	text := head + strings.Join(patterns, " ") + "\n" + sources + with + Tools() + "\n" + outs + strings.Join(outputs, " ") + "\n" + made
	return os.WriteFile(stamp, []byte(text), 0o644)
}

// A stamp begins with head and the patterns; then come the sources, with the tools,
// and outs, the outputs.
const (
	head = "made from "
	with = "made with "
	outs = "made: "
)

// parsed is what a stamp says.
type parsed struct {
	patterns, outputs []string
	sources, made     string // as list writes them
	tools             string
}

func parse(stamp string) (p parsed, err error) {
	b, err := os.ReadFile(stamp)
	if err != nil {
		return p, err
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	sources, rest, ok := strings.Cut(rest, with)
	tools, rest, ok2 := strings.Cut(rest, "\n")
	line, made, ok3 := strings.Cut(rest, "\n")
	if !strings.HasPrefix(first, head) || !ok || !ok2 || !ok3 || !strings.HasPrefix(line, outs) {
		return p, fmt.Errorf("%s is no stamp: run go generate", stamp)
	}
	return parsed{
		patterns: strings.Fields(strings.TrimPrefix(first, head)), sources: sources, tools: tools,
		outputs: strings.Fields(strings.TrimPrefix(line, outs)), made: made,
	}, nil
}

func covers(stamp string, patterns, outputs []string) bool {
	p, err := parse(stamp)
	return err == nil && slices.Equal(p.patterns, patterns) && slices.Equal(p.outputs, outputs)
}

// Check returns an error that names the sources which have changed since the
// stamp was written, and the outputs that are not what was made of them; nil if there
// are none.
func Check(stamp string) error {
	p, err := parse(stamp)
	if err != nil {
		return err
	}
	sources, err := list(p.patterns)
	if err != nil {
		return fmt.Errorf("%s: %w", stamp, err)
	}
	if changed := differing(p.sources, sources); len(changed) > 0 {
		return fmt.Errorf("%s is not of these sources: %s changed; run go generate", stamp, strings.Join(changed, ", "))
	}
	made, err := list(p.outputs)
	if err != nil {
		return fmt.Errorf("%s: %w", stamp, err)
	}
	if changed := differing(p.made, made); len(changed) > 0 {
		return fmt.Errorf("%s is of another %s: what was made of the sources was changed since; remove the stamp and run go generate", stamp, strings.Join(changed, ", "))
	}
	return nil
}

// differing returns the names of files that two lists do not agree on.
func differing(a, b string) (names []string) {
	old, now := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range append(old, now...) {
		if _, name, _ := strings.Cut(l, "  "); !(slices.Contains(old, l) && slices.Contains(now, l)) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Tools names this machine's compiler and linker.
func Tools() string {
	var names []string
	for _, tool := range []string{"gcc", "ld"} {
		out, err := exec.Command(tool, "--version").Output()
		if err != nil {
			return "no " + tool
		}
		line, _, _ := strings.Cut(string(out), "\n")
		names = append(names, line)
	}
	return strings.Join(names, ", ")
}

// Reproducible says whether this machine's tools are those that the stamp's outputs
// were made with, so that they make the same bytes; why says what differs.
func Reproducible(stamp string) (why string, ok bool) {
	p, err := parse(stamp)
	if err != nil {
		return err.Error(), false
	}
	if tools := Tools(); tools != p.tools {
		return fmt.Sprintf("made with %s, here is %s", p.tools, tools), false
	}
	return "", true
}

// list writes the hashes of the files as they are, a line each.
func list(patterns []string) (string, error) {
	var files []string
	for _, p := range patterns {
		m, err := filepath.Glob(p)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		if len(m) == 0 {
			return "", fmt.Errorf("%s: no such file", p)
		}
		files = append(files, m...)
	}
	slices.Sort(files)
	var b strings.Builder
	for _, name := range slices.Compact(files) {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), filepath.ToSlash(name))
	}
	return b.String(), nil
}

// Gzip packs a file that is embedded.
func Gzip(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
