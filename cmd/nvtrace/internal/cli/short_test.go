package cli

import (
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestSplitShort takes words of several short flags apart, and no others.
func TestSplitShort(t *testing.T) {
	for _, c := range []struct{ typed, want string }{
		{"-tT", "-t -T"},
		{"-ttt", "-t -t -t"},
		{"-qo run.nvt -x", "-q -o run.nvt -x"},
		{"-o -tT -q", "-o -tT -q"}, // the value of -o
		{"-s100 -Ts100", "-s=100 -T -s=100"},
		{"-p12", "-p=12"},
		{"-output x", "-output x"},
		{"-all -q", "-all -q"},
		{"--tT", "--tT"},
		{"-t=false -Tq", "-t=false -T -q"},
		{"word -tT", "word -tT"},
		{"-T -- -tT", "-T -- -tT"},
		{"-", "-"},
		{"-o", "-o"},
		{"-qo", "-q -o"},
		{"-zz", "-zz"},
	} {
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Var(new(Times), "t", "")
		fs.Bool("T", false, "")
		fs.Bool("q", false, "")
		fs.Bool("x", false, "")
		fs.Bool("all", false, "")
		fs.Int("s", 0, "")
		fs.Var(new(PIDList), "p", "")
		fs.String("o", "", "")
		if got := SplitShort(fs, strings.Fields(c.typed)); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: %q, want %q", c.typed, got, c.want)
		}
	}
	var n Times
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.Var(&n, "t", "")
	if _, ok := Parse(fs, []string{"-ttt"}); !ok || n != 3 {
		t.Errorf("-ttt: %d", n)
	}
}

// TestInput reads stdin once, where a file is wanted.
func TestInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	e := &Env{Stdin: r}
	if name, err := e.Input("file"); name != "file" || err != nil {
		t.Error(name, err)
	}
	e.stdinRead = true
	if _, err := e.Input("-"); err == nil || !strings.Contains(err.Error(), "once") {
		t.Error(err)
	}
	if _, err := new(Env).Input("-"); err == nil {
		t.Error("no stdin, and no error")
	}
}
