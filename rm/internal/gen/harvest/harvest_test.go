package harvest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"nvtrace/rm/internal/gen/facts"
)

// driver is a tree in the shape of the driver's, with made-up content.
func driver() map[string]string {
	return map[string]string{
		"version.mk":       "NVIDIA_VERSION = 999.10.01\n",
		sdk + "/nvtypes.h": "#pragma once\n#include <stdint.h>\ntypedef uint32_t NvU32; typedef uint64_t NvU64; typedef uint8_t NvU8; typedef NvU32 NvHandle; typedef NvU64 NvP64; typedef NvU32 NvV32; typedef NvU8 NvBool; typedef NvU32 NV_STATUS;\n",
		sdk + "/nvos.h": `#include "nvtypes.h"
typedef struct { NvHandle hThing; NvU32 flags; NvP64 p __attribute__((aligned(8))); NvU32 status; } NVOSX_PARAMETERS;
#define NVOSX_FLAGS_MODE 1:0
#define NVOSX_FLAGS_MODE_FAST 1
#define NVOSX_FLAGS_MODE_SLOW 2
`,
		sdk + "/nvstatuscodes.h": "\nNV_STATUS_CODE(NV_OK, 0x00000000, \"text\")\nNV_STATUS_CODE(NV_ERR_X, 0x0000000A, \"text\")\n",
		sdk + "/class/clabcd.h":  "#define THING_A (0xabcd)\n#define NVABCD_METHOD (0xabcd)\n",
		sdk + "/alloc/alloc_x.h": "#include \"nvtypes.h\"\ntypedef struct THING_PARAMS { NvU64 size; NvHandle hVASpace; } THING_PARAMS;\n",
		sdk + "/ctrl/ctrlabcd.h": `#include "nvtypes.h"
#define NVABCD_CTRL_CMD(cat, idx) NVXXXX_CTRL_CMD(0xABCD, NVABCD_CTRL_##cat, idx)
#define NVABCD_CTRL_RESERVED (0x00)
#define NVABCD_CTRL_GPU (0x01)
#define NVABCD_CTRL_CMD_GPU_LIST (0xabcd0101U) /* finn: Evaluated from "(FINN_THING_GPU_INTERFACE_ID << 8) | NVABCD_CTRL_GPU_LIST_PARAMS_MESSAGE_ID" */
#define NVABCD_CTRL_GPU_LIST_PARAMS_MESSAGE_ID (0x1U)
/*
 * count [IN]
 * list [OUT]
 */
typedef struct NVABCD_CTRL_GPU_LIST_PARAMS { NvU32 listCount;
    NvU32 list[4];
    NvU32 kind; // [OUT]
    NvP64 data;
} NVABCD_CTRL_GPU_LIST_PARAMS;
#define NVABCD_CTRL_GPU_LIST_KIND_ONE 1
#define NVABCD_CTRL_CMD_GPU_BARE (0xabcd0102U) /* finn: Evaluated from "(FINN_THING_GPU_INTERFACE_ID << 8) | 0x2" */
`,
		"src/nvidia/generated/g_allclasses.h": "#define THING_A (0x0000abcd)\n",
		"src/nvidia/generated/g_thing_nvoc.c": `
    {
        /*flags=*/ 0x5u,
        /*accessRight=*/0x0u,
        /*methodId=*/ 0xabcd0101u,
        /*paramSize=*/ sizeof(NVABCD_CTRL_GPU_LIST_PARAMS),
        /*pClassInfo=*/ &(__nvoc_class_def_Thing.classInfo),
#if NV_PRINTF_STRINGS_ALLOWED
        /*func=*/ "thingCtrlCmdGpuList"
#endif
    },
    {
        /*flags=*/ 0x4u,
        /*accessRight=*/0x2u,
        /*methodId=*/ 0xabcd0103u,
        /*paramSize=*/ 0,
        /*pClassInfo=*/ &(__nvoc_class_def_Thing.classInfo),
#if NV_PRINTF_STRINGS_ALLOWED
        /*func=*/ "thingCtrlCmdNameless"
#endif
    },
`,
		"src/nvidia/inc/kernel/rmapi/control.h": "#define RMCTRL_FLAGS_PRIVILEGED 0x000000004\n#define RMCTRL_FLAGS_OTHER 0x000000001\n",
		"src/nvidia/src/kernel/rmapi/resource_list.h": `
RS_ENTRY(
    /* External Class */ THING_A,
    /* Internal Class */ Thing,
    /* Multi-Instance */ NV_TRUE,
    /* Parents */ RS_LIST(classId(Device), classId(Subdevice)),
    /* Alloc Param Info */ RS_REQUIRED(THING_PARAMS),
    /* Resource Free Priority */ 0,
)
`,
		"src/nvidia/src/kernel/rmapi/embedded_param_copy.c": `
        case NVABCD_CTRL_CMD_GPU_LIST:
            CHECK_PARAMS_OR_RETURN(pRmCtrlParams, NVABCD_CTRL_GPU_LIST_PARAMS);
            RMAPI_PARAM_COPY_INIT(paramCopies[0], ((NVABCD_CTRL_GPU_LIST_PARAMS*)pParams)->data, ((NVABCD_CTRL_GPU_LIST_PARAMS*)pParams)->data,
                ((NVABCD_CTRL_GPU_LIST_PARAMS*)pParams)->listCount, sizeof(NvU32));
            paramCopies[0].flags |= RMAPI_PARAM_COPY_FLAGS_SKIP_COPYIN;
`,
		"src/nvidia/interface/deprecated/rmapi_deprecated_control.c": "",
		arch + "/nv_escape.h": "#define NV_ESC_RM_X 0x2a\n#define NV_ESC_RM_Y 0x2b\n",
		"src/nvidia/arch/nvalloc/unix/src/escape.c": `
        case NV_ESC_RM_X:
        {
            NVOSX_PARAMETERS *pApi = data;
            NV_CTL_DEVICE_ONLY(nv);
        }
        default:
`,
		"src/nvidia/arch/nvalloc/unix/src/osapi.c":                       "",
		"kernel-open/nvidia/nv.c":                                        "",
		"kernel-open/nvidia-uvm/uvm_linux_ioctl.h":                       "#include \"nvtypes.h\"\n#define UVM_DEINITIALIZE 0x30000002\n#define UVM_DO 33\ntypedef struct { NvU64 base; NV_STATUS rmStatus; } UVM_DO_PARAMS;\n",
		"kernel-open/nvidia-uvm/uvm.c":                                   "UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_DO, uvm_api_do);",
		"kernel-open/nvidia-uvm/uvm_test.c":                              "",
		openInc + "/nvtypes.h":                                           "#include <stdint.h>\n#ifndef T\n#define T\ntypedef uint64_t NvU64; typedef uint32_t NvU32; typedef NvU32 NV_STATUS;\n#endif\n",
		"src/nvidia-modeset/interface/nvkms-api.h":                       "#include \"nvtypes.h\"\nenum NvKmsIoctlCommand { NVKMS_IOCTL_A, NVKMS_IOCTL_B };\nstruct NvKmsAParams { NvU32 request; };\n",
		"src/nvidia-modeset/src/nvkms.c":                                 "ENTRY(NVKMS_IOCTL_A, A)",
		"src/common/nvswitch/interface/ctrl_dev_nvswitch.h":              "#include \"nvtypes.h\"\n#define CTRL_NVSWITCH_GET 0x01\ntypedef struct { NvU32 v; } NVSWITCH_GET_PARAMS;\n",
		"src/common/nvswitch/kernel/nvswitch.c":                          "NVSWITCH_DEV_CMD_DISPATCH(CTRL_NVSWITCH_GET, f, NVSWITCH_GET_PARAMS);",
		"src/common/nvlink/interface/nvlink_lib_ctrl.h":                  "#include \"nvtypes.h\"\n#define CTRL_NVLINK_GO 0x02\ntypedef struct { NvU32 v; } nvlink_go;\n",
		"src/common/nvlink/kernel/nvlink/interface/nvlink_ioctl_entry.c": "case CTRL_NVLINK_GO: NVLINK_IOC_GET_BUF(p, nvlink_go)",
		"kernel-open/nvidia-drm/nvidia-drm-ioctl.h":                      "#include <drm/drm.h>\nstruct drm_nvidia_p { __u32 a; };\n#define DRM_IOCTL_NVIDIA_P DRM_IOWR((DRM_COMMAND_BASE + 1), struct drm_nvidia_p)\n",
	}
}

