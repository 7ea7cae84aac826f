package channels

import (
	"encoding/binary"
	"fmt"
	"slices"

	"nvtrace/rm/channel"
)

// A Watch follows the channels of one process look by look. A look reads the channels' semaphores, all at
// one time, and of the pushbuffers what is new since the look before.
//
// What it can know: each submission's tracker has the GPU's time at which the submission was passed, until
// the next one is. For a kernel that is its begin; for a copy engine the end of the copy. The end of a
// kernel has no time stamp (the release that its QMD names has one word). It is known by the begin of the
// next submission, where that waited for the kernel, and else by the looks between which the kernel's
// release came.
type Watch struct {
	// Follow says that looks come without pause, and that each completion is to be seen by itself:
	// [Watch.Took] is told of spans. Otherwise a look tells what was running when it was made.
	Follow bool
	// Took is told of each span; the span is the callee's only during the call. It must be set.
	Took func(*Span)
	// Now is the host's monotonic clock in nanoseconds. It must be set.
	Now func() int64

	memory Memory
	lines  []*line
	pages  semaphorePages
	clocks map[string]*clock // by device
	looked int64             // when the latest look was
	turn   int               // of the lines whose ring is read although nothing has moved
	looks  uint64
}

// A Span is work that a GPU did, with times of the host's clock.
type Span struct {
	Channel int // in the order in which channels were found, from 0
	Device  string
	Work    WorkID
	Bytes   uint64 // of copies
	// Look says that the span is that of a look: the work was running at its end, and stands for the
	// time since the look before.
	Look bool

	Start, Dur int64
	// Margin and EndMargin are by how much the beginning and the end may be off either way.
	Margin, EndMargin int64
	End               EndKind
}

// WorkID names what was run: a kernel by its first instruction and its dimensions.
type WorkID struct {
	Kind        SpanKind
	Program     uint64 // of a kernel, or of the first kernel of a graph that can be read; 0: not known
	Grid, Block [3]uint32
	Kernels     int // of a graph; 0: not known
}

// A SpanKind is a kind of work.
type SpanKind uint8

// The kinds of spans.
const (
	KernelSpan SpanKind = iota
	GraphSpan           // several kernels that one submission has launched
	CopySpan
)

func (k SpanKind) String() string { return [...]string{"kernel", "graph", "copy"}[k] }

// An EndKind says how the end of a span is known.
type EndKind uint8

// How ends are known.
const (
	EndSeen    EndKind = iota // its release came between two looks
	EndNext                   // the next submission waited for it, and began then
	EndStamped                // by the GPU's clock
)

func (k EndKind) String() string { return [...]string{"seen", "next", "stamped"}[k] }

// launchLatency is the time from a kernel's release to the time stamp of a submission that waits for it,
// latencyMargin by how much it differs: what lies between is the host side's wait and the launch.
const (
	launchLatency = 1300
	latencyMargin = 500
)

// A line is a channel that is watched.
type line struct {
	*Channel
	number  int
	reader  *channel.Reader
	copies  bool   // it is a copy engine's: a submission's tracker tells its end
	tracker uint64 // address; 0: not known yet
	value   uint32 // payload at the latest look
	time    uint64 // beside it
	last    uint32 // payload of the latest submission that was decoded
	next    uint32 // index of the ring's entry behind it
	pending []submission
	ended   int64 // host time at which the latest copy ended
	scratch []byte
	words   []uint32

	completions, seen, skipped uint64
	missed                     map[WorkID]uint64
}

// A submission is what one piece of pushbuffer, with its tracker's payload, has the GPU do.
type submission struct {
	payload uint32
	work    WorkID
	has     bool // work; others only write or order something
	unread  bool // its kernels can't be read: the next submission waits for their end
	bytes   uint64
	done    []channel.Semaphore // released when its kernels are over
	waits   []channel.Semaphore // acquired before it starts

	old     bool  // it was passed before the watch began
	before  int64 // a host time at which it wasn't passed, of a copy not begun; 0: none
	after   int64 // of a copy: a host time at which it could be under way; 0: not seen before its end
	passed  bool
	begin   uint64 // the GPU's time in its tracker; 0: not seen
	running int64  // the latest host time at which it was seen running; 0: none
}

