package run

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/ioctl"
	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/host"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/traces/glob"
)

// attachFlags say which probes run, and how their maps are shown.
type attachFlags struct {
	objects, kernels, programs cli.StringList
	clangFlags                 cli.StringList
	places                     cli.StringList // of programs on the host: program=file:function
	scripts                    probe.ScriptFlags
	settings                   cli.StringList // of maps: name[key]=value, or how they are shown
	vars                       cli.StringList
	interval, hold             time.Duration
	fuel                       uint
	strict                     bool
	threads                    uint64
	verify                     verifyFlag
	allowExit, require         bool
	json, verbose              bool
	pin                        string               // that maps on the host are called when the run has ended; "": they are gone
	mapsFile                   string               // that maps are written to; "": standard error
	mapsTo                     *mapsFile            // it
	shown                      func([]script.Shown) // puts what scripts on the host show there; nil: it is shown apart
	directSim                  bool                 // of the verb attach
	directBy                   probesFlag           // of the verb attach
	inMachineCode              bool
	untestedArch               bool

	planned  *nvattach.Plan // of start; nil: none
	unplaced []string       // host programs whose functions were not there
}

func (f *attachFlags) register(fs *flag.FlagSet) {
	fs.Var(&f.objects, "attach", "run the eBPF programs of `OBJECT`, or of its source FILE.bpf.c, which clang compiles, in the program's kernels and functions (repeated)")
	fs.Var(&f.clangFlags, "clang-flags", "give clang these `FLAGS`, too, for the sources of --attach: '-I include -DN=4' (repeated)")
	f.scripts.Register(fs)
	fs.Var(&f.kernels, "kernel", "only in kernels whose name, mangled or demangled, matches `GLOB` (repeated)")
	fs.Var(&f.programs, "prog", "only the programs whose name matches `GLOB` (repeated)")
	fs.Var(&f.places, "at", "run a host program at another function than its section says, or one whose section says none: `PROGRAM=FILE:FUNCTION` (repeated)")
	fs.Var(&f.settings, "map", "set entries of a map before the first kernel: `NAME[KEY]=VALUE`, NAME=@FILE (repeated)")
	fs.StringVar(&f.pin, "map-pin", "", "keep the maps of programs on the host when the run has ended, for nvtrace maps pin and the next run, as `NAME`")
	fs.Var(&f.vars, "set", "set a global variable of a probe: `VAR=VALUE` (repeated)")
	fs.Func("maps", "show maps as `FORMAT` text or json, or write them to a file: FILE.json, or another name with a . or /; - is stdout", func(s string) error {
		f.json, f.mapsFile = s == "json" || strings.HasSuffix(s, ".json"), ""
		if s == "-" || strings.ContainsAny(s, "./") {
			f.mapsFile = s
		} else if s != "json" && s != "text" {
			return errors.New("want text, json, or the name of a file with a . or / in it")
		}
		return nil
	})
	fs.DurationVar(&f.interval, "interval", 0, "show maps every `TIME` (1s), not at the end only; with --format=parquet: how long a part is")
	fs.DurationVar(&f.hold, "hold", gpu.DefaultHold, "with -p: hold a thread for no more than `TIME` of any 200ms to put probes into kernels, or take them out (a piece of work that takes longer is not cut)")
	fs.BoolVar(&f.strict, "strict", false, "refuse probes that need checks at run time, or change a map's value in a way that loses other threads' changes")
	fs.UintVar(&f.fuel, "fuel", 0, "instructions that one run of a probe may execute, `N` (0: a million, as in Linux)")
	fs.Uint64Var(&f.threads, "map-threads", 0, "threads of a grid that per-thread maps have values for, `N` (0: 1048576)")
	fs.BoolVar(&f.allowExit, "allow-exit", false, "allow bpftime's helper 507, by which a probe ends the kernel's thread")
	fs.Var(&f.verify, "verify", "run each probed kernel's first launch with and without probes on copies of its memory, and compare; =`N`: each N-th launch, too")
	fs.BoolVar(&f.verbose, "v", false, "list each kernel that was probed, or was not and why, also those that were not launched; say how often the program was stopped once it had begun; and have all tables of the summary")
	fs.BoolVar(&f.inMachineCode, "machine-code", true, "put probes into machine code where the driver takes that (GPUs of sm_90); =false: into PTX alone")
	fs.BoolVar(&f.untestedArch, "untested-arch", false, "put probes into the machine code of GPUs on which that was never tried, too")
	fs.BoolVar(&f.require, "require", false, "refuse an image in which a wanted kernel can't be probed")
}

