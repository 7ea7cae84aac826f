package nvattach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/emu"
)

// sumObject has a program of a section that, once n has put a number into R1, adds it to 8 bytes of entry 2
// of an array.
func sumObject(tb testing.TB, section string, n asm.Instructions, more ...asm.Instruction) *object.Object {
	tb.Helper()
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), asm.StoreImm(asm.RFP, -4, 2, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
	}
	insns = append(append(append(insns, n...), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord)), more...)
	insns = append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: section, Instructions: insns}},
		Maps:     map[string]*ebpf.MapSpec{"m": {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 4}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func one() asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R1, 1)} }

// fieldOf loads a field of the context into R1.
func fieldOf(tb testing.TB, kind object.Kind, name string) asm.Instructions {
	tb.Helper()
	c, _ := proof.ContextOf(kind, 0)
	for _, f := range c.Fields {
		if f.Name == name {
			return asm.Instructions{asm.LoadMem(asm.R1, asm.R6, int16(f.Offset), map[int]asm.Size{4: asm.Word, 8: asm.DWord}[f.Size])}
		}
	}
	tb.Fatalf("no field %s", name)
	return nil
}

// TestKnownSums: which programs do nothing but add what is known where they are put.
func TestKnownSums(t *testing.T) {
	const mem, block = "cuda.mem/*", "cuda.block/*"
	for _, tt := range []struct {
		name string
		objs []*object.Object
		want string
	}{
		{"a count", []*object.Object{sumObject(t, mem, one())}, "[0 false 1]"},
		{"a number less than 0", []*object.Object{sumObject(t, mem, asm.Instructions{asm.Mov.Imm(asm.R1, -3)})}, "[0 false -3]"},
		{"a number of 64 bits", []*object.Object{sumObject(t, mem, asm.Instructions{asm.LoadImm(asm.R1, 1<<40, asm.DWord)})}, "[]"},
		{"instructions of a block", []*object.Object{sumObject(t, block, fieldOf(t, object.KindBlock, "insns"))}, fmt.Sprintf("[%d true 0]", proof.BodyCount)},
		{"bytes", []*object.Object{sumObject(t, mem, fieldOf(t, object.KindMem, "size"))}, fmt.Sprintf("[%d true 0]", proof.BodySize)},
		{"two things", []*object.Object{sumObject(t, mem, one(), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord))}, "[0 false 1 0 false 1]"},
		{"an address", []*object.Object{sumObject(t, mem, fieldOf(t, object.KindMem, "addr"))}, "[]"},
		{"the place's number", []*object.Object{sumObject(t, mem, fieldOf(t, object.KindMem, "site"))}, "[]"},
		{"twice the bytes", []*object.Object{sumObject(t, mem, append(fieldOf(t, object.KindMem, "size"), asm.LSh.Imm(asm.R1, 1)))}, "[]"},
		{"where a condition holds", []*object.Object{sumObject(t, mem, append(fieldOf(t, object.KindMem, "size"), asm.JGT.Imm(asm.R1, 4, "end")))}, "[]"},
		{"it is read", []*object.Object{sumObject(t, mem, one(), asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord), asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord))}, "[]"},
		{"what was there is read", []*object.Object{sumObject(t, mem, one(), asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord))}, "[]"},
		{"where kernels begin", []*object.Object{sumObject(t, "cuda.entry/*", one())}, "[]"},
	} {
		plan, err := NewPlan(tt.objs, nil)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		maps, err := plan.NewMaps(&mapmem.MapOptions{SMs: 4})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(sumsOf(plan.Programs[0], maps)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	// A program that reads the map makes it one that all multiprocessors share.
	o := sumObject(t, mem, one())
	reader := sumObject(t, "cuda.entry/*", one(), asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord)).Programs[0]
	reader.Name = "reader"
	o.Programs = append(o.Programs, reader)
	plan, maps := placedPlan(t, o)
	if list := sumsOf(plan.Programs[0], maps); list != nil {
		t.Errorf("another program reads the map: %v", list)
	}
}

