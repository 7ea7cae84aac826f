// Package ioctl knows what NVIDIA device traffic means: which bytes of the
// traced program a call refers to ([Watcher]), what a recorded event says
// ([Decoder], [Call]), how to print it, select it and count it.
//
// It knows device nodes, requests and the way the driver follows pointers. The
// names, numbers and layouts are package rm's. It does not know where memory
// comes from, or where text goes.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which. Names of calls, keys of JSON and the form of lines change only by additions.
package ioctl

import "strings"

// Device is the kind of device node that an open file is of.
type Device uint8

// The kinds of device nodes.
const (
	DeviceOther       Device = iota // none of NVIDIA's, or one that is not known
	DeviceCtl                       // nvidiactl: the resource manager
	DeviceGPU                       // nvidia0, …: one GPU
	DeviceUVM                       // nvidia-uvm: unified memory
	DeviceUVMTools                  // nvidia-uvm-tools: its profiling interface
	DeviceModeset                   // nvidia-modeset: display
	DeviceNVSwitch                  // nvidia-nvswitch0, …
	DeviceNVSwitchCtl               // nvidia-nvswitchctl
	DeviceNVLink                    // nvidia-nvlink
	DeviceCaps                      // nvidia-caps/nvidia-capN: only opened, the descriptor is the right
	DeviceIMEX                      // nvidia-caps-imex-channels/channelN: likewise
	DeviceDRM                       // dri/cardN and dri/renderDN
	numDevices
)

var deviceNames = [numDevices]string{
	DeviceOther:       "other",
	DeviceCtl:         "nvidiactl",
	DeviceGPU:         "nvidiaN",
	DeviceUVM:         "nvidia-uvm",
	DeviceUVMTools:    "nvidia-uvm-tools",
	DeviceModeset:     "nvidia-modeset",
	DeviceNVSwitch:    "nvidia-nvswitchN",
	DeviceNVSwitchCtl: "nvidia-nvswitchctl",
	DeviceNVLink:      "nvidia-nvlink",
	DeviceCaps:        "nvidia-caps",
	DeviceIMEX:        "nvidia-caps-imex-channels",
	DeviceDRM:         "dri",
}

// String returns the node's name, with N for a number.
func (d Device) String() string {
	if d < numDevices {
		return deviceNames[d]
	}
	return "device(?)"
}

// Numbers of the driver's fixed major (nv.h, nv-linux.h): minors of it are GPUs
// up to 247, then the two control nodes.
const (
	majorNvidia  = 195
	minorModeset = 254
	minorCtl     = 255
)

// DeviceOf classifies a node by its name below /dev ("nvidia0",
// "nvidia-caps/nvidia-cap1") and its device number as stat(2) gives it. The
// number wins where it has a fixed meaning: containers rename nodes.
func DeviceOf(name string, rdev uint64) Device {
	major := uint32(rdev>>8&0xfff | rdev>>32&^0xfff)
	minor := uint32(rdev&0xff | rdev>>12&^0xff)
	if major == majorNvidia {
		switch minor {
		case minorCtl:
			return DeviceCtl
		case minorModeset:
			return DeviceModeset
		}
		return DeviceGPU
	}
	return deviceByName(name)
}

func deviceByName(name string) Device {
	name = strings.TrimPrefix(name, "/dev/")
	rest, ok := strings.CutPrefix(name, "nvidia")
	if !ok {
		if strings.HasPrefix(name, "dri/") {
			return DeviceDRM
		}
		return DeviceOther
	}
	switch {
	case rest == "ctl":
		return DeviceCtl
	case allDigits(rest):
		return DeviceGPU
	case rest == "-uvm":
		return DeviceUVM
	case rest == "-uvm-tools":
		return DeviceUVMTools
	case rest == "-modeset":
		return DeviceModeset
	case rest == "-nvlink":
		return DeviceNVLink
	case rest == "-nvswitchctl":
		return DeviceNVSwitchCtl
	case strings.HasPrefix(rest, "-nvswitch") && allDigits(rest[len("-nvswitch"):]):
		return DeviceNVSwitch
	case strings.HasPrefix(rest, "-caps-imex-channels/"):
		return DeviceIMEX
	case strings.HasPrefix(rest, "-caps/"):
		return DeviceCaps
	}
	return DeviceOther
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// The parts of a request number (asm-generic/ioctl.h, as x86 and arm64 have it).
func iocNr(req uint32) uint32   { return req & 0xff }
func iocType(req uint32) byte   { return byte(req >> 8) }
func iocSize(req uint32) uint32 { return req >> 16 & 0x3fff }
