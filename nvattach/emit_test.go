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
	c    *code
	regs []string
}

func (r *regBytes) Load(off uint64, size int) string {
	if size == 8 && off%8 == 0 {
		return r.regs[off/8]
	}
	d := r.c.reg(ptx.B64)
	r.c.f("shr.u64 %s, %s, %d;", d, r.regs[off/8], 8*(off%8))
	w := r.c.reg(ptx.B32)
	r.c.f("cvt.u32.u64 %s, %s;", w, d)
	if size < 4 {
		r.c.f("and.b32 %s, %s, %#x;", w, w, 1<<(8*size)-1)
	}
	return w
}

// gpu is a machine with maps in its memory.
type gpu struct {
	tb      testing.TB
	machine *emu.Machine
	maps    *Maps

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

func newGPU(tb testing.TB, o *MapOptions, defs ...*MapDef) *gpu {
	tb.Helper()
	g := &gpu{tb: tb, machine: newMachine(), assembled: map[string]bool{}}
	opt := MapOptions{SMs: g.machine.Device().SMs, Threads: 4096, PrintBytes: 1 << 20, RingBytes: 4 << 20}
	if o != nil {
		opt.AddOnly, opt.Slots = o.AddOnly, o.Slots
		setDefault(&o.RingBytes, opt.RingBytes)
		opt.RingBytes = o.RingBytes
	}
	maps, err := NewMaps([]*Object{{Name: "test", Maps: defs}}, &opt)
	if err != nil {
		tb.Fatal(err)
	}
	g.use(maps)
	return g
}

func (g *gpu) use(maps *Maps) {
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
func (g *gpu) run(grid, block emu.Dim3, fn func(c *code)) {
	g.tb.Helper()
	var s textSink
	fn(&code{s: &s, m: g.maps})
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

func (g *gpu) table(name string) *Table {
	g.tb.Helper()
	t, err := g.maps.Read(g.machine, g.maps.Find(name))
	if err != nil {
		g.tb.Fatal(err)
	}
	return t
}

func def(name string, t MapType, key, value, entries uint32) *MapDef {
	return &MapDef{Name: name, Type: t, KeySize: key, ValueSize: value, MaxEntries: entries}
}

func TestHashOnGPU(t *testing.T) {
	// 1,024 threads insert 64 keys and add to them; nothing may be lost or twice.
	for _, keySize := range []uint32{1, 2, 3, 4, 6, 8} {
		g := newGPU(t, nil, def("h", MapHash, keySize, 8, 64))
		h := g.maps.Find("h")
		g.run(emu.Dim3{X: 8}, emu.Dim3{X: 128}, func(c *code) {
			k := c.threadIndex()
			c.f("and.b64 %s, %s, 63;", k, k)
			key := &regBytes{c, []string{k}}
			one := c.result(0)
			again, done := c.label(), c.label()
			p := c.reg(ptx.Pred)
			c.at(again)
			a := c.lookup(h, key, false)
			c.f("setp.ne.u64 %s, %s, 0;", p, a)
			c.f("@%s red.global.add.u64 [%s], 1;", p, a)
			c.f("@%s bra %s;", p, done)
			c.update(h, key, &regBytes{c, []string{one}}, "1", false, false, true)
			c.f("bra %s;", again)
			c.at(done)
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
	g := newGPU(t, nil, def("h", MapHash, 4, 8, 10), def("r", MapArray, 4, 8, 64))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 40}, func(c *code) {
		k := c.threadIndex()
		res := c.update(h, &regBytes{c, []string{k}}, &regBytes{c, []string{k}}, "0", false, false, true)
		c.update(r, &regBytes{c, []string{k}}, &regBytes{c, []string{res}}, "0", false, false, true)
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
		case errTooBig:
			full++
		}
	}
	if ok != 10 || full != 30 {
		t.Errorf("%d results 0 and %d -E2BIG, want 10 and 30", ok, full)
	}
}

func TestHashFlagsAndDelete(t *testing.T) {
	g := newGPU(t, nil, def("h", MapHash, 8, 16, 16), def("r", MapArray, 4, 8, 16))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	n := uint64(0)
	want := []int64{errNoEnt, 0, errExist, 0, 0, errNoEnt, 0, 0, errInval}
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 1}, func(c *code) {
		key := &regBytes{c, []string{c.result(0x1_0000_0002)}}
		val := func(v int64) *regBytes { return &regBytes{c, []string{c.result(v), c.result(v + 1)}} }
		note := func(res string) {
			c.update(r, &regBytes{c, []string{c.result(int64(n))}}, &regBytes{c, []string{res}}, "0", false, false, true)
			n++
		}
		note(c.update(h, key, val(1), "2", false, false, true))
		note(c.update(h, key, val(2), "1", false, false, true))
		note(c.update(h, key, val(3), "1", false, false, true))
		note(c.update(h, key, val(4), "2", false, false, true))
		note(c.remove(h, key))
		note(c.remove(h, key))
		note(c.lookup(h, key, false))
		note(c.update(h, key, val(5), "0", false, false, true))
		note(c.update(h, key, val(6), "3", false, false, true))
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
	g := newGPU(t, nil, def("a", MapArray, 4, 8, 2), def("b", MapGPUArray, 4, 8, 2), def("r", MapArray, 4, 8, 16))
	a, b, r := g.maps.Find("a"), g.maps.Find("b"), g.maps.Find("r")
	want := []int64{0, errExist, 0, errInval, errInval, 0}
	for _, known := range []bool{true, false} {
		n := int64(0)
		g.run(emu.Dim3{X: 1}, emu.Dim3{X: 1}, func(c *code) {
			note := func(x *Map, flags string) {
				if !known {
					v, err := strconv.ParseInt(flags, 0, 64)
					if err != nil {
						t.Fatal(err)
					}
					flags = c.result(v)
				}
				word := func(v int64) *regBytes { return &regBytes{c, []string{c.result(v)}} }
				res := c.update(x, word(0), word(n), flags, false, false, true)
				c.update(r, word(n), &regBytes{c, []string{c.result(0)}}, "0", false, false, true)
				c.update(r, word(n), &regBytes{c, []string{res}}, "0", false, false, true)
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
	g := newGPU(t, nil, def("h", MapHash, 5, 3, 100), def("r", MapArray, 4, 8, 100))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	key := func(i uint64) []byte { return binary.LittleEndian.AppendUint64(nil, i*0x01010101)[:5] }
	for i := range uint64(50) {
		if err := g.maps.Update(g.machine, h, key(i), []byte{byte(i), 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 100}, func(c *code) {
		i := c.threadIndex()
		k, v := c.reg(ptx.B64), c.reg(ptx.B64)
		c.f("mul.lo.u64 %s, %s, 0x01010101;", k, i)
		a := c.lookup(h, &regBytes{c, []string{k}}, false)
		p := c.reg(ptx.Pred)
		c.f("mov.u64 %s, 1000;", v)
		c.f("setp.ne.u64 %s, %s, 0;", p, a)
		c.f("@%s ld.global.u8 %s, [%s];", p, v, a)
		c.update(r, &regBytes{c, []string{i}}, &regBytes{c, []string{v}}, "0", false, false, true)
		c.update(h, &regBytes{c, []string{k}}, &regBytes{c, []string{i}}, "1", false, false, true)
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
	if err := g.maps.Update(g.machine, h, key(1000), []byte{1, 2, 3}); !errors.Is(err, ErrFull) {
		t.Errorf("101st key: %v, want ErrFull", err)
	}
	if _, err := g.maps.Lookup(g.machine, h, key(1000)); !errors.Is(err, ErrNoKey) {
		t.Errorf("absent key: %v, want ErrNoKey", err)
	}
}

func TestPerSMHash(t *testing.T) {
	g := newGPU(t, nil, def("h", MapPerCPUHash, 4, 8, 32))
	h := g.maps.Find("h")
	g.run(emu.Dim3{X: 16}, emu.Dim3{X: 64}, func(c *code) {
		k := c.threadIndex()
		c.f("and.b64 %s, %s, 7;", k, k)
		key, zero := &regBytes{c, []string{k}}, &regBytes{c, []string{c.result(0)}}
		c.update(h, key, zero, "1", false, false, true)
		c.f("red.global.add.u64 [%s], 1;", c.lookup(h, key, false))
	})
	tab := g.table("h")
	if len(tab.Rows) != 8 {
		t.Fatalf("%d entries, want 8", len(tab.Rows))
	}
	for i := range tab.Rows {
		if tab.Rows[i].total() != 128 || len(tab.Rows[i].Each) < 2 {
			t.Errorf("key %x: %d on %d multiprocessors, want 128 on several", tab.Rows[i].Key, tab.Rows[i].total(), len(tab.Rows[i].Each))
		}
	}
}

func TestThreadMap(t *testing.T) {
	g := newGPU(t, nil, def("t", MapGPUThreadArray, 4, 12, 3))
	x := g.maps.Find("t")
	// 2*3*5 blocks of 7*2*11 threads: 4,620, of which 4,096 have room.
	g.run(emu.Dim3{X: 2, Y: 3, Z: 5}, emu.Dim3{X: 7, Y: 2, Z: 11}, func(c *code) {
		i, p := c.threadIndex(), c.reg(ptx.Pred)
		a := c.lookup(x, &regBytes{c, []string{c.result(2)}}, false)
		c.f("setp.ne.u64 %s, %s, 0;", p, a)
		c.f("@%s st.global.u64 [%s], %s;", p, a, i)
		c.f("@%s st.global.u32 [%s+8], 1;", p, a)
		c.lookup(x, &regBytes{c, []string{c.result(3)}}, false) // beyond: no counting, no address
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
	row, err := g.maps.Lookup(g.machine, x, indexKey(2))
	if err != nil || len(row) != 4096*12 || binary.LittleEndian.Uint64(row[12*9:]) != 9 {
		t.Errorf("row of %d bytes, %v", len(row), err)
	}
}

func TestRing(t *testing.T) {
	g := newGPU(t, nil, def("r", MapRingbuf, 0, 0, 4096))
	x := g.maps.Find("r")
	rd := g.maps.NewReader(x)
	var got []uint64
	drain := func() {
		t.Helper()
		if err := rd.Drain(g.machine, true, func(r Record) {
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
		g.run(emu.Dim3{X: grid}, emu.Dim3{X: block}, func(c *code) {
			i := c.threadIndex()
			c.output(x, &regBytes{c, []string{i, i, i, i, i}}, 40, "40", errAgain)
			a, p := c.ringReserve(x, 5), c.reg(ptx.Pred)
			skip := c.label()
			c.f("setp.eq.u64 %s, %s, 0;", p, a)
			c.f("@%s bra %s;", p, skip)
			c.f("st.global.u32 [%s], %s;", a, c.low(i))
			odd := c.label()
			c.f("and.b64 %s, %s, 1;", i, i)
			c.f("setp.ne.u64 %s, %s, 0;", p, i)
			c.f("@%s bra %s;", p, odd)
			c.ringSubmit(a, false)
			c.f("bra %s;", skip)
			c.at(odd)
			c.ringSubmit(a, true)
			c.at(skip)
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
	g.run(emu.Dim3{X: 1}, emu.Dim3{X: 3}, func(c *code) {
		i := c.threadIndex()
		c.print(1, []string{i, c.result(-1), c.result(1)}, nil, 0, false, 10)
		c.print(0, []string{i}, &regBytes{c, []string{c.result(int64(binary.LittleEndian.Uint64([]byte("hi %u!\n\x00"))))}}, 8, false, 8)
		c.print(0, nil, &regBytes{c, []string{c.result(int64(binary.LittleEndian.Uint64([]byte("line%d\x00\x00"))))}}, 8, true, 8)
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
	g := newGPU(t, &MapOptions{AddOnly: func(*MapDef) []AddField { return []AddField{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}} }}, def("a", MapArray, 4, 16, 4))
	x := g.maps.Find("a")
	if !x.Striped() {
		t.Fatal("not striped")
	}
	init := binary.LittleEndian.AppendUint64(nil, 100)
	if err := g.maps.Update(g.machine, x, indexKey(1), append(init, 5, 0, 0, 0, 9, 9, 9, 9)); err != nil {
		t.Fatal(err)
	}
	g.run(emu.Dim3{X: 20}, emu.Dim3{X: 50}, func(c *code) {
		a := c.lookup(x, &regBytes{c, []string{c.result(1)}}, false)
		c.f("red.global.add.u64 [%s], 3;", a)
		c.f("red.global.add.u32 [%s+8], 1;", a)
	})
	v := g.table("a").Rows[1].Value
	if binary.LittleEndian.Uint64(v) != 3100 || binary.LittleEndian.Uint32(v[8:]) != 1005 || binary.LittleEndian.Uint32(v[12:]) != 0x09090909 {
		t.Errorf("%x", v)
	}
}

// TestOldTarget: code for GPUs without a memory model has none of its modifiers.
func TestOldTarget(t *testing.T) {
	g := newGPU(t, nil, def("h", MapHash, 4, 8, 64), def("r", MapRingbuf, 0, 0, 1<<16))
	h, r := g.maps.Find("h"), g.maps.Find("r")
	var s textSink
	c := &code{s: &s, m: g.maps, weak: true, apart: true}
	k := c.threadIndex()
	key := &regBytes{c, []string{k}}
	c.update(h, key, key, "0", false, false, true)
	p := c.reg(ptx.Pred)
	c.f("setp.gt.u64 %s, %s, 31;", p, k)
	skip := c.label()
	c.f("@%s bra %s;", p, skip)
	c.remove(h, key)
	c.at(skip)
	c.output(r, key, 8, "8", errAgain)
	c.print(1, []string{k}, nil, 0, false, 0)
	src := ".version 5.0\n.target sm_60\n.address_size 64\n.visible .entry k()\n{\n" + s.String() + "\tret;\n}\n"
	assemble(t, src, "sm_75")
	g.assembled[src] = true
	g.launch(src, "k", emu.Dim3{X: 1}, emu.Dim3{X: 64}, nil)
	if n := len(g.table("h").Rows); n != 32 {
		t.Errorf("%d entries, want 32", n)
	}
	n := 0
	if err := g.maps.NewReader(r).Drain(g.machine, true, func(Record) { n++ }); err != nil || n != 64 {
		t.Errorf("%d records, %v", n, err)
	}
}

// TestHashChurn inserts and deletes many more keys than the map has room for at once.
func TestHashChurn(t *testing.T) {
	g := newGPU(t, nil, def("h", MapHash, 8, 24, 256), def("bad", MapArray, 4, 8, 2))
	h, bad := g.maps.Find("h"), g.maps.Find("bad")
	g.run(emu.Dim3{X: 4}, emu.Dim3{X: 64}, func(c *code) {
		k, p := c.threadIndex(), c.reg(ptx.Pred)
		key := &regBytes{c, []string{k}}
		count := func(i int64, res string) {
			c.f("setp.ne.u64 %s, %s, 0;", p, res)
			c.f("@%s red.global.add.u64 [%s], 1;", p, c.lookup(bad, &regBytes{c, []string{c.result(i)}}, false))
		}
		loop := c.label()
		c.at(loop)
		count(0, c.update(h, key, &regBytes{c, []string{k, k, k}}, "1", false, false, true))
		count(1, c.remove(h, key))
		c.f("add.u64 %s, %s, 256;", k, k)
		c.f("setp.lt.u64 %s, %s, %d;", p, k, 256*40)
		c.f("@%s bra %s;", p, loop)
	})
	tab := g.table("h")
	if a, b := g.table("bad").Rows[0].total(), g.table("bad").Rows[1].total(); a != 0 || b != 0 || len(tab.Rows) != 0 || tab.Refused != 0 {
		t.Errorf("%d insertions and %d deletions failed, %d entries left, %d refused", a, b, len(tab.Rows), tab.Refused)
	}
}
