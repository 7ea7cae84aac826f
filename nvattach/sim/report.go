package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptx/emu"
	"nvtrace/traces/escape"
)

// A Report says what happened in a simulation.
type Report struct {
	GPU       string       // the device's name
	Count     int          // how many there were
	Processes int          // programs that called
	Kernels   []KernelStat // by time, the longest first
	Missing   []Missing    // entry points that were called and are not implemented, by name
	Faults    []Fault      // kernels that failed, in order
	Hints     []string     // what went wrong and what to do, each once
}

// KernelStat is what a kernel did in all its launches.
type KernelStat struct {
	Name         string
	Launches     uint64
	Blocks       uint64
	Threads      uint64
	Instructions uint64 // counted once for each thread
	Time         time.Duration
}

// Missing is an entry point that is not implemented.
type Missing struct {
	Name  string
	Calls uint64
}

// A Fault is a kernel that failed.
type Fault struct {
	PID    int
	Kernel string
	Result string     // the CUresult's name
	Cause  error      // an [emu.Fault] if an instruction failed
	At     *emu.Fault // the instruction, if there is one
}

// String returns "process 12: kernel k: CUDA_ERROR_ILLEGAL_ADDRESS: …".
func (f *Fault) String() string {
	// An instruction may stand on several lines.
	text := strings.Join(strings.Fields(f.Cause.Error()), " ")
	if named := "kernel " + f.Kernel; strings.HasPrefix(text, named) {
		text = "kernel " + fatbin.Demangle(f.Kernel) + text[len(named):]
	}
	return fmt.Sprintf("process %d: %s: %s", f.PID, f.Result, text)
}

// Diagnosis returns where and why the kernel failed: "CUDA_ERROR_ILLEGAL_ADDRESS: …".
func (f *Fault) Diagnosis() string {
	_, text, _ := strings.Cut(f.String(), ": ")
	return text
}

// Remarks returns, a line each, which GPU was simulated, and what went wrong beside
// kernels that failed.
func (r *Report) Remarks() []string {
	lines := make([]string, 0, len(r.Hints)+len(r.Missing)+1)
	for _, h := range r.Hints {
		lines = append(lines, hintText(h))
	}
	for _, m := range r.Missing {
		lines = append(lines, m.text())
	}
	for i, l := range lines {
		lines[i] = escape.String(l)
	}
	if r.Processes > 0 {
		lines = append(lines, fmt.Sprintf("simulated GPUs: %d of %s, processes: %d, kernels: %d", r.Count, r.GPU, r.Processes, len(r.Kernels)))
	}
	return lines
}

func hintText(h string) string { return "simulated GPU: " + h }

func (m *Missing) text() string {
	return fmt.Sprintf("simulated GPU: %s is not implemented and was called %d times; it returned 801, not supported", m.Name, m.Calls)
}

// few is how many lines of a kind the text at the end of a run has.
const few = 10

// AppendText appends the report as lines of text, for a person at the end of a run:
// what went wrong first, then what ran. Of each kind there are a few lines; of the rest, what
// it comes to.
func (r *Report) AppendText(dst []byte) []byte {
	line := func(format string, args ...any) { dst = append(dst, escape.Line(format, args...)...) }
	first := func(n int, what string, each func(i int)) {
		for i := range min(n, few) {
			each(i)
		}
		if n > few {
			line("simulated GPU: %d more %s", n-few, what)
		}
	}
	first(len(r.Hints), "remarks", func(i int) { line("%s", hintText(r.Hints[i])) })
	first(len(r.Faults), "kernels failed", func(i int) { line("simulated GPU: %v", &r.Faults[i]) })
	first(len(r.Missing), "functions are not implemented", func(i int) { line("%s", r.Missing[i].text()) })
	if r.Processes == 0 {
		return dst
	}
	line("simulated GPU: %d × %s, processes: %d, kernels: %d", r.Count, r.GPU, r.Processes, len(r.Kernels))
	kernel := func(k KernelStat, name string) {
		line("  %-10v %6d launches %10d threads %12d instructions  %s", k.Time.Round(time.Microsecond), k.Launches, k.Threads, k.Instructions, name)
	}
	for _, k := range r.Kernels[:min(len(r.Kernels), few)] {
		kernel(k, fatbin.Demangle(k.Name))
	}
	if rest := r.Kernels[min(len(r.Kernels), few):]; len(rest) > 0 {
		var sum KernelStat
		for _, k := range rest {
			sum.Time += k.Time
			sum.Launches += k.Launches
			sum.Threads += k.Threads
			sum.Instructions += k.Instructions
		}
		kernel(sum, fmt.Sprintf("%d more kernels", len(rest)))
	}
	return dst
}

func newReport(g *GPU, count int) Report { return Report{GPU: g.Name, Count: count} }

// The report holds no more than this of a kind.
const reportMax = 1 << 12

// Report returns what has happened so far.
func (s *Sim) Report() *Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Kernels, r.Missing = slices.Clone(r.Kernels), slices.Clone(r.Missing)
	r.Faults, r.Hints = slices.Clone(r.Faults), slices.Clone(r.Hints)
	slices.SortFunc(r.Kernels, func(a, b KernelStat) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.Missing, func(a, b Missing) int { return cmp.Compare(a.Name, b.Name) })
	return &r
}

// missing counts a call of an entry that is not implemented.
func (s *Sim) missing(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.report.Missing {
		if s.report.Missing[i].Name == name {
			s.report.Missing[i].Calls++
			return
		}
	}
	if len(s.report.Missing) < reportMax {
		s.report.Missing = append(s.report.Missing, Missing{name, 1})
	}
}

// launched counts a launch of a kernel, whether it failed or not. Kernels of one name are counted
// together, of whichever program and module.
func (s *Sim) launched(l *launch, st emu.Stats, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.report.Kernels, func(k KernelStat) bool { return k.Name == l.f.name })
	if i < 0 {
		if len(s.report.Kernels) >= reportMax {
			return
		}
		i = len(s.report.Kernels)
		s.report.Kernels = append(s.report.Kernels, KernelStat{Name: l.f.name})
	}
	k := &s.report.Kernels[i]
	k.Launches++
	k.Blocks += st.Blocks
	k.Threads += st.Threads
	k.Instructions += st.ThreadInstructions
	k.Time += d
}

// fault adds a kernel that failed.
func (s *Sim) fault(p *Process, l *launch, r result, err error) {
	f := Fault{PID: p.pid, Kernel: l.f.name, Result: cuda.DriverErrors[uint32(r)], Cause: err}
	if at := (*emu.Fault)(nil); errors.As(err, &at) {
		f.At = at
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.report.Faults) < reportMax {
		s.report.Faults = append(s.report.Faults, f)
	}
}
