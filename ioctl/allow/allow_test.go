package allow

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

var update = flag.Bool("update", false, "rewrite golden files")

// run is a recording of a small program, with what it does beyond testrec.App.
func run(driver string, more func(*testrec.Program)) *testrec.Recording {
	r := testrec.New(driver)
	p := r.Program(100)
	testrec.App(p)
	if more != nil {
		more(p)
	}
	return r
}

// odd uses what is unknown, fails or comes in other ways.
func odd(p *testrec.Program) {
	p.Control(testrec.Client, testrec.Subdev, 0x20800110, make([]byte, 68), nil, 0x3a)
	p.Alloc(testrec.Client, testrec.Device, 0x5c0000ff, 0xfffe, nil, 0x22)
	p.Ioctl(3, testrec.Request(0x3f, 8), make([]byte, 8), nil, -22)
	p.Ioctl(3, 0x5451, nil, nil, 0)
	p.OpenFails("odd # node", 2)
	p.OpenFails("evil\x1b[2J\nclass 1\\*", 2)
	free := p.R.New("NVOS00_PARAMETERS").Set("hRoot", testrec.Client).Set("hObjectOld", testrec.Copy)
	e := p.Escape(3, 0x29, free, nil)
	e.Args[1] |= 0xffffffff00000000 // as a libc with an int request passes it
}

