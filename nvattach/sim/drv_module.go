package sim

import (
	"encoding/binary"

	"nvtrace/ptx/emu"
)

func drvModules() map[string]handler {
	load := func(c *call) result {
		x, r := c.context()
		if r != success {
			return r
		}
		files, r := c.image(c.arg(1))
		if r != success {
			return r
		}
		m, r := c.load(x, files)
		if r == success {
			c.put64(c.arg(0), m.handle)
		}
		return r
	}
	return map[string]handler{
		"cuModuleLoadData": load, "cuModuleLoadDataEx": load, "cuModuleLoadFatBinary": load,
		"cuModuleLoad": func(c *call) result {
			x, r := c.context()
			if r != success {
				return r
			}
			name, good := c.cstring(c.arg(1))
			if !good {
				return errInvalidValue
			}
			files, r := c.imageFile(name)
			if r != success {
				return r
			}
			m, r := c.load(x, files)
			if r == success {
				c.put64(c.arg(0), m.handle)
			}
			return r
		},
		"cuModuleUnload": func(c *call) result {
			m, good := object[*module](c.p, c.arg(0))
			if !good {
				return errInvalidHandle
			}
			r := c.sync(m.ctx)
			m.unload()
			for _, f := range m.functions {
				delete(c.p.objects, f.handle)
			}
			delete(c.p.objects, m.handle)
			return r
		},
		"cuModuleGetLoadingMode": func(c *call) result {
			c.put32(c.arg(0), 2) // lazy
			return success
		},
		"cuModuleGetFunction": func(c *call) result {
			m, good := object[*module](c.p, c.arg(1))
			if !good {
				return errInvalidHandle
			}
			name, good := c.cstring(c.arg(2))
			if !good {
				return errInvalidValue
			}
			f, r := c.function(m, name)
			if r == success {
				c.put64(c.arg(0), f.handle)
			}
			return r
		},
		"cuModuleGetFunctionCount": func(c *call) result {
			m, good := object[*module](c.p, c.arg(1))
			if !good {
				return errInvalidHandle
			}
			c.put32(c.arg(0), uint32(len(m.emu.Kernels())))
			return success
		},
		"cuModuleEnumerateFunctions": func(c *call) result {
			m, good := object[*module](c.p, c.arg(2))
			if !good {
				return errInvalidHandle
			}
			for i, name := range kernelNames(m.files) {
				if uint32(i) >= c.u32(1) {
					break
				}
				f, r := c.function(m, name)
				if r != success {
					return r
				}
				c.put64(c.arg(0)+8*uint64(i), f.handle)
			}
			return success
		},
		"cuModuleGetGlobal_v2": func(c *call) result {
			m, good := object[*module](c.p, c.arg(2))
			if !good {
				return errInvalidHandle
			}
			return c.global(m, c.arg(0), c.arg(1), c.arg(3))
		},
		"cuFuncGetAttribute": func(c *call) result {
			f, r := c.resolve(c.arg(2))
			if r != success {
				return r
			}
			v, r := f.attribute(&c.p.sim.gpu, c.u32(1))
			if r == success {
				c.put32(c.arg(0), uint32(v))
			}
			return r
		},
		"cuFuncSetAttribute": func(c *call) result {
			f, r := c.resolve(c.arg(0))
			if r != success {
				return r
			}
			return setAttribute(&c.p.sim.gpu, f.attrs, f.k.SharedBytes(), c.u32(1), int32(c.u32(2)))
		},
		"cuFuncSetCacheConfig": resolves, "cuFuncSetSharedMemConfig": resolves, "cuFuncLoad": resolves,
		"cuFuncGetModule": func(c *call) result {
			f, r := c.resolve(c.arg(1))
			if r == success {
				c.put64(c.arg(0), f.mod.handle)
			}
			return r
		},
		"cuFuncGetName": func(c *call) result {
			f, r := c.resolve(c.arg(1))
			if r == success {
				c.put64(c.arg(0), c.p.text(f.name))
			}
			return r
		},
		"cuFuncIsLoaded": func(c *call) result {
			_, r := c.resolve(c.arg(1))
			if r == success {
				c.put32(c.arg(0), 1)
			}
			return r
		},
		"cuFuncGetParamInfo": paramInfo, "cuFuncGetParamCount": paramCount, "cuKernelGetParamCount": paramCount,
		"cuKernelGetParamInfo": paramInfo,
	}
}

// resolves succeeds if argument 0 is a function.
func resolves(c *call) result {
	_, r := c.resolve(c.arg(0))
	return r
}

// global finds a variable of a module.
func (c *call) global(m *module, addr, size, name uint64) result {
	s, good := c.cstring(name)
	if !good {
		return errInvalidValue
	}
	v, found := m.emu.Variable(s)
	if !found {
		return errNotFound
	}
	c.maybe64(addr, v.Addr)
	c.maybe64(size, v.Size)
	return success
}

