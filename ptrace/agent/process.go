package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// errBusy is an obstacle that may go away.
var errBusy = errors.New("another process uses the memory")

// start puts the agent to work: in a process that does not have it, or in a
// forked child, which has its code, but no rings.
func (p *Process) start(t *ptrace.Task) error {
	tasks, resume, err := p.prepare(t)
	if err != nil {
		return err
	}
	defer resume()
	if err := p.mapShared(t); err != nil {
		return err
	}
	p.started = true
	for _, o := range append(tasks, t) {
		p.addThread(o, t)
	}
	if p.again {
		p.dropThreads()
	} else {
		for _, slot := range p.inherited { // of threads that the child does not have
			_ = p.write64(slotAddr+uint64(slot*slotSize)+slotDepth, 0)
		}
		p.inherited = nil
	}
	err = p.writePlan()
	if p.a.o.Started != nil {
		p.a.o.Started(p)
	}
	if err == nil && p.times { // in a forked child: the parent's is wiped
		err = p.writeDriver()
	}
	if err == nil {
		err = p.write64(gateAddr, 1)
	}
	if err != nil { // its memory can't be written: it is dying
		p.started = false
	}
	return err
}

// prepare sees to it that the agent's code is in the process, and stops all its
// threads but t.
func (p *Process) prepare(t *ptrace.Task) (tasks []*ptrace.Task, resume func(), err error) {
	if err := p.suitable(t); err != nil {
		return nil, nil, err
	}
	if err := p.open(); err != nil {
		return nil, nil, err
	}
	if tasks, resume, err = t.StopWorld(); err != nil {
		return nil, nil, err
	}
	for _, o := range tasks {
		if o.PID != p.PID {
			err = errBusy
		}
	}
	if err == nil && !p.mapped {
		if p.again = p.present(t); p.again {
			err = p.takeOver(t)
			p.mapped = err == nil
		} else {
			err = p.mapPrivate(t)
		}
	}
	if err != nil {
		resume()
		return nil, nil, err
	}
	return tasks, resume, nil
}

// open opens the process's memory.
func (p *Process) open() (err error) {
	if p.mem == nil {
		f, err := os.OpenFile(proc.Path(p.PID, "mem"), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("the process's memory can't be opened: %w%s", err, ptrace.WhyRefused(p.PID, err))
		}
		p.mem = f
	}
	return nil
}

// writeCode writes what the program can only execute. Some kernels forbid that in
// /proc/PID/mem (proc_mem.force_override), but not to a tracer.
func (p *Process) writeCode(t *ptrace.Task, addr uint64, b []byte) error {
	if p.write(addr, b) == nil {
		return nil
	}
	return t.PokeText(addr, b)
}

// suitable finds reasons against: nothing of them can be told from inside of the process later. A clock of
// another time namespace would give times that can't be compared with the supervisor's.
func (p *Process) suitable(t *ptrace.Task) error {
	if p.a.blob == nil {
		return errors.New("not on this architecture")
	}
	r, err := t.Regs()
	if err != nil {
		return err
	}
	if !is64(r) {
		return errors.New("the process runs no 64-bit code")
	}
	if err := p.confined(t); err != nil {
		return err
	}
	if p.timed {
		return nil
	}
	ours, err1 := ownTime()
	theirs, err2 := os.Readlink("/proc/" + strconv.Itoa(p.PID) + timeNamespace)
	if err1 == nil && err2 == nil && ours != theirs {
		return errors.New("the process has another clock (time namespace)")
	}
	p.timed = true
	return nil
}

// ownTime names the time namespace of this process.
var ownTime = sync.OnceValues(func() (string, error) { return os.Readlink("/proc/self" + timeNamespace) })

// timeNamespace is behind /proc/PID.
const timeNamespace = "/ns/time"

const noFD = ^uint64(0)

// mapPrivate maps what is the process's own, and writes the code. It is at fixed addresses, so that the
// code needs no relocation and finds its data without a register; a process that has something there
// is left alone.
func (p *Process) mapPrivate(t *ptrace.Task) error {
	clock, err := findClock(t, p.a.vdso)
	if err != nil {
		return err
	}
	flags := uint64(unix.MAP_FIXED_NOREPLACE)
	if leftover(p.PID) {
		flags = unix.MAP_FIXED
	}
	_, err = call(t, "mmap", baseAddr, unix.SYS_MMAP, baseAddr, endAddr-baseAddr, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|flags, noFD, 0)
	if err != nil {
		return err
	}
	err = p.writePrivate(clock)
	if err == nil {
		err = p.protect(t)
	}
	if err != nil {
		_, _ = t.Syscall(unix.SYS_MUNMAP, baseAddr, endAddr-baseAddr)
		return err
	}
	p.mapped = true
	return nil
}

