package agent

import (
	"errors"
	"maps"

	"nvtrace/ptrace"
)

// fork returns the state of a child, whose memory is a copy of p's but for the
// rings. It records when it has something to record. The task has just been born, and has executed nothing
// in its memory: the gate is closed before it can. Where the kernel wipes that page itself
// (MADV_WIPEONFORK), that also holds for children that nobody sees being born.
func (p *Process) fork(t *ptrace.Task) *Process {
	c := &Process{
		a: p.a, PID: t.PID, mapped: true, arenas: cloneArenas(p.arenas), hooks: cloneHooks(p.hooks),
		onces: p.onces, sites: maps.Clone(p.sites), turn: p.turn, inherited: maps.Clone(p.inherited),
		number: p.number, manners: p.manners, runs: p.runs, runsErr: p.runsErr, onCalls: p.onCalls, times: p.times, driver: p.driver,
		scaled: p.scaled, inner: p.inner, ownStack: p.ownStack,
	}
	if c.inherited == nil {
		c.inherited = make(map[uint64]int)
	}
	for _, r := range p.rings {
		if r != nil && !r.dead {
			c.inherited[r.tp] = r.home
		}
	}
	err := c.open()
	if err == nil {
		err = errors.Join(c.write64(gateAddr, 0), c.write64(substAddr, 0))
	}
	if err != nil {
		// It can't run with the gate open: its rings are not there. But it has just
		// been stopped in its birth; if its memory is out of reach, it is dead.
		p.a.o.Logger.Warn("agent of a forked child not closed", "pid", t.PID, "err", err)
	}
	return c
}

// cloneArenas copies the arenas of a process for one that is forked from it.
func cloneArenas(list []*arena) []*arena {
	out := make([]*arena, len(list))
	for i, a := range list {
		c := *a
		out[i] = &c
	}
	return out
}

// cloneHooks copies the hooks of a process for one that is forked from it.
func cloneHooks(list []*hookSite) []*hookSite {
	out := make([]*hookSite, len(list))
	for i, s := range list {
		c := *s
		out[i] = &c
	}
	return out
}
