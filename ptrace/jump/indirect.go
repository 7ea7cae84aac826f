package jump

// indirect looks for jumps of the function at an address whose targets can't be read. Jumps by addresses that
// lie in memory are none: such addresses are known where something takes them, in code, data or
// relocations. Those by an address that has just been computed are, unless they use a table of
// distances that was read.
func (c *Code) indirect(addr uint64) error {
	s := c.function(addr)
	code := c.text(s.start, min(s.end, s.start+maxFunction))
	if !mayCompute(code) {
		return nil
	}
	var list []insn
	tables := false
	for at := 0; at < len(code); {
		in, ok := decode(code[at:])
		if !ok {
			// Behind it, each byte may begin such a jump.
			if !tables && mayCompute(code[at:]) {
				return errIndirect
			}
			return nil
		}
		at += in.len
		if in.op == opLea && !in.vec && in.relative() {
			tables = tables || c.targets.isTable(s.start+uint64(at)+uint64(int64(in.disp)))
		}
		if in.op == opGroup5 && !in.vec && in.modrm>>3&7 == 4 && in.modrm>>6 == 3 && !tables && computed(list, register(in.modrm&7, in.rex&1)) {
			return errIndirect
		}
		list = append(list, in)
	}
	return nil
}

// mayCompute reports whether there is something like `jmp *%reg`.
func mayCompute(code []byte) bool {
	for i := range len(code) - 1 {
		if code[i] == opGroup5 && code[i+1]&0xf8 == 0xe0 {
			return true
		}
	}
	return false
}

func register(low, high byte) byte { return low | high<<3 }

// computed reports whether the last of instructions that changes a register computes its value, and does
// not load it, or have it from its caller.
func computed(list []insn, reg byte) bool {
	for i := len(list) - 1; i >= 0; i-- {
		in := &list[i]
		switch in.writes(reg) {
		case loads:
			return false
		case moves:
			if in.op == opStore {
				reg = register(in.modrm>>3&7, in.rex>>2&1)
			} else {
				reg = register(in.modrm&7, in.rex&1)
			}
		case computes:
			return true
		}
	}
	return false
}

// What an instruction does to a register.
const (
	leaves = iota
	loads
	moves // from another
	computes
)

// writes says what an instruction does to a register. One that names it and is not known computes it.
func (in *insn) writes(reg byte) int {
	if in.vec {
		return leaves // few move to such registers, and no addresses
	}
	if in.op >= 0x58 && in.op <= 0x5f && register(byte(in.op&7), in.rex&1) == reg { // pop
		return loads
	}
	if in.op >= 0xb8 && in.op <= 0xbf && register(byte(in.op&7), in.rex&1) == reg {
		return loads // an address that is in the code, where it counts as taken
	}
	if !in.has {
		return leaves
	}
	inReg := register(in.modrm>>3&7, in.rex>>2&1) == reg
	inRM := in.modrm>>6 == 3 && register(in.modrm&7, in.rex&1) == reg
	switch in.op {
	case opLoad:
		switch {
		case !inReg:
			return leaves
		case in.modrm>>6 == 3:
			return moves
		case in.rex&8 == 0:
			return computes
		}
		return loads
	case opStore:
		if inRM {
			return moves
		}
		return leaves
	case opLea:
		switch {
		case inReg && in.relative():
			return loads // an address that counts as taken
		case inReg:
			return computes
		}
		return leaves
	case 0x38, 0x39, 0x3a, 0x3b, 0x84, 0x85, 0x88, 0xfe: // cmp, test, mov of a byte
		return leaves
	case 0x80, 0x83, 0x81, 0xf6, 0xf7, opGroup5:
		test := in.op >= 0xf6 && in.op != opGroup5 && in.modrm>>3&6 == 0
		compare := in.op < 0x84 && in.modrm>>3&7 == 7
		jumps := in.op == opGroup5 && in.modrm>>3&7 >= 2
		if !inRM || test || compare || jumps {
			return leaves
		}
		return computes
	}
	if in.op >= twoByte|0x10 && in.op <= twoByte|0x1f || in.op >= twoByte|0x90 && in.op <= twoByte|0x9f {
		return leaves
	}
	if in.op < 0x40 && in.op&7 <= 1 { // arithmetic on modrm's register or memory
		inReg = false
	}
	if inReg || inRM {
		return computes
	}
	return leaves
}
