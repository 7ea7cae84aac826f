package script

import (
	"strings"
	"testing"
)

// someEvents are what a program does on the host.
var someEvents = []Event{
	{Kind: "api", Name: "cuMemAlloc_v2", Library: "driver", PID: 7, TID: 8, Time: 100, Args: [6]uint64{1, 4096}},
	{Kind: "ioctl", Name: "NV_ESC_RM_ALLOC", Sub: "NV01_MEMORY_LOCAL_USER", Device: "nvidiactl", Status: "NV_OK", PID: 7, TID: 8, Time: 110, Duration: 40},
	{Kind: "ioctl", Name: "NV_ESC_RM_CONTROL", Sub: "NV2080_CTRL_CMD_GPU_GET_INFO", Device: "nvidiactl", Status: "NV_ERR_INVALID_ARGUMENT", Failed: true, PID: 7, TID: 8, Time: 160, Duration: 5},
	{Kind: "apiret", Name: "cuMemAlloc_v2", Library: "driver", Status: "CUDA_ERROR_OUT_OF_MEMORY", Failed: true, Ret: 2, PID: 7, TID: 8, Time: 200, Duration: 100},
	{Kind: "api", Name: "cuLaunchKernel", Library: "driver", PID: 7, TID: 9, Time: 300},
	{Kind: "launch", Name: "cuLaunchKernel", Library: "driver", Kernel: "_Z6addOnePji", Stream: 0x55, PID: 7, TID: 9, Time: 300},
	{Kind: "apiret", Name: "cuLaunchKernel", Library: "driver", Status: "CUDA_SUCCESS", PID: 7, TID: 9, Time: 310, Duration: 10},
	{Kind: "image", Name: "cuModuleLoadData", Library: "/lib/app", Format: "ptx", Size: 77, File: "/f", PID: 7, TID: 9, Time: 315},
	{Kind: "launch", Name: "cuLaunchKernel", Library: "driver", Kernel: "other", PID: 7, TID: 9, Time: 320},
}

// TestEvents: what probes on the host make of someEvents.
func TestEvents(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`ioctl:* { @[name, sub, node] = sum(duration); }`, "@[NV_ESC_RM_CONTROL, NV2080_CTRL_CMD_GPU_GET_INFO, nvidiactl]: 5\n@[NV_ESC_RM_ALLOC, NV01_MEMORY_LOCAL_USER, nvidiactl]: 40\n"},
		{`ioctl:NV2080_* /failed/ { @[status] = count(); }`, "@[NV_ERR_INVALID_ARGUMENT]: 1\n"},
		{`ioctl:* /status != "NV_OK" && sub != ""/ { @[sub] = count(); }`, "@[NV2080_CTRL_CMD_GPU_GET_INFO]: 1\n"},
		{`image:ptx { @[format, name, library, file] = sum(size); } image:cubin { @no = count(); }`, "@[ptx, cuModuleLoadData, /lib/app, /f]: 77\n"},
		{`api:cu* { @[name, library] = max(nsecs); }`, "@[cuMemAlloc_v2, driver]: 100\n@[cuLaunchKernel, driver]: 300\n"},
		{`api:cuMemAlloc* { @bytes = sum(arg1); @[pid, tid]++; }`, "@bytes: 4096\n@[7, 8]: 1\n"},
		{`apiret:cu* { @[failed ? status : "fine"] = avg(duration); @last = name; }`, "@[fine]: 10\n@[CUDA_ERROR_OUT_OF_MEMORY]: 100\n@last: cuLaunchKernel\n"},
		{`launch:addOne { printf("%s %x\n", kernel, stream); }`, "addOne 55\n"},
		{`launch:* { @[kernel] = count(); } END { printf("%d\n", @["addOne"]); clear(@); }`, "1\n"},
		{`api:* { @t[tid] = nsecs; } apiret:* /@t[tid]/ { @ = hist(nsecs - @t[tid]); delete(@t[tid]); }`, "@: \n" +
			"[8, 16)                 1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"[16, 32)                0 |                                                    |\n" +
			"[32, 64)                0 |                                                    |\n" +
			"[64, 128)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n"},
		{`BEGIN { @limit = 20; printf("above %d\n", @limit); } ioctl:* /duration > @limit/ { @ = count(); } END { clear(@limit); }`, "above 20\n@: 1\n"},
		{`config = { max_map_keys = 1 } api:* { @[name] = count(); }`, "@[cuMemAlloc_v2]: 1\n@: 1 insertions found no room for their key; to have more than 1, begin with config = { max_map_keys = 8 }\n"},
		{
			`config = { max_map_keys = 1 } api:* { @a[name] = count(); @b[name] = count(); } END { print(@b); printf("end\n"); clear(@b); }`,
			"@b[cuMemAlloc_v2]: 1\n@b: 1 insertions found no room for their key; to have more than 1, begin with config = { max_map_keys = 8 }\nend\n" +
				"@a[cuMemAlloc_v2]: 1\n@a: 1 insertions found no room for their key; to have more than 1, begin with config = { max_map_keys = 8 }\n",
		},
		{`ioctl:* { while (1) { } } apiret:* { @ = count(); }`, "nvtrace: ioctl: ended after 1000000 steps\nnvtrace: ioctl: ended after 1000000 steps\n@: 2\n"},
		{`api:* { @a *= 2; @a ^= 3; } ioctl:* { @b = count(); print(@b); } END { clear(@b); }`, "@b: 1\n@b: 2\n@a: 5\n"},
	} {
		p, err := Compile("-e", tt.text)
		if err != nil {
			t.Error(err)
			continue
		}
		r, list := p.NewRunner()
		got := shownOf(list)
		for _, e := range someEvents {
			got += shownOf(r.Event(&e))
		}
		if got += shownOf(r.End()); got != tt.want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", tt.text, got, tt.want)
		}
	}
}

