package record

import (
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
)

// openFile is an open file description of a device node.
type openFile struct {
	id   uint32 // traces.Event.File
	name string // below /dev
	rdev uint64
}

// process is what the recorder knows of one process.
type process struct {
	pid int
	fds map[int32]*openFile // its descriptors of NVIDIA's nodes
	// narrow is set once the calls that change descriptors (close, dup, mmap)
	// are seen in this process; before that a table entry proves nothing.
	narrow  bool
	refused bool              // the second filter could not be installed; said once
	maps    map[uint64]uint64 // device mappings: address to length, with Options.Munmap
	// closing holds the descriptors of close calls that have not returned: until
	// the kernel gets to it, other threads can still use them.
	closing map[int32]*thread
	// agents are the descriptors in fds that the agent has opened, with the number of
	// the file, as of its count of changes.
	agents  map[int32]uint32
	changes uint64
	// irrelevant counts calls that stopped and were about no device.
	irrelevant int
	// agent is set while ioctls are logged in the process.
	agent *agent.Process
}

// fork returns what a new process of p's begins with.
func (p *process) fork(pid int) *process {
	return &process{
		pid: pid, fds: maps.Clone(p.fds), narrow: p.narrow, refused: p.refused, maps: maps.Clone(p.maps),
	}
}

// addMap notes a device mapping.
func (p *process) addMap(addr, length uint64) {
	if p.maps == nil {
		p.maps = make(map[uint64]uint64)
	}
	p.maps[addr] = length
}

// mapped reports whether a device mapping lies in the range.
func (p *process) mapped(addr, length uint64) bool {
	for a, n := range p.maps {
		if a < addr+length && addr < a+n {
			return true
		}
	}
	return false
}

// dropMap forgets the mappings that begin in the range.
func (p *process) dropMap(addr, length uint64) {
	for a := range p.maps {
		if a >= addr && a < addr+length {
			delete(p.maps, a)
		}
	}
}

// forget drops a descriptor and returns what it was.
func (p *process) forget(fd int32) *openFile {
	f := p.fds[fd]
	delete(p.agents, fd)
	if f != nil && p.agent != nil {
		p.agent.SetKind(fd, fastNone)
		p.agent.Disown(fd)
		p.agent.SetHeld(fd, agent.HeldNot)
	}
	delete(p.fds, fd)
	return f
}

// beginClose drops a descriptor that is about to be closed: from the entry of
// the call on, another thread may be given the same number.
func (p *process) beginClose(fd int32, by *thread) {
	if p.closing == nil {
		p.closing = make(map[int32]*thread)
	}
	p.closing[fd] = by
	p.forget(fd)
}

// beingClosed returns what is behind a descriptor that a call is closing, nil
// if none is.
func (p *process) beingClosed(fd int32) *openFile {
	if by := p.closing[fd]; by != nil {
		for _, e := range by.ends {
			if e.fd == fd {
				return e.file
			}
		}
	}
	return nil
}

// inRange returns the process's device descriptors between first and last, ascending.
func (p *process) inRange(first, last uint32) []int32 {
	var fds []int32
	for fd := range p.fds {
		if uint32(fd) >= first && uint32(fd) <= last {
			fds = append(fds, fd)
		}
	}
	slices.Sort(fds)
	return fds
}

// statFD returns the device number and the path of a descriptor. ok is false
// when it is closed or no character device.
func statFD(pid int, fd int32) (rdev uint64, path string, ok bool) {
	link := proc.FD(pid, fd)
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, "", false
	}
	path, _ = os.Readlink(link)
	return st.Rdev, path, true
}

// kcmpFile asks the kernel whether two descriptors are the same open file
// description (kcmp(2), KCMP_FILE). false where it can't tell.
func kcmpFile(pid1 int, fd1 int32, pid2 int, fd2 int32) bool {
	const kcmpFile = 0
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(uint32(fd1)), uintptr(uint32(fd2)), 0)
	return e == 0 && r == 0
}
