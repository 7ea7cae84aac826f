package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/session"
)

// context is a CUDA context of a program, with its maps.
type context struct {
	handle  uint64
	device  uint32 // CUdevice
	arch    fatbin.Arch
	mem     *memory
	session *session.Context
	err     error // it can't have maps
	ended   bool  // its memory is gone, or about to go
	kept    bool  // its maps were read
	settled bool  // at the program's exit, when no kernel ran any more
	lost    error // why they could not be
	primary bool  // it is its device's primary context
	// lasting: its memory belongs to the device, and stays when the primary context
	// is reset. So may libraries with code that knows where it is.
	lasting  bool
	retained bool // for a visit
	attended atomic.Bool
	looked   time.Time
	read     time.Time     // when the maps were kept
	took     time.Duration // how long that took
	unread   bool          // they were not, at a release
}

// end ends the session's context; the maps were kept, or are lost.
func (c *context) end(why error) {
	c.ended = true
	if c.lost != nil {
		why = c.lost
	}
	c.session.Abandon(why)
}

// ready finds out whether a context's memory can be reached. A primary context
// can have ended without a word, when the program has released it for the last
// time, and can be there again; where it must be read, that is seen to.
func (v *visit) ready(c *context, must bool) bool {
	if c.ended || !c.primary {
		return !c.ended
	}
	out := make([]byte, 8*numWords)
	err := v.exchange(nil, 0, []step{
		call("cuDevicePrimaryCtxGetState", uint64(c.device), v.word(wordOut), v.word(wordCount)),
	}, v.word(0), out)
	if err != nil {
		return true // what comes says why it fails
	}
	active := binary.LittleEndian.Uint32(out[8*wordCount:]) != 0
	switch {
	case !active && !c.lasting:
		c.end(errNoVisit)
		return false
	case !active && !(must && c.unread):
		return false
	case !c.lasting:
		return true
	}
	err = v.exchange(nil, 0, []step{call("cuDevicePrimaryCtxRetain", v.word(wordContext), uint64(c.device))}, v.word(wordContext), out[:8])
	if err == nil {
		c.handle, c.retained = binary.LittleEndian.Uint64(out), true
	}
	return true
}

// CUdevice_attribute (cuda.h).
const (
	attrSMs   = 16 // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	attrMajor = 75 // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	attrMinor = 76 // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
)

// Other constants of cuda.h.
const (
	captureRelaxed    = 2 // CU_STREAM_CAPTURE_MODE_RELAXED
	streamNonBlocking = 1 // CU_STREAM_NON_BLOCKING
	memAttachGlobal   = 1 // CU_MEM_ATTACH_GLOBAL
	eventNoTiming     = 2 // CU_EVENT_DISABLE_TIMING
	errNotReady       = 600
	errNotInitialized = 3
	errDeinitialized  = 4
	errInvalidContext = 201
)

// The words for results.
const (
	wordMode = iota // capture mode of the thread
	wordContext
	wordDevice
	wordCount
	wordMajor
	wordMinor
	wordSMs
	wordOut
	wordPopped
	wordHandle
	wordName
	numWords
)

// enter makes a context current for a visit, without disturbing a capture that is
// under way, and makes a stream that waits for no other; leave undoes it.
func (v *visit) enter(c *context) error {
	if err := v.room(); err != nil {
		return err
	}
	out := make([]byte, 8)
	err := v.exchange(binary.LittleEndian.AppendUint64(nil, captureRelaxed), v.word(wordMode), []step{
		try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)), call("cuCtxPushCurrent_v2", c.handle),
		call("cuStreamCreate", v.word(wordOut), streamNonBlocking),
	}, v.word(wordOut), out)
	if err == nil {
		c.mem.stream = binary.LittleEndian.Uint64(out)
		return nil
	}
	c.mem.stream = 0
	steps := []step{try("cuThreadExchangeStreamCaptureMode", v.word(wordMode))}
	if de, ok := errors.AsType[*DriverError](err); ok && de.Function == "cuStreamCreate" {
		steps = append(steps, try("cuCtxPopCurrent_v2", v.word(wordPopped)))
	}
	return errors.Join(err, v.run(v.unretained(c, steps)...))
}

