package run

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
)

// TestMapsFile: maps are written to a file from the program's beginning on, by one run.
func TestMapsFile(t *testing.T) {
	e, _, _ := clitest.Quiet()
	dir := t.TempDir()
	name := filepath.Join(dir, "maps.json")
	clitest.WriteText(t, name, "old", 0o644)
	var runs [2]attachFlags
	for i := range runs {
		runs[i].mapsTo = new(mapsFile)
		if _, err := runs[i].mapsTo.Write([]byte("too early")); err != nil {
			t.Error(err)
		}
	}
	if err := runs[0].beginMaps(e, name); err != nil {
		t.Fatal(err)
	}
	if err := runs[1].beginMaps(e, name); !errors.Is(err, cli.ErrBusy) {
		t.Errorf("two runs write one file: %v", err)
	}
	runs[0].mapsTo.abandon() // another output was refused
	if err := errors.Join(runs[0].mapsTo.close(), runs[1].mapsTo.close()); err != nil || clitest.ReadText(t, name) != "old" {
		t.Errorf("runs that did not begin: %v", err)
	}
	if err := runs[1].beginMaps(e, name); err != nil {
		t.Fatal(err)
	}
	if _, err := runs[1].mapsTo.Write([]byte("maps")); err != nil {
		t.Error(err)
	}
	if err := runs[1].mapsTo.close(); err != nil || clitest.ReadText(t, name) != "maps" {
		t.Error(err)
	}
	clitest.OnlyFiles(t, dir, "maps.json")
	e.Reads(name)
	if err := runs[0].beginMaps(e, name); err == nil || !strings.Contains(err.Error(), "write to another file") {
		t.Errorf("an input: %v", err)
	}
}
