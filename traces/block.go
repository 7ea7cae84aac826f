package traces

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"
)

// A block holds many events by columns (SCHEMA.md, "Blocks"). Events that are alike but
// for times, arguments, result and memory form a group: what they have in common is a
// record of the text form, which stands once. Each block can be read alone.

// blockMagic begins a block. No line of text does.
const blockMagic = "nvb\x01"

// blockHead is the length of the magic and of what says how long the rest is.
const blockHead = len(blockMagic) + 4

// maxBlock is how long a block may be, and maxBlockEvents how many events a [Writer] puts
// into one.
const (
	maxBlock       = MaxLine
	maxBlockEvents = 1 << 16
)

// maxColumn is the largest memory that a group keeps for the bytes of the next block.
const maxColumn = 1 << 20

// maxGroups is how many groups an encoder remembers from block to block.
const maxGroups = 1 << 12

// The columns of a group, by the byte that names them in a block. Those of arguments
// are '0' to '5'. columnOwn is empty and says that the group is one event.
const (
	columnDur = 'd'
	columnRet = 'r'
	columnMem = 'm'
	columnOwn = 'x'
)

// Bits of groupKey.has, beside the number of arguments.
const (
	hasDur = 1 << iota
	hasRet
	hasMem
	isOwn
)

// groupKey is what the events of a group have in common.
type groupKey struct {
	kind       Kind
	has        uint8
	args       uint8
	flags      Flags
	pid, tid   int32
	fd, child  int32
	file       uint32
	rdev       uint64
	name, path string
	dev        string
}

// groupEncoder gathers the events of a group.
type groupEncoder struct {
	key      groupKey
	template []byte
	n        int    // its number in the block at hand
	block    uint64 // which block that is
	dur      []byte
	ret      deltas
	args     [6]deltas
	mem      []byte
	addrs    []uint64 // of the segments of the event before
}

// deltas is a column of numbers, each as the difference to the one before.
type deltas struct {
	b    []byte
	last uint64
}

func (d *deltas) add(v uint64) {
	d.b = appendSigned(d.b, int64(v-d.last))
	d.last = v
}

// appendUnsigned is binary.AppendUvarint with the common cases inline.
func appendUnsigned(b []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(b, byte(v))
	case v < 1<<14:
		return append(b, byte(v)|0x80, byte(v>>7))
	}
	return binary.AppendUvarint(b, v)
}

// appendSigned is binary.AppendVarint, likewise.
func appendSigned(b []byte, v int64) []byte { return appendUnsigned(b, uint64(v<<1)^uint64(v>>63)) }

// blockEncoder gathers events and makes a block of them.
type blockEncoder struct {
	groups map[groupKey]*groupEncoder
	recent [512]*groupEncoder // by groupKey.place: those that were looked for last
	used   []*groupEncoder    // in the block at hand
	block  uint64
	order  []byte
	ends   []byte
	first  int64
	last   int64 // end of the event before
	least  int64
	most   int64
	events int
	size   int // bytes so far, about
}

func newBlockEncoder() *blockEncoder {
	return &blockEncoder{groups: make(map[groupKey]*groupEncoder), block: 1}
}

// rare reports whether an event has what groups do not: then it is one of its own.
func rare(e *Event) bool {
	return e.Kind == KindOther || len(e.Argv) > 0 || e.Text != "" || e.Data != "" || e.Image != nil ||
		e.Probe != nil || e.Cost != nil || e.Captured != nil || e.Kind == KindEnd || len(e.Mem) > 0 && exceeds(e) ||
		len(e.Name) > MaxText || len(e.Path) > MaxText || len(e.Dev) > MaxText
}