// events decodes a recording by way of its file form.
func events(t testing.TB, r *testrec.Recording, add func(*traces.Event, *ioctl.Call, *ioctl.Decoder)) {
	t.Helper()
	rd, err := traces.NewReader(bytes.NewReader(r.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	d := ioctl.NewDecoder(&rd.Header)
	for ev, err := range rd.All() {
		if err != nil {
			t.Fatal(err)
		}
		c := d.Decode(ev)
		add(ev, &c, d)
	}
}

func collect(t testing.TB, runs ...*testrec.Recording) *List {
	c := NewCollector()
	for _, r := range runs {
		events(t, r, c.Add)
	}
	c.List.Sort()
	return c.List
}

func check(t testing.TB, l *List, r *testrec.Recording) []*Lack {
	k := NewChecker(l)
	events(t, r, k.Add)
	return k.Lacks()
}

var testRuns = []Run{{"app.nvt", "580.142"}, {"odd.nvt", "580.142"}, {"new.nvt", "595.45.04"}}

func testList(t testing.TB) *List {
	return collect(t, run("580.142", nil), run("580.142", odd), run("595.45.04", nil))
}

func TestGolden(t *testing.T) {
	l := testList(t)
	const file = "testdata/formats.txtar"
	js, err := l.AppendJSON(nil, testRuns)
	if err != nil {
		t.Fatal(err)
	}
	sec, err := l.AppendSeccomp(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := &txtar.Archive{Files: []txtar.File{
		{Name: "text", Data: l.AppendText(nil, testRuns)},
		{Name: "json", Data: js},
		{Name: "seccomp", Data: sec},
		{Name: "nvproxy", Data: l.AppendNVProxy(nil)},
	}}
	if *update {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, txtar.Format(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Parse(b)
	if len(want.Files) != len(got.Files) {
		t.Fatalf("%s has %d files, want %d", file, len(want.Files), len(got.Files))
	}
	for i, f := range got.Files {
		if !bytes.Equal(f.Data, want.Files[i].Data) {
			t.Errorf("%s: got\n%s", f.Name, f.Data)
		}
	}
}

// TestRoundTrip: a run lacks nothing of its own list, and exactly one thing of
// the list without one line.
func TestRoundTrip(t *testing.T) {
	r := run("580.142", odd)
	text := collect(t, r).AppendText(nil, testRuns)
	l, err := Parse("list", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if lacks := check(t, l, r); len(lacks) != 0 {
		t.Fatalf("lacks %s of its own list", lacks[0].LackText())
	}
	lines := strings.SplitAfter(string(text), "\n")
	tried := 0
	for i, line := range lines {
		if line == "" || line == "\n" || line[0] == '#' {
			continue
		}
		tried++
		rest := strings.Join(lines[:i], "") + strings.Join(lines[i+1:], "")
		l, err := Parse("list", strings.NewReader(rest))
		if err != nil {
			t.Fatal(err)
		}
		lacks := check(t, l, r)
		if len(lacks) != 1 {
			t.Fatalf("without %q the run lacks %d things", line, len(lacks))
		}
		got := lacks[0]
		one, err := Parse("line", strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		if want := one.Entries[0]; want.Kind != KindNode && want.Use != got.Use {
			t.Errorf("without %q: lacks %s", line, got.LackText())
		}
		if got.Count == 0 || got.PID != 100 || got.Time == 0 {
			t.Errorf("without %q: %+v", line, got)
		}
	}
	if tried < 30 {
		t.Errorf("only %d entries", tried)
	}
}

func TestSizes(t *testing.T) {
	l, err := Parse("list", bytes.NewReader(collect(t, run("580.142", nil)).AppendText(nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	lacks := check(t, l, run("580.142", func(p *testrec.Program) {
		p.Control(testrec.Client, testrec.Subdev, 0x20800110, make([]byte, 68), nil, rm.OK)
		p.Control(testrec.Client, testrec.Subdev, 0x20800110, make([]byte, 68), nil, 0x3a)
	}))
	if len(lacks) != 1 || !lacks[0].Sized || lacks[0].Size != 68 || lacks[0].Count != 2 || lacks[0].OK != 1 {
		t.Fatalf("lacks %+v", lacks)
	}
	const want = "control 0x20800110 NV2080_CTRL_CMD_GPU_GET_NAME_STRING, parameters of 68 bytes (the list has 132)"
	if got := lacks[0].LackText(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSeccomp(t *testing.T) {
	l := testList(t)
	b, err := l.AppendSeccomp(nil)
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		Syscalls []struct {
			Names  []string
			Action string
			Args   []struct {
				Index uint
				Value uint64
				Op    string
			}
		}
	}
	if err := json.Unmarshal(b, &profile); err != nil {
		t.Fatal(err)
	}
	var values []uint64
	for _, s := range profile.Syscalls {
		if slices.Contains(s.Names, "ioctl") {
			if len(s.Args) != 1 || s.Args[0].Index != 1 || s.Args[0].Op != "SCMP_CMP_EQ" || s.Action != "SCMP_ACT_ALLOW" {
				t.Fatalf("rule %+v", s)
			}
			values = append(values, s.Args[0].Value)
		}
	}
	var want []uint64
	for _, r := range []*testrec.Recording{run("580.142", odd), run("595.45.04", nil)} {
		for _, e := range r.Events {
			if e.Kind == traces.KindIoctl {
				want = append(want, e.Args[1])
				if hi := e.Args[1] >> 32; hi != 0 {
					want = append(want, e.Args[1]&0xffffffff)
				}
			}
		}
	}
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(values, want) {
		t.Errorf("allows %#x, want %#x", values, want)
	}
}

func TestNVProxy(t *testing.T) {
	src := append([]byte("package p\n"), testList(t).AppendNVProxy(nil)...)
	if _, err := parser.ParseFile(token.NewFileSet(), "list.go", src, parser.AllErrors); err != nil {
		t.Error(err)
	}
}

func TestKeep(t *testing.T) {
	l := testList(t)
	n := len(l.Entries)
	l.Keep((*Entry).Succeeded)
	if len(l.Entries) >= n {
		t.Fatal("nothing was dropped")
	}
	for _, e := range l.Entries {
		if e.OK == 0 {
			t.Errorf("%+v stayed", e)
		}
	}
	if l.entry(Use{Kind: KindClass, Nr: 0xfffe}) != nil || l.entry(Use{Kind: KindClass, Nr: 0x41}) == nil {
		t.Error("the wrong entries stayed")
	}
}

func TestParse(t *testing.T) {
	l, err := Parse("x", strings.NewReader("node nvidia[0-9]*\nnode \"a b\"\ncontrol 17 # any\nescape 0x2a 4,2\nescape 42 9\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e := l.entry(Use{Kind: KindNode, Text: "nvidia12"}); e == nil {
		t.Error("a pattern does not match")
	}
	if e := l.entry(Use{Kind: KindNode, Text: "nvidiactl"}); e != nil {
		t.Error("a pattern matches too much")
	}
	if e := l.entry(Use{Kind: KindEscape, Nr: 42}); e == nil || !slices.Equal(e.Sizes, []uint32{2, 4, 9}) {
		t.Errorf("%+v", e)
	}
	for _, c := range []struct{ in, want string }{
		{"\nfoo 1", `x:2:1: "foo": want node,`},
		{"control", "x:1:8: want a number"},
		{"control  zz", `x:1:10: "zz": want a number of 32 bits`},
		{"control 0x1ffffffff", "want a number of 32 bits"},
		{"control 1 2,", `x:1:11: "2,": want sizes`},
		{"control 1 2 3", `x:1:13: "3": want the end`},
		{"control 1\ncontrol 1 2", "x:2:11: an earlier line allows any size"},
		{"ioctl nvidia0 1", `x:1:7: "nvidia0": not a kind of device`},
		{"node [", `x:1:6: "[": malformed pattern`},
		{`node "abc`, "x:1:6: the quoted word does not end"},
		{`node ""`, "x:1:6: an empty word"},
		{"node # x", "x:1:6: want a node"},
		{strings.Repeat("a", 70<<10), "x:1:1: the line is longer"},
	} {
		_, err := Parse("x", strings.NewReader(c.in))
		if pe, ok := errors.AsType[*ParseError](err); !ok || !strings.Contains(pe.Error(), c.want) {
			t.Errorf("%.20q: %v, want %s", c.in, err, c.want)
		}
	}
}

// FuzzParse: what was read is written so that it reads the same again.
func FuzzParse(f *testing.F) {
	f.Add("node nvidia[0-9]*\nnode \"a b\"\ncontrol 17 # any\nescape 0x2a 4,2\nmmap nvidiaN HOPPER_USERMODE_A\nioctl nvidiactl 0xc020462a\n")
	f.Add("node a\\*b\nclass 1 0")
	f.Fuzz(func(t *testing.T, in string) {
		l, err := Parse("x", strings.NewReader(in))
		if err != nil {
			return
		}
		for _, e := range l.Entries {
			if e.Kind == KindNode && strings.ContainsAny(e.Text, `*?[]\`) {
				return // a pattern is written as a literal
			}
		}
		text := l.AppendText(nil, nil)
		again, err := Parse("y", bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if second := again.AppendText(nil, nil); !bytes.Equal(text, second) {
			t.Fatalf("%s\nbecame\n%s", text, second)
		}
	})
}

func BenchmarkCollect(b *testing.B) {
	r := run("580.142", odd)
	d := ioctl.NewDecoder(&r.Header)
	calls := make([]ioctl.Call, len(r.Events))
	for i, e := range r.Events {
		calls[i] = d.Decode(e)
		calls[i].Parts = slices.Clone(calls[i].Parts)
	}
	c := NewCollector()
	for b.Loop() {
		for i, e := range r.Events {
			c.Add(e, &calls[i], d)
		}
	}
	if len(c.List.Entries) < 30 {
		b.Fatal("too few entries")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(r.Events)), "ns/event")
}
