package ioctl

import (
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

// startup is what a CUDA program does first, in little.
func startup(t testing.TB) *world {
	w := newWorld(t, testDriver)
	w.add(&traces.Event{Kind: traces.KindExec, FD: -1, Path: "/usr/bin/app", Argv: []string{"./app", "-v", "a \"b\"\n"}})
	w.open(clientFD, "nvidiactl")

	ver := w.new("nv_ioctl_rm_api_version_t").set("cmd", '2').setText("versionString", testDriver)
	w.call(clientFD, escReq(escCheckVersion, 72), w.place(ver.b), func() { ver.set("reply", 1) }, 0)

	params := w.new("nv_ioctl_sys_params_t")
	w.call(clientFD, escReq(214, 8), w.place(params.b), func() { params.set("memblock_size", 0x80000000) }, 0)

	cards := make([]byte, 32*72)
	w.call(clientFD, escReq(200, len(cards)), w.place(cards), func() {
		c := rmStruct{t, w.abi.Struct("nv_ioctl_card_info_t"), cards[:72]}
		c.set("valid", 1).set("pci_info.bus", 0x1b).set("pci_info.vendor_id", 0x10de).set("pci_info.device_id", 0x2335)
		c.set("gpu_id", 0x1b00).set("reg_address", 0xa0000000).set("reg_size", 0x1000000).setText("dev_name", "nvidia0")
	}, 0)

	w.alloc(0, 0, 0, 0x41, nil, rm.OK)
	ids := w.new("NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS")
	w.control(hClient, 0x214, ids.b, func() {
		for i := range 32 {
			ids.set("gpuIds["+itoa(i)+"]", 0xffffffff)
		}
		ids.set("gpuIds[0]", 0x1b00)
	}, rm.OK)
	dev := w.new("NV0080_ALLOC_PARAMETERS").set("hClientShare", hClient)
	w.alloc(hClient, hClient, hDevice, 0x80, dev.b, rm.OK)
	w.alloc(hClient, hDevice, hSub, 0x2080, w.new("NV2080_ALLOC_PARAMETERS").b, rm.OK)

	name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", "NVIDIA H200") }, rm.OK)

	gid := w.new("NV2080_CTRL_GPU_GET_GID_INFO_PARAMS").set("flags", 2)
	w.control(hSub, 0x2080014a, gid.b, func() {
		gid.set("length", 16).setText("data", "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef")
	}, rm.OK)

	info := w.new("NV2080_CTRL_GPU_GET_INFO_V2_PARAMS").set("gpuInfoListSize", 2).set("gpuInfoList[0].index", 0x19).set("gpuInfoList[1].index", 0x22)
	w.control(hSub, 0x20800102, info.b, func() { info.set("gpuInfoList[0].data", 1).set("gpuInfoList[1].data", 70000) }, rm.OK)

	// A list by pointer (version 1 of the same kind of command).
	list := make([]byte, 16)
	copy(list, le32(0x20, 0, 0x21, 0))
	v1 := w.new("NV2080_CTRL_FB_GET_INFO_PARAMS").set("fbInfoListSize", 2).set("fbInfoList", w.place(list))
	w.control(hSub, 0x20801301, v1.b, func() { copy(list[4:], le32(12345)) }, rm.OK)

	classes := make([]byte, 12)
	cl := w.new("NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS").set("numClasses", 3).set("classList", w.place(classes))
	w.control(hDevice, 0x800201, cl.b, func() { copy(classes, le32(0xc86f, 0x41, 0xfffe)) }, rm.OK)
	return w
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}

// memory is allocation, mapping and freeing of objects.
func memory(t testing.TB) *world {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(6, "nvidia0")

	mem := w.new("NV_MEMORY_ALLOCATION_PARAMS").set("owner", 0x6d6d).set("flags", 0x1c101).set("attr", 0x11800000).set("attr2", 0x1).set("size", 2<<20).set("alignment", 1<<16)
	w.alloc(hClient, hDevice, 0x5c000010, 0x40, mem.b, rm.OK)
	w.alloc(hClient, hSub, 0x5c000011, 0xc661, nil, rm.OK)

	m := w.new("nv_ioctl_nvos33_parameters_with_fd").set("params.hClient", hClient).set("params.hDevice", hSub).set("params.hMemory", 0x5c000011).set("params.length", 0x10000).set("fd", 6)
	w.call(clientFD, escReq(escMapMemory, len(m.b)), w.place(m.b), func() { m.set("params.pLinearAddress", 0xd8810000) }, 0)
	w.mmap(6, 0x10000, 0x7f12c0000000)
	up := w.new("NVOS56_PARAMETERS").set("hClient", hClient).set("hDevice", hSub).set("hMemory", 0x5c000011).set("pOldCpuAddress", 0xd8810000).set("pNewCpuAddress", 0x7f12c0000000)
	w.call(clientFD, escReq(escUpdateMapping, len(up.b)), w.place(up.b), nil, 0)
	w.close(6)

	sys := w.new("nv_ioctl_nvos02_parameters_with_fd").set("params.hRoot", hClient).set("params.hObjectParent", hDevice).set("params.hObjectNew", 0x5c000012).
		set("params.hClass", 0x3e).set("params.flags", 0x1010).set("params.limit", 0xffff).set("fd", 1<<32-1)
	w.call(clientFD, escReq(escAllocMemory, len(sys.b)), w.place(sys.b), nil, 0)

	heap := w.new("NVOS32_PARAMETERS").set("hRoot", hClient).set("hObjectParent", hDevice).set("function", 2).set("data.AllocSize.owner", 7).set("data.AllocSize.size", 4<<20).set("data.AllocSize.flags", 1)
	w.call(clientFD, escReq(escVidHeap, len(heap.b)), w.place(heap.b), func() { heap.set("data.AllocSize.hMemory", 0xcaf00001).set("data.AllocSize.offset", 0x100000) }, 0)

	dma := w.new("NVOS46_PARAMETERS").set("hClient", hClient).set("hDevice", hDevice).set("hDma", 0x5c000005).set("hMemory", 0x5c000010).set("length", 2<<20).set("flags", 0x8000)
	w.call(clientFD, escReq(87, len(dma.b)), w.place(dma.b), func() { dma.set("dmaOffset", 0x7f0000200000) }, 0)

	chan1 := w.new("NV_CHANNEL_ALLOC_PARAMS").set("gpFifoOffset", 0x200400000).set("gpFifoEntries", 1024).set("hVASpace", 0x5c000005).set("hUserdMemory[0]", 0x5c000010).set("userdOffset[0]", 0x1000).set("engineType", 1)
	w.alloc(hClient, 0x5c000006, 0x5c000020, 0xc86f, chan1.b, rm.OK)
	w.alloc(hClient, 0x5c000006, 0x5c000021, 0xc86f, chan1.b, 0x1f)

	dup := w.new("NVOS55_PARAMETERS").set("hClient", hClient).set("hParent", hDevice).set("hObject", 0x5c000030).set("hClientSrc", 0xc1d00002).set("hObjectSrc", 0x5c000010)
	w.call(clientFD, escReq(escDupObject, len(dup.b)), w.place(dup.b), nil, 0)

	un := w.new("NVOS34_PARAMETERS").set("hClient", hClient).set("hDevice", hSub).set("hMemory", 0x5c000011).set("pLinearAddress", 0x7f12c0000000)
	w.call(clientFD, escReq(escUnmapMemory, len(un.b)), w.place(un.b), nil, 0)
	w.add(&traces.Event{Kind: traces.KindMunmap, FD: -1, Args: [6]uint64{0x7f12c0000000, 0x10000}})
	free := w.new("NVOS00_PARAMETERS").set("hRoot", hClient).set("hObjectParent", hDevice).set("hObjectOld", 0x5c000010)
	w.call(clientFD, escReq(escFree, len(free.b)), w.place(free.b), nil, 0)
	return w
}

// uvm is traffic on nvidia-uvm.
func uvm(t testing.TB) *world {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(7, "nvidia-uvm")
	init := w.new("UVM_INITIALIZE_PARAMS").set("flags", 1)
	w.call(7, 0x30000001, w.place(init.b), nil, 0)
	reg := w.new("UVM_REGISTER_GPU_PARAMS").setText("gpu_uuid", "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef").set("rmCtrlFd", clientFD).set("hClient", hClient)
	w.call(7, 37, w.place(reg.b), func() { reg.set("numaEnabled", 1).set("numaNodeId", 1<<32-1) }, 0)
	ext := w.new("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS").set("base", 0x7f0000000000).set("length", 0x200000).set("gpuAttributesCount", 1).
		setText("perGpuAttributes[0].gpuUuid", "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef").set("perGpuAttributes[0].gpuMappingType", 1).
		set("rmCtrlFd", clientFD).set("hClient", hClient).set("hMemory", 0x5c000010)
	w.call(7, 33, w.place(ext.b), func() { ext.set("rmStatus", 0x1f) }, 0)
	w.call(7, 0x7d0, w.place(make([]byte, 64)), nil, -22)
	w.add(&traces.Event{
		Kind: traces.KindMmap, FD: 7, File: w.files[7].id, Dev: "nvidia-uvm", Rdev: w.rdevs["nvidia-uvm"], Ret: 0x7f4000000000,
		Args: [6]uint64{0x7f4000000000, 0x200000, 3, 0x11, 7, 0x7f4000000000},
	})
	w.call(7, 0x30000002, 0, nil, 0)
	return w
}

// odd is what the tables do not know, what fails, and what can't be read.
func odd(t testing.TB) *world {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(6, "nvidia0")
	w.control(hSub, 0x2080a083, []byte{1, 2, 3, 4, 0, 0, 0, 0}, nil, rm.OK)                  // GSS-legacy
	w.control(hSub, 0x20810110, []byte{9}, nil, 0x56)                                        // BINAPI
	w.control(hSub, 0x2080017e, make([]byte, 8), nil, 0x56)                                  // no such command
	w.control(hSub, 0x20800110, make([]byte, 68), nil, rm.OK)                                // the size of another version
	w.control(hSub, 0x20800110, make([]byte, 7), nil, 0x3b)                                  // the size of none
	w.alloc(hClient, hDevice, 0x5c000040, 0xfffe, []byte{1, 2, 3}, 0x22)                     // no such class, paramsSize 0
	w.call(clientFD, escReq(0x3f, 8), w.place(le32(7, 0)), nil, -22)                         // no such escape
	w.call(clientFD, 0x5421, w.place(le32(1)), nil, 0)                                       // FIONBIO
	w.call(clientFD, escReq(escControl, 32), 0xdead0000, nil, -14)                           // a bad pointer
	w.call(clientFD, escReq(escControl, 12), w.place(le32(1, 2, 3)), nil, -22)               // a bad size
	name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS").set("gpuNameStringFlags", 1)     //
	w.control(hSub, 0x20800110, name.b, func() { name.setText("gpuNameString", "X") }, 0x22) // fails: nothing is copied back

	// An escape in the envelope for big ones.
	free := w.new("NVOS00_PARAMETERS").set("hRoot", hClient).set("hObjectParent", hDevice).set("hObjectOld", 0x5c000010)
	xfer := w.new("nv_ioctl_xfer_t").set("cmd", escFree).set("size", uint64(len(free.b))).set("ptr", w.place(free.b))
	w.call(clientFD, escReq(escXfer, 16), w.place(xfer.b), func() { free.set("status", 0x36) }, 0)

	reg := w.new("NVOS38_PARAMETERS").set("hClient", hClient).set("AccessType", 1).set("ParmStrLength", 12).set("pParmStr", w.place([]byte("RmEnable\x1b[1m\x00")))
	w.call(clientFD, escReq(77, len(reg.b)), w.place(reg.b), func() { reg.set("status", 0x57) }, 0)

	e := w.control(hSub, 0x20800110, make([]byte, 132), nil, rm.OK)
	e.Flags |= traces.FlagNoExit
	e.Mem[0].Out, e.Mem[1].Out = nil, nil
	e = w.control(hSub, 0x20800110, make([]byte, 132), nil, rm.OK)
	e.Flags |= traces.FlagUnfinished
	e.Mem[0].Out, e.Mem[1].Out = nil, nil

	// Serialised parameters: a header, then bytes of no fixed layout.
	packed := append(make([]byte, 32), 1, 2, 3, 4)
	packed[0], packed[8], packed[16], packed[24] = 1, 4, 13, 2
	finn := w.new("NVOS54_PARAMETERS").set("hClient", hClient).set("hObject", hSub).set("cmd", 0x20801301).set("flags", 4).set("params", w.place(packed)).set("paramsSize", 36)
	w.call(clientFD, escReq(escControl, 32), w.place(finn.b), func() { packed[33] = 9 }, 0)

	e = w.control(hSub, 0x20800110, make([]byte, 132), nil, rm.OK)
	e.Flags |= traces.FlagRestarted
	e.Ret = -512

	w.add(&traces.Event{Kind: traces.KindDup, FD: clientFD, Dev: "nvidiactl", File: 1, Ret: 9, Args: [6]uint64{clientFD}})
	w.add(&traces.Event{Kind: traces.KindOpen, FD: -1, Path: "/dev/nvidia3", Ret: -2, Args: [6]uint64{0x55d0c0de5000, 2}})
	w.add(&traces.Event{Kind: traces.KindFork, FD: -1, Child: 4712})
	w.add(&traces.Event{Kind: traces.KindFork, FD: -1, Child: 4713, Flags: traces.FlagThread})
	w.add(&traces.Event{Kind: traces.KindMremap, FD: -1, Args: [6]uint64{0x7f0000000000, 4096, 8192}, Ret: -12})
	w.add(&traces.Event{Kind: traces.KindSignal, FD: -1, Ret: 11})
	w.add(&traces.Event{Kind: traces.KindNote, FD: -1, Text: "a note\x1b[2J"})
	w.add(&traces.Event{Kind: traces.KindLost, FD: -1, Ret: 12})
	w.add(&traces.Event{Kind: traces.KindOther, FD: -1, Name: "later"})
	w.add(&traces.Event{Kind: traces.KindExit, FD: -1, Ret: 3 << 8})
	w.add(&traces.Event{Kind: traces.KindExit, FD: -1, Ret: 11 | 0x80})
	w.add(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{Stops: 90, Events: 30, TracerCPU: 1_500_000}})
	return w
}
