package api

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nvtrace/traces"
)

func TestOwnLine(t *testing.T) {
	own := func(file string, line int, f string) traces.StackFrame {
		return traces.StackFrame{Language: "python", File: file, Func: f, Line: line}
	}
	native := func(file, f string) traces.StackFrame {
		return traces.StackFrame{Language: traces.LanguageNative, File: file, Func: f, Offset: 0x123}
	}
	for _, c := range []struct {
		frames []traces.StackFrame
		want   string
	}{
		{nil, ""},
		{[]traces.StackFrame{own("/app/a.py", 1, "f")}, "a.py:1 f"},
		{[]traces.StackFrame{own("/app/a.py", 1, "f"), own("/app/b.py", 2, "g"), own("/app/c.py", 3, "h")}, "a.py:1 f < b.py:2 g"},
		{[]traces.StackFrame{own("/usr/lib/python3/dist-packages/torch/nn/linear.py", 9, "forward"), own("/app/a.py", 1, "f")}, "a.py:1 f (in linear.py:9 forward)"},
		{[]traces.StackFrame{own("/usr/lib/python3.12/threading.py", 9, "run")}, "threading.py:9 run"},
		{[]traces.StackFrame{native("/opt/torch/lib/libc10_cuda.so", "cudaMallocRetry"), own("/app/a.py", 1, "f")}, "a.py:1 f"},
		{[]traces.StackFrame{native("/app/solve", "cudaMalloc"), native("/app/solve", "grow"), native("/app/libmesh.so", "refine"), native("/app/solve", "main"), native("/usr/lib/libc.so.6", "start")}, "solve grow < libmesh.so refine"},
		{[]traces.StackFrame{native("/usr/lib/libcudart.so.12", "cudaMalloc"), native("/lib/x86_64-linux-gnu/libfoo.so", "")}, "libcudart.so.12 cudaMalloc"},
	} {
		if got := new(Allocations).ownLine(c.frames); got != c.want {
			t.Errorf("%v: %q, want %q", c.frames, got, c.want)
		}
	}
}

