package nvattach

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// TestTwins: a copy without programs does what the kernel did, and counts nothing; so
// does one whose functions have programs.
func TestTwins(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	want := r.runBusy(busy)
	f, err := ptx.Parse("app.ptx", busy, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := r.weave(busy)
	for _, device := range []bool{false, true} {
		if device {
			w.Kernels = append(w.Kernels, KernelReport{Name: "twice", Func: true})
		}
		text := twins(f, w, []string{"busy"})
		if device != strings.Contains(text, "call.uni (r0), "+TwinName("twice")) {
			t.Errorf("functions with programs: %v\n%s", device, text)
		}
		before := r.value("threads", 0)
		reg, err := r.machine.Alloc(512, "buf")
		if err != nil {
			t.Fatal(err)
		}
		params := append(le8(reg.Base), 3, 0, 0, 0)
		r.launch(text, TwinName("busy"), emu.Dim3{X: 2}, emu.Dim3{X: 100}, params)
		if !slices.Equal(reg.Data, want) || r.value("threads", 0) != before {
			t.Errorf("the copy does something else: %d entries", r.value("threads", 0)-before)
		}
		if got := r.runBusy(text); !slices.Equal(got, want) || r.value("threads", 0) != before+200 {
			t.Errorf("the kernel does something else: %d entries", r.value("threads", 0)-before)
		}
	}
}

func le8(v uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return b
}

// TestTwinsOf: which kernels get copies.
func TestTwinsOf(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	bounded := strings.Replace(vectorAdd, ")\n{", ")\n.maxntid 256, 1, 1\n{", 1)
	variable := func(decl string) string {
		return strings.Replace(bounded, ".visible .entry", decl+"\n.visible .entry", 1)
	}
	refuse := func(text string) ([]byte, error) {
		if strings.Contains(text, "nvtrace_unprobed") {
			return nil, errors.New("no")
		}
		return nil, nil
	}
	for _, tt := range []struct {
		name    string
		src     string
		twins   Twins
		compile func(string) ([]byte, error)
		want    bool // in the image
		beside  bool // as an original
		can     bool // it can be
		why     string
	}{
		{name: "none", src: vectorAdd},
		{name: "all", src: vectorAdd, twins: TwinsAll, want: true},
		{name: "all, bounded", src: bounded, twins: TwinsAll, want: true},
		{name: "needed", src: vectorAdd, twins: TwinsNeeded, want: true},
		{name: "needed, bounded", src: bounded, twins: TwinsNeeded},
		{name: "aside", src: bounded, twins: TwinsAside, beside: true},
		{name: "aside, with a variable", src: variable(".visible .global .u32 v;"), twins: TwinsAside, beside: true},
		{name: "aside, with a text", src: variable(".global .align 1 .b8 $str[2] = {65, 0};"), twins: TwinsAside, beside: true},
		{name: "aside, with a variable that is hidden", src: variable(".global .u32 v;"), twins: TwinsAside, beside: true},
		{name: "aside, with a constant that is hidden", src: variable(".const .u32 v = 3;"), twins: TwinsAside, beside: true},
		{name: "aside, needed with a variable", src: vectorAdd + "\n.global .u32 v;\n", twins: TwinsAside, want: true},
		{name: "aside, needed", src: vectorAdd, twins: TwinsAside, can: true, beside: true},
		{name: "needed, beside", src: vectorAdd, twins: TwinsNeeded, can: true, beside: true},
		{name: "needed, beside, in shared memory", src: vectorAdd + "\n.shared .align 4 .b8 v[8];\n", twins: TwinsNeeded, can: true, beside: true},
		{name: "needed, with a variable", src: vectorAdd + "\n.global .u32 v;\n", twins: TwinsNeeded, can: true, want: true},
		{name: "all, not compiled", src: vectorAdd, twins: TwinsAll, compile: refuse, why: "no copy without programs: compiling: no"},
		{name: "needed, not compiled", src: vectorAdd, twins: TwinsNeeded, compile: refuse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := r.plan.Rewrite([]byte(tt.src), r.maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, Twins: tt.twins, Beside: tt.can, Compile: tt.compile})
			if err != nil || len(out.Kernels) != 1 {
				t.Fatalf("%+v, %v", out, err)
			}
			k := &out.Kernels[0]
			if k.Twin != (tt.want || tt.beside) || strings.Contains(string(out.Image), TwinName(k.Name)+"(") != tt.want || (out.Original != nil) != tt.beside || k.NoTwin != tt.why {
				t.Errorf("copy %v, %q\n%s", k.Twin, k.NoTwin, out.Image)
			}
		})
	}
}

