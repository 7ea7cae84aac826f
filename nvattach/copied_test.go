package nvattach

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/emu"
)

// copies has asynchronous copies of all forms. The last 16 bytes of the memory are at %d2, and behind them
// is nothing.
const copies = `.version 8.0
.target sm_80
.address_size 64
.visible .entry copies(.param .u64 buf)
{
	.reg .pred %p<3>;
	.reg .b16 %h<2>;
	.reg .b32 %r<5>;
	.reg .b64 %d<5>;
	.shared .align 16 .b8 row[64];
	ld.param.u64 %d1, [buf];
	add.s64 %d2, %d1, 16;
	mov.u64 %d3, 0;
	mov.u32 %r1, row;
	mov.u32 %r2, 3;
	mov.u32 %r3, 13;
	setp.eq.u32 %p1, %r2, 3;
	setp.ne.u32 %p2, %r2, 3;
	createpolicy.fractional.L2::evict_last.b64 %d4, 1.0;
	cp.async.ca.shared.global [%r1], [%d1], 4;
	cp.async.ca.shared.global [%r1+8], [%d1+8], 8;
	cp.async.cg.shared.global [row], [%d2], 16;
	cp.async.cg.shared.global.L2::cache_hint [%r1], [%d2], 16, %d4;
	cp.async.ca.shared.global [%r1], [%d2], 4, %r2;
	cp.async.ca.shared.global [%r1], [%d2], 8, 7;
	cp.async.cg.shared.global [%r1], [%d1], 16, %r3;
	cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %r3, %d4;
	cp.async.cg.shared.global [%r1], [%d3], 16, 0;
	cp.async.ca.shared.global [%r1], [%d3], 8, %p1;
	cp.async.ca.shared.global [%r1], [%d1], 8, %p2;
	@%p2 cp.async.ca.shared.global [%r1], [%d3], 4;
	@!%p2 cp.async.ca.shared.global [%r1], [%d1+4], 4;
	cp.async.wait_all;
	ret;
}
`

// halves are the first bytes of 16 that begin with low and high, as programs see them.
func halves(n int, low, high uint64) (lo, hi uint64) {
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, low), high)
	clear(b[n:])
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
}

// TestCopied: of an asynchronous copy programs see what it copies, and read nothing else.
func TestCopied(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
	reg, err := r.machine.Alloc(32, "buf")
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range []uint64{firstHalf, secondHalf, secondHalf, firstHalf} {
		binary.LittleEndian.PutUint64(reg.Data[8*i:], v)
	}
	text := r.weave(copies).Text
	r.launch(text, "copies", emu.Dim3{X: 1}, emu.Dim3{X: 1}, binary.LittleEndian.AppendUint64(nil, reg.Base))
	var want [][]uint64
	for _, c := range []struct {
		size, n   int
		low, high uint64
	}{
		{4, 4, firstHalf, 0},
		{8, 8, secondHalf, 0},
		{16, 16, secondHalf, firstHalf},
		{16, 16, secondHalf, firstHalf},
		{4, 3, secondHalf, 0},
		{8, 7, secondHalf, 0},
		{16, 13, firstHalf, secondHalf},
		{16, 13, firstHalf, secondHalf},
		{16, 0, 0, 0},
		{8, 0, 0, 0},
		{8, 8, firstHalf, 0},
		{4, 4, firstHalf >> 32, 0},
	} {
		lo, hi := halves(c.n, c.low, c.high)
		access := []uint64{lo, hi, uint64(c.size)}
		want = append(want, access, access) // of shared memory and of global memory
	}
	if got := r.records("accesses"); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got  %#x\nwant %#x", got, want)
	}
	assemble(t, text, "sm_90")
}

// rowsOf has ldmatrix of a number of matrices.
const rowsOf = `.version 8.0
.target sm_80
.address_size 64
.visible .entry rows(.param .u64 buf)
{
	.reg .b32 %%r<6>;
	.reg .b64 %%d<4>;
	.shared .align 16 .b8 row[512];
	mov.u32 %%r5, %%tid.x;
	shl.b32 %%r5, %%r5, 4;
	ldmatrix.sync.aligned.m8n8.%s.shared.b16 {%s}, [%s];
	ret;
}
`