func (v *visit) leave(c *context) error {
	return v.run(v.unretained(c, []step{
		try("cuStreamDestroy_v2", c.mem.stream), call("cuCtxPopCurrent_v2", v.word(wordPopped)),
		try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)),
	})...)
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
	if err := v.set(make([]uint64, numWords)...); err != nil {
		return 0, err
	}
	if err := v.run(call("cuCtxGetCurrent", v.word(wordContext))); err != nil {
		return 0, err
	}
	w, err := v.words(numWords)
	if err != nil {
		return 0, err
	}
	if w[wordContext] != 0 || !library {
		return w[wordContext], nil
	}
	if err := v.run(call("cuDeviceGet", v.word(wordDevice), 0)); err != nil {
		return 0, err
	}
	if w, err = v.words(numWords); err != nil {
		return 0, err
	}
	if err := v.run(call("cuDevicePrimaryCtxRetain", v.word(wordContext), uint64(uint32(w[wordDevice])))); err != nil {
		return 0, err
	}
	w, err = v.words(numWords)
	return w[wordContext], err
}

// newContext gives a context its maps. It may return another one of the same
// device, whose maps serve it.
func (v *visit) newContext(handle uint64) (*context, error) {
	c := &context{handle: handle, looked: time.Now(), mem: new(memory)}
	if err := v.enter(c); err != nil {
		return nil, err
	}
	old, err := v.equip(c)
	err = errors.Join(err, v.leave(c))
	if old != nil {
		return old, err
	}
	return c, err
}

func (v *visit) equip(c *context) (old *context, err error) {
	if err := v.run(call("cuCtxGetDevice", v.word(wordDevice)), call("cuDeviceGetCount", v.word(wordCount))); err != nil {
		return nil, err
	}
	w, err := v.words(numWords)
	if err != nil {
		return nil, err
	}
	c.device = uint32(w[wordDevice])
	dev, devices := uint64(c.device), int(uint32(w[wordCount]))
	if err := v.run(call("cuDeviceGetAttribute", v.word(wordMajor), attrMajor, dev), call("cuDeviceGetAttribute", v.word(wordMinor), attrMinor, dev),
		call("cuDeviceGetAttribute", v.word(wordSMs), attrSMs, dev)); err != nil {
		return nil, err
	}
	if w, err = v.words(numWords); err != nil {
		return nil, err
	}
	c.arch = fatbin.Arch{SM: uint32(w[wordMajor])*10 + uint32(w[wordMinor])}
	if w[wordMajor] >= 9 {
		c.arch.Suffix = 'a'
	}
	if c.primary, err = v.isPrimary(c); err != nil {
		return nil, err
	}
	for _, o := range v.p.order {
		if c.primary && o.primary && o.lasting && !o.ended && o.device == c.device {
			return o, nil
		}
	}
	c.session, err = v.p.tr.o.Session.Add(&session.Target{
		PID: v.p.pid, Device: int(c.device), SMs: int(uint32(w[wordSMs])), Passive: true,
		Alloc: func(size uint64) (uint64, nvattach.Memory, error) {
			if err := v.alloc(c, size, devices); err != nil {
				return 0, nil, err
			}
			c.mem.open(v)
			return c.mem.addr, c.mem, nil
		},
	})
	return nil, errors.Join(err, c.mem.close())
}

// isPrimary finds out whether a context is its device's primary one.
func (v *visit) isPrimary(c *context) (bool, error) {
	dev := uint64(c.device)
	if err := v.run(call("cuDevicePrimaryCtxGetState", dev, v.word(wordOut), v.word(wordCount))); err != nil {
		return false, err
	}
	w, err := v.words(numWords)
	if err != nil || uint32(w[wordCount]) == 0 {
		return false, err
	}
	if err := v.run(call("cuDevicePrimaryCtxRetain", v.word(wordContext), dev)); err != nil {
		return false, err
	}
	if w, err = v.words(numWords); err != nil {
		return false, err
	}
	return w[wordContext] == c.handle, v.run(call(v.release(), dev))
}

// alloc allocates memory for a context's maps, all zero. A library's kernels can
// run on any device, and outlive a primary context: its memory is the device's, and
// all others can reach it.
func (v *visit) alloc(c *context, size uint64, devices int) error {
	if c.primary {
		err := v.allocLasting(c, size, devices)
		if err == nil {
			c.lasting = true
			return v.zero(c)
		}
		v.p.tr.log.Debug("no memory of the device's own", "err", err)
	}
	alloc := call("cuMemAlloc_v2", v.word(wordOut), size)
	if devices > 1 {
		alloc = call("cuMemAllocManaged", v.word(wordOut), size, memAttachGlobal)
	}
	if err := v.run(alloc); err != nil {
		return err
	}
	w, err := v.words(numWords)
	if err != nil {
		return err
	}
	c.mem.addr, c.mem.size = w[wordOut], size
	return v.zero(c)
}

