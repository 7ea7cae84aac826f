// Package built looks after files that generators compile and that are
// committed. Another compiler makes other bytes of the same meaning, so such a
// file is made again only when its sources have changed: a stamp, a text beside
// it, lists them with their hashes.
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
	"path/filepath"
	"slices"
	"strings"
)

// Make calls compile and writes the stamp, unless the stamp says that the files
// which the patterns name ([filepath.Glob]) are as they were.
func Make(stamp string, patterns []string, compile func() error) error {
	want, err := list(patterns)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(stamp)
	switch {
	case err == nil && string(have) == want:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := compile(); err != nil {
		return err
	}
	if want, err = list(patterns); err != nil { // it may have written a source
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// Check returns an error that names the sources which have changed since the
// stamp was written, nil if none has.
func Check(stamp string) error {
	have, err := os.ReadFile(stamp)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(have), "\n")
	want, err := list(strings.Fields(strings.TrimPrefix(first, head)))
	if err != nil {
		return fmt.Errorf("%s: %w", stamp, err)
	}
	old, now := strings.Split(string(have), "\n"), strings.Split(want, "\n")
	var changed []string
	for _, l := range append(old, now...) {
		if _, name, _ := strings.Cut(l, "  "); !(slices.Contains(old, l) && slices.Contains(now, l)) && !slices.Contains(changed, name) {
			changed = append(changed, name)
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("%s is not of these sources: %s changed; run go generate", stamp, strings.Join(changed, ", "))
	}
	return nil
}

// head begins a stamp; the patterns follow.
const head = "made from "

// list writes the stamp of the files as they are.
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
	b.WriteString(head + strings.Join(patterns, " ") + "\n")
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
