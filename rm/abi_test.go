package rm

import (
	"iter"
	"slices"
	"sync"
	"testing"
)

func count[T any](s iter.Seq[T], keep func(T) bool) int {
	n := 0
	for x := range s {
		if keep == nil || keep(x) {
			n++
		}
	}
	return n
}

// TestCounts pins how much each version has. The numbers were counted in the
// driver's source by an extractor of its own making.
func TestCounts(t *testing.T) {
	type row struct{ escapes, uvm, uvmTest, controls, exported, params, classes, listed, alloc, kms, nvswitch, nvlink, drm, status int }
	for v, want := range map[string]row{
		"535.288.01": {40, 70, 96, 1426, 1132, 1298, 214, 145, 123, 59, 91, 43, 19, 133},
		"550.163.01": {41, 70, 97, 1503, 1220, 1369, 221, 152, 129, 63, 102, 43, 23, 137},
		"560.35.03":  {41, 70, 96, 1537, 1259, 1399, 230, 161, 137, 64, 102, 43, 24, 138},
		"570.211.01": {41, 74, 99, 1591, 1305, 1451, 257, 186, 157, 66, 102, 43, 24, 143},
		"580.142":    {41, 74, 103, 1617, 1348, 1490, 280, 209, 173, 66, 102, 43, 24, 150},
		"590.48.01":  {41, 70, 103, 1588, 1305, 1462, 281, 209, 171, 64, 102, 43, 24, 150},
		"595.45.04":  {37, 68, 105, 1620, 1342, 1493, 276, 209, 170, 64, 102, 43, 28, 151},
	} {
		a := load(t, v)
		got := row{
			escapes:  count(a.Escapes(), nil),
			uvm:      count(a.UVMs(), func(r *Request) bool { return !r.Test }),
			uvmTest:  count(a.UVMs(), func(r *Request) bool { return r.Test }),
			controls: count(a.Controls(), nil),
			exported: count(a.Controls(), func(c *Control) bool { return c.Exported }),
			params:   count(a.Controls(), func(c *Control) bool { return c.Params != nil }),
			classes:  count(a.Classes(), nil),
			listed:   count(a.Classes(), func(c *Class) bool { return c.Listed }),
			alloc:    count(a.Classes(), func(c *Class) bool { return c.Alloc != nil }),
			kms:      count(a.Modesets(), nil),
			nvswitch: count(a.NVSwitches(), nil) + count(a.NVSwitchCtls(), nil),
			nvlink:   count(a.NVLinks(), nil),
			drm:      count(a.DRMs(), nil),
			status:   count(a.statuses(), nil),
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", v, got, want)
		}
	}
	if n := len(Versions()); n != 193 {
		t.Errorf("%d versions", n)
	}
}

// layoutRow is a member that was looked up by hand in a header.
type layoutRow struct {
	record, member string
	offset, size   int
}

