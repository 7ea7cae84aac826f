package sim

import (
	"encoding/binary"
	"fmt"
)

// The runtime does its work through the driver: what watches the driver's functions (libraries' calls,
// times by events, probes) is to see here what it sees of NVIDIA's. So the thread that calls a function
// of the runtime is asked to call the driver's for it (actDriver). What that does, when it gets here, is
// what the runtime's function does (call.inDriver): its meaning, and what it returns, stay the runtime's.

// An underlying is a call of the driver that the runtime makes.
type underlying struct {
	name string
	args []uint64
	blob []byte // memory that arguments point to, which is the program's while the call lasts
	into uint64 // bit i: argument i is an offset in blob
}

// is reports whether a call is that of the driver.
func (d *inDriver) is(q *request) bool {
	if q.lib != libCUDA || q.index != d.index {
		return false
	}
	for i, v := range d.args[:min(len(d.args), len(q.args))] {
		if d.into>>i&1 == 0 && q.args[i] != v {
			return false
		}
	}
	return true
}

// maxInDriver is how many threads of a program may be within such calls at once. Each has two
// connections, of which there are 512 (SLOTS): threads that wait for a second one must not have all of them.
const maxInDriver = 128

var undriven = fmt.Sprintf("more than %d threads were in calls of the runtime at once; what the others called is not recorded as calls of the driver, nor timed by them", maxInDriver)

// driverWords is how many arguments a call of the driver's is made with at most.
const driverWords = 12

// through has the thread call the driver, which runs run: with the arguments that the driver's function
// got. Where the program has no libcuda, or has many threads within such calls, run is run at once.
func (c *call) through(u *underlying, run func(args [6]uint64) result) result {
	p := c.p
	name := u.name
	if c.entry.ptds {
		for _, suffix := range []string{"_ptsz", "_ptds"} {
			if _, has := p.sim.cat.index[libCUDA][name+suffix]; has {
				name += suffix
			}
		}
	}
	addr := p.entryAddr(libCUDA, name)
	if addr == 0 || c.conn == nil || c.th.in != nil {
		return run([6]uint64{})
	}
	if p.inDriver >= maxInDriver {
		p.sim.hint(undriven)
		return run([6]uint64{})
	}
	in := &inDriver{c: c, index: uint32(p.sim.cat.index[libCUDA][name]), args: u.args, into: u.into, run: run}
	data := make([]byte, 8*driverWords, 8*driverWords+len(u.blob))
	for i, v := range u.args {
		if u.into>>i&1 != 0 {
			v += uint64(len(data))
		}
		binary.LittleEndian.PutUint64(data[8*i:], v)
	}
	th, conn := c.th, c.conn
	th.in = in
	p.inDriver++
	c.unlock()
	_, err := conn.do(&reply{action: actDriver, result: addr, a: [5]uint64{u.into}, data: append(data, u.blob...)})
	c.lock()
	p.inDriver--
	th.in = nil
	switch {
	case err != nil:
		return errUnknown // and the connection is over
	case !in.ran:
		return run([6]uint64{}) // somebody else's libcuda was called
	}
	return in.r
}

// answer runs what a call of the driver's stands for. It has the lock.
func (d *inDriver) answer(cl *call) result {
	d.c.th.in = nil
	d.ran = true
	outer := d.c.conn
	d.c.conn, d.c.p.cur = cl.conn, d.c // that is the connection on which the thread waits
	d.r = d.run(cl.req.args)
	d.c.conn, d.c.p.cur = outer, cl
	cl.out, d.c.out = d.c.out, nil
	if d.c.bad && d.r == success {
		return errInvalidValue
	}
	return d.r
}

// withDriver is a handler of the runtime's that does its work in a call of the driver, if there is one for
// its arguments.
func withDriver(of func(c *call) *underlying, h handler) handler {
	return func(c *call) result {
		if x, _ := c.context(); x == nil { // in one that is unusable the driver's call fails
			return h(c)
		}
		u := of(c)
		if u == nil || c.bad {
			c.bad = false // h will find it, too
			return h(c)
		}
		return c.through(u, func([6]uint64) result { return h(c) })
	}
}

// alike is a function of the driver with the first arguments of the runtime's, and given ones behind them.
func alike(name string, n int, more ...uint64) func(c *call) *underlying {
	return func(c *call) *underlying {
		u := &underlying{name: name}
		for i := range n {
			u.args = append(u.args, c.arg(i))
		}
		u.args = append(u.args, more...)
		return u
	}
}

// unless0 is f unless argument i is 0.
func unless0(i int, f func(c *call) *underlying) func(c *call) *underlying {
	return func(c *call) *underlying {
		if c.arg(i) == 0 {
			return nil
		}
		return f(c)
	}
}

