package nvattach

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

func entry(tb testing.TB, kind fatbin.Kind, arch string, data []byte) fatbin.Entry {
	tb.Helper()
	a, err := fatbin.ParseArch(arch)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := fatbin.NewEntry(kind, a, data, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func arch(tb testing.TB, s string) fatbin.Arch {
	tb.Helper()
	a, err := fatbin.ParseArch(s)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func TestLoadable(t *testing.T) {
	for _, tt := range []struct {
		kind      fatbin.Kind
		arch, gpu string
		want      bool
	}{
		{fatbin.KindELF, "sm_90", "sm_90", true},
		{fatbin.KindELF, "sm_90a", "sm_90", true},
		{fatbin.KindELF, "sm_80", "sm_86", true},
		{fatbin.KindELF, "sm_86", "sm_80", false},
		{fatbin.KindELF, "sm_80", "sm_90", false},
		{fatbin.KindELF, "sm_100f", "sm_103", true},
		{fatbin.KindELF, "sm_100a", "sm_103", false},
		{fatbin.KindPTX, "sm_50", "sm_90", true},
		{fatbin.KindPTX, "sm_100", "sm_90", false},
		{fatbin.KindPTX, "sm_90a", "sm_100", false},
		{fatbin.KindPTX, "sm_100f", "sm_120", false},
		{fatbin.KindLTOIR, "sm_90", "sm_90", false},
	} {
		if got := Loadable(tt.kind, arch(t, tt.arch), arch(t, tt.gpu)); got != tt.want {
			t.Errorf("%v for %s on %s: %v", tt.kind, tt.arch, tt.gpu, got)
		}
	}
}

func TestPrefers(t *testing.T) {
	old := []byte(strings.Replace(vectorAdd, "sm_90", "sm_60", 1))
	list := []fatbin.Entry{
		entry(t, fatbin.KindPTX, "sm_60", old), entry(t, fatbin.KindPTX, "sm_80", old), entry(t, fatbin.KindPTX, "sm_90a", old), entry(t, fatbin.KindPTX, "sm_100", old),
	}
	for _, tt := range []struct {
		gpu  string
		want int
	}{{"sm_70", 0}, {"sm_86", 1}, {"sm_90", 2}, {"sm_103", 3}, {"sm_50", -1}} {
		if got := Prefers(list, fatbin.KindPTX, arch(t, tt.gpu)); got != tt.want {
			t.Errorf("%s takes entry %d, want %d", tt.gpu, got, tt.want)
		}
	}
}

func TestRewritePTX(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	image := append([]byte(vectorAdd), 0)
	out, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90")})
	if err != nil || !out.Changed || len(out.Kernels) != 1 || fatbin.Sniff(out.Image) != fatbin.FormatPTX {
		t.Fatalf("%+v, %v", out, err)
	}
	r.runAdd(strings.TrimRight(string(out.Image), "\x00"), 2, 64)
	if n := r.value("threads", 1); n != 128 {
		t.Errorf("%d threads", n)
	}
	compiled, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90"), Compile: func(text string) ([]byte, error) {
		if !strings.Contains(text, "red.global.add") && !strings.Contains(text, "red.") {
			t.Errorf("compiled: %s", text)
		}
		return []byte("a cubin"), nil
	}})
	if err != nil || string(compiled.Image) != "a cubin" {
		t.Errorf("%q, %v", compiled.Image, err)
	}
	broken, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90"), Compile: func(string) ([]byte, error) { return nil, errors.New("time limit") }})
	if err != nil || broken.Changed || !bytes.Equal(broken.Image, image) || len(broken.Unprobed) != 1 || broken.Unprobed[0].Reason != "compiling: time limit" {
		t.Errorf("%+v, %v", broken, err)
	}
}

