package nvattach

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/internal/need"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/emu"
)

// compileBody returns what compiles bodies by NVIDIA's assembler, which stands in for the
// driver's compiler: both take the same options.
func compileBody(tb testing.TB, arch string) func(text string) ([]byte, error) {
	tb.Helper()
	return compiler(tb, arch, "--compile-as-tools-patch")
}

// compiler returns what makes a cubin of a module's text by NVIDIA's assembler.
func compiler(tb testing.TB, arch string, options ...string) func(text string) ([]byte, error) {
	tb.Helper()
	path := need.Tool(tb, "ptxas", "NVTRACE_PTXAS")
	dir := tb.TempDir()
	var calls atomic.Int64 // which may overlap
	return func(text string) ([]byte, error) {
		name := filepath.Join(dir, strconv.FormatInt(calls.Add(1), 10))
		in, out := name+".ptx", name+".cubin"
		if err := os.WriteFile(in, []byte(text), 0o644); err != nil {
			return nil, err
		}
		if msg, err := exec.Command(path, slices.Concat(options, []string{"-arch=" + arch, "-o", out, in})...).CombinedOutput(); err != nil {
			tb.Errorf("ptxas: %s\n%s", msg, text)
			return nil, err
		}
		return os.ReadFile(out)
	}
}

// Programs are put into machine code: what was there stays where it was, exits and
// registers are as the new code needs them.
func TestMachineCode(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	before, err := fatbin.ParseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	compile := compileBody(t, "sm_90")
	for _, o := range testObjects(t) {
		plan, maps := placedPlan(t, o)
		r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compile})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range r.Unprobed {
			t.Logf("%s: %s: %s", o.Name, u.Kernel, u.Reason)
			if strings.Contains(u.Reason, sass.ErrUnsafe.Error()) {
				t.Errorf("%s: %s: %s", o.Name, u.Kernel, u.Reason)
			}
		}
		if !r.Changed {
			continue
		}
		after, err := fatbin.ParseCubin(r.Image)
		if err != nil {
			t.Fatalf("%s: %v", o.Name, err)
		}
		for _, k := range r.Kernels {
			t.Logf("%s: %s: %d sites, notes %v", o.Name, k.Name, k.Sites(), k.Notes)
			if !k.Machine {
				t.Errorf("%s: %+v", o.Name, k)
			}
			if k.Sites() == 0 && k.Name == "_Z7nothingv" { // it has no such place
				continue
			}
			was, is := kernelNamed(t, before, k.Name), kernelNamed(t, after, k.Name)
			if is.Size <= was.Size || is.Registers < was.Registers || is.Offset != was.Offset {
				t.Errorf("%s: %s: size %d -> %d, registers %d -> %d", o.Name, k.Name, was.Size, is.Size, was.Registers, is.Registers)
			}
		}
	}
}

