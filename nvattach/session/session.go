// Package session runs probes in the programs of one run: it gives every GPU
// context of every process maps of its own, rewrites the images that are loaded
// there, drains what probes send, and shows the maps at intervals and at the
// end.
//
// It knows neither how images are caught nor where a GPU's memory is: a
// supervisor or the simulated GPU calls it.
package session

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
)

// Show shows what the script's probes at events of the host printed, and their maps, where those in
// kernels are shown. It must be called before Close.
func (s *Session) Show(list []script.Shown) { s.out.shown(list) }

// Format says how maps are shown.
type Format uint8

// The formats.
const (
	FormatText Format = iota
	FormatJSON        // one JSON array, with an object a line
)

// Options say what to run and how to show it.
type Options struct {
	Plan     *nvattach.Plan
	Maps     mapmem.MapOptions // their sizes; SMs is set for each GPU
	Settings []object.Setting  // of --map, applied to every new set of maps
	Print    mapmem.PrintOptions
	Script   *script.Program // shows its maps itself; nil: there is none
	Began    []script.Shown  // what its BEGIN printed
	Format   Format
	Out      io.Writer     // where everything is shown
	Notices  io.Writer     // where all but the contents of maps is told; nil: Out
	Interval time.Duration // between two looks at the maps; 0 shows them at the end only
	// Required makes Rewrite fail for an image in which a kernel that a program
	// wants can't be probed.
	Required bool
	// Verbose lists each kernel, where otherwise those that were not launched are counted
	// and others grouped.
	Verbose bool
	// Direct: programs are kernels themselves, and there are no others to tell of.
	Direct bool
	// Verify has launches run both ways: 1 each, n each n-th, the first in any case,
	// VerifyFirst that alone. 0: none.
	Verify int
	// Within has launches compared with copies in the image with programs, wherever there
	// can be some: for tests.
	Within bool
	// Stamped, if not nil, is told of each launch that programs of [Stamps] are in, in no order, on any
	// goroutine. It must not call the session.
	Stamped func(s Stamp)
}

// drainEvery is how often rings are emptied: several times before a ring of the
// default size is full at a record a microsecond.
const drainEvery = 20 * time.Millisecond

// Session is the probes of one run. Its methods may be called by several
// goroutines.
type Session struct {
	opts Options

	mu        sync.Mutex
	contexts  []*Context
	probed    map[string]*Kernel
	order     []string                       // kernels, in the order in which they were met
	given     map[[sha256.Size]byte][]string // kernels of the images that were rewritten
	checks    map[string]*Verified           // by kernel
	ran       map[string]bool                // kernels that were launched; nil: nobody looks at launches
	unnamed   bool                           // a kernel was launched that nobody can name
	launches  map[string]uint64              // that were counted, by kernel
	uncounted bool                           // there were others
	originals map[[sha256.Size]byte]*nvattach.Original
	// originalBytes is the size of their images.
	originalBytes int
	out           *output
	end           sync.Once
	ended         error // of End
	stop          chan struct{}
	stopped       sync.WaitGroup
	lastShown     time.Time
}

// Kernel is what became of a kernel that a program wants, in all its images.
type Kernel struct {
	Name   string // mangled
	Images int    // in how many images it was probed
	Sites  int    // places in the last of them
	Reason string // why it is not probed in some image; "" if it is in all
	Notes  []string
	Func   bool // a device function
	// Machine: its machine code got the programs, not its PTX.
	Machine bool
	Twin    bool // there is a copy without programs in some image
	// Of kernels with copies: see nvattach.KernelReport.
	Globals []string
	Effect  string
	NoTwin  string // why it can't be verified; "" if that was not asked for, or it can
	// Original has it without programs, where its image has no copy; nil: that has one.
	Original *nvattach.Original
	// Unprobed are launches that the driver refused with programs, and that were made
	// without; UnprobedWhy is why.
	Unprobed    int
	UnprobedWhy string
	Ran         bool // it was launched, for all that is known
	// Launches is how many launches were counted, with programs or without; 0 if nobody
	// counts them.
	Launches uint64
	// From is where its code came from, of several images the first: a file's name, or who
	// loaded what it had in memory; "" if that is not known.
	From string
}

// probed reports whether all of a kernel's launches but those in Unprobed had programs.
func (k *Kernel) probed() bool { return k.Images > 0 && k.Reason == "" }

