package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach/api/internal/gen/facts"
	"nvtrace/nvattach/api/internal/gen/pack"
)

// TestUpToDate packs the facts that are committed, and compares with the file
// that is.
func TestUpToDate(t *testing.T) {
	sets, err := facts.Read("../../facts")
	if err != nil {
		t.Fatal(err)
	}
	b, err := pack.Encode(sets)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile("../../ztables.bin")
	if err != nil {
		t.Fatal(err)
	}
	if !pack.Equal(old, b) {
		t.Error("ztables.bin is not what the facts give: run go generate ./nvattach/api")
	}
	// The facts' text is in its own form: nothing was written by hand that the
	// generator would write differently.
	for _, s := range sets {
		text, err := s.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join("../../facts", s.Library+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != string(text) {
			t.Errorf("%s.jsonl is not as the generator writes it", s.Library)
		}
	}
}

func TestPackKeepsWhatIsUpToDate(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("../../facts/nvrtc.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nvrtc.jsonl"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "z.bin")
	for range 2 {
		if err := generator().Run([]string{"pack", dir, out}, os.Stderr); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(out)
	if err != nil || len(before) < 500 {
		t.Fatalf("%d bytes, %v", len(before), err)
	}
	if err := os.WriteFile(out, []byte("spoiled"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := generator().Run([]string{"pack", dir, out}, os.Stderr); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(out); err != nil || string(after) != string(before) {
		t.Errorf("packed again, it is another file: %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"pack"}, {"facts"}, {"facts", "-release", "1.0"}, {"check", "-cuda", "x", "y"}, {"nonsense"}} {
		if err := generator().Run(args, os.Stderr); err == nil || !strings.Contains(err.Error(), "usage") {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := generator().Run([]string{"pack", t.TempDir(), "x"}, os.Stderr); err == nil || !strings.Contains(err.Error(), "no facts") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestChanged(t *testing.T) {
	for _, r := range []struct {
		before, after string
		want          int
	}{
		{"", "", 0}, {"a\nb\n", "b\na\n", 0}, {"a\nb\n", "a\nc\n", 1}, {"a\n", "", 1}, {"", "a\nb\n", 2}, {"b\nc\nd\n", "a\nb\n", 2},
	} {
		if got := changed([]byte(r.before), []byte(r.after)); got != r.want {
			t.Errorf("%q, %q: %d, want %d", r.before, r.after, got, r.want)
		}
	}
}
