package agent

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// scan looks for records that were reserved since the last time.
func (r *ring) scan() {
	r.unwritten = false
	if r.spoil || r.p.shared == nil {
		return
	}
	head := load64(r.p.shared, r.head)
	if head < r.seen || head-r.tail > ringSize || head%64 != 0 {
		r.garbage()
		return
	}
	r.p.a.crowd = max(r.p.a.crowd, head-r.tail)
	if len(r.holes) > 0 {
		r.fill()
	}
	for r.seen < head && !r.spoil {
		if r.unwritten = !r.written(r.seen); r.unwritten { // its header is being written
			to := r.seen + 64
			for to < head && !r.written(to) {
				to += 64
			}
			if r.hole != r.seen || to == head {
				break
			}
			r.holes = append(r.holes, span{r.seen, to})
			r.seen, r.unwritten = to, false
			continue
		}
		r.seen += r.take(r.seen, head)
	}
	r.trim()
}

// written says whether a record begins at pos, as far as its header tells.
func (r *ring) written(pos uint64) bool { return load64(r.data, int(pos%ringSize)+recPos) == pos }

// take enters the record at pos, which does not go beyond to, and returns its size.
func (r *ring) take(pos, to uint64) uint64 {
	h := r.data[pos%ringSize:]
	size, kind := binary.LittleEndian.Uint32(h[recSize:]), h[recKind]
	if size < 64 || size%64 != 0 || int(size) > len(h) || uint64(size) > to-pos ||
		kind != kindPad && size < recordSize && (kind != kindReturn || h[recNSeg] != 0) || kind < kindIoctl || kind > kindPad {
		r.garbage()
		return 0
	}
	n := pending{pos: pos, size: size, kind: kind, done: kind == kindPad}
	if onDescriptor(kind) && r.p.a.o.Bind != nil {
		r.bind(&n)
	}
	r.push(n)
	return uint64(size)
}

// push appends to pend. What trim has cut off in front of it is used again.
func (r *ring) push(n pending) {
	if len(r.pend) == cap(r.pend) {
		if len(r.pend) > cap(r.store)/2 {
			r.store = make([]pending, 0, max(2*len(r.pend), 64))
		}
		r.pend = append(r.store, r.pend...)
	}
	r.pend = append(r.pend, n)
}

// fill looks for records in holes that have their headers now.
func (r *ring) fill() {
	var left []span
	for _, s := range r.holes {
		from := s.from
		for at := s.from; at < s.to && !r.spoil; {
			if !r.written(at) {
				at += 64
				continue
			}
			if from < at {
				left = append(left, span{from, at})
			}
			at += r.take(at, s.to)
			from = at
		}
		if from < s.to {
			left = append(left, span{from, s.to})
		}
	}
	r.holes = left
}

// onDescriptor says whether a record is of a system call about a descriptor. The
// first of its arguments is that.
func onDescriptor(kind uint8) bool { return kind == kindIoctl || kind == kindSyscall }

// bind lets the caller say what an ioctl's descriptor means.
func (r *ring) bind(n *pending) {
	h := r.data[n.pos%ringSize:][:n.size]
	rec := Record{Kind: Kind(n.kind), PID: r.p.PID, TID: r.tid}
	// The first two are there as soon as the record is.
	rec.Args[0] = binary.LittleEndian.Uint64(h[recArgs:])
	rec.Args[1] = binary.LittleEndian.Uint64(h[recArgs+8:])
	n.tag = r.p.a.o.Bind(r.p, &rec)
}

// garbage stops reading a ring. The thread goes on; when the ring is full, it
// stops for everything.
func (r *ring) garbage() {
	r.spoil = true
	if r.p.a.stats.Garbage++; r.p.a.stats.Garbage < 10 {
		r.p.a.o.Logger.Warn("records spoiled by the program", "pid", r.p.PID, "tid", r.tid)
	}
	for i := range r.pend {
		r.pend[i].done = true
	}
}

// state returns the state of a pending record.
func (r *ring) state(n *pending) uint8 { return byte(load64(r.data, int(n.pos%ringSize)+recState)) }

// trim takes consumed records away and gives their room back.
func (r *ring) trim() {
	i := 0
	for i < len(r.pend) && r.pend[i].done {
		r.tail = r.pend[i].pos + uint64(r.pend[i].size)
		i++
	}
	if i == len(r.pend) {
		r.tail = r.seen
	}
	if len(r.holes) > 0 || r.odd {
		r.tail = r.kept(i)
	}
	if i == 0 && r.tail == r.given {
		return
	}
	r.given = r.tail
	r.base += uint64(i)
	r.pend = r.pend[i:]
	if !r.spoil {
		store64(r.p.shared, r.head+rheadTail, r.tail)
	}
}

