package object

import "math/bits"

// RingLayout is the layout of a ring buffer. Each multiprocessor has a part of
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
type RingLayout struct {
	Units     uint64
	MaxRecord uint64 // bytes of data
	Parts     int    // one for each multiprocessor, or one for all
	Size      uint64 // of a part
}

// Sizes in bytes, and marks, of a ring and its records.
const (
	UnitBytes       = 32
	RecordHead      = 16
	RingHead        = LineBytes
	RecordDiscarded = 1 << 31
	maxRecordBytes  = 64 << 10
	minRingUnits    = 16
	RingCookie      = 0x9e3a_61c7_5bd4_f20d

	RingReserved     = 0
	RingRead         = 8
	RingDropped      = 16
	RingDroppedUnits = 24
)

// UnitsFor returns the units that a record with so many bytes of data takes.
func UnitsFor(size uint64) uint64 { return (RecordHead + size + UnitBytes - 1) / UnitBytes }

// NewRingLayout makes a ring of want bytes, at most limit unless that is too
// small for anything; record is the size of the largest record if it is known.
func NewRingLayout(want, limit, record uint64) RingLayout {
	per := max(min(want, limit)/UnitBytes, minRingUnits, UnitsFor(min(record, maxRecordBytes)))
	for n := uint64(1) << (bits.Len64(per) - 1); ; n /= 2 {
		r := RingLayout{Units: n, MaxRecord: min(n*UnitBytes, maxRecordBytes) - RecordHead}
		if record != 0 {
			r.MaxRecord = min(r.MaxRecord, RoundUp(record, 8))
		}
		r.Size = RoundUp(RingHead+n*UnitBytes+RecordHead+r.MaxRecord, LineBytes)
		if r.Size <= limit || n <= minRingUnits || n/2 < UnitsFor(record) {
			return r
		}
	}
}

// LineBytes is the size of a line of a GPU's caches: what several multiprocessors write to is
// apart by this.
const LineBytes = 128
