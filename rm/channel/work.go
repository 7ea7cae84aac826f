package channel

import (
	"encoding/binary"
	"slices"
)

// Work is one thing that the methods of a pushbuffer have an engine do.
type Work struct {
	At   uint64 // address of the command that starts it
	Kind WorkKind

	Subchannel uint8

	// What is set depends on the kind.
	Launch    Launch      // Kernel
	QMD       uint64      // Kernel, Null: address of the QMD
	Inline    bool        // Kernel, Null: the piece itself has written the QMD
	Unread    bool        // Kernel: the QMD is elsewhere (a graph's) and was not read; Launch is empty
	Arguments []byte      // Kernel: what the piece wrote to constant bank 0 behind the driver's part; nil if it wrote none
	Semaphore Semaphore   // Release, Acquire; of a Move what it releases when it is done, Address 0: none
	From, To  uint64      // Move; To for Write
	Size      uint64      // Move, Write: bytes in all
	Lines     uint32      // Move: rows
	Test      AcquireTest // Acquire
}

// A WorkKind is a kind of work.
type WorkKind uint8

// The kinds of work.
const (
	Kernel  WorkKind = iota // a kernel's launch
	Null                    // a QMD that starts no kernel but orders others
	Release                 // writes a semaphore when what was before is done
	Acquire                 // waits for a semaphore
	Move                    // a copy engine's copy
	Write                   // bytes that stand in the pushbuffer are written to memory
)

// A Semaphore is a place in memory by which the GPU and others tell each other of progress.
type Semaphore struct {
	Address uint64
	Payload uint64
	Wide    bool // the payload has 64 bits

	// Timed: beside the payload the release writes the GPU's time in nanoseconds (PTIMER, the
	// clock of %globaltimer): the payload at offset 0, the time at offset 8.
	Timed bool
}

// An AcquireTest is what an acquire wants of the semaphore's value.
type AcquireTest string

// A Reader turns pieces of a channel's pushbuffer into work. It keeps what methods have set from
// piece to piece, as the engines do. Its memory is bounded, whatever it is given.
type Reader struct {
	Subchannels Subchannels

	// ReadQMD reads a QMD that no piece has written (that of a graph's node); nil: such launches
	// are Unread.
	ReadQMD func(address uint64, b []byte) bool

	set    [8][roles]uint32 // what the last write of each method was
	inline [8]inlineWrite
	recent []written // the last writes of inline data, the latest last
	qmd    [MaxQMDSize]byte
}

// written is data that a piece has written to memory.
type written struct {
	address uint64
	data    []uint32
}

type inlineWrite struct {
	address uint64
	want    int // bytes
	data    []uint32
	at      uint64 // of the command that began it
}

const (
	maxRecent      = 16      // writes that a launch may refer to: its QMDs and constants
	maxInlineWords = 1 << 13 // as many as one header can have
)

// Read yields the work in one piece of pushbuffer, in order.
func (r *Reader) Read(words []uint32, address uint64, yield func(Work) bool) {
	for c := range Commands(words, address) {
		r.Subchannels.Bind(&c)
		for i := 0; i < len(c.Data); i++ {
			m := r.Subchannels.role(c.Subchannel, c.Target(i))
			if m < firstAction {
				r.set[c.Subchannel][m] = c.Data[i]
				continue
			}
			w := Work{At: c.Address, Subchannel: c.Subchannel}
			data := c.Data[i : i+1]
			if m == roleInlineData && (c.Op == NotIncreasing || c.Op == IncreaseOnce && i > 0) {
				data = c.Data[i:] // all of it goes there
				i = len(c.Data)
			}
			if r.step(&w, m, data) && !yield(w) {
				return
			}
		}
	}
}

