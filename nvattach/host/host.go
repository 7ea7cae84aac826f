// Package host runs probes on the host: programs at functions of the traced program and of
// its libraries, and at system calls.
//
// Where a function's beginning has room for a jump, its programs run in the traced process,
// as machine code, and the thread does not stop; so they do at system calls, once an
// instruction that makes them has stopped. Elsewhere the thread stops where a program
// is to run: at a breakpoint, or by the filter of system calls. The program is run by the
// interpreter in this process then, with the same maps, which all traced processes share;
// the thread goes on afterwards as if nothing had been. So everything that can be reached
// is seen, however short a function is, and a stop costs some ten microseconds.
package host

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl/nearest"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/object"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/jump"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
)

// Options say what runs.
type Options struct {
	Plan   *nvattach.Plan
	Runner *hostrun.Runner
	// Report is told, once each, what can't be done.
	Report func(text string)
	// Place says where a program is to run, for messages; nil: by its name and section.
	Place func(q *hostrun.Program) string
	// Agent and Programs, where they are not nil, have programs run in the processes.
	// Programs has the memory that Runner's maps lie in.
	Agent    *agent.Agent
	Programs *agent.Programs
	// Asked says who else wants to see system calls of a number: all of them, or those about
	// memory that is to be executed; nil: nobody does.
	Asked  func(nr uint64) (all, code bool)
	Logger *slog.Logger // nil discards
}

// mostTargets bounds the functions that one program's glob finds in a file.
const mostTargets = 4096

// Tracer sets breakpoints in all processes of a run, and runs programs where they are hit. It
// is a [ptrace.Handler] for the calls that [Tracer.Rules] select.
type Tracer struct {
	opts    Options
	class   uint16
	watcher dso.Watcher
	files   map[proc.FileKey][]*target
	codes   *jump.Files
	procs   map[*ptrace.Process]*process
	enters  map[uint64][]*hostrun.Program // by number of the system call
	exits   map[uint64][]*hostrun.Program
	found   map[*hostrun.Program]bool     // whether its function was found
	inFile  map[*hostrun.Program]bool     // whether its file was
	near    map[*hostrun.Program][]string // functions of it that are called like the one that is not there
	skipped map[int]int64                 // by thread: what a call returns that is not made
	told    map[string]bool
	real    map[*hostrun.Program]string // the path of its file, without symbolic links
	fast    *fast                       // nil: all programs run here
	slow    map[string]error            // why functions' programs do not run in the processes, by name

	attached *attachments
	began    bool  // there was a program
	named    bool  // programs list callers, whose names are asked for
	names    names // of code; see Name
}

// A target is a place in a file that programs run at.
type target struct {
	offset  uint64 // in the file
	name    string
	entries []*hostrun.Program
	returns []*hostrun.Program
	leaves  []*hostrun.Program // at a function's return, of which this is an instruction
	begins  bool               // it is where a function begins

	// chooses is not nil if the function returns the address of the one that programs run at, as
	// the loader does for functions of which there are several (GNU_IFUNC). It is the code of the
	// file.
	chooses *jump.Code

	inGo   bool   // it is in a function of Go's
	behind uint64 // how far behind the beginning of that

	usdt  *usdt  // nil: it is none
	vaddr uint64 // its address, as the file has it

	hook *agent.Hook // nil: not yet, or never
	slow error       // why its programs do not run in the processes
}

// process is what is known of a process's memory.
type process struct {
	pid int // of the one that the memory was made for: a vfork child only borrows it
	at  map[uint64]*target
	// semaphores are counters that are to be changed, once their memory is mapped.
	semaphores []uint64
	stacks     *unwind.Process // nil: nobody has asked yet
	threaded   bool            // it has, or had, several threads
}

