package ioctl

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestWatcherFollows checks which memory is copied for each kind of call.
func TestWatcherFollows(t *testing.T) {
	for _, row := range []struct {
		name string
		make func(w *world) *traces.Event
		want []int // lengths of the segments
	}{
		{"control", func(w *world) *traces.Event { return w.control(hSub, 0x20800110, make([]byte, 132), nil, 0) }, []int{32, 132}},
		{"control without parameters", func(w *world) *traces.Event { return w.control(hSub, 0x20800110, nil, nil, 0) }, []int{32}},
		{"unknown control", func(w *world) *traces.Event { return w.control(hSub, 0x2080fffe, make([]byte, 77), nil, 0) }, []int{32, 77}},
		{"control with a list", func(w *world) *traces.Event {
			p := w.new("NV2080_CTRL_FB_GET_INFO_PARAMS").set("fbInfoListSize", 3).set("fbInfoList", w.place(make([]byte, 24)))
			return w.control(hSub, 0x20801301, p.b, nil, 0)
		}, []int{32, 16, 24}},
		{"control with strings", func(w *world) *traces.Event {
			p := w.new("NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS").set("sizeOfStrings", 40)
			for _, f := range []string{"pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer"} {
				p.set(f, w.place(make([]byte, 40)))
			}
			return w.control(hClient, 0x101, p.b, nil, 0)
		}, []int{32, 40, 40, 40, 40}},
		{"pointer chosen by another member", func(w *world) *traces.Event {
			p := w.new("NV402C_CTRL_I2C_TRANSACTION_PARAMS").set("transType", 2).set("transData.i2cBlockData.messageLength", 5).set("transData.i2cBlockData.pMessage", w.place(make([]byte, 5)))
			return w.control(hSub, 0x402c0105, p.b, nil, 0)
		}, []int{32, 96, 5}},
		{"serialised", func(w *world) *traces.Event {
			p := w.new("NV2080_CTRL_FB_GET_INFO_PARAMS").set("fbInfoListSize", 3).set("fbInfoList", w.place(make([]byte, 24)))
			arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x20801301).set("flags", 4).set("params", w.place(p.b)).set("paramsSize", 16)
			return w.call(clientFD, escReq(escControl, 32), w.place(arg.b), nil, 0)
		}, []int{32, 16}},
		{"allocation by the class's size", func(w *world) *traces.Event {
			return w.alloc(hClient, hDevice, 1, 0xc86f, make([]byte, 368), 0)
		}, []int{48, 368}},
		{"allocation, NVOS21", func(w *world) *traces.Event {
			arg := w.new("NVOS21_PARAMETERS").set("hClass", 0x2080).set("pAllocParms", w.place(make([]byte, 4)))
			return w.call(clientFD, escReq(escAlloc, 32), w.place(arg.b), nil, 0)
		}, []int{32, 4}},
		{"allocation of an unknown class", func(w *world) *traces.Event {
			arg := w.new("NVOS64_PARAMETERS").set("hClass", 0xfffe).set("pAllocParms", w.place(make([]byte, 9))).set("paramsSize", 9)
			return w.call(clientFD, escReq(escAlloc, 48), w.place(arg.b), nil, 0)
		}, []int{48, 9}},
		{"allocation with rights", func(w *world) *traces.Event {
			arg := w.new("NVOS64_PARAMETERS").set("hClass", 0x80).set("pRightsRequested", w.place(make([]byte, 4)))
			return w.call(clientFD, escReq(escAlloc, 48), w.place(arg.b), nil, 0)
		}, []int{48, 4}},
		{"registry", func(w *world) *traces.Event {
			arg := w.new("NVOS38_PARAMETERS").set("ParmStrLength", 3).set("pParmStr", w.place([]byte("abc\x00"))).set("BinaryDataLength", 2).set("pBinaryData", w.place([]byte{1, 2}))
			return w.call(clientFD, escReq(77, 72), w.place(arg.b), nil, 0)
		}, []int{72, 4, 2}},
		{"idle channels", func(w *world) *traces.Event {
			arg := w.new("NVOS30_PARAMETERS").set("numChannels", 2)
			for _, f := range []string{"phClients", "phDevices", "phChannels"} {
				arg.set(f, w.place(make([]byte, 8)))
			}
			return w.call(clientFD, escReq(65, 56), w.place(arg.b), nil, 0)
		}, []int{56, 8, 8, 8}},
		{"envelope", func(w *world) *traces.Event {
			list := w.new("NV2080_CTRL_FB_GET_INFO_PARAMS").set("fbInfoListSize", 1).set("fbInfoList", w.place(make([]byte, 8)))
			arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x20801301).set("params", w.place(list.b)).set("paramsSize", 16)
			xfer := w.new("nv_ioctl_xfer_t").set("cmd", escControl).set("size", 32).set("ptr", w.place(arg.b))
			return w.call(clientFD, escReq(escXfer, 16), w.place(xfer.b), nil, 0)
		}, []int{16, 32, 16, 8}},
		{"envelope in an envelope", func(w *world) *traces.Event {
			inner := w.new("nv_ioctl_xfer_t").set("cmd", escFree).set("size", 16).set("ptr", w.place(make([]byte, 16)))
			xfer := w.new("nv_ioctl_xfer_t").set("cmd", escXfer).set("size", 16).set("ptr", w.place(inner.b))
			return w.call(clientFD, escReq(escXfer, 16), w.place(xfer.b), nil, 0)
		}, []int{16}},
		{"type byte of no interest", func(w *world) *traces.Event {
			return w.call(clientFD, 3<<30|16<<16|'x'<<8|escFree, w.place(make([]byte, 16)), nil, 0)
		}, []int{16}},
		{"uvm", func(w *world) *traces.Event { return w.call(7, 33, w.place(make([]byte, 9264)), nil, 0) }, []int{9264}},
		{"uvm without argument", func(w *world) *traces.Event { return w.call(7, 0x30000002, 0, nil, 0) }, nil},
		{"unknown uvm", func(w *world) *traces.Event { return w.call(7, 0x7d1, w.place(make([]byte, 300)), nil, 0) }, []int{256}},
		{"modeset", func(w *world) *traces.Event {
			arg := append(le32(1, 8), make([]byte, 8)...)
			at := w.place(make([]byte, 8))
			for i := range 8 {
				arg[8+i] = byte(at >> (8 * i))
			}
			return w.call(8, 0xc0106d00, w.place(arg), nil, 0)
		}, []int{16, 8}},
		{"nvswitch", func(w *world) *traces.Event {
			return w.call(9, 3<<30|129<<16|'d'<<8|2, w.place(make([]byte, 129)), nil, 0)
		}, []int{129}},
		{"FIOCLEX", func(w *world) *traces.Event { return w.call(clientFD, 0x5451, 0, nil, 0) }, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, testDriver)
			for fd, dev := range map[int32]string{clientFD: "nvidiactl", 7: "nvidia-uvm", 8: "nvidia-modeset", 9: "nvidia-nvswitchctl"} {
				w.open(fd, dev)
			}
			e := row.make(w)
			var got []int
			for _, s := range e.Mem {
				if len(s.In) != int(s.Len) || len(s.Out) != int(s.Len) {
					t.Errorf("segment of %d bytes has %d before and %d after", s.Len, len(s.In), len(s.Out))
				}
				got = append(got, int(s.Len))
			}
			if !equalInts(got, row.want) {
				t.Errorf("segments of %v bytes, want %v", got, row.want)
			}
			if e.Flags&traces.FlagTruncated != 0 && !strings.HasPrefix(row.name, "unknown") {
				t.Error("flagged as truncated")
			}
		})
	}
}

