package channel

import "fmt"

// NewQMD returns a QMD of the class in which nothing is set but the version: the newest one that
// the class has and that is for one launch. It returns false if the class has no QMDs.
func (c *Class) NewQMD() (QMD, bool) {
	var newest *QMDLayout
	for _, l := range c.qmds {
		one := l.partOf("CTA_THREAD_DIMENSION0").known
		if one && (newest == nil || l.Major > newest.Major || l.Major == newest.Major && l.Minor > newest.Minor) {
			newest = l
		}
	}
	if newest == nil {
		return QMD{}, false
	}
	q := QMD{newest, make([]byte, qmdSizes[newest.Major])}
	return q, q.put(newest.launch.major, uint64(newest.Major)) && q.put(newest.launch.minor, uint64(newest.Minor))
}

// Bytes returns the QMD as the GPU reads it. It is the QMD's own memory.
func (q QMD) Bytes() []byte { return q.bytes }

// Set sets a field by its name in the headers; of an array the first element. It is an error if the
// layout has no such field, or if the value doesn't fit.
func (q QMD) Set(name string, value uint64) error { return q.SetElement(name, 0, value) }

// SetElement sets an element of an array of fields.
func (q QMD) SetElement(name string, index int, value uint64) error {
	for i := range q.Layout.Fields {
		if f := &q.Layout.Fields[i]; f.Name == name && (index == 0 || f.Stride != 0) {
			low := int(f.Low) + index*int(f.Stride)
			if !q.put(part{low + int(f.High-f.Low), low, true}, value) {
				return q.misfit(fmt.Sprintf("%s(%d)", name, index), value)
			}
			return nil
		}
	}
	return fmt.Errorf("QMD %d.%d has no field %s(%d)", q.Layout.Major, q.Layout.Minor, name, index)
}

func (q QMD) misfit(what string, value uint64) error {
	return fmt.Errorf("QMD %d.%d: %#x doesn't fit in %s", q.Layout.Major, q.Layout.Minor, value, what)
}

// put writes a part. It returns false if the layout lacks it, or if it is too small.
func (q QMD) put(p part, value uint64) bool {
	width := p.high - p.low + 1
	if !p.known || width < 64 && value>>width != 0 || p.high/8 >= len(q.bytes) {
		return false
	}
	for i := range width {
		at, bit := (p.low+i)/8, byte(1)<<((p.low+i)%8)
		q.bytes[at] &^= bit
		if i < 64 && value>>i&1 != 0 {
			q.bytes[at] |= bit
		}
	}
	return true
}

// putJoined writes a number whose bits are spread.
func (q QMD) putJoined(j joined, value uint64) bool {
	return value&(1<<j.shift-1) == 0 && q.put(j.low, value>>j.shift&0xffffffff) && q.put(j.high, value>>j.shift>>32)
}

// SetLaunch writes what [QMD.Launch] reads, but for the semaphore and the next QMD.
func (q QMD) SetLaunch(l Launch) error {
	f := &q.Layout.launch
	if f.kind.known {
		q.put(f.kind, 2) // GRID_CTA
	}
	for i := range 3 {
		if !q.put(f.grid[i], uint64(l.Grid[i])) {
			return q.misfit("a grid's dimension", uint64(l.Grid[i]))
		}
		if !q.put(f.block[i], uint64(l.Block[i])) {
			return q.misfit("a block's dimension", uint64(l.Block[i]))
		}
	}
	if !q.putJoined(f.program, l.Program) {
		return q.misfit("the program's address", l.Program)
	}
	if !q.put(f.registers, uint64(l.Registers)) {
		return q.misfit("the number of registers", uint64(l.Registers))
	}
	shared := uint64(l.SharedMemory)
	if shared%128 != 0 || !q.put(f.shared, shared) && !q.put(f.sharedBy7, shared>>7) {
		return q.misfit("the size of shared memory", shared)
	}
	if !q.putJoined(f.constants, l.Constants) {
		return q.misfit("the address of constants", l.Constants)
	}
	if l.ConstantSize%16 != 0 || !q.put(f.constantSize, uint64(l.ConstantSize>>4)) {
		return q.misfit("the size of constants", uint64(l.ConstantSize))
	}
	q.put(f.constantsValid, 1)
	return nil
}

// SetDone has the GPU release a semaphore of one word when the grid is over.
func (q QMD) SetDone(s Semaphore) error {
	f := &q.Layout.launch
	if !q.put(f.done, 1) || !q.putJoined(f.doneAddress, s.Address) || !q.put(f.donePayload, s.Payload) {
		return q.misfit("a semaphore's address", s.Address)
	}
	q.put(f.doneSize, 1) // ONE_WORD
	return nil
}
