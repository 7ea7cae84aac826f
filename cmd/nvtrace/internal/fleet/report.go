package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/nvattach/nccl"
)

// Kinds of findings.
const (
	Slow     = "slow"     // the others wait for a rank again and again
	Hang     = "hang"     // a collective does not come to its end
	Mismatch = "mismatch" // ranks call a collective differently
	Paused   = "paused"   // the others waited long for a rank, once
	Differs  = "differs"  // a rank differs from most
)

// CannotTell is the cause where recordings do not tell one.
const CannotTell = "cannot tell"

// Finding is a claim about ranks, with what it rests on.
type Finding struct {
	Kind  string   `json:"kind"`
	Ranks []int    `json:"ranks"` // as launchers count them; -1: not known
	Files []string `json:"files"`
	// Since is when it began, in nanoseconds after the earliest recording's start, At the same by the wall clock.
	Since int64  `json:"since"`
	At    string `json:"at,omitempty"`
	Until int64  `json:"until,omitempty"`
	// Cause is in what: of slow, compute, copy, driver or host; of a hang, missing enter, enter without exit or
	// signature differs; else what differs. "cannot tell" where it is not known.
	Cause string `json:"cause"`
	Text  string `json:"text"`

	// Of slow and paused: how long the others waited for the rank on average, in all, in how many of the collectives.
	Waited int64 `json:"waited,omitempty"`
	Late   int   `json:"late,omitempty"`
	Of     int   `json:"of,omitempty"`
}

// ClockReport is how a host's clock was aligned.
type ClockReport struct {
	Host   string  `json:"host"`
	Offset int64   `json:"offset"` // ns that are added to its times
	Drift  float64 `json:"drift"`  // ns a second
	Error  int64   `json:"error"`  // ns; -1: not known, its own clock stands
	Pairs  int     `json:"pairs"`  // ends of collectives by which it was compared
}

// Report is what the recordings of a job come to.
type Report struct {
	Job         string        `json:"job,omitempty"`
	World       int           `json:"world,omitempty"` // ranks that there are; 0: not known
	Ranks       []Rank        `json:"ranks"`
	Missing     []int         `json:"missing,omitempty"` // ranks without a recording
	Comms       int           `json:"communicators"`
	Collectives int           `json:"collectives"` // that were compared, each of all its ranks once
	Wall        int64         `json:"wall"`
	Start       string        `json:"start,omitempty"`
	Clocks      []ClockReport `json:"clocks,omitempty"`
	// By says what the comparison rests on: "times" in collectives, or "arrivals" at the calls alone.
	By       string    `json:"by,omitempty"`
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes,omitempty"`

	until int64 // ns after the earliest start, up to which hangs last
}

// Found reports whether something is wrong: a rank is slow, hangs, or calls something else than the others.
func (r *Report) Found() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Kind == Slow || f.Kind == Hang || f.Kind == Mismatch })
}

// Report compares what was added. More can be added afterwards.
func (f *Fleet) Report() *Report {
	r := &Report{Ranks: f.ranks, Comms: len(f.comms), Collectives: len(f.ops), Findings: []Finding{}}
	seen := make(map[int]bool)
	last := f.base
	for i := range f.ranks {
		k := &f.ranks[i]
		r.Job, r.World = cmp.Or(r.Job, k.job), max(r.World, k.world)
		seen[k.Rank] = true
		last = max(last, k.last)
	}
	for rank := range r.World {
		if !seen[rank] {
			r.Missing = append(r.Missing, rank)
		}
	}
	if r.Wall = last - f.base; f.base > 0 {
		r.Start = wallText(f.base)
	}
	for _, boot := range f.order {
		c := f.clocks[boot]
		r.Clocks = append(r.Clocks, ClockReport{c.host, int64(c.offset), c.drift * 1e9, c.errorOf, c.pairs})
	}
	f.mismatches(r)
	if f.now != 0 && !r.Ended() { // it goes on though nobody calls anything
		last = f.now
	}
	r.until = last - f.base
	hung := f.hangs(r, last)
	f.slow(r, hung)
	f.differing(r)
	f.notes(r)
	return r
}

