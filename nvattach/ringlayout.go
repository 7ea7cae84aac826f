package nvattach

import "math/bits"

// ringLayout is the layout of a ring buffer. Each multiprocessor has a part of
// its own, so that the counter that hands out room is no bottleneck:
//
//	0    u64 units handed out so far (by the GPU)
//	8    u64 units read so far (by the host)
//	16   u64 records dropped
//	24   u64 units of them
//	128  units of 32 bytes, a power of two of them, and room for the largest record
//
// A record takes the units k to k+n-1, k counting from the start of time: it
// begins at unit k modulo the number of units, with a header, and runs on beyond
// the last unit rather than being split:
//
//	0    u64 cookie + k when the record is complete; its complement before
//	8    u32 bytes of data, recordDiscarded added when the program discarded it
//	12   u32 the CPU, on the host, where there is one part for all
//	16   data
//
// Who gets units for which there is no room (k+n beyond what was read plus the
// number of units) counts them as dropped and writes nothing. So of the units
// that were handed out, some begin a record and some were dropped, and the host
// tells them from those still being written by counting. The cookie is a
// number that no data has by chance, and old contents have other numbers, so data
// is not mistaken for a header.
type ringLayout struct {
	units     uint64
	maxRecord uint64 // bytes of data
	parts     int    // one for each multiprocessor, or one for all
	size      uint64 // of a part
}

const (
	unitBytes       = 32
	recordHead      = 16
	ringHead        = lineBytes
	recordDiscarded = 1 << 31
	maxRecordBytes  = 64 << 10
	minRingUnits    = 16
	ringCookie      = 0x9e3a_61c7_5bd4_f20d

	ringReserved     = 0
	ringRead         = 8
	ringDropped      = 16
	ringDroppedUnits = 24
)

// unitsFor returns the units that a record with so many bytes of data takes.
func unitsFor(size uint64) uint64 { return (recordHead + size + unitBytes - 1) / unitBytes }

// newRingLayout makes a ring of want bytes, at most limit unless that is too
// small for anything; record is the size of the largest record if it is known.
func newRingLayout(want, limit, record uint64) ringLayout {
	per := max(min(want, limit)/unitBytes, minRingUnits, unitsFor(min(record, maxRecordBytes)))
	for n := uint64(1) << (bits.Len64(per) - 1); ; n /= 2 {
		r := ringLayout{units: n, maxRecord: min(n*unitBytes, maxRecordBytes) - recordHead}
		if record != 0 {
			r.maxRecord = min(r.maxRecord, roundUp(record, 8))
		}
		r.size = roundUp(ringHead+n*unitBytes+recordHead+r.maxRecord, lineBytes)
		if r.size <= limit || n <= minRingUnits || n/2 < unitsFor(record) {
			return r
		}
	}
}

// lineBytes is the size of a line of a GPU's caches: what several multiprocessors write to is
// apart by this.
const lineBytes = 128
