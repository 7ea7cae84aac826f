package nvattach

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
)

func testObject(tb testing.TB, name string) *object.Object {
	tb.Helper()
	o, err := object.Open(filepath.Join("testdata", "obj", name+".bpf.o"))
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func TestParsePoint(t *testing.T) {
	for _, tt := range []struct {
		section, program string
		want             object.Point
		err              string
	}{
		{section: "cuda.entry/*", want: object.Point{Kind: object.KindEntry, Kernel: "*"}},
		{section: "cuda.exit/vectorAdd", want: object.Point{Kind: object.KindExit, Kernel: "vectorAdd"}},
		{section: "cuda.mem/func:f*", want: object.Point{Kind: object.KindMem, Kernel: "f*", Func: true}},
		{section: "cuda.block/ns::k(int)", want: object.Point{Kind: object.KindBlock, Kernel: "ns::k(int)"}},
		{section: "cuda.insn/ns::k:ld.shared::cta.*", want: object.Point{Kind: object.KindInsn, Kernel: "ns::k", Opcode: "ld.shared::cta.*"}},
		{section: "cuda.insn/func:a::b:*", want: object.Point{Kind: object.KindInsn, Kernel: "a::b", Func: true, Opcode: "*"}},
		{section: "cuda.insn/k", err: "the opcode is missing"},
		{section: "cuda.insn/k:", err: "the opcode is empty"},
		{section: "cuda.entry/", err: "a kernel is missing"},
		{section: "cuda.entry", err: "a kernel is missing"},
		{section: "cuda.exti/k", err: "nothing is called cuda.exti"},
		{section: "kprobe/_Z1kv", program: "cuda__a", want: object.Point{Kind: object.KindEntry, Kernel: "_Z1kv", Exact: true}},
		{section: "kretprobe/cuda__Z1kv", program: "cuda__a", want: object.Point{Kind: object.KindExit, Kernel: "_Z1kv", Exact: true}},
		{section: "kprobe/__memcapture", program: "cuda__a", want: object.Point{Kind: object.KindCapture}},
		{section: "kprobe/__directly_run", program: "cuda__a", want: object.Point{Kind: object.KindRun}},
		{section: "kprobe/k+8", program: "cuda__a", err: "offset"},
		{section: "kprobe/", program: "cuda__a", err: "a kernel is missing"},
		{section: "kprobe/do_exit", program: "on_exit", want: object.Point{}},
		{section: "uprobe/./a:b", program: "cuda__a", want: object.Point{}},
		{section: ".text", program: "f", want: object.Point{}},
	} {
		p, err := object.ParsePoint(tt.section, tt.program)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: error %v, want one with %q", tt.section, err, tt.err)
			}
		case err != nil || p != tt.want:
			t.Errorf("%s of %s: %+v, %v; want %+v", tt.section, tt.program, p, err, tt.want)
		}
	}
}

func TestPointMatches(t *testing.T) {
	const add = "_Z9vectorAddPKfS0_Pf"
	for _, tt := range []struct {
		section string
		name    string
		fn      bool
		want    bool
	}{
		{"cuda.entry/*", add, false, true},
		{"cuda.entry/*", add, true, false},
		{"cuda.entry/func:*", add, true, true},
		{"cuda.entry/vectorAdd", add, false, true},
		{"cuda.entry/vectorAdd(float const*, *", add, false, true},
		{"cuda.entry/vectorMul", add, false, false},
		{"cuda.entry/_Z9vectorAdd*", add, false, true},
		{"cuda.entry/vector", add, false, false},
		{"cuda.exit/k?", "k1", false, true},
		{"cuda.exit/k?", "k", false, false},
	} {
		p, err := object.ParsePoint(tt.section, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Matches(tt.name, tt.fn); got != tt.want {
			t.Errorf("%s and %s (function: %v): %v", tt.section, tt.name, tt.fn, got)
		}
	}
	p, err := object.ParsePoint("kprobe/_Z*", "cuda__x")
	if err != nil || p.Matches("_Zabc", false) || !p.Matches("_Z*", false) {
		t.Errorf("bpftime's sections have no globs: %+v, %v", p, err)
	}
}

func TestLoadObject(t *testing.T) {
	o := testObject(t, "bpftime")
	var progs, maps, ignored []string
	for _, p := range o.Programs {
		progs = append(progs, p.Name+" "+p.Point.String())
	}
	for _, m := range o.Maps {
		maps = append(maps, m.Name+" "+m.Type.String())
	}
	for _, i := range o.Ignored {
		ignored = append(ignored, i.Name+": "+i.Reason)
	}
	wantProgs := []string{
		"cuda__accesses kprobe/__memcapture",
		"cuda__counts cuda.entry/_Z9vectorAddPKfS0_Pf",
		"cuda__events cuda.entry/_Z9vectorAddPKfS0_Pf",
		"cuda__square kprobe/__directly_run",
		"cuda__threads cuda.exit/_Z9vectorAddPKfS0_Pf",
	}
	if !slices.Equal(progs, wantProgs) {
		t.Errorf("programs %q", progs)
	}
	wantMaps := []string{
		"by_pid hash", "events gpu_ringbuf", "gpu_hash gpu_hash", "host_shared gpu_array_host", "host_thread gpu_thread_array_host",
		"mapped gpu_kernel_shared_array", "per_thread gpu_thread_array", "shared gpu_array", "vec gpu_array",
	}
	if got := slices.DeleteFunc(maps, func(s string) bool { return strings.HasPrefix(s, ".rodata") }); !slices.Equal(got, wantMaps) {
		t.Errorf("maps %q", maps)
	}
	if len(ignored) != 1 || !strings.HasPrefix(ignored[0], "no_gpu_program: a program for the kernel") || !strings.HasSuffix(ignored[0], "--at PROGRAM=FILE:FUNCTION has it run at a function") {
		t.Errorf("ignored %q", ignored)
	}
	if len(o.Host) != 1 || o.Host[0].Name != "on_launch" || o.Host[0].Point.String() != "uprobe/./app:cudaLaunchKernel" {
		t.Errorf("on the host: %v", o.Host)
	}
	if o.Program("cuda__events") == nil || o.Program("x") != nil || o.Map("events").MaxEntries != 16 || o.Map("x") != nil {
		t.Error("lookups by name")
	}
}

func TestBadObjects(t *testing.T) {
	good, err := os.ReadFile("testdata/obj/example_count.bpf.o")
	if err != nil {
		t.Fatal(err)
	}
	machine := slices.Clone(good)
	machine[18], machine[19] = 62, 0 // EM_X86_64
	withoutBTF := bytes.ReplaceAll(good, []byte(".BTF"), []byte(".BXF"))
	big := slices.Clone(good)
	big[5] = 2 // big-endian
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "no ELF file"},
		{"text", []byte("hello, world, this is no object"), "no ELF file"},
		{"header only", good[:64], "beyond the file's 64 bytes: truncated?"},
		{"half", good[:len(good)/2], "truncated?"},
		{"without types", withoutBTF, "build it with clang -g"},
		{"a program for the host", machine, "made for"},
		{"big-endian", big, ""},
	} {
		_, err := object.Load(tt.name, tt.data)
		if !errors.Is(err, object.ErrObject) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), tt.name+": ") || strings.Contains(err.Error(), object.ErrObject.Error()) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := object.Open(t.TempDir()); !errors.Is(err, object.ErrObject) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := object.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// fuzzWeave weaves what was found safe into kernels and checks that the text is PTX.
