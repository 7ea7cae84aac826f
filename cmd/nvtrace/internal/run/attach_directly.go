package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/ptx/emu"
)

// maxRuns bounds what one --run asks for.
const maxRuns = 1_000_000

// parseDirectRun reads PROG[:COUNT[:GRID:BLOCK]].
func parseDirectRun(s string) (gpu.Direct, error) {
	r := gpu.Direct{Count: 1, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}
	f := strings.Split(s, ":")
	if r.Program = f[0]; r.Program == "" || len(f) == 3 || len(f) > 4 {
		return r, fmt.Errorf("%q: want PROG, PROG:COUNT or PROG:COUNT:GRID:BLOCK", s)
	}
	var err error
	if len(f) > 1 {
		if r.Count, err = strconv.Atoi(f[1]); err != nil || r.Count < 1 || r.Count > maxRuns {
			return r, fmt.Errorf("%q: the count is 1 to %d", s, maxRuns)
		}
	}
	if len(f) == 4 {
		var grid, block emu.Dim3
		if grid, err = emu.ParseDim(f[2]); err == nil {
			block, err = emu.ParseDim(f[3])
		}
		if err != nil {
			return r, fmt.Errorf("%q: %w; GRID and BLOCK are X, X,Y or X,Y,Z", s, err)
		}
		r.Grid, r.Block = [3]uint32{grid.X, grid.Y, grid.Z}, [3]uint32{block.X, block.Y, block.Z}
	}
	return r, nil
}

// directly runs programs that are kernels of their own, on the GPU or else on the PTX
// machine, and shows their maps.
func (f *attachFlags) directly(e *cli.Env, plan *nvattach.Plan, settings []object.Setting, texts []string) int {
	var runs []gpu.Direct
	for _, text := range texts {
		r, err := parseDirectRun(text)
		if err != nil {
			return e.Fail(cli.ExitUsage, "--run %v", err)
		}
		runs = append(runs, r)
	}
	for _, r := range runs {
		if _, err := plan.RunProgram(r.Program); err != nil {
			return e.Fail(cli.ExitFailed, "--run %s: %v", r.Program, err)
		}
	}
	so := &session.Options{Plan: plan, Settings: settings, Out: e.Stdout, Direct: true, Maps: mapmem.MapOptions{Threads: f.threads}}
	if f.json {
		so.Format = session.FormatJSON
	}
	if f.mapsFile != "" {
		f.mapsTo = new(mapsFile)
		if err := f.beginMaps(e, f.mapsFile); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		so.Out, so.Notices = f.mapsTo, e.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	probes := session.New(so)
	var err error
	if !f.directBy.driver && (f.directSim || !HasDriver()) {
		err = gpu.RunDirectSimulated(ctx, runs, probes)
	} else {
		err = directlyOnGPU(ctx, e, probes, runs, f.directBy)
	}
	err = errors.Join(err, probes.Close())
	if err := f.mapsTo.close(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "--run %v", err)
	}
	return cli.ExitOK
}

// directlyOnGPU runs programs on the machine's GPU, or through the simulated one's driver.
func directlyOnGPU(ctx context.Context, e *cli.Env, probes *session.Session, runs []gpu.Direct, by probesFlag) error {
	o := &gpu.DirectOptions{Options: gpu.Options{
		Session: probes, JIT: &jit.Options{}, Logger: e.Debug, Report: func(text string) { e.Notice("%s", text) },
	}}
	if by.driver {
		s, err := sim.New(nil)
		if err != nil {
			return err
		}
		defer s.Close()
		go s.Serve(context.Background()) //nolint:errcheck // ended by Close
		o.Env = s.Env(os.Environ())
	}
	return gpu.RunDirect(ctx, runs, o)
}