// New makes a Tracer whose system calls have the class. The error names a system call that
// there is not.
func New(o *Options, class uint16) (*Tracer, error) {
	t := &Tracer{
		opts: *o, class: class, files: make(map[proc.FileKey][]*target), procs: make(map[*ptrace.Process]*process),
		enters: make(map[uint64][]*hostrun.Program), exits: make(map[uint64][]*hostrun.Program),
		found: make(map[*hostrun.Program]bool), inFile: make(map[*hostrun.Program]bool), near: make(map[*hostrun.Program][]string),
		skipped: make(map[int]int64), told: make(map[string]bool), real: make(map[*hostrun.Program]string),
	}
	t.watcher = dso.Watcher{Class: class, Mapped: t.mapped}
	if t.opts.Logger == nil {
		t.opts.Logger = slog.New(slog.DiscardHandler)
	}
	if t.opts.Asked == nil {
		t.opts.Asked = func(uint64) (all, code bool) { return false, false }
	}
	t.codes = new(jump.Files)
	if o.Agent != nil {
		t.codes = o.Agent.Files()
	}
	t.slow, t.attached = make(map[string]error), newAttachments(o.Plan)
	t.named = slices.ContainsFunc(o.Plan.Host, (*hostrun.Program).ListsCallers)
	if o.Programs != nil && o.Agent != nil {
		var err error
		if t.fast, err = newFast(o); err != nil {
			return nil, err
		}
	}
	for _, q := range o.Plan.Host {
		if real, err := filepath.EvalSymlinks(q.Point.Binary); q.Point.Function() && strings.Contains(q.Point.Binary, "/") && err == nil {
			t.real[q], _ = filepath.Abs(real) // "" where there is no folder any more
		}
		if m := withinRoot.FindStringSubmatch(q.Point.Binary); m != nil { // mappings have the path within
			t.real[q] = m[1]
		}
		list, err := calls(q)
		if err != nil {
			return nil, err
		}
		for _, nr := range list {
			if q.Point.Kind == object.HostSysEnter || q.Point.Kind == object.HostSysEnters {
				t.enters[nr] = append(t.enters[nr], q)
			} else {
				t.exits[nr] = append(t.exits[nr], q)
			}
		}
	}
	if t.fast != nil {
		t.startCalls()
	}
	return t, nil
}

// withinRoot is a file of a process as seen from outside of its mount namespace.
var withinRoot = regexp.MustCompile(`^/proc/[0-9]+/root(/.+)$`)

// isIn reports whether a program's point is in a file of that path.
func (t *Tracer) isIn(q *hostrun.Program, path string) bool {
	if q.Point.API() {
		return api.Match(path).Library != api.Unknown
	}
	return q.Point.Function() && (q.Point.InFile(path) || t.real[q] != "" && t.real[q] == path)
}

// Check reports a system call that a program names and that there is not.
func Check(p *nvattach.Plan) error {
	for _, q := range p.Host {
		if _, err := calls(q); err != nil {
			return err
		}
	}
	return nil
}

// tracepoints are names of system calls' tracepoints that are not the calls' own: the kernel
// names them after its functions.
var tracepoints = map[string]string{
	"umount": "umount2", "newstat": "stat", "newlstat": "lstat", "newfstat": "fstat", "newuname": "uname", "sendfile64": "sendfile",
}

// calls returns the numbers of the system calls that a program runs at.
func calls(q *hostrun.Program) ([]uint64, error) {
	numbers := systemCalls()
	switch q.Point.Kind {
	case object.HostSysEnter, object.HostSysExit:
		nr, ok := numbers[q.Point.Call]
		if !ok {
			nr, ok = numbers[tracepoints[q.Point.Call]]
		}
		if !ok {
			return nil, fmt.Errorf("program %s, section %s: there is no system call %s on this machine%s", q.Name, q.Section, q.Point.Call,
				nearest.Question(nearest.Names(q.Point.Call, maps.Keys(numbers), mostNear)))
		}
		return []uint64{nr}, nil
	case object.HostSysEnters, object.HostSysExits:
		return slices.Collect(maps.Values(numbers)), nil
	}
	return nil, nil
}

// mostCalls is above the number of every system call.
const mostCalls = 1024

// systemCalls returns the numbers of the machine's system calls by name.
func systemCalls() map[string]uint64 {
	list := make(map[string]uint64)
	for nr := range uint64(mostCalls) {
		if name := ptrace.SyscallName(nativeArch, nr); name != "" {
			list[name] = nr
		}
	}
	return list
}

// functions reports whether a program runs at a function.
func (t *Tracer) functions() bool {
	return slices.ContainsFunc(t.opts.Plan.Host, func(q *hostrun.Program) bool { return q.Point.Function() })
}

// code reports whether it must be known what code is mapped.
func (t *Tracer) code() bool {
	return t.functions() || t.named || t.fast != nil && t.fast.calls
}

// usdt reports whether a program runs at probes that programs have been compiled with.
func (t *Tracer) usdt() bool {
	return slices.ContainsFunc(t.opts.Plan.Host, func(q *hostrun.Program) bool { return q.Point.Kind == object.HostUSDT })
}