const (
	followDepth = 512 // submissions between two looks that are decoded
	lookDepthOf = 6   // of a look that tells what is running
	maxPending  = 1024
	maxMissed   = 1 << 12
)

// NewWatch finds the channels of a process, to be watched.
func NewWatch(m Memory) (*Watch, error) {
	w := &Watch{memory: m, clocks: map[string]*clock{}}
	return w, w.Refresh()
}

// Refresh looks for channels that have come since.
func (w *Watch) Refresh() error {
	list, err := Find(w.memory)
	if err != nil {
		return err
	}
	Sort(list)
	for _, c := range list {
		if !slices.ContainsFunc(w.lines, func(l *line) bool { return l.UserData == c.UserData && l.Ring == c.Ring }) && len(w.lines) < maxChannels {
			w.lines = append(w.lines, &line{Channel: c, number: len(w.lines), missed: map[WorkID]uint64{}})
		}
	}
	return nil
}

// Channels returns how many channels are watched.
func (w *Watch) Channels() int { return len(w.lines) }

// Look reads the channels once. It fails if the process's memory can no longer be read.
func (w *Watch) Look() error {
	from := w.Now()
	if err := w.pages.read(w.memory); err != nil {
		return err
	}
	to := w.Now()
	w.looks++
	if n := len(w.lines); n > 0 {
		w.turn = (w.turn + 1) % n
	}
	for i, l := range w.lines {
		w.line(l, i == w.turn, from, to)
	}
	w.looked = from
	return nil
}

// line looks at one channel. turn says that its ring is to be read even if its tracker hasn't moved.
func (w *Watch) line(l *line, turn bool, from, to int64) {
	if l.tracker == 0 {
		if turn || w.looks == 1 {
			w.join(l)
		}
		return
	}
	value, time, ok := w.pages.tracker(l.tracker)
	if !ok || value == l.value && time != l.time || value != l.value && time == l.time {
		return // it was being written: the next look sees it
	}
	if n := value - l.value; n != 0 {
		if int32(n) < 0 { // not a tracker, or no longer
			w.join(l)
			return
		}
		l.completions += uint64(n)
		w.upTo(l, value)
	} else if turn || l.copies && (len(l.pending) > 0 || !w.Follow) {
		w.ahead(l)
	}
	if len(l.pending) > 0 {
		w.settle(l, value != l.value, from, to, value, time)
	}
	l.value, l.time = value, time
}

// join begins to watch a channel: it finds the tracker, and where in the ring the channel is.
func (w *Watch) join(l *line) {
	page := make([]byte, channel.UserDataSize)
	if w.memory.Read(l.UserData, page) != nil {
		return
	}
	u := channel.ParseUserData(page)
	if int(u.GPPut) >= l.Entries {
		return
	}
	pieces, err := l.pieces(w.memory, u, lookDepth)
	if err != nil {
		return
	}
	l.reader = l.Channel.reader(w.memory)
	l.tracker, l.pending = 0, l.pending[:0]
	for i := range pieces {
		s, tracker := w.decode(l, &pieces[i])
		if tracker.Address == 0 || tracker.Address != l.tracker && l.tracker != 0 && i < len(pieces)-1 {
			continue
		}
		l.tracker, l.last = tracker.Address, s.payload
		l.pending = append(l.pending, s)
	}
	l.next = u.GPPut
	if l.tracker == 0 {
		return
	}
	b := make([]byte, 16)
	if w.memory.Read(l.tracker, b) != nil {
		l.tracker = 0
		return
	}
	w.pages.want(l.tracker, true)
	l.value, l.time = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:])
	// What was passed before the latest is over, or will be missed.
	l.pending = slices.DeleteFunc(l.pending, func(s submission) bool { return int32(l.value-s.payload) > 0 })
	for i := range l.pending {
		l.pending[i].old = l.pending[i].payload == l.value
		w.wantDone(&l.pending[i])
	}
}

