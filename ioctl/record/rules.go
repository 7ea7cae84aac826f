package record

import (
	"nvtrace/ptrace"
	"nvtrace/traces/record"
)

// Classes of calls, as the filter tells them apart.
const (
	classIoctl uint16 = record.ExtensionClass + iota
	classOpen
	classClose
	classDup
	classMmap
	classMunmap
	classMremap
)

// Requests that have no _IOC encoding (uvm_linux_ioctl.h: UVM_INITIALIZE,
// UVM_DEINITIALIZE); all other UVM requests are numbers below 256 (uvm_ioctl.h).
const (
	uvmInitialize   = 0x30000001
	uvmDeinitialize = 0x30000002
)

// low matches the low 32 bits of an argument under a mask.
func low(arg int, mask, value uint64) []ptrace.ArgMatch {
	return []ptrace.ArgMatch{{Arg: arg, Mask: mask, Value: value, Low: true}}
}

// baseRules select the calls that can concern a GPU in a process that does not
// hold a device descriptor yet: ioctls with a request of the RM ('F') or of
// UVM, and every open.
func baseRules() []ptrace.Rule {
	ioctls := func(m []ptrace.ArgMatch) ptrace.Rule {
		return ptrace.Rule{Names: []string{"ioctl"}, Args: m, Class: classIoctl, Compat: true}
	}
	return []ptrace.Rule{
		ioctls(low(1, 0xff00, 'F'<<8)),
		ioctls([]ptrace.ArgMatch{{Arg: 1, Op: ptrace.LessEqual, Value: 0xff, Low: true}}),
		ioctls(low(1, 0, uvmInitialize)),
		ioctls(low(1, 0, uvmDeinitialize)),
		{Names: []string{"open", "openat", "openat2", "creat"}, Class: classOpen, Compat: true},
	}
}

// deviceRules select what else matters once a process holds a device
// descriptor: calls that make, end or share descriptors, mappings, and every
// ioctl but a terminal's, because modeset, nvswitch and nvlink have requests of
// several types.
func deviceRules(munmap bool) []ptrace.Rule {
	rules := []ptrace.Rule{
		{
			Names: []string{"ioctl"}, Class: classIoctl, Compat: true,
			Args: []ptrace.ArgMatch{{Arg: 1, Op: ptrace.NotEqual, Mask: 0xff00, Value: 'T' << 8, Low: true}},
		},
		{Names: []string{"close", "close_range"}, Class: classClose, Compat: true},
		{Names: []string{"dup", "dup2", "dup3"}, Class: classDup, Compat: true},
		{Names: []string{"fcntl", "fcntl64"}, Class: classDup, Args: low(1, 0, fDupFD), Compat: true},
		{Names: []string{"fcntl", "fcntl64"}, Class: classDup, Args: low(1, 0, fDupFDCloexec), Compat: true},
		// A mapping without a file has fd -1.
		{
			Names: []string{"mmap"}, Class: classMmap,
			Args: []ptrace.ArgMatch{{Arg: 4, Op: ptrace.NotEqual, Value: 0xffffffff, Low: true}},
		},
		{ // of 32-bit programs; their mmap proper is obsolete
			Names: []string{"mmap2"}, Class: classMmap, Compat: true,
			Args: []ptrace.ArgMatch{{Arg: 4, Op: ptrace.NotEqual, Value: 0xffffffff, Low: true}},
		},
	}
	if munmap {
		rules = append(rules, ptrace.Rule{Names: []string{"munmap"}, Class: classMunmap},
			ptrace.Rule{Names: []string{"mremap"}, Class: classMremap})
	}
	return rules
}

// fcntl(2) commands that make a descriptor (include/uapi/asm-generic/fcntl.h, linux/fcntl.h).
const (
	fDupFD        = 0
	fDupFDCloexec = 1030
)