func wallText(t int64) string { return time.Unix(0, t).UTC().Format("2006-01-02T15:04:05.000Z") }

// finding fills in what each has.
func (f *Fleet) finding(kind, cause string, since int64, indexes ...int) Finding {
	x := Finding{Kind: kind, Cause: cause, Since: max(since-f.base, 0), At: wallText(since), Ranks: []int{}, Files: []string{}}
	slices.Sort(indexes)
	for _, i := range indexes {
		x.Ranks, x.Files = append(x.Ranks, f.ranks[i].Rank), append(x.Files, f.ranks[i].File)
	}
	return x
}

// names says which ranks, in few words.
func (f *Fleet) names(indexes []int) string {
	const most = 8
	var numbers []int
	for _, i := range indexes {
		if f.ranks[i].Rank < 0 {
			numbers = nil
			break
		}
		numbers = append(numbers, f.ranks[i].Rank)
	}
	if numbers == nil {
		var files []string
		for _, i := range indexes[:min(len(indexes), most)] {
			files = append(files, f.ranks[i].File)
		}
		return "of " + strings.Join(files, ", ")
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if len(parts) == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(numbers)-i))
			break
		}
		if j > i+1 {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		} else {
			j = i
			parts = append(parts, fmt.Sprint(numbers[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// who is names with the word before it.
func (f *Fleet) who(indexes []int) string {
	return plural(len(indexes), "rank ", "ranks ") + f.names(indexes)
}

// differences returns how members call collectives differently: those that were compared, and those that they are in now.
// called says how the others call them.
func (f *Fleet) differences(k *comm) (list []mismatch, called map[uint64]together) {
	list, called = slices.Clone(k.differs), make(map[uint64]together)
	for _, i := range slices.Sorted(maps.Keys(k.members)) {
		m := k.members[i]
		if m.at == 0 {
			continue
		}
		t, ok := called[m.at]
		if !ok {
			if known := f.ops[opKey{k.id, m.at}]; known != nil {
				t = *known
			} else {
				t = together{what: m.what, first: i}
			}
		}
		if m.at > m.over || m.first > 0 { // it is not among those that were compared
			t.n++
		}
		if m.what != t.what && !slices.ContainsFunc(list, func(d mismatch) bool { return d.seq == m.at && d.rank == i }) {
			list = append(list, mismatch{m.at, i, m.what, m.enter})
		}
		called[m.at] = t
	}
	for _, d := range list {
		if _, ok := called[d.seq]; !ok {
			called[d.seq] = *f.ops[opKey{k.id, d.seq}]
		}
	}
	slices.SortFunc(list, func(a, b mismatch) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.rank, b.rank)) })
	return list, called
}

// mismatches finds collectives that ranks call differently.
func (f *Fleet) mismatches(r *Report) {
	for _, id := range slices.Sorted(maps.Keys(f.comms)) {
		list, called := f.differences(f.comms[id])
		if len(list) == 0 {
			continue
		}
		d := list[0]
		t := called[d.seq]
		var odd []int
		for _, o := range list {
			if o.seq == d.seq {
				odd = append(odd, o.rank)
			}
		}
		// The recording that came first may be the one that differs.
		was, now := t.what, d.mine
		if len(odd) > int(t.n)/2 {
			odd, was, now = []int{t.first}, now, was
		}
		x := f.finding(Mismatch, "signature differs", d.at, odd...)
		x.Text = fmt.Sprintf("%s: collective %d of communicator %016x is %s, that of the others %s", f.who(odd), d.seq, id, now, was)
		if 2*len(odd) == int(t.n) {
			x.Text += "; which is right the recordings cannot tell"
		}
		r.Findings = append(r.Findings, x)
	}
}

// hangs finds collectives that do not come to their end. It returns the ranks that wait in one, or are waited for.
func (f *Fleet) hangs(r *Report, last int64) map[int]bool {
	type stuck struct {
		k                *comm
		seq              uint64
		waiting, missing []int
		since, limit     int64
		partly           []int // that are through
	}
	hung := make(map[int]bool)
	waits := make(map[int]bool)
	var list []stuck
	for _, id := range slices.Sorted(maps.Keys(f.comms)) {
		k := f.comms[id]
		limit := max(int64(f.opts.Hang), 5*k.longest)
		most, over := uint64(0), uint64(0)
		for _, m := range k.members {
			most, over = max(most, m.entered), max(over, m.over)
		}
		for _, m := range k.members { // what is over for one is so for all, or will be when they look
			if m.first > 0 && m.first <= over && !m.inCall {
				if m.first = 0; m.entered > over {
					m.first, m.since = over+1, m.enter
				}
			}
		}
		// The first collective that somebody has entered and not left, or not entered.
		s := stuck{k: k, seq: most + 1, limit: limit}
		for _, m := range k.members {
			if m.first > 0 {
				s.seq = min(s.seq, m.first)
			} else if !m.known && m.entered > 0 && m.entered < most {
				s.seq = min(s.seq, m.entered+1)
			}
		}
		if s.seq > most {
			continue
		}
		for _, i := range slices.Sorted(maps.Keys(k.members)) {
			m := k.members[i]
			switch {
			case m.entered < s.seq:
				s.missing = append(s.missing, i)
			case m.first > 0 && m.first <= s.seq || !m.known && m.entered >= s.seq:
				at := m.since
				if m.first == 0 {
					at = m.enter
				}
				if s.waiting = append(s.waiting, i); s.since == 0 || at < s.since {
					s.since = at
				}
			default:
				s.partly = append(s.partly, i)
			}
		}
		if len(s.waiting) == 0 || last-s.since < limit {
			continue
		}
		for _, i := range s.waiting {
			waits[i] = true
		}
		list = append(list, s)
	}
	slices.SortStableFunc(list, func(a, b stuck) int { return cmp.Compare(a.since, b.since) })
	for _, s := range list {
		for _, i := range append(slices.Clone(s.waiting), s.missing...) {
			hung[i] = true
		}
		odd, called := f.differences(s.k)
		what := "collective"
		if t, ok := called[s.seq]; ok {
			what = t.what.String()
		} else if t := f.ops[opKey{s.k.id, s.seq}]; t != nil {
			what = t.what.String()
		}
		text := fmt.Sprintf("collective %d of communicator %016x (%s)", s.seq, s.k.id, what)
		var culprits []int
		for _, i := range s.missing {
			if !waits[i] {
				culprits = append(culprits, i)
			}
		}
		differs := slices.ContainsFunc(odd, func(d mismatch) bool { return d.seq == s.seq })
		absent := int(s.k.size) - len(s.k.members)
		switch {
		case differs:
			continue // it is reported with what differs
		case len(culprits) > 0:
			x := f.finding(Hang, "missing enter", s.since, culprits...)
			x.Text = fmt.Sprintf("%s never came to %s; %s in it since then", f.who(culprits), text, f.waitText(s.waiting))
			for n, i := range culprits {
				const few = 4
				if n == few {
					break
				}
				switch k := &f.ranks[i]; {
				case k.exited > 0 && k.exited < s.since+s.limit: // else it was ended because of the hang
					x.Text += fmt.Sprintf("; rank %s ended at %s: %s", f.names([]int{i}), f.since(k.exited), k.End)
				case k.doing != "":
					x.Text += fmt.Sprintf("; rank %s is %s since %s", f.names([]int{i}), k.doing, f.since(k.doingSince))
				}
				x.Text += f.lookText(i, s.since, "is now ")
			}
			if len(s.waiting) > 0 {
				x.Text += f.lookText(s.waiting[0], s.since, "waits ")
			}
			r.Findings = append(r.Findings, x)
		case len(s.missing) > 0:
			if slices.ContainsFunc(r.Findings, func(x Finding) bool { return x.Kind == Hang && x.Cause == "missing enter" }) {
				continue // a consequence of another
			}
			x := f.finding(Hang, CannotTell, s.since, s.missing...)
			x.Text = fmt.Sprintf("%s has not come to %s, and waits in another one itself: ranks call their communicators' collectives in different orders, or it is a consequence of another hang", f.who(s.missing), text)
			r.Findings = append(r.Findings, x)
		case absent > 0:
			x := f.finding(Hang, CannotTell, s.since, s.waiting...)
			x.Text = fmt.Sprintf("%s in %s; of %d of its ranks there is no recording", f.waitText(s.waiting), text, absent)
			r.Findings = append(r.Findings, x)
		default:
			known := true
			for _, i := range s.waiting {
				known = known && s.k.members[i].known
			}
			if !known {
				continue // they may all be through: only its end was not recorded
			}
			x := f.finding(Hang, "enter without exit", s.since, s.waiting...)
			whole := "all ranks have come to it"
			if len(s.partly) > 0 {
				whole += fmt.Sprintf(", and %s through", plural(len(s.partly), f.who(s.partly)+" is", f.who(s.partly)+" are"))
			}
			x.Text = fmt.Sprintf("%s in %s; %s: NCCL, a network or a GPU does not get on", f.waitText(s.waiting), text, whole)
			for _, i := range s.waiting[:min(len(s.waiting), 2)] {
				x.Text += f.lookText(i, s.since, "waits ")
			}
			r.Findings = append(r.Findings, x)
		}
	}
	return hung
}

// lookText says where the process of a rank is that runs, "" where that can't be told.
func (f *Fleet) lookText(index int, since int64, verb string) string {
	k := &f.ranks[index]
	if f.Look == nil || k.exited > 0 || k.Complete {
		return ""
	}
	key := lookedAt{index, since}
	at, ok := f.looked[key]
	if !ok {
		const most = 1 << 10
		if f.looked == nil || len(f.looked) >= most {
			f.looked = make(map[lookedAt]string)
		}
		at = f.Look(k.boot, k.pid)
		f.looked[key] = at
	}
	if at == "" {
		return ""
	}
	return fmt.Sprintf("; rank %s %sat %s", f.names([]int{index}), verb, at)
}

func (f *Fleet) waitText(indexes []int) string {
	return f.who(indexes) + plural(len(indexes), " waits", " wait")
}

func (f *Fleet) since(t int64) string { return fmt.Sprintf("%.3f s", float64(t-f.base)/1e9) }

// late is a collective that a rank came to last.
type late struct {
	at     int   // its place among all, by time
	blame  int64 // ns that the others waited for what the rank itself did
	t      *together
	when   int64
	others float64 // ranks besides
}

// slow finds ranks that the others wait for again and again.
func (f *Fleet) slow(r *Report, hung map[int]bool) {
	var all []*together
	timed := 0
	for _, t := range f.ops {
		if t.n < 2 || t.arrived < 0 && t.timed == 0 {
			continue
		}
		if t.timed == t.n {
			timed++
		}
		all = append(all, t)
	}
	if len(all) < 2 {
		return
	}
	byTimes := timed*2 >= len(all)
	if r.By = "arrivals"; byTimes {
		r.By = "times"
	}
	place := func(t *together) int64 {
		if byTimes && t.end > 0 {
			return t.end
		}
		return t.latest
	}
	slices.SortFunc(all, func(a, b *together) int { return cmp.Compare(place(a), place(b)) })
	wall := place(all[len(all)-1]) - place(all[0])
	if wall <= 0 {
		return
	}
	margin := int64(0) // of clocks, which matter where arrivals are compared
	for _, c := range f.clocks {
		if margin >= 0 {
			margin = max(margin, c.errorOf)
		}
		if c.errorOf < 0 {
			margin = -1
		}
	}
	if !byTimes && margin < 0 {
		r.Notes = append(r.Notes, "who is slow: "+CannotTell+": without times of GPUs (--gpu-times) ranks are compared by when they come to collectives, and the clocks of these hosts could not be aligned")
		return
	}
	by := make(map[int][]late)
	unexplained := int64(0)
	for i, t := range all {
		n := int64(t.n)
		var who int32
		var blame int64
		if byTimes {
			if t.timed != t.n || t.last < 0 {
				continue
			}
			// What the others waited while their GPUs had something else to do has cost nothing.
			waited := min((t.sum-t.low)/(n-1)-t.low, (t.bare-t.own)/(n-1))
			own := t.wmine - (t.wsum-t.wmine)/(n-1)
			who, blame = t.last, min(waited, max(own, 0))
			unexplained += max(waited-blame, 0)
		} else {
			others := (t.asum - (t.latest - t.enter)) / (n - 1)
			who, blame = t.arrived, t.latest-t.enter-others-2*margin
			if i > 0 {
				// Several may be awaited at a time, but time is lost once.
				blame = min(blame, t.latest-all[i-1].latest)
			}
		}
		if blame > 0 {
			by[int(who)] = append(by[int(who)], late{i, blame, t, place(t), float64(n - 1)})
		}
	}
	gaps := make([]float64, 0, len(all))
	for i := range all[1:] {
		gaps = append(gaps, float64(place(all[i+1])-place(all[i])))
	}
	least := f.opts.Share * usual(gaps) // for each collective
	var found []Finding
	for _, index := range slices.Sorted(maps.Keys(by)) {
		list := by[index]
		from, to, total := strongest(list, least)
		if to < from {
			continue
		}
		part := list[from : to+1]
		of := part[len(part)-1].at - part[0].at + 1
		begin := part[0].when
		if part[0].at > 0 {
			begin = place(all[part[0].at-1])
		}
		for n := range part { // one that stands out may be all there is
			if long := part[n].blame; long >= int64(time.Second) && float64(long) > total/2 && len(part) < 8 {
				x := f.finding(Paused, f.cause(part[n:n+1], index, byTimes), part[n].when-long, index)
				x.Waited, x.Late, x.Of = long, 1, 1
				x.Text = fmt.Sprintf("the others waited %s for rank %s once, in %s (%s)", span3(long), f.names([]int{index}), part[n].t.what, x.Cause)
				found = append(found, x)
			}
		}
		span := part[len(part)-1].when - begin
		const few, least = 8, 250e6 // of less nobody would notice, and processes that share a processor come late by chance
		if len(part) < few || total < max(f.opts.Share*float64(span), least) || !improbable(len(part), of, len(f.ranks)) {
			continue
		}
		x := f.finding(Slow, f.cause(part, index, byTimes), begin, index)
		x.Waited, x.Late, x.Of, x.Until = int64(total), len(part), of, part[len(part)-1].when-f.base
		x.Text = fmt.Sprintf("the others wait for rank %s: %s of the %s since then (%.0f %%), last in %d of %d collectives; %s",
			f.names([]int{index}), span3(int64(total)), span3(span), 100*total/float64(max(span, 1)), len(part), of, f.causeText(part, index, byTimes))
		found = append(found, x)
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(b.Waited, a.Waited)) })
	r.Findings = append(r.Findings, found...)
	if share := float64(unexplained) / float64(wall); byTimes && share > f.opts.Share && len(found) == 0 && len(hung) == 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("ranks wait %.0f %% of the time for the last one, but not for the same again, or not for what that did itself: who is slow: %s", 100*share, CannotTell))
	}
}

