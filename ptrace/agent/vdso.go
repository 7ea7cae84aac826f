package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// VDSO is the code that the kernel maps into processes, and where clock_gettime is in
// it. Nearly all processes have the same. The agent reads the clock by it: a system call for each
// record would cost more.
type VDSO struct {
	image []byte
	clock uint64 // offset in image
	cpu   uint64 // of getcpu; 0: it has none
}

// maxVDSO is more than any is long: 2 pages in the kernels of today.
const maxVDSO = 1 << 16

// OwnVDSO returns this process's, for Agent.SetVDSO; nil if that is not known. It may
// be called by any goroutine.
func OwnVDSO() *VDSO {
	base, err := auxValue(os.Getpid(), auxVDSO)
	if err != nil {
		return nil
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil
	}
	defer mem.Close()
	image := make([]byte, maxVDSO)
	n, _ := mem.ReadAt(image, int64(base)) // as much as there is
	v, err := newVDSO(image[:n])
	if err != nil {
		return nil
	}
	return v
}

// newVDSO finds clock_gettime.
func newVDSO(image []byte) (*VDSO, error) {
	f, err := dso.Read(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	const clock, cpu = "__vdso_clock_gettime", "__vdso_getcpu"
	syms, err := f.Lookup(clock, cpu)
	if err != nil {
		return nil, err
	}
	v := &VDSO{image: image}
	for name, s := range syms {
		switch {
		case s.Addr >= uint64(len(image)):
		case name == clock:
			v.clock = s.Addr
		case name == cpu:
			v.cpu = s.Addr
		}
	}
	if v.clock == 0 {
		return nil, errors.New("the vdso has no clock_gettime")
	}
	return v, nil
}

// A vdsoCode is where functions of the vdso are in a process.
type vdsoCode struct{ clock, cpu uint64 }

// at returns where its functions are in a process that has it at base.
func (v *VDSO) at(base uint64) vdsoCode {
	c := vdsoCode{clock: base + v.clock}
	if v.cpu > 0 {
		c.cpu = base + v.cpu
	}
	return c
}

// findClock returns the addresses of functions in the vdso of t's process. known is
// what the vdso most likely is, or nil.
func findClock(t *ptrace.Task, known *VDSO) (c vdsoCode, err error) {
	base, err := auxValue(t.PID, auxVDSO)
	if err != nil {
		return c, err
	}
	if known != nil {
		image := make([]byte, len(known.image))
		if n, _ := t.ReadMem(base, image); n == len(image) && bytes.Equal(known.image, image) {
			return known.at(base), nil
		}
	}
	image := make([]byte, maxVDSO)
	n, _ := t.ReadMem(base, image)
	v, err := newVDSO(image[:n])
	if err != nil {
		return c, fmt.Errorf("vdso at %#x: %w", base, err)
	}
	return v.at(base), nil
}

// auxVDSO is AT_SYSINFO_EHDR of linux/auxvec.h.
const auxVDSO = 33

// auxValue returns a value of a process's auxiliary vector.
func auxValue(pid int, key uint64) (uint64, error) {
	b, err := os.ReadFile(proc.Path(pid, "auxv"))
	if err != nil {
		return 0, err
	}
	for ; len(b) >= 16; b = b[16:] {
		if v := binary.LittleEndian.Uint64(b[8:]); binary.LittleEndian.Uint64(b) == key && v != 0 {
			return v, nil
		}
	}
	return 0, errors.New("there is no vdso")
}
