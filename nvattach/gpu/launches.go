package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"nvtrace/nvattach"
	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
)

// Offsets in a CUlaunchConfig (cuda.h).
const (
	configShared = 24 // sharedMemBytes
	configStream = 32 // hStream
)

// readCall reads the arguments of a call at whose entry the task is.
func readCall(t *ptrace.Task, fn string, l launcher) (*launchCall, error) {
	r, err := t.Regs()
	if err != nil {
		return nil, err
	}
	c := &launchCall{launcher: l, fn: fn, addr: r.IP(), sp: r.SP()}
	for i := range min(l.args, 6) {
		c.argv = append(c.argv, r.Arg(i))
	}
	if l.args > 6 {
		b := make([]byte, 8*(l.args-6))
		if _, err := t.ReadMem(c.sp+8, b); err != nil {
			return nil, err
		}
		for i := 0; i < len(b); i += 8 {
			c.argv = append(c.argv, binary.LittleEndian.Uint64(b[i:]))
		}
	}
	return c, nil
}

// with is the call with another kernel.
func (c *launchCall) with(kernel uint64) step {
	args := append([]uint64(nil), c.argv...)
	args[c.kernel] = kernel
	return call(c.fn, args...)
}

// atUnload forgets what the driver has said: handles may mean something else now.
// context says that a context may end.
func (tr *Tracer) atUnload(t *ptrace.Task, context bool) {
	q := tr.process(t)
	if q == nil || tr.calling(t) {
		return
	}
	q.known.Lock()
	clear(q.kernels)
	if context {
		clear(q.comparers)
		clear(q.asides)
	}
	q.known.Unlock()
	tr.follow(t).stale = true
}

// atLaunch is called at the entry of a function that launches a kernel. There are two reasons to look:
// a launch may be due to be tried (arrive), and one may come back refused for want of registers or shared
// memory, which is then made again without programs (refused).
func (tr *Tracer) atLaunch(t *ptrace.Task, fn string, l launcher) {
	p, th := tr.process(t), tr.thread(t.TID)
	if p == nil || p.driver == nil || th == nil || t.Calling() || th.visiting || !tr.isActive(p) {
		return
	}
	lc, err := readCall(t, fn, l)
	if err != nil {
		return
	}
	f := tr.follow(t)
	returned := t.OnReturn(func(t *ptrace.Task, ret uint64) {
		f.leaves(t)
		switch {
		case tr.process(t) != p:
		case int32(ret) == errOutOfResources:
			p.refused(t, lc, session.TooManyRegisters)
		case int32(ret) == errInvalidValue:
			p.refused(t, lc, session.TooMuchShared)
		}
	}) == nil
	if tr.o.Session.Verify() {
		p.arrive(t, th, lc, f, returned)
	}
}

// arrive lets a thread launch, when it may, after the launch was run both ways, if it
// is one for that.
func (p *process) arrive(t *ptrace.Task, th *thread, lc *launchCall, f *follow, returned bool) {
	enters := func(t *ptrace.Task) {
		if returned {
			f.enters(t)
		}
	}
	if f.trial != nil {
		f.gate(t, func(t *ptrace.Task) { p.arrive(t, th, lc, f, returned) })
		return
	}
	name, due := p.due(lc)
	if !due {
		enters(t)
		return
	}
	// No other thread may change the GPU's memory meanwhile.
	t.Hold()
	f.trial = th
	begin := func() {
		p.visit(th, func(v *visit) func(*ptrace.Task) {
			skip := v.verify(lc, f, name)
			return func(t *ptrace.Task) {
				if skip {
					p.skip(t, lc)
				}
				enters(t) // the return is seen in any case
				f.open(th)
			}
		})
	}
	if f.others(th) == 0 {
		begin()
		return
	}
	f.begin = begin
	time.AfterFunc(gateTime, func() {
		t.Post(func() {
			if f.begin == nil || f.trial != th {
				return
			}
			f.begin = nil
			if name != "" {
				p.tr.o.Session.Verified(name, &session.Verification{Reason: "other threads' calls of the driver did not return"})
			}
			t.Release(func(t *ptrace.Task) {
				enters(t)
				f.open(th)
			})
		})
	})
}

// gateTime is how long a thread that is about to try a launch waits for others to
// return from the driver. Tests, whose GPU is a simulated one on busy processors, wait longer.
var gateTime = 2 * time.Second

