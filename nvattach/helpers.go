package nvattach

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// unit is the compilation of one object's programs: the maps and helpers that
// they find, and the place that code is being written for.
type unit struct {
	obj     *object.Object
	maps    *mapmem.Maps
	defs    []*object.MapDef // as in bpf.Env.Maps
	formats *formats
	clock   bool            // programs run on the host, too, whose clock is theirs
	exit    bool            // bpftime's helper 507 is allowed
	weak    bool            // the module's target has no memory model
	block   string          // its variable with the maps that each block has
	apart   bool            // and nothing that compares a warp's threads
	at      *place          // the place that code is being written for
	q       *PlannedProgram // the program
	// returned is the register in which functions keep what they return.
	returned string
	slots    func(*bpf.CallInfo) bool // calls of nvtrace_map_value that have a place, while a program is proven
}

// formats numbers the formats of bpf_printk.
type formats struct {
	list []string
	ids  map[string]uint32
}

func (f *formats) id(s string) uint32 {
	if n := f.ids[s]; n != 0 {
		return n
	}
	if f.ids == nil {
		f.ids = make(map[string]uint32)
	}
	f.list = append(f.list, s)
	f.ids[s] = uint32(len(f.list))
	return f.ids[s]
}

// genSink writes to a program's code.
type genSink struct{ *bpf.Gen }

// NewReg implements sink.
func (s genSink) NewReg(t ptx.Type) string { return s.Reg(t).String() }

// NewLabel implements sink.
func (s genSink) NewLabel() string { return s.Label() }

func (u *unit) code(g *bpf.Gen) *emit.Code {
	return &emit.Code{S: genSink{g}, M: u.maps, Weak: u.weak, Apart: u.apart, Block: u.block}
}

// argBytes is what a pointer among a helper's arguments points at.
type argBytes struct {
	c *emit.Code
	v *bpf.Value
}

// Load implements bytesArg.
func (a argBytes) Load(off uint64, size int) string {
	x := a.v.Load(int(off), size).String()
	if size == 8 {
		return x
	}
	if n, err := strconv.ParseUint(x, 0, 64); err == nil {
		return strconv.FormatUint(n&(1<<(8*size)-1), 10)
	}
	if n, err := strconv.ParseInt(x, 0, 64); err == nil {
		return strconv.FormatUint(uint64(n)&(1<<(8*size)-1), 10)
	}
	return a.c.Low(x)
}

// register64 is a result for the compiler.
func register64(r string) ptx.Arg {
	if n, err := strconv.ParseInt(r, 0, 64); err == nil {
		return ptx.Imm(n)
	}
	return ptx.TypedReg(ptx.B64, r)
}

// helpers returns all helpers that programs in kernels may call.
func (u *unit) helpers() map[int32]*bpf.Helper {
	h, forms := make(map[int32]*bpf.Helper), u.forms()
	for _, row := range helper.In(helper.Kernel) {
		e := row.Env(helper.Kernel)
		e.Emit = forms[row.Number]
		h[row.Number] = e
	}
	u.checkMaps(h)
	if !u.exit {
		h[helper.Exit].Refuse = "cuda_exit ends the kernel's thread, so the program computes something else"
		h[helper.Exit].Hint = "--allow-exit allows it"
	}
	h[helper.RingReserve].Release = func(g *bpf.Gen, rec ptx.Arg) error { u.code(g).RingSubmit(rec.String(), true); return nil }
	for _, n := range slices.Concat(readHelpers, readStrHelpers) {
		h[n].Check = atMostRead
	}
	interpreted(h, emit.Changed)
	return h
}

// A form is what a helper does in a kernel: it writes the call's code.
type form func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error)

