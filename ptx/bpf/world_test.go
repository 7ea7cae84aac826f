package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// A world is memory with maps in it, and helpers that know them, for tests: all
// that nvattach has, as plainly as possible. Compiled code finds the memory in a
// variable of the module, the interpreter at addresses of its own.
type world struct {
	env  *Env
	mem  []byte   // as it was before the run, for compiled code; while and after it for the interpreter
	slot int      // number of the world in the variable
	held []uint64 // addresses of the records that the interpreted program holds
	at   []int    // where each map is
}

// Maps of a world.
const (
	mapArray  = iota // 4 values of 8 bytes
	mapWide          // 8 values of 32 bytes
	mapOdd           // 5 values of 12 bytes
	mapData          // direct, 64 bytes
	mapRodata        // direct, read-only
	mapOuter         // values are maps, like mapWide
	mapOther         // as mapWide
	mapCount
)

const (
	worldResult = 0 // where a program's result goes
	worldEarly  = 8 // 1 if it was ended early
	worldSize   = 0x300
	worldBase   = 0x5_0000_0000 // address of a world for the interpreter
)

var rodata = []byte("count %d\n\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08")

// newWorld returns world number slot.
func newWorld(slot int) *world {
	w := &world{slot: slot, mem: make([]byte, worldSize)}
	w.env = &Env{
		Maps: []Map{
			{Name: "array", KeySize: 4, ValueSize: 8, MaxEntries: 4},
			{Name: "wide", KeySize: 4, ValueSize: 32, MaxEntries: 8},
			{Name: "odd", KeySize: 4, ValueSize: 12, MaxEntries: 5},
			{Name: ".data", ValueSize: 64, MaxEntries: 1, Direct: true},
			{Name: ".rodata", ValueSize: uint32(len(rodata)), MaxEntries: 1, Direct: true, ReadOnly: true, Contents: rodata},
			{Name: "outer", KeySize: 4, ValueSize: 4, MaxEntries: 3, Inner: mapWide + 1},
			{Name: "other", KeySize: 4, ValueSize: 32, MaxEntries: 8},
		},
		Context: &Context{Fields: []Field{
			{Name: "a", Size: 8},
			{Name: "b", Offset: 8, Size: 4},
			{Name: "c", Offset: 12, Size: 2},
			{Name: "d", Offset: 14, Size: 1},
			{Name: "tid", Offset: 16, Size: 4},
		}},
	}
	off := 16
	for i := range w.env.Maps {
		m := &w.env.Maps[i]
		w.at = append(w.at, off)
		off += int(m.ValueSize*m.MaxEntries+15) &^ 15
	}
	for i := 16; i < w.at[mapRodata]; i++ { // values that tell places apart
		w.mem[i] = byte(i*7 + i>>4)
	}
	copy(w.mem[w.at[mapRodata]:], rodata)
	if off > worldSize {
		panic("BUG: the world is too small")
	}
	w.env.Helpers = w.helpers()
	maps.Copy(w.env.Helpers, hostHelpers())
	return w
}

// addr is where byte off of map m is.
func (w *world) addr(m, off int) Addr {
	return Addr{Symbol: "nvm", Value: uint64(w.slot*worldSize + w.at[m] + off)}
}

// field is a context's value for thread tid.
func field(i, tid int) uint64 {
	return [...]uint64{0x1122334455667788, 0x99aabbcc, 0xddee, 0xff, uint64(tid)}[i]
}

