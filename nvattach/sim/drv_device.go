package sim

import (
	"encoding/binary"
	"fmt"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptx"
)

// driverVersion is what cuDriverGetVersion says: 1000 times the major version and
// ten times the minor.
const driverVersion = 13000

// driverISA is the newest PTX that a driver of that version compiles.
var driverISA = ptx.Version{Major: 9, Minor: 0}

// drvGeneral are functions about the driver itself. NVIDIA's own runtime asks for tables by number
// (cuGetExportTable) whose functions are not public: a program with it can't be served, and the report
// says what to do.
func drvGeneral() map[string]handler {
	return map[string]handler{
		"cuInit": func(c *call) result {
			if c.arg(0) != 0 {
				return errInvalidValue
			}
			return c.p.initialise()
		},
		"cuDriverGetVersion": func(c *call) result {
			c.put32(c.arg(0), driverVersion)
			return success
		},
		"cuGetProcAddress":    func(c *call) result { return c.procAddress(0) },
		"cuGetProcAddress_v2": func(c *call) result { return c.procAddress(c.arg(4)) },
		"cuGetExportTable": func(c *call) result {
			c.p.sim.hint(fmt.Sprintf("process %d asked the driver for a hidden table, as NVIDIA's own runtime does; "+
				"the simulated GPU does not serve it: link the program with nvcc -cudart shared", c.p.pid))
			return errInvalidValue
		},
		"cuGetErrorString": func(c *call) result { return c.errorText(errorStrings) },
		"cuGetErrorName":   func(c *call) result { return c.errorText(nil) },
		"cuProfilerStart":  ok, "cuProfilerStop": ok, "cuFlushGPUDirectRDMAWrites": ok,
	}
}

// errorText gives the program the name or the text of a result.
func (c *call) errorText(text map[result]string) result {
	s, known := cuda.DriverErrors[c.u32(0)]
	if !known {
		c.maybe64(c.arg(1), 0)
		return errInvalidValue
	}
	if t, has := text[result(c.u32(0))]; has {
		s = t
	}
	c.put64(c.arg(1), c.p.text(s))
	return success
}

// errorStrings are texts of the commoner results.
var errorStrings = map[result]string{
	success: "no error", errInvalidValue: "invalid argument", errOutOfMemory: "out of memory", errNotInitialized: "initialization error",
	errInvalidConfiguration: "invalid configuration argument", errInvalidSymbol: "invalid device symbol", errInvalidDeviceFunction: "invalid device function",
	errNoDevice: "no CUDA-capable device is detected", errInvalidDevice: "invalid device ordinal", errInvalidImage: "device kernel image is invalid",
	errInvalidContext: "invalid device context", errNoBinary: "no kernel image is available for execution on the device",
	errInvalidPTX: "a PTX JIT compilation failed", errUnsupportedPTX: "the provided PTX was compiled with an unsupported toolchain.", errInvalidHandle: "invalid resource handle", errNotFound: "named symbol not found",
	errNotReady: "device not ready", errIllegalAddress: "an illegal memory access was encountered", errOutOfResources: "too many resources requested for launch",
	errTimeout: "the launch timed out and was terminated", errAssert: "device-side assert triggered", errMisaligned: "misaligned address",
	errIllegalInstruction: "an illegal instruction was encountered", errLaunchFailed: "unspecified launch failure",
	errCooperativeTooLarge: "too many blocks in cooperative launch", errNotSupported: "operation not supported", errUnknown: "unknown error",
}

// procAddress is cuGetProcAddress(name, &fn, version, flags), with the address of
// the status or 0.
func (c *call) procAddress(status uint64) result {
	name, good := c.cstring(c.arg(0))
	if !good || c.arg(1) == 0 {
		return errInvalidValue
	}
	sym, known, found := c.p.sim.cat.lookup(name, int(c.u32(2)), c.arg(3)&2 != 0)
	var addr uint64
	if found {
		addr = c.p.entryAddr(libCUDA, sym)
	}
	c.put64(c.arg(1), addr)
	switch {
	case addr != 0:
		c.maybe32(status, 0)
		return success
	case known:
		c.maybe32(status, 2)
	default:
		c.maybe32(status, 1)
	}
	return errNotFound
}

