package run

import (
	"slices"
	"sync"
	"sync/atomic"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// attachNotice says that attaching succeeded, as soon as it has. It implements
// record.Sink.
type attachNotice struct {
	e    *cli.Env
	pids cli.PIDList
	said bool
}

// Event implements record.Sink.
func (a *attachNotice) Event(ev *traces.Event) {
	if !a.said && ev.Flags&traces.FlagAttached != 0 {
		a.said = true
		what := "process"
		if len(a.pids) > 1 {
			what = "processes"
		}
		a.e.Notice("attached to %s %s; Ctrl-C detaches", what, a.pids.String())
		for _, pid := range a.pids {
			if proc.FirstEnded(pid) {
				a.e.Notice("the first thread of process %d has ended, so that the kernel does not tell what the process has mapped: "+
					"its functions have no probes and are not recorded; programs that it starts do", pid)
			}
		}
	}
}

// Idle implements record.Sink.
func (a *attachNotice) Idle() {}

// gapNotice tells of what the recording lacks, where nobody would read it
// otherwise. It implements record.Sink.
type gapNotice struct {
	e *cli.Env
	n int
}

// Event implements record.Sink.
func (g *gapNotice) Event(ev *traces.Event) {
	if ev.Kind != traces.KindGap {
		return
	}
	if g.n++; g.n <= view.FewGaps {
		g.e.Notice("incomplete: %s", ev.Text)
	}
}

// Idle implements record.Sink.
func (g *gapNotice) Idle() {}

// Finish says how many more there were.
func (g *gapNotice) Finish() {
	if more := g.n - view.FewGaps; more > 0 {
		g.e.Notice("incomplete: %d more reasons", more)
	}
}

// gate holds the events back that come before the outputs are open, and drops them if
// that never happens: then nothing of the program has begun. It implements record.BlockSink,
// and so does what it opens for.
type gate struct {
	opened atomic.Bool
	mu     sync.Mutex
	next   record.BlockSink // nil before open
	held   [][]byte         // blocks, by then
}

// open gives next all events, those that came before too. It may be called on another
// goroutine than Block.
func (g *gate) open(next record.BlockSink) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = next
	for _, b := range g.held {
		next.Block(b)
	}
	g.held = nil
	next.Idle() // when the last of them came, nobody could put it out
	g.opened.Store(true)
}

// Block implements record.BlockSink.
func (g *gate) Block(block []byte) {
	if g.opened.Load() {
		g.next.Block(block)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != nil {
		g.next.Block(block)
	} else {
		g.held = append(g.held, slices.Clone(block))
	}
}

// Event implements record.Sink, for who has an event alone.
func (g *gate) Event(ev *traces.Event) {
	var b traces.Batch
	b.Add(ev)
	g.Block(b.AppendTo(nil))
}

// Idle implements record.Sink.
func (g *gate) Idle() {
	if g.opened.Load() {
		g.next.Idle()
	}
}
