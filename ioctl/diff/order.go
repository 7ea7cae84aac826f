package diff

// edit is one step of an alignment.
type edit struct {
	op    editOp
	id    uint32
	after uint32 // the call before it in its own sequence, 0 none
	pos   int    // of the call in the alignment of both sequences
}

type editOp uint8

const (
	opGone  editOp = iota // only in the first sequence
	opAdded               // only in the second
)

// confirm is how many calls in a row must agree before two sequences count as
// in step again.
const confirm = 3

// align compares two sequences and calls step for every call that stands only
// in one of them, in order. It looks at most window calls ahead in each for
// where they agree again; if they don't, that many are taken as different.
// Memory: window^2 cells of 2 bytes; time: linear in the length of the
// sequences, times window^2 where they differ.
func align(a, b []uint32, window int, step func(edit)) {
	l := lcs{window: window}
	x, y, pos := 0, 0, 0
	for x < len(a) || y < len(b) {
		if x < len(a) && y < len(b) && a[x] == b[y] {
			x, y, pos = x+1, y+1, pos+1
			continue
		}
		i, j := resync(a[x:], b[y:], window)
		l.edits(a[:x+i], b[:y+j], x, y, pos, step)
		x, y, pos = x+i, y+j, pos+max(i, j)
	}
}

// resync returns how far into a and b the nearest place lies from where they
// agree.
func resync(a, b []uint32, window int) (i, j int) {
	wa, wb := min(window, len(a)), min(window, len(b))
	if wa == len(a) && wb == len(b) && (wa == 0 || wb == 0) {
		return wa, wb
	}
	for sum := 1; sum <= wa+wb; sum++ {
		// Nearly equal shares first: a replaced call is the common case.
		for d := sum & 1; d <= sum; d += 2 {
			for _, i := range [2]int{(sum - d) / 2, (sum + d) / 2} {
				j := sum - i
				if i <= wa && j <= wb && agree(a[i:], b[j:]) {
					return i, j
				}
			}
		}
	}
	return wa, wb
}

// agree reports whether two sequences begin alike.
func agree(a, b []uint32) bool {
	n := min(confirm, len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return false
		}
	}
	// At the end of both there is nothing more to agree on; at the end of one,
	// only an agreement of what is left counts.
	return n == confirm || n > 0 && len(a) == len(b) || len(a) == 0 && len(b) == 0
}

// lcs finds a longest common subsequence of two short sequences.
type lcs struct {
	window int
	cells  []uint16
}

// edits calls step for what of a[x:] and b[y:] is not part of their longest
// common subsequence.
func (l *lcs) edits(a, b []uint32, x, y, pos int, step func(edit)) {
	ta, tb := a[x:], b[y:]
	n, m := len(ta), len(tb)
	if n > 0 && m > 0 {
		l.fill(ta, tb)
	}
	i, j := 0, 0
	for i < n || j < m {
		at := pos + max(i, j)
		switch {
		case i < n && j < m && ta[i] == tb[j]:
			i, j = i+1, j+1
		case j == m || i < n && l.at(m, i+1, j) >= l.at(m, i, j+1):
			step(edit{opGone, ta[i], before(a, x+i), at})
			i++
		default:
			step(edit{opAdded, tb[j], before(b, y+j), at})
			j++
		}
	}
}

// before returns the call before place i of a sequence, 0 if it is the first.
func before(s []uint32, i int) uint32 {
	if i == 0 {
		return 0
	}
	return s[i-1]
}

// at is the length of the longest common subsequence of a[i:] and b[j:].
func (l *lcs) at(m, i, j int) uint16 { return l.cells[i*(m+1)+j] }

func (l *lcs) fill(a, b []uint32) {
	n, m := len(a), len(b)
	if need := (n + 1) * (m + 1); cap(l.cells) < need {
		l.cells = make([]uint16, need)
	} else {
		l.cells = l.cells[:need]
		clear(l.cells)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			switch {
			case a[i] == b[j]:
				l.cells[i*(m+1)+j] = 1 + l.at(m, i+1, j+1)
			default:
				l.cells[i*(m+1)+j] = max(l.at(m, i+1, j), l.at(m, i, j+1))
			}
		}
	}
}

// moved is a call, with those that went with it, that stands at another place
// in the second sequence.
type moved struct {
	ids       []uint32
	wasAfter  uint32 // call before it in the first sequence, 0 none
	isAfter   uint32 // call before it in the second
	fromA, to int    // position of the last of ids, in the alignment
}

// moves pairs calls that are gone from one place with equal ones that were
// added at another, at most window apart. The rest of the edits are calls that
// are more or fewer, which their counts tell.
type moves struct {
	window int
	open   map[uint32][]edit // not yet paired, of one kind per id, oldest first
	found  []moved
	more   uint64 // moves beyond maxMoves
}

// maxMoves bounds the moves that are kept of one pair of threads.
const maxMoves = 1 << 16

func (m *moves) step(e edit) {
	if m.open == nil {
		m.open = make(map[uint32][]edit)
	}
	q := m.open[e.id]
	for len(q) > 0 && e.pos-q[0].pos > m.window {
		q = q[1:]
	}
	if len(q) > 0 && q[0].op != e.op {
		gone, added := q[0], e
		if e.op == opGone {
			gone, added = e, q[0]
		}
		m.add(gone, added)
		q = q[1:]
	} else {
		q = append(q, e)
	}
	if len(q) == 0 {
		delete(m.open, e.id)
	} else {
		m.open[e.id] = q
	}
}

// add notes a move. A call that stands behind the same one as before belongs to
// that one's move.
func (m *moves) add(gone, added edit) {
	if n := len(m.found); n > 0 {
		l := &m.found[n-1]
		if last := l.ids[len(l.ids)-1]; last == gone.after && last == added.after && gone.pos == l.fromA+1 && added.pos == l.to+1 {
			l.ids = append(l.ids, gone.id)
			l.fromA, l.to = gone.pos, added.pos
			return
		}
		if n >= maxMoves {
			m.more++
			return
		}
	}
	m.found = append(m.found, moved{[]uint32{gone.id}, gone.after, added.after, gone.pos, added.pos})
}
