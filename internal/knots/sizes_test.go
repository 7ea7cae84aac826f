package main

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Packages of more lines than large stand in ARCHITECTURE.md, with their size to a tenth.
const large = 7000

// TestSizes compares the sizes in ARCHITECTURE.md with those of the packages.
func TestSizes(t *testing.T) {
	root := os.DirFS("../..")
	sizes := make(map[string]int)
	err := fs.WalkDir(root, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return fs.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err == nil && !bytes.Contains(text[:min(len(text), 500)], []byte("// Code generated ")) {
			sizes[path.Dir(name)] += bytes.Count(text, []byte("\n"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := fs.ReadFile(root, "ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| ([0-9,]+) \\|").FindAllSubmatch(page, -1) {
		pkg := string(row[1])
		said, err := strconv.Atoi(strings.ReplaceAll(string(row[2]), ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		listed[pkg] = true
		if has := sizes[pkg]; has*10 < said*9 || has*10 > said*11 {
			t.Errorf("ARCHITECTURE.md: %s has %d lines, not some %d", pkg, has, said)
		}
	}
	if len(listed) == 0 {
		t.Error("ARCHITECTURE.md has no table of sizes")
	}
	for pkg, has := range sizes {
		if has > large && !listed[pkg] {
			t.Errorf("%s has %d lines, more than %d, and ARCHITECTURE.md does not say why", pkg, has, large)
		}
	}
}
