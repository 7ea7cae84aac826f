package traces

import "math"

// Batch gathers events on their way from one goroutine or process to another, in the form of
// a block: that takes little memory, and what made an event may use it again at once. The zero
// value is empty. A Batch is for one goroutine at a time.
type Batch struct {
	x *blockEncoder
}

// Add copies an event, with all that it refers to, as far as recordings hold it.
func (b *Batch) Add(e *Event) {
	if b.x == nil {
		b.x = newBlockEncoder()
	}
	b.x.add(e)
}

// Len returns how many events there are.
func (b *Batch) Len() int {
	if b.x == nil {
		return 0
	}
	return b.x.events
}

// Size returns about how many bytes they take.
func (b *Batch) Size() int {
	if b.x == nil {
		return 0
	}
	return b.x.size
}

// Full reports whether the next event should go into another batch.
func (b *Batch) Full() bool { return b.Len() >= maxBlockEvents || b.Size() >= defaultBlockBytes }

// AppendTo appends the events to dst as a block, which [Writer.WriteBlock] and
// [Unbatcher.Each] take. The batch is empty then.
func (b *Batch) AppendTo(dst []byte) []byte {
	if b.x == nil {
		b.x = newBlockEncoder()
	}
	return b.x.appendTo(dst)
}

// Unbatcher takes blocks apart. The zero value is ready. It is for one goroutine.
type Unbatcher struct {
	p parser
	d blockDecoder
	e Event
}

// Each calls f for each event of a block that [Batch.AppendTo] made. The event is valid only
// during the call.
func (u *Unbatcher) Each(block []byte, f func(*Event)) error {
	if u.d.p == nil {
		u.p.strings = make(map[string]string)
		u.d.p = &u.p
	}
	if len(block) < blockHead {
		return errBlock
	}
	if err := u.d.begin(block[blockHead:], math.MinInt64); err != nil {
		return err
	}
	for {
		more, err := u.d.next(&u.e)
		if err != nil || !more {
			return err
		}
		f(&u.e)
	}
}
