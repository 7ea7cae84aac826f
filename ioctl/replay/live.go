package replay

import (
	"encoding/binary"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// openFile is an open file of the program's: a memfd, recognised by its inode
// whatever descriptor refers to it.
type openFile struct {
	id   uint32
	name string // node below /dev
	rdev uint64
	rec  *file // the recorded file that it is paired with
}

// liveClient is a root client of the program's.
type liveClient struct {
	objects map[uint32]*object // recorded objects by the program's handles
	toLive  map[uint32]uint32  // the program's handles by the recorded ones
}

// lookup returns the recorded object behind a handle of the program's.
func (c *liveClient) lookup(h uint32) *object {
	if c == nil {
		return nil
	}
	return c.objects[h]
}

// pair notes that the program knows the recorded object o as h.
func (c *liveClient) pair(h uint32, o *object) {
	c.objects[h] = o
	c.toLive[o.handle] = h
}

// question is an ioctl of the program's that waits for its answer.
type question struct {
	task    *task
	ev      traces.Event
	call    ioctl.Call
	id      ident
	subject any
	// subjectHandle is the program's handle of the subject, 0 if that is a file.
	subjectHandle uint32
	client        *liveClient
	parts         []part
	arg           int  // index of the escape's own argument
	makes         bool // the call makes an object
}

// ask reads and decodes an ioctl.
func (s *server) ask(t *task, f *openFile, args [6]uint64) *question {
	q := &question{task: t}
	q.ev = traces.Event{
		Kind: traces.KindIoctl, PID: int32(t.tid), TID: int32(t.tid), Args: args,
		FD: int32(uint32(args[0])), File: f.id, Dev: f.name, Rdev: f.rdev,
	}
	s.watcher.Enter(&q.ev, t)
	s.understand(q, f)
	return q
}

// understand decodes a question whose memory has been read.
func (s *server) understand(q *question, f *openFile) {
	q.call = s.decoder.Decode(&q.ev)
	q.id = identOf(&q.ev, &q.call)
	q.parts = partsOf(s.rec.layouts, &q.call, false)
	q.arg = argPart(&q.call)
	q.client = s.clients[q.call.Client]
	if f.rec != nil {
		q.subject = f.rec
	}
	q.subjectHandle = subjectHandle(f.name, &q.call)
	if o := q.client.lookup(q.subjectHandle); o != nil {
		q.subject = o
	}
	_, effect := effectOf(f.name, &q.call)
	q.makes = effect == makesClient || effect == makesObject
}

// twin returns the program's part that corresponds to part i of a recorded
// call: the one that the same pointer leads to. Nil if there is none.
func (q *question) twin(a *answer, i int) *part {
	if j := q.twinIndex(a, i); j >= 0 {
		return &q.parts[j]
	}
	return nil
}

func (q *question) twinIndex(a *answer, i int) int {
	if i == 0 {
		return min(0, len(q.parts)-1)
	}
	rp := &a.parts[i]
	if rp.parent < 0 || rp.parent >= i {
		return -1
	}
	parent := q.twinIndex(a, rp.parent)
	if parent < 0 {
		return -1
	}
	for j := parent + 1; j < len(q.parts); j++ {
		if q.parts[j].parent == parent && q.parts[j].field == rp.field {
			return j
		}
	}
	return -1
}

// firstClient is where the driver's own handles of root clients begin (rs_server.h).
const firstClient = 0xc1d00000

// firstObject is where those of other objects begin (rs_client.h: RS_UNIQUE_HANDLE_BASE).
const firstObject = 0xcaf00000

// newHandle returns the handle of the object that a call makes: the program's
// choice, else the recorded one, else, if that is taken, a free one.
func (s *server) newHandle(q *question, a *answer) uint32 {
	if len(q.parts) == 0 || a.made == nil {
		return 0
	}
	if h := word(q.parts[q.arg].in, newHandleOffset); h != 0 {
		return h
	}
	h, next := a.made.handle, uint32(firstObject)
	taken := func(h uint32) bool { return q.client.lookup(h) != nil }
	if q.client == nil {
		next = firstClient
		taken = func(h uint32) bool { return s.clients[h] != nil }
	}
	for taken(h) {
		h, next = next, next+1
	}
	return h
}

// faulty returns the index of the first part that could not be read, -1 if all
// could. What is larger than the watcher's limits is cut, not faulty.
func (q *question) faulty() int {
	const limit = 16 << 10 // the smallest of the limits that are met in practice
	if q.call.Unknown == ioctl.UnknownRequest {
		return -1 // how long its argument is, is a guess
	}
	for i := range q.parts {
		if p := &q.parts[i]; len(p.in) < min(p.size, limit) {
			return i
		}
	}
	return -1
}

// write is bytes for the program's memory, and what is there before.
type write struct {
	addr      uint64
	data, old []byte
}

// compose makes the writes that turn the program's memory into what the
// recorded call left, h being the handle of an object that the call makes.
func (s *server) compose(q *question, a *answer, h uint32) []write {
	var writes []write
	for i := range a.parts {
		rp, lp := &a.parts[i], q.twin(a, i)
		if lp == nil {
			continue
		}
		n := min(len(lp.in), len(rp.out), len(rp.in))
		data := append([]byte(nil), lp.in[:n]...)
		first, last := n, 0
		set := func(from, to int) {
			first, last = min(first, from), max(last, to)
		}
		for off := 0; off < n; off += 4 {
			end := min(off+4, n)
			if s.composeWord(q, rp, data, off, end) {
				set(off, end)
			}
		}
		if i == q.arg && h != 0 && n >= newHandleOffset+4 {
			binary.LittleEndian.PutUint32(data[newHandleOffset:], h)
			set(newHandleOffset, newHandleOffset+4)
			if a.makesClient() && word(rp.in, 0) != word(rp.out, 0) {
				binary.LittleEndian.PutUint32(data, h) // the driver repeats a new client's handle in hRoot
				set(0, 4)
			}
		}
		if first < last {
			writes = append(writes, write{lp.addr + uint64(first), data[first:last], lp.in[first:last]})
		}
	}
	return writes
}

// composeWord puts the recorded result of the bytes from off to end into data,
// and reports whether the driver wrote any.
func (s *server) composeWord(q *question, rp *part, data []byte, off, end int) bool {
	r := rp.roleAt(off)
	always := r == roleOut || r == roleStatus
	if !always && string(rp.in[off:end]) == string(rp.out[off:end]) {
		return false
	}
	if end-off == 4 && !always && r != rolePointer {
		if h, ok := s.liveHandle(q, word(rp.out, off)); ok {
			binary.LittleEndian.PutUint32(data[off:], h)
			return true
		}
	}
	changed := false
	for i := off; i < end; i++ {
		if always || rp.in[i] != rp.out[i] {
			data[i] = rp.out[i]
			changed = true
		}
	}
	return changed
}

// liveHandle translates a value that the driver wrote, if it is the handle of a
// recorded object that the program knows by another.
func (s *server) liveHandle(q *question, v uint32) (uint32, bool) {
	const smallest = 0x10000 // what is below is more likely a number
	if v < smallest || q.client == nil {
		return 0, false
	}
	h, ok := q.client.toLive[v]
	return h, ok
}

// commit makes an answer that has reached the program count.
func (s *server) commit(q *question, a *answer, h uint32) {
	a.used = true
	switch {
	case a.made != nil && h != 0:
		c := q.client
		if a.makesClient() || c == nil {
			c = &liveClient{objects: make(map[uint32]*object), toLive: make(map[uint32]uint32)}
			s.clients[h] = c
		}
		c.pair(h, a.made)
	case a.ends != nil && q.client != nil:
		gone := q.call.Object
		delete(q.client.objects, gone)
		if gone == q.call.Client {
			delete(s.clients, gone)
		}
	}
}
