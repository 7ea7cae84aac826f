package export

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestRanges shows NVTX ranges on a track of their thread, nested as they are, with marks; those with
// a number are calls.
func TestRanges(t *testing.T) {
	const lib = "/tmp/nvtrace-nvtx-1/libnvtrace-nvtx.so"
	var events []*traces.Event
	at := int64(0)
	call := func(name string, args [6]uint64, texts ...string) {
		at += 1000
		ev := &traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Time: at, Name: name, Path: lib, Args: args}
		for i, text := range texts {
			ev.Mem = append(ev.Mem, traces.Seg{Addr: args[i], Len: uint32(len(text) + 1), In: []byte(text + "\x00")})
		}
		events = append(events, ev, &traces.Event{Kind: traces.KindReturn, PID: 7, TID: 7, FD: -1, Time: at, Dur: 100, Name: name})
	}
	call("nvtxRangePop", [6]uint64{}) // of one from before
	call("nvtxRangePush", [6]uint64{0x10}, "step 1")
	call("nvtxRangePush", [6]uint64{0x20, 0x30}, "all reduce", "NCCL")
	call("nvtxMark", [6]uint64{0x40}, "here")
	call("nvtxRangePop", [6]uint64{0x30}, "NCCL")
	call("nvtxRangePop", [6]uint64{})
	call("nvtxRangeStart", [6]uint64{1, 0x50})
	x := export(t, &traces.Header{Start: 1, PID: 7}, slices.Values(events))
	const want = `track 4: {Name:NVTX, thread 7 Parent:2 PID:0 TID:0 Unit:0 Rank:0}
0: track 1 instant "recording" [] producer=nvtrace
2000: track 4 begin "step 1" [nvtx]
3000: track 4 begin "all reduce" [nvtx] domain=NCCL
4000: track 4 instant "here" [nvtx]
5000: track 4 end
6000: track 4 end
7000: track 3 begin "nvtxRangeStart" [api nvtx] call=nvtxRangeStart(id=1, message=0x50, domain=NULL)
`
	if dump := x.file.dump(); !strings.Contains(dump, want) {
		t.Errorf("%s", dump)
	}
}
