package code

import (
	"context"
	"fmt"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ptx/emu"
)

// dimFlag is a flag "X[,Y[,Z]]".
type dimFlag struct {
	d   *emu.Dim3
	set bool
}

// String implements flag.Value.
func (f *dimFlag) String() string { return "" }

// Set implements flag.Value.
func (f *dimFlag) Set(s string) (err error) {
	*f.d, err = emu.ParseDim(s)
	f.set = err == nil
	return err
}

func ptxRun(e *cli.Env, args []string) int {
	run := emu.Run{Grid: emu.Dim3{X: 1, Y: 1, Z: 1}, Block: emu.Dim3{X: 1, Y: 1, Z: 1}, Options: &emu.Options{Printf: e.Content()}}
	var texts cli.StringList
	var shared uint
	var timeout time.Duration
	var stats bool
	fs := cli.NewFlagSet(e, "ptx run", "[flags] FILE")
	fs.StringVar(&run.Kernel, "kernel", "", "the kernel `NAME`; not needed where the file has one")
	fs.Var(&dimFlag{d: &run.Grid}, "grid", "blocks, `X[,Y[,Z]]`")
	fs.Var(&dimFlag{d: &run.Block}, "block", "threads of a block, `X[,Y[,Z]]`")
	fs.Var(&dimFlag{d: &run.Cluster}, "cluster", "blocks of a cluster, `X[,Y[,Z]]`")
	fs.UintVar(&shared, "shared", 0, "`BYTES` of dynamic shared memory")
	fs.Var(&texts, "arg", "an argument, in order, `VALUE` u32:5, f32:1.5, hex:0011, buf:FILE[:out=FILE], zeros:BYTES[:out=FILE]")
	fs.BoolVar(&run.Cooperative, "cooperative", false, "all blocks run at the same time")
	fs.BoolVar(&run.Race, "race", false, "report accesses of shared and global memory that race; exit status 1 if there are any")
	fs.BoolVar(&stats, "stats", false, "print what was executed")
	fs.Uint64Var(&run.Options.Budget, "budget", 0, "end a launch after `N` thread instructions (0: no limit)")
	fs.DurationVar(&timeout, "timeout", 0, "end a launch after `TIME` (0: no limit)")
	fs.IntVar(&run.Options.Workers, "workers", 0, "`N` blocks are executed at the same time (0: one a processor; 1: deterministic)")
	paths, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(paths) != 1 {
		return e.Fail(cli.ExitUsage, "ptx run wants one file")
	}
	run.SharedBytes = uint32(min(shared, 1<<31))
	for _, text := range texts {
		a, err := emu.ParseArg(text, nil)
		if err != nil {
			return e.Fail(cli.ExitUsage, "--arg: %v", err)
		}
		run.Args = append(run.Args, a)
	}
	var err error
	if run.File, err = parsePTX(e, paths[0]); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return finishRun(e, &run, ctx, stats)
}

// finishRun launches the kernel and reports.
func finishRun(e *cli.Env, run *emu.Run, ctx context.Context, stats bool) int {
	start := time.Now()
	run.WriteFile = func(name string, data []byte) error { return e.WriteFile(name, data, cli.ModeFile) }
	res, err := run.Do(ctx)
	if res != nil {
		for i := range res.Races {
			e.Notice("%v", &res.Races[i])
		}
		if stats {
			s, took := res.Stats, time.Since(start)
			fmt.Fprintf(e.Stderr, "%s: %d threads in %d blocks, %d thread instructions, %d warp instructions, %s (%.0f million thread instructions/s)\n",
				res.Kernel, s.Threads, s.Blocks, s.ThreadInstructions, s.WarpInstructions, cli.Duration(took.Nanoseconds()),
				float64(s.ThreadInstructions)/took.Seconds()/1e6)
		}
	}
	switch {
	case err != nil:
		return e.Fail(cli.ExitFailed, "%v", err)
	case len(res.Races) > 0:
		return cli.ExitDiffers
	}
	return cli.ExitOK
}
