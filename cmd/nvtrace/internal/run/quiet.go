package run

import (
	"errors"
	"io"
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// Of --quiet-success: how much is kept of the last calls, and of which libraries, if flags do not say otherwise. NCCL's
// calls are few, and what hangs or is slow in jobs of many ranks is seen in them.
const (
	quietWindow    = time.Minute
	quietLibraries = "nccl,nvtx"
)

// setQuiet sets what --quiet-success stands for.
func (f *runFlags) setQuiet() error {
	if !f.quietSuccess {
		return nil
	}
	switch {
	case f.out == "":
		return errors.New("--quiet-success wants -o FILE, where a recording is kept if something goes wrong")
	case f.top || f.stat.Given || f.summary || f.log.Given || f.json.Given || f.env:
		return errors.New("--quiet-success prints nothing, and excludes --top, --stat, --summary, --ioctl-log, --json and --env")
	}
	f.quiet = true
	if f.flight == 0 {
		f.flight = cli.SecondsFlag(quietWindow)
	}
	if !f.api.Given {
		return f.api.Set(quietLibraries)
	}
	return nil
}

// held keeps back what is written until it is known whether anybody wants to read it.
type held struct {
	to io.Writer

	mu   sync.Mutex
	kept []byte
	more bool // than was kept
	open bool
}

// maxHeld bounds what is kept back.
const maxHeld = 64 << 10

// Write implements io.Writer.
func (h *held) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return h.to.Write(b)
	}
	if len(h.kept)+len(b) > maxHeld {
		h.more = true
		return len(b), nil
	}
	h.kept = append(h.kept, b...)
	return len(b), nil
}

// release writes what was kept back, and all that follows at once. Of nil it does nothing.
func (h *held) release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return
	}
	h.open = true
	if _, err := h.to.Write(h.kept); err == nil && h.more {
		_, _ = io.WriteString(h.to, "nvtrace: … and more\n")
	}
	h.kept = nil
}

// hold has a run that ends well say nothing, if that was asked for; nil otherwise.
func (f *runFlags) hold(stderr *io.Writer) *held {
	if !f.quietSuccess {
		return nil
	}
	h := &held{to: *stderr}
	*stderr = h
	return h
}
