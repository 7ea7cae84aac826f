package ptrace

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// contender is one way to run a workload. It returns what one call took, in ns,
// as the workload measured it.
type contender struct {
	name string
	run  func(b *testing.B, argv []string) float64
}

// parseCost reads what the victim prints, and fails if a call went wrong.
func parseCost(b *testing.B, name, out string) float64 {
	b.Helper()
	var ns float64
	var bad int
	if n, err := fmt.Sscanf(out, "%f ns, %d bad", &ns, &bad); n != 2 || bad != 0 || ns <= 0 {
		b.Fatalf("%s: %q, %v", name, out, err)
	}
	return ns
}

// byCommand runs the workload by another program, or by itself.
func byCommand(name string, prefix ...string) contender {
	return contender{name, func(b *testing.B, argv []string) float64 {
		argv = append(slices.Clone(prefix), argv...)
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		return parseCost(b, name, string(out))
	}}
}

// byUs runs it under Run.
func byUs(name string, o Options, verdict Verdict, read bool) contender {
	return contender{name, func(b *testing.B, argv []string) float64 {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		o := o
		o.Argv, o.Rules, o.Stdout = argv, victimRules(), w
		q := &gpuReader{verdict: verdict, read: read}
		res, err := Run(context.Background(), &o, q)
		w.Close()
		out, _ := io.ReadAll(r)
		if err != nil || res.Status != 0 {
			b.Fatalf("%s: %+v, %v", name, res, err)
		}
		if want := argv[2]; argv[1] == "calls" && (fmt.Sprint(q.enters) != want || verdict == WantExit && q.exits != q.enters || read && q.short != 0) {
			b.Fatalf("%s: %d entries, %d exits, %d failed reads of %s", name, q.enters, q.exits, q.short, want)
		}
		return parseCost(b, name, string(out))
	}}
}

// gpuReader does what a recorder does: it reads the parameters and the nested
// buffer at the entry, and both again at the exit.
type gpuReader struct {
	verdict              Verdict
	read                 bool
	enters, exits, short int
	params               [32]byte
	nested               [100]byte
	ranges               [2]Range
}

func (q *gpuReader) Enter(t *Task, c *Syscall) Verdict {
	q.enters++
	if q.read {
		n, _ := t.ReadMem(c.Args[2], q.params[:])
		k, _ := t.ReadMem(q.pointer(), q.nested[:])
		q.check(n + k)
	}
	return q.verdict
}

func (q *gpuReader) pointer() (p uint64) {
	for i := range 8 {
		p |= uint64(q.params[16+i]) << (8 * i)
	}
	return p
}

func (q *gpuReader) Exit(t *Task, c *Syscall) {
	q.exits++
	if q.read {
		q.ranges = [2]Range{{Addr: c.Args[2], Buf: q.params[:]}, {Addr: q.pointer(), Buf: q.nested[:]}}
		t.ReadMemV(q.ranges[:])
		q.check(q.ranges[0].N + q.ranges[1].N)
	}
}

func (q *gpuReader) check(n int) {
	if n != len(q.params)+len(q.nested) || q.params[12] != 4 || string(q.nested[:6]) != "nested" {
		q.short++
	}
}

func (q *gpuReader) Task(*Task, *TaskEvent) {}

// compare runs all contenders in turn, in another order each round, so that what
// else the machine does hits them alike. It reports the median over the rounds of
// each one's cost, and of its ratio to strace and to no tracer in the same round.
func compare(b *testing.B, list []contender, argv ...string) {
	costs := make([][]float64, len(list))
	round := 0
	for b.Loop() {
		for i := range list {
			k := (i + round) % len(list)
			costs[k] = append(costs[k], list[k].run(b, argv))
		}
		round++
	}
	base := map[string]int{}
	for i, c := range list {
		base[c.name] = i
	}
	for i, c := range list {
		b.ReportMetric(median(costs[i]), c.name+"-ns")
		for _, ref := range []string{"untraced", "strace"} {
			if k, ok := base[ref]; ok && k != i {
				ratio := make([]float64, round)
				for r := range ratio {
					ratio[r] = costs[i][r] / costs[k][r]
				}
				b.ReportMetric(median(ratio), c.name+"-x-"+ref)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // of a round: says nothing
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// withStrace adds strace, where it is installed.
func withStrace(list []contender) []contender {
	list = append(list, byCommand("untraced"))
	if _, err := exec.LookPath("strace"); err == nil {
		list = append(list, byCommand("strace", "strace", "-f", "--seccomp-bpf", "-e", "trace=ioctl", "-o", "/dev/null"))
	}
	return list
}

// BenchmarkCall is the cost of one traced ioctl. Use -benchtime=11x.
func BenchmarkCall(b *testing.B) {
	compare(b, withStrace([]contender{
		byUs("full", Options{}, WantExit, true),
		byUs("exits", Options{}, WantExit, false),
		byUs("entry", Options{}, Skip, false),
		byUs("entry+mem", Options{}, Skip, true),
		byUs("nofilter", Options{Seccomp: SeccompOff}, WantExit, true),
	}), build(b, "victim"), "calls", "20000")
}

// BenchmarkCallOneCPU is the same with everything on one CPU, where no wake-up
// of another one hides the work.
func BenchmarkCallOneCPU(b *testing.B) {
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		b.Fatal(err)
	}
	one.Set(0)
	setAll(b, &one)
	defer setAll(b, &old)
	BenchmarkCall(b)
}

// setAll moves all threads of this process.
func setAll(b *testing.B, set *unix.CPUSet) {
	b.Helper()
	tids, err := proc.Threads(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	for _, tid := range tids {
		if err := unix.SchedSetaffinity(tid, set); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOther is the cost of a call that nobody wants, in a thread that makes
// no other.
func BenchmarkOther(b *testing.B) {
	compare(b, withStrace([]contender{
		byUs("full", Options{}, WantExit, true),
	}), build(b, "victim"), "others", "50000")
}

// BenchmarkLaunch is the time from start to end of a program that does nothing.
func BenchmarkLaunch(b *testing.B) {
	for b.Loop() {
		res, err := Run(context.Background(), &Options{Argv: []string{"/bin/true"}, Rules: victimRules()}, &gpuReader{})
		if err != nil || res.Status != 0 {
			b.Fatalf("%+v, %v", res, err)
		}
	}
}