// step takes data for one method, a word except of inline data. It returns true if the method starts work,
// which it then has described in w.
func (r *Reader) step(w *Work, m role, data []uint32) bool {
	sub, v := w.Subchannel, data[0]
	engine := r.Subchannels.Engine[sub]
	switch m {
	case roleSemExecute:
		return r.hostSemaphore(w, v)
	case roleLaunchDMA:
		if engine != nil && engine.Kind == Copy {
			return r.move(w, v)
		}
		in := &r.inline[sub]
		*in = inlineWrite{
			address: r.pair(sub, roleOffsetOutUpper, roleOffsetOut),
			want:    int(min(r.set[sub][roleLineLengthIn], 4*maxInlineWords)), at: w.At, data: in.data[:0],
		}
	case roleInlineData:
		return r.load(w, data)
	case roleReportD:
		return r.report(w, v)
	case roleReportExecute:
		return r.reportExecute(w, v)
	case rolePCASB, rolePCAS2B:
		if m == rolePCASB && v&2 == 0 || m == rolePCAS2B && !schedules(v&0xf) {
			return false
		}
		r.launch(w)
		return true
	}
	return false
}

// schedules reports whether an action of SEND_SIGNALING_PCAS2_B starts the QMD's grid.
func schedules(action uint32) bool {
	return slices.Contains([]uint32{2, 3, 9, 0xa, 0xb}, action)
}

func (r *Reader) pair(sub uint8, upper, lower role) uint64 {
	return uint64(r.set[sub][upper])<<32 | uint64(r.set[sub][lower])
}

// hostSemaphore is SEM_EXECUTE of the host class.
func (r *Reader) hostSemaphore(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Semaphore = Semaphore{
		Address: r.pair(sub, roleSemAddressHigh, roleSemAddressLow), Payload: uint64(r.set[sub][roleSemPayloadLow]),
		Wide: v>>24&1 != 0, Timed: v>>25&1 != 0,
	}
	if w.Semaphore.Wide {
		w.Semaphore.Payload |= uint64(r.set[sub][roleSemPayloadHigh]) << 32
	}
	switch operation := v & 7; operation {
	case 1, 6: // RELEASE, REDUCTION
		w.Kind = Release
	case 0, 2, 3, 4, 5:
		w.Kind, w.Semaphore.Timed = Acquire, false
		w.Test = [...]AcquireTest{0: "==", 2: ">=", 3: "circular >=", 4: "and", 5: "nor"}[operation]
	default:
		return false
	}
	return true
}

// move is LAUNCH_DMA of a copy engine: a transfer, a semaphore, or both. The release comes as
// work of its own if nothing is moved.
func (r *Reader) move(w *Work, v uint32) bool {
	sub := w.Subchannel
	if kind := v >> 3 & 3; kind == 1 || kind == 2 {
		w.Semaphore = Semaphore{
			Address: r.pair(sub, roleSetSemaphoreA, roleSetSemaphoreB),
			Payload: uint64(r.set[sub][roleSetSemaphorePayload]), Timed: kind == 2,
		}
	}
	if v&3 == 0 {
		w.Kind = Release
		return w.Semaphore.Address != 0
	}
	w.Kind = Move
	w.From, w.To = r.pair(sub, roleOffsetInUpper, roleOffsetInLower), r.pair(sub, roleOffsetOutUpper, roleOffsetOutLower)
	w.Size, w.Lines = uint64(r.set[sub][roleLineLengthIn]), 1
	if v>>9&1 != 0 {
		w.Lines = r.set[sub][roleLineCount]
		w.Size *= uint64(w.Lines)
	}
	return true
}

// load takes inline data. When all of it is there the write is work.
func (r *Reader) load(w *Work, data []uint32) bool {
	in := &r.inline[w.Subchannel]
	left := (in.want+3)/4 - len(in.data)
	if left <= 0 {
		return false
	}
	in.data = append(in.data, data[:min(left, len(data))]...)
	if len(data) < left {
		return false
	}
	var old []uint32 // of which the memory is used again
	if len(r.recent) == maxRecent {
		old = r.recent[0].data[:0]
		r.recent = slices.Delete(r.recent, 0, 1)
	}
	r.recent = append(r.recent, written{in.address, in.data})
	w.Kind, w.At, w.To, w.Size = Write, in.at, in.address, uint64(in.want)
	*in = inlineWrite{data: old}
	return true
}

// report is the older way in which an engine releases a semaphore.
func (r *Reader) report(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Kind = Release
	w.Semaphore = Semaphore{
		Address: r.pair(sub, roleReportA, roleReportB),
		Payload: uint64(r.set[sub][roleReportC]), Timed: v>>28&1 == 0,
	}
	return v&3 == 0
}

