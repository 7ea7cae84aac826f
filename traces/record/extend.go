package record

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// ExtensionClass is the first class of system calls that extensions may use;
// from [agent.Class] on they are taken again. Each extension has its own: two of
// them may use the same numbers.
const ExtensionClass = 0x100

// Extension watches the traced program, with rules of its own, on the tracing
// thread. What it keeps of a task it keeps in a [Slot].
type Extension struct {
	// Rules select the calls that Handler sees, with classes from ExtensionClass on.
	// They are in force in every traced process from its beginning. A call that
	// several extensions select is given to all of them, in their order.
	Rules []ptrace.Rule
	// ExtraRules are in force in processes in which the extension asks for them, by
	// [ptrace.Task.InjectFilter] or [ptrace.Task.TraceAll]. In others Handler may see
	// such calls, too.
	ExtraRules []ptrace.Rule
	// Handler is called as any [ptrace.Handler], but Task.Data and Process.Data are
	// taken. A task's beginning, exec and stops are recorded before extensions are told, its
	// end after, so that events that the handlers emit are in order. nil: it sees no stops.
	Handler ptrace.Handler
	// Before, if not nil, is called of each event of a task before Handler is, and
	// before the agent forgets what it has done in a process that execs.
	Before func(t *ptrace.Task, e *ptrace.TaskEvent)
	// Begin, if not nil, is called when the program is being started, on any thread.
	// What takes long begins there, beside it.
	Begin func()
	// InProgram, if not nil, has the agent record system calls for the extension. One
	// extension may have that.
	InProgram *InProgram
	// Finish, if not nil, is called once, when everything has ended and all records
	// of hooks were given out. It may still emit events; nvtrace waits for it.
	Finish func()
}

// InProgram says what an extension wants of the agent, which records system calls in
// the program, without stops.
type InProgram struct {
	Calls agent.Calls // which
	// Bind, Record and Started are those of [agent.Options], the first two for records of system calls.
	Bind    func(p *agent.Process, rec *agent.Record) (tag any)
	Record  func(p *agent.Process, rec *agent.Record)
	Started func(p *agent.Process)
}

// Recorder is the recording that an [Extension] is part of. Its methods may
// be called on the tracing thread only, from the moment that the first task is
// reported.
type Recorder struct {
	opts  *Options
	emit  func(*traces.Event)
	start int64 // CLOCK_MONOTONIC at time 0

	agent   *agent.Agent
	program *InProgram // of the extension that has one; nil: none has
	ahead   ahead
	merge   merge
	sent    mailbox
	stops   *stopCounts
	shared  []string // calls that extensions want to see without InProgram

	slots   int             // of Slots
	lacking map[string]bool // programs that lack rights under us; reported
	window  window
	events  uint64
	bytes   uint64
	scratch traces.Event
}

// Emit records an event, in order with all others by its end (Time plus Dur),
// which should not lie in the past by more than the handler's own work. PID, TID
// and Time must be set; FD is -1 for what is not about a descriptor. The event is
// copied.
func (r *Recorder) Emit(ev *traces.Event) { r.put(ev) }

// Now returns the time for an event that happens now.
func (r *Recorder) Now() int64 { return ptrace.Now() - r.start }

// Time converts CLOCK_MONOTONIC in ns, as in [ptrace.Syscall], [ptrace.TaskEvent]
// and [agent.Record], to the time of events.
func (r *Recorder) Time(monotonic int64) int64 { return monotonic - r.start }

// Note records a remark of nvtrace's. t may be nil.
func (r *Recorder) Note(t *ptrace.Task, text string) {
	r.scratch = traces.Event{Kind: traces.KindNote, Time: r.Now(), FD: -1, Text: text}
	if t != nil {
		r.scratch.PID, r.scratch.TID = int32(t.PID), int32(t.TID)
	}
	r.put(&r.scratch)
}

// Header returns what the recording begins with.
func (r *Recorder) Header() *traces.Header { return r.opts.Header }

// Agent returns the agent, through which functions are hooked. It is never nil;
// where it can't be used, its methods say so. Records of hooks are events
// without further ado: KindCall and KindReturn, see [traces.Event].
func (r *Recorder) Agent() *agent.Agent { return r.agent }