func (v *visit) zero(c *context) error {
	return v.run(call("cuMemsetD8Async", c.mem.addr, 0, c.mem.size, c.mem.stream), call("cuStreamSynchronize", c.mem.stream))
}

// allocLasting maps memory of the context's device for all devices; the program's
// own view of its peers does not show that.
func (v *visit) allocLasting(c *context, size uint64, devices int) error {
	access := make([]byte, 0, 12*devices)
	for d := range devices {
		if d != int(c.device) {
			if err := v.run(call("cuDeviceCanAccessPeer", v.word(wordOut), uint64(d), uint64(c.device))); err != nil {
				return err
			}
			w, err := v.words(numWords)
			if err != nil {
				return err
			}
			if uint32(w[wordOut]) == 0 {
				return fmt.Errorf("device %d can't reach the memory of device %d", d, c.device)
			}
		}
		for _, n := range []uint32{1, uint32(d), 3} { // CUmemAccessDesc: CU_MEM_LOCATION_TYPE_DEVICE, id, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
			access = binary.LittleEndian.AppendUint32(access, n)
		}
	}
	// CUmemAllocationProp: CU_MEM_ALLOCATION_TYPE_PINNED, no handle type, location, no more.
	var prop []byte
	for _, n := range []uint32{1, 0, 1, c.device, 0, 0, 0, 0} {
		prop = binary.LittleEndian.AppendUint32(prop, n)
	}
	at := v.stage()
	if err := v.poke(at, append(prop, access...)); err != nil {
		return err
	}
	if err := v.run(call("cuMemGetAllocationGranularity", v.word(wordOut), at, 1)); err != nil { // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
		return err
	}
	w, err := v.words(numWords)
	if err != nil {
		return err
	}
	unit := max(w[wordOut], 1)
	whole := (size + unit - 1) / unit * unit
	if err := v.run(call("cuMemCreate", v.word(wordHandle), whole, at, 0), call("cuMemAddressReserve", v.word(wordOut), whole, 0, 0, 0)); err != nil {
		return err
	}
	if w, err = v.words(numWords); err != nil {
		return err
	}
	c.mem.addr, c.mem.size = w[wordOut], size
	return v.run(call("cuMemMap", c.mem.addr, whole, 0, w[wordHandle], 0),
		call("cuMemSetAccess", c.mem.addr, whole, at+uint64(len(prop)), uint64(devices)))
}

// settleTime is how long a program's kernels are waited for at its end.
const settleTime = 5 * time.Second

// quiet waits until the context's kernels have ended, in streams that wait for
// the default stream, as all do that are not told otherwise. Where that takes too
// long, as with a kernel that never ends, the program ends as it would without us.
func (v *visit) quiet(c *context) bool {
	if err := v.run(call("cuEventCreate", v.word(wordOut), eventNoTiming)); err != nil {
		return false
	}
	w, err := v.words(numWords)
	if err != nil {
		return false
	}
	event := w[wordOut]
	defer func() { _ = v.run(try("cuEventDestroy_v2", event)) }()
	if err := v.run(call("cuEventRecord", event, 0)); err != nil {
		return false
	}
	for until, pause := time.Now().Add(settleTime), 50*time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := v.run(call("cuEventQuery", event))
		var de *DriverError
		if err == nil || !errors.As(err, &de) || de.Code != errNotReady {
			return err == nil
		}
		if time.Now().After(until) {
			v.p.tr.report("process %d ends while its kernels still run: its maps are as they were then", v.p.pid)
			return false
		}
		time.Sleep(pause)
	}
}

// keep reads the context's maps; end does so for the last time. last says that
// the process ends.
func (v *visit) keep(c *context, last bool) error {
	if err := v.enter(c); err != nil {
		return err
	}
	idle := last && v.quiet(c)
	c.mem.open(v)
	err := errors.Join(c.session.Keep(idle), c.mem.close())
	c.settled = idle && err == nil
	return errors.Join(err, v.leave(c))
}

// look serves the context's rings and intervals.
func (v *visit) look(c *context, now time.Time) error {
	if err := v.enter(c); err != nil {
		return err
	}
	c.mem.open(v)
	c.session.Look(now)
	c.looked = now
	return errors.Join(c.mem.close(), v.leave(c))
}