func equalInts(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestWatcherExit checks that exit bytes are those after the call, read with
// the pointers of before it, however the memory is read.
func TestWatcherExit(t *testing.T) {
	w := newWorld(t, testDriver)
	params := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	addr := w.place(params)
	arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x2080fffe).set("params", addr).set("paramsSize", 8)
	at := w.place(arg.b)
	elsewhere := w.place([]byte{9, 9, 9, 9, 9, 9, 9, 9})
	for _, vector := range []bool{false, true} {
		var mem Memory = w.mem
		if vector {
			mem = vectorMem{w.mem}
		}
		params[0] = 1
		arg.set("params", addr).set("status", 0)
		e := &traces.Event{Kind: traces.KindIoctl, Dev: "nvidiactl", Args: [6]uint64{5, uint64(escReq(escControl, 32)), at}}
		w.w.Enter(e, mem)
		params[0] = 77
		arg.set("params", elsewhere).set("status", 5) // the driver does not look again
		before := w.mem.reads
		w.w.Exit(e, mem)
		if vector && w.mem.reads != before+1 {
			t.Errorf("%d reads at exit", w.mem.reads-before)
		}
		if len(e.Mem) != 2 || e.Mem[1].Addr != addr {
			t.Fatalf("segments %+v", e.Mem)
		}
		if s := e.Mem[1]; s.In[0] != 1 || s.Out[0] != 77 || !bytes.Equal(s.In[1:], s.Out[1:]) {
			t.Errorf("vector %v: %v -> %v", vector, s.In, s.Out)
		}
		if s := e.Mem[0]; load32(s.In, 28) != 0 || load32(s.Out, 28) != 5 {
			t.Errorf("vector %v: status %v", vector, s.Out)
		}
		// Unchanged bytes are shared.
		w.w.Enter(e, mem)
		w.w.Exit(e, mem)
		if s := e.Mem[1]; &s.In[0] != &s.Out[0] {
			t.Errorf("vector %v: equal bytes are kept twice", vector)
		}
	}
}

