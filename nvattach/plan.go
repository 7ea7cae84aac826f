package nvattach

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
	"nvtrace/traces/glob"
)

// PlanOptions say what a plan allows. Nil is the zero value.
type PlanOptions struct {
	// AllowExit allows bpftime's helper 507, which ends the kernel's thread.
	AllowExit bool
	// Fuel is how many instructions one run of a program may execute; 0 means ptx/bpf's
	// default, a million.
	Fuel uint32
	// Kernels, if there are any, are globs of which one must match as well as a
	// program's section.
	Kernels []string
	// Programs, if there are any, are the names of those to use; of globs one
	// must match.
	Programs []string
	// Racy keeps "*p += n", and an array's value that is written back with n more by
	// bpf_map_update_elem, as a load and a store, of which other threads' additions
	// may be lost in between, instead of making it one atomic addition. It also keeps
	// "if (!lookup(m, k)) update(m, k, first)" on a hash that is only counted in as it
	// is: where two threads do so at once, only one of their values counts.
	Racy bool
	// Strict refuses programs that need tests at run time, and those that write back
	// what they read from a map when that could not be made atomic.
	Strict bool
}

// ErrNoProgram is in the chain of the error about objects without a program to run.
var ErrNoProgram = errors.New("no program to run")

// A Plan is programs that were proven safe, ready to be woven into kernels. It
// is safe for concurrent use.
type Plan struct {
	Objects  []*object.Object
	Programs []*proof.Program
	Host     []*hostrun.Program // programs that run on the host
	kernels  []string
	matched  matched

	mu        sync.Mutex // held while code is written: units know one place at a time
	kept      kept
	units     map[*object.Object]*proof.Unit
	formats   proof.Formats
	sites     []Site
	keys      placeKeys
	slots     int // counters of the programs
	hostSlots int // those on the host
}

