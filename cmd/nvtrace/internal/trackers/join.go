package trackers

import (
	"slices"
	"sort"

	"nvtrace/ioctl/channels"
)

// A Launch is a call of the CUDA driver that has launched a kernel or a graph. Times are CLOCK_MONOTONIC.
type Launch struct {
	TID         int
	Begin, End  int64
	Name, Path  string // of the driver's function, and its library
	Graph       bool
	Subject     uint64 // handle of the function or graph
	Stream      uint64
	PerThread   bool // stream 0 is the thread's own
	Unsure      bool // it may have become a node of a graph
	Grid, Block [3]uint32
}

// A streamKey names a stream of the program.
type streamKey struct {
	handle uint64
	tid    int // of a thread's own default stream
}

func (l *Launch) stream() streamKey {
	if l.PerThread && l.Stream == 0 {
		return streamKey{tid: l.TID}
	}
	return streamKey{handle: l.Stream}
}

// A join finds out which launch each submission of a process's channels comes from. A submission is that of a launch
// if it came into the ring during the call, if grid and block are the same, and if the kernel's address and the
// channel are those of the function's and the stream's other launches. No other launch may be like that, or only such
// as are behind it in the same stream; then the launch before it in the stream must be that of the submission before, or
// it must be the first one since the channel was empty, or at all. What is not known in this way is counted.
type join struct {
	done  func(*Launch, *channels.Span) // a launch has its times
	lost  func(*Launch, *channels.Miss) // it is known between which times a launch ran, and no more
	whole bool                          // all launches of the process are here, from the first

	streams  map[streamKey]*stream
	behind   int64 // all launches that began before are here
	found    []*submission
	byID     map[uint64]*submission
	held     []*submission     // of graphs, of which another submission may come
	programs map[uint64]uint64 // of functions, by handle
	handles  map[uint64]uint64 // of programs, by address
	several  map[uint64]bool   // graphs that more than one submission comes from

	counts Counts
}

// Counts says what became of launches.
type Counts struct {
	Timed    uint64
	Unseen   uint64 // found in a channel, but over before a look came
	Unjoined uint64 // not known to be one of the submissions that were found
}

// A stream has launches that were not found yet, in their order.
type stream struct {
	queue    []*Launch
	channels map[int]bool
	synced   map[int]bool // by channel: all submissions of this stream since the latest that was joined are known
}

// A submission is what has come into a channel.
type submission struct {
	channels.Submission
	launch *Launch // nil: not found yet
	span   *channels.Span
	miss   *channels.Miss
	judged bool // it is known whether there is one
	over   bool // span is all that there will be
	held   bool
}

const (
	// clockSlack is by how much times of calls and of looks may contradict one another.
	clockSlack = 2_000
	// keepFor is how long a launch is kept of which no submission was found: looks are understood later than they
	// are made.
	keepFor    = 500_000_000
	holdFor    = 100_000_000 // a graph's submission, for another one
	maxWaiting = 1 << 16     // submissions, and launches of a stream
	maxHandles = 1 << 16     // functions and streams
)

func newJoin(done func(*Launch, *channels.Span), lost func(*Launch, *channels.Miss)) *join {
	return &join{
		done: done, lost: lost, byID: map[uint64]*submission{}, streams: map[streamKey]*stream{}, programs: map[uint64]uint64{},
		handles: map[uint64]uint64{}, several: map[uint64]bool{},
	}
}

// launched takes in a launch that has returned.
func (j *join) launched(l *Launch) {
	key := l.stream()
	s := j.streams[key]
	if s == nil {
		if len(j.streams) >= maxHandles {
			j.counts.Unjoined++
			return
		}
		s = &stream{channels: map[int]bool{}, synced: map[int]bool{}}
		j.streams[key] = s
	}
	if len(s.queue) >= maxWaiting {
		j.forget(s, 1)
	}
	at := len(s.queue)
	for at > 0 && s.queue[at-1].Begin > l.Begin { // several threads launch on it
		at--
	}
	s.queue = slices.Insert(s.queue, at, l)
}

// forget gives up the first n launches of a stream.
func (j *join) forget(s *stream, n int) {
	j.counts.Unjoined += uint64(n)
	s.drop(n)
}

// drop takes the first launches away. It moves none of the others: where looks are understood late, there are many.
func (s *stream) drop(n int) {
	clear(s.queue[:n])
	s.queue = s.queue[n:]
}

// submitted takes in what was found in a channel.
func (j *join) submitted(s *channels.Submission) {
	x := &submission{Submission: *s}
	if len(j.found) >= maxWaiting {
		j.judge(j.found[0])
		j.found = j.found[1:]
	}
	j.found = append(j.found, x)
	j.byID[s.ID] = x
}

// spanned takes in when a submission ran.
func (j *join) spanned(s *channels.Span) {
	if x := j.byID[s.ID]; x != nil {
		span := *s
		x.span = &span
		j.ended(x)
	}
}

// missed takes in that the times of a submission were not seen.
func (j *join) missed(m *channels.Miss) {
	if x := j.byID[m.ID]; x != nil {
		if m.Before != 0 {
			miss := *m
			x.miss = &miss
		}
		j.ended(x)
	}
}

// ended notes that no more will be known of when a submission ran.
func (j *join) ended(x *submission) {
	delete(j.byID, x.ID)
	x.over = true
	j.finish(x)
}

