// Package trackers finds out when GPUs ran what calls have launched, from what GPUs write to the channels' trackers
// and semaphores: nvtrace looks at them from outside, and the program does nothing for it.
package trackers

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/ioctl/channels"
	"nvtrace/nvattach/api"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Times has the launches of a run's processes timed.
type Times struct {
	recorder *record.Recorder
	whole    bool // processes are traced from their beginning

	mu        sync.Mutex
	processes map[int]*process
	ended     map[int]int64        // processes that have ended, and when
	chosen    map[int]bool         // processes of which [Times.Chooses] has spoken; nil: all are timed
	open      map[thread][]*Launch // calls that have not returned; nil: one that is of no use
	capturing map[int]int          // captures of streams into graphs that have begun, by process
	counts    Counts
	failed    string // why a process can't be looked at; "": all can
}

type thread struct{ pid, tid int }

// New returns what times the launches of a recorder's processes. whole says that they are traced from their beginning.
func New(r *record.Recorder, whole bool) *Times {
	return &Times{recorder: r, whole: whole, processes: map[int]*process{}, ended: map[int]int64{}, open: map[thread][]*Launch{}, capturing: map[int]int{}}
}

// perProcess is how many processors there must be for each process of which launches are timed: two look at its channels,
// and the process itself wants at least as many.
const perProcess = 4

// NewBeside returns what times launches of kernels in the processes that [Times.Chooses] names, and nothing else.
func NewBeside(r *record.Recorder, whole bool) *Times {
	t := New(r, whole)
	t.chosen = map[int]bool{}
	return t
}

// Chooses says whether the kernels of a process, which has just got the CUDA driver, are timed by its channels: if these can be
// read, and if there are processors enough to look at them. If so, it begins to.
func (t *Times) Chooses(pid int) bool {
	t.mu.Lock()
	yes, said := t.chosen[pid]
	n := len(t.processes)
	t.mu.Unlock()
	if said {
		return yes
	}
	yes = (n+1)*perProcess <= runtime.GOMAXPROCS(0) && readable(pid)
	t.mu.Lock()
	t.chosen[pid] = yes
	t.mu.Unlock()
	if yes {
		t.Begin(pid)
	}
	return yes
}

// readable reports whether a process's memory can be read from outside.
func readable(pid int) bool {
	p, err := channels.Open(pid, channels.AllMemory)
	if err != nil {
		return false
	}
	return p.Close() == nil
}

// Extension has processes that end forgotten, and says at the end which launches have no times.
func (t *Times) Extension() record.Extension {
	return record.Extension{Before: t.before, Finish: func() {
		if text := t.end(); text != "" {
			t.recorder.Note(nil, text)
		}
	}}
}

// before tells what is left of a process before it ends: what names its handles is forgotten then.
func (t *Times) before(task *ptrace.Task, e *ptrace.TaskEvent) {
	if task.TID != task.PID || e.Kind != ptrace.TaskExec && e.Kind != ptrace.TaskExit || e.Replaced {
		return
	}
	t.mu.Lock()
	p := t.processes[task.PID]
	t.mu.Unlock()
	if p == nil {
		t.mu.Lock()
		delete(t.chosen, task.PID)
		t.mu.Unlock()
		return
	}
	p.stop()
	<-p.ended
	t.recorder.Flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(p)
	delete(t.processes, task.PID)
	delete(t.chosen, task.PID)
	delete(t.capturing, task.PID)
	t.ended[task.PID] = e.Time
}

// Begin begins to look at a process, which has the CUDA driver.
func (t *Times) Begin(pid int) { t.process(pid, ptrace.Now()) }

// A process is one that is looked at.
type process struct {
	of    *Times
	pid   int
	stop  context.CancelFunc
	ended chan struct{}

	mu     sync.Mutex
	queue  []*Launch
	behind int64
	lost   uint64 // launches for which there was no room

	failed error // why it can't be looked at; set before ended
	send   func(*traces.Event)

	join    *join
	details map[detail]string
	ev      traces.Event
}

type detail struct {
	work channels.WorkID
	end  string // how its end is known; "": it isn't
}

const (
	refreshEvery = time.Second           // looks for new channels
	lookForFirst = 20 * time.Millisecond // the same, while a stream's is not known
	maxDetails   = 1 << 14
	maxDepth     = 64 // calls that are open in a thread
)

