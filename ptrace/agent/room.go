package agent

import (
	"bytes"
	"errors"
	"fmt"

	"nvtrace/ptrace"
	"nvtrace/ptrace/jump"
	"nvtrace/ptrace/proc"
)

// Files returns what is known of the code of files that processes map.
func (a *Agent) Files() *jump.Files { return &a.files }

// Prepare reads the code of some files that a process has mapped, as long as it is not traced: to find out where jumps may be
// put into a driver takes longer than threads should be held for.
func (a *Agent) Prepare(pid int, want func(path string) bool) {
	maps, err := proc.Maps(pid)
	if err != nil {
		return // attaching says why
	}
	for i := range maps {
		m := &maps[i]
		if m.Inode == 0 || !m.Exec || !want(m.Path) {
			continue
		}
		f, key, err := proc.OpenMapped(pid, m)
		if err != nil {
			continue
		}
		if code, err := a.files.Of(f, key); err == nil {
			code.Prepare()
		}
		f.Close()
	}
}

// find sets what is known of the file that has the code at an address.
func (r *rooms) find(addr uint64) error {
	if r.at.Contains(addr, 1) {
		return r.err
	}
	var err error
	if r.maps == nil {
		if r.maps, err = proc.Maps(r.p.PID); err != nil {
			return err
		}
	}
	m := proc.At(r.maps, addr)
	if m == nil {
		return errors.New("nothing is mapped there")
	}
	r.at = *m
	r.err = r.read(m)
	return r.err
}

func (r *rooms) read(m *proc.Mapping) error {
	if m.Inode == 0 {
		return errNoFile
	}
	f, key, err := proc.OpenMapped(r.p.PID, m)
	if err != nil {
		return err
	}
	defer f.Close()
	code, err := r.p.a.files.Of(f, key)
	if err != nil {
		return err
	}
	bias, ok := code.Bias(m)
	if !ok {
		return errNoFile
	}
	r.code, r.bias = code, bias
	return nil
}

// begins reports whether a function is known to begin at an address.
func (r *rooms) begins(addr uint64) bool { return r.find(addr) == nil && r.code.Begins(addr-r.bias) }

// replaceable proves that a jump may take the place of the first n bytes of code at an address, behind the landing pad, if
// there is one, of the function at addr. See [jump.Code.Replaceable]. Or it says why not. code is what the program has there; who has written over what
// the file has may have other jumps to it.
func (r *rooms) replaceable(t *ptrace.Task, addr, at uint64, code []byte, n int) error {
	if err := r.find(at); err != nil {
		return err
	}
	for _, b := range t.Breakpoints() {
		if b.Addr > at && b.Addr < at+uint64(n) {
			return fmt.Errorf("a breakpoint is at +%#x", b.Addr-at)
		}
	}
	for _, s := range r.p.hooks {
		if !s.gone && s.jump != nil && s.at != at && s.at < at+uint64(n) && at < s.at+uint64(len(s.jump)) && r.p.restore(t, s.at) != nil {
			return fmt.Errorf("the jump of a hook is at %#x", s.at)
		}
	}
	if !bytes.Equal(code[:n], r.code.Text(at-r.bias, n)) {
		return errors.New("the code in memory is not what the file has")
	}
	// A breakpoint is on the landing pad, which rounds of a loop behind it do not come by.
	if at != addr && r.code.Branches(at-r.bias) {
		return errors.New("the function branches to where the jump would be")
	}
	return r.code.Replaceable(at-r.bias, n)
}

// Covers implements [ptrace.Injector]. Jumps that another supervisor has left, and that nobody wants, are taken
// out of the code for it.
func (a *Agent) Covers(t *ptrace.Task, addr uint64) bool {
	p := a.procs[t.PID]
	if p != nil && p.shares {
		p = p.host
	}
	if p == nil {
		return false
	}
	for at := addr - (jumpLen - 1); at < addr; at++ {
		for _, i := range p.hooksAt(at) {
			s := p.hooks[i]
			b := make([]byte, len(s.jump))
			if n, _ := t.ReadText(at, b); s.gone || s.jump == nil || n < len(b) || !bytes.Equal(b, s.jump) {
				continue
			}
			_, resume, err := t.StopWorld()
			if err != nil {
				return true
			}
			defer resume()
			return p.restore(t, at) != nil
		}
	}
	return false
}

// restore takes a jump that nobody wants out of the program's code, all of whose threads stand still. Those
// that are in what was moved go on there.
func (p *Process) restore(t *ptrace.Task, at uint64) error {
	list := p.hooksAt(at)
	for _, i := range list {
		if s := p.hooks[i]; !s.gone && !s.free {
			return errors.New("a hook there is still wanted")
		}
	}
	room := rooms{p: p}
	if err := room.find(at); err != nil {
		return err
	}
	code := room.code.Text(at-room.bias, jumpLen)
	if len(code) < jumpLen {
		return errNoFile
	}
	if err := t.PokeText(at, code); err != nil {
		return err
	}
	for _, i := range list {
		p.hooks[i].gone = true
	}
	return nil
}
