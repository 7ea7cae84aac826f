package sim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/nvattach/api/cuda"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// The CUfunction_attributes that can be set.
const (
	attrMaxDynamicShared = cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	attrCarveout         = cuda.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
)

// image reads the image at addr in the program, and picks the PTX to run. The program does not
// say how long it is: that is told by its own headers, or, of PTX, by the NUL behind it. A wrapper
// (__fatBinC_Wrapper_t) leads to the container.
func (c *call) image(addr uint64) ([]*ptx.File, result) {
	p := c.p
	if addr == 0 {
		return nil, errInvalidValue
	}
	if files := p.linked[addr]; files != nil {
		return files, success
	}
	r := p.reader(addr)
	var head [24]byte
	if n, _ := r.ReadAt(head[:], 0); n < 4 {
		return nil, errInvalidValue
	}
	var list uint64
	if fatbin.Sniff(head[:]) == fatbin.FormatWrapper {
		w, err := fatbin.ParseWrapper(head[:])
		if err != nil {
			return nil, errInvalidImage
		}
		addr, list = w.Container, w.List
		r = p.reader(addr)
	}
	n, err := fatbin.Extent(r, maxImage)
	if err != nil {
		p.sim.hint(fmt.Sprintf("an image at %#x in process %d can't be read: %v", addr, p.pid, err))
		return nil, errInvalidImage
	}
	b := make([]byte, n)
	if got, _ := r.ReadAt(b, 0); got < len(b) {
		return nil, errInvalidValue
	}
	files, res := c.choose(addr, "", b, false)
	if res == errNoBinary && list != 0 {
		if linked, r := c.linked(list); r == success {
			return linked, success
		}
	}
	if res == errNoBinary {
		p.sim.noBinary(p, b)
	}
	return files, res
}

// linked reads the containers of a wrapper of version 2, which are linked.
func (c *call) linked(list uint64) ([]*ptx.File, result) {
	var all []*ptx.File
	for i := range uint64(1 << 12) {
		addr := c.get64(list + 8*i)
		if c.bad {
			return nil, errInvalidImage
		}
		if addr == 0 {
			break
		}
		r := c.p.reader(addr)
		n, err := fatbin.Extent(r, maxImage)
		if err != nil {
			return nil, errInvalidImage
		}
		b := make([]byte, n)
		if got, _ := r.ReadAt(b, 0); got < len(b) {
			return nil, errInvalidImage
		}
		files, res := c.choose(addr, "", b, true)
		if res == errNoBinary { // the toolkit's own device library: machine code, mostly not needed
			continue
		}
		if res != success {
			return nil, res
		}
		all = append(all, files...)
	}
	if len(all) == 0 {
		return nil, errNoBinary
	}
	return all, success
}

// choose picks from an image what the device runs: of the PTX with the highest
// target that it may. addr is where the image was, or file; linked is as in Image.
func (c *call) choose(addr uint64, file string, b []byte, linked bool) ([]*ptx.File, result) {
	s := c.p.sim
	if fatbin.Sniff(b) == fatbin.FormatPTX { // the text is the same with and without the NUL behind it
		b = bytes.TrimSuffix(b, []byte{0})
	}
	hash := sha256.Sum256(b)
	if s.opts.Hooks != nil {
		nb, r := c.hookImage(&Image{
			Call: c.entry.name, Caller: c.req.caller, TID: int(c.th.id), Addr: addr, File: file, Data: b, Hash: hash, Runs: s.runs(b), Linked: linked,
		})
		if r != success {
			return nil, r
		}
		b = nb
	}
	f, r := s.pick(b, fmt.Sprintf("%x", hash[:4]))
	if r != success {
		return nil, r
	}
	if len(c.p.imageOf) >= maxObjects {
		clear(c.p.imageOf)
	}
	c.p.imageOf[f] = hash
	return []*ptx.File{f}, success
}

// pick finds the PTX in an image that the device runs. Its name in messages is made
// of id, the beginning of Image.Hash. An image without anything for the device is
// CUDA_ERROR_NO_BINARY_FOR_GPU, PTX for a newer one CUDA_ERROR_INVALID_PTX.
func (s *Sim) pick(b []byte, id string) (*ptx.File, result) {
	switch fatbin.Sniff(b) {
	case fatbin.FormatPTX:
		f, r := s.parse(id+".ptx", string(b))
		if r != success {
			return nil, r
		}
		if !s.gpu.runs(f.Target()) {
			return nil, errInvalidPTX
		}
		return f, success
	case fatbin.FormatCubin:
		return nil, errNoBinary
	case fatbin.FormatContainer:
	default:
		return nil, errInvalidImage
	}
	best, r := s.best(b)
	if r != success {
		return nil, r
	}
	text, err := best.Data(&fatbin.Options{MaxEntry: maxImage})
	if err != nil {
		return nil, errInvalidImage
	}
	return s.parse(id+"."+best.Arch().String()+".ptx", string(text))
}

