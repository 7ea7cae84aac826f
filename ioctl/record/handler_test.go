package record

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// stage is a recording that is given stops by hand, in an order that a test
// chooses. Its "process" is the test's own, so that memory can be read.
type stage struct {
	*Recorder
	handler ptrace.Handler
	emit    func(*traces.Event)
	got     []string
	files   map[string]uint64 // what the kernel has: "PID FD" to device number
}

const testMinor = 7

func newStage(t testing.TB, pids ...int) *stage {
	t.Helper()
	return stageWith(t, Options{}, pids...)
}

// stageWith makes a stage that records what options say.
func stageWith(t testing.TB, opts Options, pids ...int) *stage {
	t.Helper()
	s := &stage{files: map[string]uint64{}}
	o := &record.Options{Header: &traces.Header{Driver: "580.159.04"}}
	o.Extend = func(rec *record.Recorder) ([]record.Extension, error) {
		opts.Fast = FastOff
		opts.Stat = func(pid int, fd int32) (uint64, string, bool) {
			rdev, ok := s.files[fmt.Sprint(pid, " ", fd)]
			return rdev, "", ok
		}
		opts.MayBeNode = func([]byte) bool { return true }
		opts.NodeName = (&Nodes{}).Name
		s.Recorder = New(rec, &opts)
		return []record.Extension{s.Extension()}, nil
	}
	s.emit = func(ev *traces.Event) {
		implicit := ""
		if ev.Flags != 0 {
			implicit = " " + ev.Flags.String()
		}
		s.got = append(s.got, fmt.Sprintf("%d %v %d file %d = %d%s", ev.TID, ev.Kind, ev.FD, ev.File, ev.Ret, implicit))
	}
	var err error
	if s.handler, err = record.Handler(o, func(ev *traces.Event) { s.emit(ev) }); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		s.process(pid).narrow = true // there is nothing to inject into
	}
	return s
}

// has says what a descriptor is in the kernel: a GPU, or nothing.
func (s *stage) has(pid, fd int, device bool) {
	key := fmt.Sprint(pid, " ", fd)
	delete(s.files, key)
	if device {
		s.files[key] = unix.Mkdev(nvidiaMajor, testMinor)
	}
}

func task(pid, tid int) *ptrace.Task { return &ptrace.Task{PID: pid, TID: tid} }

// nativeCall makes a call of this machine's ABI.
func nativeCall(t testing.TB, class uint16, name string, args ...uint64) *ptrace.Syscall {
	c := &ptrace.Syscall{Class: class, Arch: nativeArch(t), Enter: 1, Exit: 2}
	copy(c.Args[:], args)
	for nr := range uint64(600) {
		if ptrace.SyscallName(c.Arch, nr) == name {
			c.Nr = nr
			return c
		}
	}
	t.Fatalf("no call %s", name)
	return nil
}

func nativeArch(t testing.TB) uint32 {
	for _, a := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64} {
		if ptrace.SyscallName(a, unix.SYS_IOCTL) == "ioctl" {
			return a
		}
	}
	t.Fatal("unknown architecture")
	return 0
}

// whole makes a call that nothing comes between.
func (s *stage) whole(t *ptrace.Task, c *ptrace.Syscall, ret int64) {
	if s.handler.Enter(t, c) == ptrace.WantExit {
		c.Ret = ret
		s.handler.Exit(t, c)
	}
}

func (s *stage) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.got, want) {
		t.Errorf("recorded\n%q\nwant\n%q", s.got, want)
	}
	s.got = nil
}

// TestCloseRace: while one thread closes a descriptor, another uses it, and a
// third gets the same number, whose open is seen to return first.
func TestCloseRace(t *testing.T) {
	const pid = 10
	s := newStage(t, pid)
	closer, user, opener := task(pid, 10), task(pid, 11), task(pid, 12)
	open := func(th *ptrace.Task) {
		s.has(pid, 5, true)
		s.whole(th, nativeCall(t, classOpen, "openat"), 5)
	}
	open(closer)
	s.want(t, "10 open 5 file 1 = 5")

	cl := nativeCall(t, classClose, "close", 5)
	if s.handler.Enter(closer, cl) != ptrace.WantExit {
		t.Fatal("close is not followed")
	}
	s.whole(user, nativeCall(t, classIoctl, "ioctl", 5, 0x4600), 0)
	s.want(t, "11 ioctl 5 file 1 = 0") // no new file, nothing inferred
	s.has(pid, 5, false)
	s.whole(user, nativeCall(t, classIoctl, "ioctl", 5, 0x4600), -9)
	s.want(t)
	open(opener)
	s.want(t, "10 close 5 file 1 = 0", "12 open 5 file 2 = 5")
	s.handler.Exit(closer, cl)
	s.want(t)
	s.whole(user, nativeCall(t, classIoctl, "ioctl", 5, 0x4600), 0)
	s.want(t, "11 ioctl 5 file 2 = 0")
	if n := len(s.process(pid).closing); n != 0 {
		t.Errorf("%d descriptors are being closed", n)
	}
}

