package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestJSONAlone: JSON and CSV on stderr have nothing behind them, also where there is no driver.
func TestJSONAlone(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "nvtrace")
	buildNvtrace(t, bin)
	for _, flags := range []string{"--json", "stat --json", "stat --json --repeat 2"} {
		var said strings.Builder
		cmd := exec.Command(bin, append(strings.Fields(flags), "--", "true")...)
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", flags, err)
		}
		if !json.Valid([]byte(said.String())) {
			t.Errorf("%s: no JSON document: %s", flags, said.String())
		}
	}
	for _, flags := range []string{"stat --csv", "stat --csv --repeat 2", "-q --stat=csv"} {
		var said strings.Builder
		cmd := exec.Command(bin, append(strings.Fields(flags), "--", "true")...)
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil || said.Len() == 0 || strings.Contains(said.String(), "nvtrace:") {
			t.Errorf("%s: %v: %s", flags, err, said.String())
		}
	}
}
