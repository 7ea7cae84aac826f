package channels

import (
	"encoding/binary"
	"errors"
	"slices"

	"nvtrace/rm/channel"
)

// A Piece is one entry of a ring with the words that it points to.
type Piece struct {
	Index uint32 // of the entry in the ring
	channel.Entry
	Words []uint32
}

// A State is what a channel was at when it was looked at.
//
// The host side of the GPU fetches pieces in order and hands work to the engines. It stops at an
// acquire whose semaphore isn't there yet: what is behind waits. Each piece ends by releasing the
// channel's tracker with the GPU's time. For a kernel that is the time at which it was handed to
// the GPU, not that of its end: the grid's own semaphore tells that it is over. For a copy engine
// it is the time of the copy's end.
type State struct {
	channel.UserData

	Running []Job              // what engines have and aren't done with, oldest first
	Waiting []Job              // what isn't handed to an engine yet
	Blocked *channel.Semaphore // what the channel waits for before it goes on; nil: for nothing

	// Releases are what the channel will release by itself, in pieces that it has not passed: its tracker, and what
	// other channels and the host wait for. What kernels will release is with them.
	Releases []channel.Semaphore

	// Passed is when the last piece that the host side is through with was, by the GPU's clock (PTIMER,
	// nanoseconds); 0: not known.
	Passed uint64

	// Cut: there may be older work under way than a look has read.
	Cut bool
}

// A Job is a kernel or a copy.
type Job struct {
	channel.Work
	Index uint32 // of the ring's entry that has it
	Began uint64 // when it was handed to the GPU, by the GPU's clock; 0: not known
	Graph int    // how many kernels the launch of a graph has, of which this is one; 0: no graph
}

// Busy reports whether the channel had work.
func (s *State) Busy() bool { return len(s.Running)+len(s.Waiting) > 0 || s.Blocked != nil }

const (
	maxPieceWords = 1 << 16 // of a piece; longer ones are read up to there
	maxGraph      = 1 << 12 // kernels of a graph
	maxReleases   = 1 << 10 // that a look notes
)

// ErrMoved is what Look returns if the ring moved on faster than it could be read.
var ErrMoved = errors.New("the channel's ring was overwritten while it was read")

// Look reads the channel once: the last depth pieces of its pushbuffer. What it returns was true when
// the semaphores were read, right at the beginning: kernels are often over before their pieces
// are read. Which semaphores these are is known from the look before, so the first look at a
// channel in use may miss what is short.
func (c *Channel) Look(m Memory, depth int) (State, error) {
	// First the semaphores: what is handed to the channel behind them isn't there yet by its tracker.
	// Reading the GPU's memory takes longer than many kernels.
	at := c.snapshot(m)
	u, err := c.userData(m)
	if err != nil {
		return State{}, err
	}
	s := State{UserData: u}
	if int(s.GPPut) >= c.Entries || int(s.GPGet) >= c.Entries {
		return State{}, ErrMoved
	}
	pieces, err := c.pieces(m, s.UserData, depth)
	if err != nil {
		return State{}, err
	}
	c.judge(m, at, &s, pieces)
	s.Cut = len(pieces) == depth && len(s.Running) > 0 && s.Running[0].Index == pieces[0].Index
	return s, nil
}

// pieces returns the last n entries of the ring with their words, oldest first.
func (c *Channel) pieces(m Memory, u channel.UserData, n int) ([]Piece, error) {
	entries, err := c.entries(m, u.GPPut, min(n, c.Entries))
	if err != nil {
		return nil, err
	}
	var pieces []Piece
	for i, e := range slices.Backward(entries) {
		p := Piece{Index: (u.GPPut + uint32(c.Entries-len(entries)+i)) % uint32(c.Entries), Entry: e}
		if p.Entry == (channel.Entry{}) {
			break // never written: the ring has not been round yet
		}
		c.words(m, &p)
		pieces = append(pieces, p)
		c.classify(m, &p)
	}
	slices.Reverse(pieces)
	return pieces, nil
}

