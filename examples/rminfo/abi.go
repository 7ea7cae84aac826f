package main

// The driver's structures as they are on a 64-bit machine, for every driver
// release from 515.43.04 to 595.45.04 unless a comment says otherwise. The
// names in the comments are the driver's own (open-gpu-kernel-modules); the
// tests hold sizes and offsets against package rm's tables, release by release.

// Escapes: the numbers of ioctl requests of type 'F' (nv_escape.h,
// nv-ioctl-numbers.h).
const (
	escFree         = 0x29 // NV_ESC_RM_FREE
	escControl      = 0x2a // NV_ESC_RM_CONTROL
	escAlloc        = 0x2b // NV_ESC_RM_ALLOC
	escCardInfo     = 0xc8 // NV_ESC_CARD_INFO
	escRegisterFD   = 0xc9 // NV_ESC_REGISTER_FD
	escCheckVersion = 0xd2 // NV_ESC_CHECK_VERSION_STR
	escSysParams    = 0xd6 // NV_ESC_SYS_PARAMS
)

// Classes of objects (class/*.h).
const (
	classRootClient = 0x0041 // NV01_ROOT_CLIENT
	classDevice     = 0x0080 // NV01_DEVICE_0
	classSubdevice  = 0x2080 // NV20_SUBDEVICE_0
)

// Controls (ctrl/*.h).
const (
	ctrlGetProbedIDs  = 0x00000214 // NV0000_CTRL_CMD_GPU_GET_PROBED_IDS
	ctrlAttachIDs     = 0x00000215 // NV0000_CTRL_CMD_GPU_ATTACH_IDS
	ctrlGetIDInfo     = 0x00000205 // NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2
	ctrlGetNameString = 0x20800110 // NV2080_CTRL_CMD_GPU_GET_NAME_STRING
	ctrlGetGIDInfo    = 0x2080014a // NV2080_CTRL_CMD_GPU_GET_GID_INFO
	ctrlGetFBInfo     = 0x20801303 // NV2080_CTRL_CMD_FB_GET_INFO_V2
	ctrlGetArchInfo   = 0x20801701 // NV2080_CTRL_CMD_MC_GET_ARCH_INFO
	ctrlGetPCIInfo    = 0x20801801 // NV2080_CTRL_CMD_BUS_GET_PCI_INFO
)

const (
	versionQuery      = '2'        // NV_RM_API_VERSION_CMD_QUERY: tell me yours (before 530: OVERRIDE, with the same effect)
	versionRecognized = 1          // NV_RM_API_VERSION_REPLY_RECOGNIZED
	invalidGPU        = 0xffffffff // NV0000_CTRL_GPU_INVALID_ID, ends a list of ids
	maxGPUs           = 32         // NV_MAX_DEVICES, NV0000_CTRL_GPU_MAX_PROBED_GPUS
)

// Indices of ctrlGetFBInfo (NV2080_CTRL_FB_INFO_INDEX_*); sizes are in KiB.
const (
	fbRAMSize      = 7  // RAM_SIZE
	fbTotalRAMSize = 8  // TOTAL_RAM_SIZE
	fbHeapSize     = 9  // HEAP_SIZE
	fbBusWidth     = 11 // BUS_WIDTH, in bits
)

// apiVersion is nv_ioctl_rm_api_version_t.
type apiVersion struct {
	Cmd     uint32
	Reply   uint32
	Version [64]byte
}

// sysParams is nv_ioctl_sys_params_t.
type sysParams struct {
	MemblockSize uint64
}

// pciInfo is nv_pci_info_t.
type pciInfo struct {
	Domain              uint32
	Bus, Slot, Function uint8
	_                   uint8
	Vendor, Device      uint16
}

// cardInfo is nv_ioctl_card_info_t; NV_ESC_CARD_INFO takes maxGPUs of them.
type cardInfo struct {
	Valid      uint8
	_          [3]uint8
	PCI        pciInfo
	GPUID      uint32
	Interrupt  uint16
	_          [2]uint8
	RegAddress uint64
	RegSize    uint64
	FBAddress  uint64
	FBSize     uint64
	Minor      uint32
	DevName    [10]byte
	_          [2]byte
}

// registerFD is nv_ioctl_register_fd_t.
type registerFD struct {
	CtlFD int32
}

// allocParams is NVOS21_PARAMETERS since 535.43.02, see [allocParams.status].
type allocParams struct {
	Root, Parent, New, Class uint32
	Params                   uint64
	ParamsSize               uint32
	Status                   uint32
}

