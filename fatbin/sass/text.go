package sass

import "strconv"

// AppendText appends the instruction: its guard, its name and the registers that it
// writes and reads. An unknown word is given as it is.
func (i *Inst) AppendText(b []byte) []byte {
	if i.op == nil {
		return append(b, i.Word.String()...)
	}
	if g := uint8(i.Word.Lo >> 12 & 15); g != guardAlways {
		b = append(b, '@')
		if g&8 != 0 {
			b = append(b, '!')
		}
		b = appendReg(b, i.op.guard, g&7, true)
		b = append(b, ' ')
	}
	b = append(b, i.op.name...)
	sep := byte(' ')
	for pass := range 2 {
		for j := range i.ops {
			t := &i.ops[j]
			write := t.flags&writeFlag != 0
			if write != (pass == 0) {
				continue
			}
			reg, named := t.reg(i.Word)
			b = append(b, sep)
			if sep == ',' {
				b = append(b, ' ')
			}
			sep = ','
			b = appendReg(b, t.kind, reg, !named)
			if t.count > 1 && named {
				b = append(b, '-')
				b = appendReg(b, t.kind, reg+t.count-1, false)
			}
		}
	}
	return b
}

func appendReg(b []byte, k RegKind, reg uint8, none bool) []byte {
	if none && (k == Pred || k == UPred) && reg == guardAlways || none && (k == GPR || k == UGPR) {
		last := "Z"
		if k == Pred || k == UPred {
			last = "T"
		}
		return append(append(b, k.String()...), last...)
	}
	return strconv.AppendUint(append(b, k.String()...), uint64(reg), 10)
}

// String returns what [Inst.AppendText] appends.
func (i *Inst) String() string { return string(i.AppendText(nil)) }