// usual is the mean of times without the longest of them: starts, compiling, checkpoints.
func usual(list []float64) float64 {
	slices.Sort(list)
	list = list[:len(list)-max(len(list)/32, min(2, len(list)-1))]
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(max(len(list), 1))
}

// strongest returns the part of a rank's late collectives in which the others wait most for it, beyond so much for each
// collective that there was.
func strongest(list []late, least float64) (from, to int, total float64) {
	best, sum := 0.0, 0.0
	from, to = 0, -1
	start := 0
	own, bestOwn := 0.0, 0.0
	for i := range list {
		if i > 0 {
			sum -= least * float64(list[i].at-list[i-1].at-1)
		}
		if sum <= 0 {
			sum, own, start = 0, 0, i
		}
		sum += float64(list[i].blame) - least
		own += float64(list[i].blame)
		if sum > best {
			best, from, to, bestOwn = sum, start, i, own
		}
	}
	return from, to, bestOwn
}

// improbable reports whether so many of the collectives would hardly have one rank last by chance.
func improbable(k, of, ranks int) bool {
	if ranks < 2 {
		return false
	}
	p := 1 / float64(ranks)
	lg := func(n int) float64 { v, _ := math.Lgamma(float64(n) + 1); return v }
	tail := 0.0
	for i := k; i <= of; i++ {
		tail += math.Exp(lg(of) - lg(i) - lg(of-i) + float64(i)*math.Log(p) + float64(of-i)*math.Log1p(-p))
	}
	const chance = 1e-4
	return tail*float64(ranks) < chance
}

