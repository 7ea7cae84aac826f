package hostrun

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// A Thread is a thread that a program runs for. It is stopped meanwhile.
type Thread interface {
	IDs() (pid, tid int)
	// Comm returns the thread's name.
	Comm() string
	// User returns the thread's user and group.
	User() (uid, gid uint32)
	CPU() int
	// Read reads memory; n is how much could be read.
	Read(addr uint64, buf []byte) (n int)
	// Write writes memory that the thread itself could write; n is how much.
	Write(addr uint64, buf []byte) (n int)
	Now() (monotonic uint64)
	// Callers lists where the thread is, and where its callers will be gone on with, n at most.
	Callers(n int) []uint64
}

// A Call is one run of a program.
type Call struct {
	Thread Thread
	// Fields are the context's, in its order.
	Fields []uint64
	FuncIP uint64 // the address of the function
	// Arg returns an argument of a USDT probe, or of a function whose arguments are not where those of
	// C are; nil: there is none.
	Arg func(n uint64) (v uint64, ok bool)
	// Override is what the function or the call shall return instead, if Overridden is set:
	// the program's answer.
	Override   uint64
	Overridden bool
}

// A Runner runs programs on the host, one at a time, by the interpreter.
type Runner struct {
	*hostmaps.Writer
	programs []*Program
	maps     *mapmem.Maps
	mem      *mapmem.HostMemory
	print    func(cpu int, text string)
	record   func(x *mapmem.Map, r mapmem.Record)

	interpreters map[*Program]*bpf.Interpreter
	cpuIs        int // of the thread; -1: it was not asked for yet
	call         *Call
	unit         *proof.Unit
	held         [][]byte // records in the making, by their place
	random       uint64

	mu    sync.Mutex
	early map[earlyEnd]uint64 // runs that were ended early
}

// earlyEnd is why and where runs of a program were ended early.
type earlyEnd struct {
	q   *Program
	why string
	at  int
}

// NewRunner returns a runner of some programs. print takes what programs print, record what they write to
// ring buffers.
func NewRunner(programs []*Program, m *mapmem.Maps, mem *mapmem.HostMemory, print func(cpu int, text string), record func(x *mapmem.Map, r mapmem.Record)) *Runner {
	return &Runner{
		Writer:   hostmaps.NewWriter(m, mem),
		programs: programs, maps: m, mem: mem, print: print, record: record, interpreters: make(map[*Program]*bpf.Interpreter),
		early: make(map[earlyEnd]uint64), random: 0x9e3779b97f4a7c15,
	}
}

// Run runs a program. An error says that it did what its proof excludes.
func (r *Runner) Run(q *Program, c *Call) error {
	in := r.interpreters[q]
	if in == nil {
		u := *q.Unit
		u.Defs = nil
		in = &bpf.Interpreter{Env: q.env(u.EnvMaps(), r), Read: r.read, Write: r.write, Field: func(i int) uint64 { return r.call.Fields[i] }, Atomic: r.atomic}
		for _, d := range u.Defs {
			base := uint64(0)
			if x := r.maps.Of(d); x != nil {
				base = x.Base
			}
			in.Maps = append(in.Maps, base)
		}
		r.interpreters[q] = in
	}
	r.call, r.unit, r.held, r.cpuIs = c, q.Unit, r.held[:0], -1
	res, err := in.Run(q.code)
	if err == nil && res.Early {
		r.mu.Lock()
		r.early[earlyEnd{q, res.Why, res.At}]++
		r.mu.Unlock()
	}
	return err
}

// Losses tells of runs that were ended early, and of insertions without room.
func (r *Runner) Losses() []error { return r.lost(true) }

// Faults is Losses without insertions that found no room, for who shows the tables: these say it
// ([mapmem.Maps.Refused]).
func (r *Runner) Faults() []error { return r.lost(false) }

func (r *Runner) lost(refused bool) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []error
	for e, n := range r.early {
		list = append(list, fmt.Errorf("program %s: %d runs were ended at instruction %d: %s", e.q.Name, n, e.at, e.why))
	}
	list = append(list, r.counted(refused)...)
	slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return list
}

// counted tells of what was counted in the maps' memory; refused, of insertions without room, too.
func (r *Runner) counted(refused bool) (list []error) {
	tell := func(n uint64, err error, format string, args ...any) {
		if err == nil && n > 0 {
			list = append(list, fmt.Errorf(format, append(args, n)...))
		}
	}
	for _, x := range r.maps.All {
		if !refused {
			break
		}
		n, err := r.maps.Refused(r.mem, x)
		tell(n, err, "map %s: %d insertions found no room", x.Name)
	}
	n, err := r.maps.Counter(r.mem, mapmem.SlotBusyHomes)
	tell(n, err, "%d changes of maps were not made: another one was not finished")
	for _, q := range r.programs {
		n, err := r.maps.Counter(r.mem, q.FirstCounter)
		tell(n, err, "program %s: %d returns could not be seen", q.Name)
		for i := range q.Machine.Ends {
			n, err := r.maps.Counter(r.mem, q.FirstCounter+1+i)
			e := &q.Machine.Ends[i]
			tell(n, err, "program %[1]s: %[4]d runs were ended at %[2]s: %[3]v", q.Name, e.Where(), e.Kind)
		}
	}
	return list
}

// recordAt returns the memory of a record in the making.
func (r *Runner) recordAt(addr uint64, n int) ([]byte, bool) {
	i, off := (addr-mapmem.RecordBase)/mapmem.RecordStride, (addr-mapmem.RecordBase)%mapmem.RecordStride
	if addr < mapmem.RecordBase || i >= uint64(len(r.held)) || off > uint64(len(r.held[i])) || uint64(len(r.held[i]))-off < uint64(n) {
		return nil, false
	}
	return r.held[i][off : off+uint64(n)], true
}

func (r *Runner) read(addr uint64, buf []byte) error {
	if b, ok := r.recordAt(addr, len(buf)); ok {
		copy(buf, b)
		return nil
	}
	return r.mem.ReadMem(addr, buf)
}

func (r *Runner) write(addr uint64, buf []byte) error {
	if b, ok := r.recordAt(addr, len(buf)); ok {
		copy(b, buf)
		return nil
	}
	return r.mem.WriteMem(addr, buf)
}

func (r *Runner) atomic(addr uint64, n int, change func(old uint64) uint64) (uint64, error) {
	if b, ok := r.recordAt(addr, n); ok {
		var w [8]byte
		copy(w[:], b)
		old := binary.LittleEndian.Uint64(w[:])
		copy(b, binary.LittleEndian.AppendUint64(nil, change(old)))
		return old, nil
	}
	return r.mem.Change(addr, n, change)
}

// MapAt returns the map of that index in a program's code, nil if it has no place.
func (r *Runner) MapAt(q *Program, i int32) *mapmem.Map {
	if i < 0 || int(i) >= len(q.Unit.Defs) {
		return nil
	}
	return r.maps.Of(q.Unit.Defs[i])
}

// Maps returns the maps of the programs.
func (r *Runner) Maps() *mapmem.Maps { return r.maps }

// Counts returns the address of a program's counters: of returns that could not be seen, and
// of runs that were ended by the first of Machine.Ends, the second ...
func (r *Runner) Counts(q *Program) uint64 { return r.maps.CounterAddr(r.maps.Slots + q.FirstCounter) }