// forms are those of all helpers of programs in kernels, by their numbers.
func (u *unit) forms() map[int32]form {
	list := map[int32]form{
		helper.MapLookup: u.lookup, helper.MapValue: u.mapValue, helper.MapUpdate: u.update, helper.MapDelete: u.remove, helper.MapLookupPerCPU: u.lookupSM,
		helper.PerfOutput: u.perfOutput, helper.RingOutput: u.ringOutput, helper.RingReserve: u.ringReserve, helper.RingQuery: u.ringQuery,
		helper.RingSubmit: u.finish(false), helper.RingDiscard: u.finish(true),
		helper.Print: u.printk, helper.VPrint: u.vprintk, helper.Puts: u.puts,
		helper.Time: u.time, helper.Random: u.random, helper.Membar: u.membar, helper.Exit: u.leave,
		helper.Processor: u.special32("%smid"), helper.SMID: u.special32("%smid"), helper.WarpID: u.special32("%warpid"), helper.LaneID: u.special32("%laneid"),
		helper.GlobalTimer: u.special64("%globaltimer"), helper.Launch: u.special64("%gridid"),
		helper.BlockIdx: u.triple("%ctaid"), helper.BlockDim: u.triple("%ntid"), helper.ThreadIdx: u.triple("%tid"), helper.GridDim: u.triple("%nctaid"),
		helper.ProcessThread: u.constant(mapmem.ProcessOff), helper.Device: u.constant(mapmem.DeviceOff), helper.Rank: u.constant(mapmem.RankOff),
		helper.FuncArg: u.funcArg, helper.FuncRet: u.funcRet, helper.FuncArgCount: u.funcArgCount,
		helper.Log2: u.log2, helper.Popc: u.popc,
		helper.Active: u.active, helper.Match: u.match, helper.First: u.first, helper.Wavefronts: u.wavefronts,
	}
	for _, n := range readHelpers {
		list[n] = u.probeRead
	}
	for _, n := range readStrHelpers {
		list[n] = u.probeReadStr
	}
	u.togetherForms(list)
	for n, x := range emit.Extremes {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			u.code(g).Extreme(x, c, u.obj.Own)
			return ptx.Arg{}, nil
		}
	}
	return list
}

// checkMaps has calls refused whose map is none for them.
func (u *unit) checkMaps(h map[int32]*bpf.Helper) {
	for n, check := range map[int32]func(*bpf.CallInfo) error{
		helper.MapLookup: u.keyed, helper.MapValue: u.changeable, helper.MapUpdate: u.changeable, helper.MapDelete: u.changeable, helper.MapLookupPerCPU: u.ofEach,
		helper.PerfOutput: u.recordOf(3), helper.RingOutput: u.recordOf(1), helper.RingReserve: u.ringSize, helper.RingQuery: u.ring,
		helper.Print: u.formatted, helper.VPrint: u.formatted,
		helper.MapPush: u.pushed(object.MapQueue, object.MapStack, object.MapBloomFilter), helper.MapPeek: u.pushed(object.MapQueue, object.MapStack, object.MapBloomFilter), helper.MapPop: u.pushed(object.MapQueue, object.MapStack),
		helper.StackID: u.stacks,
	} {
		if h[n] != nil {
			h[n].Check = check
		}
	}
	h[helper.MapLookup].NeverNull, h[helper.MapLookup].Uniform = u.found, u.sameForWarp
	if v := h[helper.MapValue]; v != nil {
		v.NeverNull, v.Uniform, v.Slot = u.valued, u.sameForWarp, true
	}
	for n, extent := range alikeHelpers {
		if h[n] != nil {
			h[n].Alike = extent
		}
	}
	for _, n := range repeated {
		if h[n] != nil {
			h[n].Repeats = true
		}
	}
}

// interpreted gives helpers that only calculate the meaning that they have for an interpreter, on
// the host and where tests compare with kernels. atomic changes a number of the maps' memory.
func interpreted(h map[int32]*bpf.Helper, atomic func(in *bpf.Interpreter, addr uint64, n int, change func(old uint64) uint64) error) {
	h[helper.Log2].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return uint64(bits.Len64(a[0]|1) - 1), nil }
	h[helper.Popc].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return uint64(bits.OnesCount64(a[0])), nil }
	for n, x := range emit.Extremes {
		if h[n] != nil {
			h[n].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
				return 0, atomic(in, a[0], x.Bytes, func(old uint64) uint64 { return x.Of(old, a[1]) })
			}
		}
	}
}

