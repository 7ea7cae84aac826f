package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"what"}, {"facts"}, {"check", "-src", "x", "y"}, {"pack"}, {"pack", "a"}} {
		if err := generator().Run(args, t.Output()); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestPack(t *testing.T) {
	out := filepath.Join(t.TempDir(), "z.bin")
	if err := generator().Run([]string{"pack", "../../facts", out}, t.Output()); err != nil {
		t.Fatal(err)
	}
	a, err1 := os.ReadFile(out)
	b, err2 := os.ReadFile("../../ztables.bin")
	if err1 != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("the tables differ from those that are committed (%v, %v)", err1, err2)
	}
	if err := generator().Run([]string{"pack", t.TempDir(), out}, t.Output()); err == nil {
		t.Error("packed an empty folder")
	}
}

func TestNoSource(t *testing.T) {
	dir := t.TempDir()
	for _, verb := range []string{"facts", "check"} {
		err := generator().Run([]string{verb, "-src", dir, "-facts", "../../facts"}, t.Output())
		if err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("%s of an empty folder: %v", verb, err)
		}
	}
}

// TestCheckAgainstSource repeats, for one version, what made the facts.
func TestCheckAgainstSource(t *testing.T) {
	dir := os.Getenv("NVTRACE_OGKM")
	if dir == "" {
		t.Skip("NVTRACE_OGKM is not set: no driver source to compare with")
	}
	args := []string{"check", "-src", dir, "-facts", "../../facts"}
	if tags := os.Getenv("NVTRACE_OGKM_TAGS"); tags != "" && tags != "all" {
		args = append(args, "-tag", tags)
	}
	if err := generator().Run(args, t.Output()); err != nil {
		t.Error(err)
	}
}