// kept returns up to where nothing is needed any more, apart from the first n
// records of pend.
func (r *ring) kept(n int) uint64 {
	tail := r.seen
	for i := range r.pend[n:] {
		tail = min(tail, r.pend[n+i].pos)
	}
	for _, s := range r.holes {
		tail = min(tail, s.from)
	}
	r.odd = len(r.holes) > 0 || r.odd && n < len(r.pend)
	return tail
}

// end marks the thread as ended. What it has not finished ended just before.
func (r *ring) end(when int64) {
	if r.dead {
		return
	}
	r.scan()
	r.resync()
	r.dead, r.death = true, when-1
	r.finish()
}

// finish frees the slot of a thread that has ended, when all is consumed.
func (r *ring) finish() {
	if r.over || !r.dead || len(r.pend) > 0 && !r.spoil {
		return
	}
	r.over = true
	r.p.rings[r.slot] = nil
	if r.slot < len(r.p.starts) {
		r.p.starts[r.slot] = r.seen
	}
	r.p.a.drop(r)
	r.p.release()
}

// spins is how often a record that is about to be completed is looked at again
// before the others are made to wait for it.
const spins = 50

// patience is how long others wait for a record that is about to be completed,
// in ns. Its thread may have been stopped by a debugger, or have left it by
// longjmp.
const patience = 100e6

// visible is the time, in ns, after which what a thread has stored can be seen: much
// longer than a processor keeps it to itself.
const visible = 2000

// awaitStores waits until what threads had stored when it was called can be seen. The agent takes a
// record's time before it stores the state; on x86-64 others may see a store later than the
// thread that made it has read the clock again.
func (a *Agent) awaitStores() {
	for until := nanotime() + visible; nanotime() < until; {
		yield()
	}
}

// hooked reports whether functions are hooked. Of their records alone it is not sure
// that they can be seen as soon as their time has been taken.
func (a *Agent) hooked() bool {
	for _, p := range a.procs {
		if len(p.hooks) > 0 {
			return true
		}
	}
	return false
}

// Collect looks at all rings, and returns the time up to which all records are
// known: until it is called again, Peek and Deliver give out those up to there. It is now, unless a
// record is about to be completed: that has taken its time, perhaps, which nobody else can see yet.
// All events of other origin that were seen before the call, and lie before that
// time, are in order with them.
func (a *Agent) Collect() int64 {
	now := nanotime()
	if a.hooked() {
		a.awaitStores()
	}
	a.crowd = 0
	limit := now
	for try := range spins {
		if limit = a.look(now); limit >= now {
			break
		}
		if try > 0 {
			yield()
		}
	}
	switch {
	case limit >= now:
		a.stall = 0
	case a.stall == 0:
		a.stall = now
	case now-a.stall >= patience:
		a.stall = 0
		for _, r := range a.rings {
			r.giveUp()
		}
	}
	a.limit = max(limit, a.limit)
	slices.SortFunc(a.ready[a.next:], func(x, y ready) int {
		switch {
		case x.end != y.end:
			return cmp.Compare(x.end, y.end)
		case x.r == y.r:
			return cmp.Compare(x.number, y.number)
		case x.at != y.at:
			return cmp.Compare(x.at, y.at)
		}
		return cmp.Compare(x.r.tid, y.r.tid)
	})
	return a.limit
}

// Crowd returns what part of the fullest ring was full when Collect looked at them last.
func (a *Agent) Crowd() float64 { return float64(a.crowd) / ringSize }

// look finds the records that are complete, and returns up to when all are
// known: now, or a time that no record that is about to be completed can lie
// before.
func (a *Agent) look(now int64) (limit int64) {
	limit = now
	for i := 0; i < len(a.rings); i++ {
		r, n := a.rings[i], len(a.rings)
		r.scan()
		limit = min(limit, r.examine(now))
		r.finish()
		i -= n - len(a.rings)
	}
	return limit
}

