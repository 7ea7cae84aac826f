package view

import (
	"cmp"
	"slices"
)

// busy adds up the time that is covered by spans, which may overlap and come in any order: how long
// at least one thread, or GPU, was at something.
type busy struct {
	total int64
	spans []timeSpan // in order, and apart from each other
}

// timeSpan is a time that is covered; of one that was made of several, a part of it is.
type timeSpan struct{ from, to, covered int64 }

// maxSpans is how many spans are kept for what may still overlap them.
const maxSpans = 1 << 9

// add returns how much of the span was not covered before; of nil, whose spans are not kept, nothing.
func (b *busy) add(from, to int64) (added int64) {
	if b == nil || to <= from {
		return 0
	}
	if n := len(b.spans); n > 0 && n < maxSpans && b.spans[n-1].to < from { // as most are
		b.spans, b.total = append(b.spans, timeSpan{from, to, to - from}), b.total+to-from
		return to - from
	}
	first, _ := slices.BinarySearchFunc(b.spans, from, func(s timeSpan, from int64) int { return cmp.Compare(s.to, from) })
	last, whole := first, timeSpan{from, to, 0}
	for added = to - from; last < len(b.spans) && b.spans[last].from <= to; last++ {
		s := b.spans[last]
		added -= s.within(from, to)
		whole = timeSpan{min(whole.from, s.from), max(whole.to, s.to), whole.covered + s.covered}
	}
	whole.covered += added
	b.total += added
	b.spans = slices.Replace(b.spans, first, last, whole)
	if len(b.spans) > maxSpans { // the older half becomes coarser
		const half = maxSpans / 2
		for i := range half / 2 {
			x, y := b.spans[2*i], b.spans[2*i+1]
			b.spans[i] = timeSpan{x.from, y.to, x.covered + y.covered}
		}
		b.spans = slices.Delete(b.spans, half/2, half)
	}
	return added
}

// within returns how much is covered from one moment to another: as if what is covered of a part
// were spread over it evenly.
func (s *timeSpan) within(from, to int64) int64 {
	n, all := min(s.to, to)-max(s.from, from), s.to-s.from
	if n == all || s.covered == all {
		return min(n, s.covered)
	}
	return int64(float64(n) * (float64(s.covered) / float64(all)))
}

// Time returns how long it was in all.
func (b *busy) Time() int64 { return b.total }
