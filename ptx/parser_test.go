package ptx

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestErrors: the comment "// ERROR rx" stands on the line where the error is
// reported and matches "col: message".
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.ptx")
	if err != nil || len(files) == 0 {
		t.Fatal("no files in testdata/errors", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// Several cases in a file are separated by lines of "//////".
		first := 0
		for src := range strings.SplitSeq(string(b), "//////\n") {
			checkError(t, name, first, strings.TrimSuffix(src, "\n"))
			first += strings.Count(src, "\n") + 1
		}
	}
}

func checkError(t *testing.T, name string, first int, src string) {
	t.Helper()
	line, want := 0, ""
	for i, l := range strings.Split(src, "\n") {
		if _, rx, ok := strings.Cut(l, "// ERROR "); ok {
			line, want = i+1, rx
		}
	}
	_, err := Parse(name, src, nil)
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s:%d: error %v, want %q", name, first+line, err, want)
		return
	}
	if want == "" {
		t.Errorf("%s:%d: case without ERROR comment; it gives %v", name, first+1, err)
		return
	}
	_, msg, _ := strings.Cut(err.Error(), ": ")
	if e.Line != line || !regexp.MustCompile("^(?:"+want+")$").MatchString(msg) {
		t.Errorf("%s:%d: got %q in line %d, want %q", name, first+line, msg, first+e.Line, want)
	}
}

func TestDepthLimit(t *testing.T) {
	const n = 100000
	for what, src := range map[string]string{
		"scopes":      ".entry k() " + strings.Repeat("{", n),
		"vectors":     ".entry k() { mov.b32 " + strings.Repeat("{", n),
		"expressions": ".entry k() { mov.b32 a, " + strings.Repeat("(", n),
		"operators":   ".entry k() { mov.b32 a, " + strings.Repeat("-", n),
		"addresses":   ".entry k() { ld.b32 a, " + strings.Repeat("[", n),
		"conditions":  ".entry k() { mov.b32 a, " + strings.Repeat("1?", n),
		"initialiser": ".global .b8 x[1] = " + strings.Repeat("{", n),
		"groups":      ".entry k() { call " + strings.Repeat("(", n),
		"masks":       ".global .b8 x = " + strings.Repeat("1(", n),
		"names":       ".global .b8 x = " + strings.Repeat("generic(", n),
	} {
		if _, err := Parse(what, src, nil); err == nil {
			t.Errorf("%s: %d levels parse", what, n)
		}
	}
	if _, err := Parse("x", ".entry k() { { } }", &ParseOptions{MaxDepth: 1}); err == nil || !strings.Contains(err.Error(), "deeper than 1") {
		t.Errorf("MaxDepth 1: %v", err)
	}
}

func TestConstants(t *testing.T) {
	for _, c := range []struct {
		src  string
		kind OperandKind
		bits uint64
	}{
		{"5", OperandInt, 5},
		{"0x10U", OperandInt, 16},
		{"017", OperandInt, 15},
		{"0b101", OperandInt, 5},
		{"-8", OperandInt, ^uint64(7)},
		{"18446744073709551615", OperandInt, ^uint64(0)},
		{"1+2*3", OperandInt, 7},
		{"(1+2)*3", OperandInt, 9},
		{"1<<4|2", OperandInt, 18},
		{"7-2-1", OperandInt, 4},
		{"1?2:3", OperandInt, 2},
		{"0?2:1?4:5", OperandInt, 4},
		{"-7/2", OperandInt, ^uint64(2)},
		{"-7 % 3", OperandInt, 0},
		{"-1 > 0", OperandInt, 0},
		{"-1 > 0U", OperandInt, 1},
		{"!5", OperandInt, 0},
		{"~5", OperandInt, ^uint64(5)},
		{"(.s64)5", OperandInt, 5},
		{"5 == 5 && 1 < 2 || 0", OperandInt, 1},
		{"-8>>1", OperandInt, ^uint64(3)},
		{"6 & 3 ^ 8", OperandInt, 10},
		{"WARP_SZ*2", OperandInt, 64},
		{"1.5", OperandF64, 0x3FF8000000000000},
		{"-1.5", OperandF64, 0xBFF8000000000000},
		{"0.5+1", OperandF64, 0x3FF8000000000000},
		{"0f3F800000", OperandF32, 0x3F800000},
		{"0d3FF0000000000000", OperandF64, 0x3FF0000000000000},
		{"1/0", OperandExpr, 0},
		{"sym*4", OperandExpr, 0},
		{"sym+4", OperandName, 4},
		{"sym+-4", OperandName, ^uint64(3)},
		{"sym+4*2", OperandName, 8},
		{"sym[3]", OperandName, 3},
		{"[a+16-4]", OperandAddr, 12},
		{"[8]", OperandAddr, 8},
	} {
		f, err := Parse("x", ".entry k(){ mov.b64 d, "+c.src+"; }", nil)
		if err != nil {
			t.Errorf("%s: %v", c.src, err)
			continue
		}
		o := f.Args(&f.Stmts[2])[1]
		if o.Kind != c.kind || o.Kind != OperandExpr && o.Bits != c.bits {
			t.Errorf("%s: %v %#x, want %v %#x", c.src, o.Kind, o.Bits, c.kind, c.bits)
		}
		if got := f.Text(o.Span()); got != c.src {
			t.Errorf("%s: span %q", c.src, got)
		}
	}
}

// TestCRLF: the line ends of other systems are blanks like any other.
func TestCRLF(t *testing.T) {
	for name, src := range corpus(t) {
		if !strings.Contains(name, "hard/") {
			continue
		}
		f := checkLossless(t, name, strings.ReplaceAll(src, "\n", "\r\n"))
		if f == nil || len(f.Stmts) != len(mustParse(t, name, src).Stmts) {
			t.Errorf("%s: with CRLF it parses differently", name)
		}
	}
}

func TestTrailingNUL(t *testing.T) {
	src := ".version 7.0\n.target sm_70\n.entry k() { ret; }\n\x00\x00\x00"
	f := checkLossless(t, "nul", src)
	if f == nil || len(f.Funcs) != 1 {
		t.Fatal("a source padded with NULs does not parse")
	}
}

func FuzzParse(f *testing.F) {
	for _, src := range corpus(f) {
		if len(src) < 1<<12 {
			f.Add(src)
		}
	}
	f.Fuzz(func(t *testing.T, src string) {
		file := checkLossless(t, "fuzz", src)
		if file == nil {
			return
		}
		file.Check()
		if err := dump(io.Discard, file); err != nil {
			t.Fatal(err)
		}
		if err := WriteSites(io.Discard, file, nil); err != nil {
			t.Fatal(err)
		}
		w := NewWeaver(file)
		for _, st := range file.AllSites() {
			if err := w.Entry(st, "mov.u32 %x, 0;"); err != nil {
				t.Fatal(err)
			}
			for i := range st.Exits {
				if err := w.Exit(st, &st.Exits[i], "mov.u32 %x, 0;"); err != nil {
					t.Fatal(err)
				}
			}
		}
		woven, err := w.Source()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("woven", woven, nil); err != nil {
			t.Fatalf("%v\n%s", err, woven)
		}
	})
}