// finish is a helper that gives a record back.
func (u *unit) finish(discard bool) form {
	return func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
		u.code(g).RingSubmit(c.Args[0].Reg().String(), discard)
		return ptx.Arg{}, nil
	}
}

// mapOf returns the map of a call.
func (u *unit) mapOf(c *bpf.CallInfo) (*mapmem.Map, error) {
	if c.Map < 0 || c.Map >= len(u.defs) {
		return nil, errors.New("the map is not known")
	}
	x := u.maps.Of(u.defs[c.Map])
	if x == nil {
		return nil, fmt.Errorf("map %s has type %s, which can't be had on a GPU", u.defs[c.Map].Name, u.defs[c.Map].Type)
	}
	return x, nil
}

// defOf returns the definition of a call's map, before any has a place.
func (u *unit) defOf(c *bpf.CallInfo) (*object.MapDef, error) {
	if c.Map < 0 || c.Map >= len(u.defs) {
		return nil, errors.New("the map is not known")
	}
	return u.defs[c.Map], nil
}

func (u *unit) keyed(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Ring() {
		err = fmt.Errorf("map %s is a ring buffer and has no keys", d.Name)
	}
	if err == nil && d.Layout() == object.LayoutQueue {
		err = fmt.Errorf("map %s is a %s and has no keys; map_push_elem, map_pop_elem and map_peek_elem are for it", d.Name, d.Type)
	}
	return err
}

func (u *unit) changeable(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Layout() == object.LayoutMaps {
		err = fmt.Errorf("which maps are in %s is said before programs run, by its definition or --map", d.Name)
	}
	if err != nil {
		return err
	}
	return u.keyed(c)
}

// sameForWarp reports whether threads of a warp that look the same key up get the same
// address, and the assembler sees that.
func (u *unit) sameForWarp(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.Layout() == object.LayoutArray
}

// found reports whether a lookup always finds a value: an array has one for every
// key in range.
func (u *unit) found(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.Layout() == object.LayoutArray && c.Most[1] < uint64(d.MaxEntries)
}

func (u *unit) ring(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && !d.Ring() {
		err = fmt.Errorf("map %s has type %s and is no ring buffer", d.Name, d.Type)
	}
	return err
}

func (u *unit) ringSize(c *bpf.CallInfo) error {
	if err := u.ring(c); err != nil || !c.Consts[1].Known {
		return err
	}
	return u.fits(c, c.Consts[1].Value)
}

// recordOf returns the check of a helper whose argument data is a record.
func (u *unit) recordOf(data int) func(*bpf.CallInfo) error {
	return func(c *bpf.CallInfo) error {
		if err := u.ring(c); err != nil {
			return err
		}
		return u.fits(c, uint64(c.Size[data]))
	}
}

// fits refuses records that the call's map never has room for.
func (u *unit) fits(c *bpf.CallInfo, size uint64) error {
	if d := u.defs[c.Map]; size > d.MaxRecord() {
		return fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, d.Name, d.MaxRecord())
	}
	return nil
}

// formatted refuses texts that are too long for a record of bpf_printk.
func (u *unit) formatted(c *bpf.CallInfo) error {
	if c.Size[0] > mapmem.MaxFormat {
		return fmt.Errorf("a format of %d bytes; %d is the most", c.Size[0], mapmem.MaxFormat)
	}
	return nil
}

// mapCall returns what the code of a call with a map begins with.
func (u *unit) mapCall(g *bpf.Gen, c *bpf.Call) (*emit.Code, *mapmem.Map, error) {
	x, err := u.mapOf(&c.CallInfo)
	return u.code(g), x, err
}

func (u *unit) lookup(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return register64(k.Lookup(x, argBytes{k, &c.Args[1]}, u.found(&c.CallInfo))), nil
}

// ofEach refuses maps that do not have a value for each multiprocessor.
func (u *unit) ofEach(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && !d.PerSM() {
		err = fmt.Errorf("map %s is a %s, and has no value for each multiprocessor", d.Name, d.Type)
	}
	return err
}

