package proof

import (
	"errors"
	"fmt"
	"slices"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// mapOf returns the map of a call.
func (u *Unit) mapOf(c *bpf.CallInfo) (*mapmem.Map, error) {
	if c.Map < 0 || c.Map >= len(u.Defs) {
		return nil, errors.New("the call's map is not known when the program is proven")
	}
	x := u.Maps.Of(u.Defs[c.Map])
	if x == nil {
		return nil, fmt.Errorf("map %s has type %s, which can't be had on a GPU", u.Defs[c.Map].Name, u.Defs[c.Map].Type)
	}
	return x, nil
}

// defOf returns the definition of a call's map, before any has a place.
func (u *Unit) defOf(c *bpf.CallInfo) (*object.MapDef, error) {
	if c.Map < 0 || c.Map >= len(u.Defs) {
		return nil, errors.New("the call's map is not known when the program is proven")
	}
	return u.Defs[c.Map], nil
}

func (u *Unit) keyed(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Ring() {
		err = fmt.Errorf("map %s is a ring buffer and has no keys", d.Name)
	}
	if err == nil && d.Layout() == object.LayoutQueue {
		err = fmt.Errorf("map %s is a %s and has no keys; map_push_elem, map_pop_elem and map_peek_elem are for it", d.Name, d.Type)
	}
	return err
}

func (u *Unit) changeable(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Layout() == object.LayoutMaps {
		err = fmt.Errorf("the maps in %s are set before programs run, by its definition or --map", d.Name)
	}
	if err != nil {
		return err
	}
	return u.keyed(c)
}

// sameForWarp reports whether threads of a warp that look the same key up get the same
// address, and the assembler sees that.
func (u *Unit) sameForWarp(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.Layout() == object.LayoutArray
}

// found reports whether a lookup always finds a value: an array has one for every
// key in range.
func (u *Unit) found(c *bpf.CallInfo) bool {
	d, err := u.defOf(c)
	return err == nil && d.Layout() == object.LayoutArray && c.Most[1] < uint64(d.MaxEntries)
}

func (u *Unit) ring(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && !d.Ring() {
		err = fmt.Errorf("map %s has type %s; the call needs a ring buffer", d.Name, d.Type)
	}
	return err
}

func (u *Unit) ringSize(c *bpf.CallInfo) error {
	if err := u.ring(c); err != nil || !c.Consts[1].Known {
		return err
	}
	return u.fits(c, c.Consts[1].Value)
}

// recordOf returns the check of a helper whose argument data is a record.
func (u *Unit) recordOf(data int) func(*bpf.CallInfo) error {
	return func(c *bpf.CallInfo) error {
		if err := u.ring(c); err != nil {
			return err
		}
		return u.fits(c, uint64(c.Size[data]))
	}
}

// fits refuses records that the call's map never has room for.
func (u *Unit) fits(c *bpf.CallInfo, size uint64) error {
	if d := u.Defs[c.Map]; size > d.MaxRecord() {
		return fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, d.Name, d.MaxRecord())
	}
	return nil
}

// ofEach refuses maps that do not have a value for each multiprocessor.
func (u *Unit) ofEach(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && !d.PerSM() {
		err = fmt.Errorf("map %s is a %s, and has no value for each multiprocessor", d.Name, d.Type)
	}
	return err
}

// pushed refuses maps of other types.
func (u *Unit) pushed(types ...object.MapType) func(*bpf.CallInfo) error {
	return func(c *bpf.CallInfo) error {
		d, err := u.defOf(c)
		if err == nil && !slices.Contains(types, d.Type) {
			err = fmt.Errorf("map %s has type %s, which can't be pushed to or popped from", d.Name, d.Type)
		}
		return err
	}
}

// stacks refuses maps that hold no stacks.
func (u *Unit) stacks(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Type != object.MapStackTrace {
		err = fmt.Errorf("map %s has type %s; the call needs a stack_trace map", d.Name, d.Type)
	}
	return err
}

// valued reports whether a call always has a value.
func (u *Unit) valued(c *bpf.CallInfo) bool { return u.Slots != nil && u.Slots(c) || u.found(c) }

// mapCall returns what the code of a call with a map begins with.
func (u *Unit) mapCall(g *bpf.Gen, c *bpf.Call) (*emit.Code, *mapmem.Map, error) {
	x, err := u.mapOf(&c.CallInfo)
	return u.Code(g), x, err
}

func (u *Unit) lookup(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return Register64(k.Lookup(x, argBytes{k, &c.Args[1]}, u.found(&c.CallInfo))), nil
}