func fuzzWeave(t *testing.T, p *Plan) {
	m, err := p.NewMaps(&mapmem.MapOptions{SMs: 2, Threads: 16, RingBytes: 1 << 12, PrintBytes: 1 << 12, MaxBytes: 1 << 22})
	if err != nil {
		return
	}
	if err := m.Place(1 << 20); err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{vectorAdd, busy} {
		f, err := ptx.Parse("fuzz.ptx", src, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Weave(f, m, nil)
		if err == nil {
			_, err = ptx.Parse("woven.ptx", w.Text, nil)
		}
		if err != nil && strings.Contains(err.Error(), "BUG") {
			t.Fatal(err)
		}
	}
}

// FuzzObject: an object is refused in one line or can be laid out and planned;
// nothing panics, and memory is bounded by limits.
func FuzzObject(f *testing.F) {
	files, err := filepath.Glob("testdata/obj/*.bpf.o")
	if err != nil || len(files) == 0 {
		f.Fatal("no objects", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := object.Load("fuzz", data)
		if err != nil {
			if !errors.Is(err, object.ErrObject) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if p, err := NewPlan([]*object.Object{o}, nil); err == nil {
			fuzzWeave(t, p)
		}
		m, err := mapmem.NewMaps([]*object.Object{o}, &mapmem.MapOptions{SMs: 2, Threads: 16, RingBytes: 1 << 12, PrintBytes: 1 << 12, MaxBytes: 1 << 22})
		if err != nil {
			return
		}
		buf := &mapmem.Buffer{Base: 1 << 20, Data: make([]byte, m.Size())}
		if err := m.Place(buf.Base); err != nil {
			t.Fatal(err)
		}
		if err := m.Init(buf, 1, 0); err != nil {
			t.Fatal(err)
		}
		for _, x := range m.All {
			tab, err := m.Read(buf, x)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := tab.Print(&out, nil); err != nil {
				t.Fatal(err)
			}
			tab.AppendJSON(nil, nil)
		}
	})
}

func TestList(t *testing.T) {
	var b strings.Builder
	if err := testObject(t, "example_trace").List(&b); err != nil {
		t.Fatal(err)
	}
	want := "testdata/obj/example_trace.bpf.o\n" +
		"  program  on_entry                 cuda.entry/*, "
	if !strings.HasPrefix(b.String(), want) || !strings.Contains(b.String(), "  map      events                   ringbuf\n") || !strings.Contains(b.String(), "  variable print                    .rodata: 1\n") {
		t.Error(b.String())
	}
	b.Reset()
	o := testObject(t, "expand")
	if err := o.List(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\n  program  chains                   runs by tail calls\n") || strings.Contains(b.String(), "ignored") || o.TailCalled("on_step") {
		t.Error(b.String())
	}
	if testObject(t, "host").TailCalled("no_target") {
		t.Error("no array has it")
	}
}

// TestParsePointPlaceless: a section that names no place in a kernel is not taken for a
// host program's.
func TestParsePointPlaceless(t *testing.T) {
	_, err := object.ParsePoint("cuda/vadd", "p")
	if err == nil || !strings.Contains(err.Error(), "the place in the kernel is missing; write cuda.entry/vadd") {
		t.Errorf("%v", err)
	}
}
