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
)

// fixtures returns the files of testdata whose names match.
func fixtures(tb testing.TB, pattern string) []string {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(names) == 0 {
		tb.Fatalf("testdata/%s: %v, %v", pattern, names, err)
	}
	return names
}

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func mustParse(tb testing.TB, b []byte) *Container {
	tb.Helper()
	c, n, err := ParseContainer(b)
	if err != nil || n != len(b) {
		tb.Fatalf("parsed %d of %d bytes: %v", n, len(b), err)
	}
	return c
}

// describe prints a container a line per entry.
func describe(c *Container) string {
	var b strings.Builder
	for i := range c.Entries {
		e := &c.Entries[i]
		major, minor := e.Version()
		fmt.Fprintf(&b, "%s %s %d.%d %d/%d %s %q %q %d\n", e.Kind(), e.Arch(), major, minor, e.StoredSize(), e.Size(), e.Flags(), e.Ident(), e.Options(), len(e.Attrs()))
	}
	return b.String()
}

// TestFixtures holds what the tools wrote against what is known of how they
// were called.
func TestFixtures(t *testing.T) {
	for name, want := range map[string]string{
		"kernels.11.8": `elf sm_80 1.7 18592/18592 64bit,linux "" "" 0
ptx sm_80 7.8 8041/28828 64bit,linux,lz4 "" "" 0
`,
		"kernels.12.4": `elf sm_90a 1.7 20312/20312 64bit,linux,arch-specific "kernels.cu" "" 0
ptx sm_90a 8.0 8050/28857 64bit,linux,lz4,arch-specific "kernels.cu" "" 0
`,
		"kernels.12.9": `elf sm_90a 1.7 6889/20312 64bit,linux,lz4,arch-specific "kernels.cu" "" 0
ptx sm_90a 8.0 8505/28857 64bit,linux,lz4,arch-specific "kernels.cu" "" 0
`,
		"kernels.13.0": `elf sm_90a 1.8 11919/54744 64bit,linux,zstd,arch-specific "kernels.cu" "" 0
ptx sm_90a 9.0 5453/29703 64bit,linux,zstd,arch-specific "kernels.cu" "--generate-line-info" 0
elf sm_100f 1.8 14018/67880 64bit,linux,zstd,family-specific,attributes "kernels.cu" "" 36
`,
		"two.11.8.debug": `elf sm_80 1.7 4243/8960 64bit,debug,linux,lz4 "two.cu" "" 0
ptx sm_80 7.8 1274/2491 64bit,debug,linux,lz4 "two.cu" "--compile-only -g --dont-merge-basicblocks --return-at-end" 0
`,
		"two.13.0.none": `elf sm_80 1.8 3392/3392 64bit,linux "" "" 0
ptx sm_80 9.0 768/768 64bit,linux "" "--compile-only" 0
`,
		"two.13.0.size": `elf sm_80 1.8 884/3392 64bit,linux,zstd "" "" 0
ptx sm_80 9.0 401/761 64bit,linux,zstd "" "--compile-only" 0
`,
		"two.13.0.speed": `elf sm_80 1.8 1330/3392 64bit,linux,lz4 "" "" 0
ptx sm_80 9.0 537/761 64bit,linux,lz4 "" "--compile-only" 0
`,
		"two.13.0.balance": `elf sm_80 1.8 957/3392 64bit,linux,zstd "" "" 0
ptx sm_80 9.0 416/761 64bit,linux,zstd "" "--compile-only" 0
`,
		"two.13.0.lto": `lto-ir sm_90a 1.65 1861/2340 64bit,linux,zstd,scrambled,arch-specific "" "-ftz=0 -prec_div=1 -prec_sqrt=1 -fmad=1" 0
`,
	} {
		c := mustParse(t, read(t, "testdata/"+name+".fatbin"))
		if got := describe(c); got != want {
			t.Errorf("%s:\ngot  %swant %s", name, got, want)
		}
	}
}

// TestModesAgree: the same code, stored in four ways.
func TestModesAgree(t *testing.T) {
	var want [][]byte
	for _, mode := range []string{"none", "size", "speed", "balance"} {
		c := mustParse(t, read(t, "testdata/two.13.0."+mode+".fatbin"))
		for i := range c.Entries {
			data, err := c.Entries[i].Data(nil)
			if err != nil {
				t.Fatalf("%s: entry %d: %v", mode, i, err)
			}
			if mode == "none" {
				want = append(want, data)
			} else if !bytes.Equal(data, want[i]) {
				t.Errorf("%s: entry %d differs from the one that isn't compressed", mode, i)
			}
		}
	}
	if len(want) != 2 || !bytes.HasSuffix(want[1], []byte("}\n\n")) {
		t.Errorf("%d entries, PTX ends in %q", len(want), want[1][len(want[1])-8:])
	}
}