// TestLimited: what a copy takes is the limit of a kernel that takes more with
// programs than a block of 1,024 threads can have.
func TestLimited(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	for _, tt := range []struct {
		probed, alone int
		want          string // in the text that was compiled last
		compiled      int
	}{
		{64, 40, "", 1},
		{72, 60, ".maxntid 1024, 1, 1\n", 3},
		{72, 66, ".maxnreg 72\n", 3},
	} {
		var last string
		n := 0
		// What is compiled is the text, of which the numbers of registers are invented.
		work := &rewriting{p: r.plan, maps: r.maps, out: new(Rewritten)}
		work.o = &RewriteOptions{Arch: fatbin.Arch{SM: 90}, Twins: TwinsNeeded, Compile: func(text string) ([]byte, error) {
			last = text
			n++
			return []byte(text), nil
		}}
		work.registers = func([]byte) map[string]int {
			const k = "_Z9vectorAddPKfS0_Pf"
			m := map[string]int{k: tt.probed}
			if strings.Contains(last, TwinName(k)) {
				m[TwinName(k)] = tt.alone
			}
			return m
		}
		err := work.text([]byte(vectorAdd))
		out := work.out
		if err != nil || n != tt.compiled || out.Kernels[0].Twin || !strings.Contains(last, tt.want) || strings.Contains(last, ".max") != (tt.want != "") ||
			strings.Contains(last, TwinName("")) || out.Text != last {
			t.Errorf("%d and %d registers: compiled %d times, %+v, %v\n%s", tt.probed, tt.alone, n, out.Kernels, err, last)
		}
	}
}

// TestEffects: kernels that do more than to change memory, and variables.
func TestEffects(t *testing.T) {
	const head = ".version 8.0\n.target sm_90\n.address_size 64\n"
	const body = ".visible .global .align 4 .u32 n;\n.global .align 8 .u64 own[2];\n.extern .global .u32 other;\n.const .u32 c;\n.global .align 1 .b8 $str[4];\n" +
		".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
	for code, want := range map[string]string{
		"":                                     "",
		"ld.global.u32 %r, [n];":               "",
		"call (x), vprintf, (y, z);":           "it prints",
		"sust.b.1d.b32.trap [%d, {%r}], {%r};": "it writes surfaces",
	} {
		f, err := ptx.Parse("app.ptx", head+body+".visible .entry k()\n{\n\t.reg .b32 %r;\n\t.reg .b64 %d;\n\t"+code+"\n\tret;\n}\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := effectOf(f, f.Lookup("k")); got != want {
			t.Errorf("%s: %q, want %q", code, got, want)
		}
		if got := globalsOf(f); !slices.Equal(got, []string{"n", "own"}) {
			t.Errorf("variables %v", got)
		}
	}
}

// TestTwinsCorpus: modules with copies of all their kernels are PTX.
func TestTwinsCorpus(t *testing.T) {
	if need.Race {
		t.Skip("one goroutine, and much text")
	}
	r := newRig(t, nil, testObject(t, "example_count"))
	n := 0
	err := filepath.WalkDir(filepath.Join("..", "ptx", "testdata", "kernels"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".ptx" {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := ptx.Parse(path, string(src), nil)
		if err != nil {
			return err
		}
		w, err := r.plan.Weave(f, r.maps, nil)
		if err != nil || len(w.Kernels) == 0 {
			return nil //nolint:nilerr // TestWeaveCorpus says which may fail
		}
		names := entriesOf(w)
		w.Kernels = append(w.Kernels, KernelReport{Func: true}) // with copies of functions
		text := twins(f, w, names)
		g, err := ptx.Parse(path, text, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return nil
		}
		for _, k := range names {
			if fn := g.Lookup(TwinName(k)); fn == nil || !fn.HasBody() {
				t.Errorf("%s: no copy of %s", path, k)
			}
		}
		if was, is := g.Check(), f.Check(); len(was.Errors) > len(is.Errors) {
			t.Errorf("%s: %v", path, was.Errors[len(is.Errors):])
		}
		n++
		corpusAssemble(t, path, string(src), text, f)
		return nil
	})
	if err != nil || n < 80 {
		t.Errorf("%d modules, %v", n, err)
	}
}
