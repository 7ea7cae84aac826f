package diff

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// profile reads a recording made in code, by way of its file form.
func profile(t testing.TB, name string, r *testrec.Recording, o *Options) *Profile {
	t.Helper()
	rd, err := traces.NewReader(bytes.NewReader(r.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return profileOf(t, name, rd, o)
}

func profileOf(t testing.TB, name string, rd *traces.Reader, o *Options) *Profile {
	t.Helper()
	d := ioctl.NewDecoder(&rd.Header)
	p := NewProfile(&rd.Header, o)
	p.Name = name
	for ev, err := range rd.All() {
		if err != nil {
			t.Fatal(err)
		}
		c := d.Decode(ev)
		p.Add(ev, &c, d)
	}
	return p
}

// app is a recording of testrec.App, followed by more.
func app(driver string, more func(*testrec.Program)) *testrec.Recording {
	r := testrec.New(driver)
	p := r.Program(100)
	testrec.App(p)
	if more != nil {
		more(p)
	}
	return r
}

// scenes are pairs of runs and what differs.
var scenes = []struct {
	name string
	a, b func() *testrec.Recording
}{
	{
		"calls", func() *testrec.Recording {
			return app("580.142", func(p *testrec.Program) {
				p.Control(testrec.Client, testrec.Subdev, 0x20800102, p.R.New("NV2080_CTRL_GPU_GET_INFO_V2_PARAMS").B, nil, rm.OK)
				p.Free(testrec.Client, testrec.Device, testrec.Vidmem, rm.OK)
			})
		}, func() *testrec.Recording {
			return app("580.142", func(p *testrec.Program) {
				p.Control(testrec.Client, testrec.Subdev, 0x20800102, p.R.New("NV2080_CTRL_GPU_GET_INFO_V2_PARAMS").B, nil, 0x22)
				p.Memory(testrec.Client, testrec.Device, 0x5c000020, 0x40, 8<<20)
				p.Memory(testrec.Client, testrec.Device, 0x5c000021, 0x40, 1000)
				p.Open(9, "nvidia1")
				p.OpenFails("nvidia-modeset", 13)
				p.Ioctl(7, 0x7d0, make([]byte, 16), nil, -22)
			})
		},
	},
	{"versions", func() *testrec.Recording { return app("535.43.02", nil) }, func() *testrec.Recording { return app("595.45.04", nil) }},
	{
		"order", func() *testrec.Recording {
			return app("580.142", func(p *testrec.Program) { scramble(p, "ABCDEFGHIJ") })
		}, func() *testrec.Recording {
			return app("580.142", func(p *testrec.Program) { scramble(p, "ABDEFCGHIJ") })
		},
	},
}

// letters are controls that stand for letters, so that an order can be spelled.
var letters = map[rune]struct {
	cmd    uint32
	params string
}{
	'A': {0x20800110, "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS"},
	'B': {0x20800102, "NV2080_CTRL_GPU_GET_INFO_V2_PARAMS"},
	'C': {0x2080014a, "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS"},
	'D': {0x20801301, "NV2080_CTRL_FB_GET_INFO_PARAMS"},
	'E': {0x20800403, "NV2080_CTRL_TIMER_GET_TIME_PARAMS"},
	'F': {0x20801801, "NV2080_CTRL_BUS_GET_PCI_INFO_PARAMS"},
	'G': {0x20801701, "NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS"},
	'H': {0x20800119, "NV2080_CTRL_GPU_GET_SIMULATION_INFO_PARAMS"},
	'I': {0x20800123, "NV2080_CTRL_GPU_GET_ENGINES_PARAMS"},
	'J': {0x2080012f, "NV2080_CTRL_GPU_QUERY_ECC_STATUS_PARAMS"},
}

func scramble(p *testrec.Program, order string) {
	for _, l := range order {
		x := letters[l]
		p.Control(testrec.Client, testrec.Subdev, x.cmd, p.R.New(x.params).B, nil, rm.OK)
	}
}

func TestText(t *testing.T) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			a, b := profile(t, "a.nvt", s.a(), nil), profile(t, "b.nvt", s.b(), nil)
			golden(t, s.name, string(Compare(a, b).AppendText(nil)))
			back := Compare(b, a)
			if back.Same {
				t.Error("B and A are the same, A and B are not")
			}
			if js, err := json.Marshal(back); err != nil || !json.Valid(js) {
				t.Errorf("JSON: %v", err)
			}
		})
	}
}

