package replay

import "encoding/binary"

// maxLook bounds how many recorded calls are compared with one of the program's
// in each of the three searches: enough for every real program, and it keeps a
// program that repeats one call a million times linear.
const maxLook = 128

// quality says how good an answer is.
type quality uint8

const (
	noAnswer quality = iota
	exact            // the next one with the same input
	repeated         // one with the same input, given before
	inexact          // one with other input, or on another object
)

// match is what was found for a question.
type match struct {
	answer    *answer
	how       quality
	diff      int  // words in which the input differs
	elsewhere bool // it was recorded on another object than the question's
}

// find returns the best answer to a call. It changes nothing: an answer counts
// as used when it has reached the program.
func (s *server) find(q *question) match {
	o, onObject := q.subject.(*object)
	subjects := make([]any, 0, 3)
	if q.subject != nil {
		subjects = append(subjects, q.subject)
	}
	if onObject {
		subjects = append(subjects, o.class)
	}
	subjects = append(subjects, nil)

	var near match
	for _, subject := range subjects {
		m := s.search(q, s.rec.streams[key{q.id, subject}])
		m.elsewhere = onObject && m.answer != nil && m.answer.subject != q.subject
		switch {
		case m.how == exact || m.how == repeated:
			if m.elsewhere {
				m.how = inexact
			}
			return m
		case m.how == inexact && (near.how == noAnswer || m.diff < near.diff):
			near = m
		}
	}
	return near
}

// search looks through one stream: for the first unused answer with the same
// input, then the last used one, then that whose input differs least.
func (s *server) search(q *question, stream []*answer) match {
	var near match
	same := func(a *answer) bool {
		d := s.differences(q, a)
		if d != 0 && (near.answer == nil || d < near.diff) {
			near = match{answer: a, how: inexact, diff: d}
		}
		return d == 0
	}
	looked := 0
	for i := s.skipUsed(stream); i < len(stream) && looked < maxLook; i++ {
		if stream[i].used {
			continue
		}
		looked++
		if same(stream[i]) {
			return match{answer: stream[i], how: exact}
		}
	}
	looked = 0
	for i := len(stream) - 1; i >= 0 && looked < maxLook; i-- {
		if !stream[i].used {
			continue
		}
		looked++
		if same(stream[i]) {
			return match{answer: stream[i], how: repeated}
		}
	}
	return near
}

// skipUsed returns the index of the first unused answer of a stream, without
// walking over the used ones every time.
func (s *server) skipUsed(stream []*answer) int {
	if len(stream) == 0 {
		return 0
	}
	at := &stream[0]
	i := s.heads[at]
	for i < len(stream) && stream[i].used {
		i++
	}
	s.heads[at] = i
	return i
}

// differences counts the 32-bit words in which a call's input differs from a
// recorded one's for no reason of the run.
func (s *server) differences(q *question, a *answer) int {
	n := 0
	for i := range a.parts {
		rp := &a.parts[i]
		lp := q.twin(a, i)
		if lp == nil {
			if len(rp.in) > 0 {
				n++ // the program left out a buffer
			}
			continue
		}
		if lp.size != rp.size {
			n++
		}
		n += s.differingWords(q, a, lp, rp, i == q.arg)
	}
	return n
}

// differingWords counts the unexplained differences of one part.
func (s *server) differingWords(q *question, a *answer, lp, rp *part, isArg bool) int {
	n := 0
	size := min(len(lp.in), len(rp.in))
	for off := 0; off < size; off += 4 {
		end := min(off+4, size)
		if string(lp.in[off:end]) == string(rp.in[off:end]) {
			continue
		}
		if isArg && off == newHandleOffset && q.makes {
			continue // the program's own choice
		}
		if !s.explained(q, a, lp, rp, off, end) {
			n++
		}
	}
	return n
}