// excess is what a rank did longer than the others before collectives, for each.
func excess(part []late) (more [nccl.Purposes]float64, all float64) {
	for i := range part {
		t := part[i].t
		for p := range more {
			more[p] += float64(t.mine[p]) - float64(t.sums[p]-t.mine[p])/part[i].others
		}
	}
	for _, v := range more {
		all += max(v, 0)
	}
	return more, all
}

// cause says in what a rank is slow, or that this is not known.
func (f *Fleet) cause(part []late, index int, byTimes bool) string {
	if !byTimes || f.ranks[index].blind {
		return CannotTell
	}
	more, all := excess(part)
	best := 0
	for p := range more {
		if more[p] > more[best] {
			best = p
		}
	}
	const most = 0.6
	if all <= 0 || more[best] < most*all {
		return CannotTell
	}
	return purposeNames[best]
}

func (f *Fleet) causeText(part []late, index int, byTimes bool) string {
	if !byTimes || f.ranks[index].blind {
		return "in what: " + CannotTell + ", as times of GPUs were not recorded (--gpu-times)"
	}
	more, _ := excess(part)
	var list []string
	order := []int{0, 1, 2, 3}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(more[b], more[a]) })
	for _, p := range order {
		if per := int64(more[p] / float64(len(part))); per > 0 && more[p]*10 >= more[order[0]] {
			list = append(list, fmt.Sprintf("%s %s longer", purposeNames[p], span3(per)))
		}
	}
	text := "before each: " + strings.Join(list, ", ")
	if f.cause(part, index, byTimes) == CannotTell {
		text += "; in what it is slow: " + CannotTell
	}
	return text
}

