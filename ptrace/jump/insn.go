package jump

import "encoding/binary"

// An insn is an x86-64 instruction, as far as it must be known where it ends, where it may lead and
// which registers it names. Unlike x86asm's, this decoder knows the vector extensions (VEX, EVEX,
// XOP), of which it needs only the length.
type insn struct {
	len   int
	op    uint16 // its opcode; twoByte and a second one where that begins with 0f
	rex   byte
	modrm byte
	has   bool // it has modrm
	sib   byte
	vec   bool // it is encoded with VEX, EVEX or XOP
	// narrow: its addresses have 4 bytes.
	narrow bool
	disp   int32
	// branch: it is a direct jump or call, whose target is rel bytes behind its end.
	branch bool
	rel    int64
}

// Opcodes that are asked for.
const (
	twoByte = 0x0f00

	opCall   = 0xe8
	opJump   = 0xe9
	opShort  = 0xeb
	opMovsxd = 0x63
	opStore  = 0x89
	opLoad   = 0x8b
	opLea    = 0x8d
	opGroup5 = 0xff
	opUD2    = twoByte | 0x0b
)

// How an opcode goes on, in the tables: a letter for each.
//
//	.  nothing          m  modrm             b  a byte          z  2 or 4 bytes
//	B  modrm, a byte    Z  modrm, 2 or 4     w  2 bytes         j  a branch of a byte
//	J  one of 4 bytes   v  2, 4 or 8 bytes   a  an address      e  3 bytes (enter)
//	3  F6, F7           -  no instruction    p  a prefix
const (
	oneByteMap = "mmmmbz--mmmmbz-p" + "mmmmbz--mmmmbz--" + "mmmmbzp-mmmmbzp-" + "mmmmbzp-mmmmbzp-" + // 0
		"pppppppppppppppp" + "................" + "--pmppppzZbB...." + "jjjjjjjjjjjjjjjj" + // 4
		"BZ-Bmmmmmmmmmmmm" + "..........-....." + "aaaa....bz......" + "bbbbbbbbvvvvvvvv" + // 8
		"BBw.ppBZe.w..b-." + "mmmm---.mmmmmmmm" + "jjjjbbbbJJ-j...." + "p.pp..33......mm" // c
	twoByteMap = "mmmm-.....-.-m.B" + "mmmmmmmmmmmmmmmm" + "mmmm----mmmmmmmm" + "......-.p-p-----" + // 0
		"mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "BBBBmmm.mm--mmmm" + // 4
		"JJJJJJJJJJJJJJJJ" + "mmmmmmmmmmmmmmmm" + "...mBmmm...mBmmm" + "mmmmmmmmmmBmmmmm" + // 8
		"mmBmBBBm........" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" // c
)

// Len returns the length of the instruction that code begins with; false if it is not known.
func Len(code []byte) (int, bool) {
	in, ok := decode(code)
	return in.len, ok
}

// longest is how long an instruction can be.
const longest = 15

// decode reads the instruction that code begins with; false if it is not known, or not all there.
func decode(code []byte) (in insn, ok bool) {
	code = code[:min(len(code), longest)]
	i, short := 0, false
	for ; i < len(code); i++ {
		switch code[i] {
		case 0x66:
			short = true
		case 0x67:
			in.narrow = true
		case 0xf0, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65:
		default:
			if code[i]&0xf0 != 0x40 {
				return decodeOpcode(code, i, in, short)
			}
			in.rex = code[i] // one that another prefix follows counts for nothing
			if i+1 < len(code) && isPrefix(code[i+1]) {
				in.rex = 0
			}
		}
	}
	return in, false
}

func isPrefix(c byte) bool {
	switch c {
	case 0x66, 0xf0, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x67:
		return true
	}
	return c&0xf0 == 0x40
}

