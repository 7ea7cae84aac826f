package ptrace

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"nvtrace/ptrace/proc"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"
)

// endbr64 begins functions where compilers expect indirect branches to be tracked, as Ubuntu's gcc does.
var endbr64 = []byte("\xf3\x0f\x1e\xfa")

// symbols of a victim: names to addresses in the file.
var symbols = func() func(t testing.TB, path string) (map[string]uint64, uint64) {
	var mu sync.Mutex
	type entry struct {
		syms  map[string]uint64
		entry uint64
	}
	known := map[string]entry{}
	return func(t testing.TB, path string) (map[string]uint64, uint64) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if e, ok := known[path]; ok {
			return e.syms, e.entry
		}
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		syms, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]uint64{}
		for _, s := range syms {
			m[s.Name] = s.Value
		}
		known[path] = entry{m, f.Entry}
		return m, f.Entry
	}
}()

// address finds a symbol of the victim in its process.
func address(t testing.TB, pid int, path, name string) uint64 {
	t.Helper()
	syms, entry := symbols(t, path)
	at, err := entryOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	v, ok := syms[name]
	if !ok {
		t.Fatalf("no symbol %s", name)
	}
	return v + at - entry
}

// entryOf returns where a process's program begins.
func entryOf(pid int) (uint64, error) {
	auxv, err := os.ReadFile(proc.Path(pid, "auxv"))
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		const atEntry = 9 // AT_ENTRY
		if binary.LittleEndian.Uint64(auxv) == atEntry {
			return binary.LittleEndian.Uint64(auxv[8:]), nil
		}
	}
	return 0, errors.Join(err, errors.New("no entry in auxv"))
}

// breaker is a tape that sets breakpoints in a victim when it begins.
type breaker struct {
	tape
	t     testing.TB
	path  string
	names []string // functions
	fn    func(task *Task, b *Breakpoint)
	hits  map[string]int
	tids  map[int]int
	addrs map[uint64]string
	set   func(task *Task) // instead
}

func newBreaker(t testing.TB, names ...string) *breaker {
	t.Helper()
	b := &breaker{t: t, path: build(t, "breaker"), names: names, hits: map[string]int{}, tids: map[int]int{}, addrs: map[uint64]string{}}
	b.verdict = WantExit
	b.onTask = func(task *Task, e *TaskEvent) {
		if e.Kind == TaskExec {
			b.place(task)
		}
	}
	return b
}

func (b *breaker) place(task *Task) {
	if len(task.Breakpoints()) != 0 {
		b.t.Error("breakpoints in a new program")
	}
	if exe := proc.Exe(task.PID); exe != b.path {
		b.t.Error(exe)
		return
	}
	if b.set != nil {
		b.set(task)
		return
	}
	for _, name := range b.names {
		addr := address(b.t, task.PID, b.path, name)
		b.addrs[addr] = name
		if _, err := task.SetBreakpoint(addr, b.hit); err != nil {
			b.t.Errorf("%s: %v", name, err)
		}
	}
}

func (b *breaker) hit(task *Task, bp *Breakpoint) {
	b.hits[b.addrs[bp.Addr]]++
	b.tids[task.TID]++
	r, err := task.Regs()
	if err != nil {
		b.t.Error(err)
		return
	}
	if r.IP() != bp.Addr {
		b.t.Errorf("hit at %#x, ip %#x", bp.Addr, r.IP())
	}
	if b.fn != nil {
		b.fn(task, bp)
	}
}

// run runs a mode of the victim and compares with an untraced run, unless that
// varies.
func (b *breaker) run(t *testing.T, o *Options, args ...string) (outcome, *Result) {
	t.Helper()
	argv := append([]string{b.path}, args...)
	got, res := runTraced(t, o, b, argv...)
	b.check(t)
	return got, res
}

