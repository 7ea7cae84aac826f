package host

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/nvattach/control"
	"nvtrace/ptrace"
)

// zoo compiles testdata/zoo.cc.
func zoo(t *testing.T, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, append([]string{"-w", "-o", bin, "testdata/zoo.cc", "-lpthread"}, args...)...)
	return bin
}

// TestZoo: with programs at the entry and the return of its functions, a program that throws
// exceptions through them, leaves them by longjmp, in signal handlers, by the end of its
// threads, or changes its stacks, does what it does without; and all calls and returns are
// counted.
func TestZoo(t *testing.T) {
	for name, args := range map[string][]string{
		"O1": {"-O1", "-no-pie"}, "O2": {"-O2", "-no-pie"}, "static": {"-O1", "-static"}, "frames": {"-O2", "-no-pie", "-fno-omit-frame-pointer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := zoo(t, args...)
			want, _ := untraced(t, bin)
			r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
			if status := r.run(bin); status != 0 || r.stdout.String() != want {
				t.Errorf("exit %d, %s\nwithout probes\n%s", status, r.stdout.String(), want)
			}
			slow := r.tracer.Slow()
			if strings.Contains(slow, "call of p_jumps_to") && !strings.Contains(slow, "more functions") {
				slow = "" // it is one jump of two bytes
			}
			if lost := r.runner.Losses(); slow != "" || len(lost) > 0 || len(r.said) > 0 {
				t.Errorf("%s; lost %v; said %q", slow, lost, r.said)
			}
			entries, returns := r.byFunction(bin, "entries"), r.byFunction(bin, "returns")
			for f, n := range map[string][2]uint64{
				"p_deep": {3001, 3001}, "p_frames": {12, 12}, "p_large": {1, 1}, "p_sum": {1, 1}, "p_leaves": {100, 0},
				"p_switches": {2, 1}, "p_rethrows": {1, 0}, "p_throws": {1 + 21 + 4 + 5 + 3, 0}, "p_catches": {4, 4},
				"p_jumps_to": {1, 1}, "p_thread": {2, 0}, "p_forks": {1, 2},
			} {
				if got := [2]uint64{entries[f], returns[f]}; got != n {
					t.Errorf("%s: %d entries and returns, want %d", f, got, n)
				}
			}
			if n := entries["p_outer"]; n < 160_000 || returns["p_outer"] != n || entries["p_busy"] != returns["p_busy"] || entries["p_busy"] != n+101 || entries["p_handler"] < 200 || returns["p_handler"] != entries["p_handler"] {
				t.Errorf("p_outer %d entries, %d returns; p_busy %d, %d", n, returns["p_outer"], entries["p_busy"], returns["p_busy"])
			}
			sum := int64(0)
			for _, n := range entries {
				sum += int64(n)
			}
			if r.variable("all_entries") != sum || r.variable("wrong") != 0 {
				t.Errorf("%d entries, %d by function; %d at the wrong place", r.variable("all_entries"), sum, r.variable("wrong"))
			}
		})
	}
}

// behaviours are what ptrace/testdata/victim.c can do in a way that does not depend on chance.
var behaviours = []string{
	"hello", "status 42", "death 15", "segv", "segv_handler", "fork", "vfork", "spawn", "raw_fork", "threads", "thread_exec", "leader_exec",
	"leader_exit", "dead_leader_exec", "exit_group", "fork_in_thread", "stop_cont", "tstp", "stop_threads", "sig_queue", "sig_trap", "itimer",
	"eintr", "restart", "nanosleep_stop", "untraced", "int80 x", "bad_pointer", "undumpable", "set_uid", "orphan x", "kill_self", "sig_mask",
	"many_forks", "fork_tree", "new_pid_ns", "own_filter", "inject",
}

