package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

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
		if err != nil {
			err = fmt.Errorf("%q: %w; GRID and BLOCK are X, X,Y or X,Y,Z", s, err)
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
	for _, r := range runs {
		if _, err := plan.RunProgram(r.program); err != nil {
			return e.fail(exitFailed, "--run %s: %v", r.program, err)
		}
	}
	so := &session.Options{Plan: plan, Settings: settings, Out: e.stdout, Direct: true, Maps: nvattach.MapOptions{Threads: f.threads}}
	if f.json {
		so.Format = session.FormatJSON
	}
	if f.mapsFile != "" {
		f.mapsTo = new(mapsFile)
		if err := f.beginMaps(e, f.mapsFile); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		so.Out, so.Notices = f.mapsTo, e.stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	run := f.directlyOnGPU
	if e.getenv(simDriverProbes) == "" && (f.directSim || !hasDriver()) {
		run = f.directlyOnMachine
	}
	err := run(ctx, e, so, runs)
	if err := f.mapsTo.close(); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if err != nil {
		return e.fail(exitFailed, "--run %v", err)
	}
	return exitOK
}

// directlyOnGPU runs programs on the machine's GPU.
func (f *attachFlags) directlyOnGPU(ctx context.Context, e *env, so *session.Options, runs []*directRun) error {
	o := &gpu.DirectOptions{Options: gpu.Options{
		JIT: &jit.Options{}, Logger: e.debug, Report: func(text string) { e.notice("%s", text) },
	}}
	if e.getenv(simDriverProbes) != "" {
		s, err := sim.New(nil)
		if err != nil {
			return err
		}
		defer s.Close()
		go s.Serve(context.Background()) //nolint:errcheck // ended by Close
		o.Env = s.Env(os.Environ())
	}
	var jobs []gpu.Direct
	for _, r := range runs {
		dim := func(d emu.Dim3) [3]uint32 { return [3]uint32{d.X, d.Y, d.Z} }
		jobs = append(jobs, gpu.Direct{Program: r.program, Count: r.count, Grid: dim(r.grid), Block: dim(r.block)})
	}
	o.Session = session.New(so)
	return errors.Join(gpu.RunDirect(ctx, jobs, o), o.Session.Close())
}

// directlyOnMachine runs programs on the PTX machine.
func (f *attachFlags) directlyOnMachine(ctx context.Context, _ *env, so *session.Options, runs []*directRun) error {
	machine := emu.New(nil)
	s := session.New(so)
	// What the machine's memory holds can be read between launches.
	c, err := s.Add(&session.Target{
		SMs: machine.Device().SMs, Passive: true,
		Alloc: func(size uint64) (uint64, nvattach.Memory, error) {
			const slack = 256 // maps want an address that is a multiple of it
			region, err := machine.Alloc(size+slack, nameOfMaps)
			if err != nil {
				return 0, nil, err
			}
			return (region.Base + slack - 1) &^ (slack - 1), machine, nil
		},
	})
	if err != nil {
		return errors.Join(err, s.Close())
	}
	for _, r := range runs {
		if err = r.onMachine(ctx, machine, c); err != nil {
			err = fmt.Errorf("%s: %w", r.program, err)
			break
		}
	}
	return errors.Join(err, c.End(), s.Close())
}

// onMachine runs one program as often as it is wanted.
func (r *directRun) onMachine(ctx context.Context, machine *emu.Machine, c *session.Context) error {
	text, name, err := c.RunText(r.program, 90)
	if err != nil {
		return err
	}
	file, err := ptx.Parse(name, text, nil)
	if err != nil {
		return err
	}
	module, err := machine.Load(file)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel(name)
	if err != nil {
		return err
	}
	for range r.count {
		if _, err := machine.Launch(ctx, kernel, &emu.LaunchConfig{Grid: r.grid, Block: r.block}); err != nil {
			return err
		}
		if c.Live() {
			c.Look(time.Now())
		}
	}
	return nil
}