// machineCode says into which machine code the probes are put.
func (f *attachFlags) machineCode() gpu.MachineCode {
	switch {
	case !f.inMachineCode:
		return gpu.NoMachineCode
	case f.untestedArch:
		return gpu.AnyMachineCode
	}
	return gpu.TestedMachineCode
}

// any reports whether there is something to attach; programs have been compiled.
func (f *attachFlags) any() bool { return len(f.objects) > 0 || f.scripts.Object() != nil }

// plan loads the objects and proves their programs safe.
func (f *attachFlags) plan(e *cli.Env, more ...*object.Object) (*nvattach.Plan, []object.Setting, error) {
	objs := slices.DeleteFunc(slices.Clone(more), func(o *object.Object) bool { return o == nil })
	for _, name := range f.objects {
		o, err := probe.OpenProbes(e, name, probe.Words(f.clangFlags))
		if err != nil {
			return nil, nil, err
		}
		objs = append(objs, o)
	}
	for _, text := range f.places {
		if err := object.PlaceProgram(objs, text); err != nil {
			return nil, nil, err
		}
	}
	if f.pin != "" {
		if _, err := newPinFolder(e.Getenv, f.pin); err != nil {
			return nil, nil, fmt.Errorf("--map-pin: %w", err)
		}
		if f.scripts.Object() != nil {
			return nil, nil, errors.New("--map-pin keeps maps of objects; what a script counts is shown at its end")
		}
	}
	settings, err := f.scripts.Begin()
	if err != nil {
		return nil, nil, err
	}
	if o := f.scripts.Object(); o != nil {
		objs = append(objs, o)
	}
	for _, text := range f.settings {
		s, err := object.ParseMapSetting(text)
		if err != nil {
			return nil, nil, err
		}
		if done, err := object.SetNamed(objs, s); err != nil {
			return nil, nil, err
		} else if done {
			continue
		}
		settings = append(settings, s)
	}
	for _, text := range f.vars {
		s, err := object.ParseVarSetting(text)
		if err != nil {
			return nil, nil, err
		}
		if err := object.SetVar(objs, s); err != nil {
			return nil, nil, err
		}
	}
	if !slices.ContainsFunc(objs, func(o *object.Object) bool { return len(o.Programs) > 0 && !o.Beside }) {
		objs = slices.DeleteFunc(objs, func(o *object.Object) bool { return o.Beside })
	}
	plan, err := nvattach.NewPlan(objs, &nvattach.PlanOptions{
		AllowExit: f.allowExit, Fuel: uint32(min(f.fuel, math.MaxUint32)), Kernels: f.kernels, Programs: f.programs, Strict: f.strict,
	})
	if err != nil {
		return nil, nil, err
	}
	f.scripts.Planned(plan)
	return plan, settings, nil
}

// start begins a session of the probes, nil if there are none. stamps, if not nil, is that of
// [session.Stamps] among them, and stamped is told.
func (f *attachFlags) start(e *cli.Env, stamps *object.Object, stamped func(session.Stamp)) (*session.Session, error) {
	if !f.any() && stamps == nil {
		return nil, nil
	}
	plan, settings, err := f.plan(e, stamps)
	if err != nil {
		return nil, err
	}
	f.planned = plan
	if err := host.Check(plan); err != nil {
		return nil, err
	}
	if err := rehearse(plan, settings, f.threads); err != nil {
		return nil, err
	}
	for _, q := range plan.Programs {
		for _, w := range q.Warnings() {
			e.Notice("%s", w)
		}
	}
	for _, o := range plan.Objects {
		for _, i := range o.Ignored {
			if o.TailCalled(i.Name) {
				continue
			}
			if f.require && f.chosen(i.Name) {
				return nil, fmt.Errorf("%w: %s: program %s is not run: %s", errRequired, o.Name, i.Name, i.Reason)
			}
			e.Notice("%s: program %s is not run: %s", o.Name, i.Name, i.Reason)
		}
	}
	for _, p := range plan.Programs {
		if p.Point.Kind == object.KindRun {
			e.Notice("%s: program %s is not run: it is a kernel of its own; nvtrace attach --run %s runs it", p.Object.Name, p.Name, p.Name)
		}
	}
	if _, apart := plan.SharedMaps(); len(apart) > 0 {
		e.Notice("programs in kernels and on the host both use %s: each side sees its own contents, which are shown apart", strings.Join(apart, ", "))
	}
	o := &session.Options{
		Plan: plan, Settings: settings, Out: e.Stderr, Interval: f.interval, Required: f.require, Verify: int(f.verify),
		Maps: mapmem.MapOptions{Threads: f.threads}, Verbose: f.verbose, Script: f.scripts.InKernels(), Began: f.scripts.Began,
	}
	if stamps != nil && slices.Contains(plan.Objects, stamps) {
		o.Stamped = stamped
	}
	if p := f.scripts.InKernels(); p != nil && f.interval == 0 {
		o.Interval = time.Duration(p.Every())
	}
	if f.json {
		o.Format = session.FormatJSON
	}
	if f.mapsFile != "" {
		f.mapsTo = new(mapsFile)
		o.Out, o.Notices = f.mapsTo, e.Stderr
	}
	s := session.New(o)
	if f.json || f.mapsFile != "" { // one document holds what probes on the host show, too
		f.shown = s.Show
	}
	return s, nil
}

