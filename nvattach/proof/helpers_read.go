package proof

import (
	"fmt"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Programs in kernels read the GPU's memory by bpf_probe_read and its like, at any address
// that they like, and a load where nothing is ends the context. So the memory of maps has a
// table of what there is, which the host keeps. It has two copies, of which a word says which one
// counts, and for each copy how many threads are reading by it:
//
//	0                    u64 number of the copy that counts, 0 or 1
//	128                  copies [2]{u64 entries; [mostReadable]{u64 base, end}}, ascending by base
//	readersOff           [SMs][128]byte: u64 threads that read by copy 0, by copy 1
//
// A thread adds itself to the readers of the copy that counts, and looks again: if another one
// counts by then, it takes itself away and begins anew. Then it searches the copy, reads, and takes
// itself away. The host writes the copy that does not count, which nobody reads by, has it
// count, and waits until nobody reads by the other one. When that is so, no thread will read, nor is
// reading, what is not in the new one, and the memory may go. The fence between the
// addition and the look makes one of the two sides see the other.

// Most bytes that one call reads: there is code for each.
const mostRead = 128

// The helpers that read memory; and those that read up to a zero.
var (
	ReadHelpers    = []int32{helper.ProbeRead, helper.ReadUser, helper.ReadKernel}
	ReadStrHelpers = []int32{helper.ProbeReadStr, helper.ReadUserStr, helper.ReadKernelStr}
)

// atMostRead refuses calls that read too much.
func atMostRead(c *bpf.CallInfo) error {
	if n := c.Consts[1].Value; n > mostRead {
		return fmt.Errorf("%d bytes; in kernels at most %d are read at once", n, mostRead)
	}
	return nil
}

// probeRead is bpf_probe_read: memory that is not there is -EFAULT, and reads as zeros.
func (u *Unit) probeRead(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	size, _ := c.Args[1].Const()
	if size == 0 {
		return ptx.Imm(0), nil
	}
	n := int(size)
	addr, words, r := k.Held(c.Args[2].Reg().String()), k.Words(n), k.Result(helper.EFAULT)
	k.Within(addr, size, func(string) {
		piece := emit.PieceOf(0, size)
		k.F("mov.s64 %s, 0;", r)
		if piece == 1 {
			k.Gather(words, addr, n, 1)
			return
		}
		odd, p := k.Reg(ptx.B64), k.Reg(ptx.Pred)
		apart, end := k.Label(), k.Label()
		k.F("and.b64 %s, %s, %d;", odd, addr, piece-1)
		k.F("setp.ne.u64 %s, %s, 0;", p, odd)
		k.F("@%s bra %s;", p, apart)
		k.Gather(words, addr, n, piece)
		k.F("bra %s;", end)
		k.At(apart)
		k.Gather(words, addr, n, 1)
		k.At(end)
	})
	k.KeepWords(&c.Args[0], words, n)
	return Register64(r), nil
}

// probeReadStr is bpf_probe_read_str: bytes up to a zero, which is counted, or as many as there
// is room for; -EFAULT where the memory ends before.
func (u *Unit) probeReadStr(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	size, _ := c.Args[1].Const()
	if size == 0 {
		return ptx.Imm(0), nil
	}
	n := int(size)
	addr, words, r := k.Held(c.Args[2].Reg().String()), k.Words(n), k.Result(helper.EFAULT)
	k.Within(addr, 1, func(there string) {
		w, p, done := k.Reg(ptx.B64), k.Reg(ptx.Pred), k.Label()
		for i := range n - 1 {
			if i > 0 { // the first byte is there
				k.F("setp.le.u64 %s, %s, %d;", p, there, i)
				k.F("@%s bra %s;", p, done)
			}
			k.F("ld%s.global.u8 %s, [%s+%d];", k.Order(".relaxed.gpu"), w, addr, i)
			k.F("setp.eq.u64 %s, %s, 0;", p, w)
			k.F("@%s mov.s64 %s, %d;", p, r, i+1)
			k.F("@%s bra %s;", p, done)
			if i%8 > 0 {
				k.F("shl.b64 %s, %s, %d;", w, w, 8*(i%8))
			}
			k.F("or.b64 %s, %s, %s;", words[i/8], words[i/8], w)
		}
		k.F("mov.s64 %s, %d;", r, n)
		k.At(done)
	})
	// Of a text that is not whole nothing is shown.
	p := k.Reg(ptx.Pred)
	k.F("setp.lt.s64 %s, %s, 0;", p, r)
	for _, w := range words {
		k.F("@%s mov.b64 %s, 0;", p, w)
	}
	k.KeepWords(&c.Args[0], words, n)
	return Register64(r), nil
}
