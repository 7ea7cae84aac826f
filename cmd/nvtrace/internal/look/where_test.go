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
	three := 3
	reduce := channels.JobReport{Kind: "kernel", Name: "_Z9AllReducev", Program: "0x7f00", Grid: &grid, Block: &block, Registers: 96, Arguments: "00007f1200000000"}
	w := Where{
		Report: channels.Report{PID: 10, User: "alice", Command: "python3 -c a\nb", Channels: []channels.ChannelReport{
			{Channel: 0, Device: "/dev/nvidia0"},
			{Channel: 1, Device: "/dev/nvidia0", Busy: true, Running: []channels.JobReport{reduce}, Waiting: []channels.JobReport{reduce, reduce}, Behind: 2},
			{Channel: 2, Device: "/dev/nvidia0", Busy: true, Waiting: []channels.JobReport{reduce}, Behind: 1, Blocked: &channels.BlockReport{Channel: &one}},
			{Channel: 3, Device: "/dev/nvidia1", Busy: true, Waiting: []channels.JobReport{{Kind: "copy", Bytes: 1 << 20}}, Behind: 1, Blocked: &channels.BlockReport{Semaphore: "0x7f10", Wanted: 1, Value: new(uint64(0))}},
			{Channel: 4, Device: "/dev/nvidia0", Busy: true, Blocked: &channels.BlockReport{Channel: &one, By: channels.ByRelease}},
			{Channel: 5, Device: "/dev/nvidia0", Busy: true, Blocked: &channels.BlockReport{Channel: &three, By: channels.ByRelease}},
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
		"Channel 2 of GPU 0 waits for the kernel of channel 1; AllReduce() waits.",
		"Channel 3 of GPU 1 waits for the value 1 at 0x7f10, where 0 stands, and which nothing that this process has handed to a GPU is about to write; (copy of 1 MiB) waits.",
		"Channel 4 of GPU 0 waits for channel 1, which is in AllReduce().", "Channel 5 of GPU 0 waits for channel 3, which waits itself.",
		"grid 6, block 544, 96 registers, 0 B of shared memory", "arguments 00007f1200000000", "(copy of 1 MiB)",
		"  10 python3: in a system call\n      in cuStreamSynchronize of libcuda.so.1\n      train.py:27 wait\n      train.py:29 <module>\n",
		"  11 worker: running\n", "Thread 10 (python3) is in cuStreamSynchronize of libcuda.so.1, at train.py:27 wait.\n",
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

// TestParameterTypes wants the types of a kernel's parameters out of its demangled name.
func TestParameterTypes(t *testing.T) {
	for name, want := range map[string]string{
		"spin(int*)": "int*", "f()": "", "plain": "", "(broken": "", "broken)": "",
		"void k<float, (int)4>(std::array<char*, 2ul>, float (*)(int, long), A<b(c)>::d)": "std::array<char*, 2ul>|float (*)(int, long)|A<b(c)>::d",
	} {
		if got := strings.Join(parameterTypes(name), "|"); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestArgumentsText wants arguments by their parameters, and words where these aren't known.
func TestArgumentsText(t *testing.T) {
	params := []channels.Argument{
		{Size: 8, Value: "0x7f1200000000", Bytes: []byte{0, 0, 0, 0, 0x12, 0x7f, 0, 0}},
		{Offset: 8, Size: 4, Value: "0xffffffff", Bytes: []byte{255, 255, 255, 255}},
		{Offset: 12, Size: 4, Value: "0x3fc00000", Bytes: []byte{0, 0, 0xc0, 0x3f}},
		{Offset: 16, Size: 12, Value: "0102030405060708090a0b0c", Bytes: make([]byte, 12)},
	}
	for _, test := range []struct {
		job  channels.JobReport
		want string
	}{
		{channels.JobReport{Name: "_Z1fPfif1S", Arguments: "0", Params: params}, "(float* 0x7f1200000000, int -1, float 1.5, S {0102030405060708090a0b0c})"},
		{channels.JobReport{Name: "plain", Arguments: "0", Params: params[:2]}, "(0x7f1200000000, 0xffffffff)"},
		{channels.JobReport{Name: "_Z1fPf", Arguments: "0", Params: params[:2]}, "(0x7f1200000000, 0xffffffff)"},
		{channels.JobReport{Name: "plain", Arguments: "00007f12 01"}, "00007f12 01"},
	} {
		if got := argumentsText(&test.job); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
}

// TestPlaces wants a tree's processes one after the other, and those named that are in no collective.
func TestPlaces(t *testing.T) {
	rank := 3
	reduce := channels.JobReport{
		Kind: "kernel", Name: "ncclDevKernel_SendRecv", Program: "0x7f00", Grid: &[3]uint32{1, 1, 1}, Block: &[3]uint32{544, 1, 1},
		NCCL: &channels.NCCL{Operation: "SendRecv", Comm: "0x7f10", SendTo: &rank, SendBytes: 4096, Works: 2},
	}
	in := &Where{Report: channels.Report{PID: 11, Channels: []channels.ChannelReport{{Device: "/dev/nvidia0", Busy: true, Running: []channels.JobReport{reduce}}}}}
	idle := &Where{Report: channels.Report{PID: 12, Channels: []channels.ChannelReport{{Device: "/dev/nvidia1"}}}}
	var out strings.Builder
	if err := (Places{in, idle}).Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Channel 0 of GPU 0 has been in ncclDevKernel_SendRecv (SendRecv, sends 4 KiB to rank 3, the first of 2 works, communicator 0x7f10).",
		"\n\nProcess 12 of", "\n11 is in a kernel of NCCL's, 12 in none: if they have a communicator in common, the first wait for the others.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if text := (Places{in, in}).apart(); text != "" {
		t.Errorf("both are in one: %q", text)
	}
}

// TestMemory wants the memory that the driver knows of, on the line of its GPU.
func TestMemory(t *testing.T) {
	p := Process{
		Report: channels.Report{PID: 7, Shared: &channels.Shared{Memory: 8 << 30, MemoryUsed: 3 << 30}},
		GPUs:   []GPU{{1, "GPU-b", "NVIDIA H100"}}, Memory: []Memory{{0, 1 << 30}, {1, 2 << 30}},
	}
	for gpus, want := range map[string]string{"1": "2 GiB", "0,1": "3 GiB", "": "3 GiB", "2": "not known"} {
		if got := memoryText(&p, gpus); got != want {
			t.Errorf("of GPU %q: %s, want %s", gpus, got, want)
		}
	}
	if got := Legend([]Process{p}); len(got) != 1 || got[0] != "GPU 1 is NVIDIA H100, GPU-b; 3 GiB of its 8 GiB of memory are used" {
		t.Errorf("%q", got)
	}
}
