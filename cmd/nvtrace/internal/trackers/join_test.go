package trackers

import (
	"fmt"
	"slices"
	"testing"

	"nvtrace/ioctl/channels"
)

// A bench has a join, and says which launches got which times.
type bench struct {
	*join
	got  []string
	gone []string
	ids  uint64
}

func newBench() *bench {
	b := new(bench)
	b.join = newJoin(func(l *Launch, s *channels.Span) {
		b.got = append(b.got, fmt.Sprintf("%d@%d", l.Begin, s.Start))
	}, func(l *Launch, m *channels.Miss) {
		b.gone = append(b.gone, fmt.Sprintf("%d@%d-%d", l.Begin, m.After, m.Before))
	})
	return b
}

const us = 1000

// call is a launch of a function with blocks of a size, from begin on, for 5 us.
func (b *bench) call(function, stream uint64, block uint32, begin int64) {
	b.launched(&Launch{TID: 1, Begin: begin * us, End: (begin + 5) * us, Name: "cuLaunchKernel", Subject: function, Stream: stream, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{block, 1, 1}})
}

// find is a submission that came between two times, and ran at the second.
func (b *bench) find(channel int, program uint64, block uint32, after, before int64, more func(*channels.Submission)) {
	b.ids++
	s := channels.Submission{ID: b.ids, Channel: channel, After: after * us, Before: before * us}
	s.Work = channels.WorkID{Program: program, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{block, 1, 1}}
	if more != nil {
		more(&s)
	}
	b.submitted(&s)
	b.spanned(&channels.Span{ID: b.ids, Start: before})
}

func (b *bench) check(t *testing.T, want Counts, times ...string) {
	t.Helper()
	if got := b.end(); got != want || !slices.Equal(b.got, times) {
		t.Errorf("%v, %+v; want %v, %+v", b.got, got, times, want)
	}
}

// TestJoin joins launches and submissions that can be told apart, and those that can't be in their order.
func TestJoin(t *testing.T) {
	b := newBench()
	for i := range int64(6) {
		b.call(0xf1, 7, 32, 100*i)
	}
	b.find(0, 0x1000, 32, 2, 20, nil)                                                     // alone in its time
	b.find(0, 0x1000, 32, 90, 390, func(s *channels.Submission) { s.Work.Block[0] = 64 }) // the driver's own
	b.find(0, 0x1000, 32, 90, 390, nil)                                                   // three could be it: the next
	b.find(0, 0x1000, 32, 90, 390, nil)
	b.find(0, 0x1000, 32, 90, 590, nil)
	b.find(0, 0x1000, 32, 390, 590, nil)
	b.find(0, 0x1000, 32, 490, 590, nil)
	b.check(t, Counts{Timed: 6}, "0@20", "100000@390", "200000@390", "300000@590", "400000@590", "500000@590")
}

// TestJoinAnew: after submissions that nobody has read, order proves nothing, but where the channel was seen to be empty.
func TestJoinAnew(t *testing.T) {
	b := newBench()
	for i := range int64(5) {
		b.call(0xf1, 7, 32, 100*i)
	}
	anew := func(s *channels.Submission) { s.Anew = true }
	b.find(0, 0x1000, 32, 0, 20, anew)   // one launch alone
	b.find(0, 0x1000, 32, 90, 390, anew) // the second, third or fourth
	b.find(0, 0x1000, 32, 90, 390, nil)  // the order is lost
	b.find(0, 0x1000, 32, 210, 490, func(s *channels.Submission) { s.Empty = 212 * us })
	b.find(0, 0x1000, 32, 210, 490, nil)
	b.check(t, Counts{Timed: 3, Unjoined: 2}, "0@20", "300000@490", "400000@490")
}

