package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// Programs that confine themselves (seccomp(2)) may be killed for a system call that they never make
// themselves. What the agent does without being asked is therefore known beforehand: ownCalls, and the bell. Where a
// program's filter forbids one of the former, the agent makes none of them (conf.silent): it copies memory
// without asking whether it is there, whose faults the supervisor repairs, and asks the supervisor who a thread is.
// And the bell, by which it calls for the supervisor, is a call that the filter allows.

// ownCall is a system call with its first arguments, as far as they are always the same.
type ownCall struct {
	nr   uint64
	args []uint64
}

// ownCalls are those that sys_own makes.
var ownCalls = []ownCall{
	{unix.SYS_RT_SIGPROCMASK, []uint64{0xffffffff}},
	{unix.SYS_SCHED_YIELD, nil},
	{unix.SYS_FSTAT, nil},
	{unix.SYS_NEWFSTATAT, nil},
	{unix.SYS_GETPID, nil},
	{unix.SYS_GETTID, nil},
	{unix.SYS_GETUID, nil},
	{unix.SYS_GETGID, nil},
	{unix.SYS_PRCTL, []uint64{unix.PR_GET_NAME}},
	{unix.SYS_CLOCK_GETTIME, []uint64{unix.CLOCK_MONOTONIC}}, // by the vdso, where the processor's counter is of no use
}

// setupCalls are those that putting the agent into a process takes.
var setupCalls = []uint64{
	unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MUNMAP, unix.SYS_MEMFD_CREATE, unix.SYS_CLOSE,
}

// bells are calls that do nothing on a descriptor that there is none of, and with a request that is none;
// the first is the usual one.
var bells = []uint64{
	unix.SYS_IOCTL, unix.SYS_WRITE, unix.SYS_READ, unix.SYS_CLOSE, unix.SYS_FUTEX, unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_FCNTL,
}

// bellRules select the bells.
func bellRules(nrs []uint64) (rules []ptrace.Rule) {
	args := []ptrace.ArgMatch{{Arg: 0, Value: trapFD, Low: true}, {Arg: 1, Value: trapRequest, Low: true}}
	for _, nr := range nrs {
		rules = append(rules, ptrace.Rule{Nrs: []uint32{uint32(nr)}, Class: Class, Args: args})
	}
	return rules
}

// noBell: the supervisor can't be called.
const noBell = -1

var usual = manners{bell: unix.SYS_IOCTL}

// allows says what filters allow.
type allows func(nr uint64, args ...uint64) bool

// own reports whether they allow all calls that the agent makes by itself.
func (may allows) own() bool {
	return !slices.ContainsFunc(ownCalls, func(c ownCall) bool { return !may(c.nr, c.args...) })
}

// bell reports whether a call can be the bell.
func (may allows) bell(nr uint64) bool { return may(nr, trapFD, trapRequest) }

// mannersFor finds what the agent may do, where t's process is about to have filters, or has them.
func (p *Process) mannersFor(t *ptrace.Task, may allows) manners {
	m := p.manners
	m.silent = m.silent || !may.own()
	if m.bell != noBell && !may.bell(uint64(m.bell)) {
		m.bell = noBell
		// All of them at once: a second filter may forbid the first choice, when no further one of ours can be had.
		if i := slices.IndexFunc(bells, may.bell); i >= 0 && t.InjectFilter(bellRules(bells[1:])) == nil {
			m.bell = int64(bells[i])
		}
	}
	return m
}

// confined sees to it that the agent in a process that has filters does what they allow. An error says that
// they do not allow what it takes to put it in.
func (p *Process) confined(t *ptrace.Task) error {
	for _, c := range setupCalls {
		if err := t.Allows(c); err != nil {
			return err
		}
	}
	may := func(nr uint64, args ...uint64) bool { return t.Allows(nr, args...) == nil }
	if p.manners = p.mannersFor(t, may); p.manners.bell == noBell {
		return fmt.Errorf("%w to call for nvtrace", errNoBell)
	}
	return nil
}

var errNoBell = errors.New("the program's own seccomp filter allows none of the system calls that could be used (syscall user dispatch counts as one)")

