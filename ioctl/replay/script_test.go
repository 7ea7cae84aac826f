package replay

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
	"nvtrace/traces"
)

const testDriver = "580.159.04"

// script makes recordings by hand.
type script struct {
	t      testing.TB
	abi    *rm.ABI
	header traces.Header
	events []*traces.Event
	pid    int32
	tid    int32
	next   uint64 // address of the next segment
	files  uint32
	fds    map[int32]*traces.Event // open events by descriptor
}

func newScript(t testing.TB) *script {
	t.Helper()
	v, err := rm.ParseVersion(testDriver)
	if err != nil {
		t.Fatal(err)
	}
	return &script{
		t: t, abi: rm.Load(v), pid: 100, tid: 100, next: 0x7f0000001000, fds: make(map[int32]*traces.Event),
		header: traces.Header{Schema: traces.SchemaVersion, Tool: "test", Arch: "amd64", Driver: testDriver, PID: 100, UVMMajor: 511},
	}
}

func (s *script) add(ev *traces.Event) {
	ev.PID, ev.TID = s.pid, s.tid
	ev.Time = int64(len(s.events)) * 1000
	s.events = append(s.events, ev)
}

// open records an open of a node.
func (s *script) open(fd int32, dev string) {
	s.files++
	ev := &traces.Event{Kind: traces.KindOpen, FD: fd, File: s.files, Dev: dev, Rdev: rdevOf(dev), Path: "/dev/" + dev, Ret: int64(fd)}
	s.fds[fd] = ev
	s.add(ev)
}

func rdevOf(dev string) uint64 {
	switch dev {
	case "nvidiactl":
		return unix.Mkdev(195, 255)
	case "nvidia-uvm":
		return unix.Mkdev(511, 0)
	case "nvidia-caps/nvidia-cap1":
		return unix.Mkdev(510, 1)
	}
	return unix.Mkdev(195, uint32(dev[len(dev)-1]-'0'))
}

// ioctl records a call with an argument, and parameters that the pointer at
// ptr leads to (ptr 0: none).
func (s *script) ioctl(fd int32, req uint32, ret int64, in, out []byte, ptr int, pin, pout []byte) {
	arg := s.seg(in, out)
	ev := &traces.Event{Kind: traces.KindIoctl, FD: fd, Ret: ret, Dur: 10}
	if f := s.fds[fd]; f != nil {
		ev.File, ev.Dev, ev.Rdev = f.File, f.Dev, f.Rdev
	}
	ev.Args = [6]uint64{uint64(fd), uint64(req), arg.Addr}
	ev.Mem = []traces.Seg{arg}
	if ptr > 0 {
		p := s.seg(pin, pout)
		binary.LittleEndian.PutUint64(in[ptr:], p.Addr)
		binary.LittleEndian.PutUint64(out[ptr:], p.Addr)
		ev.Mem = append(ev.Mem, p)
	}
	s.add(ev)
}

func (s *script) seg(in, out []byte) traces.Seg {
	seg := traces.Seg{Addr: s.next, Len: uint32(len(in)), In: in, Out: out}
	s.next += uint64(len(in)+0xfff) &^ 0xff
	return seg
}

// req is the request of an escape.
func req(nr uint32, size int) uint32 { return 3<<30 | uint32(size)<<16 | 'F'<<8 | nr }

// record is a structure of the driver's that is filled in by name.
type record struct {
	t testing.TB
	s *rm.Struct
	b []byte
}

func (s *script) record(name string) record {
	st := s.abi.Struct(name)
	if st == nil {
		s.t.Fatalf("no struct %s in %v", name, s.abi.Version())
	}
	return record{s.t, st, make([]byte, st.Size)}
}

