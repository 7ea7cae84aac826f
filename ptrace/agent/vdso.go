package agent

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"

	"nvtrace/ptrace"
)

// vdsoClock returns the address of clock_gettime in the vdso of t's process.
func vdsoClock(t *ptrace.Task) (uint64, error) {
	base, err := auxValue(t.PID, 33) // linux/auxvec.h: AT_SYSINFO_EHDR
	if err != nil {
		return 0, err
	}
	// It is 2 pages long in the kernels of today. Section headers come last.
	image := make([]byte, 1<<16)
	n, _ := t.ReadMem(base, image)
	f, err := elf.NewFile(bytes.NewReader(image[:n]))
	if err != nil {
		return 0, fmt.Errorf("vdso at %#x: %w", base, err)
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("vdso at %#x: %w", base, err)
	}
	for _, s := range syms {
		if s.Name == "__vdso_clock_gettime" && s.Value < uint64(n) {
			return base + s.Value, nil
		}
	}
	return 0, errors.New("the vdso has no clock_gettime")
}

// auxValue returns a value of a process's auxiliary vector.
func auxValue(pid int, key uint64) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/auxv")
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
