package api

import (
	"encoding/binary"
	"testing"
)

func lookupDriver(name string) *Function { return Module{Library: Driver}.Lookup(name) }

// TestSubmits reads launches from registers, the stack and a configuration in memory.
func TestSubmits(t *testing.T) {
	le := binary.LittleEndian
	var stack []byte
	for _, v := range []uint64{3, 1 << 40, 0x5ee0} { // blockDimZ, sharedMemBytes, hStream
		stack = le.AppendUint64(stack, v)
	}
	var config []byte
	for _, v := range []uint32{7, 8, 9, 64, 2, 1, 0, 0} {
		config = le.AppendUint32(config, v)
	}
	config = le.AppendUint64(config, 0x77)
	memory := func(address uint64) []byte {
		if address != 0x1000 {
			return nil
		}
		return config
	}
	for _, c := range []struct {
		name string
		args [6]uint64
		want Submission
	}{
		{"cuLaunchKernel", [6]uint64{0xf00, 4, 5, 6, 32, 2}, Submission{0xf00, 0x5ee0, [3]uint32{4, 5, 6}, [3]uint32{32, 2, 3}}},
		{"cuLaunchKernelEx_ptsz", [6]uint64{0x1000, 0xf00}, Submission{0xf00, 0x77, [3]uint32{7, 8, 9}, [3]uint32{64, 2, 1}}},
		{"cuGraphLaunch", [6]uint64{0xf00, 0x77}, Submission{Subject: 0xf00, Stream: 0x77}},
	} {
		s := lookupDriver(c.name).Submits()
		if s == nil {
			t.Fatalf("%s can't be read", c.name)
		}
		got, ok := s.Read(c.args, stack, memory)
		if !ok || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, ok, c.want)
		}
	}
	if _, ok := lookupDriver("cuLaunchKernel").Submits().Read([6]uint64{}, stack[:16], memory); ok {
		t.Error("a launch of which the stream was not copied is believed")
	}
	if _, ok := lookupDriver("cuLaunchKernelEx").Submits().Read([6]uint64{0x2000}, stack, memory); ok {
		t.Error("a launch of which the configuration was not copied is believed")
	}
	if s := lookupDriver("cuStreamBeginCapture_v2").Submits(); s == nil || !s.Captures {
		t.Errorf("the beginning of a capture is %+v", s)
	}
	for _, name := range []string{"cuMemcpyHtoDAsync_v2", "cuLaunchHostFunc", "cuLaunchGrid", "cuGraphInstantiate"} {
		if lookupDriver(name).Submits() != nil {
			t.Errorf("%s is taken for a launch with dimensions", name)
		}
	}
}