func (w *world) helpers() map[int32]*Helper {
	return map[int32]*Helper{
		600: {Name: "log2", Args: []ArgSpec{{Kind: ArgScalar}}, Pure: true, Max: 63, Emit: emitLog2, Interpret: log2},
		1:   {Name: "lookup", Args: []ArgSpec{{Kind: ArgMap}, {Kind: ArgKey}}, Ret: RetValue, Pure: true, Check: w.keyed, NeverNull: w.found, Emit: w.emitLookup, Interpret: w.lookup},
		2:   {Name: "update", Args: []ArgSpec{{Kind: ArgMap}, {Kind: ArgKey}, {Kind: ArgValue}, {Kind: ArgScalar}}, Check: w.changed, Emit: w.emitUpdate, Interpret: w.update},
		5:   {Name: "mix", Args: []ArgSpec{{Kind: ArgScalar}, {Kind: ArgScalar}}, Pure: true, Emit: emitMix, Interpret: mix},
		505: {Name: "ids", Args: []ArgSpec{{Kind: ArgWrite, Size: 8}, {Kind: ArgWrite, Size: 4}}, Emit: emitIDs, Interpret: ids},
		25:  {Name: "output", Args: []ArgSpec{{Kind: ArgContext}, {Kind: ArgRead, SizeArg: 2}, {Kind: ArgConst}}, Emit: w.emitOutput, Interpret: w.output},
		131: {Name: "reserve", Args: []ArgSpec{{Kind: ArgMap}, {Kind: ArgConst}}, Ret: RetRecord, Check: recordSize, Emit: w.emitReserve, Release: w.emitRelease, Interpret: w.reserve},
		132: {Name: "submit", Args: []ArgSpec{{Kind: ArgRecord}}, Ret: RetVoid, Emit: w.emitSubmit, Interpret: w.submit},
		6:   {Name: "print", Args: []ArgSpec{{Kind: ArgString, Size: 64}}, Emit: emitPrint, Interpret: printed},
		507: {Name: "leave", Ret: RetNever, Emit: func(g *Gen, _ *Call) (ptx.Arg, error) { g.Line("exit;"); return ptx.Arg{}, nil }, Interpret: func(*Interpreter, [5]uint64) (uint64, error) { return 0, nil }},
	}
}

// keyed refuses global data, which has no keys.
func (w *world) keyed(c *CallInfo) error {
	if w.env.Maps[c.Map].KeySize == 0 {
		return errors.New("a map without keys")
	}
	return nil
}

// changed is keyed of an update: which maps are in a map no program changes.
func (w *world) changed(c *CallInfo) error {
	if w.env.Maps[c.Map].Inner > 0 {
		return errors.New("a map of maps")
	}
	return w.keyed(c)
}

// found knows that keys in range are there.
func (w *world) found(c *CallInfo) bool {
	return c.Bytes[1] != nil && binary.LittleEndian.Uint32(c.Bytes[1]) < w.env.Maps[c.Map].MaxEntries
}

// emitLookup is array lookup.
func (w *world) emitLookup(g *Gen, c *Call) (ptx.Arg, error) {
	m := &w.env.Maps[c.Map]
	return w.element(g, c, m)
}

func (w *world) element(g *Gen, c *Call, m *Map) (ptx.Arg, error) {
	key := c.Args[1].Load(0, 4)
	d, p, at := g.Reg(ptx.U64), g.Reg(ptx.Pred), g.Reg(ptx.U64)
	g.Mov(ptx.U64, at, key)
	g.Setp("lt", ptx.U64, p, at, ptx.Imm(int64(m.MaxEntries)))
	g.Mul(ptx.U64, at, at, ptx.Imm(int64(m.ValueSize)))
	base := g.Address(w.addr(c.Map, 0))
	g.Add(ptx.U64, at, at, base)
	g.Selp(ptx.U64, d, at, ptx.Imm(0), p)
	return d, nil
}

func (w *world) lookup(in *Interpreter, a [5]uint64) (uint64, error) {
	m, ok := in.Map(a[0])
	var key [4]byte
	if !ok {
		return 0, fmt.Errorf("lookup in no map: %#x", a[0])
	}
	if err := in.ReadMem(a[1], key[:]); err != nil {
		return 0, fmt.Errorf("lookup: %w", err)
	}
	k := binary.LittleEndian.Uint32(key[:])
	if m == mapOuter {
		if inner, ok := innerMaps[k]; ok {
			return in.MapArg(inner), nil
		}
		return 0, nil
	}
	if k >= in.Env.Maps[m].MaxEntries {
		return 0, nil
	}
	return (worldBase + uint64(w.at[m])) + uint64(k)*uint64(in.Env.Maps[m].ValueSize), nil
}

// emitUpdate copies a value in words of 4 bytes.
func (w *world) emitUpdate(g *Gen, c *Call) (ptx.Arg, error) {
	m := &w.env.Maps[c.Map]
	at, err := w.element(g, c, m)
	if err != nil {
		return at, err
	}
	p, r, after := g.Reg(ptx.Pred), g.Reg(ptx.U64), g.Label()
	g.Mov(ptx.U64, r, ptx.Imm(-7))
	g.Setp("eq", ptx.U64, p, at, ptx.Imm(0))
	g.On(p).Bra(after)
	for off := 0; off < int(m.ValueSize); off += 4 {
		g.St("", ptx.SpaceGlobal, ptx.U32, ptx.Addr(at, int64(off)), c.Args[2].Load(off, 4))
	}
	g.Mov(ptx.U64, r, ptx.Imm(0))
	g.Builder.Label(after)
	return r, nil
}

