package fatbin

// wrapperSize is the size of a __fatBinC_Wrapper_t.
const wrapperSize = 24

// WrapperPointers are the addresses in a __fatBinC_Wrapper_t as it is in memory: what a
// program registers with the CUDA runtime, and how containers hang together.
//
// fatbinary_section.h: i32 magic, i32 version, u64 data, u64 file name (version
// 1) or list (version 2). The list of version 2, of the containers that were
// linked, is in .bss: the program fills it in when it starts, so that no file
// says what is on it.
type WrapperPointers struct {
	Version   int // 1 for a whole program, 2 for the result of linking device code (-rdc)
	Container uint64
	// List is the address of an array of addresses of containers, which a
	// null ends; with version 2, else 0. The driver links them if nothing in
	// Container fits.
	List uint64
}

// ParseWrapper reads the wrapper that b begins with, of a running program.
func ParseWrapper(b []byte) (WrapperPointers, error) {
	if len(b) < wrapperSize || u32(b) != wrapperMagic {
		return WrapperPointers{}, formatError("wrapper", 0, "no magic 0x%08x in %d bytes", uint32(wrapperMagic), len(b))
	}
	p := WrapperPointers{Version: int(int32(u32(b[4:]))), Container: u64(b[8:])}
	if p.Version == 2 {
		p.List = u64(b[16:])
	}
	return p, nil
}