// add copies an event into the block.
func (x *blockEncoder) add(e *Event) {
	end := e.Time + e.Dur
	if x.events == 0 {
		x.first, x.last, x.least, x.most = end, end, end, end
	}
	x.events++
	x.ends = appendSigned(x.ends, end-x.last)
	x.last, x.least, x.most = end, min(x.least, end), max(x.most, end)
	g := x.group(e)
	if g.block != x.block {
		g.block, g.n = x.block, len(x.used)
		x.used = append(x.used, g)
		x.size += len(g.template) + 16
	}
	x.order = appendUnsigned(x.order, uint64(g.n))
	x.size += 4
	k := &g.key
	if k.has&hasDur != 0 {
		g.dur = appendSigned(g.dur, e.Dur)
		x.size += 2
	}
	if k.has&hasRet != 0 {
		g.ret.add(uint64(e.Ret))
		x.size++
	}
	for i := range k.args {
		g.args[i].add(e.Args[i])
	}
	x.size += 2 * int(k.args)
	if k.has&hasMem != 0 {
		was := len(g.mem)
		g.addMem(e.Mem)
		x.size += len(g.mem) - was
	}
}

// group returns the group of an event.
func (x *blockEncoder) group(e *Event) *groupEncoder {
	if rare(e) {
		own := *e
		own.Time = 0
		line := AppendEvent(nil, &own)
		return &groupEncoder{key: groupKey{has: isOwn}, template: line[:len(line)-1]}
	}
	key := groupKey{
		kind: e.Kind, flags: e.Flags, pid: e.PID, tid: e.TID, fd: e.FD, child: e.Child, file: e.File,
		rdev: e.Rdev, name: e.Name, path: e.Path, dev: e.Dev,
	}
	if e.Dur != 0 {
		key.has |= hasDur
	}
	if e.Ret != 0 {
		key.has |= hasRet
	}
	if len(e.Mem) > 0 {
		key.has |= hasMem
	}
	n := len(e.Args)
	for n > 0 && e.Args[n-1] == 0 {
		n--
	}
	key.args = uint8(n)
	recent := &x.recent[key.place()%len(x.recent)]
	if *recent != nil && (*recent).key == key {
		return *recent
	}
	g := x.groups[key]
	if g == nil {
		if len(x.groups) >= maxGroups {
			clear(x.groups) // those of the block at hand are in used
		}
		g = &groupEncoder{key: key}
		line := AppendEvent(nil, &Event{
			Kind: e.Kind, Flags: e.Flags, PID: e.PID, TID: e.TID, FD: e.FD, Child: e.Child, File: e.File,
			Rdev: e.Rdev, Name: e.Name, Path: e.Path, Dev: e.Dev,
		})
		g.template = line[:len(line)-1]
		x.groups[key] = g
	}
	*recent = g
	return g
}

// place is a number that most keys do not share: to make the hash of a whole key takes longer
// than all else that is done with an event.
func (k *groupKey) place() int {
	h := uint64(uint32(k.tid)) ^ uint64(k.kind)<<32 ^ uint64(k.has)<<40 ^ uint64(k.args)<<48 ^ uint64(len(k.name))<<56 ^ uint64(k.flags)<<36
	if n := len(k.name); n >= 8 {
		h ^= binary.LittleEndian.Uint64([]byte(k.name[n-8:])) * 0xff51afd7ed558ccd
	}
	h *= 0x9e3779b97f4a7c15
	return int(h >> 40)
}

// What is known of a segment's bytes.
const (
	segIn    = 1 << iota // they were read at entry
	segInLen             // but not all
	segOut               // they were read at exit
	segOutLen
	segSame // and were the same
)

