package host

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/object"
)

// callCount returns what a map has counted of system calls of a number.
func (r *rig) callCount(name string, nr uint32) uint64 {
	r.t.Helper()
	v, err := r.maps.Lookup(r.mem, r.maps.Find(name), binary.LittleEndian.AppendUint32(nil, nr))
	if err != nil {
		r.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(v)
}

// TestCallers: a program at a system call lists its callers.
func TestCallers(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "calls")
	compile(t, "-O1", "-fno-omit-frame-pointer", "-w", "-no-pie", "-o", bin, "testdata/syscalls.cc", "-lpthread")
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	both(t, func(t *testing.T, inside bool) {
		r := rigOf(t, "../testdata/obj/syscalls.bpf.o", inside, "gid_exit")
		if status := r.run(bin); status != 0 {
			t.Errorf("exit %d, %q", status, r.stdout.String())
		}
		x := r.maps.Find(".bss")
		var v *object.Var
		for i := range r.plan.Objects[0].Vars {
			if r.plan.Objects[0].Vars[i].Name == "stack" {
				v = &r.plan.Objects[0].Vars[i]
			}
		}
		b := make([]byte, 8*4)
		if err := r.mem.ReadMem(x.Addr()+uint64(v.Offset), b); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"asks", "asked"} {
			at, in := binary.LittleEndian.Uint64(b[8*i:]), ""
			for _, s := range symbols {
				if at-s.Value < s.Size && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
					in = s.Name
				}
			}
			if in != want {
				t.Errorf("caller %d is %#x in %q, want %s", i, at, in, want)
			}
		}
		if n := r.variable("stack_bytes"); n < 16 || inside && r.agent.Stats().Sites == 0 {
			t.Errorf("%d bytes of stack", n)
		}
	})
}

// TestRerouted: system calls run their programs in the process, once each, wherever they are made;
// the program does what it does without.
func TestRerouted(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "calls")
	compile(t, "-O1", "-w", "-o", bin, "testdata/syscalls.cc", "-lpthread")
	want, _ := untraced(t, bin)
	if text := fmt.Sprintf("uid %d, of syscall() %[1]d\nok\n", os.Getuid()); want != text {
		t.Fatalf("by itself it prints %q", want)
	}
	both(t, func(t *testing.T, inside bool) {
		for name, programs := range map[string][]string{"some": {"read_*", "ppid_*"}, "all": {"all_*"}, "override": {"uid_*"}} {
			t.Run(name, func(t *testing.T) {
				r := rigOf(t, "../testdata/obj/syscalls.bpf.o", inside, programs...)
				text := want
				if name == "override" {
					text = "uid 4321, of syscall() 4321\nok\n"
				}
				if status := r.run(bin); status != 0 || r.stdout.String() != text {
					t.Errorf("exit %d, %q; want %q", status, r.stdout.String(), text)
				}
				if n := r.variable("wrong"); n != 0 || len(r.said) > 0 || len(r.runner.Losses()) > 0 {
					t.Errorf("%d threads are wrong; said %q, lost %v", n, r.said, r.runner.Losses())
				}
				if inside && r.agent.Stats().Sites == 0 {
					t.Error("no system call was rerouted")
				}
				if name == "override" {
					if n := r.callCount("enters", unix.SYS_GETUID); n != 2 {
						t.Errorf("%d calls of getuid", n)
					}
					return
				}
				const ppids = 5*2000 + 1
				if a, b := r.callCount("enters", unix.SYS_GETPPID), r.callCount("exits", unix.SYS_GETPPID); a != ppids || b != ppids {
					t.Errorf("%d calls of getppid, %d returns; want %d", a, b, ppids)
				}
				// Beside those of the loader: the handlers', the interrupted, the restarted, that of a child which is told of it, and the
				// cancelled one, which does not return.
				const reads = 5*2*2000 + 2 + 1 + 1 + 1 + 1
				a, b := r.callCount("enters", unix.SYS_READ), r.callCount("exits", unix.SYS_READ)
				if a < reads || a > reads+20 || b != a-1 && b != a {
					t.Errorf("%d calls of read, %d returns; want %d and one less", a, b, reads)
				}
				if n := r.variable("bytes"); name == "some" && n < 5*2000*10 {
					t.Errorf("%d bytes read", n)
				}
			})
		}
	})
}

// TestOtherCalls: programs do not run at system calls of 32-bit code, which is said, once.
func TestOtherCalls(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "int80")
	compile(t, "-O1", "-o", bin, "testdata/int80.c")
	both(t, func(t *testing.T, inside bool) {
		r := rigOf(t, "../testdata/obj/syscalls.bpf.o", inside, "gid_exit")
		switch status := r.run(bin); {
		case status == int(unix.SIGSEGV):
			t.Skip("the kernel has no calls of 32-bit programs")
		case status != 0 || len(r.said) != 1 || r.said[0] != otherCalls:
			t.Errorf("exit %d, said %q", status, r.said)
		}
	})
}

// TestHidden: calls that the program's own filter answers are not seen, which is said, once.
func TestHidden(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "hides")
	compile(t, "-O1", "-o", bin, "testdata/hides.c")
	for _, how := range []string{"errno", "trap"} {
		both(t, func(t *testing.T, inside bool) {
			r := rigOf(t, "../testdata/obj/syscalls.bpf.o", inside, "ppid_*", "gid_exit")
			status := r.run(bin, how)
			if want := hiddenCalls([]string{"getppid"}); status != 0 || len(r.said) != 1 || r.said[0] != want {
				t.Errorf("%s: exit %d, said %q, want %q", how, status, r.said, want)
			}
		})
	}
	both(t, func(t *testing.T, inside bool) {
		if r := rigOf(t, "../testdata/obj/syscalls.bpf.o", inside, "gid_exit"); r.run(bin, "errno") != 0 || len(r.said) > 0 {
			t.Errorf("said %q of calls that no filter answers", r.said)
		}
	})
}
