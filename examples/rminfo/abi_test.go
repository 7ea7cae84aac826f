package main

import (
	"reflect"
	"testing"
	"unsafe"

	"nvtrace/rm"
)

// layouts pairs this program's structures with the driver's, member by member
// in the order of the Go fields.
var layouts = []struct {
	goType any
	name   string
	fields []string
}{
	{apiVersion{}, "nv_ioctl_rm_api_version_t", []string{"cmd", "reply", "versionString"}},
	{sysParams{}, "nv_ioctl_sys_params_t", []string{"memblock_size"}},
	{pciInfo{}, "nv_pci_info_t", []string{"domain", "bus", "slot", "function", "vendor_id", "device_id"}},
	{cardInfo{}, "nv_ioctl_card_info_t", []string{"valid", "pci_info", "gpu_id", "interrupt_line", "reg_address", "reg_size", "fb_address", "fb_size", "minor_number", "dev_name"}},
	{registerFD{}, "nv_ioctl_register_fd_t", []string{"ctl_fd"}},
	{allocParams{}, "NVOS21_PARAMETERS", []string{"hRoot", "hObjectParent", "hObjectNew", "hClass", "pAllocParms", "paramsSize", "status"}},
	{freeParams{}, "NVOS00_PARAMETERS", []string{"hRoot", "hObjectParent", "hObjectOld", "status"}},
	{controlParams{}, "NVOS54_PARAMETERS", []string{"hClient", "hObject", "cmd", "flags", "params", "paramsSize", "status"}},
	{deviceParams{}, "NV0080_ALLOC_PARAMETERS", []string{"deviceId", "hClientShare", "hTargetClient", "hTargetDevice", "flags", "vaSpaceSize", "vaStartInternal", "vaLimitInternal", "vaMode"}},
	{subdeviceParams{}, "NV2080_ALLOC_PARAMETERS", []string{"subDeviceId"}},
	{probedIDs{}, "NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS", []string{"gpuIds", "excludedGpuIds", "gpuFlags"}},
	{attachIDs{}, "NV0000_CTRL_GPU_ATTACH_IDS_PARAMS", []string{"gpuIds", "failedId"}},
	{idInfo{}, "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", []string{"gpuId", "gpuFlags", "deviceInstance", "subDeviceInstance", "sliStatus", "boardId", "gpuInstance", "numaId"}},
	{nameString{}, "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS", []string{"gpuNameStringFlags", "gpuNameString"}},
	{gidInfo{}, "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS", []string{"index", "flags", "length", "data"}},
	{fbInfo{}, "NV2080_CTRL_FB_GET_INFO_V2_PARAMS", []string{"fbInfoListSize", "fbInfoList"}},
	{archInfo{}, "NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS", []string{"architecture", "implementation", "revision", "subRevision"}},
	{busPCIInfo{}, "NV2080_CTRL_BUS_GET_PCI_INFO_PARAMS", []string{"pciDeviceId", "pciSubSystemId", "pciRevisionId", "pciExtDeviceId"}},
}

// resized are the structures that paramsSize cuts to a release's measure.
var resized = map[string]uint32{
	"NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS":  ctrlGetProbedIDs,
	"NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS": ctrlGetNameString,
	"NV2080_CTRL_FB_GET_INFO_V2_PARAMS":      ctrlGetFBInfo,
}

// Every structure has the offsets and the size that the driver's has, in every
// release that the tables know.
func TestLayouts(t *testing.T) {
	versions := rm.Versions()
	if len(versions) < 100 {
		t.Fatalf("only %d releases in the tables", len(versions))
	}
	for _, v := range versions {
		abi := rm.Load(v)
		rel := release{int(v.Major), int(v.Minor), int(v.Patch)}
		for _, l := range layouts {
			s := abi.Struct(l.name)
			if s == nil {
				t.Errorf("%v: no %s", v, l.name)
				continue
			}
			size := uint32(reflect.TypeOf(l.goType).Size())
			if cmd, ok := resized[l.name]; ok {
				size = paramsSize(rel, cmd, size)
			}
			if int(size) != s.Size {
				t.Errorf("%v: %s has %d bytes here, %d in the driver", v, l.name, size, s.Size)
			}
			compareFields(t, v, l.goType, s, l.fields)
		}
	}
}

