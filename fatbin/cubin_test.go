package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cubinsIn returns the cubins of a file, decompressed.
func cubinsIn(tb testing.TB, name string) (images [][]byte) {
	tb.Helper()
	f := NewFile(name, read(tb, name), nil)
	for c, err := range f.Containers() {
		if err != nil {
			tb.Fatal(err)
		}
		for i := range c.Entries {
			if c.Entries[i].Kind() == KindELF {
				data, err := c.Entries[i].Data(nil)
				if err != nil {
					tb.Fatal(err)
				}
				images = append(images, data)
			}
		}
	}
	return images
}

func mustCubin(tb testing.TB, image []byte) *Cubin {
	tb.Helper()
	c, err := ParseCubin(image)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func params(k *Kernel) string {
	var b strings.Builder
	for _, p := range k.Params {
		fmt.Fprintf(&b, "%d+%d ", p.Offset, p.Size)
	}
	return strings.TrimSpace(b.String())
}

// TestKernels holds every cubin of kernels.cu against its source: what a
// compiler may choose (registers, code size) only has to be there.
func TestKernels(t *testing.T) {
	want := map[string]struct {
		params                  string
		bytes, barriers, shared int
		threads                 uint32
		stack                   int
	}{
		"add":         {params: "0+8 8+8 16+8 24+4", bytes: 28},
		"_Z7nothingv": {},
		"_Z5stackPii": {params: "0+8 8+4", bytes: 12, stack: 160},
		"_ZN6shapes6reduceIfLi64EEEvPT_PKS1_4Pair": {params: "0+8 8+8 16+24", bytes: 40, barriers: 1, shared: 256, threads: 128},
		"_ZN6shapes6reduceIdLi32EEEvPT_PKS1_4Pair": {params: "0+8 8+8 16+24", bytes: 40, barriers: 1, shared: 256, threads: 128},
	}
	for name, head := range map[string]string{
		"kernels.11.8.sm_80.cubin":   "7 sm_80 11.8 352 0",
		"kernels.12.4.sm_90a.cubin":  "7 sm_90a 12.4 528 1024",
		"kernels.13.0.sm_90a.cubin":  "8 sm_90a 13.0 528 1024",
		"kernels.13.0.sm_100f.cubin": "8 sm_100f 13.0 896 1024",
		"kernels.12.9.fatbin":        "7 sm_90a 12.4 528 1024",
	} {
		c := mustCubin(t, cubinsIn(t, "testdata/"+name)[0])
		var base, reserved int
		if len(c.Kernels) != len(want) {
			t.Errorf("%s: %d kernels", name, len(c.Kernels))
		}
		if strings.Contains(head, " 1024") {
			reserved = 1024 // of shared memory, from sm_90 on
		}
		for i := range c.Kernels {
			k := &c.Kernels[i]
			w, ok := want[k.Name]
			if !ok {
				t.Errorf("%s: kernel %s", name, k.Name)
				continue
			}
			if k.ParamBase != 0 {
				base = k.ParamBase
			}
			if w.shared > 0 {
				w.shared += reserved
			}
			if params(k) != w.params || k.ParamBytes != w.bytes || k.Barriers != w.barriers || k.Shared != uint64(w.shared) ||
				k.MaxThreads[0] != w.threads || k.Frame != w.stack || k.MinStack != w.stack {
				t.Errorf("%s: %s: params %s of %d bytes, barriers %d, shared %d, threads %v, stack %d %d, want %+v", name, k.Name,
					params(k), k.ParamBytes, k.Barriers, k.Shared, k.MaxThreads, k.Frame, k.MinStack, w)
			}
			if k.Registers < 1 || k.Registers > 64 || k.MaxRegisters != 255 || k.Size == 0 || k.Size%16 != 0 {
				t.Errorf("%s: %s: %d registers of %d, %d bytes of code", name, k.Name, k.Registers, k.MaxRegisters, k.Size)
			}
			if text := c.Sections[k.Section]; text.Name != ".text."+k.Name || text.Size < k.Offset+k.Size {
				t.Errorf("%s: %s is in %s", name, k.Name, text.Name)
			}
			if k.Constant != uint64(k.ParamBase+k.ParamBytes) && k.ParamBytes > 0 {
				t.Errorf("%s: %s: bank 0 of %d bytes, parameters at %d", name, k.Name, k.Constant, k.ParamBase)
			}
		}
		if got := fmt.Sprintf("%d %s %s %d %d", c.ABI, c.Arch, c.Toolkit, base, reserved); got != head {
			t.Errorf("%s: got %s, want %s", name, got, head)
		}
		vars := map[string]string{}
		for _, v := range c.Variables {
			vars[v.Name] = fmt.Sprintf("%s %d", v.Section, v.Size)
		}
		if vars["table"] != ".nv.constant3 64" || vars["counter"] != ".nv.global 4" {
			t.Errorf("%s: variables %v", name, vars)
		}
	}
}

// TestRelocatable: device functions, and calls that only linking resolves.
func TestRelocatable(t *testing.T) {
	images := cubinsIn(t, "testdata/libtwo.13.0.so")
	var got []string
	for _, image := range images {
		c := mustCubin(t, image)
		line := fmt.Sprintf("%v:", c.Relocatable)
		for _, k := range c.Kernels {
			line += fmt.Sprintf(" kernel %s %d", k.Name, k.MinStack)
		}
		for _, f := range c.Functions {
			line += fmt.Sprintf(" function %s %d %d", f.Name, f.Frame, f.Registers)
		}
		tool, _, _ := strings.Cut(c.Producer, ",")
		got = append(got, line+" by "+tool)
	}
	want := []string{
		"true: kernel use -1 by ptxas",
		"true: function _Z5twicef 0 24 by ptxas",
		"false: kernel use 0 function _Z5twicef 0 24 by nvlink",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAttrs(t *testing.T) {
	c := mustCubin(t, read(t, "testdata/kernels.13.0.sm_90a.cubin"))
	for i := range c.Kernels {
		k := &c.Kernels[i]
		if k.Name != "add" {
			continue
		}
		var b strings.Builder
		for _, a := range k.Attrs {
			fmt.Fprintf(&b, "%d %s %x\n", a.Format, a.ID, a.Value)
		}
		for _, want := range []string{
			"4 CUDA_API_VERSION 82000000\n", "3 CBANK_PARAM_SIZE 1c00\n", "3 MAXREG_COUNT ff00\n",
			"4 KPARAM_INFO 000000000300180000f01100\n", "3 attr(0x5f) 0101\n",
		} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, &b)
			}
		}
		return
	}
	t.Error("no kernel add")
}