func (w *world) update(in *Interpreter, a [5]uint64) (uint64, error) {
	at, err := w.lookup(in, a)
	if err != nil || at == 0 {
		return ^uint64(6), err
	}
	m, _ := in.Map(a[0])
	buf := make([]byte, in.Env.Maps[m].ValueSize)
	if err := in.ReadMem(a[2], buf); err != nil {
		return 0, err
	}
	return 0, in.WriteMem(at, buf)
}

func emitMix(g *Gen, c *Call) (ptx.Arg, error) {
	d := g.Reg(ptx.U64)
	g.Mul(ptx.U64, d, c.Args[0].Reg(), ptx.Imm(0x9e3779b1))
	g.Xor(ptx.U64, d, d, c.Args[1].Reg())
	return d, nil
}

func mix(_ *Interpreter, a [5]uint64) (uint64, error) { return a[0]*0x9e3779b1 ^ a[1], nil }

func emitIDs(g *Gen, c *Call) (ptx.Arg, error) {
	c.Args[0].Store(0, 4, ptx.Imm(0x12345678))
	c.Args[0].Store(4, 4, ptx.Imm(-2))
	c.Args[1].Store(0, 4, ptx.Imm(0x55))
	return ptx.Imm(0), nil
}

func ids(in *Interpreter, a [5]uint64) (uint64, error) {
	if err := in.WriteMem(a[0], []byte{0x78, 0x56, 0x34, 0x12, 0xfe, 0xff, 0xff, 0xff}); err != nil {
		return 0, err
	}
	return 0, in.WriteMem(a[1], []byte{0x55, 0, 0, 0})
}

// emitOutput adds all bytes to .data+56.
func (w *world) emitOutput(g *Gen, c *Call) (ptx.Arg, error) {
	sum := g.Reg(ptx.U64)
	g.Mov(ptx.U64, sum, ptx.Imm(0))
	for off := range c.Args[1].Size() {
		g.Mad(ptx.U64, sum, sum, ptx.Imm(31), c.Args[1].Load(off, 1))
	}
	at := g.Address(w.addr(mapData, 56))
	g.Red("", ptx.SpaceGlobal, "add", ptx.U64, ptx.Addr(at, 0), sum)
	return sum, nil
}

func (w *world) output(in *Interpreter, a [5]uint64) (uint64, error) {
	buf := make([]byte, a[2])
	if err := in.ReadMem(a[1], buf); err != nil {
		return 0, err
	}
	sum := uint64(0)
	for _, b := range buf {
		sum = sum*31 + uint64(b)
	}
	var b [8]byte
	if err := in.ReadMem((worldBase+uint64(w.at[mapData]))+56, b[:]); err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+sum)
	return sum, in.WriteMem((worldBase+uint64(w.at[mapData]))+56, b[:])
}

// Records lie in the map wide, at a place that their size says, and some sizes are
// never to be had. Where a record is given back counts, so that compiled code must do
// it with the same address: .data+48 is the sum of such places plus 1 for each, +52
// that of the records that are released at an early end.
func recordSize(c *CallInfo) error {
	if n := &c.Consts[1]; n.Known && (n.Value == 0 || n.Value > 32) {
		return fmt.Errorf("a record of %d bytes", n.Value)
	}
	return nil
}

// recordPlace returns where a record of so many bytes is; false if there is none.
func recordPlace(size uint64) (uint64, bool) { return 32 * (size % 8), size%8 != 7 }

func (w *world) emitReserve(g *Gen, c *Call) (ptx.Arg, error) {
	size, _ := c.Args[1].Const()
	at, ok := recordPlace(size)
	if !ok {
		return ptx.Imm(0), nil
	}
	return g.Address(w.addr(mapWide, int(at))), nil
}

func (w *world) reserve(_ *Interpreter, a [5]uint64) (uint64, error) {
	at, ok := recordPlace(a[1])
	if !ok {
		return 0, nil
	}
	at += worldBase + uint64(w.at[mapWide])
	w.held = append(w.held, at)
	return at, nil
}