// Record takes in the record of a call that s can read. Records come in order.
func (t *Times) Record(s *api.Submitter, r *agent.Record) {
	if t.chosen != nil && (s.Graph || !t.chose(r.PID)) {
		return
	}
	if s.Captures || s.Ends {
		t.captures(s, r)
		return
	}
	key := thread{r.PID, r.TID}
	calls := t.open[key]
	switch {
	case r.Kind == agent.KindCall && r.NoReturn:
		t.mu.Lock()
		t.counts.Unjoined++
		t.mu.Unlock()
	case r.Kind == agent.KindCall && len(calls) < maxDepth:
		l := called(s, r, len(calls) > 0)
		if l != nil {
			l.Unsure = t.capturing[r.PID] > 0
		}
		t.open[key] = append(calls, l)
	case r.Kind == agent.KindReturn && len(calls) > 0:
		l := calls[len(calls)-1]
		if calls = calls[:len(calls)-1]; len(calls) == 0 {
			delete(t.open, key)
		} else {
			t.open[key] = calls
		}
		if l != nil && !r.Unfinished && int32(r.Ret) == 0 {
			l.End = r.End
			if p := t.process(r.PID, l.End); p != nil {
				p.launched(l)
			}
		}
	}
	behind := r.End
	for k, calls := range t.open {
		if k.pid == r.PID && calls[0] != nil {
			behind = min(behind, calls[0].Begin)
		}
	}
	t.mu.Lock()
	p := t.processes[r.PID]
	t.mu.Unlock()
	if p != nil {
		p.mu.Lock()
		p.behind = behind
		p.mu.Unlock()
	}
}

// chose reports whether the launches of a process are timed.
func (t *Times) chose(pid int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen[pid] || t.processes[pid] != nil
}

// captures notes whether launches may become nodes of graphs instead of being run.
func (t *Times) captures(s *api.Submitter, r *agent.Record) {
	switch failed := r.Kind == agent.KindReturn && int32(r.Ret) != 0; {
	case s.Captures && r.Kind == agent.KindCall:
		t.capturing[r.PID]++
	case s.Captures && failed, s.Ends && r.Kind == agent.KindReturn && !failed:
		t.capturing[r.PID] = max(t.capturing[r.PID]-1, 0)
	}
}

// called reads a call; nil: it is part of another one, nvtrace's own, or can't be read.
func called(s *api.Submitter, r *agent.Record, inside bool) *Launch {
	if inside || agent.CalledByUs(r.Caller) {
		return nil
	}
	var stack []byte
	if r.Hook.StackWords > 0 && len(r.Segs) > 0 {
		stack = r.Segs[0].In
	}
	x, ok := s.Read(r.Args, stack, func(address uint64) []byte {
		for i := range r.Segs {
			if g := &r.Segs[i]; g.Addr == address {
				return g.In
			}
		}
		return nil
	})
	if !ok {
		return nil
	}
	return &Launch{
		TID: r.TID, Begin: r.Begin, Name: r.Hook.Name, Path: r.Hook.Library, Graph: s.Graph, PerThread: s.PerThread,
		Subject: x.Subject, Stream: x.Stream, Grid: x.Grid, Block: x.Block,
	}
}

// launched takes in a launch that has returned.
func (p *process) launched(l *Launch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= maxWaiting { // nobody takes them
		p.lost++
		return
	}
	p.queue = append(p.queue, l)
}

// process returns what is known of a process that did something at a time, and begins to look at it if it hasn't ended.
func (t *Times) process(pid int, when int64) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.processes[pid]; p != nil {
		return p
	}
	if ended, ok := t.ended[pid]; ok && when <= ended {
		t.counts.Unjoined++
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &process{of: t, pid: pid, stop: stop, ended: make(chan struct{}), details: map[detail]string{}, send: t.recorder.Send}
	p.join = newJoin(p.done, p.lostSight)
	p.join.whole = t.whole
	t.processes[pid] = p
	go func() {
		defer close(p.ended)
		p.failed = p.follow(ctx)
	}()
	return p
}

// end ends all. It returns which launches have no times, and why, in words; "" if all have.
func (t *Times) end() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.processes {
		t.finish(p)
	}
	clear(t.processes)
	var why []string
	if n := t.counts.Unseen; n > 0 {
		why = append(why, fmt.Sprintf("%d over before a look at their channel came", n))
	}
	if n := t.counts.Unjoined; n > 0 {
		why = append(why, fmt.Sprintf("%d not known by which submission of a channel they were run", n))
	}
	if t.failed != "" {
		why = append(why, t.failed)
	}
	if len(why) == 0 {
		return ""
	}
	return fmt.Sprintf("launches with a time on the GPU, from its channels: %d; without: %s", t.counts.Timed, strings.Join(why, "; "))
}