// reportExecute is the way in which engines release semaphores since Hopper.
func (r *Reader) reportExecute(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Semaphore = Semaphore{
		Address: r.pair(sub, roleReportUpper, roleReportLower),
		Payload: uint64(r.set[sub][roleReportPayloadLow]),
		Wide:    v>>12&1 != 0, Timed: v>>3&3 == 0,
	}
	if w.Semaphore.Wide {
		w.Semaphore.Payload |= uint64(r.set[sub][roleReportPayloadHigh]) << 32
	}
	switch v & 3 {
	case 0:
		w.Kind = Release
		return true
	case 1:
		w.Kind, w.Test, w.Semaphore.Timed = Acquire, "==", false
		return true
	}
	return false
}

// launch is the command that hands a QMD to the scheduler.
func (r *Reader) launch(w *Work) {
	w.Kind, w.QMD = Kernel, uint64(r.set[w.Subchannel][rolePCASA])<<8
	w.Inline = r.wrote(w.QMD)
	var ok bool
	if w.Launch, ok = r.LaunchAt(w.Subchannel, w.QMD); !ok {
		w.Unread = true
		return
	}
	if w.Launch.Null {
		w.Kind = Null
	} else {
		w.Arguments = r.arguments(w.Launch)
		r.unclustered(&w.Launch)
	}
}

// unclustered counts a grid in blocks that the QMD counts in clusters. libcuda writes block and grid, as a program
// has given them, to the beginning of constant bank 0. They are believed if the block is the QMD's, and the grid a
// multiple of the QMD's.
func (r *Reader) unclustered(l *Launch) {
	if !l.Clustered {
		return
	}
	for _, w := range slices.Backward(r.recent) {
		if w.address != l.Constants || len(w.data) < 6 {
			continue
		}
		grid := [3]uint32(w.data[3:6])
		ok := [3]uint32(w.data[:3]) == l.Block
		for i := range grid {
			ok = ok && l.Grid[i] != 0 && grid[i] >= l.Grid[i] && grid[i]%l.Grid[i] == 0
		}
		if ok {
			l.Grid, l.Clustered = grid, false
		}
		return
	}
}

// LaunchAt reads the QMD at an address: what pieces have written there, else what is in memory.
func (r *Reader) LaunchAt(subchannel uint8, address uint64) (Launch, bool) {
	engine := r.Subchannels.Engine[subchannel&7]
	b := r.writtenAt(address)
	if b == nil && r.ReadQMD != nil {
		if b = r.qmd[:]; !r.ReadQMD(address, b) {
			b = nil
		}
	}
	if b == nil || engine == nil {
		return Launch{}, false
	}
	q, ok := engine.ParseQMD(b)
	if !ok {
		return Launch{}, false
	}
	return q.Launch()
}

// WrittenWord returns the first word of the latest inline write to an address, if it is among the
// last writes.
func (r *Reader) WrittenWord(address uint64) (uint32, bool) {
	for _, w := range slices.Backward(r.recent) {
		if w.address == address {
			return w.data[0], true
		}
	}
	return 0, false
}

// writtenAt returns up to MaxQMDSize bytes that the latest write to address had, until the next call.
func (r *Reader) writtenAt(address uint64) []byte {
	for _, w := range slices.Backward(r.recent) {
		if w.address == address {
			b := r.qmd[:0]
			for _, word := range w.data[:min(len(w.data), MaxQMDSize/4)] {
				b = binary.LittleEndian.AppendUint32(b, word)
			}
			return b
		}
	}
	return nil
}

// wrote reports whether one of the last writes was to address.
func (r *Reader) wrote(address uint64) bool {
	return slices.ContainsFunc(r.recent, func(w written) bool { return w.address == address })
}

// arguments returns what was written into the launch's constant bank last: the driver writes its
// own part at the beginning, then the kernel's arguments behind it.
func (r *Reader) arguments(l Launch) []byte {
	for _, w := range slices.Backward(r.recent) {
		if w.address > l.Constants && w.address < l.Constants+uint64(l.ConstantSize) {
			return qmdBytes(w.data)
		}
	}
	return nil
}
