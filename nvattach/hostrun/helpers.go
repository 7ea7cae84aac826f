package hostrun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// onlyAt says which helpers there are at a kind of place only.
var onlyAt = map[int32]func(object.HostKind) bool{
	helper.FuncIP:    func(k object.HostKind) bool { return (&object.HostPoint{Kind: k}).Function() },
	helper.FuncArg:   func(k object.HostKind) bool { return k == object.HostEntry || k == object.HostAPI },
	helper.FuncRet:   func(k object.HostKind) bool { return k == object.HostReturn || k == object.HostAPIReturn },
	helper.USDTArg:   func(k object.HostKind) bool { return k == object.HostUSDT },
	helper.USDTCount: func(k object.HostKind) bool { return k == object.HostUSDT },
	// Nobody knows where a thread is that an event is of.
	helper.Stack:   func(k object.HostKind) bool { return k != object.HostEvent },
	helper.StackID: func(k object.HostKind) bool { return k != object.HostEvent },
}

// helpers returns the helpers of programs at a kind of place, which r runs; nil while
// they are only proven.
func helpers(u *proof.Unit, kind *object.HostSection, r *Runner) map[int32]*bpf.Helper {
	h := make(map[int32]*bpf.Helper)
	for _, row := range helper.In(helper.Host) {
		h[row.Number] = row.Env(helper.Host)
	}
	u.CheckMaps(h)
	proof.Interpreted(h, func(_ *bpf.Interpreter, addr uint64, n int, change func(old uint64) uint64) error {
		_, err := r.atomic(addr, n, change)
		return err
	})
	r.threadOps(h)
	r.readOps(h)
	r.textOps(h)
	r.queueOps(h)
	r.mapOps(h)
	r.printOps(h)
	r.argOps(h)
	r.stackOps(h)
	for n, has := range onlyAt {
		if !has(kind.Kind) {
			delete(h, n)
		}
	}
	maps.Copy(h, kind.Helpers)
	if !kind.Override {
		for _, n := range []int32{helper.OverrideReturn, helper.SetRetval} {
			h[n].Refuse = "what is returned is decided before a function or a call begins"
			h[n].Hint = "call it in a program at the entry"
		}
	}
	return h
}

// threadOps gives the helpers that ask for the thread their meaning, and those that have it go on
// with something else.
func (r *Runner) threadOps(h map[int32]*bpf.Helper) {
	for n, f := range map[int32]func() uint64{
		helper.Time:       func() uint64 { return r.call.Thread.Now() },
		helper.BootTime:   func() uint64 { return r.call.Thread.Now() }, // CLOCK_BOOTTIME is the same except for sleep
		helper.CoarseTime: func() uint64 { return r.call.Thread.Now() },
		helper.Random:     func() uint64 { return r.next() },
		helper.Processor:  func() uint64 { return uint64(r.cpu()) },
		helper.FuncIP:     func() uint64 { return r.call.FuncIP },
		helper.Cookie:     func() uint64 { return 0 },
		helper.ProcessThread: func() uint64 {
			pid, tid := r.call.Thread.IDs()
			return uint64(uint32(pid))<<32 | uint64(uint32(tid))
		},
		helper.UserGroup: func() uint64 {
			uid, gid := r.call.Thread.User()
			return uint64(gid)<<32 | uint64(uid)
		},
	} {
		h[n].Interpret = func(*bpf.Interpreter, [5]uint64) (uint64, error) { return f(), nil }
	}
	h[helper.Comm].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[1])
		if len(buf) > 0 {
			copy(buf[:len(buf)-1], r.call.Thread.Comm())
		}
		return 0, in.WriteMem(a[0], buf)
	}
	override := func(v uint64) (uint64, error) {
		r.call.Override, r.call.Overridden = v, true
		return 0, nil
	}
	h[helper.OverrideReturn].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return override(a[1]) }
	h[helper.SetRetval].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return override(a[0]) }
}

