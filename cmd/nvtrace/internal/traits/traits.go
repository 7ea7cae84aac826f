// Package traits gathers what a process has that the ranks of a job are compared by, beside their collectives: driver,
// libraries, images, kernels, environment, failing calls, and what its threads were at.
//
// It knows one process. What differs is for whoever has all of them.
package traits

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Kinds of traits.
const (
	Is    = "is"    // what Name says is Value
	Has   = "has"   // Value is one of those of Name
	Fails = "fails" // what Value says happened N times
)

// InKernels is the set of what kernels communicate by without calls on the host.
const InKernels = "communication in kernels"

// Trait is something that a process has.
type Trait struct {
	Kind, Name, Value string
	N                 uint64
}

// Bounds of what is kept to be compared.
const (
	maxMembers  = 1 << 12
	maxFailures = 1 << 10
	maxThreads  = 1 << 12
)

// State is what a process was at, when it was heard of last. Times are in nanoseconds since the recording's start.
type State struct {
	Doing  string // the thread that calls NCCL, or one that a signal has stopped; "": nothing is known
	Since  int64  // since when; -1: nothing is known
	Exit   string // how the first process ended; "": it was not seen to
	Exited int64
}

// Gatherer follows a process. It is for one goroutine.
type Gatherer struct {
	pid      int32
	facts    map[string]string // as they were taken last
	found    map[string]string // that may have changed
	sets     map[string]map[string]bool
	fresh    []Trait
	failures map[string]uint64 // since the last ones were taken
	failed   map[string]bool   // of all time: their number is bounded
	nccl     map[int32]bool
	doing    map[int32]doing
	environ  *api.Environment
	exit     string
	exited   int64
}

// doing is what a thread was at when it was last heard of.
type doing struct {
	name  string // of the outermost call that it is in; "": none
	since int64
	line  string // of the program, where the call was made; "": not known
}

// New begins with a recording.
func New(h *traces.Header) *Gatherer {
	g := &Gatherer{
		pid: h.PID, facts: make(map[string]string), found: make(map[string]string), sets: make(map[string]map[string]bool),
		failures: make(map[string]uint64), failed: make(map[string]bool), nccl: make(map[int32]bool), doing: make(map[int32]doing), environ: api.NewEnvironment(false),
	}
	for name, value := range map[string]string{"driver": h.Driver, "machine": h.Arch, "kernel": h.Kernel, "nvtrace": h.Tool} {
		if value != "" {
			g.found[name] = value
		}
	}
	return g
}

// Observe takes in an event; kernel is what a GPU ran for the program, "" for anything else.
func (g *Gatherer) Observe(e *observe.Event, kernel string) {
	ev, c, frame := e.Event, e.Call, e.Frame
	g.environ.Add(ev, e.Tracker, frame)
	switch ev.Kind {
	case traces.KindCall:
		if frame == nil {
			break
		}
		if frame.Module.Library == api.NCCL {
			g.nccl[ev.TID] = true
			if strings.HasPrefix(frame.Name, "ncclDevComm") {
				g.member(InKernels, "NCCL's functions for kernels")
			}
		}
		if frame.Depth == 0 && (len(g.doing) < maxThreads || g.doing[ev.TID] != doing{}) {
			g.doing[ev.TID] = doing{frame.Name, ev.Time, ""}
			if frame.Module.Library != api.NVTX && frame.Module.Library != api.LibC {
				g.member("library", library(frame.Path))
			}
		}
	case traces.KindReturn:
		if frame == nil || frame.Depth > 0 {
			break
		}
		end := ev.Time + max(ev.Dur, 0)
		if frame.End >= 0 {
			end = frame.End
		}
		if d, ok := g.doing[ev.TID]; ok && ev.Flags&traces.FlagUnfinished == 0 && d.since == frame.Start {
			g.doing[ev.TID] = doing{"", end, ""}
		}
		if c != nil && c.Returned.Known && c.Returned.Failed {
			g.fail(frame.Name + ": " + c.Returned.Name)
		}
	case traces.KindIoctl:
		if c != nil && (c.Errno != 0 || c.HasStatus && c.Status != 0) {
			text := strings.TrimSpace(c.Name + " " + c.Sub)
			if c.Errno != 0 {
				text += ": " + unix.ErrnoName(unix.Errno(c.Errno))
			} else {
				text += ": " + c.Status.String()
			}
			g.fail(text)
		}
	case traces.KindGPU:
		if kernel != "" {
			g.member("kernel", kernel)
			if strings.Contains(kernel, "nvshmem") {
				g.member(InKernels, "NVSHMEM in kernels")
			}
		}
	case traces.KindKernel:
		if strings.Contains(ev.Name, "nvshmem") {
			g.member(InKernels, "NVSHMEM in kernels")
		}
	case traces.KindImage:
		if ev.Image != nil {
			g.member("image", ev.Image.SHA256)
		}
	case traces.KindExit:
		if ev.PID == g.pid && ev.TID == ev.PID {
			st := unix.WaitStatus(ev.Ret)
			if g.exited = ev.Time; st.Signaled() {
				g.exit = "killed by " + unix.SignalName(st.Signal())
			} else {
				g.exit = fmt.Sprintf("exit %d", st.ExitStatus())
			}
		}
	case traces.KindStack:
		if d, ok := g.doing[ev.TID]; ok && d.name != "" {
			d.line = strings.Clone(api.OwnLine(ev.Stack(), nil))
			g.doing[ev.TID] = d
		}
	case traces.KindSignal:
		if st := unix.Signal(ev.Ret); st == unix.SIGSTOP || st == unix.SIGTSTP {
			g.doing[ev.TID] = doing{stoppedBy + unix.SignalName(st), ev.Time, ""}
		}
	}
}