func (w *Watch) wantDone(s *submission) {
	for _, d := range s.done {
		w.pages.want(d.Address, false)
	}
	for _, d := range s.waits {
		w.pages.want(d.Address, false)
	}
}

// upTo decodes what the channel has passed.
func (w *Watch) upTo(l *line, value uint32) {
	n := value - l.last
	if int32(n) <= 0 {
		return // it was decoded ahead
	}
	depth := uint32(lookDepthOf)
	if w.Follow {
		depth = followDepth
	}
	depth = min(depth, uint32(l.Entries)/2)
	if n > depth {
		// What is skipped may release the semaphores of what is under way anew, and nobody would notice.
		l.pending = l.pending[:0]
		l.skipped += uint64(n - depth)
		l.next = uint32((uint64(l.next) + uint64(n-depth)) % uint64(l.Entries))
		l.last += n - depth
		n = depth
	}
	w.take(l, n)
	if l.last == value {
		return
	}
	// Some pieces have no tracker of their own.
	const more = 16
	for range more {
		if int32(value-l.last) <= 0 {
			break
		}
		w.take(l, 1)
	}
	if l.last != value {
		l.skipped += uint64(n)
		w.join(l)
	}
}

// ahead decodes what the channel has not passed yet.
func (w *Watch) ahead(l *line) {
	b := make([]byte, 4)
	const put = 0x8c // GP_PUT
	if w.memory.Read(l.UserData+put, b) != nil {
		return
	}
	index := binary.LittleEndian.Uint32(b)
	if int(index) >= l.Entries {
		return
	}
	if n := (index + uint32(l.Entries) - l.next) % uint32(l.Entries); n > 0 && n <= lookDepth {
		w.take(l, n)
	}
}

// take decodes the next n entries of the ring.
func (w *Watch) take(l *line, n uint32) {
	end := (l.next + n) % uint32(l.Entries)
	entries, err := l.entries(w.memory, end, int(n))
	if err != nil {
		return
	}
	for i, e := range entries {
		p := Piece{Index: (l.next + uint32(i)) % uint32(l.Entries), Entry: channel.ParseEntry(e)}
		if p.Entry.Words == 0 {
			continue
		}
		p.Words = l.readWords(w.memory, &p)
		s, tracker := w.decode(l, &p)
		if tracker.Address != l.tracker {
			continue // a piece without one
		}
		l.last = s.payload
		if s.before = 0; int32(l.value-s.payload) < 0 {
			s.before = w.looked
		}
		if len(l.pending) < maxPending {
			l.pending = append(l.pending, s)
		}
	}
	l.next = end
}

// readWords reads a piece's words into memory that is used again.
func (l *line) readWords(m Memory, p *Piece) []uint32 {
	n := int(min(p.Entry.Words, maxPieceWords))
	l.scratch = slices.Grow(l.scratch[:0], 4*n)[:4*n]
	if m.Read(p.Address, l.scratch) != nil {
		return nil
	}
	l.words = slices.Grow(l.words[:0], n)[:n]
	for i := range l.words {
		l.words[i] = binary.LittleEndian.Uint32(l.scratch[4*i:])
	}
	return l.words
}

