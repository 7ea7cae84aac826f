package live

import (
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/ioctl/channels"
)

// TestPSText wants each state of a channel said.
func TestPSText(t *testing.T) {
	grid, block, one := [3]uint32{2, 3, 1}, [3]uint32{32, 2, 1}, 1
	began := uint64(time.Now().Add(-time.Minute).UnixNano())
	spin := channels.JobReport{Kind: "kernel", Name: "_Z4spinPi", Program: "0x7f00", Grid: &grid, Block: &block, Began: began, Since: int64(time.Minute)}
	unnamed := channels.JobReport{Kind: "kernel", Program: "0x7f80", Grid: &grid, Block: &block}
	node := spin
	node.Graph = 2
	reports := []channels.Report{
		{PID: 10, User: "alice", Command: "./app", Channels: []channels.ChannelReport{
			{Channel: 0, Device: "/dev/nvidia0"},
			{Channel: 1, Device: "/dev/nvidia0", Busy: true, Running: []channels.JobReport{spin}, Waiting: []channels.JobReport{unnamed, unnamed}, Behind: 2},
			{Channel: 2, Device: "/dev/nvidia0", Busy: true, Waiting: []channels.JobReport{unnamed}, Behind: 1, Blocked: &channels.BlockReport{Channel: &one}},
			{Channel: 3, Device: "/dev/nvidia1", Busy: true, Running: []channels.JobReport{{Kind: "copy", Bytes: 4096}}},
			{Channel: 4, Device: "/dev/nvidia1", Busy: true, Running: []channels.JobReport{node, node}},
			{Channel: 5, Device: "/dev/nvidia1", Error: "gone"},
		}},
		{PID: 11, User: "bob", Channels: []channels.ChannelReport{{Device: "/dev/nvidia0"}, {Device: "/dev/nvidia2"}}},
		{PID: 12, Error: "no process 12"},
	}
	var out strings.Builder
	var list []look.Process
	for i := range reports {
		list = append(list, look.Describe(&reports[i], []look.GPU{{Minor: 0, UUID: "GPU-1", Name: "NVIDIA H100"}, {Minor: 3, UUID: "GPU-3"}}))
		list[i].Cgroup, list[i].In = "", ""
	}
	list[0].In = "pod 1b2c"
	if err := writePS(&out, list, "Not read: 13."); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{
		"10  alice  0          1  busy                 spin(int*)", "about 1m0", "        2  pod 1b2c  ./app",
		"waits for channel 1  program 0x7f80", "(copy of 4 KiB)", "graph of 2 kernels: spin(int*), spin(int*)",
		"unknown              gone", "11  bob    0,2           idle, 2 channels", "unknown              no process 12",
		"\nGPU 0 is NVIDIA H100, GPU-1\nNot read: 13.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
