package nvattach

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// unit is the compilation of one object's programs: the maps and helpers that
// they find, and the place that code is being written for.
type unit struct {
	obj     *Object
	maps    *Maps
	defs    []*MapDef // as in bpf.Env.Maps
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

func (u *unit) code(g *bpf.Gen) *code {
	return &code{s: genSink{g}, m: u.maps, weak: u.weak, apart: u.apart, block: u.block}
}

// argBytes is what a pointer among a helper's arguments points at.
type argBytes struct {
	c *code
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
	return a.c.low(x)
}

// Kinds of arguments, for short.
var (
	argAny     = bpf.ArgSpec{Kind: bpf.ArgAny}
	argScalar  = bpf.ArgSpec{Kind: bpf.ArgScalar}
	argConst   = bpf.ArgSpec{Kind: bpf.ArgConst}
	argMap     = bpf.ArgSpec{Kind: bpf.ArgMap}
	argKey     = bpf.ArgSpec{Kind: bpf.ArgKey}
	argValue   = bpf.ArgSpec{Kind: bpf.ArgValue}
	argContext = bpf.ArgSpec{Kind: bpf.ArgContext}
	argRecord  = bpf.ArgSpec{Kind: bpf.ArgRecord}
	argOut64   = bpf.ArgSpec{Kind: bpf.ArgWrite, Size: 8, Whole: true}
)

// register64 is a result for the compiler.
func register64(r string) ptx.Arg {
	if n, err := strconv.ParseInt(r, 0, 64); err == nil {
		return ptx.Imm(n)
	}
	return ptx.TypedReg(ptx.B64, r)
}

// helpers returns all helpers that programs of the unit may call.
func (u *unit) helpers() map[int32]*bpf.Helper {
	h := map[int32]*bpf.Helper{
		helperTime:         {Name: "ktime_get_ns", Pure: true, Emit: u.time},
		7:                  {Name: "get_prandom_u32", Emit: u.random},
		8:                  u.special32("get_smp_processor_id", "%smid"),
		14:                 u.constant("get_current_pid_tgid", processOff),
		502:                u.special64("get_globaltimer", "%globaltimer"),
		503:                u.triple("get_block_idx", "%ctaid"),
		504:                u.triple("get_block_dim", "%ntid"),
		505:                u.triple("get_thread_idx", "%tid"),
		506:                {Name: "gpu_membar", Emit: u.membar},
		helperExit:         {Name: "cuda_exit", Ret: bpf.RetNever, Emit: u.leave},
		508:                u.triple("get_grid_dim", "%nctaid"),
		509:                u.special32("get_sm_id", "%smid"),
		510:                u.special32("get_warp_id", "%warpid"),
		511:                u.special32("get_lane_id", "%laneid"),
		512:                u.constant("get_device_ordinal", deviceOff),
		HelperRank:         u.constant("nvtrace_rank", rankOff),
		helperLog2:         {Name: "nvtrace_log2", Args: []bpf.ArgSpec{argScalar}, Pure: true, Max: 63, Uniform: always, Emit: u.log2, Interpret: log2},
		helperFuncArg:      {Name: "get_func_arg", Args: []bpf.ArgSpec{argContext, argConst, argOut64}, Emit: u.funcArg},
		helperFuncRet:      {Name: "get_func_ret", Args: []bpf.ArgSpec{argContext, argOut64}, Emit: u.funcRet},
		helperFuncArgCount: {Name: "get_func_arg_cnt", Args: []bpf.ArgSpec{argContext}, Pure: true, Emit: u.funcArgCount},
	}
	if !u.exit {
		h[helperExit].Refuse = "cuda_exit ends the kernel's thread, so the program computes something else"
		h[helperExit].Hint = "--allow-exit allows it"
	}
	u.mapHelpers(h)
	u.printHelpers(h)
	u.warpHelpers(h)
	u.togetherHelpers(h)
	u.extremeHelpers(h, changed)
	u.memoryHelpers(h)
	return h
}

func (u *unit) mapHelpers(h map[int32]*bpf.Helper) {
	h[1] = &bpf.Helper{Name: "map_lookup_elem", Args: []bpf.ArgSpec{argMap, argKey}, Ret: bpf.RetValue, Pure: true, Check: u.keyed, NeverNull: u.found, Uniform: u.sameForWarp, Emit: u.lookup}
	h[2] = &bpf.Helper{Name: "map_update_elem", Args: []bpf.ArgSpec{argMap, argKey, argValue, argScalar}, Check: u.changeable, Emit: u.update}
	h[3] = &bpf.Helper{Name: "map_delete_elem", Args: []bpf.ArgSpec{argMap, argKey}, Check: u.changeable, Emit: u.remove}
	h[helperLookupSM] = &bpf.Helper{Name: "map_lookup_percpu_elem", Args: []bpf.ArgSpec{argMap, argKey, argScalar}, Ret: bpf.RetValue, Pure: true, Check: u.ofEach, Emit: u.lookupSM}
	h[25] = &bpf.Helper{
		Name: "perf_event_output", Check: u.recordOf(3), Emit: u.perfOutput,
		Args: []bpf.ArgSpec{argContext, argMap, argScalar, {Kind: bpf.ArgRead, SizeArg: 4}, argScalar},
	}
	h[130] = &bpf.Helper{
		Name: "ringbuf_output", Check: u.recordOf(1), Emit: u.ringOutput,
		Args: []bpf.ArgSpec{argMap, {Kind: bpf.ArgRead, SizeArg: 2}, argScalar, argScalar},
	}
	h[131] = &bpf.Helper{
		Name: "ringbuf_reserve", Args: []bpf.ArgSpec{argMap, argConst, argScalar}, Ret: bpf.RetRecord, Check: u.ringSize, Emit: u.ringReserve,
		Release: func(g *bpf.Gen, rec ptx.Arg) error { u.code(g).ringSubmit(rec.String(), true); return nil },
	}
	finish := func(discard bool) func(*bpf.Gen, *bpf.Call) (ptx.Arg, error) {
		return func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			u.code(g).ringSubmit(c.Args[0].Reg().String(), discard)
			return ptx.Arg{}, nil
		}
	}
	h[132] = &bpf.Helper{Name: "ringbuf_submit", Args: []bpf.ArgSpec{argRecord, argScalar}, Ret: bpf.RetVoid, Emit: finish(false)}
	h[133] = &bpf.Helper{Name: "ringbuf_discard", Args: []bpf.ArgSpec{argRecord, argScalar}, Ret: bpf.RetVoid, Emit: finish(true)}
	h[134] = &bpf.Helper{Name: "ringbuf_query", Args: []bpf.ArgSpec{argMap, argConst}, Check: u.ring, Emit: u.ringQuery}
}

