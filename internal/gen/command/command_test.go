package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// generator has one source flag; what it read is in the output.
func generator() *Generator {
	return &Generator{
		Sources: "-src DIR", Facts: "here",
		Flags: func(fl *flag.FlagSet) func(io.Writer, string, bool) (int, error) {
			src := fl.String("src", "", "")
			return func(out io.Writer, dir string, check bool) (int, error) {
				if *src == "" {
					return 0, ErrUsage
				}
				fmt.Fprintf(out, "%s %s %v", *src, dir, check)
				return len(*src), nil
			}
		},
		Encode: func(dir string) ([]byte, error) {
			if dir == "none" {
				return nil, errors.New("no facts")
			}
			return []byte("packed " + dir), nil
		},
	}
}

func TestSources(t *testing.T) {
	for _, r := range []struct{ args, out, err string }{
		{"check -src abc -facts there", "abc there true", "3 facts differ from there"},
		{"facts -src abc", "abc here false", "3 facts differ from here"},
		{"", "", "usage: gen facts|check -src DIR [-facts DIR] | gen pack FACTS OUTPUT"},
		{"check", "", "usage: gen"},
		{"check -src a b", "", "usage: gen"},
		{"pack a", "", "usage: gen"},
		{"what", "", "usage: gen"},
	} {
		var out strings.Builder
		err := generator().Run(strings.Fields(r.args), &out)
		if out.String() != r.out || err == nil || !strings.HasPrefix(err.Error(), r.err) {
			t.Errorf("%s: %q, %v", r.args, out.String(), err)
		}
	}
	if err := generator().Run([]string{"check", "-nonsense"}, io.Discard); err == nil || errors.Is(err, ErrUsage) {
		t.Errorf("an unknown flag: %v", err)
	}
}

func TestPack(t *testing.T) {
	g := generator()
	out := filepath.Join(t.TempDir(), "z.bin")
	pack := func(dir, want string) {
		t.Helper()
		if err := g.Run([]string{"pack", dir, out}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(out); err != nil || string(b) != want {
			t.Errorf("packed %q, want %q (%v)", b, want, err)
		}
	}
	pack("a", "packed a")
	pack("b", "packed b")
	g.Equal = func(old, packed []byte) bool { return len(old) == len(packed) }
	pack("c", "packed b")
	pack("long", "packed long")
	if err := g.Run([]string{"pack", "none", out}, io.Discard); err == nil || err.Error() != "no facts" {
		t.Errorf("nothing to pack: %v", err)
	}
	if err := g.Run([]string{"pack", "a", t.TempDir()}, io.Discard); err == nil {
		t.Error("a folder was written to")
	}
}
