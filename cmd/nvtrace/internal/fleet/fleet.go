package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
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
	byFile  map[string]int
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

	// Look, if not nil, says where a process of a boot is that runs: at which line or in which function; "": it can't tell.
	Look   func(boot string, pid int32) string
	looked map[lookedAt]string
}

// lookedAt is a rank in a hang, at which one look is enough.
type lookedAt struct {
	rank  int
	since int64
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
	boot        string
	pid         int32
	exited      int64 // 0: it was not seen to end
	doing       string
	doingSince  int64
	job         string
	world       int
	blind       bool  // times of GPUs were not recorded
	before      int64 // when it came to the collective that was added last
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
	at     uint64 // a collective that it came to last, or is in
	what   signature
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
	sums  [nccl.Purposes]int64
	mine  [nccl.Purposes]int64 // of the last
	bare  int64                // sum of exposed times
	own   int64                // that of the last
	wsum  int64                // of windows
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
		byFile: make(map[string]int), comms: make(map[uint64]*comm), ops: make(map[opKey]*together), clocks: make(map[string]*clock),
		facts: make(map[string]map[string][]int), sets: make(map[string]map[string][]int), failing: make(map[string]map[int]uint64),
	}
	if o != nil {
		f.opts = *o
	}
	f.opts.Hang = cmp.Or(f.opts.Hang, 5*time.Second)
	f.opts.Share = cmp.Or(f.opts.Share, 0.1)
	return f
}

// rank returns the place of a recording among the ranks.
func (f *Fleet) rank(p *Part) int {
	index, ok := f.byFile[p.File]
	if !ok {
		index = len(f.ranks)
		f.byFile[p.File] = index
		f.ranks = append(f.ranks, Rank{Rank: p.Place.Rank, File: p.File, Host: p.Host, job: p.Place.Job, world: p.Place.World})
	}
	return index
}

// Add takes in the next part of a recording. It keeps nothing of it but what is said above.
func (f *Fleet) Add(p *Part) {
	index := f.rank(p)
	c := f.clock(p)
	when := func(t int64) int64 { return c.common(p.Start + t) }
	who := &f.ranks[index]
	who.Events += p.Events
	who.Collectives += len(p.Ops)
	who.boot, who.pid = p.Boot, p.PID
	who.Complete, who.Wall, who.blind = p.Complete, p.Last, !p.GPU
	who.begin, who.last = when(0), when(p.Last)
	if who.End = p.State.Exit; who.End != "" {
		who.exited = when(p.State.Exited)
	}
	who.doing, who.doingSince = p.State.Doing, when(p.State.Since)
	if p.Place.Rank < 0 { // NCCL's largest communicator knows one, too
		best := int32(0)
		for i := range p.Comms {
			if m := &p.Comms[i]; m.Size > best && m.Rank >= 0 {
				best, who.Rank, who.world = m.Size, int(m.Rank), int(m.Size)
			}
		}
	}
	if f.base == 0 || who.begin < f.base {
		f.base = who.begin
	}
	f.join(index, p, when)
	for i := range p.Ops {
		o := &p.Ops[i]
		id := p.Comms[o.Comm].ID
		if id == 0 {
			f.unknown++
			continue
		}
		if o.PointToPoint() {
			continue
		}
		k := f.comms[id]
		const starting = 16 // collectives, between which programs load and compile
		if who.before > 0 && o.Over >= 0 && o.Seq > starting {
			k.longest = max(k.longest, when(o.Enter)-who.before)
		}
		who.before = when(o.Enter)
		f.fold(index, k, o, when, c.first || c.pairs > 0)
	}
	for _, t := range p.Traits {
		switch t.Kind {
		case traits.Is:
			note(f.facts, t.Name, t.Value, index)
		case traits.Has:
			note(f.sets, t.Name, t.Value, index)
		case traits.Fails:
			if f.failing[t.Value] == nil {
				f.failing[t.Value] = make(map[int]uint64)
			}
			f.failing[t.Value][index] += t.N
		}
	}
}

func note(to map[string]map[string][]int, name, value string, index int) {
	if to[name] == nil {
		to[name] = make(map[string][]int)
	}
	if list := to[name][value]; !slices.Contains(list, index) {
		to[name][value] = append(list, index)
	}
}

// join says how far a rank is in its communicators.
func (f *Fleet) join(index int, p *Part, when func(int64) int64) {
	for i := range p.Comms {
		c := &p.Comms[i]
		if c.ID == 0 {
			continue
		}
		k := f.comms[c.ID]
		if k == nil {
			k = &comm{id: c.ID, parent: c.Parent, size: c.Size, members: make(map[int]*member)}
			f.comms[c.ID] = k
		}
		m := &member{rank: c.Rank, entered: c.Entered, enter: when(c.Enter), known: c.Known, over: c.Over, first: c.First, since: when(c.Since), inCall: c.InCall}
		if c.Entered > 0 {
			m.at, m.what = c.What.Seq, what(&c.What)
		}
		k.members[index] = m
	}
}

// what is the signature of an operation.
func what(o *nccl.Op) signature { return signature{o.Name, o.Type, o.Red, o.Root, o.Count} }

