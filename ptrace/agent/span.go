package agent

import (
	"fmt"

	"nvtrace/ptrace"
)

// Where all that is mapped for the agent in a program lies, but for arenas; see layout.go. What the simulated GPU
// maps behind that is the program's own to unmap.
const (
	roomBegin = sharedAddr
	roomEnd   = 0x552000000000
)

// Room implements [ptrace.Injector].
func (a *Agent) Room() []ptrace.Span {
	return []ptrace.Span{{First: baseAddr, End: endAddr}, {First: roomBegin, End: roomEnd}}
}

// Holds implements [ptrace.Injector].
func (a *Agent) Holds(t *ptrace.Task, addr, size uint64) bool {
	p := a.procs[t.PID]
	if p != nil && p.shares {
		p = p.host
	}
	if p == nil || !p.mapped {
		return false
	}
	end := addr + size
	if end < addr {
		end = ^uint64(0)
	}
	for _, s := range p.spans() {
		if addr < s.End && s.First < end {
			if !a.told {
				a.told = true
				a.o.Say(fmt.Sprintf("process %d wants to change what is mapped at %#x, where nvtrace has memory: the call failed with ENOMEM", p.PID, addr))
			}
			return true
		}
	}
	return false
}

// spans are where its memory is.
func (p *Process) spans() []ptrace.Span {
	list := []ptrace.Span{{First: baseAddr, End: endAddr}}
	if p.started {
		list = append(list, ptrace.Span{First: sharedAddr, End: ringAddr + maxSlots*ringSize})
	}
	if p.times {
		list = append(list, ptrace.Span{First: timesAddr, End: timesAddr + timesSize + maxSlots*timerSize})
	}
	if g := p.a.programs; g != nil && p.runs {
		list = append(list,
			ptrace.Span{First: programAddr, End: programAddr + codeSize},
			ptrace.Span{First: g.dataAddr, End: g.dataAddr + uint64(len(g.data))},
			ptrace.Span{First: retsAddr, End: retsAddr + (maxSlots+1)*retsSize},
			ptrace.Span{First: filesAddr, End: filesAddr + filesSize})
	}
	return list
}
