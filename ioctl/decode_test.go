package ioctl

import (
	"strings"
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

// TestDecodeKinds checks classification: names, objects and what is unknown.
func TestDecodeKinds(t *testing.T) {
	w := odd(t)
	d := NewDecoder(w.header())
	var got []string
	for _, e := range w.events {
		if c := d.Decode(e); e.Kind == traces.KindIoctl {
			line := string(c.AppendName(nil)) + " | " + string(c.AppendSub(nil, d.ABI(testPID))) + " | " + c.Unknown.String()
			if c.Failed() {
				line += " | failed"
			}
			got = append(got, line)
		}
	}
	want := []string{
		"NV_ESC_RM_CONTROL | 0x2080a083 NV2080 PERF_LEGACY_NON_PRIVILEGED #0x83 (GSS-legacy) | closed control",
		"NV_ESC_RM_CONTROL | 0x20810110 NV2081 category 0x01 #0x10 (BINAPI) | closed control | failed",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_VMMU_SEGMENT_SIZE | known | failed",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | known",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | unknown size | failed",
		"NV_ESC_RM_ALLOC | 0xfffe | unknown class | failed",
		"nvidiactl:0x3f |  | unknown request | failed",
		"FIONBIO |  | known",
		"NV_ESC_RM_CONTROL |  | unknown layout | failed",
		"NV_ESC_RM_CONTROL |  | unknown size | failed",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | known | failed",
		"NV_ESC_RM_FREE |  | known | failed",
		"NV_ESC_RM_ACCESS_REGISTRY |  | known | failed",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | known",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | known",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_FB_GET_INFO | known",
		"NV_ESC_RM_CONTROL | NV2080_CTRL_CMD_GPU_GET_NAME_STRING | known | failed",
	}
	for i := range max(len(got), len(want)) {
		g, w := "", ""
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("call %d:\n\tgot  %s\n\twant %s", i, g, w)
		}
	}
}

func TestDeviceOf(t *testing.T) {
	for _, row := range []struct {
		name string
		rdev uint64
		want Device
	}{
		{"nvidiactl", 0, DeviceCtl},
		{"renamed", 195<<8 | 255, DeviceCtl},
		{"nvidia0", 0, DeviceGPU},
		{"nvidia17", 195<<8 | 17, DeviceGPU},
		{"x", 195<<8 | 3, DeviceGPU},
		{"nvidia-modeset", 195<<8 | 254, DeviceModeset},
		{"nvidia-uvm", 235 << 8, DeviceUVM},
		{"nvidia-uvm-tools", 235<<8 | 1, DeviceUVMTools},
		{"nvidia-nvlink", 0, DeviceNVLink},
		{"nvidia-nvswitch3", 0, DeviceNVSwitch},
		{"nvidia-nvswitchctl", 0, DeviceNVSwitchCtl},
		{"nvidia-caps/nvidia-cap1", 0, DeviceCaps},
		{"nvidia-caps-imex-channels/channel0", 0, DeviceIMEX},
		{"/dev/dri/renderD128", 226<<8 | 128, DeviceDRM},
		{"nvidia", 0, DeviceOther},
		{"nvidiaX", 0, DeviceOther},
		{"", 0, DeviceOther},
	} {
		if got := DeviceOf(row.name, row.rdev); got != row.want {
			t.Errorf("DeviceOf(%q, %#x) = %v, want %v", row.name, row.rdev, got, row.want)
		}
	}
}

