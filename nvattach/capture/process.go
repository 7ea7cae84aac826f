package capture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/remote"
)

// object is a file that was mapped executable.
type object struct {
	path    string
	buildID string
	file    *dso.File
	funcs   map[string]dso.Symbol // of the driver's functions, those that it exports
	others  map[string]dso.Symbol // functions that are not watched, but used
	gpu     int64                 // bytes of fat binaries
	err     error                 // why nothing is known
}

// gpuCode returns how many bytes of fat binaries the section headers name. It is
// information, so that a file whose section headers are gone has none.
func gpuCode(f *dso.File) (total int64) {
	for _, s := range f.Sections() {
		if s.Name == ".nv_fatbin" || s.Name == "__nv_relfatbin" {
			total = max(total, total+int64(s.Size))
		}
	}
	return total
}

// driver reports whether the file exports a way to give code to a GPU.
func (o *object) driver(c *Capture) bool {
	for name := range o.funcs {
		if f := c.funcs[name]; f.loads() {
			return true
		}
	}
	return false
}

// hook is a watched address in a process.
type hook struct {
	fn    function
	names []string // more than one, where exports share an address
	lib   string   // path of the driver
	slot  slotID   // of a hidden loader
	guess bool     // nobody has described the slot: that it takes an image is a guess
	early bool     // launches are recorded, too: the breakpoint is for the first ones
	idle  int      // calls without an image of a slot that nobody knows; launches without a new kernel
}

// name is how events call it.
func (h *hook) name() string { return h.names[0] }

// process is the state of an address space.
type process struct {
	hooks  map[uint64]*hook
	spaces []span // mappings of drivers
	before bool   // it had a driver before tracing began

	modules  map[uint64]*origin // modules and libraries by handle
	kernels  map[uint64]*origin // kernels and functions by handle
	launched map[uint64]*origin // what was launched, with where it came from then
	finders  []*agent.Hook      // of look-ups that stop only where they find something new
	renewed  []func()           // called when a handle gets another meaning
	counts   map[uint64]uint64  // launches by handle that Options.Counted was not told of
	counters []counter          // where others are counted
	said     map[string]bool    // kernels of images that an event told of
	kept     map[uint64][]*placement
	arena    *chunk

	libraries   map[uint64]bool      // of modules, those that are libraries
	told        map[uint64][]uint64  // kernels by the module that the driver has named
	finding     map[int]finding      // by thread: calls of cuKernelGetFunction that did not return yet
	retired     map[uint64]int64     // those whose module was unloaded, and when (CLOCK_MONOTONIC, ns)
	open        []question           // launches that the driver is to be asked about
	checkpoints []*ptrace.Breakpoint // where it can be
	querier     *ptrace.Task         // asks at the moment
	waiting     []*ptrace.Task       // are held until it has
	scratch     remote.Scratch       // for asking
}

// span is a mapped part of a driver's file.
type span struct {
	start, end, off uint64
	obj             *object
}

// forgetFound has look-ups stop again, as handles may come to mean something else.
func (c *Capture) forgetFound(t *ptrace.Task) {
	s := c.process(t)
	if len(s.finders) == 0 {
		return
	}
	if p := c.o.Agent.Find(t); p != nil {
		for _, k := range s.finders {
			p.Forget(k)
		}
	}
}

func newProcess() *process {
	return &process{
		hooks: make(map[uint64]*hook), modules: make(map[uint64]*origin), kernels: make(map[uint64]*origin),
		launched: make(map[uint64]*origin), said: make(map[string]bool), kept: make(map[uint64][]*placement),
		counts: make(map[uint64]uint64), libraries: make(map[uint64]bool), told: make(map[uint64][]uint64), retired: make(map[uint64]int64),
		finding: make(map[int]finding),
	}
}

// fork returns the state of a copy of the address space. Breakpoints are copied
// by package ptrace.
func (p *process) fork() *process {
	f := &process{
		hooks: maps.Clone(p.hooks), spaces: slices.Clone(p.spaces), modules: maps.Clone(p.modules),
		kernels: maps.Clone(p.kernels), launched: maps.Clone(p.launched), said: make(map[string]bool), kept: make(map[uint64][]*placement),
		counts:    make(map[uint64]uint64),
		libraries: maps.Clone(p.libraries), told: maps.Clone(p.told), finders: slices.Clone(p.finders), retired: maps.Clone(p.retired), finding: make(map[int]finding), scratch: p.scratch, before: p.before,
	}
	// Copies of our buffers stay in the child for good: it is the parent that
	// their book-keeping belongs to.
	return f
}

