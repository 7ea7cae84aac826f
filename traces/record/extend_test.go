package record

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// TestExtensionRefused: classes that are taken, and errors.
func TestExtensionRefused(t *testing.T) {
	for _, class := range []uint16{ExtensionClass - 1, agent.Class, ptrace.ClassInternal} {
		o := &Options{Extend: func(*Recorder) ([]Extension, error) {
			return []Extension{{Handler: new(idle), Rules: []ptrace.Rule{{Names: []string{"getpid"}, Class: class}}}}, nil
		}}
		o.Ptrace.Argv = []string{"/bin/true"}
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("class %#x was taken", class)
		}
	}
	o := &Options{Extend: func(*Recorder) ([]Extension, error) {
		return []Extension{{Rules: []ptrace.Rule{{Names: []string{"getpid"}, Class: ExtensionClass}}}}, nil
	}}
	o.Ptrace.Argv = []string{"/bin/true"}
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("rules without a handler were taken")
	}
	mine := errors.New("mine")
	o = &Options{Extend: func(*Recorder) ([]Extension, error) { return nil, mine }}
	o.Ptrace.Argv = []string{"/bin/true"}
	if res, err := Run(t.Context(), o); !errors.Is(err, mine) || res.Ended {
		t.Errorf("error %v", err)
	}
}

// idle is an extension that keeps how often it was told of a task, and how many events
// there were then.
type idle struct {
	tasks  Slot[int]
	events *int
	seen   []int
}

func (h *idle) Enter(t *ptrace.Task, _ *ptrace.Syscall) ptrace.Verdict {
	*h.tasks.Of(t)++
	return ptrace.Skip
}

func (h *idle) Exit(*ptrace.Task, *ptrace.Syscall) {}

func (h *idle) Task(t *ptrace.Task, _ *ptrace.TaskEvent) {
	h.seen = append(h.seen, *h.tasks.Of(t), *h.events)
}

// TestSlots: extensions keep what they like of a task, each its own; of beginnings they
// are told after the event, of ends before it, and who does not select a call is not asked.
func TestSlots(t *testing.T) {
	events := 0
	var a, b *idle
	o := &Options{Extend: func(r *Recorder) ([]Extension, error) {
		a, b = &idle{tasks: NewSlot[int](r), events: &events}, &idle{tasks: NewSlot[int](r), events: &events}
		rule := []ptrace.Rule{{Names: []string{"getpid"}, Class: ExtensionClass}}
		return []Extension{{Handler: a}, {Rules: rule, Handler: b}}, nil
	}}
	h, err := Handler(o, func(*traces.Event) { events++ })
	if err != nil {
		t.Fatal(err)
	}
	task := &ptrace.Task{PID: 1, TID: 2}
	h.Task(task, &ptrace.TaskEvent{Kind: ptrace.TaskNew, Thread: true})
	call := &ptrace.Syscall{Arch: nativeArch(t), Class: ExtensionClass}
	for ptrace.SyscallName(call.Arch, call.Nr) != "getpid" {
		call.Nr++
	}
	for range 3 {
		h.Enter(task, call)
	}
	h.Task(task, &ptrace.TaskEvent{Kind: ptrace.TaskExit})
	if want := []int{0, 1, 0, 1}; !slices.Equal(a.seen, want) {
		t.Errorf("the first saw %v, want %v", a.seen, want)
	}
	if want := []int{0, 1, 3, 1}; !slices.Equal(b.seen, want) {
		t.Errorf("the second saw %v, want %v", b.seen, want)
	}
	if events != 2 {
		t.Errorf("%d events", events)
	}
}

func nativeArch(t *testing.T) uint32 {
	for _, a := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64} {
		if ptrace.SyscallName(a, unix.SYS_IOCTL) == "ioctl" {
			return a
		}
	}
	t.Fatal("unknown architecture")
	return 0
}