func TestRoundTrip(t *testing.T) {
	for _, name := range fixtures(t, "*.fatbin") {
		b := read(t, name)
		c := mustParse(t, b)
		if got := c.Append([]byte("head")); !bytes.Equal(got[4:], b) || string(got[:4]) != "head" {
			t.Errorf("%s: written in another way than read", name)
		}
		if c.size() != len(b) {
			t.Errorf("%s: Size %d, want %d", name, c.size(), len(b))
		}
	}
}

// TestLayoutOfTools: entries that NewEntry makes of the tool's content, as it
// was stored, are the tool's, bit by bit.
func TestLayoutOfTools(t *testing.T) {
	for _, name := range []string{"two.13.0.none.fatbin", "kernels.13.0.fatbin"} {
		c := mustParse(t, read(t, "testdata/"+name))
		for i := range c.Entries {
			e := &c.Entries[i]
			data, err := e.Data(nil)
			if err != nil {
				t.Fatal(err)
			}
			if e.Attrs() != nil {
				continue
			}
			options := string(e.record())
			n, err := NewEntry(e.Kind(), e.Arch(), data, &EntryOptions{Compression: e.Compression(), Ident: e.Ident(), Options: options})
			if err != nil {
				t.Fatal(err)
			}
			// Another encoder may compress to another size, and the tools
			// put eight zeros after options.
			a, b := bytes.Clone(e.head), bytes.Clone(n.head)
			if e.Compression() != Stored {
				clear(a[8:20])
				clear(b[8:20])
			}
			a, b = bytes.TrimRight(a, "\x00"), bytes.TrimRight(b, "\x00")
			if len(e.head) > len(n.head) {
				copy(b[4:8], a[4:8])
			}
			if !bytes.Equal(a, b) {
				t.Errorf("%s: entry %d:\n% x\nwant\n% x", name, i, b, a)
			}
		}
	}
}

func TestEdit(t *testing.T) {
	ptxs := mustParse(t, read(t, "testdata/kernels.13.0.fatbin"))
	cubin := read(t, "testdata/kernels.13.0.sm_90a.cubin")
	for _, how := range []Compression{Stored, LZ4, Zstd} {
		c := *ptxs
		c.Entries = slices.Clone(ptxs.Entries)
		arch := Arch{90, 'a'}
		image := append(slices.Clip(cubin), 0, 0, 0) // a size that needs padding
		e, err := NewEntry(KindELF, arch, image, &EntryOptions{Compression: how, Ident: "probe"})
		if err != nil {
			t.Fatal(err)
		}
		c.Entries = slices.DeleteFunc(c.Entries, func(e Entry) bool { return e.Kind() == KindELF && e.Arch() == arch })
		c.Entries[0] = e // was the PTX
		out := c.Append(nil)
		if len(out) != c.size() || len(out)%8 != 0 {
			t.Errorf("%s: %d bytes, Size %d", how, len(out), c.size())
		}
		got := mustParse(t, out)
		if len(got.Entries) != 2 || got.Entries[1].Arch() != (Arch{100, 'f'}) {
			t.Fatalf("%s: entries:\n%s", how, describe(got))
		}
		g := &got.Entries[0]
		data, err := g.Data(nil)
		if err != nil {
			t.Fatal(err)
		}
		if how == Stored {
			data = data[:len(image)] // padding can't be told from content
		}
		if !bytes.Equal(data, image) {
			t.Errorf("%s: the content changed", how)
		}
		if g.Kind() != KindELF || g.Arch() != arch || g.Compression() != how || g.Ident() != "probe" || g.Flags()&Flag64Bit == 0 {
			t.Errorf("%s: %s", how, describe(got))
		}
		if k, err := ParseCubin(data); err != nil || len(k.Kernels) != 5 {
			t.Errorf("%s: %v", how, err)
		}
		if !bytes.Equal(ptxs.Append(nil), read(t, "testdata/kernels.13.0.fatbin")) {
			t.Fatalf("%s: the edit changed the container it was made from", how)
		}
	}
}

