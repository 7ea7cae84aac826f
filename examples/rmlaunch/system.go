package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// system is what the program asks of the kernel: these calls, and writes to memory that it maps,
// are all that it takes to launch a kernel. Tests put a driver of their own behind it.
type system interface {
	open(path string) (fd int, err error)
	close(fd int) error
	ioctl(fd int, nr uint32, arg []byte) error // of type 'F', direction read and write
	mmap(fd, length, prot int) ([]byte, error)
	munmap(b []byte) error
	pause(d time.Duration) // while the GPU is waited for
}

// linux is the system that there is.
type linux struct{}

func (linux) open(path string) (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0) }
func (linux) close(fd int) error            { return unix.Close(fd) }
func (linux) munmap(b []byte) error         { return unix.Munmap(b) }
func (linux) pause(d time.Duration)         { time.Sleep(d) }

// mmap maps what NV_ESC_RM_MAP_MEMORY has tied to the descriptor: the offset is always 0.
func (linux) mmap(fd, length, prot int) ([]byte, error) {
	return unix.Mmap(fd, 0, length, prot, unix.MAP_SHARED)
}
