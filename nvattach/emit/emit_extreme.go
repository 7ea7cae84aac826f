package emit

import (
	"encoding/binary"

	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// An extreme is a helper that makes a number in a map's value a higher or lower one.
type extreme struct {
	Bytes  int
	signed bool
	low    bool // the lowest is kept
}

// Extremes are these helpers, by number.
var Extremes = map[int32]extreme{
	helper.Max: {Bytes: 8}, helper.Min: {Bytes: 8, low: true},
	helper.SMax: {Bytes: 8, signed: true}, helper.SMin: {Bytes: 8, signed: true, low: true},
	helper.Max32: {Bytes: 4}, helper.Min32: {Bytes: 4, low: true},
	helper.SMax32: {Bytes: 4, signed: true}, helper.SMin32: {Bytes: 4, signed: true, low: true},
}

// Of returns which of two numbers is kept.
func (x extreme) Of(old, n uint64) uint64 {
	shift := 64 - 8*x.Bytes
	a, b := old<<shift, n<<shift
	higher := b > a
	if x.signed {
		higher = int64(b) > int64(a)
	}
	if higher != x.low && a != b {
		return n
	}
	return old
}

// Extreme writes one. Most threads find that what is there is as high or low already, and write
// nothing; but where blind is set, none looks, which it would wait for.
func (c *Code) Extreme(x extreme, call *bpf.Call, blind bool) {
	at, n := call.Args[0].Reg().String(), c.Held(call.Args[1].Reg().String())
	word, kind, op, test := ptx.B64, "u", "max", "lt"
	if x.Bytes == 4 {
		word, n = ptx.B32, c.Low(n)
	}
	if x.signed {
		kind = "s"
	}
	if x.low {
		op, test = "min", "gt"
	}
	space := call.Args[0].Space()
	if space == ".shared" {
		at = c.inBlock(at)
	}
	if blind {
		c.F("red%s%s.%s.%s%d [%s], %s;", c.atomic(".relaxed.gpu"), space, op, kind, 8*x.Bytes, at, n)
		return
	}
	old, beyond := c.Reg(word), c.Reg(ptx.Pred)
	c.F("ld%s%s.%s%d %s, [%s];", c.Order(".relaxed.gpu"), space, kind, 8*x.Bytes, old, at)
	c.F("setp.%s.%s%d %s, %s, %s;", test, kind, 8*x.Bytes, beyond, old, n)
	c.F("@%s red%s.%s.%s%d [%s], %s;", beyond, space, op, kind, 8*x.Bytes, at, n)
}

// Changed is atomic of interpreted for an interpreter that is alone.
func Changed(in *bpf.Interpreter, addr uint64, n int, change func(old uint64) uint64) error {
	var b [8]byte
	if err := in.ReadMem(addr, b[:n]); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(b[:], change(binary.LittleEndian.Uint64(b[:])))
	return in.WriteMem(addr, b[:n])
}
