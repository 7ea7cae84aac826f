package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace/proc"
)

// notVerified is why a launch can't be run both ways.
type notVerified struct {
	reason string
	final  bool
}

func (e *notVerified) Error() string { return e.reason }

// no is a reason that holds for this launch, never one that holds for all launches of the kernel.
func no(format string, args ...any) error { return &notVerified{reason: fmt.Sprintf(format, args...)} }

// verify runs a launch, at whose function's entry the thread is, without programs and
// with them, and restores all memory. name is the kernel's, if the session has asked
// for it. It returns true if the program's own launch is not to be made, since one of
// the runs, which can't be ended, stands for it.
func (v *visit) verify(lc *launchCall, f *follow, name string) (skip bool) {
	ses := v.p.tr.o.Session
	var k *kernel
	err := v.relaxed(func() (err error) {
		k, err = v.identify(lc.argv[lc.kernel])
		return err
	})
	if err == nil && name == "" {
		if k.twin == 0 || !ses.Launched(k.name) {
			return false
		}
	}
	if k != nil && k.name != "" {
		name = k.name
	}
	var out session.Verification
	if err == nil {
		out, skip, err = v.tryBoth(lc, f, k)
	}
	var why *notVerified
	switch {
	case err == nil:
	case errors.As(err, &why):
		out = session.Verification{Reason: why.reason, Final: why.final}
	default:
		out = session.Verification{Reason: err.Error()}
	}
	if name != "" {
		ses.Verified(name, &out)
	}
	return skip
}

// tryBoth does that in the thread's context.
func (v *visit) tryBoth(lc *launchCall, f *follow, k *kernel) (out session.Verification, skip bool, err error) {
	if err := v.possible(lc, f, k); err != nil {
		return out, false, err
	}
	handle, err := v.ask("cuCtxGetCurrent")
	if err != nil {
		return out, false, err
	}
	c := v.p.contexts[handle]
	if c == nil || c.ended {
		return out, false, no("it was launched in a context that it was not loaded in")
	}
	// The maps of a device's contexts may have been made in another of them.
	here := &context{handle: handle, arch: c.arch, device: c.device, mem: &memory{addr: c.mem.addr, size: c.mem.size}}
	if err := v.enter(here); err != nil {
		return out, false, err
	}
	t := &trial{visit: v, lc: lc, c: here, k: k}
	out, err = t.run(f)
	if t.skip { // nothing can be freed while the kernel runs
		return out, true, errors.Join(err, v.run(try("cuCtxPopCurrent_v2", v.word(wordPopped)), try("cuThreadExchangeStreamCaptureMode", v.word(wordMode))))
	}
	t.free()
	if lerr := v.leave(here); lerr != nil {
		v.p.tr.log.Debug("after a trial", "err", lerr)
	}
	return out, false, err
}

// possible says why a launch can't be tried.
func (v *visit) possible(lc *launchCall, f *follow, k *kernel) error {
	have, _ := v.p.tr.o.Session.Kernel(k.name)
	switch {
	case f.tracked == 0 || f.tracked != v.p.driver.bias:
		return never("the program had allocated memory before it was followed")
	case have.Effect != "":
		return never("%s, which would happen several times", have.Effect)
	case f.shared != "":
		return never("the program has memory that others may change (%s)", f.shared)
	case f.capturing > 0:
		return no("it was launched while a stream was captured into a graph")
	}
	if n, err := v.ask("cuDeviceGetCount"); err != nil {
		return err
	} else if uint32(n) > 1 && len(v.p.order) > 1 {
		return no("the program uses several contexts")
	}
	all, err := v.ask("cuDeviceGetAttribute", attrPageable, uint64(v.p.order[0].device))
	if err != nil {
		return err
	}
	if len(f.pinned) == 0 && uint32(all) == 0 {
		return nil
	}
	words, err := v.params(lc, k)
	if err != nil {
		return err
	}
	var host []proc.Mapping
	if uint32(all) != 0 {
		host = writable(v.p.pid)
	}
	for _, w := range words {
		for base, size := range f.pinned {
			if w >= base && w < base+size {
				return never("it is given page-locked memory of the host, %#x, which the program's threads may use meanwhile", w)
			}
		}
		for _, m := range host {
			if w >= m.Start && w < m.End && !f.holds(w) {
				return never("it is given memory of the host, %#x, which the program's threads may use meanwhile", w)
			}
		}
	}
	return nil
}

const attrPageable = cuda.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS

