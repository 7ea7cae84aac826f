package python

// lineAt returns the line of the instruction that begins so many bytes behind the first; 0
// where it has none.
func (c *code) lineAt(minor int, at int64) int {
	at = max(at, 0) // a call that has not begun
	switch {
	case minor < 10:
		return c.lineOld(at)
	case minor == 10:
		return c.lineRanges(at)
	}
	return c.lineLocations(at)
}

// lineOld reads pairs of how much the address and the line grow (Objects/lnotab_notes.txt of 3.9).
func (c *code) lineOld(at int64) int {
	line, addr := c.line, int64(0)
	for t := c.rows; len(t) >= 2; t = t[2:] {
		if addr += int64(t[0]); addr > at {
			break
		}
		line += int(int8(t[1]))
	}
	return line
}

// lineRanges reads pairs of how long a range is, and how far its line is from the one before:
// 0, it goes on; -128, it has none (that of 3.10).
func (c *code) lineRanges(at int64) int {
	const none = -128
	line, end, has := c.line, int64(0), true
	for t := c.rows; len(t) >= 2; t = t[2:] {
		end += int64(t[0])
		switch d := int(int8(t[1])); d {
		case 0:
		case none:
			has = false
		default:
			line, has = line+d, true
		}
		if at < end {
			if !has {
				return 0
			}
			return line
		}
	}
	return line
}

// lineLocations reads entries of a byte with a kind and a length, then what the kind has
// (Objects/locations.md of 3.11).
func (c *code) lineLocations(at int64) int {
	const (
		oneLine = 10 // to 12: the line is 0 to 2 further
		noPlace = 13 // how far follows
		long    = 14 // that, and three more numbers
		none    = 15
		unit    = 2
	)
	line, end := c.line, int64(0)
	t := c.rows
	number := func() (n uint64) {
		for shift := 0; len(t) > 0; shift += 6 {
			b := t[0]
			t = t[1:]
			n |= uint64(b&0x3f) << min(shift, 63)
			if b&0x40 == 0 {
				break
			}
		}
		return n
	}
	signed := func() int {
		n := number()
		if n&1 != 0 {
			return -int(n >> 1)
		}
		return int(n >> 1)
	}
	for len(t) > 0 {
		kind := t[0] >> 3 & 15
		end += unit * (int64(t[0]&7) + 1)
		t = t[1:]
		skip := 0
		switch {
		case kind < oneLine:
			skip = 1
		case kind < noPlace:
			line += int(kind) - oneLine
			skip = 2
		case kind == noPlace:
			line += signed()
		case kind == long:
			line += signed()
			number()
			number()
			number()
		}
		if at < end {
			if kind == none {
				return 0
			}
			return line
		}
		t = t[min(skip, len(t)):]
	}
	return line
}
