package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces/ranks"
)

func (n *names) add(kernels []nvattach.KernelReport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range kernels {
		if n.have == nil {
			n.have = make(map[string]bool)
		}
		n.have[kernels[i].Name], n.have[nvattach.TwinName(kernels[i].Name)] = true, true
	}
}

// list returns a copy.
func (n *names) list() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.have)
}

// end ends the session's context with what was kept of its maps; why says why that
// could not be read later. over says that nothing was launched since the process began
// to end, or the context did.
func (c *context) end(p *process, why error, over bool) {
	if c.ended {
		return
	}
	c.ended = true
	switch {
	case over && c.final && c.late == p.late.Load():
		why = nil
	case c.lost != nil:
		why = c.lost
	}
	c.session.Abandon(why)
}

// errGone: the context has ended without a word. errAsleep: its memory can't be
// reached now.
var (
	errGone   = errors.New("the context has ended")
	errAsleep = errors.New("the context is not active")
)

// reach finds out whether a context's memory can be reached. A primary context
// can have ended without a word, when the program has released it for the last
// time, and can be there again; where it must be read, that is seen to.
func (v *visit) reach(c *context, must bool) []step {
	if !c.primary {
		return nil
	}
	dev := uint64(c.device)
	return []step{
		try("cuDevicePrimaryCtxGetState", dev, v.word(wordOut), v.word(wordActive)),
		choose(func(w results) ([]step, error) {
			active := uint32(w[wordActive]) != 0
			switch {
			case v.code != 0:
				return nil, nil // what comes says why it fails
			case !active && !c.lasting:
				return nil, errGone
			case !active && !(must && c.unread):
				return nil, errAsleep
			case !c.lasting:
				return nil, nil
			}
			return []step{
				try("cuDevicePrimaryCtxRetain", v.word(wordContext), dev),
				choose(func(w results) ([]step, error) {
					if v.code == 0 {
						c.handle, c.retained = w[wordContext], true
					}
					return nil, nil
				}),
			}, nil
		}),
	}
}

// CUdevice_attribute (cuda.h).
const (
	attrSMs         = cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	attrHostAtomics = cuda.CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
	attrMajor       = cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	attrMinor       = cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
)

// enter makes a context current for a visit, without disturbing a capture that is
// under way, and makes a stream that waits for no other; leave undoes it. A stream that is made
// with CU_STREAM_NON_BLOCKING does not wait for the default stream: what is copied in it goes beside
// the program's kernels.
func (v *visit) enter(c *context) error {
	_, _, err := v.enterAnd(c, nil)
	return err
}

// enterAnd is enter between other calls. entered says that the context is current: an
// error is then one of the calls behind that. The error matches errAsleep where reach
// is among those before, and says that there is nothing to visit.
func (v *visit) enterAnd(c *context, before []step, behind ...step) (w results, entered bool, err error) {
	if err := v.room(); err != nil {
		return w, false, err
	}
	begun := false
	steps := slices.Concat(before, []step{choose(func(results) ([]step, error) {
		begun = true
		return []step{
			try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)), call("cuCtxPushCurrent_v2", c.handle),
			call("cuStreamCreate", v.word(wordStream), streamNonBlocking),
		}, nil
	})}, behind)
	w, err = v.script(nil, steps...)
	c.mem.stream = w[wordStream]
	switch {
	case errors.Is(err, errGone):
		c.end(v.p, errNoVisit, true)
		return w, false, errAsleep
	case err == nil, c.mem.stream != 0:
		v.mode = w[wordMode]
		return w, true, err
	case !begun:
		return w, false, err
	}
	undo := []step{try("cuThreadExchangeStreamCaptureMode", v.word(wordMode))}
	if de, ok := errors.AsType[*DriverError](err); ok && de.Function == "cuStreamCreate" {
		undo = append(undo, try("cuCtxPopCurrent_v2", v.word(wordPopped)))
	}
	return w, false, errors.Join(err, v.run(v.unretained(c, undo)...))
}

// leave makes the calls before, whose errors don't matter, and undoes enter.
func (v *visit) leave(c *context, before ...step) error {
	v.mode = captureRelaxed
	return v.run(v.unretained(c, append(before,
		try("cuStreamDestroy_v2", c.mem.stream), call("cuCtxPopCurrent_v2", v.word(wordPopped)),
		try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)),
	))...)
}

// unretained adds the release of a context that was retained for the visit.
func (v *visit) unretained(c *context, steps []step) []step {
	if c.retained {
		c.retained = false
		steps = append(steps, try(v.release(), uint64(c.device)))
	}
	return steps
}

// release is the name of the function that releases a primary context.
func (v *visit) release() string {
	if name := "cuDevicePrimaryCtxRelease_v2"; v.p.driver.syms[name] != 0 {
		return name
	}
	return "cuDevicePrimaryCtxRelease"
}