// TestDecoderVersions: the same command under two drivers, and a driver that
// nobody knows.
func TestDecoderVersions(t *testing.T) {
	w := newWorld(t, "580.142")
	w.open(clientFD, "nvidiactl")
	ver := w.new("nv_ioctl_rm_api_version_t").setText("versionString", "595.45.04")
	w.call(clientFD, escReq(escCheckVersion, 72), w.place(ver.b), nil, 0)
	w.control(hSub, 0x20800110, make([]byte, 68), nil, rm.OK)
	d := NewDecoder(nil)
	if d.ABI(1).Version() != rm.Newest().Version() {
		t.Error("an unknown driver is not taken for the newest")
	}
	for _, e := range w.events {
		c := d.Decode(e)
		if c.Control != nil && (c.Control.Size != 68 || !c.Other.IsZero() || c.Unknown != Known) {
			t.Errorf("after the handshake with 595.45.04: size %d, layout of %v", c.Control.Size, c.Other)
		}
	}
	if got := d.ABI(testPID).Version().String(); got != "595.45.04" {
		t.Errorf("ABI of the process is %s", got)
	}
	if s := d.Notice(); s != "" {
		t.Errorf("notice %q for a known version", s)
	}

	// Tables of another driver that fit are no news.
	d = NewDecoder(&traces.Header{Driver: "999.1.2"})
	for _, e := range w.events {
		d.Decode(e)
	}
	if s := d.Notice(); s != "" {
		t.Errorf("notice %q though all sizes fit", s)
	}
	w.control(hSub, 0x20800110, make([]byte, 1234), nil, rm.OK)
	d.Decode(w.events[len(w.events)-1])
	if s := d.Notice(); !strings.Contains(s, "driver 999.01.02 is not in the tables, and those of "+rm.Newest().Version().String()+" do not fit") ||
		!strings.Contains(s, "NV_ESC_RM_CONTROL NV2080_CTRL_CMD_GPU_GET_NAME_STRING have another size") {
		t.Errorf("notice %q", s)
	}
	d.Decode(w.events[len(w.events)-1])
	if s := d.Notice(); s != "" {
		t.Errorf("told twice: %q", s)
	}
	d = NewDecoder(&traces.Header{Driver: "5.x"})
	if s := d.Notice(); !strings.Contains(s, `"5.x"`) {
		t.Errorf("notice %q", s)
	}
}

// TestFailureHidesOutput: what a driver did not copy back is not shown.
func TestFailureHidesOutput(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", "stale") }, 0x22)
	w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", "fresh") }, rm.OK)
	out := w.lines(nil)
	if !strings.Contains(out, "{} = 0 NV_ERR_INVALID_CLASS") || !strings.Contains(out, `"stale" → "fresh"`) {
		t.Error(out)
	}
}

func TestLineOptions(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", strings.Repeat("H200 ", 10)) }, rm.OK)
	w.control(hSub, 0x20800110, name.b, nil, 0x22)
	last := func(o *LineOptions) string {
		lines := strings.SplitAfter(strings.TrimSuffix(w.lines(o), "\n"), "\n")
		return strings.TrimSuffix(lines[1], "\n")
	}
	for _, row := range []struct {
		name string
		o    *LineOptions
		want string
	}{
		{"delta", &LineOptions{Clock: ClockDelta, NoPID: true}, "    0.001234 nvidiactl "},
		{"no time", &LineOptions{Clock: ClockNone, NoPID: true}, "nvidiactl      NV_ESC_RM_CONTROL("},
		{"no process", &LineOptions{NoPID: true}, "    0.002234 nvidiactl"},
		{"width", &LineOptions{Width: 40}, "[ 4711] 0.002234 NV_ESC_RM_CONTROL(NV20…"},
		{"wide", &LineOptions{Width: 101}, "[ 4711  4711]     0.002234 nvidiactl      NV_ESC_RM_CONTROL(NV20"},
		{"short strings", &LineOptions{Elems: 2}, `.ascii → "H200 H20"…`},
		{"zeros", &LineOptions{Zeros: true}, "{gpuNameStringFlags=0, gpu"},
		{"names", &LineOptions{Name: func(dst []byte, c, h uint32) []byte {
			if c == hClient && h == hSub {
				return append(dst, "subdev0"...)
			}
			return dst
		}}, "NAME_STRING, subdev0) {"},
		{"colour", &LineOptions{Color: true}, "\x1b[1mNV_ESC_RM_CONTROL\x1b[0m(\x1b[36mNV2080_"},
		{"colour and width", &LineOptions{Color: true, Width: 30}, "NV_ESC_RM_CO…\x1b[0m"},
	} {
		if got := last(row.o); !strings.Contains(got, row.want) {
			t.Errorf("%s:\n\tgot  %q\n\twant %q in it", row.name, got, row.want)
		}
	}
	if got := last(&LineOptions{Clock: ClockWall, Start: 1_760_000_000_000_000_000}); !strings.Contains(got, ":53:20.002234 nvidiactl") && !strings.Contains(got, ":20.002234 nvidiactl") {
		t.Errorf("wall clock: %s", got)
	}
	if out := w.lines(&LineOptions{Color: true}); !strings.Contains(out, " = 0 \x1b[31mNV_ERR_INVALID_CLASS\x1b[0m") {
		t.Errorf("an error without colour: %q", out)
	}
	hex := w.lines(&LineOptions{Hex: true})
	if !strings.Contains(hex, "132 bytes before\n      00000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n      *\n      00080  00 00 00 00              ") ||
		!strings.Contains(hex, "    after\n      00000  00 00 00 00 48 32 30 30  20 48 32 30 30 20 48 32  |....H200 H200 H2|\n") ||
		!strings.Contains(hex, "132 bytes, unchanged\n") {
		t.Errorf("dump:\n%s", hex)
	}
}

