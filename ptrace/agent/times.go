package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// list has them in the order of struct times (layout.h), which is that of the agent's own pointers.
func (d *Driver) list() []uint64 {
	return []uint64{
		d.CtxGetCurrent, d.StreamIsCapturing, d.ThreadExchangeStreamCaptureMode, d.EventCreate, d.EventDestroy, d.EventRecord,
		d.EventQuery, d.EventElapsedTime, d.StreamCreate, d.PrimaryCtxState,
	}
}

// Time has what hooked calls with Hook.Work put on the GPU timed from now on, by an event of the
// driver d behind it. t must be stopped as [ptrace.Task.Syscall] wants. The agent calls the
// driver where the program does, on its threads and stacks, and never waits for the GPU: a time
// is noticed at a later call of a function with Work, or at the return of one that Waits. The
// program sees none of that, but that kernels which could begin before the one before them has
// ended (programmatic dependent launches) no longer do.
func (p *Process) Time(t *ptrace.Task, d *Driver) error {
	if !p.started {
		return fmt.Errorf("%w: process %d has no agent", ErrUnsupported, p.PID)
	}
	if !cpu.X86.HasOSXSAVE {
		return fmt.Errorf("%w: the processor has no XSAVE", ErrUnsupported)
	}
	if slices.Contains(d.list(), 0) {
		return errors.New("the driver lacks functions for events")
	}
	if !p.times {
		if err := p.mapTimes(t); err != nil {
			return fmt.Errorf("memory for times: %w", err)
		}
	}
	if err := p.write64(confAddr+confTimes, 1); err != nil {
		return err
	}
	p.driver = *d
	return p.writeDriver()
}

// Timing reports whether a thread that stands still is in a function of the driver that the agent calls
// for that.
func (p *Process) Timing(t *ptrace.Task) bool {
	if !p.times {
		return false
	}
	for _, r := range p.rings {
		if r == nil || r.dead || r.tid != t.TID {
			continue
		}
		inside, err := p.read64(timesAddr + timesSize + uint64(r.slot)*timerSize)
		if err != nil || inside == 0 {
			return false
		}
		regs, err := t.Regs()
		return err == nil && regs.SP() < inside
	}
	return false
}

// mapTimes maps the memory of struct times. That of another supervisor stays, as a thread may be using it.
func (p *Process) mapTimes(t *ptrace.Task) error {
	const size = timesSize + maxSlots*timerSize
	left, err := p.left(timesAddr, size)
	if err != nil {
		return err
	}
	if left == 0 {
		_, err := call(t, "mmap", timesAddr, unix.SYS_MMAP, timesAddr, size, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE, noFD, 0)
		if err != nil {
			return err
		}
	}
	// A forked child must not use its parent's events. The other supervisor may not have got that far.
	if _, err := call(t, "madvise", 0, unix.SYS_MADVISE, timesAddr, size, unix.MADV_WIPEONFORK); err != nil {
		if left == 0 {
			_, _ = t.Syscall(unix.SYS_MUNMAP, timesAddr, size)
		}
		return err
	}
	_, _ = t.Syscall(unix.SYS_MADVISE, timesAddr, size, unix.MADV_DONTDUMP)
	p.times = true
	return nil
}

// writeDriver has the agent call the driver.
func (p *Process) writeDriver() error {
	var b []byte
	for _, addr := range p.driver.list() {
		b = binary.LittleEndian.AppendUint64(b, addr)
	}
	if err := p.write(timesAddr+timesDriver, b); err != nil {
		return err
	}
	return p.write64(timesAddr+timesOn, 1)
}

// untimed adds up what was not timed in a process that is ending.
func (p *Process) untimed() {
	if !p.times || p.shared == nil {
		return
	}
	u := &p.a.stats.Untimed
	for i, n := range []*uint64{&u.Captured, &u.Full, &u.Failed, &u.Pending} {
		*n += load64(p.shared, sharedUntimed+8*i)
	}
}
