package fatbin

import "fmt"

// AttrFormat says how an attribute of .nv.info is stored.
type AttrFormat uint8

// The formats of attributes.
const (
	AttrNone  AttrFormat = 1 // no value; two bytes are unused
	AttrByte  AttrFormat = 2 // one byte; the next is unused
	AttrHalf  AttrFormat = 3 // two bytes
	AttrSized AttrFormat = 4 // two bytes of length, then the value
)

// AttrID names an attribute of .nv.info.
type AttrID uint8

// The attributes that this package reads; [AttrID.String] knows more.
const (
	AttrMaxThreads     AttrID = 0x05
	AttrParamCBank     AttrID = 0x0a
	AttrExterns        AttrID = 0x0f
	AttrReqThreads     AttrID = 0x10
	AttrFrameSize      AttrID = 0x11
	AttrMinStackSize   AttrID = 0x12
	AttrKParamInfo     AttrID = 0x17
	AttrParamSize      AttrID = 0x19
	AttrMaxRegisters   AttrID = 0x1b
	AttrExitOffsets    AttrID = 0x1c
	AttrMaxStackSize   AttrID = 0x23
	AttrCoopGroup      AttrID = 0x28
	AttrRegCount       AttrID = 0x2f
	AttrToolkit        AttrID = 0x37
	AttrCluster        AttrID = 0x3d
	AttrMaxClusterRank AttrID = 0x3f
	AttrKParamInfoV2   AttrID = 0x45
	AttrSyscallOffsets AttrID = 0x46
	AttrNumBarriers    AttrID = 0x4c
)

// attrNames are the names that nvdisasm prints, by number.
var attrNames = [...]string{
	0x01: "PAD", 0x02: "IMAGE_SLOT", 0x03: "JUMPTABLE_RELOCS", 0x04: "CTAIDZ_USED", 0x05: "MAX_THREADS",
	0x06: "IMAGE_OFFSET", 0x07: "IMAGE_SIZE", 0x08: "TEXTURE_NORMALIZED", 0x09: "SAMPLER_INIT", 0x0a: "PARAM_CBANK",
	0x0b: "SMEM_PARAM_OFFSETS", 0x0c: "CBANK_PARAM_OFFSETS", 0x0d: "SYNC_STACK", 0x0e: "TEXID_SAMPID_MAP",
	0x0f: "EXTERNS", 0x10: "REQNTID", 0x11: "FRAME_SIZE", 0x12: "MIN_STACK_SIZE", 0x13: "SAMPLER_FORCE_UNNORMALIZED",
	0x14: "BINDLESS_IMAGE_OFFSETS", 0x15: "BINDLESS_TEXTURE_BANK", 0x16: "BINDLESS_SURFACE_BANK", 0x17: "KPARAM_INFO",
	0x18: "SMEM_PARAM_SIZE", 0x19: "CBANK_PARAM_SIZE", 0x1a: "QUERY_NUMATTRIB", 0x1b: "MAXREG_COUNT",
	0x1c: "EXIT_INSTR_OFFSETS", 0x1d: "S2RCTAID_INSTR_OFFSETS", 0x1e: "CRS_STACK_SIZE", 0x1f: "NEED_CNP_WRAPPER",
	0x20: "NEED_CNP_PATCH", 0x21: "EXPLICIT_CACHING", 0x22: "ISTYPEP_USED", 0x23: "MAX_STACK_SIZE", 0x24: "SUQ_USED",
	0x25: "LD_CACHEMOD_INSTR_OFFSETS", 0x26: "LOAD_CACHE_REQUEST", 0x27: "ATOM_SYS_INSTR_OFFSETS",
	0x28: "COOP_GROUP_INSTR_OFFSETS", 0x29: "COOP_GROUP_MASK_REGIDS", 0x2a: "SW1850030_WAR", 0x2b: "WMMA_USED",
	0x2c: "HAS_PRE_V10_OBJECT", 0x2d: "ATOMF16_EMUL_INSTR_OFFSETS", 0x2e: "ATOM16_EMUL_INSTR_REG_MAP", 0x2f: "REGCOUNT",
	0x30: "SW2393858_WAR", 0x31: "INT_WARP_WIDE_INSTR_OFFSETS", 0x32: "SHARED_SCRATCH", 0x33: "STATISTICS",
	0x34: "INDIRECT_BRANCH_TARGETS", 0x35: "SW2861232_WAR", 0x36: "SW_WAR", 0x37: "CUDA_API_VERSION",
	0x38: "NUM_MBARRIERS", 0x39: "MBARRIER_INSTR_OFFSETS", 0x3a: "COROUTINE_RESUME_ID_OFFSETS",
	0x3b: "SAM_REGION_STACK_SIZE", 0x3c: "PER_REG_TARGET_PERF_STATS", 0x3d: "CTA_PER_CLUSTER", 0x3e: "EXPLICIT_CLUSTER",
	0x3f: "MAX_CLUSTER_RANK", 0x40: "INSTR_REG_MAP", 0x41: "RESERVED_SMEM_USED", 0x42: "RESERVED_SMEM_0_SIZE",
	0x43: "UCODE_SECTION_DATA", 0x44: "UNUSED_LOAD_BYTE_OFFSET", 0x45: "KPARAM_INFO_V2", 0x46: "SYSCALL_OFFSETS",
	0x47: "SW_WAR_MEMBAR_SYS_INSTR_OFFSETS", 0x48: "GRAPHICS_GLOBAL_CBANK", 0x49: "SHADER_TYPE",
	0x4a: "VRC_CTA_INIT_COUNT", 0x4b: "TOOLS_PATCH_FUNC", 0x4c: "NUM_BARRIERS", 0x4d: "TEXMODE_INDEPENDENT",
	0x4e: "PERF_STATISTICS", 0x4f: "AT_ENTRY_FRAGMENTS", 0x50: "SPARSE_MMA_MASK", 0x51: "TCGEN05_1CTA_USED",
	0x52: "TCGEN05_2CTA_USED", 0x53: "GEN_ERRBAR_AT_EXIT", 0x54: "REG_RECONFIG", 0x55: "ANNOTATIONS", 0x56: "SANITIZE",
	0x57: "STACK_CANARY_TRAP_OFFSETS", 0x58: "STUB_FUNCTION_KIND", 0x59: "LOCAL_CTA_ASYNC_STORE_OFFSETS",
	0x5a: "MERCURY_FINALIZER_OPTIONS",
}

