package cli

import "io"

// Behind writes what it is given on a goroutine of its own, so that who makes text need not wait until what
// is beneath has looked through it. Its methods are for one goroutine.
type Behind struct {
	full chan []byte
	free chan []byte
	done chan error
	err  error // of the writer beneath, once it is known
}

// behindBuffers is how many pieces of text may wait.
const behindBuffers = 4

// NewBehind begins to write to w what it is given.
func NewBehind(w io.Writer) *Behind {
	b := &Behind{full: make(chan []byte, behindBuffers), free: make(chan []byte, behindBuffers), done: make(chan error, 1)}
	for range behindBuffers {
		b.free <- nil
	}
	go func() {
		failed := false
		for p := range b.full {
			if !failed {
				if _, err := w.Write(p); err != nil {
					failed = true
					b.done <- err
				}
			}
			b.free <- p[:0]
		}
		close(b.done)
	}()
	return b
}

// Write implements io.Writer. An error is that of an earlier write.
func (b *Behind) Write(p []byte) (int, error) {
	if b.err == nil {
		select {
		case b.err = <-b.done:
		default:
		}
	}
	if b.err != nil {
		return 0, b.err
	}
	b.full <- append(<-b.free, p...)
	return len(p), nil
}

// Close waits until all is written, and returns the error that writing has met. It does not close the writer
// beneath.
func (b *Behind) Close() error {
	close(b.full)
	for err := range b.done {
		b.err = err
	}
	return b.err
}
