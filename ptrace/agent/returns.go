package agent

import (
	"encoding/binary"

	"nvtrace/ptrace"
)

// Offsets in struct rets and struct ret.
const (
	retsDepth = 0
	retsList  = 256
	retSize   = 32
	mostRets  = (retsSize - retsList) / retSize
)

// ReturnOf returns what a return address is that lies at an address of a thread's stack: while it is
// seen when a function returns, one of the tracer's or of the agent's own is there. Others are
// returned as they are.
func (a *Agent) ReturnOf(t *ptrace.Task, at, addr uint64) uint64 {
	addr = t.ReturnOf(at, addr)
	if !a.returns(addr) {
		return addr // without a look at the process, which may put the agent to work there
	}
	if p, err := a.Process(t); err == nil {
		addr = p.returnOf(t.TID, at, addr)
	}
	return addr
}

// returns reports whether an address is one of the agent's to which watched functions return.
func (a *Agent) returns(addr uint64) bool {
	return a.blob != nil && (addr == a.blob.returnEntry || addr == a.blob.probeReturn)
}

// returnOf is ReturnOf of the agent's own, on the stack of a thread.
func (p *Process) returnOf(tid int, at, addr uint64) uint64 {
	for range 2 { // a function that is watched for both has one of ours in place of the other
		p.homes(tid, func(i int) bool {
			switch {
			case addr == p.a.blob.returnEntry:
				slot := uint64(slotAddr + i*slotSize)
				addr = p.listed(slot+slotDepth, slot+slotOpen, openSize, maxOpen, at, addr)
			case addr == p.a.blob.probeReturn && p.runs:
				rets := uint64(retsAddr + i*retsSize)
				addr = p.listed(rets+retsDepth, rets+retsList, retSize, mostRets, at, addr)
			}
			return !p.a.returns(addr)
		})
	}
	return addr
}

// homes calls f with the number of each thread's slot, that of a thread first whose stack it is
// about, until f returns true.
func (p *Process) homes(tid int, f func(i int) bool) {
	own := p.byTID[tid]
	if own != nil && f(own.home) {
		return
	}
	for i, r := range p.rings {
		if r != nil && r.home == i && (own == nil || i != own.home) && f(i) {
			return
		}
	}
}

// listed looks for a call in a list of those that have not returned: the number of them is at depth.
// They begin with where the return address lies, and what it was. It returns own if it is not there.
func (p *Process) listed(depth, list uint64, size, most int, at, own uint64) uint64 {
	e, ok := p.entry(depth, list, size, most, func(e []byte) bool {
		return binary.LittleEndian.Uint64(e) == at && binary.LittleEndian.Uint64(e[8:]) != own
	})
	if !ok {
		return own
	}
	return binary.LittleEndian.Uint64(e[8:])
}

// entry returns the last entry of such a list that is wanted.
func (p *Process) entry(depth, list uint64, size, most int, want func(e []byte) bool) ([]byte, bool) {
	n, err := p.read64(depth)
	if err != nil || n == 0 {
		return nil, false
	}
	b := make([]byte, int(min(n, uint64(most)))*size)
	if k, _ := p.mem.ReadAt(b, int64(list)); k < len(b) {
		return nil, false
	}
	for ; len(b) > 0; b = b[:len(b)-size] {
		if e := b[len(b)-size:]; want(e) {
			return e, true
		}
	}
	return nil, false
}
