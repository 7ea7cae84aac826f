package fatbin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/pierrec/lz4/v4"
)

// bigELF writes a shared library of about the given size whose .nv_fatbin holds
// containers of three entries, padded to 16, as a machine-learning library has.
// It returns the number of entries.
func bigELF(tb testing.TB, name string, size int) int {
	tb.Helper()
	var c Container
	payload := bytes.Repeat([]byte("code for three generations of GPUs.."), 20_000)
	for _, sm := range []uint32{80, 90, 100} {
		e, err := NewEntry(0x40, Arch{SM: sm}, payload[:len(payload)/4*int(sm/40)], nil)
		if err != nil {
			tb.Fatal(err)
		}
		c.Entries = append(c.Entries, e)
	}
	unit := c.Append(nil)
	unit = append(unit, make([]byte, 16-len(unit)%16)...)
	n := size / len(unit)
	names := "\x00.shstrtab\x00.nv_fatbin\x00"
	le := binary.LittleEndian
	head := make([]byte, 64+3*64+len(names))
	copy(head, "\x7fELF\x02\x01\x01")
	le.PutUint16(head[16:], 3)
	le.PutUint16(head[18:], 62)
	le.PutUint64(head[40:], 64)
	le.PutUint16(head[58:], 64)
	le.PutUint16(head[60:], 3)
	le.PutUint16(head[62:], 1)
	for i, s := range []struct{ name, typ, off, size int }{{}, {1, 3, 256, len(names)}, {11, shtProgbits, 1 << 12, n * len(unit)}} {
		h := head[64+64*i:]
		le.PutUint32(h, uint32(s.name))
		le.PutUint32(h[4:], uint32(s.typ))
		le.PutUint64(h[24:], uint64(s.off))
		le.PutUint64(h[32:], uint64(s.size))
	}
	copy(head[256:], names)
	f, err := os.Create(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(head, make([]byte, 1<<12-len(head))...)); err != nil {
		tb.Fatal(err)
	}
	for range n {
		if _, err := f.Write(unit); err != nil {
			tb.Fatal(err)
		}
	}
	return 3 * n
}

// BenchmarkList opens a library of 256 MiB and lists its entries: by sections,
// by a search of the whole file, and reading the file for comparison.
func BenchmarkList(b *testing.B) {
	const size = 256 << 20
	name := filepath.Join(b.TempDir(), "lib.so")
	entries := bigELF(b, name, size)
	list := func(b *testing.B, o *Options) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			f, err := Open(name, o)
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for c, err := range f.Containers() {
				if err != nil {
					b.Fatal(err)
				}
				for i := range c.Entries {
					if c.Entries[i].Arch().SM != 0 && c.Entries[i].Size() > 0 {
						n++
					}
				}
			}
			if n != entries {
				b.Fatalf("%d entries, want %d", n, entries)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("sections", func(b *testing.B) { list(b, nil) })
	b.Run("search", func(b *testing.B) { list(b, &Options{Everywhere: true}) })
	b.Run("cat", func(b *testing.B) {
		b.SetBytes(size)
		buf := make([]byte, 128<<10)
		for b.Loop() {
			f, err := os.Open(name)
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
			if err != nil || n < size/2 {
				b.Fatal(n, err)
			}
			f.Close()
		}
	})
}

// BenchmarkListSmall: many small containers, as cuFFT's.
func BenchmarkListSmall(b *testing.B) {
	unit := read(b, "testdata/two.13.0.speed.fatbin")
	image := bytes.Repeat(unit, 20_000)
	f := NewFile("x", image, nil)
	b.SetBytes(int64(len(image)))
	for b.Loop() {
		n := 0
		for c, err := range f.Containers() {
			if err != nil {
				b.Fatal(err)
			}
			n += len(c.Entries)
		}
		if n != 40_000 {
			b.Fatal(n)
		}
	}
}

// BenchmarkData decompresses cubins and PTX; the throughput is of the content.
func BenchmarkData(b *testing.B) {
	for _, name := range []string{"kernels.12.9.fatbin", "kernels.13.0.fatbin"} {
		c := mustParse(b, read(b, "testdata/"+name))
		for i := range c.Entries {
			e := &c.Entries[i]
			b.Run(fmt.Sprintf("%s/%s-%s", e.Compression(), e.Kind(), e.Arch()), func(b *testing.B) {
				x := NewInflater(nil)
				defer x.Close()
				b.SetBytes(int64(e.Size()))
				b.ReportAllocs()
				var buf []byte
				for b.Loop() {
					var err error
					if buf, err = x.Append(buf[:0], e); err != nil || len(buf) == 0 {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLZ4 compares the block decoder with the other one, on the same block.
func BenchmarkLZ4(b *testing.B) {
	c := mustParse(b, read(b, "testdata/kernels.12.9.fatbin"))
	src := c.Entries[0].Raw()
	dst := make([]byte, c.Entries[0].Size())
	for name, decode := range map[string]func(src, dst []byte) (int, error){
		"ours":  func(src, dst []byte) (int, error) { return decodeLZ4(dst, src) },
		"other": lz4.UncompressBlock,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				if n, err := decode(src, dst); n != len(dst) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(dst)))
		var out []byte
		for b.Loop() {
			out = appendLZ4(out[:0], dst)
		}
		if n, err := decodeLZ4(make([]byte, len(dst)), out); n != len(dst) || err != nil {
			b.Fatal(n, err)
		}
	})
}

// BenchmarkParseCubin reads the kernels of a cubin.
func BenchmarkParseCubin(b *testing.B) {
	image := read(b, "testdata/kernels.13.0.sm_90a.cubin")
	b.SetBytes(int64(len(image)))
	b.ReportAllocs()
	for b.Loop() {
		if c, err := ParseCubin(image); err != nil || len(c.Kernels) != 5 {
			b.Fatal(err)
		}
	}
}
