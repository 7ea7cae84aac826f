package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"nvtrace/ptx/bpf"
)

// Numbers of helpers that are the host's alone.
const (
	helperOverride  = 58  // bpf_override_return
	helperSetRetval = 187 // bpf_set_retval, as bpftime has it
)

// hostHelpers returns the helpers of programs at a kind of place, which r runs; nil while
// they are only proven.
func (u *unit) hostHelpers(kind *hostKind, r *HostRunner) map[int32]*bpf.Helper {
	h := map[int32]*bpf.Helper{}
	u.mapHelpers(h)
	u.printHelpers(h)
	h[helperLog2] = &bpf.Helper{Name: "nvtrace_log2", Args: []bpf.ArgSpec{argScalar}, Pure: true, Max: 63, Interpret: log2}
	extremes := map[int32]*bpf.Helper{}
	u.extremeHelpers(extremes, func(_ *bpf.Interpreter, addr uint64, n int, change func(old uint64) uint64) error {
		_, err := r.atomic(addr, n, change)
		return err
	})
	h[helperMax] = extremes[helperMax] // of which the agent has the code
	h[HelperPopc] = &bpf.Helper{Name: "nvtrace_popc", Args: []bpf.ArgSpec{argScalar}, Pure: true, Max: 64, Interpret: popc}
	delete(h, helperPuts)
	number := func(id int32, name string, f func() uint64) {
		h[id] = &bpf.Helper{Name: name, Pure: true, Interpret: func(*bpf.Interpreter, [5]uint64) (uint64, error) { return f(), nil }}
	}
	for _, id := range []int32{5, 125, 160} { // of CLOCK_BOOTTIME, too, which counts the same but for sleep, and the coarse one
		number(id, "ktime_get_ns", func() uint64 { return r.call.Thread.Now() })
	}
	number(7, "get_prandom_u32", func() uint64 { return r.next() })
	number(8, "get_smp_processor_id", func() uint64 { return uint64(r.cpu()) })
	number(14, "get_current_pid_tgid", func() uint64 {
		pid, tid := r.call.Thread.IDs()
		return uint64(uint32(pid))<<32 | uint64(uint32(tid))
	})
	number(15, "get_current_uid_gid", func() uint64 {
		uid, gid := r.call.Thread.User()
		return uint64(gid)<<32 | uint64(uid)
	})
	h[16] = &bpf.Helper{Name: "get_current_comm", Args: []bpf.ArgSpec{{Kind: bpf.ArgWrite, SizeArg: 1, Whole: true}, argScalar}, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[1])
		if len(buf) > 0 {
			copy(buf[:len(buf)-1], r.call.Thread.Comm())
		}
		return 0, in.WriteMem(a[0], buf)
	}}
	r.readHelpers(h)
	r.textHelpers(h)
	u.queueHelpers(h, r)
	r.mapOps(h)
	r.printOps(h)
	if point := (HostPoint{Kind: kind.kind}); point.Function() {
		h[173] = &bpf.Helper{Name: "get_func_ip", Args: []bpf.ArgSpec{argContext}, Pure: true, Interpret: func(*bpf.Interpreter, [5]uint64) (uint64, error) { return r.call.FuncIP, nil }}
	}
	r.argHelpers(h, kind)
	if kind.kind != HostEvent { // of which nobody knows where a thread is
		u.stackHelpers(h, r)
	}
	h[helperCookie] = &bpf.Helper{Name: "get_attach_cookie", Args: []bpf.ArgSpec{argContext}, Pure: true, Interpret: func(*bpf.Interpreter, [5]uint64) (uint64, error) { return 0, nil }}
	override := func(v uint64) (uint64, error) {
		r.call.Override, r.call.Overridden = v, true
		return 0, nil
	}
	h[helperOverride] = &bpf.Helper{Name: "override_return", Args: []bpf.ArgSpec{argContext, argScalar}, Interpret: func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return override(a[1]) }}
	h[helperSetRetval] = &bpf.Helper{Name: "set_retval", Args: []bpf.ArgSpec{argScalar}, Interpret: func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) { return override(a[0]) }}
	maps.Copy(h, kind.helpers)
	if !kind.override {
		for _, id := range []int32{helperOverride, helperSetRetval} {
			h[id].Refuse = "what is returned is decided before a function or a call begins"
			h[id].Hint = "call it in a program at the entry"
		}
	}
	return h
}

