package nvattach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
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
	Programs []*PlannedProgram
	Host     []*PlannedHost // programs that run on the host
	kernels  []string
	matched  matched

	mu        sync.Mutex // held while code is written: units know one place at a time
	kept      kept
	units     map[*object.Object]*unit
	formats   formats
	sites     []Site
	keys      placeKeys
	slots     int // counters of the programs
	hostSlots int // those on the host
}

// kept is code that many modules get alike.
type kept struct {
	templates map[keptKey]*template
	checked   map[keptCheck]bool
	bodies    map[bodyKey]*compiledBody
	codes     map[codeKey]*compiledBody // of programs of KindCapture
}

// mostKept bounds the templates that are kept.
const mostKept = 1024

// A keptKey is what a program's code depends on that says nothing of its place.
type keptKey struct {
	q    *PlannedProgram
	maps *mapmem.Maps
	dialect
}

// A keptCheck is a checkKey in a module of some version and target.
type keptCheck struct {
	checkKey
	dialect
}

// A dialect is what a module may say.
type dialect struct {
	version ptx.Version
	target  ptx.Target
	stem    string // of names that are new in it
	patch   bool   // it is compiled with --compile-as-tools-patch
	each    bool   // see bodyForm
}

// A PlannedProgram is a program with what was found out about it.
type PlannedProgram struct {
	*object.Program
	Report bpf.Report
	// Increments is how many "*p += n" became atomic; see PlanOptions.Racy.
	Increments int

	verified *bpf.Verified
	fields   []int                   // numbers of the context's fields
	recounts map[int]atomics.Recount // calls whose value is counted for them
	inserts  map[int]bool            // calls that only insert; see insertions
	unit     *unit
	plain    *PlannedProgram // the program without places for keys, where this one has some
	counter  int             // number of the program
	ends     int             // number of the first counter of runs that were ended early
}

// captureText is how much of an instruction's text a program of KindCapture sees.
const captureText = 1024

// NewPlan proves the objects' programs safe. The error joins one for each program
// that is refused (*bpf.RefusedError, with the object's name before it), or has
// ErrNoProgram in its chain.
func NewPlan(objs []*object.Object, o *PlanOptions) (*Plan, error) {
	if o == nil {
		o = &PlanOptions{}
	}
	p := &Plan{Objects: objs, kernels: o.Kernels, units: make(map[*object.Object]*unit)}
	if err := object.CheckBlocks(objs); err != nil {
		return nil, err
	}
	var errs []error
	clock := slices.ContainsFunc(objs, func(obj *object.Object) bool {
		return slices.ContainsFunc(obj.Host, func(q *object.HostProgram) bool { return obj.Own || wanted(o.Programs, q.Name) })
	})
	for _, obj := range objs {
		u := &unit{obj: obj, clock: clock, exit: o.AllowExit, formats: &p.formats}
		p.units[obj] = u
		maps := u.envMaps()
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
		helpers := u.helpers()
		first := len(p.Programs)
		check := func(prog *object.Program, slots func(*bpf.CallInfo) bool) (*PlannedProgram, error) {
			u.slots = slots
			defer func() { u.slots = nil }()
			return u.verify(prog, &bpf.Env{Maps: maps, Helpers: helpers, Fuel: o.Fuel, Elected: obj.Own, Slots: slots}, o.Racy)
		}
		verify := func(prog *object.Program) *PlannedProgram {
			q, err := check(prog, nil)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", obj.Name, err))
			}
			return q
		}
		for _, prog := range programs {
			if q := verify(prog); q != nil {
				q.counter = len(p.Programs)
				p.Programs = append(p.Programs, q)
			}
		}
		for _, prog := range host {
			q, err := u.verifyHost(prog, maps, o.Fuel)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", obj.Name, err))
				continue
			}
			p.Host = append(p.Host, q)
		}
		if len(errs) > 0 {
			continue
		}
		own := together(u.defs, maps, p.Programs[first:])
		joined := make([]bool, len(maps)) // those whose part for kernels is the GPU's alone
		for i, d := range u.defs {
			if joined[i] = maps[i].System && p.joins(d); joined[i] {
				maps[i].System = false
			}
		}
		for i, q := range p.Programs[first:] {
			if (!own || !q.usesOwn()) && !q.usesAny(joined) {
				continue
			}
			if again := verify(q.Program); again != nil {
				again.counter = q.counter
				p.Programs[first+i] = again
			}
		}
		for i, q := range p.Programs[first:] {
			p.Programs[first+i] = u.place(p, q, maps, joined, check)
		}
	}
	if o.Strict {
		for _, q := range p.Programs {
			errs = append(errs, q.strict()...)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(p.Programs)+len(p.Host) == 0 {
		return nil, noProgram(objs, o.Programs)
	}
	for _, glob := range o.Programs {
		if !slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool { return object.Glob(glob, q.Name) }) &&
			!slices.ContainsFunc(p.Host, func(q *PlannedHost) bool { return object.Glob(glob, q.Name) }) {
			return nil, noProgram(objs, []string{glob})
		}
	}
	for _, q := range p.Programs {
		q.ends = p.slots
		if q.plain != nil {
			q.plain.ends = q.ends
			p.slots += emit.EndSlots * max(0, len(q.plain.Report.Ends)-len(q.Report.Ends))
		}
		p.slots += emit.EndSlots * len(q.Report.Ends)
	}
	p.hostSlots = mapmem.SlotBusyHomes + 1
	for _, q := range p.Host {
		q.slot = p.hostSlots
		p.hostSlots += 1 + len(q.Machine.Ends)
	}
	return p, nil
}

