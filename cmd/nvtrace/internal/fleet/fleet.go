package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"nvtrace/nvattach/nccl"
)

// Options say what counts as slow or hung. The zero value has defaults.
type Options struct {
	// Hang is how long a rank must have waited for another at least; 0: 5 s. It is also five times the longest
	// time between collectives.
	Hang time.Duration
	// Share is the part of the time that others must wait for a rank that is called slow; 0: a tenth.
	Share float64
}

// Fleet compares the ranks of a job. It keeps, for each collective, sums over ranks and the one that came last, whatever
// the number of ranks.
type Fleet struct {
	opts    Options
	ranks   []Rank
	comms   map[uint64]*comm
	ops     map[opKey]*together
	clocks  map[string]*clock // by boot
	order   []string          // of boots, as they came
	base    int64             // the earliest beginning of a recording
	now     int64             // up to when they were read; 0: they are whole
	more    uint64            // collectives that found no room
	unknown uint64            // collectives on communicators whose ids are not known
	facts   map[string]map[string][]int
	sets    map[string]map[string][]int
	failing map[string]map[int]uint64
}

// maxOps bounds the collectives that are compared. Each takes some 250 bytes.
const maxOps = 1 << 20

type opKey struct {
	comm, seq uint64
}

// Rank is what a report says of each rank.
type Rank struct {
	Rank        int    `json:"rank"` // as its launcher or NCCL says; -1: not known
	File        string `json:"file"`
	Host        string `json:"host,omitempty"`
	Events      uint64 `json:"events"`
	Collectives int    `json:"collectives"`
	Complete    bool   `json:"complete"`
	End         string `json:"end,omitempty"` // how its process ended; "": not seen
	Wall        int64  `json:"wall"`          // of the recording, ns

	begin, last int64 // in common time
	exited      int64 // 0: it was not seen to end
	doing       string
	doingSince  int64
	job         string
	world       int
	blind       bool // times of GPUs were not recorded
}

// comm is a communicator with its members.
type comm struct {
	id      uint64
	size    int32
	parent  uint64
	members map[int]*member // by index of the rank
	differs []mismatch
	longest int64 // between two of its collectives
}

// member is how far a rank has come in a communicator.
type member struct {
	rank    int32 // in the communicator
	entered uint64
	enter   int64 // of the last, in common time
	known   bool  // whether the last is over is known, or that it was not when that was looked at last
	// over is the last that was seen to be over. first is the first behind it that was not, 0 for none, and since when
	// the rank came to it. inCall says that its call has not returned; else the GPU was not seen to be through with it,
	// which is not looked at while a program makes no calls.
	over   uint64
	first  uint64
	since  int64
	inCall bool
}

// signature is what all ranks must agree on.
type signature struct {
	name  string
	typ   int8
	red   int32
	root  int32
	count uint64
}

func (s signature) String() string {
	o := nccl.Op{Type: s.typ, Red: s.red}
	text := fmt.Sprintf("%s of %d", s.name, s.count)
	if t := o.TypeName(); t != "" {
		text += " " + t
	}
	if t := o.RedName(); t != "" {
		text += ", " + t
	}
	if s.root >= 0 {
		text += fmt.Sprintf(", root %d", s.root)
	}
	return text
}

// mismatch is a collective that ranks call differently.
type mismatch struct {
	seq  uint64
	rank int
	mine signature
	at   int64
}

// together is what all ranks together tell of a collective.
type together struct {
	what  signature
	first int // the rank whose signature it is
	n     int32
	timed int32 // ranks whose time in it is known
	sum   int64 // of these times
	low   int64 // the shortest: of the one that came last
	next  int64 // the second shortest
	last  int32 // index of the rank that came last
	sums  [purposes]int64
	mine  [purposes]int64 // of the last
	bare  int64           // sum of exposed times
	own   int64           // that of the last
	wsum  int64           // of windows
	wmine int64
	end   int64 // in common time; 0: not known
	enter int64 // of the first that was seen, against which order of arrival is measured
	// As it is without times of GPUs: by order of arrival.
	latest  int64
	arrived int32 // rank that arrived last
	asum    int64 // of arrivals, less enter
}

