package gpu

import "time"

func init() { gateTime = time.Minute }

// Redirected returns how many programs are attached to, and how many of their launches have
// gone on with copies. It must not be called when their memory is closed.
func (tr *Tracer) Redirected() (programs int, launches uint64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, l := range tr.attached.all {
		launches += l.subst.Done()
	}
	return len(tr.attached.all), launches
}
