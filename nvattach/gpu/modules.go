package gpu

import (
	"encoding/binary"
	"errors"

	"nvtrace/nvattach"
	"nvtrace/ptrace"
	"nvtrace/ptrace/remote"
)

// ask makes a call whose first argument is where the result goes.
func (v *visit) ask(fn string, args ...uint64) (uint64, error) {
	out := make([]byte, 8)
	err := v.exchange(make([]byte, 8), v.word(wordOut), []step{call(fn, append([]uint64{v.word(wordOut)}, args...)...)}, v.word(wordOut), out)
	return binary.LittleEndian.Uint64(out), err
}

// unloader is the function that unloads the module.
func (m *liveModule) unloader() string {
	if m.library {
		return "cuLibraryUnload"
	}
	return "cuModuleUnload"
}

// loadModule loads an image as a module, or library, of ours. Its memory stays in the program also after an error, if
// it has an address then.
func (v *visit) loadModule(m *liveModule, image []byte) (err error) {
	m.size = uint64(len(image))
	if m.addr, err = v.space(m.size); err != nil {
		return err
	}
	if err := v.poke(m.addr, image); err != nil {
		return err
	}
	if m.library {
		m.handle, err = v.ask("cuLibraryLoadData", m.addr, 0, 0, 0, 0, 0, 0)
	} else {
		m.handle, err = v.ask("cuModuleLoadData", m.addr)
	}
	return err
}

// kernelIn looks up a kernel of such a module: a CUkernel of a library, or a CUfunction.
func (v *visit) kernelIn(m *liveModule, name string) (uint64, error) {
	if m.library {
		return v.named("cuLibraryGetKernel", name, m.handle)
	}
	return v.named("cuModuleGetFunction", name, m.handle)
}

// named looks up something by its name, which the function takes behind other arguments.
func (v *visit) named(fn, name string, args ...uint64) (uint64, error) {
	if err := v.poke(v.stage(), append([]byte(name), 0)); err != nil {
		return 0, err
	}
	return v.ask(fn, append(args, v.stage())...)
}

// loadAside loads an image without programs into the current context, once, and returns its
// module.
func (v *visit) loadAside(o *nvattach.Original) (uint64, error) {
	context, err := v.ask("cuCtxGetCurrent")
	if err != nil {
		return 0, err
	}
	key := asideKey{context, o.Sum}
	v.p.known.Lock()
	module := v.p.asides[key]
	v.p.known.Unlock()
	if module != 0 {
		return module, nil
	}
	// The driver may look at the image later, so that it stays.
	var m liveModule
	if err := v.loadModule(&m, o.Image); err != nil {
		return 0, err
	}
	v.p.known.Lock()
	v.p.asides[key] = m.handle
	v.p.known.Unlock()
	return m.handle, nil
}

// drop unloads a module of ours, and gives the memory of its image back.
func (v *visit) drop(m *liveModule) (err error) {
	if m.handle != 0 {
		err = v.run(call(m.unloader(), m.handle))
	}
	if m.addr == 0 {
		return err
	}
	return errors.Join(err, v.do(func(t *ptrace.Task, done func(error)) { done(remote.Free(t, m.addr, m.size)) }))
}