// TestBehaviours: programs that do unusual things with processes, threads and signals do them as alone,
// with programs at functions of their C library and at all system calls.
func TestBehaviours(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "victim")
	compile(t, "-O1", "-pthread", "-w", "-o", bin, "../../ptrace/testdata/victim.c")
	for _, b := range behaviours {
		t.Run(b, func(t *testing.T) {
			argv := append([]string{bin}, strings.Fields(b)...)
			want, status := untraced(t, argv...)
			r := rigOf(t, "../testdata/obj/libc.bpf.o", true)
			if got := r.run(argv...); got != status || r.stdout.String() != want {
				t.Errorf("exit %d, %q\nwithout probes %d, %q", got, r.stdout.String(), status, want)
			}
			table, err := r.maps.Read(r.mem, r.maps.Find("seen"))
			if err != nil || len(table.Rows) != 8 {
				t.Fatal(err)
			}
			var n [8]uint64
			for i := range n {
				n[i] = binary.LittleEndian.Uint64(table.Rows[i].Value)
			}
			var say []string
			if b == "int80 x" && strings.Contains(want, "int80=") && !strings.Contains(want, "int80=none") {
				say = []string{otherCalls}
			}
			if b == "own_filter" {
				say = []string{hiddenCalls([]string{"getppid", "seccomp"})}
			}
			if n[6] < 20 || n[7] < 20 || !slices.Equal(r.said, say) {
				t.Errorf("seen %v; said %q", n, r.said)
			}
		})
	}
}

// byFunction returns what a map has counted, by the function's name in a program that is
// mapped where it says.
func (r *rig) byFunction(bin, name string) map[string]uint64 {
	r.t.Helper()
	f, err := elf.Open(bin)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		r.t.Fatal(err)
	}
	table, err := r.maps.Read(r.mem, r.maps.Find(name))
	if err != nil {
		r.t.Fatal(err)
	}
	counts := make(map[string]uint64)
	for _, row := range table.Rows {
		for _, s := range symbols {
			if s.Value == binary.LittleEndian.Uint64(row.Key) && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
				counts[s.Name] = binary.LittleEndian.Uint64(row.Value)
			}
		}
	}
	return counts
}

// hits compiles testdata/hits.c, under the name that the probes of the zoo are for.
func hits(t testing.TB, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, append([]string{"-O1", "-w", "-no-pie", "-o", bin, "testdata/hits.c", "-lpthread"}, args...)...)
	return bin
}

// TestExact: nothing is lost of what 16 threads do at once, nor at a function that is
// chosen when the program starts, nor in children that share memory.
func TestExact(t *testing.T) {
	const threads, times = 16, 100_000
	for _, args := range [][]string{nil, {"-static"}} {
		r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
		bin := hits(t, args...)
		want, _ := untraced(t, bin, strconv.Itoa(threads), strconv.Itoa(times))
		if status := r.run(bin, strconv.Itoa(threads), strconv.Itoa(times)); status != 0 || r.stdout.String() != want {
			t.Errorf("exit %d, %q, want %q", status, r.stdout.String(), want)
		}
		entries, returns := r.byFunction(bin, "entries"), r.byFunction(bin, "returns")
		if n := uint64(threads * times); entries["p_hit"] != n || returns["p_hit"] != n {
			t.Errorf("%d entries, %d returns, want %d", entries["p_hit"], returns["p_hit"], n)
		}
		if entries["chosen_one"] != 5 || returns["chosen_one"] != 5 || entries["p_child"] != 3 || returns["p_child"] != 3 {
			t.Errorf("entries %v, returns %v", entries, returns)
		}
		if all := r.variable("all_entries"); all != threads*times+8 {
			t.Errorf("%d entries in all", all)
		}
		if slow, lost := r.tracer.Slow(), r.runner.Losses(); slow != "" && !strings.Contains(slow, "p_hit") || len(lost) > 0 || len(r.said) > 0 {
			t.Errorf("%s; lost %v; said %q", slow, lost, r.said)
		}
	}
}

// TestKilledOwner: threads that wait for the lock of one that is gone get it.
func TestKilledOwner(t *testing.T) {
	r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	layout := r.maps.HostMap(r.maps.Find("entries"))
	for i := range layout.Slots { // each home of keys is locked by it
		locked := binary.LittleEndian.AppendUint64(nil, uint64(gone.Process.Pid)<<32|1<<31)
		if err := r.mem.WriteMem(layout.Base+layout.Homes+8*i, locked); err != nil {
			t.Fatal(err)
		}
	}
	bin := hits(t)
	r.run(bin, "4", "10")
	if entries := r.byFunction(bin, "entries"); entries["p_hit"] != 40 || entries["chosen_one"] != 5 {
		t.Errorf("entries %v", entries)
	}
	if lost := r.runner.Losses(); len(lost) > 0 {
		t.Error(lost)
	}
}

