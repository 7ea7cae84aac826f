package sim

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// A GPU describes the device that programs see. Figures are those that NVIDIA
// publishes in data sheets and in the table of compute capabilities of the CUDA
// programming guide.
type GPU struct {
	Key          string // as --sim= takes it
	Name         string // as cuDeviceGetName gives it
	Major, Minor int    // compute capability
	SMs          int    // multiprocessors
	Memory       uint64 // bytes
	ClockKHz     int    // of the multiprocessors
	MemClockKHz  int    // of the memory
	BusBits      int    // width of the memory's bus
	L2           int    // bytes
	ThreadsPerSM int
	BlocksPerSM  int
	SharedPerSM  uint64 // bytes
	SharedOptIn  uint64 // bytes that a block may have when the kernel's attribute says so
	PCIDevice    uint32 // device and vendor id
	// RegistersPerBlock is how many registers a block's threads may take together; 0
	// does not limit them, since what a kernel takes is an estimate.
	RegistersPerBlock int
}

// GPUs returns the devices that are described, the default first.
func GPUs() []GPU {
	const gib, mib, kib = 1 << 30, 1 << 20, 1 << 10
	return []GPU{
		{"h200", "NVIDIA H200", 9, 0, 132, 141 * gib, 1_980_000, 3_201_000, 6144, 60 * mib, 2048, 32, 228 * kib, 227 * kib, 0x233510de, 0},
		{"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 80 * gib, 1_980_000, 2_619_000, 5120, 50 * mib, 2048, 32, 228 * kib, 227 * kib, 0x233010de, 0},
		{"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 80 * gib, 1_410_000, 1_593_000, 5120, 40 * mib, 2048, 32, 164 * kib, 163 * kib, 0x20b210de, 0},
		{"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 24 * gib, 2_520_000, 10_501_000, 384, 72 * mib, 1536, 24, 100 * kib, 99 * kib, 0x268410de, 0},
		{"t4", "Tesla T4", 7, 5, 40, 16 * gib, 1_590_000, 5_001_000, 256, 4 * mib, 1024, 16, 64 * kib, 64 * kib, 0x1eb810de, 0},
	}
}

// FindGPU returns the described device of that key; "" is the default.
func FindGPU(key string) (GPU, error) {
	all := GPUs()
	if key == "" {
		return all[0], nil
	}
	i := slices.IndexFunc(all, func(g GPU) bool { return strings.EqualFold(g.Key, key) })
	if i < 0 {
		var keys []string
		for _, g := range all {
			keys = append(keys, g.Key)
		}
		return GPU{}, fmt.Errorf("no simulated GPU %q, there are %s", key, strings.Join(keys, ", "))
	}
	return all[i], nil
}

// machine is the description for the PTX machine.
func (g *GPU) machine() emu.Device {
	return emu.Device{
		Name: g.Name, Major: g.Major, Minor: g.Minor, SMs: g.SMs, MaxThreadsPerBlock: 1024,
		MaxThreadsPerSM: g.ThreadsPerSM, SharedPerBlock: g.SharedOptIn, ClockKHz: g.ClockKHz, TotalMemory: g.Memory,
	}
}

// runs reports whether the device may run PTX of that target: plain targets run
// on everything later, those with 'a' on this very device, those with 'f' on the
// later ones of the same family, which is the same major version.
func (g *GPU) runs(t ptx.Target) bool {
	cc := g.Major*10 + g.Minor
	sm := int(t.SM)
	switch t.Suffix {
	case 'a':
		return sm == cc
	case 'f':
		return sm/10 == g.Major && sm <= cc
	}
	return sm <= cc
}

// uuid is the identifier of the device with that ordinal; its words say "nvtrace".
func (g *GPU) uuid(ordinal int) (u [16]byte) {
	copy(u[:], "nvtrace simul")
	u[13], u[14], u[15] = byte(g.Major), byte(g.Minor), byte(ordinal)
	return u
}

// The limits that all described devices share.
const (
	maxThreadsPerBlock = 1024
	maxGridX           = 1<<31 - 1
	maxGridYZ          = 65535
	sharedDefault      = 48 << 10 // what a block may have without asking
	constMemory        = 64 << 10
	registersPerSM     = 65536
	warpThreads        = 32
)

// lastAttribute is the last that has a meaning.
const lastAttribute = cuda.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED

// attribute returns a CUdevice_attribute; ok is false if the number has no
// meaning. What the table does not have is 0, which says "not supported": so programs do not
// try memory pools of other processes, sparse arrays and the like. The
// runtime's cudaDeviceAttr has the same numbers.
func (g *GPU) attribute(id uint64, ordinal int) (v int32, ok bool) {
	if id == 0 || id > lastAttribute {
		return 0, false
	}
	switch id { // those that depend on the device
	case cuda.CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		return int32(g.ClockKHz), true
	case cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return int32(g.SMs), true
	case cuda.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return int32(1 + ordinal), true
	case cuda.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		return int32(g.MemClockKHz), true
	case cuda.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		return int32(g.BusBits), true
	case cuda.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		return int32(g.L2), true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return int32(g.ThreadsPerSM), true
	case cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return int32(g.Major), true
	case cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return int32(g.Minor), true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		return int32(g.SharedPerSM), true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		return int32(g.SharedOptIn), true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		return int32(g.BlocksPerSM), true
	case cuda.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
		if g.Major >= 8 {
			return 1024, true
		}
		return 0, true
	case cuda.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
		return bool32(g.Major >= 9), true
	case cuda.CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:
		return int32(g.PCIDevice), true
	}
	return commonAttributes[id], true
}

func bool32(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// commonAttributes are the device attributes that all described devices share: limits of blocks
// and grids, those of textures and surfaces, which are there because programs print them, and what
// the simulation can do.
var commonAttributes = map[uint64]int32{
	cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:                   maxThreadsPerBlock,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:                         1024,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:                         1024,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:                         64,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:                          maxGridX,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:                          maxGridYZ,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:                          maxGridYZ,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:             sharedDefault,
	cuda.CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:                   constMemory,
	cuda.CU_DEVICE_ATTRIBUTE_WARP_SIZE:                               warpThreads,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_PITCH:                               1<<31 - 1,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:                 registersPerSM,
	cuda.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:                       512,
	cuda.CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:                             1,
	cuda.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:                     1,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH:                 131072,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH:                 131072,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT:                65536,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH:                 16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT:                16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH:                 16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH:         32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT:        32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS:        2048,
	cuda.CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:                       512,
	cuda.CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:                      1,
	cuda.CU_DEVICE_ATTRIBUTE_ECC_ENABLED:                             1,
	cuda.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:                      3,
	cuda.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:                      1,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH:         32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS:        2048,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH:          32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT:         32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE:       8192,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE:      8192,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE:       32768,
	cuda.CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:                 32,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH:            32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH:    32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS:   2046,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH:                 32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH:                 131072,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT:                65536,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH:                 16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT:                16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH:                 16384,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH:         32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS:        2048,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH:         32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT:        32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS:        2048,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH:            32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH:    32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS:   2046,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH:          268435456,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH:          131072,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT:         65000,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH:          2097120,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH:       32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT:      32768,
	cuda.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH:       32768,
	cuda.CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:             1,
	cuda.CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:               1,
	cuda.CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:                1,
	cuda.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:        registersPerSM,
	cuda.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:                          1,
	cuda.CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:   2,
	cuda.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:               1,
	cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:            1,
	cuda.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: 1,
	cuda.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:                      1,
	cuda.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:                 1,
	cuda.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:     1,
	cuda.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:                  1,
	cuda.CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:               1,
	cuda.CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:                             0,
	cuda.CU_DEVICE_ATTRIBUTE_NUMA_ID:                                 -1,
	cuda.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:                            -1,
}

// Occupancy returns how many blocks a multiprocessor holds of a kernel that takes
// so many threads and bytes of shared memory a block, and registers a thread. The rule is that
// of NVIDIA's occupancy calculator: the scarcest of blocks, warps, registers and shared
// memory decides. From compute capability 8.0 on each block takes 1 KiB of shared memory more.
func (g *GPU) Occupancy(threads, shared uint64, registers int) int {
	if threads == 0 || threads > maxThreadsPerBlock {
		return 0
	}
	warps := (threads + warpThreads - 1) / warpThreads
	n := min(uint64(g.BlocksPerSM), uint64(g.ThreadsPerSM)/(warps*warpThreads))
	// Registers are given to warps in units of 256.
	if perWarp := (uint64(registers)*warpThreads + 255) &^ 255; perWarp != 0 {
		n = min(n, registersPerSM/perWarp/warps)
	}
	if g.Major >= 8 {
		shared += 1024
	}
	if shared = (shared + 127) &^ 127; shared != 0 {
		n = min(n, g.SharedPerSM/shared)
	}
	return int(n)
}