func TestWatcherFaults(t *testing.T) {
	for _, vector := range []bool{false, true} {
		w := newWorld(t, testDriver)
		var mem Memory = w.mem
		if vector {
			mem = vectorMem{w.mem}
		}
		short := []byte{1, 2, 3, 4}
		arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x20800110).set("params", w.place(short)).set("paramsSize", 132)
		e := &traces.Event{Kind: traces.KindIoctl, Dev: "nvidiactl", Args: [6]uint64{5, uint64(escReq(escControl, 32)), w.place(arg.b)}}
		w.w.Enter(e, mem)
		w.mem.regions = w.mem.regions[1:] // the parameters are unmapped meanwhile
		w.w.Exit(e, mem)
		if s := e.Mem[1]; s.Len != 132 || !bytes.Equal(s.In, short) || s.Out == nil || len(s.Out) != 0 {
			t.Errorf("vector %v: %+v", vector, s)
		}
		if s := e.Mem[0]; len(s.Out) != 32 {
			t.Errorf("vector %v: the readable part: %+v", vector, s)
		}
		if e.Flags&traces.FlagTruncated == 0 {
			t.Error("not flagged as truncated")
		}
	}
}

// TestWatcherVersion: layouts follow the version handshake if nothing better is known.
func TestWatcherVersion(t *testing.T) {
	w := newWorld(t, "550.163.01")
	w.w = NewWatcher("nonsense")
	newest := w.w.ABI().Version()
	w.open(clientFD, "nvidiactl")
	ver := w.new("nv_ioctl_rm_api_version_t").setText("versionString", "550.163.01")
	w.call(clientFD, escReq(escCheckVersion, 72), w.place(ver.b), func() { ver.set("reply", 1) }, 0)
	if got := w.w.ABI().Version().String(); got != "550.163.01" {
		t.Errorf("uses %s after the handshake, %v before", got, newest)
	}
	ver.setText("versionString", "535.98\x00")
	w.call(clientFD, escReq(escCheckVersion, 72), w.place(ver.b), nil, 0)
	if got := w.w.ABI().Version().String(); got != "550.163.01" {
		t.Errorf("a second handshake changed it to %s", got)
	}
}

