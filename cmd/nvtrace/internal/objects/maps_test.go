package objects

import (
	"testing"

	"nvtrace/ioctl"
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