// ways are the combinations of filters and of executing instructions.
func ways(t *testing.T, f func(t *testing.T, o *Options)) {
	for _, mode := range []SeccompMode{SeccompAuto, SeccompOff} {
		for _, noCopies := range []bool{false, true} {
			name := fmt.Sprintf("%v-%v", map[SeccompMode]string{SeccompAuto: "seccomp", SeccompOff: "syscalls"}[mode],
				map[bool]string{false: "copy", true: "allstop"}[noCopies])
			t.Run(name, func(t *testing.T) { f(t, &Options{Seccomp: mode, noCopies: noCopies}) })
		}
	}
}

var allFns = []string{
	"f_push", "f_endbr", "f_lea", "f_load", "f_store", "f_cmp", "f_jmp", "f_jmp8", "f_call", "f_jmpind",
	"f_callind", "f_jcc", "f_jcc32", "f_avx", "f_sse", "f_sub", "f_nop", "f_pushf",
}

// TestBreakInsns breaks at instructions of all sorts; the program must compute
// what it does untraced.
func TestBreakInsns(t *testing.T) {
	for _, static := range []bool{false, true} {
		b := newBreaker(t)
		if static {
			b.path = build(t, "breaker", "-static", "-no-pie")
		}
		want := runPlain(t, b.path, "insns")
		ways(t, func(t *testing.T, o *Options) {
			b := newBreaker(t, append(slices.Clone(allFns), "f_rep", "f_loop", "f_ret")...)
			b.path = build(t, "breaker")
			if static {
				b.path = build(t, "breaker", "-static", "-no-pie")
			}
			if got, res := b.run(t, o, "insns"); got != want || res.Signals != 0 {
				t.Errorf("%+v, untraced %+v", got, want)
			}
			for _, name := range allFns {
				want := 20
				switch name {
				case "f_lea": // f_jmp, f_call, f_jmpind and f_callind go there
					want = 100
				case "f_jcc", "f_jcc32":
					want = 25
				}
				if b.hits[name] != want {
					t.Errorf("%s: %d hits of %d", name, b.hits[name], want)
				}
			}
			if b.hits["f_rep"] != 3 || b.hits["f_loop"] != 4 {
				t.Errorf("rep %d, loop %d", b.hits["f_rep"], b.hits["f_loop"])
			}
		})
	}
}

// TestBreakHammer: eight threads call one function 16,000 times.
func TestBreakHammer(t *testing.T) {
	for _, fn := range []string{"f_push", "f_load", "f_endbr", "f_jcc", "f_avx"} {
		ways(t, func(t *testing.T, o *Options) {
			n := 2000
			if fn != "f_push" || testing.Short() {
				n = 300
			}
			b := newBreaker(t, fn)
			got, res := b.run(t, o, "hammer", "8", fmt.Sprint(n), fn)
			if !strings.HasSuffix(got.output, " 0 bad\n") || got.status != 0 {
				t.Errorf("%+v", got)
			}
			if b.hits[fn] != 8*n || len(b.tids) != 8 || res.Hits != uint64(8*n) {
				t.Errorf("%s: %d hits of %d by %d threads", fn, b.hits[fn], 8*n, len(b.tids))
			}
		})
	}
}

// TestBreakChildren: forked children have breakpoints of their own, vfork
// children share them, execve ends them.
func TestBreakChildren(t *testing.T) {
	for _, c := range []struct {
		mode, output string
		hits         int
	}{
		{"forks", "fork ok=10\n", 20},
		{"vforks", "vfork ok=10\n", 35}, // 30, and one in each of the 5 that exec
		{"clones", "clone ok=4\n", 204},
	} {
		ways(t, func(t *testing.T, o *Options) {
			b := newBreaker(t, "f_push")
			seen := map[*Breakpoint]bool{}
			b.fn = func(_ *Task, bp *Breakpoint) { seen[bp] = true }
			place := b.onTask
			b.onTask = func(task *Task, e *TaskEvent) {
				if e.Kind == TaskNew && e.Parent != nil { // what the kernel says is what the registers say
					same, known := sameMemory(task.TID, e.Parent.TID)
					if guess := task.sharesMemory(); !known || guess != same || same != (c.mode != "forks") {
						t.Errorf("%s: shared %t (known %t), guessed %t", c.mode, same, known, guess)
					}
				}
				place(task, e)
			}
			got, _ := b.run(t, o, c.mode)
			if got.output != c.output || got.status != 0 || b.hits["f_push"] != c.hits {
				t.Errorf("%s: %+v, %d hits of %d", c.mode, got, b.hits["f_push"], c.hits)
			}
			if want := map[string]int{"forks": 11, "vforks": 6, "clones": 1}[c.mode]; len(seen) != want {
				t.Errorf("%s: %d breakpoints, want %d", c.mode, len(seen), want)
			}
		})
	}
}