func (u *unit) printHelpers(h map[int32]*bpf.Helper) {
	h[helperPrint] = &bpf.Helper{
		Name: "trace_printk", Check: u.formatted, Emit: u.printk,
		Args: []bpf.ArgSpec{{Kind: bpf.ArgRead, SizeArg: 1}, argScalar, argAny, argAny, argAny},
	}
	h[helperVPrint] = &bpf.Helper{
		Name: "trace_vprintk", Check: u.formatted, Emit: u.vprintk,
		Args: []bpf.ArgSpec{{Kind: bpf.ArgRead, SizeArg: 1}, argScalar, {Kind: bpf.ArgRead, SizeArg: 3}, argConst},
	}
	h[helperPuts] = &bpf.Helper{Name: "ebpf_puts", Args: []bpf.ArgSpec{{Kind: bpf.ArgString, Size: bpf.StackSize}}, Emit: u.puts}
}

// Numbers of helpers that are asked for by number.
const (
	helperLookup = 1
	helperUpdate = 2
	helperDelete = 3
	helperTime   = 5
	helperPrint  = 6
	helperVPrint = 177

	helperFuncArg      = 183
	helperFuncRet      = 184
	helperFuncArgCount = 185

	helperLookupSM = 195
	helperPuts     = 501
	helperExit     = 507 // bpftime's cuda_exit
	helperLog2     = HelperLog2
	helperMax      = HelperMax
)

