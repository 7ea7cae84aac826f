package jit

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

//go:generate go run ./internal/gen

// helperImage is helper/ptxjit.c, compiled for amd64, in gzip.
//
//go:embed zptxjit_amd64.gz
var helperImage []byte

// helperFile returns the helper as a file to execute. It lies in no directory:
// one that is mounted noexec does not matter.
func helperFile() (*os.File, error) {
	zr, err := gzip.NewReader(bytes.NewReader(helperImage))
	if err != nil {
		return nil, err
	}
	image, err := io.ReadAll(zr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("nvtrace-ptxjit", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 do not know it; all such files can be executed there
		fd, err = unix.MemfdCreate("nvtrace-ptxjit", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "nvtrace-ptxjit")
	if _, err := f.Write(image); err != nil {
		_ = f.Close()
		return nil, err
	}
	// The kernel does not execute a file that is open for writing.
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	_ = f.Close()
	return ro, err
}