// library is a library's file. Those of the simulated GPU have a folder of their own in each run.
func library(path string) string {
	if strings.Contains(path, "/nvtrace-sim-") {
		return filepath.Base(path) + " (simulated)"
	}
	return path
}

// member notes that something is in a set that is compared.
func (g *Gatherer) member(set, name string) {
	m := g.sets[set]
	if m == nil {
		m = make(map[string]bool)
		g.sets[set] = m
	}
	if !m[name] && len(m) < maxMembers {
		name = strings.Clone(name)
		m[name] = true
		g.fresh = append(g.fresh, Trait{Has, set, name, 1})
	}
}

func (g *Gatherer) fail(what string) {
	if !g.failed[what] {
		if len(g.failed) >= maxFailures {
			return
		}
		g.failed[what] = true
	}
	g.failures[what]++
}

// Take returns what was not returned before.
func (g *Gatherer) Take() []Trait {
	for _, v := range g.environ.Variables() {
		if !ranks.Var(v.Name) && v.Set {
			g.found["environment "+v.Name] = cmp.Or(v.Value, "(set)")
		}
	}
	list := g.fresh
	g.fresh = nil
	for _, name := range slices.Sorted(maps.Keys(g.found)) {
		if value := g.found[name]; g.facts[name] != value {
			g.facts[name] = value
			list = append(list, Trait{Is, name, value, 1})
		}
	}
	clear(g.found)
	for _, what := range slices.Sorted(maps.Keys(g.failures)) {
		list = append(list, Trait{Fails, "", what, g.failures[what]})
	}
	clear(g.failures)
	return list
}

// stoppedBy begins what a thread is at that a signal has stopped.
const stoppedBy = "stopped by "

// State says what the thread that calls NCCL was at when it was last heard of.
func (g *Gatherer) State() State {
	s := State{Since: -1, Exit: g.exit, Exited: g.exited}
	for _, tid := range slices.Sorted(maps.Keys(g.doing)) {
		d := g.doing[tid]
		stopped := strings.HasPrefix(d.name, stoppedBy)
		switch {
		case strings.HasPrefix(s.Doing, stoppedBy), !stopped && (!g.nccl[tid] || d.since <= s.Since):
			continue
		case stopped:
			s.Doing = d.name
		case d.name == "":
			s.Doing = "outside of CUDA's libraries"
		default:
			s.Doing = "in " + d.name
			if d.line != "" {
				s.Doing += ", called at " + d.line + ","
			}
		}
		s.Since = d.since
	}
	return s
}