// underlyings says which functions of the driver the runtime's functions call. Those that only ask for
// something have none here.
func underlyings() map[string]func(c *call) *underlying {
	m := map[string]func(c *call) *underlying{
		"cudaMalloc": unless0(1, alike("cuMemAlloc_v2", 2)), "cudaFree": unless0(0, alike("cuMemFree_v2", 1)), "cudaMallocManaged": alike("cuMemAllocManaged", 3),
		"cudaMallocPitch": alike("cuMemAllocPitch_v2", 4, 4),
		"cudaMalloc3D": func(c *call) *underlying { // (cudaPitchedPtr*, extent on the stack)
			return &underlying{name: "cuMemAllocPitch_v2", args: []uint64{c.arg(0), c.arg(0) + 8, c.arg(6), c.arg(7) * c.arg(8), 4}}
		},
		"cudaFreeArray": unless0(0, alike("cuArrayDestroy", 1)), "cudaFreeMipmappedArray": unless0(0, alike("cuMipmappedArrayDestroy", 1)),
		"cudaHostAlloc": alike("cuMemHostAlloc", 3), "cudaMallocHost": alike("cuMemAllocHost_v2", 2), "cudaFreeHost": unless0(0, alike("cuMemFreeHost", 1)),
		"cudaHostRegister": alike("cuMemHostRegister_v2", 3), "cudaHostUnregister": alike("cuMemHostUnregister", 1),
		"cudaMallocAsync": alike("cuMemAllocAsync", 3), "cudaMallocFromPoolAsync": alike("cuMemAllocFromPoolAsync", 4), "cudaFreeAsync": alike("cuMemFreeAsync", 2),

		"cudaStreamCreate": alike("cuStreamCreate", 1, 0), "cudaStreamCreateWithFlags": alike("cuStreamCreate", 2), "cudaStreamCreateWithPriority": alike("cuStreamCreateWithPriority", 3),
		"cudaStreamDestroy": alike("cuStreamDestroy_v2", 1), "cudaStreamSynchronize": alike("cuStreamSynchronize", 1), "cudaStreamQuery": alike("cuStreamQuery", 1),
		"cudaStreamWaitEvent": alike("cuStreamWaitEvent", 3), "cudaStreamAddCallback": alike("cuStreamAddCallback", 4), "cudaLaunchHostFunc": alike("cuLaunchHostFunc", 3),
		"cudaStreamBeginCapture": alike("cuStreamBeginCapture_v2", 2), "cudaStreamEndCapture": alike("cuStreamEndCapture", 2),
		"cudaDeviceSynchronize": alike("cuCtxSynchronize", 0), "cudaThreadSynchronize": alike("cuCtxSynchronize", 0),

		"cudaEventCreate": alike("cuEventCreate", 1, 0), "cudaEventCreateWithFlags": alike("cuEventCreate", 2), "cudaEventDestroy": alike("cuEventDestroy_v2", 1),
		"cudaEventRecord": alike("cuEventRecord", 2), "cudaEventRecordWithFlags": alike("cuEventRecordWithFlags", 3), "cudaEventQuery": alike("cuEventQuery", 1),
		"cudaEventSynchronize": alike("cuEventSynchronize", 1), "cudaEventElapsedTime": alike("cuEventElapsedTime", 3), "cudaEventElapsedTime_v2": alike("cuEventElapsedTime_v2", 3),

		"cudaGraphInstantiateWithFlags": alike("cuGraphInstantiateWithFlags", 3), "cudaGraphUpload": alike("cuGraphUpload", 2),
		"cudaGraphLaunch": alike("cuGraphLaunch", 2), "cudaGraphExecDestroy": alike("cuGraphExecDestroy", 1), "cudaGraphDestroy": alike("cuGraphDestroy", 1),

		"cudaDeviceReset": contextEnd, "cudaThreadExit": contextEnd,

		"cudaLibraryLoadData": alike("cuLibraryLoadData", 8), "cudaLibraryLoadFromFile": alike("cuLibraryLoadFromFile", 8), "cudaLibraryUnload": alike("cuLibraryUnload", 1),
		"cudaLibraryGetKernel": alike("cuLibraryGetKernel", 3),

		"cudaMemset": alike("cuMemsetD8_v2", 3), "cudaMemsetAsync": alike("cuMemsetD8Async", 4),
		"cudaMemset2D": alike("cuMemsetD2D8_v2", 5), "cudaMemset2DAsync": alike("cuMemsetD2D8Async", 6),

		"cudaLaunchKernel": kernelLaunch("cuLaunchKernel"), "__cudaLaunchKernel": kernelLaunch("cuLaunchKernel"), "cudaLaunchCooperativeKernel": kernelLaunch("cuLaunchCooperativeKernel"),
		"cudaLaunchKernelExC": func(c *call) *underlying { // the two structures differ in the upper half of a length
			f, r := c.hostFunction(c.arg(1))
			if r != success {
				return nil
			}
			return &underlying{name: "cuLaunchKernelEx", args: []uint64{c.arg(0), launchable(f), c.arg(2), 0}}
		},
	}
	return m
}

// launchable is the handle by which the runtime launches a kernel: the library's, whose name has been asked for.
func launchable(f *function) uint64 {
	if f.kern != nil {
		return f.kern.handle
	}
	return f.handle
}

// contextEnd is the end of the thread's device's context.
func contextEnd(c *call) *underlying {
	return &underlying{name: "cuDevicePrimaryCtxReset_v2", args: []uint64{uint64(c.th.device)}}
}

// kernelLaunch is a launch whose grid and block are arguments, as [rtLaunches] has them.
func kernelLaunch(name string) func(c *call) *underlying {
	return func(c *call) *underlying {
		f, r := c.hostFunction(c.arg(0))
		if r != success {
			return nil
		}
		args := []uint64{
			launchable(f), uint64(c.u32(1)), c.arg(1) >> 32, uint64(c.u32(2)), uint64(c.u32(3)), c.arg(3) >> 32, uint64(c.u32(4)),
			uint64(uint32(c.arg(6))), c.arg(7), c.arg(5),
		}
		if name == "cuLaunchKernel" {
			args = append(args, 0) // extra
		}
		return &underlying{name: name, args: args}
	}
}

// unifiedMemory is CU_MEMORYTYPE_UNIFIED: the address says whose memory it is.
const unifiedMemory = 4

func words(lists ...[]uint64) (b []byte) {
	for _, l := range lists {
		for _, v := range l {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}
