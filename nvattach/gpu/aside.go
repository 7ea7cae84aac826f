package gpu

import (
	"encoding/binary"
	"fmt"

	"nvtrace/nvattach"
)

// variable returns where a module has a variable.
func (v *visit) variable(module uint64, name string) (addr, size uint64, err error) {
	if err := v.poke(v.stage(), append([]byte(name), 0)); err != nil {
		return 0, 0, err
	}
	var got [16]byte
	err = v.exchange(got[:], v.word(wordOut), []step{call("cuModuleGetGlobal_v2", v.word(wordOut), v.word(wordOut)+8, module, v.stage())}, v.word(wordOut), got[:])
	return binary.LittleEndian.Uint64(got[:]), binary.LittleEndian.Uint64(got[8:]), err
}

// findAsides finds the variables of the kernel's module, and those that its copy beside has
// in their place.
func (t *trial) findAsides(o *nvattach.Original) error {
	for i, name := range append(append([]string(nil), o.Globals...), o.Constants...) {
		addr, size, err := t.variable(t.k.module, name)
		var other, n uint64
		if err == nil {
			other, n, err = t.variable(t.k.aside, name)
		}
		switch {
		case isDriverError(err):
			return never("the variable %s of its module can't be reached: %v", name, err)
		case err != nil:
			return err
		case n != size:
			return never("the variable %s has %d bytes, and without programs %d", name, size, n)
		}
		if i < len(o.Globals) {
			t.globals = append(t.globals, aside{addr, other, size})
		} else {
			t.constants = append(t.constants, aside{addr, other, size})
		}
	}
	return nil
}

// lend gives the kernel without programs the values of the module's variables, takeBack takes
// back what it has made of them.
func (t *trial) lend() error {
	return t.copyAsides(append(append([]aside(nil), t.globals...), t.constants...), false)
}

// takeBack copies variables, not constants, which kernels can't change.
func (t *trial) takeBack() error { return t.copyAsides(t.globals, true) }

// copyAsides copies the values of variables to the other module, or back.
func (t *trial) copyAsides(list []aside, back bool) error {
	var steps []step
	for _, a := range list {
		to, from := a.other, a.addr
		if back {
			to, from = from, to
		}
		steps = append(steps, call("cuMemcpyDtoDAsync_v2", to, from, a.size, t.c.mem.stream))
	}
	if len(steps) == 0 {
		return nil
	}
	return t.visit.run(append(steps, call("cuStreamSynchronize", t.c.mem.stream))...)
}

func never(format string, args ...any) error {
	return &notVerified{reason: fmt.Sprintf(format, args...), final: true}
}
