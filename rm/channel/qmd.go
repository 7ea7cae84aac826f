package channel

import "encoding/binary"

// A QMDLayout says where the fields of a QMD of one version lie.
type QMDLayout struct {
	Major, Minor uint8
	Fields       []Field // in the headers' order
}

// A QMD is the record by which a program launches a kernel (queue meta data), with its layout.
type QMD struct {
	Layout *QMDLayout
	bytes  []byte
}

// qmdSizes are the sizes of QMDs in bytes, by major version. The headers don't say them: they
// follow from the last field and from what programs write.
var qmdSizes = map[uint8]int{2: 256, 3: 256, 4: 384, 5: 384}

// MaxQMDSize is the size of the largest QMD in bytes.
const MaxQMDSize = 384

// ParseQMD finds the layout of a QMD by the version that stands in it. It returns false for bytes
// that are no QMD of the class: too short, or of no version that the class has.
func (c *Class) ParseQMD(b []byte) (QMD, bool) {
	for _, l := range c.qmds {
		q := QMD{l, b}
		if len(b) < qmdSizes[l.Major] {
			continue
		}
		major, ok := q.version("MAJOR")
		minor, ok2 := q.version("MINOR")
		if ok && ok2 && major == uint64(l.Major) && minor == uint64(l.Minor) {
			return q, true
		}
	}
	return QMD{}, false
}

// version reads a part of a QMD's version: up to version 3 the field is called QMD_VERSION.
func (q QMD) version(part string) (uint64, bool) {
	if part == "MINOR" {
		if v, ok := q.Get("QMD_VERSION"); ok {
			return v, true
		}
	}
	return q.Get("QMD_" + part + "_VERSION")
}

// Get returns a field's value by its name in the headers; false if the layout has no such field.
// For an array it is the first element.
func (q QMD) Get(name string) (uint64, bool) { return q.Element(name, 0) }

// Element returns an element of an array of fields. A field of more than 64 bits counts as absent.
func (q QMD) Element(name string, index int) (uint64, bool) {
	for i := range q.Layout.Fields {
		if f := &q.Layout.Fields[i]; f.Name == name && (index == 0 || f.Stride != 0) {
			return q.bits(int(f.High)+index*int(f.Stride), int(f.Low)+index*int(f.Stride))
		}
	}
	return 0, false
}

// bits reads a range of bits, which reaches over at most two words of 64 bits.
func (q QMD) bits(high, low int) (uint64, bool) {
	if high < low || high-low >= 64 || high/8 >= len(q.bytes) {
		return 0, false
	}
	var v uint64
	for byteIndex := high / 8; byteIndex >= low/8; byteIndex-- {
		first := byteIndex * 8
		b := uint64(q.bytes[byteIndex])
		if first < low {
			b >>= low - first
			first = low
		}
		v |= b << (first - low)
	}
	if n := high - low + 1; n < 64 {
		v &= 1<<n - 1
	}
	return v, true
}

// joined reads a number whose bits are spread over a lower and an upper field. Some versions hold
// it shifted, as the fields' names say.
func (q QMD) joined(name string) (uint64, bool) {
	for suffix, shift := range map[string]int{"": 0, "_SHIFTED4": 4, "_SHIFTED6": 6} {
		low, ok := q.Get(name + "_LOWER" + suffix)
		high, ok2 := q.Get(name + "_UPPER" + suffix)
		if ok && ok2 {
			return (low | high<<32) << shift, true
		}
	}
	return 0, false
}

// A Launch is what a QMD says of a kernel's launch.
type Launch struct {
	Program      uint64 // address of the kernel's first instruction
	Grid, Block  [3]uint32
	Registers    uint32 // of each thread
	SharedMemory uint32 // of each block, in bytes
	Constants    uint64 // address of constant bank 0, which has the kernel's arguments; 0: none
	ConstantSize uint32 // of that bank, in bytes
	Null         bool   // the QMD starts no kernel: it only orders others

	// Done is the semaphore that the GPU releases when the grid is over; Address 0: none. A graph's
	// inner nodes have none. With DoneAdds the payload is added to the semaphore.
	Done     Semaphore
	DoneAdds bool
	// Next is the address of the QMD that the GPU goes on with after this one; 0: none. The nodes of
	// a graph are such a chain.
	Next uint64
}