// span3 is a time in words.
func span3(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.3g µs", float64(ns)/1e3)
}

// differing finds ranks that differ from most.
func (f *Fleet) differing(r *Report) {
	if len(f.ranks) < 2 {
		return
	}
	add := func(name string, odd []int, text string) {
		x := f.finding(Differs, name, f.ranks[odd[0]].begin, odd...)
		x.Text = f.who(odd) + ": " + text
		r.Findings = append(r.Findings, x)
	}
	for _, name := range slices.Sorted(maps.Keys(f.facts)) {
		values := f.facts[name]
		most := ""
		for _, v := range slices.Sorted(maps.Keys(values)) {
			if most == "" || len(values[v]) > len(values[most]) {
				most = v
			}
		}
		var with []int
		for _, v := range slices.Sorted(maps.Keys(values)) {
			if with = append(with, values[v]...); v != most {
				add(name, values[v], fmt.Sprintf("%s is %s, that of %s %s", name, v, f.names(values[most]), most))
			}
		}
		if !strings.HasPrefix(name, "environment ") {
			continue
		}
		switch without := f.without(with); {
		case len(without) == 0:
		case len(with) < len(without):
			add(name, with, name+" is set, of the others it is not")
		case len(with) > len(without):
			add(name, without, name+" is not set, of the others it is")
		}
	}
	for _, set := range slices.Sorted(maps.Keys(f.sets)) {
		if set == traits.InKernels {
			continue // the notes name it
		}
		f.differingSet(set, f.sets[set], add)
	}
	for _, what := range slices.Sorted(maps.Keys(f.failing)) {
		if of := f.failing[what]; len(of)*3 <= len(f.ranks) || len(of) == 1 {
			odd := slices.Sorted(maps.Keys(of))
			if len(f.without(odd)) == 0 {
				continue
			}
			n := uint64(0)
			for _, c := range of {
				n += c
			}
			add("failing calls", odd, fmt.Sprintf("%s, %d %s; of the others it does not fail", what, n, plural(int(min(n, 2)), "time", "times")))
		}
	}
}