// TestSumBodies: what threads add for others adds up, whoever is there, also where the assembler could take
// the threads' own numbers for the same.
func TestSumBodies(t *testing.T) {
	const threads = 45
	for _, size := range []asm.Size{asm.DWord, asm.Word} {
		o := sumObject(t, "cuda.mem/*", one())
		for i := range o.Programs[0].Insns {
			if in := &o.Programs[0].Insns[i]; in.OpCode.Class() == asm.StXClass && in.OpCode.Mode() == asm.AtomicMode {
				in.OpCode = in.OpCode.SetSize(size)
			}
		}
		r := newRig(t, nil, o)
		q := r.plan.Programs[0]
		entry := func(b *Body, args string) string {
			return b.Text + ".visible .entry k()\n{\n\t.reg .b32 %t, %h, %n;\n\tmov.u32 %t, %tid.x;\n" + args + "\tret;\n}\n"
		}
		for _, tt := range []struct {
			name string
			form bodyForm
			args string
			want uint64
		}{
			{"alike", bodyForm{sum: sumHere}, "\tmov.u32 %n, 7;\n\tcall nvtrace_probe, (%n);\n", 7 * threads},
			{"less than 0", bodyForm{sum: sumHere}, "\tmov.u32 %n, -7;\n\tcall nvtrace_probe, (%n);\n", -7 * threads & (1<<64 - 1)},
			{"of active threads", bodyForm{sum: sumHere, guarded: true}, "\tmov.u32 %n, 7;\n\tand.b32 %h, %t, 1;\n\tcall nvtrace_probe, (%h, %n);\n", 7 * (threads / 2)},
			{"at the end", bodyForm{sum: sumEnd}, "\tcall nvtrace_probe;\n", 0},
		} {
			b, err := r.plan.bodyText(q, r.maps, fatbin.Arch{SM: 90}, nil, "", tt.form)
			if err != nil {
				t.Fatal(err)
			}
			for _, sm := range []uint32{75, 80, 90, 100, 120} {
				b, err := r.plan.bodyText(q, r.maps, fatbin.Arch{SM: sm}, nil, "", tt.form)
				if err != nil {
					t.Fatal(err)
				}
				image, err := compileBody(t, fatbin.Arch{SM: sm}.String())(b.Text)
				if err != nil {
					t.Fatal(err)
				}
				_, err = sass.BodyFromCubin(image, BodyName)
				if sm < 90 && tt.form.sum == sumEnd {
					if !errors.Is(err, sass.ErrBody) { // threads that match are a call there
						t.Errorf("sm_%d: %v", sm, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: sm_%d: %v", tt.name, sm, err)
				}
				votes := 0
				for _, in := range functionOf(t, image, sm) {
					if strings.HasPrefix(in.Name(), "VOTE") {
						votes++
					}
				}
				if tt.form.sum == sumEnd && size == asm.DWord && votes != 1 { // of 32 bits it adds up what differs
					t.Errorf("sm_%d: the assembler adds for several threads: %d votes", sm, votes)
				}
			}
			want := tt.want
			if tt.form.sum == sumEnd {
				// The variables of a thread: bits of its number, above and below.
				b.Text = strings.ReplaceAll(b.Text, fmt.Sprintf("[%#x]", sass.VariableAddress(0)), "own0")
				b.Text = strings.ReplaceAll(b.Text, fmt.Sprintf("[%#x]", sass.VariableAddress(1)), "own1")
				var lines []string
				for line := range strings.SplitSeq(b.Text, "\n") {
					if to, ok := strings.CutPrefix(strings.TrimSpace(line), "ld.local.u32 "); ok {
						to, own, _ := strings.Cut(to, ", ")
						line = fmt.Sprintf("\tmov.u32 %s, %%tid.x;\n\tand.b32 %s, %s, %d;", to, to, to, map[string]int{"own0;": 5, "own1;": 3}[own])
					}
					lines = append(lines, line)
				}
				b.Text = strings.Join(lines, "\n")
				for tid := range uint64(threads) {
					want += tid&5 + (tid&3)<<32
				}
			}
			if size == asm.Word {
				want &= 1<<32 - 1
			}
			for i := range r.maps.SMs {
				x := r.maps.All[0]
				if err := r.machine.WriteMem(x.Base+uint64(i)*x.CopyBytes, make([]byte, 64)); err != nil {
					t.Fatal(err)
				}
			}
			r.launch(entry(b, tt.args), "k", emu.Dim3{X: 1}, emu.Dim3{X: threads}, nil)
			if got := binary.LittleEndian.Uint64(r.table("m").Rows[2].Value); got != want {
				t.Errorf("%s, %s: %#x, want %#x\n%s", size, tt.name, got, want, b.Text)
			}
		}
	}
}

// summed is a kernel with two loads beside each other, one more if a condition holds, two stores that this
// holds for, with its last change between them, and a loop around one of both; and one that calls a
// function which is elsewhere, so that none of its registers are free everywhere.
const summed = `.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 $str[3] = {104, 105, 0};
.visible .entry own(.param .u64 p, .param .u32 n)
{
	.reg .b64 %p;
	.reg .b32 %r<6>;
	.reg .pred %q, %w;
	ld.param.u64 %p, [p];
	ld.param.u32 %r4, [n];
	setp.eq.u32 %w, %r4, 77;
	@%w exit;
$again:
	.pragma "nounroll";
	ld.volatile.global.u32 %r1, [%p];
	ld.volatile.global.u32 %r2, [%p+4];
	setp.gt.u32 %q, %r1, %r2;
	mov.u32 %r3, 0;
	@%q ld.volatile.global.u32 %r3, [%p+8];
	@%q st.volatile.global.u32 [%p+12], %r2;
	setp.gt.u32 %q, %r3, %r2;
	@%q st.volatile.global.u32 [%p+16], %r3;
	st.volatile.global.u32 [%p+20], %r3;
	sub.u32 %r4, %r4, 1;
	setp.ne.u32 %w, %r4, 0;
	@%w bra $again;
	ret;
}
.visible .entry shared(.param .u64 p)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd2, [p];
	ld.volatile.global.u32 %r1, [%rd2];
	ld.volatile.global.u32 %r2, [%rd2+4];
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
`

// TestMachineSums: a program that counts is one instruction at a place that stands for several; where the
// kernel has no registers, it counts for its warp there.
func TestMachineSums(t *testing.T) {
	image, err := compiler(t, "sm_90")(summed)
	if err != nil {
		t.Fatal(err)
	}
	weave := func(o *object.Object) (*Rewritten, []Site) {
		plan, maps := placedPlan(t, o)
		r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: arch(t, "sm_90a"), CompileBody: compileBody(t, "sm_90")})
		if err != nil || len(r.Unprobed) > 0 {
			t.Fatal(err, r.Unprobed)
		}
		return r, plan.Sites()
	}
	got, sites := weave(sumObject(t, "cuda.mem/*", one()))
	_, want := weave(sumObject(t, "cuda.mem/*", one(), asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord), asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord)))
	if !slices.Equal(sites, want) {
		t.Errorf("places\n%v\nof a program that does more\n%v", sites, want)
	}
	for _, tt := range []struct {
		kernel string
		adds   []string // what is added at once, and under which guard
		reds   int
		ends   int
	}{
		{"own", []string{"3", "2 guarded", "1 guarded"}, 1, 2},
		{"shared", nil, 1, 0},
	} {
		was, is := codeOf(t, image, tt.kernel), codeOf(t, got.Image, tt.kernel)
		var adds []string
		reds, ends, match := 0, 0, -1
		for i, in := range is[len(was):] {
			switch name := in.FullName(); {
			case name == "MATCH.ANY.U64":
				match = i + len(was)
			case isAddition(in):
				add := fmt.Sprint(in.Word.Bits(32, 32))
				if _, _, guarded := in.Guard(); guarded {
					add += " guarded"
				}
				adds = append(adds, add)
			case in.Name() == "REDG":
				reds++
			}
		}
		slices.Sort(adds)
		slices.Sort(tt.adds)
		if !slices.Equal(adds, tt.adds) {
			t.Errorf("%s: additions of %q, want %q", tt.kernel, adds, tt.adds)
		}
		for i, in := range was {
			if in.Name() != "EXIT" || is[i].Name() != "BRA" {
				continue
			}
			if to := i + 1 + int(is[i].Flow().Target)/sass.WordSize; to < match && match-to < 16 {
				ends++
			}
		}
		if reds != tt.reds || ends != tt.ends {
			t.Errorf("%s: %d additions to the map, want %d; %d exits lead to one, want %d", tt.kernel, reds, tt.reds, ends, tt.ends)
		}
	}
}