// current returns the CUcontext that code is being loaded for: the thread's, or
// the primary one of the first device for a library that is loaded before there is
// any; 0 if there is none.
func (v *visit) current(library bool) (uint64, error) {
	if err := v.room(); err != nil {
		return 0, err
	}
	w, err := v.script(nil, call("cuCtxGetCurrent", v.word(wordContext)), choose(func(w results) ([]step, error) {
		if w[wordContext] != 0 || !library {
			return nil, nil
		}
		return []step{call("cuDeviceGet", v.word(wordDevice), 0), choose(func(w results) ([]step, error) {
			return []step{call("cuDevicePrimaryCtxRetain", v.word(wordContext), w[wordDevice])}, nil
		})}, nil
	}))
	return w[wordContext], err
}

// newContext gives a context its maps. It may return another one of the same
// device, whose maps serve it. It returns a context also with an error, if that will be the same next
// time, and nil if the thread could not be used.
func (v *visit) newContext(handle uint64) (*context, error) {
	if err := v.room(); err != nil {
		return nil, err
	}
	c := &context{handle: handle, looked: time.Now(), mem: new(memory)}
	w, entered, err := v.enterAnd(c, nil, v.facts()...)
	if !entered {
		return nil, err
	}
	var old *context
	if err == nil {
		old, err = v.addMaps(c, w)
	}
	if err == nil && old == nil && v.p.live == nil { // else that is a piece of its own, see live
		v.compareClocks(c)
	}
	err = errors.Join(err, v.leave(c))
	if old != nil {
		return old, err
	}
	return c, err
}

// facts asks what must be known of the current context: its device, how many there are, the
// device's architecture and multiprocessors, and whether it is the device's primary context. That is
// found out by retaining the primary one if it is active, which gives its handle, and releasing it.
func (v *visit) facts() []step {
	return []step{
		call("cuCtxGetDevice", v.word(wordDevice)), call("cuDeviceGetCount", v.word(wordCount)),
		choose(func(w results) ([]step, error) {
			dev := w[wordDevice]
			return []step{
				call("cuDeviceGetAttribute", v.word(wordMajor), attrMajor, dev), call("cuDeviceGetAttribute", v.word(wordMinor), attrMinor, dev),
				call("cuDeviceGetAttribute", v.word(wordSMs), attrSMs, dev),
				call("cuDevicePrimaryCtxGetState", dev, v.word(wordOut), v.word(wordActive)),
			}, nil
		}),
		choose(func(w results) ([]step, error) {
			if uint32(w[wordActive]) == 0 {
				return nil, nil
			}
			return []step{call("cuDevicePrimaryCtxRetain", v.word(wordPrimary), w[wordDevice]), call(v.release(), w[wordDevice])}, nil
		}),
	}
}

// addMaps gives a context maps; w is what facts found.
func (v *visit) addMaps(c *context, w results) (old *context, err error) {
	c.device = uint32(w[wordDevice])
	c.arch = fatbin.Arch{SM: uint32(w[wordMajor])*10 + uint32(w[wordMinor])}
	if w[wordMajor] >= 9 {
		c.arch.Suffix = 'a'
	}
	c.primary = w[wordPrimary] == c.handle
	for _, o := range v.p.order {
		if c.primary && o.primary && o.lasting && !o.ended && o.device == c.device {
			if o.shared > 0 { // a reset has undone it
				err = v.share(o.sharedAt, o.shared)
			}
			return o, err
		}
	}
	c.session, err = v.p.tr.o.Session.Add(&session.Target{
		PID: v.p.pid, Device: int(c.device), Handle: c.handle, Rank: rankOf(v.p.pid), SMs: int(uint32(w[wordSMs])), Passive: true,
		Alloc: func(size uint64) (uint64, mapmem.Memory, error) {
			if err := v.alloc(c, size, int(uint32(w[wordCount]))); err != nil {
				return 0, nil, err
			}
			c.mem.open(v)
			return c.mem.addr, c.mem, nil
		},
		Share: func(addr, size uint64) error {
			err := v.share(addr, size)
			if err == nil {
				c.sharedAt, c.shared = addr, size
				err = v.warnOfAtomics(c)
			}
			return err
		},
	})
	return nil, errors.Join(err, c.mem.close())
}

