package export

import (
	"io"
	"math"
)

// Numbers of messages' fields, as in Perfetto's protos (protos/perfetto/trace/...):
// trace_packet.proto, track_event/*.proto, interned_data.proto, clock_snapshot.proto.
const (
	tracePacketField = 1 // of Trace

	packetClockSnapshot = 6
	packetTimestamp     = 8
	packetSequence      = 10
	packetTrackEvent    = 11
	packetInterned      = 12
	packetFlags         = 13
	packetClock         = 58
	packetDefaults      = 59
	packetDescriptor    = 60

	sequenceCleared = 1 // SEQ_INCREMENTAL_STATE_CLEARED
	sequenceNeeds   = 2 // SEQ_NEEDS_INCREMENTAL_STATE

	snapshotClocks   = 1
	clockID          = 1
	clockTimestamp   = 2
	clockIncremental = 3

	defaultsTrackEvent = 11
	defaultsClock      = 58

	eventCategories       = 3
	eventAnnotations      = 4
	eventType             = 9
	eventNameID           = 10
	eventTrack            = 11
	eventCounter          = 30
	eventFlows            = 47
	eventTerminatingFlows = 48

	annotationNameID   = 1
	annotationUint     = 3
	annotationInt      = 4
	annotationPointer  = 7
	annotationStringID = 17

	internedID   = 1
	internedText = 2

	descriptorUUID        = 1
	descriptorName        = 2
	descriptorProcess     = 3
	descriptorThread      = 4
	descriptorParent      = 5
	descriptorCounter     = 8
	descriptorOrder       = 11
	descriptorRank        = 12
	descriptorDescription = 14

	childrenExplicit = 3 // TrackDescriptor.ChildTracksOrdering: by sibling_order_rank

	processPID     = 1
	processCommand = 2
	processName    = 6
	threadPID      = 1
	threadTID      = 2
	threadName     = 5
	counterUnit    = 3

	unitCount = 2 // CounterDescriptor.UNIT_COUNT
	unitBytes = 3 // CounterDescriptor.UNIT_SIZE_BYTES

	typeBegin   = 1 // TrackEvent.TYPE_SLICE_BEGIN
	typeEnd     = 2
	typeInstant = 3
	typeCounter = 4

	clockRealtime = 1  // BuiltinClock
	clockBoottime = 6  // of a trace, unless it says otherwise
	clockDelta    = 64 // the first that a sequence may define for itself
)

// The kinds of texts that a sequence of packets has numbers for, which are also their
// fields of InternedData, save values.
const (
	internCategory = iota
	internName
	internKey
	internValue
	interns
)

var internFields = [interns]int{internCategory: 1, internName: 2, internKey: 3, internValue: 29}

// Bounds of what a writer remembers of the texts that it has written.
const (
	maxInterned      = 1 << 14  // of a kind, in a sequence
	maxInternedBytes = 32 << 20 // of all
)

// appendVarint appends a number as protobuf has it.
func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendTag(b []byte, field, wire int) []byte {
	return appendVarint(b, uint64(field)<<3|uint64(wire))
}

func appendUint(b []byte, field int, v uint64) []byte { return appendVarint(appendTag(b, field, 0), v) }

func appendFixed64(b []byte, field int, v uint64) []byte {
	b = appendTag(b, field, 1)
	for range 8 {
		b = append(b, byte(v))
		v >>= 8
	}
	return b
}

func appendBytes[T string | []byte](b []byte, field int, v T) []byte {
	b = appendVarint(appendTag(b, field, 2), uint64(len(v)))
	return append(b, v...)
}

// begin starts a message inside of another; end, which is given what begin returned,
// puts its length in front.
func begin(b []byte, field int) (_ []byte, at int) {
	b = append(appendTag(b, field, 2), 0)
	return b, len(b)
}

func end(b []byte, at int) []byte {
	n := len(b) - at
	if n < 0x80 {
		b[at-1] = byte(n)
		return b
	}
	var length [5]byte
	l := appendVarint(length[:0], uint64(n))
	b = append(b, l[1:]...) // room
	copy(b[at-1+len(l):], b[at:at+n])
	copy(b[at-1:], l)
	return b
}

// sequence is packets that share a state: a track, a clock that goes on by differences,
// and numbers for texts that were written once.
type sequence struct {
	id    uint32
	track uint64
	last  int64 // time of its clock
	ready bool  // the state was written
	ids   [interns]map[string]uint32
	held  int // bytes of the texts in ids
}