// Numbers of nvtrace's own helpers.
const (
	HelperLog2 = 600 // nvtrace_log2(n): the position of the highest bit
	// HelperUSDTArg is nvtrace_usdt_arg(ctx, n, &value): argument n of a USDT probe.
	HelperUSDTArg   = 620
	helperUSDTCount = 619 // how many arguments there are
	HelperRank      = 630 // nvtrace_rank(): the rank of the process that launched the kernel, -1: none
	HelperMax       = 601 // nvtrace_max(p, n): *p becomes n if that is higher, without a sign

	HelperActive     = 602 // nvtrace_activemask(): the threads of the warp that run this now
	HelperMatch      = 603 // nvtrace_match(v): those of them with the same v
	HelperFirst      = 604 // nvtrace_first(v): 1 in the lowest of these
	HelperPopc       = 605 // nvtrace_popc(v): the bits of v that are 1
	HelperWavefronts = 606 // nvtrace_wavefronts(addr, size): passes of shared memory for the warp's accesses
	HelperLaunch     = 607 // nvtrace_launch_id(): number of the launch

	// As HelperMax, of numbers with a sign (S), the lowest (Min), of 32 bits.

	HelperMin    = 614
	HelperSMax   = 615
	HelperSMin   = 616
	HelperMax32  = 617
	HelperMin32  = 618
	HelperSMax32 = 621
	HelperSMin32 = 622

	// Of all threads of a warp that came to the site together, which call them together.

	HelperTogether = 608 // nvtrace_together(): a mask of them
	HelperLeader   = 609 // nvtrace_leader(): 1 in the lowest
	HelperBallot   = 610 // nvtrace_ballot(v): those in which v is not 0
	HelperAny      = 611 // nvtrace_any(v): 1 if there is one
	HelperAll      = 612 // nvtrace_all(v): 1 if all are
	HelperShuffle  = 613 // nvtrace_shuffle(v, lane): the v of another one, 0 if it is not there
)

// mapOf returns the map of a call.
func (u *unit) mapOf(c *bpf.CallInfo) (*Map, error) {
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
func (u *unit) defOf(c *bpf.CallInfo) (*MapDef, error) {
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
	if err == nil && d.layout() == layoutQueue {
		err = fmt.Errorf("map %s is a %s and has no keys; map_push_elem, map_pop_elem and map_peek_elem are for it", d.Name, d.Type)
	}
	return err
}

func (u *unit) changeable(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.layout() == layoutMaps {
		err = fmt.Errorf("which maps are in %s is said before programs run, by its definition or --map", d.Name)
	}
	if err != nil {
		return err
	}
	return u.keyed(c)
}

// always is bpf.Helper.Uniform of helpers that only look at their arguments.
func always(*bpf.CallInfo) bool { return true }

// sameForWarp reports whether threads of a warp that look the same key up get the same
// address, and the assembler sees that.
func (u *unit) sameForWarp(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.layout() == layoutArray
}

// found reports whether a lookup always finds a value: an array has one for every
// key in range.
func (u *unit) found(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.layout() == layoutArray && c.Most[1] < uint64(d.MaxEntries)
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
	if d := u.defs[c.Map]; size > d.maxRecord() {
		return fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, d.Name, d.maxRecord())
	}
	return nil
}

// formatted refuses texts that are too long for a record of bpf_printk.
func (u *unit) formatted(c *bpf.CallInfo) error {
	if c.Size[0] > maxFormat {
		return fmt.Errorf("a format of %d bytes; %d is the most", c.Size[0], maxFormat)
	}
	return nil
}

// mapCall returns what the code of a call with a map begins with.
func (u *unit) mapCall(g *bpf.Gen, c *bpf.Call) (*code, *Map, error) {
	x, err := u.mapOf(&c.CallInfo)
	return u.code(g), x, err
}

func (u *unit) lookup(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return register64(k.lookup(x, argBytes{k, &c.Args[1]}, u.found(&c.CallInfo))), nil
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
	sm, p := k.held(c.Args[2].Reg().String()), k.reg(ptx.Pred)
	k.f("setp.lt.u64 %s, %s, %d;", p, sm, u.maps.SMs)
	k.sm = k.low(sm)
	k.f("min.u32 %s, %s, %d;", k.sm, k.sm, u.maps.SMs-1)
	at, r := k.held(k.lookup(x, argBytes{k, &c.Args[1]}, false)), k.reg(ptx.B64)
	k.f("selp.b64 %s, %s, 0, %s;", r, at, p)
	return register64(r), nil
}

func (u *unit) update(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	uniform := c.Bytes[1] != nil && c.Bytes[2] != nil
	value := bytesArg(argBytes{k, &c.Args[2]})
	if u.q != nil {
		if r, ok := u.q.recounts[c.Insn]; ok {
			d, key, _ := u.q.counts(r)
			value, uniform = k.counted(u.maps.Of(d), key), false
		}
	}
	flags := c.Args[3].Reg().String()
	if k.inserts = u.q != nil && u.q.inserts[c.Insn] && len(x.sums) > 0; k.inserts {
		flags = "0"
	}
	return register64(k.update(x, argBytes{k, &c.Args[1]}, value, flags, u.found(&c.CallInfo), uniform, c.Used)), nil
}

func (u *unit) remove(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return register64(k.remove(x, argBytes{k, &c.Args[1]})), nil
}