// unseen are system calls that do not return as others do: what would be run at their exit
// can't be.
var unseen = []string{"rt_sigreturn", "exit", "exit_group", "restart_syscall"}

// Rules select the calls that map code, and those that programs run at.
func (t *Tracer) Rules() []ptrace.Rule {
	var rules []ptrace.Rule
	var nrs []uint32
	for nr := range uint64(mostCalls) {
		if len(t.enters[nr])+len(t.exits[nr]) > 0 {
			nrs = append(nrs, uint32(nr))
		}
	}
	if len(nrs) > 0 {
		rules = append(rules, ptrace.Rule{Nrs: nrs, Class: t.class}, ptrace.Rule{Names: t.callNames(), Class: t.class, Compat: true})
	}
	if t.code() {
		rules = append(rules, t.watcher.Rules()...)
	}
	if t.usdt() {
		fixed := []ptrace.ArgMatch{{Arg: 3, Mask: unix.MAP_FIXED, Value: unix.MAP_FIXED}}
		rules = append(rules, ptrace.Rule{Names: []string{"mmap"}, Class: t.class, Args: fixed})
	}
	return rules
}

const otherCalls = "system calls of 32-bit programs, and those by int $0x80, are not probed; the program makes some"

// callNames are the names of the calls that programs run at.
func (t *Tracer) callNames() (names []string) {
	for nr := range uint64(mostCalls) {
		if name := ptrace.SyscallName(nativeArch, nr); name != "" && len(t.enters[nr])+len(t.exits[nr]) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// hidden are the names of the calls that programs run at, and that a filter of the traced program's own may answer.
func (t *Tracer) hidden(task *ptrace.Task) (names []string) {
	for nr := range uint64(mostCalls) {
		if len(t.enters[nr])+len(t.exits[nr]) > 0 && ptrace.SyscallName(nativeArch, nr) != "" && task.Hides(nr) {
			names = append(names, ptrace.SyscallName(nativeArch, nr))
		}
	}
	return names
}

// mostHidden bounds the names of calls in a message.
const mostHidden = 8

// hiddenCalls says that calls are not seen.
func hiddenCalls(names []string) string {
	list := strings.Join(names[:min(len(names), mostHidden)], ", ")
	if more := len(names) - mostHidden; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return "the program's own seccomp filter answers some system calls itself; these are not probed (--seccomp=off sees them): " + list
}

// data reports whether a call maps a library's data, which a probe's counter may be in.
func (t *Tracer) data(s *ptrace.Syscall) bool {
	return t.usdt() && s.Nr == unix.SYS_MMAP && s.Args[2]&unix.PROT_EXEC == 0 && s.Args[3]&unix.MAP_FIXED != 0
}

// Enter implements [ptrace.Handler].
func (t *Tracer) Enter(task *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if s.Compat {
		if !t.told[otherCalls] && slices.Contains(t.callNames(), s.Name()) {
			t.report(otherCalls)
		}
		return ptrace.Skip
	}
	verdict := ptrace.Skip
	if t.code() {
		verdict = t.watcher.Enter(task, s)
	}
	if t.data(s) {
		verdict = ptrace.WantExit
	}
	if t.fast != nil && t.fast.calls && len(t.enters[s.Nr])+len(t.exits[s.Nr]) > 0 {
		if t.fast.ran(task, s) {
			return verdict
		}
		t.fast.reroute(task, s)
	}
	if len(t.exits[s.Nr]) > 0 && !slices.Contains(unseen, s.Name()) {
		verdict = ptrace.WantExit
	}
	for _, q := range t.enters[s.Nr] {
		call := t.sysCall(task, s, s.Args[:]...)
		t.run(q, call)
		if call.Overridden && t.skip(task, call.Override) {
			verdict = ptrace.WantExit
		}
	}
	return verdict
}

// skip has a system call not made, and return something else.
func (t *Tracer) skip(task *ptrace.Task, result uint64) bool {
	r, err := task.Regs()
	if err != nil || !noCall(r) || task.SetRegs(r) != nil {
		t.report("system calls can't be kept from being made here; bpf_override_return had no effect")
		return false
	}
	t.skipped[task.TID] = int64(result)
	return true
}

// Exit implements [ptrace.Handler].
func (t *Tracer) Exit(task *ptrace.Task, s *ptrace.Syscall) {
	if result, ok := t.skipped[task.TID]; ok {
		delete(t.skipped, task.TID)
		if r, err := task.Regs(); err == nil {
			r.SetRet(uint64(result))
			_ = task.SetRegs(r) // fails if it has died
		}
		s.Ret = result
	} else if t.code() {
		t.watcher.Exit(task, s)
	}
	if p := t.procs[task.Proc]; p != nil && len(p.semaphores) > 0 && s.Nr == unix.SYS_MMAP {
		t.arm(task, p)
	}
	if t.fast != nil && t.fast.ran(task, s) {
		return
	}
	for _, q := range t.exits[s.Nr] {
		t.run(q, t.sysCall(task, s, uint64(s.Ret)))
	}
}

// sysCall is what a system call's program gets to know.
func (t *Tracer) sysCall(task *ptrace.Task, s *ptrace.Syscall, more ...uint64) *hostrun.Call {
	return &hostrun.Call{
		Thread: &thread{task: task, t: t}, Fields: append([]uint64{0, 0, 0, uint64(uint32(task.TID)), s.Nr}, more...),
	}
}

// Task implements [ptrace.Handler].
func (t *Tracer) Task(task *ptrace.Task, e *ptrace.TaskEvent) {
	t.track(task, e)
	if t.code() {
		t.watcher.Task(task, e)
	}
}

// track keeps what is known of processes.
func (t *Tracer) track(task *ptrace.Task, e *ptrace.TaskEvent) {
	t.began = true
	switch e.Kind {
	case ptrace.TaskNew:
		if p := t.procs[task.Proc]; e.Thread || p != nil {
			if p != nil && e.Thread {
				p.threaded = true
			}
			return
		}
		p := &process{pid: task.PID, at: make(map[uint64]*target)}
		if e.Parent != nil {
			if from := t.procs[e.Parent.Proc]; from != nil {
				if e.Vfork {
					p = from // one memory, until it executes a program
				} else {
					p.at = maps.Clone(from.at)
				}
			}
		}
		t.procs[task.Proc] = p
	case ptrace.TaskExec:
		t.procs[task.Proc] = &process{pid: task.PID, at: make(map[uint64]*target)}
	case ptrace.TaskConfine:
		if list := t.hidden(task); len(list) > 0 {
			t.report(hiddenCalls(list))
		}
	case ptrace.TaskExit, ptrace.TaskDetach:
		t.died(task, e)
		delete(t.skipped, task.TID)
		if task.TID == task.PID && !e.Replaced {
			delete(t.procs, task.Proc)
		}
	}
}

// died gives back what a thread held in maps that was ended amid a program: by a signal, or with its
// process by another thread.
func (t *Tracer) died(task *ptrace.Task, e *ptrace.TaskEvent) {
	p := t.procs[task.Proc]
	if t.fast != nil && e.Kind == ptrace.TaskExit && (e.Status.Signaled() || p != nil && p.threaded) {
		t.opts.Runner.Died(task.TID)
	}
}

// run runs a program.
func (t *Tracer) run(q *hostrun.Program, c *hostrun.Call) {
	if !t.attached.runs(q) {
		return
	}
	if err := t.opts.Runner.Run(q, c); err != nil {
		t.report(fmt.Sprintf("program %s: %v", q.Name, err))
	}
}

func (t *Tracer) report(text string) {
	if !t.told[text] && len(t.told) < 1000 {
		t.told[text] = true
		t.opts.Report(text)
	}
}

// mapped has programs run at functions of files whose code a process has got.
func (t *Tracer) mapped(task *ptrace.Task, e *dso.Event) {
	p := t.procs[task.Proc]
	if p == nil {
		p = &process{pid: task.PID, at: make(map[uint64]*target)}
		t.procs[task.Proc] = p
	}
	if p.stacks != nil {
		p.stacks.ChangedAt(e.Start, e.End)
	}
	if t.named {
		if t.fast != nil {
			t.fast.describe(task, e)
		}
		t.names.mapped(task.PID, e)
	}
	var places []place
	for _, m := range e.Files() {
		var wanted []*target
		if path := t.pathOf(task, m.Path); t.wants(path) {
			wanted = t.targets(&m, path)
		}
		if t.fast != nil && t.unwinds() {
			if x := t.fast.unwinder(task, &m); x != nil {
				wanted = append(slices.Clip(wanted), x)
			}
		}
		for _, x := range wanted {
			if addr, ok := m.Addr(x.offset, 1); ok {
				places = append(places, place{addr, x})
			}
		}
	}
	t.place(task, p, places)
}

// place has programs run at places of a process's memory: in the process where that can be.
func (t *Tracer) place(task *ptrace.Task, p *process, places []place) {
	if t.fast != nil && len(places) > 0 {
		// Threads stop at those first, so that no jump is put over them.
		inside, begin := split(places)
		t.stop(task, p, inside)
		var why []error
		places, why = t.fast.run(task, begin, t.attached)
		for i, at := range places {
			switch {
			case at.x.chooses != nil: // it is the one that it chooses
			case at.x.wanted():
				t.slow[at.x.name] = why[i]
			default:
				t.report(fmt.Sprintf("exceptions that come through a function whose return is probed end the program: %v", why[i]))
			}
		}
	}
	t.stop(task, p, places)
	t.arm(task, p)
}

// split sets places within functions apart.
func split(list []place) (inside, begin []place) {
	for _, at := range list {
		if at.x.begins || at.x.chooses != nil || !at.x.wanted() {
			begin = append(begin, at)
		} else {
			inside = append(inside, at)
		}
	}
	return inside, begin
}

// stop has threads stop at places.
func (t *Tracer) stop(task *ptrace.Task, p *process, places []place) {
	for _, at := range places {
		if t.fast != nil && !at.x.begins && at.x.chooses == nil {
			t.slow[at.x.name] = cmp.Or(at.x.slow, errInside)
		}
		if at.x.wanted() {
			t.plant(task, p, at.addr, at.x)
		}
		if u := at.x.usdt; u != nil && u.semaphore != 0 {
			p.semaphores = append(p.semaphores, at.addr+u.semaphore-at.x.vaddr)
		}
	}
}

// Slow tells of functions at which threads stop, in a run in which programs run in the
// processes otherwise; "" if there are none.
func (t *Tracer) Slow() string {
	if len(t.slow) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(t.slow))
	text := fmt.Sprintf("threads stop at each call of %s: %v", names[0], t.slow[names[0]])
	if more := len(names) - 1; more > 0 {
		text += fmt.Sprintf("; and of %d more functions", more)
	}
	return text
}

// wants reports whether a program's point is in a file of that path.
func (t *Tracer) wants(path string) bool {
	return slices.ContainsFunc(t.opts.Plan.Host, func(q *hostrun.Program) bool { return t.isIn(q, path) })
}

// plant sets a breakpoint.
func (t *Tracer) plant(task *ptrace.Task, p *process, addr uint64, x *target) {
	again := p.at[addr] != nil
	b, err := task.SetBreakpoint(addr, t.hit)
	if err != nil {
		t.report(fmt.Sprintf("%s can't be probed: %v", x.name, err))
		delete(t.slow, x.name) // no thread stops there either
		return
	}
	p.at[addr] = x
	if x.chooses == nil {
		t.attached.at(x)
	}
	if again { // there was one, which is back with its page now
		if err := b.Remove(); err != nil {
			t.opts.Logger.Debug("breakpoint", "address", addr, "error", err)
		}
	}
}

// hit runs the programs at a breakpoint.
func (t *Tracer) hit(task *ptrace.Task, b *ptrace.Breakpoint) {
	p := t.procs[task.Proc]
	if p == nil || p.at[b.Addr] == nil {
		return
	}
	x := p.at[b.Addr]
	task.Why(x.name)
	if x.chooses != nil {
		err := task.OnReturn(func(task *ptrace.Task, chosen uint64) { t.chosen(task, x, chosen) })
		if err != nil {
			t.report(fmt.Sprintf("what %s chooses can't be seen: %v", x.name, err))
		}
		return
	}
	if t.attached.over(x.entries, x.returns, x.leaves) {
		if err := b.Remove(); err != nil {
			t.opts.Logger.Debug("breakpoint", "address", b.Addr, "error", err)
		}
		return
	}
	regs, err := task.Regs()
	if err != nil {
		return // it has died
	}
	for _, q := range t.returnsAt(task, x) {
		if !t.attached.runs(q) {
			continue
		}
		err := task.OnReturn(func(task *ptrace.Task, _ uint64) {
			r, err := task.Regs()
			if err != nil {
				return
			}
			t.run(q, &hostrun.Call{Thread: &thread{task: task, t: t}, Fields: registers(r), FuncIP: b.Addr})
		})
		if err != nil {
			t.report(fmt.Sprintf("returns of %s can't be seen: %v", x.name, err))
		}
	}
	if len(x.leaves) > 0 {
		t.leave(task, x, regs, b.Addr-x.behind)
	}
	for _, q := range x.entries {
		call := &hostrun.Call{Thread: &thread{task: task, t: t}, Fields: registers(regs), FuncIP: b.Addr - x.behind}
		if x.inGo {
			call.Arg = func(n uint64) (uint64, bool) { return goArgument(call.Fields, n) }
		}
		if x.usdt != nil {
			call.Arg = func(n uint64) (uint64, bool) {
				if n >= uint64(len(x.usdt.args)) {
					return 0, false
				}
				return x.usdt.args[n].value(call.Fields, b.Addr-x.vaddr, call.Thread.Read)
			}
		}
		t.run(q, call)
		if call.Overridden && !t.override(task, x, call.Override) {
			return
		}
	}
}

// returnsAt are the programs at returns of a function, as far as waiting for these changes nothing that it does.
func (t *Tracer) returnsAt(task *ptrace.Task, x *target) []*hostrun.Program {
	if len(x.returns) > 0 && errors.Is(x.slow, errCaller) && task.MovesReturns() {
		t.report(fmt.Sprintf("returns of %s can't be seen: %v", x.name, errMoved))
		return nil
	}
	return x.returns
}

// wanted reports whether programs run there.
func (x *target) wanted() bool { return len(x.entries)+len(x.returns)+len(x.leaves) > 0 }

// leave runs the programs at a return, in front of the instruction, as if it had been executed.
func (t *Tracer) leave(task *ptrace.Task, x *target, regs *ptrace.Regs, begin uint64) {
	var back [8]byte
	if n, _ := task.ReadMem(regs.SP(), back[:]); n < len(back) {
		return // the program dies of it
	}
	r := *regs
	r.SetIP(binary.LittleEndian.Uint64(back[:]))
	r.SetSP(r.SP() + 8)
	for _, q := range x.leaves {
		t.run(q, &hostrun.Call{Thread: &thread{task: task, t: t, regs: &r}, Fields: registers(&r), FuncIP: begin})
	}
}

// chosen has programs run at the function that x has chosen.
func (t *Tracer) chosen(task *ptrace.Task, x *target, addr uint64) {
	list, err := proc.Maps(task.PID)
	m := proc.At(list, addr)
	if err != nil || m == nil || !m.Exec {
		return
	}
	c := &target{offset: addr - m.Start + m.Offset, name: x.name, entries: x.entries, returns: x.returns, slow: x.slow}
	at, ok := x.chooses.Addr(c.offset)
	c.begins = ok && x.chooses.Begins(at)
	if p := t.procs[task.Proc]; p != nil && p.at[addr] == nil {
		t.place(task, p, []place{{addr, c}})
	}
}

// override has the function that a task is at the entry of return at once.
func (t *Tracer) override(task *ptrace.Task, x *target, result uint64) bool {
	r, err := task.Regs()
	if err != nil {
		return false
	}
	if err := returnNow(task, r, result); err != nil {
		t.report(fmt.Sprintf("%s can't be made to return: %v", x.name, err))
		return false
	}
	return task.SetRegs(r) == nil
}

// pathOf returns the path that programs' points name a mapped file by: as it is here, or, of a process that has another
// root (chroot), as the process has it.
func (t *Tracer) pathOf(task *ptrace.Task, path string) string {
	absolute := func(q *hostrun.Program) bool { return strings.HasPrefix(q.Point.Binary, "/") }
	if t.wants(path) || !slices.ContainsFunc(t.opts.Plan.Host, absolute) {
		return path
	}
	root, err := os.Readlink(proc.Path(task.PID, "root"))
	if within, ok := strings.CutPrefix(path, root); err == nil && ok && strings.HasPrefix(within, "/") {
		return within
	}
	return path
}

// targets returns the places in a mapped file that programs want.
func (t *Tracer) targets(m *dso.Code, path string) []*target {
	f, key, err := m.Open()
	if err != nil {
		t.none(path, err)
		return nil
	}
	defer f.Close()
	list, ok := t.files[key]
	if !ok {
		code, err := t.codes.Of(f, key)
		if err == nil {
			list, err = t.read(code, path, m.Root())
		}
		if err != nil {
			t.none(path, err)
		}
		t.files[key] = list
	}
	return list
}

// none says why a file has no probes. Nothing else is said of the programs that are for it.
func (t *Tracer) none(path string, why error) {
	t.report(fmt.Sprintf("%s has no probes: %v", path, why))
	for _, q := range t.opts.Plan.Host {
		if t.isIn(q, path) {
			t.found[q] = true
		}
	}
}

// read finds what programs want in a file.
func (t *Tracer) read(c *jump.Code, path, root string) (list []*target, err error) {
	e := c.File()
	symbols, _ := e.SymbolsOf(path, root) // it may have been stripped of them
	dynamic, _ := e.DynamicSymbols()
	symbols = append(symbols, dynamic...)
	places := map[uint64]*target{}
	golang, err := readGo(e, symbols)
	if err != nil {
		return nil, err
	}
	if golang != nil && len(symbols) == 0 { // it has been stripped
		symbols = golang.symbols()
	}
	for _, q := range t.opts.Plan.Host {
		if !t.isIn(q, path) {
			continue
		}
		t.inFile[q] = true
		var r refused
		switch {
		case q.Point.Kind == object.HostUSDT:
			if err := t.addUSDT(e, places, q, path, &r); err != nil {
				return nil, err
			}
		case q.Point.Func == "":
			t.addAddress(c, golang, places, q, path, &r)
		default:
			t.addFunctions(c, golang, places, q, path, symbols, &r)
		}
		r.tell(t, q, path)
	}
	for _, x := range places {
		if golang != nil {
			x.slow = errGo
		}
		list = append(list, x)
	}
	sort.Slice(list, func(i, k int) bool { return list[i].offset < list[k].offset })
	return list, nil
}

// addFunctions adds the places in functions that a program names.
func (t *Tracer) addFunctions(c *jump.Code, golang *goFile, places map[uint64]*target, q *hostrun.Program, path string, symbols []dso.Symbol, r *refused) {
	n := 0
	for i := range symbols {
		s := &symbols[i]
		if !s.Defined || s.Addr == 0 || jump.Part(s.Name) || !q.Point.Matches(s.Name) {
			continue
		}
		chooses := s.Indirect()
		if !s.Function() && s.Type != elf.STT_NOTYPE && !chooses || chooses && q.Point.Offset > 0 {
			continue
		}
		addr := s.Addr + q.Point.Offset
		if _, ok := c.File().Offset(addr); !ok {
			continue
		}
		if n++; n > mostTargets {
			t.report(fmt.Sprintf("program %s: more than %d functions of %s; the rest have no probes", q.Name, mostTargets, path))
			break
		}
		name := s.Name
		if q.Point.Offset > 0 {
			name = fmt.Sprintf("%s+%#x", name, q.Point.Offset)
		}
		if x := t.addPlace(c, golang, places, q, addr, name, name+" in "+path, r); x != nil && chooses {
			x.chooses = c
		}
	}
	if n == 0 && !q.Point.API() && t.near[q] == nil { // who names a function of CUDA's means one of several libraries
		t.near[q] = near(q.Point.Func, symbols)
	}
}

// addAddress adds the place that a program names by a number: an offset in the file, as the kernel takes it, or
// an address, as nm and debuggers show it.
func (t *Tracer) addAddress(c *jump.Code, golang *goFile, places map[uint64]*target, q *hostrun.Program, path string, r *refused) {
	name := fmt.Sprintf("%#x", q.Point.Offset)
	addr, ok := c.Addr(q.Point.Offset)
	if !ok {
		addr = q.Point.Offset
	}
	if _, ok := c.File().Offset(addr); !ok {
		t.found[q] = true
		r.add(name, errors.New("the number is neither the offset of code in the file nor the address of code"))
		return
	}
	t.addPlace(c, golang, places, q, addr, name, path+"+"+name, r)
}

// addPlace adds a place that a program wants, nil if it can't be there.
func (t *Tracer) addPlace(c *jump.Code, golang *goFile, places map[uint64]*target, q *hostrun.Program, addr uint64, name, told string, r *refused) *target {
	t.found[q] = true
	switch {
	case golang.is(addr):
		if err := golang.add(t, places, q, addr, name, told); err != nil {
			r.add(name, err)
		}
		return nil
	case q.Point.Returns() && golang.has(addr):
		r.add(name, errGoBegin)
		return nil
	}
	if err := c.Instruction(addr); err != nil {
		r.add(name, err)
		return nil
	}
	if q.Point.Returns() {
		if err := c.Returns(addr); err != nil {
			r.add(name, err)
			return nil
		}
	}
	off, _ := c.File().Offset(addr)
	x := t.add(places, q, off, told)
	x.begins = x.begins || c.Begins(addr)
	if q.Point.Returns() && c.LooksAtCaller(addr) {
		x.slow = errCaller
	}
	if x.begins && c.Branches(addr) {
		r.again = append(r.again, name)
	}
	return x
}

// refused are the places that a program does not get, by why.
type refused struct {
	why   []error
	names map[error]string // the first
	more  map[error]int
	// again are functions that come to their beginnings without a call.
	again []string
}

func (r *refused) add(name string, err error) {
	if _, known := r.names[err]; known {
		r.more[err]++
		return
	}
	if r.names == nil {
		r.names, r.more = make(map[error]string), make(map[error]int)
	}
	r.why = append(r.why, err)
	r.names[err] = name
}

// tell says so, in one line for each reason.
func (r *refused) tell(t *Tracer, q *hostrun.Program, path string) {
	at := fmt.Sprintf("program %s, section %s", q.Name, q.Section)
	if t.opts.Place != nil {
		at = t.opts.Place(q)
	}
	if n := len(r.again); n > 0 {
		text := fmt.Sprintf("%s: %s in %s branches to its first instruction, and each time counts as a call", at, r.again[0], path)
		if n > 1 {
			text += fmt.Sprintf("; so do %d more", n-1)
		}
		t.report(text)
	}
	for _, err := range r.why {
		text := fmt.Sprintf("%s: no probe at %s in %s: %v", at, r.names[err], path, err)
		if n := r.more[err]; n > 0 {
			text += fmt.Sprintf("; nor at %d more", n)
		}
		t.report(text)
	}
}

// add notes that a program runs at a place of a file, once.
func (t *Tracer) add(places map[uint64]*target, q *hostrun.Program, off uint64, name string) *target {
	t.found[q] = true
	x := places[off]
	if x == nil {
		x = &target{offset: off, name: name}
		places[off] = x
	}
	programs := &x.entries
	if q.Point.Returns() {
		programs = &x.returns
	}
	if !slices.Contains(*programs, q) { // of a function with two names
		*programs = append(*programs, q)
	}
	return x
}

// mostNear bounds the names that are told of functions like one that is not there.
const mostNear = 3

// functions yields the names of the functions that symbols stand for.
func functions(symbols []dso.Symbol) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range symbols {
			if s := &symbols[i]; s.Defined && s.Addr != 0 && (s.Function() || s.Indirect()) && !jump.Part(s.Name) && !yield(s.Name) {
				return
			}
		}
	}
}