// Allocations by their lines, of which one is given back before there is no more.
func TestAllocations(t *testing.T) {
	tracker, a := NewTracker(), NewAllocations()
	now := int64(0)
	add := func(ev traces.Event) {
		now++
		ev.PID, ev.TID, ev.FD, ev.Path, ev.Time = 1, 2, -1, "libcuda.so.1", now
		f := tracker.Add(&ev)
		a.Add(&ev, f)
	}
	alloc := func(line int, size, addr uint64, result int64) {
		add(traces.Event{Kind: traces.KindCall, Name: "cuMemAlloc_v2", Args: [6]uint64{0x7f00, size}})
		if line > 0 {
			ev := traces.Event{Kind: traces.KindStack, Name: "cuMemAlloc_v2"}
			ev.SetStack([]traces.StackFrame{{Language: "python", File: "/a.py", Func: "f", Line: line}})
			add(ev)
		}
		add(traces.Event{
			Kind: traces.KindReturn, Name: "cuMemAlloc_v2", Ret: result,
			Mem: []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, addr)}},
		})
	}
	alloc(10, 100, 0x1000, 0)
	alloc(20, 300, 0x2000, 0)
	add(traces.Event{Kind: traces.KindCall, Name: "cuMemFree_v2", Args: [6]uint64{0x2000}})
	add(traces.Event{Kind: traces.KindReturn, Name: "cuMemFree_v2"})
	alloc(20, 50, 0x3000, 0)
	alloc(0, 7, 0x4000, 0)
	alloc(10, 1000, 0, 2)
	alloc(10, 999, 0x5000, 0) // afterwards
	r := a.Report()
	want := &MemoryReport{
		Failed: &OutOfMemory{Time: 14, PID: 1, Bytes: 1000, Line: "a.py:10 f", Live: 157},
		Lines: []LineMemory{
			{Line: "a.py:10 f", Live: 100, Most: 100, Total: 100, Count: 1},
			{Line: "a.py:20 f", Live: 50, Most: 300, Total: 350, Count: 2},
			{Line: "", Live: 7, Most: 7, Total: 7, Count: 1},
		},
		Largest: []LiveMemory{{100, 1, "a.py:10 f", "program"}, {50, 9, "a.py:20 f", "program"}, {7, 12, "", "program"}},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// oneThread returns allocations, and what adds the events of one thread to them, one nanosecond after the other.
func oneThread() (a *Allocations, add func(path string, ev traces.Event)) {
	tracker, now := NewTracker(), int64(0)
	a = NewAllocations()
	return a, func(path string, ev traces.Event) {
		now++
		ev.PID, ev.TID, ev.FD, ev.Path, ev.Time = 1, 2, -1, path, now
		a.Add(&ev, tracker.Add(&ev))
	}
}

// TestAllocationsInside: what the runtime has the driver do counts as what a program has it do
// itself, and once.
func TestAllocationsInside(t *testing.T) {
	a, add := oneThread()
	inside := func(name string, f func()) {
		add("libcudart.so.12", traces.Event{Kind: traces.KindCall, Name: name})
		f()
		add("libcudart.so.12", traces.Event{Kind: traces.KindReturn, Name: name})
	}
	alloc := func(size, addr uint64) {
		add("libcuda.so.1", traces.Event{Kind: traces.KindCall, Name: "cuMemAlloc_v2", Args: [6]uint64{0x7f00, size}})
		stack := traces.Event{Kind: traces.KindStack, Name: "cuMemAlloc_v2"}
		stack.SetStack([]traces.StackFrame{{Language: "python", File: "/a.py", Func: "f", Line: int(size)}})
		add("libcuda.so.1", stack)
		add("libcuda.so.1", traces.Event{
			Kind: traces.KindReturn, Name: "cuMemAlloc_v2",
			Mem: []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, addr)}},
		})
	}
	inside("cudaMalloc", func() { alloc(100, 0x1000) })
	inside("cudaMalloc", func() { alloc(300, 0x2000) })
	inside("cudaFree", func() {
		add("libcuda.so.1", traces.Event{Kind: traces.KindCall, Name: "cuMemFree_v2", Args: [6]uint64{0x2000}})
		add("libcuda.so.1", traces.Event{Kind: traces.KindReturn, Name: "cuMemFree_v2"})
	})
	want := []LineMemory{
		{Line: "a.py:100 f", Live: 100, Most: 100, Total: 100, Count: 1},
		{Line: "a.py:300 f", Most: 300, Total: 300, Count: 1},
	}
	r := a.Report()
	if r == nil {
		t.Fatal("nothing was counted")
	}
	if d := cmp.Diff(want, r.Lines); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestMapped: memory that is mapped is given back when nobody holds its handle and it is mapped nowhere;