// TestWatcherBrief: enough to name a call, and no more.
func TestWatcherBrief(t *testing.T) {
	w := startup(t)
	m := memory(t)
	u := uvm(t)
	for _, w := range []*world{w, m, u} {
		b := NewWatcher(testDriver)
		b.SetBrief(true)
		full, brief := NewDecoder(w.header()), NewDecoder(w.header())
		for _, e := range w.events {
			want := full.Decode(e)
			e2 := *e
			if e.Kind == traces.KindIoctl {
				e2.Flags |= traces.FlagNoExit
				e2.Mem = nil
				mem := &fakeMem{}
				for _, s := range e.Mem {
					mem.put(s.Addr, s.In)
				}
				b.Enter(&e2, mem)
				if mem.reads > 1 {
					t.Errorf("%s: %d reads", want.Name, mem.reads)
				}
			}
			got := brief.Decode(&e2)
			known := got.Unknown == want.Unknown || want.Unknown == UnknownRequest
			if got.Name != want.Name || got.Sub != want.Sub || got.Key() != want.Key() || !known {
				t.Errorf("%s(%s) %v, briefly %s(%s) %v", want.Name, want.Sub, want.Unknown, got.Name, got.Sub, got.Unknown)
			}
		}
	}
}

func TestWatcherAllocs(t *testing.T) {
	w := newWorld(t, testDriver)
	arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x20801301).set("paramsSize", 16)
	list := w.new("NV2080_CTRL_FB_GET_INFO_PARAMS").set("fbInfoListSize", 3).set("fbInfoList", w.place(make([]byte, 24)))
	arg.set("params", w.place(list.b))
	at := w.place(arg.b)
	mem := vectorMem{w.mem}
	e := &traces.Event{}
	n := testing.AllocsPerRun(200, func() {
		e.Reset()
		e.Kind, e.Dev, e.Rdev = traces.KindIoctl, "nvidiactl", 195<<8|255
		e.Args = [6]uint64{5, uint64(escReq(escControl, 32)), at}
		w.w.Enter(e, mem)
		arg.b[28]++
		w.w.Exit(e, mem)
	})
	if n != 0 || len(e.Mem) != 3 {
		t.Errorf("%v allocations, %d segments", n, len(e.Mem))
	}
}

// FuzzWatcher watches calls in a memory full of hostile pointers and sizes:
// every address leads to the same bytes, so that pointers lead anywhere.
func FuzzWatcher(f *testing.F) {
	w := newWorld(f, testDriver)
	w.open(clientFD, "nvidiactl")
	for _, e := range startup(f).events {
		if len(e.Mem) > 0 {
			f.Add(e.Request(), e.Mem[0].In, uint8(0))
		}
	}
	f.Add(escReq(escControl, 32), bytes.Repeat([]byte{0xff}, 64), uint8(0))
	f.Add(uint32(33), bytes.Repeat([]byte{0xff}, 64), uint8(2))
	devs := []string{"nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-modeset", "nvidia-nvswitchctl", "dri/card0", "nvidia-caps/nvidia-cap1"}
	watcher := NewWatcher(testDriver)
	f.Fuzz(func(t *testing.T, req uint32, data []byte, dev uint8) {
		mem := hostileMem(data)
		e := &traces.Event{Kind: traces.KindIoctl, Dev: devs[int(dev)%len(devs)], Args: [6]uint64{5, uint64(req), 0x1000}}
		watcher.Enter(e, mem)
		mem.flip()
		watcher.Exit(e, mem)
		total := 0
		for _, s := range e.Mem {
			total += len(s.In) + len(s.Out)
			if uint64(len(s.In)) > uint64(s.Len) || len(s.Out) > len(s.In) {
				t.Fatalf("segment of %d bytes has %d and %d", s.Len, len(s.In), len(s.Out))
			}
		}
		if total > 2*maxCall || len(e.Mem) > maxSegments {
			t.Fatalf("%d bytes in %d segments", total, len(e.Mem))
		}
		// What was copied decodes and prints.
		d := NewDecoder(&traces.Header{Driver: testDriver})
		if line := d.appendLine(nil, e, nil); len(line) == 0 || len(line) > 1<<22 {
			t.Fatalf("a line of %d bytes", len(line))
		}
	})
}

// hostileMem has the same bytes at every address; it ends at addresses that
// look like kernel ones.
type hostileMem []byte

func (m hostileMem) ReadMem(addr uint64, buf []byte) (int, error) {
	if len(m) == 0 || addr>>47 != 0 {
		return 0, errFault
	}
	for i := range buf {
		buf[i] = m[(addr+uint64(i))%uint64(len(m))]
	}
	return len(buf), nil
}

func (m hostileMem) flip() {
	if len(m) > 0 {
		m[rand.IntN(len(m))] ^= 0x11
	}
}
