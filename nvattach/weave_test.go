package nvattach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/nvattach/values"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// vectorAdd adds 1,000 numbers; threads beyond leave early.
const vectorAdd = `.version 8.0
.target sm_90
.address_size 64
.file 1 "add.cu"

.visible .entry _Z9vectorAddPKfS0_Pf(
	.param .u64 a,
	.param .u64 b,
	.param .u64 c
)
{
	.reg .pred %p<2>;
	.reg .f32 %f<4>;
	.reg .b32 %r<5>;
	.reg .b64 %rd<11>;
	.loc 1 10 2
	ld.param.u64 %rd1, [a];
	ld.param.u64 %rd2, [b];
	ld.param.u64 %rd3, [c];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	setp.ge.u32 %p1, %r4, 1000;
	@%p1 ret;
	cvta.to.global.u64 %rd4, %rd1;
	mul.wide.u32 %rd5, %r4, 4;
	add.s64 %rd6, %rd4, %rd5;
	cvta.to.global.u64 %rd7, %rd2;
	add.s64 %rd8, %rd7, %rd5;
	.loc 1 12 3
	ld.global.f32 %f1, [%rd6];
	ld.global.f32 %f2, [%rd8];
	add.f32 %f3, %f1, %f2;
	cvta.to.global.u64 %rd9, %rd3;
	add.s64 %rd10, %rd9, %rd5;
	.loc 1 13 1
	st.global.f32 [%rd10], %f3;
	ret;
}
`

// busy has a loop, a barrier, shared memory, an atomic operation, a device
// function and three ways out, one of them in the function.
const busy = `.version 7.8
.target sm_80
.address_size 64

.func (.param .b32 out) twice(.param .b32 in)
{
	.reg .pred %p;
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [in];
	setp.eq.u32 %p, %r1, 77;
	@%p exit;
	add.u32 %r2, %r1, %r1;
	st.param.b32 [out], %r2;
	ret;
}

.visible .entry busy(.param .u64 buf, .param .u32 rounds)
{
	.reg .pred %p<6>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<6>;
	.shared .align 4 .b8 tile[512];
	ld.param.u64 %rd1, [buf];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, tile;
	shl.b32 %r4, %r2, 2;
	add.u32 %r5, %r3, %r4;
	st.shared.u32 [%r5], %r2;
	bar.sync 0;
	xor.b32 %r6, %r4, 4;
	add.u32 %r6, %r6, %r3;
	ld.shared.u32 %r7, [%r6+0];
	mov.u32 %r8, 0;
	setp.eq.u32 %p1, %r2, 5;
	@%p1 exit;
LOOP:
	setp.ge.u32 %p2, %r8, %r1;
	@%p2 bra DONE;
	{
		.param .b32 p0;
		.param .b32 r0;
		st.param.b32 [p0], %r7;
		call.uni (r0), twice, (p0);
		ld.param.b32 %r7, [r0];
	}
	add.u32 %r8, %r8, 1;
	bra LOOP;
DONE:
	cvta.to.global.u64 %rd2, %rd1;
	cvt.u64.u32 %rd3, %r4;
	add.s64 %rd4, %rd2, %rd3;
	atom.global.add.u32 %r9, [%rd4], %r7;
	ret;
}
`

// A rig is a plan with its maps on a machine.
type rig struct {
	*gpu
	plan      *Plan
	unchecked bool // results may be others
}