func (g *groupEncoder) addMem(mem []Seg) {
	b := appendUnsigned(g.mem, uint64(len(mem)))
	for len(g.addrs) < len(mem) {
		g.addrs = append(g.addrs, 0)
	}
	for i := range mem {
		s := &mem[i]
		b = appendSigned(b, int64(s.Addr-g.addrs[i]))
		g.addrs[i] = s.Addr
		b = appendUnsigned(b, uint64(s.Len))
		what := byte(0)
		if s.In != nil {
			what |= segIn
			if len(s.In) != int(s.Len) {
				what |= segInLen
			}
		}
		if s.Out != nil {
			what |= segOut
			switch {
			case s.In != nil && !s.Changed():
				what |= segSame
			case len(s.Out) != int(s.Len):
				what |= segOutLen
			}
		}
		b = append(b, what)
		if what&segInLen != 0 {
			b = appendUnsigned(b, uint64(len(s.In)))
		}
		b = append(b, s.In...)
		if what&segSame == 0 {
			if what&segOutLen != 0 {
				b = appendUnsigned(b, uint64(len(s.Out)))
			}
			b = append(b, s.Out...)
		}
	}
	g.mem = b
}

// appendTo appends the block to dst, and begins the next one.
func (x *blockEncoder) appendTo(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, blockMagic...)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendUnsigned(dst, uint64(x.events))
	dst = appendSigned(dst, x.least)
	dst = appendSigned(dst, x.most)
	dst = appendSigned(dst, x.first)
	dst = appendColumn(dst, x.order)
	dst = appendColumn(dst, x.ends)
	dst = appendUnsigned(dst, uint64(len(x.used)))
	for _, g := range x.used {
		dst = appendColumn(dst, g.template)
		columns := int(g.key.args)
		for has := g.key.has; has != 0; has &= has - 1 {
			columns++
		}
		dst = appendUnsigned(dst, uint64(columns))
		if g.key.has&isOwn != 0 {
			dst = appendColumn(append(dst, columnOwn), nil)
		}
		if g.key.has&hasDur != 0 {
			dst = appendColumn(append(dst, columnDur), g.dur)
		}
		if g.key.has&hasRet != 0 {
			dst = appendColumn(append(dst, columnRet), g.ret.b)
		}
		for i := range g.key.args {
			dst = appendColumn(append(dst, '0'+i), g.args[i].b)
		}
		if g.key.has&hasMem != 0 {
			dst = appendColumn(append(dst, columnMem), g.mem)
		}
		g.reset()
	}
	binary.LittleEndian.PutUint32(dst[at+len(blockMagic):], uint32(len(dst)-at-blockHead))
	x.block++
	clear(x.used)
	x.used, x.order, x.ends, x.events, x.size = x.used[:0], x.order[:0], x.ends[:0], 0, 0
	return dst
}

func appendColumn(dst, b []byte) []byte {
	return append(appendUnsigned(dst, uint64(len(b))), b...)
}

// reset empties the columns. What a burst made one grow to is given back.
func (g *groupEncoder) reset() {
	if cap(g.mem) > maxColumn {
		g.mem = nil
	}
	g.dur, g.mem = g.dur[:0], g.mem[:0]
	g.ret = deltas{b: g.ret.b[:0]}
	for i := range g.args {
		g.args[i] = deltas{b: g.args[i].b[:0]}
	}
	clear(g.addrs)
}

// indexEntry stands behind each block of a compressed recording, in a frame that
// decompressors skip, so that blocks can be found by time from the end of a file on.
type indexEntry struct {
	size        uint32 // of the compressed block before it
	events      uint32
	least, most int64 // ends of events
}

// indexFrame is the length of an indexEntry in a file, and indexMagic what it begins with:
// a skippable frame of zstd (RFC 8878, 3.1.2), and a magic number of ours in it.
const (
	indexFrame = 8 + indexSize
	indexSize  = 28
	indexMagic = "\x5e\x2a\x4d\x18\x1c\x00\x00\x00nvi\x01"
)

func (x *indexEntry) appendTo(dst []byte) []byte {
	dst = append(dst, indexMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, x.size)
	dst = binary.LittleEndian.AppendUint32(dst, x.events)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(x.least))
	return binary.LittleEndian.AppendUint64(dst, uint64(x.most))
}

