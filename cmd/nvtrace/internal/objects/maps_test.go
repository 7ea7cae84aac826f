package objects

import (
	"testing"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// TestManyMappings: what a report lists is bounded, and what it leaves out is counted.
func TestManyMappings(t *testing.T) {
	const all = mostMappings + 777
	l := NewObjectLog(ioctl.NewDecoder(&traces.Header{Driver: "580.159.04", PID: 100}))
	for i := range uint64(all) {
		l.now++
		l.addMap(&traces.Event{Kind: traces.KindMmap, PID: 100, Ret: int64(0x7f0000000000 + i*8192), Args: [6]uint64{0, 8192, 3}, Dev: "nvidiactl"}, &ioctl.Call{})
	}
	r := l.mapReport(Moment{}, true, 0)
	if len(r.Processes) != 1 || len(r.Processes[0].Maps) != mostMappings || r.More != all-mostMappings || r.Processes[0].Bytes != all*8192 || r.Processes[0].count != all {
		t.Errorf("%d listed, %d more", len(r.Processes[0].Maps), r.More)
	}
}

// TestForgottenMaps: a process's end ends its mappings and no others, and an exec those of the program before.
func TestForgottenMaps(t *testing.T) {
	l := NewObjectLog(ioctl.NewDecoder(&traces.Header{Driver: "580.159.04", PID: 100}))
	add := func(ev *traces.Event) {
		l.now++
		l.addMap(ev, &ioctl.Call{})
	}
	mmap := func(pid int32, addr int64) {
		add(&traces.Event{Kind: traces.KindMmap, PID: pid, Ret: addr, Args: [6]uint64{0, 8192, 3}, Dev: "nvidiactl"})
	}
	living := func(want int) {
		t.Helper()
		if len(l.mapped) != want {
			t.Errorf("%d mappings live, want %d", len(l.mapped), want)
		}
	}
	for _, pid := range []int32{100, 101, 102} {
		mmap(pid, 0x1000)
		mmap(pid, 0x5000)
		mmap(pid, 0x1000) // instead of the first
	}
	add(&traces.Event{Kind: traces.KindMunmap, PID: 100, Args: [6]uint64{0x5000}})
	living(5)
	add(&traces.Event{Kind: traces.KindExec, PID: 101, TID: 101})
	living(3)
	mmap(101, 0x1000)
	add(&traces.Event{Kind: traces.KindExit, PID: 102, TID: 102})
	living(2)
	died := 0
	for _, r := range l.maps {
		if r.Died != rm.Alive {
			died++
		}
	}
	if want := 3 + 1 + 2; len(l.maps) != 10 || died != want {
		t.Errorf("%d mappings, %d of them have died, want %d", len(l.maps), died, want)
	}
}
