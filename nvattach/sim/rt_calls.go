package sim

import (
	"encoding/binary"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptx/emu"
)

// sharedWithDriver are runtime functions with the arguments of driver functions. The handlers tell
// by call.entry who calls: the runtime makes a context where the driver wants one to be there.
func sharedWithDriver() map[string]string {
	return map[string]string{
		"cudaMallocPitch": "cuMemAllocPitch_v2", "cudaHostAlloc": "cuMemHostAlloc", "cudaMallocHost": "cuMemAllocHost_v2", "cudaFreeHost": "cuMemFreeHost",
		"cudaHostRegister": "cuMemHostRegister_v2", "cudaHostUnregister": "cuMemHostUnregister", "cudaHostGetDevicePointer": "cuMemHostGetDevicePointer_v2",
		"cudaHostGetFlags": "cuMemHostGetFlags", "cudaMemAdvise": "cuMemAdvise", "cudaMemAdvise_v2": "cuMemAdvise",
		"cudaStreamCreateWithFlags": "cuStreamCreate", "cudaStreamCreateWithPriority": "cuStreamCreateWithPriority", "cudaStreamDestroy": "cuStreamDestroy",
		"cudaStreamSynchronize": "cuStreamSynchronize", "cudaStreamQuery": "cuStreamQuery", "cudaStreamWaitEvent": "cuStreamWaitEvent",
		"cudaStreamAddCallback": "cuStreamAddCallback", "cudaStreamGetFlags": "cuStreamGetFlags", "cudaStreamGetPriority": "cuStreamGetPriority",
		"cudaStreamGetId": "cuStreamGetId", "cudaStreamGetDevice": "cuStreamGetDevice", "cudaStreamBeginCapture": "cuStreamBeginCapture_v2",
		"cudaStreamBeginCaptureToGraph": "cuStreamBeginCaptureToGraph",
		"cudaStreamEndCapture":          "cuStreamEndCapture", "cudaStreamIsCapturing": "cuStreamIsCapturing",
		"cudaThreadExchangeStreamCaptureMode": "cuThreadExchangeStreamCaptureMode", "cudaStreamAttachMemAsync": "cuStreamAttachMemAsync",
		"cudaStreamCopyAttributes": "cuStreamCopyAttributes", "cudaStreamSetAttribute": "cuStreamSetAttribute", "cudaStreamGetAttribute": "cuStreamGetAttribute",
		"cudaEventCreateWithFlags": "cuEventCreate", "cudaEventDestroy": "cuEventDestroy", "cudaEventRecord": "cuEventRecord",
		"cudaEventRecordWithFlags": "cuEventRecordWithFlags", "cudaEventQuery": "cuEventQuery", "cudaEventSynchronize": "cuEventSynchronize",
		"cudaEventElapsedTime": "cuEventElapsedTime", "cudaEventElapsedTime_v2": "cuEventElapsedTime", "cudaLaunchHostFunc": "cuLaunchHostFunc", "cudaLaunchHostFunc_v2": "cuLaunchHostFunc",
		"cudaMallocAsync": "cuMemAllocAsync", "cudaMallocFromPoolAsync": "cuMemAllocFromPoolAsync", "cudaFreeAsync": "cuMemFreeAsync",
		"cudaDeviceGetDefaultMemPool": "cuDeviceGetDefaultMemPool", "cudaDeviceGetMemPool": "cuDeviceGetMemPool", "cudaDeviceSetMemPool": "cuDeviceSetMemPool",
		"cudaMemPoolCreate": "cuMemPoolCreate", "cudaMemPoolDestroy": "cuMemPoolDestroy", "cudaMemPoolTrimTo": "cuMemPoolTrimTo",
		"cudaMemPoolSetAttribute": "cuMemPoolSetAttribute", "cudaMemPoolGetAttribute": "cuMemPoolGetAttribute", "cudaMemPoolSetAccess": "cuMemPoolSetAccess",
		"cudaGraphCreate": "cuGraphCreate", "cudaGraphDestroy": "cuGraphDestroy", "cudaGraphClone": "cuGraphClone",
		"cudaGraphAddKernelNode": "cuGraphAddKernelNode", "cudaGraphAddMemsetNode": "cuGraphAddMemsetNode", "cudaGraphAddHostNode": "cuGraphAddHostNode",
		"cudaGraphAddChildGraphNode": "cuGraphAddChildGraphNode", "cudaGraphAddEmptyNode": "cuGraphAddEmptyNode",
		"cudaGraphAddDependencies": "cuGraphAddDependencies", "cudaGraphAddDependencies_v2": "cuGraphAddDependencies_v2",
		"cudaGraphRemoveDependencies": "cuGraphRemoveDependencies", "cudaGraphRemoveDependencies_v2": "cuGraphRemoveDependencies_v2",
		"cudaGraphGetNodes": "cuGraphGetNodes", "cudaGraphGetRootNodes": "cuGraphGetRootNodes", "cudaGraphNodeGetType": "cuGraphNodeGetType",
		"cudaGraphDestroyNode": "cuGraphDestroyNode", "cudaGraphKernelNodeSetParams": "cuGraphKernelNodeSetParams", "cudaGraphHostNodeGetParams": "cuGraphHostNodeGetParams",
		"cudaGraphInstantiate": "cuGraphInstantiate", "cudaGraphInstantiateWithFlags": "cuGraphInstantiateWithFlags", "cudaGraphInstantiateWithParams": "cuGraphInstantiateWithParams",
		"cudaGraphLaunch": "cuGraphLaunch", "cudaGraphUpload": "cuGraphUpload", "cudaGraphExecDestroy": "cuGraphExecDestroy",
		"cudaGraphExecKernelNodeSetParams": "cuGraphExecKernelNodeSetParams", "cudaGraphExecUpdate": "cuGraphExecUpdate", "cudaGraphNodeSetEnabled": "cuGraphNodeSetEnabled",
		"cudaLibraryLoadData": "cuLibraryLoadData", "cudaLibraryLoadFromFile": "cuLibraryLoadFromFile", "cudaLibraryUnload": "cuLibraryUnload",
		"cudaLibraryGetKernel": "cuLibraryGetKernel", "cudaLibraryGetGlobal": "cuLibraryGetGlobal", "cudaLibraryGetManaged": "cuLibraryGetManaged",
		"cudaLibraryGetKernelCount": "cuLibraryGetKernelCount", "cudaLibraryEnumerateKernels": "cuLibraryEnumerateKernels",
		"cudaDeviceGetStreamPriorityRange": "cuCtxGetStreamPriorityRange", "cudaCtxResetPersistingL2Cache": "cuCtxResetPersistingL2Cache",
		"cudaProfilerStart": "cuProfilerStart", "cudaProfilerStop": "cuProfilerStop", "cudaDriverGetVersion": "cuDriverGetVersion",
		"cudaDeviceGetP2PAttribute": "cuDeviceGetP2PAttribute", "cudaDeviceEnablePeerAccess": "cuCtxEnablePeerAccess", "cudaDeviceDisablePeerAccess": "cuCtxDisablePeerAccess",
	}
}