// TestCloseUnfinished: a thread that is killed in close has closed it.
func TestCloseUnfinished(t *testing.T) {
	const pid = 10
	s := newStage(t, pid)
	th := task(pid, 11)
	for _, fd := range []int{3, 4, 9} {
		s.has(pid, fd, true)
		s.whole(th, nativeCall(t, classOpen, "openat"), int64(fd))
	}
	s.got = nil
	cl := nativeCall(t, classClose, "close_range", 4, 0xffffffff)
	s.handler.Enter(th, cl)
	s.handler.Task(th, &ptrace.TaskEvent{Kind: ptrace.TaskUnfinished, Call: cl})
	s.want(t, "11 close 4 file 2 = 0 unfinished", "11 close 9 file 3 = 0 unfinished")
	if p := s.process(pid); len(p.fds) != 1 || len(p.closing) != 0 {
		t.Errorf("left: %v, %v", p.fds, p.closing)
	}
	s.whole(th, nativeCall(t, classClose, "close_range", 0, 5, 1<<2), 0) // CLOEXEC only
	s.want(t)
}

// TestDupRace: the original is closed by another thread before the dup is seen to
// return; and dup2 takes the place of a number that is being closed.
func TestDupRace(t *testing.T) {
	const pid = 10
	s := newStage(t, pid)
	a, b := task(pid, 10), task(pid, 11)
	s.has(pid, 5, true)
	s.whole(a, nativeCall(t, classOpen, "openat"), 5)
	dup := nativeCall(t, classDup, "dup", 5)
	s.handler.Enter(a, dup)
	s.whole(b, nativeCall(t, classClose, "close", 5), 0)
	dup.Ret = 6
	s.handler.Exit(a, dup)
	s.want(t, "10 open 5 file 1 = 5", "11 close 5 file 1 = 0", "10 dup 5 file 1 = 6")

	cl := nativeCall(t, classClose, "close", 6)
	s.handler.Enter(b, cl)
	s.has(pid, 7, true)
	s.whole(a, nativeCall(t, classOpen, "openat"), 7)
	s.whole(a, nativeCall(t, classDup, "dup3", 7, 6), 6)
	s.handler.Exit(b, cl)
	s.want(t, "10 open 7 file 2 = 7", "11 close 6 file 1 = 0", "10 dup 7 file 2 = 6")

	// Something that is no device takes its place.
	s.whole(a, nativeCall(t, classDup, "dup3", 0, 6), -9)
	s.want(t)
	s.whole(a, nativeCall(t, classDup, "dup3", 0, 6), 6)
	s.want(t, "10 close 6 file 2 = 0 implicit")
}

// TestForkRace: the table of a process with threads is newer than the fork.
func TestForkRace(t *testing.T) {
	const pid, kid = 10, 20
	s := newStage(t, pid)
	a, b := task(pid, 10), task(pid, 11)
	for _, fd := range []int{3, 4} {
		s.has(pid, fd, true)
		s.whole(a, nativeCall(t, classOpen, "openat"), int64(fd))
	}
	cl := nativeCall(t, classClose, "close", 3)
	s.handler.Enter(b, cl)
	s.has(kid, 3, true) // copied before it was closed, but 4 was opened later
	s.got = nil
	child := task(kid, kid)
	s.handler.Task(child, &ptrace.TaskEvent{Kind: ptrace.TaskNew, Parent: a})
	s.handler.Exit(b, cl)
	s.whole(child, nativeCall(t, classIoctl, "ioctl", 3, 0x4600), 0)
	s.whole(child, nativeCall(t, classIoctl, "ioctl", 4, 0x4600), 0)
	s.want(t, "10 fork -1 file 0 = 0", "20 close 4 file 2 = 0 implicit", "11 close 3 file 1 = 0", "20 ioctl 3 file 1 = 0")
}