// NewPlan proves the objects' programs safe. The error joins one for each program
// that is refused (*bpf.RefusedError, with the object's name before it), or has
// ErrNoProgram in its chain.
func NewPlan(objs []*object.Object, o *PlanOptions) (*Plan, error) {
	if o == nil {
		o = &PlanOptions{}
	}
	p := &Plan{Objects: objs, kernels: o.Kernels, units: make(map[*object.Object]*proof.Unit)}
	if err := object.CheckBlocks(objs); err != nil {
		return nil, err
	}
	var errs []error
	clock := slices.ContainsFunc(objs, func(obj *object.Object) bool {
		return slices.ContainsFunc(obj.Host, func(q *object.HostProgram) bool { return obj.Own || wanted(o.Programs, q.Name) })
	})
	for _, obj := range objs {
		u := &proof.Unit{Object: obj, HostClock: clock, AllowExit: o.AllowExit, Formats: &p.formats}
		p.units[obj] = u
		maps := u.EnvMaps()
		programs, host, err := programsWanted(obj, o.Programs)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", obj.Name, err))
			continue
		}
		used := uses(obj, programs, host)
		for i := range maps {
			by := used[maps[i].Name]
			maps[i].System = by.host && by.gpu
		}
		helpers := u.Helpers()
		first := len(p.Programs)
		check := func(prog *object.Program, slots func(*bpf.CallInfo) bool) (*proof.Program, error) {
			u.Slots = slots
			defer func() { u.Slots = nil }()
			return u.Verify(prog, &bpf.Env{Maps: maps, Helpers: helpers, Fuel: o.Fuel, Elected: obj.Own, Slots: slots}, o.Racy)
		}
		verify := func(prog *object.Program) *proof.Program {
			q, err := check(prog, nil)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", obj.Name, err))
			}
			return q
		}
		for _, prog := range programs {
			if q := verify(prog); q != nil {
				q.Counter = len(p.Programs)
				p.Programs = append(p.Programs, q)
			}
		}
		for _, prog := range host {
			q, err := hostrun.Prove(u, prog, maps, o.Fuel)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", obj.Name, err))
				continue
			}
			p.Host = append(p.Host, q)
		}
		if len(errs) > 0 {
			continue
		}
		own := together(u.Defs, maps, p.Programs[first:])
		joined := make([]bool, len(maps)) // those whose part for kernels is the GPU's alone
		for i, d := range u.Defs {
			if joined[i] = maps[i].System && p.joins(d); joined[i] {
				maps[i].System = false
			}
		}
		for i, q := range p.Programs[first:] {
			if (!own || !q.UsesOwn()) && !q.UsesAny(joined) {
				continue
			}
			if again := verify(q.Program); again != nil {
				again.Counter = q.Counter
				p.Programs[first+i] = again
			}
		}
		for i, q := range p.Programs[first:] {
			p.Programs[first+i] = place(u, p, q, maps, joined, check)
		}
	}
	if o.Strict {
		for _, q := range p.Programs {
			errs = append(errs, q.Strict()...)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(p.Programs)+len(p.Host) == 0 {
		return nil, noProgram(objs, o.Programs)
	}
	for _, pattern := range o.Programs {
		if !slices.ContainsFunc(p.Programs, func(q *proof.Program) bool { return glob.Match(pattern, q.Name) }) &&
			!slices.ContainsFunc(p.Host, func(q *hostrun.Program) bool { return glob.Match(pattern, q.Name) }) {
			return nil, noProgram(objs, []string{pattern})
		}
	}
	for _, q := range p.Programs {
		q.FirstEnd = p.slots
		if q.Plain != nil {
			q.Plain.FirstEnd = q.FirstEnd
			p.slots += emit.EndSlots * max(0, len(q.Plain.Report.Ends)-len(q.Report.Ends))
		}
		p.slots += emit.EndSlots * len(q.Report.Ends)
	}
	p.hostSlots = mapmem.SlotBusyHomes + 1
	for _, q := range p.Host {
		q.FirstCounter = p.hostSlots
		p.hostSlots += 1 + len(q.Machine.Ends)
	}
	return p, nil
}

// together says of the variables that each thread has what is known once all programs
// are: that none stores what is different in the threads of a warp. It reports whether
// that is news.
func together(defs []*object.MapDef, maps []bpf.Map, programs []*proof.Program) bool {
	news := false
	for i, d := range defs {
		if !d.Thread || slices.ContainsFunc(programs, func(q *proof.Program) bool { return q.Report.Maps[i].Apart }) {
			continue
		}
		maps[i].Together, news = true, true
	}
	return news
}

// Own reports whether all programs are of nvtrace's own objects.
func (p *Plan) Own() bool {
	return !slices.ContainsFunc(p.Objects, func(o *object.Object) bool { return !o.Own })
}

// noProgram says why there is nothing to run.
func noProgram(objs []*object.Object, names []string) error {
	var have []string
	for _, obj := range objs {
		for _, prog := range obj.Programs {
			have = append(have, prog.Name)
		}
		for _, prog := range obj.Host {
			have = append(have, prog.Name)
		}
	}
	if len(have) > 0 {
		return object.Markf(ErrNoProgram, "no program is called %s%s", strings.Join(names, " or "), object.Known("; there are ", have))
	}
	for _, obj := range objs {
		if len(obj.Ignored) > 0 {
			i := obj.Ignored[0]
			return object.Markf(ErrNoProgram, "%s has no program to run: %s in section %q: %s", obj.Name, i.Name, i.Section, i.Reason)
		}
	}
	return object.Markf(ErrNoProgram, "the objects have no program; one stands in a section, such as SEC(\"cuda.entry/*\")")
}

// programsWanted returns the object's programs that are wanted, with what [Object.expand] puts in.
func programsWanted(o *object.Object, globs []string) (programs []*object.Program, host []*object.HostProgram, err error) {
	if o.Own {
		globs = nil
	}
	for _, q := range o.Programs {
		if !wanted(globs, q.Name) {
			continue
		}
		ready := *q
		if ready.Insns, err = o.Expand(q.Name, q.Insns, 0, false); err != nil {
			return nil, nil, fmt.Errorf("program %s: %w", q.Name, err)
		}
		programs = append(programs, &ready)
	}
	for _, q := range o.Host {
		if !wanted(globs, q.Name) {
			continue
		}
		ready := *q
		if ready.Insns, err = o.Expand(q.Name, q.Insns, q.Cookie, q.Point.Replace); err != nil {
			return nil, nil, fmt.Errorf("program %s: %w", q.Name, err)
		}
		host = append(host, &ready)
	}
	return programs, host, nil
}

func wanted(globs []string, name string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return glob.Match(g, name) })
}

// Formats returns the formats of bpf_printk that are known so far, for
// [mapmem.Maps.NewPrinter].
func (p *Plan) Formats() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.formats.List)
}

// Sites returns the places that programs were put at so far; the number of a place
// in its program's context is its index plus 1.
func (p *Plan) Sites() []Site {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sites)
}

// KernelOf returns the kernel, or device function, that a place is in, by the number that its programs
// read.
func (p *Plan) KernelOf(site uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if site == 0 || site > uint64(len(p.sites)) {
		return "(unknown kernel)"
	}
	return p.sites[site-1].Kernel
}

// NumberedSites returns the places of those programs that read the number of theirs.
func (p *Plan) NumberedSites() []NumberedSite {
	if p == nil {
		return nil
	}
	reads := map[string]bool{}
	for _, q := range p.Programs {
		if !q.Object.Script && !q.Object.Own && slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.Fields[i] == proof.FieldSite }) {
			reads[q.Name] = true
		}
	}
	var list []NumberedSite
	for i, s := range p.Sites() {
		if reads[s.Program] {
			list = append(list, NumberedSite{i + 1, s})
		}
	}
	return list
}