// Context is a GPU context of a process: one set of maps.
type Context struct {
	PID    int
	Device int
	handle uint64

	s       *Session
	mem     mapmem.Memory
	maps    *mapmem.Maps
	printer *mapmem.Printer
	readers []*mapmem.Reader
	rings   []*mapmem.Map
	passive bool
	host    *hostrun.Runner // of the programs on the host; nil: this is a GPU's
	join    *hostrun.Join   // of a GPU's: what of its maps becomes part of the host's; nil: nothing

	mu    sync.Mutex // of reading the maps
	shown time.Time  // passive: when they were
	final []*mapmem.Table
	kept  bool    // final is what they held when they were last kept, at keptAt
	lost  []error // that was reported, with final

	clock  *mapmem.Clock // of its kernels; nil: not known yet
	stamps *stamps       // nil: no program notes when launches begin and end

	keptAt time.Time
	ended  bool
}

// New begins a session. Close must be called.
func New(o *Options) *Session {
	s := &Session{opts: *o, probed: make(map[string]*Kernel), given: make(map[[sha256.Size]byte][]string), checks: make(map[string]*Verified), launches: make(map[string]uint64), stop: make(chan struct{})}
	s.out = &output{w: o.Out, said: o.Notices, format: o.Format, print: &s.opts.Print, script: o.Script}
	if o.Script != nil {
		s.out.scriptBegan(o.Began)
	}
	s.stopped.Add(1)
	go s.poll()
	return s
}

// Target is a GPU context that is to get maps.
type Target struct {
	PID, Device int
	Rank        int    // of the process among those of its job, see mapmem.Maps.SetRank
	SMs         int    // multiprocessors
	Handle      uint64 // of the context, as the program has it; 0: not known
	// Alloc allocates memory of the GPU, aligned to 256 bytes and all zero, and
	// says how the host reaches it.
	Alloc func(size uint64) (addr uint64, mem mapmem.Memory, err error)
	// Share has kernels reach the host's memory from addr on, at that address; nil: they can't.
	Share func(addr, size uint64) error
	// Passive: the memory can be reached at moments only that the owner of the
	// context knows. It calls Look, Keep and End then; the session reads nothing by
	// itself.
	Passive bool
}

// Add gives a GPU context its maps.
func (s *Session) Add(t *Target) (*Context, error) {
	o := s.opts.Maps
	o.SMs = t.SMs
	o.Shared = s.share(t)
	host := s.onHost()
	if host != nil {
		o.Join = host.maps
	}
	maps, err := s.opts.Plan.NewMaps(&o)
	if err != nil {
		return nil, err
	}
	addr, mem, err := t.Alloc(max(maps.Size(), 256))
	if err != nil {
		return nil, fmt.Errorf("%d bytes of GPU memory for the probes' maps: %w", maps.Size(), err)
	}
	c := &Context{PID: t.PID, Device: t.Device, handle: t.Handle, s: s, mem: mem, maps: maps, passive: t.Passive, shown: time.Now()}
	if err := errors.Join(maps.Place(addr), maps.Init(mem, t.PID, t.Device), maps.SetRank(mem, t.Rank)); err != nil {
		return nil, err
	}
	for _, set := range s.opts.Settings {
		if x := maps.Find(set.Name); x == nil && len(s.opts.Plan.Host) > 0 || x != nil && (x.Shared() || x.Joined()) {
			continue // it is the host's alone, or was done there
		}
		if err := maps.Apply(mem, set, nil); err != nil {
			return nil, err
		}
	}
	if s.opts.Plan.Prints() {
		c.printer = maps.NewPrinter(s.opts.Plan.Formats)
	}
	if host != nil {
		c.join = host.host.NewJoin(maps)
	}
	c.addReaders()
	c.stamps = newStamps(maps)
	s.mu.Lock()
	s.contexts = append(s.contexts, c)
	s.mu.Unlock()
	return c, nil
}

// onHost returns the context of the programs on the host, nil if there are none.
func (s *Session) onHost() *Context {
	for _, c := range s.all() {
		if c.host != nil {
			return c
		}
	}
	return nil
}

// SetClock says how the context's %globaltimer relates to the host's clock.
func (c *Context) SetClock(k mapmem.Clock) error {
	c.setClock(k)
	err := c.maps.SetClock(c.mem, k)
	for _, set := range c.s.opts.Settings {
		if set.GPUClock() {
			err = errors.Join(err, c.s.setOffset(c, set, -k.Offset))
		}
	}
	return err
}

