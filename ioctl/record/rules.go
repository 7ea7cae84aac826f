package record

import (
	"nvtrace/ptrace"
)

// Classes of calls, as the filter tells them apart.
const (
	classIoctl uint16 = iota + 1
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

// baseRules select the calls that can concern a GPU in a process that does not
// hold a device descriptor yet: ioctls with a request of the RM ('F') or of
// UVM, and every open.
func baseRules() []ptrace.Rule {
	return []ptrace.Rule{
		{
			Calls: []string{"ioctl"}, Class: classIoctl, Compat: true,
			Any: []ptrace.ArgMatch{
				{Arg: 1, Mask: 0xff00, Value: 'F' << 8},
				{Arg: 1, Mask: 0xffffff00, Value: 0},
				{Arg: 1, Mask: 0xffffffff, Value: uvmInitialize},
				{Arg: 1, Mask: 0xffffffff, Value: uvmDeinitialize},
			},
		},
		{Calls: []string{"open", "openat", "openat2", "creat"}, Class: classOpen},
	}
}

// deviceRules select what else matters once a process holds a device
// descriptor: calls that make, end or share descriptors, mappings, and every
// ioctl but a terminal's, because modeset, nvswitch and nvlink have requests of
// several types.
func deviceRules(munmap bool) []ptrace.Rule {
	rules := []ptrace.Rule{
		{Calls: []string{"ioctl"}, Class: classIoctl, Not: []ptrace.ArgMatch{{Arg: 1, Mask: 0xff00, Value: 'T' << 8}}},
		{Calls: []string{"close", "close_range"}, Class: classClose},
		{Calls: []string{"dup", "dup2", "dup3"}, Class: classDup},
		{
			Calls: []string{"fcntl"}, Class: classDup,
			Any: []ptrace.ArgMatch{
				{Arg: 1, Mask: 0xffffffff, Value: fDupFD},
				{Arg: 1, Mask: 0xffffffff, Value: fDupFDCloexec},
			},
		},
		// A mapping without a file has fd -1.
		{Calls: []string{"mmap"}, Class: classMmap, Not: []ptrace.ArgMatch{{Arg: 4, Mask: 0xffffffff, Value: 0xffffffff}}},
	}
	if munmap {
		rules = append(rules, ptrace.Rule{Calls: []string{"munmap"}, Class: classMunmap},
			ptrace.Rule{Calls: []string{"mremap"}, Class: classMremap})
	}
	return rules
}

// fcntl(2) commands that make a descriptor (include/uapi/asm-generic/fcntl.h, linux/fcntl.h).
const (
	fDupFD        = 0
	fDupFDCloexec = 1030
)
