package pack

import (
	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/wire"
)

// What the declarations alone do not say, and the generator is told by hand.
// Each row names where it can be checked.

// unlistedControls are commands that programs send and that the public headers
// lack. Names as gVisor's pkg/abi/nvgpu spells them; their bodies are not public.
var unlistedControls = []struct {
	cmd  uint32
	name string
}{
	{0x20800145, "NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION"},
	{0x20800146, "NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION"},
}

// notFollowed are pointers whose buffers have no size that a reader of the
// parameters could know: embedded_param_copy.c sizes them by types of closed
// code (USE_AMAPLIB) or of a driver-internal variable.
var notFollowed = map[string]bool{
	"NV2080_CTRL_CMD_FB_GET_AMAP_CONF.pAmapConfParams":                       true,
	"NV2080_CTRL_CMD_FB_GET_AMAP_CONF.pCbcSwizzleParams":                     true,
	"NV0073_CTRL_CMD_DP_SET_MSA_PROPERTIES.pUserParams->pFeatureDebugValues": true,
}

// squared are commands whose tables have as many rows as columns
// (embedded_param_copy.c: numEntries = gpuCount * gpuCount).
var squared = map[string]string{"NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS": "gpuCount"}

// textPointers are commands whose buffers hold characters (ctrl0000system.h).
var textPointers = map[string]bool{"NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION": true}

// unionPointers lie in a union; which one holds is told by another member
// (embedded_param_copy.c, i2cTransactionCopyIn).
var unionPointers = []struct{ control, member, enum, value string }{
	i2c("I2C_BLOCK_RW"), i2c("I2C_BUFFER_RW"), i2c("SMBUS_BLOCK_RW"),
	i2c("SMBUS_MULTIBYTE_REGISTER_BLOCK_RW"), i2c("READ_EDID_DDC"),
}

func i2c(kind string) struct{ control, member, enum, value string } {
	return struct{ control, member, enum, value string }{
		"NV402C_CTRL_CMD_I2C_TRANSACTION", "transType", "NV402C_CTRL_I2C_TRANSACTION_TYPE", "NV402C_CTRL_I2C_TRANSACTION_TYPE_" + kind,
	}
}

// escapePointers are the pointers in the arguments of escapes. Sources: control
// and alloc in escape.c and alloc_free.c; NVOS38 in osapi.c (lengths do not count
// the NUL); NVOS30 and I2C in rmapi_deprecated_misc.c; NVOS41 in osapi.c;
// xfer in nv.c.
var escapePointers = []pointer{
	{in: "NVOS54_PARAMETERS", field: "params", target: wire.TargetControl, dir: "inout", size: 1, count: "paramsSize"},
	{in: "NVOS21_PARAMETERS", field: "pAllocParms", target: wire.TargetAlloc, dir: "inout", size: 1, fixed: 1},
	{in: "NVOS64_PARAMETERS", field: "pAllocParms", target: wire.TargetAlloc, dir: "inout", size: 1, fixed: 1},
	{in: "NVOS64_PARAMETERS", field: "pRightsRequested", dir: "in", elem: "RS_ACCESS_MASK", fixed: 1},
	{in: "NVOS38_PARAMETERS", field: "pDevNode", dir: "in", size: 1, count: "DevNodeLength", plus: 1, text: true},
	{in: "NVOS38_PARAMETERS", field: "pParmStr", dir: "in", size: 1, count: "ParmStrLength", plus: 1, text: true},
	{in: "NVOS38_PARAMETERS", field: "pBinaryData", dir: "inout", size: 1, count: "BinaryDataLength"},
	{in: "NVOS30_PARAMETERS", field: "phClients", dir: "in", elem: "NvHandle", count: "numChannels"},
	{in: "NVOS30_PARAMETERS", field: "phDevices", dir: "in", elem: "NvHandle", count: "numChannels"},
	{in: "NVOS30_PARAMETERS", field: "phChannels", dir: "in", elem: "NvHandle", count: "numChannels"},
	{in: "NVOS41_PARAMETERS", field: "pEvent", dir: "out", elem: "NvUnixEvent", size: 16, fixed: 1},
	{in: "NVOS_I2C_ACCESS_PARAMS", field: "paramStructPtr", dir: "inout", elem: "NV2080_CTRL_I2C_ACCESS_PARAMS", fixed: 1},
	{in: "nv_ioctl_xfer_t", field: "ptr", target: wire.TargetEscape, dir: "inout", size: 1, count: "size"},
}

// stringMember reports whether a member holds characters: an array of char, or
// one of bytes that the headers document as a string.
func stringMember(record string, m *facts.Field) bool {
	return len(m.Dims) > 0 && (m.Type == "char" || m.Type == "NvU8" && byteStrings[record+"."+m.Name] || m.Type == "NvC8")
}

// byteStrings are strings that are declared as arrays of bytes.
var byteStrings = map[string]bool{
	"NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS.gpuNameString.ascii":      true, // ctrl2080gpu.h
	"NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS.gpuNameString":            true,
	"NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS.gpuShortNameString": true, // ctrl2080gpu.h
	"nv_ioctl_card_info.dev_name":                                     true, // nv-ioctl.h; a device's name, or empty
	"nv_ioctl_card_info_t.dev_name":                                   true,
}
