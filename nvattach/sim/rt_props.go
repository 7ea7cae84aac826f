package sim

import "encoding/binary"

// A property is a member of cudaDeviceProp that a device attribute fills: its
// offset in the structure of CUDA 12 (cudaGetDeviceProperties_v2, 1032 bytes) and in
// that of CUDA 13 (1008 bytes), -1 where it has none, and its size.
type property struct {
	at12, at13, size int
	attr             uint64
}

// The sizes of cudaDeviceProp.
const (
	propSize12 = 1032
	propSize13 = 1008
)

// properties are from driver_types.h of CUDA 12.9 and 13.0.
func properties() []property {
	return []property{
		{296, 296, 8, 8},   // sharedMemPerBlock
		{304, 304, 4, 12},  // regsPerBlock
		{308, 308, 4, 10},  // warpSize
		{312, 312, 8, 11},  // memPitch
		{320, 320, 4, 1},   // maxThreadsPerBlock
		{324, 324, 4, 2},   // maxThreadsDim
		{328, 328, 4, 3},   // maxThreadsDim
		{332, 332, 4, 4},   // maxThreadsDim
		{336, 336, 4, 5},   // maxGridSize
		{340, 340, 4, 6},   // maxGridSize
		{344, 344, 4, 7},   // maxGridSize
		{348, -1, 4, 13},   // clockRate
		{352, 352, 8, 9},   // totalConstMem
		{360, 360, 4, 75},  // major
		{364, 364, 4, 76},  // minor
		{368, 368, 8, 14},  // textureAlignment
		{376, 376, 8, 51},  // texturePitchAlignment
		{384, -1, 4, 15},   // deviceOverlap
		{388, 384, 4, 16},  // multiProcessorCount
		{392, -1, 4, 17},   // kernelExecTimeoutEnabled
		{396, 388, 4, 18},  // integrated
		{400, 392, 4, 19},  // canMapHostMemory
		{404, -1, 4, 20},   // computeMode
		{408, 396, 4, 21},  // maxTexture1D
		{412, 400, 4, 77},  // maxTexture1DMipmap
		{416, -1, 4, 69},   // maxTexture1DLinear
		{420, 404, 4, 22},  // maxTexture2D
		{424, 408, 4, 23},  // maxTexture2D
		{428, 412, 4, 73},  // maxTexture2DMipmap
		{432, 416, 4, 74},  // maxTexture2DMipmap
		{436, 420, 4, 70},  // maxTexture2DLinear
		{440, 424, 4, 71},  // maxTexture2DLinear
		{444, 428, 4, 72},  // maxTexture2DLinear
		{448, 432, 4, 45},  // maxTexture2DGather
		{452, 436, 4, 46},  // maxTexture2DGather
		{456, 440, 4, 24},  // maxTexture3D
		{460, 444, 4, 25},  // maxTexture3D
		{464, 448, 4, 26},  // maxTexture3D
		{468, 452, 4, 47},  // maxTexture3DAlt
		{472, 456, 4, 48},  // maxTexture3DAlt
		{476, 460, 4, 49},  // maxTexture3DAlt
		{480, 464, 4, 52},  // maxTextureCubemap
		{484, 468, 4, 42},  // maxTexture1DLayered
		{488, 472, 4, 43},  // maxTexture1DLayered
		{492, 476, 4, 27},  // maxTexture2DLayered
		{496, 480, 4, 28},  // maxTexture2DLayered
		{500, 484, 4, 29},  // maxTexture2DLayered
		{504, 488, 4, 53},  // maxTextureCubemapLayered
		{508, 492, 4, 54},  // maxTextureCubemapLayered
		{512, 496, 4, 55},  // maxSurface1D
		{516, 500, 4, 56},  // maxSurface2D
		{520, 504, 4, 57},  // maxSurface2D
		{524, 508, 4, 58},  // maxSurface3D
		{528, 512, 4, 59},  // maxSurface3D
		{532, 516, 4, 60},  // maxSurface3D
		{536, 520, 4, 61},  // maxSurface1DLayered
		{540, 524, 4, 62},  // maxSurface1DLayered
		{544, 528, 4, 63},  // maxSurface2DLayered
		{548, 532, 4, 64},  // maxSurface2DLayered
		{552, 536, 4, 65},  // maxSurface2DLayered
		{556, 540, 4, 66},  // maxSurfaceCubemap
		{560, 544, 4, 67},  // maxSurfaceCubemapLayered
		{564, 548, 4, 68},  // maxSurfaceCubemapLayered
		{568, 552, 8, 30},  // surfaceAlignment
		{576, 560, 4, 31},  // concurrentKernels
		{580, 564, 4, 32},  // ECCEnabled
		{584, 568, 4, 33},  // pciBusID
		{588, 572, 4, 34},  // pciDeviceID
		{592, 576, 4, 50},  // pciDomainID
		{596, 580, 4, 35},  // tccDriver
		{600, 584, 4, 40},  // asyncEngineCount
		{604, 588, 4, 41},  // unifiedAddressing
		{608, -1, 4, 36},   // memoryClockRate
		{612, 592, 4, 37},  // memoryBusWidth
		{616, 596, 4, 38},  // l2CacheSize
		{620, 600, 4, 108}, // persistingL2CacheMaxSize
		{624, 604, 4, 39},  // maxThreadsPerMultiProcessor
		{628, 608, 4, 78},  // streamPrioritiesSupported
		{632, 612, 4, 79},  // globalL1CacheSupported
		{636, 616, 4, 80},  // localL1CacheSupported
		{640, 624, 8, 81},  // sharedMemPerMultiprocessor
		{648, 632, 4, 82},  // regsPerMultiprocessor
		{652, 636, 4, 83},  // managedMemory
		{656, 640, 4, 84},  // isMultiGpuBoard
		{660, 644, 4, 85},  // multiGpuBoardGroupID
		{664, 648, 4, 86},  // hostNativeAtomicSupported
		{668, -1, 4, 87},   // singleToDoublePrecisionPerfRatio
		{672, 652, 4, 88},  // pageableMemoryAccess
		{676, 656, 4, 89},  // concurrentManagedAccess
		{680, 660, 4, 90},  // computePreemptionSupported
		{684, 664, 4, 91},  // canUseHostPointerForRegisteredMem
		{688, 668, 4, 95},  // cooperativeLaunch
		{692, -1, 4, 96},   // cooperativeMultiDeviceLaunch
		{696, 672, 8, 97},  // sharedMemPerBlockOptin
		{704, 680, 4, 100}, // pageableMemoryAccessUsesHostPageTables
		{708, 684, 4, 101}, // directManagedMemAccessFromHost
		{712, 688, 4, 106}, // maxBlocksPerMultiProcessor
		{716, 692, 4, 109}, // accessPolicyMaxWindowSize
		{720, 696, 8, 111}, // reservedSharedMemPerBlock
		{728, 704, 4, 99},  // hostRegisterSupported
		{732, 708, 4, 112}, // sparseCudaArraySupported
		{736, 712, 4, 113}, // hostRegisterReadOnlySupported
		{740, 716, 4, 114}, // timelineSemaphoreInteropSupported
		{744, 720, 4, 115}, // memoryPoolsSupported
		{748, 724, 4, 116}, // gpuDirectRDMASupported
		{752, 728, 4, 117}, // gpuDirectRDMAFlushWritesOptions
		{-1, 756, 4, 130},  // deviceNumaConfig
		{756, 732, 4, 118}, // gpuDirectRDMAWritesOrdering
		{760, 736, 4, 119}, // memoryPoolSupportedHandleTypes
		{-1, 760, 4, 131},  // deviceNumaId
		{764, 740, 4, 121}, // deferredMappingCudaArraySupported
		{-1, 764, 4, 133},  // mpsEnabled
		{768, 744, 4, 125}, // ipcEventSupported
		{-1, 768, 4, 134},  // hostNumaId
		{-1, 772, 4, 139},  // gpuPciDeviceID
		{772, 748, 4, 120}, // clusterLaunch
		{-1, 776, 4, 140},  // gpuPciSubsystemID
		{776, 752, 4, 129}, // unifiedFunctionPointers
		{-1, 780, 4, 143},  // hostNumaMultinodeIpcSupported
	}
}

// deviceProp builds a cudaDeviceProp of a library. What no attribute has is the name at 0, the UUID at 256 and the
// memory at 288; the LUID, of Windows alone, stays 0.
func (g *GPU) deviceProp(ordinal, lib int) []byte {
	size := propSize12
	if lib == libCudart13 {
		size = propSize13
	}
	b := make([]byte, size)
	copy(b[:255], g.Name)
	u := g.uuid(ordinal)
	copy(b[256:], u[:])
	binary.LittleEndian.PutUint64(b[288:], g.Memory)
	for _, m := range properties() {
		at := m.at12
		if lib == libCudart13 {
			at = m.at13
		}
		if at < 0 {
			continue
		}
		v, _ := g.attribute(m.attr, ordinal)
		if m.size == 8 {
			binary.LittleEndian.PutUint64(b[at:], uint64(v))
		} else {
			binary.LittleEndian.PutUint32(b[at:], uint32(v))
		}
	}
	return b
}