// Shared reports whether another extension selects a call, so that it must go on
// stopping: all but mappings of code, which the agent leaves alone anyway.
func (r *Recorder) Shared(call string) bool { return slices.Contains(r.shared, call) }

func (r *Recorder) share(rules []ptrace.Rule) {
	for i := range rules {
		if ofCode(&rules[i]) {
			continue
		}
		r.shared = append(r.shared, rules[i].Names...)
		for _, nr := range rules[i].Nrs {
			r.shared = append(r.shared, ptrace.NativeSyscallName(uint64(nr)))
		}
	}
}

// ofCode reports whether a rule selects calls about memory that is to be executed alone.
func ofCode(rule *ptrace.Rule) bool {
	return slices.ContainsFunc(rule.Args, func(m ptrace.ArgMatch) bool {
		return m.Arg == 2 && m.Op == ptrace.Equal && m.Mask == unix.PROT_EXEC && m.Value == unix.PROT_EXEC
	})
}

// Wanted says whether extensions select calls of a number: all of them, or those about memory that
// is to be executed.
func Wanted(list []Extension, nr uint64) (all, code bool) {
	name := ptrace.NativeSyscallName(nr)
	for i := range list {
		for _, rule := range slices.Concat(list[i].Rules, list[i].ExtraRules) {
			switch {
			case !slices.Contains(rule.Names, name) && !slices.Contains(rule.Nrs, uint32(nr)):
			case ofCode(&rule):
				code = true
			default:
				all = true
			}
		}
	}
	return all, code
}

// Slot is an extension's own place for what it keeps of a task: of each task a T, which
// is zero at first.
type Slot[T any] struct{ n int }

// NewSlot makes a Slot. An extension makes it when it is asked for, in Options.Extend.
func NewSlot[T any](r *Recorder) Slot[T] {
	r.slots++
	return Slot[T]{r.slots - 1}
}

// Of returns what is kept of a task.
func (s Slot[T]) Of(t *ptrace.Task) *T {
	st := stateOf(t)
	for len(st.slots) <= s.n {
		st.slots = append(st.slots, nil)
	}
	if v, ok := st.slots[s.n].(*T); ok {
		return v
	}
	v := new(T)
	st.slots[s.n] = v
	return v
}

// taskState is what the Recorder keeps of each [ptrace.Task].
type taskState struct {
	want  uint32 // the extensions that want the exit of the call it is in
	slots []any
}

func stateOf(t *ptrace.Task) *taskState {
	if st, ok := t.Data.(*taskState); ok {
		return st
	}
	st := new(taskState)
	t.Data = st
	return st
}

// maxExtensions is what taskState.want holds.
const maxExtensions = 32

// extension is an Extension at work.
type extension struct {
	Extension
	match *ptrace.Matcher
}

// mux gives stops to the extensions.
type mux struct {
	*Recorder
	exts []extension
}

// Handler returns the handler of all stops and sets the rules in o.Ptrace; events go
// to emit. It is for those who bring the stops themselves, as tests of extensions do.
func Handler(o *Options, emit func(*traces.Event)) (ptrace.Handler, error) {
	o.setDefaults(0)
	return newMux(o, emit)
}

// newMux asks for the extensions and sets the rules.
func newMux(o *Options, emit func(*traces.Event)) (*mux, error) {
	r := &Recorder{opts: o, emit: emit, stops: newStopCounts(o)}
	r.window.init(o.Delay, o.Duration, o.StartOn != nil || o.Await)
	ao := agent.Options{Bind: r.bind, Record: r.record, Started: r.started, Counted: r.counted, Say: o.Say, Logger: o.Logger}
	if r.stops != nil {
		ao.Explain = r.stops.explain
	}
	r.agent = agent.New(&ao)
	m := &mux{Recorder: r}
	o.Ptrace.Rules, o.Ptrace.ExtraRules = r.agent.Rules(), nil
	o.Ptrace.Injector = r.agent
	if r.stops != nil {
		o.Ptrace.Held = r.stops.held
	}
	if o.Extend == nil {
		return m, nil
	}
	list, err := o.Extend(r)
	if err != nil {
		return nil, err
	}
	if len(list) > maxExtensions {
		return nil, fmt.Errorf("%d extensions, at most %d are possible", len(list), maxExtensions)
	}
	for i, e := range list {
		if err := m.add(e); err != nil {
			return nil, fmt.Errorf("extension %d: %w", i, err)
		}
	}
	return m, nil
}