// lookupSM is bpf_map_lookup_percpu_elem: the value that another multiprocessor has.
func (u *unit) lookupSM(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	sm, p := k.Held(c.Args[2].Reg().String()), k.Reg(ptx.Pred)
	k.F("setp.lt.u64 %s, %s, %d;", p, sm, u.maps.SMs)
	k.Sm = k.Low(sm)
	k.F("min.u32 %s, %s, %d;", k.Sm, k.Sm, u.maps.SMs-1)
	at, r := k.Held(k.Lookup(x, argBytes{k, &c.Args[1]}, false)), k.Reg(ptx.B64)
	k.F("selp.b64 %s, %s, 0, %s;", r, at, p)
	return register64(r), nil
}

func (u *unit) update(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	uniform := c.Bytes[1] != nil && c.Bytes[2] != nil
	value := emit.BytesArg(argBytes{k, &c.Args[2]})
	if u.q != nil {
		if r, ok := u.q.recounts[c.Insn]; ok {
			d, key, _ := u.q.counts(r)
			value, uniform = k.Counted(u.maps.Of(d), key), false
		}
	}
	flags := c.Args[3].Reg().String()
	if k.Inserts = u.q != nil && u.q.inserts[c.Insn] && len(x.Sums) > 0; k.Inserts {
		flags = "0"
	}
	return register64(k.Update(x, argBytes{k, &c.Args[1]}, value, flags, u.found(&c.CallInfo), uniform, c.Used)), nil
}

func (u *unit) remove(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return register64(k.Remove(x, argBytes{k, &c.Args[1]})), nil
}

// emitOutput writes a record; size is the argument with its length.
func (u *unit) emitOutput(g *bpf.Gen, c *bpf.Call, data, size int, refused int64) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	most := uint64(c.Args[data].Size())
	if most > x.Ring.MaxRecord {
		return ptx.Arg{}, fmt.Errorf("a record of %d bytes; those of map %s have at most %d", most, x.Name, x.Ring.MaxRecord)
	}
	length := emit.Itoa(most)
	if _, known := c.Args[size].Const(); !known {
		length = k.Low(c.Args[size].Reg().String())
	}
	return register64(k.Output(x, argBytes{k, &c.Args[data]}, most, length, refused)), nil
}

func (u *unit) perfOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 3, 4, helper.ENOSPC)
}

func (u *unit) ringOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 1, 2, helper.EAGAIN)
}

func (u *unit) ringReserve(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	size, _ := c.Args[1].Const()
	if size > x.Ring.MaxRecord {
		return ptx.Arg{}, fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, x.Name, x.Ring.MaxRecord)
	}
	return register64(k.RingReserve(x, size)), nil
}

// Flags of bpf_ringbuf_query.
const (
	ringAvail    = 0 // bytes not read yet
	ringRingSize = 1
	ringConsPos  = 2
	ringProdPos  = 3
)

// ringQuery answers for the part of the ring that the thread's records go to.
func (u *unit) ringQuery(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	what, _ := c.Args[1].Const()
	if what == ringRingSize {
		return ptx.Imm(int64(x.Ring.Units * object.UnitBytes)), nil
	}
	if what > ringProdPos {
		return ptx.Imm(0), nil
	}
	part, r := k.PerSM(x.Base, x.CopyBytes), k.Result(0)
	load := func(off int) string {
		v := k.Reg(ptx.B64)
		k.F("ld%s.global.u64 %s, [%s+%d];", k.Order(".relaxed.sys"), v, part, off)
		return v
	}
	switch what {
	case ringAvail:
		k.F("sub.s64 %s, %s, %s;", r, load(object.RingReserved), load(object.RingRead))
		// What was dropped was handed out as well.
		k.F("min.u64 %s, %s, %d;", r, r, x.Ring.Units)
	case ringConsPos:
		r = load(object.RingRead)
	case ringProdPos:
		r = load(object.RingReserved)
	}
	bytes := k.Reg(ptx.B64)
	k.F("mul.lo.u64 %s, %s, %d;", bytes, r, object.UnitBytes)
	return register64(bytes), nil
}