// TestAttached: programs run in a process that was there before, whose threads are busy with
// the functions, again and again; the process goes on without.
func TestAttached(t *testing.T) {
	bin := hits(t)
	cmd := exec.Command(bin, "3", "-1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for r.variable("all_returns") < 1000 && ctx.Err() == nil {
				runtime.Gosched()
			}
			cancel()
		}()
		if _, err := ptrace.Attach(ctx, cmd.Process.Pid, r.options(), r); err != nil {
			t.Error(err)
		}
		cancel()
		slow := r.tracer.Slow()
		if strings.Contains(slow, "runs a program of another supervisor") {
			continue // a thread waits in a system call of the former one: it stops at probes then
		}
		if slow != "" && !strings.Contains(slow, "p_chosen") || r.agent.Stats().Probes == 0 {
			t.Error(slow)
		}
		// Of calls that the former supervisor began to watch, one of each thread.
		for _, lost := range r.runner.Losses() {
			var n int
			if _, err := fmt.Sscanf(lost.Error(), "program zoo_return: %d returns could not be seen", &n); err != nil || n > 3 {
				t.Error(lost)
			}
		}
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil || out.String() != "56\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}

// BenchmarkInside is what a call costs whose programs count in a hash at the entry and the
// return, change another one, and ask for the thread.
func BenchmarkInside(b *testing.B) {
	r := rigOf(b, "../testdata/obj/zoo.bpf.o", true)
	bin := hits(b)
	b.ResetTimer()
	r.run(bin, "1", strconv.Itoa(b.N))
}

// TestHelpers: helpers do the same in the process as in this one.
func TestHelpers(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "calls")
	compile(t, "-O1", "-w", "-o", bin, "testdata/calls.c")
	both := func(inside bool) *rig {
		r := rigOf(t, "../testdata/obj/costs.bpf.o", inside, "helpers")
		if r.run(bin); len(r.said) > 0 || r.tracer.Slow() != "" {
			t.Errorf("said %q; %s", r.said, r.tracer.Slow())
		}
		return r
	}
	in, out := both(true), both(false)
	a, b := in.results(), out.results()
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("result %d is %#x in the process, %#x in this one", i, a[i], b[i])
		}
	}
	for i, v := range map[int]int64{0: -2, 1: -2, 2: 0, 3: -17, 5: -7, 8: -22, 10: 7, 13: '9', 15: 7, 16: -17, 18: -22, 19: -7, 25: 4, 27: 13, 29: 7, 30: -14, 32: int64(','), 38: 1, 43: 1, 44: 1, 45: 1} {
		if a[i] != v {
			t.Errorf("result %d is %d, want %d", i, a[i], v)
		}
	}
	if !slices.Equal(in.printed, out.printed) || len(in.printed) != 2 || !strings.HasSuffix(in.printed[1], "1 hello, world|  abc|y% at end\n") {
		t.Errorf("printed %q in the process, %q in this one", in.printed, out.printed)
	}
	slices.Sort(in.records)
	slices.Sort(out.records)
	if !slices.Equal(in.records, out.records) || len(in.records) != 2 {
		t.Errorf("records %q in the process, %q in this one", in.records, out.records)
	}
}

// TestWrite: a program changes what the function is given, where it could itself.
func TestWrite(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "calls")
	compile(t, "-O1", "-w", "-o", bin, "testdata/calls.c")
	both(t, func(t *testing.T, inside bool) {
		r := rigOf(t, "../testdata/obj/costs.bpf.o", inside, "writer")
		if status := r.run(bin); status != 0 || r.stdout.String() != strconv.Itoa('h'+'A')+"\n" {
			t.Errorf("exit %d, %q", status, r.stdout.String())
		}
		if slow := r.tracer.Slow(); inside && !strings.Contains(slow, "helper 36 is for stopped threads only") {
			t.Errorf("not told: %q", slow)
		}
		if got := r.results(); !slices.Equal(got[:5], []int64{0, -14, -14, 0, -14}) {
			t.Errorf("results %d", got[:5])
		}
	})
}

