package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
)

// TestForeignPins: whatever lies where this user's pinned maps would be, and that others can
// have laid there, is refused by name: nothing is waited for, followed, changed or removed.
func TestForeignPins(t *testing.T) {
	type lay func(pins string) error
	folder := func(path string) error { return os.Mkdir(path, 0o700) }
	inside := func(lay func(path string) error) lay {
		return func(pins string) error {
			return errors.Join(folder(pins), lay(filepath.Join(pins, "m")))
		}
	}
	file := func(name string, lay func(path string) error) lay {
		return inside(func(path string) error { return errors.Join(folder(path), lay(filepath.Join(path, name))) })
	}
	fifo := func(path string) error { return unix.Mkfifo(path, 0o600) }
	victim := t.TempDir()
	kept := filepath.Join(victim, "m", "kept")
	if err := errors.Join(folder(filepath.Dir(kept)), os.WriteFile(kept, []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	link := func(path string) error { return os.Symlink(victim, path) }
	open := func(path string) error { return errors.Join(folder(path), os.Chmod(path, 0o777)) }
	for _, tt := range []struct {
		what string
		lay  lay
		ours bool // the folder of pins
		runs bool // a run replaces what is there
	}{
		{"folder of pins: link", link, false, false},
		{"folder of pins: open to others", open, false, false},
		{"folder of pins: FIFO", fifo, false, false},
		{"folder of maps: link", inside(func(path string) error { return os.Symlink(filepath.Dir(kept), path) }), true, false},
		{"folder of maps: FIFO", inside(fifo), true, false},
		{"maps.json: FIFO", file(pinMaps, fifo), true, true},
		{"maps.json: link", file(pinMaps, func(path string) error { return os.Symlink(kept, path) }), true, true},
		{"data: FIFO", file(pinData, fifo), true, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			pins := filepath.Join(t.TempDir(), "pins")
			if err := tt.lay(pins); err != nil {
				t.Fatal(err)
			}
			e, stdout, stderr := clitest.Quiet()
			e.Getenv = func(name string) string { return map[string]string{pinsVar: pins}[name] }
			p, err := newPinFolder(e.Getenv, "m")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.open(); (err == nil) != tt.runs {
				t.Errorf("a run: %v", err)
			}
			for _, args := range [][]string{{"ls"}, {"dump", "m"}, {"set", "m", "x[0]=1"}, {"rm", "m"}} {
				stdout.Reset()
				stderr.Reset()
				status := PinVerb(e, args)
				want := tt.ours && (args[0] == "ls" || args[0] == "rm")
				if want != (status == cli.ExitOK) || !tt.ours && !strings.Contains(stderr.String(), "refused") {
					t.Errorf("%s: status %d, %s%s", args[0], status, stdout, stderr)
				}
			}
			if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
				t.Errorf("what the link leads to: %q, %v", b, err)
			}
		})
	}
}