// TestCopiedRows: of ldmatrix, threads whose address it uses see the row there. The address of others
// may be any.
func TestCopiedRows(t *testing.T) {
	for _, tt := range []struct {
		num, regs, addr string
		rows            int
	}{
		{"x1", "%r1", "%r5", 8},
		{"x2", "%r5, %r1", "%r5", 16}, // which overwrites the address
		{"x4", "%r1, %r2, %r3, %r4", "%r5", 32},
	} {
		r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
		src := fmt.Sprintf(rowsOf, tt.num, tt.regs, tt.addr)
		// A row has its number, and that and 100; threads beyond have an address far off.
		fill := "	mov.u32 %r1, row;\n	add.u32 %r1, %r1, %r5;\n	mov.u32 %r2, %tid.x;\n	cvt.u64.u32 %d1, %r2;\n	add.u64 %d2, %d1, 100;\n	st.shared.v2.u64 [%r1], {%d1, %d2};\n	bar.sync 0;\n" +
			fmt.Sprintf("	mov.u32 %%r5, %%r1;\n	.reg .pred %%q;\n	setp.ge.u32 %%q, %%r2, %d;\n	@%%q mov.u32 %%r5, 0x7ffffff0;\n", tt.rows)
		src = strings.Replace(src, "	ldmatrix", fill+"	ldmatrix", 1)
		text := r.weave(src).Text
		r.launch(text, "rows", emu.Dim3{X: 1}, emu.Dim3{X: 32}, make([]byte, 8))
		got := r.records("accesses")
		if len(got) != 64 {
			t.Fatalf("%s: %d accesses", tt.num, len(got))
		}
		var want [][]uint64
		for i := range uint64(32) {
			if i < uint64(tt.rows) {
				want = append(want, []uint64{i, 100 + i, 16})
			} else {
				want = append(want, []uint64{0, 0, 16})
			}
		}
		loads := got[32:] // behind the stores
		slices.SortFunc(loads, slices.Compare)
		slices.SortFunc(want, slices.Compare)
		if !slices.EqualFunc(loads, want, slices.Equal) {
			t.Errorf("%s: got %d\nwant %d", tt.num, loads, want)
		}
		assemble(t, text, "sm_90")
	}
}

// TestCopiedBody: in machine code a program of its own for copies loads the value.
func TestCopiedBody(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
	b, err := r.plan.bodyText(r.plan.Programs[0], r.maps, fatbin.Arch{SM: 90}, nil, "", bodyForm{guarded: true, copies: true})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := r.machine.Alloc(16, "buf")
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(reg.Data, firstHalf)
	binary.LittleEndian.PutUint64(reg.Data[8:], secondHalf)
	var want [][]uint64
	for size := 4; size <= 16; size *= 2 {
		for n := range size + 1 {
			// The source ends where the memory does.
			from := 16 - size
			var kernel strings.Builder
			kernel.WriteString(b.Text + ".visible .entry k()\n{\n")
			var args []string
			for i, p := range b.Params {
				var v uint64
				bits := 32
				switch p.What {
				case proof.BodyAddr:
					v, bits = reg.Base+uint64(from), 64
				case proof.BodyCopied:
					v = uint64(n)
				case proof.BodySize:
					v = uint64(size)
				case proof.BodyActive:
					v = 1
				default:
					t.Fatalf("parameter %+v", p)
				}
				fmt.Fprintf(&kernel, "\t.param .b%d a%d;\n\tst.param.b%d [a%d], %d;\n", bits, i, bits, i, v)
				args = append(args, fmt.Sprintf("a%d", i))
			}
			fmt.Fprintf(&kernel, "\tcall %s, (%s);\n\tret;\n}\n", BodyName, strings.Join(args, ", "))
			r.launch(kernel.String(), "k", emu.Dim3{X: 1}, emu.Dim3{X: 1}, nil)
			low, high := uint64(firstHalf), uint64(secondHalf)
			switch size {
			case 8:
				low = secondHalf
			case 4:
				low = secondHalf >> 32
			}
			lo, hi := halves(n, low, high)
			want = append(want, []uint64{lo, hi, uint64(size)})
		}
	}
	if got := r.records("accesses"); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got  %#x\nwant %#x", got, want)
	}
}