// setOffset gives a map's entry, on the host if it has it, the difference of the clocks.
func (s *Session) setOffset(c *Context, set object.Setting, offset int64) error {
	set.Value = strconv.FormatInt(offset, 10)
	for _, o := range append(s.all(), c) {
		if o != c && o.host == nil {
			continue
		}
		if x := o.maps.Find(set.Name); x != nil && (o.host != nil || !x.Shared() && !x.Joined()) {
			if err := o.maps.Apply(o.mem, set, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// Clocks reports whether the clocks of GPUs are to be compared with the host's.
func (s *Session) Clocks() bool {
	return s.opts.Plan.Clocks() || s.opts.Stamped != nil || slices.ContainsFunc(s.opts.Settings, func(set object.Setting) bool { return set.GPUClock() })
}

// ChangedByBoth returns the names of maps that programs on the host and in kernels change, in
// ways that some machines do not make atomic; see [nvattach.Plan.ChangedByBoth].
func (s *Session) ChangedByBoth() []string { return s.opts.Plan.ChangedByBoth() }

// share returns the host's maps if the context's kernels reach those that they use, too.
func (s *Session) share(t *Target) *mapmem.Maps {
	for _, c := range s.all() {
		if c.host == nil || c.maps.SharedSize == 0 {
			continue
		}
		err := errors.New("the memory of the host can't be reached")
		if t.Share != nil {
			err = t.Share(mapmem.HostBase+c.maps.SharedOffset, c.maps.SharedSize)
		}
		if err == nil {
			return c.maps
		}
		if one, _ := s.opts.Plan.SharedMaps(); len(one) > 0 {
			s.out.fault(fmt.Errorf("process %d, device %d: kernels see contents of their own of %s, not the host's: %w", t.PID, t.Device, strings.Join(one, ", "), err))
		} else {
			s.out.fault(fmt.Errorf("process %d, device %d: the time in kernels is not the host's: %w", t.PID, t.Device, err))
		}
	}
	return nil
}

// addReaders makes readers of the context's rings.
func (c *Context) addReaders() {
	for _, m := range c.maps.All {
		if r := c.maps.NewReader(m); r != nil && m != c.maps.Print {
			c.readers, c.rings = append(c.readers, r), append(c.rings, m)
		}
	}
}

// unit is what has a part of the context's maps.
func (c *Context) unit() string {
	if c.host != nil {
		return "cpu"
	}
	return "sm"
}

// AddHost gives the programs on the host, of all processes, their maps, in memory that alloc
// makes, and returns what runs them; nil if there are none, and clocks are not compared, which needs
// such memory.
func (s *Session) AddHost(alloc func(size uint64) ([]byte, error)) (*hostrun.Runner, error) {
	if len(s.opts.Plan.Host) == 0 && s.opts.Stamped == nil {
		return nil, nil
	}
	o := s.opts.Maps
	o.Clock = s.Clocks()
	maps, mem, err := s.opts.Plan.NewHostMaps(&o, alloc)
	if err != nil {
		return nil, fmt.Errorf("maps on the host: %w", err)
	}
	for _, set := range s.opts.Settings {
		if maps.Find(set.Name) == nil {
			continue // of programs in kernels alone
		}
		if err := maps.Apply(mem, set, nil); err != nil {
			return nil, err
		}
	}
	c := &Context{s: s, mem: mem, maps: maps, shown: time.Now()}
	// What is in the rings came before what a program does in this process.
	c.host = hostrun.NewRunner(s.opts.Plan.Host, maps, mem,
		func(cpu int, text string) { c.drain(false); s.out.text(c.unit(), cpu, text) },
		func(m *mapmem.Map, r mapmem.Record) { c.drain(false); s.out.record(c.unit(), m, r) })
	c.printer = maps.NewPrinter(nil)
	c.addReaders()
	s.mu.Lock()
	s.contexts = append(s.contexts, c)
	s.mu.Unlock()
	return c.host, nil
}

// SetPlace gives what is shown [mapmem.PrintOptions.Place].
func (s *Session) SetPlace(place func(addr uint64, returned bool) string) {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.out.print.Place = place
}

// ReadsMemory reports whether programs in kernels read memory at addresses of their own.
func (s *Session) ReadsMemory() bool { return s.opts.Plan.ReadsMemory() }

// SetReadable says what memory kernels of the context may read; see [mapmem.Maps.SetReadable].
func (c *Context) SetReadable(list []mapmem.Range) error { return c.maps.SetReadable(c.mem, list) }

// Readers returns how many threads may still read what was there before that.
func (c *Context) Readers() (uint64, error) { return c.maps.Readers(c.mem) }

// Report tells something about the probes beside the contents of maps.
func (s *Session) Report(text string) { s.out.fault(errors.New(text)) }

// Rewrite puts the programs into an image that is about to be loaded in the
// context. It returns image itself where there is nothing to do. from is where it
// came from, for a reader; kernels are those that have programs.
func (c *Context) Rewrite(image []byte, from string, o *RewriteOptions) (out []byte, kernels []nvattach.KernelReport, err error) {
	wanted := *o
	if c.s.Verify() && o.Twins != nvattach.TwinsAll {
		wanted.Twins = nvattach.TwinsAside
		if c.s.opts.Within {
			wanted.Twins = nvattach.TwinsAll
		}
	}
	r, err := c.s.opts.Plan.Rewrite(image, c.maps, &wanted)
	if errors.Is(err, nvattach.ErrNotWoven) {
		return image, nil, nil // nothing that a kernel could be in
	}
	if err != nil {
		return image, nil, err
	}
	c.s.note(r, from)
	if r.Changed {
		c.s.remember(r)
	}
	if err := c.s.allowed(r.Unprobed); err != nil {
		return image, nil, err
	}
	return r.Image, r.Kernels, nil
}

// Pass takes note of an image that is loaded as it is, for a reason: the kernels in it that
// programs want run unprobed. from is that of [Context.Rewrite]. The error, if that is not
// allowed, names one.
func (s *Session) Pass(image []byte, from, reason string) error {
	u := s.opts.Plan.Unwoven(image, reason)
	s.note(&nvattach.Rewritten{Unprobed: u}, from)
	return s.allowed(u)
}

// allowed returns an error for kernels that must be probed and can't be.
func (s *Session) allowed(u []nvattach.Unprobed) error {
	if !s.opts.Required || len(u) == 0 {
		return nil
	}
	return fmt.Errorf("kernel %s can't be probed: %s", fatbin.Demangle(u[0].Kernel), u[0].Reason)
}

// RunText returns a module with a kernel that runs a program of
// kprobe/__directly_run with the context's maps on sm_N, and the kernel's name.
func (c *Context) RunText(program string, sm uint32) (text, kernel string, err error) {
	return c.s.opts.Plan.RunText(program, c.maps, sm)
}

// Wants reports whether some program wants a kernel of that mangled name.
func (s *Session) Wants(kernel string) bool { return s.opts.Plan.Wants(kernel, false) }

// note keeps what became of the wanted kernels of an image, and where it came from.
func (s *Session) note(r *nvattach.Rewritten, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Kernels {
		k := s.kernel(r.Kernels[i].Name)
		k.From = cmp.Or(k.From, from)
		k.Images++
		k.Sites, k.Machine = r.Kernels[i].Sites(), r.Kernels[i].Machine
		k.Notes, k.NoTwin, k.Func = r.Kernels[i].Notes, r.Kernels[i].NoTwin, r.Kernels[i].Func
		if q := &r.Kernels[i]; q.Twin {
			k.Twin, k.Effect = true, cmp.Or(k.Effect, q.Effect)
			s.noteOriginal(k, r.Original)
			for _, g := range q.Globals {
				if !slices.Contains(k.Globals, g) {
					k.Globals = append(k.Globals, g)
				}
			}
		}
	}
	for _, u := range r.Unprobed {
		k := s.kernel(u.Kernel)
		k.Reason, k.From = u.Reason, cmp.Or(k.From, from)
	}
}

// remember notes which kernels are in a rewritten image, in case it is refused.
func (s *Session) remember(r *nvattach.Rewritten) {
	var names []string
	for i := range r.Kernels {
		names = append(names, r.Kernels[i].Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given[sha256.Sum256(r.Image)] = names
}

// Refused takes note that the driver did not load a rewritten image, which is
// named by its SHA-256 in hex, but the original: its kernels run unprobed. The
// error, if that is not allowed, names one.
func (s *Session) Refused(sum, reason string) error {
	var key [sha256.Size]byte
	if n, err := hex.Decode(key[:], []byte(sum[:min(len(sum), 2*len(key))])); err != nil || n != len(key) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, name := range s.given[key] {
		k := s.kernel(name)
		k.Images--
		k.Reason = reason
		if err == nil && s.opts.Required {
			err = fmt.Errorf("kernel %s can't be probed: %s", fatbin.Demangle(name), reason)
		}
	}
	return err
}

func (s *Session) kernel(name string) *Kernel {
	k := s.probed[name]
	if k == nil {
		k = &Kernel{Name: name}
		s.probed[name] = k
		s.order = append(s.order, name)
	}
	return k
}

// Kernels returns what became of the kernels that programs want, in the order
// in which they were met.
func (s *Session) Kernels() []Kernel {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Kernel
	for _, name := range s.order {
		k := *s.probed[name]
		k.Ran = k.Func || k.Unprobed > 0 || !s.seesLaunches() || s.ran[name]
		if !s.uncounted {
			k.Launches = s.launches[name]
		}
		all = append(all, k)
	}
	return all
}

// LooksAtLaunches says that Ran will be called for each kernel that is launched: others
// were not.
func (s *Session) LooksAtLaunches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ran == nil {
		s.ran = make(map[string]bool)
	}
}

// Ran takes note that a kernel was launched; "" stands for one that nobody can name, or
// for launches that can't be seen.
func (s *Session) Ran(kernel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ran == nil {
		return
	}
	s.unnamed = s.unnamed || kernel == ""
	s.ran[kernel] = true
}

// CountLaunches takes note of n launches of a kernel, with programs or without. Launches of
// a kernel "", and none, say that some were not counted: how many there are is not told then.
func (s *Session) CountLaunches(kernel string, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kernel == "" || n == 0 {
		s.uncounted = true
	}
	s.launches[kernel] += n
}

// seesLaunches reports whether kernels that Ran was not told of were not launched.
func (s *Session) seesLaunches() bool { return s.ran != nil && !s.unnamed }

// poll drains rings and shows maps until the session is closed.
func (s *Session) poll() {
	defer s.stopped.Done()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	s.lastShown = time.Now()
	joined := s.lastShown
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			live := false
			join := now.Sub(joined) >= joinEvery
			if join {
				joined = now
			}
			for _, c := range s.all() {
				if !c.passive {
					live = true
					c.drain(false)
					if join {
						c.joinNow()
					}
				}
			}
			if live && s.opts.Interval > 0 && now.Sub(s.lastShown) >= s.opts.Interval {
				s.lastShown = now
				s.show(now)
			}
		}
	}
}

func (s *Session) all() []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Context(nil), s.contexts...)
}

// hostLast puts the context of programs on the host behind those of GPUs, whose parts of its
// maps are added to them when they are read.
func hostLast(all []*Context) []*Context {
	var gpus, host []*Context
	for _, c := range all {
		if c.host != nil {
			host = append(host, c)
		} else {
			gpus = append(gpus, c)
		}
	}
	return append(gpus, host...)
}

// several reports whether maps of more than one context are shown.
func several(all []*Context) bool {
	n := 0
	for _, c := range all {
		if c.host == nil || len(c.s.opts.Plan.Host) > 0 {
			n++
		}
	}
	return n > 1
}

// show prints the maps as they are now.
func (s *Session) show(now time.Time) {
	all := s.all()
	s.out.moment(now)
	type look struct {
		tables []*mapmem.Table
		err    error
	}
	looks := make(map[*Context]look)
	for _, c := range hostLast(all) {
		if !c.passive {
			tables, err := c.read()
			looks[c] = look{tables, err}
		}
	}
	var shown []*mapmem.Table
	for _, c := range all {
		if l, ok := looks[c]; ok {
			s.out.tables(c, several(all), l.tables, l.err)
			shown = append(shown, l.tables...)
		}
	}
	s.out.scripted(shown, false)
}

// joinEvery is how often what kernels have added to parts of the host's maps is added there for
// those who read them from outside, where the GPU's memory can be read at any time.
const joinEvery = time.Second

// joinNow is add at any time; where it can't be done, the next time tells.
func (c *Context) joinNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		_ = c.add()
	}
}