// drvDevices are functions about devices, and their primary contexts, which the runtime shares with
// programs that use the driver.
func drvDevices() map[string]handler {
	return map[string]handler{
		"cuDeviceGetCount": func(c *call) result {
			if !c.p.inited {
				return errNotInitialized
			}
			c.put32(c.arg(0), uint32(len(c.p.devices)))
			return success
		},
		"cuDeviceGet": func(c *call) result {
			d, r := c.deviceOf(c.arg(1))
			if r == success {
				c.put32(c.arg(0), uint32(d.ordinal))
			}
			return r
		},
		"cuDeviceGetName": func(c *call) result {
			_, r := c.deviceOf(c.arg(2))
			if r != success || int32(c.u32(1)) <= 0 {
				return max(r, errInvalidValue)
			}
			b := append([]byte(c.p.sim.gpu.Name), 0)
			if n := int(int32(c.u32(1))); n < len(b) {
				b = append(b[:n-1:n-1], 0)
			}
			c.write(c.arg(0), b)
			return success
		},
		"cuDeviceGetUuid":      drvUUID,
		"cuDeviceGetUuid_v2":   drvUUID,
		"cuDeviceTotalMem_v2":  func(c *call) result { return c.deviceWord(1, c.p.sim.gpu.Memory) },
		"cuDeviceGetAttribute": (*call).deviceAttribute,
		"cuDeviceComputeCapability": func(c *call) result {
			_, r := c.deviceOf(c.arg(2))
			if r == success {
				c.put32(c.arg(0), uint32(c.p.sim.gpu.Major))
				c.put32(c.arg(1), uint32(c.p.sim.gpu.Minor))
			}
			return r
		},
		"cuDeviceGetProperties": func(c *call) result {
			_, r := c.deviceOf(c.arg(1))
			if r != success {
				return r
			}
			var b []byte // CUdevprop
			for _, v := range []int{maxThreadsPerBlock, 1024, 1024, 64, maxGridX, maxGridYZ, maxGridYZ, sharedDefault, constMemory, warpThreads, 1<<31 - 1, registersPerSM, c.p.sim.gpu.ClockKHz, 512} {
				b = binary.LittleEndian.AppendUint32(b, uint32(v))
			}
			c.write(c.arg(0), b)
			return success
		},
		"cuDeviceGetPCIBusId": func(c *call) result { return c.pciBusID(c.arg(0), c.arg(1), c.arg(2)) },
		"cuDeviceGetByPCIBusId": func(c *call) result {
			return c.byPCIBusID(c.arg(0), c.arg(1))
		},
		"cuDeviceCanAccessPeer": func(c *call) result { return c.canAccessPeer() },
		"cuDeviceGetP2PAttribute": func(c *call) result {
			c.put32(c.arg(0), uint32(bool32(c.u32(1) == 3 || c.u32(1) == 2)))
			return success
		},
		"cuDevicePrimaryCtxRetain": func(c *call) result {
			d, r := c.deviceOf(c.arg(1))
			if r != success {
				return r
			}
			x := c.p.primary(d)
			d.retains++
			c.put64(c.arg(0), x.handle)
			return success
		},
		"cuDevicePrimaryCtxRelease": primaryRelease, "cuDevicePrimaryCtxRelease_v2": primaryRelease,
		"cuDevicePrimaryCtxReset": primaryReset, "cuDevicePrimaryCtxReset_v2": primaryReset,
		"cuDevicePrimaryCtxSetFlags": primaryFlags, "cuDevicePrimaryCtxSetFlags_v2": primaryFlags,
		"cuDevicePrimaryCtxGetState": func(c *call) result {
			d, r := c.deviceOf(c.arg(0))
			if r == success {
				c.put32(c.arg(1), d.flags)
				c.put32(c.arg(2), uint32(bool32(d.primary != nil && !d.primary.destroyed)))
			}
			return r
		},
	}
}

// deviceAttribute is (value, attribute, device).
func (c *call) deviceAttribute() result {
	d, r := c.deviceOf(c.arg(2))
	if r != success {
		return r
	}
	v, known := c.p.sim.gpu.attribute(uint64(c.u32(1)), d.ordinal)
	if !known {
		return errInvalidValue
	}
	c.put32(c.arg(0), uint32(v))
	return success
}

