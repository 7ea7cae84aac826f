package run

import (
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/traces"
)

// A tick is what is done again and again.
type tick struct {
	every time.Duration
	do    func(time.Time)
}

// A ticker runs the intervals of a program, and of counters, at their times, also while nothing happens. It
// implements record.Sink.
type ticker struct {
	mu    sync.Mutex // of sink
	sink  *view.Sink
	stop  chan struct{}
	ended sync.WaitGroup
}

func startTicker(sink *view.Sink, ticks []tick) *ticker {
	t := &ticker{sink: sink, stop: make(chan struct{})}
	for _, k := range ticks {
		t.ended.Go(func() { t.run(k) })
	}
	return t
}

func (t *ticker) run(k tick) {
	clock := time.NewTicker(k.every)
	defer clock.Stop()
	for {
		select {
		case <-t.stop:
			return
		case now := <-clock.C:
			t.mu.Lock()
			k.do(now)
			t.mu.Unlock()
		}
	}
}

// Event implements record.Sink.
func (t *ticker) Event(ev *traces.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Event(ev)
}

// Idle implements record.Sink.
func (t *ticker) Idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Idle()
}

func (t *ticker) end() {
	close(t.stop)
	t.ended.Wait()
}
