package export

import (
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// TestOwnershipOfThreads: what a thread is about to be given is not the driver's own because another one has come out of a
// call, and a call of another process's tells nothing of it.
func TestOwnershipOfThreads(t *testing.T) {
	o, tracker, l := newOwnership(), api.NewTracker(), new(ledger)
	l.accounts = make(map[int32]*account)
	shown := make(map[string]uint64)
	add := func(pid, tid int32, kind traces.Kind, name string, size, addr uint64) {
		ev := traces.Event{Kind: kind, PID: pid, TID: tid, FD: -1, Path: "libcuda.so.1", Name: name}
		switch {
		case kind == traces.KindCall:
			ev.Args = [6]uint64{0x7f00, size}
		case addr != 0:
			ev.Mem = []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, addr)}}
		}
		o.observe(&ev, tracker.Add(&ev), tracker, l, func(x *api.OwnerMemory) { shown[x.Owner] = x.Live })
	}
	has := func(when string, program, context uint64) {
		t.Helper()
		if shown[api.OwnerProgram] != program || shown[api.OwnerContext] != context {
			t.Errorf("%s: %v", when, shown)
		}
	}
	call := func(pid, tid int32, name string) {
		add(pid, tid, traces.KindCall, name, 0, 0)
		add(pid, tid, traces.KindReturn, name, 0, 0)
	}
	l.account(1).have[quantityVidmem] = 30
	add(1, 1, traces.KindCall, "cuMemAlloc_v2", 5, 0)
	add(1, 1, traces.KindReturn, "cuMemAlloc_v2", 0, 0x9000)
	has("alone", 5, 25)
	add(1, 4, traces.KindCall, "cuCtxSynchronize", 0, 0) // which allocates nothing
	add(1, 2, traces.KindCall, "cuMemAlloc_v2", 1000, 0)
	l.account(1).have[quantityVidmem] = 1030
	add(1, 2, traces.KindIoctl, "", 0, 0)
	call(1, 3, "cuCtxGetCurrent")
	has("inside", 5, 25)
	call(2, 7, "cuCtxGetCurrent")
	add(1, 2, traces.KindReturn, "cuMemAlloc_v2", 0, 0x1000)
	has("afterwards", 1005, 25)
	l.account(1).have[quantityVidmem] = 1040
	add(1, 2, traces.KindIoctl, "", 0, 0)
	call(2, 7, "cuCtxGetCurrent")
	call(1, 3, "cuCtxGetCurrent")
	has("of its own process", 1005, 35)
	add(1, 3, traces.KindCall, "cuMemAllocManaged", 500, 0)
	add(1, 3, traces.KindReturn, "cuMemAllocManaged", 0, 0x5000)
	has("managed", 1505, 35)
}