func TestParseAttrs(t *testing.T) {
	for _, tt := range []struct{ in, want, err string }{
		{"", "", ""},
		{"\x01\x35\x00\x00\x02\x4c\x07\x00\x03\x1b\xff\x01", "attr 0x35: | NUM_BARRIERS:07| MAXREG_COUNT:ff01|", ""},
		{"\x04\xfe\x03\x00abc\x01\x01\x00\x00", "attr(0xfe):616263|PAD:|", ""},
		{"\x04\x05\x0c\x00abc", "", "MAX_THREADS of 12 bytes, and 3 are left"},
		{"\x01\x01\x00\x00\x05\x05\x00\x00", "PAD:|", "+0x4: format 5 of MAX_THREADS"},
		{"\x01\x01\x00", "", "3 bytes are less than a record"},
	} {
		attrs, err := parseAttrs([]byte(tt.in))
		var b strings.Builder
		for _, a := range attrs {
			fmt.Fprintf(&b, "%s:%x|", a.ID, a.Value)
		}
		want := strings.ReplaceAll(strings.ReplaceAll(tt.want, "attr 0x35", "SW2861232_WAR"), " ", "")
		if b.String() != want {
			t.Errorf("%q: got %s, want %s", tt.in, &b, want)
		}
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, ErrFormat)) {
			t.Errorf("%q: error %v, want %q", tt.in, err, tt.err)
		}
	}
}