// leftover says whether a supervisor was killed in a process just after it had mapped the
// memory for the code: nothing executes that.
func leftover(pid int) bool {
	maps, err := proc.Maps(pid)
	m := proc.At(maps, baseAddr)
	return err == nil && m != nil && m.Start == baseAddr && m.End == endAddr && m.Inode == 0 && m.Write && !m.Exec
}

// writePrivate writes what belongs into that memory; of a process that is taken over, all but the code,
// which threads may be executing.
func (p *Process) writePrivate(clock vdsoCode) error {
	if !p.again {
		if err := p.write(baseAddr, p.a.blob.code); err != nil {
			return err
		}
	}
	if err := p.write(nameAddr, []byte("nvtrace\x00")); err != nil {
		return err
	}
	if err := p.write(callStubAddr, ptrace.CallStub); err != nil {
		return err
	}
	if err := p.write64(confAddr+confSlots, maxSlots); err != nil {
		return err
	}
	if err := p.write(pathsAddr, p.a.paths); err != nil {
		return err
	}
	if err := p.write64(confAddr+confPaths, uint64(len(p.a.paths)/pathSize)); err != nil {
		return err
	}
	for _, f := range []struct {
		on bool
		at uint64
	}{{p.a.calls.Maps, confMaps}, {p.a.calls.Files, confFiles}} {
		if f.on {
			if err := p.write64(confAddr+f.at, 1); err != nil {
				return err
			}
		}
	}
	if err := p.write64(confAddr+confCPU, clock.cpu); err != nil {
		return err
	}
	if err := p.writeManners(); err != nil {
		return err
	}
	return p.write64(confAddr+confClock, clock.clock)
}

// What lies behind the code.
const (
	nameAddr     = confAddr - 16 // the name of shared memory
	callStubAddr = confAddr - 32 // ptrace.CallStub
)

// mapShared maps the memory for what all rings have in common, and tables for
// what follows.
func (p *Process) mapShared(t *ptrace.Task) error {
	// The first rings come with it: each system call that the program is made to make
	// costs it two stops.
	m, err := p.share(t, sharedAddr, ringAddr-sharedAddr+chunkSize)
	if err != nil {
		return err
	}
	p.first, p.shared = m, m[:sharedSize:sharedSize]
	if err := p.a.owner.own(p.shared); err != nil { // a copy's fault ends the program then, should this process be killed
		p.a.o.Logger.Warn("the agent will not know of this process's end", "err", err)
	}
	p.chunks = map[int][]byte{0: m[ringAddr-sharedAddr:]}
	p.rings, p.starts = make([]*ring, maxSlots), make([]uint64, maxSlots)
	p.byTID = make(map[int]*ring)
	p.borrowed = make(map[int]*ring)
	for i := range p.starts {
		p.starts[i] = p.number * ringTurn
	}
	if p.again {
		return p.takeKeys(t)
	}
	p.keys = make(map[uint64]int)
	p.places = make([]uint64, numKeys)
	p.freed = make(map[int]bool)
	if p.inherited == nil {
		return nil
	}
	return p.write(keysAddr, make([]byte, numKeys*keySize))
}