// usesAny reports whether the program uses one of some maps.
func (q *PlannedProgram) usesAny(some []bool) bool {
	for i, is := range some {
		if is && q.Report.Maps[i].Used {
			return true
		}
	}
	return false
}

// together says of the variables that each thread has what is known once all programs
// are: that none stores what is different in the threads of a warp. It reports whether
// that is news.
func together(defs []*object.MapDef, maps []bpf.Map, programs []*PlannedProgram) bool {
	news := false
	for i, d := range defs {
		if !d.Thread || slices.ContainsFunc(programs, func(q *PlannedProgram) bool { return q.Report.Maps[i].Apart }) {
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
	return object.Markf(ErrNoProgram, "the objects have no program")
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
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return object.Glob(g, name) })
}

// envMaps describes the object's maps to the compiler.
func (u *unit) envMaps() []bpf.Map {
	var list []bpf.Map
	for _, d := range u.obj.Maps {
		if !d.Supported() {
			continue
		}
		if d.Inner != nil { // behind it is what its values are like, which no object has
			u.defs = append(u.defs, d, d.Inner)
			list = append(list, bpf.Map{Name: d.Name, KeySize: d.KeySize, ValueSize: d.ValueSize, MaxEntries: d.MaxEntries, Inner: len(list) + 2}, env(d.Inner))
			continue
		}
		list = append(list, env(d))
		u.defs = append(u.defs, d)
	}
	return list
}

// env is what programs need to know of a map whose values are no maps.
func env(m *object.MapDef) bpf.Map {
	e := bpf.Map{Thread: m.Thread, Block: m.PerBlock(), Each: m.PerSM(), Name: m.Name, KeySize: m.KeyBytes(), ValueSize: m.ValueSize, MaxEntries: m.MaxEntries, Direct: m.Data, ReadOnly: m.ReadOnly}
	if m.Data && m.ReadOnly {
		e.Contents = m.Initial
	}
	return e
}