// decode reads a piece.
func (w *Watch) decode(l *line, p *Piece) (s submission, tracker channel.Semaphore) {
	j := judgement{c: l.Channel, m: w.memory, r: l.reader}
	var launches []channel.Work
	l.reader.Read(p.Words, p.Address, func(x channel.Work) bool {
		switch x.Kind {
		case channel.Kernel:
			launches = append(launches, x)
		case channel.Acquire:
			s.waits = append(s.waits, x.Semaphore)
		case channel.Move:
			s.has, s.work.Kind = true, CopySpan
			s.bytes += x.Size
			l.copies = true
		}
		if (x.Kind == channel.Kernel || x.Kind == channel.Null) && !x.Inline {
			launches = append(launches, j.chain(&x)...)
		}
		if x.Semaphore.Timed && x.Semaphore.Address != 0 {
			tracker = x.Semaphore
			l.copies = l.copies || x.Subchannel == copySubchannel
		}
		return true
	})
	if len(launches) > 1 {
		launches = inOrder(launches)
	}
	kernels := 0
	for i := range launches {
		x := &launches[i]
		j.resolve(&x.Launch) // a graph's launch sets the semaphore behind the command that names it
		if s.has = true; x.Unread {
			s.unread = true
			continue
		}
		if kernels++; kernels == 1 {
			s.work.Program, s.work.Grid, s.work.Block = x.Launch.Program, x.Launch.Grid, x.Launch.Block
		}
		if d := x.Launch.Done; d.Address != 0 {
			s.done = append(s.done, d)
		}
	}
	if kernels > 1 || s.unread {
		s.work.Kind, s.work.Kernels = GraphSpan, kernels
	}
	if s.unread {
		s.work.Kernels = 0
	}
	s.payload = uint32(tracker.Payload)
	w.wantDone(&s)
	return s, tracker
}

// settle says of the submissions that are under way what the look has shown. They are in the order in
// which the channel passes them.
func (w *Watch) settle(l *line, moved bool, from, to int64, value uint32, time uint64) {
	clock := w.clock(l.Device)
	for i := range l.pending {
		s := &l.pending[i]
		behind := int32(value - s.payload)
		if behind < 0 {
			begun, known := w.reached(s.waits)
			if !l.copies || i > 0 && !l.pending[i-1].passed || known && !begun {
				s.before = from // not even begun
			} else if known && s.has {
				if s.after == 0 {
					s.after = to
				}
				if !w.Follow {
					w.running(l, s, from)
				}
			}
			continue
		}
		if !s.passed {
			s.passed = true
			if behind == 0 {
				s.begin = time
				if moved {
					l.seen++
				}
				clock.add(time, s.before, to)
			}
		}
	}
	keep := l.pending[:0]
	for i := range l.pending {
		s := &l.pending[i]
		switch {
		case !s.passed:
			keep = append(keep, *s)
		case !s.has:
		case l.copies:
			w.copied(l, s, clock)
		default:
			over, known := w.over(l, i)
			if over {
				w.ended(l, i, clock, to)
				continue
			}
			if known {
				s.running = from
				if !w.Follow {
					w.running(l, s, from)
				}
			}
			keep = append(keep, *s)
		}
	}
	l.pending = keep
}

// over reports whether a submission's kernels are over, and whether the look tells.
func (w *Watch) over(l *line, i int) (over, known bool) {
	s := &l.pending[i]
	reached, known := w.reached(s.done)
	if len(s.done) > 0 && reached {
		return true, true
	}
	for j := i + 1; j < len(l.pending) && l.pending[j].passed; j++ {
		next := &l.pending[j]
		if s.unread && len(next.waits) > 0 || waitsFor(next, s) || reuses(next, s) {
			return true, true
		}
	}
	if len(s.done) == 0 {
		return !s.unread, true // no semaphore tells
	}
	return false, known
}

// waitsFor reports whether a submission waits for the end of the one before it.
func waitsFor(next, s *submission) bool {
	for _, a := range next.waits {
		for _, d := range s.done {
			if a.Address == d.Address {
				return true
			}
		}
	}
	return false
}

// reuses reports whether a later submission's kernel releases the same semaphore: libcuda uses one again
// only after it was released.
func reuses(next, s *submission) bool {
	for _, a := range next.done {
		for _, d := range s.done {
			if a.Address == d.Address {
				return true
			}
		}
	}
	return false
}

// reached reports whether semaphores had their payloads at the look, and whether they were read then.
func (w *Watch) reached(list []channel.Semaphore) (all, known bool) {
	all = true
	for _, s := range list {
		value, ok := w.pages.value(s.Address)
		if !ok {
			return false, false
		}
		all = all && !before(uint64(value), s.Payload)
	}
	return all, true
}

