package gpu

import (
	"fmt"
	"sync"
	"time"
)

// slowAfter is how long kernels are compiled before that is told.
const slowAfter = time.Second

// A progress tells how far compiling has come, where it takes long: after slowAfter, and then as often as that time
// doubles.
type progress struct {
	tr    *Tracer
	about string // what is said behind it: whose kernels, who waits

	mu       sync.Mutex // guards what follows
	done, of int        // kernels; none are known of before they were found
	timer    *time.Timer
	next     time.Duration
}

// progress begins one, of what text says.
func (tr *Tracer) progress(after time.Duration, text string) *progress {
	p := &progress{tr: tr, about: text, next: after}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(after, p.say)
	return p
}

func (p *progress) say() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.timer == nil:
		return
	case p.of > 0:
		p.tr.report("%s", fmt.Sprintf("compiling %d of %d kernels with probes: %s", min(p.done+1, p.of), p.of, p.about))
	default:
		p.tr.report("%s", "compiling kernels with probes: "+p.about)
	}
	p.next *= 2
	p.timer.Reset(p.next)
}

// add takes note of kernels: more, of which done were compiled.
func (p *progress) add(more, done int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of += more
	p.done += done
}

// end ends it.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