// TestIntervals: intervals run once for each of theirs that has passed something, with what
// was counted until then, and not before.
func TestIntervals(t *testing.T) {
	const ms = 1_000_000
	p, err := Compile("-e", `api:* { @n = count(); @all = count(); } interval:1ms { printf("1ms: %d\n", @n); clear(@n); } interval:ms:3 { printf("3ms: %d\n", @all); }`)
	if err != nil {
		t.Fatal(err)
	}
	if p.Every() != ms {
		t.Errorf("every %d", p.Every())
	}
	r, _ := p.NewRunner()
	got := ""
	for _, tt := range []struct {
		at    int64
		event bool
	}{{0, true}, {10, true}, {ms - 1, false}, {ms, false}, {ms + 5, true}, {2*ms + 1, true}, {2*ms + 2, false}, {9 * ms, false}, {9*ms + 1, false}, {10 * ms, false}} {
		got += shownOf(r.Tick(tt.at))
		if tt.event {
			got += shownOf(r.Event(&Event{Kind: "api", Name: "cuInit", Time: tt.at}))
		}
	}
	if want := "1ms: 2\n1ms: 1\n1ms: 1\n3ms: 4\n1ms: 0\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := shownOf(r.End()), "@all: 4\n"; got != want {
		t.Errorf("at the end %q", got)
	}

	// Of kernels' maps, what was read is shown.
	if p, err = Compile("-e", `kernel:* { @ = count(); } interval:1s { printf("so far %d\n", @); }`); err != nil {
		t.Fatal(err)
	}
	w := launch(t, p, nil)
	tables, _ := w.tables(t, p)
	if got := shownOf(p.Show(tables, false)); got != "so far 144\n" {
		t.Errorf("%q", got)
	}
	if got := shownOf(p.Show(tables, true)); got != "@: 144\n" {
		t.Errorf("%q", got)
	}
}

// TestWalks: a walk through a map may take as long as the map is large; walks within one
// another end.
func TestWalks(t *testing.T) {
	for text, want := range map[string]bool{
		`api:* { $i = 0; while ($i < 3000) { @x[$i] = $i; $i++; } } END { for ($a : @x) { @sum = sum($a.1); @n = count(); } clear(@x); }`: true,
		`api:* { $i = 0; while ($i < 3000) { @x[$i] = $i; $i++; } } END { for ($a : @x) { for ($b : @x) { @n = count(); } } clear(@x); }`: false,
	} {
		p, err := Compile("-e", text)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := p.NewRunner()
		r.Event(&Event{Kind: "api", Name: "cuInit"})
		got := shownOf(r.End())
		if whole := !strings.Contains(got, "END: ended after"); whole != want {
			t.Errorf("%s\n%.300s", text, got)
		}
		if want && got != "@sum: 4498500\n@n: 3000\n" {
			t.Errorf("%q", got)
		}
	}
}