// special32 is a helper that returns a special register of 32 bits.
func (u *unit) special32(reg string) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		return register64(k.Wide(k.Special(reg))), nil
	}
}

// special64 is one that returns a special register of 64 bits.
func (u *unit) special64(reg string) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		r := k.Reg(ptx.B64)
		k.F("mov.u64 %s, %s;", r, reg)
		return register64(r), nil
	}
}

// constant is a helper that returns a number from the first line of the maps'
// memory.
func (u *unit) constant(off uint64) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		a, r := k.Reg(ptx.B64), k.Reg(ptx.B64)
		k.F("mov.u64 %s, %#x;", a, u.maps.Base+off)
		k.F("ld.global.u64 %s, [%s];", r, a)
		return register64(r), nil
	}
}

// triple is a helper that stores the three components of a special register.
func (u *unit) triple(reg string) form {
	return func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		for i, axis := range []string{".x", ".y", ".z"} {
			c.Args[i].Store(0, 8, register64(k.Wide(k.Special(reg+axis))))
		}
		return ptx.Imm(0), nil
	}
}

// random mixes clocks and the thread's place; it is good for sampling.
func (u *unit) random(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	h, t, clock := k.Reg(ptx.B32), k.Reg(ptx.B32), k.Reg(ptx.B64)
	k.F("mov.u64 %s, %%clock64;", clock)
	k.F("cvt.u32.u64 %s, %s;", h, clock)
	mix := func(w string) {
		k.F("xor.b32 %s, %s, %s;", h, h, w)
		k.F("mul.lo.u32 %s, %s, %#x;", h, h, uint32(mapmem.HashMul1))
		k.F("shr.u32 %s, %s, 15;", t, h)
		k.F("xor.b32 %s, %s, %s;", h, h, t)
	}
	mix(k.Low(k.ThreadIndex()))
	mix(k.Special("%smid"))
	k.F("mul.lo.u32 %s, %s, %#x;", h, h, uint32(mapmem.HashMul2))
	k.F("shr.u32 %s, %s, 16;", t, h)
	k.F("xor.b32 %s, %s, %s;", h, h, t)
	return register64(k.Wide(h)), nil
}

// log2 is the position of the highest bit, 0 for 0.
func (u *unit) log2(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	if n, ok := c.Args[0].Const(); ok {
		return ptx.Imm(int64(bits.Len64(n|1) - 1)), nil
	}
	k := u.code(g)
	r := k.Reg(ptx.B32)
	k.F("bfind.u64 %s, %s;", r, c.Args[0].Reg().String())
	k.F("max.s32 %s, %s, 0;", r, r) // -1 for 0
	return register64(k.Wide(r)), nil
}

func (u *unit) membar(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	u.code(g).F("membar.sys;")
	return ptx.Imm(0), nil
}

// leave is bpftime's cuda_exit: the thread ends. At the end of a Body an exit stands for the
// kernel's next instruction, so that a trap stands for this.
func (u *unit) leave(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	if u.at.given != nil {
		u.code(g).F("trap;")
	} else {
		u.code(g).F("exit;")
	}
	return ptx.Arg{}, nil
}

// funcArg is bpf_get_func_arg: parameter n of the kernel. The upper half of n is an
// offset in 8 bytes, for structures that are passed by value. Textures have no number.
func (u *unit) funcArg(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	n, _ := c.Args[1].Const()
	k := u.code(g)
	index, off := n&0xffffffff, n>>32*8
	if u.at.given != nil {
		r := u.at.given.arg(k, index, off)
		if r == "" {
			c.Args[2].Store(0, 8, ptx.Imm(0))
			return ptx.Imm(helper.EINVAL), nil
		}
		c.Args[2].Store(0, 8, register64(r))
		return ptx.Imm(0), nil
	}
	params := u.at.sites.Params
	if index >= uint64(len(params)) || off != 0 && off >= params[index].Size || params[index].Type >= ptx.TexRef {
		c.Args[2].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(helper.EINVAL), nil
	}
	p := &params[index]
	if p.Space != ptx.SpaceParam {
		r, err := k.Widen(p)
		if err != nil {
			return ptx.Arg{}, err
		}
		c.Args[2].Store(0, 8, register64(r))
		return ptx.Imm(0), nil
	}
	c.Args[2].Store(0, 8, register64(k.Param(p, off)))
	return ptx.Imm(0), nil
}

