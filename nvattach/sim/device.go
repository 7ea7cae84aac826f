package sim

import (
	"fmt"
	"slices"
	"strings"

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

// attribute returns a CUdevice_attribute; ok is false if the number has no
// meaning. What the table does not have is 0, which says "not supported": so programs do not
// try memory pools of other processes, sparse arrays and the like. Numbers are those of
// CUdevice_attribute in cuda.h, which are also cudaDeviceAttr of the runtime.
func (g *GPU) attribute(id uint64, ordinal int) (v int32, ok bool) {
	if id == 0 || id > 161 {
		return 0, false
	}
	switch id { // those that depend on the device
	case 13:
		return int32(g.ClockKHz), true
	case 16:
		return int32(g.SMs), true
	case 33: // PCI bus
		return int32(1 + ordinal), true
	case 36:
		return int32(g.MemClockKHz), true
	case 37:
		return int32(g.BusBits), true
	case 38:
		return int32(g.L2), true
	case 39:
		return int32(g.ThreadsPerSM), true
	case 75:
		return int32(g.Major), true
	case 76:
		return int32(g.Minor), true
	case 81:
		return int32(g.SharedPerSM), true
	case 97:
		return int32(g.SharedOptIn), true
	case 106:
		return int32(g.BlocksPerSM), true
	case 111: // reserved shared memory of a block
		if g.Major >= 8 {
			return 1024, true
		}
		return 0, true
	case 120: // clusters
		return bool32(g.Major >= 9), true
	case 139:
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

// commonAttributes are the device attributes that all described devices share: first limits of
// blocks and grids, then those of textures and surfaces (21 to 30, 42 to 74 and 77), which are
// there because programs print them, and what the simulation can do (31, 40, 41, 78 and on).
var commonAttributes = map[uint64]int32{
	1: maxThreadsPerBlock, 2: 1024, 3: 1024, 4: 64, // block
	5: maxGridX, 6: maxGridYZ, 7: maxGridYZ,
	8: sharedDefault, 9: constMemory, 10: warpThreads, 11: 1<<31 - 1, 12: registersPerSM,
	14: 512, 15: 1, 19: 1,
	21: 131072, 22: 131072, 23: 65536, 24: 16384, 25: 16384, 26: 16384, 27: 32768, 28: 32768, 29: 2048, 30: 512,
	31: 1, 32: 1, 40: 3, 41: 1, 42: 32768, 43: 2048, 45: 32768, 46: 32768, 47: 8192, 48: 8192, 49: 32768, 51: 32,
	52: 32768, 53: 32768, 54: 2046, 55: 32768, 56: 131072, 57: 65536, 58: 16384, 59: 16384, 60: 16384,
	61: 32768, 62: 2048, 63: 32768, 64: 32768, 65: 2048, 66: 32768, 67: 32768, 68: 2046,
	69: 268435456, 70: 131072, 71: 65000, 72: 2097120, 73: 32768, 74: 32768, 77: 32768,
	78: 1, 79: 1, 80: 1, 82: registersPerSM, 83: 1, 87: 2, 89: 1, 90: 1, 91: 1,
	95: 1, 99: 1, 102: 1, 115: 1, 129: 1, 130: 0, 131: -1, 134: -1,
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