// settle joins what can be joined: all launches that began before a time are here. looked is up to when channels
// have been looked at.
func (j *join) settle(behind, looked int64) {
	j.behind = max(j.behind, behind)
	n := 0
	for n < len(j.found) && j.found[n].Before+clockSlack < j.behind {
		j.judge(j.found[n])
		n++
	}
	j.found = slices.Delete(j.found, 0, n)
	oldest := looked - keepFor
	if len(j.found) > 0 {
		oldest = min(oldest, j.found[0].After-clockSlack)
	}
	for _, s := range j.streams {
		n := 0
		for n < len(s.queue) && s.queue[n].End < oldest {
			n++
		}
		if n > 0 {
			j.forget(s, n)
		}
	}
	for len(j.held) > 0 && j.held[0].launch.End < j.behind-holdFor {
		j.release()
	}
}

// end settles what is left.
func (j *join) end() Counts {
	const never = 1<<63 - 1
	j.settle(never, never)
	for len(j.held) > 0 {
		j.release()
	}
	for _, x := range j.byID {
		j.ended(x)
	}
	return j.counts
}

// release lets go of the graph's submission that is held longest.
func (j *join) release() {
	x := j.held[0]
	j.held = j.held[1:]
	x.held = false
	j.finish(x)
}

// judge finds the launch of a submission.
func (j *join) judge(x *submission) {
	x.judged = true
	defer j.finish(x)
	var of *stream // whose launches match
	at, matching, like, one := 0, 0, 0, true
	for _, s := range j.streams {
		i := s.after(x.After)
		for from := i; i < len(s.queue) && s.queue[i].Begin <= x.Before+clockSlack; i++ {
			if !same(s.queue[i], x) {
				continue
			}
			if like++; !j.may(s, s.queue[i], x) {
				continue
			}
			if matching++; matching == 1 {
				of, at = s, i
				if from != i { // something else should be found before it
					delete(s.synced, x.Channel)
				}
			}
			one = one && s == of
		}
	}
	if matching == 1 || matching > 1 && one && !of.queue[at].Unsure && (of.synced[x.Channel] && !x.Anew || of.first(at, x) || x.First && j.whole && at == 0) {
		j.take(of, at, x)
		return
	}
	if like == 0 && !x.Anew {
		j.more(x) // of the driver's own, or of a graph
		return
	}
	for _, s := range j.streams {
		delete(s.synced, x.Channel)
	}
	if matching == 0 { // a module may have gone, and another one come to its place
		delete(j.programs, j.handles[x.Work.Program])
		delete(j.handles, x.Work.Program)
	}
}

// after returns the first launch that had not returned at a time.
func (s *stream) after(when int64) int {
	return sort.Search(len(s.queue), func(i int) bool { return s.queue[i].End+clockSlack >= when })
}

// first reports whether a launch is the first one that was made after the channel was seen to be empty, before x came.
func (s *stream) first(at int, x *submission) bool {
	return x.Empty != 0 && s.after(x.After) == at && s.queue[at].Begin > x.Empty+clockSlack
}

// same reports whether a launch is of the same dimensions as a submission.
func same(l *Launch, x *submission) bool {
	if l.Graph || x.Work.Kind == channels.GraphSpan {
		return l.Graph && x.Work.Kind == channels.GraphSpan
	}
	return l.Grid == x.Work.Grid && l.Block == x.Work.Block && x.Work.Program != 0
}

// may reports whether what is known of function and stream lets a launch be a submission.
func (j *join) may(s *stream, l *Launch, x *submission) bool {
	// The default stream is each context's.
	if len(s.channels) > 0 && !s.channels[x.Channel] && l.Stream != 0 {
		return false
	}
	if l.Graph {
		return !j.several[l.Subject]
	}
	program, known := j.programs[l.Subject]
	handle, taken := j.handles[x.Work.Program]
	return (!known || program == x.Work.Program) && (!taken || handle == l.Subject)
}

// take joins a stream's launch and a submission. Launches before it were not seen.
func (j *join) take(s *stream, at int, x *submission) {
	x.launch = s.queue[at]
	j.counts.Unjoined += uint64(at)
	s.drop(at + 1)
	s.channels[x.Channel], s.synced[x.Channel] = true, true
	if x.launch.Graph {
		x.held = true
		j.held = append(j.held, x)
		return
	}
	if len(j.programs) >= maxHandles {
		clear(j.programs)
		clear(j.handles)
	}
	j.programs[x.launch.Subject], j.handles[x.Work.Program] = x.Work.Program, x.launch.Subject
}

// more notes a submission that no call has made: it may be one more of a graph, whose launch is then not over at
// the end of the first.
func (j *join) more(x *submission) {
	for _, h := range j.held {
		if l := h.launch; l != nil && l.Begin <= x.Before+clockSlack && l.End+clockSlack >= x.After {
			j.several[l.Subject] = true
			h.launch, h.held = &Launch{}, false
			j.counts.Unjoined++
		}
	}
	j.held = slices.DeleteFunc(j.held, func(h *submission) bool { return !h.held })
}

// finish tells of a submission that is joined, and of which the times are known.
func (j *join) finish(x *submission) {
	switch {
	case !x.judged || !x.over || x.held || x.launch == nil || x.launch.Name == "":
	case x.span == nil:
		j.counts.Unseen++
		if x.miss != nil {
			j.lost(x.launch, x.miss)
		}
	default:
		j.counts.Timed++
		j.done(x.launch, x.span)
	}
}

// unplaced reports whether there is a stream of which the channel is not known.
func (j *join) unplaced() bool {
	for _, s := range j.streams {
		if len(s.channels) == 0 && len(s.queue) > 0 {
			return true
		}
	}
	return false
}
