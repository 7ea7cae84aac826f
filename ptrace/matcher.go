package ptrace

// What a handler needs that serves several parties.

// Matcher applies rules to a call in Go, as a filter made of them would. It is
// for handlers that stop for several parties, whose rules overlap: a filter gives
// one class only.
type Matcher struct{ m *matcher }

// NewMatcher checks the rules and returns their Matcher.
func NewMatcher(rules []Rule) (*Matcher, error) {
	m, err := newMatcher(rules)
	if err != nil {
		return nil, err
	}
	return &Matcher{m}, nil
}

// Match returns the class of the first rule that selects c.
func (m *Matcher) Match(c *Syscall) (class uint16, ok bool) { return m.m.match(c) }

// Post has fn called on the tracing thread as soon as that has nothing else to
// do. It may be called from any goroutine, also when t has ended, and does not
// wait. When tracing ends, or a handler panics, fn may not be called at all.
func (t *Task) Post(fn func()) { t.tr.request(request{fn: func(*Task) { fn() }}) }

// StopsAtAll reports whether t's process stops at every system call, whatever
// the rules say (see [ModeSyscalls]): a call that rules do not select costs as much.
func (t *Task) StopsAtAll() bool { return t.Proc != nil && t.Proc.all }
