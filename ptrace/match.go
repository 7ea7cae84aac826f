package ptrace

// matcher applies rules to calls in Go, where no filter does it in the kernel.
// It decides as the compiled filter would.
type matcher struct {
	calls map[call][]*Rule
}

func newMatcher(rules []Rule) (*matcher, error) {
	groups, err := groupRules(rules)
	if err != nil {
		return nil, err
	}
	m := &matcher{calls: make(map[call][]*Rule, len(groups))}
	for _, g := range groups {
		m.calls[g.call] = g.rules
	}
	return m, nil
}

// match returns the class of the first rule that selects c.
func (m *matcher) match(c *Syscall) (class uint16, ok bool) {
	for _, r := range m.calls[call{c.Arch, uint32(c.Nr)}] {
		if r.matches(&c.Args) {
			return r.Class, true
		}
	}
	return 0, false
}

func (r *Rule) matches(args *[6]uint64) bool {
	for i := range r.Args {
		if !r.Args[i].matches(args) {
			return false
		}
	}
	return true
}

func (m *ArgMatch) matches(args *[6]uint64) bool {
	v, want := args[m.Arg]&m.mask(), m.Value
	if m.Low {
		v, want = uint64(uint32(v)), uint64(uint32(want))
	}
	switch m.Op {
	case Equal:
		return v == want
	case NotEqual:
		return v != want
	case GreaterEqual:
		return v >= want
	default:
		return v <= want
	}
}
