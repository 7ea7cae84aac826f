package view

import (
	"io"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/ioctl/allow"
	"nvtrace/ioctl/diff"
)

// FuzzReports damages a recording's bytes: whatever programs and recordings
// hold, reports come out, a run does not differ from itself, lacks nothing of
// its own list, and every object of a drawing stands under its parent.
func FuzzReports(f *testing.F) {
	base := testrec.Shared()
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed*7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		events := base.Damaged(seed, n)
		var profiles [2]*diff.Profile
		c := allow.NewCollector()
		for i := range profiles {
			d := ioctl.NewDecoder(&base.Header)
			p := diff.NewProfile(&base.Header, nil)
			for _, ev := range events {
				call := d.Decode(ev)
				p.Add(ev, &call, d)
				if i == 0 {
					c.Add(ev, &call, d)
				}
			}
			profiles[i] = p
		}
		if r := diff.Compare(profiles[0], profiles[1]); !r.Same {
			t.Fatalf("differs from itself: %s", r.AppendText(nil))
		}
		d := ioctl.NewDecoder(&base.Header)
		k := allow.NewChecker(c.List)
		book := newFailureBook(d)
		for _, ev := range events {
			call := d.Decode(ev)
			k.Add(ev, &call, d)
			book.Observe(&observe.Event{Event: ev, Call: &call, Decoder: d})
		}
		if l := k.Lacks(); len(l) > 0 {
			t.Fatalf("lacks %s", l[0].LackText())
		}
		if err := book.write(io.Discard, new(Layout)); err != nil {
			t.Fatal(err)
		}
	})
}
