package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// codeSize is the room for code.
const codeSize = 64 << 20

// NewPrograms makes the memory, with size bytes of data for the address at, a multiple of a
// page's size; it is that of the file, if that is not nil, which the result closes.
func NewPrograms(at, size uint64, in *os.File) (g *Programs, err error) {
	if len(helpers()) == 0 {
		return nil, fmt.Errorf("%w: not on this architecture", ErrUnsupported)
	}
	page := uint64(os.Getpagesize())
	g = &Programs{dataAddr: at, used: textsAt}
	made := g
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	code, err := g.file("nvtrace-code", codeSize)
	if err != nil {
		return nil, err
	}
	if g.code, err = unix.Mmap(int(code.Fd()), 0, codeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// Nobody writes by another mapping; before 5.1 that can't be said, but the descriptor
	// that processes get can't write anyway.
	_, _ = unix.FcntlInt(code.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	only, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", code.Fd()))
	if err != nil {
		return nil, err
	}
	g.files[0] = only
	code.Close()
	size = (max(size, 1) + page - 1) &^ (page - 1)
	data, err := g.dataFile(in, int64(size))
	if err != nil {
		return nil, err
	}
	if g.data, err = unix.Mmap(int(data.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	copy(g.code, helpers())
	return g, nil
}

// ErrSize says that a file is not as long as the data.
var ErrSize = errors.New("the file has another size than the data")

// dataFile is the memory of data: a file's, which is made so long, or new.
func (g *Programs) dataFile(in *os.File, size int64) (*os.File, error) {
	if in == nil {
		return g.file("nvtrace-data", size)
	}
	g.files = append(g.files, in)
	st, err := in.Stat()
	switch {
	case err != nil:
		return nil, err
	case st.Size() == 0:
		return in, in.Truncate(size)
	case st.Size() != size:
		return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrSize, in.Name(), st.Size(), size)
	}
	return in, nil
}

// file makes memory whose size is for good: a process that made it shorter would end this
// one.
func (g *Programs) file(name string, size int64) (*os.File, error) {
	fd, err := proc.Memfd(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	g.files = append(g.files, f)
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	return f, nil
}

// Data is the shared data.
func (g *Programs) Data() []byte { return g.data }

// Close gives the memory back. Processes keep theirs.
func (g *Programs) Close() {
	for _, f := range g.files {
		_ = f.Close()
	}
	if g.code != nil {
		_ = unix.Munmap(g.code)
	}
	if g.data != nil {
		_ = unix.Munmap(g.data)
	}
	g.code, g.data, g.files = nil, nil, nil
}

// errRoom: there is too much code.
var errRoom = errors.New("no room for more programs")

// put adds to the code, and returns its address there.
func (g *Programs) put(b []byte) (uint64, error) {
	at := (g.used + 15) &^ 15
	if uint64(len(b)) > uint64(len(g.code))-at {
		return 0, errRoom
	}
	copy(g.code[at:], b)
	g.used = at + uint64(len(b))
	return programAddr + at, nil
}

// A MapLayout is what helpers know of a map.
type MapLayout struct {
	Kind             uint32 // LayoutHash …
	Key, Value       uint32 // bytes
	Entries          uint32 // at most
	Base, Stride     uint64 // from value to value
	Copy, CPUs       uint64 // bytes from CPU to CPU, 0: one value for all
	Slots, Homes     uint64 // of a hash
	Keys, KeyOff     uint64
	SlotSize, Values uint64
	Stable           uint64 // 1: no program deletes keys
	LRU              uint64 // 1: it makes room by itself
	LPM              uint64 // of a trie, which is a hash: where the bits of its prefixes' lengths are
	Units, Largest   uint64 // of a ring
	Refused          uint64 // address of the number of insertions without room
	Busy             uint64 // and of those that gave up waiting
}

// The kinds of maps.
const (
	LayoutHash = 1 + iota
	LayoutArray
	LayoutRing
	LayoutQueue
	LayoutStack
	LayoutBloom
	LayoutTrie
)

// SetTexts says which ring helpers print to. It must be called before all other methods.
func (g *Programs) SetTexts(m *MapLayout) error { _, err := g.Map(m); return err }

// Map adds a map, and returns what helpers take for it.
func (g *Programs) Map(m *MapLayout) (uint64, error) {
	b, err := binary.Append(make([]byte, 0, mapSize), binary.LittleEndian, m)
	if err != nil {
		return 0, err
	}
	return g.put(b)
}

// Table adds numbers, and returns their address.
func (g *Programs) Table(list []uint64) (uint64, error) {
	b := make([]byte, 0, 8*len(list))
	for _, v := range list {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return g.put(b)
}

// A Code is a program.
type Code struct {
	Code  []byte
	Table []uint64
	// Counts is the address of numbers: of calls whose return could not be seen, and of runs
	// that were ended by its first end, its second ...
	Counts uint64
}

// A ProgramRef is a program in the memory of Programs, as struct program has it but for
// whether it is on.
type ProgramRef struct{ code, table, counts uint64 }

// Add adds a program.
func (g *Programs) Add(c *Code) (r ProgramRef, err error) {
	if r.code, err = g.put(c.Code); err != nil {
		return r, err
	}
	r.table, err = g.Table(c.Table)
	r.counts = c.Counts
	return r, err
}

// Probe adds what runs at a function, for Hook.Probe.
func (g *Programs) Probe(entries, returns []ProgramRef) (uint64, error) {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(entries)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(returns)))
	for _, r := range slices.Concat(entries, returns) {
		for _, v := range []uint64{r.code, r.table, r.counts, 1} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return g.put(b)
}

// Unwinder is the name of the function of libgcc that Unwind is for.
const Unwinder = "_Unwind_Find_FDE"

// Unwind returns what must run at the function Unwinder of a process, for Hook.Probe: else
// exceptions end the program that come through a function with Hook.Returns, since nobody
// knows where such functions return to.
func (g *Programs) Unwind() (uint64, error) {
	return g.Probe([]ProgramRef{{code: unwindProgram()}}, nil)
}

// Enable says whether program i of a probe, those at the return behind those at the
// entry, is run.
func (g *Programs) Enable(probe uint64, i int, on bool) {
	v := uint64(0)
	if on {
		v = 1
	}
	store64(g.code, int(probe-programAddr)+8+i*programSize+24, v)
}

// SetPrograms says which programs Hook.Probe is about.
func (a *Agent) SetPrograms(g *Programs) { a.programs = g }

// Runs sees to it that programs can run in t's process; t must be stopped as
// [ptrace.Task.Syscall] wants. The error stays the same until the process execs.
func (p *Process) Runs(t *ptrace.Task) error {
	if p.runs || p.runsErr != nil {
		return p.runsErr
	}
	if p.a.programs == nil {
		return errors.New("there are no programs")
	}
	err := p.mapPrograms(t, p.a.programs)
	for try := 1; errors.Is(err, errRunning) && try < mostTries; try++ {
		yield()
		err = p.mapPrograms(t, p.a.programs)
	}
	if err != nil {
		err = fmt.Errorf("%w: process %d: %w", ErrUnsupported, p.PID, err)
	}
	if err == nil || !errors.Is(err, ptrace.ErrState) {
		p.runs, p.runsErr = err == nil, err
	}
	return err
}

// Own says that threads whose stack lies from addr on, at most 4 MiB of it, call functions for
// the supervisor: no programs run at these. t must be stopped as [ptrace.Task.Syscall] wants.
func (p *Process) Own(t *ptrace.Task, addr uint64) error {
	p.ownStack = addr
	if err := p.Runs(t); err != nil {
		return err
	}
	return p.write64(confAddr+confOwn, addr)
}

// OwnStack says that threads whose stack lies from addr on, at most 4 MiB of it, call functions for
// the supervisor: see Record.Own.
func (p *Process) OwnStack(addr uint64) { p.ownStack = addr }

// mapPrograms maps the memory of programs, which forked children have, too. That of another
// supervisor makes room, unless a thread is in one of its programs still; the calls whose
// returns that one has watched stay.
func (p *Process) mapPrograms(t *ptrace.Task, g *Programs) error {
	if p.again {
		left, err := proc.Maps(p.PID)
		if err != nil {
			return err
		}
		if proc.At(left, programAddr) != nil {
			tasks, resume, err := t.StopWorld()
			if err != nil {
				return err
			}
			defer resume()
			if err := inPrograms(append(tasks, t), left); err != nil {
				return err
			}
		}
	}
	fds, err := p.send(t, g.files)
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range fds {
			_, _ = t.Syscall(unix.SYS_CLOSE, fd)
		}
	}()
	for _, m := range []struct {
		addr, size, prot, flags, fd uint64
	}{
		{programAddr, codeSize, unix.PROT_READ | unix.PROT_EXEC, unix.MAP_SHARED, fds[0]},
		{g.dataAddr, uint64(len(g.data)), unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED, fds[1]},
		{retsAddr, (maxSlots + 1) * retsSize, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE, noFD},
		{filesAddr, (filesSize + 4095) &^ 4095, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE, noFD},
	} {
		left, err := p.left(m.addr, m.size)
		if err != nil {
			return err
		}
		if left > 0 && m.addr == retsAddr {
			continue
		}
		_, err = call(t, "mmap", m.addr, unix.SYS_MMAP, m.addr, m.size, m.prot, m.flags|fixed(left), m.fd, 0)
		if err != nil {
			return err
		}
		if left > m.size {
			_, _ = t.Syscall(unix.SYS_MUNMAP, m.addr+m.size, left-m.size)
		}
		_, _ = t.Syscall(unix.SYS_MADVISE, m.addr, m.size, unix.MADV_DONTDUMP)
	}
	return nil
}

// inPrograms returns an error if a thread is in a program, in what that has called or in what is about
// to call it: it runs code of the supervisor's or the vdso, or is in a signal handler that has interrupted
// that, and an address in the memory of programs is in a register, or on the stack, near the top. Elsewhere
// such an address is a remainder of an earlier run: programs call nothing else.
func inPrograms(tasks []*ptrace.Task, maps []proc.Mapping) error {
	const most = 16 << 10 // bytes: what a program and its helpers need, several times
	var vdso proc.Mapping // found once, since each word of each stack is compared
	if i := slices.IndexFunc(maps, func(m proc.Mapping) bool { return m.Path == "[vdso]" }); i >= 0 {
		vdso = maps[i]
	}
	ours := func(addr uint64) bool {
		return inside(addr) || addr >= baseAddr && addr < endAddr || addr >= vdso.Start && addr < vdso.End
	}
	stack := make([]byte, most)
	for _, t := range tasks {
		r, err := t.Regs()
		if err != nil {
			continue // it ended
		}
		n, _ := t.ReadMem(r.SP(), stack)
		interrupted := ours(r.IP())
		if interrupted {
			regs, err := binary.Append(nil, binary.LittleEndian, r)
			if err != nil {
				return err
			}
			if anyInside(regs) {
				return errRunning
			}
		}
		for at := 0; at+8 <= n; at += 8 {
			word := binary.LittleEndian.Uint64(stack[at:])
			if !interrupted && ours(word) && interruptedAt(stack[at:n]) {
				interrupted = true
				if anyInside(stack[max(at-savedRegs, 0):at]) {
					return errRunning
				}
			}
			if interrupted && inside(word) {
				return errRunning
			}
		}
	}
	return nil
}

// inside reports whether an address is one in the memory of programs.
func inside(addr uint64) bool { return addr >= programAddr && addr < programAddr+codeSize }

// anyInside reports whether one of the words is.
func anyInside(words []byte) bool {
	for ; len(words) >= 8; words = words[8:] {
		if inside(binary.LittleEndian.Uint64(words)) {
			return true
		}
	}
	return false
}

// savedRegs is how many bytes of registers a signal frame has in front of the instruction pointer.
const savedRegs = 16 * 8

// interruptedAt reports whether memory is what a signal frame has from the instruction
// pointer on (struct sigcontext_64 of the kernel's asm/sigcontext.h): flags, of which one is
// always set, and the segments of 64-bit code.
func interruptedAt(b []byte) bool {
	if len(b) < 24 {
		return false
	}
	flags, segments := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	return flags&2 != 0 && flags>>22 == 0 && uint16(segments) == 0x33
}

// errRunning: the memory of programs is in use.
var errRunning = errors.New("a thread runs a program of another supervisor")

// mostTries bounds how often it is looked whether one still does.
const mostTries = 50

// Where the messages of send are, in the page of struct conf.
const (
	sendPair    = confAddr + 0x800 // two descriptors
	sendVec     = confAddr + 0x810 // struct iovec
	sendByte    = confAddr + 0x820
	sendMsg     = confAddr + 0x840 // struct msghdr
	sendControl = confAddr + 0x880
	sendRoom    = 64
)

// send gives t's process descriptors of files, and returns their numbers there. Paths need
// not lead to them: the process may have another file system, or other rights.
func (p *Process) send(t *ptrace.Task, files []*os.File) ([]uint64, error) {
	if _, err := call(t, "socketpair", 0, unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0, sendPair); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	var pair [8]byte
	if n, err := p.mem.ReadAt(pair[:], sendPair); n < len(pair) {
		return nil, err
	}
	ours, theirs := uint64(le.Uint32(pair[:])), uint64(le.Uint32(pair[4:]))
	defer func() {
		_, _ = t.Syscall(unix.SYS_CLOSE, ours)
		_, _ = t.Syscall(unix.SYS_CLOSE, theirs)
	}()
	var list []int
	for _, f := range files {
		list = append(list, int(f.Fd()))
	}
	if err := sendThrough(p.PID, int(ours), list); err != nil {
		return nil, err
	}
	put := func(at uint64, words ...uint64) error {
		var b []byte
		for _, w := range words {
			b = le.AppendUint64(b, w)
		}
		return p.write(at, b)
	}
	if err := errors.Join(put(sendVec, sendByte, 1), put(sendMsg, 0, 0, sendVec, 1, sendControl, sendRoom, 0)); err != nil {
		return nil, err
	}
	if _, err := call(t, "recvmsg", 0, unix.SYS_RECVMSG, theirs, sendMsg, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC); err != nil {
		return nil, err
	}
	control := make([]byte, sendRoom)
	if n, err := p.mem.ReadAt(control, sendControl); n < len(control) {
		return nil, err
	}
	want := unix.CmsgLen(4 * len(files))
	if le.Uint64(control) != uint64(want) {
		return nil, fmt.Errorf("recvmsg: %d bytes of descriptors instead of %d", le.Uint64(control), want)
	}
	var fds []uint64
	for i := range files {
		fds = append(fds, uint64(le.Uint32(control[unix.CmsgLen(0)+4*i:])))
	}
	return fds, nil
}

// sendThrough sends descriptors through a socket of another process.
func sendThrough(pid, fd int, files []int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(process)
	s, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_getfd", err)
	}
	defer unix.Close(s)
	return os.NewSyscallError("sendmsg", unix.Sendmsg(s, []byte{0}, unix.UnixRights(files...), nil, unix.MSG_DONTWAIT))
}