// TestJoinStreams: what is known of streams, channels and programs decides, and what contradicts it isn't joined.
func TestJoinStreams(t *testing.T) {
	b := newBench()
	b.call(0xf1, 7, 32, 0)
	b.call(0xf1, 8, 32, 100)
	b.call(0xf1, 7, 32, 200) // at the same time
	b.call(0xf1, 8, 32, 201)
	b.call(0xf2, 7, 32, 300) // another function
	b.call(0xf1, 7, 32, 400)
	b.find(0, 0x1000, 32, 0, 20, nil)
	b.find(3, 0x1000, 32, 90, 120, nil)
	b.find(3, 0x1000, 32, 190, 220, nil)
	b.find(0, 0x1000, 32, 190, 220, nil)
	b.find(0, 0x1000, 32, 290, 320, nil) // its program is another function's
	b.find(0, 0x2000, 32, 390, 420, nil) // what was known is forgotten: it is alone in its time
	b.check(t, Counts{Timed: 5, Unjoined: 1}, "0@20", "100000@120", "201000@220", "200000@220", "400000@420")
}

// TestJoinCaptured: launches that may have become nodes of a graph are not joined by their order.
func TestJoinCaptured(t *testing.T) {
	b := newBench()
	b.call(0xf1, 7, 32, 0)
	for i := range int64(2) {
		b.call(0xf1, 7, 32, 100+10*i)
		s := b.streams[streamKey{handle: 7}]
		s.queue[len(s.queue)-1].Unsure = true
	}
	b.call(0xf1, 7, 32, 130)
	b.find(0, 0x1000, 32, 0, 20, nil)
	b.find(0, 0x1000, 32, 90, 150, nil)
	b.check(t, Counts{Timed: 1, Unjoined: 3}, "0@20")
}

// TestJoinGraph: a graph has its launch's times if one submission comes of it.
func TestJoinGraph(t *testing.T) {
	graph := func(s *channels.Submission) { s.Work = channels.WorkID{Kind: channels.GraphSpan} }
	b := newBench()
	launch := func(handle uint64, begin int64) {
		b.launched(&Launch{TID: 1, Begin: begin * us, End: (begin + 5) * us, Name: "cuGraphLaunch", Subject: handle, Stream: 7, Graph: true})
	}
	launch(0xa, 0)
	launch(0xb, 100)
	launch(0xb, 200)
	b.find(0, 0, 0, 0, 20, graph)
	b.find(0, 0, 0, 90, 110, graph)
	b.find(1, 0, 0, 90, 110, graph) // of the same launch
	b.find(0, 0, 0, 190, 210, graph)
	b.check(t, Counts{Timed: 1, Unjoined: 2}, "0@20")
}

// TestJoinMissed: what was over before a look came is counted as that, and it is told between which times it ran, if that
// is known.
func TestJoinMissed(t *testing.T) {
	b := newBench()
	b.call(0xf1, 7, 32, 0)
	b.call(0xf1, 7, 32, 100)
	work := channels.WorkID{Program: 1, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}
	b.submitted(&channels.Submission{ID: 9, Before: 20 * us, Work: work})
	b.submitted(&channels.Submission{ID: 10, After: 90 * us, Before: 120 * us, Work: work})
	b.missed(&channels.Miss{ID: 9})
	b.missed(&channels.Miss{ID: 10, After: 110 * us, Before: 118 * us})
	b.check(t, Counts{Unseen: 2})
	if want := []string{"100000@110000-118000"}; !slices.Equal(b.gone, want) {
		t.Errorf("lost sight of %v, want %v", b.gone, want)
	}
}

// TestJoinFirst: where all launches and all submissions are known from the first, they are the same.
func TestJoinFirst(t *testing.T) {
	for _, whole := range []bool{true, false} {
		b := newBench()
		b.whole = whole
		for i := range int64(3) {
			b.call(0xf1+uint64(i), 7, 32, 100*i)
		}
		b.find(0, 0x1000, 32, 0, 390, func(s *channels.Submission) { s.Anew, s.First = true, true })
		b.find(0, 0x2000, 32, 0, 390, nil)
		b.find(0, 0x3000, 32, 0, 390, nil)
		if whole {
			b.check(t, Counts{Timed: 3}, "0@390", "100000@390", "200000@390")
		} else {
			b.check(t, Counts{Unjoined: 3})
		}
	}
}