// status is where the given release's driver writes the status: earlier ones
// have no ParamsSize, which the driver takes from the class anyway, but the
// status in its place.
func (a *allocParams) status(r release) *uint32 {
	if r.before(535, 43, 2) {
		return &a.ParamsSize
	}
	return &a.Status
}

// freeParams is NVOS00_PARAMETERS.
type freeParams struct {
	Root, Parent, Old uint32
	Status            uint32
}

// controlParams is NVOS54_PARAMETERS.
type controlParams struct {
	Client, Object, Cmd, Flags uint32
	Params                     uint64
	ParamsSize                 uint32
	Status                     uint32
}

// deviceParams is NV0080_ALLOC_PARAMETERS.
type deviceParams struct {
	DeviceID     uint32
	ClientShare  uint32
	TargetClient uint32
	TargetDevice uint32
	Flags        uint32
	_            uint32
	VASpaceSize  uint64
	VAStart      uint64
	VALimit      uint64
	VAMode       uint32
	_            uint32
}

// subdeviceParams is NV2080_ALLOC_PARAMETERS.
type subdeviceParams struct {
	SubDeviceID uint32
}

// probedIDs is NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS; before 580.65.06 it has
// no Flags, see [paramsSize].
type probedIDs struct {
	IDs      [maxGPUs]uint32
	Excluded [maxGPUs]uint32
	Flags    [maxGPUs]uint32
}

// attachIDs is NV0000_CTRL_GPU_ATTACH_IDS_PARAMS.
type attachIDs struct {
	IDs    [maxGPUs]uint32
	Failed uint32
}

// idInfo is NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS.
type idInfo struct {
	GPUID             uint32
	Flags             uint32
	DeviceInstance    uint32
	SubDeviceInstance uint32
	SLIStatus         uint32
	BoardID           uint32
	GPUInstance       uint32
	NUMA              int32
}

// nameString is NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS with flags 0 (ASCII);
// since 595.44.02 the 64 bytes that only UTF-16 needs are gone, see
// [paramsSize].
type nameString struct {
	Flags uint32
	Name  [128]byte
}

// gidInfo is NV2080_CTRL_GPU_GET_GID_INFO_PARAMS; flags 0 ask for "GPU-…" text.
type gidInfo struct {
	Index  uint32
	Flags  uint32
	Length uint32
	Data   [256]byte
}

// indexedInfo is NVXXXX_CTRL_XXX_INFO.
type indexedInfo struct {
	Index, Data uint32
}

// fbInfo is NV2080_CTRL_FB_GET_INFO_V2_PARAMS as of 580.65.06; earlier releases
// have a shorter list, see [paramsSize].
type fbInfo struct {
	Count uint32
	List  [128]indexedInfo
}

// archInfo is NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS.
type archInfo struct {
	Architecture   uint32
	Implementation uint32
	Revision       uint32
	SubRevision    uint8
	_              [3]uint8
}

// busPCIInfo is NV2080_CTRL_BUS_GET_PCI_INFO_PARAMS.
type busPCIInfo struct {
	DeviceID    uint32
	SubSystemID uint32
	RevisionID  uint32
	ExtDeviceID uint32
}

// release is a driver release as far as layouts need it: major, minor, patch.
type release [3]int

// before says whether r is older than the release of the given numbers.
func (r release) before(major, minor, patch int) bool {
	for i, n := range [3]int{major, minor, patch} {
		if r[i] != n {
			return r[i] < n
		}
	}
	return false
}

// paramsSize is the size that the given release's driver wants in
// NVOS54.paramsSize. Only three of the controls used here have changed; all of
// them only grew or shrank at the end, so that one Go structure serves every
// release.
func paramsSize(r release, cmd, newest uint32) uint32 {
	switch cmd {
	case ctrlGetProbedIDs:
		if r.before(580, 65, 6) {
			return 2 * maxGPUs * 4
		}
	case ctrlGetNameString:
		if !r.before(595, 44, 2) {
			return 4 + 64
		}
	case ctrlGetFBInfo:
		switch {
		case r.before(545, 23, 6):
			return 4 + 54*8
		case r.before(560, 28, 3):
			return 4 + 55*8
		case r.before(580, 65, 6):
			return 4 + 57*8
		}
	}
	return newest
}

// architectures names NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_* (ctrl2080mc.h).
var architectures = map[uint32]string{
	0x110: "GM000",
	0x120: "GM200",
	0x130: "GP100",
	0x140: "GV100",
	0x160: "TU100",
	0x170: "GA100",
	0x180: "GH100",
	0x190: "AD100",
	0x1a0: "GB100",
	0x1b0: "GB200",
}