func TestRewriteContainer(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	sm60 := strings.Replace(vectorAdd, "sm_90", "sm_60", 1)
	c := &fatbin.Container{Entries: []fatbin.Entry{
		entry(t, fatbin.KindPTX, "sm_60", []byte(sm60)),
		entry(t, fatbin.KindPTX, "sm_90", []byte(vectorAdd)),
		entry(t, fatbin.KindPTX, "sm_100", []byte(strings.Replace(vectorAdd, "sm_90", "sm_100", 1))),
	}}
	image := c.Append(nil)
	out, err := r.plan.Rewrite(append(image, "behind"...), r.maps, &RewriteOptions{Arch: arch(t, "sm_90")})
	if err != nil || !out.Changed || !bytes.HasSuffix(out.Image, []byte("behind")) {
		t.Fatalf("%v, %v", out, err)
	}
	got, _, err := fatbin.ParseContainer(out.Image)
	if err != nil || len(got.Entries) != 3 {
		t.Fatal(err)
	}
	at := Prefers(got.Entries, fatbin.KindPTX, arch(t, "sm_90"))
	text, err := got.Entries[at].Data(nil)
	if err != nil || string(text) != out.Text || got.Entries[at].Arch() != arch(t, "sm_90") {
		t.Errorf("the driver would take another text: %v", err)
	}
	for _, i := range []int{0, 1} {
		data, err := got.Entries[i].Data(nil)
		if err != nil || strings.Contains(string(data), "nvt") {
			t.Errorf("entry %d is not as it was: %v", i, err)
		}
	}
	none, err := r.plan.Rewrite(c.Append(nil), r.maps, &RewriteOptions{Arch: arch(t, "sm_50")})
	if !errors.Is(err, ErrNotWoven) {
		t.Errorf("no entry for the GPU: %+v, %v", none, err)
	}
}

func TestRewritePassesThrough(t *testing.T) {
	r := newRig(t, &PlanOptions{Kernels: []string{"other"}}, testObject(t, "example_count"))
	image := (&fatbin.Container{Entries: []fatbin.Entry{entry(t, fatbin.KindPTX, "sm_90", []byte(vectorAdd))}}).Append(nil)
	out, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90"), Compile: func(string) ([]byte, error) {
		t.Error("compiled for nothing")
		return nil, nil
	}})
	if err != nil || out.Changed || &out.Image[0] != &image[0] || len(out.Unprobed) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := r.plan.Rewrite([]byte("no image"), r.maps, &RewriteOptions{Arch: arch(t, "sm_90")}); !errors.Is(err, ErrNotWoven) {
		t.Errorf("%v", err)
	}
}

// TestRewriteTools rewrites containers as NVIDIA's tools wrote them, with machine code
// for several GPUs and PTX.
func TestRewriteTools(t *testing.T) {
	files, err := filepath.Glob("../fatbin/testdata/*.fatbin")
	if err != nil || len(files) == 0 {
		t.Fatal("no containers", err)
	}
	cubin, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, name := range files {
		image, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, nil, testObject(t, "example_count"))
		for _, gpu := range []fatbin.Arch{arch(t, "sm_80"), arch(t, "sm_90"), arch(t, "sm_103")} {
			for _, compile := range []func(string) ([]byte, error){nil, func(string) ([]byte, error) { return cubin, nil }} {
				out, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: gpu, Compile: compile})
				if errors.Is(err, ErrNotWoven) {
					continue // nothing in it for this GPU
				}
				if err != nil {
					t.Errorf("%s for %v: %v", name, gpu, err)
					continue
				}
				if !out.Changed {
					if len(out.Unprobed) == 0 {
						t.Errorf("%s for %v: nothing changed and no reason", name, gpu)
					}
					continue
				}
				changed++
				checkChosen(t, name, image, out, gpu, compile != nil, cubin)
			}
		}
	}
	if changed < 4 {
		t.Errorf("%d images were changed", changed)
	}
}

// checkChosen checks that the driver would take what is new, and that the rest is as
// it was.
func checkChosen(t *testing.T, name string, image []byte, out *Rewritten, gpu fatbin.Arch, compiled bool, cubin []byte) {
	t.Helper()
	was, _, err1 := fatbin.ParseContainer(image)
	is, _, err2 := fatbin.ParseContainer(out.Image)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	elf, text := Prefers(is.Entries, fatbin.KindELF, gpu), Prefers(is.Entries, fatbin.KindPTX, gpu)
	want, at := []byte(out.Text), text
	if compiled {
		want, at = cubin, elf
	} else if elf >= 0 {
		t.Errorf("%s for %v: the driver would take machine code", name, gpu)
		return
	}
	if at < 0 {
		t.Fatalf("%s for %v: no entry of ours", name, gpu)
	}
	if data, err := is.Entries[at].Data(nil); err != nil || !bytes.Equal(data, want) {
		t.Errorf("%s for %v: the driver would take another entry, %v", name, gpu, err)
	}
	for i := range is.Entries {
		if i == at {
			continue
		}
		if !slices.ContainsFunc(was.Entries, func(e fatbin.Entry) bool {
			return bytes.Equal(e.Header(), is.Entries[i].Header()) && bytes.Equal(e.Raw(), is.Entries[i].Raw())
		}) {
			t.Errorf("%s for %v: entry %d is not as it was", name, gpu, i)
		}
	}
	if lost := len(was.Entries) - len(is.Entries); lost > 2 {
		t.Errorf("%s for %v: %d entries are gone", name, gpu, lost)
	}
}

