package sim

import (
	"encoding/binary"

	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// drvModules are functions about modules and the functions in them. Options of the compiler
// (cuModuleLoadDataEx) are not looked at.
func drvModules() map[string]handler {
	load := func(image func(c *call) ([]*ptx.File, result)) handler {
		return func(c *call) result {
			x, r := c.context()
			if r != success {
				return r
			}
			files, r := image(c)
			if r != success {
				return r
			}
			m, r := c.load(x, files)
			if r == success {
				c.put64(c.arg(0), m.handle)
			}
			return r
		}
	}
	data := load(func(c *call) ([]*ptx.File, result) { return c.image(c.arg(1)) })
	done := withFunction(0, func(*call, *function) result { return success })
	count := withFunction(0, (*call).paramCount)
	info := withFunction(0, (*call).paramInfo)
	return map[string]handler{
		"cuModuleLoadData": data, "cuModuleLoadDataEx": data, "cuModuleLoadFatBinary": data,
		"cuModuleLoad": load(func(c *call) ([]*ptx.File, result) { return c.fileArg(1) }),
		"cuModuleUnload": withObject(0, func(c *call, m *module) result {
			r := c.sync(m.ctx)
			m.unload()
			for _, f := range m.functions {
				delete(c.p.objects, f.handle)
			}
			delete(c.p.objects, m.handle)
			return r
		}),
		"cuModuleGetLoadingMode": func(c *call) result {
			c.put32(c.arg(0), 2) // lazy
			return success
		},
		"cuModuleGetFunction": withObject(1, func(c *call, m *module) result {
			name, r := c.nameArg(2)
			if r != success {
				return r
			}
			f, r := c.function(m, name)
			if r == success {
				c.put64(c.arg(0), f.handle)
			}
			return r
		}),
		"cuModuleGetFunctionCount": withObject(1, func(c *call, m *module) result {
			c.put32(c.arg(0), uint32(len(m.emu.Kernels())))
			return success
		}),
		"cuModuleEnumerateFunctions": withObject(2, func(c *call, m *module) result {
			return c.enumerate(m.files, func(name string) (uint64, result) {
				f, r := c.function(m, name)
				if r != success {
					return 0, r
				}
				return f.handle, success
			})
		}),
		"cuModuleGetGlobal_v2": withObject(2, (*call).global),
		"cuFuncGetAttribute":   withFunction(2, (*call).attribute),
		"cuFuncSetAttribute": withFunction(0, func(c *call, f *function) result {
			return c.setAttribute(f, c.u32(1), int32(c.u32(2)))
		}),
		"cuFuncSetCacheConfig": done, "cuFuncSetSharedMemConfig": done, "cuFuncLoad": done,
		"cuFuncGetModule": withFunction(1, func(c *call, f *function) result {
			c.put64(c.arg(0), f.mod.handle)
			return success
		}),
		"cuFuncGetName": withFunction(1, func(c *call, f *function) result {
			c.put64(c.arg(0), c.p.text(f.name))
			return success
		}),
		"cuFuncIsLoaded": withFunction(1, func(c *call, _ *function) result {
			c.put32(c.arg(0), 1)
			return success
		}),
		"cuFuncGetParamInfo": info, "cuKernelGetParamInfo": info,
		"cuFuncGetParamCount": count, "cuKernelGetParamCount": count,
	}
}

// enumerate is (handles, limit, …) for the kernels of an image.
func (c *call) enumerate(files []*ptx.File, handle func(name string) (uint64, result)) result {
	for i, name := range kernelNames(files) {
		if uint32(i) >= c.u32(1) {
			break
		}
		h, r := handle(name)
		if r != success {
			return r
		}
		c.put64(c.arg(0)+8*uint64(i), h)
	}
	return success
}

// global is (address, size, …, name) for a variable of a module; addresses of
// results may be null.
func (c *call) global(m *module) result {
	name, r := c.nameArg(3)
	if r != success {
		return r
	}
	v, found := m.emu.Variable(name)
	if !found {
		return errNotFound
	}
	c.maybe64(c.arg(0), v.Addr)
	c.maybe64(c.arg(1), v.Size)
	return success
}

// attribute is (value, attribute, …).
func (c *call) attribute(f *function) result {
	v, r := f.attribute(&c.p.sim.gpu, c.u32(1))
	if r == success {
		c.put32(c.arg(0), uint32(v))
	}
	return r
}

// paramCount is (function, count).
func (c *call) paramCount(f *function) result {
	c.put64(c.arg(1), uint64(len(f.k.Params())))
	return success
}

// paramInfo is (function, index, offset, size).
func (c *call) paramInfo(f *function) result {
	ps := f.k.Params()
	if c.arg(1) >= uint64(len(ps)) {
		return errInvalidValue
	}
	c.put64(c.arg(2), ps[c.arg(1)].Offset)
	c.maybe64(c.arg(3), ps[c.arg(1)].Size)
	return success
}

// drvLibraries are functions about libraries, which programs may load before there is a context.
func drvLibraries() map[string]handler {
	load := func(library func(c *call) (*codeLibrary, result)) handler {
		return func(c *call) result {
			if r := c.ready(); r != success {
				return r
			}
			l, r := library(c)
			if r == success {
				c.put64(c.arg(0), l.handle)
			}
			return r
		}
	}
	// inContext is for what is asked of a library's module in the current context.
	inContext := func(i int, f func(c *call, m *module) result) handler {
		return withObject(i, func(c *call, l *codeLibrary) result {
			x, r := c.context()
			if r != success {
				return r
			}
			m, r := c.moduleIn(l, x)
			if r != success {
				return r
			}
			return f(c, m)
		})
	}
	global := inContext(2, (*call).global)
	return map[string]handler{
		"cuLibraryLoadData": load(func(c *call) (*codeLibrary, result) { return c.newLibrary(c.arg(1)) }),
		"cuLibraryLoadFromFile": load(func(c *call) (*codeLibrary, result) {
			files, r := c.fileArg(1)
			if r != success {
				return nil, r
			}
			return c.addLibrary(files)
		}),
		"cuLibraryUnload": withObject(0, func(c *call, l *codeLibrary) result {
			c.unloadLibrary(l)
			return success
		}),
		"cuLibraryGetKernel": withObject(1, func(c *call, l *codeLibrary) result {
			name, r := c.nameArg(2)
			if r != success {
				return r
			}
			k, r := c.kernel(l, name)
			if r == success {
				c.put64(c.arg(0), k.handle)
			}
			return r
		}),
		"cuLibraryGetKernelCount": withObject(1, func(c *call, l *codeLibrary) result {
			c.put32(c.arg(0), uint32(len(kernelNames(l.files))))
			return success
		}),
		"cuLibraryEnumerateKernels": withObject(2, func(c *call, l *codeLibrary) result {
			return c.enumerate(l.files, func(name string) (uint64, result) {
				k, r := c.kernel(l, name)
				if r != success {
					return 0, r
				}
				return k.handle, success
			})
		}),
		"cuLibraryGetModule": inContext(1, func(c *call, m *module) result {
			c.put64(c.arg(0), m.handle)
			return success
		}),
		"cuLibraryGetGlobal": global, "cuLibraryGetManaged": global,
		"cuKernelGetFunction": withObject(1, func(c *call, k *kernel) result {
			f, r := c.resolve(k.handle)
			if r == success {
				c.put64(c.arg(0), f.handle)
			}
			return r
		}),
		"cuKernelGetLibrary": withObject(1, func(c *call, k *kernel) result {
			c.put64(c.arg(0), k.lib.handle)
			return success
		}),
		"cuKernelGetName": withObject(1, func(c *call, k *kernel) result {
			c.put64(c.arg(0), c.p.text(k.name))
			return success
		}),
		"cuKernelGetAttribute": withObject(2, func(c *call, k *kernel) result {
			f, r := c.resolve(k.handle)
			if r != success {
				return r
			}
			return c.attribute(f)
		}),
		"cuKernelSetAttribute": withObject(2, func(c *call, k *kernel) result {
			f, r := c.resolve(k.handle)
			if r != success {
				return r
			}
			if r = c.setAttribute(f, c.u32(0), int32(c.u32(1))); r == success {
				k.attrs[c.u32(0)] = int32(c.u32(1))
			}
			return r
		}),
		"cuKernelSetCacheConfig": withObject(0, func(*call, *kernel) result { return success }),
	}
}

// drvLaunches are functions that launch kernels, and that tell how many fit on a device.
func drvLaunches() map[string]handler {
	plain := func(cooperative bool) handler {
		return func(c *call) result {
			f, r := c.resolve(c.arg(0))
			if r != success {
				return r
			}
			s, r := c.stream(c.arg(8))
			if r != success {
				return r
			}
			var extra uint64
			if !cooperative {
				extra = c.arg(10)
			}
			params, r := c.gather(f, c.arg(9), extra)
			if r != success {
				return r
			}
			return c.launch(s, &launch{
				f: f, grid: emu.Dim3{X: c.u32(1), Y: c.u32(2), Z: c.u32(3)}, block: emu.Dim3{X: c.u32(4), Y: c.u32(5), Z: c.u32(6)},
				shared: c.u32(7), params: params, cooperative: cooperative,
			})
		}
	}
	occupancy := func(c *call) result { return c.occupancy(c.arg(0), c.arg(1), uint64(c.u32(2)), c.arg(3)) }
	potential := func(c *call) result {
		return c.potentialBlock(c.arg(0), c.arg(1), c.arg(2), c.arg(3), c.arg(4), int32(c.u32(5)))
	}
	return map[string]handler{
		"cuLaunchKernel":            plain(false),
		"cuLaunchCooperativeKernel": plain(true),
		"cuLaunchKernelEx": func(c *call) result {
			l, stream := c.launchConfig(c.arg(0))
			if c.bad {
				return errInvalidValue
			}
			f, r := c.resolve(c.arg(1))
			if r != success {
				return r
			}
			return c.launchConfigured(&l, f, stream, c.arg(2), c.arg(3))
		},
		"cuOccupancyMaxActiveBlocksPerMultiprocessor":          occupancy,
		"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": occupancy,
		"cuOccupancyMaxPotentialBlockSize":                     potential,
		"cuOccupancyMaxPotentialBlockSizeWithFlags":            potential,
		"cuOccupancyAvailableDynamicSMemPerBlock": func(c *call) result {
			return c.availableShared(c.arg(0), c.arg(1), uint64(c.u32(2)), uint64(c.u32(3)))
		},
		"cuOccupancyMaxActiveClusters": func(c *call) result {
			l, _ := c.launchConfig(c.arg(2))
			f, r := c.resolve(c.arg(1))
			if r != success {
				return r
			}
			return c.activeClusters(c.arg(0), f, &l)
		},
	}
}

// launchConfigured is the common part of cuLaunchKernelEx and cudaLaunchKernelExC.
func (c *call) launchConfigured(l *launch, f *function, stream, args, extra uint64) result {
	s, r := c.stream(stream)
	if r != success {
		return r
	}
	if l.params, r = c.gather(f, args, extra); r != success {
		return r
	}
	l.f = f
	return c.launch(s, l)
}

// occupancy is (int* blocks, function, threads, dynamic shared bytes).
func (c *call) occupancy(out, fn, threads, shared uint64) result {
	f, r := c.resolve(fn)
	if r != success {
		return r
	}
	if threads == 0 || threads > 1<<31 || shared > 1<<31 {
		return errInvalidValue
	}
	c.put32(out, uint32(c.p.sim.gpu.Occupancy(threads, f.k.SharedBytes()+shared, f.registers())))
	return success
}

// potentialBlock is (int* grid, int* block, function, bytes function or 0, bytes, limit).
func (c *call) potentialBlock(grid, block, fn, sizeFn, shared uint64, limit int32) result {
	f, r := c.resolve(fn)
	if r != success {
		return r
	}
	g := &c.p.sim.gpu
	most, _ := f.attribute(g, 0)
	if limit > 0 {
		most = min(most, limit)
	}
	bestThreads, bestBlocks := int32(0), 0
	for t := most &^ 31; t > 0; t -= 32 {
		if sizeFn != 0 {
			v, err := c.conn.do(&reply{action: actCall, result: sizeFn, a: [5]uint64{uint64(t)}})
			if err != nil {
				return errUnknown
			}
			shared = v
		}
		if n := g.Occupancy(uint64(t), f.k.SharedBytes()+shared, f.registers()); n*int(t) > bestBlocks*int(bestThreads) {
			bestThreads, bestBlocks = t, n
		}
	}
	c.put32(grid, uint32(bestBlocks*g.SMs))
	c.put32(block, uint32(bestThreads))
	return success
}

// availableShared is how much dynamic shared memory a block may have where so many are to fit on a
// multiprocessor.
func (c *call) availableShared(out, fn, blocks, threads uint64) result {
	f, r := c.resolve(fn)
	if r != success {
		return r
	}
	if blocks == 0 || threads == 0 || threads > maxThreadsPerBlock {
		return errInvalidValue
	}
	g := &c.p.sim.gpu
	each := min(g.SharedPerSM/blocks, g.SharedOptIn)
	if g.Major >= 8 {
		each -= min(each, 1024)
	}
	c.put64(out, each-min(each, f.k.SharedBytes()))
	return success
}

// activeClusters is how many clusters of a launch fit on the device.
func (c *call) activeClusters(out uint64, f *function, l *launch) result {
	k := l.cluster
	if k == (emu.Dim3{}) {
		k = emu.Dim3{X: 1, Y: 1, Z: 1}
	}
	threads := uint64(l.block.X) * uint64(l.block.Y) * uint64(l.block.Z)
	size := uint64(k.X) * uint64(k.Y) * uint64(k.Z)
	g := &c.p.sim.gpu
	if size == 0 || size > 16 || g.Major < 9 {
		return errInvalidValue
	}
	c.put32(out, uint32(uint64(g.Occupancy(threads, f.k.SharedBytes()+uint64(l.shared), f.registers())*g.SMs)/size))
	return success
}

// leWord reads a 64-bit word of a structure.
func leWord(b []byte, off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