// kernelProbes reports whether programs run in kernels.
func (f *attachFlags) kernelProbes() bool { return f.planned != nil && len(f.planned.Programs) > 0 }

// chosen reports whether --prog, if it is given, chooses a program.
func (f *attachFlags) chosen(program string) bool {
	return len(f.programs) == 0 || slices.ContainsFunc(f.programs, func(g string) bool { return glob.Match(g, program) })
}

// unmatched says which selectors have matched no kernel. With --require, that is an
// error.
func (f *attachFlags) unmatched(e *cli.Env) error {
	if len(f.unplaced) > 0 && f.require {
		return fmt.Errorf("%w: %s", errRequired, f.unplaced[0])
	}
	if !f.kernelProbes() {
		return nil
	}
	for _, q := range f.planned.Unplaced() {
		text := f.placeOf(q.Object, q.Name, q.Section) + ": no instruction of the kernels that were loaded has the opcode " + q.Point.Opcode
		if !strings.HasSuffix(q.Point.Opcode, "*") {
			text += "; it has all its parts, as ld.global.f32 does, or ends in a *: " + q.Point.Opcode + "*"
		}
		e.Notice("%s", text)
	}
	met, list := f.planned.Met(), f.planned.Unmatched()
	if len(met) == 0 && !f.require {
		return nil // the session has said it
	}
	const most = 4
	for i, u := range list {
		if i == most {
			e.Notice("%d more selectors match no kernel", len(list)-most)
			break
		}
		what := "--kernel " + u.Pattern
		if u.Program != nil {
			what = f.placeOf(u.Program.Object, u.Program.Name, u.Program.Section)
		}
		text := what + ": the program loaded no kernel of that name"
		if len(met) == 0 {
			text = what + ": the program loaded no kernel"
		} else if near := ioctl.Suggest(u.Pattern, slices.Values(met)); near != "" {
			text += near
		} else {
			text += "; it loaded " + cli.SomeOf(met, 5)
		}
		if f.require {
			return fmt.Errorf("%w: %s", errRequired, text)
		}
		e.Notice("%s", text)
	}
	return nil
}

// placeOf says where a program of an object is to run, as it was asked for.
func (f *attachFlags) placeOf(o *object.Object, name, section string) string {
	if o == f.scripts.Object() {
		return f.scripts.Program.Place(name)
	}
	return fmt.Sprintf("program %s, section %s", name, section)
}

// errRequired: --require, and a kernel can't be probed.
var errRequired = errors.New("--require")

// beginMaps opens the file that maps are written to, "" for none.
func (f *attachFlags) beginMaps(e *cli.Env, name string) (err error) {
	m := f.mapsTo
	if m == nil || name == "" {
		return nil
	}
	if err = e.RefuseInput(name); err == nil {
		err = m.open(e, name)
	}
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}

// replaced returns an error if programs are to run at functions of the program's file that
// the simulated GPU replaces, and warns where a glob chooses them beside others.
func (f *attachFlags) replaced(e *cli.Env, command string) error {
	file, err := exec.LookPath(command)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if f.planned == nil || err != nil {
		return nil //nolint:nilerr // starting it says so
	}
	names := sync.OnceValue(func() []string { return sim.Replaced(file) })
	for _, q := range f.planned.Host {
		if !q.Point.Function() || q.Point.API() || !q.Point.InFile(file) {
			continue
		}
		i := slices.IndexFunc(names(), q.Point.Matches)
		if i < 0 {
			continue
		}
		name := names()[i]
		err := fmt.Errorf("program %s, section %s: with --sim the simulated GPU takes the place of %s in %s, which has the CUDA runtime in it, so that no program runs there; use api:%s, or link it again with nvcc -cudart shared", q.Name, q.Section, name, command, name)
		if name == q.Point.Func {
			return err
		}
		e.Notice("%v", err)
	}
	return nil
}

// pinned returns the folder that --map-pin names, nil if it does not.
func (f *attachFlags) pinned(e *cli.Env) *pinFolder {
	if f.pin == "" {
		return nil
	}
	p, _ := newPinFolder(e.Getenv, f.pin) // it was checked
	return p
}