// golden compares with a file of testdata/text.txtar.
func golden(t *testing.T, name, got string) {
	t.Helper()
	const file = "testdata/text.txtar"
	a := &txtar.Archive{}
	if b, err := os.ReadFile(file); err == nil {
		a = txtar.Parse(b)
	} else if !*update {
		t.Fatal(err)
	}
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if *update {
		if i < 0 {
			i = len(a.Files)
			a.Files = append(a.Files, txtar.File{Name: name})
		}
		a.Files[i].Data = []byte(got)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, txtar.Format(a), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if i < 0 {
		t.Fatalf("%s has no %s; run go test -update", file, name)
	}
	if want := string(a.Files[i].Data); got != want {
		t.Errorf("%s:\ngot:\n%s\nwant:\n%s", name, got, want)
	}
}

// TestAccidents: what differs from run to run by accident is no difference.
func TestAccidents(t *testing.T) {
	a := app("580.142", nil)
	b := app("580.142", nil)
	b.Step = 777
	for i, e := range b.Events {
		e.Time = int64(i) * 333
		e.Dur *= 3
		e.PID += 1000
		e.TID += 1000
		e.File += 17
		for j := range e.Mem {
			e.Mem[j].Addr += 0x10000
		}
		if e.Kind == traces.KindIoctl && len(e.Mem) > 0 {
			e.Args[2] += 0x10000
			shift(e)
		}
	}
	b.Header.PID += 1000
	b.Header.Start++
	r := Compare(profile(t, "a", a, nil), profile(t, "b", b, nil))
	if !r.Same {
		t.Errorf("%s", r.AppendText(nil))
	}
}

// shift moves the pointer in the argument of NV_ESC_RM_CONTROL and
// NV_ESC_RM_ALLOC to where shifted segments lie, and renames the client.
func shift(e *traces.Event) {
	nr := e.Request() & 0xff
	for i := range e.Mem {
		seg := &e.Mem[i]
		bufs := [][]byte{seg.In, seg.Out}
		if !seg.Changed() {
			bufs = bufs[:1]
		}
		for _, b := range bufs {
			for at := 0; at+4 <= len(b); at += 4 {
				if b[at] == 1 && b[at+3] == 0xc1 {
					b[at] = 8
				}
			}
			if i == 0 && e.Dev == "nvidiactl" && (nr == 0x2a || nr == 0x2b) && (b[18] != 0 || b[17] != 0) {
				b[18]++
			}
		}
	}
}

// TestPlanted: one change, one line that names it.
func TestPlanted(t *testing.T) {
	base := profile(t, "a", app("580.142", nil), nil)
	for _, c := range []struct {
		name  string
		plant func(p *testrec.Program)
		want  Result
	}{
		{"control", func(p *testrec.Program) {
			p.Control(testrec.Client, testrec.Subdev, 0x20800102, p.R.New("NV2080_CTRL_GPU_GET_INFO_V2_PARAMS").B, nil, 0x1f)
		}, Result{Calls: []Change{{
			Section: SectionControl, Name: "NV2080_CTRL_CMD_GPU_GET_INFO_V2", Nr: "0x20800102", B: 1,
			Results: []Tally{{"NV_ERR_INVALID_ARGUMENT", 0, 1}},
		}}}},
		{
			"class", func(p *testrec.Program) { p.Alloc(testrec.Client, testrec.Device, 0x5c0000ff, 0xfffe, nil, 0x22) },
			Result{Calls: []Change{{
				Section: SectionClass, Name: "0xfffe", Nr: "0xfffe", B: 1, Results: []Tally{{"NV_ERR_INVALID_CLASS", 0, 1}},
			}}},
		},
		{
			"uvm", func(p *testrec.Program) { p.Ioctl(7, 0x30000002, nil, nil, 0) },
			Result{Calls: []Change{{
				Section: SectionUVM, Name: "UVM_DEINITIALIZE", Nr: "0x30000002", B: 1, Results: []Tally{{"returned", 0, 1}},
			}}},
		},
		{
			"size", func(p *testrec.Program) { p.Memory(testrec.Client, testrec.Device, 0x5c0000fe, 0x40, 3<<20) },
			Result{
				Calls: []Change{{
					Section: SectionClass, Name: "NV01_MEMORY_LOCAL_USER", Nr: "0x40", A: 1, B: 2, Results: []Tally{{"OK", 1, 2}},
				}},
				Sizes: []SizeDiff{{
					Section: SectionClass, Name: "NV01_MEMORY_LOCAL_USER", CountA: 1, CountB: 2, TotalA: 2 << 20, TotalB: 5 << 20,
					Sizes: []SizeTally{{3 << 20, 0, 1}},
				}},
			},
		},
		{
			"mmap", func(p *testrec.Program) { p.Mmap(4, 0, 0x1000) },
			Result{
				Calls: []Change{{Section: SectionMmap, Name: "nvidiaN", B: 1, Results: []Tally{{"returned", 0, 1}}}},
				Sizes: []SizeDiff{{Section: SectionMmap, Name: "nvidiaN", CountB: 1, TotalB: 0x1000, Sizes: []SizeTally{{0x1000, 0, 1}}}},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Compare(base, profile(t, "b", app("580.142", c.plant), nil))
			c.want.A, c.want.B = got.A, got.B
			g, w := got.AppendText(nil), c.want.AppendText(nil)
			gj, _ := json.Marshal(got)
			wj, _ := json.Marshal(&c.want)
			if !bytes.Equal(g, w) || !bytes.Equal(gj, wj) {
				t.Errorf("got\n%s\n%s\nwant\n%s\n%s", g, gj, w, wj)
			}
		})
	}
}

func TestSelf(t *testing.T) {
	for _, s := range scenes {
		for _, run := range []func() *testrec.Recording{s.a, s.b} {
			a, b := profile(t, "x", run(), nil), profile(t, "x", run(), nil)
			if r := Compare(a, b); !r.Same || len(r.Notes) > 0 {
				t.Errorf("%s: a run differs from itself:\n%s", s.name, r.AppendText(nil))
			}
			if text := string(Compare(a, a).AppendText(nil)); !strings.Contains(text, "no differences\n") {
				t.Errorf("%s: %s", s.name, text)
			}
		}
	}
}

// TestSafe: strings of the program can't steer a terminal or fake a line.
func TestSafe(t *testing.T) {
	evil := "x\x1b[2J\n+ fake"
	b := app("580.142", func(p *testrec.Program) {
		p.OpenFails(evil, 2)
		p.Exec(evil)
		p.TID++
		p.Open(30, "nvidia0")
	})
	b.Header.Argv = []string{evil}
	r := Compare(profile(t, evil, app("580.142", nil), nil), profile(t, evil, b, nil))
	text := string(r.AppendText(nil))
	if strings.Contains(text, "\x1b") || strings.Contains(text, "\n+ fake") || !strings.Contains(text, `x\x1b[2J\n+ fake`) {
		t.Errorf("%q", text)
	}
}

func TestNotes(t *testing.T) {
	r := app("580.142", nil)
	r.Note(&traces.Event{Kind: traces.KindLost, FD: -1, Ret: 5})
	a := profile(t, "a", r, &Options{MaxCalls: 10})
	d := ioctl.NewDecoder(nil)
	cut := NewProfile(nil, nil)
	for _, e := range r.Events {
		c := d.Decode(e)
		cut.Add(e, &c, d)
	}
	cut.Name = "b"
	notes := strings.Join(Compare(a, cut).Notes, "\n")
	for _, want := range []string{"a: 5 events were not recorded", "a: the order of its last", "b: the recording was cut off"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes lack %q: %s", want, notes)
		}
	}
}

