package script

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the expected results anew")

// TestMistakes: what is said of programs that are wrong. testdata/mistakes.txt has each
// program on a line that begins with "> ", \n standing for the end of one, and then what
// is said.
func TestMistakes(t *testing.T) {
	const name = "testdata/mistakes.txt"
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	n := 0
	for line := range strings.Lines(string(old)) {
		text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "> ")
		if !ok {
			continue
		}
		n++
		fmt.Fprintf(&got, "> %s\n", text)
		_, err := Compile("-e", strings.ReplaceAll(text, `\\n`, "\n"))
		if _, ours := errors.AsType[*Error](err); !ours {
			t.Errorf("%s: %v", text, err)
			continue
		}
		fmt.Fprintf(&got, "%v\n\n", err)
	}
	if *update {
		if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got.String() != string(old) {
		t.Errorf("%s is not what is said now (go test -update); got\n%s", name, got.String())
	}
	if n < 50 {
		t.Errorf("%d mistakes", n)
	}
}
