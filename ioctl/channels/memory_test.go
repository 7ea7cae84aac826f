package channels

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// TestReadBesideGPU: where memory of GPUs is left alone, so are reads that begin before it and run into it.
func TestReadBesideGPU(t *testing.T) {
	const size = 3 * pageSize
	memory, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.MunmapPtr(memory, size) }()
	p, err := Open(os.Getpid(), SystemMemory)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = p.Close() }()
	start := uint64(uintptr(memory))
	gpu := []proc.Mapping{{Start: start + pageSize, End: start + 2*pageSize}}
	p.gpu.Store(&gpu)
	for _, c := range []struct {
		offset uint64
		length int
		left   bool
	}{
		{0, pageSize, false},
		{0, pageSize + 1, true},
		{pageSize - 4, 8, true},
		{0, size, true},
		{pageSize, 1, true},
		{2*pageSize - 1, 8, true},
		{2 * pageSize, pageSize, false},
	} {
		err := p.Read(start+c.offset, make([]byte, c.length))
		if left := errors.Is(err, errLeftAlone); left != c.left || !left && err != nil {
			t.Errorf("%d bytes at %#x: %v", c.length, c.offset, err)
		}
	}
}
