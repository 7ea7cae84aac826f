package nvattach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// textSink collects PTX.
type textSink struct {
	strings.Builder
	n int
}

func (s *textSink) Line(text string) { s.WriteString("\t" + text + "\n") }

func (s *textSink) NewReg(t ptx.Type) string {
	s.n++
	r := fmt.Sprintf("%%nvt%d", s.n)
	s.Line(".reg " + t.String() + " " + r + ";")
	return r
}

func (s *textSink) NewLabel() string {
	s.n++
	return fmt.Sprintf("$nvt%d", s.n)
}

// regBytes is memory that is in registers of 64 bits.
type regBytes struct {
	c    *emit.Code
	regs []string
}

func (r *regBytes) Load(off uint64, size int) string {
	if size == 8 && off%8 == 0 {
		return r.regs[off/8]
	}
	d := r.c.Reg(ptx.B64)
	r.c.F("shr.u64 %s, %s, %d;", d, r.regs[off/8], 8*(off%8))
	w := r.c.Reg(ptx.B32)
	r.c.F("cvt.u32.u64 %s, %s;", w, d)
	if size < 4 {
		r.c.F("and.b32 %s, %s, %#x;", w, w, 1<<(8*size)-1)
	}
	return w
}

// gpu is a machine with maps in its memory.
type gpu struct {
	tb      testing.TB
	machine *emu.Machine
	maps    *mapmem.Maps

	assembled map[string]bool // texts that ptxas has seen
}

// newMachine returns a machine that runs blocks at the same time: programs may race
// as they do on a GPU, but not where the race detector watches.
func newMachine() *emu.Machine {
	if need.Race {
		return emu.New(&emu.Options{Workers: 1})
	}
	return emu.New(nil)
}

func newGPU(tb testing.TB, o *mapmem.MapOptions, defs ...*object.MapDef) *gpu {
	tb.Helper()
	g := &gpu{tb: tb, machine: newMachine(), assembled: map[string]bool{}}
	opt := mapmem.MapOptions{SMs: g.machine.Device().SMs, Threads: 4096, PrintBytes: 1 << 20, RingBytes: 4 << 20}
	if o != nil {
		opt.AddOnly, opt.Slots = o.AddOnly, o.Slots
		mapmem.SetDefault(&o.RingBytes, opt.RingBytes)
		opt.RingBytes = o.RingBytes
	}
	maps, err := mapmem.NewMaps([]*object.Object{{Name: "test", Maps: defs}}, &opt)
	if err != nil {
		tb.Fatal(err)
	}
	g.use(maps)
	return g
}

func (g *gpu) use(maps *mapmem.Maps) {
	g.tb.Helper()
	g.maps = maps
	r, err := g.machine.Alloc(maps.Size(), "maps")
	if err != nil {
		g.tb.Fatal(err)
	}
	if err := maps.Place(r.Base); err != nil {
		g.tb.Fatal(err)
	}
	if err := maps.Init(g.machine, 4711, 0); err != nil {
		g.tb.Fatal(err)
	}
}

// run executes a kernel without parameters whose body is written by fn.
func (g *gpu) run(grid, block emu.Dim3, fn func(c *emit.Code)) {
	g.tb.Helper()
	var s textSink
	fn(&emit.Code{S: &s, M: g.maps})
	g.launch(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n"+s.String()+"\tret;\n}\n", "k", grid, block, nil)
}

func (g *gpu) launch(src, kernel string, grid, block emu.Dim3, params []byte) emu.Stats {
	g.tb.Helper()
	f, err := ptx.Parse("k.ptx", src, nil)
	if err != nil {
		g.tb.Fatalf("%v\n%s", err, src)
	}
	if r := f.Check(); len(r.Errors)+len(r.Warnings) > 0 {
		g.tb.Fatalf("woven PTX: %v %v", r.Errors, r.Warnings)
	}
	if !g.assembled[src] {
		g.assembled[src] = true
		assemble(g.tb, src, "sm_90")
	}
	mod, err := g.machine.Load(f)
	if err != nil {
		g.tb.Fatalf("%v\n%s", err, src)
	}
	k, err := mod.Kernel(kernel)
	if err != nil {
		g.tb.Fatalf("%v\n%s", err, src)
	}
	st, err := g.machine.Launch(context.Background(), k, &emu.LaunchConfig{Grid: grid, Block: block, Params: params, Budget: 2e9})
	if err != nil {
		g.tb.Fatalf("%v\n%s", err, src)
	}
	return st
}