// argHelpers are those that know arguments and results of the function.
func (r *HostRunner) argHelpers(h map[int32]*bpf.Helper, kind *hostKind) {
	value := func(f func(n uint64) (uint64, uint64)) func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			v, result := f(a[1])
			return result, in.WriteMem(a[2], binary.LittleEndian.AppendUint64(nil, v))
		}
	}
	args := []bpf.ArgSpec{argContext, argScalar, argOut64}
	switch kind.kind {
	case HostEntry, HostAPI:
		h[helperFuncArg] = &bpf.Helper{Name: "get_func_arg", Args: args, Interpret: value(func(n uint64) (uint64, uint64) {
			if r.call.Arg != nil {
				v, ok := r.call.Arg(n)
				if !ok {
					return 0, hostInvalid
				}
				return v, 0
			}
			if n < uint64(len(argRegs)) {
				return r.call.Fields[argRegs[n]], 0
			}
			var b [8]byte
			if n >= maxFuncArgs {
				return 0, hostInvalid
			}
			if r.call.Thread.Read(r.call.Fields[regSP]+8+8*(n-uint64(len(argRegs))), b[:]) < len(b) {
				return 0, 1<<64 + errFault
			}
			return le64(b[:]), 0
		})}
	case HostUSDT:
		h[HelperUSDTArg] = &bpf.Helper{Name: "nvtrace_usdt_arg", Args: args, Interpret: value(func(n uint64) (uint64, uint64) {
			if r.call.Arg != nil {
				if v, ok := r.call.Arg(n); ok {
					return v, 0
				}
			}
			return 0, hostNoEntry
		})}
		h[helperUSDTCount] = &bpf.Helper{Name: "nvtrace_usdt_arg_cnt", Args: []bpf.ArgSpec{argContext}, Interpret: func(*bpf.Interpreter, [5]uint64) (n uint64, _ error) {
			for r.call.Arg != nil {
				if _, ok := r.call.Arg(n); !ok || n == maxFuncArgs {
					break
				}
				n++
			}
			return n, nil
		}}
	case HostReturn, HostAPIReturn:
		h[helperFuncRet] = &bpf.Helper{Name: "get_func_ret", Args: []bpf.ArgSpec{argContext, argOut64}, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			return 0, in.WriteMem(a[1], binary.LittleEndian.AppendUint64(nil, r.call.Fields[regAX]))
		}}
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

// errFault is -EFAULT, what reading memory that is not there returns.
const errFault = -14

// readHelpers are those that read the program's memory.
func (r *HostRunner) readHelpers(h map[int32]*bpf.Helper) {
	args := []bpf.ArgSpec{{Kind: bpf.ArgWrite, SizeArg: 1, Whole: true}, argScalar, argScalar}
	for id, name := range readHelpers {
		h[id] = &bpf.Helper{Name: name, Args: args, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			buf := make([]byte, a[1])
			ret := uint64(0)
			if r.call.Thread.Read(a[2], buf) < len(buf) {
				clear(buf)
				ret = 1<<64 + errFault
			}
			return ret, in.WriteMem(a[0], buf)
		}}
	}
	// The agent has none: who asks the kernel whether memory can be written is a call that a
	// program's own filter may end it for. Programs with it run at stops.
	h[36] = &bpf.Helper{Name: "probe_write_user", Args: []bpf.ArgSpec{argScalar, {Kind: bpf.ArgRead, SizeArg: 2}, argScalar}, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[2])
		if err := in.ReadMem(a[1], buf); err != nil {
			return 0, err
		}
		if r.call.Thread.Write(a[0], buf) < len(buf) {
			return 1<<64 + errFault, nil
		}
		return 0, nil
	}}
	args = []bpf.ArgSpec{{Kind: bpf.ArgWrite, SizeArg: 1}, argScalar, argScalar} // behind the NUL nothing is written
	for id, name := range readStrHelpers {
		h[id] = &bpf.Helper{Name: name, Args: args, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
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
				return 1<<64 + errFault, in.WriteMem(a[0], buf)
			}
			clear(buf[end:])
			return uint64(end + 1), in.WriteMem(a[0], buf[:end+1])
		}}
	}
	h[182] = &bpf.Helper{Name: "strncmp", Args: []bpf.ArgSpec{{Kind: bpf.ArgRead, SizeArg: 1}, argScalar, {Kind: bpf.ArgString, Size: bpf.StackSize}}, Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
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
	}}
}

