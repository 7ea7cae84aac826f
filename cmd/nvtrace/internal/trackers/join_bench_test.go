package trackers

import (
	"testing"

	"nvtrace/ioctl/channels"
)

// BenchmarkBehind joins submissions that are understood long after their launches were made: one operation is a launch.
func BenchmarkBehind(b *testing.B) {
	const backlog = 1 << 15
	j := newJoin(func(*Launch, *channels.Span) {}, nil)
	j.whole = true
	made, joined := int64(0), int64(0)
	launch := func() {
		made++
		j.launched(&Launch{Begin: made * 20_000, End: made*20_000 + 5_000, Name: "cuLaunchKernel", Subject: 1, Grid: [3]uint32{1, 1, 1}})
	}
	for range backlog {
		launch()
	}
	for b.Loop() {
		launch()
		joined++
		at := joined * 20_000
		j.submitted(&channels.Submission{
			ID: uint64(joined), Work: channels.WorkID{Program: 0x1000, Grid: [3]uint32{1, 1, 1}}, After: at - 10_000, Before: at + 4_000, First: joined == 1,
		})
		j.settle(made*20_000, at)
		j.spanned(&channels.Span{ID: uint64(joined), Start: at, Dur: 1000})
	}
	if j.counts.Timed < uint64(joined)*9/10 {
		b.Fatalf("%+v of %d", j.counts, joined)
	}
}