func newRig(tb testing.TB, po *PlanOptions, objs ...*object.Object) *rig {
	tb.Helper()
	plan, err := NewPlan(objs, po)
	if err != nil {
		tb.Fatal(err)
	}
	r := &rig{gpu: &gpu{tb: tb, machine: newMachine(), assembled: map[string]bool{}}, plan: plan}
	maps, err := plan.NewMaps(&mapmem.MapOptions{SMs: r.machine.Device().SMs, Threads: 4096, RingBytes: 8 << 20, PrintBytes: 1 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	r.use(maps)
	return r
}

func (r *rig) weave(src string) *Woven {
	r.tb.Helper()
	f, err := ptx.Parse("app.ptx", src, nil)
	if err != nil {
		r.tb.Fatal(err)
	}
	w, err := r.plan.Weave(f, r.maps, nil)
	if err != nil {
		r.tb.Fatal(err)
	}
	if err := checkWoven(src, w.Text); err != nil {
		r.tb.Fatalf("%v\n%s", err, w.Text)
	}
	return w
}

// checkWoven finds what of a woven text is no PTX, or not allowed by the module's
// version and target where the module itself was.
func checkWoven(src, woven string) error {
	before, err := ptx.Parse("app.ptx", src, nil)
	if err != nil {
		return err
	}
	after, err := ptx.Parse("woven.ptx", woven, nil)
	if err != nil {
		return err
	}
	if found := after.CheckFeatures(); len(found) > len(before.CheckFeatures()) {
		return found[len(found)-1]
	}
	return nil
}

// runAdd launches vectorAdd and checks its result.
func (r *rig) runAdd(src string, grid, block uint32) {
	r.tb.Helper()
	mem := make([]byte, 3*4096)
	for i := range 1024 {
		binary.LittleEndian.PutUint32(mem[4*i:], math.Float32bits(float32(i)))
		binary.LittleEndian.PutUint32(mem[4096+4*i:], math.Float32bits(float32(2*i)))
	}
	reg, err := r.machine.Alloc(uint64(len(mem)), "vectors")
	if err != nil {
		r.tb.Fatal(err)
	}
	copy(reg.Data, mem)
	params := binary.LittleEndian.AppendUint64(nil, reg.Base)
	params = binary.LittleEndian.AppendUint64(params, reg.Base+4096)
	params = binary.LittleEndian.AppendUint64(params, reg.Base+8192)
	r.launch(src, "_Z9vectorAddPKfS0_Pf", emu.Dim3{X: grid}, emu.Dim3{X: block}, params)
	for i := range min(1000, int(grid*block)) {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(reg.Data[8192+4*i:])); v != float32(3*i) && !r.unchecked {
			r.tb.Fatalf("element %d: %g, want %d", i, v, 3*i)
		}
	}
}

// runBusy launches busy and returns its buffer.
func (r *rig) runBusy(src string) []byte {
	r.tb.Helper()
	reg, err := r.machine.Alloc(512, "buf")
	if err != nil {
		r.tb.Fatal(err)
	}
	params := binary.LittleEndian.AppendUint64(nil, reg.Base)
	params = binary.LittleEndian.AppendUint32(params, 3)
	r.launch(src, "busy", emu.Dim3{X: 2}, emu.Dim3{X: 100}, params)
	return slices.Clone(reg.Data)
}

// value returns a number of an array's entry.
func (r *rig) value(name string, index int) uint64 {
	r.tb.Helper()
	tab := r.table(name)
	if index >= len(tab.Rows) {
		r.tb.Fatalf("map %s has %d entries", name, len(tab.Rows))
	}
	return tab.Rows[index].Total()
}

// variable returns a global variable's number, or that of an element.
func (r *rig) variable(name string, index int) uint64 {
	r.tb.Helper()
	for _, o := range r.plan.Objects {
		for i := range o.Vars {
			v := &o.Vars[i]
			if v.Name != name {
				continue
			}
			b, err := r.maps.Lookup(r.machine, r.maps.Of(v.Map), mapmem.IndexKey(0))
			if err != nil {
				r.tb.Fatal(err)
			}
			size := min(v.Size, 8)
			return values.Unsigned(b[v.Offset+uint32(index)*size:][:size])
		}
	}
	r.tb.Fatalf("no variable %s", name)
	return 0
}

func TestEntryAndExitCounts(t *testing.T) {
	for _, tt := range []struct{ grid, block uint32 }{{4, 256}, {1, 1}, {7, 33}, {32, 32}} {
		r := newRig(t, nil, testObject(t, "example_count"))
		w := r.weave(vectorAdd)
		if n := w.Kernels[0].Sites(); len(w.Kernels) != 1 || n != 3 {
			t.Fatalf("%d places, want an entry and two exits", n)
		}
		r.runAdd(w.Text, tt.grid, tt.block)
		want := uint64(tt.grid * tt.block)
		if in, out := r.value("threads", 0), r.value("threads", 1); in != want || out != want {
			t.Errorf("%d blocks of %d: %d in, %d out, want %d", tt.grid, tt.block, in, out, want)
		}
		if !r.maps.Find("threads").Striped() {
			t.Error("a map that is only added to has no copies")
		}
		for _, text := range []string{".local", "call", ".version 8.0\n.target sm_90\n"} {
			if strings.Contains(w.Text, text) != (text[1] == 'v') {
				t.Errorf("the text has or lacks %q:\n%s", text, w.Text)
			}
		}
	}
}

func TestBusyKernel(t *testing.T) {
	plain := newRig(t, nil, testObject(t, "example_count")).runBusy(busy)
	for _, objs := range [][]string{{"example_count"}, {"example_count", "example_count"}, {"example_count", "example_memory", "example_blocks", "params", "example_duration", "example_trace"}} {
		var list []*object.Object
		for _, n := range objs {
			list = append(list, testObject(t, n))
		}
		r := newRig(t, nil, list...)
		w := r.weave(busy)
		if got := r.runBusy(w.Text); !slices.Equal(got, plain) {
			t.Errorf("%v: another result", objs)
		}
		for i := range objs {
			name := "threads"
			if i == 1 && objs[1] == objs[0] {
				name = "example_count:threads#2"
			} else if i > 0 {
				continue
			}
			if in, out := r.value(name, 0), r.value(name, 1); in != 200 || out != 200 {
				t.Errorf("%v: %s: %d in, %d out, want 200", objs, name, in, out)
			}
		}
		for _, q := range r.plan.Programs {
			if n, err := r.plan.endedEarly(r.maps, r.machine, q); n != 0 || err != nil {
				t.Errorf("%s was ended %d times, %v", q.Name, n, err)
			}
		}
	}
}

func TestThreadHistogramShape(t *testing.T) {
	r := newRig(t, nil, testObject(t, "bpftime"))
	w := r.weave(vectorAdd)
	const launches = 3
	for range launches {
		r.runAdd(w.Text, 5, 250)
	}
	tab := r.table("per_thread")
	if len(tab.Rows[1].Each) != 1250 || len(tab.Rows[0].Each) != 0 {
		t.Fatalf("%d threads, want 1250", len(tab.Rows[1].Each))
	}
	for _, p := range tab.Rows[1].Each {
		if binary.LittleEndian.Uint64(p.Value) != launches {
			t.Fatalf("thread %d: %d, want %d", p.Index, binary.LittleEndian.Uint64(p.Value), launches)
		}
	}
	// Each thread below 1,000 reads twice and writes once.
	if ld, st := r.value("shared", 0), r.value("shared", 1); ld != 2000*launches || st != 1000*launches {
		t.Errorf("memcapture: %d loads, %d stores", ld, st)
	}
	if n := r.value("mapped", 0); n != 1250*launches {
		t.Errorf("mapped: %d", n)
	}
	if n := r.value("host_shared", 9); n != 5*25*launches {
		t.Errorf("host_shared[9]: %d", n)
	}
	pid := r.table("by_pid")
	if len(pid.Rows) != 1 || binary.LittleEndian.Uint32(pid.Rows[0].Key) != 4711 || binary.LittleEndian.Uint64(pid.Rows[0].Value) != 1250*launches {
		t.Errorf("by_pid: %v", pid.Rows)
	}
	if rows := r.table("gpu_hash").Rows; len(rows) != 64 {
		t.Errorf("gpu_hash: %d entries", len(rows))
	}
	var blocks []uint64
	if err := r.maps.NewReader(r.maps.Find("events")).Drain(r.machine, true, func(rec mapmem.Record) { blocks = append(blocks, binary.LittleEndian.Uint64(rec.Data)) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(blocks)
	if want := []uint64{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}; !slices.Equal(blocks, want) {
		t.Errorf("events of blocks %v", blocks)
	}
	lines := 0
	if err := r.maps.NewPrinter(r.plan.Formats).Drain(r.machine, true, func(_ int, s string) {
		if !strings.HasPrefix(s, "block ") || !strings.HasSuffix(s, "\n") {
			t.Errorf("printed %q", s)
		}
		lines++
	}); err != nil || lines != 15 {
		t.Errorf("%d lines, %v", lines, err)
	}
}

// TestBesideHostMaps: an object may have maps of types that GPUs can't have, if its programs in kernels don't use them.
func TestBesideHostMaps(t *testing.T) {
	r := newRig(t, nil, testObject(t, "beside"))
	r.runAdd(r.weave(vectorAdd).Text, 1, 64)
	if loads, stores := r.value("accesses", 1), r.value("accesses", 2); loads != 128 || stores != 64 {
		t.Errorf("%d loads, %d stores; want 128, 64", loads, stores)
	}
}

func TestParametersValuesFunctions(t *testing.T) {
	r := newRig(t, nil, testObject(t, "params"))
	w := r.weave(vectorAdd)
	r.runAdd(w.Text, 1, 64)
	if n := r.variable("nparams", 0); n != 3 {
		t.Errorf("%d parameters", n)
	}
	if a, b := r.variable("params", 0), r.variable("params", 1); b != a+4096 || a == 0 {
		t.Errorf("parameters %#x %#x", a, b)
	}
	if v := int64(r.variable("params", 7)); v != helper.EINVAL {
		t.Errorf("parameter 99: %d", v)
	}
	if n := r.value("per_sm", 0); n != 64 {
		t.Errorf("per_sm: %d", n)
	}
	if tab := r.table("per_sm_hash"); len(tab.Rows) != 32 || tab.Rows[0].Total() != 2 {
		t.Errorf("per_sm_hash: %d rows", len(tab.Rows))
	}
	type access struct {
		addr, value uint64
		size, line  uint32
	}
	var got []access
	if err := r.maps.NewReader(r.maps.Find("accesses")).Drain(r.machine, true, func(rec mapmem.Record) {
		got = append(got, access{binary.LittleEndian.Uint64(rec.Data), binary.LittleEndian.Uint64(rec.Data[8:]), binary.LittleEndian.Uint32(rec.Data[16:]), binary.LittleEndian.Uint32(rec.Data[20:])})
	}); err != nil {
		t.Fatal(err)
	}
	a := r.variable("params", 0)
	f := func(v float32) uint64 { return uint64(math.Float32bits(v)) }
	if want := []access{{a + 4, f(1), 4, 12}, {a + 4100, f(2), 4, 12}, {a + 8196, f(3), 4, 13}}; !slices.Equal(got, want) {
		t.Errorf("accesses %#v, want %#v", got, want)
	}
	r2 := newRig(t, nil, testObject(t, "params"))
	r2.runBusy(r2.weave(busy).Text)
	// 196 threads call three times, two end in their first call.
	if n := r2.variable("calls", 0); n != 196*3+2 {
		t.Errorf("%d calls", n)
	}
}

func TestBlocksAndInstructions(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_blocks"))
	r.runAdd(r.weave(vectorAdd).Text, 4, 256)
	if n := r.variable("global_loads", 0); n != 2000 {
		t.Errorf("%d loads", n)
	}
	// 9 instructions up to the early way out, 12 behind it.
	if n := r.variable("instructions", 0); n != 9*1024+12*1000 {
		t.Errorf("%d instructions, want %d", n, 9*1024+12*1000)
	}
	if a, b := r.value("block_runs", 0), r.value("block_runs", 1); a != 1024 || b != 1000 {
		t.Errorf("blocks ran %d and %d times", a, b)
	}
}

func TestMemoryExample(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_memory"))
	r.runBusy(r.weave(busy).Text)
	got := map[[2]uint32][2]uint64{}
	for _, row := range r.table("accesses").Rows {
		got[[2]uint32{binary.LittleEndian.Uint32(row.Key), binary.LittleEndian.Uint32(row.Key[4:])}] = [2]uint64{binary.LittleEndian.Uint64(row.Value), binary.LittleEndian.Uint64(row.Value[8:])}
	}
	want := map[[2]uint32][2]uint64{
		{proof.AccessStore, proof.SpaceShared}: {200, 800}, {proof.AccessLoad, proof.SpaceShared}: {200, 800}, {proof.AccessAtomic, proof.SpaceGlobal}: {196, 784},
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%v: %v, want %v", k, got[k], v)
		}
	}
	if n := r.value("size_hist", 2); n != 596 {
		t.Errorf("%d accesses of 4 bytes", n)
	}
}

func TestDurationAndTrace(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_duration"), testObject(t, "example_trace"))
	r.runAdd(r.weave(vectorAdd).Text, 4, 256)
	sum := uint64(0)
	for i := range 64 {
		sum += r.value("cycles_hist", i)
	}
	if sum != 1024 {
		t.Errorf("the histogram has %d threads", sum)
	}
	warps := 0
	if err := r.maps.NewReader(r.maps.Find("events")).Drain(r.machine, true, func(rec mapmem.Record) {
		if s := string(rec.Data[36:47]); s != "warp starts" {
			t.Errorf("record %q", s)
		}
		warps++
	}); err != nil || warps != 32 {
		t.Errorf("%d warps, %v", warps, err)
	}
	lines := 0
	if err := r.maps.NewPrinter(r.plan.Formats).Drain(r.machine, true, func(int, string) { lines++ }); err != nil || lines != 4 {
		t.Errorf("%d lines, %v", lines, err)
	}
}

func TestExitHelper(t *testing.T) {
	_, err := NewPlan([]*object.Object{testObject(t, "leave")}, nil)
	if err == nil || !strings.Contains(err.Error(), "--allow-exit") || !strings.Contains(err.Error(), "leave.bpf.c") && !strings.Contains(err.Error(), "cuda_exit") {
		t.Errorf("helper 507: %v", err)
	}
	r := newRig(t, &PlanOptions{AllowExit: true}, testObject(t, "leave"), testObject(t, "example_count"))
	w := r.weave(vectorAdd)
	reg, err := r.machine.Alloc(3*4096, "vectors")
	if err != nil {
		t.Fatal(err)
	}
	params := binary.LittleEndian.AppendUint64(nil, reg.Base)
	params = binary.LittleEndian.AppendUint64(params, reg.Base+4096)
	params = binary.LittleEndian.AppendUint64(params, reg.Base+8192)
	r.launch(w.Text, "_Z9vectorAddPKfS0_Pf", emu.Dim3{X: 1}, emu.Dim3{X: 100}, params)
	// Programs run in the objects' order, so half of the threads are gone before.
	if in, out := r.value("threads", 0), r.value("threads", 1); in != 50 || out != 50 {
		t.Errorf("%d in, %d out, want 50", in, out)
	}
}

func TestRunModule(t *testing.T) {
	r := newRig(t, nil, testObject(t, "bpftime"))
	apply(t, r.maps, r.machine, "vec[0..9]=7", "vec[10]=3")
	for _, q := range r.plan.Programs {
		if q.Point.Kind != object.KindRun {
			continue
		}
		text, kernel, err := r.plan.runModule(q, r.maps, ptx.Version{Major: 7, Minor: 8}, ptx.Target{SM: 90})
		if err != nil {
			t.Fatal(err)
		}
		r.launch(text, kernel, emu.Dim3{X: 2}, emu.Dim3{X: 8}, nil)
	}
	if a, b, c := r.value("vec", 9), r.value("vec", 10), r.value("vec", 11); a != 49 || b != 9 || c != 0 {
		t.Errorf("%d %d %d", a, b, c)
	}
}

func TestPlanSelects(t *testing.T) {
	if _, err := NewPlan([]*object.Object{testObject(t, "bpftime")}, &PlanOptions{Programs: []string{"nothing"}}); !errors.Is(err, ErrNoProgram) || !strings.Contains(err.Error(), "cuda__square") {
		t.Errorf("%v", err)
	}
	p, err := NewPlan([]*object.Object{testObject(t, "bpftime")}, &PlanOptions{Programs: []string{"*threads"}, Kernels: []string{"vectorAdd"}})
	if err != nil || len(p.Programs) != 1 {
		t.Fatal(p, err)
	}
	if !p.Wants("_Z9vectorAddPKfS0_Pf", false) || p.Wants("_Z9vectorMulPKfS0_Pf", false) {
		t.Error("Wants")
	}
	p, err = NewPlan([]*object.Object{testObject(t, "example_count")}, &PlanOptions{Kernels: []string{"x*"}})
	if err != nil || p.Wants("busy", false) || !p.Wants("xbusy", false) {
		t.Error("Wants with kernels", err)
	}
}

// TestResources shows what ptxas says of woven kernels; how much more than the
// kernel alone is bounded.
func TestResources(t *testing.T) {
	plain := registers(t, assemble(t, vectorAdd, "sm_90"))
	if plain == 0 {
		t.Skip("no ptxas")
	}
	for _, tt := range []struct {
		testObject string
		programs   []string
		most       int // more registers
	}{
		{"example_count", nil, 8},
		{"bpftime", []string{"cuda__threads"}, 12},
		{"bpftime", []string{"cuda__accesses"}, 12},
		{"example_duration", nil, 20},
		{"example_blocks", nil, 12},
		{"example_memory", nil, 36},
		{"example_trace", nil, 32},
		{"params", nil, 48},
	} {
		r := newRig(t, &PlanOptions{Programs: tt.programs}, testObject(t, tt.testObject))
		out := assemble(t, r.weave(vectorAdd).Text, "sm_90")
		n := registers(t, out)
		t.Logf("%s %v: %d registers, %d without", tt.testObject, tt.programs, n, plain)
		if n > plain+tt.most {
			t.Errorf("%s %v: %d registers, %d without", tt.testObject, tt.programs, n, plain)
		}
		if !strings.Contains(out, " 0 bytes stack frame, 0 bytes spill stores") {
			t.Errorf("%s %v: local memory: %s", tt.testObject, tt.programs, out)
		}
	}
}

// registers returns the number in "Used N registers".
func registers(tb testing.TB, out string) int {
	tb.Helper()
	_, rest, ok := strings.Cut(out, "Used ")
	if !ok {
		return 0
	}
	n := 0
	if _, err := fmt.Sscan(rest, &n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// TestNotes: what programs don't see is said.
func TestNotes(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_memory"))
	w := r.weave(busy)
	want := "kernel busy\n  mem        on_access                3 places\n  note: what function twice does, which it calls, is not seen; a section cuda.mem/func:twice sees it\n"
	if got := w.report(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	sites := r.plan.Sites()
	if len(sites) != 3 || sites[0].Kernel != "busy" || sites[0].Text != "st.shared.u32 [%r5], %r2;" || sites[2].Insn == 0 {
		t.Errorf("%+v", sites)
	}
	shared := strings.Replace(busy, ".visible .entry busy", `.visible .entry other(.param .u32 x)
{
	.reg .b32 %r1;
	ld.param.u32 %r1, [x];
	{
		.param .b32 p0;
		.param .b32 r0;
		st.param.b32 [p0], %r1;
		call.uni (r0), twice, (p0);
	}
	ret;
}
.visible .entry busy`, 1)
	// Both kernels are counted, so the function is; with one of them it can't be.
	r = newRig(t, nil, testObject(t, "example_count"))
	w = r.weave(shared)
	if r.runBusy(w.Text); r.value("threads", 0) != 200 || r.value("threads", 1) != 200 {
		t.Errorf("%d in, %d out", r.value("threads", 0), r.value("threads", 1))
	}
	r = newRig(t, &PlanOptions{Kernels: []string{"busy"}}, testObject(t, "example_count"))
	if got := r.weave(shared).report(); !strings.Contains(got, "threads that end in function twice, which others call too, are not seen") {
		t.Error(got)
	}
}

// endedEarly returns how many runs of a program were ended by its tests, all together.
func (p *Plan) endedEarly(maps *mapmem.Maps, mem mapmem.Memory, q *proof.Program) (uint64, error) {
	list, err := p.Ended(maps, mem, q)
	sum := uint64(0)
	for i := range list {
		sum += list[i].Runs
	}
	return sum, err
}

// report lists what Weave did, for goldens.
func (w *Woven) report() string {
	var b strings.Builder
	for i := range w.Kernels {
		k := &w.Kernels[i]
		what := "kernel"
		if k.Func {
			what = "function"
		}
		fmt.Fprintf(&b, "%s %s\n", what, k.Name)
		if d := fatbin.Demangle(k.Name); d != k.Name {
			fmt.Fprintf(&b, "  %s\n", d)
		}
		for _, p := range k.Programs {
			fmt.Fprintf(&b, "  %-10s %-24s %d places\n", p.Kind, p.Program, p.Sites)
		}
		for _, n := range k.Notes {
			fmt.Fprintf(&b, "  note: %s\n", n)
		}
	}
	return b.String()
}
