package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
)

// The instructions of a system call in libc: `mov $nr,%eax`, as a rule at once
// followed by `syscall`.
func movNumber(nr uint64) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0xb8}, uint32(nr))
}

// between is how many bytes of other instructions may lie between the two.
const between = 24

// maxSites bounds the system call instructions that are looked at in a process:
// more would be code that is made as it runs.
const maxSites = 1024

// Passable says whether the agent knows what to do with system calls of a number:
// ioctls, which it records, calls that make, end and map descriptors, which
// it makes without a stop if they are about no device (see Options.Paths and
// Process.SetHeld), and those of SetCallProbes.
func (a *Agent) Passable(nr uint64) bool {
	if a.calledAt(nr) != nil {
		return true
	}
	switch nr {
	case unix.SYS_IOCTL, unix.SYS_CLOSE, unix.SYS_MMAP, unix.SYS_DUP, sysDup2, unix.SYS_DUP3, unix.SYS_FCNTL:
		return true
	case unix.SYS_OPENAT, sysOpen:
		return len(a.paths) > 0
	}
	return false
}

// Numbers of system calls that only some architectures have; the agent is for
// amd64 only.
const (
	sysOpen = 2
	sysDup2 = 33
)

// PatchSite makes system calls of the number nr that come from an instruction
// take the agent's way from now on. t is stopped at one, ip is its instruction
// pointer. Only the `mov` is replaced: a thread that is behind it makes its call as before.
// Where the agent is at work, so do those of the other sites in libraries of
// Agent.SetImages.
// Code that does not look like libc's is left alone, silently.
func (p *Process) PatchSite(t *ptrace.Task, ip, nr uint64) {
	if !p.mapped || !p.passable(nr) || p.a.Owns(ip) || len(p.sites) >= maxSites {
		return
	}
	if _, known := p.sites[ip]; known {
		return
	}
	if p.sites == nil {
		p.sites = make(map[uint64]bool)
	}
	list := []place{{ip, nr}}
	if p.started {
		list = append(list, p.others(t, ip)...)
	}
	p.patchSites(t, list)
}

// place is a system call instruction: the address behind it, and the number of the
// call.
type place struct{ ip, nr uint64 }

// patchSites does PatchSite's work. The other threads are stopped once.
func (p *Process) patchSites(t *ptrace.Task, list []place) {
	type patch struct {
		place
		mov, room uint64
	}
	var ready []patch
	failed := func(s place, err error) {
		p.sites[s.ip] = false
		p.a.o.Logger.Debug("system call not rerouted", "pid", p.PID, "nr", s.nr, "ip", s.ip, "err", err)
	}
	for _, s := range list {
		if mov, room, err := p.makeStub(t, s.ip, s.nr); err != nil {
			failed(s, err)
		} else {
			ready = append(ready, patch{s, mov, room})
		}
	}
	if len(ready) == 0 {
		return
	}
	_, resume, err := t.StopWorld()
	if err == nil {
		defer resume()
	}
	for _, s := range ready {
		if err == nil {
			err = t.PokeText(s.mov, jumpTo(s.mov, s.room))
		}
		if err != nil {
			failed(s.place, err)
			continue
		}
		p.sites[s.ip] = true
		p.a.stats.Sites++
	}
}

// makeStub writes what the call at ip is to jump to, at room, from the instruction at
// mov.
func (p *Process) makeStub(t *ptrace.Task, ip, nr uint64) (mov, room uint64, err error) {
	if err := p.allowed(t, ip, nr); err != nil {
		return 0, 0, err
	}
	var code [len5 + between + 2]byte
	from := ip - uint64(len(code))
	if n, _ := t.ReadText(from, code[:]); n < len(code) {
		return 0, 0, fmt.Errorf("%d bytes of code in front of %#x", n, ip)
	}
	at, err := findMov(code[:], movNumber(nr))
	if err != nil && nr == 0 {
		at, err = p.findXor(t, ip, code[:])
	}
	if err != nil {
		return 0, 0, err
	}
	mov = from + uint64(at)
	middle := code[at : len(code)-2]
	room, ar, err := p.near(t, mov, 64+4*len(middle))
	if err != nil {
		return 0, 0, err
	}
	m, err := moveCode(middle, mov, room, len(middle))
	if err != nil {
		return 0, 0, err
	}
	stub := m.code
	stub = append(stub, 0x48, 0x8d, 0x64, 0x24, 0x80) // lea -128(%rsp),%rsp: there may be something below
	stub = append(stub, 0xff, 0x15)                   // call *entry(%rip)
	stub = binary.LittleEndian.AppendUint32(stub, uint32(ar.base+arenaCall-(room+uint64(len(stub))+4)))
	stub = append(stub, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0) // lea 128(%rsp),%rsp
	stub = append(stub, jumpTo(room+uint64(len(stub)), ip)...)
	if err := p.writeCode(t, room, stub); err != nil {
		return 0, 0, err
	}
	ar.take(len(stub))
	return mov, room, nil
}

// len5 is the length of the mov, which a jump replaces.
const len5 = jumpLen

// findMov finds the mov in code that ends in the syscall.
func findMov(code, mov []byte) (int, error) {
	end := len(code) - 2
	if !bytes.Equal(code[end:], syscallInsn) {
		return 0, fmt.Errorf("% x is no syscall", code[end:])
	}
	for at := end - len5; at >= 0; at-- {
		if bytes.Equal(code[at:at+len5], mov) && harmless(code[at+len5:end]) {
			return at, nil
		}
	}
	return 0, fmt.Errorf("no mov before syscall: % x", code)
}

// harmless says whether instructions can be executed elsewhere, before the agent
// is called.
func harmless(code []byte) bool {
	for len(code) > 0 {
		in, err := decodeInsn(code)
		if err != nil || in.Len > len(code) {
			return false
		}
		switch in.Op {
		case x86asm.MOV, x86asm.LEA, x86asm.XOR, x86asm.MOVSXD, x86asm.NOP:
		default:
			return false
		}
		if d, ok := in.Args[0].(x86asm.Reg); ok && isAX(d) && in.Op != x86asm.NOP {
			return false // eax is something else then
		}
		code = code[in.Len:]
	}
	return true
}