// packets writes a trace as Perfetto's protobuf. An event is written by start, then what
// it has, then finish.
type packets struct {
	w       io.Writer
	b       []byte
	err     error
	written int64 // bytes, with those in b
	uuids   uint64
	flows   uint64 // what is added to flows' numbers
	at      func(int64) int64
	ids     uint32 // of sequences
	main    *sequence
	held    map[*sequence]struct{} // with texts
	bytes   int                    // of them

	seq   *sequence // of the event that is being written
	event []byte
	fresh []byte // InternedData that comes with it
}

func (p *packets) init(w io.Writer, among *Among) {
	p.w, p.held = w, make(map[*sequence]struct{})
	if among != nil {
		p.at = among.At
		p.ids, p.uuids, p.flows = uint32(among.Index)<<amongIDs, uint64(among.Index)<<amongUUIDs, uint64(among.Index)<<amongUUIDs
	}
	p.main = p.sequence(0)
}

// time is a time of the recording as it is written: none is before the begin.
func (p *packets) time(ns int64) int64 {
	if p.at != nil {
		ns = p.at(ns)
	}
	return max(ns, 0)
}

// sequence returns a new sequence for events on a track.
func (p *packets) sequence(track uint64) *sequence {
	p.ids++
	return &sequence{id: p.ids, track: track}
}

// uuid returns a number for a new track.
func (p *packets) uuid() uint64 {
	p.uuids++
	return p.uuids
}

// packet starts a packet; done ends it.
func (p *packets) packet() int {
	b, at := begin(p.b, tracePacketField)
	p.b = b
	return at
}

func (p *packets) done(at int) {
	before := at
	p.b = end(p.b, before)
}

// flush writes what has gathered if it is enough, or all of it.
func (p *packets) flush(all bool) {
	if p.err != nil || !all && len(p.b) < flushBytes {
		return
	}
	if len(p.b) > 0 {
		_, p.err = p.w.Write(p.b)
	}
	p.written += int64(len(p.b))
	p.b = p.b[:0]
}

// size returns how many bytes there are so far.
func (p *packets) size() int64 { return p.written + int64(len(p.b)) }

// drop forgets the texts of a sequence, which begins anew.
func (p *packets) drop(s *sequence) {
	s.ready = false
	p.bytes -= s.held
	s.held = 0
	for i := range s.ids {
		s.ids[i] = nil
	}
	delete(p.held, s)
}

// prepare writes a sequence's state, if there is none: its clock and its track.
func (p *packets) prepare(s *sequence, ns int64) {
	if p.bytes > maxInternedBytes {
		for o := range p.held {
			p.drop(o)
		}
	}
	for i := range s.ids {
		if len(s.ids[i]) >= maxInterned {
			p.drop(s)
			break
		}
	}
	if s.ready {
		return
	}
	s.ready, s.last = true, p.time(ns)
	at := p.packet()
	p.b = appendUint(p.b, packetSequence, uint64(s.id))
	p.b = appendUint(p.b, packetFlags, sequenceCleared)
	b, snap := begin(p.b, packetClockSnapshot)
	b = appendClock(b, clockDelta, s.last, true)
	b = appendClock(b, clockBoottime, s.last, false)
	b = end(b, snap)
	b, def := begin(b, packetDefaults)
	b = appendUint(b, defaultsClock, clockDelta)
	if s.track != 0 {
		var ev int
		b, ev = begin(b, defaultsTrackEvent)
		b = appendUint(b, eventTrack, s.track)
		b = end(b, ev)
	}
	p.b = end(b, def)
	p.done(at)
}

// appendClock appends what a clock showed at the moment of a snapshot.
func appendClock(b []byte, id uint64, ns int64, incremental bool) []byte {
	b, at := begin(b, snapshotClocks)
	b = appendUint(b, clockID, id)
	b = appendUint(b, clockTimestamp, uint64(ns))
	if incremental {
		b = appendUint(b, clockIncremental, 1)
	}
	return end(b, at)
}

// start begins an event.
func (p *packets) start(s *sequence, ns int64, kind uint64) {
	p.prepare(s, ns)
	p.seq = s
	p.fresh = p.fresh[:0]
	p.event = appendUint(p.event[:0], eventType, kind)
}

