package cli

import (
	"os"
	"time"

	"nvtrace/traces"
)

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
	err := r.Batches(func(events []traces.Event, read int64) {
		for i := range events {
			f(&events[i])
		}
		p.At(min(read, p.total))
	})
	if err != nil {
		return err
	}
	if !r.Complete() {
		notice("the recording was cut off after %d events: nvtrace or the machine stopped before the program ended", r.Events())
	}
	return nil
}