func paramInfo(c *call) result {
	f, r := c.resolve(c.arg(0))
	if r != success {
		return r
	}
	return c.paramInfo(f)
}

func paramCount(c *call) result {
	f, r := c.resolve(c.arg(0))
	if r == success {
		c.put64(c.arg(1), uint64(len(f.k.Params())))
	}
	return r
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

func drvLibraries() map[string]handler {
	withLib := func(i int, f func(c *call, l *codeLibrary) result) handler {
		return func(c *call) result {
			l, good := object[*codeLibrary](c.p, c.arg(i))
			if !good {
				return errInvalidHandle
			}
			return f(c, l)
		}
	}
	withKernel := func(i int, f func(c *call, k *kernel) result) handler {
		return func(c *call) result {
			k, good := object[*kernel](c.p, c.arg(i))
			if !good {
				return errInvalidHandle
			}
			return f(c, k)
		}
	}
	global := withLib(2, func(c *call, l *codeLibrary) result {
		x, r := c.context()
		if r != success {
			return r
		}
		m, r := c.moduleIn(l, x)
		if r != success {
			return r
		}
		return c.global(m, c.arg(0), c.arg(1), c.arg(3))
	})
	return map[string]handler{
		"cuLibraryLoadData": func(c *call) result {
			if !c.p.inited {
				return errNotInitialized
			}
			l, r := c.newLibrary(c.arg(1))
			if r == success {
				c.put64(c.arg(0), l.handle)
			}
			return r
		},
		"cuLibraryLoadFromFile": func(c *call) result {
			name, good := c.cstring(c.arg(1))
			if !good {
				return errInvalidValue
			}
			files, r := c.imageFile(name)
			if r != success {
				return r
			}
			l, r := c.addLibrary(files)
			if r == success {
				c.put64(c.arg(0), l.handle)
			}
			return r
		},
		"cuLibraryUnload": withLib(0, func(c *call, l *codeLibrary) result {
			c.unloadLibrary(l)
			return success
		}),
		"cuLibraryGetKernel": withLib(1, func(c *call, l *codeLibrary) result {
			name, good := c.cstring(c.arg(2))
			if !good {
				return errInvalidValue
			}
			k, r := c.kernel(l, name)
			if r == success {
				c.put64(c.arg(0), k.handle)
			}
			return r
		}),
		"cuLibraryGetKernelCount": withLib(1, func(c *call, l *codeLibrary) result {
			c.put32(c.arg(0), uint32(len(kernelNames(l.files))))
			return success
		}),
		"cuLibraryEnumerateKernels": withLib(2, func(c *call, l *codeLibrary) result {
			for i, name := range kernelNames(l.files) {
				if uint32(i) >= c.u32(1) {
					break
				}
				k, r := c.kernel(l, name)
				if r != success {
					return r
				}
				c.put64(c.arg(0)+8*uint64(i), k.handle)
			}
			return success
		}),
		"cuLibraryGetModule": withLib(1, func(c *call, l *codeLibrary) result {
			x, r := c.context()
			if r != success {
				return r
			}
			m, r := c.moduleIn(l, x)
			if r == success {
				c.put64(c.arg(0), m.handle)
			}
			return r
		}),
		"cuLibraryGetGlobal": global, "cuLibraryGetManaged": global,
		"cuKernelGetFunction": withKernel(1, func(c *call, _ *kernel) result {
			f, r := c.resolve(c.arg(1))
			if r == success {
				c.put64(c.arg(0), f.handle)
			}
			return r
		}),
		"cuKernelGetLibrary": withKernel(1, func(c *call, k *kernel) result {
			c.put64(c.arg(0), k.lib.handle)
			return success
		}),
		"cuKernelGetName": withKernel(1, func(c *call, k *kernel) result {
			c.put64(c.arg(0), c.p.text(k.name))
			return success
		}),
		"cuKernelGetAttribute": withKernel(2, func(c *call, k *kernel) result {
			f, r := c.resolve(k.handle)
			if r != success {
				return r
			}
			v, r := f.attribute(&c.p.sim.gpu, c.u32(1))
			if r == success {
				c.put32(c.arg(0), uint32(v))
			}
			return r
		}),
		"cuKernelSetAttribute": withKernel(2, func(c *call, k *kernel) result {
			f, r := c.resolve(k.handle)
			if r != success {
				return r
			}
			if r = setAttribute(&c.p.sim.gpu, f.attrs, f.k.SharedBytes(), c.u32(0), int32(c.u32(1))); r == success {
				k.attrs[c.u32(0)] = int32(c.u32(1))
			}
			return r
		}),
		"cuKernelSetCacheConfig": withKernel(0, func(*call, *kernel) result { return success }),
	}
}

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
