package ioctl

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// golden compares sections of a txtar file with what was made of them.
func golden(t *testing.T, file string, got []txtar.File) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Files: got}), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, f := range want.Files {
		sections[f.Name] = string(f.Data)
	}
	for _, f := range got {
		if d := cmp.Diff(strings.Split(sections[f.Name], "\n"), strings.Split(string(f.Data), "\n")); d != "" {
			t.Errorf("%s: %s (-want +got):\n%s", file, f.Name, d)
		}
		delete(sections, f.Name)
	}
	for name := range sections {
		t.Errorf("%s: nothing made section %s", file, name)
	}
}

func TestLines(t *testing.T) {
	plain := &LineOptions{Duration: true}
	golden(t, "testdata/lines.txtar", []txtar.File{
		{Name: "startup", Data: []byte(startup(t).lines(plain))},
		{Name: "memory", Data: []byte(memory(t).lines(plain))},
		{Name: "uvm", Data: []byte(uvm(t).lines(plain))},
		{Name: "odd", Data: []byte(odd(t).lines(plain))},
	})
}