// explained says whether a difference in the bytes from off to end means nothing.
func (s *server) explained(q *question, a *answer, lp, rp *part, off, end int) bool {
	if end-off < 4 {
		return s.bytesExplained(lp, rp, off, end)
	}
	l, r := word(lp.in, off), word(rp.in, off)
	switch rp.roleAt(off) {
	case rolePointer:
		at := off &^ 7
		return (long(lp.in, at) == 0) == (long(rp.in, at) == 0)
	case roleHandle:
		return s.sameHandle(q, a, l, r)
	case roleFD:
		return s.sameFD(q, l, r, rp.fds[off])
	case rolePID:
		return l != 0 && r != 0
	case roleHost:
		return true
	case roleOut, roleStatus:
		return true
	case rolePad:
		return s.bytesExplained(lp, rp, off, end)
	}
	if s.bytesExplained(lp, rp, off, end) {
		return true
	}
	// A value without a role: it may be any of these all the same.
	at := off &^ 7
	return s.sameHandle(q, a, l, r) || s.samePID(q, a, l, r) || userAddress(long(lp.in, at)) && userAddress(long(rp.in, at))
}

// bytesExplained says whether all differing bytes are padding or are written by
// the driver anyway.
func (s *server) bytesExplained(lp, rp *part, off, end int) bool {
	for i := off; i < end; i++ {
		if lp.in[i] == rp.in[i] {
			continue
		}
		switch rp.roleAt(i) {
		case rolePad, roleOut, roleStatus:
			continue
		}
		if i < len(rp.out) && rp.out[i] != rp.in[i] {
			continue
		}
		return false
	}
	return true
}

// sameHandle says whether l names the object that r names in the recording, or
// each is the call's own client or subject: whether these are a pair is for find
// to judge, unless one is known and the other is not.
func (s *server) sameHandle(q *question, a *answer, l, r uint32) bool {
	if l == 0 || r == 0 {
		return l == r
	}
	if l == q.call.Client && r == a.clientHandle && (q.client == nil) == (a.client == nil) {
		return true
	}
	_, known := q.subject.(*object)
	_, recorded := a.subject.(*object)
	if l == q.subjectHandle && r == a.subjectHandle && known == recorded {
		return true
	}
	if o := q.client.lookup(l); o != nil {
		return o.handle == r
	}
	if c := s.clients[l]; c != nil {
		return c.objects[l].handle == r
	}
	// Another client's: nvidia-uvm has no client of its own, NV_ESC_RM_DUP_OBJECT two.
	for _, c := range s.clients {
		if o := c.lookup(l); o != nil && o.handle == r {
			return true
		}
	}
	return false
}

// sameFD says whether descriptor l is of the node that r is of in the recording.
func (s *server) sameFD(q *question, l, r uint32, node string) bool {
	if int32(l) < 0 || int32(r) < 0 {
		return int32(l) < 0 && int32(r) < 0
	}
	f := s.fileOf(q.task, int32(l))
	if f == nil || node == "" {
		return f == nil && node == "" // neither a device's, or the recording does not say
	}
	return f.name == node
}

// samePID says whether both are ids of the calling process or thread.
func (s *server) samePID(q *question, a *answer, l, r uint32) bool {
	if int32(r) != a.pid && int32(r) != a.tid {
		return false
	}
	return int(l) == q.task.tid || int(l) == q.task.process()
}

// userAddress says whether v looks like an address in a program's mappings:
// beyond what sizes and GPU-local offsets reach, below the kernel.
func userAddress(v uint64) bool { return v >= 1<<40 && v < 1<<47 }

// word returns the 32 bits at an offset, 0 beyond the end.
func word(b []byte, at int) uint32 {
	if at < 0 || at+4 > len(b) {
		return 0
	}
	return binary.LittleEndian.Uint32(b[at:])
}

// long returns the 64 bits at an offset, 0 beyond the end.
func long(b []byte, at int) uint64 {
	if at < 0 || at+8 > len(b) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[at:])
}