// atomicUses have their values used.
const atomicUses = `.version 8.0
.target sm_75
.address_size 64
.visible .entry atomics(.param .u64 buf)
{
	.reg .b32 %r<6>;
	.reg .b64 %d<4>;
	.shared .align 16 .b8 row[64];
	ld.param.u64 %d1, [buf];
	mov.u32 %r1, row;
	mov.u32 %r3, %tid.x;
	atom.global.add.u32 %r2, [%d1], %r3;
	atom.global.cas.b32 %r4, [%d1+4], %r3, %r2;
	atom.shared.add.u32 %r5, [%r1], %r3;
	atom.global.exch.b64 %d2, [%d1+16], %d1;
	red.global.add.u32 [%d1+32], %r5;
	st.global.u32 [%d1+64], %r2;
	st.global.u32 [%d1+68], %r4;
	st.global.u32 [%d1+72], %r5;
	st.global.u64 [%d1+80], %d2;
	ret;
}
`

// TestRowsBody: in machine code a program of its own for ldmatrix loads the row.
func TestRowsBody(t *testing.T) {
	for _, rows := range []int{0, 8, 16, 32} {
		r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
		b, err := r.plan.bodyText(r.plan.Programs[0], r.maps, fatbin.Arch{SM: 90}, nil, "", bodyForm{rows: true})
		if err != nil {
			t.Fatal(err)
		}
		var kernel strings.Builder
		kernel.WriteString(b.Text + ".visible .entry k()\n{\n\t.reg .b32 %r<4>;\n\t.reg .b64 %d<4>;\n\t.reg .pred %q;\n\t.shared .align 16 .b8 row[512];\n" +
			"\tmov.u32 %r1, %tid.x;\n\tshl.b32 %r2, %r1, 4;\n\tmov.u32 %r3, row;\n\tadd.u32 %r2, %r2, %r3;\n" +
			"\tcvt.u64.u32 %d1, %r1;\n\tadd.u64 %d2, %d1, 100;\n\tst.shared.v2.u64 [%r2], {%d1, %d2};\n" +
			fmt.Sprintf("\tsetp.ge.u32 %%q, %%r1, %d;\n\t@%%q mov.u32 %%r2, 0x7ffffff0;\n\tcvt.u64.u32 %%d3, %%r2;\n", rows))
		var args []string
		for i, p := range b.Params {
			v, bits := "16", 32
			switch p.What {
			case proof.BodyAddr:
				v, bits = "%d3", 64
			case proof.BodyCopied:
				v = fmt.Sprint(rows)
			case proof.BodySize:
			default:
				t.Fatalf("parameter %+v", p)
			}
			fmt.Fprintf(&kernel, "\t.param .b%d a%d;\n\tst.param.b%d [a%d], %s;\n", bits, i, bits, i, v)
			args = append(args, fmt.Sprintf("a%d", i))
		}
		fmt.Fprintf(&kernel, "\tcall %s, (%s);\n\tret;\n}\n", BodyName, strings.Join(args, ", "))
		r.launch(kernel.String(), "k", emu.Dim3{X: 1}, emu.Dim3{X: 32}, nil)
		var want [][]uint64
		for i := range uint64(32) {
			if i < uint64(rows) {
				want = append(want, []uint64{i, 100 + i, 16})
			} else {
				want = append(want, []uint64{0, 0, 16})
			}
		}
		got := r.records("accesses")
		slices.SortFunc(got, slices.Compare)
		slices.SortFunc(want, slices.Compare)
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d rows: got  %d\nwant %d", rows, got, want)
		}
	}
}