// String returns the attribute's name, "REGCOUNT", or "attr(0x5f)".
func (id AttrID) String() string {
	if int(id) < len(attrNames) && attrNames[id] != "" {
		return attrNames[id]
	}
	return fmt.Sprintf("attr(0x%02x)", uint8(id))
}

// Attr is a record of .nv.info. Those with a meaning for this package are also
// in the fields of [Kernel]; here all are, in the file's order.
type Attr struct {
	Format AttrFormat
	ID     AttrID
	Value  []byte // aliases the image
}

// Words returns the value's 32-bit words; bytes that don't fill one are left out.
func (a *Attr) Words() []uint32 {
	w := make([]uint32, 0, len(a.Value)/4)
	for b := a.Value; len(b) >= 4; b = b[4:] {
		w = append(w, u32(b))
	}
	return w
}

// half returns the value of an AttrHalf.
func (a *Attr) half() int {
	if len(a.Value) < 2 {
		return 0
	}
	return int(u16(a.Value))
}

// symbolValue returns the two words of an attribute that gives a symbol a
// number.
func (a *Attr) symbolValue() (symbol, value uint32, ok bool) {
	if len(a.Value) < 8 {
		return 0, 0, false
	}
	return u32(a.Value), u32(a.Value[4:]), true
}

// parseAttrs reads the records of a section. An unknown format ends it with an
// error, as nothing says how long such a record is.
func parseAttrs(b []byte) ([]Attr, error) {
	var attrs []Attr
	for p := 0; p < len(b); {
		if len(b)-p < 4 {
			return attrs, formatError(".nv.info", uint64(p), "%d bytes are less than a record", len(b)-p)
		}
		a := Attr{Format: AttrFormat(b[p]), ID: AttrID(b[p+1])}
		switch n := 0; a.Format {
		case AttrNone, AttrByte, AttrHalf:
			n = int(a.Format) - 1
			a.Value = b[p+2 : p+2+n : p+2+n]
			p += 4
		case AttrSized:
			n = int(u16(b[p+2:]))
			if n > len(b)-p-4 {
				return attrs, formatError(".nv.info", uint64(p), "%s of %d bytes, and %d are left", a.ID, n, len(b)-p-4)
			}
			a.Value = b[p+4 : p+4+n : p+4+n]
			p += 4 + n
		default:
			return attrs, formatError(".nv.info", uint64(p), "format %d of %s", a.Format, a.ID)
		}
		attrs = append(attrs, a)
	}
	return attrs, nil
}

// ParamsOf returns a kernel's parameters, in their order, from the content of its section .nv.info.NAME.
func ParamsOf(info []byte) ([]Param, error) {
	attrs, err := parseAttrs(info)
	if err != nil {
		return nil, err
	}
	var k Kernel
	k.apply(attrs)
	return k.Params, nil
}