func TestCutLine(t *testing.T) {
	for _, row := range []struct {
		in    string
		width int
		want  string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abcde…"},
		{"aé→𝄞xy", 5, "aé→𝄞…"},
		{"\x1b[1mab\x1b[0mcd", 4, "\x1b[1mab\x1b[0mcd"},
		{"\x1b[1mabcdef\x1b[0m", 3, "\x1b[1mab…\x1b[0m"},
	} {
		if got := string(cutLine([]byte(row.in), 0, row.width)); got != row.want {
			t.Errorf("cutLine(%q, %d) = %q, want %q", row.in, row.width, got, row.want)
		}
	}
}

// TestDecodeAllocs holds decoding, printing and counting to no allocation.
func TestDecodeAllocs(t *testing.T) {
	w := startup(t)
	d := NewDecoder(w.header())
	s := NewSummary(w.header())
	var buf []byte
	for _, e := range w.events { // warm up: lazily built tables, maps
		c := d.Decode(e)
		s.Add(e, &c)
		buf = d.AppendCall(buf[:0], e, &c, nil)
		buf = d.AppendJSON(buf[:0], e, &c)
	}
	buf = make([]byte, 0, 1<<20)
	filter, err := ParseFilter("control=*GPU*,*x", "status=OK")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range w.events {
		if e.Kind != traces.KindIoctl {
			continue
		}
		if n := testing.AllocsPerRun(20, func() {
			c := d.Decode(e)
			s.Add(e, &c)
			filter.Match(e, &c)
			buf = d.AppendCall(buf[:0], e, &c, nil)
		}); n != 0 {
			t.Errorf("%v allocations for %s", n, buf)
		}
	}
}

