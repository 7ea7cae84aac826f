package hostrun

import (
	"encoding/binary"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/ptx/bpf"
)

// Flags of helpers that list callers.
const (
	reuseStackID = 1 << 10 // BPF_F_REUSE_STACKID: another stack of the same number is replaced
	stackSkip    = 0xff    // BPF_F_SKIP_FIELD_MASK
)

// stackOps gives helpers that list callers their meaning.
func (r *Runner) stackOps(h map[int32]*bpf.Helper) {
	h[helper.Stack].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		buf := make([]byte, a[2])
		if a[2]%8 != 0 {
			return hostmaps.Invalid, in.WriteMem(a[1], buf)
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
		return r.StackID(x, r.callers(int(x.Def.ValueSize/8), a[2]&stackSkip), a[2]&reuseStackID != 0)
	}
}

// callers lists where the thread is, and its callers, n at most, but for the first skip.
func (r *Runner) callers(n int, skip uint64) []uint64 {
	list := r.call.Thread.Callers(n + int(skip))
	return list[min(skip, uint64(len(list))):]
}

// ListsCallers reports whether the program asks who has called.
func (q *Program) ListsCallers() bool { return q.Calls(helper.StackID) || q.Calls(helper.Stack) }
