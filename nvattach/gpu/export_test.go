package gpu

import (
	"time"

	"nvtrace/nvattach/session"
)

func init() { gateTime = time.Minute }

// TextLater has the kernels of all images get their programs when they are looked up, until the
// function that it returns is called: the simulated GPU runs no machine code.
func TextLater() (undo func()) {
	was := codeLater
	codeLater = func(_ *session.Context, image []byte, _ *session.RewriteOptions) (func(string) ([]byte, error), int) {
		return func(string) ([]byte, error) { return image, nil }, len(image)
	}
	return func() { codeLater = was }
}

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
