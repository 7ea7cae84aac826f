package gpu

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPace: whatever pieces take, threads are held for no more than hold of any holdWindow, but for what one piece
// takes that is longer than all before it.
func TestPace(t *testing.T) {
	const hold = 20 * time.Millisecond
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // to be the same each time
	for range 50 {
		p := pace{hold: hold}
		now := time.Unix(1000, 0)
		var all []heldTime
		longest, pieces := time.Duration(0), 0
		for range 2000 {
			now = now.Add(time.Duration(rnd.IntN(20_000)) * time.Microsecond)
			if !p.may(now) {
				continue
			}
			begin := now
			p.begin(now)
			now = now.Add(time.Duration(rnd.IntN(300)) * time.Microsecond) // until the first piece begins
			for p.may(now) {
				d := time.Duration(1+rnd.IntN(6000)) * time.Microsecond
				if rnd.IntN(100) == 0 {
					d *= 10
				}
				now = now.Add(d)
				p.took(d)
				longest = max(longest, d)
				pieces++
			}
			p.end(now)
			all = append(all, heldTime{begin, now})
		}
		if pieces < 500 {
			t.Errorf("%d pieces", pieces)
		}
		for i := range all { // windows that end with a hold are the worst
			sum, end := time.Duration(0), all[i].end
			for _, h := range all[:i+1] {
				sum += max(h.end.Sub(latest(h.begin, end.Add(-holdWindow))), 0)
			}
			if sum > hold+longest+300*time.Microsecond {
				t.Fatalf("held for %v of %v; the longest piece took %v", sum, holdWindow, longest)
			}
		}
	}
}

// TestPaceLong: a piece that takes longer than there is time for is begun when nothing else was done for holdWindow.
func TestPaceLong(t *testing.T) {
	p := pace{hold: time.Millisecond}
	now := time.Unix(1000, 0)
	for range 5 {
		if !p.may(now) {
			t.Fatal("not begun")
		}
		p.begin(now)
		if !p.may(now.Add(2 * time.Millisecond)) {
			t.Fatal("nothing is done in a hold")
		}
		end := now.Add(50 * time.Millisecond)
		p.took(50 * time.Millisecond)
		if p.may(end) {
			t.Fatal("two pieces in a hold")
		}
		p.end(end)
		if p.may(end.Add(holdWindow - time.Millisecond)) {
			t.Fatal("begun too early")
		}
		now = end.Add(holdWindow)
	}
}