// TestMemoryBounded: nothing is kept of what has ended.
func TestMemoryBounded(t *testing.T) {
	const pid = 10
	s := newStage(t, pid)
	a := task(pid, pid)
	s.has(pid, 3, true)
	s.whole(a, nativeCall(t, classOpen, "openat"), 3)
	for i := range 1000 {
		kid := 100 + i
		s.has(kid, 3, true)
		child, thread := task(kid, kid), task(kid, 5000+i)
		s.handler.Task(child, &ptrace.TaskEvent{Kind: ptrace.TaskNew, Parent: a})
		s.handler.Task(thread, &ptrace.TaskEvent{Kind: ptrace.TaskNew, Parent: child, Thread: true})
		s.whole(thread, nativeCall(t, classClose, "close", 3), 0)
		s.whole(a, nativeCall(t, classMmap, "mmap", 0, 4096, 0, 0, 3), int64(i)<<12)
		s.handler.Task(child, &ptrace.TaskEvent{Kind: ptrace.TaskExit, Replaced: true})
		thread.TID = kid
		s.handler.Task(thread, &ptrace.TaskEvent{Kind: ptrace.TaskExec, OldTID: 5000 + i})
		s.handler.Task(thread, &ptrace.TaskEvent{Kind: ptrace.TaskExit})
	}
	if p := s.process(pid); len(s.procs) != 1 || len(p.fds) != 1 || len(p.maps) != 0 || len(p.closing) != 0 {
		t.Errorf("%d processes, %d descriptors, %d mappings", len(s.procs), len(p.fds), len(p.maps))
	}
}

// TestMappings follows mappings with Options.Munmap.
func TestMappings(t *testing.T) {
	const pid = 10
	s := stageWith(t, Options{Munmap: true}, pid)
	a := task(pid, pid)
	s.has(pid, 3, true)
	s.whole(a, nativeCall(t, classOpen, "openat"), 3)
	s.whole(a, nativeCall(t, classMmap, "mmap", 0, 0x4000, 0, 0, 3), 0x10000)
	s.whole(a, nativeCall(t, classMmap, "mmap", 0, 0x4000, 0, 0, 3), -12)
	s.got = nil
	s.whole(a, nativeCall(t, classMunmap, "munmap", 0x20000, 0x1000), 0)
	s.want(t) // no device's
	s.whole(a, nativeCall(t, classMremap, "mremap", 0x10000, 0x4000, 0x8000), 0x20000)
	s.whole(a, nativeCall(t, classMunmap, "munmap", 0x10000, 0x1000), 0)
	s.whole(a, nativeCall(t, classMunmap, "munmap", 0x20000, 0x8000), 0)
	s.whole(a, nativeCall(t, classMunmap, "munmap", 0x20000, 0x8000), 0)
	s.want(t, "10 mremap -1 file 0 = 131072", "10 munmap -1 file 0 = 0")
}

// addr is where b lies, in heap memory that does not move.
func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// controlCall is NV_ESC_RM_CONTROL with 64 bytes of parameters, in this
// process's own memory.
type controlCall struct {
	arg, params []byte
}

func newControlCall() *controlCall {
	c := &controlCall{make([]byte, 32), make([]byte, 64)}
	// NVOS54_PARAMETERS (nvos.h): hClient, hObject, cmd, flags, params, size, status.
	binary.LittleEndian.PutUint32(c.arg[8:], 0x2080_0102)
	binary.LittleEndian.PutUint64(c.arg[16:], addr(c.params))
	binary.LittleEndian.PutUint32(c.arg[24:], uint32(len(c.params)))
	return c
}

func (c *controlCall) syscall(t testing.TB, fd int) *ptrace.Syscall {
	const request = 0xc020462a // _IOWR('F', NV_ESC_RM_CONTROL, 32 bytes)
	return nativeCall(t, classIoctl, "ioctl", uint64(fd), request, addr(c.arg))
}

// selfStage is a stage whose process is this one, with one descriptor.
func selfStage(t testing.TB) (*stage, *ptrace.Task) {
	pid := os.Getpid()
	s := newStage(t, pid)
	s.process(pid).fds[3] = s.newFile("nvidiactl", unix.Mkdev(nvidiaMajor, minorControl))
	return s, task(pid, pid)
}

// TestAllocs: recording an ioctl, up to the queue, allocates nothing.
func TestAllocs(t *testing.T) {
	s, self := selfStage(t)
	var last traces.Event
	s.emit = func(ev *traces.Event) { last = *ev }
	c := newControlCall()
	call := c.syscall(t, 3)
	for range 2000 {
		s.whole(self, call, 0)
	}
	if n := testing.AllocsPerRun(2000, func() { s.whole(self, call, 0) }); n != 0 {
		t.Errorf("%v allocations per ioctl", n)
	}
	if ev := &last; len(ev.Mem) != 2 || len(ev.Mem[1].In) != 64 || len(ev.Mem[1].Out) != 64 {
		t.Errorf("recorded: %+v", ev)
	}
}
