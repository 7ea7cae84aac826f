package unwind

// maxSteps bounds an expression, and its stack.
const (
	maxSteps = 1 << 10
	maxDepth = 64
)

// evaluate computes an expression (DWARF 5, 2.5) from the registers, with first on its stack;
// false for what makes no sense or is not used for stacks.
func (w *walker) evaluate(expr []byte, r *Regs, first ...uint64) (uint64, bool) {
	d := decoder{b: expr}
	stack := append(make([]uint64, 0, 8), first...)
	ok := true
	pop := func() uint64 {
		if len(stack) == 0 {
			ok = false
			return 0
		}
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		return v
	}
	push := func(v uint64) {
		if stack = append(stack, v); len(stack) > maxDepth {
			ok = false
		}
	}
	pick := func(n uint64) {
		if n >= uint64(len(stack)) {
			ok = false
			return
		}
		push(stack[uint64(len(stack))-1-n])
	}
	truth := func(b bool) {
		if b {
			push(1)
		} else {
			push(0)
		}
	}
	jump := func(off int64) {
		to := int64(len(expr)-len(d.b)) + off
		if to < 0 || to > int64(len(expr)) {
			ok = false
			return
		}
		d.b = expr[to:]
	}
	register := func(n uint64, off int64) {
		v, known := r.Get(int(min(n, numRegs)))
		ok = ok && known
		push(v + uint64(off))
	}
	for steps := 0; len(d.b) > 0 && ok && !d.bad; steps++ {
		if steps == maxSteps {
			return 0, false
		}
		op := byte(d.uint(1))
		switch {
		case op >= 0x30 && op <= 0x4f: // lit
			push(uint64(op - 0x30))
			continue
		case op >= 0x70 && op <= 0x8f: // breg
			register(uint64(op-0x70), d.sleb())
			continue
		}
		switch op {
		case 0x03:
			push(d.uint(8))
		case 0x06: // deref
			v, got := w.word(pop())
			ok = ok && got
			push(v)
		case 0x08:
			push(d.uint(1))
		case 0x09:
			push(uint64(int64(int8(d.uint(1)))))
		case 0x0a:
			push(d.uint(2))
		case 0x0b:
			push(uint64(int64(int16(d.uint(2)))))
		case 0x0c:
			push(d.uint(4))
		case 0x0d:
			push(uint64(int64(int32(d.uint(4)))))
		case 0x0e, 0x0f:
			push(d.uint(8))
		case 0x10:
			push(d.uleb())
		case 0x11:
			push(uint64(d.sleb()))
		case 0x12:
			pick(0)
		case 0x13:
			pop()
		case 0x14:
			pick(1)
		case 0x15:
			pick(d.uint(1))
		case 0x16: // swap
			a, b := pop(), pop()
			push(a)
			push(b)
		case 0x19: // abs
			v := int64(pop())
			push(uint64(max(v, -v)))
		case 0x1f:
			push(-pop())
		case 0x20:
			push(^pop())
		case 0x23:
			push(pop() + d.uleb())
		case 0x28: // bra
			off := int64(int16(d.uint(2)))
			if pop() != 0 {
				jump(off)
			}
		case 0x2f: // skip
			jump(int64(int16(d.uint(2))))
		case 0x92: // bregx
			n := d.uleb()
			register(n, d.sleb())
		case 0x96: // nop
		case 0x1a, 0x1c, 0x1e, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e:
			b, a := pop(), pop()
			shift := min(b, 64)
			switch op {
			case 0x1a:
				push(a & b)
			case 0x1c:
				push(a - b)
			case 0x1e:
				push(a * b)
			case 0x21:
				push(a | b)
			case 0x22:
				push(a + b)
			case 0x24:
				push(a << shift)
			case 0x25:
				push(a >> shift)
			case 0x26:
				push(uint64(int64(a) >> shift))
			case 0x27:
				push(a ^ b)
			case 0x29:
				truth(a == b)
			case 0x2a:
				truth(int64(a) >= int64(b))
			case 0x2b:
				truth(int64(a) > int64(b))
			case 0x2c:
				truth(int64(a) <= int64(b))
			case 0x2d:
				truth(int64(a) < int64(b))
			case 0x2e:
				truth(a != b)
			}
		default:
			return 0, false
		}
	}
	v := pop()
	return v, ok && !d.bad
}
