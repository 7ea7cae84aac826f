package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/rm/channel"
)

// What a program and a GPU say to each other stands in memory that others can read, too: rings, pushbuffers and
// semaphores, of which nvtrace ps, where and sample live. The simulated GPU keeps them as libcuda and a GPU of
// Hopper's kind do, in memory that the program has mapped where libcuda has it. Nothing runs by them: they are
// written when kernels are launched, begin and end.

// Names of the files that programs have mapped; package channels knows them.
const (
	memoryFile = "nvtrace-sim-nvidia" // and the number of the GPU: rings and USERDs
	systemFile = "nvtrace-sim-nvidiactl"
	namesFile  = "nvtrace-sim-names"
)

// Where the program has them. Entries of rings have addresses of 40 bits.
const (
	ringsBase  = 0x2_0060_0000
	ringsStep  = 1 << 24 // from one GPU's to the next one's
	ringsSize  = maxChannels * channelSize
	systemBase = 0x2_8000_0000
	systemSize = maxChannels * pushSize
	systemStep = 1 << 28
	namesBase  = 0x2_7000_0000
	namesSize  = 1 << 20

	// maxChannels is how many a GPU has: further streams are not to be seen.
	maxChannels = 32
	ringEntries = 1024
	ringSize    = ringEntries * channel.EntrySize
	channelSize = ringSize + pageSize // with the USERD

	// A channel's part of system memory: its semaphores, a QMD and constants for each slot, and pieces.
	pushSize   = 1 << 21
	slotsAt    = 0x1000
	slots      = ringEntries
	qmdsAt     = 0x4000
	constants  = 0x20000
	constSize  = 0x1200
	banks      = 64
	qmds       = 128
	piecesAt   = 0x80000
	piecesSize = pushSize - piecesAt

	argumentsAt = 0x210 // in the bank of constants, as on Hopper
	programBase = 0x7f_0000_0000
	seenNodes   = 8 // of a graph that are to be seen
)

// The engines' classes, and which subchannel speaks to them.
var hostClass, computeClass = channel.ClassOf(0xc86f), channel.ClassOf(0xcbc0)

const (
	hostSubchannel    = 0
	computeSubchannel = 1
)

// channels are those of a process. Process.mu guards them.
type channels struct {
	opened, failed bool
	rings          [][]byte // of each device
	system         [][]byte
	names          []byte
	next           []int // channel of each device
	free           [][]*gpuChannel
	programs       map[string]uint64
	namesTop       int
}

// A gpuChannel is one channel.
type gpuChannel struct {
	ring, userd []byte
	system      []byte
	base        uint64 // address of system

	mu       sync.Mutex
	put      uint32 // submissions
	at       int    // of the next piece, from piecesAt
	inFlight int    // bytes
	pieces   map[uint32]piece
	under    []*operation // under way
	writer   channel.Writer
}

// A piece is what was written of one submission.
type piece struct {
	end  uint64
	size int
	slot int
}

// openChannels maps the files in the program, which is in the middle of a call.
func (p *Process) openChannels() {
	c := &p.channels
	if c.opened || c.failed || p.cur == nil || p.cur.conn == nil {
		return
	}
	c.programs = map[string]uint64{}
	var err error
	share := func(name string, address uint64, size int) (b []byte) {
		if err == nil {
			b, err = p.share(name, address, size)
		}
		return b
	}
	for i := range p.devices {
		c.rings = append(c.rings, share(fmt.Sprintf("%s%d", memoryFile, i), ringsBase+uint64(i)*ringsStep, ringsSize))
		c.system = append(c.system, share(systemFile, systemBase+uint64(i)*systemStep, systemSize))
	}
	c.names = share(namesFile, namesBase, namesSize)
	c.next, c.free = make([]int, len(p.devices)), make([][]*gpuChannel, len(p.devices))
	c.opened, c.failed = err == nil, err != nil // something of the program's is there: it has no channels to see
}

// share makes a file that the program has mapped to be read.
func (p *Process) share(name string, address uint64, size int) ([]byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	p.shared = append(p.shared, b)
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, err
	}
	res, err := p.cur.conn.do(&reply{action: actMap, a: [5]uint64{address, uint64(size), 0, unix.PROT_READ}, fd: fd})
	if err == nil && res != address {
		err = errnoOf(res)
	}
	return b, err
}

// closeChannels gives the memory back, when nothing is written to it any more.
func (p *Process) closeChannels() {
	for _, b := range p.shared {
		_ = unix.Munmap(b)
	}
	p.shared = nil
}

