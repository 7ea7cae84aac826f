package view

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/script"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// A hostScript runs a program's probes on the host.
type hostScript struct {
	runner                    *script.Runner
	ioctls, calls, rets, runs bool // what there are probes at
	images, memory            bool
	places                    []string // that probes are at
	show                      func(text string)
	Shown                     func([]script.Shown)    // takes all in place of show; nil: show does
	programs                  map[int32]string        // that processes run
	ranks                     map[int32]int           // of processes, as far as they were looked up; nil: of a recording
	rank                      int                     // of processes of a recording
	stacks                    map[int32]calledFrom    // of threads
	launches                  map[launching]string    // the kernels
	atLaunch                  bool                    // stacks are asked for there
	waiting                   map[int32]*script.Event // launches of threads whose stacks are to come
	ranges                    map[int32][]string      // NVTX ranges of threads, the innermost last; nil: nobody asks
	last                      int64                   // when the latest event was
	came                      time.Time               // when it came here
	name, sub                 []byte
}

// newHostScript returns what runs a program's probes on the host; show puts out what they print. of is
// the header of the recording that the events are from, nil: the processes run.
func newHostScript(p *script.Program, of *traces.Header, show func(text string)) *hostScript {
	wants := func(kind string) bool { return len(p.Wants(kind)) > 0 }
	h := &hostScript{ioctls: wants("ioctl"), calls: wants("api"), rets: wants("apiret"), runs: wants("launch"), images: wants("image"), memory: p.OfMemory(), places: p.HostPlaces(), show: show, programs: make(map[int32]string), ranks: make(map[int32]int), rank: ranks.Unknown, stacks: make(map[int32]calledFrom), launches: make(map[launching]string)}
	h.atLaunch = slices.ContainsFunc(p.StacksAt(), func(at string) bool { return strings.HasPrefix(at, "launch:") })
	h.waiting = make(map[int32]*script.Event)
	if p.Ranges() {
		h.ranges = make(map[int32][]string)
	}
	if of != nil {
		h.ranks = nil
		h.rank = ranks.Of(of.Rank).Rank
	}
	var began []script.Shown
	h.runner, began = p.NewRunner()
	h.put(began)
	return h
}

func (h *hostScript) put(list []script.Shown) {
	if h.Shown != nil {
		h.Shown(list)
		return
	}
	for i := range list {
		if i > 0 && list[i].Name != "" {
			h.show("\n")
		}
		h.show(list[i].Text)
	}
}