// For comparisons there is the image as it was, with the names of its variables, and what
// its kernels do that can't be done twice is known.
func TestMachineOriginal(t *testing.T) {
	const module = `.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.visible .const .align 4 .u32 factor;
.visible .global .align 4 .u32 calls;
.global .align 1 .b8 $str[3] = {104, 105, 0};
.visible .entry plain(.param .u64 p)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
	ld.const.u32 %r1, [factor];
	st.global.u32 [%rd1], %r1;
	red.global.add.u32 [calls], 1;
	ret;
}
.visible .entry prints(.param .u64 p)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd2, [p];
	mov.u64 %rd1, $str;
	{
	.param .b64 a;
	.param .b64 b;
	.param .b32 r;
	st.param.b64 [a], %rd1;
	st.param.b64 [b], %rd2;
	call (r), vprintf, (a, b);
	ld.param.b32 %r1, [r];
	}
	ret;
}
.visible .entry draws(.param .u64 s)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [s];
	mov.u32 %r1, 0;
	sust.b.1d.b32.trap [%rd1, {%r1}], {%r1};
	ret;
}
`
	image, err := compiler(t, "sm_90")(module)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, nil, testObject(t, "example_count"))
	compile := compileBody(t, "sm_90")
	for _, twins := range []Twins{TwinsNeeded, TwinsAll} {
		got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90a"), CompileBody: compile, Twins: twins})
		if err != nil || len(got.Kernels) != 3 {
			t.Fatalf("%+v, %v", got, err)
		}
		if twins == TwinsNeeded {
			if got.Original != nil || got.Kernels[0].Twin {
				t.Errorf("copies that nobody asked for: %+v", got.Kernels[0])
			}
			continue
		}
		o := got.Original
		if o == nil || !bytes.Equal(o.Image, image) || !slices.Equal(o.Globals, []string{"calls"}) || !slices.Equal(o.Constants, []string{"factor"}) {
			t.Fatalf("original %+v", o)
		}
		want := map[string]string{"plain": "", "prints": "it prints", "draws": "it has an instruction that is not known, such as those that write surfaces"}
		for _, k := range got.Kernels {
			if !k.Twin || k.Effect != want[k.Name] || !slices.Equal(k.Globals, []string{"calls"}) {
				t.Errorf("%+v", k)
			}
		}
	}
}

// The second form of code that cubins for sm_100 and later have is never left beside code
// with programs, and where a driver needs it the kernels are named.
func TestMachineMercury(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_100f.cubin")
	if err != nil {
		t.Fatal(err)
	}
	compile := compileBody(t, "sm_100")
	for _, tt := range []struct {
		gpu     string
		changed bool
	}{{"sm_100a", true}, {"sm_103a", false}} {
		r := newRig(t, nil, testObject(t, "example_count"))
		got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, tt.gpu), CompileBody: compile})
		if err != nil || got.Changed != tt.changed || (len(got.Unprobed) == 0) != tt.changed || (len(got.Kernels) > 0) != tt.changed {
			t.Fatalf("%s: changed %v, unprobed %v, %v", tt.gpu, got.Changed, got.Unprobed, err)
		}
		for _, u := range got.Unprobed {
			if !strings.Contains(u.Reason, "Mercury") {
				t.Errorf("%s: %s: %s", tt.gpu, u.Kernel, u.Reason)
			}
		}
		c, err := fatbin.ParseCubin(got.Image)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range c.Sections {
			if tt.changed && (strings.HasPrefix(s.Name, ".nv.merc.") || strings.HasPrefix(s.Name, ".nv.capmerc.")) {
				t.Errorf("%s: section %s is still there", tt.gpu, s.Name)
			}
		}
	}
}

func kernelNamed(t *testing.T, c *fatbin.Cubin, name string) *fatbin.Kernel {
	t.Helper()
	for i := range c.Kernels {
		if c.Kernels[i].Name == name {
			return &c.Kernels[i]
		}
	}
	t.Fatalf("no kernel %s", name)
	return nil
}

// Compilers put loads that never run before copies to shared memory; they are no accesses.
func TestMachineCodeNeverRun(t *testing.T) {
	const module = `.version 8.0
.target sm_90
.address_size 64
.visible .entry copies(.param .u64 p)
{
	.reg .b64 %p;
	.reg .b32 %s;
	.shared .align 16 .b8 buf[64];
	ld.param.u64 %p, [p];
	mov.u32 %s, buf;
	st.shared.u32 [%s+32], %s;
	cp.async.cg.shared.global [%s], [%p], 16;
	cp.async.wait_all;
	ret;
}
`
	image, err := compiler(t, "sm_90")(module)
	if err != nil {
		t.Fatal(err)
	}
	c, err := fatbin.ParseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	never := 0
	k := kernelNamed(t, c, "copies")
	for _, w := range sass.Words(image[c.Sections[k.Section].Offset+k.Offset:][:k.Size]) {
		if in, ok := sass.Decode(90, w); ok {
			if reg, negated, _ := in.Guard(); reg == sass.PT && negated {
				never++
			}
		}
	}
	if never == 0 {
		t.Fatal("the kernel has no instruction that never runs")
	}
	r := newRig(t, nil, testObject(t, "example_memory"))
	got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90a"), CompileBody: compileBody(t, "sm_90")})
	if err != nil || len(got.Kernels) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := got.Kernels[0].Sites(); n != 2 {
		t.Errorf("%d accesses, want 2", n)
	}
}