// share maps memory that t's process and this one share. A forked child will not
// have it, and it is not dumped.
func (p *Process) share(t *ptrace.Task, addr uint64, size int) (m []byte, err error) {
	n := uint64(size)
	if !leavesRoom(t.PID, n) {
		return nil, fmt.Errorf("%d bytes: the process is near its limit of address space: %w", size, unix.ENOMEM)
	}
	var fd uint64
	err = proc.WithoutExec(unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING, func(flags int) (err error) {
		fd, err = call(t, "memfd_create", 0, unix.SYS_MEMFD_CREATE, nameAddr, uint64(flags))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = t.Syscall(unix.SYS_CLOSE, fd) }()
	f, err := openMemory(t.PID, fd, int64(size))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if m, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	left, err := p.left(addr, n)
	if err == nil {
		_, err = call(t, "mmap", addr, unix.SYS_MMAP, addr, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|fixed(left), fd, 0)
	}
	if err == nil {
		if _, err = call(t, "madvise", 0, unix.SYS_MADVISE, addr, n, unix.MADV_DONTFORK); err != nil {
			_, _ = t.Syscall(unix.SYS_MUNMAP, addr, n)
		}
	}
	if err != nil {
		_ = unix.Munmap(m)
		return nil, err
	}
	_, _ = t.Syscall(unix.SYS_MADVISE, addr, n, unix.MADV_DONTDUMP)
	return m, nil
}

// leavesRoom says whether a process that gets so much memory has several times as much left of its
// limit of address space (RLIMIT_AS), which counts what is mapped for nvtrace, too: the program must not
// be the one that comes to the limit for that.
func leavesRoom(pid int, size uint64) bool {
	const times = 4
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_AS, nil, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return true // if it has died, mapping says so
	}
	used, err := strconv.ParseUint(proc.Stat(pid, pid, proc.StatSize), 10, 64)
	return err != nil || used <= limit.Cur && limit.Cur-used >= times*size
}

