package rm

import "strings"

// kinds tells what the objects of a class are by the driver's own class that
// implements them (resource_list.h, Internal Class), and how to call one.
var kinds = []struct {
	internal string
	kind     Kindred
	nick     string
}{
	{"RmClientResource", Client, "client"},
	{"Device", Device, "dev"},
	{"Subdevice", Subdevice, "subdev"},
	{"VaSpaceApi", VASpace, "vas"},
	{"KernelChannelGroupApi", ChannelGroup, "tsg"},
	{"KernelCtxShareApi", ContextShare, "ctxshare"},
	{"KernelChannel", Channel, "chan"},
	{"UvmChannelRetainer", Other, "retainer"},
	{"KernelGraphicsContext", Other, "grctx"},
	{"KernelCeContext", Copy, "copy"},
	{"NvdecContext", Video, "nvdec"},
	{"MsencContext", Video, "nvenc"},
	{"NvjpgContext", Video, "nvjpg"},
	{"OfaContext", Video, "ofa"},
	{"Sec2Context", Other, "sec2"},
	{"NvencSession", Video, "nvencsession"},
	{"NvfbcSession", Video, "nvfbcsession"},
	{"SystemMemory", Memory, "sysmem"},
	{"OsDescMemory", Memory, "osmem"},
	{"VideoMemory", Memory, "vidmem"},
	{"ExtendedGpuMemory", Memory, "egm"},
	{"PhysicalMemory", Memory, "physmem"},
	{"VirtualMemory", Memory, "virtmem"},
	{"VirtualMemoryRange", Memory, "virtmem"},
	{"MemoryList", Memory, "memlist"},
	{"MemoryHwResources", Memory, "hwres"},
	{"NoDeviceMemory", Memory, "mem"},
	{"ConsoleMemory", Memory, "console"},
	{"SyncpointMemory", Memory, "syncpoint"},
	{"FlaMemory", Fabric, "fla"},
	{"MemoryFabric", Fabric, "fabmem"},
	{"MemoryFabricImportV2", Fabric, "fabimport"},
	{"MemoryFabricImportedRef", Fabric, "fabref"},
	{"MemoryMulticastFabric", Fabric, "multicast"},
	{"MemoryMapper", Other, "mapper"},
	{"MemoryExport", Fabric, "export"},
	{"ImexSessionApi", Fabric, "imex"},
	{"FmSessionApi", Fabric, "fabricmgr"},
	{"RegisterMemory", Registers, "regs"},
	{"GpuUserSharedData", Stats, "stats"},
	{"UserModeApi", Usermode, "doorbell"},
	{"ContextDma", ContextDMA, "ctxdma"},
	{"Event", Event, "event"},
	{"EventApi", Event, "event"},
	{"EventBuffer", Event, "evbuf"},
	{"VblankCallback", Display, "vblank"},
	{"RgLineCallback", Display, "rgline"},
	{"KernelSMDebuggerSession", Debugger, "debugger"},
	{"DebugBufferApi", Debugger, "dbgbuf"},
	{"Profiler", Profiler, "profiler"},
	{"ProfilerCtx", Profiler, "profctx"},
	{"ProfilerDev", Profiler, "profdev"},
	{"PerfBuffer", Profiler, "perfbuf"},
	{"KernelCcuApi", Profiler, "ccu"},
	{"SemaphoreSurface", Semaphore, "semsurf"},
	{"TimedSemaSwObject", Semaphore, "timedsem"},
	{"TimerApi", Other, "timer"},
	{"P2PApi", P2P, "p2p"},
	{"ThirdPartyP2P", P2P, "p2p3"},
	{"GPUInstanceSubscription", MIG, "gpuinst"},
	{"ComputeInstanceSubscription", MIG, "compinst"},
	{"MIGConfigSession", MIG, "migconfig"},
	{"MIGMonitorSession", MIG, "migmonitor"},
	{"MmuFaultBuffer", FaultBuffer, "faultbuf"},
	{"AccessCounterBuffer", FaultBuffer, "accesscnt"},
	{"VidmemAccessBitBuffer", FaultBuffer, "accessbits"},
	{"VgpuApi", VGPU, "vgpu"},
	{"VgpuConfigApi", VGPU, "vgpuconf"},
	{"KernelHostVgpuDeviceApi", VGPU, "vgpudev"},
	{"Griddisplayless", VGPU, "griddisp"},
	{"NvDispApi", Display, "disp"},
	{"DispCommon", Display, "dispcommon"},
	{"DispSfUser", Display, "dispsf"},
	{"DispCapabilities", Display, "dispcaps"},
	{"DispChannelDma", Display, "dispchan"},
	{"DispChannelPio", Display, "disppio"},
	{"DispSwObj", Display, "dispsw"},
	{"DispSwObject", Display, "dispsw"},
	{"MpsApi", Other, "mps"},
	{"ConfidentialComputeApi", Other, "confcomp"},
	{"GpuManagementApi", Other, "gpumgmt"},
	{"SyncGpuBoost", Other, "syncboost"},
	{"GSyncApi", Display, "gsync"},
	{"BinaryApi", Other, "binapi"},
	{"BinaryApiPrivileged", Other, "binapipriv"},
	{"ZbcApi", Other, "zbc"},
	{"I2cApi", Other, "i2c"},
	{"CeUtilsApi", Other, "ceutils"},
	{"UvmSwObject", Other, "uvmsw"},
	{"DeferredApiObject", Other, "deferred"},
}

