package channels

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

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
	// Took is called with each span; the span is the callee's only during the call.
	Took func(*Span)
	// Now is the host's monotonic clock in nanoseconds.
	Now func() int64

	// Found, if not nil, is called with each kernel and graph that has been found in a ring, in the ring's order, before
	// any span of it. Rings are then read deeper. Set it before [Watch.Follow].
	Found func(*Submission)
	// Missed, if not nil, is called with each submission whose times were not seen, of which there will be no span. It ran
	// between the miss's two times.
	Missed func(*Miss)

	memory   Memory
	observer observer
	follow   bool // looks come without pause, and each completion is to be seen by itself
	lines    []*line
	pages    semaphorePages
	clocks   map[string]*clock // by device
	looked   int64             // when the look before the one that is understood began
	turn     int               // of the lines whose ring is read although nothing has moved
	turned   int64             // when that was
	looks    atomic.Uint64
	rings    string           // as [Watch.Rings] has it
	graphs   map[uint64]graph // by the address of their first QMD
	held     []over           // kernels that are over, before the clock is known
	ids      uint64           // the latest submission's
	shown    int64            // when the look that is understood ended
}

// A Submission is a kernel or a graph that was found in a channel's ring.
type Submission struct {
	ID      uint64 // that of its [Span]; not 0
	Channel int
	Device  string
	Work    WorkID
	// Between these it came into the ring; After is when the watch of the channel began, if it has not read the ring before.
	After, Before int64
	// Empty is when nothing else was in the ring than what was told of before it; 0: it is not the first that came
	// behind that.
	Empty int64
	// Anew: submissions before it have not been read, and nobody knows how many.
	Anew bool
	// First: it is the first of the channel, of which all are told of then.
	First bool
}

// A Span is work that a GPU did, with times of the host's clock.
type Span struct {
	ID      uint64 // of its [Submission]; 0: it has none
	Channel int    // in the order in which channels were found, from 0
	Device  string
	Work    WorkID
	Bytes   uint64 // of copies
	// Look says that the span is that of a look: the work was running at its end, and stands for the
	// time since the look before.
	Look bool

	Start, Dur int64
	// Unclamped of a look is the time since the look before. Else it is Dur, but less than 0 where the middle of the time in which the work ended lies before its
	// begin: short works have that, and sums of them would be too large without.
	Unclamped int64
	// Margin and EndMargin are by how much the beginning and the end may be off either way.
	Margin, EndMargin int64
	End               EndKind
}

// A Miss is work of which it is known that a GPU did it, but not exactly when.
type Miss struct {
	ID      uint64 // of its [Submission]; 0: it has none
	Channel int
	Device  string
	Work    WorkID
	Bytes   uint64 // of copies
	// Between these times of the host's clock it began and ended; 0: not known.
	After, Before int64
}