// set fills members in: name, value pairs.
func (r record) set(pairs ...any) record {
	for i := 0; i < len(pairs); i += 2 {
		name := pairs[i].(string)
		f, base := r.find(r.s, name, 0)
		if f == nil {
			r.t.Fatalf("%s has no member %s", r.s.Name, name)
		}
		b := r.b[base : base+f.Size]
		switch v := pairs[i+1].(type) {
		case int:
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], uint64(v))
			copy(b[:min(f.Elem, 8)], w[:])
		case string:
			copy(b, v)
		case []uint32:
			for i, x := range v {
				binary.LittleEndian.PutUint32(b[4*i:], x)
			}
		default:
			r.t.Fatalf("%s: can't set a %T", name, v)
		}
	}
	return r
}

func (r record) find(s *rm.Struct, name string, base int) (*rm.Field, int) {
	first, rest, nested := strings.Cut(name, ".")
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Name != first {
			continue
		}
		if nested {
			return r.find(f.Struct, rest, base+f.Offset)
		}
		return f, base + f.Offset
	}
	return nil, 0
}

func (r record) clone() record { return record{r.t, r.s, bytes.Clone(r.b)} }

// escape records a call without parameters behind its argument.
func (s *script) escape(fd int32, nr uint32, in, out record) {
	s.ioctl(fd, req(nr, len(in.b)), 0, in.b, out.b, 0, nil, nil)
}

// control records NV_ESC_RM_CONTROL.
func (s *script) control(fd int32, client, object, cmd int, in, out record) {
	c := s.record("NVOS54_PARAMETERS").set("hClient", client, "hObject", object, "cmd", cmd, "paramsSize", len(in.b))
	s.ioctl(fd, req(escRMControl, len(c.b)), 0, c.b, c.clone().b, 16, in.b, out.b)
}

// alloc records NV_ESC_RM_ALLOC as NVOS21; new is what the program asked for,
// made what it got.
func (s *script) alloc(fd int32, client, parent, asked, made, class int, params *record) {
	in := s.record("NVOS21_PARAMETERS").set("hRoot", client, "hObjectParent", parent, "hObjectNew", asked, "hClass", class)
	out := in.clone().set("hObjectNew", made)
	if class == 0x41 {
		out.set("hRoot", made)
	}
	if params == nil {
		s.ioctl(fd, req(escRMAlloc, len(in.b)), 0, in.b, out.b, 0, nil, nil)
		return
	}
	in.set("paramsSize", len(params.b))
	out.set("paramsSize", len(params.b))
	s.ioctl(fd, req(escRMAlloc, len(in.b)), 0, in.b, out.b, 16, params.b, params.clone().b)
}

// free records NV_ESC_RM_FREE.
func (s *script) free(fd int32, client, parent, object int) {
	f := s.record("NVOS00_PARAMETERS").set("hRoot", client, "hObjectParent", parent, "hObjectOld", object)
	s.escape(fd, escRMFree, f, f.clone())
}

