// Package outcome records, when a program has ended, what nvtrace found out beside it: what probes
// counted and where they are, and why the simulated GPU stopped a kernel.
package outcome

import (
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Options say what there was beside the program.
type Options struct {
	Recorder *record.Recorder
	Sim      *sim.Sim         // nil: no simulated GPU
	Probes   *session.Session // nil: no probes
	// Close ends what changes the probes' results in other goroutines; nil: nothing does.
	Close func()
	// Own says that the only programs are those of nvtrace itself, which time kernels.
	Own bool
	// InKernels says that programs were to run in kernels.
	InKernels bool
}

// Outcome is a ptrace.Handler that selects no calls.
type Outcome struct {
	Options
	began bool // there was a program
}

// New returns the Outcome of a run that begins.
func New(o *Options) *Outcome { return &Outcome{Options: *o} }

// Enter implements ptrace.Handler.
func (*Outcome) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*Outcome) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (r *Outcome) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	r.began = true
	if r.Sim != nil && e.Kind == ptrace.TaskConfine {
		r.Sim.Confined(t.PID, func(nr uint64) bool { return t.Allows(nr) == nil })
	}
}

// What notes of an outcome begin with.
const (
	noteProbes = "probes: "
	noteSim    = "simulated GPU"
)

// IsNote reports whether a note in a recording is one of an outcome. They are for those who read
// recordings; at the end of a live run, the session and the simulated GPU speak for themselves.
func IsNote(text string) bool {
	return strings.HasPrefix(text, noteProbes) || strings.HasPrefix(text, noteSim)
}

// Finish records it all.
func (r *Outcome) Finish() {
	if !r.began {
		return
	}
	if r.Sim != nil {
		r.Sim.AwaitGone()
		r.simulated(r.Sim.Report())
	}
	if r.Probes != nil {
		if r.Close != nil {
			r.Close()
		}
		r.probes()
	}
}

func (r *Outcome) emit(ev *traces.Event) {
	ev.Time, ev.TID, ev.FD = r.Recorder.Now(), ev.PID, -1
	r.Recorder.Emit(ev)
}

// simulated records what the simulated GPU has to say.
func (r *Outcome) simulated(report *sim.Report) {
	for _, line := range report.Remarks() {
		r.Recorder.Note(nil, line)
	}
	for i := range report.Faults {
		f := &report.Faults[i]
		r.emit(&traces.Event{Kind: traces.KindFault, PID: int32(f.PID), Name: f.Kernel, Text: f.Diagnosis()})
	}
}

// probes records what the probes came to.
func (r *Outcome) probes() {
	s := r.Probes
	if err := s.End(); err != nil {
		r.Recorder.Note(nil, noteProbes+err.Error())
	}
	result, err := s.Result()
	if err != nil {
		r.Recorder.Note(nil, noteProbes+err.Error())
		return
	}
	for _, text := range result.Notices {
		r.Recorder.Note(nil, noteProbes+text)
	}
	if r.Own {
		if text := untimed(result.Kernels); text != "" {
			r.Recorder.Note(nil, text)
		}
		return
	}
	if len(result.Kernels) == 0 && r.InKernels {
		r.Recorder.Note(nil, noteProbes+"no kernel that a program wants was loaded")
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