// lastError is cudaGetLastError and, with peek, cudaPeekAtLastError. Also an error
// that leaves the context unusable is told of once; the next call fails with it again.
func (c *call) lastError(peek bool) result {
	r := c.th.lastErr
	if !peek {
		c.th.lastErr = success
	}
	return r
}

// rtErrors are the functions about errors. They set none themselves.
func rtErrors() map[string]handler {
	text := func(strings map[result]string) handler {
		return func(c *call) result {
			r := result(c.u32(0))
			s, known := strings[r]
			if !known {
				if s, known = cuda.RuntimeErrors[uint32(r)]; !known {
					s = "unrecognized error code"
				}
			}
			return c.returns(c.p.text(s))
		}
	}
	return map[string]handler{
		"cudaGetLastError":    func(c *call) result { return c.lastError(false) },
		"cudaPeekAtLastError": func(c *call) result { return c.lastError(true) },
		"cudaGetErrorString":  text(errorStrings),
		"cudaGetErrorName":    text(nil),
	}
}

// runtimeVersion is what the runtime says that it is.
func runtimeVersion(lib int) uint32 {
	if lib == libCudart12 {
		return 12090
	}
	return 13000
}

// setDevice makes a device the thread's, and its primary context current.
func (c *call) setDevice(ordinal uint64) result {
	d, r := c.deviceOf(ordinal)
	if r != success {
		return r
	}
	if r := c.p.initialise(); r != success {
		return r
	}
	c.th.device = d.ordinal
	x := c.p.primary(d)
	c.th.setCurrent(x)
	return x.status()
}