// decodeOpcode goes on behind prefixes, at code[i].
func decodeOpcode(code []byte, i int, in insn, short bool) (insn, bool) {
	form := oneByteMap[code[i]]
	in.op = uint16(code[i])
	i++
	rest := len(code) - i
	switch {
	case in.op == 0x0f && rest > 0:
		form, in.op = twoByteMap[code[i]], twoByte|uint16(code[i])
		i++
		if form == 'p' && i < len(code) { // 0f 38 and 0f 3a
			form = 'm'
			if in.op == twoByte|0x3a {
				form = 'B'
			}
			i++
		}
	case in.op == 0xc5 && rest > 1:
		form, in.vec = vectorForm(1, code[i+1]), true
		i += 2
	case in.op == 0xc4 && rest > 2:
		form, in.vec = vectorForm(code[i]&0x1f, code[i+2]), true
		i += 3
	case in.op == 0x62 && rest > 3:
		form, in.vec = vectorForm(code[i]&7, code[i+3]), true
		i += 4
	case in.op == 0x8f && rest > 2 && code[i]&0x1f >= 8: // XOP
		form, in.vec = "Bm4"[min(code[i]&0x1f-8, 2)], true
		i += 3
	}
	return decodeRest(code, i, in, form, short)
}

// vectorForm is how an opcode of an opcode map goes on in VEX and EVEX.
func vectorForm(table, op byte) byte {
	switch table {
	case 1:
		return twoByteMap[op]
	case 2, 5, 6:
		return 'm'
	case 3:
		return 'B'
	}
	return '-'
}

// decodeRest goes on behind the opcode.
func decodeRest(code []byte, i int, in insn, form byte, short bool) (insn, bool) {
	wide := in.rex&8 != 0
	z := 4
	if short && !wide {
		z = 2
	}
	switch form {
	case 'm', 'B', 'Z', '3', '4':
		if i = in.operand(code, i); i < 0 {
			return in, false
		}
	}
	switch form {
	case '.', 'm':
	case 'b', 'B':
		i++
	case 'z', 'Z':
		i += z
	case '4':
		i += 4
	case 'w':
		i += 2
	case 'e':
		i += 3
	case 'a':
		if i += 4; !in.narrow {
			i += 4
		}
	case 'v':
		if i += z; wide {
			i += 4
		}
	case '3':
		if in.modrm>>3&6 == 0 { // test
			if in.op == 0xf6 {
				i++
			} else {
				i += z
			}
		}
	case 'j', 'J':
		return in.branches(code, i, form == 'J')
	default:
		return in, false
	}
	in.len = i
	return in, i <= len(code)
}

// operand reads modrm and what belongs to it, and returns where that ends; -1: it is not there.
func (in *insn) operand(code []byte, i int) int {
	if i >= len(code) {
		return -1
	}
	in.modrm, in.has = code[i], true
	i++
	mod, rm := in.modrm>>6, in.modrm&7
	if mod == 3 {
		return i
	}
	size := [...]int{0, 1, 4}[mod]
	if rm == 4 {
		if i >= len(code) {
			return -1
		}
		in.sib = code[i]
		i++
		if in.sib&7 == 5 && mod == 0 {
			size = 4
		}
	} else if rm == 5 && mod == 0 {
		size = 4
	}
	if i+size > len(code) {
		return -1
	}
	switch size {
	case 1:
		in.disp = int32(int8(code[i]))
	case 4:
		in.disp = int32(binary.LittleEndian.Uint32(code[i:]))
	}
	return i + size
}

// branches reads where a branch leads. A prefix for short operands changes nothing: Intel's processors
// ignore it, and to where AMD's would go nobody wants to.
func (in *insn) branches(code []byte, i int, long bool) (insn, bool) {
	in.branch = true
	switch {
	case long && i+4 <= len(code):
		in.rel, in.len = int64(int32(binary.LittleEndian.Uint32(code[i:]))), i+4
	case !long && i < len(code):
		in.rel, in.len = int64(int8(code[i])), i+1
	default:
		return *in, false
	}
	return *in, true
}

// relative reports whether the instruction has an operand in memory that is told by where it stands.
func (in *insn) relative() bool { return in.has && in.modrm&0xc7 == 5 }