// TestSkipped: places that have no program are all accounted for, however many reasons there are.
func TestSkipped(t *testing.T) {
	m := new(machine)
	for i := range mostReasons + 3 {
		for at := range i + 1 {
			m.skip(fmt.Sprintf("NOP at +%#x", 16*at), fmt.Sprintf("reason %d", i))
		}
	}
	notes := m.report.Notes
	if len(notes) != mostReasons+1 {
		t.Fatalf("%d notes: %q", len(notes), notes)
	}
	for i, want := range map[int]string{
		0: "reason 0 (NOP at +0x0)", mostReasons - 1: fmt.Sprintf("reason %d (%d places, the first NOP at +0x0)", mostReasons-1, mostReasons),
		mostReasons: fmt.Sprintf("places without programs for reasons that are not listed: %d; such reasons: 3", 3*(mostReasons+2)),
	} {
		if notes[i] != want {
			t.Errorf("note %d: %q, want %q", i, notes[i], want)
		}
	}
}

// TestMachineLeave: a program that ends threads puts an exit into the code.
func TestMachineLeave(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	plan, maps := placedPlan(t, testObject(t, "leave"))
	r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compileBody(t, "sm_90")})
	if err != nil || len(r.Unprobed) > 0 || len(r.Kernels) == 0 {
		t.Fatalf("%d kernels, unprobed %v, %v", len(r.Kernels), r.Unprobed, err)
	}
	was, err1 := fatbin.NewCubinEditor(image, nil)
	is, err2 := fatbin.NewCubinEditor(r.Image, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, k := range r.Kernels {
		before, err1 := was.Code(k.Name)
		after, err2 := is.Code(k.Name)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if len(after.Exits) != len(before.Exits)+1 {
			t.Fatalf("%s: exits %x, before %x", k.Name, after.Exits, before.Exits)
		}
		last := after.Exits[len(after.Exits)-1]
		if int(last) < len(before.Code) {
			t.Errorf("%s: the exit at +%#x is the kernel's", k.Name, last)
		}
		in, ok := sass.Decode(90, sass.WordAt(after.Code[last:]))
		if !ok || in.Name() != "EXIT" {
			t.Errorf("%s: +%#x is %s", k.Name, last, in.String())
		}
		for _, w := range sass.Words(after.Code) {
			if in, ok := sass.Decode(90, w); ok && in.Name() == "BPT" {
				t.Errorf("%s: %s is left", k.Name, in.String())
			}
		}
	}
}

// TestMachineCapture: bpftime's programs at each load and store see these as PTX has them, and
// are compiled once for all texts of which their code is the same.
func TestMachineCapture(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"cuda__accesses"}}, testObject(t, "bpftime"))
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	compile := compileBody(t, "sm_90")
	got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: func(text string) ([]byte, error) {
		bodies = append(bodies, text)
		return compile(text)
	}})
	if err != nil || len(got.Unprobed) > 0 {
		t.Fatalf("unprobed %v, %v", got.Unprobed, err)
	}
	// One for loads, one for stores.
	if len(bodies) != 2 {
		t.Fatalf("%d bodies", len(bodies))
	}
	sites := make(map[string]int)
	for _, k := range got.Kernels {
		sites[k.Name] = k.Sites()
	}
	if n := sites["add"]; n != 3 || sites["_Z7nothingv"] != 0 {
		t.Errorf("sites %v, want 3 in add", sites)
	}
	// They run as functions: each thread adds to the counter of loads or that of stores.
	const threads = 7
	for _, text := range bodies {
		text += ".visible .entry k()\n{\n\tcall " + BodyName + ";\n\tret;\n}\n"
		r.launch(text, "k", emu.Dim3{X: 1}, emu.Dim3{X: threads}, nil)
	}
	if ld, st := r.value("shared", 0), r.value("shared", 1); ld != threads || st != threads {
		t.Errorf("%d loads, %d stores, want %d each", ld, st, threads)
	}
}