// pitches, and memory of the host, have their sizes; the runtime counts where it has no driver.
func TestMapped(t *testing.T) {
	tracker := NewTracker()
	now := int64(0)
	add := func(path string, ev traces.Event) *Frame {
		now++
		ev.PID, ev.TID, ev.FD, ev.Path, ev.Time = 1, 2, -1, path, now
		return tracker.Add(&ev)
	}
	const driver, runtime = "libcuda.so.1", "libcudart.so.12"
	out := func(addr, v uint64) traces.Seg {
		return traces.Seg{Addr: addr, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, v)}
	}
	call := func(path, name string, ret int64, args [6]uint64, mem ...traces.Seg) []MemoryChange {
		add(path, traces.Event{Kind: traces.KindCall, Name: name, Args: args})
		return add(path, traces.Event{Kind: traces.KindReturn, Name: name, Ret: ret, Mem: mem}).Memory()
	}
	want := func(what string, got []MemoryChange, want ...MemoryChange) {
		t.Helper()
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	create := func(handle, size uint64) []MemoryChange {
		return call(driver, "cuMemCreate", 0, [6]uint64{0x7f00, size}, out(0x7f00, handle))
	}
	want("create", create(11, 4096), MemoryChange{Addr: 11, Size: 4096})
	want("create", create(12, 8192), MemoryChange{Addr: 12, Size: 8192})
	want("map", call(driver, "cuMemMap", 0, [6]uint64{0x10000, 4096, 0, 11}))
	want("map", call(driver, "cuMemMap", 0, [6]uint64{0x11000, 8192, 0, 12}))
	want("a release of what is mapped", call(driver, "cuMemRelease", 0, [6]uint64{11}))
	want("retain", call(driver, "cuMemRetainAllocationHandle", 0, [6]uint64{0x7f00, 0x11000}, out(0x7f00, 12)))
	want("an unmap that fails", call(driver, "cuMemUnmap", 1, [6]uint64{0x10000, 12288}))
	want("unmap", call(driver, "cuMemUnmap", 0, [6]uint64{0x10000, 12288}), MemoryChange{Addr: 11, Size: 4096, Freed: true})
	want("release", call(driver, "cuMemRelease", 0, [6]uint64{12}))
	want("the last release", call(driver, "cuMemRelease", 0, [6]uint64{12}), MemoryChange{Addr: 12, Size: 8192, Freed: true})
	want("a release of what was not seen", call(driver, "cuMemRelease", 0, [6]uint64{99}), MemoryChange{Addr: 99, Freed: true})
	want("create", create(13, 4096), MemoryChange{Addr: 13, Size: 4096})
	call(driver, "cuMemMap", 0, [6]uint64{0x10000, 4096, 0, 13})
	want("unmap", call(driver, "cuMemUnmap", 0, [6]uint64{0x10000, 4096}))
	want("release", call(driver, "cuMemRelease", 0, [6]uint64{13}), MemoryChange{Addr: 13, Size: 4096, Freed: true})

	pitch := [6]uint64{0x7f00, 0x7f08, 1000, 3, 4}
	want("pitch", call(driver, "cuMemAllocPitch_v2", 0, pitch, out(0x7f00, 0x20000), out(0x7f08, 1024)), MemoryChange{Addr: 0x20000, Size: 3072})
	want("a pitch that fails", call(driver, "cuMemAllocPitch_v2", 2, pitch), MemoryChange{Size: 3000, Failed: true})
	want("pinned", call(driver, "cuMemHostAlloc", 0, [6]uint64{0x7f00, 64}, out(0x7f00, 0x30000)), MemoryChange{Addr: 0x30000, Size: 64, Host: true})
	want("pinned", call(driver, "cuMemFreeHost", 0, [6]uint64{0x30000}), MemoryChange{Addr: 0x30000, Freed: true, Host: true})
	want("pool", call(driver, "cuMemAllocFromPoolAsync_ptsz", 0, [6]uint64{0x7f00, 64}, out(0x7f00, 0x40000)), MemoryChange{Addr: 0x40000, Size: 64})
	want("pool", call(driver, "cuMemFreeAsync_ptsz", 0, [6]uint64{0x40000}), MemoryChange{Addr: 0x40000, Freed: true})

	want("a runtime without driver", call(runtime, "cudaMallocManaged", 0, [6]uint64{0x7f00, 64}, out(0x7f00, 0x50000)), MemoryChange{Addr: 0x50000, Size: 64})
	want("a runtime without driver", call(runtime, "cudaFree", 0, [6]uint64{0x50000}), MemoryChange{Addr: 0x50000, Freed: true})
	want("nothing", call(runtime, "cudaFree", 0, [6]uint64{}))
	add(runtime, traces.Event{Kind: traces.KindCall, Name: "cudaMalloc", Args: [6]uint64{0x7f10, 64}})
	want("inside", call(driver, "cuMemAlloc_v2", 0, [6]uint64{0x7f00, 512}, out(0x7f00, 0x60000)), MemoryChange{Addr: 0x60000, Size: 512})
	want("around", add(runtime, traces.Event{Kind: traces.KindReturn, Name: "cudaMalloc", Mem: []traces.Seg{out(0x7f10, 0x60000)}}).Memory())
}

// TestMemoryFunctions: what is said of parameters is so, whatever the version of a function.
func TestMemoryFunctions(t *testing.T) {
	seen := 0
	for _, l := range []Library{Driver, Runtime} {
		for f := range Functions(l) {
			stem := stemOf(f.Name)
			if a, ok := allocators[l][stem]; ok {
				seen++
				for _, p := range []string{a.size, a.addr, a.times, a.asked, a.desc, a.levels} {
					if p != "" && f.Param(p) == nil {
						t.Errorf("%s has no parameter %s", f.Name, p)
					}
				}
			}
			if p, ok := frees[l][stem]; ok {
				seen++
				if p != "" && f.Param(p) == nil {
					t.Errorf("%s has no parameter %s", f.Name, p)
				}
			}
		}
	}
	if least := len(allocators[Driver]) + len(allocators[Runtime]) + len(frees[Driver]) + len(frees[Runtime]); seen < least {
		t.Errorf("%d functions, want %d at least", seen, least)
	}
}
