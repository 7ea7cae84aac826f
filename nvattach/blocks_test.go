package nvattach

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"nvtrace/fatbin"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// dirty has a kernel's blocks begin with shared memory that is not zero, as on a GPU, where it is what
// others have left.
func dirty(tb testing.TB, text string, size int) string {
	tb.Helper()
	head, body, ok := strings.Cut(text, "\n{\n\t{\n")
	if !ok {
		tb.Fatalf("the kernel does not begin with its block's maps:\n%s", text)
	}
	return head + fmt.Sprintf(`
{
	{
	.reg .pred %%done;
	.reg .b32 %%to, %%at, %%step, %%dirt;
	mov.u32 %%to, _nvtblock;
	mov.u32 %%at, %%tid.x;
	mov.u32 %%step, %%ntid.x;
	mov.u32 %%dirt, 0xa5;
$more:
	setp.ge.u32 %%done, %%at, %d;
	@%%done bra $all;
	add.u32 %%to, %%to, %%at;
	st.shared.u8 [%%to], %%dirt;
	sub.u32 %%to, %%to, %%at;
	add.u32 %%at, %%at, %%step;
	bra $more;
$all:
	bar.sync 0;
	}
	{
`, size) + body
}

// TestBlocks: each block has maps of its own, which begin with zeros and in which nothing is lost; its
// last thread finds in them what all others have left.
func TestBlocks(t *testing.T) {
	const recent, old = ".version 8.0\n.target sm_90", ".version 5.0\n.target sm_60"
	for _, tt := range []struct {
		target          string
		blocks, threads uint32
	}{{recent, 60, 70}, {recent, 3, 1}, {recent, 2, 1024}, {old, 20, 65}} {
		t.Run(tt.target, func(t *testing.T) {
			r := newRig(t, nil, testObject(t, "blocks"))
			w := r.weave(strings.Replace(vectorAdd, ".version 8.0\n.target sm_90", tt.target, 1))
			if k := w.Kernels[0]; !k.Blocks || len(w.Unprobed) > 0 {
				t.Errorf("%+v, %v", k, w.Unprobed)
			}
			r.runAdd(dirty(t, w.Text, 1024), tt.blocks, tt.threads)
			elsewhere := uint64(0)
			for b := range tt.blocks {
				want := map[int]uint64{0: uint64(tt.threads), 1: uint64(tt.threads), 2: uint64(tt.threads) - 1, 3: uint64(100 + b), 4: uint64(10*b + 7)}
				refused := uint64(0)
				if b%5 >= 3 {
					want[4], refused = 1, 2
				}
				for th := range tt.threads {
					switch part := th % 17; {
					case b*tt.threads+th >= 1000:
					case part == 16:
						elsewhere += 3
					default:
						want[6] += 3
						want[7+int(part)] += 3
					}
				}
				v, err := r.maps.Lookup(r.machine, r.maps.Find("blocks"), mapmem.IndexKey(uint64(b)))
				if err != nil {
					t.Fatal(err)
				}
				for i := range 7 + 16 {
					got := binary.LittleEndian.Uint64(v[8*i:])
					if i == 5 {
						got, want[5] = got&^1, refused // whether it was the one that got the lock
					}
					if got != want[i] {
						t.Errorf("block %d: member %d is %d, want %d", b, i, got, want[i])
					}
				}
				lowest, narrow, bytes := binary.LittleEndian.Uint32(v[8*23:]), binary.LittleEndian.Uint32(v[8*23+4:]), binary.LittleEndian.Uint32(v[8*23+8:])
				if even, odd := (tt.threads+1)/2, tt.threads/2; lowest != 0 || narrow != 3*tt.threads || bytes != even&0xff|odd&0xff<<8 {
					t.Errorf("block %d: lowest %d, narrow %d, bytes %#x", b, lowest, narrow, bytes)
				}
			}
			if v, err := r.maps.Lookup(r.machine, r.maps.Find("all"), mapmem.IndexKey(0)); err != nil || binary.LittleEndian.Uint64(v) != elsewhere {
				t.Errorf("all: %v, %v, want %d", v, err, elsewhere)
			}
			if r.maps.Find("parts") != nil || slices.ContainsFunc(r.maps.All, func(x *mapmem.Map) bool { return x.Def.PerBlock() }) {
				t.Error("a map of blocks can be read")
			}
		})
	}
}