// New returns a Fleet without ranks.
func New(o *Options) *Fleet {
	f := &Fleet{
		comms: make(map[uint64]*comm), ops: make(map[opKey]*together), clocks: make(map[string]*clock),
		facts: make(map[string]map[string][]int), sets: make(map[string]map[string][]int), failing: make(map[string]map[int]uint64),
	}
	if o != nil {
		f.opts = *o
	}
	f.opts.Hang = cmp.Or(f.opts.Hang, 5*time.Second)
	f.opts.Share = cmp.Or(f.opts.Share, 0.1)
	return f
}

// Add takes in a recording that was read whole. It keeps nothing of it but what is said above.
func (f *Fleet) Add(r *Recorded) {
	index := len(f.ranks)
	ops := r.ops()
	c := f.clock(r, ops)
	when := func(t int64) int64 { return c.common(r.Header.Start + t) }
	who := Rank{
		Rank: r.Place.Rank, File: r.File, Host: r.Header.Host, Events: r.Events, Collectives: len(ops), Complete: r.Complete, End: r.exit, Wall: r.Last,
		begin: when(0), last: when(r.Last), job: r.Place.Job, world: r.Place.World, blind: !r.follow.GPU,
	}
	if r.exit != "" {
		who.exited = when(r.exited)
	}
	doing, since := r.atEnd()
	who.doing, who.doingSince = doing, when(since)
	if who.Rank < 0 { // NCCL's largest communicator knows one, too
		best := int32(0)
		for i := range r.follow.Comms {
			if m := &r.follow.Comms[i]; m.Size > best && m.Rank >= 0 {
				best, who.Rank, who.world = m.Size, int(m.Rank), int(m.Size)
			}
		}
	}
	if f.base == 0 || who.begin < f.base {
		f.base = who.begin
	}
	f.ranks = append(f.ranks, who)
	members := f.join(index, r, when)
	var before int64
	for i := range ops {
		o := &ops[i]
		m := members[o.Comm]
		if m == nil {
			f.unknown++
			continue
		}
		if o.PointToPoint() {
			continue
		}
		m.enter, m.entered = when(o.Enter), o.Seq
		m.known = o.end >= 0 || o.NotOver || o.Exit < 0 // one that was captured into a graph has no times
		switch {
		case o.end >= 0:
			m.over, m.first, m.inCall = o.Seq, 0, false
		case m.known && m.first == 0:
			m.first, m.since, m.inCall = o.Seq, m.enter, o.Exit < 0
		}
		k := f.comms[r.follow.Comms[o.Comm].ID]
		const starting = 16 // collectives, between which programs load and compile
		if before > 0 && o.end >= 0 && o.Seq > starting {
			k.longest = max(k.longest, m.enter-before)
		}
		before = m.enter
		f.fold(index, k, o, when)
	}
	for name, value := range r.compared() {
		note(f.facts, name, value, index)
	}
	for set, list := range r.sets {
		for name := range list {
			note(f.sets, set, name, index)
		}
	}
	for what, n := range r.failures {
		if f.failing[what] == nil {
			f.failing[what] = make(map[int]uint64)
		}
		f.failing[what][index] = n
	}
}

func note(to map[string]map[string][]int, name, value string, index int) {
	if to[name] == nil {
		to[name] = make(map[string][]int)
	}
	to[name][value] = append(to[name][value], index)
}

// join makes a rank a member of its communicators, by their index in its recording.
func (f *Fleet) join(index int, r *Recorded, when func(int64) int64) map[int32]*member {
	members := make(map[int32]*member)
	for i := range r.follow.Comms {
		c := &r.follow.Comms[i]
		if c.ID == 0 {
			continue
		}
		k := f.comms[c.ID]
		if k == nil {
			k = &comm{id: c.ID, parent: c.Parent, size: c.Size, members: make(map[int]*member)}
			f.comms[c.ID] = k
		}
		m := &member{rank: c.Rank}
		k.members[index], members[int32(i)] = m, m
	}
	return members
}