// params reads what lies in a launch's parameters where pointers may be.
func (v *visit) params(lc *launchCall, k *kernel) ([]uint64, error) {
	if lc.argv[lc.params] == 0 || v.p.driver.syms["cuFuncGetParamInfo"] == 0 {
		return nil, no("its parameters can't be read, and they may point to memory of the host")
	}
	var words []uint64
	for i := range uint64(1024) {
		out := make([]byte, 16)
		err := v.exchange(out, v.word(wordOut), []step{call("cuFuncGetParamInfo", k.twin, i, v.word(wordOut), v.word(wordOut)+8)}, v.word(wordOut), out)
		if isDriverError(err) {
			break
		}
		if err != nil {
			return nil, err
		}
		size := min(binary.LittleEndian.Uint64(out[8:]), 1<<15)
		var at [8]byte
		if err := v.peek(lc.argv[lc.params]+8*i, at[:]); err != nil {
			return nil, err
		}
		b := make([]byte, size)
		if err := v.peek(binary.LittleEndian.Uint64(at[:]), b); err != nil {
			return nil, err
		}
		for ; len(b) >= 8; b = b[8:] {
			words = append(words, binary.LittleEndian.Uint64(b))
		}
	}
	return words, nil
}

// run tries the launch.
func (t *trial) run(f *follow) (out session.Verification, err error) {
	if err := t.prepare(f); err != nil {
		return out, err
	}
	if err := t.save(); err != nil {
		return out, err
	}
	// From here on memory is restored whatever comes.
	out, err = t.runs()
	if !t.skip {
		if rerr := t.restore(); rerr != nil && !t.failed {
			err = errors.Join(err, fmt.Errorf("MEMORY COULD NOT BE RESTORED: %w", rerr))
		}
	}
	return out, err
}

// prepare waits for all that is under way, and loads what compares.
func (t *trial) prepare(f *follow) error {
	if err := t.readLaunch(); err != nil {
		return err
	}
	for i, flags := range []uint64{eventNoTiming, 0, 0} {
		e, err := t.ask("cuEventCreate", flags)
		if err != nil {
			return err
		}
		if i == 0 {
			t.event = e
		} else {
			t.timers[i-1] = e
		}
	}
	if err := t.idle(); err != nil {
		return err
	}
	if err := t.load(); err != nil {
		return fmt.Errorf("no comparison: %w", err)
	}
	if err := t.planClearing(); err != nil {
		return fmt.Errorf("no shared memory to begin with: %w", err)
	}
	for _, a := range f.list() {
		t.regions = append(t.regions, region{what: fmt.Sprintf("allocation, %d bytes at %#x", a.size, a.base), base: a.base, size: a.size})
	}
	have, _ := t.p.tr.o.Session.Kernel(t.k.name)
	for _, name := range have.Globals {
		base, size, err := t.variable(t.k.module, name)
		if isDriverError(err) && have.Images > 1 {
			continue // of another image with a kernel of that name
		}
		if err != nil {
			return never("the variable %s of its module can't be reached: %v", name, err)
		}
		if _, known := f.device[base]; !known { // managed ones are both
			t.regions = append(t.regions, region{what: fmt.Sprintf("%s, %d bytes at %#x", name, size, base), base: base, size: size})
		}
	}
	if f.stale { // allocations of contexts that have ended
		t.regions = slices.DeleteFunc(t.regions, func(r region) bool {
			_, err := t.ask("cuPointerGetAttribute", attrMemoryType, r.base)
			return isDriverError(err)
		})
	}
	if t.k.aside != 0 && have.Original != nil {
		if err := t.findAsides(have.Original); err != nil {
			return err
		}
	}
	t.maps = region{what: "maps", base: t.c.mem.addr, size: t.c.mem.size}
	return nil
}

const attrMemoryType = cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE

// readLaunch reads in which stream the launch is, and how much shared memory it asks for.
func (t *trial) readLaunch() error {
	var err error
	if at := t.lc.stream; at != inConfig {
		t.dynamic, t.stream = uint32(t.lc.argv[at-1]), t.lc.argv[at]
	} else {
		var b [configStream + 8]byte
		err = t.peek(t.lc.argv[0], b[:])
		t.dynamic, t.stream = binary.LittleEndian.Uint32(b[configShared:]), binary.LittleEndian.Uint64(b[configStream:])
	}
	if t.stream == 0 && strings.HasSuffix(t.lc.fn, "_ptsz") {
		t.stream = streamPerThread
	}
	return err
}

