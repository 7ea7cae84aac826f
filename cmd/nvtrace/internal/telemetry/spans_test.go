package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/push"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
)

// program is events of a program, as Spans gets them.
type program struct {
	*Spans
	at int64
}

const (
	testPID   = 7
	testStart = int64(1e18)
)

func newProgram(parent string) *program {
	return &program{Spans: newSpans(&traces.Header{Start: testStart, PID: testPID, Argv: []string{"/x/app"}}, 100*time.Millisecond, parent)}
}

// after lets time pass, in milliseconds.
func (p *program) after(ms int64) *program {
	p.at += ms * 1e6
	return p
}

func (p *program) see(ev traces.Event, f *api.Frame, call *ioctl.Call) {
	ev.Time, ev.PID = p.at, testPID
	p.Observe(&observe.Event{Event: &ev, Frame: f, Call: call})
}

func (p *program) nvtx(tid int32, name, text string, args ...uint64) {
	ev := traces.Event{Kind: traces.KindCall, TID: tid, Name: name}
	copy(ev.Args[:], args)
	if at := slices.Index(args, 0x100); at >= 0 {
		ev.Mem = []traces.Seg{{Addr: args[at], In: append([]byte(text), 0)}}
	}
	p.see(ev, &api.Frame{Module: api.Module{Library: api.NVTX}}, nil)
}

func (p *program) call(tid int32, name string, ms int64, failed string) {
	f := &api.Frame{Name: name, PID: testPID, TID: tid, Start: p.at, End: p.at + ms*1e6, Module: api.Module{Library: api.Driver}}
	p.at = f.End
	c := new(ioctl.Call)
	c.Returned = ioctl.Returned{Known: true, Failed: failed != "", Name: failed}
	p.see(traces.Event{Kind: traces.KindReturn, TID: tid}, f, c)
}

// text is the spans, a line each: name, from and to in milliseconds, whose child, and what failed.
func text(list []push.Span) string {
	names := make(map[[8]byte]string)
	for i := range list {
		names[list[i].ID] = list[i].Name
	}
	var lines []string
	for i := range list {
		s := &list[i]
		line := fmt.Sprintf("%s %d-%d in %q", s.Name, (s.Start-testStart)/1e6, (s.End-testStart)/1e6, names[s.Parent])
		if s.Failed {
			line += " failed " + s.Error
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestSpans: steps have spans whatever they take, other ranges, calls and collectives if they are long; what happens in a step
// is its child.
func TestSpans(t *testing.T) {
	p := newProgram("")
	const message = 0x100
	p.nvtx(7, "nvtxRangePush", "step 1", message, 1)
	p.after(1).nvtx(7, "nvtxRangePush", "forward", message, 1)
	p.nvtx(7, "nvtxRangePush", "elsewhere", message, 2) // of another domain
	p.call(7, "cuMemcpyDtoH_v2", 100, "")
	p.call(7, "cuCtxSynchronize", 99, "") // too short
	p.call(8, "cuCtxSynchronize", 150, "CUDA_ERROR_ILLEGAL_ADDRESS")
	p.nvtx(7, "nvtxRangePop", "", 1)
	p.nvtx(7, "nvtxRangePop", "", 1)
	p.nvtx(7, "nvtxRangePop", "", 1) // of none
	p.nvtx(7, "nvtxRangePop", "", 2)
	p.nvtx(7, "nvtxRangeStart", "load", 5, message)
	p.nvtx(7, "nvtxMark", "iteration", message)
	p.after(100).nvtx(8, "nvtxRangeEnd", "", 5)
	p.nvtx(7, "nvtxMark", "here", message)
	p.nvtx(7, "nvtxMark", "iteration", message)
	p.took(&nccl.Done{Op: nccl.Op{Name: "AllReduce", PID: testPID, TID: 7, Seq: 3, Count: 8, Type: 7}, Over: p.at, Dur: 100e6}, 2)
	p.took(&nccl.Done{Op: nccl.Op{Name: "AllReduce", PID: testPID, TID: 7}, Over: p.at, Dur: 99e6}, 2)
	p.after(3).see(traces.Event{Kind: traces.KindExit, TID: 7, Ret: 3 << 8}, nil, nil)
	list, dropped := p.take(time.Unix(0, 0), true)
	const want = `cuMemcpyDtoH_v2 1-101 in "step 1"
cuCtxSynchronize 200-350 in "app" failed CUDA_ERROR_ILLEGAL_ADDRESS
forward 1-350 in "step 1"
step 1 0-350 in "app"
elsewhere 1-350 in "step 1"
load 350-450 in "app"
iteration 350-450 in "app"
ncclAllReduce 350-450 in "app"
iteration 450-453 in "app"
app 0-453 in "" failed `
	if got := text(list); got != want || dropped != 0 {
		t.Errorf("%s\n%d dropped", got, dropped)
	}
	if list, dropped = p.take(time.Unix(0, 0), false); list != nil || dropped != 0 {
		t.Errorf("again: %v", list)
	}
}

// TestTraceparent: a run is a part of the trace that its environment names.
func TestTraceparent(t *testing.T) {
	p := newProgram("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	list, _ := p.take(time.Unix(0, testStart+5e6), true)
	if got := fmt.Sprintf("%x %x %d", list[0].Trace, list[0].Parent, list[0].End-testStart); got != "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 5000000" {
		t.Error(got)
	}
	for _, bad := range []string{"", "00-x-y-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01"} {
		if q := newProgram(bad); q.parent != [8]byte{} || q.trace == [16]byte{} {
			t.Errorf("%s: %x", bad, q.parent)
		}
	}
}

// TestManySpans: what is kept is bounded, and what is not is counted.
func TestManySpans(t *testing.T) {
	p := newProgram("")
	const n = maxOpen + 1000
	for i := range n {
		p.nvtx(int32(i), "nvtxRangePush", "step", 0x100, 1)
		p.nvtx(int32(i), "nvtxMark", "step", 0x100, 1)
		p.nvtx(int32(i), "nvtxRangeStart", "step", uint64(i), 0x100)
	}
	for range 10 * maxDepth {
		p.nvtx(7, "nvtxRangePush", "step", 0x100, 3)
	}
	if len(p.open) > maxOpen || len(p.marked) > maxOpen || len(p.started) > maxOpen || len(p.steps) > maxOpen {
		t.Errorf("%d, %d, %d, %d are kept", len(p.open), len(p.marked), len(p.started), len(p.steps))
	}
	for i := range n {
		p.nvtx(int32(i), "nvtxRangePop", "", 1)
	}
	list, dropped := p.take(time.Unix(0, 0), false)
	if len(list) != maxSpans || len(list)+dropped != maxOpen {
		t.Errorf("%d spans, %d dropped", len(list), dropped)
	}
	p.see(traces.Event{Kind: traces.KindExit, TID: testPID}, nil, nil)
	if len(p.open)+len(p.marked)+len(p.started)+len(p.steps) != 0 {
		t.Error("what was of the process is kept")
	}
}