func (w *world) emitSubmit(g *Gen, c *Call) (ptx.Arg, error) {
	w.emitGivenBack(g, c.Args[0].Reg(), 48)
	return ptx.Arg{}, nil
}

func (w *world) emitRelease(g *Gen, rec ptx.Arg) error {
	w.emitGivenBack(g, rec, 52)
	return nil
}

func (w *world) emitGivenBack(g *Gen, rec ptx.Arg, to int) {
	d, half := g.Reg(ptx.U64), g.Reg(ptx.U32)
	g.Sub(ptx.U64, d, rec, g.Address(w.addr(mapWide, 0)))
	g.Add(ptx.U64, d, d, ptx.Imm(1))
	g.Cvt("", ptx.U32, ptx.U64, half, d)
	g.Red("", ptx.SpaceGlobal, "add", ptx.U32, ptx.Addr(g.Address(w.addr(mapData, to)), 0), half)
}

// submit takes a record back: one that the program holds, by its own address.
func (w *world) submit(_ *Interpreter, a [5]uint64) (uint64, error) {
	i := slices.Index(w.held, a[0])
	if i < 0 {
		return 0, fmt.Errorf("%#x is no record that the program holds", a[0])
	}
	w.held = slices.Delete(w.held, i, i+1)
	w.givenBack(a[0], 48)
	return 0, nil
}

func (w *world) givenBack(rec uint64, to int) {
	b := w.mem[w.at[mapData]+to:]
	at := rec - worldBase - uint64(w.at[mapWide])
	binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)+uint32(at)+1)
}

// printed returns the length of a text, up to its NUL.
func printed(in *Interpreter, a [5]uint64) (uint64, error) {
	for n := range uint64(64) {
		var b [1]byte
		if err := in.ReadMem(a[0]+n, b[:]); err != nil {
			return 0, err
		}
		if b[0] == 0 {
			return n, nil
		}
	}
	return 64, nil
}

func emitLog2(g *Gen, c *Call) (ptx.Arg, error) {
	x, d, h := g.Reg(ptx.U64), g.Reg(ptx.U64), g.Reg(ptx.U32)
	g.Or(ptx.B64, x, c.Args[0].Reg(), ptx.Imm(1))
	g.Line("bfind.u64 " + h.String() + ", " + x.String() + ";")
	g.Cvt("", ptx.U64, ptx.U32, d, h)
	return d, nil
}

func log2(_ *Interpreter, a [5]uint64) (uint64, error) { return uint64(bits.Len64(a[0]|1) - 1), nil }

func emitPrint(g *Gen, c *Call) (ptx.Arg, error) {
	text, ok := c.Args[0].Bytes()
	if !ok {
		return ptx.Arg{}, fmt.Errorf("text is not known")
	}
	g.Line(fmt.Sprintf("// print %q", text))
	return ptx.Imm(int64(len(text))), nil
}

// site returns a site in this world for thread 0. The result, and whether the
// program was ended early, are stored in the world.
func (w *world) site() *Site {
	s := &Site{Version: ptx.Version{Major: 8, Minor: 0}, Target: ptx.Target{SM: 90}}
	s.Field = func(g *Gen, i int) (ptx.Arg, error) {
		if i < 4 {
			return ptx.Imm(int64(field(i, 0))), nil
		}
		r, t := g.Reg(ptx.U64), g.Reg(ptx.U32)
		g.Mov(ptx.U32, t, ptx.Name("%tid.x"))
		g.Cvt("", ptx.U64, ptx.U32, r, t)
		return r, nil
	}
	for i := range w.at {
		s.Maps = append(s.Maps, w.addr(i, 0))
	}
	result := Addr{Symbol: "nvm", Value: uint64(w.slot*worldSize + worldResult)}
	s.Result = func(g *Gen, r0 ptx.Arg) error {
		g.St("", ptx.SpaceGlobal, ptx.U64, ptx.Addr(g.Address(result), 0), r0)
		return nil
	}
	s.Failed = func(g *Gen) error {
		g.St("", ptx.SpaceGlobal, ptx.U64, ptx.Addr(g.Address(result), worldEarly), ptx.Imm(1))
		return nil
	}
	return s
}