func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for n, s := range files {
		m[n] = &fstest.MapFile{Data: []byte(s)}
	}
	return m
}

func TestExtract(t *testing.T) {
	f, n, err := Extract(tree(driver()))
	if err != nil {
		t.Fatal(err)
	}
	if n.ExportRows != 2 || n.Exported != 2 || n.ClassRows != 1 {
		t.Errorf("counts: %s", n)
	}
	if f.Version != "999.10.01" || !maps.Equal(f.Status, map[string]uint64{"NV_OK": 0, "NV_ERR_X": 10}) {
		t.Errorf("version %s, statuses %v", f.Version, f.Status)
	}
	x, y := f.Escapes[0], f.Escapes[1]
	if x.Nr != 0x2a || !slices.Equal(x.Params, []string{"NVOSX_PARAMETERS"}) || x.Sizes[0] != 24 || x.Dev != "ctl" || x.Where != "escape.c" || y.Params != nil {
		t.Errorf("escapes: %+v", f.Escapes)
	}
	if len(f.Controls) != 3 {
		t.Fatalf("controls: %+v", f.Controls)
	}
	list, bare, nameless := f.Controls[0], f.Controls[1], f.Controls[2]
	if list.Name != "NVABCD_CTRL_CMD_GPU_LIST" || list.Params != "NVABCD_CTRL_GPU_LIST_PARAMS" || list.Size != 32 || !list.Impl || list.Flags != 5 || list.Iface != "THING_GPU" || list.Owner != "Thing" {
		t.Errorf("list: %+v", list)
	}
	if bare.Impl || bare.Params != "" || nameless.Name != "thingCtrlCmdNameless" || nameless.Access != 2 {
		t.Errorf("bare: %+v; nameless: %+v", bare, nameless)
	}
	if c := f.Classes[0]; c.Name != "THING_A" || c.ID != 0xabcd || c.Alloc != "THING_PARAMS" || c.Need != "required" || !c.Multi || !c.Open || !slices.Equal(c.Parents, []string{"Device", "Subdevice"}) {
		t.Errorf("class: %+v", c)
	}
	if e := f.Embedded["NVABCD_CTRL_CMD_GPU_LIST"]; len(e) != 1 || e[0] != (facts.Embedded{Params: "NVABCD_CTRL_GPU_LIST_PARAMS", Field: "data", Count: "listCount", Elem: "sizeof(NvU32)", Dir: "out"}) {
		t.Errorf("pointers: %+v", e)
	}
	if f.Counts["NVABCD_CTRL_GPU_LIST_PARAMS"]["list"] != "listCount" || f.Roles["NVOSX_PARAMETERS"]["hThing"] != "handle" || f.Roles["NVOSX_PARAMETERS"]["status"] != "status" {
		t.Errorf("counts %v, roles %v", f.Counts, f.Roles["NVOSX_PARAMETERS"])
	}
	if d := f.Dir["NVABCD_CTRL_GPU_LIST_PARAMS"]; d["list"] != "out" || d["kind"] != "out" {
		t.Errorf("directions: %v", d)
	}
	if d := f.Domains["NVOSX_PARAMETERS"]["flags"]; d.Via != "" && len(d.Ranges) == 0 {
		t.Errorf("flags: %+v", d)
	}
	if d := f.Domains["NVABCD_CTRL_GPU_LIST_PARAMS"]["kind"]; d.Vals["ONE"] != 1 {
		t.Errorf("kind: %+v", d)
	}
	if f.Category["abcd"]["01"] != "GPU" || f.Flags["RMCTRL_FLAGS_PRIVILEGED"] != 4 {
		t.Errorf("categories %v, flags %v", f.Category, f.Flags)
	}
	for name, l := range map[string][]facts.Ioctl{"uvm": f.UVM, "kms": f.KMS, "nvswitch": f.NVSwitch, "nvlink": f.NVLink, "drm": f.DRM} {
		i := slices.IndexFunc(l, func(x facts.Ioctl) bool { return x.Impl && x.Params != "" })
		if i < 0 || l[i].Size == 0 {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if f.DRM[0].Nr != 0xc0046441 {
		t.Errorf("drm number %#x", f.DRM[0].Nr)
	}
	if err := facts.NewSet().Add(f); err != nil {
		t.Error(err)
	}
}

// TestExtractFails: anything that does not read ends the extraction.
func TestExtractFails(t *testing.T) {
	for _, r := range []struct{ name, file, old, new, want string }{
		{"no version", "version.mk", "NVIDIA_VERSION", "X", "no NVIDIA_VERSION"},
		{"parse error", sdk + "/nvos.h", "NvU32 status", "NoSuchType status", "unknown type"},
		{"missing header", sdk + "/nvos.h", "\"nvtypes.h\"", "\"absent.h\"\n#include \"nvtypes.h\"", "header absent.h is not there"},
		{"export row", "src/nvidia/generated/g_thing_nvoc.c", "/*accessRight=*/0x2u", "/*accessRight=*/SOME_MACRO", "1 rows read of 2"},
		{"export struct", "src/nvidia/generated/g_thing_nvoc.c", "sizeof(NVABCD_CTRL_GPU_LIST_PARAMS)", "sizeof(NVABCD_NOT_THERE)", "no layout of NVABCD_NOT_THERE"},
		{"class row", "src/nvidia/src/kernel/rmapi/resource_list.h", "RS_REQUIRED(THING_PARAMS)", "OTHER_WAY(THING_PARAMS)", "0 rows read of 1"},
		{"class struct", "src/nvidia/src/kernel/rmapi/resource_list.h", "THING_PARAMS", "NOT_THERE", "no layout of NOT_THERE"},
		{"status row", sdk + "/nvstatuscodes.h", "0x0000000A", "TEN", "1 codes read of 2"},
		{"pointer", "src/nvidia/src/kernel/rmapi/embedded_param_copy.c", ", sizeof(NvU32))", ")", "4 arguments"},
		{"kms struct", "src/nvidia-modeset/src/nvkms.c", "A, A", "A, C", "no layout of NvKmsCParams"},
		{"uvm route", "kernel-open/nvidia-uvm/uvm.c", "UVM_DO,", "UVM_DONT,", "UVM_DONT is dispatched and has no number"},
		{"drm struct", "kernel-open/nvidia-drm/nvidia-drm-ioctl.h", "struct drm_nvidia_p)", "struct drm_nvidia_q)", "drm"},
	} {
		t.Run(r.name, func(t *testing.T) {
			d := driver()
			changed := strings.Replace(d[r.file], r.old, r.new, 1)
			if changed == d[r.file] {
				t.Fatalf("%s has no %q", r.file, r.old)
			}
			d[r.file] = changed
			_, _, err := Extract(tree(d))
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("error %v, want one about %q", err, r.want)
			}
		})
	}
	for name := range driver() {
		switch name {
		case sdk + "/class/clabcd.h", sdk + "/alloc/alloc_x.h", openInc + "/nvtypes.h":
			continue // there may be any number of the former; the latter has a double
		}
		d := driver()
		delete(d, name)
		if _, _, err := Extract(tree(d)); err == nil {
			t.Errorf("extracted without %s", name)
		}
	}
}

func TestUpper(t *testing.T) {
	for in, want := range map[string]string{"gpuId": "GPU_ID", "hVASpace": "H_VA_SPACE", "flags": "FLAGS", "bIsX": "B_IS_X", "gpu_id": "GPU_ID", "ECCMode": "ECC_MODE"} {
		if got := upper(in); got != want {
			t.Errorf("upper(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestTagNeedsATag(t *testing.T) {
	if _, err := Tag(t.TempDir(), "1.2"); err == nil {
		t.Error("an empty folder has a tag")
	}
}
