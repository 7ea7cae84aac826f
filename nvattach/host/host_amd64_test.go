package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
	"nvtrace/nvattach"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/jump"
)

// compile runs gcc, or g++ if a source is in C++.
func compile(t testing.TB, args ...string) {
	t.Helper()
	compiler := "gcc"
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasSuffix(arg, ".cc") }) {
		compiler = "g++"
	}
	if b, err := exec.Command(need.Tool(t, compiler, ""), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, b)
	}
}

// victim compiles testdata/victim.c.
func victim(t *testing.T, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "victim")
	compile(t, slices.Concat([]string{"-O1", "-w", "-o", bin, "testdata/victim.c"}, args, []string{"-lpthread"})...)
	return bin
}

// rig is a run with probes.
type rig struct {
	t       testing.TB
	plan    *nvattach.Plan
	maps    *mapmem.Maps
	mem     *mapmem.HostMemory
	runner  *hostrun.Runner
	tracer  *Tracer
	said    []string
	printed []string
	records []string
	stdin   *os.File // nil: none
	stdout  bytes.Buffer
	agent   *agent.Agent // nil: all programs run in this process
	live    bool         // the program outlives this process
}

// both runs a test with programs that run in the traced process where they can, and with
// programs that run here.
func both(t *testing.T, test func(t *testing.T, inside bool)) {
	t.Run("inside", func(t *testing.T) { test(t, true) })
	t.Run("stops", func(t *testing.T) { test(t, false) })
}

func newRig(t *testing.T, inside bool, programs ...string) *rig {
	t.Helper()
	return rigOf(t, "../testdata/obj/host.bpf.o", inside, programs...)
}

func rigOf(t testing.TB, file string, inside bool, programs ...string) *rig {
	t.Helper()
	return rigWith(t, file, inside, func([]*object.Object) error { return nil }, programs...)
}

