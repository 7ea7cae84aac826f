package run

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// results records, when the program has ended, what nvtrace found out beside it: what
// the probes counted, where they are, and why the simulated GPU stopped a kernel. It is
// a ptrace.Handler that selects no calls.
type results struct {
	recorder *record.Recorder
	tracing  *tracing
	began    bool // there was a program
}

// Enter implements ptrace.Handler.
func (*results) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*results) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (r *results) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	r.began = true
	if s := r.tracing.sim; s != nil && e.Kind == ptrace.TaskConfine {
		s.sim.Confined(t.PID, func(nr uint64) bool { return t.Allows(nr) == nil })
	}
}

// What notes of results begin with. They are in recordings for those who read these; at
// the end of a live run, the session and the simulated GPU speak for themselves.
const (
	noteProbes = "probes: "
	noteSim    = "simulated GPU"
)

// dropResults leaves such notes out of a live summary.
func dropResults(r *ioctl.Report) {
	r.Notes = slices.DeleteFunc(r.Notes, func(n string) bool {
		return strings.HasPrefix(n, noteProbes) || strings.HasPrefix(n, noteSim)
	})
}

// Finish records it all.
func (r *results) Finish() {
	s := r.tracing
	if !r.began {
		return
	}
	if s.sim != nil {
		waitGone(s.sim.sim)
		r.simulated(s.sim.sim.Report())
	}
	if s.probes != nil {
		if s.gpu != nil {
			s.gpu.Close() // what became of processes' maps is told by goroutines
		}
		r.probes()
	}
}

func (r *results) emit(ev *traces.Event) {
	ev.Time, ev.TID, ev.FD = r.recorder.Now(), ev.PID, -1
	r.recorder.Emit(ev)
}

// simulated records what the simulated GPU has to say.
func (r *results) simulated(report *sim.Report) {
	for _, line := range report.Remarks() {
		r.recorder.Note(nil, line)
	}
	for i := range report.Faults {
		f := &report.Faults[i]
		r.emit(&traces.Event{Kind: traces.KindFault, PID: int32(f.PID), Name: f.Kernel, Text: f.Diagnosis()})
	}
}

// probes records what the probes came to.
func (r *results) probes() {
	s := r.tracing.probes
	if err := s.End(); err != nil {
		r.recorder.Note(nil, noteProbes+err.Error())
	}
	result, err := s.Result()
	if err != nil {
		r.recorder.Note(nil, noteProbes+err.Error())
		return
	}
	for _, text := range result.Notices {
		r.recorder.Note(nil, noteProbes+text)
	}
	if p := r.tracing.f.attach.planned; p != nil && p.Own() {
		if text := untimed(result.Kernels); text != "" {
			r.recorder.Note(nil, text)
		}
		return
	}
	if len(result.Kernels) == 0 && r.tracing.f.attach.kernelProbes() {
		r.recorder.Note(nil, noteProbes+"no kernel that a program wants was loaded")
	}
	for i := range result.Kernels {
		k := &result.Kernels[i]
		r.emit(&traces.Event{Kind: traces.KindProbe, Name: k.Name, Probe: &traces.Probe{
			Images: k.Images, Sites: k.Sites, Launched: k.Ran, Reason: k.Reason, Unprobed: k.Unprobed, UnprobedWhy: k.UnprobedWhy,
			Launches: k.Launches, Machine: k.Machine,
		}})
	}
	for i := range result.Maps {
		m := &result.Maps[i]
		ev := traces.Event{Kind: traces.KindMap, PID: int32(m.PID), Name: m.Name, Text: m.Text, Data: m.JSON}
		ev.Args[0] = uint64(m.Device)
		if len(ev.Data) > traces.MaxText { // it would be no JSON any more
			ev.Data, ev.Flags = "", traces.FlagTruncated
		}
		r.emit(&ev)
	}
}

// untimed says of which kernels probes could not note the times, "" for none.
func untimed(kernels []session.Kernel) string {
	const most = 3
	var list []string
	n := 0
	for i := range kernels {
		k := &kernels[i]
		why := k.Reason
		if k.Unprobed > 0 {
			why = k.UnprobedWhy
		}
		if why == "" || !k.Ran {
			continue
		}
		if n++; n <= most {
			list = append(list, fmt.Sprintf("%s: %s", fatbin.Demangle(k.Name), why))
		}
	}
	switch {
	case n == 0:
		return ""
	case n > most:
		list = append(list, fmt.Sprintf("and %d more", n-most))
	}
	return fmt.Sprintf("kernels without times on the GPU, or not for all launches: %d (%s); --gpu-times=events times them", n, strings.Join(list, "; "))
}