// subTask is what the names of a launch's fields begin with in version 5.1, which has two launches
// in a QMD: the first is read.
const subTask = "SUB_TASK_"

// Launch reads the fields of a launch. It returns false if they make no launch: a grid of blocks
// without a program, or a block without threads.
func (q QMD) Launch() (Launch, bool) {
	l := Launch{Done: q.done(), DoneAdds: q.doneAdds(), Next: q.next()}
	if kind, ok := q.Get("QMD_TYPE"); ok && kind < 2 { // QUEUE, GRID_NULL
		l.Null = true
		return l, true
	}
	for i, name := range []string{"WIDTH", "HEIGHT", "DEPTH"} {
		l.Grid[i] = q.firstOf("GRID_"+name, "CTA_RASTER_"+name, subTask+"GRID_"+name)
		dimension := "CTA_THREAD_DIMENSION" + string(rune('0'+i))
		l.Block[i] = q.firstOf(dimension, subTask+dimension)
	}
	var known bool
	if l.Program, known = q.joined("PROGRAM_ADDRESS"); !known {
		l.Program, known = q.joined(subTask + "PROGRAM_ADDRESS")
	}
	if !known {
		return Launch{}, false
	}
	switch blocks := l.Grid[0] != 0 && l.Grid[1] != 0 && l.Grid[2] != 0; {
	case !blocks && l.Program == 0:
		l.Null = true // a graph's root: a grid of no blocks
		return l, true
	case !blocks || l.Program == 0 || l.Block[0] == 0 || l.Block[1] == 0 || l.Block[2] == 0:
		return Launch{}, false
	}
	l.Registers = q.firstOf("REGISTER_COUNT_V", "REGISTER_COUNT", subTask+"REGISTER_COUNT")
	l.SharedMemory = q.firstOf("SHARED_MEMORY_SIZE") | q.firstOf("SHARED_MEMORY_SIZE_SHIFTED7", subTask+"SHARED_MEMORY_SIZE_SHIFTED7")<<7
	if valid, ok := q.Get("CONSTANT_BUFFER_VALID"); ok && valid != 0 {
		l.Constants, _ = q.joined("CONSTANT_BUFFER_ADDR")
		l.ConstantSize = q.firstOf("CONSTANT_BUFFER_SIZE_SHIFTED4") << 4
	}
	return l, true
}

// done returns the first semaphore that the grid's end releases.
func (q QMD) done() Semaphore {
	if q.firstOf("RELEASE_ENABLE", "RELEASE0_ENABLE", "SEMAPHORE_RELEASE_ENABLE0") == 0 {
		return Semaphore{}
	}
	var s Semaphore
	for _, name := range []string{"RELEASE_SEMAPHORE0_ADDR", "RELEASE0_ADDRESS"} {
		if address, ok := q.joined(name); ok {
			s.Address = address
		}
	}
	s.Payload = uint64(q.firstOf("RELEASE_SEMAPHORE0_PAYLOAD_LOWER", "RELEASE0_PAYLOAD_LOWER", "RELEASE0_PAYLOAD"))
	return s
}

// doneAdds reports whether the release at the grid's end adds its payload.
func (q QMD) doneAdds() bool {
	return q.firstOf("RELEASE_REDUCTION_ENABLE", "RELEASE0_REDUCTION_ENABLE") != 0 && q.firstOf("RELEASE_REDUCTION_OP", "RELEASE0_REDUCTION_OP") == 0
}

// next returns the address of the first dependent QMD.
func (q QMD) next() uint64 {
	if q.firstOf("DEPENDENT_QMD_ENABLE", "DEPENDENT_QMD0_ENABLE") == 0 {
		return 0
	}
	return uint64(q.firstOf("DEPENDENT_QMD_POINTER", "DEPENDENT_QMD0_POINTER")) << 8
}

// firstOf returns the value of the first of the fields that the layout has, else 0.
func (q QMD) firstOf(names ...string) uint32 {
	for _, name := range names {
		if v, ok := q.Get(name); ok {
			return uint32(v)
		}
	}
	return 0
}

// qmdBytes returns words as the bytes that the GPU sees.
func qmdBytes(words []uint32) []byte {
	b := make([]byte, 0, 4*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}
