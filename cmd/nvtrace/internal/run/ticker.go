package run

import (
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/traces"
)

// A ticker runs the intervals of a program at their times, also while nothing happens. It
// implements record.Sink.
type ticker struct {
	mu    sync.Mutex // of sink
	sink  *view.Sink
	stop  chan struct{}
	ended chan struct{}
}

func startTicker(sink *view.Sink, every time.Duration) *ticker {
	t := &ticker{sink: sink, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-t.stop:
				return
			case now := <-tick.C:
				t.mu.Lock()
				sink.Script.Tick(now)
				t.mu.Unlock()
			}
		}
	}()
	return t
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
	<-t.ended
}