// best returns the entry of a container that the device runs.
func (s *Sim) best(b []byte) (*fatbin.Entry, result) {
	ct, _, err := fatbin.ParseContainer(b)
	if err != nil {
		return nil, errInvalidImage
	}
	var best *fatbin.Entry
	for i := range ct.Entries {
		e := &ct.Entries[i]
		if e.Kind() == fatbin.KindPTX && s.gpu.runs(target(e.Arch())) && (best == nil || e.Arch().SM >= best.Arch().SM) {
			best = e
		}
	}
	if best == nil {
		return nil, errNoBinary
	}
	return best, success
}

// runs reports whether the device runs something of an image, if it is as it should be.
func (s *Sim) runs(b []byte) bool {
	if fatbin.Sniff(b) == fatbin.FormatContainer {
		_, r := s.best(b)
		return r == success
	}
	return fatbin.Sniff(b) == fatbin.FormatPTX
}

// hookImage shows an image to those who watch, and returns what is to be loaded.
func (c *call) hookImage(im *Image) ([]byte, result) {
	s := c.p.sim
	if c.given != nil {
		im.Call, im.Caller = registerEntry, c.given.caller
	}
	c.images = append(c.images, im)
	if s.opts.Hooks.Image == nil {
		return im.Data, success
	}
	b, err := s.opts.Hooks.Image(c.p, im)
	if err != nil {
		s.hint(fmt.Sprintf("an image of process %d was refused: %v", c.p.pid, err))
		return nil, errInvalidImage
	}
	if !bytes.Equal(b, im.Data) {
		im.Replacement = b
	}
	return b, success
}

// loaded tells what became of the images that the call gave.
func (c *call) loaded(handle uint64, r result) {
	if h := c.p.sim.opts.Hooks; h != nil && h.Loaded != nil {
		for _, im := range c.images {
			im.Handle, im.Result = handle, int(r)
			h.Loaded(c.p, im)
		}
	}
	c.images = nil
}

// target is an architecture as PTX names it.
func target(a fatbin.Arch) ptx.Target { return ptx.Target{SM: uint16(a.SM), Suffix: a.Suffix} }

// maxFiles bounds the parsed files that are kept for the next program.
const maxFiles = 256

// parse parses PTX, or finds it parsed.
func (s *Sim) parse(name, text string) (*ptx.File, result) {
	key := sha256.Sum256([]byte(name + "\x00" + text))
	s.mu.Lock()
	f := s.files[key]
	s.mu.Unlock()
	if f != nil {
		return f, success
	}
	f, err := ptx.Parse(name, text, nil)
	if err != nil {
		s.hint(fmt.Sprintf("PTX that can't be parsed: %v", err))
		return nil, errInvalidPTX
	}
	if driverISA.Less(f.Version) {
		s.hint(fmt.Sprintf("%s: PTX ISA %s is newer than the simulated driver, which has %s", name, f.Version, driverISA))
		return nil, errUnsupportedPTX
	}
	if wrong := f.Check().Errors; len(wrong) > 0 {
		s.hint("PTX that no driver compiles: " + wrong[0])
		return nil, errInvalidPTX
	}
	s.mu.Lock()
	if len(s.files) >= maxFiles {
		clear(s.files)
	}
	s.files[key] = f
	s.mu.Unlock()
	return f, success
}