// add checks an extension and puts it to work.
func (m *mux) add(e Extension) error {
	rules := slices.Concat(e.Rules, e.ExtraRules)
	if e.Handler == nil && len(rules) > 0 {
		return errors.New("the extension has rules and no handler")
	}
	for _, rule := range rules {
		if rule.Class < ExtensionClass || rule.Class >= agent.Class {
			return fmt.Errorf("class %#x is taken", rule.Class)
		}
	}
	match, err := ptrace.NewMatcher(rules)
	if err != nil {
		return err
	}
	po := &m.opts.Ptrace
	po.Rules, po.ExtraRules = append(po.Rules, e.Rules...), append(po.ExtraRules, e.ExtraRules...)
	switch {
	case e.InProgram == nil:
		m.share(rules)
	case m.program != nil:
		return fmt.Errorf("another one has the agent record system calls")
	default:
		m.program = e.InProgram
		m.agent.SetCalls(e.InProgram.Calls)
	}
	m.exts = append(m.exts, extension{e, match})
	return nil
}

// begin is called when the program is being started.
func (m *mux) begin() {
	m.lookAhead()
	for i := range m.exts {
		if f := m.exts[i].Begin; f != nil {
			f()
		}
	}
}

// Enter implements ptrace.Handler.
func (m *mux) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if c.Class == agent.Class {
		m.stops.entry(m.agent, c)
		m.agent.Trap(t, c, m.Flush)
		m.watch()
		return ptrace.Skip
	}
	class, st := c.Class, stateOf(t)
	st.want = 0
	for i := range m.exts {
		e := &m.exts[i]
		var ok bool
		if c.Class, ok = e.match.Match(c); ok && e.Handler.Enter(t, c) == ptrace.WantExit {
			st.want |= 1 << i
		}
	}
	c.Class = class
	m.stops.entry(m.agent, c)
	m.attend()
	if st.want != 0 {
		return ptrace.WantExit
	}
	return ptrace.Skip
}

// Exit implements ptrace.Handler.
func (m *mux) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	m.stops.exit(c)
	m.eachWaiting(t, c, func(h ptrace.Handler) { h.Exit(t, c) })
	m.attend()
}

// eachWaiting calls f of those that wait for a call's exit.
func (m *mux) eachWaiting(t *ptrace.Task, c *ptrace.Syscall, f func(ptrace.Handler)) {
	class, st := c.Class, stateOf(t)
	want := st.want
	st.want = 0
	for i := range m.exts {
		if want&(1<<i) != 0 {
			c.Class, _ = m.exts[i].match.Match(c)
			f(m.exts[i].Handler)
		}
	}
	c.Class = class
}

// Task implements ptrace.Handler.
func (m *mux) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	m.merge.task = t
	m.reachable(t)
	m.stops.add("task " + e.Kind.String())
	for i := range m.exts {
		if f := m.exts[i].Before; f != nil {
			f(t, e)
		}
	}
	m.agent.Task(t, e)
	switch e.Kind {
	case ptrace.TaskUnfinished:
		m.eachWaiting(t, e.Call, func(h ptrace.Handler) { h.Task(t, e) })
	case ptrace.TaskExit, ptrace.TaskDetach:
		m.eachTask(t, e)
		m.taskEnds(t, e)
	default:
		m.taskBegins(t, e)
		m.eachTask(t, e)
	}
	m.attend()
}

func (m *mux) eachTask(t *ptrace.Task, e *ptrace.TaskEvent) {
	for i := range m.exts {
		if h := m.exts[i].Handler; h != nil {
			h.Task(t, e)
		}
	}
}
