package agent

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// Sizes of an arena, and where it holds what.
const (
	arenaSize  = 64 << 10
	arenaCall  = 0  // address of call_entry
	arenaHook  = 8  // of hook_entry
	arenaStop  = 16 // of break_entry
	arenaProbe = 24 // of probe_entry
	arenaWatch = 32 // of probe_watch
	arenaHead  = 48
)

// reach is how far a jump goes, with a margin for what is near its ends.
const reach = 1<<31 - 1<<20

// reaches says whether jumps between the arena and an address are possible.
func (a *arena) reaches(addr uint64) bool {
	return addr < a.base+reach && a.base < addr+reach
}

// near returns room for n bytes of code within reach of addr.
func (p *Process) near(t *ptrace.Task, addr uint64, n int) (at uint64, from *arena, err error) {
	for _, a := range p.arenas {
		if a.reaches(addr) && a.used+uint64(n) <= arenaSize {
			return a.base + a.used, a, nil
		}
	}
	a, err := p.newArena(t, addr)
	if err != nil {
		return 0, nil, err
	}
	p.arenas = append(p.arenas, a)
	return a.base + a.used, a, nil
}

// take marks n bytes of an arena as used.
func (a *arena) take(n int) { a.used = (a.used + uint64(n) + 15) &^ 15 }

// newArena maps one.
func (p *Process) newArena(t *ptrace.Task, addr uint64) (*arena, error) {
	base, err := gap(p.PID, addr)
	if err != nil {
		return nil, err
	}
	_, err = call(t, "mmap", base, unix.SYS_MMAP, base, arenaSize, unix.PROT_READ|unix.PROT_EXEC,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, noFD, 0)
	if err != nil {
		return nil, err
	}
	a := &arena{base: base, used: arenaHead}
	for at, entry := range map[uint64]uint64{
		arenaCall: p.a.blob.callEntry, arenaHook: p.a.blob.hookEntry, arenaStop: p.a.blob.breakEntry,
		arenaProbe: p.a.blob.probeEntry, arenaWatch: p.a.blob.probeWatch,
	} {
		if err := p.writeCode(t, base+at, binary.LittleEndian.AppendUint64(nil, entry)); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// gap finds the free memory for an arena that is nearest to addr.
func gap(pid int, addr uint64) (uint64, error) {
	maps, err := proc.Maps(pid)
	if err != nil {
		return 0, err
	}
	best, end := uint64(0), uint64(1<<20) // nothing in the first MiB: some kernels keep it free
	try := func(at uint64) {
		if at+reach > addr && addr+reach > at && (best == 0 || distance(at, addr) < distance(best, addr)) {
			best = at
		}
	}
	for i := range maps {
		m := &maps[i]
		if m.Start >= 1<<47 {
			break
		}
		// The stack grows down, the heap up: not next to these.
		if m.Start >= end+2*arenaSize {
			if m.Path != "[stack]" {
				try(m.Start - arenaSize)
			}
			if end > 1<<20 {
				try(end + arenaSize)
			}
		}
		end = m.End
		if m.Path == "[heap]" {
			end += 1 << 30
		}
	}
	if best == 0 {
		return 0, errors.New("no free memory near the code")
	}
	return best, nil
}

// distance is how far two addresses lie apart.
func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }
