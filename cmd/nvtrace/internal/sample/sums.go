package sample

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"nvtrace/ioctl/channels"
	"nvtrace/traces"
)

// A sum adds up what was seen of one work on one channel.
type sum struct {
	looks          uint64
	weight         float64 // of the looks: the times that they stand for
	n              uint64  // works from begin to end
	total, squares float64
	margins        float64 // squares of what each may be off
	longest        int64
	missed         uint64
	time           int64
}

// look counts one look.
func (a *sum) look(took int64) {
	a.looks++
	a.weight += float64(took)
	a.time += took
}

// seen counts a work of which begin and end are known.
func (a *sum) seen(span *channels.Span) {
	a.n++
	d := float64(span.Unclamped)
	a.total += d
	a.squares += d * d
	a.time += span.Unclamped
	a.longest = max(a.longest, span.Dur)
	// Both ends by the same clock: of the beginning only what a copy's may be off.
	a.margins += float64(span.EndMargin) * float64(span.EndMargin)
	if span.Work.Kind == channels.CopySpan {
		a.margins += float64(span.Margin) * float64(span.Margin)
	}
}

// add adds what was seen of the same work under another address.
func (a *sum) add(b *sum) {
	a.looks += b.looks
	a.weight += b.weight
	a.n += b.n
	a.total += b.total
	a.squares += b.squares
	a.margins += b.margins
	a.longest = max(a.longest, b.longest)
	a.missed += b.missed
	a.time += b.time
}

// share returns the part of a wall time, and twice its standard error. weights and squares are of all looks.
func (a *sum) share(wall, weights, squares float64) (part, err float64) {
	if a.looks > 0 && weights > 0 {
		part = a.weight / weights
		return part, 2 * math.Sqrt(max(part*(1-part), 0)*squares) / weights
	}
	if a.n == 0 || wall <= 0 {
		return 0, 0
	}
	n := float64(a.n)
	mean := a.total / n
	missed := float64(a.missed)
	variance := a.margins / 3 // of what is anywhere within a margin
	variance += missed*missed*max(a.squares/n-mean*mean, 0)/n + missed*max(a.squares/n-mean*mean, 0)
	return (a.total + missed*mean) / wall, 2 * math.Sqrt(variance) / wall
}

// maxWorks is how many kinds of works are reported.
const maxWorks = 1 << 12

// sampled returns what was found.
func (s *sampler) sampled(now int64) *traces.Sampled {
	r := &traces.Sampled{
		Every: int64(s.o.Every), Wall: now - s.first, Looks: s.watch.Looks(), Rings: s.rings,
		Devices: []traces.SampledDevice{}, Channels: []traces.SampledChannel{}, Works: []traces.SampledWork{},
	}
	wall := float64(r.Wall)
	type byName struct {
		device  int32
		channel int
		name    string
		kernel  bool
		named   string
	}
	works := map[byName]*sum{}
	add := func(k sumKey, a *sum) {
		name, named := s.nameOf(k.work)
		n := byName{k.device, k.channel, name, k.work.Kind != channels.CopySpan, named}
		if works[n] == nil {
			works[n] = new(sum)
		}
		works[n].add(a)
	}
	for k, a := range s.sums {
		add(k, a)
	}
	devices := map[int32]int64{} // the margins of their clocks
	for _, c := range s.found {
		device := deviceOf(c.Device)
		devices[device] = c.ClockMargin
		if c.Completions > 0 {
			r.Channels = append(r.Channels, traces.SampledChannel{
				Device: device, Channel: c.Channel, Copies: c.Copies, Done: c.Completions, Seen: c.Seen, Unread: c.Skipped,
			})
		}
		for id, n := range c.Missed {
			add(sumKey{device, c.Channel, id}, &sum{missed: n})
		}
	}
	for n, a := range works {
		w := traces.SampledWork{
			Device: n.device, Channel: n.channel, Name: n.name, Named: n.named, Kernel: n.kernel,
			Looks: a.looks, Seen: a.n, Missed: a.missed, Time: a.time, Max: a.longest,
		}
		w.Share, w.Error = a.share(wall, s.weights, s.squares)
		r.Works = append(r.Works, w)
	}
	slices.SortFunc(r.Works, func(a, b traces.SampledWork) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Channel, b.Channel), strings.Compare(a.Name, b.Name))
	})
	if n := len(r.Works) - maxWorks; n > 0 {
		r.MoreWorks, r.Works = n, r.Works[:maxWorks]
	}
	for device, margin := range devices {
		d := traces.SampledDevice{Device: device, ClockMargin: margin}
		if b := s.busy[device]; b != nil {
			d.Busy, d.BusyError = b.busy(wall, s.weights, s.squares, r.Works, device)
		}
		if g := &s.shown.gpu; s.shown.told && len(devices) == 1 {
			d.Memory, d.MemoryUsed = g.Memory, g.MemoryUsed
			if r := (traces.GPUReadings{
				SMClock: g.SMClock, MemoryClock: g.MemoryClock, Utilisation: g.Utilisation, MemoryUtilisation: g.MemoryUtilisation,
				Power: g.Power, PowerLimit: g.PowerLimit, Temperature: g.Temperature,
			}); r != (traces.GPUReadings{}) {
				d.Readings = &r
			}
		}
		r.Devices = append(r.Devices, d)
	}
	slices.SortFunc(r.Devices, func(a, b traces.SampledDevice) int { return cmp.Compare(a.Device, b.Device) })
	return r
}

// busy adds up the time in which a GPU did at least one thing.
type busy struct {
	looks   float64 // the times that busy looks stand for
	pending []interval
	total   int64
	last    int64 // up to which total is
}

type interval struct{ from, to int64 }

// maxIntervals is how many works may be reported out of order.
const maxIntervals = 1 << 12

// add takes in a work.
func (b *busy) add(from, to int64) {
	b.pending = append(b.pending, interval{from, to})
	if len(b.pending) == maxIntervals {
		b.settle(maxIntervals / 2)
	}
}

func (b *busy) settle(n int) {
	slices.SortFunc(b.pending, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	for _, i := range b.pending[:n] {
		if from := max(i.from, b.last); i.to > from {
			b.total += i.to - from
			b.last = i.to
		}
	}
	b.pending = append(b.pending[:0], b.pending[n:]...)
}

// busy returns the time, and twice its standard error. Works that were missed are not in it: they count in the error.
func (b *busy) busy(wall, weights, squares float64, works []traces.SampledWork, device int32) (time, err int64) {
	if b.looks > 0 && weights > 0 {
		part := b.looks / weights
		return int64(part * wall), int64(2 * math.Sqrt(max(part*(1-part), 0)*squares) / weights * wall)
	}
	b.settle(len(b.pending))
	missed := 0.0
	for i := range works {
		if w := &works[i]; w.Device == device && w.Seen > 0 {
			missed += w.Error*wall + float64(w.Missed)*float64(w.Time)/float64(w.Seen)
		}
	}
	return b.total, int64(missed)
}