// parseIndex reads what appendTo wrote.
func parseIndex(b []byte) (x indexEntry, ok bool) {
	if len(b) != indexFrame || string(b[:len(indexMagic)]) != indexMagic {
		return x, false
	}
	b = b[len(indexMagic):]
	x.size, x.events = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	x.least, x.most = int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))
	return x, true
}

// errBlock is the error of a block that can't be read; there is nothing to do about it.
var errBlock = errors.New("a block that contradicts itself")

// column is a column that is being read.
type column struct {
	b    []byte
	last uint64
}

// unsigned reads a number; false means that there is none.
func (c *column) unsigned() (uint64, bool) {
	if len(c.b) > 0 && c.b[0] < 0x80 {
		v := uint64(c.b[0])
		c.b = c.b[1:]
		return v, true
	}
	if len(c.b) > 1 && c.b[1] < 0x80 {
		v := uint64(c.b[0]&0x7f) | uint64(c.b[1])<<7
		c.b = c.b[2:]
		return v, true
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		return 0, false
	}
	c.b = c.b[n:]
	return v, true
}

func (c *column) signed() (int64, bool) {
	v, ok := c.unsigned()
	return int64(v>>1) ^ -int64(v&1), ok
}

// delta reads a number that was written by deltas.
func (c *column) delta() (uint64, bool) {
	v, ok := c.signed()
	c.last += uint64(v)
	return c.last, ok
}