// verify proves one program safe.
func (u *unit) verify(prog *object.Program, env *bpf.Env, racy bool) (*PlannedProgram, error) {
	for i := range prog.Insns {
		in := &prog.Insns[i]
		if !in.IsLoadFromMap() {
			continue
		}
		d := u.obj.Map(in.Reference())
		if d != nil && (!d.Supported() || d.HostOnly()) {
			return nil, fmt.Errorf("program %s: map %s has type %s, which can't be had on a GPU; there are hash, array, percpu_hash, percpu_array, lru_hash, lru_percpu_hash, ringbuf, perf_event_array, %s and bpftime's", prog.Name, d.Name, d.Type, object.MapBlockArray)
		}
		if d != nil {
			if err := d.CheckPlace(prog); err != nil {
				return nil, err
			}
		}
	}
	q, err := u.prepare(prog, env, racy, true)
	if err == nil && !q.counted() {
		q, err = u.prepare(prog, env, racy, false)
	}
	return q, err
}

// counted reports whether it is known what is counted for calls that want it.
func (q *PlannedProgram) counted() bool {
	for _, r := range q.recounts {
		if _, _, ok := q.counts(r); !ok {
			return false
		}
	}
	return true
}

// counts returns the map and the index that a recount is of.
func (q *PlannedProgram) counts(r atomics.Recount) (d *object.MapDef, key uint32, ok bool) {
	for i, d := range q.unit.defs {
		for _, c := range q.Report.Maps[i].Calls {
			if d.PerBlock() || d.Name != r.Name || c.Helper != helper.MapLookup || c.Info.Insn != r.Lookup || len(c.Info.Bytes[1]) != 4 {
				continue
			}
			key := binary.LittleEndian.Uint32(c.Info.Bytes[1])
			return d, key, key < d.MaxEntries
		}
	}
	return nil, 0, false
}

// strange reports whether an instruction names a register that there is not. It is the
// proof that refuses it.
func strange(in asm.Instruction) bool { return in.Dst > asm.RFP || in.Src > asm.RFP }

// prepare proves one program safe; later is that of atomicUpdates.
func (u *unit) prepare(prog *object.Program, env *bpf.Env, racy, later bool) (*PlannedProgram, error) {
	q := &PlannedProgram{Program: prog, unit: u}
	env.Context, q.fields = contextOf(prog.Point.Kind, captureText)
	env.Narrow = !racy
	rewrite := !racy && !slices.ContainsFunc(prog.Insns, strange)
	err := q.prove(env, rewrite, later)
	if err != nil && rewrite {
		// It is refused for what the program says itself.
		q.Increments, q.recounts, q.inserts = 0, nil, nil
		err = q.prove(env, false, later)
	}
	if err != nil {
		return nil, err
	}
	q.Report = *q.verified.Report()
	return q, nil
}

// prove verifies a program, rewritten if asked for so that threads lose nothing of what
// others change. Compilers let several paths share code in which a register points to
// different things, a map's value and the stack for instance. The verifier, which looks at
// all paths together, refuses that; so the code that is shared is given to each path on
// its own, a few times, as is an insertion's call that other paths share.
func (q *PlannedProgram) prove(env *bpf.Env, rewrite, later bool) (first error) {
	insns, skip, splits := q.Insns, map[int]bool{}, 0
	split := func(at int) (ok bool) {
		if splits++; splits <= atomics.MaxSplits {
			insns, ok = atomics.Split(insns, at)
		}
		return ok
	}
	for {
		ready, stores := insns, []int(nil)
		if rewrite {
			var shared []int
			ready, stores, shared = q.rewrite(insns, env, skip, later)
			if len(shared) > 0 && split(shared[0]) {
				continue
			}
		}
		var err error
		if q.verified, err = bpf.Verify(&bpf.Program{Name: q.Name, Insns: ready}, env); err == nil {
			return nil
		}
		why, refused := errors.AsType[*bpf.RefusedError](err)
		if refused && slices.Contains(stores, why.Insn) && len(skip) < mostSkipped {
			// What may not be atomic, at an address that is not aligned for instance,
			// stays as it was.
			skip[why.Insn] = true
			continue
		}
		if first == nil {
			first = err // about the program as it is in the file
		}
		if !refused || why.Insn < 0 || !split(why.Insn) {
			return first
		}
	}
}