// results returns what is in the map of that name.
func (r *rig) results() (list [64]int64) {
	r.t.Helper()
	for i := range list {
		v, err := r.maps.Lookup(r.mem, r.maps.Find("results"), binary.LittleEndian.AppendUint32(nil, uint32(i)))
		if err != nil {
			r.t.Fatal(err)
		}
		list[i] = int64(binary.LittleEndian.Uint64(v))
	}
	return list
}

// BenchmarkCosts measures calls of functions with programs against one without.
func BenchmarkCosts(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "costs")
	compile(b, "-O1", "-w", "-o", bin, "testdata/costs.c")
	r := rigOf(b, "../testdata/obj/costs.bpf.o", true, "empty", "update", "empty_return", "override", "call_enter", "call_exit")
	b.ResetTimer()
	r.run(bin, strconv.Itoa(min(max(b.N, 10_000), 100_000)))
	for line := range strings.Lines(r.stdout.String()) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		ns, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(ns, name+"-ns")
	}
}

// TestSwitched: programs are switched off and on a thousand times while 16 threads come to them, run each
// time that they are on, and are detached for good.
func TestSwitched(t *testing.T) {
	const threads, times = 16, 1000
	bin := hits(t)
	in, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
	r.stdin = in
	over, done := make(chan struct{}), make(chan int, 1)
	go func() {
		defer end.Close() // the program ends then
		n := 0
		defer func() { done <- n }()
		for ; n < times; n++ {
			for was := r.variable("all_entries"); r.variable("all_entries") == was; runtime.Gosched() {
				select {
				case <-over:
					return
				default:
				}
			}
			for _, what := range []string{control.DoDisable, control.DoEnable} {
				for id := range 2 {
					if err := r.tracer.Do(what, id+1); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}()
	status := r.run(bin, strconv.Itoa(threads), "-1")
	close(over)
	if n := <-done; status != 0 || r.stdout.String() != strconv.Itoa(7*threads+35)+"\n" || n < times {
		t.Errorf("exit %d, %q; switched %d times", status, r.stdout.String(), n)
	}
	if entries := r.byFunction(bin, "entries")["p_hit"]; entries < times {
		t.Errorf("%d entries", entries)
	}
	list := r.tracer.Attachments()
	if len(list) != 2 || list[0].State != control.On || !slices.Contains(list[0].Places, "p_hit in "+bin) || !slices.Contains(list[0].Places, "p_chosen in "+bin) {
		t.Errorf("attached %+v", list)
	}

	for _, inside := range []bool{true, false} {
		r = rigOf(t, "../testdata/obj/zoo.bpf.o", inside)
		if err := errors.Join(r.tracer.Do(control.DoDetach, 1), r.tracer.Do(control.DoDetach, 2)); err != nil {
			t.Fatal(err)
		}
		if err := r.tracer.Do(control.DoEnable, 1); err == nil {
			t.Error("what is detached is enabled")
		}
		if r.run(bin, "2", "100"); r.variable("all_entries") != 0 || r.tracer.Attachments()[0].State != control.Detached {
			t.Errorf("%d entries though detached", r.variable("all_entries"))
		}
	}
	if err := r.tracer.Do(control.DoDetach, 3); err == nil {
		t.Error("there are only two")
	}
}

// TestHostile: a program that spoils what is in its memory harms itself alone; nvtrace reads
// what is left, and the code of programs can't be written.
func TestHostile(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-w", "-o", bin, "testdata/hostile.c")
	for _, what := range []string{"code", "maps", "lists", "files", "unmap", "rewrite", "into"} {
		object := "../testdata/obj/zoo.bpf.o"
		if what == "files" {
			object = "../testdata/obj/libc.bpf.o" // its programs follow stacks
		}
		r := rigOf(t, object, true)
		status := r.run(bin, what)
		if what == "rewrite" && (status != 0 || r.stdout.String() != "210\n" || r.variable("all_entries") < 10) {
			t.Errorf("%s: exit %d, %q, %d entries", what, status, r.stdout.String(), r.variable("all_entries"))
		}
		if (what == "unmap" || what == "into") && status == 0 && r.stdout.String() == "" {
			t.Errorf("%s: it ended without having done it", what)
		}
		if what == "code" && (status != 0 || r.stdout.String() != "20\n" || r.variable("all_returns") != 20) {
			t.Errorf("%s: exit %d, %q, %d returns", what, status, r.stdout.String(), r.variable("all_returns"))
		}
		for _, x := range r.maps.All {
			if _, err := r.maps.Read(r.mem, x); err != nil {
				t.Logf("%s: %s: %v", what, x.Name, err)
			}
		}
		_ = r.runner.Losses()
	}
}

// speeds runs testdata/speed.c, and returns how much longer each kind of work takes as eBPF than
// as gcc -O1 compiles it.
func speeds(t testing.TB) map[string]float64 {
	bin := filepath.Join(t.TempDir(), "speed")
	compile(t, "-O1", "-I", "../testdata/obj", "-o", bin, "testdata/speed.c")
	r := rigOf(t, "../testdata/obj/speed.bpf.o", true)
	r.run(bin)
	list := make(map[string]float64)
	for line := range strings.Lines(r.stdout.String()) {
		f := strings.Fields(line)
		if len(f) != 2 {
			t.Fatalf("%q", line)
		}
		ratio, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		list[f[0]] = ratio
	}
	if len(list) != 4 || r.agent.Stats().Probes < 4 {
		t.Fatalf("%v; %s", list, r.tracer.Slow())
	}
	return list
}

// TestSpeed: what programs compute is what gcc's code does.
func TestSpeed(t *testing.T) { speeds(t) }

// BenchmarkSpeed measures programs against gcc -O1.
func BenchmarkSpeed(b *testing.B) {
	for name, ratio := range speeds(b) {
		b.ReportMetric(ratio, name+"-x")
	}
}

// TestLimits: returns are counted in a child whose limits leave no room for rings: in recursion, behind calls that
// were left by longjmp, and in threads.
func TestLimits(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-o", bin, "testdata/limits.c", "-lpthread")
	for how, want := range map[string]int64{"nofile": 100*10 + 8*100*4, "as": 100 * 10} {
		r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
		out, _ := untraced(t, bin, how)
		if status := r.run(bin, how); status != 0 || r.stdout.String() != out {
			t.Errorf("%s: exit %d, %q, want %q", how, status, r.stdout.String(), out)
		}
		if e, n := r.variable("all_entries"), r.variable("all_returns"); e != 2000*10+want || n != want {
			t.Errorf("%s: %d entries, %d returns, want %d and %d", how, e, n, 2000*10+want, want)
		}
		if slow, lost := r.tracer.Slow(), r.runner.Losses(); slow != "" || len(lost) > 0 || len(r.said) > 0 {
			t.Errorf("%s: %s; lost %v; said %q", how, slow, lost, r.said)
		}
	}
}

// TestFixed: what a program maps, or takes away, at addresses of its own choice does not change memory that the code
// for probes uses. Its call fails; those beside that memory do not.
func TestFixed(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "zoo")
	compile(t, "-O1", "-o", bin, "testdata/fixed.c")
	r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
	if status := r.run(bin); status != 7 || r.stdout.String() != "150 refused, 0 wrong\n" {
		t.Errorf("exit %d, %q", status, r.stdout.String())
	}
	const calls = 1 + 151 + 2*5*4
	if e, n := r.variable("all_entries"), r.variable("all_returns"); e != calls || n != calls {
		t.Errorf("%d entries, %d returns, want %d", e, n, calls)
	}
	if slow, lost := r.tracer.Slow(), r.runner.Losses(); slow != "" || len(lost) > 0 || len(r.said) > 0 {
		t.Errorf("%s; lost %v; said %q", slow, lost, r.said)
	}
}

// TestRoot: a file of a process that has another root is named as it is here, and as the process has it.
func TestRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot takes root")
	}
	root := t.TempDir()
	bin := filepath.Join(root, "zoo")
	compile(t, "-O1", "-static", "-o", bin, "testdata/limits.c", "-lpthread")
	for _, path := range []string{"/zoo", bin} {
		r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
		for _, q := range r.plan.Host {
			q.Point.Binary = path
		}
		if status := r.run("/usr/sbin/chroot", root, "/zoo", "as"); status != 0 || r.variable("all_entries") != 21000 || len(r.tracer.Unmatched()) > 0 {
			t.Errorf("%s: exit %d, %d entries, %q", path, status, r.variable("all_entries"), r.tracer.Unmatched())
		}
	}
}