// TestKernelAttrs: attributes that the fixtures have none of.
func TestKernelAttrs(t *testing.T) {
	words := func(v ...uint32) (b []byte) {
		for _, w := range v {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	var k Kernel
	k.apply([]Attr{
		{AttrSized, AttrReqThreads, words(32, 2, 1)},
		{AttrSized, AttrCluster, words(2, 1, 1)},
		{AttrSized, AttrKParamInfoV2, append(words(0), 1, 0, 8, 0, 0xff, 0xff, 0, 0)},
		{AttrSized, AttrKParamInfo, words(0, 0, 8<<18)},
		{AttrSized, AttrCoopGroup, words(16)},
		{AttrSized, AttrSyscallOffsets, words(16)},
		{AttrSized, AttrMaxThreads, words(32)}, // too short
		{AttrSized, AttrKParamInfo, words(0)},
	})
	if k.ReqThreads != [3]uint32{32, 2, 1} || k.Cluster != [3]uint32{2, 1, 1} || !k.Cooperative || !k.Syscalls || k.MaxThreads != [3]uint32{} {
		t.Errorf("%+v", k)
	}
	if got := params(&k); got != "0+8 8+65535" {
		t.Error(got)
	}
	a := Attr{Value: append(words(7, 9), 1)}
	if w := a.Words(); len(w) != 2 || w[1] != 9 {
		t.Error(w)
	}
}

func TestDamagedCubin(t *testing.T) {
	b := read(t, "testdata/kernels.13.0.sm_90a.cubin")
	shoff := int(binary.LittleEndian.Uint64(b[40:]))
	for _, tt := range []struct {
		name string
		b    []byte
		err  string
	}{
		{"empty", nil, "not a 64-bit little-endian ELF file"},
		{"32 bits", patched(b, 4, 1), "not a 64-bit"},
		{"big-endian", patched(b, 5, 2), "not a 64-bit"},
		{"machine", patched(b, 18, 62, 0), "machine 62, want 190"},
		{"section table past the end", patched(b, 40, 0, 0, 0, 1), "section table at 0x1000"},
		{"section table overflows", patched(b, 40, 255, 255, 255, 255, 255, 255, 255, 255), "section table at"},
		{"section headers' size", patched(b, 58, 40), "section headers of 40 bytes"},
		{"sections", patched(b, 60, 255, 255), "65535 sections in a file of"},
		{"cut off", b[:shoff+100], "a table of 35 sections"},
		{"many by extension", patched(patched(b, 60, 0, 0), shoff+32, 0, 0, 0, 0, 0, 1), "1099511627776 sections"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseCubin(tt.b); err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, ErrFormat) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
	// An attribute section that can't be read is an error, with the rest.
	c := mustCubin(t, b)
	for _, s := range c.Sections {
		if s.Name == ".nv.info.add" {
			c, err := ParseCubin(patched(b, int(s.Offset), 9))
			if err == nil || !strings.Contains(err.Error(), "section .nv.info.add: .nv.info: +0x0: format 9") || c == nil || len(c.Kernels) != 5 {
				t.Errorf("%v", err)
			}
		}
	}
}

// TestOverlap: sections that share bytes can't make more of a file than it is.
func TestOverlap(t *testing.T) {
	const sections, attrs = 2000, 1 << 16
	b := make([]byte, 64+sections*64+attrs+8)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[18:], machineCUDA)
	le.PutUint64(b[40:], 64)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], sections)
	at := 64 + sections*64
	for i := range sections {
		h := b[64+64*i:]
		le.PutUint32(h[4:], shtNVInfo)
		le.PutUint64(h[24:], uint64(at))
		le.PutUint64(h[32:], attrs)
	}
	for p := at; p < at+attrs; p += 4 {
		b[p], b[p+1] = 1, 1
	}
	if _, err := ParseCubin(b); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("attributes: %v", err)
	}
	// The same with names: every section has the whole of one as its name.
	for i := range sections {
		le.PutUint32(b[64+64*i+4:], shtProgbits)
	}
	copy(b[at:], bytes.Repeat([]byte("n"), attrs-1))
	b[at+attrs-1] = 0
	if _, err := ParseCubin(b); err == nil || !strings.Contains(err.Error(), "names of sections") {
		t.Errorf("names: %v", err)
	}
}

func TestScanPTX(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want PTXInfo
	}{
		{"", PTXInfo{}},
		{"// .version 1.0\n/* .target x */.version 8.5 // eh\n.target sm_90a, debug\n", PTXInfo{Version: "8.5", Target: "sm_90a, debug"}},
		{".version 8.0\n.visible .entry a(.param .u64 p) { .reg .b32 r; { ret; } } .func .entry b\n;.entry c(){}", PTXInfo{Version: "8.0", Entries: []string{"a", "c"}}},
		{".file 1 \"a \\\" .entry x() {\" .entry $y{ }\x00.entry z{}", PTXInfo{Entries: []string{"$y"}}},
		{"} } .entry k {", PTXInfo{Entries: []string{"k"}}},
		{"/* open", PTXInfo{}},
		{"\"open\\", PTXInfo{}},
	} {
		if diff := cmp.Diff(tt.want, ScanPTX([]byte(tt.in))); diff != "" {
			t.Errorf("%q: %s", tt.in, diff)
		}
	}
}
