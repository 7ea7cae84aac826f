package testrec

import (
	"encoding/binary"

	"nvtrace/traces"
)

// Libraries of Training.
const (
	runtimePath = "/usr/lib/python3/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"
	driverPath  = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.142"
)

// training makes up the calls of a training, a thread's after another's.
type training struct {
	now   int64
	left  int
	rand  uint64
	give  func(*traces.Event)
	event traces.Event // the one that is given
	seg   [1]traces.Seg
	words [48]byte
}

// Training gives the events of calls of CUDA's libraries as a training of short kernels makes them:
// launches by the runtime, which calls the driver, between many small questions, from two threads,
// with some copies and allocations. It gives the same each time. The event is overwritten by the next.
func Training(calls int, give func(*traces.Event)) {
	t := &training{left: calls, rand: 1, give: give}
	for step := uint64(0); t.left > 0; step++ {
		for tid := int32(100); tid <= 101; tid++ { // forward, and backward in a thread of its own
			for i := range uint64(60) {
				t.layer(tid, step, i)
			}
			t.call(tid, runtimePath, "cudaStreamSynchronize", [6]uint64{0x55d0_1000}, 0, 40_000, nil)
		}
	}
}

// TrainingHeader is the header of a recording of Training.
func TrainingHeader() *traces.Header {
	h := New("580.142").Header
	h.API = "driver,runtime"
	return &h
}

// number returns one that is below n, and looks random.
func (t *training) number(n uint64) uint64 {
	t.rand ^= t.rand << 13
	t.rand ^= t.rand >> 7
	t.rand ^= t.rand << 17
	return t.rand % n
}

func (t *training) layer(tid int32, step, i uint64) {
	stack := uint64(0x7ffd_3300_0000) + uint64(tid)<<20
	for range 4 {
		t.call(tid, runtimePath, "cudaGetDevice", [6]uint64{stack + 16*t.number(8)}, 0, 30, nil)
	}
	if i%8 == 0 {
		t.call(tid, runtimePath, "cudaMemcpyAsync", [6]uint64{0x7f12_0000_0000 + i<<20, 0x7f12_8000_0000, 4096 << (i % 5), 3, 0}, 0, 900, func() {
			t.call(tid, driverPath, "cuMemcpyDtoDAsync_v2", [6]uint64{0x7f12_0000_0000 + i<<20, 0x7f12_8000_0000, 4096 << (i % 5), 0}, 0, 800, nil)
		})
	}
	t.call(tid, runtimePath, "cudaStreamIsCapturing", [6]uint64{0, stack + 64}, 0, 25, nil)
	function := 0x55d0_2000 + 0x180*(i%40)
	for k := range 4 {
		t.words = [48]byte{}
		for w, v := range []uint64{1, 0, 0, stack + 0x400} {
			binary.LittleEndian.PutUint64(t.words[8*w:], v)
		}
		grid := 1 + t.number(1024)
		t.call(tid, runtimePath, "cudaLaunchKernel", [6]uint64{0x7f33_1000_0000 + 0x40*(i%40), grid | 1<<32, 1, 256 | 1<<32, 1, stack + 0x400}, 0, 2_500, func() {
			t.call(tid, driverPath, "cuLaunchKernel", [6]uint64{function, grid, 1, 1, 256, 1}, 40, 2_000, nil)
		})
		t.call(tid, runtimePath, "cudaGetLastError", [6]uint64{}, 0, 15, nil)
		if k == 3 {
			t.call(tid, runtimePath, "cudaEventQuery", [6]uint64{0x55d0_9000 + 0x40*t.number(16)}, 0, 120, nil)
		}
	}
	if i == 0 && step%16 == 0 {
		t.call(tid, driverPath, "cuMemAlloc_v2", [6]uint64{stack + 8, 2 << 20}, 0, 20_000, nil)
	}
}

// call gives a call with so many bytes of its stack, and its return; inside makes those that it makes.
func (t *training) call(tid int32, path, name string, args [6]uint64, stack int, dur int64, inside func()) {
	if t.left <= 0 {
		return
	}
	t.left--
	t.now += 20 + int64(t.number(100))
	start := t.now
	t.event = traces.Event{Kind: traces.KindCall, PID: 100, TID: tid, FD: -1, Time: start, Name: name, Path: path, Args: args}
	if stack > 0 {
		t.seg[0] = traces.Seg{Addr: 0x7ffd_3300_0800 + uint64(tid)<<20, Len: uint32(stack), In: t.words[:stack]}
		t.event.Mem = t.seg[:]
	}
	t.give(&t.event)
	if inside != nil {
		inside()
	}
	t.now += dur/2 + int64(t.number(uint64(dur)))
	ret := int64(0)
	if name == "cudaEventQuery" && t.number(4) == 0 {
		ret = 600 // not ready
	}
	t.event = traces.Event{Kind: traces.KindReturn, PID: 100, TID: tid, FD: -1, Time: start, Dur: t.now - start, Name: name, Path: path, Ret: ret}
	t.give(&t.event)
}