// drain prints what came in the context's rings since the last time.
func (c *Context) drain(idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	var err error
	if c.printer != nil {
		err = c.printer.Drain(c.mem, idle, func(sm int, text string) { c.s.out.text(c.unit(), sm, text) })
	}
	for i, r := range c.readers {
		tell := func(rec mapmem.Record) { c.s.out.record(c.unit(), c.rings[i], rec) }
		err = errors.Join(err, r.Drain(c.mem, idle, tell))
	}
	if c.stamps != nil {
		list, e := c.stamps.look(c.mem, idle)
		for _, s := range list {
			c.stamp(s)
		}
		err = errors.Join(err, e)
	}
	if err != nil && idle {
		c.s.out.fault(fmt.Errorf("rings of process %d: %w", c.PID, err))
	}
}

// read reads the context's maps, or returns what they held at its end.
func (c *Context) read() ([]*mapmem.Table, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return c.final, nil
	}
	return c.tables()
}

func (c *Context) tables() ([]*mapmem.Table, error) {
	var tables []*mapmem.Table
	errs := c.add()
	for _, m := range c.maps.All {
		if m == c.maps.Print || m.Def.Ring() || m.Def.ReadOnly || !c.s.opts.Plan.Shows(m, c.host != nil) {
			continue
		}
		t, err := c.maps.Read(c.mem, m)
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		tables = append(tables, t)
	}
	return tables, errs
}