// finish ends the looks at a process, and tells what is left. It runs on the tracing thread.
func (t *Times) finish(p *process) {
	p.stop()
	<-p.ended
	p.send = func(ev *traces.Event) {
		ev.Time = t.recorder.Time(ev.Time)
		t.recorder.Emit(ev)
	}
	p.take()
	counts := p.join.end()
	t.counts.Timed += counts.Timed
	t.counts.Unseen += counts.Unseen
	t.counts.Unjoined += counts.Unjoined + p.lost
	if p.failed != nil && counts.Unjoined+p.lost > 0 {
		t.failed = p.failed.Error()
	}
}

// follow looks at a process until ctx ends, or the process does.
func (p *process) follow(ctx context.Context) error {
	mem, err := channels.Open(p.pid, channels.AllMemory)
	if err != nil {
		return err
	}
	defer mem.Close()
	w, err := channels.NewWatch(mem, ptrace.Now, p.join.spanned)
	if err != nil {
		return nil // it has ended
	}
	w.Found, w.Missed = p.join.submitted, p.join.missed
	refreshed := ptrace.Now()
	_ = w.Follow(ctx, func() error { // it ends when the process does
		behind := p.take()
		p.join.settle(behind, w.Understood())
		every := refreshEvery
		if p.join.unplaced() {
			every = lookForFirst
		}
		now := ptrace.Now()
		if now-refreshed < int64(every) {
			return nil
		}
		refreshed = now
		return w.Refresh()
	})
	return nil
}

// take gives the launches that have been told to the join.
func (p *process) take() (behind int64) {
	p.mu.Lock()
	list, behind := p.queue, p.behind
	p.queue = nil
	p.mu.Unlock()
	for _, l := range list {
		p.join.launched(l)
	}
	return behind
}

// eventOf returns the process's event, which is about a launch now.
func (p *process) eventOf(l *Launch) *traces.Event {
	ev := &p.ev
	ev.Reset()
	ev.Time, ev.PID, ev.TID, ev.FD = ptrace.Now(), int32(p.pid), int32(l.TID), -1
	ev.Name, ev.Path = l.Name, l.Path
	return ev
}

// done tells of a launch that has its times.
func (p *process) done(l *Launch, s *channels.Span) {
	r, ev := p.of.recorder, p.eventOf(l)
	ev.SetWork(&traces.Work{
		Call: r.Time(l.Begin), Start: r.Time(s.Start), Dur: s.Dur, Stream: l.Stream, Subject: l.Subject,
		Margin: s.Margin, By: traces.ByTracker, Device: deviceOf(s.Device), EndMargin: s.EndMargin,
	})
	ev.Data = p.detail(detail{s.Work, s.End.String()})
	p.send(ev)
}

// lostSight tells of a launch whose times were not seen.
func (p *process) lostSight(l *Launch, m *channels.Miss) {
	r, ev := p.of.recorder, p.eventOf(l)
	ev.SetMiss(&traces.Miss{
		Called: true, Call: r.Time(l.Begin), After: r.Time(m.After), Before: r.Time(m.Before), Stream: l.Stream, Subject: l.Subject, Device: deviceOf(m.Device),
	})
	ev.Data = p.detail(detail{work: m.Work})
	p.send(ev)
}

// deviceOf returns the number of a GPU's node.
func deviceOf(path string) int32 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(path, "/dev/nvidia"), 10, 16)
	return int32(n)
}

// detail returns an event's Data.
func (p *process) detail(k detail) string {
	text, ok := p.details[k]
	if ok {
		return text
	}
	d := traces.WorkDetail{Named: "launch", Kernels: k.work.Kernels, End: k.end}
	if k.work.Kind == channels.KernelSpan {
		d.Grid, d.Block = k.work.Grid[:], k.work.Block[:]
	}
	b, err := json.Marshal(&d)
	if err != nil {
		panic("BUG: a work's detail as JSON: " + err.Error())
	}
	if len(p.details) >= maxDetails {
		clear(p.details)
	}
	p.details[k] = string(b)
	return p.details[k]
}
