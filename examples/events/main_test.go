package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach/object"
)

// TestEvents: programs run at the lines that their sections name, and one decides what is printed.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.c": "// one\nint two;\n// three words\n", "b.txt": "// not in C\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(&out, "probes/lines.bpf.o", []string{filepath.Join(dir, "a.c"), filepath.Join(dir, "b.txt")}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if !strings.HasPrefix(text, "int two;\n// not in C\n") {
		t.Errorf("printed %q", text)
	}
	for _, want := range []string{"lines = 4", "bytes = 39", "comments = 2", "[2] = 2", "[3] = 1", "[4] = 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestRefused: what the source refuses, and sources that can't be.
func TestRefused(t *testing.T) {
	s := newSource()
	if err := s.Check(""); err == nil || !strings.Contains(err.Error(), "glob is missing") {
		t.Errorf("a source without a file gives %v", err)
	}
	data, err := os.ReadFile("probes/lines.bpf.o")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]*object.HostSource{{{Section: "uprobe"}}, {{Section: ""}}, {{Section: "a"}, {Section: "a"}}} {
		if _, err := object.Load("x", data, list...); err == nil {
			t.Errorf("%q is taken", list[0].Section)
		}
	}
	if o, err := object.Load("x", data); err == nil && len(o.Host) > 0 {
		t.Error("its programs are taken without the source")
	}
}
