package channels

// A clock relates a GPU's clock to the host's by what looks have seen: a time stamp that a look has shown
// was written before the look's end, and one that the look before hadn't was written after that began.
type clock struct {
	least, most int64 // bounds of host less GPU, in nanoseconds
	at          int64 // when they were true, by the GPU
	known       bool  // most; least is known if it is more than most - unbounded
}

const (
	clockDrift   = 50_000 // of a second: how far the clocks may drift apart, in nanoseconds a second
	writeLatency = 1_000  // from a time stamp to when the host can read it
	unbounded    = 1 << 40
)

// add takes in a time stamp that was not there at host time before (0: not known), and was at host time after.
func (c *clock) add(stamp uint64, before, after int64) {
	t := int64(stamp)
	most, least := after-t, after-t-unbounded
	if before != 0 {
		least = before - t - writeLatency
	}
	if c.known {
		widened := max(t-c.at, 0) / 1e6 * clockDrift / 1e3
		if l, m := max(least, c.least-widened), min(most, c.most+widened); l <= m {
			least, most = l, m
		} // else one of the clocks was set
	}
	c.least, c.most, c.known = least, most, true
	c.at = max(t, c.at)
}

// offset returns host less GPU, and by how much it may be off.
func (c *clock) offset() (offset, margin int64, known bool) {
	if !c.known || c.most-c.least >= unbounded/2 {
		return 0, 0, false
	}
	return c.least + (c.most-c.least)/2, (c.most - c.least + 1) / 2, true
}