func TestNewEntry(t *testing.T) {
	text := []byte(".version 8.5\n.target sm_90a\n.address_size 64\n.entry k() { ret; }\n")
	spare := append(bytes.Clone(text), "XXXXXXXXXXXXXXXX"...)[:len(text)] // room behind that isn't ours
	var c Container
	for _, how := range []Compression{Stored, LZ4, Zstd} {
		e, err := NewEntry(KindPTX, Arch{90, 'a'}, spare, &EntryOptions{Compression: how, Options: "-O3", Flags: FlagDebug})
		if err != nil {
			t.Fatal(err)
		}
		c.Entries = append(c.Entries, e)
	}
	if got := string(spare[:len(text)+16][len(text):]); strings.Trim(got, "X") != "" {
		t.Errorf("wrote into the caller's array: %q", got)
	}
	got := mustParse(t, c.Append(nil))
	for i := range got.Entries {
		e := &got.Entries[i]
		data, err := e.Data(nil)
		if err != nil || !bytes.Equal(data, text) {
			t.Errorf("entry %d: %q, %v", i, data, err)
		}
		if major, minor := e.Version(); major != 8 || minor != 5 || e.Options() != "-O3" || e.Flags()&FlagDebug == 0 {
			t.Errorf("entry %d: %s", i, describe(got))
		}
	}
	unknown, err := NewEntry(0x40, Arch{SM: 100}, []byte("opaque!!"), nil)
	if err != nil || unknown.Kind().String() != "kind(0x40)" {
		t.Errorf("%v, %v", unknown.Kind(), err)
	}
	for name, f := range map[string]func() (Entry, error){
		"no version":          func() (Entry, error) { return NewEntry(KindPTX, Arch{}, []byte("hello"), nil) },
		"odd version":         func() (Entry, error) { return NewEntry(KindPTX, Arch{}, []byte(".version 8\n"), nil) },
		"host code":           func() (Entry, error) { return NewEntry(KindELF, Arch{}, read(t, "testdata/two.13.0.o"), nil) },
		"unknown compression": func() (Entry, error) { return NewEntry(KindPTX, Arch{}, text, &EntryOptions{Compression: 9}) },
		"long identifier": func() (Entry, error) {
			return NewEntry(KindPTX, Arch{}, text, &EntryOptions{Ident: strings.Repeat("x", 1<<17)})
		},
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// patched returns a copy of b with bytes put at an offset.
func patched(b []byte, off int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[off:], with)
	return b
}

func TestDamagedContainer(t *testing.T) {
	b := read(t, "testdata/two.13.0.speed.fatbin")
	second := 16 + int(binary.LittleEndian.Uint32(b[20:])) + int(binary.LittleEndian.Uint64(b[24:]))
	for _, tt := range []struct {
		name    string
		b       []byte
		err     string
		entries int
	}{
		{"empty", nil, "+0x0: 0 bytes are less than a header", 0},
		{"short", b[:15], "less than a header", 0},
		{"magic", patched(b, 0, 1), "magic 0xba55ed01, want 0xba55ed50", 0},
		{"version", patched(b, 4, 2), "version 2 with a header of 16 bytes, want version 1", 0},
		{"header size", patched(b, 6, 15), "a header of 15 bytes", 0},
		{"header past the end", patched(b, 6, 255, 255), "a header of 65535 bytes in", 0},
		{"cut off", b[:len(b)-1], "bytes of entries, and", 0},
		{"size", patched(b, 8, 255, 255, 255, 255, 255, 255, 255, 255), "18446744073709551615 bytes of entries", 0},
		{"entry header", patched(b, second+4, 8, 0, 0, 0), "entry 2 at +0x588: header: +0x4: 8 bytes, want at least 64", 1},
		{"entry header past the end", patched(b, second+4, 0, 0, 1, 0), "entry 2 at +0x588: header: +0x4: 65536 bytes", 1},
		{"payload past the end", patched(b, second+8, 0, 0, 0, 0, 1), "entry 2 at +0x588: header: +0x8: 4294967296 stored bytes", 1},
		{"payload overflows", patched(b, second+8, 255, 255, 255, 255, 255, 255, 255, 255), "stored bytes", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _, err := ParseContainer(tt.b)
			if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, ErrFormat) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if c != nil && (len(c.Entries) != tt.entries || !bytes.Equal(c.Append(nil), tt.b[:c.size()])) {
				t.Errorf("%d entries, want %d", len(c.Entries), tt.entries)
			}
		})
	}
}