// part reads what appendColumn wrote.
func (c *column) part() ([]byte, bool) {
	n, ok := c.unsigned()
	if !ok || n > uint64(len(c.b)) {
		return nil, false
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p, true
}

// group is a group that is being read.
type group struct {
	own  []byte      // the record of an event of its own, until that is read
	many *manyEvents // nil: of one event
}

// manyEvents are the events of a group that are still to be read.
type manyEvents struct {
	event Event // what they have in common
	has   uint8
	args  uint8 // bit i: there is a column for argument i
	dur   column
	ret   column
	arg   [6]column
	mem   column
	addrs []uint64
}

// blockDecoder reads a block.
type blockDecoder struct {
	p      *parser
	left   int // events
	order  column
	ends   column
	end    int64
	groups []group
}

// begin reads what stands before the events. b is the block behind its head, and must
// stay as it is. A block whose events all end before a time has none.
func (d *blockDecoder) begin(b []byte, from int64) error {
	c := column{b: b}
	n, ok1 := c.unsigned()
	_, ok2 := c.signed()
	most, ok3 := c.signed()
	first, ok4 := c.signed()
	order, ok5 := c.part()
	ends, ok6 := c.part()
	groups, ok7 := c.unsigned()
	// An event has a byte in both columns at least, a group two.
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 ||
		n > uint64(len(order)) || n > uint64(len(ends)) || groups > uint64(len(c.b))/2 || groups > n {
		return errBlock
	}
	if d.left = 0; most < from {
		return nil
	}
	d.left, d.order.b, d.ends.b, d.end = int(n), order, ends, first
	clear(d.groups)
	d.groups = slices.Grow(d.groups[:0], int(groups))[:groups]
	for i := range d.groups {
		if err := d.groups[i].begin(&c, d.p); err != nil {
			return err
		}
	}
	if len(c.b) > 0 {
		return errBlock
	}
	return nil
}

// begin reads a group but for its events.
func (g *group) begin(c *column, p *parser) error {
	line, ok1 := c.part()
	n, ok2 := c.unsigned()
	if !ok1 || !ok2 || n > uint64(len(c.b))/2 {
		return errBlock
	}
	var many *manyEvents
	if n != 1 || len(c.b) == 0 || c.b[0] != columnOwn {
		many = new(manyEvents)
	}
	for range n {
		if len(c.b) == 0 {
			return errBlock
		}
		id := c.b[0]
		c.b = c.b[1:]
		b, ok := c.part()
		if !ok {
			return errBlock
		}
		switch id {
		case columnDur:
			many.has, many.dur.b = many.has|hasDur, b
		case columnRet:
			many.has, many.ret.b = many.has|hasRet, b
		case columnMem:
			many.has, many.mem.b = many.has|hasMem, b
		case columnOwn:
			if n != 1 {
				return errBlock
			}
			g.own = line
		case '0', '1', '2', '3', '4', '5':
			many.args, many.arg[id-'0'].b = many.args|1<<(id-'0'), b
		}
	}
	if g.own != nil {
		return nil // it is read when its turn comes
	}
	g.many = many
	if err := p.event(line, &many.event); err != nil {
		return err
	}
	if len(many.event.Mem) > 0 {
		return errBlock
	}
	return nil
}

// next reads the next event into e; false means that there is none.
func (d *blockDecoder) next(e *Event) (bool, error) {
	if d.left == 0 {
		return false, nil
	}
	d.left--
	n, ok := d.order.unsigned()
	delta, ok2 := d.ends.signed()
	if !ok || !ok2 || n >= uint64(len(d.groups)) {
		return false, errBlock
	}
	d.end += delta
	g := &d.groups[n]
	if g.many == nil {
		line := g.own
		if line == nil {
			return false, errBlock // once more
		}
		g.own = nil
		err := d.p.event(line, e)
		e.Time = d.end - e.Dur
		return true, err
	}
	if !g.many.next(e) {
		return false, errBlock
	}
	e.Time = d.end - e.Dur
	return true, nil
}

// next reads the group's next event into e, but for its time.
func (g *manyEvents) next(e *Event) bool {
	e.resetTo(&g.event)
	ok := true
	if g.has&hasDur != 0 {
		e.Dur, ok = g.dur.signed()
	}
	if g.has&hasRet != 0 && ok {
		var v uint64
		v, ok = g.ret.delta()
		e.Ret = int64(v)
	}
	for has := g.args; has != 0 && ok; has &= has - 1 {
		i := bits.TrailingZeros8(has)
		e.Args[i], ok = g.arg[i].delta()
	}
	if g.has&hasMem != 0 && ok {
		ok = g.nextMem(e)
	}
	return ok
}

// nextMem reads an event's segments.
func (g *manyEvents) nextMem(e *Event) bool {
	c := &g.mem
	n, ok := c.unsigned()
	if !ok || n > MaxSegs {
		return false
	}
	for len(g.addrs) < int(n) {
		g.addrs = append(g.addrs, 0)
	}
	left := MaxEventBytes
	read := func(n uint32, whole bool) ([]byte, bool) {
		size, ok := uint64(n), true
		if !whole {
			size, ok = c.unsigned()
		}
		if !ok || size > uint64(left) || size > uint64(len(c.b)) {
			return nil, false
		}
		if size == 0 {
			return []byte{}, true
		}
		left -= int(size)
		b := e.Alloc(int(size))
		copy(b, c.b)
		c.b = c.b[size:]
		return b, true
	}
	for i := range g.addrs[:n] {
		delta, ok1 := c.signed()
		size, ok2 := c.unsigned()
		if !ok1 || !ok2 || size > math.MaxUint32 || len(c.b) == 0 {
			return false
		}
		what := c.b[0]
		c.b = c.b[1:]
		g.addrs[i] += uint64(delta)
		s := Seg{Addr: g.addrs[i], Len: uint32(size)}
		if what&segIn != 0 {
			if s.In, ok = read(s.Len, what&segInLen == 0); !ok {
				return false
			}
		}
		switch {
		case what&segOut == 0:
		case what&segSame != 0:
			if s.In == nil || len(s.In) > left {
				return false
			}
			left -= len(s.In)
			s.Out = s.In
		default:
			if s.Out, ok = read(s.Len, what&segOutLen == 0); !ok {
				return false
			}
		}
		e.Mem = append(e.Mem, s)
	}
	return true
}
