package agent

import "encoding/binary"

// numbered returns the hook with a number less 1, nil if there is none.
func (p *Process) numbered(n uint16) *Hook {
	if n == 0 || int(n) > len(p.hooks) {
		return nil
	}
	return p.hooks[n-1].hook
}

// counts gives out what was counted in a process. Its numbers are the program's word.
func (p *Process) counts() {
	if p.a.o.Counted == nil || p.first == nil {
		return
	}
	table := p.first[countAddr-sharedAddr:][:numCounts*countSize]
	le := binary.LittleEndian
	for ; len(table) > 0; table = table[countSize:] {
		var b [countSize]byte // what is checked must not change
		copy(b[:], table)
		key := le.Uint64(b[:])
		hook := p.numbered(uint16(key))
		if key == 0 || hook == nil || !hook.Count && !hook.Inner {
			continue
		}
		c := Count{
			Hook: hook, Within: p.numbered(uint16(key >> 16)), TID: int(key >> 32), Calls: le.Uint64(b[8:]),
			Time: int64(le.Uint64(b[16:]) &^ (1 << 63)), Nonzero: le.Uint64(b[24:]), Returned: le.Uint64(b[32:]),
		}
		if c.Calls == 0 { // they were recorded after all
			continue
		}
		for i := range c.Buckets {
			c.Buckets[i] = le.Uint32(b[40+4*i:])
		}
		p.a.stats.Counted += c.Calls
		p.a.o.Counted(p, &c)
	}
}