// cpu is the number of the CPU that the thread was on, within what per-CPU maps have.
func (r *HostRunner) cpu() int {
	if r.cpuIs < 0 {
		r.cpuIs = r.call.Thread.CPU() % r.maps.SMs
	}
	return r.cpuIs
}

// next is a random number of 32 bits (xorshift64).
func (r *HostRunner) next() uint64 {
	r.random ^= r.random << 13
	r.random ^= r.random >> 7
	r.random ^= r.random << 17
	return r.random >> 32
}

// mapOf returns the map of a helper's argument.
func (r *HostRunner) mapOf(in *bpf.Interpreter, arg uint64) (*Map, error) {
	if i, ok := in.Map(arg); ok {
		for _, x := range r.maps.All {
			if x.Object == r.unit.obj && x.Def.Name == in.Env.Maps[i].Name {
				return x, nil
			}
		}
	}
	return nil, errors.New("no map")
}

// lookup returns the address of a value, 0 if there is none.
func (r *HostRunner) lookup(x *Map, key []byte) (uint64, error) {
	if x.kind == layoutBloom { // to where nothing is written
		if has, err := x.bloomHas(r.mem, key); err != nil || !has {
			return 0, err
		}
		return x.base + bloomHead, nil
	}
	if x.kind == layoutHash {
		if x.lpm > 0 {
			p, err := x.longest(r.mem, key)
			if err != nil || p == nil {
				return 0, err
			}
			key = p
		}
		slot, found, err := x.find(r.mem, key)
		if err != nil || !found {
			return 0, err
		}
		if x.Def.lru() {
			store32(r.mem.b.Data, x.slotAddr(slot)+4-r.mem.b.Base, 1)
		}
		return x.valueAddr(slot, r.cpu()), nil
	}
	i := uint64(le32(key))
	switch {
	case i >= uint64(x.Def.MaxEntries):
		return 0, nil
	case x.Def.PerSM():
		return x.base + uint64(r.cpu())*x.copyBytes + i*x.stride, nil
	}
	return x.base + i*x.stride, nil
}

// The errors of helpers that change maps.
const (
	hostNoEntry = 1<<64 - 2  // -ENOENT
	hostTooBig  = 1<<64 - 7  // -E2BIG
	hostBusy    = 1<<64 - 16 // -EBUSY
	hostExists  = 1<<64 - 17 // -EEXIST
	hostInvalid = 1<<64 - 22 // -EINVAL
)

// mapOps gives the helpers of maps their meaning.
func (r *HostRunner) mapOps(h map[int32]*bpf.Helper) {
	withKey := func(f func(in *bpf.Interpreter, x *Map, key []byte, a [5]uint64) (uint64, error)) func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[0])
			if err != nil {
				return 0, err
			}
			key := make([]byte, x.Def.keyBytes())
			if err := in.ReadMem(a[1], key); err != nil {
				return 0, err
			}
			return f(in, x, key, a)
		}
	}
	h[helperLookup].Interpret = withKey(func(in *bpf.Interpreter, x *Map, key []byte, _ [5]uint64) (uint64, error) {
		if x.kind == layoutMaps {
			name, ok := x.Def.Maps[le32(key)]
			i := slices.IndexFunc(in.Env.Maps, func(m bpf.Map) bool { return m.Name == name })
			if !ok || i < 0 {
				return 0, nil
			}
			return in.MapArg(i), nil
		}
		return r.lookup(x, key)
	})
	h[helperUpdate].Interpret = withKey(r.update)
	h[helperDelete].Interpret = withKey(func(_ *bpf.Interpreter, x *Map, key []byte, _ [5]uint64) (uint64, error) {
		if x.kind != layoutHash {
			return hostInvalid, nil
		}
		if x.lpm > 0 {
			p, ok := prefix(key, le32(key))
			if !ok {
				return hostInvalid, nil
			}
			key = p
		}
		return r.remove(x, key)
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
		r.record(x, Record{SM: r.cpu(), Data: buf})
		return 0, nil
	}
	h[25].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) { return output(in, a[1], a[3], a[4]) }
	h[130].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) { return output(in, a[0], a[1], a[2]) }
	h[134].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := r.mapOf(in, a[0])
		if err != nil {
			return 0, err
		}
		return r.query(x, a[1])
	}
	r.recordOps(h)
}

