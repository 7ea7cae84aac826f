package rm

import "sort"

// spanSet finds, among ranges of addresses that do not overlap, the one that
// holds an address. It is a list of sorted chunks, so that adding and removing
// move a bounded number of entries however many ranges there are.
type spanSet[T any] struct {
	chunks [][]spanOf[T] // none empty
}

type spanOf[T any] struct {
	Span
	v T
}

const chunkMax = 256

// chunk returns the index of the chunk where base is or would be.
func (s *spanSet[T]) chunk(base uint64) int {
	i := sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i][0].Base > base })
	return max(i-1, 0)
}

// place returns the index in a chunk of the last range that starts at or before
// base, -1 if there is none.
func place[T any](c []spanOf[T], base uint64) int {
	return sort.Search(len(c), func(i int) bool { return c[i].Base > base }) - 1
}

// put adds a range; one that starts at the same address is replaced.
func (s *spanSet[T]) put(span Span, v T) {
	x := spanOf[T]{span, v}
	if len(s.chunks) == 0 {
		s.chunks = append(s.chunks, []spanOf[T]{x})
		return
	}
	n := s.chunk(span.Base)
	c := s.chunks[n]
	i := place(c, span.Base)
	if i >= 0 && c[i].Base == span.Base {
		c[i] = x
		return
	}
	c = append(c, spanOf[T]{})
	copy(c[i+2:], c[i+1:])
	c[i+1] = x
	s.chunks[n] = c
	if len(c) < chunkMax {
		return
	}
	right := append([]spanOf[T](nil), c[len(c)/2:]...)
	clear(c[len(c)/2:])
	s.chunks[n] = c[:len(c)/2]
	s.chunks = append(s.chunks, nil)
	copy(s.chunks[n+2:], s.chunks[n+1:])
	s.chunks[n+1] = right
}

// find returns the range that holds an address.
func (s *spanSet[T]) find(addr uint64) (v T, span Span, ok bool) {
	if len(s.chunks) == 0 {
		return v, span, false
	}
	c := s.chunks[s.chunk(addr)]
	i := place(c, addr)
	if i < 0 || addr-c[i].Base >= c[i].Length {
		return v, span, false
	}
	return c[i].v, c[i].Span, true
}

// remove takes out the range that starts at base.
func (s *spanSet[T]) remove(base uint64) {
	if len(s.chunks) == 0 {
		return
	}
	n := s.chunk(base)
	c := s.chunks[n]
	i := place(c, base)
	if i < 0 || c[i].Base != base {
		return
	}
	copy(c[i:], c[i+1:])
	clear(c[len(c)-1:])
	if c = c[:len(c)-1]; len(c) > 0 {
		s.chunks[n] = c
		return
	}
	s.chunks = append(s.chunks[:n], s.chunks[n+1:]...)
}