// TestBlocksBeside: a kernel's own shared memory and barriers, and threads that end in a function,
// are as they were, and one after the other blocks find zeros.
func TestBlocksBeside(t *testing.T) {
	r := newRig(t, nil, testObject(t, "blocks"))
	want := r.runBusy(busy)
	if got := r.runBusy(r.weave(busy).Text); !slices.Equal(got, want) {
		t.Error("the kernel computes something else")
	}
	for b := range uint64(2) {
		v, err := r.maps.Lookup(r.machine, r.maps.Find("blocks"), mapmem.IndexKey(b))
		if err != nil {
			t.Fatal(err)
		}
		// 95 threads have a part; of these all make three accesses, but for two that end after two.
		if in, out, n := binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:]), binary.LittleEndian.Uint64(v[48:]); in != 100 || out != 100 || n != 95*3-2 {
			t.Errorf("block %d: %d in, %d out, %d accesses", b, in, out, n)
		}
	}
	r = newRig(t, nil, testObject(t, "blockwide"))
	text := dirty(t, r.weave(vectorAdd).Text, 8192)
	for range 2 {
		r.runAdd(text, 500, 24)
	}
	for i, want := range []uint64{2 * 500 * 24, 0} {
		if v, err := r.maps.Lookup(r.machine, r.maps.Find("seen"), mapmem.IndexKey(uint64(i))); err != nil || binary.LittleEndian.Uint64(v) != want {
			t.Errorf("%d: %v, %v, want %d", i, v, err, want)
		}
	}
}

// TestBlocksRefused: what can't have maps of blocks is refused, with the reason, and what is beside it
// is not.
func TestBlocksRefused(t *testing.T) {
	module := busy + strings.Replace(vectorAdd[strings.Index(vectorAdd, ".visible"):], "_Z9vectorAddPKfS0_Pf", "other", 1)
	module = strings.ReplaceAll(module, "\t.loc", "\t//")
	for _, tt := range []struct {
		name, old, new string
		refused        bool
	}{
		{"as much as there is", "tile[512]", "tile[48128]", false},
		{"more", "tile[512]", "tile[48132]", true},
		{"of another type", ".b8 tile[512]", ".b64 tile[3][2006]", true},
		{"dynamic", ".shared .align 4 .b8 tile[512];", ".extern .shared .align 4 .b8 tile[];", false},
		{"a function's", ".reg .b32 %r<3>;", ".reg .b32 %r<3>;\n\t.shared .b32 more[12001];\n\tmov.u32 %r2, more;", true},
		{"the module's", ".address_size 64\n", ".address_size 64\n.shared .align 8 .b8 many[48000], none[48000];\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil, testObject(t, "blocks"))
			src := strings.Replace(module, tt.old, tt.new, 1)
			if tt.name == "dynamic" { // where it may stand
				src = strings.Replace(strings.Replace(src, tt.new, "", 1), ".address_size 64\n", ".address_size 64\n"+tt.new+"\n", 1)
			}
			w := r.weave(src)
			assemble(t, w.Text, "sm_90")
			if refused := len(w.Unprobed) == 1; refused != tt.refused || len(w.Kernels) != 2-len(w.Unprobed) {
				t.Fatalf("%+v, %v", w.Kernels, w.Unprobed)
			}
			if tt.refused && (w.Unprobed[0].Kernel != "busy" || !strings.Contains(w.Unprobed[0].Reason, "and maps of type block_array 1024 more: 49152 is the most")) {
				t.Errorf("%+v", w.Unprobed)
			}
		})
	}
	program := func(section string, entries uint32) error {
		insns := asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.BuiltinFunc(helper.MapLookup).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}
		o, err := object.New("test", &ebpf.CollectionSpec{
			Programs: map[string]*ebpf.ProgramSpec{"cuda__p": {SectionName: section, Instructions: insns}},
			Maps: map[string]*ebpf.MapSpec{
				"m": {Type: ebpf.MapType(object.MapBlockArray), KeySize: 4, ValueSize: 8, MaxEntries: entries},
				"n": {Type: ebpf.MapType(object.MapBlockArray), KeySize: 4, ValueSize: 1, MaxEntries: 1},
			},
		})
		if err == nil {
			_, err = NewPlan([]*object.Object{o}, nil)
		}
		return err
	}
	for _, tt := range []struct {
		section string
		entries uint32
		want    string
	}{
		{"cuda.entry/*", 1023, ""},
		{"cuda.entry/*", 1024, "the maps of type block_array take 8200 bytes of each block's shared memory, and 8192 is the most"},
		{"cuda.entry/*", 1025, "map m: it takes 8200 bytes of each block's shared memory, and 8192 is the most"},
		{"cuda.mem/func:f", 1, "map m has type block_array, which programs in device functions"},
		{"kprobe/__memcapture", 1, "map m has type block_array, which programs in kprobe/__memcapture can't have"},
		{"kprobe/__directly_run", 1, "can't have"},
		{"uprobe/libc.so.6:malloc", 1, "map m has type block_array, which can't be had on the host"},
	} {
		if err := program(tt.section, tt.entries); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %d entries: %v, want %q", tt.section, tt.entries, err, tt.want)
		}
	}
}