// fold adds what a rank tells of a collective; aligned says that its times are in common time.
func (f *Fleet) fold(index int, k *comm, o *nccl.Done, when func(int64) int64, aligned bool) {
	key := opKey{k.id, o.Seq}
	t := f.ops[key]
	what := what(&o.Op)
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
	if o.Repeated {
		return
	}
	if at := when(o.Enter); t.arrived < 0 || at > t.latest {
		t.latest, t.arrived = at, int32(index)
	}
	t.asum += when(o.Enter) - t.enter
	if o.Dur < 0 {
		return
	}
	if t.end == 0 && aligned { // else the clock would be compared with itself
		t.end = when(o.Over)
	}
	t.timed++
	t.sum += o.Dur
	t.wsum += o.Window
	t.bare += o.Exposed
	for i := range o.Spent {
		t.sums[i] += o.Spent[i]
	}
	switch {
	case o.Dur < t.low:
		t.next, t.low, t.last = t.low, o.Dur, int32(index)
		t.mine, t.wmine, t.own = o.Spent, o.Window, o.Exposed
	case o.Dur < t.next:
		t.next = o.Dur
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

	first    bool            // others are compared with it
	by       string          // the recording whose ends of collectives are compared
	ahead    map[opKey]early // ends of collectives whose common end is not known yet
	aligned  bool            // by enough of its time
	at, diff []float64
	every    int // one of so many pairs is kept
	seen     int
}

// maxPairs bounds the pairs that are kept of a clock.
const maxPairs = 1 << 12

// pair takes in the end of a collective by this clock, and in common time.
func (c *clock) pair(own, common int64) {
	if c.zero == 0 {
		c.zero, c.every = own, 1
	}
	if c.seen++; c.seen%c.every != 0 {
		return
	}
	if len(c.at) == maxPairs {
		for i := range maxPairs / 2 {
			c.at[i], c.diff[i] = c.at[2*i], c.diff[2*i]
		}
		c.at, c.diff = c.at[:maxPairs/2], c.diff[:maxPairs/2]
		c.every *= 2
	}
	c.at, c.diff = append(c.at, float64(own-c.zero)), append(c.diff, float64(common-own))
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
func (f *Fleet) clock(p *Part) *clock {
	boot := cmp.Or(p.Boot, p.Host)
	c := f.clocks[boot]
	if c == nil {
		c = &clock{host: p.Host, errorOf: -1}
		if len(f.clocks) == 0 {
			c.first, c.errorOf = true, 0
		}
		f.order = append(f.order, boot)
		f.clocks[boot] = c
	}
	f.Align(p)
	return c
}

// Align compares the clock of a part's host with those that came before. It does nothing where the host is the first. By
// more parts before any is added it learns a drift better.
func (f *Fleet) Align(p *Part) {
	boot := cmp.Or(p.Boot, p.Host)
	c := f.clocks[boot]
	if c == nil {
		if len(f.clocks) == 0 {
			return
		}
		c = &clock{host: p.Host, errorOf: -1}
		f.order = append(f.order, boot)
		f.clocks[boot] = c
	}
	if c.first || c.aligned {
		return
	}
	f.overtaken(c)
	if c.by != "" && c.by != p.File {
		c.fit()
		return
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		id := p.Comms[o.Comm].ID
		if id == 0 || o.PointToPoint() || o.Over < 0 || o.Repeated {
			continue
		}
		if t := f.ops[opKey{id, o.Seq}]; t != nil && t.end > 0 {
			c.pair(p.Start+o.Over, t.end)
			c.by = p.File
			continue
		}
		if c.ahead == nil || len(c.ahead) >= maxPairs {
			c.ahead = make(map[opKey]early)
		}
		c.ahead[opKey{id, o.Seq}] = early{p.Start + o.Over, p.File}
	}
	c.fit()
}

// early is an end of a collective by a clock that was read before the others', of a recording that grows.
type early struct {
	at int64
	by string
}

// overtaken compares a clock by ends of collectives that the others have come to since.
func (f *Fleet) overtaken(c *clock) {
	var list []opKey
	for k := range c.ahead {
		if t := f.ops[k]; t != nil && t.end > 0 {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b opKey) int { return cmp.Compare(c.ahead[a].at, c.ahead[b].at) })
	for _, k := range list {
		e := c.ahead[k]
		if c.by = cmp.Or(c.by, e.by); e.by == c.by {
			c.pair(e.at, f.ops[k].end)
		}
		delete(c.ahead, k)
	}
}

// Begin is when the earliest of the recordings began, in common time: ns since 1970 by the first host's clock.
func (f *Fleet) Begin() int64 { return f.base }

// Common returns what turns times of a recording into those since Begin.
func (f *Fleet) Common(h *traces.Header) func(int64) int64 {
	c := f.clocks[cmp.Or(h.Boot, h.Host)]
	if c == nil {
		c = new(clock)
	}
	return func(t int64) int64 { return c.common(h.Start+t) - f.base }
}

// leastPairs is how many ends of collectives a clock is compared by at least; with a drift, it takes more.
const (
	leastPairs = 3
	driftPairs = 64
	driftTime  = 1e9  // ns over which a drift can be told
	alignTime  = 6e11 // ns after which a clock is compared no more
)

// fit finds offset and drift of a clock by pairs of times and differences.
func (c *clock) fit() {
	at, diff := c.at, c.diff
	if len(at) < leastPairs || c.pairs > 0 && len(at) < c.pairs+c.pairs/4 && at[len(at)-1] < alignTime {
		return // or what is new would change little
	}
	c.pairs, c.drift = len(at), 0
	if c.aligned = at[len(at)-1] >= alignTime; c.aligned {
		defer func() { c.at, c.diff, c.ahead = nil, nil, nil }()
	}
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
