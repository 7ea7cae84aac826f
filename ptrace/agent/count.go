package agent

import "encoding/binary"

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
		hook := uint32(key) - 1
		if key == 0 || uint64(hook) >= uint64(len(p.hooks)) || p.hooks[hook].hook == nil || !p.hooks[hook].hook.Count {
			continue
		}
		c := Count{
			Hook: p.hooks[hook].hook, TID: int(key >> 32), Calls: le.Uint64(b[8:]),
			Time: int64(le.Uint64(b[16:]) &^ (1 << 63)), Nonzero: le.Uint64(b[24:]),
		}
		for i := range c.Buckets {
			c.Buckets[i] = le.Uint32(b[32+4*i:])
			c.Returned += uint64(c.Buckets[i])
		}
		p.a.stats.Counted += c.Calls
		p.a.o.Counted(p, &c)
	}
}