// examine moves complete records to Agent.ready. A record that has its time, but
// is not complete, lies behind those of its thread that were reserved before it.
func (r *ring) examine(now int64) (limit int64) {
	limit = now
	last := r.last
	for i := range r.pend {
		n := &r.pend[i]
		if n.done || n.taken {
			last = max(last, n.end)
			continue
		}
		h := r.data[n.pos%ringSize:][:n.size]
		switch state := r.state(n); {
		case state == stateDone:
			switch n.end = int64(binary.LittleEndian.Uint64(h[recEnd:])); {
			case r.dead:
				n.end = min(n.end, now)
			case n.end > now+patience: // the program's fault; or now was long ago, as this thread had no processor
				n.end = min(n.end, nanotime())
			}
			n.at = n.end
			n.end = max(n.end, r.p.a.limit) // nobody has waited for it: what came later is given out
		case state == stateVoid:
			n.done = true
			continue
		case r.dead || n.lost:
			// An ioctl that was begun is told of; a call that was not is no event.
			if !onDescriptor(n.kind) || state == stateFilling {
				n.done = true
				continue
			}
			n.lost, n.end = true, max(r.death, r.p.a.limit)
			n.at = n.end
		case state == stateEnding && !n.stuck:
			limit = min(limit, last)
			continue
		default:
			continue
		}
		n.taken = true
		last = max(last, n.end)
		r.p.a.ready = append(r.p.a.ready, ready{n.end, n.at, r, r.base + uint64(i)})
	}
	r.trim()
	if r.unwritten && r.hole != r.seen {
		limit = min(limit, last)
	}
	return limit
}

// giveUp makes nobody wait any more for the records of a ring that are about to
// be completed: its thread stands still, or has left them by longjmp.
func (r *ring) giveUp() {
	for i := range r.pend {
		n := &r.pend[i]
		n.stuck = n.stuck || !n.done && r.state(n) == stateEnding
	}
	if r.unwritten {
		r.hole = r.seen
	}
}

// Peek returns the end of the next record to be given out.
func (a *Agent) Peek() (end int64, ok bool) {
	for a.next < len(a.ready) {
		x := &a.ready[a.next]
		if x.end > a.limit {
			a.trim()
			return 0, false
		}
		if !x.r.spoil && x.number-x.r.base < uint64(len(x.r.pend)) {
			return x.end, true
		}
		a.consume()
	}
	clear(a.ready)
	a.ready, a.next = a.ready[:0], 0
	a.trim()
	return 0, false
}

// trim gives the room of consumed records back.
func (a *Agent) trim() {
	for i := 0; i < len(a.rings); i++ {
		r, n := a.rings[i], len(a.rings)
		r.trim()
		r.finish()
		i -= n - len(a.rings)
	}
}

// Deliver gives out the record that Peek saw.
func (a *Agent) Deliver() {
	x := a.ready[a.next]
	n := &x.r.pend[x.number-x.r.base]
	if rec := x.r.parse(n, x.end); rec != nil {
		a.give(x.r.p, rec)
	}
	a.consume()
}

// consume ends a record that is at its turn.
func (a *Agent) consume() {
	x := a.ready[a.next]
	a.next++
	if i := x.number - x.r.base; i < uint64(len(x.r.pend)) {
		x.r.pend[i].done = true
		x.r.last = max(x.r.last, x.end)
	}
	if a.next%releaseAfter == 0 && !x.r.over {
		x.r.trim() // its thread may need the room before all are given out
	}
}

// releaseAfter is after how many records that were given out a ring's room is given back.
const releaseAfter = 64

// give counts a record and hands it over.
func (a *Agent) give(p *Process, rec *Record) {
	switch rec.Kind {
	case KindIoctl:
		a.stats.Ioctls++
	case KindSyscall:
		a.stats.Syscalls++
	case KindCall:
		a.stats.Calls++
	case KindTime:
		a.stats.Times++
	}
	for i := range rec.Segs {
		a.stats.Bytes += uint64(len(rec.Segs[i].In) + len(rec.Segs[i].Out))
	}
	if h := rec.Hook; h != nil {
		if h.OnRecord != nil && rec.Kind != KindTime {
			h.OnRecord(p, rec)
		}
		if h.Quiet {
			return
		}
	}
	if a.o.Record != nil {
		a.o.Record(p, rec)
	}
}

// Finish is Collect for when all processes have ended: Peek and Deliver give out
// everything afterwards, whatever its time.
func (a *Agent) Finish() int64 {
	a.Collect()
	a.limit = math.MaxInt64
	return a.limit
}

