package ptrace

import (
	"slices"
	"strings"
)

//go:generate go run ./internal/gen

// x32Bit marks the calls of amd64's x32 ABI (asm/unistd.h: __X32_SYSCALL_BIT).
const x32Bit = 0x40000000

// x32Names are the calls that have a number of their own in x32, from 512 on
// (arch/x86/entry/syscalls/syscall_64.tbl). The others share amd64's.
var x32Names = [...]string{
	"rt_sigaction", "rt_sigreturn", "ioctl", "readv", "writev", "recvfrom", "sendmsg", "recvmsg", "execve", "ptrace",
	"rt_sigpending", "rt_sigtimedwait", "rt_sigqueueinfo", "sigaltstack", "timer_create", "mq_notify", "kexec_load",
	"waitid", "set_robust_list", "get_robust_list", "vmsplice", "move_pages", "preadv", "pwritev", "rt_tgsigqueueinfo",
	"recvmmsg", "sendmmsg", "process_vm_readv", "process_vm_writev", "setsockopt", "getsockopt", "io_setup", "io_submit",
	"execveat", "preadv2", "pwritev2",
}

// x32First is the number of x32Names[0].
const x32First = 512

// NativeSyscallName returns the name of call nr of the machine's own ABI, "" if it is not known.
func NativeSyscallName(nr uint64) string { return SyscallName(nativeArch, nr) }

// SyscallName returns the name of call nr of the ABI arch (AUDIT_ARCH_*), "" if
// it is not known.
func SyscallName(arch uint32, nr uint64) string {
	names := nativeNames[:]
	switch {
	case arch == compatArch:
		names = compatNames[:]
	case arch != nativeArch:
		return ""
	case hasX32 && nr&x32Bit != 0:
		nr &^= x32Bit
		if nr >= x32First {
			nr, names = nr-x32First, x32Names[:]
		}
	}
	if nr >= uint64(len(names)) {
		return ""
	}
	return names[nr]
}

// call is a system call of one ABI.
type call struct {
	arch uint32
	nr   uint32
}

// compat says whether the call is not one of the machine's own ABI.
func (c call) compat() bool { return c.arch != nativeArch || hasX32 && c.nr&x32Bit != 0 }

// callsNamed returns the calls of that name. known is false if no ABI has one.
func callsNamed(name string, compat bool) (calls []call, known bool) {
	find := func(names []string, order []uint16) (uint32, bool) {
		i, ok := slices.BinarySearchFunc(order, name, func(nr uint16, name string) int { return strings.Compare(names[nr], name) })
		if !ok {
			return 0, false
		}
		known = true
		return uint32(order[i]), true
	}
	n, ok := find(nativeNames[:], nativeOrder[:])
	if ok {
		calls = append(calls, call{nativeArch, n})
	}
	if hasX32 && compat {
		if x := slices.Index(x32Names[:], name); x >= 0 {
			calls, known = append(calls, call{nativeArch, x32Bit | x32First + uint32(x)}), true
		} else if ok {
			calls = append(calls, call{nativeArch, x32Bit | n})
		}
	}
	if n, ok := find(compatNames[:], compatOrder[:]); ok && compat {
		calls = append(calls, call{compatArch, n})
	}
	return calls, known
}

// Name returns the call's name, or "" for a number that is not known.
func (c *Syscall) Name() string { return SyscallName(c.Arch, c.Nr) }
