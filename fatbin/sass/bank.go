package sass

// ReadsBank reports whether code may read a bank of constants. Of some code that doesn't, it
// reports that it does.
func ReadsBank(code []byte, bank int) bool {
	const (
		form, formBits = 9, 3 // where the operands are
		third, second  = 3, 5 // of these, a constant as the third or the second one
		ldc            = 0x182
		bankAt, modeAt = 54, 78
	)
	for ; len(code) >= WordSize; code = code[WordSize:] {
		w := WordAt(code)
		if f := w.Bits(form, formBits); f != third && f != second {
			continue
		}
		if w.Bits(bankAt, 5) == uint64(bank) || w.Bits(0, form) == ldc && w.Bits(modeAt, 2) != 0 { // the bank is in a register, too
			return true
		}
	}
	return false
}
