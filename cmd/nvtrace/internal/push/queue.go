package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what waits to be sent, and of how long it is tried.
const (
	maxQueued  = 4 << 20 // bytes
	maxItems   = 1 << 10
	firstPause = time.Second // after a failure; each one doubles it
	maxPause   = 30 * time.Second
	maxTried   = 2 * time.Minute // from the first try of a request on: others wait behind it
	endWait    = 2 * time.Second // for what is left when the program has ended
)

// item is a request that waits to be sent.
type item struct {
	to   *endpoint
	body []byte
	what string // "span": what is lost with it
	n    int    // and how many
}

// Sender sends to one receiver. Its methods may be called by any goroutine.
type Sender struct {
	notice func(format string, args ...any)
	ended  chan struct{}
	wake   chan struct{} // there is something to send, or the end has come
	ctx    context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	queue   []item
	size    int
	closing bool
	said    bool
	lost    map[string]int
	failure error // the latest
}

// newSender returns a sender, which says by notice what is wrong, once while the program runs.
func newSender(notice func(format string, args ...any)) *Sender {
	s := &Sender{notice: notice, ended: make(chan struct{}), wake: make(chan struct{}, 1), lost: make(map[string]int)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	go s.run()
	return s
}

// add puts a request into the queue. If that is full, the oldest ones are lost: later ones have newer values.
func (s *Sender) add(x item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || len(x.body) > maxQueued {
		s.lost[x.what] += x.n
		return
	}
	for len(s.queue) > 0 && (s.size+len(x.body) > maxQueued || len(s.queue) >= maxItems) {
		s.lost[s.queue[0].what] += s.queue[0].n
		s.size -= len(s.queue[0].body)
		s.queue = slices.Delete(s.queue, 0, 1)
	}
	s.queue = append(s.queue, x)
	s.size += len(x.body)
	s.poke()
}

// Lose counts what was not even put into the queue.
func (s *Sender) Lose(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[what] += n
}

// poke wakes the goroutine that sends.
func (s *Sender) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the oldest request; done says that none will come any more.
func (s *Sender) take() (x item, ok, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return x, false, s.closing
	}
	x = s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	s.size -= len(x.body)
	return x, true, false
}

func (s *Sender) run() {
	defer close(s.ended)
	for {
		x, ok, done := s.take()
		switch {
		case done:
			return
		case ok:
			s.deliver(&x)
		default:
			<-s.wake
		}
	}
}

// deliver sends a request, again and again until the receiver takes or refuses it, its time is over, or the end has come.
func (s *Sender) deliver(x *item) {
	first := time.Now()
	for pause, last := firstPause, false; ; pause = min(2*pause, maxPause) {
		rejected, err := x.to.send(s.ctx, x.body)
		var again *againError
		if s.tried(x, rejected, err); err == nil || !errors.As(err, &again) {
			return
		}
		// Receivers of many ranks are not to be asked by all of them at a time.
		wait := time.Duration(float64(pause) * (0.5 + rand.Float64()))
		wait = min(max(wait, again.after), maxPause)
		if last || time.Since(first)+wait > maxTried {
			s.Lose(x.what, x.n)
			return
		}
		last = !s.rest(wait)
	}
}

// rest waits before the next try. At the end that is the last one, and comes at once: false.
func (s *Sender) rest(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-s.wake: // something was added, or the end has come
		}
	}
}

// tried takes in how a try has ended.
func (s *Sender) tried(x *item, rejected int, err error) {
	if text := s.count(x, rejected, err); text != "" {
		s.notice("%s", text) // without the lock: others don't wait for who reads it
	}
}

// count counts what a try has lost. It returns what is to be said of it; "": nothing.
func (s *Sender) count(x *item, rejected int, err error) (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var again *againError
	refused := err != nil && !errors.As(err, &again)
	if refused {
		rejected = x.n
	}
	if rejected > 0 {
		s.lost[x.what] += rejected
	}
	if err == nil {
		return ""
	}
	if s.failure = err; s.ctx.Err() != nil {
		s.failure = errors.New("the receiver was too slow")
	}
	if s.said || s.closing {
		return ""
	}
	s.said = true
	if refused {
		return err.Error()
	}
	return err.Error() + "; it is tried again"
}

// Close sends what is left, if that can be done soon. It returns what was lost; "": nothing.
func (s *Sender) Close() string {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.poke()
	timer := time.AfterFunc(endWait, s.stop)
	<-s.ended
	timer.Stop()
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, what := range slices.Sorted(maps.Keys(s.lost)) {
		if n := s.lost[what]; n == 1 {
			list = append(list, "1 "+what)
		} else {
			list = append(list, fmt.Sprintf("%d %ss", n, what))
		}
	}
	if list == nil {
		return ""
	}
	text := strings.Join(list, " and ") + " not delivered"
	if s.failure != nil {
		text += fmt.Sprintf("; the latest failure: %v", s.failure)
	}
	return text
}
