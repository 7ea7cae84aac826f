package rm

import (
	"fmt"
	"testing"
)

// BenchmarkOpen is what the first use of the package costs; before it, the
// package costs nothing.
func BenchmarkOpen(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := open(packed); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoad is a Load after the first.
func BenchmarkLoad(b *testing.B) {
	v := version(b, "580.142")
	b.ReportAllocs()
	for b.Loop() {
		if !Load(v).Exact() {
			b.Fatal("not exact")
		}
	}
}

// BenchmarkDecodeAll makes all objects of one version.
func BenchmarkDecodeAll(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		t, err := open(packed)
		if err != nil {
			b.Fatal(err)
		}
		a := t.load(Version{})
		n := count(a.Controls(), nil) + count(a.Classes(), nil) + count(a.Structs(), nil) + count(a.Escapes(), nil)
		if n < 4000 {
			b.Fatal(n)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	a := load(b, "580.142")
	for name, f := range map[string]func() bool{
		"Control":        func() bool { return a.Control(0x20800110) != nil },
		"ControlUnknown": func() bool { return a.Control(0x2080a083) == nil },
		"Class":          func() bool { return a.Class(0xc86f) != nil },
		"Escape":         func() bool { return a.Escape(EscRMControl) != nil },
		"UVM":            func() bool { return a.UVM(33) != nil },
		"Struct":         func() bool { return a.Struct("NVOS54_PARAMETERS") != nil },
		"Status":         func() bool { return a.StatusName(0x1f) != "" },
		"ControlLayout":  func() bool { c, _ := a.ControlLayout(0x20800110, 132); return c != nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !f() {
					b.Fatal("look-up failed")
				}
			}
		})
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	a := load(t, "580.142")
	domain := a.Struct("NVOS32_PARAMETERS").Lookup("function").Domain
	n := testing.AllocsPerRun(100, func() {
		a.Control(0x20800110)
		a.Control(0x2080a083)
		a.Class(0xc86f)
		a.Escape(EscRMControl)
		a.UVM(33)
		a.Struct("NVOS54_PARAMETERS")
		a.StatusName(0x1f)
		a.Category(0x20800110)
		a.ControlLayout(0x20800110, 132)
		domain.Name(2)
	})
	if n != 0 {
		t.Errorf("look-ups allocate %v times", n)
	}
}

// BenchmarkTree makes and frees an object in a tree of a given number of others:
// the figures must not grow with it.
func BenchmarkTree(b *testing.B) {
	class := load(b, "580.142").Class(0x40)
	for _, n := range []uint32{1e3, 1e4, 1e5, 1e6} {
		b.Run(fmt.Sprintf("live=%d", n), func(b *testing.B) {
			t := NewTree(&TreeOptions{Forget: true})
			at := At{Time: 1, PID: 1, File: 1}
			op := AllocOp{At: at, Ref: Ref{1, 1}, ClassID: 0x41}
			t.Alloc(&op)
			for h := range n {
				t.Alloc(&AllocOp{At: at, Ref: Ref{1, h + 2}, Parent: 1, ClassID: 0x40, Class: class, Attr: Attr{Size: 4096}})
			}
			h := n + 2
			b.ReportAllocs()
			for b.Loop() {
				r := Ref{1, h}
				t.Alloc(&AllocOp{At: at, Ref: r, Parent: 1, ClassID: 0x40, Class: class, Attr: Attr{Size: 4096, Deps: []uint32{2}}})
				t.Map(&MapOp{At: at, Ref: r, Cookie: 1, Length: 4096, Through: 7})
				t.Mmap(At{Time: 1, PID: 1, File: 7}, 0x1000, 4096)
				t.Free(at, r)
			}
			if t.Live() != int(n)+1 {
				b.Fatal(t.Live())
			}
		})
	}
}