// without returns the ranks that are not among some, and would be if they could: what a recording that was cut off lacks may
// have come behind the cut.
func (f *Fleet) without(have []int) (list []int) {
	if len(have) == len(f.ranks) {
		return nil
	}
	has := make([]bool, len(f.ranks))
	for _, i := range have {
		has[i] = true
	}
	for i := range f.ranks {
		if f.ranks[i].Complete && !has[i] {
			list = append(list, i)
		}
	}
	return list
}

// differingSet finds ranks that have what most have not, or lack what most have.
func (f *Fleet) differingSet(set string, names map[string][]int, add func(name string, odd []int, text string)) {
	type group struct {
		odd   []int
		lacks bool
	}
	groups := make(map[string][]string)
	of := make(map[string]group)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		have := names[name]
		without := f.without(have)
		if len(without) == 0 {
			continue
		}
		g := group{odd: have}
		if len(have) > len(without) {
			g = group{odd: without, lacks: true}
		}
		key := fmt.Sprint(g)
		groups[key], of[key] = append(groups[key], name), g
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g, list := of[key], groups[key]
		verb := "has"
		if g.lacks {
			verb = "lacks"
		}
		many := ""
		if n := len(list); n > 1 {
			many = fmt.Sprintf(" and %d more", n-1)
		}
		add(set, g.odd, fmt.Sprintf("%s %s %s%s", verb, set, list[0], many))
	}
}

// notes says what limits the answer.
func (f *Fleet) notes(r *Report) {
	add := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if len(f.ops) == 0 {
		add("no collectives were recorded (--api=nccl, or --api): who is slow, and who hangs: %s", CannotTell)
	}
	if n := len(r.Missing); n > 0 {
		add("of %d of %d ranks there is no recording", n, r.World)
	}
	cut := 0
	for i := range f.ranks {
		if !f.ranks[i].Complete {
			cut++
		}
	}
	if cut > 0 {
		add("%d of %d recordings have no end: they were cut off, or are still written", cut, len(f.ranks))
	}
	if f.unknown > 0 {
		add("%d collectives are on communicators that were made before recording began, and were not compared", f.unknown)
	}
	for _, name := range slices.Sorted(maps.Keys(f.sets[traits.InKernels])) {
		add("%s use %s: that makes no calls on the host, and was not compared", f.who(slices.Clone(f.sets[traits.InKernels][name])), name)
	}
	if f.more > 0 {
		add("%d collectives were not compared, beyond the first %d", f.more, maxOps)
	}
	for _, c := range r.Clocks {
		if c.Error < 0 {
			add("the clock of %s could not be compared, and is taken as it is", cmp.Or(c.Host, "a host"))
		}
	}
}
