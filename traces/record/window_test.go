package record

import (
	"math"
	"testing"
	"time"
)

// TestWindow: which calls are recorded, by when they began.
func TestWindow(t *testing.T) {
	const never = math.MaxInt64
	for _, c := range []struct {
		name            string
		delay, duration time.Duration
		waits           bool
		do              func(w *window)
		on, off         []int64
	}{
		{name: "all", on: []int64{-5, 0, 7}},
		{name: "delay", delay: 10, on: []int64{10, never}, off: []int64{-1, 0, 9}},
		{name: "duration", duration: 10, on: []int64{0, 9}, off: []int64{-1, 10, never}},
		{name: "both", delay: 5, duration: 10, on: []int64{5, 14}, off: []int64{4, 15}},
		{name: "waits", waits: true, off: []int64{0, never}},
		{name: "begun", waits: true, delay: 5, duration: 10, do: func(w *window) { w.begin(100); w.begin(200) }, on: []int64{105, 114}, off: []int64{100, 104, 115, 205}},
		{name: "stop", do: func(w *window) { w.turn(50, false) }, on: []int64{0, 49}, off: []int64{50, never}},
		{name: "stop and start", do: func(w *window) { w.turn(50, false); w.turn(60, true) }, on: []int64{49, 60, never}, off: []int64{50, 59}},
		{name: "start before begin", waits: true, duration: 10, do: func(w *window) { w.turn(20, true); w.begin(30) }, on: []int64{20, 30, 40, never}, off: []int64{19}},
		{name: "start after the end", duration: 10, do: func(w *window) { w.turn(20, true) }, on: []int64{9, 20, never}, off: []int64{10, 19}},
		{name: "start before the end", duration: 10, do: func(w *window) { w.turn(5, true) }, on: []int64{4, 5, 20}},
		{name: "many", do: func(w *window) {
			for i := range int64(1000) {
				w.turn(10*i, i%2 == 0)
			}
		}, on: []int64{9980, 9989}, off: []int64{9990, never}},
	} {
		var w window
		w.init(c.delay, c.duration, c.waits)
		if c.do != nil {
			c.do(&w)
		}
		for _, at := range c.on {
			if !w.wanted(at) {
				t.Errorf("%s: a call at %d is not recorded", c.name, at)
			}
		}
		for _, at := range c.off {
			if w.wanted(at) {
				t.Errorf("%s: a call at %d is recorded", c.name, at)
			}
		}
	}
}
