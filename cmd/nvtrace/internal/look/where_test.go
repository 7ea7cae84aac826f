package look

import (
	"strings"
	"testing"

	"nvtrace/ioctl/channels"
	"nvtrace/ptrace/outside"
	"nvtrace/ptrace/python"
)

// TestWhereText wants the verdict in words, and what it is made of.
func TestWhereText(t *testing.T) {
	grid, block, one := [3]uint32{6, 1, 1}, [3]uint32{544, 1, 1}, 1
	reduce := channels.JobReport{Kind: "kernel", Name: "_Z9AllReducev", Program: "0x7f00", Grid: &grid, Block: &block, Registers: 96, Arguments: "00007f1200000000"}
	w := Where{
		Report: channels.Report{PID: 10, User: "alice", Command: "python3 -c a\nb", Channels: []channels.ChannelReport{
			{Channel: 0, Device: "/dev/nvidia0"},
			{Channel: 1, Device: "/dev/nvidia0", Busy: true, Running: []channels.JobReport{reduce}, Waiting: []channels.JobReport{reduce, reduce}, Behind: 2},
			{Channel: 2, Device: "/dev/nvidia0", Busy: true, Waiting: []channels.JobReport{reduce}, Behind: 1, Blocked: &channels.BlockReport{Channel: &one}},
			{Channel: 3, Device: "/dev/nvidia1", Busy: true, Waiting: []channels.JobReport{{Kind: "copy", Bytes: 1 << 20}}, Behind: 1, Blocked: &channels.BlockReport{}},
		}},
		Threads: []outside.Thread{{
			TID: 10, Name: "python3",
			Native: []outside.Function{{Name: "poll", File: "/lib/libc.so.6"}, {Name: "cuStreamSynchronize", File: "/lib/libcuda.so.1"}, {Name: "main", File: "/app"}},
			Python: []python.Frame{{File: "/a/train.py", Func: "wait", Line: 27}, {File: "/a/train.py", Func: "<module>", Line: 29}},
		}, {TID: 11, Name: "worker", Running: true}},
	}
	var out strings.Builder
	if err := w.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Process 10 of alice: python3 -c a\\nb\n",
		"Channel 1 of GPU 0 has been in AllReduce(); 2 jobs wait behind it.",
		"Channel 2 of GPU 0 waits for the kernel of channel 1; 1 job waits.",
		"Channel 3 of GPU 1 waits for something that no channel of this process is at; 1 job waits.",
		"grid 6, block 544, 96 registers, 0 B of shared memory", "arguments 00007f1200000000", "(copy of 1 MiB)",
		"  10 python3: in a system call\n      in cuStreamSynchronize of libcuda.so.1\n      train.py:27 wait\n      train.py:29 <module>\n",
		"  11 worker: running\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, test := range []struct {
		channels []channels.ChannelReport
		want     string
	}{
		{nil, "No channel of a GPU is in use."},
		{[]channels.ChannelReport{{Device: "/dev/nvidia0"}}, "All 1 channels are idle: the GPU has nothing to do for this process."},
	} {
		w := Where{Report: channels.Report{Channels: test.channels}}
		if got := w.verdict(); len(got) != 1 || got[0] != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