func (u *unit) funcArgCount(*bpf.Gen, *bpf.Call) (ptx.Arg, error) {
	if u.at.given != nil {
		return ptx.Imm(int64(len(u.at.given.kernel))), nil
	}
	return ptx.Imm(int64(len(u.at.sites.Params))), nil
}

// arguments counts the conversions of a format that take an argument.
func arguments(format string) int {
	n := 0
	for i := 0; i < len(format); {
		if format[i] != '%' {
			i++
			continue
		}
		c, size := mapmem.ParseConversion(format[i:])
		if c.Verb != '%' && c.Verb != 0 {
			n++
		}
		i += size
	}
	return n
}

// A format is that of a call of bpf_printk: a text that is known, with its number,
// or bytes that the record takes along.
type format struct {
	id   uint32
	args int // conversions with an argument, all that there may be if the text is not known
	text emit.BytesArg
	size uint64
}

// format looks at argument 0, a text. most is the number of arguments there may be.
func (u *unit) format(k *emit.Code, c *bpf.Call, most int) (format, error) {
	v := &c.Args[0]
	if v.Size() > mapmem.MaxFormat {
		return format{}, fmt.Errorf("a format of %d bytes; %d is the most", v.Size(), mapmem.MaxFormat)
	}
	b, ok := v.Bytes()
	if !ok {
		// Compilers put the texts of two calls into one place.
		return format{args: most, text: argBytes{k, v}, size: uint64(v.Size())}, nil
	}
	s, _, _ := strings.Cut(string(b), "\x00")
	return format{id: u.formats.id(s), args: min(arguments(s), most), size: uint64(len(s))}, nil
}

// Most arguments of bpf_trace_printk.
const printkArgs = 3

func (u *unit) printk(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	f, err := u.format(k, c, printkArgs)
	if err != nil {
		return ptx.Arg{}, err
	}
	var args []string
	for i := range f.args {
		args = append(args, c.Args[2+i].Reg().String())
	}
	return register64(k.Print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *unit) vprintk(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	size, _ := c.Args[3].Const()
	if size%8 != 0 || size/8 > mapmem.MaxPrintArgs {
		return ptx.Imm(helper.EINVAL), nil
	}
	f, err := u.format(k, c, int(size/8))
	if err != nil {
		return ptx.Arg{}, err
	}
	var args []string
	for i := range f.args {
		args = append(args, c.Args[2].Load(8*i, 8).String())
	}
	return register64(k.Print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *unit) puts(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	b, ok := c.Args[0].Bytes()
	if !ok || len(b) > mapmem.MaxFormat {
		return ptx.Arg{}, fmt.Errorf("the text must be a constant of at most %d bytes", mapmem.MaxFormat)
	}
	return register64(u.code(g).Print(u.formats.id(string(b)), nil, nil, 0, true, int64(len(b)))), nil
}

// pushed refuses maps of other types.
func (u *unit) pushed(types ...object.MapType) func(*bpf.CallInfo) error {
	return func(c *bpf.CallInfo) error {
		d, err := u.defOf(c)
		if err == nil && !slices.Contains(types, d.Type) {
			err = fmt.Errorf("map %s has type %s, to which nothing is pushed", d.Name, d.Type)
		}
		return err
	}
}

// stacks refuses maps that hold no stacks.
func (u *unit) stacks(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Type != object.MapStackTrace {
		err = fmt.Errorf("map %s has type %s and holds no stacks", d.Name, d.Type)
	}
	return err
}