func TestRegisterLimit(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	bounded := strings.Replace(vectorAdd, ")\n{", ")\n.maxntid 256, 1, 1\n{", 1)
	minimum := strings.Replace(vectorAdd, ")\n{", ")\n.minnctapersm 2\n{", 1)
	for _, tt := range []struct {
		src  string
		regs int
		want string
	}{{vectorAdd, 12, ".maxntid 1024, 1, 1\n"}, {vectorAdd, 97, ".maxnreg 104\n"}, {vectorAdd, 0, ""}, {bounded, 12, ""}, {minimum, 12, ".maxnreg 64\n"}} {
		f, err := ptx.Parse("app.ptx", tt.src, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := r.plan.Weave(f, r.maps, &WeaveOptions{Registers: func(string) int { return tt.regs }})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(w.Text, ".maxnreg") || strings.Contains(w.Text, ".maxntid 1024"); got != (tt.want != "") || !strings.Contains(w.Text, tt.want) {
			t.Errorf("%d registers: %s", tt.regs, w.Text[:300])
		}
	}
}

// Where the driver would take machine code, programs go there; into the PTX beside it where
// machine code can't have them all.
func TestRewriteBoth(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	compile := compileBody(t, "sm_90")
	gpu := arch(t, "sm_90a")
	none := func(string) ([]byte, error) { return nil, nil }
	refused := func(string) ([]byte, error) { return nil, errors.New("no registers") }
	for _, tt := range []struct {
		name    string
		o       RewriteOptions
		machine bool
	}{
		{"no bodies", RewriteOptions{}, false},
		{"bodies", RewriteOptions{CompileBody: compile}, true},
		{"nothing compiles", RewriteOptions{CompileBody: none}, false},
		{"a body is refused", RewriteOptions{CompileBody: refused}, false},
		{"neither is possible", RewriteOptions{CompileBody: refused, Compile: refused}, true},
	} {
		tt.o.Arch = gpu
		r := newRig(t, nil, testObject(t, "example_count"))
		out, err := r.plan.Rewrite(image, r.maps, &tt.o)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Kernels) == 0 {
			if tt.o.Compile == nil || len(out.Unprobed) == 0 || out.Changed {
				t.Errorf("%s: changed %v, not probed %v", tt.name, out.Changed, out.Unprobed)
			}
			continue
		}
		if len(out.Unprobed) > 0 || !out.Changed {
			t.Errorf("%s: changed %v, not probed %v", tt.name, out.Changed, out.Unprobed)
		}
		for _, k := range out.Kernels {
			if k.Machine != tt.machine {
				t.Errorf("%s: %s: in machine code %v", tt.name, k.Name, k.Machine)
			}
		}
		is, _, err := fatbin.ParseContainer(out.Image)
		if err != nil {
			t.Fatal(err)
		}
		if elf := Prefers(is.Entries, fatbin.KindELF, gpu); (elf >= 0) != tt.machine {
			t.Errorf("%s: the driver would take entry %d", tt.name, elf)
		}
	}
}

// A module none of whose kernels is wanted, as its machine code shows, is left alone
// without a look at its PTX, unless a program may want a device function.
func TestRewriteUnwanted(t *testing.T) {
	cubin, err := os.ReadFile(filepath.Join("..", "fatbin", "testdata", "kernels.12.4.sm_90a.cubin"))
	if err != nil {
		t.Fatal(err)
	}
	container := func(entries ...fatbin.Entry) []byte {
		c := &fatbin.Container{Entries: entries}
		return c.Append(nil)
	}
	text := entry(t, fatbin.KindPTX, "sm_90", []byte(vectorAdd)) // a kernel that the machine code lacks
	machine := entry(t, fatbin.KindELF, "sm_90a", cubin)
	r := newRig(t, &PlanOptions{Kernels: []string{"vectorAdd"}}, testObject(t, "example_count"))
	for _, tt := range []struct {
		image   []byte
		changed bool
	}{{container(machine, text), false}, {container(text), true}} {
		out, err := r.plan.Rewrite(tt.image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90a")})
		if err != nil || out.Changed != tt.changed || len(out.Unprobed) != 0 {
			t.Errorf("changed %v, want %v: unprobed %v, %v", out.Changed, tt.changed, out.Unprobed, err)
		}
	}
	for _, p := range []object.Point{{Kind: object.KindEntry, Kernel: "f", Func: true}, {Kind: object.KindCapture}} {
		plan := &Plan{Programs: []*proof.Program{{Program: &object.Program{Point: p}}}}
		if !plan.wantsAny([]string{"other"}) {
			t.Errorf("%v: device functions are not looked at", p)
		}
	}
}