const streamPerThread = 2 // CU_STREAM_PER_THREAD

// copyAlign is what copies begin at, with the rest that the original has.
const copyAlign = 256

// room allocates memory for copies of regions, all in one, and calls set with where.
func (t *trial) room(list []*region, set func(r *region, at uint64)) error {
	var size uint64
	for _, r := range list {
		size += (r.size+copyAlign-1)/copyAlign*copyAlign + 2*copyAlign
	}
	if size == 0 {
		return nil
	}
	var free [16]byte
	if err := t.exchange(free[:], t.word(wordOut), []step{call("cuMemGetInfo_v2", t.word(wordOut), t.word(wordOut)+8)}, t.word(wordOut), free[:]); err != nil {
		return err
	}
	if have := binary.LittleEndian.Uint64(free[:]); size > have/10*9 {
		return no("copies of memory take %d MiB, and %d MiB are free", size>>20, have>>20)
	}
	at, err := t.ask("cuMemAlloc_v2", size)
	if err != nil {
		return no("no memory for copies: %v", err)
	}
	t.scratch = append(t.scratch, at)
	for _, r := range list {
		at = (at+copyAlign-1)/copyAlign*copyAlign + r.base%copyAlign
		set(r, at)
		at += r.size
	}
	return nil
}

// all returns the regions, the maps last.
func (t *trial) all() []*region {
	var list []*region
	for i := range t.regions {
		list = append(list, &t.regions[i])
	}
	return append(list, &t.maps)
}

// batch is how many calls are made before others of the tracer's work.
const batch = 64

// copies copies memory on the GPU, and waits.
func (t *trial) copies(list []*region, to, from func(r *region) uint64) error {
	var steps []step
	for i, r := range list {
		steps = append(steps, call("cuMemcpyDtoDAsync_v2", to(r), from(r), r.size, t.c.mem.stream))
		if len(steps) == batch || i == len(list)-1 {
			if err := t.visit.run(append(steps, call("cuStreamSynchronize", t.c.mem.stream))...); err != nil {
				return err
			}
			steps = nil
		}
	}
	return nil
}

// save copies all memory.
func (t *trial) save() error {
	if err := t.room(t.all(), func(r *region, at uint64) { r.before = at }); err != nil {
		return err
	}
	var err error
	if t.out, err = t.ask("cuMemAlloc_v2", uint64(resultBytes*len(t.regions)+resultBytes)); err != nil {
		return no("no memory for copies: %v", err)
	}
	t.scratch = append(t.scratch, t.out)
	if err := t.copies(t.all(), before, base); err != nil {
		return no("memory can't be copied: %v", err)
	}
	return nil
}

// restore puts back what all memory held before the launch.
func (t *trial) restore() error { return t.copies(t.all(), base, before) }

// free gives back what the trial took on the GPU.
func (t *trial) free() {
	for _, at := range t.scratch {
		_ = t.visit.run(try("cuMemFree_v2", at))
	}
	for _, e := range []uint64{t.event, t.timers[0], t.timers[1]} {
		if e != 0 {
			_ = t.visit.run(try("cuEventDestroy_v2", e))
		}
	}
}

// endTime is how long a run may take.
const endTime = 10 * time.Second

// errNoEnd: it took longer.
var errNoEnd = fmt.Errorf("did not end within %v", endTime)

// launch runs the launch with a kernel, and waits for its end. How long it took is
// 0 if that was not asked for or could not be measured.
func (t *trial) launch(f uint64, timed bool) (took time.Duration, err error) {
	if c := t.clearing; c.blocks > 0 {
		if err := t.launchOwn(t.clear, c, t.stream, c.shared); err != nil {
			return 0, err
		}
	}
	steps := []step{t.lc.with(f)}
	if timed {
		if err := t.launchOwn(t.wait, grid{blocks: 1, threads: 1}, t.stream, uint64(leadTime)); err != nil {
			return 0, err
		}
		steps = []step{call("cuEventRecord", t.timers[0], t.stream), t.lc.with(f), call("cuEventRecord", t.timers[1], t.stream)}
	}
	if err := t.visit.run(append(steps, call("cuEventRecord", t.event, t.stream))...); err != nil {
		return 0, err
	}
	// The kernel began right behind the first event if that had to wait itself.
	if timed {
		err := t.visit.run(call("cuEventQuery", t.timers[0]))
		de, ok := errors.AsType[*DriverError](err)
		timed = ok && de.Code == errNotReady
	}
	if err := t.ended(); err != nil {
		return 0, err
	}
	if !timed {
		return 0, nil
	}
	ms, err := t.ask("cuEventElapsedTime", t.timers[0], t.timers[1])
	if err != nil {
		return 0, nil //nolint:nilerr // the time is not known
	}
	return time.Duration(float64(math.Float32frombits(uint32(ms))) * float64(time.Millisecond)), nil
}

