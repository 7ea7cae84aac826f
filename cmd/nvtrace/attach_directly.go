package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach"
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

// directly runs programs that are kernels of their own, on the PTX machine, and
// shows their maps.
func (f *attachFlags) directly(e *env, plan *nvattach.Plan, settings []nvattach.Setting, texts []string) int {
	var runs []*directRun
	for _, text := range texts {
		r, err := parseDirectRun(text)
		if err != nil {
			return e.fail(exitUsage, "--run %v", err)
		}
		runs = append(runs, r)
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
	var q *nvattach.PlannedProgram
	var have []string
	for _, p := range d.plan.Programs {
		if p.Point.Kind == nvattach.KindRun {
			have = append(have, p.Name)
			if p.Name == r.program {
				q = p
			}
		}
	}
	if q == nil {
		return fmt.Errorf("no program of that name is in a section kprobe/__directly_run; there are: %s", strings.Join(have, ", "))
	}
	text, name, err := d.plan.RunModule(q, d.maps, ptx.Version{Major: 8}, ptx.Target{SM: 90})
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