func (g *gpu) table(name string) *mapmem.Table {
	g.tb.Helper()
	t, err := g.maps.Read(g.machine, g.maps.Find(name))
	if err != nil {
		g.tb.Fatal(err)
	}
	return t
}

func def(name string, t object.MapType, key, value, entries uint32) *object.MapDef {
	return &object.MapDef{Name: name, Type: t, KeySize: key, ValueSize: value, MaxEntries: entries}
}

func TestHashOnGPU(t *testing.T) {
	// 1,024 threads insert 64 keys and add to them; nothing may be lost or twice.
	for _, keySize := range []uint32{1, 2, 3, 4, 6, 8} {
		g := newGPU(t, nil, def("h", object.MapHash, keySize, 8, 64))
		h := g.maps.Find("h")
		g.run(emu.Dim3{X: 8}, emu.Dim3{X: 128}, func(c *emit.Code) {
			k := c.ThreadIndex()
			c.F("and.b64 %s, %s, 63;", k, k)
			key := &regBytes{c, []string{k}}
			one := c.Result(0)
			again, done := c.Label(), c.Label()
			p := c.Reg(ptx.Pred)
			c.At(again)
			a := c.Lookup(h, key, false)
			c.F("setp.ne.u64 %s, %s, 0;", p, a)
			c.F("@%s red.global.add.u64 [%s], 1;", p, a)
			c.F("@%s bra %s;", p, done)
			c.Update(h, key, &regBytes{c, []string{one}}, "1", false, false, true)
			c.F("bra %s;", again)
			c.At(done)
		})
		tab := g.table("h")
		if len(tab.Rows) != 64 || tab.Refused != 0 {
			t.Fatalf("key of %d bytes: %d entries, %d refused; 64 and 0 wanted", keySize, len(tab.Rows), tab.Refused)
		}
		for i := range tab.Rows {
			if v := binary.LittleEndian.Uint64(tab.Rows[i].Value); v != 16 {
				t.Errorf("key of %d bytes, %x: %d, want 16", keySize, tab.Rows[i].Key, v)
			}
		}
	}
}

func TestHashFull(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapHash, 4, 8, 10), def("r", object.MapArray, 4, 8, 64))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 40}, func(c *emit.Code) {
		k := c.ThreadIndex()
		res := c.Update(h, &regBytes{c, []string{k}}, &regBytes{c, []string{k}}, "0", false, false, true)
		c.Update(r, &regBytes{c, []string{k}}, &regBytes{c, []string{res}}, "0", false, false, true)
	})
	tab := g.table("h")
	if len(tab.Rows) != 10 || tab.Refused != 30 {
		t.Errorf("%d entries, %d refused; want 10, 30", len(tab.Rows), tab.Refused)
	}
	ok, full := 0, 0
	for _, row := range g.table("r").Rows[:40] {
		switch values.Signed(row.Value) {
		case 0:
			ok++
		case helper.E2BIG:
			full++
		}
	}
	if ok != 10 || full != 30 {
		t.Errorf("%d results 0 and %d -E2BIG, want 10 and 30", ok, full)
	}
}