// TestBreakUndumpable: an undumpable process's children, whose memory only root may open, have its breakpoints, and
// are undumpable, too.
func TestBreakUndumpable(t *testing.T) {
	if testing.Short() {
		t.Skip("it becomes another user")
	}
	path := build(t, "breaker")
	syms, entry := symbols(t, path)
	for _, mode := range []string{"forks", "vforks", "clones"} {
		want := runPlain(t, path, "undumpable", mode)
		hits := map[string]int{"forks": 20, "vforks": 35, "clones": 204}[mode]
		for _, how := range []string{"breaks", "breaks-allstop"} {
			out, err := asNobody(t, how, fmt.Sprint(syms["f_push"]-entry), path, "undumpable", mode)
			if err != nil || out != fmt.Sprintf("%s%d hits\n", want.output, hits) {
				t.Errorf("%s, %s: %v, %q; want %q and %d hits", mode, how, err, out, want.output, hits)
			}
		}
	}
}

// breaks runs a program with a breakpoint, so far behind where it begins, and prints how often it was hit.
func breaks(o *Options, h *tape, args []string) int {
	distance, err := strconv.ParseUint(args[0], 0, 64)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	o.Argv, o.Rules = args[1:], nil
	hits := 0
	h.onTask = func(t *Task, e *TaskEvent) {
		if e.Kind != TaskExec {
			return
		}
		entry, err := entryOf(t.PID)
		if err == nil {
			_, err = t.SetBreakpoint(entry+distance, func(t *Task, b *Breakpoint) {
				hits++
				var code [1]byte
				if n, err := t.ReadMem(b.Addr, code[:]); n != 1 {
					h.problem(err.Error())
				}
			})
		}
		if err != nil {
			h.problem(err.Error())
		}
	}
	res, err := Run(context.Background(), o, h)
	if err != nil || res.Status != 0 || len(h.problems) > 0 {
		fmt.Println(err, h.problems)
		return 1
	}
	fmt.Println(hits, "hits")
	return 0
}

func init() { helpers["breaks"] = breaks }

// TestBreakForkInside: a function that forks returns in both processes.
func TestBreakForkInside(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "forker", "f_push")
		returns := map[uint64]int{}
		b.fn = func(task *Task, bp *Breakpoint) {
			if b.addrs[bp.Addr] != "forker" {
				return
			}
			caller := task.PID
			if err := task.OnReturn(func(task *Task, ret uint64) {
				returns[ret]++
				if (ret == 8) != (task.PID != caller) {
					t.Errorf("%d in process %d, called in %d", ret, task.PID, caller)
				}
			}); err != nil {
				t.Error(err)
			}
		}
		got, _ := b.run(t, o, "fork_inside")
		if got.output != "inside ok=3\n" || returns[7] != 3 || returns[8] != 3 || b.hits["f_push"] != 3 {
			t.Errorf("%+v, returns %v, hits %v", got, returns, b.hits)
		}
	})
}

// TestBreakStorm: threads that begin and end around a hit.
func TestBreakStorm(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push")
		b.fn = func(task *Task, _ *Breakpoint) {
			if err := task.OnReturn(func(*Task, uint64) { b.hits["return"]++ }); err != nil {
				t.Error(err)
			}
		}
		got, _ := b.run(t, o, "storm")
		if got.output != "0 bad\n" || b.hits["f_push"] != 320 || b.hits["return"] != 320 {
			t.Errorf("%+v, %v", got, b.hits)
		}
	})
}

