package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestHelp: help fits into 80 columns, and each flag of a run is in one of its groups.
func TestHelp(t *testing.T) {
	for _, v := range verbs() {
		var out, errs bytes.Buffer
		e := &env{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
		if status := v.run(e, []string{"-h"}, nil); status != exitOK || errs.Len() > 0 {
			t.Errorf("%s -h: %d %s", v.name, status, &errs)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("%s -h has a line of %d columns: %s", v.name, n, line)
			}
		}
	}
	grouped := make(map[string]int)
	set := newRunFlags(&env{}).set
	for _, g := range runGroups {
		for _, name := range g.names {
			if grouped[name]++; set.Lookup(name) == nil {
				t.Errorf("%s has no flag %s", g.title, name)
			}
		}
	}
	set.VisitAll(func(f *flag.Flag) {
		if grouped[f.Name] != 1 {
			t.Errorf("flag %s is in %d groups", f.Name, grouped[f.Name])
		}
	})
}