func TestHashFlagsAndDelete(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapHash, 8, 16, 16), def("r", object.MapArray, 4, 8, 16))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	n := uint64(0)
	want := []int64{helper.ENOENT, 0, helper.EEXIST, 0, 0, helper.ENOENT, 0, 0, helper.EINVAL}
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 1}, func(c *emit.Code) {
		key := &regBytes{c, []string{c.Result(0x1_0000_0002)}}
		val := func(v int64) *regBytes { return &regBytes{c, []string{c.Result(v), c.Result(v + 1)}} }
		note := func(res string) {
			c.Update(r, &regBytes{c, []string{c.Result(int64(n))}}, &regBytes{c, []string{res}}, "0", false, false, true)
			n++
		}
		note(c.Update(h, key, val(1), "2", false, false, true))
		note(c.Update(h, key, val(2), "1", false, false, true))
		note(c.Update(h, key, val(3), "1", false, false, true))
		note(c.Update(h, key, val(4), "2", false, false, true))
		note(c.Remove(h, key))
		note(c.Remove(h, key))
		note(c.Lookup(h, key, false))
		note(c.Update(h, key, val(5), "0", false, false, true))
		note(c.Update(h, key, val(6), "3", false, false, true))
	})
	for i, w := range want {
		if v := values.Signed(g.table("r").Rows[i].Value); v != w {
			t.Errorf("step %d: %d, want %d", i, v, w)
		}
	}
	rows := g.table("h").Rows
	if len(rows) != 1 || binary.LittleEndian.Uint64(rows[0].Value) != 5 || binary.LittleEndian.Uint64(rows[0].Value[8:]) != 6 {
		t.Errorf("rows %v", rows)
	}
}

// TestArrayFlags: an entry of an array is always there, and flags that do not exist are
// refused, but by bpftime's arrays; whether they are known or not.
func TestArrayFlags(t *testing.T) {
	g := newGPU(t, nil, def("a", object.MapArray, 4, 8, 2), def("b", object.MapGPUArray, 4, 8, 2), def("r", object.MapArray, 4, 8, 16))
	a, b, r := g.maps.Find("a"), g.maps.Find("b"), g.maps.Find("r")
	want := []int64{0, helper.EEXIST, 0, helper.EINVAL, helper.EINVAL, 0}
	for _, known := range []bool{true, false} {
		n := int64(0)
		g.run(emu.Dim3{X: 1}, emu.Dim3{X: 1}, func(c *emit.Code) {
			note := func(x *mapmem.Map, flags string) {
				if !known {
					v, err := strconv.ParseInt(flags, 0, 64)
					if err != nil {
						t.Fatal(err)
					}
					flags = c.Result(v)
				}
				word := func(v int64) *regBytes { return &regBytes{c, []string{c.Result(v)}} }
				res := c.Update(x, word(0), word(n), flags, false, false, true)
				c.Update(r, word(n), &regBytes{c, []string{c.Result(0)}}, "0", false, false, true)
				c.Update(r, word(n), &regBytes{c, []string{res}}, "0", false, false, true)
				n++
			}
			for _, flags := range []string{"0", "1", "2", "3", "0x100000000"} {
				note(a, flags)
			}
			note(b, "77")
		})
		for i, w := range want {
			if v := values.Signed(g.table("r").Rows[i].Value); v != w {
				t.Errorf("known %v, step %d: %d, want %d", known, i, v, w)
			}
		}
	}
}

// TestHashHostAgrees inserts on the host and finds on the GPU, and the reverse.
func TestHashHostAgrees(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapHash, 5, 3, 100), def("r", object.MapArray, 4, 8, 100))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	key := func(i uint64) []byte { return binary.LittleEndian.AppendUint64(nil, i*0x01010101)[:5] }
	for i := range uint64(50) {
		if err := g.maps.Update(g.machine, h, key(i), []byte{byte(i), 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 100}, func(c *emit.Code) {
		i := c.ThreadIndex()
		k, v := c.Reg(ptx.B64), c.Reg(ptx.B64)
		c.F("mul.lo.u64 %s, %s, 0x01010101;", k, i)
		a := c.Lookup(h, &regBytes{c, []string{k}}, false)
		p := c.Reg(ptx.Pred)
		c.F("mov.u64 %s, 1000;", v)
		c.F("setp.ne.u64 %s, %s, 0;", p, a)
		c.F("@%s ld.global.u8 %s, [%s];", p, v, a)
		c.Update(r, &regBytes{c, []string{i}}, &regBytes{c, []string{v}}, "0", false, false, true)
		c.Update(h, &regBytes{c, []string{k}}, &regBytes{c, []string{i}}, "1", false, false, true)
	})
	for i, row := range g.table("r").Rows {
		want := uint64(i)
		if i >= 50 {
			want = 1000
		}
		if binary.LittleEndian.Uint64(row.Value) != want {
			t.Errorf("entry %d: %d, want %d", i, binary.LittleEndian.Uint64(row.Value), want)
		}
	}
	for i := range uint64(100) {
		v, err := g.maps.Lookup(g.machine, h, key(i))
		if err != nil || v[0] != byte(i) {
			t.Errorf("key %d: %v, %v", i, v, err)
		}
	}
	if err := g.maps.Update(g.machine, h, key(1000), []byte{1, 2, 3}); !errors.Is(err, mapmem.ErrFull) {
		t.Errorf("101st key: %v, want ErrFull", err)
	}
	if _, err := g.maps.Lookup(g.machine, h, key(1000)); !errors.Is(err, mapmem.ErrNoKey) {
		t.Errorf("absent key: %v, want ErrNoKey", err)
	}
}