// writeManners tells the agent.
func (p *Process) writeManners() error {
	silent := uint64(0)
	if p.manners.silent {
		silent = 1
	}
	return errors.Join(p.write64(confAddr+confBell, uint64(p.manners.bell)), p.write64(confAddr+confMute, silent))
}

// Confine implements [ptrace.Injector].
func (a *Agent) Confine(t *ptrace.Task, may func(nr uint64, args ...uint64) bool) {
	p := a.procs[t.PID]
	if p == nil || !p.mapped && !p.shares {
		return
	}
	if p.shares { // a child of vfork is about to become another program
		if allows(may).own() && allows(may).bell(unix.SYS_IOCTL) {
			return
		}
		a.o.Say(fmt.Sprintf("process %d, a child of vfork, confines itself: calls of functions are not recorded in it until it starts a program", p.PID))
		p.manners = manners{noBell, true}
		p.host.behave(t, p.manners)
		return
	}
	m := p.mannersFor(t, allows(may))
	if m == p.manners {
		return
	}
	p.manners = m
	p.behave(t, m)
	a.o.Logger.Debug("a process confines itself", "pid", p.PID, "bell", m.bell, "silent", m.silent)
	if m.bell == noBell {
		_ = p.write64(gateAddr, 0) // fails if it has died, too
		a.o.Say(fmt.Sprintf("calls of functions are not recorded in process %d from here on: %v", p.PID, errNoBell))
	}
}

// behave has the agent do what it may, and threads that are about to do something else come back from it.
func (p *Process) behave(t *ptrace.Task, m manners) {
	tasks, resume, err := t.StopWorld()
	if err != nil {
		return // it is dying
	}
	defer resume()
	own := p.manners
	p.manners = m
	_ = p.writeManners() // fails if it is dying, too
	p.manners = own
	b := p.a.blob
	for _, o := range tasks {
		r, err := o.Regs()
		if err != nil {
			continue // it is in the kernel, in none of these calls
		}
		switch pc := r.IP(); {
		case pc > b.ownCheck && pc <= b.ownInsn && m.silent:
			r.SetIP(b.ownNot)
		case pc == b.ownInsn+syscallLen && m.silent && enters(r) && m.bell != noBell:
			setCall(r, uint64(m.bell)) // its result is thrown away
		case pc > b.bellLoad && pc <= b.bellInsn:
			r.SetIP(b.bellLoad)
		default:
			continue
		}
		_ = o.SetRegs(r)
	}
}

// syscallLen is the length of the instruction.
const syscallLen = 2

// unconfine ends what a child of vfork has made of its parent's agent.
func (p *Process) unconfine() {
	if p.shares && p.manners.bell == noBell && p.host.mem != nil {
		_ = p.host.writeManners() // fails if it has ended
	}
}

// keepAllowed makes the call by which the supervisor was called one that the program's filters allow, if it
// has got one since the call began: they look at it when the task goes on.
func (a *Agent) keepAllowed(t *ptrace.Task, c *ptrace.Syscall) {
	p := a.procs[t.PID]
	if p == nil || p.manners.bell < 0 || uint64(p.manners.bell) == c.Nr {
		return
	}
	if r, err := t.Regs(); err == nil {
		setCall(r, uint64(p.manners.bell))
		_ = t.SetRegs(r) // fails if it has died
	}
}

// answerWho tells a thread what it can't ask the kernel: struct who, as programs at a stop see it.
func answerWho(t *ptrace.Task, addr uint64) {
	var b [32]byte
	le := binary.LittleEndian
	user, _ := proc.StatusNumber(t.TID, "Uid") // 0 if it has died
	group, _ := proc.StatusNumber(t.TID, "Gid")
	le.PutUint64(b[0:], uint64(t.PID)<<32|uint64(uint32(t.TID)))
	le.PutUint64(b[8:], uint64(uint32(group))<<32|uint64(uint32(user)))
	copy(b[16:31], proc.Comm(t.TID))
	_, _ = t.WriteMem(addr, b[:])
}