func TestDamagedEntry(t *testing.T) {
	lz := read(t, "testdata/two.13.0.speed.fatbin")
	zs := read(t, "testdata/two.13.0.size.fatbin")
	const e = 16 // the first entry
	huge := []byte{0, 0, 0, 0, 0, 0, 0, 16}
	for _, tt := range []struct {
		name string
		b    []byte
		err  string
		is   error
	}{
		{"LZ4 size too large", patched(lz, e+56, huge...), "above the limit", ErrTooLarge},
		{"zstd size too large", patched(zs, e+56, huge...), "above the limit", ErrTooLarge},
		{"LZ4 can't be so much", patched(lz, e+56, 0, 0, 255), "can't be in 1330 bytes of lz4", ErrFormat},
		{"zstd can't be so much", patched(zs, e+56, 0, 0, 0, 2), "can't be in 884 bytes of zstd", ErrFormat},
		{"LZ4 longer", patched(lz, e+56, 0x41, 0x0d), "content of 3392 bytes, 3393 were promised", ErrFormat},
		{"LZ4 shorter", patched(lz, e+56, 0x3f, 0x0d), "longer than the 3391 bytes", ErrFormat},
		{"zstd longer", patched(zs, e+56, 0x41, 0x0d), "a frame of 3392 bytes, 3393 were promised", ErrFormat},
		{"compressed size", patched(lz, e+16, 255, 255), "65535 compressed bytes of 1336 that are stored", ErrFormat},
		{"LZ4 content", patched(lz, e+64+8, 255, 255, 255, 255, 255), "LZ4: ", ErrFormat},
		{"zstd content", patched(zs, e+64+20, 255, 255, 255, 255, 255), "zstd: ", ErrFormat},
		{"zstd frame", patched(zs, e+64, 0, 0), "zstd: ", ErrFormat},
		{"scrambled", read(t, "testdata/two.13.0.lto.fatbin"), "lto-ir for sm_90a: opaque", ErrOpaque},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustParse(t, tt.b)
			data, err := c.Entries[0].Data(nil)
			if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, tt.is) || data != nil {
				t.Errorf("%d bytes, error %v, want %q", len(data), err, tt.err)
			}
			x := NewInflater(nil)
			defer x.Close()
			if got, _ := x.Append([]byte("kept"), &c.Entries[0]); string(got) != "kept" {
				t.Errorf("dst became %q", got)
			}
		})
	}
	if _, err := mustParse(t, lz).Entries[0].Data(&Options{MaxEntry: 3391}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("above the caller's limit: %v", err)
	}
}

// TestOddEntry: strings that point outside of the header are not there.
func TestOddEntry(t *testing.T) {
	b := read(t, "testdata/kernels.13.0.fatbin")
	for _, p := range [][]byte{patched(b, 16+32, 255, 255, 255, 255), patched(b, 16+36, 255, 255, 255, 255), patched(b, 16+32, 8, 0, 0, 0)} {
		if c := mustParse(t, p); c.Entries[0].Ident() != "" {
			t.Errorf("ident %q", c.Entries[0].Ident())
		}
	}
	second := mustParse(t, b).Entries[1].Offset()
	for _, v := range [][]byte{{255, 255, 255, 255}, {8, 0, 0, 0}, {111, 0, 0, 0}} {
		if c := mustParse(t, patched(b, int(second)+20, v...)); c.Entries[1].Options() != "" {
			t.Errorf("options %q", c.Entries[1].Options())
		}
	}
	c := mustParse(t, patched(b, 16, 0x40, 0))
	if got := c.Entries[0].Kind().String(); got != "kind(0x40)" {
		t.Error(got)
	}
}

func TestNames(t *testing.T) {
	for s, want := range map[string]Arch{"sm_90a": {90, 'a'}, "compute_100f": {100, 'f'}, "80": {80, 0}} {
		if got, err := ParseArch(s); got != want || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "sm_", "sm_90x", "a", "gfx90a"} {
		if a, err := ParseArch(s); err == nil {
			t.Errorf("%s: %v", s, a)
		}
	}
	for _, k := range []Kind{KindPTX, KindELF, KindLTOIR, 0x40} {
		if got, err := ParseKind(k.String()); got != k || err != nil {
			t.Errorf("%s: %v, %v", k, got, err)
		}
	}
	if _, err := ParseKind("sass"); err == nil {
		t.Error("sass is no kind")
	}
	if got := (Flag64Bit | FlagZstd | 1<<40).String(); got != "64bit,zstd,0x10000000000" {
		t.Error(got)
	}
}