// TestMachineRows: ldmatrix in machine code gets programs that load its rows, before it.
func TestMachineRows(t *testing.T) {
	for _, sm := range []string{"sm_90", "sm_100", "sm_120"} {
		src := fmt.Sprintf(rowsOf, "x4", "%r1, %r2, %r3, %r4", "%r5")
		src = strings.Replace(src, "	ret;", "	ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r2, %r3}, [%r5+32];\n	ld.param.u64 %d1, [buf];\n	st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};\n	ret;", 1)
		image, err := compiler(t, sm)(src)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, &PlanOptions{Programs: []string{"on_access"}}, testObject(t, "params"))
		forms := map[bool]int{}
		compile := compileBody(t, sm)
		got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, sm), CompileBody: func(text string) ([]byte, error) {
			forms[strings.Contains(text, "ld.shared.u64")]++
			return compile(text)
		}})
		if err != nil || len(got.Kernels) != 1 || len(got.Kernels[0].Notes) > 0 {
			t.Fatalf("%s: %+v, unprobed %v, %v", sm, got.Kernels, got.Unprobed, err)
		}
		// The store has a program of the common form.
		if n := got.Kernels[0].Sites(); n != 3 || forms[true] == 0 || forms[false] == 0 {
			t.Errorf("%s: %d places, programs that load rows, or not: %v", sm, n, forms)
		}
	}
}

// TestMachineAtomics: programs learn the values that atomic operations gave, and use such
// operations themselves, on all architectures.
func TestMachineAtomics(t *testing.T) {
	for _, sm := range []string{"sm_75", "sm_80", "sm_86", "sm_88", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"} {
		image, err := compiler(t, sm)(atomicUses)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
		got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, sm), CompileBody: compileBody(t, sm)})
		if err != nil || len(got.Kernels) != 1 || len(got.Kernels[0].Notes) > 0 {
			t.Errorf("%s: %+v, unprobed %v, %v", sm, got.Kernels, got.Unprobed, err)
			continue
		}
		if n := got.Kernels[0].Sites(); n < 9 {
			t.Errorf("%s: %d places", sm, n)
		}
	}
}

// fewCopies leaves programs enough registers.
const fewCopies = `.version 8.0
.target sm_80
.address_size 64
.visible .entry copies(.param .u64 buf)
{
	.reg .pred %p<3>;
	.reg .b32 %r<5>;
	.reg .b64 %d<5>;
	.shared .align 16 .b8 row[64];
	ld.param.u64 %d1, [buf];
	mov.u32 %r1, row;
	mov.u32 %r3, %tid.x;
	setp.eq.u32 %p1, %r3, 3;
	setp.gt.u32 %p2, %r3, 2;
	cp.async.ca.shared.global [%r1], [%d1], 4;
	cp.async.cg.shared.global [%r1], [%d1], 16, %r3;
	@%p2 cp.async.ca.shared.global [%r1], [%d1+8], 8, %p1;
	cp.async.wait_all;
	ret;
}
`

// TestMachineCopies: copies in machine code get programs of their own, before them.
func TestMachineCopies(t *testing.T) {
	for _, sm := range []string{"sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"} {
		image, err := compiler(t, sm)(fewCopies)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, &PlanOptions{Programs: []string{"on_access"}}, testObject(t, "params"))
		forms := map[bool]int{}
		compile := compileBody(t, sm)
		got, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, sm), CompileBody: func(text string) ([]byte, error) {
			forms[strings.Contains(text, "ld.global.cg")]++
			return compile(text)
		}})
		if err != nil || len(got.Kernels) != 1 || len(got.Kernels[0].Notes) > 0 {
			t.Fatalf("%s: %+v, unprobed %v, %v", sm, got.Kernels, got.Unprobed, err)
		}
		if n := got.Kernels[0].Sites(); n != 3 || forms[true] == 0 || forms[false] > 0 {
			t.Errorf("%s: %d places, programs that load, or not: %v", sm, n, forms)
		}
		a, err := sass.ParseArch(sm)
		if err != nil {
			t.Fatal(err)
		}
		c, err := fatbin.ParseCubin(image)
		if err != nil {
			t.Fatal(err)
		}
		var sizes []int
		k := kernelNamed(t, c, "copies")
		for _, w := range sass.Words(image[c.Sections[k.Section].Offset+k.Offset:][:k.Size]) {
			if in, ok := sass.Decode(a, w); ok && in.Copies() {
				access, _ := in.Access()
				sizes = append(sizes, access.Size)
			}
		}
		if !slices.Equal(sizes, []int{4, 16, 8}) {
			t.Errorf("%s: copies of %v bytes", sm, sizes)
		}
	}
}