// FuzzDecode decodes and prints any bytes as any request of any driver.
func FuzzDecode(f *testing.F) {
	versions := rm.Versions()
	for _, w := range []*world{startup(f), memory(f), uvm(f), odd(f)} {
		for _, e := range w.events {
			if len(e.Mem) == 1 {
				f.Add(e.Request(), e.Mem[0].In, e.Mem[0].Out, []byte(nil), uint8(0), uint16(0))
			} else if len(e.Mem) > 1 {
				f.Add(e.Request(), e.Mem[0].In, e.Mem[1].In, e.Mem[1].Out, uint8(0), uint16(150))
			}
		}
	}
	devs := []string{"nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-modeset", "nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvlink", "dri/card0", "nvidia-uvm-tools", "x"}
	decoders := map[uint16]*Decoder{}
	f.Fuzz(func(t *testing.T, req uint32, arg, in, out []byte, dev uint8, version uint16) {
		if len(arg)+len(in)+len(out) > 1<<16 {
			return
		}
		version %= uint16(len(versions))
		d := decoders[version]
		if d == nil {
			d = NewDecoder(&traces.Header{Driver: versions[version].String()})
			decoders[version] = d
		}
		e := &traces.Event{
			Kind: traces.KindIoctl, PID: 1, TID: 1, Dev: devs[int(dev)%len(devs)], Args: [6]uint64{5, uint64(req), 0x1000},
			Mem: []traces.Seg{{Addr: 0x1000, Len: uint32(len(arg)), In: arg, Out: arg}},
		}
		// What the argument's pointer leads to, wherever it points.
		for _, at := range []int{0, 8, 16, 24} {
			if addr := load64(arg, at); addr != 0 && addr != 0x1000 {
				e.Mem = append(e.Mem, traces.Seg{Addr: addr, Len: uint32(max(len(in), len(out))), In: in, Out: out})
			}
		}
		c := d.Decode(e)
		buf := d.AppendCall(nil, e, &c, nil)
		if len(buf) > 4096+40*(len(arg)+8*len(in)+8*len(out)) {
			t.Fatalf("%d bytes of text for %d bytes", len(buf), len(arg)+len(in)+len(out))
		}
		for _, b := range buf[:len(buf)-1] {
			if b < 0x20 || b == 0x7f {
				t.Fatalf("control character in %q", buf)
			}
		}
		all := d.AppendCall(nil, e, &c, &LineOptions{Zeros: true, Elems: -1, Hex: true})
		if len(all) < len(buf)/2 {
			t.Fatalf("less with everything: %q %q", all, buf)
		}
		js := d.AppendJSON(nil, e, &c)
		checkJSON(t, js)
		s := NewSummary(nil)
		s.Add(e, &c)
		if s.Report().Ioctls != 1 {
			t.Fatal("not counted")
		}
	})
}

// TestAllVersions: a control and both forms of an allocation, watched, decoded
// and printed with the layouts of every driver in the tables.
func TestAllVersions(t *testing.T) {
	for _, v := range rm.Versions() {
		w := newWorld(t, v.String())
		w.open(clientFD, "nvidiactl")
		name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
		w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", "GPU") }, rm.OK)
		w.alloc(hClient, hDevice, 0x5c000020, 0xc56f, w.new(w.abi.Class(0xc56f).Alloc.Name).set("gpFifoEntries", 64).b, rm.OK)
		arg := w.new("NVOS21_PARAMETERS").set("hRoot", hClient).set("hObjectNew", 7).set("hClass", 0x2080).set("pAllocParms", w.place(make([]byte, 4)))
		w.call(clientFD, escReq(escAlloc, 32), w.place(arg.b), func() { arg.set("status", 0x1f) }, 0)
		m := w.new("nv_ioctl_nvos33_parameters_with_fd").set("params.hMemory", 9).set("fd", 1<<32-1)
		w.call(clientFD, escReq(escMapMemory, len(m.b)), w.place(m.b), func() { m.set("params.status", 0x22) }, 0)

		d := NewDecoder(w.header())
		for i, e := range w.events[1:] {
			c := d.Decode(e)
			wantParts, wantStatus := 2, []rm.Status{0, 0, 0x1f, 0x22}[i]
			if i == 3 {
				wantParts = 1
			}
			if c.Unknown != Known || !c.Other.IsZero() || len(c.Parts) != wantParts || !c.HasStatus || c.Status != wantStatus {
				t.Errorf("%v: call %d: %v, layout of %q, %d parts, status %v", v, i, c.Unknown, c.Other, len(c.Parts), c.Status)
			}
			line := string(d.AppendCall(nil, e, &c, nil))
			want := []string{`"GPU"`, "gpFifoEntries=64", "= 0 NV_ERR_INVALID_ARGUMENT", "{hMemory=0x9, fd=-1} = 0 NV_ERR_INVALID_CLASS"}[i]
			if !strings.Contains(line, want) {
				t.Errorf("%v: %q not in %s", v, want, line)
			}
		}
	}
}