// isAddition reports whether an instruction adds to a thread's sum.
func isAddition(in sass.Inst) bool {
	return in.FullName() == "IMAD.WIDE" && in.Word.Bits(16, 8) == in.Word.Bits(64, 8)
}

// codeOf returns a kernel's instructions.
func codeOf(tb testing.TB, image []byte, kernel string) (list []sass.Inst) {
	tb.Helper()
	editor, err := fatbin.NewCubinEditor(image, nil)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := editor.Code(kernel)
	if err != nil {
		tb.Fatal(err)
	}
	return wordsOf(90, c.Code)
}

// TestSumsKept: code that was kept for one number does not serve for another, although their bodies
// are the same.
func TestSumsKept(t *testing.T) {
	var parts []string
	for _, n := range []int32{1, 2} {
		plan, maps := placedPlan(t, sumObject(t, "cuda.mem/*", asm.Instructions{asm.Mov.Imm(asm.R1, n)}))
		r := &rewriting{p: plan, maps: maps, o: &RewriteOptions{Store: make(memoryStore), Places: func(text string) (string, string, bool) { return text, text, true }}}
		parts = append(parts, fmt.Sprintf("%q", r.storeParts(nil, []string{"k"}, fatbin.Arch{SM: 90})))
	}
	if parts[0] == parts[1] {
		t.Errorf("both have %s", parts[0])
	}
}