// ended tells of a kernel that is over.
func (w *Watch) ended(l *line, i int, c *clock, to int64) {
	s := &l.pending[i]
	if !w.Follow {
		return
	}
	offset, margin, known := c.offset()
	if s.begin == 0 || !known {
		l.miss(s)
		return
	}
	span := Span{Channel: l.number, Device: l.Device, Work: s.work, Start: int64(s.begin) + offset, Margin: margin}
	least := max(span.Start, s.running)
	end, within := (least+to)/2, (to-least+1)/2
	if i+1 < len(l.pending) {
		if next := &l.pending[i+1]; next.begin != 0 {
			switch at := int64(next.begin) + offset - launchLatency; {
			case waitsFor(next, s) || s.unread && len(next.waits) > 0:
				end, within, span.End = at, latencyMargin, EndNext
			case at < to: // it didn't wait: the kernel was over before
				end, within = (least+max(at, least))/2, (max(at, least)-least+1)/2
			}
		}
	}
	end = max(end, span.Start)
	span.Dur, span.EndMargin = end-span.Start, within
	w.Took(&span)
}

// copied tells of a copy that has ended.
func (w *Watch) copied(l *line, s *submission, c *clock) {
	if !w.Follow {
		return
	}
	offset, margin, known := c.offset()
	if s.begin == 0 || !known {
		l.ended = 0
		l.miss(s)
		return
	}
	end := int64(s.begin) + offset
	latest := end
	if s.after != 0 {
		latest = min(end, max(s.after, l.ended))
	}
	earliest := min(max(l.ended, s.before), latest)
	if earliest == 0 {
		earliest = latest // the first that was seen
	}
	start := earliest + (latest-earliest)/2
	l.ended = end
	w.Took(&Span{
		Channel: l.number, Device: l.Device, Work: s.work, Bytes: s.bytes, Start: start, Dur: end - start,
		Margin: margin + (latest-earliest+1)/2, EndMargin: margin, End: EndStamped,
	})
}

// running tells what was running at a look.
func (w *Watch) running(l *line, s *submission, at int64) {
	if w.looked == 0 {
		return
	}
	w.Took(&Span{Channel: l.number, Device: l.Device, Work: s.work, Bytes: s.bytes, Look: true, Start: w.looked, Dur: at - w.looked})
}

// miss counts work of which the times were not seen.
func (l *line) miss(s *submission) {
	if s.old {
		return
	}
	id := s.work
	if _, ok := l.missed[id]; ok || len(l.missed) < maxMissed {
		l.missed[id]++
	} else {
		l.skipped++
	}
}

func (w *Watch) clock(device string) *clock {
	c := w.clocks[device]
	if c == nil {
		c = new(clock)
		w.clocks[device] = c
	}
	return c
}

// A ChannelCount says what of a channel was seen.
type ChannelCount struct {
	Channel     int
	Device      string
	Address     string // of the USERD
	Copies      bool   // it is a copy engine's
	Completions uint64 // submissions that the channel has passed
	Seen        uint64 // of these, those whose time was seen
	Skipped     uint64 // of these, those that were not even decoded
	Missed      map[WorkID]uint64
}

// Counts returns what of each channel was seen.
func (w *Watch) Counts() (list []ChannelCount) {
	for _, l := range w.lines {
		list = append(list, ChannelCount{
			Channel: l.number, Device: l.Device, Address: fmt.Sprintf("%#x", l.UserData), Copies: l.copies,
			Completions: l.completions, Seen: l.seen, Skipped: l.skipped, Missed: l.missed,
		})
	}
	return list
}

// Looks returns how many looks were made.
func (w *Watch) Looks() uint64 { return w.looks }

// Clock returns by how much the GPU's clock is behind the host's monotonic one, and the margin; false if
// that isn't known.
func (w *Watch) Clock(device string) (offset, margin int64, known bool) {
	return w.clock(device).offset()
}