// near returns functions that are called like one that is not there. Of those with versions the newest
// come first, as that is what programs call: cuMemAlloc_v2 before cuMemAlloc.
func near(name string, symbols []dso.Symbol) (list []string) {
	for _, n := range nearest.Names(name, functions(symbols), mostNear) {
		var versions []string
		for f := range functions(symbols) {
			if v, ok := strings.CutPrefix(f, n+"_v"); ok && len(v) == 1 && !slices.Contains(versions, f) {
				versions = append(versions, f)
			}
		}
		slices.Sort(versions)
		slices.Reverse(versions)
		for _, f := range append(versions, n) {
			if !slices.Contains(list, f) {
				list = append(list, f)
			}
		}
	}
	return list[:min(len(list), mostNear)]
}

// Unmatched says which programs' functions were never there.
func (t *Tracer) Unmatched() []string {
	if !t.began {
		return nil // why there is no program is said by who wanted to start it
	}
	var list []string
	for _, q := range t.opts.Plan.Host {
		if !q.Point.Function() || t.found[q] {
			continue
		}
		why := ""
		switch {
		case q.Point.API() && t.inFile[q]:
			why = "CUDA's libraries that the program has mapped have no function " + q.Point.Func
		case q.Point.API():
			why = "the program has mapped none of CUDA's libraries"
		case q.Point.Kind == object.HostUSDT && q.Point.Binary == "*":
			why = fmt.Sprintf("none of the program's files has a probe %s of provider %s%s", q.Point.Probe, q.Point.Provider, nearest.Question(t.near[q]))
		case q.Point.Kind == object.HostUSDT && t.inFile[q]:
			why = fmt.Sprintf("%s has no probe %s:%s%s", q.Point.Binary, q.Point.Provider, q.Point.Probe, nearest.Question(t.near[q]))
		case t.inFile[q]:
			why = fmt.Sprintf("%s has no function %s%s", q.Point.Binary, q.Point.Func, nearest.Question(t.near[q]))
		default:
			why = "the program has mapped no file " + q.Point.Binary
		}
		at := fmt.Sprintf("program %s, section %s", q.Name, q.Section)
		if t.opts.Place != nil {
			at = t.opts.Place(q)
		}
		list = append(list, at+": "+why)
	}
	return list
}