// interpreter returns an interpreter that works on w.mem.
func (w *world) interpreter() *Interpreter {
	in := &Interpreter{Env: w.env, Field: func(i int) uint64 { return field(i, 0) }}
	at := func(addr uint64, n int) ([]byte, error) {
		off := addr - worldBase
		if n == 0 { // wherever that is
			return nil, nil
		}
		if off > worldSize || worldSize-off < uint64(n) {
			return nil, fmt.Errorf("%d bytes at %#x", n, addr)
		}
		return w.mem[off:][:n], nil
	}
	in.Read = func(addr uint64, buf []byte) error {
		m, err := at(addr, len(buf))
		copy(buf, m)
		return err
	}
	in.Write = func(addr uint64, buf []byte) error {
		m, err := at(addr, len(buf))
		copy(m, buf)
		return err
	}
	for i := range w.at {
		in.Maps = append(in.Maps, worldBase+uint64(w.at[i]))
	}
	return in
}

// interpret runs p and leaves what happened in w.mem.
func (w *world) interpret(p *Program) (Result, error) {
	r, err := w.interpreter().Run(p)
	if err != nil {
		return r, err
	}
	return r, w.finish(r)
}

// finish does what compiled code does at its end.
func (w *world) finish(r Result) error {
	if a, b := slices.Sorted(slices.Values(w.held)), slices.Sorted(slices.Values(r.Held)); !slices.Equal(a, b) {
		return fmt.Errorf("records %#x are held at the end, the interpreter says %#x", a, b)
	}
	if r.Early {
		for _, rec := range r.Held {
			w.givenBack(rec, 52)
		}
		w.held = nil
		w.mem[worldEarly] = 1
	} else {
		binary.LittleEndian.PutUint64(w.mem[worldResult:], r.R0)
	}
	return nil
}

// module is a module whose kernel runs pieces of code one after the other.
func module(worlds int, codes ...string) string {
	s := fmt.Sprintf(".version 8.0\n.target sm_90\n.address_size 64\n\n.visible .global .align 256 .b8 nvm[%d];\n\n.visible .entry k()\n{\n", max(worlds, 1)*worldSize)
	for _, code := range codes {
		s += "\t{\n" + code + "\t}\n"
	}
	return s + "\tret;\n}\n"
}

var declaration = regexp.MustCompile(`\.reg \.(\w+) (%\w+?)(?:<(\d+)>)?;`)

// poison gives all registers a value where they are declared, since on a GPU one
// that was never written may hold anything.
func poison(src string) string {
	return declaration.ReplaceAllStringFunc(src, func(line string) string {
		m := declaration.FindStringSubmatch(line)
		names := []string{m[2]}
		if n, err := strconv.Atoi(m[3]); err == nil {
			names = nil
			for i := range n {
				names = append(names, m[2]+strconv.Itoa(i))
			}
		}
		for _, r := range names {
			switch {
			case m[1] == "pred":
				line += " setp.eq.u32 " + r + ", 0, 0;"
			case strings.HasSuffix(m[1], "64"):
				line += " mov.b64 " + r + ", 0xa5d7c3e19b8f6d42;"
			default:
				line += " mov.b32 " + r + ", 0x9e8d7c6b;"
			}
		}
		return line
	})
}

// run runs a module's kernel in the PTX machine, with nothing in its registers
// that can be relied on, and returns the worlds' memory.
func run(tb testing.TB, src string, threads uint32, worlds ...*world) []byte {
	tb.Helper()
	f, err := ptx.Parse("k.ptx", poison(src), nil)
	if err != nil {
		tb.Fatalf("%v\n%s", err, src)
	}
	m := emu.New(&emu.Options{Workers: 1})
	mod, err := m.Load(f)
	if err != nil {
		tb.Fatal(err)
	}
	v, ok := mod.Variable("nvm")
	if !ok {
		tb.Fatal("no memory")
	}
	for i, w := range worlds {
		if err := m.WriteMem(v.Addr+uint64(i*worldSize), w.mem); err != nil {
			tb.Fatal(err)
		}
	}
	k, err := mod.Kernel("k")
	if err != nil {
		tb.Fatalf("%v\n%s", err, src)
	}
	if _, err := m.Launch(tb.Context(), k, &emu.LaunchConfig{Block: emu.Dim3{X: threads}, Budget: 1 << 28}); err != nil {
		tb.Fatalf("%v\n%s", err, src)
	}
	out := make([]byte, len(worlds)*worldSize)
	if err := m.ReadMem(v.Addr, out); err != nil {
		tb.Fatal(err)
	}
	return out
}
