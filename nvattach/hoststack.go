package nvattach

import (
	"encoding/binary"
	"fmt"

	"nvtrace/ptx/bpf"
)

// Numbers of helpers that list callers.
const (
	helperStackID = 27
	helperStack   = 67
	// reuseStackID is BPF_F_REUSE_STACKID: another stack of the same number is replaced.
	reuseStackID = 1 << 10
	stackSkip    = 0xff // BPF_F_SKIP_FIELD_MASK
)

// stackHelpers are those that list callers, by frame pointers; entry says that a function's
// return address is on top of the stack.
func (u *unit) stackHelpers(h map[int32]*bpf.Helper, r *HostRunner, entry bool) {
	h[helperStack] = &bpf.Helper{
		Name: "get_stack", Args: []bpf.ArgSpec{argContext, {Kind: bpf.ArgWrite, SizeArg: 2}, argScalar, argScalar},
		Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			if a[2]%8 != 0 {
				return hostInvalid, nil
			}
			buf := make([]byte, a[2])
			list := r.callers(entry, len(buf)/8, a[3]&stackSkip)
			for i, ip := range list {
				binary.LittleEndian.PutUint64(buf[8*i:], ip)
			}
			return uint64(8 * len(list)), in.WriteMem(a[1], buf)
		},
	}
	h[helperStackID] = &bpf.Helper{
		Name: "get_stackid", Args: []bpf.ArgSpec{argContext, argMap, argScalar},
		Check: func(c *bpf.CallInfo) error {
			d, err := u.defOf(c)
			if err == nil && d.Type != MapStackTrace {
				err = fmt.Errorf("map %s has type %s and holds no stacks", d.Name, d.Type)
			}
			return err
		},
		Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			x, err := r.mapOf(in, a[1])
			if err != nil {
				return 0, err
			}
			return r.stackID(x, r.callers(entry, int(x.Def.ValueSize/8), a[2]&stackSkip), a[2]&reuseStackID != 0)
		},
	}
}

// mostFrames bounds how far stacks are followed.
const mostFrames = maxStack + 256

// callers lists where the thread is, and its callers, n at most, but for the first skip.
func (r *HostRunner) callers(entry bool, n int, skip uint64) []uint64 {
	f := r.call.Fields
	ip, fp, at := r.call.IP, r.call.BP, uint64(0)
	if len(f) == HostRegs { // at a function
		ip, fp = f[regIP], f[regBP]
	}
	var list []uint64
	for i := 0; i < mostFrames && len(list) < n; i++ {
		if skip > 0 {
			skip--
		} else {
			list = append(list, ip)
		}
		var b [16]byte
		if i == 0 && entry { // the caller's frame pointer is in place still
			if at = f[regSP]; r.call.Thread.Read(at, b[8:]) < 8 {
				break
			}
		} else {
			if fp <= at || fp%8 != 0 || r.call.Thread.Read(fp, b[:]) < len(b) {
				break
			}
			at, fp = fp+8, le64(b[:])
		}
		if ip = le64(b[8:]); ip == 0 {
			break
		}
	}
	return list
}

// stackID is the number of a stack in a map, where it is put if it is not there.
func (r *HostRunner) stackID(x *Map, list []uint64, replace bool) (uint64, error) {
	if len(list) == 0 {
		return 1<<64 + errFault, nil
	}
	var key []byte
	for _, ip := range list {
		key = binary.LittleEndian.AppendUint64(key, ip)
	}
	id := uint64(hashKey(key) % x.Def.MaxEntries)
	was := make([]byte, x.Def.ValueSize)
	if err := r.mem.ReadMem(x.base+id*x.stride, was); err != nil {
		return 0, err
	}
	value := make([]byte, len(was))
	copy(value, key)
	switch {
	case string(was) == string(value):
		return id, nil
	case le64(was) != 0 && !replace:
		return hostExists, nil
	}
	return id, r.mem.WriteMem(x.base+id*x.stride, value)
}
