package proof

import (
	"math/bits"
	"slices"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers returns all helpers that programs in kernels may call.
func (u *Unit) Helpers() map[int32]*bpf.Helper {
	h, forms := make(map[int32]*bpf.Helper), u.forms()
	for _, row := range helper.In(helper.Kernel) {
		e := row.Env(helper.Kernel)
		e.Emit = forms[row.Number]
		h[row.Number] = e
	}
	u.CheckMaps(h)
	if !u.AllowExit {
		h[helper.Exit].Refuse = "cuda_exit ends the kernel's thread, so the program computes something else"
		h[helper.Exit].Hint = "--allow-exit allows it"
	}
	h[helper.RingReserve].Release = func(g *bpf.Gen, rec ptx.Arg) error { u.Code(g).RingSubmit(rec.String(), true); return nil }
	for _, n := range slices.Concat(ReadHelpers, ReadStrHelpers) {
		h[n].Check = atMostRead
	}
	Interpreted(h, emit.Changed)
	return h
}

// forms are those of all helpers of programs in kernels, by their numbers.
func (u *Unit) forms() map[int32]form {
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
	for _, n := range ReadHelpers {
		list[n] = u.probeRead
	}
	for _, n := range ReadStrHelpers {
		list[n] = u.probeReadStr
	}
	u.togetherForms(list)
	for n, x := range emit.Extremes {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			u.Code(g).Extreme(x, c, u.Object.Own)
			return ptx.Arg{}, nil
		}
	}
	return list
}

// CheckMaps has calls refused whose map is none for them.
func (u *Unit) CheckMaps(h map[int32]*bpf.Helper) {
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

// Interpreted gives helpers that only calculate the meaning that they have for an interpreter, on
// the host and where tests compare with kernels. atomic changes a number of the maps' memory.
func Interpreted(h map[int32]*bpf.Helper, atomic func(in *bpf.Interpreter, addr uint64, n int, change func(old uint64) uint64) error) {
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

// special32 is a helper that returns a special register of 32 bits.
func (u *Unit) special32(reg string) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.Code(g)
		return Register64(k.Wide(k.Special(reg))), nil
	}
}

// special64 is one that returns a special register of 64 bits.
func (u *Unit) special64(reg string) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.Code(g)
		r := k.Reg(ptx.B64)
		k.F("mov.u64 %s, %s;", r, reg)
		return Register64(r), nil
	}
}

// constant is a helper that returns a number from the first line of the maps'
// memory.
func (u *Unit) constant(off uint64) form {
	return func(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
		k := u.Code(g)
		a, r := k.Reg(ptx.B64), k.Reg(ptx.B64)
		k.F("mov.u64 %s, %#x;", a, u.Maps.Base+off)
		k.F("ld.global.u64 %s, [%s];", r, a)
		return Register64(r), nil
	}
}

// triple is a helper that stores the three components of a special register.
func (u *Unit) triple(reg string) form {
	return func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
		k := u.Code(g)
		for i, axis := range []string{".x", ".y", ".z"} {
			c.Args[i].Store(0, 8, Register64(k.Wide(k.Special(reg+axis))))
		}
		return ptx.Imm(0), nil
	}
}

// random mixes clocks and the thread's place; it is good for sampling.
func (u *Unit) random(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
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
	return Register64(k.Wide(h)), nil
}

// log2 is the position of the highest bit, 0 for 0.
func (u *Unit) log2(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	if n, ok := c.Args[0].Const(); ok {
		return ptx.Imm(int64(bits.Len64(n|1) - 1)), nil
	}
	k := u.Code(g)
	r := k.Reg(ptx.B32)
	k.F("bfind.u64 %s, %s;", r, c.Args[0].Reg().String())
	k.F("max.s32 %s, %s, 0;", r, r) // -1 for 0
	return Register64(k.Wide(r)), nil
}

func (u *Unit) membar(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	u.Code(g).F("membar.sys;")
	return ptx.Imm(0), nil
}

// leave is bpftime's cuda_exit: the thread ends. At the end of a Body an exit stands for the
// kernel's next instruction, so that a trap stands for this.
func (u *Unit) leave(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	if u.At.Given != nil {
		u.Code(g).F("trap;")
	} else {
		u.Code(g).F("exit;")
	}
	return ptx.Arg{}, nil
}

// alikeHelpers are helpers that say the same in all threads of a block or a grid.
var alikeHelpers = map[int32]bpf.Extent{
	helper.Log2: bpf.OfGrid, helper.Popc: bpf.OfGrid, helper.ProcessThread: bpf.OfGrid, helper.Device: bpf.OfGrid, helper.Rank: bpf.OfGrid,
	helper.Launch: bpf.OfGrid, helper.GridDim: bpf.OfGrid, helper.BlockDim: bpf.OfGrid, helper.BlockIdx: bpf.OfBlock,
	helper.FuncArg: bpf.OfGrid, helper.FuncArgCount: bpf.OfGrid,
	helper.MapValue: bpf.OfGrid,
}

// repeated are helpers that do nothing new when they are called again.
var repeated = []int32{
	helper.FuncArg, helper.FuncArgCount, helper.GridDim, helper.BlockDim, helper.BlockIdx, helper.MapValue,
	helper.Max, helper.Min, helper.SMax, helper.SMin, helper.Max32, helper.Min32, helper.SMax32, helper.SMin32,
}