// skip has the function at whose entry a thread is return success at once: its return address is on
// top of the stack, where the call has put it.
func (p *process) skip(t *ptrace.Task, lc *launchCall) {
	r, err := t.Regs()
	if err != nil {
		return
	}
	ret, err := readWord(t, lc.sp)
	if err != nil {
		return
	}
	r.SetIP(ret)
	r.SetSP(lc.sp + 8)
	r.SetRet(0)
	if err := t.SetRegs(r); err != nil {
		p.tr.log.Debug("skip", "err", err)
	}
}

// due says whether a launch is to be looked at further: of a kernel that is not known
// yet, whose name is "", or at the session's wish.
func (p *process) due(lc *launchCall) (name string, due bool) {
	p.known.Lock()
	k := p.kernels[lc.argv[lc.kernel]]
	p.known.Unlock()
	if k == nil {
		return "", true
	}
	return k.name, k.twin != 0 && p.tr.o.Session.Launched(k.name)
}

// identify asks the driver about a kernel.
func (v *visit) identify(handle uint64) (*kernel, error) {
	v.p.known.Lock()
	k := v.p.kernels[handle]
	v.p.known.Unlock()
	if k != nil {
		return k, nil
	}
	k = new(kernel)
	names, function := []string{"cuFuncGetName", "cuKernelGetName"}, true
	var err error
	if k.module, err = v.ask("cuFuncGetModule", handle); err != nil {
		if !isDriverError(err) {
			return nil, err
		}
		function = false
		names[0], names[1] = names[1], names[0]
	}
	for _, name := range names {
		if v.p.driver.syms[name] == 0 {
			continue
		}
		at, err := v.ask(name, handle)
		if err != nil && !isDriverError(err) {
			return nil, err
		}
		if err == nil && at != 0 {
			if k.name, err = v.text(at); err != nil {
				return nil, err
			}
			break
		}
	}
	if k.name != "" {
		if err := v.findTwin(k, handle, function); err != nil {
			return nil, err
		}
	}
	v.p.known.Lock()
	defer v.p.known.Unlock()
	v.p.kernels[handle] = k
	return k, nil
}

// findTwin finds the copy of a kernel without programs. It is in the same module, by a name of its own, or,
// of machine code, in a module of its own that is loaded for it now. What the program has set for
// the kernel is set for the copy.
func (v *visit) findTwin(k *kernel, handle uint64, function bool) error {
	have, ok := v.p.tr.o.Session.Kernel(k.name)
	if !ok || !have.Twin {
		return nil
	}
	original := handle
	name, err := nvattach.TwinName(k.name), error(nil)
	if have.Original != nil {
		name, k.variables = k.name, have.Original.HasVariables()
		if k.aside, err = v.loadAside(have.Original); err != nil {
			return v.noTwin(k, err)
		}
	}
	if err := v.poke(v.stage(), append([]byte(name), 0)); err != nil {
		return err
	}
	switch {
	case k.aside != 0:
		if k.twin, err = v.ask("cuModuleGetFunction", k.aside, v.stage()); err == nil && !function {
			if original, err = v.ask("cuKernelGetFunction", handle); err == nil {
				k.module, err = v.ask("cuFuncGetModule", original)
			}
		}
	case function:
		k.twin, err = v.ask("cuModuleGetFunction", k.module, v.stage())
	default:
		var library, twin uint64
		if library, err = v.ask("cuKernelGetLibrary", handle); err == nil {
			twin, err = v.ask("cuLibraryGetKernel", library, v.stage())
		}
		if err == nil {
			k.twin, err = v.ask("cuKernelGetFunction", twin)
		}
		if err == nil {
			original, err = v.ask("cuKernelGetFunction", handle)
		}
		if err == nil {
			k.module, err = v.ask("cuFuncGetModule", original)
		}
	}
	if err != nil {
		return v.noTwin(k, err)
	}
	// Shared memory and clusters, as the program has set them.
	for _, attr := range []uint64{
		cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		cuda.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
		cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
		cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
	} {
		got, err := v.ask("cuFuncGetAttribute", attr, original)
		if err == nil && attr == funcMaxDynamic {
			have, herr := v.ask("cuFuncGetAttribute", attr, k.twin)
			if herr == nil && int32(have) > int32(got) { // set before, see atAttribute
				continue
			}
		}
		if err == nil && (got != 0 || attr == funcMaxDynamic) {
			err = v.run(try("cuFuncSetAttribute", k.twin, attr, got))
		}
		if err != nil && !isDriverError(err) {
			return err
		}
	}
	return nil
}

