package session

import (
	"cmp"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// stampsObject is stamps/stamps.bpf.c, made by the Makefile beside that.
//
//go:embed stamps/stamps.bpf.o
var stampsObject []byte

// A Stamp is when a launch of a kernel began and ended on the GPU: when the first thread of its first
// block was there, and when the last of its threads left. It comes of programs in the kernel.
type Stamp struct {
	PID, Device int
	Context     uint64 // handle; 0: not known
	Kernel      string // mangled
	// Launch is the number that the launch had, %gridid: no other at that time. All launches of a
	// node of a graph have the same.
	Launch     uint64
	Start, End int64 // CLOCK_MONOTONIC in ns
	Margin     int64 // both may be off by so much either way, as clocks were compared
}

// Stamps returns the object whose programs note these times, for a plan.
func Stamps() (*object.Object, error) {
	o, err := object.Load("times of kernels", stampsObject)
	if err == nil {
		o.Own = true
	}
	return o, err
}

// What stamps.bpf.c calls its maps, and how large they are.
const (
	stampsParts    = "nvtrace_parts"
	stampsDue      = "nvtrace_due"
	stampsTold     = "nvtrace_told"
	stampsLaunches = "nvtrace_launches"
	stampsCopies   = "nvtrace_copies"
	stampsState    = "nvtrace_state"

	stampPlaces   = 1 << 14
	stampParts    = 32
	stampLaunches = 1 << 16
	stampCopies   = 1 << 15
	partBytes     = 16
	launchBytes   = 32
	copyBytes     = stampParts*partBytes + 32
	stateBytes    = 16
	stateRead     = 4 // offset of what the host writes
)

// maxUntold bounds the stamps of a context that wait for its clock to be compared.
const maxUntold = 1 << 16

// A stamp is a Stamp by the GPU's clock.
type stamp struct {
	id, start, end uint64
	site           uint32
}

// stamps is what the host knows of launches in a context.
type stamps struct {
	parts, due, told, launches, copies, state *mapmem.Map

	places []stampPlace
	open   map[uint64]bool // places with launches of which nothing was told
	begun  uint64          // launches whose records were read
	torn   []uint64        // numbers of those among them that were not complete
	copied uint64          // copies that were read
	room   uint64          // numbers of copies for which there is room
	gap    uint64          // number of a copy that was not complete at the look before, plus 1
	gapped time.Time       // when it was seen first that it is not

	looked time.Time
	often  time.Duration // how long it may take until it is time for the next look

	untold []stamp // as the clock is not known
	lost   struct{ untold, mixed, hidden, late uint64 }
}

// A stampPlace is where launches with some numbers are noted.
type stampPlace struct {
	due  uint64     // when it was read last
	told uint64     // of the launch that was told last
	list []launched // in their order
}

// A launched is a launch that began, of which nothing was told.
type launched struct {
	id, due, start uint64
	site           uint32
	mixed          bool // it began when another one at its place had not ended
	// passed is when it was seen first that another one had begun at its place, of which there was no
	// copy; zero: it was not.
	passed time.Time
}

// patience is how long what a kernel's first warp writes may take: it can be a simulated one, on a busy
// machine.
const patience = 2 * time.Second

// newStamps finds the maps, nil if there are none.
func newStamps(maps *mapmem.Maps) *stamps {
	x := &stamps{open: make(map[uint64]bool), often: stampsEvery, room: stampCopies}
	names := map[string]**mapmem.Map{
		stampsParts: &x.parts, stampsDue: &x.due, stampsTold: &x.told, stampsLaunches: &x.launches, stampsCopies: &x.copies, stampsState: &x.state,
	}
	for _, m := range maps.All {
		if p := names[m.Def.Name]; p != nil && m.Object != nil && m.Object.Own {
			*p = m
		}
	}
	if x.state == nil {
		return nil
	}
	x.places = make([]stampPlace, stampPlaces)
	return x
}

// get reads rows of memory, which it says in advance.
func get(mem mapmem.Memory, addr, stride uint64, width, rows int) ([]byte, error) {
	if p, ok := mem.(mapmem.Prefetcher); ok {
		p.Prefetch(addr, stride, width, rows)
	}
	b := make([]byte, width*rows)
	for i := range rows {
		if err := mem.ReadMem(addr+uint64(i)*stride, b[i*width:][:width]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// put writes what kernels may see later.
func put(mem mapmem.Memory, addr uint64, b []byte) error {
	if p, ok := mem.(mapmem.Prefetcher); ok {
		return p.WriteLate(addr, b)
	}
	return mem.WriteMem(addr, b)
}

// ring reads the entries from to to of an array of n entries that begins anew at its end.
func ring(mem mapmem.Memory, x *mapmem.Map, size int, n, from, to uint64) ([]byte, error) {
	var all []byte
	for from < to {
		at := from % n
		count := min(to-from, n-at)
		b, err := get(mem, x.Addr()+at*uint64(size), uint64(size)*count, size*int(count), 1)
		if err != nil {
			return nil, err
		}
		all, from = append(all, b...), from+count
	}
	return all, nil
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

// left is what threads that left have noted at a place.
type left struct {
	end, threads uint64
}

func (l *left) add(b []byte) {
	l.end, l.threads = max(l.end, word(b, 0)), l.threads+word(b, 1)
}

// look returns what is to be told of launches that have ended since the last time, in the order in which
// they began. What is read is explained in stamps.bpf.c, and the order in which it must be. With idle
// set no kernel runs.
func (x *stamps) look(mem mapmem.Memory, idle bool) (list []stamp, err error) {
	due, err := get(mem, x.due.Addr(), 8*stampPlaces, 8*stampPlaces, 1)
	if err != nil {
		return nil, err
	}
	for p := range x.places {
		x.places[p].due = word(due, p)
	}
	ends, err := x.ends(mem)
	if err != nil {
		return nil, err
	}
	state, err := get(mem, x.state.Addr(), stateBytes, stateBytes, 1)
	if err != nil {
		return nil, err
	}
	before := x.begun
	// These counters go round.
	counter := func(i int, before uint64) uint64 { return before + uint64(le32(state[4*i:])-uint32(before)) }
	if err := x.begin(mem, counter(2, x.begun)); err != nil {
		return nil, err
	}
	x.pace(x.begun - before)
	all, list, err := x.judge(mem, counter(0, x.copied), idle)
	if err != nil {
		return list, err
	}
	told := make([]uint64, 0, len(ends))
	for p, l := range ends {
		if !all {
			break // what was not read may say that it is no launch's own end
		}
		s, ended := x.ended(p, l)
		if s.start != 0 {
			list = append(list, s)
		}
		if ended {
			told = append(told, p)
		}
	}
	x.pass(all)
	slices.SortFunc(list, func(a, b stamp) int { return cmp.Compare(a.start, b.start) })
	x.room = x.copied + stampCopies
	return list, errors.Join(x.tell(mem, told), put(mem, x.state.Addr()+stateRead, binary.LittleEndian.AppendUint32(nil, uint32(x.copied))))
}

// runs puts numbers of places together that are not far apart, in [lo, hi) each.
func runs(places []uint64) (list [][2]uint64) {
	const near = 128 // places between that are read, too, rather than by a copy of their own
	for _, p := range places {
		if n := len(list); n > 0 && p-list[n-1][1] < near {
			list[n-1][1] = p + 1
		} else {
			list = append(list, [2]uint64{p, p + 1})
		}
	}
	return list
}

// ends reads the parts of places where something has begun that was not told.
func (x *stamps) ends(mem mapmem.Memory) (map[uint64]left, error) {
	var places []uint64
	for p := range x.places {
		if x.places[p].due != x.places[p].told {
			places = append(places, uint64(p))
		}
	}
	ends := make(map[uint64]left)
	for _, r := range runs(places) {
		width := int(r[1]-r[0]) * partBytes
		b, err := get(mem, x.parts.Addr()+r[0]*partBytes, stampPlaces*partBytes, width, stampParts)
		if err != nil {
			return nil, err
		}
		for p := r[0]; p < r[1]; p++ {
			if x.places[p].due == x.places[p].told {
				continue
			}
			var l left
			for part := range stampParts {
				l.add(b[part*width+int(p-r[0])*partBytes:])
			}
			ends[p] = l
		}
	}
	return ends, nil
}

// begin reads the records of launches up to number n.
func (x *stamps) begin(mem mapmem.Memory, n uint64) error {
	oldest := n - min(n, stampLaunches)
	torn := x.torn[:0]
	take := func(k uint64, b []byte) {
		if uint32(word(b, 3)) != uint32(1+k+word(b, 0)+3*word(b, 1)+5*word(b, 2)) {
			torn = append(torn, k)
			return
		}
		l := launched{id: word(b, 0), due: word(b, 1), start: word(b, 2), site: uint32(word(b, 3) >> 32)}
		p := &x.places[l.id%stampPlaces]
		i := len(p.list)
		for i > 0 && int64(p.list[i-1].due-l.due) < 0 {
			i--
		}
		p.list = slices.Insert(p.list, i, l)
		x.open[l.id%stampPlaces] = true
	}
	for _, k := range slices.Clone(x.torn) {
		if k < oldest {
			x.lost.late++
			continue
		}
		b, err := ring(mem, x.launches, launchBytes, stampLaunches, k, k+1)
		if err != nil {
			return err
		}
		take(k, b)
	}
	if x.begun < oldest {
		x.lost.late += oldest - x.begun
		x.begun = oldest
	}
	b, err := ring(mem, x.launches, launchBytes, stampLaunches, x.begun, n)
	if err != nil {
		return err
	}
	for ; x.begun < n; x.begun++ {
		take(x.begun, b)
		b = b[launchBytes:]
	}
	x.torn = torn
	return nil
}

// judge reads the copies of places up to number n, and returns what they tell of launches that have
// ended; and whether it read all of them.
func (x *stamps) judge(mem mapmem.Memory, n uint64, idle bool) (all bool, list []stamp, err error) {
	end := min(n, x.room)
	for x.copied < end {
		// Some at a time: there may be megabytes of them.
		b, err := ring(mem, x.copies, copyBytes, stampCopies, x.copied, min(end, x.copied+1024))
		if err != nil {
			return false, list, err
		}
		for ; len(b) > 0; b = b[copyBytes:] {
			about := b[stampParts*partBytes:]
			id, was, due := word(about, 0), word(about, 1), word(about, 2)
			p := &x.places[id%stampPlaces]
			next := p.find(due)
			switch complete := uint32(word(about, 3)) == uint32(x.copied+1); {
			case complete && (len(x.torn) == 0 || next >= 0 && (was == p.told || p.find(was) >= 0)):
				var l left
				for part := range stampParts {
					l.add(b[part*partBytes:])
				}
				if s := x.past(p, id, was, next, l); s.start != 0 {
					list = append(list, s)
				}
			case !idle && (x.gap != x.copied+1 || time.Since(x.gapped) < patience):
				if x.gap != x.copied+1 {
					x.gap, x.gapped = x.copied+1, time.Now()
				}
				return false, list, nil // it is still being written, or a launch's record is
			}
			x.copied++
		}
	}
	x.copied = n // for the others there was no room
	return true, list, nil
}

// find returns where in the list the launch is that has made due what is given, -1 if it is not there.
func (p *stampPlace) find(due uint64) int {
	return slices.IndexFunc(p.list, func(l launched) bool { return l.due == due })
}

// followed reports whether another launch is known to have begun behind that in the list.
func (p *stampPlace) followed(i int) bool { return i < len(p.list)-1 || int64(p.list[i].due-p.due) > 0 }

// past decides what is told of the launch that was at a place when the one with the number id began.
func (x *stamps) past(p *stampPlace, id, was uint64, next int, l left) (s stamp) {
	more := int64(l.threads + was) // threads that have left beyond those of the launch and all before it
	i := p.find(was)
	early := more > 0 && (was == p.told || i >= 0 && p.list[i].id == id)
	over := next >= 0 && l.end > p.list[next].start
	if next >= 0 && more != 0 && !early {
		p.list[next].mixed = true
	}
	if i < 0 {
		return stamp{} // told already, or its record was lost
	}
	o := p.list[i]
	p.list = slices.Delete(p.list, i, i+1)
	switch {
	case o.mixed || more != 0 && !early:
		x.lost.mixed++
	case early || over:
		x.lost.hidden++
	default:
		return stamp{o.id, o.start, l.end, o.site}
	}
	return stamp{}
}

// ended decides what is told of the last launch at a place, and reports whether all have ended there.
func (x *stamps) ended(place uint64, l left) (s stamp, ended bool) {
	p := &x.places[place]
	if l.threads+p.due != 0 {
		return stamp{}, false
	}
	i := p.find(p.due)
	switch {
	case i < 0 && len(p.list) == 0 && len(x.torn) == 0: // its record was lost
	case i < 0 || i != len(p.list)-1:
		return stamp{}, false
	case p.list[i].mixed:
		x.lost.mixed++
	default:
		s = stamp{p.list[i].id, p.list[i].start, l.end, p.list[i].site}
	}
	if i >= 0 {
		p.list = slices.Delete(p.list, i, i+1)
	}
	p.told = p.due
	return s, true
}

// pass gives launches up that others have followed at their places, and of which there is no copy. all
// says that all copies were read.
func (x *stamps) pass(all bool) {
	for place := range x.open {
		p := &x.places[place]
		p.list = slices.DeleteFunc(p.list, func(l launched) bool {
			if late := all && !l.passed.IsZero() && time.Since(l.passed) > patience; late {
				x.lost.late++
				return true
			}
			return false
		})
		for i := range p.list {
			switch {
			case !all || !p.followed(i):
				p.list[i].passed = time.Time{}
			case p.list[i].passed.IsZero():
				p.list[i].passed = time.Now()
			}
		}
		if len(p.list) == 0 {
			delete(x.open, place)
		}
	}
}

// tell has kernels know which launches were told.
func (x *stamps) tell(mem mapmem.Memory, places []uint64) (err error) {
	slices.Sort(places)
	for _, r := range runs(places) {
		var b []byte
		for p := r[0]; p < r[1]; p++ {
			b = binary.LittleEndian.AppendUint64(b, x.places[p].told)
		}
		err = errors.Join(err, put(mem, x.told.Addr()+8*r[0], b))
	}
	return err
}

// pace finds out when the next look should be: before so many launches have begun that copies are made
// for them.
func (x *stamps) pace(n uint64) {
	now := time.Now()
	if !x.looked.IsZero() && n > 0 {
		x.often = min(max(time.Duration(float64(now.Sub(x.looked))*stampPlaces/2/float64(n)), 5*drainEvery), stampsEvery)
	}
	x.looked = now
}

// stamp tells a record, if it can. c.mu is held.
func (c *Context) stamp(s stamp) {
	switch {
	case c.s.opts.Stamped == nil:
	case c.clock != nil:
		c.tell(s)
	case len(c.stamps.untold) < maxUntold:
		c.stamps.untold = append(c.stamps.untold, s)
	default:
		c.stamps.lost.untold++
	}
}

// tell tells one; the clock is known.
func (c *Context) tell(b stamp) {
	s := Stamp{
		PID: c.PID, Device: c.Device, Context: c.handle, Launch: b.id, Start: c.clock.Monotonic(b.start), Margin: max(c.clock.MarginAt(b.start), c.clock.MarginAt(b.end)),
		Kernel: c.s.opts.Plan.KernelOf(uint64(b.site)),
	}
	// Multiprocessors look at the clock at different moments.
	s.End = max(c.clock.Monotonic(b.end), s.Start)
	c.s.opts.Stamped(s)
}

// setClock notes how the context's %globaltimer relates to the host's, and tells what waited for
// that.
func (c *Context) setClock(k mapmem.Clock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock = &k
	if c.stamps == nil {
		return
	}
	for _, s := range c.stamps.untold {
		c.tell(s)
	}
	c.stamps.untold = nil
}

// stampless says how many launches have no times, by what was read last. No kernel runs any more. c.mu is held.
func (c *Context) stampless() (lost []error) {
	x := c.stamps
	if x == nil {
		return nil
	}
	say := func(n uint64, why string) {
		if n > 0 {
			lost = append(lost, fmt.Errorf("%s of kernels without a time on the GPU: %s", counted(n, "launch"), why))
		}
	}
	n := x.lost
	never := uint64(0)
	for place := range x.open {
		p := &x.places[place]
		for i := range p.list {
			switch {
			case p.list[i].mixed:
				n.mixed++
			case p.followed(i):
				n.late++
			default:
				never++
			}
		}
	}
	say(n.late, "there were too many before them to be read")
	say(uint64(len(x.torn)), "the kernel died as it was noted")
	say(n.untold+uint64(len(x.untold)), "the clock of the GPU could not be compared with the host's")
	say(never, "not all of their threads were seen to leave the kernel")
	say(n.mixed, "others had their places at the same time, as they run on other GPUs or for very long")
	say(n.hidden, "the next launch of the same node of a graph began too early for their end to be read")
	return lost
}
