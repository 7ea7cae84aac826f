package unwind

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
)

// compile builds a program of testdata.
func compile(t *testing.T, cc, source string, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command(need.Tool(t, cc, ""), append(args, "-w", "-o", bin, "testdata/"+source)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// watch is a ptrace.Handler that looks at threads which make a certain call.
type watch struct {
	at func(*ptrace.Task, *ptrace.Syscall)
}

func (w *watch) Enter(task *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if int32(s.Args[0]) == -77 {
		w.at(task, s)
	}
	return ptrace.Skip
}
func (*watch) Exit(*ptrace.Task, *ptrace.Syscall)   {}
func (*watch) Task(*ptrace.Task, *ptrace.TaskEvent) {}

// run runs a program, with at called where it tells of itself.
func run(t *testing.T, bin string, at func(*ptrace.Task, *ptrace.Syscall)) {
	t.Helper()
	var out bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = out.ReadFrom(r) // ends when the program has
	}()
	res, err := ptrace.Run(context.Background(), &ptrace.Options{
		Argv: []string{bin}, Stdout: w, Stderr: w, Env: append(os.Environ(), "LD_BIND_NOW="),
		Rules: []ptrace.Rule{{Names: []string{"getpgid"}}},
	}, &watch{at})
	w.Close()
	<-done
	r.Close()
	if err != nil || res.Status.ExitStatus() != 0 || out.String() != "done\n" {
		t.Fatalf("%v, %+v, %q", err, res, out.String())
	}
}

// TestSteps compares, after each instruction of programs, the callers with those that libgcc's
// unwinder finds in the program itself, from the handler of a signal on.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		name, cc string
		args     []string
	}{
		{"O2", "gcc", []string{"-O2", "-fomit-frame-pointer", "-Wl,-z,lazy"}},
		{"O0", "gcc", []string{"-O0", "-no-pie"}},
		{"static", "gcc", []string{"-O2", "-static"}},
		{"clang", "clang", []string{"-O3", "-fomit-frame-pointer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if need.Race && c.name != "O2" {
				t.Skip("one program is enough for the race detector, under which each takes a minute")
			}
			bin := compile(t, c.cc, "stepped.c", c.args...)
			var p *Process
			steps, wrong, longest, ended := 0, 0, 0, 0
			functions := map[string]bool{}
			run(t, bin, func(task *ptrace.Task, s *ptrace.Syscall) {
				if p == nil {
					p = Of(task.PID)
				}
				b := make([]byte, 8*int(s.Args[1]))
				regs, err := task.Regs()
				if n, rerr := task.ReadMem(s.Args[2], b); n < len(b) || err != nil {
					t.Fatal(rerr, err)
				}
				var want []uint64
				for ; len(b) > 0; b = b[8:] {
					want = append(want, binary.LittleEndian.Uint64(b))
				}
				list := p.Walk(task, RegsOf(regs), 100)
				var got []uint64
				for i := range list {
					got = append(got, list[i].PC)
				}
				// Inside of the handler each has called something else. From where it returns to
				// on they are the same.
				i := slices.Index(want, s.Args[3])
				if steps++; i < 1 {
					return // libgcc does not get there itself
				}
				k := slices.Index(got, want[i-1])
				longest = max(longest, len(want)-i)
				if i == len(want)-1 && k >= 0 && k+i < len(got) {
					ended++ // in a jump to a function of a static program, of which nothing is said
					got = got[:k+2]
					if !list[k+2].Guessed {
						t.Errorf("at %#x: libgcc finds no caller", s.Args[3])
					}
				}
				if k < 0 || !slices.Equal(got[k:], want[i-1:]) {
					if wrong++; wrong < 10 {
						t.Errorf("at %#x: %x, want %x (%+v)", s.Args[3], got, want, p.Place(task, s.Args[3]))
					}
				}
				at := p.Place(task, s.Args[3])
				functions[at.Func] = true
			})
			t.Logf("%d instructions, %d functions, %d callers at most, %d without any", steps, len(functions), longest, ended)
			if steps < 2000 || longest < 8 || wrong > 0 || ended > steps/50 { // jumps that begin with endbr64 are two instructions
				t.Errorf("%d of %d instructions have other callers, %d at most", wrong, steps, longest)
			}
			for _, name := range []string{"deep", "last", "sized", "aligned", "many", "jumps", "less"} {
				if !functions[name] {
					t.Errorf("no instruction of %s", name)
				}
			}
		})
	}
}

// FuzzTable has no table make reading or running it fail.
func FuzzTable(f *testing.F) {
	const head = 64 + 2*56
	file := func(table []byte) []byte {
		b := make([]byte, head, head+len(table))
		copy(b, "\x7fELF\x02\x01\x01")
		le.PutUint16(b[18:], uint16(elf.EM_X86_64))
		le.PutUint64(b[32:], 64)
		le.PutUint16(b[54:], 56)
		le.PutUint16(b[56:], 2)
		for i, typ := range []elf.ProgType{elf.PT_LOAD, elf.PT_GNU_EH_FRAME} {
			p := b[64+56*i:]
			le.PutUint32(p, uint32(typ))
			le.PutUint64(p[8:], head)
			le.PutUint64(p[16:], head)
			le.PutUint64(p[32:], uint64(len(table)))
			le.PutUint64(p[40:], uint64(len(table)))
		}
		return append(b, table...)
	}
	// A table of one function at 0x200, whose description follows, and what they have in common.
	seed := []byte{1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0}
	seed = le.AppendUint32(seed, 0x200-head)
	seed = le.AppendUint32(seed, 44)
	cie := []byte{20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0}
	fde := []byte{24, 0, 0, 0, 28, 0, 0, 0}
	fde = le.AppendUint32(fde, 0x200-head-44-8)
	fde = le.AppendUint32(fde, 0x100)
	fde = append(fde, 0, 0x41, 0x0e, 16, 0x86, 2, 0x0f, 3, 0x77, 8, 6, 0)
	seed = append(append(seed, cie...), fde...)
	read := func(b []byte) (*table, error) {
		e, err := dso.Read(bytes.NewReader(file(b)))
		if err != nil {
			return nil, err
		}
		return readTable(e)
	}
	if t, err := read(seed); err != nil {
		f.Fatal(err)
	} else if r, err := t.find(0x201); err != nil || r.cfa.kind != ruleValExpr || r.regs[RBP].kind != ruleOffset || r.regs[RBP].off != -16 {
		f.Fatalf("%+v, %v", r, err)
	}
	f.Add(seed, uint64(0x201))
	f.Fuzz(func(_ *testing.T, b []byte, addr uint64) {
		t, err := read(b)
		if err != nil {
			return
		}
		row, err := t.find(addr)
		if err != nil {
			return
		}
		w := walker{Of(-1), nothing{}}
		var r Regs
		for n := range numRegs {
			r.Set(n, addr+uint64(n))
		}
		w.apply(row, &r)
	})
}

// nothing is memory that has its own address everywhere.
type nothing struct{}

func (nothing) ReadMem(addr uint64, b []byte) (int, error) {
	for i := range b {
		b[i] = byte(addr >> (8 * (i % 8)))
	}
	return len(b), nil
}