// drvUUID is (uuid, device).
func drvUUID(c *call) result {
	d, r := c.deviceOf(c.arg(1))
	if r == success {
		u := c.p.sim.gpu.uuid(d.ordinal)
		c.write(c.arg(0), u[:])
	}
	return r
}

// deviceWord gives v for the device of argument i.
func (c *call) deviceWord(i int, v uint64) result {
	_, r := c.deviceOf(c.arg(i))
	if r == success {
		c.put64(c.arg(0), v)
	}
	return r
}

// busID is the PCI address of a device: each is on a bus of its own.
func busID(ordinal int) string { return fmt.Sprintf("0000:%02X:00.0", 1+ordinal) }

// pciBusID is cuDeviceGetPCIBusId(text, size, device).
func (c *call) pciBusID(out, size, dev uint64) result {
	d, r := c.deviceOf(dev)
	if r != success {
		return r
	}
	b := append([]byte(busID(d.ordinal)), 0)
	if int(int32(size)) < len(b) {
		return errInvalidValue
	}
	c.write(out, b)
	return success
}

// byPCIBusID is cuDeviceGetByPCIBusId(device, text).
func (c *call) byPCIBusID(out, name uint64) result {
	s, good := c.cstring(name)
	if !good {
		return errInvalidValue
	}
	var dom, bus, dev, fn int
	if n, _ := fmt.Sscanf(s, "%x:%x:%x.%x", &dom, &bus, &dev, &fn); n < 3 || dom != 0 || dev != 0 || bus < 1 || bus > len(c.p.devices) {
		return errInvalidDevice
	}
	c.put32(out, uint32(bus-1))
	return success
}

// canAccessPeer is (answer, device, peer): each reaches all others, as all memory is in one arena.
func (c *call) canAccessPeer() result {
	a, r := c.deviceOf(c.arg(1))
	if r != success {
		return r
	}
	b, r := c.deviceOf(c.arg(2))
	if r == success {
		c.put32(c.arg(0), uint32(bool32(a != b)))
	}
	return r
}

// primaryRelease gives back a primary context, which ends when as many have given it back as have
// retained it.
func primaryRelease(c *call) result {
	d, r := c.deviceOf(c.arg(0))
	if r != success {
		return r
	}
	if d.retains == 0 {
		return errInvalidContext
	}
	if d.retains--; d.retains == 0 {
		c.endPrimary(d)
	}
	return success
}

// primaryReset ends a primary context, whoever has retained it.
func primaryReset(c *call) result {
	d, r := c.deviceOf(c.arg(0))
	if r == success {
		c.endPrimary(d)
	}
	return r
}

func primaryFlags(c *call) result {
	d, r := c.deviceOf(c.arg(0))
	if r == success {
		d.flags = c.u32(1)
	}
	return r
}

