package channel

import "encoding/binary"

// SharedData is what the driver tells in the page of class RM_USER_SHARED_DATA (NV00DE_SHARED_DATA in
// cl00de.h), which libcuda maps for each GPU. The rest of that page (clocks, power, utilisation,
// temperature) is filled for clients that ask for it, which libcuda doesn't: with driver 580 its time stamps are 0.
type SharedData struct {
	Memory, FreeMemory uint64 // of the GPU, in bytes
}

// SharedDataSize is how many bytes of the page [ParseSharedData] wants.
const SharedDataSize = 40

// ParseSharedData reads the page. It returns false if it has no memory's size, or that was being written.
// b has at least SharedDataSize bytes.
func ParseSharedData(b []byte) (SharedData, bool) {
	const (
		pmaMemory     = 16 // RUSD_PMA_MEMORY_INFO: behind RUSD_BAR1_MEMORY_INFO
		sequenceStart = 0xff << 56
	)
	long := func(offset int) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }
	sequence := long(pmaMemory)
	s := SharedData{long(pmaMemory + 8), long(pmaMemory + 16)}
	valid := sequence >= sequenceStart && sequence&1 == 0 // RUSD_SEQ_DATA_VALID
	return s, valid && s.Memory != 0 && s.FreeMemory <= s.Memory
}