func compareFields(t *testing.T, v rm.Version, goType any, s *rm.Struct, names []string) {
	t.Helper()
	byName := make(map[string]*rm.Field)
	for i := range s.Fields {
		byName[s.Fields[i].Name] = &s.Fields[i]
	}
	i := 0
	for f := range reflect.TypeOf(goType).Fields() {
		if f.Name == "_" {
			continue
		}
		if i == len(names) {
			t.Fatalf("%s: more Go members than names", s.Name)
		}
		theirs := byName[names[i]]
		i++
		if old, ok := goType.(allocParams); ok && i > 5 && v.Compare(rm.Version{Major: 535}) < 0 {
			if theirs != nil { // the status, where this program looks for it
				at := uintptr(unsafe.Pointer(old.status(release{530}))) - uintptr(unsafe.Pointer(&old))
				if int(at) != theirs.Offset {
					t.Errorf("%v: status is looked for at %d, and is at %d", v, at, theirs.Offset)
				}
			}
			continue
		}
		if theirs == nil { // only what lies behind the end of some releases' structure may be missing
			if int(f.Offset) < s.Size {
				t.Errorf("%v: %s has no %s", v, s.Name, names[i-1])
			}
			continue
		}
		_, shorter := resized[s.Name]
		if int(f.Offset) != theirs.Offset || int(f.Type.Size()) != theirs.Size && !shorter {
			t.Errorf("%v: %s.%s is at %d with %d bytes here, at %d with %d in the driver", v, s.Name, theirs.Name, f.Offset, f.Type.Size(), theirs.Offset, theirs.Size)
		}
	}
	if i != len(names) {
		t.Errorf("%s: %d Go members for %d names", s.Name, i, len(names))
	}
}

// Every control has the number and the parameters that this program takes it
// to have.
func TestControls(t *testing.T) {
	controls := map[uint32]struct{ name, params string }{
		ctrlGetProbedIDs:  {"NV0000_CTRL_CMD_GPU_GET_PROBED_IDS", "NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS"},
		ctrlAttachIDs:     {"NV0000_CTRL_CMD_GPU_ATTACH_IDS", "NV0000_CTRL_GPU_ATTACH_IDS_PARAMS"},
		ctrlGetIDInfo:     {"NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS"},
		ctrlGetNameString: {"NV2080_CTRL_CMD_GPU_GET_NAME_STRING", "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS"},
		ctrlGetGIDInfo:    {"NV2080_CTRL_CMD_GPU_GET_GID_INFO", "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS"},
		ctrlGetFBInfo:     {"NV2080_CTRL_CMD_FB_GET_INFO_V2", "NV2080_CTRL_FB_GET_INFO_V2_PARAMS"},
		ctrlGetArchInfo:   {"NV2080_CTRL_CMD_MC_GET_ARCH_INFO", "NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS"},
		ctrlGetPCIInfo:    {"NV2080_CTRL_CMD_BUS_GET_PCI_INFO", "NV2080_CTRL_BUS_GET_PCI_INFO_PARAMS"},
	}
	escapes := map[uint32]string{
		escFree: "NV_ESC_RM_FREE", escControl: "NV_ESC_RM_CONTROL", escAlloc: "NV_ESC_RM_ALLOC", escCardInfo: "NV_ESC_CARD_INFO",
		escRegisterFD: "NV_ESC_REGISTER_FD", escCheckVersion: "NV_ESC_CHECK_VERSION_STR", escSysParams: "NV_ESC_SYS_PARAMS",
	}
	classes := map[uint32]string{classRootClient: "NV01_ROOT_CLIENT", classDevice: "NV01_DEVICE_0", classSubdevice: "NV20_SUBDEVICE_0"}
	for _, v := range rm.Versions() {
		abi := rm.Load(v)
		for cmd, want := range controls {
			c := abi.Control(cmd)
			if c == nil || c.Name != want.name || c.Params == nil || c.Params.Name != want.params {
				t.Errorf("%v: control %#x is %+v, want %v", v, cmd, c, want)
			}
		}
		for nr, want := range escapes {
			if e := abi.Escape(nr); e == nil || e.Name != want {
				t.Errorf("%v: escape %#x is %+v, want %s", v, nr, e, want)
			}
		}
		for id, want := range classes {
			if c := abi.Class(id); c == nil || c.Name != want {
				t.Errorf("%v: class %#x is %+v, want %s", v, id, c, want)
			}
		}
	}
}

func TestParseRelease(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want release
		ok   bool
	}{
		{"580.159.04", release{580, 159, 4}, true},
		{"555.58", release{555, 58, 0}, true},
		{"", release{}, false},
		{"580", release{}, false},
		{"580.x.1", release{}, false},
		{"580.1.2.3", release{}, false},
		{"580.-1.2", release{}, false},
	} {
		got, err := parseRelease(tt.in)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("parseRelease(%q) = %v, %v", tt.in, got, err)
		}
	}
	if r := (release{580, 65, 6}); r.before(580, 65, 6) || !r.before(580, 65, 7) || !r.before(581, 0, 0) || r.before(575, 64, 5) {
		t.Error("before is wrong")
	}
}

func TestArena(t *testing.T) {
	a, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.free()
	p := alloc[controlParams](a)
	p.Cmd = 7
	addr, size := addrSize(p)
	if size != 32 || addr%16 != 0 {
		t.Errorf("address %#x, size %d", addr, size)
	}
	if q := alloc[controlParams](a); q == p || q.Cmd != 0 {
		t.Error("alloc returned used memory")
	}
	a.reset()
	if q := alloc[controlParams](a); q != p || q.Cmd != 0 {
		t.Error("reset did not make memory available again, or alloc did not clear it")
	}
}
