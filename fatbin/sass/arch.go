package sass

import "slices"

// A trait is what is known of an architecture and is not in the facts that the generator
// learns from NVIDIA's tools.
type trait struct {
	arch Arch
	ptx  [2]uint8 // the PTX version that probes' bodies for it are written in: it has what they use
	gpus bool     // there are GPUs of it: sm_88 and sm_107 are known from compilers alone
	ran  bool     // probes in its machine code were run on such a GPU and compared with other counts
	as   Arch     // whose stall counts are taken together with its own; 0: they stand alone

	descriptors bool   // global accesses may have a descriptor in uniform registers
	farTargets  bool   // relative targets have 56 bits, the lowest 8 of them apart
	wideForms   bool   // LDGSTS has its size at bit 74, LDSM three bits for its form
	stackEnd    uint64 // where in bank 0 the driver gives the end of a thread's local memory
}

// traits are ascending. An architecture that is not here is taken for the next lower one: of
// its code nothing is known anyway. CONTRIBUTING.md says how one is added.
var traits = []trait{
	{arch: 75, ptx: [2]uint8{7, 8}, gpus: true, stackEnd: 0x28},
	{arch: 80, ptx: [2]uint8{7, 8}, gpus: true, descriptors: true, stackEnd: 0x28},
	{arch: 86, ptx: [2]uint8{7, 8}, gpus: true, as: 80, descriptors: true, stackEnd: 0x28},
	{arch: 87, ptx: [2]uint8{7, 8}, gpus: true, as: 80, descriptors: true, stackEnd: 0x28},
	{arch: 88, ptx: [2]uint8{9, 0}, as: 80, descriptors: true, stackEnd: 0x28},
	{arch: 89, ptx: [2]uint8{7, 8}, gpus: true, as: 80, descriptors: true, stackEnd: 0x28},
	{arch: 90, ptx: [2]uint8{8, 0}, gpus: true, ran: true, descriptors: true, farTargets: true, stackEnd: 0x28},
	{arch: 100, ptx: [2]uint8{8, 6}, gpus: true, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
	{arch: 103, ptx: [2]uint8{8, 8}, gpus: true, as: 100, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
	{arch: 107, ptx: [2]uint8{9, 4}, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
	{arch: 110, ptx: [2]uint8{9, 0}, gpus: true, as: 100, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
	{arch: 120, ptx: [2]uint8{8, 8}, gpus: true, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
	{arch: 121, ptx: [2]uint8{9, 0}, gpus: true, as: 120, descriptors: true, farTargets: true, wideForms: true, stackEnd: 0x37c},
}

// trait returns what is known of the architecture, or of the next lower one.
func (a Arch) trait() *trait {
	i, found := slices.BinarySearchFunc(traits, a, func(t trait, a Arch) int { return int(t.arch) - int(a) })
	if !found {
		i = max(i-1, 0)
	}
	return &traits[i]
}

// Architectures returns those whose machine code is known, ascending.
func Architectures() []Arch {
	list := make([]Arch, len(traits))
	for i := range traits {
		list[i] = traits[i].arch
	}
	return list
}

// HasGPUs reports whether there are GPUs of the architecture: some are known from compilers
// alone.
func (a Arch) HasGPUs() bool { t := a.trait(); return t.arch == a && t.gpus }

// Ran reports whether woven code was run on a GPU of the architecture and compared with counts
// by other means.
func (a Arch) Ran() bool { t := a.trait(); return t.arch == a && t.ran }

// PTX returns the PTX version that the bodies of probes are written in, see [Weaver].
func (a Arch) PTX() (major, minor uint8) { t := a.trait(); return t.ptx[0], t.ptx[1] }

// LatencyArch returns the architecture that stands for those whose stall counts are
// taken together.
func LatencyArch(a Arch) Arch {
	if t := a.trait(); t.arch == a && t.as != 0 {
		return t.as
	}
	return a
}
