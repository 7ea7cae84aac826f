package channels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// Memory is what can be read of a process from outside, or of a recording of one.
type Memory interface {
	// Maps returns the process's mappings in ascending order.
	Maps() ([]proc.Mapping, error)
	// Read fills b with the bytes at address, or fails.
	Read(address uint64, b []byte) error
}

const pageSize = 0x1000

// Process is the memory of a process that runs.
type Process struct {
	PID    int
	mem    *os.File
	began  string // as /proc has it: another process may get the number
	access Access
	gpu    atomic.Pointer[[]proc.Mapping] // memory of GPUs, with SystemMemory: as of the latest Maps
}

// Access says which of a process's memory is read.
type Access uint8

// What is read.
const (
	AllMemory    Access = iota
	SystemMemory        // none of a GPU: channels are found as where it can't be read
)

// Open makes the memory of a process readable. The error says what to do if reading isn't allowed.
func Open(pid int, access Access) (*Process, error) {
	mem, err := os.Open(proc.Path(pid, "mem"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no process %d", pid)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("process %d can't be read: run as its user or as root; "+
			"if it is yours, /proc/sys/kernel/yama/ptrace_scope must be 0", pid)
	case err != nil:
		return nil, err
	}
	return &Process{PID: pid, mem: mem, began: proc.Stat(pid, pid, proc.StatStart), access: access}, nil
}

// Close ends the use of the process's memory.
func (p *Process) Close() error { return p.mem.Close() }

// Maps implements [Memory].
func (p *Process) Maps() ([]proc.Mapping, error) {
	maps, err := proc.Maps(p.PID)
	if err == nil && proc.Stat(p.PID, p.PID, proc.StatStart) != p.began {
		return nil, fmt.Errorf("process %d has ended", p.PID)
	}
	if p.access == SystemMemory {
		gpu := slices.Clone(maps)
		gpu = slices.DeleteFunc(gpu, func(m proc.Mapping) bool {
			node, ok := nodeOf(&m)
			return !ok || !isGPU(node)
		})
		p.gpu.Store(&gpu)
	}
	return maps, err
}

var errLeftAlone = errors.New("memory of a GPU is not to be read")

// Read implements [Memory].
func (p *Process) Read(address uint64, b []byte) error {
	if address >= 1<<63 {
		return fmt.Errorf("address %#x is not a program's", address)
	}
	if gpu := p.gpu.Load(); gpu != nil {
		end := address + uint64(len(b))
		if slices.ContainsFunc(*gpu, func(m proc.Mapping) bool { return address < m.End && m.Start < end }) {
			return errLeftAlone
		}
	}
	_, err := p.mem.ReadAt(b, int64(address))
	return err
}

// ReadPages reads many pages in one step, which is one system call.
func (p *Process) ReadPages(addresses []uint64, b []byte) error {
	remote := make([]unix.RemoteIovec, len(addresses))
	for i, a := range addresses {
		remote[i] = unix.RemoteIovec{Base: uintptr(a), Len: pageSize}
	}
	n, err := unix.ProcessVMReadv(p.PID, []unix.Iovec{iovec(b)}, remote, 0)
	switch {
	case err != nil:
		return fmt.Errorf("process %d: %w", p.PID, err)
	case n != len(b):
		return fmt.Errorf("process %d: %d bytes of %d could be read", p.PID, n, len(b))
	}
	return nil
}

// iovec describes memory of ours.
func iovec(b []byte) (v unix.Iovec) {
	v.Base = &b[0]
	v.SetLen(len(b))
	return v
}

// readWords reads n words of 32 bits.
func readWords(m Memory, address uint64, n int) ([]uint32, error) {
	b := make([]byte, 4*n)
	if err := m.Read(address, b); err != nil {
		return nil, err
	}
	words := make([]uint32, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words, nil
}

// readLong reads one word of 64 bits.
func readLong(m Memory, address uint64) (uint64, error) {
	var b [8]byte
	err := m.Read(address, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// A space is a process's mappings of GPU devices.
type space struct {
	gpu    []proc.Mapping // memory of a GPU (BAR1), or registers: of /dev/nvidiaN
	system []proc.Mapping // system memory that a GPU reads: of /dev/nvidiactl
	probes int            // pages in which pieces were looked for
	nodes  []string       // of GPUs of which something is mapped, readable or not
}

// device returns the node of the process's GPU; "": it has none, or several.
func (s *space) device() string {
	if len(s.nodes) != 1 {
		return ""
	}
	return s.nodes[0]
}

// blind reports whether a process uses GPUs of whose memory nothing can be read.
func (s *space) blind(m Memory) bool {
	var b [4]byte
	return len(s.nodes) > 0 && !slices.ContainsFunc(s.gpu, func(g proc.Mapping) bool { return m.Read(g.Start, b[:]) == nil })
}

// maxGPUMapping is the size of the largest mapping of /dev/nvidiaN that is searched for rings.
// Seen: 2 MiB; a larger one is memory that the program itself uses.
const maxGPUMapping = 64 << 20

// spaceOf picks the readable mappings of devices.
func spaceOf(maps []proc.Mapping) space {
	var s space
	for _, m := range maps {
		node, ok := nodeOf(&m)
		if !ok {
			continue
		}
		m.Path = node
		gpu := isGPU(node)
		if gpu && !slices.Contains(s.nodes, node) {
			s.nodes = append(s.nodes, node)
		}
		switch {
		case !m.Read || m.Private:
		case node == nodePath+"ctl":
			s.system = append(s.system, m)
		case gpu && m.End-m.Start <= maxGPUMapping:
			s.gpu = append(s.gpu, m)
		}
	}
	return s
}

// What the paths of devices, and of the files of a simulated GPU (package sim), begin with.
const (
	nodePath      = "/dev/nvidia"
	simulatedPath = "/memfd:nvtrace-sim-"
	simulatedNode = simulatedPath + "nvidia"
	deleted       = " (deleted)" // is behind the names of files that have none
)

// nodeOf returns the path of the device that a mapping is of, or, of a simulated GPU, would be of.
func nodeOf(m *proc.Mapping) (string, bool) {
	if strings.HasPrefix(m.Path, nodePath) {
		return m.Path, true
	}
	number, ok := strings.CutPrefix(m.Path, simulatedNode)
	return nodePath + strings.TrimSuffix(number, deleted), ok
}

// isGPU reports whether a node is that of a GPU: /dev/nvidiaN.
func isGPU(node string) bool {
	number := strings.TrimPrefix(node, nodePath)
	return number != "" && strings.Trim(number, "0123456789") == ""
}

// simulatedNames reports whether a mapping has the names of a simulated GPU's kernels.
func simulatedNames(m *proc.Mapping) bool {
	return m.Path == simulatedPath+"names"+deleted
}

// pushes reports whether size bytes at address can be a pushbuffer: system memory, or the GPU's.
func (s *space) pushes(address, size uint64) bool {
	for _, list := range [][]proc.Mapping{s.system, s.gpu} {
		if m := proc.At(list, address); m != nil && m.Contains(address, size) {
			return true
		}
	}
	return false
}
