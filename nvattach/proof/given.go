package proof

import (
	"strconv"

	"nvtrace/fatbin"
	"nvtrace/nvattach/emit"
	"nvtrace/ptx"
)

// A BodyParam says what a place gives a Body.
type BodyParam struct {
	// What it is: a field of the context, or a part of an argument of the kernel.
	What BodyValue
	Wide bool // 8 bytes, otherwise 4
	// Offset and Size are of an argument's part in the kernel's parameters, in bytes.
	Offset, Size int
}

// BodyValue names what a parameter of a Body holds.
type BodyValue uint8

// The values that places give.
const (
	BodySite   BodyValue = iota // the place's number in the plan
	BodyAddr                    // of a memory access: the address
	BodyStored                  // of a memory access: the value, loaded or stored
	BodySize                    // of a memory access: bytes
	BodySpace                   // of a memory access: as enum nvtrace_space
	BodyAccess                  // of a memory access: as enum nvtrace_access
	BodyInsn                    // instructions of the function before the place
	BodyBlock                   // number of the basic block
	BodyLine                    // of the source
	BodyFile                    // number of the source file
	BodyCount                   // instructions of the basic block
	BodyArg                     // bytes of the kernel's parameters
	BodyActive                  // 1 in threads in which the guard of the instruction holds, 0 in others
	BodySum                     // what is added to the sum number Offset, see sum
	BodySlot                    // where the place is of the key of use Offset of the program's, in bytes from the first
	BodyCopied                  // of an asynchronous copy: how many bytes it reads; of ldmatrix: how many threads' addresses
)

// BodyValues are the fields of a context that differ from place to place.
var BodyValues = map[int]BodyValue{
	FieldSite: BodySite, FieldAddr: BodyAddr, FieldValue: BodyStored, FieldSize: BodySize, FieldSpace: BodySpace, FieldAccess: BodyAccess,
	FieldInsn: BodyInsn, FieldBlock: BodyBlock, FieldLine: BodyLine, FieldFile: BodyFile, FieldCount: BodyCount,
}

// Given is what a place of a Body gets by parameters.
type Given struct {
	Kernel []fatbin.Param       // the kernel's parameters
	Regs   map[BodyParam]string // 64-bit registers with the parameters that are used
}

// Reg returns the register of a parameter.
func (v *Given) Reg(p BodyParam) string {
	if v.Regs[p] == "" {
		v.Regs[p] = "%nvtrace_v" + strconv.Itoa(len(v.Regs))
	}
	return v.Regs[p]
}

// field returns a field of the context that a parameter has.
func (v *Given) field(id int) ptx.Arg {
	what := BodyValues[id]
	return ptx.TypedReg(ptx.B64, v.Reg(BodyParam{What: what, Wide: what == BodyAddr || what == BodyStored}))
}

// arg returns up to 8 bytes from an offset of a parameter of the kernel on, in a 64-bit
// register; "" if there are none.
func (v *Given) arg(c *emit.Code, index, off uint64) string {
	if index >= uint64(len(v.Kernel)) || off >= uint64(max(v.Kernel[index].Size, 1)) {
		return ""
	}
	p := v.Kernel[index]
	size := min(p.Size-int(off), 8)
	from := p.Offset + int(off)
	if size > 4 {
		r := v.Reg(BodyParam{What: BodyArg, Wide: true, Offset: from, Size: 8})
		if size == 8 {
			return r
		}
		return masked(c, r, size)
	}
	r := v.Reg(BodyParam{What: BodyArg, Offset: from &^ 3, Size: 4})
	if shift := from & 3; shift != 0 {
		w := c.Reg(ptx.B64)
		c.F("shr.u64 %s, %s, %d;", w, r, 8*shift)
		r = w
	}
	if size == 4 {
		return r
	}
	return masked(c, r, size)
}

// masked returns the low bytes of a 64-bit register.
func masked(c *emit.Code, r string, bytes int) string {
	w := c.Reg(ptx.B64)
	c.F("and.b64 %s, %s, %s;", w, r, emit.HexMask(bytes))
	return w
}