// channelOf returns a stream's channel, nil if it has none.
func (p *Process) channelOf(s *stream) *gpuChannel {
	if s.channel != nil || s.unseen {
		return s.channel
	}
	p.openChannels()
	c := &p.channels
	device := s.ctx.dev.ordinal
	if !c.opened {
		return nil
	}
	for i, g := range c.free[device] { // of a stream that was destroyed, when it has done all
		if g.idle() {
			c.free[device] = slices.Delete(c.free[device], i, i+1)
			s.channel = g
			return g
		}
	}
	if c.next[device] == maxChannels {
		s.unseen = true
		return nil
	}
	i := c.next[device]
	c.next[device]++
	g := &gpuChannel{
		ring: c.rings[device][i*channelSize:][:ringSize], userd: c.rings[device][i*channelSize+ringSize:][:pageSize],
		system: c.system[device][i*pushSize:][:pushSize], base: systemBase + uint64(device)*systemStep + uint64(i)*pushSize,
		pieces: map[uint32]piece{},
	}
	g.begin()
	s.channel = g
	return g
}

// begin submits what libcuda does first: it says which engines subchannels speak to.
func (g *gpuChannel) begin() {
	g.writer.Bind(computeClass, computeSubchannel)
	g.writer.Release(computeClass, computeSubchannel, channel.Semaphore{Address: g.base, Payload: 1})
	g.submit(0)
	g.pass(0)
	g.end(0)
}

// idle reports whether all that was submitted is over.
func (g *gpuChannel) idle() bool {
	g.under = slices.DeleteFunc(g.under, (*operation).over)
	return len(g.under) == 0
}

// endChannel gives a stream's channel to others.
func (p *Process) endChannel(s *stream) {
	if s.channel != nil {
		c := &p.channels
		device := s.ctx.dev.ordinal
		c.free[device] = append(c.free[device], s.channel)
		s.channel, s.unseen = nil, true
	}
}

// program returns the address that a kernel's first instruction is said to have. Its name stands where libcuda has
// it: in a structure with a mark at the beginning, a pointer to the name at 8, numbers at 16 and the address at 104.
func (c *channels) program(name string) uint64 {
	if a, ok := c.programs[name]; ok {
		return a
	}
	const (
		structure, nameAt, programAt = 112, 8, 104
		step                         = 0x100
		most                         = 1 << 16
	)
	if len(c.programs) >= most {
		return programBase
	}
	a := uint64(programBase + (len(c.programs)+1)*step)
	c.programs[name] = a
	size := (structure + len(name) + 1 + 63) &^ 63 // readers take 64 bytes at a time
	if c.namesTop+size > len(c.names) {
		return a
	}
	b := c.names[c.namesTop:]
	copy(b[structure:], name)
	binary.LittleEndian.PutUint64(b[nameAt:], namesBase+uint64(c.namesTop+structure))
	binary.LittleEndian.PutUint64(b, 1<<32|1)
	binary.LittleEndian.PutUint64(b[programAt:], a)
	c.namesTop += size
	return a
}

// launches are the kernels that work runs, as far as they are to be seen.
func (w *work) launches() (list []*launch) {
	if w.launch != nil {
		return []*launch{w.launch}
	}
	for i := range w.nodes {
		if n := &w.nodes[i]; n.w.launch != nil && !n.disable && len(list) < seenNodes {
			list = append(list, n.w.launch)
		}
	}
	return list
}

// room waits until there is room in a stream's channel, as a driver does.
func (c *call) room(s *stream) {
	const most, mostBytes = ringEntries - 16, piecesSize / 2
	for g := s.channel; g != nil; {
		for len(g.under) > 0 && g.under[0].over() {
			g.under = g.under[1:]
		}
		g.mu.Lock()
		full := len(g.under) >= most || g.inFlight >= mostBytes
		g.mu.Unlock()
		if !full || len(g.under) == 0 || c.p.ctx.Err() != nil {
			return
		}
		c.wait(g.under[0])
	}
}

// push writes a submission into the stream's channel. It waits for the semaphores, and releases the one that it
// returns. nil: it has no channel.
func (p *Process) push(s *stream, o *operation, launches []*launch, waits []channel.Semaphore) (g *gpuChannel, number uint32, done channel.Semaphore) {
	if len(launches) == 0 {
		return nil, 0, done
	}
	if g = p.channelOf(s); g == nil {
		return nil, 0, done
	}
	programs := make([]uint64, len(launches))
	for i, l := range launches {
		programs[i] = p.channels.program(l.f.name)
	}
	g.under = append(g.under, o)
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.put
	slot := int(n % slots)
	done = channel.Semaphore{Address: g.base + slotsAt + uint64(slot)*8, Payload: uint64(n + 1)}
	w := &g.writer
	w.Words = w.Words[:0]
	for _, a := range waits {
		w.Acquire(hostClass, hostSubchannel, a)
	}
	for i, l := range launches {
		release := channel.Semaphore{}
		if i == len(launches)-1 {
			release = done
		}
		g.launch(l, programs[i], slot*seenNodes+i, release)
	}
	w.Release(computeClass, computeSubchannel, channel.Semaphore{Address: g.base, Payload: uint64(n + 1)})
	g.submit(slot)
	return g, n, done
}

