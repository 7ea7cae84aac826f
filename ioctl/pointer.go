package ioctl

import (
	"bytes"
	"encoding/binary"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Numbers of escapes that carry more than themselves (nv_escape.h,
// nv-ioctl-numbers.h). They are the same in every driver.
const (
	escAllocMemory   = 0x27
	escAllocObject   = 0x28
	escFree          = 0x29
	escControl       = 0x2a
	escAlloc         = 0x2b
	escDupObject     = 0x34
	escVidHeap       = 0x4a
	escMapMemory     = 0x4e
	escUnmapMemory   = 0x4f
	escAllocCtxDMA2  = 0x54
	escMapDMA        = 0x57
	escUnmapDMA      = 0x58
	escUpdateMapping = 0x5e
	escCheckVersion  = 210
	escXfer          = 211
	escExportDMABuf  = 217
)

// Bits that mark FINN-serialised parameters (nvos.h: NVOS54_FLAGS_FINN_SERIALIZED,
// NVOS64_FLAGS_FINN_SERIALIZED).
const (
	controlFinn = 4
	allocFinn   = 1
)

// isGeneric reports whether the kernel answers a request itself, on whatever
// file it is made: FIONCLEX, FIOCLEX, FIONBIO, FIOASYNC (asm-generic/ioctls.h).
func isGeneric(req uint32) bool { return genericName(req) != "" }

// genericRequests are those that genericName knows.
var genericRequests = []uint32{0x5421, 0x5450, 0x5451, 0x5452}

func genericName(req uint32) string {
	switch req {
	case 0x5421:
		return "FIONBIO"
	case 0x5450:
		return "FIONCLEX"
	case 0x5451:
		return "FIOCLEX"
	case 0x5452:
		return "FIOASYNC"
	}
	return ""
}

// target is what a pointer of the tables turned out to refer to.
type target struct {
	ok      bool
	addr    uint64
	size    uint64 // as claimed, not limited
	cmd     uint32 // TargetControl: command; TargetEscape: escape; TargetAlloc: class
	finn    bool   // the bytes are FINN-serialised
	control *rm.Control
	class   *rm.Class
}

// resolve finds where pointer e of the struct in b leads, and how far.
func resolve(abi *rm.ABI, e *rm.Embedded, b []byte) (t target) {
	if e.Of == rm.TargetAlloc {
		return resolveAlloc(abi, e, b)
	}
	t.addr, t.size, t.ok = e.Resolve(b)
	if !t.ok {
		return t
	}
	switch e.Of {
	case rm.TargetControl: // NVOS54_PARAMETERS: cmd at 8, flags at 12, in every driver
		if len(b) < 16 {
			return target{}
		}
		t.cmd = binary.LittleEndian.Uint32(b[8:])
		t.finn = binary.LittleEndian.Uint32(b[12:])&controlFinn != 0
		t.control = layoutOf(abi, t.cmd, int(min(t.size, maxParams)))
	case rm.TargetEscape: // nv_ioctl_xfer_t: cmd at 0
		t.cmd = iocNr(binary.LittleEndian.Uint32(b))
		if t.cmd == escXfer {
			return target{} // the driver refuses to nest it
		}
	}
	return t
}

// layoutOf returns the control whose parameters are n bytes long: this
// version's, another's if only that fits, this version's if none does.
func layoutOf(abi *rm.ABI, cmd uint32, n int) *rm.Control {
	c := abi.Control(cmd)
	if c == nil || c.Params == nil || c.Size == n {
		return c
	}
	if other, _ := abi.ControlLayout(cmd, n); other != nil {
		return other
	}
	return c
}

// resolveAlloc finds the allocation parameters of NVOS21 and NVOS64, whose
// hClass is at 12 in every driver. The driver takes their size from the class
// and ignores paramsSize; for a class that is not known, paramsSize is all
// there is.
func resolveAlloc(abi *rm.ABI, e *rm.Embedded, b []byte) (t target) {
	if len(b) < e.Offset+8 || len(b) < 16 {
		return t
	}
	t.addr = binary.LittleEndian.Uint64(b[e.Offset:])
	t.cmd = binary.LittleEndian.Uint32(b[12:])
	t.class = abi.Class(t.cmd)
	claimed := uint64(0)
	if f := fieldOf(e.In, "paramsSize"); f != nil {
		claimed = uint64(load32(b, f.Offset))
	}
	if f := fieldOf(e.In, "flags"); f != nil {
		t.finn = load32(b, f.Offset)&allocFinn != 0
	}
	switch {
	case t.finn:
		t.size = claimed
	case t.class != nil && t.class.Alloc != nil:
		t.size = uint64(t.class.Alloc.Size)
	case t.class != nil && t.class.Need == rm.NeedNone:
	default:
		t.size = claimed
	}
	t.ok = t.addr != 0 && t.size != 0
	return t
}

// fieldOf returns the member of that name, nil if s has none or is nil.
func fieldOf(s *rm.Struct, name string) *rm.Field {
	if s == nil {
		return nil
	}
	return s.Lookup(name)
}

// load32 returns the 32 bits at an offset, 0 beyond the end.
func load32(b []byte, at int) uint32 {
	if at < 0 || len(b) < at+4 {
		return 0
	}
	return binary.LittleEndian.Uint32(b[at:])
}

// load64 returns the 64 bits at an offset, 0 beyond the end.
func load64(b []byte, at int) uint64 {
	if at < 0 || len(b) < at+8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b[at:])
}

// handshakeVersion reads the driver's version out of the argument of
// NV_ESC_CHECK_VERSION_STR (nv_ioctl_rm_api_version_t: cmd, reply, 64
// characters). At exit the string is the kernel module's, whether or not it
// recognised the library's; without an exit the library's has to do, which must
// be the same for anything to work.
func handshakeVersion(s *traces.Seg) (rm.Version, bool) {
	b := s.Out
	if b == nil {
		b = s.In
	}
	if len(b) < 72 {
		return rm.Version{}, false
	}
	text, _, _ := bytes.Cut(b[8:72], []byte{0})
	v, err := rm.ParseVersion(string(text))
	return v, err == nil
}