// TestAlike: the same threads come to blocks that nothing but each other is between.
func TestAlike(t *testing.T) {
	word := func(w sass.Word, ok bool) sass.Word {
		if !ok {
			t.Fatal("does not fit")
		}
		return w
	}
	exit := sass.Word{Lo: 0x794d, Hi: 0x000fea0003800000}
	w, err := sass.NewWeaver(&sass.Func{Arch: 90, Code: []sass.Word{
		sass.NOP(), word(sass.BSSY(90, 0, 3*sass.WordSize)), // block 0
		sass.NOP(), word(sass.BRA(90, sass.WordSize)).Guarded(0, false), // 1
		sass.NOP(),                         // 2
		sass.BSYNC(90, 0),                  // 3
		sass.NOP(), exit.Guarded(0, false), // 4
		sass.NOP(), word(sass.BRA(90, 0)), exit, // 5, 6
	}}, &sass.KernelFacts{Registers: 24})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{weaver: w}
	for _, tt := range []struct {
		from, to int
		want     bool
	}{{-1, 0, false}, {0, 0, true}, {0, 1, true}, {1, 2, false}, {2, 3, false}, {3, 4, true}, {4, 5, false}, {0, 3, false}, {1, 0, false}} {
		if got := m.alike(tt.from, tt.to); got != tt.want {
			t.Errorf("blocks %d and %d: %t, want %t", tt.from, tt.to, got, tt.want)
		}
	}
}

// TestSumOfBlock: what is added for a block stands at any of its instructions: threads come to all of them, and
// some begin with one at which nothing can be.
func TestSumOfBlock(t *testing.T) {
	const text = `.version 8.0
.target sm_90
.address_size 64
.visible .entry parted(.param .u64 p)
{
	.reg .b64 %p, %d;
	.reg .b32 %r<3>;
	.reg .pred %q;
	ld.param.u64 %p, [p];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %d, %r1, 4;
	add.u64 %p, %p, %d;
	setp.gt.u32 %q, %r1, 5;
	@%q bra $meet;
$again:
	.pragma "nounroll";
	ld.volatile.global.u32 %r2, [%p+4];
	st.volatile.global.u32 [%p], %r2;
	setp.gt.u32 %q, %r2, 5;
	@%q bra $again;
$meet:
	st.volatile.global.u32 [%p+28], %r1;
	bar.sync 0;
	st.volatile.global.u32 [%p+32], %r1;
	ret;
}
`
	image, err := compiler(t, "sm_90")(text)
	if err != nil {
		t.Fatal(err)
	}
	plan, maps := placedPlan(t, sumObject(t, "cuda.block/*", fieldOf(t, object.KindBlock, "insns")))
	r, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90}, CompileBody: compileBody(t, "sm_90")})
	if err != nil || len(r.Kernels) != 1 || len(r.Unprobed) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := r.Kernels[0].Notes; len(n) > 0 {
		t.Errorf("not at all blocks: %q", n)
	}
	first := false
	for _, s := range plan.Sites() {
		first = first || s.Text == "BSYNC" || s.Text == "WARPSYNC"
	}
	if !first {
		t.Errorf("no block begins with what no program can be at: %+v", plan.Sites())
	}
	editor, err := fatbin.NewCubinEditor(image, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := editor.Code("parted")
	if err != nil {
		t.Fatal(err)
	}
	a, err := sass.Analyze(&sass.Func{Arch: 90, Code: sass.Words(c.Code)})
	if err != nil {
		t.Fatal(err)
	}
	insns, added := 0, 0
	for i, b := range a.Blocks {
		if i == 0 || slices.ContainsFunc(b.Pred, func(p int) bool { return p < i }) {
			insns += b.End - b.Start
		}
	}
	for _, in := range codeOf(t, r.Image, "parted") {
		if isAddition(in) {
			added += int(in.Word.Bits(32, 32))
		}
	}
	if added != insns {
		t.Errorf("%d instructions are counted, of %d", added, insns)
	}
}