// argOps gives the helpers that know arguments and results of the function their meaning.
func (r *Runner) argOps(h map[int32]*bpf.Helper) {
	value := func(f func(n uint64) (uint64, uint64)) func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			v, result := f(a[1])
			return result, in.WriteMem(a[2], binary.LittleEndian.AppendUint64(nil, v))
		}
	}
	h[helper.FuncArg].Interpret = value(func(n uint64) (uint64, uint64) {
		if r.call.Arg != nil {
			v, ok := r.call.Arg(n)
			if !ok {
				return 0, hostmaps.Invalid
			}
			return v, 0
		}
		if n < uint64(len(argRegs)) {
			return r.call.Fields[argRegs[n]], 0
		}
		var b [8]byte
		if n >= maxFuncArgs {
			return 0, hostmaps.Invalid
		}
		if r.call.Thread.Read(r.call.Fields[regSP]+8+8*(n-uint64(len(argRegs))), b[:]) < len(b) {
			return 0, 1<<64 + helper.EFAULT
		}
		return binary.LittleEndian.Uint64(b[:]), 0
	})
	h[helper.USDTArg].Interpret = value(func(n uint64) (uint64, uint64) {
		if r.call.Arg != nil {
			if v, ok := r.call.Arg(n); ok {
				return v, 0
			}
		}
		return 0, hostmaps.NoEntry
	})
	h[helper.USDTCount].Interpret = func(*bpf.Interpreter, [5]uint64) (n uint64, _ error) {
		for r.call.Arg != nil {
			if _, ok := r.call.Arg(n); !ok || n == maxFuncArgs {
				break
			}
			n++
		}
		return n, nil
	}
	h[helper.FuncRet].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return 0, in.WriteMem(a[1], binary.LittleEndian.AppendUint64(nil, r.call.Fields[regAX]))
	}
}

// Places of registers in ptRegs, and maxFuncArgs: how many words of arguments a function may
// have.
const (
	regAX       = 10
	regSP       = 19
	maxFuncArgs = 32
)

// argRegs are those that arguments are passed in.
var argRegs = [...]int{14, 13, 12, 11, 9, 8}

// readOps gives the helpers that read the program's memory, or write it, their meaning.
func (r *Runner) readOps(h map[int32]*bpf.Helper) {
	for _, n := range proof.ReadHelpers {
		h[n].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			buf := make([]byte, a[1])
			ret := uint64(0)
			if r.call.Thread.Read(a[2], buf) < len(buf) {
				clear(buf)
				ret = 1<<64 + helper.EFAULT
			}
			return ret, in.WriteMem(a[0], buf)
		}
	}
	h[helper.ProbeWriteUser].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[2])
		if err := in.ReadMem(a[1], buf); err != nil {
			return 0, err
		}
		if r.call.Thread.Write(a[0], buf) < len(buf) {
			return 1<<64 + helper.EFAULT, nil
		}
		return 0, nil
	}
	for _, n := range proof.ReadStrHelpers {
		h[n].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			if a[1] == 0 {
				return 0, nil
			}
			buf := make([]byte, a[1])
			n := r.call.Thread.Read(a[2], buf)
			end := bytes.IndexByte(buf[:n], 0)
			switch {
			case end >= 0:
			case n == len(buf): // cut off
				end = n - 1
			default:
				clear(buf)
				return 1<<64 + helper.EFAULT, in.WriteMem(a[0], buf)
			}
			clear(buf[end:])
			return uint64(end + 1), in.WriteMem(a[0], buf[:end+1])
		}
	}
	h[helper.Compare].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x := make([]byte, a[1])
		if err := in.ReadMem(a[0], x); err != nil {
			return 0, err
		}
		for i, c := range x {
			var b [1]byte
			if err := in.ReadMem(a[2]+uint64(i), b[:]); err != nil {
				return 0, err
			}
			if c != b[0] || c == 0 {
				return uint64(int64(c) - int64(b[0])), nil
			}
		}
		return 0, nil
	}
}

// cpu is the number of the CPU that the thread was on, within what per-CPU maps have.
func (r *Runner) cpu() int {
	if r.cpuIs < 0 {
		r.cpuIs = r.call.Thread.CPU() % r.maps.SMs
	}
	return r.cpuIs
}

// next is a random number of 32 bits (xorshift64).
func (r *Runner) next() uint64 {
	r.random ^= r.random << 13
	r.random ^= r.random >> 7
	r.random ^= r.random << 17
	return r.random >> 32
}