// entries reads the n entries of the ring before index end. They are read together: the ring is memory
// of the GPU, where each access takes a microsecond.
func (c *Channel) entries(m Memory, end uint32, n int) ([]channel.Entry, error) {
	if c.trail != nil {
		return c.trail.entries(m, end, n)
	}
	b := make([]byte, n*channel.EntrySize)
	first := int(end) - n
	if first >= 0 {
		if err := m.Read(c.Ring+uint64(first)*channel.EntrySize, b); err != nil {
			return nil, err
		}
	} else {
		rest := b[:-first*channel.EntrySize]
		if err := m.Read(c.Ring+uint64(first+c.Entries)*channel.EntrySize, rest); err != nil {
			return nil, err
		}
		if err := m.Read(c.Ring, b[len(rest):]); end > 0 && err != nil {
			return nil, err
		}
	}
	list := make([]channel.Entry, n)
	for i := range list {
		list[i] = channel.ParseEntry(binary.LittleEndian.Uint64(b[i*channel.EntrySize:]))
	}
	return list, nil
}

// words reads what an entry points to. What can't be read leaves the piece without words.
func (c *Channel) words(m Memory, p *Piece) {
	if p.Entry.Words > 0 {
		p.Words, _ = readWords(located{m, c}, p.Address, int(min(p.Entry.Words, maxPieceWords)))
	}
}

// A moment is what semaphores were at one time: the pages that were read then.
type moment map[uint64][]byte

// maxPagesOfLook is how many pages of semaphores of a channel are read at once.
const maxPagesOfLook = 16

// snapshot reads the pages with the channel's semaphores.
func (c *Channel) snapshot(m Memory) moment {
	at := moment{}
	for page := range c.semaphores {
		if b := make([]byte, pageSize); m.Read(page, b) == nil {
			at[page] = b
		}
	}
	c.semaphores = map[uint64]bool{}
	return at
}

// word reads 64 bits of a semaphore at the moment, or now if its page wasn't read then.
func (j *judgement) word(address uint64) (uint64, error) {
	page := address &^ (pageSize - 1)
	if len(j.c.semaphores) < maxPagesOfLook {
		j.c.semaphores[page] = true
	}
	if b := j.at[page]; b != nil && address%pageSize <= pageSize-8 {
		return binary.LittleEndian.Uint64(b[address%pageSize:]), nil
	}
	return readLong(located{j.m, j.c}, address)
}

// A judgement goes through a channel's pieces in order.
type judgement struct {
	c  *Channel
	m  Memory
	at moment
	s  *State
	r  *channel.Reader

	blocked bool // a piece waits for a semaphore
	ready   bool // one before it is not passed, but waits for none
	behind  bool // one before it is not passed

	graph Job // the latest launch of a graph that can't be read, if what it releases is known
}

// judge says of each piece's work whether it is over, running or waiting.
func (c *Channel) judge(m Memory, at moment, s *State, pieces []Piece) {
	j := judgement{c: c, m: m, at: at, s: s, r: c.reader(m)}
	for i := range pieces {
		// What can't be read is a graph's launch. The piece behind it waits for its end.
		if j.piece(&pieces[i]) {
			s.Running = slices.DeleteFunc(s.Running, func(job Job) bool {
				return job.Unread && job.Launch.Done.Address == 0 && job.Index != pieces[i].Index
			})
		}
	}
}