// submit puts what was written into the ring.
func (g *gpuChannel) submit(slot int) {
	w := &g.writer
	n, size := g.put, 4*len(w.Words)
	if g.at+size > piecesSize {
		g.at = 0
	}
	at := piecesAt + g.at
	for i, word := range w.Words {
		binary.LittleEndian.PutUint32(g.system[at+4*i:], word)
	}
	entry, ok := channel.Entry{Address: g.base + uint64(at), Words: uint32(len(w.Words)), Subroutine: true}.Encode()
	if !ok {
		panic("BUG: a piece of a pushbuffer doesn't fit in a ring")
	}
	binary.LittleEndian.PutUint64(g.ring[n%ringEntries*channel.EntrySize:], entry)
	g.at += size
	g.inFlight += size
	g.pieces[n] = piece{g.base + uint64(at+size), size, slot}
	g.put++
	binary.LittleEndian.PutUint32(g.userd[channel.GPPutOffset:], g.put%ringEntries)
}

// launch writes the launch of one kernel: constants, QMD, start.
func (g *gpuChannel) launch(l *launch, program uint64, place int, done channel.Semaphore) {
	w := &g.writer
	bank := g.base + constants + uint64(place%banks)*constSize
	w.Inline(computeClass, computeSubchannel, bank, []uint32{l.block.X, l.block.Y, l.block.Z, l.grid.X, l.grid.Y, l.grid.Z})
	if n := min(len(l.params), constSize-argumentsAt); n > 0 {
		words := make([]uint32, (n+3)/4)
		padded := append(append([]byte(nil), l.params[:n]...), 0, 0, 0)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(padded[4*i:])
		}
		w.Inline(computeClass, computeSubchannel, bank+argumentsAt, words)
	}
	q, _ := computeClass.NewQMD()
	const unit = 128 // of shared memory
	x := channel.Launch{
		Program: program, Grid: [3]uint32{l.grid.X, l.grid.Y, l.grid.Z}, Block: [3]uint32{l.block.X, l.block.Y, l.block.Z},
		Registers: uint32(l.f.registers()), SharedMemory: (uint32(l.f.k.SharedBytes()) + l.shared + unit - 1) &^ (unit - 1),
		Constants: bank, ConstantSize: constSize,
	}
	err := q.SetLaunch(x)
	if err != nil { // more than the class can have
		x.SharedMemory = 0
		err = q.SetLaunch(x)
	}
	if done.Address != 0 && err == nil {
		err = q.SetDone(done)
	}
	if err != nil {
		panic("BUG: a QMD: " + err.Error())
	}
	b := q.Bytes()
	words := make([]uint32, len(b)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	const size = 0x200
	at := g.base + qmdsAt + uint64(place%qmds)*size
	w.Inline(computeClass, computeSubchannel, at, words)
	const schedule = 0xa
	w.Methods(computeClass, computeSubchannel, "SEND_PCAS_A", uint32(at>>8))
	w.Methods(computeClass, computeSubchannel, "SEND_SIGNALING_PCAS2_B", schedule)
}

// pass notes that a submission begins.
func (g *gpuChannel) pass(n uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := g.pieces[n].end
	le := binary.LittleEndian
	for _, at := range []int{putOffset, getOffset} {
		le.PutUint32(g.userd[at:], uint32(end))
	}
	for _, at := range []int{putHigh, getHigh} {
		le.PutUint32(g.userd[at:], uint32(end>>32))
	}
	le.PutUint32(g.userd[gpGetOffset:], (n+1)%ringEntries)
	le.PutUint64(g.system[trackerTime:], hostTime())
	le.PutUint32(g.system, n+1)
}

// end notes that a submission's kernels are over.
func (g *gpuChannel) end(n uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.pieces[n]
	delete(g.pieces, n)
	g.inFlight -= x.size
	binary.LittleEndian.PutUint32(g.system[slotsAt+x.slot*8:], n+1)
}

// Where a USERD has what the GPU writes.
const (
	putOffset, putHigh = 0x40, 0x4c
	getOffset, getHigh = 0x44, 0x60
	gpGetOffset        = 0x88
	trackerTime        = 8 // of the tracker, at the beginning of the channel's system memory
)