// finish ends it. Times before the recording's begin are its begin.
func (p *packets) finish(ns int64) {
	s := p.seq
	ns = p.time(ns)
	at := p.packet()
	if ns < s.last { // the difference of such a clock is not negative
		p.b = appendUint(p.b, packetClock, clockBoottime)
		p.b = appendUint(p.b, packetTimestamp, uint64(ns))
	} else {
		p.b = appendUint(p.b, packetTimestamp, uint64(ns-s.last))
		s.last = ns
	}
	p.b = appendUint(p.b, packetSequence, uint64(s.id))
	p.b = appendUint(p.b, packetFlags, sequenceNeeds)
	if len(p.fresh) > 0 {
		p.b = appendBytes(p.b, packetInterned, p.fresh)
	}
	p.b = appendBytes(p.b, packetTrackEvent, p.event)
	p.done(at)
	p.flush(false)
}

// intern returns the number of a text, which is written where it is new.
func intern[T string | []byte](p *packets, kind int, text T) uint64 {
	s := p.seq
	if id, ok := s.ids[kind][string(text)]; ok {
		return uint64(id)
	}
	if s.ids[kind] == nil {
		s.ids[kind] = make(map[string]uint32)
		p.held[s] = struct{}{}
	}
	id := uint32(len(s.ids[kind]) + 1)
	s.ids[kind][string(text)] = id
	const entry = 64 // of a map
	s.held += len(text) + entry
	p.bytes += len(text) + entry
	b, at := begin(p.fresh, internFields[kind])
	b = appendUint(b, internedID, uint64(id))
	b = appendBytes(b, internedText, clean(string(text)))
	p.fresh = end(b, at)
	return uint64(id)
}

func (p *packets) name(text string) {
	p.event = appendUint(p.event, eventNameID, intern(p, internName, text))
}

func (p *packets) nameBytes(text []byte) {
	p.event = appendUint(p.event, eventNameID, intern(p, internName, text))
}

func (p *packets) category(text string) {
	p.event = appendUint(p.event, eventCategories, intern(p, internCategory, text))
}

// on puts the event on another track than its sequence's.
func (p *packets) on(track uint64) { p.event = appendUint(p.event, eventTrack, track) }

// flowFrom and flowTo join events that have the same number by an arrow.
func (p *packets) flowFrom(id uint64) { p.event = appendFixed64(p.event, eventFlows, id+p.flows) }

func (p *packets) flowTo(id uint64) {
	p.event = appendFixed64(p.event, eventTerminatingFlows, id+p.flows)
}

func (p *packets) counter(v uint64) {
	p.event = appendUint(p.event, eventCounter, min(v, math.MaxInt64))
}

// An argument is what a click on an event shows: str, int, uint and hex write one.
func (p *packets) argument(key string) int {
	id := intern(p, internKey, key)
	b, at := begin(p.event, eventAnnotations)
	p.event = appendUint(b, annotationNameID, id)
	return at
}

func (p *packets) str(key, v string) {
	at := p.argument(key)
	p.event = end(appendUint(p.event, annotationStringID, intern(p, internValue, v)), at)
}

func (p *packets) text(key string, v []byte) {
	at := p.argument(key)
	p.event = end(appendUint(p.event, annotationStringID, intern(p, internValue, v)), at)
}

// opt writes a text unless it is empty.
func (p *packets) opt(key, v string) {
	if v != "" {
		p.str(key, clip(v, maxText))
	}
}

func (p *packets) int(key string, v int64) {
	at := p.argument(key)
	p.event = end(appendUint(p.event, annotationInt, uint64(v)), at)
}

func (p *packets) uint(key string, v uint64) {
	at := p.argument(key)
	p.event = end(appendUint(p.event, annotationUint, v), at)
}

// hex writes an address or a handle.
func (p *packets) hex(key string, v uint64) {
	at := p.argument(key)
	p.event = end(appendUint(p.event, annotationPointer, v), at)
}

// descriptor writes what a track is; f appends what it is apart from its number.
func (p *packets) descriptor(uuid uint64, f func(b []byte) []byte) {
	at := p.packet()
	p.b = appendUint(p.b, packetSequence, uint64(p.main.id))
	b, d := begin(p.b, packetDescriptor)
	b = appendUint(b, descriptorUUID, uuid)
	p.b = end(f(b), d)
	p.done(at)
	p.flush(false)
}

// wallClock says what time of day the recording's begin was.
func (p *packets) wallClock(start int64) {
	at := p.packet()
	b, snap := begin(p.b, packetClockSnapshot)
	b = appendClock(b, clockBoottime, 0, false)
	b = appendClock(b, clockRealtime, start, false)
	p.b = end(b, snap)
	p.done(at)
}

// flushBytes is how much a view gathers before it writes.
const flushBytes = 64 << 10
