package record

import (
	"fmt"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// ExtensionClass is the first class of system calls that extensions may use;
// from [agent.Class] on they are taken again. Each extension has its own: two of
// them may use the same numbers.
const ExtensionClass = 0x100

// Extension watches the traced program beside the recorder, with rules of its
// own, on the tracing thread.
type Extension struct {
	// Rules select the calls that Handler sees, with classes from ExtensionClass on.
	// They are in force in every traced process from its beginning. A call that the
	// recorder or other extensions select too is given to all of them.
	Rules []ptrace.Rule
	// Handler is called as any [ptrace.Handler], but Task.Data and Process.Data are
	// the recorder's own; keep what belongs to a task in a map. Of a task's
	// beginning, exec and stops the recorder knows before the extension, of its
	// end after, so that events that the handler emits are in order.
	Handler ptrace.Handler
	// Finish, if not nil, is called once, when everything has ended and all records
	// of hooks were given out. It may still emit events; nvtrace waits for it.
	Finish func()
}

// Recorder is the recording that an [Extension] watches beside. Its methods may
// be called on the tracing thread only, from the moment that the first task is
// reported.
type Recorder struct{ r *recorder }

// Emit records an event, in order with all others by its end (Time plus Dur),
// which should not lie in the past by more than the handler's own work. PID, TID
// and Time must be set; FD is -1 for what is not about a descriptor. The event is
// copied.
func (r *Recorder) Emit(ev *traces.Event) { r.r.put(ev) }

// Now returns the time for an event that happens now.
func (r *Recorder) Now() int64 { return r.r.now() }

// Time converts CLOCK_MONOTONIC in ns, as in [ptrace.Syscall], [ptrace.TaskEvent]
// and [agent.Record], to the time of events.
func (r *Recorder) Time(monotonic int64) int64 { return monotonic - r.r.start }

// Note records a remark of nvtrace's. t may be nil.
func (r *Recorder) Note(t *ptrace.Task, text string) { r.r.note(t, text) }

// Header returns what the recording begins with.
func (r *Recorder) Header() *traces.Header { return r.r.opts.Header }

// Agent returns the agent, through which functions are hooked. It is never nil;
// where it can't be used, its methods say so. Records of hooks are events
// without further ado: KindCall and KindReturn, see [CallEvent].
func (r *Recorder) Agent() *agent.Agent { return r.r.agent }

// extension is an Extension at work.
type extension struct {
	Extension
	match *ptrace.Matcher
}

// mux gives stops to the recorder and to extensions.
type mux struct {
	*recorder
	exts []extension
}

// extend sets the rules, and returns the handler of all stops.
func (r *recorder) extend() (ptrace.Handler, error) {
	o := r.opts
	o.Ptrace.Rules, o.Ptrace.ExtraRules = append(r.agent.Rules(), baseRules()...), deviceRules(o.Munmap)
	o.Ptrace.ExemptPage, o.Ptrace.Fault = true, r.agent.Fault
	o.Ptrace.Detour, o.Ptrace.Stubs = r.agent.Detour, r.agent.Stubs()
	if o.Extend == nil {
		return r, nil
	}
	list, err := o.Extend(&Recorder{r})
	if err != nil {
		return nil, err
	}
	m, err := newMux(r, list)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		if e.Finish != nil {
			r.ends = append(r.ends, e.Finish)
		}
		o.Ptrace.Rules = append(o.Ptrace.Rules, e.Rules...)
		r.reserve(e.Rules)
	}
	return m, nil
}

// newMux checks the extensions.
func newMux(r *recorder, list []Extension) (*mux, error) {
	m := &mux{recorder: r}
	if len(list) > maxExtensions {
		return nil, fmt.Errorf("%d extensions, at most %d are possible", len(list), maxExtensions)
	}
	for i, e := range list {
		for _, rule := range e.Rules {
			if rule.Class < ExtensionClass || rule.Class >= agent.Class {
				return nil, fmt.Errorf("extension %d: class %#x is taken", i, rule.Class)
			}
		}
		match, err := ptrace.NewMatcher(e.Rules)
		if err != nil {
			return nil, fmt.Errorf("extension %d: %w", i, err)
		}
		m.exts = append(m.exts, extension{e, match})
	}
	return m, nil
}

// maxExtensions is what a thread's bit set of those that want an exit holds.
const maxExtensions = 31

// Enter implements ptrace.Handler.
func (m *mux) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	class := c.Class
	verdict := ptrace.Skip
	th := m.thread(t)
	th.want = 0
	if class < ExtensionClass || class >= agent.Class {
		verdict = m.recorder.Enter(t, c)
		if verdict == ptrace.WantExit {
			th.want = 1
		}
	} else {
		m.stops.entry(m.recorder, t, c, false, "")
	}
	for i := range m.exts {
		e := &m.exts[i]
		var ok bool
		if c.Class, ok = e.match.Match(c); !ok {
			continue
		}
		if e.Handler.Enter(t, c) == ptrace.WantExit {
			th.want |= 2 << i
			verdict = ptrace.WantExit
		}
	}
	c.Class = class
	m.attend()
	return verdict
}

// Exit implements ptrace.Handler.
func (m *mux) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	class, th := c.Class, m.thread(t)
	want := th.want
	th.want = 0
	if want&1 != 0 {
		m.recorder.Exit(t, c)
	}
	for i := range m.exts {
		if want&(2<<i) != 0 {
			c.Class, _ = m.exts[i].match.Match(c)
			m.exts[i].Handler.Exit(t, c)
		}
	}
	c.Class = class
	m.attend()
}

// Task implements ptrace.Handler.
func (m *mux) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskExit, ptrace.TaskDetach:
		for i := range m.exts {
			m.exts[i].Handler.Task(t, e)
		}
		m.recorder.Task(t, e)
	case ptrace.TaskUnfinished:
		m.unfinishedCall(t, e)
	default:
		m.recorder.Task(t, e)
		for i := range m.exts {
			m.exts[i].Handler.Task(t, e)
		}
	}
	m.attend()
}

// unfinishedCall tells those that wait for a call's exit that it won't come.
func (m *mux) unfinishedCall(t *ptrace.Task, e *ptrace.TaskEvent) {
	th := m.thread(t)
	want := th.want
	th.want = 0
	class := e.Call.Class
	if want&1 != 0 {
		m.recorder.Task(t, e)
	}
	for i := range m.exts {
		if want&(2<<i) != 0 {
			e.Call.Class, _ = m.exts[i].match.Match(e.Call)
			m.exts[i].Handler.Task(t, e)
		}
	}
	e.Call.Class = class
}