// ended waits for the event.
func (t *trial) ended() error {
	for until, pause := time.Now().Add(endTime), 20*time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := t.visit.run(call("cuEventQuery", t.event))
		if de, ok := errors.AsType[*DriverError](err); !ok || de.Code != errNotReady {
			return err
		}
		if time.Now().After(until) {
			return errNoEnd
		}
		time.Sleep(pause)
	}
}

// idle waits until nothing is under way in the context. What takes long is found out
// first, in streams that wait for the default stream, as nearly all do: a call of
// the driver that waits can't be ended.
func (t *trial) idle() error {
	if err := t.visit.run(call("cuEventRecord", t.event, 0)); err != nil {
		return no("before it, %v", err)
	}
	if err := t.ended(); errors.Is(err, errNoEnd) {
		return no("what was launched before it %v", err)
	} else if err != nil {
		return no("before it, %v", err)
	}
	if err := t.visit.run(call("cuCtxSynchronize")); err != nil {
		return no("before it, %v", err)
	}
	return nil
}

// leadTime is what handing a kernel to the GPU may take.
const leadTime = 3 * time.Millisecond

// without runs the launch without programs.
func (t *trial) without(timed bool) (time.Duration, error) {
	if err := t.lend(); err != nil {
		return 0, err
	}
	took, err := t.launch(t.k.twin, timed)
	switch {
	case errors.Is(err, errNoEnd):
		t.skip = true
		return 0, never("it %v by itself; this launch ran without probes", err)
	case isDriverError(err):
		t.failed = true
		return 0, never("without probes it fails: %v", err)
	case err != nil:
		return 0, err
	}
	return took, t.takeBack()
}

// runs makes the runs, and compares.
func (t *trial) runs() (out session.Verification, err error) {
	if _, err := t.without(false); err != nil {
		return out, err
	}
	if err := t.keep(func(r *region, at uint64) { r.once = at }, once); err != nil {
		return out, err
	}
	if err := t.restore(); err != nil {
		return out, err
	}
	if out.Unprobed, err = t.without(true); err != nil {
		return out, err
	}
	if err := t.keepAgain(); err != nil {
		return out, err
	}
	if err := t.restore(); err != nil {
		return out, err
	}
	if failed, err := t.with(&out, false); failed || err != nil {
		return out, err
	}
	if err := t.judge(&out); err != nil {
		return out, err
	}
	if err := t.restore(); err != nil {
		return out, err
	}
	if _, err := t.with(&out, true); err != nil || out.Fails != "" {
		return out, err
	}
	return out, t.again(&out)
}

// The first launch of a short kernel is timed more often, in turns, and the shortest
// time of each kind is taken: what comes first finds the GPU in another state.
const (
	shortTime = 5 * time.Millisecond
	turns     = 3
)

// again makes further timed runs of both kinds.
func (t *trial) again(out *session.Verification) error {
	if out.Probed == 0 || out.Unprobed == 0 || max(out.Probed, out.Unprobed) > shortTime || t.p.tr.o.Session.Compared(t.k.name) > 0 {
		return nil
	}
	for range turns {
		if err := t.restore(); err != nil {
			return err
		}
		took, err := t.without(true)
		if err != nil {
			return err
		}
		if took > 0 {
			out.Unprobed = min(out.Unprobed, took)
		}
		if err := t.restore(); err != nil {
			return err
		}
		best := out.Probed
		if _, err := t.with(out, true); err != nil || out.Fails != "" {
			return err
		}
		if out.Probed == 0 || out.Probed > best {
			out.Probed = best
		}
	}
	return nil
}

// with runs the launch with programs.
func (t *trial) with(out *session.Verification, timed bool) (failed bool, err error) {
	took, err := t.launch(t.lc.argv[t.lc.kernel], timed)
	switch {
	case errors.Is(err, errNoEnd):
		t.skip = true
		out.Fails = "no end within " + endTime.String()
		return true, nil
	case isDriverError(err):
		t.failed = true
		out.Fails = err.Error()
		return true, nil
	}
	out.Probed = took
	return false, err
}