// TestBlocksInImages: machine code can't have them, which is said, and PTX beside it does, with a copy of the
// kernel for launches that want too much shared memory.
func TestBlocksInImages(t *testing.T) {
	r := newRig(t, nil, testObject(t, "blocks"))
	code, err := compiler(t, "sm_90")(vectorAdd)
	if err != nil {
		t.Fatal(err)
	}
	o := func() *RewriteOptions {
		return &RewriteOptions{Arch: arch(t, "sm_90"), CompileBody: compileBody(t, "sm_90"), Compile: compiler(t, "sm_90"), Twins: TwinsNeeded}
	}
	got, err := r.plan.Rewrite(code, r.maps, o())
	if err != nil || got.Changed || len(got.Unprobed) != 1 || !strings.Contains(got.Unprobed[0].Reason, "maps of type block_array can be had in PTX only") {
		t.Errorf("a cubin: %v, %+v", err, got.Unprobed)
	}
	image := (&fatbin.Container{Entries: []fatbin.Entry{entry(t, fatbin.KindELF, "sm_90", code), entry(t, fatbin.KindPTX, "sm_90", []byte(vectorAdd))}}).Append(nil)
	for _, twins := range []Twins{TwinsNeeded, TwinsAll, TwinsAside} {
		wanted := o()
		wanted.Twins = twins
		got, err := r.plan.Rewrite(image, r.maps, wanted)
		if err != nil || len(got.Unprobed) > 0 || len(got.Kernels) != 1 || got.Kernels[0].Machine || !got.Kernels[0].Twin || got.Original != nil {
			t.Errorf("%d: %v, %+v, %+v", twins, err, got.Kernels, got.Unprobed)
		}
		if n := strings.Count(got.Text, "_nvtblock["); n != 1 || !strings.Contains(got.Text, TwinName("_Z9vectorAddPKfS0_Pf")) {
			t.Errorf("%d: the text has the maps %d times", twins, n)
		}
	}
	set, err := object.ParseMapSetting("parts[0]=1")
	if err == nil {
		err = r.maps.Apply(r.machine, set, nil)
	}
	if err == nil || !strings.Contains(err.Error(), "each block has a map parts of its own, which begins with zeros") {
		t.Errorf("setting one: %v", err)
	}
	var list strings.Builder
	if err := r.plan.Objects[0].List(&list); err != nil || !strings.Contains(list.String(), "each block's own, in shared memory: not shown") {
		t.Errorf("%v\n%s", err, &list)
	}
}