func TestPerSMHash(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapPerCPUHash, 4, 8, 32))
	h := g.maps.Find("h")
	g.run(emu.Dim3{X: 16}, emu.Dim3{X: 64}, func(c *emit.Code) {
		k := c.ThreadIndex()
		c.F("and.b64 %s, %s, 7;", k, k)
		key, zero := &regBytes{c, []string{k}}, &regBytes{c, []string{c.Result(0)}}
		c.Update(h, key, zero, "1", false, false, true)
		c.F("red.global.add.u64 [%s], 1;", c.Lookup(h, key, false))
	})
	tab := g.table("h")
	if len(tab.Rows) != 8 {
		t.Fatalf("%d entries, want 8", len(tab.Rows))
	}
	for i := range tab.Rows {
		if tab.Rows[i].Total() != 128 || len(tab.Rows[i].Each) < 2 {
			t.Errorf("key %x: %d on %d multiprocessors, want 128 on several", tab.Rows[i].Key, tab.Rows[i].Total(), len(tab.Rows[i].Each))
		}
	}
}

func TestThreadMap(t *testing.T) {
	g := newGPU(t, nil, def("t", object.MapGPUThreadArray, 4, 12, 3))
	x := g.maps.Find("t")
	// 2*3*5 blocks of 7*2*11 threads: 4,620, of which 4,096 have room.
	g.run(emu.Dim3{X: 2, Y: 3, Z: 5}, emu.Dim3{X: 7, Y: 2, Z: 11}, func(c *emit.Code) {
		i, p := c.ThreadIndex(), c.Reg(ptx.Pred)
		a := c.Lookup(x, &regBytes{c, []string{c.Result(2)}}, false)
		c.F("setp.ne.u64 %s, %s, 0;", p, a)
		c.F("@%s st.global.u64 [%s], %s;", p, a, i)
		c.F("@%s st.global.u32 [%s+8], 1;", p, a)
		c.Lookup(x, &regBytes{c, []string{c.Result(3)}}, false) // beyond: no counting, no address
	})
	tab := g.table("t")
	if tab.Refused != 2*(4620-4096) {
		t.Errorf("%d refused, want %d", tab.Refused, 2*(4620-4096))
	}
	if len(tab.Rows[2].Each) != 4096 || len(tab.Rows[0].Each) != 0 {
		t.Fatalf("%d values", len(tab.Rows[2].Each))
	}
	for _, p := range tab.Rows[2].Each {
		if binary.LittleEndian.Uint64(p.Value) != p.Index {
			t.Fatalf("thread %d has %d", p.Index, binary.LittleEndian.Uint64(p.Value))
		}
	}
	row, err := g.maps.Lookup(g.machine, x, mapmem.IndexKey(2))
	if err != nil || len(row) != 4096*12 || binary.LittleEndian.Uint64(row[12*9:]) != 9 {
		t.Errorf("row of %d bytes, %v", len(row), err)
	}
}