// mapped looks at code that a process has got: files, and what a loader of the program's own
// has put together in memory.
func (c *Capture) mapped(t *ptrace.Task, e *dso.Event) {
	for _, m := range e.Files() {
		c.lookAt(t, &m, e.Why)
	}
	switch e.Why {
	case dso.ByProtect:
		c.protected(t, e)
	case dso.Attached:
		if p := c.process(t); len(p.hooks) > 0 {
			p.before = true
			c.gap(t, "what process %d loaded before nvtrace attached to it is not known", t.PID)
		}
	}
}

// object reads a file, once for each state of it.
func (c *Capture) object(f io.ReaderAt, key proc.FileKey, path string) *object {
	if o := c.objects[key]; o != nil {
		return o
	}
	o := &object{path: path}
	if o.file, o.err = dso.Read(f); o.err == nil {
		o.read(c)
	}
	if len(c.objects) >= maxObjects { // of a program that maps file after file
		clear(c.objects)
	}
	c.objects[key] = o
	return o
}

const maxObjects = 1 << 16

func (o *object) read(c *Capture) {
	if o.funcs, o.err = o.file.Lookup(c.names...); o.err == nil {
		if o.driver(c) {
			o.others, o.err = o.file.Lookup(others()...)
		}
		o.buildID = o.file.BuildID()
		o.gpu = gpuCode(o.file)
	}
	o.file.Detach() // it is closed soon
}

// watch sets the breakpoints of a driver that was mapped.
func (c *Capture) watch(t *ptrace.Task, o *object, s span) {
	p := c.process(t)
	p.forget(t, s)
	if o.gpu > 0 {
		c.gpu[o.path] = o.gpu
	}
	if !o.driver(c) {
		if o.err != nil {
			c.log.Debug("not looked at", "file", o.path, "err", o.err)
		}
		return
	}
	c.author.stats.Drivers++
	if c.o.Mapped != nil {
		c.o.Mapped(t.PID, o.path, s.start, s.end-s.start, s.off)
	}
	s.obj = o
	p.spaces = append(p.spaces, s)
	for _, name := range slices.Sorted(maps.Keys(o.funcs)) {
		sym := o.funcs[name]
		off, ok := o.file.Offset(sym.Addr)
		if !ok || off < s.off || off-s.off >= s.end-s.start {
			continue
		}
		if sym.Indirect() {
			if f := c.funcs[name]; f.loads() {
				c.gap(t, "%s of %s is chosen at run time (an indirect function) and can't be watched", name, o.path)
			}
			continue
		}
		c.hook(t, s.start+(off-s.off), c.funcs[name], hook{names: []string{name}, lib: o.path})
	}
	c.hookCached(t, p, &s)
	if len(p.open) > 0 {
		c.closeDoors(p)
		c.openDoors(t, p)
	}
}

// forget drops what was known of a range that was mapped anew. Breakpoints went
// with the old mapping; those that are in place were set since, by others who
// watch the same mmap.
func (p *process) forget(t *ptrace.Task, s span) {
	for _, b := range t.Breakpoints() {
		if b.Addr >= s.start && b.Addr < s.end && !b.Intact() {
			b.Remove()
		}
	}
	for addr := range p.hooks {
		if addr >= s.start && addr < s.end {
			delete(p.hooks, addr)
		}
	}
	p.spaces = slices.DeleteFunc(p.spaces, func(o span) bool { return o.start >= s.start && o.end <= s.end })
}

// protected looks at memory of no file that was made executable.
func (c *Capture) protected(t *ptrace.Task, e *dso.Event) {
	maps, err := proc.Maps(t.PID)
	if err != nil {
		c.log.Debug("maps", "pid", t.PID, "err", err)
		return
	}
	for i := range maps {
		if m := &maps[i]; m.Exec && m.Inode == 0 && m.End > e.Start && m.Start < e.End {
			c.lookAtMemory(t, maps, i)
		}
	}
}

