package run

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
)

// idleAttach refuses flags of the verb that would do nothing: those that say something
// about a run where there is none, or about a dry run.
func idleAttach(fs *flag.FlagSet, dry, direct bool) (err error) {
	ofDry := flag.NewFlagSet("", flag.ContinueOnError)
	new(probe.DryFlags).Register(ofDry)
	fs.Visit(func(fl *flag.Flag) {
		name, dashes := fl.Name, "--"
		if len(name) == 1 {
			dashes = "-"
		}
		switch {
		case (ofDry.Lookup(name) != nil || name == "require") && !dry:
			err = fmt.Errorf("%s wants --dry-run", dashes+name)
		case (name == "sim" || name == "sim-probes" || name == "maps") && !direct:
			err = fmt.Errorf("--%s wants --run", name)
		case name == "v":
			err = errors.New("-v wants a program: nvtrace -v --attach probe.o -- command [args]")
		case name == "hold":
			err = errors.New("--hold wants a process: nvtrace --hold 20ms --attach probe.o -p PID")
		case name == "interval" || name == "verify":
			err = fmt.Errorf("--%s wants a program: nvtrace --%s --attach probe.o -- command [args]", name, name)
		case name == "dry-run" && direct:
			err = errors.New("--dry-run and --run exclude each other")
		}
	})
	return err
}

// AttachVerb looks at probe objects without running them.
func AttachVerb(e *cli.Env, args, command []string) int {
	var f attachFlags
	var dry probe.DryFlags
	var direct cli.StringList
	var list, header bool
	var folder string
	fs := cli.NewFlagSet(e, "attach", "[--list] [flags] [probe.o...] | --dry-run [flags] probe.o... IMAGE... | [--maps json] run.nvt")
	fs.BoolVar(&list, "list", true, "list the programs, their places in kernels, and the maps; without objects those that run now, with their IDs")
	fs.BoolVar(&header, "header", false, "print the header that sources of probes include, "+nvattach.HeaderName)
	fs.StringVar(&folder, "init", "", "make the folder `DIR` with a probe in C to begin with, its Makefile, the headers, and flags for editors")
	f.register(fs)
	fs.Var(&f.scripts.Texts, "e", "look into `PROGRAM`, as nvtrace -e runs it")
	dry.Register(fs)
	fs.Var(&direct, "run", "run a program of kprobe/__directly_run on the GPU, or on the PTX machine where there is none, and show the maps: `PROG[:COUNT[:GRID:BLOCK]]` (repeated)")
	fs.BoolVar(&f.directSim, "sim", false, "with --run, take the PTX machine even where there is a GPU")
	f.directBy.register(fs)
	var run controlFlags
	run.register(fs)
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if run.json.Given && (len(names) > 0 || f.any()) {
		return e.Fail(cli.ExitUsage, "attach --json is for the programs that run: nvtrace attach --list --json; of a recording: --maps=json")
	}
	if run.what != "" || list && len(names) == 0 && command == nil && !f.any() && given(fs, "list") {
		return run.do(e, names)
	}
	if folder != "" {
		return probe.InitProbes(e, folder)
	}
	if header {
		if _, err := fmt.Fprint(e.Stdout, nvattach.Header); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	}
	if len(names) == 1 && command == nil && view.IsRecording(names[0]) {
		return view.AttachedVerb(e, names[0], &cli.OptString{Given: f.json})
	}
	if len(names) == 1 && cli.IsPID(names[0]) {
		if _, err := os.Stat(names[0]); err != nil {
			return e.Fail(cli.ExitUsage, "attach looks into probe objects, and %s is a process; to run a probe there: nvtrace -p %s --attach probe.o", names[0], names[0])
		}
	}
	if err := e.Inputs(names); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	var images []string
	for _, name := range names {
		if dry.On && !probe.IsProbeObject(name) {
			images = append(images, name)
		} else {
			f.objects = append(f.objects, name)
		}
	}
	if dry.On && len(images) == 0 {
		for _, name := range f.objects { // one that is not there may be meant for an image
			if _, err := os.Stat(name); err != nil {
				return e.Fail(cli.ExitFailed, "%v", err)
			}
		}
		return e.Fail(cli.ExitUsage, "attach --dry-run wants probe objects and images: PTX, fat binaries, executables or libraries")
	}
	if err := f.scripts.Load(e); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if !f.any() || command != nil {
		return e.Fail(cli.ExitUsage, "attach wants probe objects; to run them, type: nvtrace --attach probe.o -- command [args]")
	}
	if err := idleAttach(fs, dry.On, len(direct) > 0); err != nil {
		return e.Fail(cli.ExitUsage, "attach: %v", err)
	}
	plan, settings, err := f.plan(e)
	if err == nil {
		err = rehearse(plan, settings, f.threads)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if len(direct) > 0 {
		return f.directly(e, plan, settings, direct)
	}
	if dry.On {
		dry.Require, dry.Machine = f.require, f.machineCode()
		return dry.Run(e, plan, &mapmem.MapOptions{Threads: f.threads}, images)
	}
	var b strings.Builder
	for _, o := range plan.Objects {
		err = errors.Join(err, o.List(&b))
	}
	if err = errors.Join(err, plan.List(&b)); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if _, err := fmt.Fprint(e.Stdout, b.String()); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}
