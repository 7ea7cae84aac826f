package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// noop is an instruction that does nothing, on all architectures.
var noop = []byte{0x18, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0x0f, 0}

// editor opens a cubin of testdata.
func editor(tb testing.TB, name string) *CubinEditor {
	tb.Helper()
	e, err := NewCubinEditor(read(tb, filepath.Join("testdata", name)), &CubinEditOptions{DropMercury: true})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

var editedCubins = []string{"kernels.11.8.sm_80.cubin", "kernels.12.4.sm_90a.cubin", "kernels.13.0.sm_90a.cubin", "kernels.13.0.sm_100f.cubin"}

// grown appends n instructions to a kernel's code.
func grown(code []byte, n int) []byte { return append(slices.Clone(code), bytes.Repeat(noop, n)...) }

func TestEditCubinNothing(t *testing.T) {
	for _, name := range editedCubins {
		got, err := editor(t, name).Bytes()
		if err != nil || !bytes.Equal(got, read(t, filepath.Join("testdata", name))) {
			t.Errorf("%s: written in another way than read: %v", name, err)
		}
	}
}

// Everything but what was changed is the same behind an edit, wherever it lies now.
func TestEditCubin(t *testing.T) {
	for _, name := range editedCubins {
		old := editor(t, name)
		// Every subset matters: what moves is different for each.
		kernels := old.Cubin().Kernels
		for subset := 1; subset < 1<<len(kernels); subset++ {
			e := editor(t, name)
			want := map[string]*CodeChange{}
			for i := range kernels {
				if subset>>i&1 == 0 {
					continue
				}
				kc, err := e.Code(kernels[i].Name)
				if err != nil {
					t.Fatal(err)
				}
				ch := &CodeChange{Code: grown(kc.Code, 3+5*i), Registers: kc.Registers + 8, Stack: 16 * i}
				for j := range 1 + 2*i {
					ch.Exits = append(ch.Exits, uint32(16*j))
				}
				if err := e.Set(kc.Name, ch); err != nil {
					t.Fatal(err)
				}
				want[kc.Name] = ch
			}
			got, err := e.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			compareEdited(t, name, old, got, want)
		}
	}
}

func compareEdited(t *testing.T, name string, old *CubinEditor, got []byte, want map[string]*CodeChange) {
	t.Helper()
	e, err := NewCubinEditor(got, nil) // it has no Mercury sections
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for i, s := range e.file.sections {
		o := old.file.sections[i]
		if isMercury(&o) {
			if s.Type != 0 || s.Size != 0 {
				t.Errorf("%s: section %s is still there", name, o.Name)
			}
			continue
		}
		kernel, isCode := hasPrefixName(o.Name, ".text.")
		info, isInfo := hasPrefixName(o.Name, ".nv.info.")
		switch ch := want[kernel]; {
		case isCode && ch != nil:
			if !bytes.Equal(e.file.bytes(uint32(i)), ch.Code) {
				t.Errorf("%s: %s: other code", name, kernel)
			}
		case isInfo && want[info] != nil:
		case o.Name == ".nv.info", o.Name == ".symtab", o.Name == ".nv.compat":
			if s.Size != o.Size {
				t.Errorf("%s: %s: %d bytes", name, o.Name, s.Size)
			}
		case !bytes.Equal(e.file.bytes(uint32(i)), old.file.bytes(uint32(i))):
			t.Errorf("%s: section %s changed", name, o.Name)
		}
		if s.Type != shtNobits && s.Size > 0 && o.Type == shtProgbits && strings.HasPrefix(o.Name, ".text.") && s.Offset%128 != 0 {
			t.Errorf("%s: section %s at 0x%x", name, o.Name, s.Offset)
		}
	}
	for i := range e.cubin.Kernels {
		k, o := &e.cubin.Kernels[i], &old.cubin.Kernels[i]
		kc, err := e.Code(k.Name)
		if err != nil {
			t.Fatal(err)
		}
		before, err := old.Code(k.Name)
		if err != nil {
			t.Fatal(err)
		}
		regs, stack, exits := o.Registers, 0, before.Exits
		if ch := want[k.Name]; ch != nil {
			regs, stack, exits = ch.Registers, ch.Stack, ch.Exits
		}
		if k.Registers != regs || k.Frame != o.Frame+stack || k.MinStack != o.MinStack+stack || !slices.Equal(kc.Exits, exits) || !slices.Equal(kc.Listed, before.Listed) {
			t.Errorf("%s: %s: %d registers, frame %d, stack %d, exits %x", name, k.Name, k.Registers, k.Frame, k.MinStack, kc.Exits)
		}
		if info := e.cubin.Sections[k.Section].Info >> 24; info != 0 && int(info) != regs {
			t.Errorf("%s: %s: %d registers in the section's header", name, k.Name, info)
		}
	}
	// Segments hold what they held.
	phoff, phn := u64(got[32:]), uint64(u16(got[56:]))
	for i := range phn {
		p, o := got[phoff+56*i:], old.data[u64(old.data[32:])+56*i:]
		start, end := u64(p[8:]), u64(p[8:])+u64(p[32:])
		ostart, oend := u64(o[8:]), u64(o[8:])+u64(o[32:])
		for j, s := range e.file.sections {
			os := &old.file.sections[j]
			if os.Type == shtNobits || os.Size == 0 || isMercury(os) {
				continue
			}
			was := os.Offset >= ostart && os.Offset+os.Size <= oend
			is := s.Offset >= start && s.Offset+s.Size <= end
			if was != is {
				t.Errorf("%s: segment %d, section %s: within %v, before %v", name, i, s.Name, is, was)
			}
		}
		if u64(p[40:])-u64(o[40:]) != u64(p[32:])-u64(o[32:]) {
			t.Errorf("%s: segment %d: %d bytes in memory of %d", name, i, u64(p[40:]), u64(p[32:]))
		}
	}
}

// NVIDIA's disassembler shows the old code, then what was appended.
func TestNvdisasmReadsEdited(t *testing.T) {
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	dis := func(b []byte) string {
		f := filepath.Join(t.TempDir(), "x.cubin")
		if err := os.WriteFile(f, b, 0o666); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "-hex", f).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	lines := regexp.MustCompile(`(?m)^\s+/\*[0-9a-f]{4,}\*/ .*/\* 0x[0-9a-f]{16} \*/$`)
	for _, name := range editedCubins {
		e := editor(t, name)
		extra := 0
		for i := range e.Cubin().Kernels {
			kc, err := e.Code(e.Cubin().Kernels[i].Name)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Set(kc.Name, &CodeChange{Code: grown(kc.Code, 8+8*i), Registers: 40, Exits: append(slices.Clone(kc.Exits), 0)}); err != nil {
				t.Fatal(err)
			}
			extra += 8 + 8*i
		}
		b, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		before, after := lines.FindAllString(dis(read(t, filepath.Join("testdata", name))), -1), lines.FindAllString(dis(b), -1)
		if len(before) == 0 || len(after) != len(before)+extra {
			t.Errorf("%s: %d instructions, %d before, want %d more", name, len(after), len(before), extra)
		}
	}
}

func TestEditCubinRefuses(t *testing.T) {
	if _, err := NewCubinEditor(read(t, "testdata/kernels.13.0.sm_100f.cubin"), nil); !errors.Is(err, ErrNotEditable) || !strings.Contains(err.Error(), ".nv.capmerc.text.") {
		t.Errorf("Mercury sections: %v", err)
	}
	e := editor(t, "kernels.13.0.sm_90a.cubin")
	kc, err := e.Code("add")
	if err != nil {
		t.Fatal(err)
	}
	for what, ch := range map[string]*CodeChange{
		"less":        {Code: kc.Code[16:]},
		"half a word": {Code: append(slices.Clone(kc.Code), 0, 0)},
		"registers":   {Code: kc.Code, Registers: 256},
		"stack":       {Code: kc.Code, Stack: -4},
		"exits":       {Code: kc.Code, Exits: []uint32{uint32(len(kc.Code))}},
	} {
		if err := e.Set("add", ch); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := e.Code("nobody"); err == nil {
		t.Error("no error for a kernel that isn't there")
	}
	rel := slices.Clone(read(t, "testdata/kernels.13.0.sm_90a.cubin"))
	rel[16] = etRel
	if _, err := NewCubinEditor(rel, nil); !errors.Is(err, ErrNotEditable) {
		t.Errorf("relocatable: %v", err)
	}
}

// A name that lies where the editor writes changes with that: the result is refused.
func TestEditCubinOverlap(t *testing.T) {
	b := slices.Clone(read(t, "testdata/kernels.13.0.sm_90a.cubin"))
	e := editor(t, "kernels.13.0.sm_90a.cubin")
	places := e.numbers[symbolAttr{AttrRegCount, e.cubin.Kernels[0].Symbol}]
	strs, ok := e.file.section(".strtab")
	if len(places) != 1 || !ok {
		t.Fatal("no number, or no names")
	}
	// The names begin such that the kernel's one is where its registers are.
	sym := e.file.symtab()
	name := u32(e.file.bytes(uint32(sym))[e.cubin.Kernels[0].Symbol*elfSymSize:])
	binary.LittleEndian.PutUint64(b[u64(b[40:])+uint64(strs)*elfSectionSize+24:], places[0]-uint64(name))
	h, err := NewCubinEditor(b, nil)
	if err != nil {
		t.Skip(err)
	}
	k := h.cubin.Kernels[0]
	code := slices.Clone(h.file.bytes(k.Section))
	if err := h.Set(k.Name, &CodeChange{Code: code, Registers: 77}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Bytes(); !errors.Is(err, ErrFormat) {
		t.Errorf("error %v", err)
	}
}

// Instructions that relocations and attributes name are listed.
func TestListed(t *testing.T) {
	e := editor(t, "kernels.11.8.sm_80.cubin")
	kc, err := e.Code("_ZN6shapes6reduceIfLi64EEEvPT_PKS1_4Pair")
	if err != nil {
		t.Fatal(err)
	}
	want := []uint32{0x140} // INT_WARP_WIDE_INSTR_OFFSETS
	b := e.file.bytes(13)   // .rel.text of it
	for ; len(b) >= 16; b = b[16:] {
		want = append(want, uint32(u64(b))&^15)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if len(want) < 2 || !slices.Equal(kc.Listed, want) || len(kc.Exits) == 0 {
		t.Errorf("listed %x, want %x, exits %x", kc.Listed, want, kc.Exits)
	}
	a := Attr{Format: AttrSized, ID: 0x39, Value: []byte{0xe0, 9, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x16, 0}}
	if got := a.appendOffsets(nil, 0x1000); !slices.Equal(got, []uint32{0x9e0}) {
		t.Errorf("MBARRIER_INSTR_OFFSETS: %x", got)
	}
	a = Attr{Format: AttrSized, ID: 0x31, Value: make([]byte, 4)}
	if got := a.appendOffsets(nil, 0x1000); !slices.Equal(got, []uint32{0}) {
		t.Errorf("INT_WARP_WIDE_INSTR_OFFSETS: %x", got)
	}
}

func TestJumpTargets(t *testing.T) {
	b := []byte{0xf0, 0x31, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x90, 0xbc, 0, 0, 0, 0x32, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x40, 0, 0, 0}
	got := make(map[uint32][]uint32)
	jumpTargets(b, got)
	if want := map[uint32][]uint32{0x31f0: {0xbc90, 0x3200}, 0x10: {0x40}}; !reflect.DeepEqual(got, want) {
		t.Errorf("targets %x, want %x", got, want)
	}
	clear(got)
	jumpTargets(b[:len(b)-4], got)
	if want := map[uint32][]uint32{0x31f0: {0xbc90, 0x3200}}; !reflect.DeepEqual(got, want) {
		t.Errorf("of a list that is cut: targets %x, want %x", got, want)
	}
}

func FuzzCubinEdit(f *testing.F) {
	for _, name := range editedCubins {
		f.Add(read(f, filepath.Join("testdata", name)), uint16(16), uint8(40))
	}
	f.Fuzz(func(t *testing.T, b []byte, more uint16, regs uint8) {
		e, err := NewCubinEditor(b, &CubinEditOptions{DropMercury: more&1 != 0})
		if err != nil {
			return
		}
		if err := e.Apart(); err != nil && !errors.Is(err, ErrNotEditable) {
			t.Fatal(err)
		}
		n := 0
		for i := range e.Cubin().Kernels {
			kc, err := e.Code(e.Cubin().Kernels[i].Name)
			if err != nil || len(kc.Code) > 1<<20 {
				continue
			}
			if _, err := e.Alone(kc.Name); err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrNotEditable) && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			n++
			if n > 8 {
				break
			}
			ch := &CodeChange{Code: grown(kc.Code, int(more%64)), Registers: int(regs), Exits: kc.Listed, Stack: 8}
			if err := e.Set(kc.Name, ch); err != nil && len(ch.Exits) == 0 {
				t.Fatal(err)
			}
		}
		got, err := e.Bytes()
		if err != nil {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrNotEditable) && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			return
		}
		if len(e.changes) == 0 && !bytes.Equal(got, b) {
			t.Fatal("written in another way than read")
		}
	})
}
