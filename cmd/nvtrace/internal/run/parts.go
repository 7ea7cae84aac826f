package run

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/traces"
)

// rotation says when a recording goes on in another file, and how many are kept.
type rotation struct {
	size int64 // bytes; 0: never
	keep int   // files; 0: all
}

// Set implements flag.Value.
func (r *rotation) Set(s string) (err error) {
	size, keep, some := strings.Cut(s, ",")
	if r.size, err = cli.ParseSize(size); err != nil {
		return err
	}
	if r.size == 0 {
		return errors.New("want a size, such as 1G")
	}
	if some {
		if r.keep, err = strconv.Atoi(keep); err != nil || r.keep < 1 {
			return fmt.Errorf("%q is no number of files", keep)
		}
	}
	return nil
}

// String implements flag.Value.
func (r *rotation) String() string { return "" }

// maxPrograms bounds what is kept of a program with very many processes.
const maxPrograms = 1 << 16

// parts writes a recording: into one file, or into one after the other. Each can be read by
// itself: it begins with the header and what the processes execute, and ends as a recording
// does. It implements record.Sink.
type parts struct {
	rotation
	e      *cli.Env
	header *traces.Header
	name   func(part int) (string, error)
	errs   view.Once
	w      *traces.Writer
	part   int
	began  uint64   // events of the part that were there before
	names  []string // of the parts that are kept, the newest last
	execs  map[int32]*traces.Event
}

// begin opens a part.
func (p *parts) begin(part int) error {
	name, err := p.name(part)
	if err != nil {
		return err
	}
	if err := p.e.RefuseInput(name); err != nil {
		return err
	}
	g, err := cli.OpenGrown(name, cli.ModePrivate)
	if err != nil {
		return err
	}
	if err := g.Begin(); err != nil {
		g.Abandon()
		return err
	}
	return p.open(g, part)
}

// open starts the recording in an open file.
func (p *parts) open(g *cli.GrownFile, part int) error {
	said := p.errs.Said
	p.errs.Said = true // the first error is NewFileWriter's own
	w, err := traces.NewFileWriter(g.File, p.header, &traces.WriterOptions{OnError: p.errs.Report})
	p.errs.Said = said
	if err != nil {
		return err
	}
	p.w, p.part, p.names = w, part, append(p.names, g.Name())
	return nil
}

// Event implements record.Sink.
func (p *parts) Event(ev *traces.Event) {
	p.w.Write(ev)
	if p.size == 0 {
		return
	}
	switch {
	case ev.Kind == traces.KindExec && len(p.execs) < maxPrograms:
		if p.execs == nil {
			p.execs = make(map[int32]*traces.Event)
		}
		p.execs[ev.PID] = ev.Clone()
	case ev.Kind == traces.KindExit && ev.TID == ev.PID:
		delete(p.execs, ev.PID)
	}
	if int64(p.w.Written()) >= p.size && p.w.Err() == nil && ev.Kind != traces.KindEnd && p.w.Events() > p.began {
		p.next(ev.Time + ev.Dur)
	}
}

// next goes on in another file. Where that can't be opened, the recording goes on where it is.
func (p *parts) next(now int64) {
	old := p.w
	if err := p.begin(p.part + 1); err != nil {
		p.e.Notice("--rotate: %v; the recording goes on in %s", err, p.names[len(p.names)-1])
		p.size = 0
		return
	}
	old.Write(&traces.Event{Kind: traces.KindNote, Time: now, FD: -1, Text: "the recording goes on in " + p.names[len(p.names)-1]})
	old.Write(&traces.Event{Kind: traces.KindEnd, Time: now, FD: -1, Cost: &traces.Cost{Events: old.Events()}})
	_ = old.Close() // the error sticks, and OnError has told it
	for _, pid := range slices.Sorted(maps.Keys(p.execs)) {
		ev := *p.execs[pid]
		ev.Flags |= traces.FlagImplicit
		p.w.Write(&ev)
	}
	p.began = p.w.Events()
	if p.keep > 0 && len(p.names) > p.keep {
		p.errs.Report(os.Remove(p.names[0]))
		p.names = p.names[1:]
	}
}

// Idle implements record.Sink. The writer flushes by itself; an idle moment is
// the time to put out what is left.
func (p *parts) Idle() {
	if p.w.Pending() > 0 {
		_ = p.w.Flush() // the error sticks, and OnError has told it
	}
}

func (p *parts) close() {
	_ = p.w.Close() // the error sticks, and OnError has told it
}