// fold adds what a rank tells of a collective.
func (f *Fleet) fold(index int, k *comm, o *op, when func(int64) int64) {
	key := opKey{k.id, o.Seq}
	t := f.ops[key]
	what := signature{o.Name, o.Type, o.Red, o.Root, o.Count}
	if t == nil {
		if len(f.ops) >= maxOps {
			f.more++
			return
		}
		t = &together{what: what, first: index, low: math.MaxInt64, next: math.MaxInt64, last: -1, arrived: -1, enter: when(o.Enter)}
		f.ops[key] = t
	}
	t.n++
	if what != t.what && len(k.differs) < 64 {
		k.differs = append(k.differs, mismatch{o.Seq, index, what, when(o.Enter)})
	}
	if o.repeated {
		return
	}
	if at := when(o.Enter); t.arrived < 0 || at > t.latest {
		t.latest, t.arrived = at, int32(index)
	}
	t.asum += when(o.Enter) - t.enter
	if o.dur < 0 {
		return
	}
	if t.end == 0 {
		t.end = when(o.end)
	}
	t.timed++
	t.sum += o.dur
	t.wsum += o.window
	t.bare += o.exposed
	for i := range o.spent {
		t.sums[i] += o.spent[i]
	}
	switch {
	case o.dur < t.low:
		t.next, t.low, t.last = t.low, o.dur, int32(index)
		t.mine, t.wmine, t.own = o.spent, o.window, o.exposed
	case o.dur < t.next:
		t.next = o.dur
	}
}

// A clock turns the wall clock of a boot into that of the first one.
type clock struct {
	host   string
	offset float64 // ns that are to be added at zero
	drift  float64 // ns that are to be added for each
	zero   int64
	// Error is by how much ends of collectives are off, once more than half of them; -1: it is not known, as there were
	// none, and the host's own clock stands.
	errorOf int64
	pairs   int
}

// common is a time of the boot's wall clock in common time.
func (c *clock) common(t int64) int64 {
	if c.offset == 0 && c.drift == 0 {
		return t
	}
	return t + int64(c.offset+c.drift*float64(t-c.zero))
}

// clock returns the clock of a rank's boot. Of a new one it compares ends of collectives with those that are known:
// all ranks come out of a collective together.
func (f *Fleet) clock(r *Recorded, ops []op) *clock {
	boot := cmp.Or(r.Header.Boot, r.Header.Host)
	if c := f.clocks[boot]; c != nil && (c.errorOf >= 0 || len(f.clocks) == 1) {
		return c
	}
	c := &clock{host: r.Header.Host, errorOf: -1}
	if len(f.clocks) == 0 {
		c.errorOf = 0
	} else {
		var at, diff []float64
		for i := range ops {
			o := &ops[i]
			id := r.follow.Comms[o.Comm].ID
			if id == 0 || o.PointToPoint() || o.end < 0 || o.repeated {
				continue
			}
			if t := f.ops[opKey{id, o.Seq}]; t != nil && t.end > 0 {
				own := r.Header.Start + o.end
				if c.zero == 0 {
					c.zero = own
				}
				at, diff = append(at, float64(own-c.zero)), append(diff, float64(t.end-own))
			}
		}
		c.fit(at, diff)
	}
	if f.clocks[boot] == nil {
		f.order = append(f.order, boot)
	}
	f.clocks[boot] = c
	return c
}

// leastPairs is how many ends of collectives a clock is compared by at least; with a drift, it takes more.
const (
	leastPairs = 3
	driftPairs = 64
	driftTime  = 1e9 // ns over which a drift can be told
)

// fit finds offset and drift of a clock by pairs of times and differences.
func (c *clock) fit(at, diff []float64) {
	if len(at) < leastPairs {
		return
	}
	c.pairs = len(at)
	c.offset = median(diff)
	if n := len(at); n >= driftPairs && at[n-1]-at[0] > driftTime {
		// The line through the medians of the first and the last third is not bent by outliers.
		third := n / 3
		x0, y0 := median(at[:third]), median(diff[:third])
		x1, y1 := median(at[n-third:]), median(diff[n-third:])
		c.drift = (y1 - y0) / (x1 - x0)
		rest := make([]float64, n)
		for i := range at {
			rest[i] = diff[i] - c.drift*at[i]
		}
		c.offset = median(rest)
	}
	off := make([]float64, len(at))
	for i := range at {
		off[i] = math.Abs(diff[i] - c.offset - c.drift*at[i])
	}
	c.errorOf = int64(math.Ceil(median(off)))
}

// median is the middle of numbers, of which there is at least one.
func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	if n := len(list); n%2 == 0 {
		return (list[n/2-1] + list[n/2]) / 2
	}
	return list[len(list)/2]
}