// TestBreakEnd: the process execs, exits and is killed while its threads are at
// breakpoints.
func TestBreakEnd(t *testing.T) {
	for _, args := range [][]string{{"thread_exec"}, {"thread_exec", "spin"}, {"killed"}, {"killed", "kill"}} {
		ways(t, func(t *testing.T, o *Options) {
			rounds := 5
			if args[len(args)-1] == "spin" { // the first hit may be when execve has just ended the thread
				rounds = 40
			}
			for range rounds {
				b := newBreaker(t, "f_push")
				n := 0
				b.fn = func(task *Task, _ *Breakpoint) {
					if err := task.OnReturn(func(*Task, uint64) {}); err != nil && !errors.Is(err, ErrGone) {
						t.Error(err)
					}
					if n++; n%3 == 0 {
						if pid, err := task.Syscall(unix.SYS_GETPID); err != nil && !errors.Is(err, ErrGone) || err == nil && int(pid) != task.PID {
							t.Error(pid, err)
						}
					}
				}
				got, _ := b.run(t, o, args...)
				want := unix.WaitStatus(0)
				switch {
				case args[len(args)-1] == "kill":
					want = unix.WaitStatus(unix.SIGKILL)
				case args[0] == "killed":
					want = 5 << 8
				}
				if got.status != want || b.hits["f_push"] == 0 {
					t.Errorf("%v: %#x, %d hits", args, uint32(got.status), b.hits["f_push"])
				}
			}
		})
	}
}

// TestBreakSignals: a handler calls the function that it interrupts.
func TestBreakSignals(t *testing.T) {
	for _, fn := range []string{"f_push", "f_load", "f_avx", "f_jcc"} {
		ways(t, func(t *testing.T, o *Options) {
			names := []string{fn}
			if fn != "f_push" {
				names = append(names, "f_push")
			}
			b := newBreaker(t, names...)
			returns := 0
			b.fn = func(task *Task, _ *Breakpoint) {
				if err := task.OnReturn(func(*Task, uint64) { returns++ }); err != nil {
					t.Error(err)
				}
			}
			got, _ := b.run(t, o, "signals", fn)
			var fired, in, wrong int
			if _, err := fmt.Sscanf(got.output, "fired %d, in handler %d, wrong %d", &fired, &in, &wrong); err != nil || fired != in || wrong != 0 || fired < 249 {
				t.Errorf("%+v", got)
			}
			if all := b.hits["f_push"] + b.hits[fn]*min(1, len(names)-1); all != 4000+fired || returns != all {
				t.Errorf("%d hits of %d, %d returns", all, 4000+fired, returns)
			}
		})
	}
}

// TestBreakOwn: the program's own breakpoints are its own.
func TestBreakOwn(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push", "f_trap")
		b.fn = func(task *Task, bp *Breakpoint) {
			if b.addrs[bp.Addr] == "f_trap" {
				if _, err := task.SetBreakpoint(bp.Addr+1, nil); !errors.Is(err, ErrBreakpoint) {
					t.Errorf("breakpoint on a breakpoint: %v", err)
				}
				if _, err := task.SetBreakpoint(address(t, task.PID, b.path, "f_sys"), nil); !errors.Is(err, ErrBreakpoint) {
					t.Errorf("breakpoint on a system call: %v", err)
				}
				if _, err := task.SetBreakpoint(8, nil); !errors.Is(err, ErrBreakpoint) {
					t.Errorf("breakpoint nowhere: %v", err)
				}
			}
		}
		got, res := b.run(t, o, "own")
		if got.output != "traps 15, bad 0\n" || b.hits["f_push"] != 5 || b.hits["f_trap"] != 5 || res.Signals != 15 {
			t.Errorf("%+v, hits %v, %d signals", got, b.hits, res.Signals)
		}
	})
}

// TestBreakFault: the instruction at a breakpoint faults.
func TestBreakFault(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_deref")
		want := runPlain(t, b.path, "segv")
		if got, res := b.run(t, o, "segv"); got != want || b.hits["f_deref"] != 6 || res.Signals != 3 {
			t.Errorf("%+v, untraced %+v; %v hits, %d signals", got, want, b.hits, res.Signals)
		}
		b = newBreaker(t, "f_deref")
		if got, _ := b.run(t, o, "die"); got.status&0x7f != unix.WaitStatus(unix.SIGSEGV) || b.hits["f_deref"] != 1 {
			t.Errorf("%#x, %v", uint32(got.status), b.hits)
		}
	})
}