// rtDevices are the runtime's functions for devices. A thread's device is 0 until it sets one, and its
// context that device's primary one, made when something needs it.
func rtDevices(lib int) map[string]handler {
	synchronize := func(c *call) result {
		x, r := c.context()
		if r != success {
			return r
		}
		if r := c.unsafe(); r != success {
			return r
		}
		return c.sync(x)
	}
	reset := func(c *call) result {
		if r := c.p.initialise(); r != success {
			return r
		}
		c.endPrimary(c.p.devices[c.th.device])
		c.th.lastErr = success
		return success
	}
	props := func(c *call) result {
		d, r := c.deviceOf(c.arg(1))
		if r != success {
			return r
		}
		if c.arg(0) == 0 {
			return errInvalidValue
		}
		c.write(c.arg(0), c.p.sim.gpu.deviceProp(d.ordinal, lib))
		return success
	}
	m := map[string]handler{
		"cudaGetDeviceCount": func(c *call) result {
			if r := c.p.initialise(); r != success {
				return r
			}
			c.put32(c.arg(0), uint32(len(c.p.devices)))
			return success
		},
		"cudaGetDevice": func(c *call) result {
			if r := c.p.initialise(); r != success {
				return r
			}
			d := c.th.device
			if x := c.th.current(); x != nil {
				d = x.dev.ordinal
			}
			c.put32(c.arg(0), uint32(d))
			return success
		},
		"cudaSetDevice":       func(c *call) result { return c.setDevice(c.arg(0)) },
		"cudaInitDevice":      func(c *call) result { return c.setDevice(c.arg(0)) },
		"cudaSetValidDevices": ok,
		"cudaChooseDevice": func(c *call) result {
			c.put32(c.arg(0), 0)
			return success
		},
		"cudaSetDeviceFlags": func(c *call) result {
			c.p.devices[c.th.device].flags = c.u32(0)
			return success
		},
		"cudaGetDeviceFlags": func(c *call) result {
			c.put32(c.arg(0), c.p.devices[c.th.device].flags)
			return success
		},
		"cudaDeviceSynchronize": synchronize, "cudaThreadSynchronize": synchronize,
		"cudaDeviceReset": reset, "cudaThreadExit": reset,
		"cudaGetDeviceProperties": props, "cudaGetDeviceProperties_v2": props,
		"cudaDeviceGetAttribute": (*call).deviceAttribute,
		"cudaRuntimeGetVersion": func(c *call) result {
			c.put32(c.arg(0), runtimeVersion(lib))
			return success
		},
		"cudaDeviceSetLimit":           func(c *call) result { return c.setLimit(c.u32(0), c.arg(1)) },
		"cudaDeviceGetLimit":           func(c *call) result { return c.getLimit(c.arg(0), c.u32(1)) },
		"cudaDeviceSetCacheConfig":     needsContext,
		"cudaDeviceGetCacheConfig":     zero32,
		"cudaDeviceSetSharedMemConfig": needsContext,
		"cudaDeviceGetSharedMemConfig": zero32,
		"cudaDeviceCanAccessPeer":      func(c *call) result { return c.canAccessPeer() },
		"cudaDeviceGetPCIBusId":        func(c *call) result { return c.pciBusID(c.arg(0), c.arg(1), c.arg(2)) },
		"cudaDeviceGetByPCIBusId":      func(c *call) result { return c.byPCIBusID(c.arg(0), c.arg(1)) },
		"cudaGetDriverEntryPoint": func(c *call) result {
			return c.entryPoint(c.arg(0), c.arg(1), runtimeVersion(lib), c.arg(2), c.arg(3))
		},
		"cudaGetDriverEntryPointByVersion": func(c *call) result {
			return c.entryPoint(c.arg(0), c.arg(1), c.u32(2), c.arg(3), c.arg(4))
		},
	}
	if lib == libCudart12 {
		delete(m, "cudaGetDeviceProperties") // that of CUDA 11, with another structure
	}
	return m
}

// zero32 answers a question about a setting that the simulation does not have.
func zero32(c *call) result {
	c.put32(c.arg(0), 0)
	return success
}

// entryPoint is cudaGetDriverEntryPoint: an unknown name is no error, but said in
// the status: 0 found, 1 unknown, 2 newer.
func (c *call) entryPoint(name, out uint64, cuda uint32, flags, status uint64) result {
	s, good := c.cstring(name)
	if !good || out == 0 {
		return errInvalidValue
	}
	sym, known, found := c.p.sim.cat.lookup(s, int(cuda), flags&2 != 0 || flags == 0 && c.entry.ptds)
	var addr uint64
	if found {
		addr = c.p.entryAddr(libCUDA, sym)
	}
	c.put64(out, addr)
	switch {
	case addr != 0:
		c.maybe32(status, 0)
	case known:
		c.maybe32(status, 2)
	default:
		c.maybe32(status, 1)
	}
	return success
}