// add adds to the host's maps what came in the context's parts of them; c.mu is held.
func (c *Context) add() error {
	if c.join == nil {
		return nil
	}
	return c.join.Add(c.mem)
}

// End reads the context's maps for the last time: its memory is about to go. No
// kernel may run.
func (c *Context) End() error {
	c.drain(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	err := c.keep()
	c.finish()
	return err
}

// keep notes what the maps hold now; what could not be read stays as it was.
func (c *Context) keep() error {
	tables, err := c.tables()
	if err != nil && (c.kept || len(tables) == 0) {
		return err
	}
	c.final, c.lost, c.kept, c.keptAt = tables, c.losses(), true, time.Now()
	return err
}

// finish ends the context with what was kept.
func (c *Context) finish() {
	c.ended = true
	for _, e := range c.lost {
		c.s.out.fault(e)
	}
	c.lost = nil
}

// losses tells what the context's rings dropped, and programs that were ended
// by one of their checks.
func (c *Context) losses() []error {
	var lost []error
	count := func(n uint64, err error, what string) {
		if err == nil && n > 0 {
			lost = append(lost, fmt.Errorf("%d %s", n, what))
		}
	}
	if c.host != nil {
		lost = c.host.Faults()
	}
	if c.printer != nil {
		n, err := c.printer.Dropped(c.mem)
		count(n, err, "texts of bpf_printk found no room")
	}
	for i, r := range c.readers {
		n, err := r.Dropped(c.mem)
		count(n, err, "records of "+c.rings[i].Name+" found no room")
	}
	if c.host != nil {
		return lost
	}
	lost = append(lost, c.stampless()...)
	for _, p := range c.s.opts.Plan.Programs {
		ended, err := c.s.opts.Plan.Ended(c.maps, c.mem, p)
		if err != nil {
			continue
		}
		for i := range ended {
			lost = append(lost, errors.New(ended[i].String()))
		}
	}
	return lost
}

// End ends the session's work, once: it reads what has not ended. Nothing that the
// session is about runs any more.
func (s *Session) End() error {
	s.end.Do(func() {
		close(s.stop)
		s.stopped.Wait()
		for _, c := range hostLast(s.all()) {
			if c.passive {
				c.Abandon(errors.New("the end of the context was not seen"))
				continue
			}
			s.ended = errors.Join(s.ended, c.End())
		}
	})
	return s.ended
}

// Close ends the session, and shows the maps and the kernels.
func (s *Session) Close() error {
	errs := s.End()
	all := s.all()
	var tables []*mapmem.Table
	for _, c := range all {
		s.out.tables(c, several(all), c.final, nil)
		tables = append(tables, c.final...)
	}
	s.out.scripted(tables, true)
	if p := s.opts.Plan; !s.opts.Direct && (p == nil || len(p.Programs) > 0 && !p.Own()) {
		s.out.sites(s.opts.Plan.NumberedSites())
		s.out.kernels(s, s.Kernels())
	}
	s.out.end()
	return errors.Join(errs, s.out.err)
}

// Required reports whether a kernel that can't be probed is an error.
func (s *Session) Required() bool { return s.opts.Required }
