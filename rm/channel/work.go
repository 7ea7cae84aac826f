package channel

import "slices"

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

	set    [8]map[string]uint32 // what the last write of each method was, by the method's name
	inline [8]inlineWrite
	recent []written // the last writes of inline data, the latest last
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
		for i, v := range c.Data {
			m, _ := r.Subchannels.Method(c.Subchannel, c.Target(i))
			if m == nil {
				continue
			}
			w := Work{At: c.Address, Subchannel: c.Subchannel}
			if r.step(&w, m.Name, v) && !yield(w) {
				return
			}
		}
	}
}

// step takes one word of data for one method. It returns true if the method starts work, which it
// then has described in w.
func (r *Reader) step(w *Work, method string, v uint32) bool {
	sub := w.Subchannel
	if r.set[sub] == nil {
		r.set[sub] = map[string]uint32{}
	}
	engine := r.Subchannels.Engine[sub]
	switch {
	case method == "SEM_EXECUTE":
		return r.hostSemaphore(w, v)
	case method == "LAUNCH_DMA" && engine != nil && engine.Kind == Copy:
		return r.move(w, v)
	case method == "LAUNCH_DMA":
		r.inline[sub] = inlineWrite{
			address: r.pair(sub, "OFFSET_OUT_UPPER", "OFFSET_OUT"),
			want:    int(min(r.set[sub]["LINE_LENGTH_IN"], 4*maxInlineWords)), at: w.At,
		}
		return false
	case method == "LOAD_INLINE_DATA":
		return r.load(w, v)
	case method == "SET_REPORT_SEMAPHORE_D":
		return r.report(w, v)
	case method == "REPORT_SEMAPHORE_EXECUTE":
		return r.reportExecute(w, v)
	case method == "SEND_SIGNALING_PCAS_B" && v&2 != 0, method == "SEND_SIGNALING_PCAS2_B" && schedules(v&0xf):
		r.launch(w)
		return true
	}
	r.set[sub][method] = v
	return false
}

// schedules reports whether an action of SEND_SIGNALING_PCAS2_B starts the QMD's grid.
func schedules(action uint32) bool {
	return slices.Contains([]uint32{2, 3, 9, 0xa, 0xb}, action)
}

func (r *Reader) pair(sub uint8, upper, lower string) uint64 {
	return uint64(r.set[sub][upper])<<32 | uint64(r.set[sub][lower])
}

// hostSemaphore is SEM_EXECUTE of the host class.
func (r *Reader) hostSemaphore(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Semaphore = Semaphore{
		Address: r.pair(sub, "SEM_ADDR_HI", "SEM_ADDR_LO"), Payload: uint64(r.set[sub]["SEM_PAYLOAD_LO"]),
		Wide: v>>24&1 != 0, Timed: v>>25&1 != 0,
	}
	if w.Semaphore.Wide {
		w.Semaphore.Payload |= uint64(r.set[sub]["SEM_PAYLOAD_HI"]) << 32
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
			Address: r.pair(sub, "SET_SEMAPHORE_A", "SET_SEMAPHORE_B"),
			Payload: uint64(r.set[sub]["SET_SEMAPHORE_PAYLOAD"]), Timed: kind == 2,
		}
	}
	if v&3 == 0 {
		w.Kind = Release
		return w.Semaphore.Address != 0
	}
	w.Kind = Move
	w.From, w.To = r.pair(sub, "OFFSET_IN_UPPER", "OFFSET_IN_LOWER"), r.pair(sub, "OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER")
	w.Size, w.Lines = uint64(r.set[sub]["LINE_LENGTH_IN"]), 1
	if v>>9&1 != 0 {
		w.Lines = r.set[sub]["LINE_COUNT"]
		w.Size *= uint64(w.Lines)
	}
	return true
}

// load takes one word of inline data. When all of it is there the write is work.
func (r *Reader) load(w *Work, v uint32) bool {
	in := &r.inline[w.Subchannel]
	if in.want == 0 || 4*len(in.data) >= in.want {
		return false
	}
	in.data = append(in.data, v)
	if 4*len(in.data) < in.want {
		return false
	}
	if len(r.recent) == maxRecent {
		r.recent = slices.Delete(r.recent, 0, 1)
	}
	r.recent = append(r.recent, written{in.address, in.data})
	w.Kind, w.At, w.To, w.Size = Write, in.at, in.address, uint64(in.want)
	*in = inlineWrite{}
	return true
}

// report is the older way in which an engine releases a semaphore.
func (r *Reader) report(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Kind = Release
	w.Semaphore = Semaphore{
		Address: r.pair(sub, "SET_REPORT_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_B"),
		Payload: uint64(r.set[sub]["SET_REPORT_SEMAPHORE_C"]), Timed: v>>28&1 == 0,
	}
	return v&3 == 0
}

// reportExecute is the way in which engines release semaphores since Hopper.
func (r *Reader) reportExecute(w *Work, v uint32) bool {
	sub := w.Subchannel
	w.Semaphore = Semaphore{
		Address: r.pair(sub, "SET_REPORT_SEMAPHORE_ADDRESS_UPPER", "SET_REPORT_SEMAPHORE_ADDRESS_LOWER"),
		Payload: uint64(r.set[sub]["SET_REPORT_SEMAPHORE_PAYLOAD_LOWER"]),
		Wide:    v>>12&1 != 0, Timed: v>>3&3 == 0,
	}
	if w.Semaphore.Wide {
		w.Semaphore.Payload |= uint64(r.set[sub]["SET_REPORT_SEMAPHORE_PAYLOAD_UPPER"]) << 32
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
	w.Kind, w.QMD = Kernel, uint64(r.set[w.Subchannel]["SEND_PCAS_A"])<<8
	w.Inline = r.writtenAt(w.QMD, MaxQMDSize) != nil
	var ok bool
	if w.Launch, ok = r.LaunchAt(w.Subchannel, w.QMD); !ok {
		w.Unread = true
		return
	}
	if w.Launch.Null {
		w.Kind = Null
	} else {
		w.Arguments = r.arguments(w.Launch)
	}
}

// LaunchAt reads the QMD at an address: what pieces have written there, else what is in memory.
func (r *Reader) LaunchAt(subchannel uint8, address uint64) (Launch, bool) {
	engine := r.Subchannels.Engine[subchannel&7]
	b := r.writtenAt(address, MaxQMDSize)
	if b == nil && r.ReadQMD != nil {
		if b = make([]byte, MaxQMDSize); !r.ReadQMD(address, b) {
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

// writtenAt returns up to n bytes that the latest write to address had.
func (r *Reader) writtenAt(address uint64, n int) []byte {
	for _, w := range slices.Backward(r.recent) {
		if w.address == address {
			b := qmdBytes(w.data)
			return b[:min(n, len(b))]
		}
	}
	return nil
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