// rtLaunches are the runtime's functions for kernels, which it knows by the address of a stub on the
// host. dim3 is passed in two registers: x and y in one, z in the next.
func rtLaunches() map[string]handler {
	launch := func(cooperative bool) handler {
		return func(c *call) result {
			f, r := c.hostFunction(c.arg(0))
			if r != success {
				return r
			}
			s, r := c.stream(c.arg(7))
			if r != success {
				return r
			}
			params, r := c.gather(f, c.arg(5), 0)
			if r != success {
				return r
			}
			shared := c.arg(6)
			if shared > 1<<30 {
				return errInvalidValue
			}
			return c.launch(s, &launch{
				f: f, grid: emu.Dim3{X: c.u32(1), Y: uint32(c.arg(1) >> 32), Z: c.u32(2)}, block: emu.Dim3{X: c.u32(3), Y: uint32(c.arg(3) >> 32), Z: c.u32(4)},
				shared: uint32(shared), params: params, cooperative: cooperative,
			})
		}
	}
	withFunc := func(i int, f func(c *call, fn *function) result) handler {
		return func(c *call) result {
			fn, r := c.hostFunction(c.arg(i))
			if r != success {
				return r
			}
			return f(c, fn)
		}
	}
	occupancy := withFunc(1, func(c *call, fn *function) result {
		return c.occupancy(c.arg(0), fn.handle, uint64(c.u32(2)), c.arg(3))
	})
	return map[string]handler{
		"cudaLaunchKernel": launch(false), "__cudaLaunchKernel": launch(false), "cudaLaunchCooperativeKernel": launch(true),
		"cudaLaunchKernelExC": func(c *call) result {
			f, r := c.hostFunction(c.arg(1))
			if r != success {
				return r
			}
			l, stream := c.launchConfig(c.arg(0))
			if c.bad {
				return errInvalidValue
			}
			return c.launchConfigured(&l, f, stream, c.arg(2), 0)
		},
		"cudaFuncSetAttribute": withFunc(0, func(c *call, fn *function) result {
			return setAttribute(&c.p.sim.gpu, fn.attrs, fn.k.SharedBytes(), c.u32(1), int32(c.u32(2)))
		}),
		"cudaFuncGetAttributes": withFunc(1, func(c *call, fn *function) result {
			c.write(c.arg(0), fn.runtimeAttributes(&c.p.sim.gpu))
			return success
		}),
		"cudaFuncSetCacheConfig":     withFunc(0, func(*call, *function) result { return success }),
		"cudaFuncSetSharedMemConfig": withFunc(0, func(*call, *function) result { return success }),
		"cudaFuncGetName": withFunc(1, func(c *call, fn *function) result {
			c.put64(c.arg(0), c.p.text(fn.name))
			return success
		}),
		"cudaFuncGetParamInfo": withFunc(0, func(c *call, fn *function) result { return c.paramInfo(fn) }),
		"cudaFuncGetParamCount": withFunc(0, func(c *call, fn *function) result {
			c.put64(c.arg(1), uint64(len(fn.k.Params())))
			return success
		}),
		"cudaKernelSetAttributeForDevice": withFunc(0, func(c *call, fn *function) result {
			return setAttribute(&c.p.sim.gpu, fn.attrs, fn.k.SharedBytes(), c.u32(1), int32(c.u32(2)))
		}),
		"cudaGetFuncBySymbol": withFunc(1, func(c *call, fn *function) result {
			c.put64(c.arg(0), fn.handle)
			return success
		}),
		"cudaGetKernel": withFunc(1, func(c *call, fn *function) result {
			if fn.kern == nil {
				return errInvalidDeviceFunction
			}
			c.put64(c.arg(0), fn.kern.handle)
			return success
		}),
		"cudaOccupancyMaxActiveBlocksPerMultiprocessor":          occupancy,
		"cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": occupancy,
		"cudaOccupancyAvailableDynamicSMemPerBlock": withFunc(1, func(c *call, fn *function) result {
			return c.availableShared(c.arg(0), fn.handle, uint64(c.u32(2)), uint64(c.u32(3)))
		}),
		"cudaOccupancyMaxActiveClusters": withFunc(1, func(c *call, fn *function) result {
			l, _ := c.launchConfig(c.arg(2))
			return c.activeClusters(c.arg(0), fn, &l)
		}),
	}
}

// runtimeAttributes builds a cudaFuncAttributes (driver_types.h): u64 shared,
// constant, local, then ints: threads, registers, PTX and binary version, cache mode,
// dynamic shared, carveout, clusters.
func (f *function) runtimeAttributes(g *GPU) []byte {
	b := make([]byte, 144)
	for i, id := range []uint32{1, 2, 3} {
		v, _ := f.attribute(g, id)
		binary.LittleEndian.PutUint64(b[8*i:], uint64(v))
	}
	for i, id := range []uint32{cuda.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, cuda.CU_FUNC_ATTRIBUTE_NUM_REGS, cuda.CU_FUNC_ATTRIBUTE_PTX_VERSION, cuda.CU_FUNC_ATTRIBUTE_BINARY_VERSION, cuda.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, attrMaxDynamicShared, attrCarveout} {
		v, _ := f.attribute(g, id)
		binary.LittleEndian.PutUint32(b[24+4*i:], uint32(v))
	}
	return b
}
