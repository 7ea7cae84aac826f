package api

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/traces"
)

// TestOwners: memory belongs to the library whose call is around the one that allocates, else to who is on the stack, and what
// the driver holds beyond that is its own.
func TestOwners(t *testing.T) {
	a, add := oneThread()
	alloc := func(size, addr uint64, files ...string) {
		add("libcuda.so.1", traces.Event{Kind: traces.KindCall, Name: "cuMemAlloc_v2", Args: [6]uint64{0x7f00, size}})
		if files != nil {
			stack := traces.Event{Kind: traces.KindStack, Name: "cuMemAlloc_v2"}
			frames := []traces.StackFrame{{Language: traces.LanguageNative, File: "/x/libcudart.so.13", Func: "cudaMalloc"}}
			for _, f := range files {
				file, function := f, ""
				if f == "workspace" {
					file, function = "/x/libtorch_cuda.so", "_ZN2at4cuda15getNewWorkspaceEv"
				}
				frames = append(frames, traces.StackFrame{Language: traces.LanguageNative, File: file, Func: function})
			}
			stack.SetStack(append(frames, traces.StackFrame{Language: "python", File: "/a.py", Func: "f", Line: 1}))
			add("libcuda.so.1", stack)
		}
		add("libcuda.so.1", traces.Event{
			Kind: traces.KindReturn, Name: "cuMemAlloc_v2",
			Mem: []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, addr)}},
		})
	}
	a.Context(1, 100)
	if got := a.Owners(); got != nil {
		t.Errorf("before any call: %+v", got)
	}
	add("libnccl.so.2", traces.Event{Kind: traces.KindCall, Name: "ncclCommInitRank"})
	alloc(1000, 0x1000, "/x/libc10_cuda.so")
	add("libnccl.so.2", traces.Event{Kind: traces.KindReturn, Name: "ncclCommInitRank"})
	alloc(2000, 0x2000, "/x/libnccl.so.2", "/x/libtorch_cuda.so")
	alloc(400, 0x3000, "/x/libc10_cuda.so", "/x/libtorch_cuda.so")
	alloc(300, 0x4000, "/x/libc10_cuda.so", "workspace")
	alloc(50, 0x5000, "/x/app")
	alloc(7, 0x6000)
	alloc(5, 0x7000, "/usr/lib/python3/site-packages/cupy_backends/cuda/api/runtime.so")
	a.Context(1, 0) // it was not recorded
	for _, o := range a.Owners() {
		if o.Owner == OwnerContext && o.Most != 100 {
			t.Errorf("%+v", o)
		}
	}
	a.Context(1, 10000)
	add("libcuda.so.1", traces.Event{Kind: traces.KindCall, Name: "cuMemFree_v2", Args: [6]uint64{0x2000}})
	add("libcuda.so.1", traces.Event{Kind: traces.KindReturn, Name: "cuMemFree_v2"})
	a.Context(1, 500)
	want := []OwnerMemory{
		{1, "context", 0, 10000 - 3762, 0},
		{1, "nccl", 1000, 3000, 2},
		{1, "pytorch", 400, 400, 1},
		{1, "cublas", 300, 300, 1},
		{1, "program", 57, 57, 2},
		{1, "cupy", 5, 5, 1},
	}
	if d := cmp.Diff(want, a.Owners()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestStackOfAnother: the stack of a call that allocates nothing says nothing of the allocation after it, whose own was
// not recorded.
func TestStackOfAnother(t *testing.T) {
	tracker, a := NewTracker(), NewAllocations()
	add := func(ev traces.Event) {
		ev.PID, ev.TID, ev.FD, ev.Path = 1, 2, -1, "libcuda.so.1"
		a.Add(&ev, tracker.Add(&ev))
	}
	add(traces.Event{Kind: traces.KindCall, Name: "cuCtxSynchronize"})
	stack := traces.Event{Kind: traces.KindStack, Name: "cuCtxSynchronize"}
	stack.SetStack([]traces.StackFrame{
		{Language: traces.LanguageNative, File: "/x/libnccl.so.2", Func: "wait"},
		{Language: "python", File: "/a.py", Func: "f", Line: 1},
	})
	add(stack)
	add(traces.Event{Kind: traces.KindReturn, Name: "cuCtxSynchronize"})
	add(traces.Event{Kind: traces.KindCall, Name: "cuMemAlloc_v2", Args: [6]uint64{0x7f00, 100}})
	add(traces.Event{
		Kind: traces.KindReturn, Name: "cuMemAlloc_v2",
		Mem: []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, 0x1000)}},
	})
	if d := cmp.Diff([]LineMemory{{Live: 100, Most: 100, Total: 100, Count: 1}}, a.list()); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]OwnerMemory{{1, OwnerProgram, 100, 100, 1}}, a.Now()); d != "" {
		t.Errorf("owners (-want +got):\n%s", d)
	}
}

