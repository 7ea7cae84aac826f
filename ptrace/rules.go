package ptrace

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// compile makes a filter of rules.
func (tr *tracer) compile(rules []Rule) (Program, error) {
	rules, err := tr.unfailing(rules)
	if err != nil {
		return nil, err
	}
	return compile(rules, ActionTrace, tr.o.Injector != nil)
}

// unfailing returns the rules that filters are made of: where the program may outlive this process, without
// calls that must not fail.
func (tr *tracer) unfailing(rules []Rule) ([]Rule, error) {
	if !tr.o.NoExitKill || tr.o.Seccomp != SeccompAuto {
		return rules, nil
	}
	list := make([]Rule, 0, len(rules))
	for _, r := range rules {
		if named(&r, unix.SYS_RT_SIGRETURN) {
			return nil, errReturning
		}
		if slices.ContainsFunc(endings, func(nr uint32) bool { return named(&r, nr) }) {
			tr.seesEnds = true
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool {
				return slices.ContainsFunc(endings, func(nr uint32) bool { return SyscallName(nativeArch, uint64(nr)) == name })
			})
			r.Nrs = slices.DeleteFunc(slices.Clone(r.Nrs), func(nr uint32) bool { return slices.Contains(endings, nr) })
		}
		if len(r.Names)+len(r.Nrs) > 0 {
			list = append(list, r)
		}
	}
	return list, nil
}

// named reports whether a rule selects a call of this architecture.
func named(r *Rule, nr uint32) bool {
	return slices.Contains(r.Nrs, nr) || slices.Contains(r.Names, SyscallName(nativeArch, uint64(nr)))
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

// confineRules select the calls that install filters.
func confineRules() []Rule {
	return []Rule{
		{Names: []string{"seccomp"}, Compat: true, Class: ClassInternal, Args: []ArgMatch{{Arg: 0, Op: LessEqual, Value: unix.SECCOMP_SET_MODE_FILTER, Low: true}}},
		{Names: []string{"prctl"}, Compat: true, Class: ClassInternal, Args: []ArgMatch{{Arg: 0, Value: unix.PR_SET_SECCOMP, Low: true}}},
		{Names: []string{"prctl"}, Class: ClassInternal, Args: []ArgMatch{{Arg: 0, Value: unix.PR_SET_SYSCALL_USER_DISPATCH, Low: true}, {Arg: 1, Value: unix.PR_SYS_DISPATCH_ON, Low: true}}},
	}
}

// reservedRules select the calls that may change what lies in spans. A filter can't add, so not the end is
// compared: either the address lies within a span, or not further below than that is long, or the size is no
// smaller than the span's.
func reservedRules(spans []Span) (rules []Rule) {
	for _, c := range reservedCalls {
		for _, s := range spans {
			length := s.End - s.First
			if c.size == noSize {
				length = 0
			}
			before := append(slices.Clip(c.fixed), ArgMatch{Arg: c.addr, Op: LessEqual, Value: s.End - 1})
			near := slices.Clip(before)
			if s.First > length {
				near = append(near, ArgMatch{Arg: c.addr, Op: GreaterEqual, Value: s.First - length})
				if c.size != noSize {
					long := append(slices.Clip(before), ArgMatch{Arg: c.size, Op: GreaterEqual, Value: length})
					rules = append(rules, Rule{Names: c.names, Class: ClassInternal, Args: long})
				}
			}
			rules = append(rules, Rule{Names: c.names, Class: ClassInternal, Args: near})
		}
	}
	return rules
}

// reservedCalls are those that change what is mapped at an address that the program names, or what a child gets of
// it. A size of noSize is no argument of the call: then the address alone counts.
var reservedCalls = []struct {
	names      []string
	addr, size int
	fixed      []ArgMatch
}{
	{[]string{"mmap"}, 0, 1, []ArgMatch{{Arg: 3, Mask: unix.MAP_FIXED, Value: unix.MAP_FIXED, Low: true}}},
	{[]string{"mremap"}, 4, 2, []ArgMatch{{Arg: 3, Mask: unix.MREMAP_FIXED, Value: unix.MREMAP_FIXED, Low: true}}},
	{[]string{"munmap", "mprotect", "pkey_mprotect", "mremap"}, 0, 1, nil},
	{[]string{"madvise"}, 0, 1, []ArgMatch{ // one range is short in a filter, see leaves
		{Arg: 2, Op: GreaterEqual, Value: unix.MADV_DONTNEED, Low: true}, {Arg: 2, Op: LessEqual, Value: unix.MADV_GUARD_INSTALL, Low: true},
	}},
	{[]string{"shmat"}, 1, noSize, []ArgMatch{{Arg: 2, Mask: shmRemap, Value: shmRemap, Low: true}}},
}

const (
	noSize   = -1
	shmRemap = 0x4000 // SHM_REMAP of linux/shm.h
)

// untracedRules select the calls of clone whose child would escape: with the
// filter, but without a tracer, so that its calls would fail. The flag is taken
// away. Clone3 has it in memory, where no filter sees it: it always stops.
func untracedRules() []Rule {
	return []Rule{
		{
			Names: []string{"clone"}, Compat: true, Class: ClassInternal,
			Args: []ArgMatch{{Arg: 0, Op: NotEqual, Mask: unix.CLONE_UNTRACED, Low: true}},
		},
		{Names: []string{"clone3"}, Compat: true, Class: ClassInternal},
	}
}

// internalRules select the calls that the supervisor stops at for its own sake.
func internalRules(o *Options) []Rule {
	rules := append(untracedRules(), confineRules()...)
	if o.Injector != nil {
		rules = append(rules, reservedRules(o.Injector.Room())...)
	}
	return rules
}

// countFilters is how many filters the tracing thread has, hence the first child. It
// gets no others.
func (tr *tracer) countFilters() (int, bool) {
	if !tr.filtersKnown {
		tr.filters, tr.filtersKnown = filterCount(tr.tid)
	}
	return tr.filters, tr.filtersKnown
}

// filterCount is the number of filters on a task.
func filterCount(tid int) (int, bool) {
	return proc.StatusNumber(tid, "Seccomp_filters")
}

// selected does a filter's work.
func (tr *tracer) selected(t *Task) (class uint16, ok bool) {
	class, ok = tr.chosen(t)
	if tr.o.Injector != nil && t.call.IP-ExemptPage < pageSize && class != ClassInternal {
		return 0, false
	}
	return class, ok
}

// chosen is selected without the exempt page.
func (tr *tracer) chosen(t *Task) (class uint16, ok bool) {
	base, ok := tr.base.match(&t.call)
	if ok && base == ClassInternal { // whose place internal gives to others
		return base, true
	}
	for _, s := range slices.Backward(t.Proc.sets) { // the youngest filter decides
		if class, found := s.match.match(&t.call); found {
			return class, true
		}
	}
	return base, ok
}

// reserves reports whether t's call would change memory of the Injector's.
func (tr *tracer) reserves(t *Task) bool {
	if tr.o.Injector == nil || t.call.Compat {
		return false
	}
	name, args := t.call.Name(), &t.call.Args
	if leaves(name, args) {
		return false
	}
	for _, c := range reservedCalls {
		if !slices.Contains(c.names, name) || slices.ContainsFunc(c.fixed, func(m ArgMatch) bool { return !m.matches(args) }) {
			continue
		}
		addr, size := args[c.addr], uint64(1)
		if c.size != noSize {
			size = args[c.size]
		}
		if size > 0 && tr.o.Injector.Holds(t, addr, size) {
			return true
		}
	}
	return false
}