// TestMachineValues: programs that look at what is loaded run behind loads, others before.
func TestMachineValues(t *testing.T) {
	const module = `.version 8.0
.target sm_90
.address_size 64
.visible .entry moves(.param .u64 p)
{
	.reg .b64 %p;
	.reg .b32 %r<4>;
	ld.param.u64 %p, [p];
	ld.global.u32 %r1, [%p];
	atom.global.add.u32 %r2, [%p+4], %r1;
	add.u32 %r3, %r2, %r1;
	st.global.u32 [%p+8], %r3;
	ret;
}
`
	image, err := compiler(t, "sm_90")(module)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, &PlanOptions{Programs: []string{"on_access"}}, testObject(t, "params"))
	got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90a"), CompileBody: compileBody(t, "sm_90")})
	if err != nil || len(got.Kernels) != 1 || got.Kernels[0].Sites() != 3 || len(got.Kernels[0].Notes) > 0 {
		t.Fatalf("%+v, unprobed %v, %v", got.Kernels, got.Unprobed, err)
	}
	was, err1 := fatbin.NewCubinEditor(image, nil)
	is, err2 := fatbin.NewCubinEditor(got.Image, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	before, err1 := was.Code("moves")
	after, err2 := is.Code("moves")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	// Behind a load that was moved the program waits for it, behind a store is the jump back.
	plain := func(w sass.Word) sass.Word { return w.WithControl(sass.Control{}) }
	words, n, found := sass.Words(after.Code), len(before.Code)/sass.WordSize, 0
	for _, w := range sass.Words(before.Code) {
		in, _ := sass.Decode(90, w)
		if _, ok := in.Access(); !ok {
			continue
		}
		for i := n; i < len(words)-1; i++ {
			if plain(words[i]) != plain(w) {
				continue
			}
			found++
			next, _ := sass.Decode(90, words[i+1])
			want := "BRA"
			if in.Loads() {
				want = "NOP"
				if c := words[i].Control(); c.WriteBar == sass.NoBar || words[i+1].Control().Wait>>c.WriteBar&1 == 0 {
					t.Errorf("+%#x: %s, %s is not waited for", i*sass.WordSize, in.String(), c)
				}
			}
			if next.Name() != want {
				t.Errorf("+%#x: %s, and then %s", i*sass.WordSize, in.String(), next.String())
			}
		}
	}
	if found != 3 {
		t.Errorf("%d accesses were moved, want 3", found)
	}
}

// TestIsOpcode: opcodes of machine code are chosen by their names, with modifiers or without.
func TestIsOpcode(t *testing.T) {
	in, ok := sass.Decode(90, sass.Word{Lo: 0x0000000402007981, Hi: 0x000ea8000c1e1b00})
	if !ok || in.FullName() != "LDG.E.64" {
		t.Fatalf("%s, %t", in.FullName(), ok)
	}
	for glob, want := range map[string]bool{
		"*": true, "LDG": true, "LD*": true, "LDG.*": true, "LDG.E.64": true, "*.64": true,
		"LDS": false, "LDG.E": false, "*.128": false, "ld.global.*": false,
	} {
		if p := (object.Point{Kind: object.KindInsn, Opcode: glob}); isOpcode(&p, &in) != want {
			t.Errorf("%s is %s: %t", glob, in.FullName(), !want)
		}
	}
}
