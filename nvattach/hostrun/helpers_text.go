package hostrun

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx/bpf"
)

// Helpers that make text and read numbers in text. What they do in traced processes is in
// ptrace/agent/internal/blob/src/helpers.c.

// textOps gives bpf_snprintf, bpf_strtol and bpf_strtoul their meaning.
func (r *Runner) textOps(h map[int32]*bpf.Helper) {
	h[helper.Format].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		if a[4]%8 != 0 || a[4]/8 > mapmem.MaxPrintArgs {
			return hostmaps.Invalid, nil
		}
		text, args := make([]byte, bpf.StackSize), make([]byte, a[4])
		for i := range text {
			if err := in.ReadMem(a[2]+uint64(i), text[i:i+1]); err != nil {
				return 0, err
			}
			if text[i] == 0 {
				text = text[:i]
				break
			}
		}
		if err := in.ReadMem(a[3], args); a[4] > 0 && err != nil {
			return 0, err
		}
		var list []uint64
		for ; len(args) > 0; args = args[8:] {
			list = append(list, binary.LittleEndian.Uint64(args))
		}
		out := append([]byte(mapmem.Sprintf(string(text), list, func(addr uint64) string { return r.text(in, addr) })), 0)
		if a[1] == 0 {
			return uint64(len(out)), nil
		}
		shown := bytes.Clone(out[:min(uint64(len(out)), a[1])])
		shown[len(shown)-1] = 0
		return uint64(len(out)), in.WriteMem(a[0], shown)
	}
	for _, n := range []int32{helper.ToSigned, helper.ToUnsigned} {
		h[n].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			buf := make([]byte, a[1])
			if err := in.ReadMem(a[0], buf); a[1] > 0 && err != nil {
				return 0, err
			}
			v, result := numberIn(buf, a[2], n == helper.ToSigned)
			return result, in.WriteMem(a[3], binary.LittleEndian.AppendUint64(nil, v))
		}
	}
}

// numberIn reads a number as the kernel's bpf_strtol and bpf_strtoul do, and returns it and how
// much of the text it and the spaces before it take, or an error.
func numberIn(text []byte, flags uint64, signed bool) (v, result uint64) {
	const most = 63 // characters behind spaces that are looked at
	base := flags & 31
	if len(text) == 0 || flags&^31 != 0 || base != 0 && base != 8 && base != 10 && base != 16 {
		return 0, hostmaps.Invalid
	}
	rest := text
	for len(rest) > 0 && (rest[0] == ' ' || rest[0] >= '\t' && rest[0] <= '\r' || rest[0] == 0xa0) {
		rest = rest[1:]
	}
	negative := len(rest) > 0 && rest[0] == '-'
	if negative {
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return 0, hostmaps.Invalid
	}
	before := len(text) - len(rest)
	rest = rest[:min(len(rest), most)]
	hex := len(rest) > 1 && rest[0] == '0' && rest[1]|32 == 'x'
	switch {
	case base != 0:
	case rest[0] != '0':
		base = 10
	case hex && len(rest) > 2 && digit(rest[2]) < 16:
		base = 16
	default:
		base = 8
	}
	n := 0
	if base == 16 && hex {
		n = 2
	}
	first, over := n, uint64(0)
	for ; n < len(rest) && digit(rest[n]) < base; n++ {
		hi, lo := bits.Mul64(v, base)
		sum, carry := bits.Add64(lo, digit(rest[n]), 0)
		v, over = sum, over|hi|carry
	}
	switch {
	case over != 0:
		return 0, hostmaps.OutOfRange
	case n == first, negative && !signed:
		return 0, hostmaps.Invalid
	case signed && negative && int64(-v) > 0, signed && !negative && int64(v) < 0:
		return 0, hostmaps.OutOfRange
	case negative:
		v = -v
	}
	return v, uint64(before + n)
}

// digit is the value of a digit of up to base 16; what is none has a higher one.
func digit(c byte) uint64 {
	switch {
	case c >= '0' && c <= '9':
		return uint64(c - '0')
	case c|32 >= 'a' && c|32 <= 'f':
		return uint64(c|32-'a') + 10
	}
	return 99
}
