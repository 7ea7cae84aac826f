package agent

import "encoding/binary"

// Waiting is a thread that is in a call of a hooked function whose return is recorded.
type Waiting struct {
	Process       *Process
	TID           int
	ThreadPointer uint64
	Hook          *Hook  // of the innermost call
	SP            uint64 // the address of its return address
}

// Waiting returns the threads that are in such calls. They go on meanwhile, so that it is what was true
// a moment ago: for those who want to know what a program hangs in.
func (a *Agent) Waiting() (list []Waiting) {
	for _, r := range a.rings {
		p := r.p
		if p.gone || r.dead {
			continue
		}
		slot := uint64(slotAddr + r.home*slotSize)
		depth, err := p.read64(slot + slotDepth)
		if err != nil || depth == 0 || depth > maxOpen {
			continue
		}
		open := slot + slotOpen + (depth-1)*openSize
		sp, _ := p.read64(open) // 0 if it has ended
		number, err := p.read64(open + openHook)
		if err != nil || number >= uint64(len(p.hooks)) || p.hooks[number].hook == nil {
			continue
		}
		list = append(list, Waiting{p, r.tid, r.tp, p.hooks[number].hook, sp})
	}
	return list
}

// Offsets in struct timer and struct work.
const (
	timerFirst = 40
	timerNext  = 48
	timerList  = 80

	workSize  = 96
	workState = 0
	workLeft  = 2 // a state
	maxWorks  = 2048
)

// Unfinished is work of a GPU's that is not known to be over.
type Unfinished struct {
	GPUWork // without Dur and Margin; Start is when the GPU was given it, or was about to be
	Process *Process
	TID     int
	Hook    *Hook
}

// Unfinished returns, in no order, the works that calls had put on GPUs and whose times have not
// been read: a time is, when a later call finds it.
func (a *Agent) Unfinished() (list []Unfinished) {
	for _, p := range a.procs {
		if !p.times || p.gone {
			continue
		}
		timers, err := p.read64(timesAddr + timesTimers)
		if err != nil {
			continue
		}
		for i := range min(timers, maxSlots) {
			list = p.unfinished(list, timesAddr+timesSize+i*timerSize)
		}
	}
	return list
}

// unfinished adds those of a thread.
func (p *Process) unfinished(list []Unfinished, timer uint64) []Unfinished {
	first, err1 := p.read64(timer + timerFirst)
	next, err2 := p.read64(timer + timerNext)
	if err1 != nil || err2 != nil || next-first > maxWorks {
		return list
	}
	le := binary.LittleEndian
	for i := first; i != next; i++ {
		var b [workSize]byte
		if _, err := p.mem.ReadAt(b[:], int64(timer+timerList+i%maxWorks*workSize)); err != nil {
			break
		}
		word := func(i int) uint64 { return le.Uint64(b[8*i:]) }
		hook := word(4)
		if word(workState) != workLeft || word(5) == 0 || hook >= uint64(len(p.hooks)) || p.hooks[hook].hook == nil {
			continue
		}
		list = append(list, Unfinished{
			GPUWork: GPUWork{Context: word(2), Stream: word(3), Call: int64(word(5)), Start: int64(word(7)), Subject: word(9)},
			Process: p, TID: int(uint32(word(6))), Hook: p.hooks[hook].hook,
		})
	}
	return list
}

// ReadMem reads the process's memory, which need not stand still.
func (p *Process) ReadMem(addr uint64, b []byte) (int, error) { return p.mem.ReadAt(b, int64(addr)) }