// query is bpf_ringbuf_query.
func (r *HostRunner) query(x *Map, what uint64) (uint64, error) {
	var handed, read [8]byte
	if err := errors.Join(r.mem.ReadMem(x.base+ringReserved, handed[:]), r.mem.ReadMem(x.base+ringRead, read[:])); err != nil {
		return 0, err
	}
	switch what {
	case ringAvail: // what was dropped was handed out as well
		return unitBytes * min(le64(handed[:])-le64(read[:]), x.ring.units), nil
	case ringRingSize:
		return unitBytes * x.ring.units, nil
	case ringConsPos:
		return unitBytes * le64(read[:]), nil
	case ringProdPos:
		return unitBytes * le64(handed[:]), nil
	}
	return 0, nil
}

// recordOps gives the helpers of records in the making their meaning.
func (r *HostRunner) recordOps(h map[int32]*bpf.Helper) {
	var maps []*Map // of the held records
	h[131].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := r.mapOf(in, a[0])
		if err != nil || a[1] > x.Def.maxRecord() {
			return 0, err
		}
		maps = append(maps[:len(r.held)], x)
		r.held = append(r.held, make([]byte, a[1]))
		return recordBase + uint64(len(r.held)-1)*recordStride, nil
	}
	h[132].Interpret = func(_ *bpf.Interpreter, a [5]uint64) (uint64, error) {
		i := int((a[0] - recordBase) / recordStride)
		if i >= len(r.held) {
			return 0, fmt.Errorf("%#x is no record", a[0])
		}
		r.record(maps[i], Record{SM: r.cpu(), Data: r.held[i]})
		return 0, nil
	}
	h[133].Interpret = func(*bpf.Interpreter, [5]uint64) (uint64, error) { return 0, nil }
}

// update is bpf_map_update_elem.
func (r *HostRunner) update(in *bpf.Interpreter, x *Map, key []byte, a [5]uint64) (uint64, error) {
	value := make([]byte, x.Def.ValueSize)
	if err := in.ReadMem(a[2], value); err != nil {
		return 0, err
	}
	if a[3] > flagExist {
		return hostInvalid, nil
	}
	switch {
	case x.kind == layoutBloom && a[3] != 0:
		return hostInvalid, nil
	case x.kind == layoutBloom:
		return 0, r.bloomAdd(x, value)
	case x.lpm > 0:
		p, ok := prefix(key, le32(key))
		if !ok {
			return hostInvalid, nil
		}
		if key = p; r.haveLength(x, le32(p)) != nil {
			return hostInvalid, nil
		}
	}
	if x.kind == layoutHash {
		return r.replaceOrInsert(x, key, value, a[3])
	}
	at, err := r.lookup(x, key)
	switch {
	case err != nil:
		return 0, err
	case at == 0:
		return hostTooBig, nil
	case a[3] == flagNoExist:
		return hostExists, nil
	}
	return 0, r.mem.WriteMem(at, value)
}

// printOps gives bpf_printk its meaning.
func (r *HostRunner) printOps(h map[int32]*bpf.Helper) {
	printed := func(in *bpf.Interpreter, format, size uint64, args []uint64) (uint64, error) {
		buf := make([]byte, size)
		if err := in.ReadMem(format, buf); err != nil {
			return 0, err
		}
		buf, _, _ = bytes.Cut(buf, []byte{0})
		r.print(r.cpu(), Sprintf(string(buf), args, func(addr uint64) string { return r.text(in, addr) }))
		return uint64(len(buf)), nil
	}
	h[helperPrint].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		return printed(in, a[0], a[1], a[2:5])
	}
	h[helperVPrint].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		if a[3]%8 != 0 || a[3]/8 > maxPrintArgs {
			return hostInvalid, nil
		}
		buf := make([]byte, a[3])
		if err := in.ReadMem(a[2], buf); err != nil {
			return 0, err
		}
		var args []uint64
		for len(buf) > 0 {
			args, buf = append(args, le64(buf)), buf[8:]
		}
		return printed(in, a[0], a[1], args)
	}
}

// text is the string at an address of the eBPF program's or of the traced program's.
func (r *HostRunner) text(in *bpf.Interpreter, addr uint64) string {
	var out []byte
	for n := range uint64(maxString) {
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
		buf := make([]byte, maxString)
		n := r.call.Thread.Read(addr, buf)
		if n == 0 {
			return fmt.Sprintf("(unreadable %#x)", addr)
		}
		out, _, _ = bytes.Cut(buf[:n], []byte{0})
	}
	return string(out)
}