// rigWith is rigOf with changes to what was loaded.
func rigWith(t testing.TB, file string, inside bool, change func([]*object.Object) error, programs ...string) *rig {
	t.Helper()
	r := &rig{t: t}
	obj, err := object.Open(file)
	if err == nil {
		err = change([]*object.Object{obj})
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.plan, err = nvattach.NewPlan([]*object.Object{obj}, &nvattach.PlanOptions{Programs: programs}); err != nil {
		t.Fatal(err)
	}
	var memory *agent.Programs
	var alloc func(uint64) ([]byte, error)
	if inside {
		r.agent = agent.New(nil)
		alloc = func(size uint64) ([]byte, error) {
			if memory, err = agent.NewPrograms(mapmem.HostBase, size, nil); err != nil {
				return nil, err
			}
			t.Cleanup(memory.Close)
			return memory.Data(), nil
		}
	}
	if r.maps, r.mem, err = r.plan.NewHostMaps(nil, alloc); err != nil {
		t.Fatal(err)
	}
	r.runner = hostrun.NewRunner(r.plan.Host, r.maps, r.mem,
		func(_ int, text string) { r.printed = append(r.printed, text) },
		func(m *mapmem.Map, rec mapmem.Record) {
			r.records = append(r.records, m.Name+" "+string(rec.Data))
		})
	if r.tracer, err = New(&Options{Plan: r.plan, Runner: r.runner, Report: func(s string) { r.said = append(r.said, s) }, Agent: r.agent, Programs: memory}, 1); err != nil {
		t.Fatal(err)
	}
	return r
}

// run runs a program with the probes, and returns how it ended.
func (r *rig) run(argv ...string) int {
	r.t.Helper()
	out, err := os.CreateTemp(r.t.TempDir(), "out")
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	o := r.options()
	o.Argv, o.Stdin, o.Stdout = argv, r.stdin, out
	res, err := ptrace.Run(context.Background(), o, r)
	if err != nil {
		r.t.Fatal(err)
	}
	r.drain()
	b, err := os.ReadFile(out.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	r.stdout.Write(b)
	return res.Status.ExitStatus()
}

// options are those of a trace.
func (r *rig) options() *ptrace.Options {
	o := &ptrace.Options{Rules: r.tracer.Rules(), NoExitKill: r.live}
	if r.agent != nil {
		o.Rules = append(r.agent.Rules(), o.Rules...)
		o.Injector = r.agent
	}
	return o
}

// drain takes what programs in the process have written.
func (r *rig) drain() {
	r.t.Helper()
	err := r.maps.NewPrinter(nil).Drain(r.mem, true, func(_ int, text string) { r.printed = append(r.printed, text) })
	for _, x := range r.maps.All {
		if reader := r.maps.NewReader(x); reader != nil && x != r.maps.Print && err == nil {
			err = reader.Drain(r.mem, true, func(rec mapmem.Record) { r.records = append(r.records, x.Name+" "+string(rec.Data)) })
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// Enter implements ptrace.Handler.
func (r *rig) Enter(t *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if s.Class == agent.Class {
		r.agent.Trap(t, s, func() {})
		return ptrace.Skip
	}
	return r.tracer.Enter(t, s)
}

// Exit implements ptrace.Handler.
func (r *rig) Exit(t *ptrace.Task, s *ptrace.Syscall) { r.tracer.Exit(t, s) }

// Task implements ptrace.Handler.
func (r *rig) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	if r.agent != nil {
		r.agent.Task(t, e)
	}
	r.tracer.Task(t, e)
}

// count returns what a program has counted under a number.
func (r *rig) count(what uint32) uint64 {
	r.t.Helper()
	v, err := r.maps.Lookup(r.mem, r.maps.Find("calls"), binary.LittleEndian.AppendUint32(nil, what))
	if errors.Is(err, mapmem.ErrNoKey) {
		return 0
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(v)
}

func (r *rig) counts(want map[uint32]uint64) {
	r.t.Helper()
	for what, n := range want {
		if got := r.count(what); got != n {
			r.t.Errorf("calls[%d] = %d, want %d", what, got, n)
		}
	}
}

// variable returns a global variable of the probes.
func (r *rig) variable(name string) int64 {
	r.t.Helper()
	for _, v := range r.plan.Objects[0].Vars {
		if v.Name != name {
			continue
		}
		x := r.maps.Of(v.Map)
		b := make([]byte, 8)
		if err := r.mem.ReadMem(x.Addr()+uint64(v.Offset), b); err != nil {
			r.t.Fatal(err)
		}
		return int64(binary.LittleEndian.Uint64(b))
	}
	r.t.Fatalf("no variable %s", name)
	return 0
}

// untraced runs a program by itself.
func untraced(t *testing.T, argv ...string) (stdout string, status int) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// calls of testdata/victim.c, by number in the probes.
var wantCalls = map[uint32]uint64{
	1: 10 + 1 + 4*300 + 1, 2: 10 + 1 + 4*300 + 1, // add: in main, threads and the child
	3: 6 + 3, 4: 6 + 3, // fact, which calls itself
	5: 3, 6: 3, // tiny
	7: 4 * 6, 8: 0, // leaves, by longjmp
	12: 2, 13: 1,
}

// functionPrograms are those at functions that change nothing.
var functionPrograms = []string{
	"add_*", "fact_*", "tiny_*", "leaves_*", "say_enter", "many_enter", "method_enter",
}

// TestFunctions: probes at functions see every call and return, in threads and children, of
// functions that call themselves, are left by longjmp, or have one byte; the program does
// what it does without.
func TestFunctions(t *testing.T) {
	for name, args := range map[string][]string{"dynamic": {"-pie", "-fPIE"}, "no pie": {"-no-pie"}, "static": {"-static"}, "static pie": {"-static-pie", "-fPIE"}} {
		t.Run(name, func(t *testing.T) {
			bin := victim(t, args...)
			both(t, func(t *testing.T, inside bool) { testFunctions(t, bin, inside).checkInside() })
		})
	}
	for _, v := range testprog.Variants {
		t.Run(v.Name, func(t *testing.T) {
			// Functions that call themselves are to do so.
			bin := victim(t, slices.Concat(v.Flags, []string{"-fno-optimize-sibling-calls"})...)
			both(t, func(t *testing.T, inside bool) { testFunctions(t, bin, inside) })
		})
	}
}

func testFunctions(t *testing.T, bin string, inside bool) *rig {
	t.Helper()
	want, status := untraced(t, bin)
	r := newRig(t, inside, functionPrograms...)
	if got := r.run(bin); got != status || r.stdout.String() != want {
		t.Errorf("exit %d, %q; without probes %d, %q", got, r.stdout.String(), status, want)
	}
	r.counts(wantCalls)
	if len(r.said) > 0 || len(r.tracer.Unmatched()) > 0 || len(r.runner.Losses()) > 0 {
		t.Errorf("said %q, unmatched %q, lost %v", r.said, r.tracer.Unmatched(), r.runner.Losses())
	}
	arguments := int64(45 - 3 + 4*44850 + 40)
	results := arguments + 10 + 4 + 300*(0+1+2+3) + 2
	if a, b, c, d := r.variable("arguments"), r.variable("results"), r.variable("highest"), r.variable("took"); a != arguments || b != results || c != 720 || d != int64(wantCalls[2]) {
		t.Errorf("arguments %d, results %d, highest %d, took %d; want %d, %d, 720, %d", a, b, c, d, arguments, results, wantCalls[2])
	}
	r.checkSaid()
	r.checkCPUs()
	return r
}

// checkInside checks that programs ran where they should.
func (r *rig) checkInside() {
	r.t.Helper()
	slow := r.tracer.Slow()
	if r.agent == nil {
		if slow != "" {
			r.t.Error(slow)
		}
		return
	}
	if n := r.agent.Stats().Probes; n < 4 || !strings.Contains(slow, "too short") {
		r.t.Errorf("programs run in the process at %d functions; %s", n, slow)
	}
}

// checkSaid checks what say_enter wrote and printed.
func (r *rig) checkSaid() {
	r.t.Helper()
	if !slices.Equal(r.printed, []string{"say hello, world 1\n"}) {
		r.t.Errorf("printed %q", r.printed)
	}
	rec := binary.LittleEndian.AppendUint64(nil, 13)
	rec = append(rec, "hello, world\x00\x00\x00\x00victim\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00hello, w"...)
	rec = binary.LittleEndian.AppendUint64(rec, 1<<64-14)
	if !slices.Equal(r.records, []string{"events " + string(rec)}) {
		r.t.Errorf("records %q", r.records)
	}
}

// checkCPUs checks that what was counted by CPU is as much as was counted in all.
func (r *rig) checkCPUs() {
	r.t.Helper()
	sum, all := uint64(0), uint64(0)
	v, err := r.maps.Lookup(r.mem, r.maps.Find("by_cpu"), make([]byte, 4))
	if err != nil {
		r.t.Fatal(err)
	}
	for ; len(v) > 0; v = v[8:] {
		sum += binary.LittleEndian.Uint64(v)
	}
	for what := range uint32(30) {
		all += r.count(what)
	}
	if sum != all || sum == 0 {
		r.t.Errorf("%d by CPU, %d in all", sum, all)
	}
	table, err := r.maps.Read(r.mem, r.maps.Find("by_cpu"))
	var text bytes.Buffer
	if err == nil {
		err = table.Print(&text, nil)
	}
	if err != nil || !strings.Contains(text.String(), "CPU") || strings.Contains(text.String(), "SM") {
		r.t.Errorf("%v\n%s", err, text.String())
	}
	if table, err = r.maps.Read(r.mem, r.maps.Find("begin")); err != nil || len(table.Rows) != 0 {
		r.t.Errorf("begin has %d entries, all of which were deleted; %v", len(table.Rows), err)
	}
}

// TestOverride: a function and a system call return what a program says, and are not made.
func TestOverride(t *testing.T) {
	both(t, func(t *testing.T, inside bool) { testOverride(t, inside) })
}

func testOverride(t *testing.T, inside bool) {
	t.Helper()
	bin := victim(t)
	r := newRig(t, inside, "never_*", "getppid_*")
	r.run(bin, "change")
	if out := r.stdout.String(); !strings.Contains(out, "never 77\n") || !strings.Contains(out, "parent 4242\n") || !strings.HasSuffix(out, "end 3\n") {
		t.Errorf("the program printed %q", out)
	}
	r.counts(map[uint32]uint64{9: 1, 10: 1, 22: 1, 23: 1})
	if len(r.said) > 0 {
		t.Errorf("said %q", r.said)
	}
}

// TestSystemCalls: one system call, and all.
func TestSystemCalls(t *testing.T) { both(t, testSystemCalls) }

func testSystemCalls(t *testing.T, inside bool) {
	bin := victim(t)
	want, status := untraced(t, bin)
	r := newRig(t, inside, "write_*", "any_*")
	if got := r.run(bin); got != status || r.stdout.String() != want {
		t.Errorf("exit %d, %q; without probes %d, %q", got, r.stdout.String(), status, want)
	}
	if n := r.variable("written"); n != int64(len(want)) {
		t.Errorf("%d bytes written, the program wrote %d", n, len(want))
	}
	writes := r.count(20)
	r.counts(map[uint32]uint64{21: writes, 25: 5, 26: 5})
	if all := r.count(24); writes == 0 || all < writes+5+20 {
		t.Errorf("%d writes among %d system calls", writes, all)
	}
}

// TestReopened: a library that comes and goes has its probe each time, at the same place or
// another, also in a child.
func TestReopened(t *testing.T) {
	dir := t.TempDir()
	lib, bin := filepath.Join(dir, "libvictim.so.2"), filepath.Join(dir, "reopen")
	if err := os.WriteFile(filepath.Join(dir, "lib.c"), []byte("int in_library(int n) { return 2 * n; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, "-shared", "-fPIC", "-fcf-protection=full", "-o", lib, filepath.Join(dir, "lib.c"))
	compile(t, "-o", bin, "testdata/reopen.c", "-ldl")
	both(t, func(t *testing.T, inside bool) {
		r := newRig(t, inside, "library_enter")
		if status := r.run(bin, lib); status != 0 || r.stdout.String() != "30 0\n" {
			t.Errorf("exit %d, %q", status, r.stdout.String())
		}
		r.counts(map[uint32]uint64{11: 7})
		if len(r.said) > 0 || len(r.tracer.Unmatched()) > 0 {
			t.Errorf("said %q, unmatched %q", r.said, r.tracer.Unmatched())
		}
	})
}

// TestUnmatched: what was not found is told.
func TestUnmatched(t *testing.T) {
	r := newRig(t, false, "missing_enter", "library_enter", "add_enter")
	r.run(victim(t))
	if got := r.tracer.Unmatched(); len(got) != 2 || !strings.Contains(got[0], "has mapped no file libvictim.so") || !strings.HasSuffix(got[1], "victim has no function not_there") {
		t.Errorf("unmatched %q", got)
	}
}

// TestStripped: a function without a symbol has its probe by its place in the file.
func TestStripped(t *testing.T) {
	bin := victim(t, "-s")
	r := newRig(t, true, "add_enter")
	r.run(bin)
	if got := r.tracer.Unmatched(); len(got) != 1 {
		t.Errorf("unmatched %q", got)
	}
	whole := victim(t)
	find := newRig(t, true, "add_enter")
	f, err := os.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code, err := jump.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	list, err := find.tracer.read(code, whole, "")
	if err != nil || len(list) != 1 {
		t.Fatalf("%d places, %v", len(list), err)
	}
	r = newRig(t, true, "add_enter")
	r.plan.Host[0].Point = object.HostPoint{Kind: object.HostEntry, Binary: "victim", Offset: list[0].offset}
	r.run(bin)
	r.counts(map[uint32]uint64{1: wantCalls[1]})
}

// TestLinked: a path that is a symbolic link means the file that is mapped.
func TestLinked(t *testing.T) {
	bin := victim(t)
	link := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(bin, link); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, false, "tiny_enter")
	r.plan.Host[0].Point.Binary = link
	var err error
	if r.tracer, err = New(&r.tracer.opts, 1); err != nil {
		t.Fatal(err)
	}
	r.run(bin)
	r.counts(map[uint32]uint64{5: 3})
}

// TestNoSuchCall: a system call that there is not is told before the program starts.
func TestNoSuchCall(t *testing.T) {
	r := newRig(t, false, "write_enter")
	r.plan.Host[0].Point.Call = "frobnicate"
	if _, err := New(&Options{Plan: r.plan}, 1); err == nil || !strings.Contains(err.Error(), "no system call frobnicate") {
		t.Errorf("error %v", err)
	}
	if err := Check(r.plan); err == nil {
		t.Error("it is not found before")
	}
	r.plan.Host[0].Point.Call = "umount" // as the kernel names umount2
	if err := Check(r.plan); err != nil {
		t.Error(err)
	}
}

// TestDamagedFiles: what is no ELF file, or a broken one, is an error.
func TestDamagedFiles(t *testing.T) {
	r := newRig(t, true, "add_enter")
	good, err := os.ReadFile(victim(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, []byte("text"), good[:100], good[:len(good)/2]} {
		if code, err := jump.Read(bytes.NewReader(b)); err == nil {
			if list, err := r.tracer.read(code, "/x/victim", ""); err == nil && len(list) > 0 {
				t.Errorf("%d places in %d bytes", len(list), len(b))
			}
		}
	}
	for i := range 400 {
		b := bytes.Clone(good)
		b[i*7%min(len(b), 2000)] ^= byte(1 + i)
		if code, err := jump.Read(bytes.NewReader(b)); err == nil {
			_, _ = r.tracer.read(code, "/x/victim", "") // no panic, no hang
		}
	}
}
