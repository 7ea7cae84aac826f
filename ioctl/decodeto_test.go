package ioctl

import (
	"reflect"
	"testing"

	"nvtrace/traces"
)

// TestDecodeTo: a Call that is used again comes to the same as a new one, whatever it was of before.
func TestDecodeTo(t *testing.T) {
	events := []*traces.Event{
		{Kind: traces.KindIoctl, PID: 1, TID: 1, FD: 3, File: 1, Dev: "nvidiactl", Args: [6]uint64{3, 0xc0104629}, Ret: -22},
		{Kind: traces.KindMmap, PID: 1, TID: 1, FD: 3, File: 1, Dev: "nvidia0", Ret: 4096},
		{Kind: traces.KindCall, PID: 1, TID: 1, FD: -1, Name: "cuInit", Path: "libcuda.so.1"},
		{Kind: traces.KindReturn, PID: 1, TID: 1, FD: -1, Name: "cuInit", Ret: -22},
		{Kind: traces.KindNote, FD: -1, Text: "a note"},
		{Kind: traces.KindExit, PID: 1, TID: 1, FD: -1},
	}
	d, fresh := NewDecoder(nil), NewDecoder(nil)
	var c Call
	for _, first := range events {
		for _, second := range events {
			for _, ev := range []*traces.Event{first, second} {
				d.DecodeTo(&c, ev)
				if want := fresh.Decode(ev); !reflect.DeepEqual(c, want) {
					t.Errorf("%v: %+v, want %+v", ev.Kind, c, want)
				}
				if ev.Kind == traces.KindReturn {
					c.Returned = Returned{Known: true, Failed: true, Name: "CUDA_ERROR"} // as its user does
				}
			}
		}
	}
}