// mapOf returns the map of a helper's argument.
func (r *Runner) mapOf(in *bpf.Interpreter, arg uint64) (*mapmem.Map, error) {
	if i, ok := in.Map(arg); ok {
		for _, x := range r.maps.All {
			if x.Object == r.unit.Object && x.Def.Name == in.Env.Maps[i].Name {
				return x, nil
			}
		}
	}
	return nil, errors.New("the helper's argument is not a map of the program")
}

// mapOps gives the helpers of maps their meaning.
func (r *Runner) mapOps(h map[int32]*bpf.Helper) {
	withKey := func(f func(in *bpf.Interpreter, x *mapmem.Map, key []byte, a [5]uint64) (uint64, error)) func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[0])
			if err != nil {
				return 0, err
			}
			key := make([]byte, x.Def.KeyBytes())
			if err := in.ReadMem(a[1], key); err != nil {
				return 0, err
			}
			return f(in, x, key, a)
		}
	}
	h[helper.MapLookup].Interpret = withKey(func(in *bpf.Interpreter, x *mapmem.Map, key []byte, _ [5]uint64) (uint64, error) {
		if x.Kind == object.LayoutMaps {
			name, ok := x.Def.Maps[binary.LittleEndian.Uint32(key)]
			i := slices.IndexFunc(in.Env.Maps, func(m bpf.Map) bool { return m.Name == name })
			if !ok || i < 0 {
				return 0, nil
			}
			return in.MapArg(i), nil
		}
		return r.Lookup(x, key, r.cpu())
	})
	h[helper.MapUpdate].Interpret = withKey(func(in *bpf.Interpreter, x *mapmem.Map, key []byte, a [5]uint64) (uint64, error) {
		value := make([]byte, x.Def.ValueSize)
		if err := in.ReadMem(a[2], value); err != nil {
			return 0, err
		}
		return r.Update(x, key, value, a[3], r.cpu())
	})
	h[helper.MapDelete].Interpret = withKey(func(_ *bpf.Interpreter, x *mapmem.Map, key []byte, _ [5]uint64) (uint64, error) {
		if x.Kind != object.LayoutHash {
			return hostmaps.Invalid, nil
		}
		if x.Lpm > 0 {
			p, ok := mapmem.Prefix(key, binary.LittleEndian.Uint32(key))
			if !ok {
				return hostmaps.Invalid, nil
			}
			key = p
		}
		return r.Remove(x, key)
	})
	output := func(in *bpf.Interpreter, m, data, size uint64) (uint64, error) {
		x, err := r.mapOf(in, m)
		if err != nil {
			return 0, err
		}
		buf := make([]byte, size)
		if err := in.ReadMem(data, buf); err != nil {
			return 0, err
		}
		r.record(x, mapmem.Record{SM: r.cpu(), Data: buf})
		return 0, nil
	}
	h[helper.PerfOutput].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) { return output(in, a[1], a[3], a[4]) }
	h[helper.RingOutput].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) { return output(in, a[0], a[1], a[2]) }
	h[helper.RingQuery].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := r.mapOf(in, a[0])
		if err != nil {
			return 0, err
		}
		return r.query(x, a[1])
	}
	r.recordOps(h)
}

// query is bpf_ringbuf_query.
func (r *Runner) query(x *mapmem.Map, what uint64) (uint64, error) {
	var handed, read [8]byte
	if err := errors.Join(r.mem.ReadMem(x.Base+object.RingReserved, handed[:]), r.mem.ReadMem(x.Base+object.RingRead, read[:])); err != nil {
		return 0, err
	}
	switch what {
	case proof.RingAvail: // what was dropped was handed out as well
		return object.UnitBytes * min(binary.LittleEndian.Uint64(handed[:])-binary.LittleEndian.Uint64(read[:]), x.Ring.Units), nil
	case proof.RingRingSize:
		return object.UnitBytes * x.Ring.Units, nil
	case proof.RingConsPos:
		return object.UnitBytes * binary.LittleEndian.Uint64(read[:]), nil
	case proof.RingProdPos:
		return object.UnitBytes * binary.LittleEndian.Uint64(handed[:]), nil
	}
	return 0, nil
}

