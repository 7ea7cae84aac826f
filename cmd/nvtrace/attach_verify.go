package main

import (
	"errors"
	"fmt"
	"strconv"

	"nvtrace/nvattach"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
)

// verifyFlag is --verify: alone the first launch of each kernel, with a number each
// so many launches.
type verifyFlag int

// String implements flag.Value.
func (v *verifyFlag) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (v *verifyFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (v *verifyFlag) Set(s string) error {
	switch s {
	case "true":
		*v = session.VerifyFirst
	case "false":
		*v = 0
	default:
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return errors.New("want how many launches there are from one that is verified to the next")
		}
		*v = verifyFlag(n)
	}
	return nil
}

// nameOfMaps is what allocations of maps are called on the simulated GPU.
const nameOfMaps = "maps of probes"

// launch is the simulated GPU's hook for kernels: it runs those that are due both
// ways, on copies of what they look at.
func (p *simProbes) launch(_ *sim.Process, l *sim.Launch) {
	p.session.Ran(l.Kernel)
	p.session.CountLaunches(l.Kernel, 1)
	if !p.session.Verify() || !p.session.HasTwin(l.Kernel) || !p.session.Launched(l.Kernel) {
		return
	}
	p.session.Verified(l.Kernel, tryBoth(l))
}

func tryBoth(l *sim.Launch) *session.Verification {
	once, err := l.Try(nvattach.TwinName(l.Kernel))
	var again *sim.Outcome
	if err == nil {
		again, err = l.Try(nvattach.TwinName(l.Kernel))
	}
	if err != nil {
		return &session.Verification{Reason: fmt.Sprintf("alone and without probes: %v", err), Final: errors.Is(err, sim.ErrNoEnd)}
	}
	var c session.Comparison
	probed, err := l.Try(l.Kernel)
	if err != nil {
		c.Fails = err.Error()
		return &c.Verification
	}
	c.UnprobedInsns, c.ProbedInsns = once.Stats.ThreadInstructions, probed.Stats.ThreadInstructions
	for _, r := range l.Touched() {
		if r.Name == nameOfMaps {
			continue
		}
		after := func(o *sim.Outcome) []byte {
			if b := o.Data(r.Base); b != nil {
				return b
			}
			return r.Data
		}
		c.Add(fmt.Sprintf("%s, %d bytes at %#x", r.Name, len(r.Data), r.Base), r.Base, after(once), after(again), after(probed))
	}
	return &c.Verification
}

// instead is the simulated GPU's hook for kernels that take too many registers.
func (p *simProbes) instead(_ *sim.Process, kernel string) string {
	if !p.session.HasTwin(kernel) {
		return ""
	}
	p.session.RanUnprobed(kernel, session.TooManyRegisters)
	return nvattach.TwinName(kernel)
}