// TestAlign: the edits turn one sequence into the other, and equal ones have none.
func TestAlign(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		a := make([]uint32, r.IntN(60))
		for i := range a {
			a[i] = uint32(r.IntN(12)) + 1
		}
		b := slices.Clone(a)
		for range r.IntN(6) {
			i := r.IntN(len(b) + 1)
			switch r.IntN(3) {
			case 0:
				b = slices.Insert(b, i, uint32(r.IntN(14))+1)
			case 1:
				if i < len(b) {
					b = slices.Delete(b, i, i+1)
				}
			case 2:
				if i+5 < len(b) {
					x := b[i]
					b = slices.Insert(slices.Delete(b, i, i+1), i+4, x)
				}
			}
		}
		window := 1 + r.IntN(20)
		count := map[uint32]int{}
		for _, x := range a {
			count[x]++
		}
		n := 0
		align(a, b, window, func(e edit) {
			n++
			if e.op == opGone {
				count[e.id]--
			} else {
				count[e.id]++
			}
		})
		for _, x := range b {
			count[x]--
		}
		for id, k := range count {
			if k != 0 {
				t.Fatalf("window %d: %v -> %v: %d copies of %d unaccounted for", window, a, b, k, id)
			}
		}
		if same := slices.Equal(a, b); same != (n == 0) {
			t.Fatalf("%v -> %v: %d edits", a, b, n)
		}
	}
}