// openMemory opens memory that a process has made by memfd_create, and gives it its size
// for good: whoever could shorten it would end this process, which reads it, by SIGBUS.
func openMemory(pid int, fd uint64, size int64) (*os.File, error) {
	link := proc.FD(pid, int32(fd))
	at, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0) // another process could have put something else there
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: link, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: link, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s: no memory that it has just made: mode %#o", link, st.Mode)
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(at), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	seal := func() error {
		have, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0) // of memory only
		if err != nil {
			return fmt.Errorf("%s: no memory that it has just made: %w", link, err)
		}
		if have&^unix.F_SEAL_EXEC != 0 { // which it has had from the beginning
			return fmt.Errorf("%s: no memory that it has just made: seals %#x", link, have)
		}
		if err := f.Truncate(size); err != nil { // here, out of reach of the program's limits
			return err
		}
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		if err != nil {
			return fmt.Errorf("seal %s: %w", link, err)
		}
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return &os.PathError{Op: "stat", Path: link, Err: err}
		}
		if st.Size != size {
			return fmt.Errorf("%s: %d bytes instead of %d", link, st.Size, size)
		}
		return nil
	}
	if err := seal(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// release gives this process's own mappings back, once all records are given out.
func (p *Process) release() {
	if !p.gone {
		return
	}
	if p.mem != nil {
		p.mem.Close()
		p.mem = nil
	}
	for _, r := range p.rings {
		if r != nil {
			return
		}
	}
	for c, m := range p.chunks {
		if c > 0 {
			_ = unix.Munmap(m)
		}
	}
	if p.first != nil {
		p.a.owner.disown(p.shared)
		go unix.Munmap(p.first) // in nobody's way
	}
	p.chunks, p.shared, p.first = nil, nil, nil
}

// arm makes the next ioctl stop, or not.
func (p *Process) arm(on bool) {
	if !p.started || p.shared == nil {
		return
	}
	v := uint64(0)
	if on {
		v = 1
	}
	store64(p.shared, sharedArmed, v)
}

// writePlan gives the process the current rules: in the place of the two that is
// not in force.
func (p *Process) writePlan() error {
	if p.planned || p.a.plan == nil {
		return nil
	}
	p.turn ^= 1
	addr := uint64(planAddr + p.turn*planSize)
	if err := p.write(addr, p.a.plan); err != nil {
		return err
	}
	if err := p.write64(confAddr+confPlan, addr); err != nil {
		return err
	}
	p.planned = true
	return nil
}

// SetKind says what a descriptor is, as the kinds of the plan go; 0: the
// supervisor is to see its ioctls. From the call on no ioctl begins under the
// old kind; call Agent.Settle to learn of those that have begun.
func (p *Process) SetKind(fd int32, kind uint8) {
	if p.started && fd >= 0 && fd < maxFD {
		store8(p.shared, sharedKinds+int(fd), kind)
	}
}

// SetHeld says whether a descriptor is of interest: then system calls that close,
// duplicate or map it stop for the supervisor, or are recorded. Those that
// duplicate or map one that is a character device stop in any case. As with SetKind,
// no recorded call begins from here on unless held is HeldDevice.
func (p *Process) SetHeld(fd int32, held Held) {
	if p.started && fd >= 0 && fd < maxFD {
		store8(p.shared, sharedHeld+int(fd), uint8(held))
	}
}

// Disown makes a descriptor one of a file that the agent has not opened.
func (p *Process) Disown(fd int32) {
	if p.started && fd >= 0 && fd < maxFD {
		store32(p.shared, sharedFile+4*int(fd), 0)
	}
}

// Changes counts the calls by which the agent has changed what Files reports.
func (p *Process) Changes() uint64 {
	if !p.started || p.shared == nil {
		return 0
	}
	return load64(p.shared, sharedChanges)
}

// Files calls f for each descriptor of a file that the agent has opened, with the
// file's number, as in Record.File. The program may have made it up.
func (p *Process) Files(f func(fd int32, file uint32)) {
	if !p.started || p.shared == nil {
		return
	}
	for i := 0; i < maxFD; i += 2 {
		v := load64(p.shared, sharedFile+4*i)
		if v == 0 {
			continue
		}
		if n := uint32(v); n != 0 {
			f(int32(i), n)
		}
		if n := uint32(v >> 32); n != 0 {
			f(int32(i+1), n)
		}
	}
}

// File returns the number of the file that a descriptor is of, as Files does; 0: none.
func (p *Process) File(fd int32) uint32 {
	if !p.started || p.shared == nil || fd < 0 || fd >= maxFD {
		return 0
	}
	return uint32(load64(p.shared, sharedFile+4*int(fd&^1)) >> (32 * (fd & 1)))
}

// AddDevice makes the agent open a device without the supervisor, in processes of
// Process.OpenDevices: descriptors of it are of that kind, see Process.SetKind, and held, see
// Process.SetHeld.
func (a *Agent) AddDevice(rdev uint64, kind uint8) {
	if rdev == 0 || len(a.devices) >= 2*maxDevices {
		return
	}
	for i := 0; i < len(a.devices); i += 2 {
		if a.devices[i] == rdev {
			return
		}
	}
	a.devices = append(a.devices, rdev, uint64(kind))
	for _, p := range a.procs {
		p.writeDevices()
	}
}

// OpenDevices lets the agent open devices in this process. The caller follows the process's
// descriptors from here on, and Agent.SetPlan has set the rules for ioctls on what is opened.
func (p *Process) OpenDevices() {
	p.opens = true
	p.writeDevices()
}

// writeDevices tells the process which devices its agent may open.
func (p *Process) writeDevices() {
	if p.shared == nil || !p.opens {
		return
	}
	for i := len(p.a.devices) - 2; i >= 0; i -= 2 { // a number makes an entry valid
		store64(p.shared, sharedDevices+8*(i+1), p.a.devices[i+1])
		store64(p.shared, sharedDevices+8*i, p.a.devices[i])
	}
}

// Held says what a descriptor is to the supervisor.
type Held uint8

// What it is.
const (
	HeldNot    Held = iota // of no interest
	HeldDevice             // a device's
	HeldBusy               // a device's, and about to change
)

// Update gives a stopped thread a ring if it has none, where that is possible
// now. Threads that are reported to Agent.Task need it only if they had no
// thread pointer then.
func (p *Process) Update(t *ptrace.Task) {
	if p.started && p.byTID[t.TID] == nil {
		p.addThread(t, t)
	}
}

// Why says, in a few words, why the agent has most likely left an ioctl on a
// descriptor of t's process to the supervisor: for counts. The process may have
// changed meanwhile.
func (p *Process) Why(t *ptrace.Task, fd int32, request uint32) string {
	r := p.byTID[t.TID]
	switch {
	case !p.started || p.shared == nil:
		return "agent not at work"
	case r == nil:
		return "no slot"
	case r.off || r.spoil:
		return "slot out of use"
	case fd < 0 || fd >= maxFD || byte(load64(p.shared, sharedKinds+int(fd)&^7)>>(fd%8*8)) == 0:
		return "no kind of descriptor"
	case load64(p.shared, sharedArmed) != 0:
		return "to wake the supervisor"
	case !p.a.rules[request]:
		return "no rule"
	case r.crowded():
		return "full ring"
	}
	return "not plain"
}