// piece judges one piece. It returns true if the host side is through with it.
func (j *judgement) piece(p *Piece) (passed bool) {
	var work []channel.Work
	var tracker, behind channel.Semaphore // behind: of a program that has no trackers, released at the end
	j.r.Read(p.Words, p.Address, func(w channel.Work) bool {
		work = append(work, w)
		if !w.Inline && (w.Kind == channel.Kernel || w.Kind == channel.Null) {
			work = append(work, j.chain(&w)...)
		}
		if w.Semaphore.Timed && w.Semaphore.Address != 0 {
			tracker = w.Semaphore
		}
		if w.Kind == channel.Release {
			behind = w.Semaphore
		}
		return true
	})
	for i := range work {
		j.resolve(&work[i].Launch)
	}
	ends, replays := replayEnd(j.r, work)
	value, time, known := j.semaphore(tracker)
	passed = known && !before(value, tracker.Payload) || !known && !j.unfetched(p)
	began := uint64(0)
	if known && uint32(value) == uint32(tracker.Payload) {
		began = time
		j.s.Passed = time
	}
	work = inOrder(work)
	if replays {
		for i := range work {
			if work[i].Unread {
				work[i].Launch.Done = ends
			}
		}
	}
	over := j.pieceOver(work) || tracker.Address == 0 && behind.Address != 0 && j.reached(behind)
	graph := 0
	for _, w := range work {
		if w.Kind == channel.Kernel {
			graph++
		}
	}
	for _, w := range work {
		// The semaphore of a kernel that is not handed over yet has the value from its use before.
		over := (passed || !j.behind && !j.blocked) && (over || w.Kind == channel.Kernel && j.over(&w))
		switch {
		case w.Kind == channel.Acquire:
			if !passed && !j.reached(w.Semaphore) && !j.blocked {
				j.blocked = true
				j.unfinished(w.Semaphore.Address)
				if !j.ready { // else what is before it goes on first
					j.s.Blocked = &w.Semaphore
				}
			}
			if w.Semaphore.Address == j.graph.Launch.Done.Address {
				j.graph = Job{} // others wait for others
			}
		case w.Kind == channel.Kernel:
			if w.Unread && replays && passed {
				j.graph = Job{Work: w, Index: p.Index, Began: began}
			}
			j.add(Job{Work: w, Index: p.Index, Began: began, Graph: graphSize(graph)}, passed, over)
		case w.Kind == channel.Move:
			j.add(Job{Work: w, Index: p.Index}, !j.blocked, passed)
		}
		if released := w.Kind == channel.Release || w.Kind == channel.Move; released && !passed && w.Semaphore.Address != 0 && len(j.s.Releases) < maxReleases {
			j.s.Releases = append(j.s.Releases, w.Semaphore)
		}
	}
	j.ready = j.ready || !passed && !j.blocked
	j.behind = j.behind || !passed
	return passed
}

// replayEnd returns what a graph releases at its end whose QMDs can't be read: its launch sets one word, to which the graph then
// adds. How often isn't known: once for each of its last kernels. It returns false if there is no such launch.
func replayEnd(r *channel.Reader, work []channel.Work) (end channel.Semaphore, ok bool) {
	unread, words := false, 0
	for i := range work {
		w := &work[i]
		unread = unread || w.Unread
		if w.Kind != channel.Write || w.Size != 4 {
			continue
		}
		if base, known := r.WrittenWord(w.To); known {
			end = channel.Semaphore{Address: w.To, Payload: uint64(base) + 1}
			words++
		}
	}
	return end, unread && words == 1
}

// unfinished notes that the graph which adds to a semaphore is not over, as what comes behind it still waits.
func (j *judgement) unfinished(semaphore uint64) {
	g := &j.graph
	if g.Launch.Done.Address != semaphore || semaphore == 0 || slices.ContainsFunc(j.s.Running, func(job Job) bool { return job.Index == g.Index }) {
		return
	}
	j.s.Running = append(j.s.Running, *g)
}

// resolve turns a release that adds to a semaphore into one of the value that it will have: a graph's
// launch sets the semaphore before. If the value before isn't known, nor is the end.
func (j *judgement) resolve(l *channel.Launch) {
	if !l.DoneAdds || l.Done.Address == 0 {
		return
	}
	if base, ok := j.r.WrittenWord(l.Done.Address); ok {
		l.Done.Payload += uint64(base)
	} else {
		l.Done = channel.Semaphore{}
	}
}