// recordOps gives the helpers of records in the making their meaning.
func (r *Runner) recordOps(h map[int32]*bpf.Helper) {
	var maps []*mapmem.Map // of the held records
	h[helper.RingReserve].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := r.mapOf(in, a[0])
		if err != nil || a[1] > x.Def.MaxRecord() {
			return 0, err
		}
		maps = append(maps[:len(r.held)], x)
		r.held = append(r.held, make([]byte, a[1]))
		return mapmem.RecordBase + uint64(len(r.held)-1)*mapmem.RecordStride, nil
	}
	h[helper.RingSubmit].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) {
		i := int((a[0] - mapmem.RecordBase) / mapmem.RecordStride)
		if i >= len(r.held) {
			return 0, fmt.Errorf("%#x is not a record that the program has reserved", a[0])
		}
		r.record(maps[i], mapmem.Record{SM: r.cpu(), Data: r.held[i]})
		return 0, nil
	}
	h[helper.RingDiscard].Interpret = func(*bpf.Interpreter, [5]uint64) (uint64, error) { return 0, nil }
}

// printOps gives bpf_printk its meaning.
func (r *Runner) printOps(h map[int32]*bpf.Helper) {
	printed := func(in *bpf.Interpreter, format, size uint64, args []uint64) (uint64, error) {
		buf := make([]byte, size)
		if err := in.ReadMem(format, buf); err != nil {
			return 0, err
		}
		buf, _, _ = bytes.Cut(buf, []byte{0})
		r.print(r.cpu(), mapmem.Sprintf(string(buf), args, func(addr uint64) string { return r.text(in, addr) }))
		return uint64(len(buf)), nil
	}
	h[helper.Print].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return printed(in, a[0], a[1], a[2:5])
	}
	h[helper.VPrint].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		if a[3]%8 != 0 || a[3]/8 > mapmem.MaxPrintArgs {
			return hostmaps.Invalid, nil
		}
		buf := make([]byte, a[3])
		if err := in.ReadMem(a[2], buf); err != nil {
			return 0, err
		}
		var args []uint64
		for len(buf) > 0 {
			args, buf = append(args, binary.LittleEndian.Uint64(buf)), buf[8:]
		}
		return printed(in, a[0], a[1], args)
	}
}

// text is the string at an address of the eBPF program's or of the traced program's.
func (r *Runner) text(in *bpf.Interpreter, addr uint64) string {
	var out []byte
	for n := range uint64(mapmem.MaxString) {
		var b [1]byte
		if in.ReadMem(addr+n, b[:]) != nil {
			break
		}
		if b[0] == 0 {
			return string(out)
		}
		out = append(out, b[0])
	}
	if len(out) == 0 {
		buf := make([]byte, mapmem.MaxString)
		n := r.call.Thread.Read(addr, buf)
		if n == 0 {
			return fmt.Sprintf("(unreadable %#x)", addr)
		}
		out, _, _ = bytes.Cut(buf[:n], []byte{0})
	}
	return string(out)
}

// queueOps gives the helpers of maps without keys their meaning.
func (r *Runner) queueOps(h map[int32]*bpf.Helper) {
	with := func(f func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error)) func(*bpf.Interpreter, [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[0])
			if err != nil {
				return 0, err
			}
			return f(in, x, a)
		}
	}
	h[helper.MapPush].Interpret = with(func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error) {
		value := make([]byte, x.Def.ValueSize)
		if err := in.ReadMem(a[1], value); err != nil {
			return 0, err
		}
		switch {
		case x.Kind == object.LayoutBloom && a[2] == 0:
			return 0, r.BloomAdd(x, value)
		case x.Kind == object.LayoutBloom || a[2] != 0 && a[2] != helper.FlagExist:
			return hostmaps.Invalid, nil
		}
		return r.Push(x, value, a[2] == helper.FlagExist)
	})
	for _, n := range []int32{helper.MapPop, helper.MapPeek} {
		h[n].Interpret = with(func(in *bpf.Interpreter, x *mapmem.Map, a [5]uint64) (uint64, error) {
			value := make([]byte, x.Def.ValueSize)
			if x.Kind == object.LayoutBloom {
				if err := in.ReadMem(a[1], value); err != nil {
					return 0, err
				}
				if has, err := x.BloomHas(r.mem, value); err != nil || !has {
					return hostmaps.NoEntry, err
				}
				return 0, nil
			}
			result, err := r.Take(x, value, n == helper.MapPeek)
			return result, errors.Join(err, in.WriteMem(a[1], value))
		})
	}
}