// TestContextOfManaged: managed memory is not of what the resource manager has.
func TestContextOfManaged(t *testing.T) {
	tracker, a := NewTracker(), NewAllocations()
	add := func(tid int32, kind traces.Kind, name string, args ...uint64) {
		ev := traces.Event{Kind: kind, PID: 1, TID: tid, FD: -1, Path: "libcuda.so.1", Name: name}
		if copy(ev.Args[:], args); kind == traces.KindReturn {
			ev.Mem = []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, args[0])}}
		}
		a.Add(&ev, tracker.Add(&ev))
	}
	context := func(all, want uint64) {
		t.Helper()
		if a.Context(1, all); a.ownerOf(1, OwnerContext).Live != want {
			t.Errorf("of %d: %+v, want %d", all, a.Now(), want)
		}
	}
	add(2, traces.KindCall, "cuMemAlloc_v2", 0x7f00, 100)
	add(3, traces.KindCall, "cuMemAllocManaged", 0x7f00, 5000)
	add(3, traces.KindReturn, "cuMemAllocManaged", 0x2000)
	if !tracker.Allocating(1) || tracker.Allocating(4) {
		t.Error("one thread allocates, of process 1")
	}
	add(2, traces.KindReturn, "cuMemAlloc_v2", 0x1000)
	if tracker.Allocating(1) {
		t.Error("no thread allocates")
	}
	context(130, 30)
	add(2, traces.KindCall, "cuMemFree_v2", 0x2000)
	if !tracker.Allocating(1) {
		t.Error("a thread gives memory back")
	}
	add(2, traces.KindReturn, "cuMemFree_v2", 0)
	context(130, 30)
}

// TestLineTimes: a wait counts once, for the line that waits, and time outside of CUDA's libraries for the line that
// comes back.
func TestLineTimes(t *testing.T) {
	tracker, l := NewTracker(), NewLineTimes(nil)
	add := func(kind traces.Kind, at, dur int64, path, name string, line int) {
		ev := traces.Event{Kind: kind, Time: at, Dur: dur, Name: name, Path: path, PID: 1, TID: 2, FD: -1}
		if kind == traces.KindStack {
			ev.SetStack([]traces.StackFrame{{Language: "python", File: "/a.py", Func: "f", Line: line}})
		}
		l.Add(&ev, tracker, tracker.Add(&ev))
	}
	if l.Report() != nil {
		t.Error("a report without stacks")
	}
	add(traces.KindCall, 100, 0, "libcuda.so.1", "cuInit", 0)
	add(traces.KindReturn, 100, 50, "libcuda.so.1", "cuInit", 0)
	for i := range int64(2) {
		at := 1000 * (i + 1)
		add(traces.KindCall, at, 0, "libcudart.so.13", "cudaStreamSynchronize", 0)
		add(traces.KindCall, at+1, 0, "libcuda.so.1", "cuStreamSynchronize", 0)
		add(traces.KindStack, at+2, 0, "", "cuStreamSynchronize", 7)
		add(traces.KindReturn, at+1, 200, "libcuda.so.1", "cuStreamSynchronize", 0)
		add(traces.KindReturn, at, 300, "libcudart.so.13", "cudaStreamSynchronize", 0)
	}
	add(traces.KindCall, 3000, 0, "libcuda.so.1", "cuCtxSynchronize", 0)
	add(traces.KindReturn, 3000, 9, "libcuda.so.1", "cuCtxSynchronize", 0)
	want := &LineReport{
		Waits:   []LineTime{{"a.py:7 f", "cudaStreamSynchronize", 600, 300, 2}, {"", "cuCtxSynchronize", 9, 9, 1}},
		Outside: []LineTime{{"a.py:7 f", "cudaStreamSynchronize", 850 + 700, 850, 2}, {"", "", 700, 700, 1}},
	}
	if d := cmp.Diff(want, l.Report()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