// Prints reports whether a program may print, by bpf_printk or ebpf_puts.
func (p *Plan) Prints() bool {
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool {
		return slices.ContainsFunc(q.Report.Helpers, func(n int32) bool { return n == helper.Print || n == helper.VPrint || n == helper.Puts })
	})
}

// NewMaps lays out the maps of the plan's objects, those that programs only add to
// as copies for each multiprocessor. o.AddOnly, o.Adds, o.Deletes,
// o.Reads and o.Slots are the plan's to set;
// where no program prints, there is no room for that.
func (p *Plan) NewMaps(o *mapmem.MapOptions) (*mapmem.Maps, error) {
	var opt mapmem.MapOptions
	if o != nil {
		opt = *o
	}
	opt.AddOnly, opt.Adds, opt.Deletes, opt.Slots = p.addOnly, p.adds, p.deletes, p.slots
	opt.KeyPlaces, opt.PlacedKeys = p.keyPlaces, p.keys.Keys
	opt.Reads = p.ReadsMemory()
	if !p.Prints() {
		opt.PrintBytes = 1 // as small as it can be
	}
	return mapmem.NewMaps(p.Objects, &opt)
}

// addOnly returns the parts of a map's value that programs add to, if they do
// nothing else with it.
func (p *Plan) addOnly(d *object.MapDef) []mapmem.AddField { return p.added(d, true) }

// adds returns the parts of a map's value that programs add to, whatever else they do.
func (p *Plan) adds(d *object.MapDef) []mapmem.AddField { return p.added(d, false) }

// added returns the parts of a map's value that programs add to; none where these
// overlap, and with only set none if a program does anything else with the values.
func (p *Plan) added(d *object.MapDef, only bool) []mapmem.AddField {
	set := newFieldSet(d)
	for _, q := range p.Programs {
		use := q.Use(d)
		if use == nil {
			continue
		}
		if only && !use.AddOnly() && !(d.Layout() == object.LayoutHash && q.AddsOrInserts(use)) {
			return nil
		}
		if !set.add(use) {
			return nil
		}
	}
	return set.list
}

// deletes reports whether a program may delete keys of a map.
func (p *Plan) deletes(d *object.MapDef) bool {
	for _, q := range p.Programs {
		i := slices.Index(q.Unit.Defs, d)
		if i >= 0 && i < len(q.Report.Maps) && slices.ContainsFunc(q.Report.Maps[i].Calls, func(c bpf.MapCall) bool { return c.Helper == helper.MapDelete }) {
			return true
		}
	}
	return false
}

// kernelWanted reports whether a program's section, and the plan's kernels, name a
// function.
func (p *Plan) kernelWanted(q *proof.Program, name string, fn bool) bool {
	if !q.Point.Matches(name, fn) {
		return false
	}
	if q.Object.Beside {
		return slices.ContainsFunc(p.Programs, func(o *proof.Program) bool { return !o.Object.Beside && p.kernelWanted(o, name, fn) })
	}
	if len(p.kernels) == 0 || q.Object.Own {
		return true
	}
	return slices.ContainsFunc(p.kernels, func(g string) bool {
		return object.Point{Kind: object.KindEntry, Kernel: g, Func: fn}.Matches(name, fn)
	})
}

// Wants reports whether a kernel (or with fn set a device function) of that
// mangled name gets a program. An image without any such needs no rewriting.
func (p *Plan) Wants(name string, fn bool) bool {
	p.meet(name, fn)
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool { return p.kernelWanted(q, name, fn) })
}

// wantsAny reports whether a program wants one of the kernels of a module, or may want
// a device function that it has.
func (p *Plan) wantsAny(kernels []string) bool {
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool { return q.Point.Func || q.Point.Kind == object.KindCapture }) ||
		slices.ContainsFunc(kernels, func(name string) bool { return p.Wants(name, false) })
}

// wantsFile is Wants for all functions of a module that have a body.
func (p *Plan) wantsFile(f *ptx.File) bool {
	for i := range f.Funcs {
		if fn := &f.Funcs[i]; fn.HasBody() && p.Wants(f.Text(fn.Name), fn.Kind == ptx.FuncDevice) {
			return true
		}
	}
	return false
}

// Clocks reports whether programs in kernels and on the host both ask for the time.
func (p *Plan) Clocks() bool {
	for _, q := range p.Programs {
		for _, n := range q.Report.Helpers {
			if q.Unit.HostClock && n == helper.Time {
				return true
			}
		}
	}
	return false
}

// ReadsMemory reports whether a program in kernels reads memory at addresses of its own, so that
// [mapmem.Maps.SetReadable] is to say what there is.
func (p *Plan) ReadsMemory() bool {
	return slices.ContainsFunc(p.Programs, func(q *proof.Program) bool {
		return slices.ContainsFunc(q.Report.Helpers, func(n int32) bool {
			return slices.Contains(proof.ReadHelpers, n) || slices.Contains(proof.ReadStrHelpers, n)
		})
	})
}
