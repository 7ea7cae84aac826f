package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// walkAll lists what a file holds, a line per container or error.
func walkAll(f *File) []string {
	var lines []string
	for c, err := range f.Containers() {
		line := ""
		if c != nil {
			line = fmt.Sprintf("0x%x %s %s:", c.Offset, c.Member, c.Section)
			for i := range c.Entries {
				line += fmt.Sprintf(" %s %s", c.Entries[i].Kind(), c.Entries[i].Arch())
			}
		}
		if err != nil {
			line += " error " + err.Error()
		}
		lines = append(lines, strings.TrimSpace(strings.Join(strings.Fields(line), " ")))
	}
	return lines
}

func TestHostFiles(t *testing.T) {
	for name, want := range map[string][]string{
		"two.13.0.o": {"0x3a8 __nv_relfatbin: elf sm_80 ptx sm_80"},
		"libtwo.13.0.a": {
			"0x6a8 two.o __nv_relfatbin: elf sm_80 ptx sm_80",
			"0x26ec lib.o __nv_relfatbin: elf sm_80 ptx sm_80",
		},
		"libtwo.13.0.so": {
			"0x2088 __nv_relfatbin: elf sm_80 ptx sm_80",
			"0x2698 __nv_relfatbin: elf sm_80 ptx sm_80",
			"0x2ac8 .nv_fatbin: elf sm_80",
		},
		"kernels.13.0.fatbin":        {"0x0 : elf sm_90a ptx sm_90a elf sm_100f"},
		"kernels.13.0.sm_100f.cubin": {"0x-1 : elf sm_100f"},
	} {
		f, err := Open("testdata/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, walkAll(f)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		// What is found is what the file has at that place.
		for c := range f.Containers() {
			if c.Offset >= 0 && !bytes.Equal(c.Append(nil), f.data[c.Offset:c.Offset+int64(c.size())]) {
				t.Errorf("%s: 0x%x is not where the container is", name, c.Offset)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEverywhere(t *testing.T) {
	b := read(t, "testdata/libtwo.13.0.so")
	want := walkAll(NewFile("x", b, nil))
	if diff := cmp.Diff(want, walkAll(NewFile("x", b, &Options{Everywhere: true}))); diff != "" {
		t.Errorf("the search finds something else than the sections have: %s", diff)
	}
	// Without a section table there are no names, and the rest is the same.
	stripped := patched(b, 40, 0, 0, 0, 0, 0, 0, 0, 0)
	got := walkAll(NewFile("x", stripped, nil))
	for i := range want {
		want[i] = strings.Replace(strings.Replace(want[i], ".nv_fatbin", "", 1), "__nv_relfatbin", "", 1)
		want[i] = strings.Replace(want[i], "  ", " ", 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stripped: %s", diff)
	}
	// The pattern alone is no container.
	junk := append(bytes.Clone(stripped), containerStart...)
	junk = append(junk, bytes.Repeat([]byte{0xff}, 100)...)
	if got := walkAll(NewFile("x", junk, nil)); len(got) != len(want) {
		t.Errorf("junk: %q", got)
	}
	if got := walkAll(NewFile("x", []byte("no format"+string(containerStart)+"\x00\x00\x00\x00\x00\x00\x00\x00"), &Options{Everywhere: true})); len(got) != 1 {
		t.Errorf("unknown format: %q", got)
	}
}

func TestPadding(t *testing.T) {
	a, b := read(t, "testdata/two.13.0.size.fatbin"), read(t, "testdata/kernels.12.4.fatbin")
	empty := (&Container{}).Append(nil)
	image := slices.Concat(a, make([]byte, 40), b, empty, make([]byte, 8))
	want := []string{"0x0 : elf sm_80 ptx sm_80", "0x5e8 : elf sm_90a ptx sm_90a", "0x7578 :"}
	if diff := cmp.Diff(want, walkAll(NewFile("x", image, nil))); diff != "" {
		t.Error(diff)
	}
	// What is neither is told of, and what follows is found.
	image[len(a)+3] = 1
	want = slices.Insert(want, 1, "error x: container: +0x5c0: 40 bytes that are neither a container nor padding: malformed")
	if diff := cmp.Diff(want, walkAll(NewFile("x", image, nil))); diff != "" {
		t.Error(diff)
	}
	// So is a container with a damaged entry.
	image[16+4] = 1
	got := walkAll(NewFile("x", image, nil))
	if len(got) != 4 || got[0] != "0x0 : error x: +0x0: container: entry 1 at +0x10: header: +0x4: 1 bytes, want at least 64: malformed" {
		t.Errorf("%q", got)
	}
	// A consumer may stop at any place.
	for stop := 1; stop <= 4; stop++ {
		n := 0
		for range NewFile("x", image, nil).Containers() {
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("stopped after %d of %d", n, stop)
		}
	}
}

func TestParseWrapper(t *testing.T) {
	p, err := ParseWrapper(append(binary.LittleEndian.AppendUint64([]byte{0xb1, 0x43, 0x62, 0x46, 2, 0, 0, 0}, 0x1000), 0, 0x20, 0, 0, 0, 0, 0, 0))
	if err != nil || p != (WrapperPointers{2, 0x1000, 0x2000}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := ParseWrapper(read(t, "testdata/libtwo.13.0.so")); err == nil {
		t.Error("an ELF file is no wrapper")
	}
}

func TestArchive(t *testing.T) {
	ar := func(name string, data string) string {
		return fmt.Sprintf("%-16s%-12d%-6d%-6d%-8d%-10d`\n%s%s", name, 0, 0, 0, 0, len(data), data, strings.Repeat("\n", len(data)%2))
	}
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{ar("/", "1234") + ar("//", "a-long-name.o/\nb/\n") + ar("a.o/", "xyz") + ar("/0", "1") + ar("/15", "2"), "a.o=xyz a-long-name.o=1 b=2 "},
		{ar("#1/12", "long name.o\x00data") + ar("__.SYMDEF", ""), "long name.o=data __.SYMDEF= "},
		{ar("/99", "x"), "/99=x "},
		{"hello", "archive: +0x8: no member's header: malformed"},
		{ar("a", "")[:58] + "xx", "archive: +0x8: no member's header: malformed"},
		{strings.Replace(ar("a", "1"), "1         `", "9         `", 1), "archive: +0x38: a member of \"9         \" bytes, and 2 are left: malformed"},
		{strings.Replace(ar("a", "1"), "1         `", "-1        `", 1), "archive: +0x38: a member of \"-1        \" bytes, and 2 are left: malformed"},
	} {
		var got string
		for m, err := range archiveMembers([]byte(archiveMagic + tt.in)) {
			if err != nil {
				got += err.Error()
				break
			}
			got += fmt.Sprintf("%s=%s ", m.name, m.data)
		}
		if got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(empty, nil)
	if err != nil || f.Format() != FormatUnknown || len(walkAll(f)) != 0 || f.Size() != 0 {
		t.Errorf("an empty file: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestGuard: a file that shrinks is an error and not the end.
func TestGuard(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, append(read(t, "testdata/kernels.12.4.fatbin"), make([]byte, 1<<16)...), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(name, 4096); err != nil {
		t.Fatal(err)
	}
	err = f.Guard(func() error {
		for range f.Containers() {
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "the file shrank while it was read") {
		t.Errorf("error %v", err)
	}
	if err := f.Guard(func() error { return ErrOpaque }); !errors.Is(err, ErrOpaque) {
		t.Errorf("fn's own error: %v", err)
	}
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("recovered %v", r)
		}
	}()
	_ = f.Guard(func() error { panic("mine") })
}

func TestSniff(t *testing.T) {
	for in, want := range map[string]Format{
		"":                                 FormatUnknown,
		"\x50\xed\x55\xba":                 FormatContainer,
		"\xb1\x43\x62\x46":                 FormatWrapper,
		"\x01\x5a\xe5\x1e":                 FormatOldContainer,
		"\xed\x43\x4e\x7f":                 FormatLTOIR,
		"!<arch>\n":                        FormatArchive,
		"\n// hi\n/* .x */ .version 8.0\n": FormatPTX,
		"echo .version":                    FormatUnknown,
		"\x00.version 8.0":                 FormatUnknown,
		"\x7fELF":                          FormatUnknown,
	} {
		if got := Sniff([]byte(in)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	old := NewFile("x", []byte("\x01\x5a\xe5\x1e"), nil)
	if got := walkAll(old); len(got) != 1 || !strings.Contains(got[0], "CUDA 3 or older") {
		t.Errorf("%q", got)
	}
	ptx := NewFile("x", []byte(".version 8.0\n.target sm_90a, debug\n.entry k(){}"), nil)
	if got := walkAll(ptx); len(got) != 1 || got[0] != "0x-1 : ptx sm_90a" {
		t.Errorf("%q", got)
	}
}

func TestWord(t *testing.T) {
	want := []string{"unknown", "unknown", "fatbin", "fatbin", "cubin", "ptx", "nvvm", "archive", "unknown", "unknown"}
	for i, w := range want {
		if got := Format(i).Word(); got != w {
			t.Errorf("%s: %q, want %q", Format(i), got, w)
		}
	}
}

func TestExtent(t *testing.T) {
	text := ".version 8.0\n.target sm_80\n" + strings.Repeat("// x\n", 2000)
	images := map[string][]byte{"text": []byte(text + "\x00")}
	for _, name := range append(fixtures(t, "*.fatbin"), fixtures(t, "*.cubin")...) {
		images[name] = read(t, name)
	}
	for name, image := range images {
		// An image in memory is followed by anything.
		memory := bytes.NewReader(append(bytes.Clone(image), bytes.Repeat([]byte{0xa5}, 5000)...))
		if n, err := Extent(memory, 1<<20); err != nil || n != int64(len(image)) {
			t.Errorf("%s: %d bytes, %v, want %d", name, n, err, len(image))
		}
		if _, err := Extent(memory, int64(len(image))-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s above the limit: %v", name, err)
		}
	}
	for name, image := range map[string]string{
		"nothing": "", "text without an end": text, "archive": archiveMagic + strings.Repeat(" ", 60), "short ELF": "\x7fELF\x02\x01\x01",
		"container": "\x50\xed\x55\xba\x01\x00\x10\x00\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		if n, err := Extent(strings.NewReader(image), 1<<20); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	if n, err := Extent(strings.NewReader("\xb1\x43\x62\x46"+strings.Repeat("\x00", 90)), 100); n != 24 || err != nil {
		t.Errorf("wrapper: %d, %v", n, err)
	}
}

func TestNamer(t *testing.T) {
	entry := func(kind Kind, arch Arch, ident string) *Entry {
		data := []byte(".version 8.0\n")
		if kind == KindELF {
			data = read(t, "testdata/kernels.13.0.sm_90a.cubin")
		}
		e, err := NewEntry(kind, arch, data, &EntryOptions{Ident: ident})
		if err != nil {
			t.Fatal(err)
		}
		return &e
	}
	n := NewNamer("/usr/lib/libfoo.so")
	c := &Container{}
	var got []string
	for _, e := range []*Entry{
		entry(KindELF, Arch{90, 'a'}, ""), entry(KindELF, Arch{100, 'f'}, ""), entry(KindPTX, Arch{90, 'a'}, ""),
		entry(KindELF, Arch{80, 0}, "/src/a.cu"), entry(KindELF, Arch{80, 0}, "a.cu"), entry(KindELF, Arch{80, 0}, "a.cu"),
		entry(KindPTX, Arch{80, 0}, "../../.x\n/..\x1b[2J.cu"), entry(0x40, Arch{80, 0}, ".."), entry(KindPTX, Arch{80, 0}, strings.Repeat("é", 200)),
	} {
		got = append(got, n.Next(c, e))
	}
	want := []string{
		"libfoo.1.sm_90a.cubin", "libfoo.2.sm_100f.cubin", "libfoo.1.sm_90a.ptx", "a.sm_80.cubin", "a.sm_80.2.cubin", "a.sm_80.3.cubin",
		"_[2J.sm_80.ptx", "image.sm_80.kind64", strings.Repeat("é", 48) + ".sm_80.ptx",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := NewNamer("k.cubin").Next(&Container{Offset: -1}, entry(KindELF, Arch{90, 0}, "")); got != "k.sm_90.cubin" {
		t.Error(got)
	}
	lto := mustParse(t, read(t, "testdata/two.13.0.lto.fatbin"))
	if got := NewNamer("x").Next(lto, &lto.Entries[0]); got != "x.1.sm_90a.ltoir.scrambled" {
		t.Error(got)
	}
	if got := Demangle("_ZN6shapes6reduceIfLi64EEEvPT_PKS1_4Pair"); got != "void shapes::reduce<float, 64>(float*, float const*, Pair)" {
		t.Error(got)
	}
	if got := Demangle("add"); got != "add" {
		t.Error(got)
	}
}