// Observe implements observe.Observer: it runs the probes on an event.
func (h *hostScript) Observe(e *observe.Event) {
	ev, c, d := e.Event, e.Call, e.Decoder
	h.put(h.runner.Tick(ev.Time))
	h.last, h.came = ev.Time, time.Now()
	switch {
	case ev.Kind == traces.KindExec:
		keep(h.programs, ev.PID, path.Base(ev.Path))
		delete(h.ranks, ev.PID)
	case ev.Kind == traces.KindFork && ev.Flags&traces.FlagThread == 0:
		h.ended(ev.Child, ev.Child) // of which the end was not seen
		keep(h.programs, ev.Child, h.programs[ev.PID])
	case ev.Kind == traces.KindExit:
		h.launched(ev.TID, nil)
		h.ended(ev.PID, ev.TID)
		return
	case ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn:
		h.launched(ev.TID, nil) // its stack was not recorded
	}
	if e.Frame != nil && ev.Kind == traces.KindCall {
		h.inRange(ev, e.Frame)
	}
	x := script.Event{PID: ev.PID, TID: ev.TID, Rank: h.rankOf(ev.PID), Comm: h.programs[ev.PID], Time: ev.Time, Duration: ev.Dur, Ret: ev.Ret}
	if open := h.ranges[ev.TID]; len(open) > 0 {
		x.NVTX = open[len(open)-1]
	}
	switch f := e.Frame; {
	case ev.Kind == traces.KindIoctl && h.ioctls:
		h.name = c.AppendName(h.name[:0])
		h.sub = c.AppendSub(h.sub[:0], d.ABI(ev.PID))
		x.Kind, x.Name, x.Sub, x.Device = "ioctl", string(h.name), string(h.sub), d.FDName(ev.PID, ev.FD)
		x.Status, x.Failed = c.StatusName(), c.Failed()
		if from, ok := h.stacks[ev.TID]; ok && from.function == "ioctl" {
			x.PyStack, x.UStack = from.python, from.native
			delete(h.stacks, ev.TID)
		}
		h.put(h.runner.Event(&x))
	case ev.Kind == traces.KindCall && f != nil && (h.calls || h.runs || h.rets):
		x.Kind, x.Name, x.Library, x.Args = "api", f.Name, f.LibraryName(), f.Args
		x.Arg, x.Text = argsOf(f, ev)
		if h.calls {
			h.put(h.runner.Event(&x))
		}
		kernel, stream, ok := f.Launch(ev, &e.Tracker.Names)
		if ok && h.rets && len(h.launches) < maxKept {
			h.launches[launching{ev.TID, f.Name}] = kernel
		}
		if ok && h.runs && (f.Module.Library != api.Runtime || f.Alone()) {
			x.Kind, x.Kernel, x.Stream = "launch", kernel, stream
			x.Grid, x.Block = f.Shape(ev)
			if h.atLaunch && len(h.waiting) < maxKept {
				h.waiting[ev.TID] = &x
				break
			}
			h.put(h.runner.Event(&x))
		}
	case ev.Kind == traces.KindImage && ev.Image != nil && h.images:
		x.Kind, x.Name, x.Library = "image", ev.Name, ev.Path
		x.Format, x.Size, x.File = ev.Image.Format, ev.Image.Size, ev.Image.File
		h.put(h.runner.Event(&x))
	case ev.Kind == traces.KindStack && (h.rets || h.memory || h.ioctls || h.atLaunch) && ev.Flags&traces.FlagUnfinished == 0:
		frames := ev.Stack()
		from := calledFrom{ev.Name, pythonText(frames), nativeText(frames)}
		keep(h.stacks, ev.TID, from)
		if x := h.waiting[ev.TID]; x != nil && x.Name == ev.Name {
			h.launched(ev.TID, &from)
		}
	case ev.Kind == traces.KindReturn && f != nil && (h.rets || h.memory):
		if from, ok := h.stacks[ev.TID]; ok && from.function == f.Name {
			x.PyStack, x.UStack = from.python, from.native
			delete(h.stacks, ev.TID)
		}
		x.Kernel = h.launches[launching{ev.TID, f.Name}]
		delete(h.launches, launching{ev.TID, f.Name})
		x.Kind, x.Name, x.Library = "apiret", f.Name, f.LibraryName()
		x.Status, x.Failed = c.Returned.Name, c.Returned.Failed
		x.Arg, x.Text = argsOf(f, ev)
		if h.rets {
			h.put(h.runner.Event(&x))
		}
		if h.memory {
			for _, m := range f.Memory() {
				if x.Kind = "alloc"; m.Freed {
					x.Kind = "free"
				}
				x.Size, x.Addr, x.Pinned = int64(m.Size), m.Addr, m.Host
				h.put(h.runner.Event(&x))
			}
		}
	}
}

// launched runs the probes on a launch that has waited for its stack; nil: that was not recorded.
func (h *hostScript) launched(tid int32, from *calledFrom) {
	x := h.waiting[tid]
	if x == nil {
		return
	}
	delete(h.waiting, tid)
	if from != nil {
		x.PyStack, x.UStack = from.python, from.native
	}
	h.put(h.runner.Event(x))
}

// inRange follows the NVTX ranges that a thread opens and closes.
func (h *hostScript) inRange(ev *traces.Event, f *api.Frame) {
	if h.ranges == nil || f.Module.Library != api.NVTX {
		return
	}
	const deepest = 1 << 10 // more are a mistake of the program's
	open, known := h.ranges[ev.TID]
	switch {
	case f.Name == "nvtxRangePush" && len(open) < deepest && (known || len(h.ranges) < maxKept):
		message, _ := f.Text("message", ev)
		h.ranges[ev.TID] = append(open, message)
	case f.Name == "nvtxRangePop" && len(open) > 0:
		h.ranges[ev.TID] = open[:len(open)-1]
	}
}