// suffixes tell the same by the name, for engine objects, which share one
// internal class, and for classes that the resource table lacks.
var suffixes = []struct {
	part string
	kind Kindred
	nick string
}{
	{"_COMPUTE_", Compute, "compute"},
	{"_DMA_COPY_", Copy, "copy"},
	{"_INLINE_TO_MEMORY_", Graphics, "i2m"},
	{"_TWOD_", Graphics, "twod"},
	{"_CHANNEL_GPFIFO", Channel, "chan"},
	{"_VIDEO_DECODER", Video, "nvdec"},
	{"_VIDEO_ENCODER", Video, "nvenc"},
	{"_VIDEO_NVJPG", Video, "nvjpg"},
	{"_VIDEO_OFA", Video, "ofa"},
	{"_USERMODE_A", Usermode, "doorbell"},
	{"_DISPLAY", Display, "disp"},
	{"_DISP_", Display, "disp"},
	{"_CHANNEL_DMA", Display, "dispchan"},
	{"_CHANNEL_PIO", Display, "disppio"},
	{"VASPACE", VASpace, "vas"},
	{"_PROFILER", Profiler, "profiler"},
	{"_FAULT_BUFFER", FaultBuffer, "faultbuf"},
}

// classify fills in what the tables do not say.
func (c *Class) classify() {
	c.byName()
	for _, k := range kinds {
		if k.internal == c.Internal {
			c.Kind, c.Nick = k.kind, k.nick
		}
	}
	c.Map = mapOf(c)
}

func (c *Class) byName() {
	for _, s := range suffixes {
		if strings.Contains(c.Name, s.part) {
			c.Kind, c.Nick = s.kind, s.nick
			return
		}
	}
	// The 3D classes are called by the architecture alone: HOPPER_A.
	if c.Internal == "KernelGraphicsObject" || c.ID&0xff == 0x97 {
		c.Kind, c.Nick = Graphics, "threed"
		return
	}
	c.Nick = "obj"
}

// mapOf says what an mmap of an object shows (nv-mmap.c, mapping_cpu.c, and the
// xxxMap methods of the internal classes).
func mapOf(c *Class) MapKind {
	switch c.Internal {
	case "UserModeApi":
		return MapDoorbell
	case "KernelChannel":
		return MapUSERD
	case "SystemMemory", "OsDescMemory", "NoDeviceMemory":
		return MapSysmem
	case "VideoMemory", "PhysicalMemory", "ConsoleMemory", "ExtendedGpuMemory", "MemoryFabric", "FlaMemory":
		return MapVidmem
	case "GpuUserSharedData":
		return MapStats
	case "RegisterMemory":
		return MapRegisters
	}
	if c.Kind == Channel {
		return MapUSERD
	}
	return MapNone
}

// The places of things in the mappings that user space writes and reads.
// (clc361.h, clc56f.h, cla06f.h; the same in all versions of the data.)
const (
	DoorbellPageSize = 64 << 10 // NVC361_NV_USERMODE__SIZE
	DoorbellOffset   = 0x90     // NVC361_NOTIFY_CHANNEL_PENDING: write a channel's work submit token
	DoorbellTimeLo   = 0x80     // NVC361_TIME_0
	DoorbellTimeHi   = 0x84     // NVC361_TIME_1
	USERDGet         = 0x88     // Nvc56fControl.GPGet: entries that the GPU has taken
	USERDPut         = 0x8c     // Nvc56fControl.GPPut: entries that the program has put
)

// String says what a mapping of the kind shows.
func (k MapKind) String() string {
	switch k {
	case MapDoorbell:
		return "doorbell"
	case MapUSERD:
		return "USERD"
	case MapVidmem:
		return "vidmem (BAR1)"
	case MapSysmem:
		return "pinned sysmem"
	case MapStats:
		return "statistics page"
	case MapRegisters:
		return "registers"
	}
	return "not mappable"
}

// String names the kindred in a few words.
func (k Kindred) String() string {
	names := [...]string{
		Other: "object", Client: "client", Device: "device", Subdevice: "subdevice", VASpace: "address space",
		ChannelGroup: "channel group", ContextShare: "context share", Channel: "GPFIFO channel",
		Compute: "compute object", Copy: "copy object", Graphics: "graphics object", Video: "video object",
		Memory: "memory", Fabric: "fabric object", ContextDMA: "context DMA", Event: "event", Usermode: "doorbell page",
		Stats: "statistics page", Debugger: "debugger", Profiler: "profiler", Display: "display object",
		Semaphore: "semaphore", VGPU: "vGPU object", MIG: "MIG object", FaultBuffer: "fault buffer",
		Registers: "registers", P2P: "peer mapping",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return "object"
}