// noTwin leaves a kernel without a copy if it was the driver that would not have one.
func (v *visit) noTwin(k *kernel, err error) error {
	if k.twin = 0; !isDriverError(err) {
		return err
	}
	v.p.tr.log.Debug("no copy without programs", "kernel", k.name, "err", err)
	v.p.tr.o.Session.Verified(k.name, &session.Verification{Reason: fmt.Sprintf("there is no kernel without probes: %v", err), Final: true})
	return nil
}

// relaxed runs f so that what it does is not forbidden where a stream is captured, and
// does not end that.
func (v *visit) relaxed(f func() error) error {
	if err := v.room(); err != nil {
		return err
	}
	in := binary.LittleEndian.AppendUint64(nil, captureRelaxed)
	exchange := try("cuThreadExchangeStreamCaptureMode", v.word(wordRelaxed))
	if err := v.exchange(in, v.word(wordRelaxed), []step{exchange}, 0, nil); err != nil {
		return err
	}
	return errors.Join(f(), v.run(exchange))
}

// text reads a string of the program's.
func (v *visit) text(at uint64) (s string, err error) {
	err = v.do(func(t *ptrace.Task, done func(error)) {
		s, err = t.ReadString(at, 1<<14)
		done(err)
	})
	return strings.TrimRight(s, "\x00"), err
}

// isDriverError reports whether it was the driver that refused something; other errors say that the
// thread, or the process, is no longer there.
func isDriverError(err error) bool {
	_, ok := errors.AsType[*DriverError](err)
	return ok
}

// refused launches a kernel without programs that the driver has refused with them, for a reason that
// it may have had. The thread has just returned.
func (p *process) refused(t *ptrace.Task, lc *launchCall, why string) {
	p.again(t, lc.argv[lc.kernel], func(v *visit, k *kernel) error {
		err := v.run(lc.with(k.twin))
		if err == nil {
			v.p.tr.o.Session.RanUnprobed(k.name, why)
		}
		return err
	})
}

// again does for the copy of a kernel without programs what the driver has refused for the kernel. If
// that is possible, the program is told that there was no error. The thread has just returned.
func (p *process) again(t *ptrace.Task, handle uint64, do func(v *visit, k *kernel) error) {
	th := p.tr.thread(t.TID)
	if th == nil || t.Calling() || th.visiting {
		return
	}
	t.Hold()
	p.visit(th, func(v *visit) func(*ptrace.Task) {
		var k *kernel
		err := v.relaxed(func() (err error) {
			k, err = v.identify(handle)
			return err
		})
		if err != nil || k.twin == 0 || k.variables { // which are not the program's
			return nil
		}
		if err := do(v, k); err != nil {
			return nil // the program is told what it was told
		}
		return func(t *ptrace.Task) {
			r, err := t.Regs()
			if err == nil {
				r.SetRet(0)
				err = t.SetRegs(r)
			}
			if err != nil {
				p.tr.log.Debug("result of a launch", "err", err)
			}
		}
	})
}

// Results of launches: what CUDA calls CUDA_ERROR_INVALID_VALUE and
// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES.
const (
	errInvalidValue   = 1
	errOutOfResources = 701
)

// attributeSetter is a function of the driver that sets an attribute of a kernel: which arguments
// are what.
type attributeSetter struct{ kernel, attr, value int }

func attributeSetters() map[string]attributeSetter {
	return map[string]attributeSetter{"cuFuncSetAttribute": {0, 1, 2}, "cuKernelSetAttribute": {kernel: 2, attr: 0, value: 1}}
}

// atAttribute is called at the entry of such a function. What a program asks for of shared memory may be
// there for the kernel's copy without programs only, which is launched then.
func (tr *Tracer) atAttribute(t *ptrace.Task, at attributeSetter) {
	p := tr.process(t)
	if p == nil || p.driver == nil || tr.calling(t) || !tr.isActive(p) {
		return
	}
	r, err := t.Regs()
	if err != nil || uint32(r.Arg(at.attr)) != funcMaxDynamic {
		return
	}
	handle, value := r.Arg(at.kernel), r.Arg(at.value)
	err = t.OnReturn(func(t *ptrace.Task, ret uint64) {
		if int32(ret) != errInvalidValue || tr.process(t) != p {
			return
		}
		p.again(t, handle, func(v *visit, k *kernel) error {
			return v.run(call("cuFuncSetAttribute", k.twin, funcMaxDynamic, value))
		})
	})
	if err != nil {
		tr.log.Debug("an attribute's result is not seen", "err", err)
	}
}
