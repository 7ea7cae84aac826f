package proc

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Memfd makes a file in memory (memfd_create(2)) that nobody will execute. flags are MFD_*. Where vm.memfd_noexec
// is 2, the kernel makes no others.
func Memfd(name string, flags int) (fd int, err error) {
	err = WithoutExec(flags, func(flags int) (err error) {
		fd, err = unix.MemfdCreate(name, flags)
		return err
	})
	return fd, err
}

// WithoutExec calls create with flags for such a file, which kernels before 6.3 do not know, and then without.
func WithoutExec(flags int, create func(flags int) error) error {
	err := create(flags | unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		return create(flags)
	}
	return err
}
