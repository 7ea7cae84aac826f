package fatbin

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
)

// fuzzLimit is what fuzzed entries may decompress to.
const fuzzLimit = 1 << 18

// bounded fails where f allocates more than a multiple of its input and a
// constant.
func bounded(t *testing.T, input int, extra uint64, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	// Errors and names are small change; the multiple is that of an
	// attribute, whose record of 4 bytes becomes a value of 32, kept twice as
	// slices grow, in tables that may overlap.
	if n, limit := after.TotalAlloc-before.TotalAlloc, uint64(input)*256+extra; n > limit {
		t.Fatalf("%d bytes allocated for an input of %d", n, input)
	}
}

func FuzzContainer(f *testing.F) {
	for _, name := range fixtures(f, "two*.fatbin") {
		f.Add(read(f, name))
	}
	f.Add((&Container{}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c *Container
		var n int
		var err error
		bounded(t, len(b), 1<<16, func() { c, n, err = ParseContainer(b) })
		if (err != nil) != errors.Is(err, ErrFormat) {
			t.Fatalf("error %v", err)
		}
		if c == nil {
			return
		}
		if got := c.Append(nil); !bytes.Equal(got, b[:n]) {
			t.Fatalf("written in another way than read")
		}
		bounded(t, len(b), uint64(len(c.Entries)+1)*fuzzLimit+1<<23, func() {
			x := NewInflater(&Options{MaxEntry: fuzzLimit})
			defer x.Close()
			names := NewNamer("x")
			var buf []byte
			for i := range c.Entries {
				e := &c.Entries[i]
				describe(&Container{Entries: c.Entries[i : i+1]})
				if name := names.Next(c, e); name == "" || len(name) > 255 {
					t.Fatalf("name %q", name)
				}
				data, err := x.Append(buf[:0], e)
				if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrOpaque) {
					t.Fatalf("error %v", err)
				}
				if err == nil {
					buf = data
				}
			}
		})
	})
}

func FuzzCubin(f *testing.F) {
	for _, image := range cubinsIn(f, "testdata/libtwo.13.0.so") {
		f.Add(image)
	}
	f.Add(cubinsIn(f, "testdata/two.11.8.debug.fatbin")[0])
	f.Add(read(f, "testdata/kernels.11.8.sm_80.cubin"))
	f.Fuzz(func(t *testing.T, b []byte) {
		bounded(t, len(b), 1<<17, func() {
			c, err := ParseCubin(b)
			if err != nil && !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v", err)
			}
			if c == nil {
				return
			}
			for i := range c.Kernels {
				if c.Kernels[i].Name == "" && len(c.Kernels[i].Attrs) > 0 {
					t.Fatal("a kernel without a name has attributes")
				}
			}
		})
		if n, err := Extent(bytes.NewReader(b), 1<<20); err == nil && (n < 0 || n > 1<<20) {
			t.Fatalf("extent %d", n)
		}
	})
}

// FuzzInfo gives a cubin other attributes, in records of any kind.
func FuzzInfo(f *testing.F) {
	image := read(f, "testdata/kernels.13.0.sm_90a.cubin")
	file, err := parseELF("cubin", image)
	if err != nil {
		f.Fatal(err)
	}
	for i := range file.sections {
		if file.sections[i].Type == shtNVInfo {
			f.Add(file.bytes(uint32(i)), uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, info []byte, which uint8) {
		b := bytes.Clone(image)
		left := info
		for i := range file.sections {
			s := &file.sections[(i+int(which))%len(file.sections)]
			if s.Type != shtNVInfo || len(left) == 0 {
				continue
			}
			n := copy(b[s.Offset:s.Offset+s.Size], left)
			left = left[n:]
		}
		bounded(t, len(b), 1<<17, func() {
			c, err := ParseCubin(b)
			if err != nil && !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v", err)
			}
			if c == nil {
				return
			}
			for _, a := range c.Attrs {
				a.Words()
				_ = a.ID.String()
			}
		})
		e, err := NewCubinEditor(b, nil)
		if err != nil {
			return
		}
		for i := range e.Cubin().Kernels {
			kc, err := e.Code(e.Cubin().Kernels[i].Name)
			if err != nil {
				continue
			}
			for _, off := range kc.Listed {
				if off%instructionSize != 0 || uint64(off) >= uint64(len(kc.Code)) {
					t.Fatalf("%#x is no instruction of %s", off, kc.Name)
				}
			}
			e.Externs(kc.Name)
			_ = e.Set(kc.Name, &CodeChange{Code: grown(kc.Code, 3), Registers: 64, Exits: []uint32{0x10}, Stack: 16})
		}
		if _, err := e.Bytes(); err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrNotEditable) {
			t.Fatal(err)
		}
	})
}

func FuzzHostELF(f *testing.F) {
	for _, name := range []string{"two.13.0.o", "libtwo.13.0.so", "libtwo.13.0.a", "two.13.0.lto.fatbin"} {
		f.Add(read(f, "testdata/"+name), false)
		f.Add(read(f, "testdata/"+name), true)
	}
	f.Add([]byte(".version 8.0\n.target sm_90a\n.entry k(){ret;}"), false)
	f.Fuzz(func(t *testing.T, b []byte, everywhere bool) {
		bounded(t, len(b), 1<<17, func() {
			file := NewFile("f", b, &Options{Everywhere: everywhere, MaxEntry: fuzzLimit})
			for c, err := range file.Containers() {
				if err != nil && !errors.Is(err, ErrFormat) {
					t.Fatalf("error %v", err)
				}
				if c == nil || c.Offset < 0 {
					continue
				}
				if n := int64(c.size()); c.Offset+n > int64(len(b)) || !bytes.Equal(c.Append(nil), b[c.Offset:c.Offset+n]) {
					t.Fatalf("the container at 0x%x isn't what is there", c.Offset)
				}
			}
		})
	})
}