// TestMoves spells orders with letters.
func TestMoves(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"ABCDEFGH", "ABCDEFGH", ""},
		{"ABCDEFGH", "ABDEFCGH", "C:B>F"},
		{"ABCDEFGH", "ACBDEFGH", "B:A>C"},
		{"ABCDEFGHIJ", "ABFGHCDEIJ", "FGH:E>B"},
		{"ABCDEFGH", "ABCXDEFGH", ""},
		{"ABCDEFGH", "CDEFGHAB", "AB:>H"},
		{"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "BCDEFGHIJKLMNOPQRSTUVWXYZA", ""}, // beyond the window
	} {
		seq := func(s string) (out []uint32) {
			for _, l := range s {
				out = append(out, uint32(l-'A')+1)
			}
			return out
		}
		m := moves{window: 10}
		align(seq(c.a), seq(c.b), 10, m.step)
		var got []string
		for _, f := range m.found {
			var s strings.Builder
			for _, id := range f.ids {
				s.WriteString(letter(id))
			}
			got = append(got, s.String()+":"+letter(f.wasAfter)+">"+letter(f.isAfter))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s -> %s: %q, want %q", c.a, c.b, g, c.want)
		}
	}
}

func letter(id uint32) string {
	if id == 0 {
		return ""
	}
	return string(rune('A' + id - 1))
}

// BenchmarkAlign aligns sequences of a million calls that differ now and then,
// and ones that share next to nothing.
func BenchmarkAlign(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	one := make([]uint32, 1<<20)
	for i := range one {
		one[i] = uint32(r.IntN(200)) + 1
	}
	near := slices.Clone(one)
	for range 1000 {
		near[r.IntN(len(near))] = uint32(r.IntN(200)) + 1
	}
	far := make([]uint32, 1<<17)
	for i := range far {
		far[i] = uint32(r.IntN(200)) + 1
	}
	for _, c := range []struct {
		name string
		a, b []uint32
	}{{"near", one, near}, {"far", one[:len(far)], far}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				align(c.a, c.b, defaultWindow, func(edit) { n++ })
				if n == 0 {
					b.Fatal("no edits")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(c.a)), "ns/call")
		})
	}
}