// load loads files into a context. Of several files one module is made, as a linker would.
// Variables with .managed are put where the program reaches them, too; the arena is told their
// names while the machine allocates, which the process's lock makes safe.
func (c *call) load(x *cudaContext, files []*ptx.File) (*module, result) {
	p := c.p
	managed := map[string]bool{}
	for _, f := range files {
		for i := range f.Stmts {
			if f.Stmts[i].Kind != ptx.StmtDecl {
				continue
			}
			if d := f.Decl(&f.Stmts[i]); d.Linkage&ptx.Managed != 0 {
				for _, n := range f.Names(d) {
					managed[f.Text(n.Name)] = true
				}
			}
		}
	}
	p.arena.setManaged(managed)
	em, err := x.dev.machine.Load(files...)
	p.arena.setManaged(nil)
	if err != nil {
		p.sim.hint(fmt.Sprintf("a module can't be loaded: %v", err))
		if errors.Is(err, emu.ErrOutOfMemory) {
			return nil, errOutOfMemory
		}
		return nil, errInvalidPTX
	}
	m := &module{ctx: x, files: files, emu: em, image: p.imageOf[files[0]], functions: map[string]*function{}}
	if m.handle = p.add(m); m.handle == 0 {
		em.Unload()
		return nil, errOutOfMemory
	}
	x.modules[m] = true
	c.loaded(m.handle, success)
	return m, success
}

// setManaged says which variables of the module that is being loaded are managed.
func (a *Arena) setManaged(names map[string]bool) {
	a.mu.Lock()
	a.managed = names
	a.mu.Unlock()
}

// unload frees a module's variables. Nothing of its context may be running.
func (m *module) unload() {
	if m.ctx.modules[m] {
		delete(m.ctx.modules, m)
		m.emu.Unload()
	}
}

// function returns the module's function of that name.
func (c *call) function(m *module, name string) (*function, result) {
	if f := m.functions[name]; f != nil {
		return f, success
	}
	if !slices.Contains(m.emu.Kernels(), name) {
		return nil, errNotFound
	}
	k, err := m.emu.Kernel(name)
	if err != nil {
		c.p.sim.hint(fmt.Sprintf("kernel %s can't be loaded: %v", name, err))
		return nil, errInvalidPTX
	}
	f := &function{mod: m, k: k, name: name, attrs: map[uint32]int32{}}
	if f.handle = c.p.add(f); f.handle == 0 {
		return nil, errOutOfMemory
	}
	m.functions[name] = f
	return f, success
}

// moduleIn returns the library's module in a context.
func (c *call) moduleIn(l *codeLibrary, x *cudaContext) (*module, result) {
	if m := l.modules[x]; m != nil && !x.destroyed {
		return m, success
	}
	m, r := c.load(x, l.files)
	if r == success {
		l.modules[x] = m
	}
	return m, r
}

// resolve returns the function of a CUfunction, or of a CUkernel in the current
// context.
func (c *call) resolve(h uint64) (*function, result) {
	switch o := c.p.objects[h].(type) {
	case *function:
		return o, success
	case *kernel:
		x, r := c.context()
		if r != success {
			return nil, r
		}
		return c.functionOf(o, x)
	}
	return nil, errInvalidHandle
}

// functionOf returns the function of a kernel in a context.
func (c *call) functionOf(k *kernel, x *cudaContext) (*function, result) {
	m, r := c.moduleIn(k.lib, x)
	if r != success {
		return nil, r
	}
	f, r := c.function(m, k.name)
	if r == success && f.kern == nil {
		f.kern = k
		maps.Copy(f.attrs, k.attrs)
	}
	return f, r
}

// attribute returns a CUfunction_attribute.
func (f *function) attribute(g *GPU, id uint32) (int32, result) {
	set, has := f.attrs[id]
	if has {
		return set, success
	}
	switch id {
	case cuda.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		n := f.k.MaxThreads()
		if n <= 0 || n > maxThreadsPerBlock {
			n = maxThreadsPerBlock
		}
		return int32(n), success
	case cuda.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		return int32(f.k.SharedBytes()), success
	case cuda.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		return int32(f.k.LocalBytes()), success
	case cuda.CU_FUNC_ATTRIBUTE_NUM_REGS:
		return int32(f.registers()), success
	case cuda.CU_FUNC_ATTRIBUTE_PTX_VERSION,
		cuda.CU_FUNC_ATTRIBUTE_BINARY_VERSION: // versions of the PTX and of the code: both the device's
		return int32(g.Major*10 + g.Minor), success
	case attrMaxDynamicShared:
		return int32(sharedDefault - min(f.k.SharedBytes(), sharedDefault)), success
	case attrCarveout:
		return -1, success
	case cuda.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
		cuda.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
		cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
		cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
		cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		return 0, success
	}
	return 0, errInvalidValue
}

// registers reckons how many registers a GPU's assembler would use: some half of those that code has names for, as
// most are not needed for long.
func (f *function) registers() int { return min(max(f.k.Registers()/2, 16), 64) }