// warnOfAtomics says which maps can go wrong since both sides change them and the device's
// atomic operations on the host's memory are not atomic to the host's own: on an H200 at PCI
// Express, of 975,840 additions of both to one word 690,000 were left.
func (v *visit) warnOfAtomics(c *context) error {
	names := v.p.tr.o.Session.ChangedByBoth()
	if len(names) == 0 {
		return nil
	}
	_, err := v.script(nil, call("cuDeviceGetAttribute", v.word(wordOut), attrHostAtomics, uint64(c.device)), choose(func(w results) ([]step, error) {
		if uint32(w[wordOut]) == 0 {
			v.p.tr.report("maps that programs on the host and in kernels both change may lose changes, since the GPU's atomic operations on the host's memory are not atomic to the processor's here: %s; let each side change maps of its own", strings.Join(names, ", "))
		}
		return nil, nil
	}))
	return err
}

// share has the current context's kernels reach memory of maps that are the host's, too, at
// the address that the process has it at. Where a device can use the host's
// pointers of registered memory (CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), it has
// it at the same address; elsewhere programs with that address in them could not work.
func (v *visit) share(addr, size uint64) error {
	if v.p.tr.share == nil {
		return errors.New("programs on the host do not run in the processes")
	}
	if err := v.do(func(t *ptrace.Task, done func(error)) { done(v.p.tr.share(t)) }); err != nil {
		return err
	}
	const portable, mapped, registered = 1, 2, 712 // CU_MEMHOSTREGISTER_*, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	_, err := v.script(nil, try("cuMemHostRegister_v2", addr, size, portable|mapped), choose(func(results) ([]step, error) {
		if v.code != 0 && v.code != registered {
			return nil, &DriverError{Function: "cuMemHostRegister_v2", Code: v.code}
		}
		return []step{call("cuMemHostGetDevicePointer_v2", v.word(wordOut), addr, 0), choose(func(w results) ([]step, error) {
			if w[wordOut] != addr {
				return nil, fmt.Errorf("the GPU has them at %#x, the process at %#x", w[wordOut], addr)
			}
			return nil, nil
		})}, nil
	}))
	return err
}

// alloc allocates memory for a context's maps, all zero. A library's kernels can
// run on any device, and outlive a primary context: its memory is the device's, and
// all others can reach it.
func (v *visit) alloc(c *context, size uint64, devices int) error {
	c.mem.size = size
	if c.primary {
		err := v.allocLasting(c, size, devices)
		if err == nil {
			c.lasting = true
			return nil
		}
		v.p.tr.log.Debug("no memory of the device's own", "err", err)
	}
	alloc := call("cuMemAlloc_v2", v.word(wordOut), size)
	if devices > 1 {
		alloc = call("cuMemAllocManaged", v.word(wordOut), size, memAttachGlobal)
	}
	_, err := v.script(nil, alloc, v.zero(c, nil))
	c.free = []step{try("cuMemFree_v2", c.mem.addr)}
	return err
}

// zero takes note of the memory that was got, at what base points to or as a result,
// and clears it.
func (v *visit) zero(c *context, base *uint64) step {
	return choose(func(w results) ([]step, error) {
		c.mem.addr = w[wordOut]
		if base != nil {
			c.mem.addr = *base
		}
		return []step{call("cuMemsetD8Async", c.mem.addr, 0, c.mem.size, c.mem.stream), call("cuStreamSynchronize", c.mem.stream)}, nil
	})
}

// allocLasting maps memory of the context's device for all devices; the program's
// own view of its peers does not show that.
func (v *visit) allocLasting(c *context, size uint64, devices int) error {
	// CUmemAllocationProp: CU_MEM_ALLOCATION_TYPE_PINNED, no handle type, location, no
	// more. Behind it, CUmemAccessDesc: CU_MEM_LOCATION_TYPE_DEVICE, id,
	// CU_MEM_ACCESS_FLAGS_PROT_READWRITE, for each device.
	var desc []byte
	for _, n := range []uint32{1, 0, 1, c.device, 0, 0, 0, 0} {
		desc = binary.LittleEndian.AppendUint32(desc, n)
	}
	at, access := v.desc(), v.desc()+uint64(len(desc))
	var steps []step
	for d := range devices {
		for _, n := range []uint32{1, uint32(d), 3} {
			desc = binary.LittleEndian.AppendUint32(desc, n)
		}
		if d == int(c.device) {
			continue
		}
		steps = append(steps, call("cuDeviceCanAccessPeer", v.word(wordOut), uint64(d), uint64(c.device)), choose(func(w results) ([]step, error) {
			if uint32(w[wordOut]) == 0 {
				return nil, fmt.Errorf("device %d can't reach the memory of device %d", d, c.device)
			}
			return nil, nil
		}))
	}
	const recommended = cuda.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	steps = append(steps, call("cuMemGetAllocationGranularity", v.word(wordOut), at, recommended), choose(func(w results) ([]step, error) {
		unit := max(w[wordOut], 1)
		whole := (size + unit - 1) / unit * unit
		var base, reserved, bytes, handle uint64
		return []step{
			call("cuMemCreate", v.word(wordHandle), whole, at, 0),
			// So much that a multiple of mapsAlign is in it: addresses cost nothing.
			try("cuMemAddressReserve", v.word(wordOut), whole+mapsAlign, 0, 0, 0),
			choose(func(w results) ([]step, error) {
				handle = w[wordHandle]
				if v.code == 0 {
					reserved, bytes = w[wordOut], whole+mapsAlign
					base = (reserved + mapsAlign - 1) &^ (mapsAlign - 1)
					return nil, nil
				}
				return []step{call("cuMemAddressReserve", v.word(wordOut), whole, 0, 0, 0)}, nil
			}),
			choose(func(w results) ([]step, error) {
				if base == 0 {
					base, reserved, bytes = w[wordOut], w[wordOut], whole
				}
				c.free = []step{try("cuMemUnmap", base, whole), try("cuMemAddressFree", reserved, bytes), try("cuMemRelease", handle)}
				return []step{call("cuMemMap", base, whole, 0, w[wordHandle], 0), call("cuMemSetAccess", base, whole, access, uint64(devices)), v.zero(c, &base)}, nil
			}),
		}, nil
	}))
	_, err := v.script(desc, steps...)
	v.p.tr.log.Debug("memory for maps", "pid", v.p.pid, "bytes", size, "addr", fmt.Sprintf("%#x", c.mem.addr), "err", err)
	return err
}