// TestBreakUnmap: the page of a breakpoint goes away, and another one comes.
func TestBreakUnmap(t *testing.T) {
	const page = 0x612340000
	ways(t, func(t *testing.T, o *Options) {
		o.Rules = []Rule{{Names: []string{"mprotect", "munmap"}, Class: 1, Args: []ArgMatch{{Arg: 0, Value: page}}}}
		b := newBreaker(t)
		b.onTask = nil
		hits, mapped := 0, 0
		var all []*Breakpoint
		b.onExit = func(task *Task, c *Syscall) {
			if c.Name() == "munmap" {
				if last := all[len(all)-1]; last.Intact() {
					t.Error("intact in an unmapped page")
				} else if mapped%2 == 0 {
					if err := last.Remove(); err != nil {
						t.Error(err)
					}
				}
				return
			}
			mapped++
			bp, err := task.SetBreakpoint(page, func(*Task, *Breakpoint) { hits++ })
			if err != nil {
				t.Fatal(err)
			}
			if !bp.Intact() && mapped%2 == 1 {
				t.Error("not intact")
			}
			all = append(all, bp)
		}
		got, _ := b.run(t, o, "unmap")
		if got.output != "0 bad\n" || mapped != 10 || hits < 10 {
			t.Errorf("%+v, mapped %d times, %d hits", got, mapped, hits)
		}
	})
}

// TestBreakLibrary sets breakpoints at all functions of every library, when it is
// mapped, in a shell and all that it runs: these begin in all ways that
// compilers and authors of assembly know. What it lists is ours: a folder of the
// system's may change between two runs.
func TestBreakLibrary(t *testing.T) {
	const script = `for i in 1 2; do ls -l testdata | sort | head -3; done; (cd testdata; echo *) | tr a-z A-Z; exec printf "%s\n" done`
	want := runPlain(t, "sh", "-c", script)
	for _, noCopies := range []bool{false, true} {
		t.Run(map[bool]string{false: "copy", true: "allstop"}[noCopies], func(t *testing.T) {
			h := &tape{verdict: WantExit}
			sites, hits, refused, kinds := 0, 0, 0, map[planKind]int{}
			h.onExit = func(task *Task, c *Syscall) {
				if c.Class != 1 || c.Ret < 0 {
					return
				}
				for _, addr := range functions(t, fmt.Sprintf("/proc/%d/fd/%d", task.PID, int32(c.Args[4])), uint64(c.Ret), c.Args[5]) {
					b, err := task.SetBreakpoint(addr, func(*Task, *Breakpoint) { hits++ })
					if err != nil {
						refused++
						continue
					}
					sites++
					kinds[b.site.plan]++
				}
			}
			got, _ := runTraced(t, &Options{Rules: mapRules(), noCopies: noCopies}, h, "sh", "-c", script)
			h.check(t)
			if got != want {
				t.Errorf("%+v, untraced %+v", got, want)
			}
			if sites < 1000 || hits < 1000 || refused > sites/100 {
				t.Errorf("%d breakpoints, %d refused, %d hits", sites, refused, hits)
			}
			t.Logf("%d breakpoints, %d refused, %d hits; in place %d, skipped %d, jumps %d, calls %d, copied %d, branches %d", sites, refused, hits,
				kinds[planInPlace], kinds[planSkip], kinds[planJump], kinds[planCall], kinds[planCopy], kinds[planBranch])
		})
	}
}

// functions lists the addresses of a library's functions in the part of it that
// is mapped at addr.
func functions(t *testing.T, path string, addr, off uint64) []uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		return nil
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Off&^(pageSize-1) != off {
			continue
		}
		bias := addr - p.Vaddr&^(pageSize-1)
		seen := map[uint64]bool{}
		var list []uint64
		for _, s := range syms {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz && !seen[s.Value] {
				seen[s.Value] = true
				list = append(list, s.Value+bias)
			}
		}
		return list
	}
	return nil
}

