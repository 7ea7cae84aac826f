package cli

import (
	"io"
	"os"
	"time"

	"nvtrace/traces"
)

// Recordings are read ahead, on a goroutine of their own: to read an event takes about as
// long as to make something of it. These bound what lies between.
const (
	batchEvents = 256
	batchBytes  = 1 << 20
	batches     = 3
)

// batch is events that were read; err is why they are the last: io.EOF, or damage.
type batch struct {
	events [batchEvents]traces.Event
	n      int
	read   int64 // bytes of the file so far
	err    error
}

// fill reads events until there are enough.
func (b *batch) fill(r *traces.Reader) {
	b.n = 0
	for bytes := 0; b.n < batchEvents && bytes < batchBytes; b.n++ {
		ev := &b.events[b.n]
		if b.err = r.Next(ev); b.err != nil {
			return
		}
		for i := range ev.Mem {
			bytes += len(ev.Mem[i].In) + len(ev.Mem[i].Out)
		}
	}
	b.read = r.InputBytes()
}

// Between gives f the events that end in a span of time since the start; until 0 is the
// end. The reader need not read what comes before it.
func Between(r *traces.Reader, since, until time.Duration, f func(*traces.Event)) func(*traces.Event) {
	if since == 0 && until == 0 {
		return f
	}
	_ = r.SkipTo(int64(since)) // damage comes again with the first event
	return func(ev *traces.Event) {
		if end := ev.Time + ev.Dur; end >= int64(since) && (until == 0 || end <= int64(until)) {
			f(ev)
		}
	}
}

// Each gives every event of a recording to f. A damaged recording yields its
// error after what could be read; one that was cut off is told to notice.
func Each(r *traces.Reader, notice func(string, ...any), f func(*traces.Event)) error {
	return watchedEach(r, new(Progress), notice, f)
}

// Each is each of a recording of that name, with a line that says how far it is where
// somebody waits at a terminal.
func (e *Env) Each(r *traces.Reader, name string, notice func(string, ...any), f func(*traces.Event)) error {
	p := NewProgress(e, name, 0, "bytes")
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
		p.total, p.off = st.Size(), !IsTerminal(e.Stderr)
	}
	defer p.Clear()
	return watchedEach(r, p, func(format string, args ...any) {
		p.Clear()
		notice(format, args...)
	}, f)
}

func watchedEach(r *traces.Reader, p *Progress, notice func(string, ...any), f func(*traces.Event)) error {
	full, free := make(chan *batch, batches), make(chan *batch, batches)
	for range batches {
		free <- new(batch)
	}
	go func() {
		defer close(full)
		for b := range free {
			b.fill(r)
			full <- b
			if b.err != nil {
				return
			}
		}
	}()
	var err error
	for b := range full {
		for i := range b.events[:b.n] {
			f(&b.events[i])
		}
		p.At(min(b.read, p.total))
		if err = b.err; err == nil {
			free <- b
		}
	}
	if err != io.EOF { //nolint:errorlint // Next returns it bare; damage may wrap it
		return err
	}
	if !r.Complete() {
		notice("the recording was cut off after %d events: nvtrace or the machine stopped before the program ended", r.Events())
	}
	return nil
}
