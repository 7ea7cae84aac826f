package channel

import "encoding/binary"

// A QMDLayout says where the fields of a QMD of one version lie.
type QMDLayout struct {
	Major, Minor uint8
	Fields       []Field // in the headers' order

	launch launchFields
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
		if f := &l.launch; f.major.known && f.minor.known && q.value(f.major) == uint64(l.Major) && q.value(f.minor) == uint64(l.Minor) {
			return q, true
		}
	}
	return QMD{}, false
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

// A Launch is what a QMD says of a kernel's launch.
type Launch struct {
	Program     uint64 // address of the kernel's first instruction
	Grid, Block [3]uint32

	// Clustered: blocks are grouped into clusters, and a QMD counts the grid in these. Reader makes blocks of
	// it again where a piece has the driver's constants beside the QMD, and clears Clustered.
	Clustered bool

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

// launchFields are the fields of a launch in one layout: looked up once, as a name is found slowly.
type launchFields struct {
	major, minor, kind         part
	grid, block                [3]part
	program                    joined
	registers                  part
	shared, sharedBy7          part
	constantsValid             part
	constants                  joined
	constantSize               part
	done, doneReduces, doneOp  part
	doneAddress                joined
	donePayload, doneSize      part
	hasDependent, dependentQMD part
}

// A part is a range of bits; the zero one is that of a field which the layout doesn't have.
type part struct {
	high, low int
	known     bool
}

// joined is a number whose bits are spread over a lower and an upper field. Some versions hold it
// shifted, as the fields' names say.
type joined struct {
	low, high part
	shift     int
}

// partOf returns the first of the fields that the layout has.
func (l *QMDLayout) partOf(names ...string) part {
	for _, name := range names {
		for i := range l.Fields {
			if f := &l.Fields[i]; f.Name == name {
				return part{int(f.High), int(f.Low), true}
			}
		}
	}
	return part{}
}

// joinedOf returns the first of the numbers that the layout has.
func (l *QMDLayout) joinedOf(names ...string) joined {
	for _, name := range names {
		for _, by := range []struct {
			suffix string
			shift  int
		}{{"", 0}, {"_SHIFTED4", 4}, {"_SHIFTED6", 6}} {
			j := joined{l.partOf(name + "_LOWER" + by.suffix), l.partOf(name + "_UPPER" + by.suffix), by.shift}
			if j.low.known && j.high.known {
				return j
			}
		}
	}
	return joined{}
}

// launchFieldsOf finds the fields of a launch, under the names of any version.
func launchFieldsOf(l *QMDLayout) launchFields {
	f := launchFields{
		major: l.partOf("QMD_MAJOR_VERSION"),
		minor: l.partOf("QMD_VERSION", "QMD_MINOR_VERSION"), // the first: up to version 3
		kind:  l.partOf("QMD_TYPE"), program: l.joinedOf("PROGRAM_ADDRESS", subTask+"PROGRAM_ADDRESS"),
		registers: l.partOf("REGISTER_COUNT_V", "REGISTER_COUNT", subTask+"REGISTER_COUNT"),
		shared:    l.partOf("SHARED_MEMORY_SIZE"), sharedBy7: l.partOf("SHARED_MEMORY_SIZE_SHIFTED7", subTask+"SHARED_MEMORY_SIZE_SHIFTED7"),
		constantsValid: l.partOf("CONSTANT_BUFFER_VALID"), constants: l.joinedOf("CONSTANT_BUFFER_ADDR"),
		constantSize: l.partOf("CONSTANT_BUFFER_SIZE_SHIFTED4"),
		done:         l.partOf("RELEASE_ENABLE", "RELEASE0_ENABLE", "SEMAPHORE_RELEASE_ENABLE0"),
		doneReduces:  l.partOf("RELEASE_REDUCTION_ENABLE", "RELEASE0_REDUCTION_ENABLE"),
		doneOp:       l.partOf("RELEASE_REDUCTION_OP", "RELEASE0_REDUCTION_OP"),
		doneAddress:  l.joinedOf("RELEASE0_ADDRESS", "RELEASE_SEMAPHORE0_ADDR"),
		donePayload:  l.partOf("RELEASE_SEMAPHORE0_PAYLOAD_LOWER", "RELEASE0_PAYLOAD_LOWER", "RELEASE0_PAYLOAD"),
		doneSize:     l.partOf("RELEASE_STRUCTURE_SIZE", "RELEASE0_STRUCTURE_SIZE", "SEMAPHORE_RELEASE_STRUCTURE_SIZE0"),
		hasDependent: l.partOf("DEPENDENT_QMD_ENABLE", "DEPENDENT_QMD0_ENABLE"),
		dependentQMD: l.partOf("DEPENDENT_QMD_POINTER", "DEPENDENT_QMD0_POINTER"),
	}
	for i, name := range []string{"WIDTH", "HEIGHT", "DEPTH"} {
		f.grid[i] = l.partOf("GRID_"+name, "CTA_RASTER_"+name, subTask+"GRID_"+name)
		dimension := "CTA_THREAD_DIMENSION" + string(rune('0'+i))
		f.block[i] = l.partOf(dimension, subTask+dimension)
	}
	return f
}

// value reads a part, 0 if there is none.
func (q QMD) value(p part) uint64 {
	if !p.known {
		return 0
	}
	v, _ := q.bits(p.high, p.low)
	return v
}

// joined reads a number of two parts.
func (q QMD) joined(j joined) uint64 { return (q.value(j.low) | q.value(j.high)<<32) << j.shift }

// Launch reads the fields of a launch. It returns false if they make no launch: a grid of blocks
// without a program, or a block without threads.
func (q QMD) Launch() (Launch, bool) {
	f := &q.Layout.launch
	l := Launch{DoneAdds: q.value(f.doneReduces) != 0 && q.value(f.doneOp) == 0}
	if q.value(f.done) != 0 {
		l.Done = Semaphore{
			Address: q.joined(f.doneAddress), Payload: uint64(uint32(q.value(f.donePayload))),
			Timed: f.doneSize.known && q.value(f.doneSize) == 0, // FOUR_WORDS
		}
	}
	if q.value(f.hasDependent) != 0 {
		l.Next = uint64(uint32(q.value(f.dependentQMD))) << 8
	}
	l.Clustered = f.kind.known && q.value(f.kind) > 2 // GRID_GPC_CGA and on
	if f.kind.known && q.value(f.kind) < 2 {          // QUEUE, GRID_NULL
		l.Null = true
		return l, true
	}
	for i := range l.Grid {
		l.Grid[i], l.Block[i] = uint32(q.value(f.grid[i])), uint32(q.value(f.block[i]))
	}
	if !f.program.low.known {
		return Launch{}, false
	}
	l.Program = q.joined(f.program)
	switch blocks := l.Grid[0] != 0 && l.Grid[1] != 0 && l.Grid[2] != 0; {
	case !blocks && l.Program == 0:
		l.Null = true // a graph's root: a grid of no blocks
		return l, true
	case !blocks || l.Program == 0 || l.Block[0] == 0 || l.Block[1] == 0 || l.Block[2] == 0:
		return Launch{}, false
	}
	l.Registers = uint32(q.value(f.registers))
	l.SharedMemory = uint32(q.value(f.shared)) | uint32(q.value(f.sharedBy7))<<7
	if q.value(f.constantsValid) != 0 {
		l.Constants = q.joined(f.constants)
		l.ConstantSize = uint32(q.value(f.constantSize)) << 4
	}
	return l, true
}

// qmdBytes returns words as the bytes that the GPU sees.
func qmdBytes(words []uint32) []byte {
	b := make([]byte, 0, 4*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}