// chain returns the kernels that follow one of a graph that was prepared before: their QMDs lie
// where the graph's instantiation put them.
func (j *judgement) chain(first *channel.Work) (list []channel.Work) {
	seen := map[uint64]bool{first.QMD: true}
	for next := first.Launch.Next; next != 0 && !seen[next] && len(list) < maxGraph; {
		seen[next] = true
		l, ok := j.r.LaunchAt(first.Subchannel, next)
		if !ok {
			break
		}
		if !l.Null {
			list = append(list, channel.Work{At: first.At, Kind: channel.Kernel, Subchannel: first.Subchannel, QMD: next, Launch: l})
		}
		next = l.Next
	}
	return list
}

// inOrder puts the kernels of a graph, which a piece has in any order, into that of their chain.
func inOrder(work []channel.Work) []channel.Work {
	place := map[uint64]int{} // how many QMDs of the piece lead to each
	for range work {
		changed := false
		for i := range work {
			l := &work[i].Launch
			if l.Next != 0 && place[l.Next] < place[work[i].QMD]+1 && place[work[i].QMD] < len(work) {
				place[l.Next] = place[work[i].QMD] + 1
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	kernels := slices.DeleteFunc(slices.Clone(work), func(w channel.Work) bool { return w.Kind != channel.Kernel })
	slices.SortStableFunc(kernels, func(a, b channel.Work) int { return place[a.QMD] - place[b.QMD] })
	for i := range work {
		if work[i].Kind == channel.Kernel {
			work[i], kernels = kernels[0], kernels[1:]
		}
	}
	return work
}

// graphSize returns how many kernels a graph of a piece with n launches has: one launch is no graph.
func graphSize(n int) int {
	if n > 1 {
		return n
	}
	return 0
}

// add notes a job that isn't over.
func (j *judgement) add(job Job, started, over bool) {
	switch {
	case over:
	case started:
		j.s.Running = append(j.s.Running, job)
	default:
		j.s.Waiting = append(j.s.Waiting, job)
	}
}

// over reports whether a kernel's own semaphore says that its grid is over.
func (j *judgement) over(w *channel.Work) bool {
	return w.Launch.Done.Address != 0 && j.reached(w.Launch.Done)
}

// pieceOver reports whether all grids of a piece that have a semaphore are over: those that have
// none are a graph's, which ends with one that has.
func (j *judgement) pieceOver(work []channel.Work) bool {
	found := false
	for i := range work {
		if w := &work[i]; w.Kind == channel.Kernel && w.Launch.Done.Address != 0 {
			if found = true; !j.reached(w.Launch.Done) {
				return false
			}
		}
	}
	return found
}

// unfetched reports whether the GPU hasn't fetched all of a piece.
func (j *judgement) unfetched(p *Piece) bool {
	end := p.Address + 4*uint64(p.Entry.Words)
	if j.s.Get >= p.Address && j.s.Get < end {
		return true
	}
	n := uint32(j.c.Entries)
	return (p.Index+n-j.s.GPGet)%n < (j.s.GPPut+n-j.s.GPGet)%n
}

// semaphore reads a semaphore's value and the time behind it.
func (j *judgement) semaphore(s channel.Semaphore) (value, time uint64, ok bool) {
	if s.Address == 0 {
		return 0, 0, false
	}
	value, err := j.word(s.Address)
	if err != nil {
		return 0, 0, false
	}
	if s.Timed {
		time, err = j.word(s.Address + 8)
	}
	return value, time, err == nil
}

// reached reports whether a semaphore has its payload, or a later one.
func (j *judgement) reached(s channel.Semaphore) bool {
	value, _, ok := j.semaphore(channel.Semaphore{Address: s.Address})
	return ok && !before(value, s.Payload)
}

// before compares payloads of 32 bits, which go round.
func before(value, payload uint64) bool { return int32(uint32(value)-uint32(payload)) < 0 }