// drvContexts are functions about contexts. A thread has a stack of them, of which the top is current;
// of a context that was destroyed the handle is taken from all stacks.
func drvContexts() map[string]handler {
	create := func(flags, dev int) handler {
		return func(c *call) result {
			d, r := c.deviceOf(c.arg(dev))
			if r != success {
				return r
			}
			x := c.p.newContext(d)
			if x.handle = c.p.add(x); x.handle == 0 {
				return errOutOfMemory
			}
			x.flags = c.u32(flags)
			c.th.stack = append(c.th.stack, x)
			c.put64(c.arg(0), x.handle)
			return success
		}
	}
	destroy := func(c *call) result {
		x, good := object[*cudaContext](c.p, c.arg(0))
		if !good || x.primary {
			return errInvalidContext
		}
		c.destroy(x)
		return success
	}
	push := func(c *call) result {
		x, good := object[*cudaContext](c.p, c.arg(0))
		if !good {
			return errInvalidContext
		}
		if len(c.th.stack) > 1<<10 {
			return errOutOfMemory
		}
		c.th.stack = append(c.th.stack, x)
		return success
	}
	pop := func(c *call) result {
		x := c.th.current()
		if x == nil {
			return errInvalidContext
		}
		c.th.stack = c.th.stack[:len(c.th.stack)-1]
		c.maybe64(c.arg(0), x.handle)
		return success
	}
	get32 := func(f func(x *cudaContext) uint32) handler {
		return func(c *call) result {
			x, r := c.context()
			if r == success {
				c.put32(c.arg(0), f(x))
			}
			return r
		}
	}
	return map[string]handler{
		"cuCtxCreate": create(1, 2), "cuCtxCreate_v2": create(1, 2), "cuCtxCreate_v3": create(3, 4), "cuCtxCreate_v4": create(2, 3),
		"cuCtxDestroy": destroy, "cuCtxDestroy_v2": destroy, "cuCtxDetach": destroy,
		"cuCtxPushCurrent": push, "cuCtxPushCurrent_v2": push, "cuCtxPopCurrent": pop, "cuCtxPopCurrent_v2": pop,
		"cuCtxSetCurrent": func(c *call) result {
			if !c.p.inited {
				return errNotInitialized
			}
			if c.arg(0) == 0 {
				c.th.setCurrent(nil)
				return success
			}
			x, good := object[*cudaContext](c.p, c.arg(0))
			if !good {
				return errInvalidContext
			}
			c.th.setCurrent(x)
			return success
		},
		"cuCtxGetCurrent": func(c *call) result {
			if !c.p.inited {
				return errNotInitialized
			}
			var h uint64
			if x := c.th.current(); x != nil {
				h = x.handle
			}
			c.put64(c.arg(0), h)
			return success
		},
		"cuCtxGetDevice":          get32(func(x *cudaContext) uint32 { return uint32(x.dev.ordinal) }),
		"cuCtxGetDevice_v2":       get32(func(x *cudaContext) uint32 { return uint32(x.dev.ordinal) }),
		"cuCtxGetFlags":           get32(func(x *cudaContext) uint32 { return x.flags }),
		"cuCtxGetCacheConfig":     get32(func(*cudaContext) uint32 { return 0 }),
		"cuCtxGetSharedMemConfig": get32(func(*cudaContext) uint32 { return 1 }),
		"cuCtxSetFlags": func(c *call) result {
			x, r := c.context()
			if r == success {
				x.flags = c.u32(0)
			}
			return r
		},
		"cuCtxGetId": func(c *call) result {
			x, good := object[*cudaContext](c.p, c.arg(0))
			if c.arg(0) == 0 {
				var r result
				if x, r = c.context(); r != success {
					return r
				}
			} else if !good {
				return errInvalidContext
			}
			c.put64(c.arg(1), x.handle)
			return success
		},
		"cuCtxGetApiVersion": func(c *call) result {
			c.put32(c.arg(1), 3020)
			return success
		},
		"cuCtxSynchronize": func(c *call) result {
			x, r := c.context()
			if r != success {
				return r
			}
			if r := c.unsafe(); r != success {
				return r
			}
			return c.sync(x)
		},
		"cuCtxSynchronize_v2": func(c *call) result {
			x, good := object[*cudaContext](c.p, c.arg(0))
			if !good {
				return errInvalidContext
			}
			return c.sync(x)
		},
		"cuCtxSetLimit":               func(c *call) result { return c.setLimit(c.u32(0), c.arg(1)) },
		"cuCtxGetLimit":               func(c *call) result { return c.getLimit(c.arg(0), c.u32(1)) },
		"cuCtxSetCacheConfig":         needsContext,
		"cuCtxSetSharedMemConfig":     needsContext,
		"cuCtxResetPersistingL2Cache": needsContext,
		"cuCtxGetStreamPriorityRange": streamPriorityRange,
		"cuCtxEnablePeerAccess":       needsContext,
		"cuCtxDisablePeerAccess":      needsContext,
	}
}

// streamPriorityRange gives the lowest and the highest priority.
func streamPriorityRange(c *call) result {
	c.maybe32(c.arg(0), 0)
	c.maybe32(c.arg(1), uint32(0xfffffffb)) // -5
	return success
}

// setLimit and getLimit keep the limits of a context. Kernels run without them.
func (c *call) setLimit(id uint32, v uint64) result {
	x, r := c.context()
	if r != success {
		return r
	}
	if _, known := x.limits[id]; !known {
		return errInvalidValue
	}
	x.limits[id] = v
	return success
}

func (c *call) getLimit(out uint64, id uint32) result {
	x, r := c.context()
	if r != success {
		return r
	}
	v, known := x.limits[id]
	if !known {
		return errInvalidValue
	}
	c.put64(out, v)
	return success
}