// setAttribute sets a CUfunction_attribute.
func setAttribute(g *GPU, attrs map[uint32]int32, static uint64, id uint32, v int32) result {
	switch id {
	case attrMaxDynamicShared:
		if v < 0 || uint64(v)+static > g.SharedOptIn {
			return errInvalidValue
		}
	case attrCarveout:
		if v < -1 || v > 100 {
			return errInvalidValue
		}
	case cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
		cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
		cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	default:
		return errInvalidValue
	}
	attrs[id] = v
	return success
}

// newLibrary makes a library of the image at addr.
func (c *call) newLibrary(addr uint64) (*codeLibrary, result) {
	files, r := c.image(addr)
	if r != success {
		return nil, r
	}
	return c.addLibrary(files)
}

func (c *call) addLibrary(files []*ptx.File) (*codeLibrary, result) {
	l := &codeLibrary{files: files, modules: map[*cudaContext]*module{}, kernels: map[string]*kernel{}}
	if l.handle = c.p.add(l); l.handle == 0 {
		return nil, errOutOfMemory
	}
	c.loaded(l.handle, success)
	return l, success
}

// unloadLibrary unloads it everywhere, each context after its work has ended.
func (c *call) unloadLibrary(l *codeLibrary) {
	for x, m := range l.modules {
		if !x.destroyed {
			c.sync(x)
			m.unload()
		}
		for _, f := range m.functions {
			delete(c.p.objects, f.handle)
		}
		delete(c.p.objects, m.handle)
	}
	for _, k := range l.kernels {
		delete(c.p.objects, k.handle)
	}
	delete(c.p.objects, l.handle)
}

// kernelNames are the names of all kernels of the files.
func kernelNames(files []*ptx.File) []string {
	var out []string
	for _, f := range files {
		for i := range f.Funcs {
			if fn := &f.Funcs[i]; fn.Kind == ptx.FuncEntry && fn.HasBody() {
				out = append(out, f.Text(fn.Name))
			}
		}
	}
	return out
}

// kernel returns the library's kernel of that name.
func (c *call) kernel(l *codeLibrary, name string) (*kernel, result) {
	if k := l.kernels[name]; k != nil {
		return k, success
	}
	if !slices.Contains(kernelNames(l.files), name) {
		return nil, errNotFound
	}
	k := &kernel{lib: l, name: name, attrs: map[uint32]int32{}}
	if k.handle = c.p.add(k); k.handle == 0 {
		return nil, errOutOfMemory
	}
	l.kernels[name] = k
	return k, success
}

// imageFile reads an image from a file that the program names.
func (c *call) imageFile(name string) ([]*ptx.File, result) {
	if name == "" {
		return nil, errFileNotFound
	}
	from := "root"
	if name[0] != '/' {
		from = "cwd/"
	}
	// What is called self is the program, and not who opens the file here.
	for _, self := range [][2]string{
		{"/proc/self/", "/proc/%d/"}, {"/proc/thread-self/", "/proc/%d/"}, {"/dev/fd/", "/proc/%d/fd/"},
	} {
		if rest, ok := strings.CutPrefix(name, self[0]); ok {
			name = fmt.Sprintf(self[1], c.p.pid) + rest
		}
	}
	// A pipe is no file, and must not be waited for.
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s%s", c.p.pid, from, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errFileNotFound
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxImage {
		return nil, errFileNotFound
	}
	b := make([]byte, st.Size())
	if n, _ := f.ReadAt(b, 0); n < len(b) {
		return nil, errFileNotFound
	}
	files, r := c.choose(0, name, b, false)
	if r == errNoBinary {
		c.p.sim.noBinary(c.p, b)
	}
	return files, r
}

// noBinary says what to do about an image without PTX that the device runs.
func (s *Sim) noBinary(p *Process, image []byte) {
	has := "machine code only"
	if ct, _, err := fatbin.ParseContainer(image); err == nil {
		for i := range ct.Entries {
			if e := &ct.Entries[i]; e.Kind() == fatbin.KindPTX {
				has = "PTX for " + e.Arch().String()
			}
		}
	}
	s.hint(fmt.Sprintf("an image of process %d has %s, and the simulated %s runs PTX for sm_%d%d or less: "+
		"compile with nvcc -gencode arch=compute_%d%d,code=compute_%d%d",
		p.pid, has, s.gpu.Name, s.gpu.Major, s.gpu.Minor, s.gpu.Major, s.gpu.Minor, s.gpu.Major, s.gpu.Minor))
}