// settleTime is how long a program's kernels are waited for at its end.
const settleTime = 5 * time.Second

// mark records where the context's streams are now, which does not wait, as a synchronising call would: if
// a kernel never ends, the program must still be able to. Its last call fails if kernels run.
// Drivers before 12.5 record those streams only that wait for the default stream, as
// all do that are not told otherwise.
func (v *visit) mark(c *context) []step {
	return []step{call("cuEventCreate", v.word(wordEvent), eventNoTiming), choose(func(w results) ([]step, error) {
		event := w[wordEvent]
		return []step{try("cuCtxRecordEvent", c.handle, event), choose(func(results) ([]step, error) {
			query := call("cuEventQuery", event)
			if v.code == 0 {
				return []step{query}, nil
			}
			return []step{call("cuEventRecord", event, 0), query}, nil
		})}, nil
	})}
}

// errRunning: kernels did not end in settleTime.
var errRunning = errors.New("kernels of the context still ran")

// quiet waits until the kernels before the mark have ended; err is what its calls
// have returned. Where that takes too long, as with a kernel that never ends, the
// program ends as it would without us.
func (v *visit) quiet(event uint64, err error) error {
	for until, pause := time.Now().Add(settleTime), 50*time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		var de *DriverError
		if err == nil || !errors.As(err, &de) || de.Function != "cuEventQuery" || de.Code != errNotReady {
			return err
		}
		if time.Now().After(until) {
			return errRunning
		}
		time.Sleep(pause)
		err = v.run(call("cuEventQuery", event))
	}
}

// keep reads the context's maps. last says that nothing is to be launched any more in
// the context, or the process: it waits for the kernels that run. Where it could not,
// what was read may not be the last, and c.lost says why. The error matches errAsleep
// if the context is not active.
func (v *visit) keep(c *context, last bool) error {
	if err := v.room(); err != nil {
		return err
	}
	var mark []step
	if last {
		mark = v.mark(c)
	}
	late := v.p.late.Load()
	w, entered, err := v.enterAnd(c, v.reach(c, last), mark...)
	if !entered {
		return err
	}
	event := w[wordEvent]
	var lost error
	if last {
		lost = v.quiet(event, err)
	}
	idle := last && lost == nil
	c.mem.open(v)
	err = errors.Join(c.session.Keep(idle), c.mem.close())
	var unmark []step
	if event != 0 {
		unmark = append(unmark, try("cuEventDestroy_v2", event))
	}
	if err = errors.Join(err, v.leave(c, unmark...)); err == nil {
		c.final, c.late, c.lost = idle, late, lost
	}
	return err
}

// look serves the context's rings and intervals, if it is active.
func (v *visit) look(c *context, now time.Time) error {
	return v.ifActive(c, func() {
		c.session.Look(now)
		c.looked = now
	})
}

// ifActive has fn called while the context's memory can be reached, unless it is not active.
func (v *visit) ifActive(c *context, fn func()) error {
	if err := v.room(); err != nil {
		return err
	}
	_, entered, err := v.enterAnd(c, v.reach(c, false))
	if !entered {
		if errors.Is(err, errAsleep) {
			return nil
		}
		return err
	}
	c.mem.open(v)
	fn()
	return errors.Join(err, c.mem.close(), v.leave(c))
}

// rankOf is the rank of a process among those of its job.
func rankOf(pid int) int { return ranks.Rank(proc.Environ(pid)) }