// maxKept bounds what is known of threads and processes: a recording may lack their ends.
const maxKept = 1 << 14

// keep notes something of a thread or process, if there is room for it.
func keep[T any](m map[int32]T, id int32, v T) {
	if _, known := m[id]; known || len(m) < maxKept {
		m[id] = v
	}
}

// ended forgets a thread, and its process where that has ended with it: others may get their ids.
func (h *hostScript) ended(pid, tid int32) {
	delete(h.stacks, tid)
	delete(h.ranges, tid)
	maps.DeleteFunc(h.launches, func(l launching, _ string) bool { return l.tid == tid })
	if tid == pid {
		delete(h.programs, pid)
		delete(h.ranks, pid)
	}
}

// launching is a call of a thread that launches a kernel, and has not returned: one of the runtime has one of the
// driver within it.
type launching struct {
	tid      int32
	function string
}

// calledFrom is where the call that a thread is in was made.
type calledFrom struct{ function, python, native string }

// rankOf returns the rank of a process: of one that runs it is in its environment, of a recording
// in its header.
func (h *hostScript) rankOf(pid int32) int {
	if h.ranks == nil {
		return h.rank
	}
	rank, ok := h.ranks[pid]
	if !ok {
		if rank = ranks.Rank(proc.Environ(int(pid))); rank == ranks.Unknown {
			rank = h.rank
		}
		keep(h.ranks, pid, rank)
	}
	return rank
}

// argsOf returns the parameters of a call, as ev has them.
func argsOf(f *api.Frame, ev *traces.Event) (arg func(string) (uint64, bool), text func(string) (string, bool)) {
	return func(name string) (uint64, bool) { return f.Arg(name, ev) }, func(name string) (string, bool) { return f.Text(name, ev) }
}

// Tick runs intervals while nothing happens.
func (h *hostScript) Tick(now time.Time) {
	if !h.came.IsZero() {
		h.put(h.runner.Tick(h.last + now.Sub(h.came).Nanoseconds()))
	}
}

// Finish runs END and shows the maps, and tells if there was nothing that probes are at.
func (h *hostScript) Finish(notice func(string)) {
	if h.ranks != nil { // what runs may have been silent for a while
		h.Tick(time.Now())
	}
	for _, tid := range slices.Sorted(maps.Keys(h.waiting)) {
		h.launched(tid, nil)
	}
	h.put(h.runner.End())
	if h.runner.Ran() {
		return
	}
	why := []string{"nothing happened that these probes are at: " + cli.SomeOf(h.places, 4)}
	for _, p := range h.places {
		kind, name, _ := strings.Cut(p, ":")
		if near := likeIoctl(name); kind == "ioctl" && near != "" {
			why = append(why, fmt.Sprintf("the tables have no %s%s", name, near))
		}
		if kind == "api" || kind == "apiret" || kind == "alloc" || kind == "free" {
			if newest := newestOf(name); newest != "" {
				why = append(why, fmt.Sprintf("programs that say %s in their source call %s, by CUDA's headers: %s:%s*", name, newest, kind, name))
			}
		}
	}
	notice(strings.Join(why, "; "))
}

// likeIoctl returns names of device calls, control commands and classes that one which there is not may mean.
func likeIoctl(name string) string {
	if strings.ContainsAny(name, "*?#") || strings.HasPrefix(name, "0x") {
		return ""
	}
	var all []string
	for _, key := range []string{"ioctl", "control", "class"} {
		for known := range ioctl.Names(key) {
			if known == name {
				return ""
			}
			all = append(all, known)
		}
	}
	return ioctl.Suggest(name, slices.Values(all))
}

// newestOf returns the function that programs call which say name, if it is another one:
// cuMemAlloc_v2 of cuMemAlloc.
func newestOf(name string) (newest string) {
	for _, l := range api.Libraries() {
		for f := range api.Functions(l) {
			if v, ok := strings.CutPrefix(f.Name, name+"_v"); ok && len(v) == 1 && f.Name > newest {
				newest = f.Name
			}
		}
	}
	return newest
}