// TestBreakMasked: threads that block all signals come to breakpoints, too.
func TestBreakMasked(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "f_push", "f_avx")
		if got, _ := b.run(t, o, "masked"); got.output != "0 bad\n" || b.hits["f_push"] != 40 || b.hits["f_avx"] != 40 {
			t.Errorf("%+v, %v", got, b.hits)
		}
	})
}

// TestBreakEverywhere sets breakpoints at every instruction of the program's own
// functions.
func TestBreakEverywhere(t *testing.T) {
	path := build(t, "breaker")
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	base := f.Section(".text").Addr
	var addrs []uint64
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Value < base || s.Value+s.Size > base+uint64(len(text)) {
			continue
		}
		for at := s.Value; at < s.Value+s.Size; {
			code := text[at-base : s.Value+s.Size-base]
			inst, err := x86asm.Decode(code, 64)
			if bytes.HasPrefix(code, endbr64) { // of which the decoder takes the first byte for an instruction
				inst, err = x86asm.Inst{Len: len(endbr64)}, nil
			}
			if err != nil {
				break
			}
			addrs = append(addrs, at)
			at += uint64(inst.Len)
		}
	}
	for _, mode := range []string{"insns", "recurse", "forks", "vforks", "longjmps", "stacks", "segv", "places"} {
		if testing.Short() && mode == "recurse" {
			continue // it takes as long as all others
		}
		want := runPlain(t, path, mode)
		ways(t, func(t *testing.T, o *Options) {
			b := newBreaker(t)
			hits, refused, programs := 0, 0, 0
			b.set = func(task *Task) {
				programs++
				main := address(t, task.PID, path, "main")
				syms, _ := symbols(t, path)
				for _, addr := range addrs {
					_, err := task.SetBreakpoint(addr+main-syms["main"], func(task *Task, b *Breakpoint) {
						hits++
						if r, err := task.Regs(); err != nil || r.IP() != b.Addr {
							t.Errorf("%+v, %v", r, err)
						}
					})
					if errors.Is(err, ErrBreakpoint) {
						refused++
					} else if err != nil {
						t.Error(err)
					}
				}
			}
			if got, _ := b.run(t, o, mode); got != want {
				t.Errorf("%s: %+v, untraced %+v", mode, got, want)
			}
			if hits < 100 || refused > 3*programs || len(addrs) < 1000 {
				t.Errorf("%s: %d breakpoints, %d refused, %d hits", mode, len(addrs), refused, hits)
			}
		})
	}
}

// TestBreakNoFile: without /proc/PID/mem.
func TestBreakNoFile(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		for mode, output := range map[string]string{"insns": "", "forks": "fork ok=10\n", "storm": "0 bad\n", "own": "traps 15, bad 0\n"} {
			b := newBreaker(t, "f_push", "f_load", "f_avx")
			if output == "" {
				output = runPlain(t, b.path, mode).output
			}
			place := b.onTask
			b.onTask = func(task *Task, e *TaskEvent) {
				if e.Kind == TaskNew || e.Kind == TaskExec {
					task.Proc.closeMem()
				}
				place(task, e)
			}
			var one *Breakpoint
			b.fn = func(task *Task, bp *Breakpoint) {
				if !bp.Intact() {
					t.Error("not intact")
				}
				if one == nil && b.addrs[bp.Addr] == "f_load" {
					one = bp
					if err := bp.Remove(); err != nil || bp.Intact() {
						t.Error(err)
					}
				}
				if err := task.OnReturn(func(*Task, uint64) { b.hits["return"]++ }); err != nil {
					t.Error(err)
				}
			}
			got, _ := b.run(t, o, mode)
			if hits := b.hits["f_push"] + b.hits["f_load"] + b.hits["f_avx"]; got.output != output || hits < 5 || b.hits["return"] != hits {
				t.Errorf("%s: %+v, %v", mode, got, b.hits)
			}
		}
	})
}
