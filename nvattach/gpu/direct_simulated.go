package gpu

import (
	gocontext "context"
	"errors"
	"fmt"
	"time"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
	"nvtrace/traces/ranks"
)

// simulatedSM is what the PTX machine runs programs for: it takes the text of any.
const simulatedSM = 90

// RunDirectSimulated runs programs on the PTX machine, one after the other, in this
// process: as [RunDirect], where there is no GPU, and with neither a driver nor ptrace.
func RunDirectSimulated(ctx gocontext.Context, jobs []Direct, s *session.Session) error {
	machine := emu.New(nil)
	// What the machine's memory holds can be read between launches.
	c, err := s.Add(&session.Target{
		Rank: ranks.Unknown, SMs: machine.Device().SMs, Passive: true,
		Alloc: func(size uint64) (uint64, mapmem.Memory, error) {
			const slack = 256 // maps want an address that is a multiple of it
			region, err := machine.Alloc(size+slack, mapsName)
			if err != nil {
				return 0, nil, err
			}
			return (region.Base + slack - 1) &^ (slack - 1), machine, nil
		},
	})
	if err != nil {
		return err
	}
	for i := range jobs {
		if err = jobs[i].simulate(ctx, machine, c); err != nil {
			err = fmt.Errorf("%s: %w", jobs[i].Program, err)
			break
		}
	}
	return errors.Join(err, c.End())
}

// simulate runs one program as often as it is wanted.
func (d *Direct) simulate(ctx gocontext.Context, machine *emu.Machine, c *session.Context) error {
	text, name, err := c.RunText(d.Program, simulatedSM)
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
	dim := func(d [3]uint32) emu.Dim3 { return emu.Dim3{X: d[0], Y: d[1], Z: d[2]} }
	for range d.Count {
		if _, err := machine.Launch(ctx, kernel, &emu.LaunchConfig{Grid: dim(d.Grid), Block: dim(d.Block)}); err != nil {
			return err
		}
		if c.Live() {
			c.Look(time.Now())
		}
	}
	return nil
}
