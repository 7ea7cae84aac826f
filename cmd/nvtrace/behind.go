package main

import "io"

// behind writes what it is given on a goroutine of its own, so that who makes text need not wait until what
// is beneath has looked through it. Its methods are for one goroutine.
type behind struct {
	full chan []byte
	free chan []byte
	done chan error
	err  error // of the writer beneath, once it is known
}

// behindBuffers is how many pieces of text may wait.
const behindBuffers = 4

func newBehind(w io.Writer) *behind {
	b := &behind{full: make(chan []byte, behindBuffers), free: make(chan []byte, behindBuffers), done: make(chan error, 1)}
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
func (b *behind) Write(p []byte) (int, error) {
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
func (b *behind) Close() error {
	close(b.full)
	for err := range b.done {
		b.err = err
	}
	return b.err
}