// emitOutput writes a record; size is the argument with its length.
func (u *unit) emitOutput(g *bpf.Gen, c *bpf.Call, data, size int, refused int64) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	most := uint64(c.Args[data].Size())
	if most > x.ring.maxRecord {
		return ptx.Arg{}, fmt.Errorf("a record of %d bytes; those of map %s have at most %d", most, x.Name, x.ring.maxRecord)
	}
	length := itoa(most)
	if _, known := c.Args[size].Const(); !known {
		length = k.low(c.Args[size].Reg().String())
	}
	return register64(k.output(x, argBytes{k, &c.Args[data]}, most, length, refused)), nil
}

func (u *unit) perfOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 3, 4, errNoSpc)
}

func (u *unit) ringOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 1, 2, errAgain)
}

func (u *unit) ringReserve(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	size, _ := c.Args[1].Const()
	if size > x.ring.maxRecord {
		return ptx.Arg{}, fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, x.Name, x.ring.maxRecord)
	}
	return register64(k.ringReserve(x, size)), nil
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
		return ptx.Imm(int64(x.ring.units * unitBytes)), nil
	}
	if what > ringProdPos {
		return ptx.Imm(0), nil
	}
	part, r := k.perSM(x.base, x.copyBytes), k.result(0)
	load := func(off int) string {
		v := k.reg(ptx.B64)
		k.f("ld%s.global.u64 %s, [%s+%d];", k.order(".relaxed.sys"), v, part, off)
		return v
	}
	switch what {
	case ringAvail:
		k.f("sub.s64 %s, %s, %s;", r, load(ringReserved), load(ringRead))
		// What was dropped was handed out as well.
		k.f("min.u64 %s, %s, %d;", r, r, x.ring.units)
	case ringConsPos:
		r = load(ringRead)
	case ringProdPos:
		r = load(ringReserved)
	}
	bytes := k.reg(ptx.B64)
	k.f("mul.lo.u64 %s, %s, %d;", bytes, r, unitBytes)
	return register64(bytes), nil
}

// special32 is a helper that returns a special register of 32 bits.
func (u *unit) special32(name, reg string) *bpf.Helper {
	return &bpf.Helper{Name: name, Pure: true, Emit: func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		return register64(k.wide(k.special(reg))), nil
	}}
}

// special64 is one that returns a special register of 64 bits.
func (u *unit) special64(name, reg string) *bpf.Helper {
	return &bpf.Helper{Name: name, Pure: true, Emit: func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		r := k.reg(ptx.B64)
		k.f("mov.u64 %s, %s;", r, reg)
		return register64(r), nil
	}}
}

// constant is a helper that returns a number from the first line of the maps'
// memory.
func (u *unit) constant(name string, off uint64) *bpf.Helper {
	return &bpf.Helper{Name: name, Pure: true, Emit: func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		a, r := k.reg(ptx.B64), k.reg(ptx.B64)
		k.f("mov.u64 %s, %#x;", a, u.maps.base+off)
		k.f("ld.global.u64 %s, [%s];", r, a)
		return register64(r), nil
	}}
}

// triple is a helper that stores the three components of a special register.
func (u *unit) triple(name, reg string) *bpf.Helper {
	return &bpf.Helper{Name: name, Args: []bpf.ArgSpec{argOut64, argOut64, argOut64}, Uniform: func(*bpf.CallInfo) bool { return reg != "%tid" }, Emit: func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
		k := u.code(g)
		for i, axis := range []string{".x", ".y", ".z"} {
			c.Args[i].Store(0, 8, register64(k.wide(k.special(reg+axis))))
		}
		return ptx.Imm(0), nil
	}}
}

// random mixes clocks and the thread's place; it is good for sampling.
func (u *unit) random(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	h, t, clock := k.reg(ptx.B32), k.reg(ptx.B32), k.reg(ptx.B64)
	k.f("mov.u64 %s, %%clock64;", clock)
	k.f("cvt.u32.u64 %s, %s;", h, clock)
	mix := func(w string) {
		k.f("xor.b32 %s, %s, %s;", h, h, w)
		k.f("mul.lo.u32 %s, %s, %#x;", h, h, uint32(hashMul1))
		k.f("shr.u32 %s, %s, 15;", t, h)
		k.f("xor.b32 %s, %s, %s;", h, h, t)
	}
	mix(k.low(k.threadIndex()))
	mix(k.special("%smid"))
	k.f("mul.lo.u32 %s, %s, %#x;", h, h, uint32(hashMul2))
	k.f("shr.u32 %s, %s, 16;", t, h)
	k.f("xor.b32 %s, %s, %s;", h, h, t)
	return register64(k.wide(h)), nil
}