// bytes is the recording.
func (s *script) bytes() []byte {
	var out bytes.Buffer
	w, err := traces.NewWriter(&out, &s.header, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, ev := range s.events {
		w.Write(ev)
	}
	if err := w.Close(); err != nil {
		s.t.Fatal(err)
	}
	return out.Bytes()
}

// gpuFacts are what a recorded GPU says.
type gpuFacts struct {
	id, minor, bus int
	name, uuid     string
}

var h200 = gpuFacts{id: 0x100, minor: 0, bus: 1, name: "NVIDIA H200", uuid: "GPU-01234567-89ab-cdef-0123-456789abcdef"}

// rminfo records what examples/rminfo does on a machine with these GPUs.
func (s *script) rminfo(fd int32, client int, gpus ...gpuFacts) {
	s.open(fd, "nvidiactl")
	v := s.record("nv_ioctl_rm_api_version_t").set("cmd", int('2'))
	s.escape(fd, escCheckVersionStr, v, v.clone().set("reply", 1, "versionString", testDriver))
	p := s.record("nv_ioctl_sys_params_t").set("memblock_size", -1)
	s.escape(fd, 0xd6, p, p.clone().set("memblock_size", 1<<31))
	s.alloc(fd, 0, 0, 0, client, 0x41, nil)

	probed := s.record("NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS")
	ids := make([]uint32, 32)
	none := make([]uint32, 32)
	card := s.abi.Struct("nv_ioctl_card_info_t")
	cards := make([]byte, 32*card.Size)
	for i := range ids {
		ids[i], none[i] = 0xffffffff, 0xffffffff
		if i < len(gpus) {
			g := &gpus[i]
			ids[i] = uint32(g.id)
			record{s.t, card, cards[i*card.Size : (i+1)*card.Size]}.set("valid", 1, "gpu_id", g.id, "minor_number", g.minor,
				"pci_info.bus", g.bus, "pci_info.vendor_id", 0x10de, "pci_info.device_id", 0x2335)
		}
	}
	s.control(fd, client, client, 0x214, probed, probed.clone().set("gpuIds", ids, "excludedGpuIds", none))
	s.ioctl(fd, req(0xc8, len(cards)), 0, make([]byte, len(cards)), cards, 0, nil, nil)
	for i, g := range gpus {
		s.rminfoGPU(fd, fd+1, client, i, &g)
	}
	s.free(fd, client, 0, client)
}

func (s *script) rminfoGPU(ctl, fd int32, client, i int, g *gpuFacts) {
	s.open(fd, "nvidia"+string(rune('0'+g.minor)))
	reg := s.record("nv_ioctl_register_fd_t").set("ctl_fd", int(ctl))
	s.escape(fd, 0xc9, reg, reg.clone())
	attach := s.record("NV0000_CTRL_GPU_ATTACH_IDS_PARAMS").set("gpuIds", []uint32{uint32(g.id), 0xffffffff})
	s.control(ctl, client, client, 0x215, attach, attach.clone())
	id := s.record("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS").set("gpuId", g.id)
	s.control(ctl, client, client, 0x205, id, id.clone().set("deviceInstance", i, "numaId", -1))
	// Other handles than rminfo's own.
	dev, sub := 0x5c000000+2*i, 0x5c000001+2*i
	dp := s.record("NV0080_ALLOC_PARAMETERS").set("deviceId", i, "hClientShare", client)
	s.alloc(ctl, client, client, dev, dev, 0x80, &dp)
	sp := s.record("NV2080_ALLOC_PARAMETERS")
	s.alloc(ctl, client, dev, sub, sub, 0x2080, &sp)

	name := s.record("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	s.control(ctl, client, sub, 0x20800110, name, name.clone().set("gpuNameString", g.name))
	gid := s.record("NV2080_CTRL_GPU_GET_GID_INFO_PARAMS")
	s.control(ctl, client, sub, 0x2080014a, gid, gid.clone().set("length", len(g.uuid)+1, "data", g.uuid))
	arch := s.record("NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS")
	s.control(ctl, client, sub, 0x20801701, arch, arch.clone().set("architecture", 0x180, "revision", 0xa1))
	pci := s.record("NV2080_CTRL_BUS_GET_PCI_INFO_PARAMS")
	s.control(ctl, client, sub, 0x20801801, pci, pci.clone().set("pciSubSystemId", 0x18be10de))
	fb := s.record("NV2080_CTRL_FB_GET_INFO_V2_PARAMS").set("fbInfoListSize", 4, "fbInfoList", []uint32{8, 0, 7, 0, 9, 0, 11, 0})
	s.control(ctl, client, sub, 0x20801303, fb, fb.clone().set("fbInfoList", []uint32{8, 150 << 20, 7, 144 << 20, 9, 143 << 20, 11, 6144}))

	s.free(ctl, client, dev, sub)
	s.free(ctl, client, client, dev)
	s.add(&traces.Event{Kind: traces.KindClose, FD: fd, File: s.files, Dev: s.fds[fd].Dev, Args: [6]uint64{uint64(fd)}})
}
