package record

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// stopCounts counts what the program was stopped for, and for how long the tracing
// thread dealt with it, for those who want to know where time goes. It is nil unless
// debug messages are wanted.
type stopCounts struct {
	of   map[string]stopCount
	last string        // the reason of the stop at hand, "" if it has none yet
	all  time.Duration // spent in all stops
}

// stopCount is what is known of the stops of one reason.
type stopCount struct {
	n    int
	held time.Duration
}

func newStopCounts(l *slog.Logger) *stopCounts {
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return &stopCounts{of: make(map[string]stopCount)}
	}
	return nil
}

// held notes that a stop was dealt with. It is a ptrace.Options.Held.
func (s *stopCounts) held(d time.Duration) {
	what := s.last
	if what == "" {
		what = "other"
		s.add(what)
	}
	c := s.of[what]
	c.held += d
	s.of[what], s.last = c, ""
	s.all += d
}

// classNames names the recorder's classes of calls.
var classNames = [...]string{
	classIoctl: "ioctl", classOpen: "open", classClose: "close", classDup: "dup", classMmap: "mmap",
	classMunmap: "munmap", classMremap: "mremap",
}

// entry counts the entry of a call: by its name, class and where it comes from.
func (s *stopCounts) entry(r *recorder, t *ptrace.Task, c *ptrace.Syscall, ours bool, why string) {
	if s == nil {
		return
	}
	class := fmt.Sprintf("class %#x", c.Class)
	switch {
	case c.Class == agent.Class:
		class = fmt.Sprintf("agent's %d", c.Args[2])
	case int(c.Class) < len(classNames):
		class = classNames[c.Class]
	}
	about := "other file"
	if ours {
		about = "device"
	}
	from := "program"
	if r.agent.Owns(c.IP) {
		from = "agent"
	}
	s.add(fmt.Sprintf("entry %s, class %s, %s, from the %s%s", c.Name(), class, about, from, why))
}

// exit counts the exit of a call.
func (s *stopCounts) exit(class uint16) {
	if s != nil {
		s.add("exit, class " + classNames[class])
	}
}

func (s *stopCounts) add(what string) {
	if s == nil {
		return
	}
	c := s.of[what]
	c.n++
	s.of[what], s.last = c, what
}

// reason says why an ioctl on a device stopped, as it was before the stop was
// dealt with.
func (s *stopCounts) reason(r *recorder, t *ptrace.Task, c *ptrace.Syscall) string {
	if s == nil || c.Class != classIoctl {
		return ""
	}
	p := r.process(t.PID)
	switch {
	case p.agent == nil:
		return ": no agent yet"
	case !r.agent.Owns(c.IP):
		return ": call not rerouted"
	}
	return ": " + p.agent.Why(t, int32(uint32(c.Args[0])), uint32(c.Args[1]))
}

// request names an ioctl for the counts: with the command or class that the
// argument has.
func request(ev *traces.Event) string {
	s := fmt.Sprintf(", %s %#x", ev.Dev, ev.Request())
	if nr := ev.Request() & 0xff; ev.Request()>>8&0xff == 'F' && (nr == 0x2a || nr == 0x2b) && len(ev.Mem) > 0 && len(ev.Mem[0].In) >= 16 {
		in := ev.Mem[0].In
		at := 8 // NVOS54_PARAMETERS.cmd
		if nr == 0x2b {
			at = 12 // NVOS21_PARAMETERS.hClass, NVOS64_PARAMETERS.hClass
		}
		s += fmt.Sprintf(" of %#x", uint32(in[at])|uint32(in[at+1])<<8|uint32(in[at+2])<<16|uint32(in[at+3])<<24)
	}
	return s
}

// log prints the counts.
func (s *stopCounts) log(l *slog.Logger, res *ptrace.Result) {
	if s == nil {
		return
	}
	l.Debug("stops", "all", res.Stops, "entries", res.Calls, "exits", res.Exits, "signals", res.Signals,
		"breakpoints", res.Hits, "tasks", res.Tasks, "filters", res.Injected, "held", s.all)
	for _, what := range slices.SortedFunc(maps.Keys(s.of), func(a, b string) int {
		return cmp.Or(s.of[b].n-s.of[a].n, cmp.Compare(a, b))
	}) {
		l.Debug("stops", "n", s.of[what].n, "held", s.of[what].held, "what", what)
	}
}