// log2 is the position of the highest bit, 0 for 0.
func (u *unit) log2(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	if n, ok := c.Args[0].Const(); ok {
		return ptx.Imm(int64(bits.Len64(n|1) - 1)), nil
	}
	k := u.code(g)
	r := k.reg(ptx.B32)
	k.f("bfind.u64 %s, %s;", r, c.Args[0].Reg().String())
	k.f("max.s32 %s, %s, 0;", r, r) // -1 for 0
	return register64(k.wide(r)), nil
}

func log2(_ *bpf.Interpreter, a [5]uint64) (uint64, error) {
	return uint64(bits.Len64(a[0]|1) - 1), nil
}

func (u *unit) membar(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	u.code(g).f("membar.sys;")
	return ptx.Imm(0), nil
}

// leave is bpftime's cuda_exit: the thread ends. At the end of a Body an exit stands for the
// kernel's next instruction, so that a trap stands for this.
func (u *unit) leave(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	if u.at.given != nil {
		u.code(g).f("trap;")
	} else {
		u.code(g).f("exit;")
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
			return ptx.Imm(errInval), nil
		}
		c.Args[2].Store(0, 8, register64(r))
		return ptx.Imm(0), nil
	}
	params := u.at.sites.Params
	if index >= uint64(len(params)) || off != 0 && off >= params[index].Size || params[index].Type >= ptx.TexRef {
		c.Args[2].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(errInval), nil
	}
	p := &params[index]
	if p.Space != ptx.SpaceParam {
		r, err := k.widen(p)
		if err != nil {
			return ptx.Arg{}, err
		}
		c.Args[2].Store(0, 8, register64(r))
		return ptx.Imm(0), nil
	}
	c.Args[2].Store(0, 8, register64(k.param(p, off)))
	return ptx.Imm(0), nil
}

// param loads up to 8 bytes of a parameter in pieces that its alignment allows.
func (c *code) param(p *ptx.Param, off uint64) string {
	r := c.result(0)
	align := max(p.Align, 1)
	for i := uint64(0); i < 8 && off+i < p.Size; {
		n := min(uint64(pieceOf(i, min(8, p.Size-off)-i)), align)
		w := c.reg(ptx.B64)
		c.f("ld.param.u%d %s, [%s+%d];", 8*n, w, p.Name, off+i)
		if i > 0 {
			c.f("shl.b64 %s, %s, %d;", w, w, 8*i)
		}
		c.f("or.b64 %s, %s, %s;", r, r, w)
		i += n
	}
	return r
}

// widen returns a parameter that is in a register as 64 bits.
func (c *code) widen(p *ptx.Param) (string, error) {
	r, bits := c.reg(ptx.B64), 8*p.Size
	switch p.Size {
	case 8:
		c.f("mov.b64 %s, %s;", r, p.Name)
	case 4:
		w := c.reg(ptx.B32)
		c.f("mov.b32 %s, %s;", w, p.Name)
		c.f("cvt.u64.u32 %s, %s;", r, w)
	case 2:
		w := c.reg(ptx.B16)
		c.f("mov.b16 %s, %s;", w, p.Name)
		c.f("cvt.u64.u16 %s, %s;", r, w)
	default:
		return "", fmt.Errorf("parameter %s has %d bits in a register and can't be read", p.Name, bits)
	}
	return r, nil
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
		c, size := parseConversion(format[i:])
		if c.verb != '%' && c.verb != 0 {
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
	text bytesArg
	size uint64
}

// format looks at argument 0, a text. most is the number of arguments there may be.
func (u *unit) format(k *code, c *bpf.Call, most int) (format, error) {
	v := &c.Args[0]
	if v.Size() > maxFormat {
		return format{}, fmt.Errorf("a format of %d bytes; %d is the most", v.Size(), maxFormat)
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
	return register64(k.print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *unit) vprintk(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	size, _ := c.Args[3].Const()
	if size%8 != 0 || size/8 > maxPrintArgs {
		return ptx.Imm(errInval), nil
	}
	f, err := u.format(k, c, int(size/8))
	if err != nil {
		return ptx.Arg{}, err
	}
	var args []string
	for i := range f.args {
		args = append(args, c.Args[2].Load(8*i, 8).String())
	}
	return register64(k.print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *unit) puts(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	b, ok := c.Args[0].Bytes()
	if !ok || len(b) > maxFormat {
		return ptx.Arg{}, fmt.Errorf("the text must be a constant of at most %d bytes", maxFormat)
	}
	return register64(u.code(g).print(u.formats.id(string(b)), nil, nil, 0, true, int64(len(b)))), nil
}