func TestRing(t *testing.T) {
	g := newGPU(t, nil, def("r", object.MapRingbuf, 0, 0, 4096))
	x := g.maps.Find("r")
	rd := g.maps.NewReader(x)
	var got []uint64
	drain := func() {
		t.Helper()
		if err := rd.Drain(g.machine, true, func(r mapmem.Record) {
			if len(r.Data) == 40 {
				got = append(got, binary.LittleEndian.Uint64(r.Data[32:]))
			} else if len(r.Data) == 5 {
				got = append(got, 1_000_000+uint64(binary.LittleEndian.Uint32(r.Data)))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	write := func(grid, block uint32) {
		g.run(emu.Dim3{X: grid}, emu.Dim3{X: block}, func(c *emit.Code) {
			i := c.ThreadIndex()
			c.Output(x, &regBytes{c, []string{i, i, i, i, i}}, 40, "40", helper.EAGAIN)
			a, p := c.RingReserve(x, 5), c.Reg(ptx.Pred)
			skip := c.Label()
			c.F("setp.eq.u64 %s, %s, 0;", p, a)
			c.F("@%s bra %s;", p, skip)
			c.F("st.global.u32 [%s], %s;", a, c.Low(i))
			odd := c.Label()
			c.F("and.b64 %s, %s, 1;", i, i)
			c.F("setp.ne.u64 %s, %s, 0;", p, i)
			c.F("@%s bra %s;", p, odd)
			c.RingSubmit(a, false)
			c.F("bra %s;", skip)
			c.At(odd)
			c.RingSubmit(a, true)
			c.At(skip)
		})
	}
	// Several laps without loss, drained in between.
	for range 50 {
		got = nil
		write(1, 32)
		drain()
		slices.Sort(got)
		if len(got) != 48 || got[31] != 31 || got[32] != 1_000_000 || got[47] != 1_000_030 {
			t.Fatalf("%d records: %v", len(got), got)
		}
	}
	if n, err := rd.Dropped(g.machine); n != 0 || err != nil {
		t.Fatalf("%d dropped, %v", n, err)
	}
	// More than fits: what was written and what was dropped add up, and the ring
	// goes on afterwards.
	got = nil
	write(1, 1024)
	drain()
	n, err := rd.Dropped(g.machine)
	if err != nil || n == 0 || rd.Lost != 0 {
		t.Fatalf("%d dropped, %d lost, %v", n, rd.Lost, err)
	}
	seen := uint64(len(got))
	if seen == 0 || seen+n > 2048 || seen+n < 2048-1024 {
		t.Errorf("%d seen and %d dropped", seen, n)
	}
	got = nil
	write(1, 32)
	drain()
	if len(got) != 48 {
		t.Errorf("after the overflow %d records, want 48", len(got))
	}
	if tab := g.table("r"); tab.Refused != n {
		t.Errorf("table says %d, want %d", tab.Refused, n)
	}
}

func TestPrintk(t *testing.T) {
	g := newGPU(t, nil)
	p := g.maps.NewPrinter(func() []string { return []string{"thread %llu of %d: %s\n"} })
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 3}, func(c *emit.Code) {
		i := c.ThreadIndex()
		c.Print(1, []string{i, c.Result(-1), c.Result(1)}, nil, 0, false, 10)
		c.Print(0, []string{i}, &regBytes{c, []string{c.Result(int64(binary.LittleEndian.Uint64([]byte("hi %u!\n\x00"))))}}, 8, false, 8)
		c.Print(0, nil, &regBytes{c, []string{c.Result(int64(binary.LittleEndian.Uint64([]byte("line%d\x00\x00"))))}}, 8, true, 8)
	})
	var lines []string
	if err := p.Drain(g.machine, true, func(_ int, s string) { lines = append(lines, s) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	want := []string{
		"hi 0!\n", "hi 1!\n", "hi 2!\n", "line%d\n", "line%d\n", "line%d\n",
		"thread 0 of -1: (unreadable 0x1)\n", "thread 1 of -1: (unreadable 0x1)\n", "thread 2 of -1: (unreadable 0x1)\n",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
}

func TestStripedArray(t *testing.T) {
	g := newGPU(t, &mapmem.MapOptions{AddOnly: func(*object.MapDef) []mapmem.AddField {
		return []mapmem.AddField{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}}
	}}, def("a", object.MapArray, 4, 16, 4))
	x := g.maps.Find("a")
	if !x.Striped() {
		t.Fatal("not striped")
	}
	init := binary.LittleEndian.AppendUint64(nil, 100)
	if err := g.maps.Update(g.machine, x, mapmem.IndexKey(1), append(init, 5, 0, 0, 0, 9, 9, 9, 9)); err != nil {
		t.Fatal(err)
	}
	g.run(emu.Dim3{X: 20}, emu.Dim3{X: 50}, func(c *emit.Code) {
		a := c.Lookup(x, &regBytes{c, []string{c.Result(1)}}, false)
		c.F("red.global.add.u64 [%s], 3;", a)
		c.F("red.global.add.u32 [%s+8], 1;", a)
	})
	v := g.table("a").Rows[1].Value
	if binary.LittleEndian.Uint64(v) != 3100 || binary.LittleEndian.Uint32(v[8:]) != 1005 || binary.LittleEndian.Uint32(v[12:]) != 0x09090909 {
		t.Errorf("%x", v)
	}
}

// TestOldTarget: code for GPUs without a memory model has none of its modifiers.
func TestOldTarget(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapHash, 4, 8, 64), def("r", object.MapRingbuf, 0, 0, 1<<16))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	var s textSink
	c := &emit.Code{S: &s, M: g.maps, Weak: true, Apart: true}
	k := c.ThreadIndex()
	key := &regBytes{c, []string{k}}
	c.Update(h, key, key, "0", false, false, true)
	p := c.Reg(ptx.Pred)
	c.F("setp.gt.u64 %s, %s, 31;", p, k)
	skip := c.Label()
	c.F("@%s bra %s;", p, skip)
	c.Remove(h, key)
	c.At(skip)
	c.Output(r, key, 8, "8", helper.EAGAIN)
	c.Print(1, []string{k}, nil, 0, false, 0)
	src := ".version 5.0\n.target sm_60\n.address_size 64\n.visible .entry k()\n{\n" + s.String() + "\tret;\n}\n"
	assemble(t, src, "sm_75")
	g.assembled[src] = true
	g.launch(src, "k", emu.Dim3{X: 1}, emu.Dim3{X: 64}, nil)
	if n := len(g.table("h").Rows); n != 32 {
		t.Errorf("%d entries, want 32", n)
	}
	n := 0
	if err := g.maps.NewReader(r).Drain(g.machine, true, func(mapmem.Record) { n++ }); err != nil || n != 64 {
		t.Errorf("%d records, %v", n, err)
	}
}

// TestHashChurn inserts and deletes many more keys than the map has room for at once.
func TestHashChurn(t *testing.T) {
	g := newGPU(t, nil, def("h", object.MapHash, 8, 24, 256), def("bad", object.MapArray, 4, 8, 2))
	h, bad := g.maps.Find("h"), g.maps.Find("bad")
	g.run(emu.Dim3{X: 4}, emu.Dim3{X: 64}, func(c *emit.Code) {
		k, p := c.ThreadIndex(), c.Reg(ptx.Pred)
		key := &regBytes{c, []string{k}}
		count := func(i int64, res string) {
			c.F("setp.ne.u64 %s, %s, 0;", p, res)
			c.F("@%s red.global.add.u64 [%s], 1;", p, c.Lookup(bad, &regBytes{c, []string{c.Result(i)}}, false))
		}
		loop := c.Label()
		c.At(loop)
		count(0, c.Update(h, key, &regBytes{c, []string{k, k, k}}, "1", false, false, true))
		count(1, c.Remove(h, key))
		c.F("add.u64 %s, %s, 256;", k, k)
		c.F("setp.lt.u64 %s, %s, %d;", p, k, 256*40)
		c.F("@%s bra %s;", p, loop)
	})
	tab := g.table("h")
	if a, b := g.table("bad").Rows[0].Total(), g.table("bad").Rows[1].Total(); a != 0 || b != 0 || len(tab.Rows) != 0 || tab.Refused != 0 {
		t.Errorf("%d insertions and %d deletions failed, %d entries left, %d refused", a, b, len(tab.Rows), tab.Refused)
	}
}
