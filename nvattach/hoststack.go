package nvattach

import (
	"encoding/binary"
	"fmt"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// Flags of helpers that list callers.
const (
	reuseStackID = 1 << 10 // BPF_F_REUSE_STACKID: another stack of the same number is replaced
	stackSkip    = 0xff    // BPF_F_SKIP_FIELD_MASK
)

// stacks refuses maps that hold no stacks.
func (u *unit) stacks(c *bpf.CallInfo) error {
	d, err := u.defOf(c)
	if err == nil && d.Type != object.MapStackTrace {
		err = fmt.Errorf("map %s has type %s and holds no stacks", d.Name, d.Type)
	}
	return err
}

// stackOps gives helpers that list callers their meaning.
func (r *HostRunner) stackOps(h map[int32]*bpf.Helper) {
	h[helper.Stack].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[2])
		if a[2]%8 != 0 {
			return hostInvalid, in.WriteMem(a[1], buf)
		}
		list := r.callers(len(buf)/8, a[3]&stackSkip)
		for i, ip := range list {
			binary.LittleEndian.PutUint64(buf[8*i:], ip)
		}
		return uint64(8 * len(list)), in.WriteMem(a[1], buf)
	}
	h[helper.StackID].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := r.mapOf(in, a[1])
		if err != nil {
			return 0, err
		}
		return r.stackID(x, r.callers(int(x.Def.ValueSize/8), a[2]&stackSkip), a[2]&reuseStackID != 0)
	}
}

// callers lists where the thread is, and its callers, n at most, but for the first skip.
func (r *HostRunner) callers(n int, skip uint64) []uint64 {
	list := r.call.Thread.Callers(n + int(skip))
	return list[min(skip, uint64(len(list))):]
}

// ListsCallers reports whether the program asks who has called.
func (q *PlannedHost) ListsCallers() bool { return q.calls(helper.StackID) || q.calls(helper.Stack) }

// stackID is the number of a stack in a map, where it is put if it is not there.
func (r *HostRunner) stackID(x *mapmem.Map, list []uint64, replace bool) (uint64, error) {
	if len(list) == 0 {
		return 1<<64 + helper.EFAULT, nil
	}
	var key []byte
	for _, ip := range list {
		key = binary.LittleEndian.AppendUint64(key, ip)
	}
	id := uint64(mapmem.HashKey(key) % x.Def.MaxEntries)
	was := make([]byte, x.Def.ValueSize)
	if err := r.mem.ReadMem(x.Base+id*x.Stride, was); err != nil {
		return 0, err
	}
	value := make([]byte, len(was))
	copy(value, key)
	switch {
	case string(was) == string(value):
		return id, nil
	case binary.LittleEndian.Uint64(was) != 0 && !replace:
		return hostExists, nil
	}
	return id, r.mem.WriteMem(x.Base+id*x.Stride, value)
}