// rewrite returns the program with as many instructions, in which what is changed in
// memory that threads share is changed atomically where that can be done; at which stores,
// and the calls of insertions that other paths share.
func (q *PlannedProgram) rewrite(insns asm.Instructions, env *bpf.Env, skip map[int]bool, later bool) (out asm.Instructions, stores, shared []int) {
	o := q.unit.obj
	out, stores = atomics.Increments(insns, o.AtomicMap, env.Helpers, skip)
	out, q.Increments, q.recounts = atomics.Updates(out, o.AtomicMap, env.Helpers, later)
	out = atomics.WithoutCopies(out, o.AtomicMap, env.Helpers)
	q.Increments += len(stores)
	q.inserts, shared = atomics.Insertions(atomics.NewFlow(out, env.Helpers), o.AtomicMap)
	return out, stores, shared
}

// mostSkipped bounds how often a program is proven again for increments that may not be
// atomic.
const mostSkipped = 32

// Formats returns the formats of bpf_printk that are known so far, for
// [Maps.NewPrinter].
func (p *Plan) Formats() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.formats.list)
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

// A NumberedSite is a place whose number a program reads.
type NumberedSite struct {
	Number int // ctx->site
	Site
}

// NumberedSites returns the places of those programs that read the number of theirs.
func (p *Plan) NumberedSites() []NumberedSite {
	if p == nil {
		return nil
	}
	reads := map[string]bool{}
	for _, q := range p.Programs {
		if !q.Object.Script && !q.Object.Own && slices.ContainsFunc(q.Report.Fields, func(i int) bool { return q.fields[i] == fieldSite }) {
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
	return slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool {
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
		use := q.use(d)
		if use == nil {
			continue
		}
		if only && !use.AddOnly() && !(d.Layout() == object.LayoutHash && q.addsOrInserts(use)) {
			return nil
		}
		if !set.add(use) {
			return nil
		}
	}
	return set.list
}

// addsOrInserts reports whether a program does nothing with a hash but look values up,
// add to them and insert keys: one that is there keeps its value then.
func (q *PlannedProgram) addsOrInserts(use *bpf.MapUse) bool {
	for _, c := range use.Calls {
		switch flags := &c.Info.Consts[3]; c.Helper {
		case helper.MapLookup, helper.MapValue:
		case helper.MapUpdate:
			if !q.inserts[c.Info.Insn] && (!flags.Known || flags.Value != helper.FlagNoExist) {
				return false
			}
		default:
			return false
		}
	}
	return !use.Loads && !use.Stores && !use.Atomics
}

// deletes reports whether a program may delete keys of a map.
func (p *Plan) deletes(d *object.MapDef) bool {
	for _, q := range p.Programs {
		i := slices.Index(q.unit.defs, d)
		if i >= 0 && i < len(q.Report.Maps) && slices.ContainsFunc(q.Report.Maps[i].Calls, func(c bpf.MapCall) bool { return c.Helper == helper.MapDelete }) {
			return true
		}
	}
	return false
}

// kernelWanted reports whether a program's section, and the plan's kernels, name a
// function.
func (p *Plan) kernelWanted(q *PlannedProgram, name string, fn bool) bool {
	if !q.Point.Matches(name, fn) {
		return false
	}
	if q.Object.Beside {
		return slices.ContainsFunc(p.Programs, func(o *PlannedProgram) bool { return !o.Object.Beside && p.kernelWanted(o, name, fn) })
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
	return slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool { return p.kernelWanted(q, name, fn) })
}

// wantsAny reports whether a program wants one of the kernels of a module, or may want
// a device function that it has.
func (p *Plan) wantsAny(kernels []string) bool {
	return slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool { return q.Point.Func || q.Point.Kind == object.KindCapture }) ||
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
