package ptrace

import (
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Task is a traced thread. It is made by [Run] and [Attach]; its methods may be
// called only from within a [Handler]'s methods and the functions given to
// Task's, except for Release and Interrupt.
type Task struct {
	TID  int      // in the tracer's pid namespace
	PID  int      // of the process, its thread group
	Proc *Process // shared by the threads of a process
	Data any      // the handler's own

	tr   *tracer
	call Syscall // the current call
	at   place   // where it is stopped, while the handler is called

	wantExit  bool // call was given to Enter, which wants its exit
	inKernel  bool // the entry of a call was seen, and its exit will be
	announced bool // the handler knows the task
	held      bool // stopped since it was born, not adopted yet
	muted     bool // before the first exec: our own code runs in it
	attached  bool // Attach has found it, and it has not stopped yet
	first     stop // held: what it stopped with

	dead      bool // it has died, or lost its id to an execve; that is still to be reported
	queued    bool // its last stop or its end waits in tracer.pending
	noted     bool // the signal of that stop has been noted, see tracer.arrives
	frozen    bool // by StopWorld
	listening bool // in a stop by job control
	execed    bool // at TaskExec it was let run to the exit of execve

	changed     changedFlags // of its call of clone3
	interrupted bool         // the stop that it is in may have interrupted a call
	restarted   restarted    // see spareRestart

	brk     *breakState // at a breakpoint
	brkRoom breakState  // for brk
	skip    uint64      // the next hit here is none
	fault   unix.Signal // passing a breakpoint caused it
	rejoin  bool        // passing it, the task left a stop
	returns []oneShot   // by age

	hold     bool // the handler wants it to stay stopped
	parked   bool // it does
	after    stopKind
	afterSig unix.Signal
	onStop   []func(*Task)
	fcall    *funcCall // it runs a function for Call
	vectors  []byte    // room for its registers meanwhile
}

// Range is a run of a task's memory to be read into Buf.
type Range struct {
	Addr uint64
	Buf  []byte
	N    int // bytes read, from the beginning of Buf
}

// place says what a stopped task is about to do, for Syscall and InjectFilter.
type place uint8

const (
	placeNone  place = iota
	placeEntry       // execute a call that a filter stopped
	placeCall        // execute a call, where all stop
	placeExit        // return from a call
	placeExec        // return from execve, whose exit comes later
	placeBreak       // execute the instruction at a breakpoint
	placeStop        // anything; it was interrupted
	placeGroup       // stay in a stop of its process by job control
)

// Process is what the threads of a process share.
type Process struct {
	PID  int
	Data any // the handler's own

	nsInit tristate // the first of its pid namespace

	tasks     int        // how many threads are known
	mem       int        // /proc/PID/mem, -1: could not be opened
	all       bool       // stops at every call; rules are applied here
	sets      []*ruleSet // further rules in force
	ours      int        // filters of this package that are in the process
	own       []Program  // filters of the program's own, see confine.go
	noRestart bool       // own forbids restart_syscall
	ownKnown  bool       // own has all of them
	path      []byte     // room for names in /proc
	space     *space
}

// ruleSet is a list of rules in both its forms.
type ruleSet struct {
	rules []Rule
	prog  Program
	match *matcher
}

func (tr *tracer) newRuleSet(rules []Rule) (*ruleSet, error) {
	if err := checkClasses(rules); err != nil {
		return nil, err
	}
	prog, err := tr.compile(rules)
	if err != nil {
		return nil, err
	}
	m, err := newMatcher(rules)
	if err != nil {
		return nil, err
	}
	return &ruleSet{rules, prog, m}, nil
}

func newProcess(pid int) *Process {
	p := &Process{PID: pid, mem: -1}
	p.openMem()
	return p
}

// openMem opens the process's memory. It is done when a program begins, since
// the permission is checked then only: a program that makes itself undumpable
// later can still be read.
func (p *Process) openMem() {
	p.closeMem()
	fd, err := unix.Open("/proc/"+strconv.Itoa(p.PID)+"/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		p.mem = fd
	}
}

// shareMem takes the memory of a process that p shares it with, if p's own can't be opened.
func (p *Process) shareMem(with *Process) {
	if p.mem >= 0 || with.mem < 0 {
		return
	}
	if fd, err := unix.FcntlInt(uintptr(with.mem), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		p.mem = fd
	}
}

func (p *Process) closeMem() {
	if p.mem >= 0 {
		unix.Close(p.mem)
		p.mem = -1
	}
}

// hasThread asks /proc whether tid is one of the process's threads.
func (p *Process) hasThread(tid int) bool {
	b := append(p.path[:0], "/proc/"...)
	b = strconv.AppendInt(b, int64(p.PID), 10)
	b = append(b, "/task/"...)
	b = strconv.AppendInt(b, int64(tid), 10)
	p.path = append(b, 0)
	return exists(p.path)
}

// fork makes the entry of a child process, but for its memory.
func (p *Process) fork(pid int) *Process {
	c := newProcess(pid)
	c.all, c.sets, c.ours = p.all, slices.Clone(p.sets), p.ours
	c.own, c.ownKnown, c.noRestart = slices.Clip(p.own), p.ownKnown, p.noRestart
	return c
}

// findSet returns the rule set for rules, nil standing for the extra rules.
// has says whether it is in force in p already.
func (tr *tracer) findSet(p *Process, rules []Rule) (set *ruleSet, has bool, err error) {
	if rules == nil {
		if tr.extra == nil {
			return nil, false, fmt.Errorf("%w: there are no extra rules", ErrInject)
		}
		return tr.extra, tr.o.ExtraInBase || slices.Contains(p.sets, tr.extra), nil
	}
	for _, s := range p.sets {
		if sameRules(s.rules, rules) {
			return s, true, nil
		}
	}
	set, err = tr.newRuleSet(rules)
	return set, false, err
}

func sameRules(a, b []Rule) bool {
	return slices.EqualFunc(a, b, func(x, y Rule) bool {
		return x.Class == y.Class && x.Compat == y.Compat && slices.Equal(x.Names, y.Names) &&
			slices.Equal(x.Nrs, y.Nrs) && slices.Equal(x.Args, y.Args)
	})
}

// InjectFilter makes the task's process, and all that it starts from now on,
// stop for the calls that match rules, too (nil: Options.ExtraRules). It may be
// called where [Task.Syscall] may. A second call with the
// same rules, or one in a process whose ancestor had it, does nothing. Of two
// rules that match a call, one in the base filter and one injected, the injected
// one gives the class.
//
// The error matches ErrInject if the kernel, the architecture or the program (by a filter of
// its own) does not allow it; see [Task.TraceAll].
func (t *Task) InjectFilter(rules []Rule) error {
	set, has, err := t.tr.findSet(t.Proc, rules)
	if err != nil || has {
		return err
	}
	if !t.Proc.all {
		if err := t.inject(set.prog); err != nil {
			return err
		}
		t.Proc.ours++
		t.tr.res.Injected++
	}
	t.Proc.sets = append(t.Proc.sets, set)
	return nil
}

// TraceAll does the same as InjectFilter without touching the program, and always
// works, but from now on every call of the process costs two stops. Its other
// threads are interrupted once, as a debugger would.
func (t *Task) TraceAll(rules []Rule) error {
	set, has, err := t.tr.findSet(t.Proc, rules)
	if err != nil {
		return err
	}
	if !has {
		t.Proc.sets = append(t.Proc.sets, set)
	}
	if t.Proc.all {
		return nil
	}
	t.Proc.all = true
	for _, o := range t.tr.tasks {
		if o.Proc == t.Proc && o != t {
			ptraceOp(unix.PTRACE_INTERRUPT, o.TID, 0)
		}
	}
	return nil
}
