package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// A directRun is a program of kprobe/__directly_run that is to run, and how often.
type directRun struct {
	program     string
	count       int
	grid, block emu.Dim3
}

// maxRuns bounds what one --run asks for.
const maxRuns = 1_000_000

// parseDirectRun reads PROG[:COUNT[:GRID:BLOCK]].
func parseDirectRun(s string) (*directRun, error) {
	r := &directRun{count: 1, grid: emu.Dim3{X: 1, Y: 1, Z: 1}, block: emu.Dim3{X: 1, Y: 1, Z: 1}}
	f := strings.Split(s, ":")
	if r.program = f[0]; r.program == "" || len(f) == 3 || len(f) > 4 {
		return nil, fmt.Errorf("%q: want PROG, PROG:COUNT or PROG:COUNT:GRID:BLOCK", s)
	}
	var err error
	if len(f) > 1 {
		if r.count, err = strconv.Atoi(f[1]); err != nil || r.count < 1 || r.count > maxRuns {
			return nil, fmt.Errorf("%q: the count is 1 to %d", s, maxRuns)
		}
	}
	if len(f) == 4 {
		if r.grid, err = emu.ParseDim(f[2]); err == nil {
			r.block, err = emu.ParseDim(f[3])
		}
	}
	return r, err
}

// directly runs programs that are kernels of their own, on the GPU or else on the PTX
// machine, and shows their maps.
func (f *attachFlags) directly(e *env, plan *nvattach.Plan, settings []nvattach.Setting, texts []string) int {
	var runs []*directRun
	for _, text := range texts {
		r, err := parseDirectRun(text)
		if err != nil {
			return e.fail(exitUsage, "--run %v", err)
		}
		runs = append(runs, r)
	}
	if onSim, err := f.directlyOnGPU(e, plan, settings, runs); err != nil {
		return e.fail(exitFailed, "--run %v", err)
	} else if !onSim {
		return exitOK
	}
	d, err := newDirect(plan, settings, f.threads)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	for _, r := range runs {
		if err := d.run(ctx, r); err != nil {
			return e.fail(exitFailed, "--run %s: %v", r.program, err)
		}
	}
	var out bytes.Buffer
	if err := d.show(&out, f.json); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if _, err := out.WriteTo(e.stdout); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

// directlyOnGPU runs programs on the machine's GPU; onSim says that there is none, or that
// it is not wanted.
func (f *attachFlags) directlyOnGPU(e *env, plan *nvattach.Plan, settings []nvattach.Setting, runs []*directRun) (onSim bool, err error) {
	o := &gpu.DirectOptions{Options: gpu.Options{
		JIT: &jit.Options{}, Logger: e.debug, Report: func(text string) { e.notice("%s", text) },
	}}
	switch {
	case e.getenv(simDriverProbes) != "":
		s, err := sim.New(nil)
		if err != nil {
			return false, err
		}
		defer s.Close()
		go s.Serve(context.Background()) //nolint:errcheck // ended by Close
		o.Env = s.Env(os.Environ())
	case f.directSim || !hasDriver():
		return true, nil
	}
	var jobs []gpu.Direct
	for _, r := range runs {
		if _, err := plan.RunProgram(r.program); err != nil {
			return false, fmt.Errorf("%s: %w", r.program, err)
		}
		dim := func(d emu.Dim3) [3]uint32 { return [3]uint32{d.X, d.Y, d.Z} }
		jobs = append(jobs, gpu.Direct{Program: r.program, Count: r.count, Grid: dim(r.grid), Block: dim(r.block)})
	}
	so := &session.Options{Plan: plan, Settings: settings, Out: e.stdout, Direct: true, Maps: nvattach.MapOptions{Threads: f.threads}}
	if f.json {
		so.Format = session.FormatJSON
	}
	o.Session = session.New(so)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return false, errors.Join(gpu.RunDirect(ctx, jobs, o), o.Session.Close())
}

// direct is the machine of --run.
type direct struct {
	plan    *nvattach.Plan
	maps    *nvattach.Maps
	machine *emu.Machine
}

func newDirect(plan *nvattach.Plan, settings []nvattach.Setting, threads uint64) (*direct, error) {
	d := &direct{plan: plan, machine: emu.New(nil)}
	var err error
	if d.maps, err = plan.NewMaps(&nvattach.MapOptions{SMs: d.machine.Device().SMs, Threads: threads}); err != nil {
		return nil, err
	}
	const slack = 256 // maps want an address that is a multiple of it
	region, err := d.machine.Alloc(d.maps.Size()+slack, "maps of probes")
	if err != nil {
		return nil, err
	}
	base := (region.Base + slack - 1) &^ (slack - 1)
	if err := errors.Join(d.maps.Place(base), d.maps.Init(d.machine, 0, 0)); err != nil {
		return nil, err
	}
	for _, s := range settings {
		if err := d.maps.Apply(d.machine, s, nil); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *direct) run(ctx context.Context, r *directRun) error {
	text, name, err := d.plan.RunText(r.program, d.maps, 90)
	if err != nil {
		return err
	}
	file, err := ptx.Parse(name, text, nil)
	if err != nil {
		return err
	}
	module, err := d.machine.Load(file)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel(name)
	if err != nil {
		return err
	}
	for range r.count {
		if _, err := d.machine.Launch(ctx, kernel, &emu.LaunchConfig{Grid: r.grid, Block: r.block}); err != nil {
			return err
		}
	}
	return nil
}

// show writes what the programs printed, and their maps.
func (d *direct) show(out *bytes.Buffer, json bool) error {
	if d.maps.Print != nil {
		p := d.maps.NewPrinter(d.plan.Formats)
		if err := p.Drain(d.machine, true, func(_ int, text string) {
			out.WriteString(strings.TrimSuffix(text, "\n") + "\n")
		}); err != nil {
			return err
		}
	}
	for _, m := range d.maps.All {
		if m == d.maps.Print {
			continue
		}
		if r := d.maps.NewReader(m); r != nil {
			if err := r.Drain(d.machine, true, func(rec nvattach.Record) {
				fmt.Fprintf(out, "%s[sm %d] %s\n", m.Name, rec.SM, m.AppendRecord(nil, rec.Data))
			}); err != nil {
				return err
			}
			continue
		}
		t, err := d.maps.Read(d.machine, m)
		if err != nil {
			return err
		}
		if json {
			out.Write(append(t.AppendJSON(nil), '\n'))
		} else if err := t.Print(out, nil); err != nil {
			return err
		}
	}
	for _, q := range d.plan.Programs {
		if n, err := d.plan.EndedEarly(d.maps, d.machine, q); err != nil {
			return err
		} else if n > 0 {
			fmt.Fprintf(out, "%d runs of %s were ended by a check: an access out of bounds, or a loop without end\n", n, q.Name)
		}
	}
	return nil
}