// WorkID names what was run: a kernel by its first instruction and its dimensions.
type WorkID struct {
	Kind        SpanKind
	Program     uint64 // of a kernel, or of the first kernel of a graph that can be read; 0: not known
	Grid, Block [3]uint32
	Kernels     int    // of a graph; 0: not known
	Graph       uint64 // address of the first QMD of a graph that can't be read; 0: none
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

// launchLatency is the time from a kernel's end to the time stamp of a submission that waits for it, as measured
// on an H100 and an H200 by kernels that note the GPU's clock (bench/sample.py); latencyMargin is by how much it
// differs.
const (
	launchLatency = 1300
	latencyMargin = 500
	// releaseLatency is by how much later a kernel's release can be read by the host than it ended, less the time by which
	// the time stamp of its begin comes late. Both are some 700 ns. Held against torch.profiler's in a training on an
	// H200, durations were 0.2 µs too short on the whole without a correction, and 0.06 µs those of the shortest kernels.
	releaseLatency = -100
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
	waits   []channel.Semaphore // of pieces without a tracker, for the next one
	read    int64               // when the ring was read last
	replay  replay              // the latest launch of a graph whose end was guessed
	unread  bool                // there was more in it than is decoded ahead
	empty   int64               // when nothing was in it but what is decoded: it was read from then on
	emptied int64               // and until then; 0: something was told of since
	anew    bool                // no submission was told of since the channel was joined
	joined  bool                // once before
	first   bool                // what is told of next is the first of the channel
	moved   int64               // when the tracker moved last
	ended   int64               // host time at which the latest copy ended
	scratch []byte
	words   []uint32

	completions, seen, skipped uint64
	missed                     map[WorkID]uint64
}

// A replay is a launch of a graph that can't be read.
type replay struct{ qmd, semaphore, base uint64 }

// A submission is what one piece of pushbuffer, with its tracker's payload, has the GPU do.
type submission struct {
	id      uint64 // 0: it was not told of
	payload uint32
	work    WorkID
	has     bool // work; others only write or order something
	unread  bool // its kernels can't be read: the next submission waits for their end
	bytes   uint64
	done    []channel.Semaphore // released when its kernels are over
	waits   []channel.Semaphore // acquired before it starts

	old     bool  // it was passed before the watch began
	before  int64 // a host time at which it was not passed; 0: none
	absent  int64 // of a copy: a host time at which it was not in the ring yet, or had to wait; 0: none
	found   int64 // when it was found in the ring before it was passed; 0: it was not
	after   int64 // of a copy: a host time at which it could be under way; 0: not seen before its end
	passed  bool
	begin   uint64 // the GPU's time in its tracker; 0: not seen
	least   uint64 // of one whose begin was not seen: the latest time in the tracker before it; 0: not known
	running int64  // the latest host time at which it was seen running; 0: none
	alive   bool   // old, and not over when the watch began
}

const (
	followDepth = 512 // submissions between two looks that are decoded
	lookDepthOf = 6   // of a look that tells what is running
	maxPending  = 256
	manyPending = 2 * followDepth // where each is to be found before it runs
	maxMissed   = 1 << 12
)

// NewWatch finds the channels of a process, to be watched.
func NewWatch(m Memory, now func() int64, took func(*Span)) (*Watch, error) {
	w := &Watch{memory: m, Now: now, Took: took, clocks: map[string]*clock{}, graphs: map[uint64]graph{}}
	w.observer = observer{memory: m, now: now, list: nil}
	w.observer.want.Store(newPageList(nil, nil))
	return w, w.Refresh()
}

// Refresh looks for channels that have come since.
func (w *Watch) Refresh() error {
	list, blind, err := find(w.memory)
	if err != nil {
		return err
	}
	Sort(list)
	w.rings = ringsOf(w.memory, blind)
	for _, c := range list {
		if c.Device == "" { // of which times of the GPU's clock would mean nothing
			w.rings = RingsOfSeveral
			break
		}
		if !slices.ContainsFunc(w.lines, func(l *line) bool { return l.same(c) }) && len(w.lines) < maxChannels {
			w.lines = append(w.lines, &line{Channel: c, number: len(w.lines), missed: map[WorkID]uint64{}})
		}
	}
	return nil
}

// Rings says why no ring was read; "": rings were.
func (w *Watch) Rings() string { return w.rings }

// Channels returns how many channels are watched.
func (w *Watch) Channels() int { return len(w.lines) }

// Look reads the channels once, and tells what was running. It fails if the process's memory can no longer
// be read.
func (w *Watch) Look() error {
	ob, err := w.observer.look(true)
	if err != nil {
		return err
	}
	w.looks.Add(1)
	w.digest(ob)
	observationPool.Put(ob)
	return nil
}

// digest understands what a look has shown.
func (w *Watch) digest(ob *observation) {
	w.pages.take(ob)
	w.looked, w.shown = ob.since, ob.to
	turn := !w.follow || ob.from-w.turned >= ringEvery
	if n := len(w.lines); n > 0 && turn {
		w.turn, w.turned = (w.turn+1)%n, ob.from
	}
	for i, l := range w.lines {
		if len(l.pending) > 0 || turn || l.tracker != 0 && w.pages.moved(l) {
			w.line(l, turn && (i == w.turn || l.copies && ob.from-l.moved < lately), ob)
		}
	}
	if list := w.pages.list(); list != nil {
		w.observer.want.Store(list)
	}
}

// moved reports whether a channel's tracker isn't what it was.
func (p *semaphorePages) moved(l *line) bool {
	value, time, ok := p.tracker(l.tracker)
	return ok && (value != l.value || time != l.time)
}

// ringEvery is how often a ring is read in which nothing has moved, in nanoseconds: memory of the GPU is slow.
const ringEvery = 20_000

// lately is how long copies are expected after the last one: the rings of such channels are read as often.
const lately = 50_000_000

// line looks at one channel. turn says that its ring is to be read even if its tracker hasn't moved.
func (w *Watch) line(l *line, turn bool, ob *observation) {
	if l.tracker == 0 {
		if turn || w.pages.count == 1 {
			w.join(l)
		}
		return
	}
	value, time, ok := w.pages.tracker(l.tracker)
	if !ok || value == l.value && time != l.time || value != l.value && time == l.time {
		return // it was being written: the next look sees it
	}
	const mayBeLate = 1 << 12 // what is understood now was seen before the watch of the channel began
	if n := value - l.value; n != 0 {
		switch {
		case int32(n) < -mayBeLate: // not a tracker, or no longer
			w.join(l)
			return
		case int32(n) < 0:
			return
		}
		l.completions += uint64(n)
		l.moved = ob.from
		w.upTo(l, value)
		if turn && w.Found != nil {
			w.ahead(l)
		}
	} else if turn || l.copies && !w.follow {
		w.ahead(l)
	}
	if len(l.pending) > 0 {
		w.settle(l, value != l.value, ob, value, time)
	}
	l.value, l.time = value, time
}

// join begins to watch a channel: it finds the tracker, and where in the ring the channel is.
func (w *Watch) join(l *line) {
	now := w.Now()
	u, err := l.userData(w.memory)
	if err != nil || int(u.GPPut) >= l.Entries {
		return
	}
	l.read, l.empty, l.emptied, l.anew = now, now, w.Now(), true
	for i := range l.pending {
		w.drop(l, &l.pending[i])
	}
	depth, _ := w.deep()
	if l.joined { // what was passed is not wanted again, and reading it would let the ring go round once more
		const fetched = 32 // pieces that the GPU may have fetched and not passed
		depth = min(depth, (u.GPPut+uint32(l.Entries)-u.GPGet)%uint32(l.Entries)+fetched)
	}
	pieces, err := l.pieces(w.memory, u, int(depth))
	if err != nil {
		return
	}
	l.reader = l.Channel.reader(w.memory)
	l.tracker, l.pending, l.waits = 0, l.pending[:0], l.waits[:0]
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
	if whole := len(pieces) == int(u.GPPut) && len(pieces) < int(depth); whole && !l.joined {
		w.tellAll(l)
	}
	l.joined = true
	// What was passed before the latest is over, or will be missed.
	l.pending = slices.DeleteFunc(l.pending, func(s submission) bool { return int32(l.value-s.payload) > 0 })
	for i := range l.pending {
		l.pending[i].old = l.pending[i].payload == l.value
		w.wantDone(&l.pending[i])
	}
}

// tell tells of a submission that has come into the ring.
func (w *Watch) tell(l *line, s *submission, passed bool) {
	if w.Found == nil || !s.has || l.copies {
		return
	}
	w.ids++
	s.id = w.ids
	found := Submission{ID: s.id, Channel: l.number, Device: l.Device, Work: s.work, After: l.empty, Before: w.Now(), Empty: l.emptied, Anew: l.anew, First: l.first}
	if passed {
		found.Before = min(found.Before, w.shown)
	}
	l.anew, l.emptied = false, 0
	w.Found(&found)
}

// tellAll tells of all that a channel was ever given.
func (w *Watch) tellAll(l *line) {
	empty := l.empty
	l.empty, l.emptied = 0, 0
	first := true
	for i := range l.pending {
		s := &l.pending[i]
		if s.has {
			l.first = first
			w.tell(l, s, false)
			l.first, first = false, false
		}
		if int32(l.value-s.payload) > 0 {
			w.drop(l, s)
		}
	}
	l.empty, l.emptied = empty, w.Now()
}

// drop tells that nothing more will be told of a submission.
func (w *Watch) drop(l *line, s *submission) { w.tellMissed(l, s, 0, 0) }

// tellMissed tells that there will be no span of a submission, which ran between two times; both 0: it is not known when.
func (w *Watch) tellMissed(l *line, s *submission, after, before int64) {
	if w.Missed != nil && (s.id != 0 || before != 0) {
		w.Missed(&Miss{ID: s.id, Channel: l.number, Device: l.Device, Work: s.work, Bytes: s.bytes, After: after, Before: before})
	}
	s.id = 0
}

// deep returns how many entries of a ring are decoded ahead, and how many may be under way.
func (w *Watch) deep() (depth uint32, pending int) {
	if w.Found != nil {
		return followDepth, manyPending
	}
	return lookDepth, maxPending
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
	if w.follow {
		depth = followDepth
	}
	depth = min(depth, uint32(l.Entries)/2)
	if n > depth && w.follow {
		w.lose(l, value)
		return
	}
	if n > depth {
		// What is skipped may release the semaphores of what is under way anew, and nobody would notice.
		l.pending = l.pending[:0]
		l.skipped += uint64(n - depth)
		l.next = uint32((uint64(l.next) + uint64(n-depth)) % uint64(l.Entries))
		l.last += n - depth
		n = depth
	}
	// Some pieces have no tracker of their own, which is known when they are read.
	const more = 16
	ok := w.take(l, n, true)
	for i := 0; ok && i < more && int32(value-l.last) > 0; i++ {
		ok = w.take(l, 1, true)
	}
	if !ok || int32(value-l.last) > 0 {
		w.lose(l, value)
	}
}

// lose begins anew with a channel whose ring went on too fast to be read.
func (w *Watch) lose(l *line, value uint32) {
	last := l.last
	w.join(l)
	if n := l.value - value; int32(n) > 0 { // what comes before it is understood as seen from now on
		l.completions += uint64(n)
	}
	if n := l.value - last; int32(n) > 0 {
		l.skipped += uint64(n)
	}
}

// ahead decodes what the channel has not passed yet.
func (w *Watch) ahead(l *line) {
	now := w.Now()
	index, err := l.free(w.memory)
	then := w.Now()
	if err != nil || int(index) >= l.Entries {
		return
	}
	n := (index + uint32(l.Entries) - l.next) % uint32(l.Entries)
	depth, _ := w.deep()
	l.unread = n > depth
	if n > 0 && !l.unread && !w.take(l, n, false) {
		w.lose(l, l.value)
	}
	l.read = now
	if !l.unread && l.emptied < then { // else it was joined anew
		l.empty, l.emptied = now, then
	}
}

// take decodes the next n entries of the ring, which the channel has passed or not. It returns false if they are no
// longer there.
func (w *Watch) take(l *line, n uint32, passed bool) bool {
	_, most := w.deep()
	end := (l.next + n) % uint32(l.Entries)
	entries, err := l.entries(w.memory, end, int(n))
	if err != nil {
		return false
	}
	for i, e := range entries {
		p := Piece{Index: (l.next + uint32(i)) % uint32(l.Entries), Entry: e}
		if p.Entry.Words == 0 {
			continue
		}
		p.Words = l.readWords(w.memory, &p)
		s, tracker := w.decode(l, &p)
		if tracker.Address != l.tracker { // a piece without one is part of the next
			l.waits = append(l.waits, s.waits...)
			continue
		}
		if s.payload != l.last+1 {
			return false
		}
		s.absent = l.read
		s.waits = append(s.waits, l.waits...)
		l.last, l.waits = s.payload, l.waits[:0]
		if s.before = 0; int32(l.value-s.payload) < 0 {
			s.before, s.found = w.looked, w.Now()
		}
		w.tell(l, &s, passed)
		if len(l.pending) >= most {
			l.skipped++ // which no semaphore tells the end of
			w.drop(l, &l.pending[0])
			l.pending = slices.Delete(l.pending, 0, 1)
		}
		l.pending = append(l.pending, s)
	}
	l.next = end
	l.read = w.looked
	return true
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
	var launches, nulls []channel.Work
	var written []uint64 // single words, by which launches of graphs set semaphores
	l.reader.Read(p.Words, p.Address, func(x channel.Work) bool {
		switch x.Kind {
		case channel.Kernel:
			launches = append(launches, x)
		case channel.Null:
			nulls = append(nulls, x)
		case channel.Write:
			if x.Size == 4 {
				written = append(written, x.To)
			}
		case channel.Acquire:
			s.waits = append(s.waits, x.Semaphore)
			w.learn(l, x.Semaphore)
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
			w.replayed(l, &s, x.QMD, written)
			continue
		}
		if kernels++; kernels == 1 {
			s.work.Program, s.work.Grid, s.work.Block = x.Launch.Program, x.Launch.Grid, x.Launch.Block
		}
		if d := x.Launch.Done; d.Address != 0 {
			s.done = append(s.done, d)
		}
	}
	switch {
	case kernels > 1:
		s.work.Kind, s.work.Kernels = GraphSpan, kernels
		w.remember(l, append(launches, nulls...), &s)
	case s.unread || s.work.Kernels > 1 || s.work.Graph != 0:
		s.work.Kind = GraphSpan
	}
	s.payload = uint32(tracker.Payload)
	w.wantDone(&s)
	return s, tracker
}

// A graph is one of which a launch could be read.
type graph struct {
	work WorkID
	done []channel.Semaphore // which its launches set, and to which its end adds the payload

	guessed bool // it could not be read: what it adds is what others wait for
}

// maxGraphs bounds what is kept of graphs.
const maxGraphs = 1 << 12

// remember notes a graph by its QMDs: later launches of it only name one of them.
func (w *Watch) remember(l *line, launches []channel.Work, s *submission) {
	if len(w.graphs) >= maxGraphs {
		return
	}
	g := graph{work: s.work}
	for _, d := range s.done {
		base, ok := l.reader.WrittenWord(d.Address)
		if !ok {
			return
		}
		g.done = append(g.done, channel.Semaphore{Address: d.Address, Payload: d.Payload - uint64(base)})
	}
	for i := range launches {
		w.graphs[launches[i].QMD] = g
	}
}

// replayed reads the launch of a graph whose QMDs are in the GPU's memory.
func (w *Watch) replayed(l *line, s *submission, qmd uint64, written []uint64) {
	s.unread = true
	g, ok := w.graphs[qmd]
	if !ok {
		s.work = WorkID{Kind: GraphSpan, Graph: qmd}
		if len(written) != 1 || len(w.graphs) >= maxGraphs {
			return
		}
		// Its launch sets one word, to which it adds at its end; how often is told by who waits for that.
		g = graph{work: s.work, done: []channel.Semaphore{{Address: written[0], Payload: 1}}, guessed: true}
		w.graphs[qmd] = g
	}
	s.work = g.work
	for _, d := range g.done {
		base, ok := l.reader.WrittenWord(d.Address)
		if !ok || !slices.Contains(written, d.Address) {
			s.done = nil
			return
		}
		s.done = append(s.done, channel.Semaphore{Address: d.Address, Payload: d.Payload + uint64(base)})
		if g.guessed {
			l.replay = replay{qmd, d.Address, uint64(base)}
		}
	}
	s.unread = len(s.done) == 0
}

// learn takes in what the submission behind a graph's launch waits for: how often the graph adds to its semaphore.
func (w *Watch) learn(l *line, s channel.Semaphore) {
	const most = 1 << 10
	r := l.replay
	if r.semaphore == 0 || r.semaphore != s.Address {
		return
	}
	l.replay = replay{}
	if n := s.Payload - r.base; n > 0 && n < most {
		g := w.graphs[r.qmd]
		g.done = []channel.Semaphore{{Address: s.Address, Payload: n}}
		w.graphs[r.qmd] = g
	}
}

// settle says of the submissions that are under way what the look has shown. They are in the order in
// which the channel passes them.
func (w *Watch) settle(l *line, moved bool, ob *observation, value uint32, time uint64) {
	clock := w.clock(l.Device)
	for i := range l.pending {
		s := &l.pending[i]
		behind := int32(value - s.payload)
		if behind < 0 {
			w.notPassed(l, i, ob)
			continue
		}
		if !s.passed {
			s.passed = true
			if behind == 0 {
				s.begin = time
				if moved {
					l.seen++
				}
				clock.add(time, s.before, ob.to)
				w.tellHeld(l.Device, clock)
			} else {
				s.least = l.time
			}
		} else if !l.copies {
			s.running = ob.since // it wasn't over then
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
			w.copied(l, s, clock, ob.to, time)
		default:
			early, known := w.reached(s.done, true)
			over := w.over(l, i)
			if late, read := w.reached(s.done, false); len(s.done) > 0 && read && !late && !over {
				s.alive = true
			}
			if over && s.old && !s.alive {
				continue // it may have been over before the watch began
			}
			if !w.follow && (known && !early || !over) {
				w.running(l, s, ob.from, over)
			}
			if over {
				w.ended(l, i, clock, ob, time)
				continue
			}
			keep = append(keep, *s)
		}
	}
	l.pending = keep
}

// notPassed notes what a look tells of a submission that the channel has not passed.
func (w *Watch) notPassed(l *line, i int, ob *observation) {
	s := &l.pending[i]
	if !l.copies {
		s.before = ob.from
		return
	}
	begun, known := w.reached(s.waits, false)
	begun = begun && !w.toCome(s.waits)
	switch {
	case i > 0 && !l.pending[i-1].passed, known && !begun:
		s.before, s.absent = ob.from, ob.from
	case known && s.has:
		s.before = ob.from
		if s.after == 0 {
			s.after = max(ob.to, s.found)
		}
		if !w.follow {
			w.running(l, s, ob.from, false)
		}
	}
}

// toCome reports whether semaphores will be released by kernels that no channel has passed yet: until one is, its
// semaphore may have the payload from the use before.
func (w *Watch) toCome(list []channel.Semaphore) bool {
	if len(list) == 0 {
		return false
	}
	for _, l := range w.lines {
		if l.copies || l.tracker == 0 {
			continue
		}
		if !w.follow || w.Now()-l.read > ringEvery {
			w.ahead(l)
		}
		for i := range l.pending {
			if s := &l.pending[i]; !s.passed && waitsForAny(list, s) {
				return true
			}
		}
		if l.unread { // too much to be read is before it
			return true
		}
	}
	return false
}

// over reports whether a submission's kernels are over.
func (w *Watch) over(l *line, i int) bool {
	s := &l.pending[i]
	if reached, _ := w.reached(s.done, false); len(s.done) > 0 && reached {
		return true
	}
	for j := i + 1; j < len(l.pending) && l.pending[j].passed; j++ {
		next := &l.pending[j]
		if s.unread || waitsFor(next, s) || reuses(next, s) {
			return true
		}
	}
	return len(s.done) == 0 && !s.unread // no semaphore tells
}

// waitsFor reports whether a submission waits for the end of the one before it.
func waitsFor(next, s *submission) bool { return waitsForAny(next.waits, s) }

func waitsForAny(list []channel.Semaphore, s *submission) bool {
	for _, a := range list {
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
func (w *Watch) reached(list []channel.Semaphore, early bool) (all, known bool) {
	all = true
	for _, s := range list {
		value, ok := w.pages.value(s.Address, early)
		if !ok {
			return false, false
		}
		all = all && !before(uint64(value), s.Payload)
	}
	return all, true
}

// ended tells of a kernel that is over. time is in the channel's tracker now.
func (w *Watch) ended(l *line, i int, c *clock, ob *observation, time uint64) {
	s := &l.pending[i]
	if !w.follow {
		return
	}
	if s.begin == 0 {
		stamp := uint64(0)
		if i+1 < len(l.pending) && l.pending[i+1].passed && waitsFor(&l.pending[i+1], s) {
			stamp = cmp.Or(l.pending[i+1].begin, time)
		}
		w.miss(l, s, c, ob.to, stamp)
		return
	}
	// The release came between the look before and this one, wherever the begin is: so a sum of many has no bias.
	e := over{line: l, s: *s, least: ob.since, most: ob.to}
	if i+1 < len(l.pending) {
		if next := &l.pending[i+1]; next.begin != 0 {
			switch waits := waitsFor(next, s) || s.unread && len(next.waits) > 0; {
			case waits:
				e.next = next.begin
			case s.unread: // it was over at some time before the next began
				w.miss(l, s, c, ob.to, next.begin)
				return
			}
		}
	}
	if _, _, known := c.offset(); known {
		w.tellOver(&e, c)
		return
	}
	if len(w.held) >= maxHeldEnds {
		e := &w.held[0]
		w.miss(e.line, &e.s, w.clock(e.line.Device), e.most, 0)
		w.held = slices.Delete(w.held, 0, 1)
	}
	w.held = append(w.held, e)
}

// An over is the end of a kernel, of which the clock is not known yet.
type over struct {
	line        *line
	s           submission
	least, most int64  // the host's times of the looks between which it came
	next        uint64 // begin of the next submission, which waited for it; 0: none
}

const maxHeldEnds = 1 << 10

// tellHeld tells of the kernels of a GPU that have waited for its clock.
func (w *Watch) tellHeld(device string, c *clock) {
	if _, _, known := c.offset(); !known {
		return
	}
	w.held = slices.DeleteFunc(w.held, func(e over) bool {
		if e.line.Device == device {
			w.tellOver(&e, c)
			return true
		}
		return false
	})
}

// tellOver tells of a kernel of which begin and end are known.
func (w *Watch) tellOver(e *over, c *clock) {
	offset, margin, _ := c.offset()
	s := &e.s
	span := Span{ID: s.id, Channel: e.line.number, Device: e.line.Device, Work: s.work, Start: int64(s.begin) + offset, Margin: margin}
	end, within := e.least+(e.most-e.least)/2-releaseLatency, (e.most-e.least+1)/2+latencyMargin+margin
	if e.next != 0 {
		end, within, span.End = int64(e.next)+offset-launchLatency, latencyMargin, EndNext
	}
	span.Unclamped = end - span.Start
	end = max(end, span.Start)
	span.Dur, span.EndMargin = end-span.Start, within
	w.Took(&span)
}

// copied tells of a copy that has ended.
func (w *Watch) copied(l *line, s *submission, c *clock, seen int64, stamp uint64) {
	if !w.follow {
		return
	}
	offset, margin, known := c.offset()
	if s.begin == 0 || !known {
		l.ended = 0
		w.miss(l, s, c, seen, stamp)
		return
	}
	end := int64(s.begin) + offset
	latest := end
	if s.after != 0 {
		latest = min(end, max(s.after, l.ended))
	}
	earliest := min(max(l.ended, s.absent), latest)
	if earliest == 0 {
		earliest = latest // the first that was seen
	}
	start := earliest + (latest-earliest)/2
	l.ended = end
	w.Took(&Span{
		Channel: l.number, Device: l.Device, Work: s.work, Bytes: s.bytes, Start: start, Dur: end - start, Unclamped: end - start,
		Margin: margin + (latest-earliest+1)/2, EndMargin: margin, End: EndStamped,
	})
}

// partOfLook is what a look stands for at which a kernel's semaphore was not released before the trackers were
// read, but was after. A kernel's semaphore is set some time before it begins, and its release is seen some time
// after its end: with what is read first, kernels seem to be 1.5 µs longer than they are, with what is read last
// 1.2 µs shorter (as measured on an H200 and an H100 in a training), and in between not on the whole.
const partOfLook = 3

// running tells what was running at a look. over: it was over when the look was.
func (w *Watch) running(l *line, s *submission, at int64, over bool) {
	if w.looked == 0 {
		return
	}
	took := at - w.looked
	span := Span{Channel: l.number, Device: l.Device, Work: s.work, Bytes: s.bytes, Look: true, Start: w.looked, Dur: took, Unclamped: took}
	if over {
		span.Dur = took / partOfLook
		span.Start = at - span.Dur
	}
	w.Took(&span)
}

// miss counts work of which the times were not seen. It was over at the host's time seen, and at the GPU's time stamp; 0: no
// such time is known.
func (w *Watch) miss(l *line, s *submission, c *clock, seen int64, stamp uint64) {
	if s.old {
		w.drop(l, s)
		return
	}
	after, before := max(s.before, s.absent), seen
	if offset, margin, known := c.offset(); known {
		if least := max(s.begin, s.least); least != 0 {
			after = max(after, int64(least)+offset-margin)
		}
		if stamp != 0 {
			before = min(before, int64(stamp)+offset+margin)
		}
	}
	if after == 0 || after > before { // clocks contradict each other
		after, before = 0, 0
	}
	w.tellMissed(l, s, after, before)
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
	ClockMargin int64 // by which the clock of its GPU may be off the host's; -1: not known
}

// Counts returns what of each channel was seen.
func (w *Watch) Counts() (list []ChannelCount) {
	waiting := map[*line]map[WorkID]uint64{} // for the clock, which may never be known
	for i := range w.held {
		e := &w.held[i]
		if waiting[e.line] == nil {
			waiting[e.line] = map[WorkID]uint64{}
		}
		if !e.s.old {
			waiting[e.line][e.s.work]++
		}
	}
	for _, l := range w.lines {
		missed := maps.Clone(l.missed)
		for id, n := range waiting[l] {
			missed[id] += n
		}
		margin := int64(-1)
		if _, m, ok := w.clock(l.Device).offset(); ok {
			margin = m
		}
		list = append(list, ChannelCount{
			Channel: l.number, Device: l.Device, Address: fmt.Sprintf("%#x", l.UserData), Copies: l.copies,
			Completions: l.completions, Seen: l.seen, Skipped: l.skipped, Missed: missed, ClockMargin: margin,
		})
	}
	return list
}

// Looks returns how many looks were made.
func (w *Watch) Looks() uint64 { return w.looks.Load() }

// Understood returns up to when what looks have shown is understood.
func (w *Watch) Understood() int64 { return w.looked }