// mapValue is nvtrace_map_value: the address of the value of a key, which becomes 0 if it is not there.
func (u *Unit) mapValue(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	key := argBytes{k, &c.Args[1]}
	if x.Kind != object.LayoutHash {
		return Register64(k.Lookup(x, key, u.found(&c.CallInfo))), nil
	}
	a, p, have := k.Held(k.Lookup(x, key, false)), k.Reg(ptx.Pred), k.Label()
	k.F("setp.ne.u64 %s, %s, 0;", p, a)
	k.F("@%s bra %s;", p, have)
	k.Update(x, key, zeros{}, "1", false, false, false) // BPF_NOEXIST
	k.F("mov.u64 %s, %s;", a, k.Lookup(x, key, false))
	k.At(have)
	return Register64(a), nil
}

// zeros is memory that is zero.
type zeros struct{}

// Load implements [emit.BytesArg].
func (zeros) Load(uint64, int) string { return "0" }

// lookupSM is bpf_map_lookup_percpu_elem: the value that another multiprocessor has.
func (u *Unit) lookupSM(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	sm, p := k.Held(c.Args[2].Reg().String()), k.Reg(ptx.Pred)
	k.F("setp.lt.u64 %s, %s, %d;", p, sm, u.Maps.SMs)
	k.Sm = k.Low(sm)
	k.F("min.u32 %s, %s, %d;", k.Sm, k.Sm, u.Maps.SMs-1)
	at, r := k.Held(k.Lookup(x, argBytes{k, &c.Args[1]}, false)), k.Reg(ptx.B64)
	k.F("selp.b64 %s, %s, 0, %s;", r, at, p)
	return Register64(r), nil
}

func (u *Unit) update(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	uniform := c.Bytes[1] != nil && c.Bytes[2] != nil
	value := emit.BytesArg(argBytes{k, &c.Args[2]})
	if u.Program != nil {
		if r, ok := u.Program.recounts[c.Insn]; ok {
			d, key, _ := u.Program.counts(r)
			value, uniform = k.Counted(u.Maps.Of(d), key), false
		}
	}
	flags := c.Args[3].Reg().String()
	if k.Inserts = u.Program != nil && u.Program.inserts[c.Insn] && len(x.Sums) > 0; k.Inserts {
		flags = "0"
	}
	return Register64(k.Update(x, argBytes{k, &c.Args[1]}, value, flags, u.found(&c.CallInfo), uniform, c.Used)), nil
}

func (u *Unit) remove(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	return Register64(k.Remove(x, argBytes{k, &c.Args[1]})), nil
}

// emitOutput writes a record; size is the argument with its length.
func (u *Unit) emitOutput(g *bpf.Gen, c *bpf.Call, data, size int, refused int64) (ptx.Arg, error) {
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
	return Register64(k.Output(x, argBytes{k, &c.Args[data]}, most, length, refused)), nil
}

func (u *Unit) perfOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 3, 4, helper.ENOSPC)
}

func (u *Unit) ringOutput(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	return u.emitOutput(g, c, 1, 2, helper.EAGAIN)
}

func (u *Unit) ringReserve(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	size, _ := c.Args[1].Const()
	if size > x.Ring.MaxRecord {
		return ptx.Arg{}, fmt.Errorf("a record of %d bytes; those of map %s have at most %d", size, x.Name, x.Ring.MaxRecord)
	}
	return Register64(k.RingReserve(x, size)), nil
}

// finish is a helper that gives a record back.
func (u *Unit) finish(discard bool) form {
	return func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
		u.Code(g).RingSubmit(c.Args[0].Reg().String(), discard)
		return ptx.Arg{}, nil
	}
}

// Flags of bpf_ringbuf_query.
const (
	RingAvail    = 0 // bytes not read yet
	RingRingSize = 1
	RingConsPos  = 2
	RingProdPos  = 3
)

// ringQuery answers for the part of the ring that the thread's records go to.
func (u *Unit) ringQuery(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k, x, err := u.mapCall(g, c)
	if err != nil {
		return ptx.Arg{}, err
	}
	what, _ := c.Args[1].Const()
	if what == RingRingSize {
		return ptx.Imm(int64(x.Ring.Units * object.UnitBytes)), nil
	}
	if what > RingProdPos {
		return ptx.Imm(0), nil
	}
	part, r := k.PerSM(x.Base, x.CopyBytes), k.Result(0)
	load := func(off int) string {
		v := k.Reg(ptx.B64)
		k.F("ld%s.global.u64 %s, [%s+%d];", k.Order(".relaxed.sys"), v, part, off)
		return v
	}
	switch what {
	case RingAvail:
		k.F("sub.s64 %s, %s, %s;", r, load(object.RingReserved), load(object.RingRead))
		// What was dropped was handed out as well.
		k.F("min.u64 %s, %s, %d;", r, r, x.Ring.Units)
	case RingConsPos:
		r = load(object.RingRead)
	case RingProdPos:
		r = load(object.RingReserved)
	}
	bytes := k.Reg(ptx.B64)
	k.F("mul.lo.u64 %s, %s, %d;", bytes, r, object.UnitBytes)
	return Register64(bytes), nil
}