// parse reads a record, and returns nil if it makes no sense. The record and its segments are valid
// until the next call: they are the Agent's own, and the bytes are the ring's.
func (r *ring) parse(n *pending, end int64) *Record {
	h := r.data[n.pos%ringSize:][:n.size]
	var head [recordSize]byte // what is checked must not change
	copy(head[:], h)
	le := binary.LittleEndian
	a := r.p.a
	rec := &a.rec
	*rec = Record{
		Kind: Kind(n.kind), PID: r.p.PID, TID: r.tid, Tag: n.tag, Begin: int64(le.Uint64(head[recBegin:])), End: end,
		Ret: int64(le.Uint64(head[recRet:])), Caller: le.Uint64(head[recCaller:]), SP: le.Uint64(head[recSP:]),
		NoReturn: head[recFlags]&flagNoReturn != 0 && n.kind == kindCall,
		Segs:     a.segs[:0],
	}
	for i := range rec.Args {
		rec.Args[i] = le.Uint64(head[recArgs+8*i:])
	}
	if onDescriptor(n.kind) {
		rec.Unfinished = n.lost
		rec.File = uint32(le.Uint64(head[recFile:]))
		if n.kind == kindSyscall { // the descriptor is in the place of the first argument
			rec.Nr, rec.Args[0], rec.Rdev = le.Uint64(head[recHook:]), rec.Caller, le.Uint64(head[recRdev:])
		}
		rec.Own = head[recFlags]&flagOwn != 0 || r.p.ownStack != 0 && rec.SP-r.p.ownStack < ownSize
		rec.Caller, rec.SP = 0, 0
	} else {
		rec.Unfinished = head[recFlags]&flagUnfinished != 0 && n.kind == kindReturn
		rec.Alone = head[recFlags]&flagAlone != 0 && n.kind == kindReturn
		site := le.Uint64(head[recHook:])
		if site >= uint64(len(r.p.hooks)) {
			return nil
		}
		rec.Hook = r.p.hooks[site].hook
	}
	if n.kind == kindTime {
		rec.TID = int(uint32(le.Uint64(head[recFile:])))
		rec.Work = GPUWork{
			Call: int64(rec.Args[0]), Start: int64(rec.Args[1]), Dur: max(int64(rec.Args[2]), 0), Margin: rec.Ret,
			Stream: rec.Args[3], Context: rec.Args[4], Subject: rec.Args[5],
		}
	}
	if rec.Nr == unix.SYS_CLOSE { // it had its place in the order at its beginning
		rec.End, rec.Rdev = max(end, min(int64(rec.Rdev), nanotime())), 0
	}
	if rec.Begin > end { // times are the program's word, too
		rec.Begin = end
	}
	if rec.Unfinished {
		rec.Ret = 0
	}
	if !r.segments(rec, h, int(head[recNSeg])) {
		return nil
	}
	a.segs = rec.Segs[:0]
	return rec
}

// maxSegs is more than any record has: an ioctl 2, a call 1 + MaxDerefs.
const maxSegs = 1 + MaxDerefs

// segments reads the memory of a record.
func (r *ring) segments(rec *Record, h []byte, n int) bool {
	if n > maxSegs || n > 0 && recordSize+n*segSize > len(h) {
		return false
	}
	for i := range n {
		var d [segSize]byte
		copy(d[:], h[recordSize+i*segSize:])
		le := binary.LittleEndian
		s := Seg{Addr: le.Uint64(d[:]), Len: le.Uint32(d[8:])}
		var ok bool
		if s.In, ok = part(h, s.Len, le.Uint32(d[12:]), le.Uint32(d[20:])); !ok {
			return false
		}
		if !rec.Unfinished {
			if s.Out, ok = part(h, s.Len, le.Uint32(d[16:]), le.Uint32(d[24:])); !ok {
				return false
			}
		}
		if s.In != nil && len(s.In) < int(s.Len) || s.Out != nil && len(s.Out) < int(s.Len) {
			rec.Truncated = true
		}
		rec.Segs = append(rec.Segs, s)
	}
	return true
}

// part returns n bytes of a record; nil, if there are none of the kind.
func part(h []byte, size, n, off uint32) (b []byte, ok bool) {
	if off == 0 {
		return nil, n == 0
	}
	if n > size || uint64(off)+uint64(n) > uint64(len(h)) {
		return nil, false
	}
	return h[off : off+n : off+n], true
}

// crowded says whether the ring is more than half full.
func (r *ring) crowded() bool { return load64(r.p.shared, r.head)-r.tail >= ringSize/2 }

// resync skips records that were reserved and have no header, for good: later
// ones say where they are.
func (r *ring) resync() {
	for r.unwritten && !r.spoil {
		r.hole = r.seen
		if r.scan(); r.unwritten && r.hole == r.seen { // it is the last
			r.seen, r.unwritten = min(load64(r.p.shared, r.head), r.tail+ringSize), false
		}
	}
	r.holes = nil
	r.trim()
}