// TestLayouts checks members that everything else rests on.
func TestLayouts(t *testing.T) {
	for _, r := range []layoutRow{
		{"NVOS54_PARAMETERS", "hClient", 0, 4}, // nvos.h
		{"NVOS54_PARAMETERS", "hObject", 4, 4},
		{"NVOS54_PARAMETERS", "cmd", 8, 4},
		{"NVOS54_PARAMETERS", "flags", 12, 4},
		{"NVOS54_PARAMETERS", "params", 16, 8},
		{"NVOS54_PARAMETERS", "paramsSize", 24, 4},
		{"NVOS54_PARAMETERS", "status", 28, 4},
		{"NVOS21_PARAMETERS", "pAllocParms", 16, 8},
		{"NVOS21_PARAMETERS", "paramsSize", 24, 4},
		{"NVOS21_PARAMETERS", "status", 28, 4},
		{"NVOS64_PARAMETERS", "pRightsRequested", 24, 8},
		{"NVOS64_PARAMETERS", "paramsSize", 32, 4},
		{"NVOS64_PARAMETERS", "flags", 36, 4},
		{"NVOS64_PARAMETERS", "status", 40, 4},
		{"NVOS00_PARAMETERS", "status", 12, 4},
		{"NVOS32_PARAMETERS", "data", 40, 144},
		{"nv_ioctl_nvos33_parameters_with_fd", "fd", 48, 4},   // nv-unix-nvos-params-wrappers.h
		{"nv_ioctl_rm_api_version_t", "versionString", 8, 64}, // nv-ioctl.h
		{"NV0080_ALLOC_PARAMETERS", "deviceId", 0, 4},         // cl0080.h
		{"NV0080_ALLOC_PARAMETERS", "flags", 16, 4},
		{"NV0080_ALLOC_PARAMETERS", "vaSpaceSize", 24, 8},
		{"NV0080_ALLOC_PARAMETERS", "vaMode", 48, 4},
		{"NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS", "gpuNameString", 4, 128}, // ctrl2080gpu.h
		{"UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "hMemory", 9256, 4},          // uvm_ioctl.h
	} {
		s := load(t, "580.142").Struct(r.record)
		if s == nil {
			t.Errorf("no layout of %s", r.record)
			continue
		}
		if f := s.Lookup(r.member); f == nil || f.Offset != r.offset || f.Size != r.size {
			t.Errorf("%s.%s is %+v, want offset %d, size %d", r.record, r.member, f, r.offset, r.size)
		}
	}
}

// TestSteps checks the sizes on both sides of the versions that changed them.
func TestSteps(t *testing.T) {
	for _, r := range []struct {
		record        string
		before, after string
		from, to      int
	}{
		{"NVOS46_PARAMETERS", "575.64.05", "580.65.06", 56, 64},
		{"NVOS47_PARAMETERS", "545.29.06", "550.40.07", 40, 48},
		{"NVOS64_PARAMETERS", "530.41.03", "535.43.02", 40, 48},
		{"NV_CHANNEL_ALLOC_PARAMS", "535.54.03", "535.86.05", 304, 360},
		{"NV_CHANNEL_ALLOC_PARAMS", "565.77", "570.86.15", 360, 368},
		{"NV_MEMORY_ALLOCATION_PARAMS", "535.288.01", "545.23.06", 120, 128},
		{"UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "550.40.07", "550.40.53", 1200, 9264},
		{"nv_ioctl_export_to_dma_buf_fd_t", "565.77", "570.86.15", 2600, 2608},
	} {
		a, b := load(t, r.before).Struct(r.record), load(t, r.after).Struct(r.record)
		if a == nil || b == nil || a.Size != r.from || b.Size != r.to {
			t.Errorf("%s: %+v in %s, %+v in %s; want sizes %d and %d", r.record, a, r.before, b, r.after, r.from, r.to)
		}
	}
	for _, name := range []string{"NVOS54_PARAMETERS", "NVOS32_PARAMETERS", "NVOS33_PARAMETERS", "NVOS02_PARAMETERS"} {
		first := Load(Versions()[0]).Struct(name).Size
		for _, v := range Versions() {
			if s := Load(v).Struct(name); s == nil || s.Size != first {
				t.Errorf("%s changed in %s", name, v)
			}
		}
	}
}

// TestStructsAreSound checks every layout of every version: members lie inside,
// do not overlap except in unions, and arrays come out even.
func TestStructsAreSound(t *testing.T) {
	seen := map[*Struct]bool{}
	for _, v := range Versions() {
		for s := range Load(v).Structs() {
			if !seen[s] {
				seen[s] = true
				checkStruct(t, v, s)
			}
		}
	}
	if len(seen) < 3500 {
		t.Errorf("only %d layouts seen", len(seen))
	}
}

func checkStruct(t *testing.T, v Version, s *Struct) {
	t.Helper()
	if s.Align < 1 || s.Align&(s.Align-1) != 0 || s.Size%s.Align != 0 {
		t.Errorf("%s %s: size %d, align %d", v, s.Name, s.Size, s.Align)
	}
	end, endBit := 0, 0
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Offset < 0 || f.Size < 0 || f.Offset+f.Size > s.Size && f.Bits == 0 {
			t.Errorf("%s %s.%s: %d bytes at %d, in %d", v, s.Name, f.Name, f.Size, f.Offset, s.Size)
		}
		n := f.Elem
		for _, d := range f.Dims {
			n *= d
		}
		if n != f.Size {
			t.Errorf("%s %s.%s: %v elements of %d bytes are not %d", v, s.Name, f.Name, f.Dims, f.Elem, f.Size)
		}
		if (f.Kind == KindStruct) != (f.Struct != nil) || f.Struct != nil && f.Struct.Size != f.Elem {
			t.Errorf("%s %s.%s: kind %d, layout %v", v, s.Name, f.Name, f.Kind, f.Struct)
		}
		if f.Bits > 0 {
			at := f.Offset*8 + f.BitOff
			if !s.Union && at < endBit || at+f.Bits > s.Size*8 {
				t.Errorf("%s %s.%s: bits at %d, free from %d", v, s.Name, f.Name, at, endBit)
			}
			endBit = at + f.Bits
			end = (endBit + 7) / 8
			continue
		}
		if !s.Union && f.Offset < end {
			t.Errorf("%s %s.%s: at %d, free from %d", v, s.Name, f.Name, f.Offset, end)
		}
		end = f.Offset + f.Size
		endBit = end * 8
		if f.Count != "" && s.Lookup(f.Count) == nil {
			t.Errorf("%s %s.%s: counted by %s, which is no member", v, s.Name, f.Name, f.Count)
		}
	}
}

// TestControlsAreSound checks what commands refer to.
func TestControlsAreSound(t *testing.T) {
	seen := map[*Control]bool{}
	pointers := 0
	for _, v := range Versions() {
		for c := range Load(v).Controls() {
			if seen[c] {
				continue
			}
			seen[c] = true
			if c.Name == "" || c.Params != nil && c.Size != c.Params.Size || c.Params == nil && c.Size != 0 {
				t.Errorf("%s %#x %s: size %d, params %v", v, c.Cmd, c.Name, c.Size, c.Params)
			}
			if c.Exported && (c.Func == "" || c.Owner == "") {
				t.Errorf("%s %s: exported without function or owner", v, c.Name)
			}
			for i := range c.Embedded {
				pointers++
				e := &c.Embedded[i]
				if e.In != c.Params || e.Elem < 1 || e.Count == "" && e.Const < 1 || e.Offset+8 > c.Size || e.CountOff+e.CountSize > c.Size {
					t.Errorf("%s %s: %+v", v, c.Name, e)
				}
			}
		}
	}
	if len(seen) < 4000 || pointers < 50 {
		t.Errorf("%d commands, %d pointers seen", len(seen), pointers)
	}
}

func TestControl(t *testing.T) {
	a := load(t, "580.142")
	c := a.Control(0x20800110)
	if c == nil || c.Name != "NV2080_CTRL_CMD_GPU_GET_NAME_STRING" || c.Size != 132 || c.classID() != 0x2080 {
		t.Errorf("0x20800110 is %+v", c)
	}
	if a.Control(0x20800110) != c {
		t.Error("a second look-up gives another object")
	}
	if n := load(t, "595.45.04").Control(0x20800110); n == nil || n.Size != 68 {
		t.Errorf("in 595 it is %+v", n)
	}
	if got := a.Category(0x20800110); got != "GPU" {
		t.Errorf("category %q", got)
	}
	if a.Control(0xdeadbeef) != nil {
		t.Error("0xdeadbeef is a command")
	}
	reg := a.Control(0x20800122) // EXEC_REG_OPS
	if !slices.Contains(a.Control(0x20800301).FlagNames, "NON_PRIVILEGED") {
		t.Errorf("EVENT_SET_NOTIFICATION has flags %v", a.Control(0x20800301).FlagNames)
	}
	if len(reg.Embedded) != 1 || reg.Embedded[0].Struct == nil || reg.Embedded[0].Struct.Size != reg.Embedded[0].Elem {
		t.Errorf("pointers of EXEC_REG_OPS: %+v", reg.Embedded)
	}
	// Numbers are reused: 550 to 560 renumbered the display commands.
	old, now := load(t, "550.163.01").Control(0x730108), load(t, "560.35.03").Control(0x730108)
	if old == nil || now == nil || old.Name == now.Name {
		t.Errorf("0x730108 is %v, then %v", old, now)
	}
	if c := a.Control(0x20800145); c == nil || c.Params != nil {
		t.Errorf("the command that only the supplement knows is %+v", c)
	}
}

func TestControlGroup(t *testing.T) {
	a := load(t, "580.142")
	for cmd, want := range map[uint32]string{
		0x2080a083: "NV2080 PERF_LEGACY_NON_PRIVILEGED #0x83 (GSS-legacy)",
		0x2080e683: "NV2080 PMGR_LEGACY_PRIVILEGED #0x83 (GSS-legacy, privileged)",
		0x20810110: "NV2081 category 0x01 #0x10 (BINAPI)",
		0x12345678: "NV1234 category 0x56 #0x78",
	} {
		if got := a.ControlGroup(cmd); got != want {
			t.Errorf("%#x: %s, want %s", cmd, got, want)
		}
	}
}

func TestControlLayout(t *testing.T) {
	const getName = 0x20800110
	if c, v := load(t, "580.142").ControlLayout(getName, 68); c == nil || c.Size != 68 || v.Major != 595 {
		t.Errorf("68 bytes seen from 580: %v of %s", c, v)
	}
	if c, v := load(t, "580.142").ControlLayout(getName, 132); c == nil || v != version(t, "580.142") {
		t.Errorf("132 bytes seen from 580: %v of %s", c, v)
	}
	if c, _ := Newest().ControlLayout(getName, 7); c != nil {
		t.Errorf("7 bytes: %v", c)
	}
	if c, _ := Newest().ControlLayout(0xffffffff, 8); c != nil {
		t.Errorf("no such command: %v", c)
	}
	// Two commands share 0x2080132a in the headers.
	both := Newest().Control(0x2080132a)
	if both.Other == nil {
		t.Fatal("0x2080132a has one name")
	}
	if c, _ := Newest().ControlLayout(0x2080132a, both.Other.Size); c != both.Other {
		t.Errorf("by the other's size: %v", c)
	}
}

func TestEscape(t *testing.T) {
	a := load(t, "580.142")
	alloc := a.Escape(EscRMAlloc)
	if alloc == nil || len(alloc.Params) != 2 || alloc.Layout(32).Name != "NVOS21_PARAMETERS" || alloc.Layout(48).Name != "NVOS64_PARAMETERS" || alloc.Layout(40) != nil {
		t.Errorf("RM_ALLOC is %+v", alloc)
	}
	if card := a.Escape(EscCardInfo); !card.Array || card.Layout(32*72) == nil || card.Layout(71) != nil || card.Scope != ScopeCtl {
		t.Errorf("CARD_INFO is %+v", card)
	}
	if ids := a.Escape(EscAttachGPUs); !ids.Array || ids.Layout(12) == nil || ids.Layout(12).Size != 4 {
		t.Errorf("ATTACH_GPUS_TO_FD is %+v", ids)
	}
	for nr, name := range map[uint32]string{
		EscRMAllocMemory: "RM_ALLOC_MEMORY", EscRMAllocObject: "RM_ALLOC_OBJECT", EscRMFree: "RM_FREE", EscRMControl: "RM_CONTROL", EscRMAlloc: "RM_ALLOC",
		EscRMDupObject: "RM_DUP_OBJECT", EscRMShare: "RM_SHARE", EscRMIdleChannels: "RM_IDLE_CHANNELS", EscRMVidHeapControl: "RM_VID_HEAP_CONTROL",
		EscRMAccessRegistry: "RM_ACCESS_REGISTRY", EscRMMapMemory: "RM_MAP_MEMORY", EscRMUnmapMemory: "RM_UNMAP_MEMORY", EscRMGetEventData: "RM_GET_EVENT_DATA",
		EscRMAllocContextDMA2: "RM_ALLOC_CONTEXT_DMA2", EscRMMapMemoryDMA: "RM_MAP_MEMORY_DMA", EscRMUnmapMemoryDMA: "RM_UNMAP_MEMORY_DMA",
		EscRMBindContextDMA: "RM_BIND_CONTEXT_DMA", EscRMUpdateMapping: "RM_UPDATE_DEVICE_MAPPING_INFO", EscCardInfo: "CARD_INFO", EscRegisterFD: "REGISTER_FD",
		EscAllocOSEvent: "ALLOC_OS_EVENT", EscFreeOSEvent: "FREE_OS_EVENT", EscStatusCode: "STATUS_CODE", EscCheckVersionStr: "CHECK_VERSION_STR",
		EscXfer: "IOCTL_XFER_CMD", EscAttachGPUs: "ATTACH_GPUS_TO_FD", EscSysParams: "SYS_PARAMS", EscExportToDMABuf: "EXPORT_TO_DMABUF_FD", EscWaitOpen: "WAIT_OPEN_COMPLETE",
	} {
		if e := a.Escape(nr); e == nil || e.Name != "NV_ESC_"+name {
			t.Errorf("escape %#x is %v, want %s", nr, e, name)
		}
	}
}

func TestClass(t *testing.T) {
	a := load(t, "580.142")
	for id, want := range map[uint32]struct {
		name string
		kind Kindred
		nick string
		m    MapKind
	}{
		0x0041: {"NV01_ROOT_CLIENT", Client, "client", MapNone},
		0x0080: {"NV01_DEVICE_0", Device, "dev", MapNone},
		0x2080: {"NV20_SUBDEVICE_0", Subdevice, "subdev", MapNone},
		0x90f1: {"FERMI_VASPACE_A", VASpace, "vas", MapNone},
		0xa06c: {"KEPLER_CHANNEL_GROUP_A", ChannelGroup, "tsg", MapNone},
		0x9067: {"FERMI_CONTEXT_SHARE_A", ContextShare, "ctxshare", MapNone},
		0xc86f: {"HOPPER_CHANNEL_GPFIFO_A", Channel, "chan", MapUSERD},
		0xcbc0: {"HOPPER_COMPUTE_A", Compute, "compute", MapNone},
		0xcb97: {"HOPPER_A", Graphics, "threed", MapNone},
		0x902d: {"FERMI_TWOD_A", Graphics, "twod", MapNone},
		0xc8b5: {"HOPPER_DMA_COPY_A", Copy, "copy", MapNone},
		0x003e: {"NV01_MEMORY_SYSTEM", Memory, "sysmem", MapSysmem},
		0x0040: {"NV01_MEMORY_LOCAL_USER", Memory, "vidmem", MapVidmem},
		0x00de: {"RM_USER_SHARED_DATA", Stats, "stats", MapStats},
		0xc661: {"HOPPER_USERMODE_A", Usermode, "doorbell", MapDoorbell},
		0x003f: {"NV01_MEMORY_LOCAL_PRIVILEGED", Registers, "regs", MapRegisters},
		0x0079: {"NV01_EVENT_OS_EVENT", Event, "event", MapNone},
		0xa26f: {"KEPLER_CHANNEL_GPFIFO_C", Channel, "chan", MapUSERD}, // not in the table: by its name
	} {
		c := a.Class(id)
		if c == nil || c.Name != want.name || c.Kind != want.kind || c.Nick != want.nick || c.Map != want.m {
			t.Errorf("class %#x is %+v, want %+v", id, c, want)
		}
	}
	if c := a.Class(0xc86f); !c.Listed || c.Alloc.Name != "NV_CHANNEL_ALLOC_PARAMS" || !slices.Equal(c.Parents, []string{"Device", "KernelChannelGroupApi"}) || c.Need != NeedRequired {
		t.Errorf("channel class: %+v", c)
	}
	for _, v := range Versions() {
		for c := range Load(v).Classes() {
			if c.Nick == "" || c.Listed && c.Kind == Other && c.Nick == "obj" && !unsorted[c.Internal] {
				t.Errorf("%s: class %#x %s (%s) has no kind", v, c.ID, c.Name, c.Internal)
			}
		}
	}
}

// unsorted are internal classes that are of no interest to users.
var unsorted = map[string]bool{
	"KernelWatchdog": true, "SoftwareMethodTest": true, "LockStressObject": true, "LockTestRelaxedDupObject": true,
	"DiagApi": true, "GenericEngineApi": true, "Hdacodec": true,
}

func TestStatus(t *testing.T) {
	for s, want := range map[Status]string{0: "NV_OK", 0x1f: "NV_ERR_INVALID_ARGUMENT", 0x10006: "NV_WARN_NOTHING_TO_DO", 0x1234: "NV_STATUS(0x1234)"} {
		if s.String() != want {
			t.Errorf("%#x is %s, want %s", uint32(s), s, want)
		}
	}
	if a := load(t, "580.142"); a.StatusName(0x8b) != "NV_ERR_DMA_XFER_FAILED" || Status(0x8b).String() == "NV_ERR_DMA_XFER_FAILED" {
		t.Errorf("0x8b is %s in 580, %s in the newest", a.StatusName(0x8b), Status(0x8b))
	}
}

func TestDomains(t *testing.T) {
	a := load(t, "580.142")
	attr := a.Struct("NV_MEMORY_ALLOCATION_PARAMS").Lookup("attr").Domain
	i := slices.IndexFunc(attr.Ranges, func(r BitRange) bool { return r.Name == "LOCATION" })
	if i < 0 {
		t.Fatalf("attr has no LOCATION: %+v", attr.Ranges)
	}
	loc := &attr.Ranges[i]
	if name, ok := loc.valueName(loc.Of(1 << 25)); !ok || name != "PCI" || loc.mask() != 3<<25 || int(loc.Lo) != attrLocationLo {
		t.Errorf("location of 1<<25 is %q, mask %#x", name, loc.mask())
	}
	index := a.Struct("NV2080_CTRL_GPU_INFO").Lookup("index").Domain
	name, _ := index.Name(0x22)
	t.Log("GPU_INFO index 0x22 is", name)
	if len(index.Beside) == 0 {
		t.Error("the data beside GPU_INFO indexes has no names")
	}
	for _, b := range index.Beside {
		if n, ok := index.DataName(b.Of, b.Values[0].V); !ok || n != b.Values[0].Name {
			t.Errorf("DataName(%s, %d) = %q", b.Of, b.Values[0].V, n)
		}
	}
	fn := a.Struct("NVOS32_PARAMETERS").Lookup("function").Domain
	if n, ok := fn.Name(2); !ok || n != "ALLOC_SIZE" || !fn.Bound {
		t.Errorf("function 2 is %q", n)
	}
	if _, ok := fn.Name(12345); ok {
		t.Error("function 12345 has a name")
	}
}

// TestShared: versions that agree share the objects; that is what diff rests on.
func TestShared(t *testing.T) {
	a, b := load(t, "580.126.20"), load(t, "580.142")
	if a.Struct("NVOS54_PARAMETERS") != b.Struct("NVOS54_PARAMETERS") {
		t.Error("two versions have NVOS54 twice")
	}
	if load(t, "575.64.05").Struct("NVOS46_PARAMETERS") == b.Struct("NVOS46_PARAMETERS") {
		t.Error("a layout that changed is shared")
	}
}

func TestConcurrentUse(t *testing.T) {
	tab, err := open(packed) // of its own: nothing has been decoded
	if err != nil {
		t.Fatal(err)
	}
	first := make([][]*Control, 8)
	var wg sync.WaitGroup
	for i := range first {
		wg.Go(func() {
			a := tab.load(Version{})
			for c := range a.Controls() {
				first[i] = append(first[i], c)
			}
			for range a.Structs() {
			}
			for range a.Classes() {
			}
		})
	}
	wg.Wait()
	for i := range first {
		if !slices.Equal(first[i], first[0]) {
			t.Fatal("two goroutines got different objects")
		}
	}
}
