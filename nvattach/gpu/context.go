package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	lost    error // why they could not be
	primary bool  // it is its device's primary context
	looked  time.Time
}

// end ends the session's context; the maps were kept, or are lost.
func (c *context) end(why error) {
	c.ended = true
	if c.lost != nil {
		why = c.lost
	}
	c.session.Abandon(why)
}

// over finds out whether a context has ended without a word, as a primary one
// does that the program has released for the last time.
func (v *visit) over(c *context) bool {
	if !c.primary {
		return false
	}
	err := v.run(call("cuDevicePrimaryCtxGetState", uint64(c.device), v.word(wordOut), v.word(wordCount)))
	if err != nil {
		return false
	}
	w, err := v.words(numWords)
	if err != nil || uint32(w[wordCount]) != 0 {
		return false
	}
	c.end(errNoVisit)
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
// under way; leave undoes it.
func (v *visit) enter(handle uint64) error {
	if err := v.room(); err != nil {
		return err
	}
	return v.exchange(binary.LittleEndian.AppendUint64(nil, captureRelaxed), v.word(wordMode), []step{
		try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)), call("cuCtxPushCurrent_v2", handle),
	}, 0, nil)
}

func (v *visit) leave() error {
	return v.run(call("cuCtxPopCurrent_v2", v.word(wordPopped)), try("cuThreadExchangeStreamCaptureMode", v.word(wordMode)))
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

// newContext gives a context its maps.
func (v *visit) newContext(handle uint64) (*context, error) {
	c := &context{handle: handle, looked: time.Now()}
	if err := v.enter(handle); err != nil {
		return nil, err
	}
	err := v.equip(c)
	return c, errors.Join(err, v.leave())
}

func (v *visit) equip(c *context) error {
	if err := v.run(call("cuCtxGetDevice", v.word(wordDevice)), call("cuDeviceGetCount", v.word(wordCount))); err != nil {
		return err
	}
	w, err := v.words(numWords)
	if err != nil {
		return err
	}
	c.device = uint32(w[wordDevice])
	dev, devices := uint64(c.device), int(uint32(w[wordCount]))
	if err := v.run(call("cuDeviceGetAttribute", v.word(wordMajor), attrMajor, dev), call("cuDeviceGetAttribute", v.word(wordMinor), attrMinor, dev),
		call("cuDeviceGetAttribute", v.word(wordSMs), attrSMs, dev), call("cuStreamCreate", v.word(wordOut), streamNonBlocking)); err != nil {
		return err
	}
	if w, err = v.words(numWords); err != nil {
		return err
	}
	c.arch = fatbin.Arch{SM: uint32(w[wordMajor])*10 + uint32(w[wordMinor])}
	if w[wordMajor] >= 9 {
		c.arch.Suffix = 'a'
	}
	c.mem = &memory{stream: w[wordOut]}
	if c.primary, err = v.isPrimary(c); err != nil {
		return err
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
	return errors.Join(err, c.mem.close())
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
	release := "cuDevicePrimaryCtxRelease_v2"
	if v.p.driver.syms[release] == 0 {
		release = "cuDevicePrimaryCtxRelease"
	}
	return w[wordContext] == c.handle, v.run(call(release, dev))
}

// alloc allocates memory for a context's maps, all zero. Where there are several
// devices, all can reach it: a library's kernels run on any of them.
func (v *visit) alloc(c *context, size uint64, devices int) error {
	steps := []step{call("cuMemAlloc_v2", v.word(wordOut), size)}
	if devices > 1 {
		if err := v.allocShared(c, size, devices); err == nil {
			return v.zero(c)
		}
		steps = []step{call("cuMemAllocManaged", v.word(wordOut), size, memAttachGlobal)}
	}
	if err := v.run(steps...); err != nil {
		return err
	}
	w, err := v.words(numWords)
	c.mem.addr, c.mem.size = w[wordOut], size
	return errors.Join(err, v.zero(c))
}

func (v *visit) zero(c *context) error {
	return v.run(call("cuMemsetD8Async", c.mem.addr, 0, c.mem.size, c.mem.stream), call("cuStreamSynchronize", c.mem.stream))
}

// allocShared maps memory of the context's device for all devices, which the
// program's own view of its peers does not show.
func (v *visit) allocShared(c *context, size uint64, devices int) error {
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
	if err := v.enter(c.handle); err != nil {
		return err
	}
	idle := last && v.quiet(c)
	c.mem.open(v)
	err := c.session.Keep(idle)
	return errors.Join(err, c.mem.close(), v.leave())
}

// look serves the context's rings and intervals.
func (v *visit) look(c *context, now time.Time) error {
	if err := v.enter(c.handle); err != nil {
		return err
	}
	c.mem.open(v)
	c.session.Look(now)
	c.looked = now
	return errors.Join(c.mem.close(), v.leave())
}