// lookAt looks at a mapping of a file.
func (c *Capture) lookAt(t *ptrace.Task, m *dso.Code, why dso.Why) {
	p := c.process(t)
	for i := range p.spaces {
		if s := &p.spaces[i]; why == dso.ByProtect && s.start <= m.Start && m.End <= s.end && s.obj.path == m.Path {
			return // protected again
		}
	}
	began := time.Now()
	f, key, err := m.Open()
	if err != nil {
		c.log.Debug("mapped file", "pid", t.PID, "file", m.Path, "err", err)
		return
	}
	defer f.Close()
	c.watch(t, c.object(f, key, m.Path), span{start: m.Start, end: m.End, off: m.Offset})
	c.log.Debug("looked at", "pid", t.PID, "file", m.Path, "took", time.Since(began))
}

// maxPieces is how many adjoining mappings one hand-made library may have.
const maxPieces = 16

// lookAtMemory looks for a driver that the program itself has laid out in
// anonymous memory around mapping i.
func (c *Capture) lookAtMemory(t *ptrace.Task, list []proc.Mapping, i int) {
	first := i
	for range maxPieces {
		var magic [4]byte
		if k, _ := t.ReadMem(list[first].Start, magic[:]); k == 4 && string(magic[:]) == "\x7fELF" {
			break
		}
		if first == 0 || list[first-1].End != list[first].Start || list[first-1].Inode != 0 {
			return
		}
		first--
	}
	base := list[first].Start
	m, err := dso.ReadMemory(offsetReader{taskMemory{t}, base}, base)
	if err != nil {
		return
	}
	o := &object{path: fmt.Sprintf("memory at %#x", base), file: m}
	if o.funcs, o.err = m.Lookup(c.names...); o.err != nil || !o.driver(c) {
		return
	}
	if o.others, o.err = m.Lookup(others()...); o.err != nil {
		c.log.Debug("not looked at", "file", o.path, "err", o.err)
	}
	o.buildID = m.BuildID()
	m.Detach()
	c.note(t, "process %d runs a CUDA driver from memory at %#x that is no mapped file", t.PID, base)
	c.watch(t, o, span{start: list[i].Start, end: list[i].End, off: list[i].Start - base})
}

// verify makes sure that the breakpoints of a process are in place. It is about
// to end, or to execute another program.
func (c *Capture) verify(t *ptrace.Task) {
	for _, addr := range c.overwritten(t) {
		c.gap(t, "the breakpoint at %s in process %d was overwritten: calls may have gone by unseen", c.process(t).hooks[addr].name(), t.PID)
	}
}

// overwritten returns where a process has no breakpoint that should have one.
func (c *Capture) overwritten(t *ptrace.Task) (list []uint64) {
	p := c.process(t)
	if len(p.hooks) == 0 {
		return nil
	}
	var mappings []proc.Mapping
	intact := make(map[uint64]bool)
	for _, b := range t.Breakpoints() {
		if b.Intact() {
			intact[b.Addr] = true
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(p.hooks)) {
		h := p.hooks[addr]
		var code [1]byte
		if k, _ := t.ReadMem(addr, code[:]); k == 0 || intact[addr] {
			continue // unmapped by dlclose, or as it should be
		}
		if mappings == nil {
			mappings, _ = proc.Maps(t.PID)
		}
		m := proc.At(mappings, addr)
		if m == nil || !m.Exec || m.Path != h.lib && m.Inode != 0 {
			continue // other memory took its place; what was executable was looked at
		}
		list = append(list, addr)
	}
	return list
}

// renew sets the breakpoints of a process that were overwritten: it was forked while
// another thread had just mapped the driver where it had been before, and the
// breakpoints of that mapping were not set yet.
func (c *Capture) renew(t *ptrace.Task) {
	for _, addr := range c.overwritten(t) {
		b, err := t.SetBreakpoint(addr, c.hit)
		if err != nil {
			c.log.Debug("breakpoint not renewed", "pid", t.PID, "addr", addr, "err", err)
			continue // verify tells of it
		}
		_ = b.Remove() // those that were set before are in place again
	}
}

// taskMemory is the memory of a stopped task, for use on the tracing thread.
type taskMemory struct{ t *ptrace.Task }

// ReadAt implements io.ReaderAt; offsets are addresses.
func (m taskMemory) ReadAt(b []byte, addr int64) (int, error) { return m.t.ReadMem(uint64(addr), b) }
