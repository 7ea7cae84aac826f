package testrec

import "nvtrace/rm"

// Handles of the objects that [App] makes.
const (
	Client  = 0xc1d00001
	Device  = 0x5c000001
	Subdev  = 0x5c000002
	Space   = 0x5c000003
	Group   = 0x5c000004
	Channel = 0x5c000005
	Compute = 0x5c000006
	Copy    = 0x5c000007
	Vidmem  = 0x5c000010
	Sysmem  = 0x5c000011
	Door    = 0x5c000012
	Event   = 0x5c000013
)

// UUID is the GPU that App uses.
const UUID = "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef"

// App plays what a small compute program does up to its first kernel: client,
// device, address space, channel with its engine, memory, doorbell, unified
// memory. Nothing is freed.
func App(p *Program) {
	r := p.R
	p.Exec("/usr/bin/app", "-n", "3")
	p.Open(3, "nvidiactl")
	ver := r.New("nv_ioctl_rm_api_version_t").Set("cmd", '2').SetText("versionString", r.Header.Driver)
	p.Escape(3, 210, ver, func() { ver.Set("reply", 1) })
	p.Client(Client)
	p.Alloc(Client, Client, Device, 0x80, r.New("NV0080_ALLOC_PARAMETERS").B, rm.OK)
	p.Alloc(Client, Device, Subdev, 0x2080, r.New("NV2080_ALLOC_PARAMETERS").B, rm.OK)
	name := r.New("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	p.Control(Client, Subdev, 0x20800110, name.B, func() { name.SetText("gpuNameString", "NVIDIA H200") }, rm.OK)
	p.Alloc(Client, Device, Space, 0x90f1, r.New("NV_VASPACE_ALLOCATION_PARAMETERS").B, rm.OK)
	p.Memory(Client, Device, Vidmem, 0x40, 2<<20)
	p.Memory(Client, Device, Sysmem, 0x3e, 64<<10)
	p.Open(4, "nvidia0")
	group := r.New("NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS").Set("hVASpace", Space).Set("engineType", 1)
	p.Alloc(Client, Device, Group, 0xa06c, group.B, rm.OK)
	ch := r.New("NV_CHANNEL_ALLOC_PARAMS").Set("gpFifoEntries", 1024).Set("engineType", 1).Set("hUserdMemory[0]", Vidmem)
	p.Alloc(Client, Group, Channel, 0xc86f, ch.B, rm.OK)
	p.Alloc(Client, Channel, Compute, 0xcbc0, nil, rm.OK)
	p.Alloc(Client, Channel, Copy, 0xc8b5, nil, rm.OK)
	p.Alloc(Client, Subdev, Door, 0xc661, nil, rm.OK)
	p.Open(5, "nvidia0")
	p.Map(Client, Subdev, Door, 0x10000, 5, 0xd8810000)
	p.Close(5)
	p.Control(Client, Subdev, 0x2080a083, []byte{1, 2, 3, 4}, nil, rm.OK)
	p.Open(7, "nvidia-uvm")
	p.Ioctl(7, 0x30000001, r.New("UVM_INITIALIZE_PARAMS").B, nil, 0)
	reg := r.New("UVM_REGISTER_GPU_PARAMS").SetText("gpu_uuid", UUID).Set("rmCtrlFd", 3).Set("hClient", Client)
	p.Ioctl(7, 37, reg.B, nil, 0)
	vas := r.New("UVM_REGISTER_GPU_VASPACE_PARAMS").SetText("gpuUuid", UUID).Set("rmCtrlFd", 3).Set("hClient", Client).Set("hVaSpace", Space)
	p.Ioctl(7, 25, vas.B, nil, 0)
	rng := r.New("UVM_CREATE_EXTERNAL_RANGE_PARAMS").Set("base", 0x7f0000200000).Set("length", 2<<20)
	p.Ioctl(7, 73, rng.B, nil, 0)
	ext := r.New("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS").Set("base", 0x7f0000200000).Set("length", 2<<20).Set("gpuAttributesCount", 1).
		SetText("perGpuAttributes[0].gpuUuid", UUID).Set("rmCtrlFd", 3).Set("hClient", Client).Set("hMemory", Vidmem)
	p.Ioctl(7, 33, ext.B, nil, 0)
	p.Mmap(7, 0x7f4000000000, 4<<20)
}
