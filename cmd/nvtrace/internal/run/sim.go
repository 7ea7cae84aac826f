package run

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// simFlags say whether and how a program gets a simulated GPU.
type simFlags struct {
	gpu     cli.OptString
	no      bool
	timeout time.Duration
	memory  memoryFlag
	count   int
	probes  probesFlag
}

// probesFlag is --sim-probes=BY: by whom programs get into kernels on the simulated GPU.
type probesFlag struct {
	driver bool // by calls of the driver in the program, as on a GPU
}

func (p *probesFlag) register(fs *flag.FlagSet) {
	fs.Var(p, "sim-probes", "put probes into kernels on the simulated GPU `BY` simulator: itself; driver: as on a GPU, by driver calls in the program")
}

// String implements flag.Value.
func (p *probesFlag) String() string {
	if p.driver {
		return "driver"
	}
	return "simulator"
}

// Set implements flag.Value.
func (p *probesFlag) Set(s string) error {
	if s != "simulator" && s != "driver" {
		return errors.New("want simulator or driver")
	}
	p.driver = s == "driver"
	return nil
}

// memoryFlag is --sim-memory=SIZE, in bytes; 0: as much as the GPU has, and the machine.
type memoryFlag uint64

// String implements flag.Value.
func (*memoryFlag) String() string { return "" }

// Set implements flag.Value.
func (m *memoryFlag) Set(s string) error {
	// A program's context and module find room in less; the most is what addresses of two ranges reach.
	const least, most = 64 << 10, 4 << 40
	n, err := cli.ParseSize(s)
	if _, number := strconv.ParseUint(s, 10, 64); number == nil && n <= most>>20 {
		n <<= 20
	}
	if err != nil || n != 0 && n < least || n > most || s == "" {
		return errors.New("want a size from 64K to 4T, such as 300K, 512M or 2G; a number alone is of MiB")
	}
	*m = memoryFlag(n)
	return nil
}

// maxSimGPUs is how many package sim has at most.
const maxSimGPUs = 16

// Simulated returns the GPUs that --sim can be.
func Simulated() (keys []string) {
	for _, g := range sim.GPUs() {
		keys = append(keys, g.Key)
	}
	return keys
}

func (f *simFlags) register(fs *flag.FlagSet) {
	fs.Var(&f.gpu, "sim", "run CUDA on a simulated GPU, =`GPU` one of "+strings.Join(Simulated(), ", "))
	fs.BoolVar(&f.no, "no-sim", false, "with --attach, do not take the simulated GPU where there is no driver")
	fs.DurationVar(&f.timeout, "sim-timeout", 0, "stop a simulated kernel that runs longer than `TIME`, such as 30s")
	fs.Var(&f.memory, "sim-memory", "`SIZE` of the memory that simulated GPUs may use: 300K, 2G; a number alone is of MiB")
	fs.IntVar(&f.count, "sim-gpus", 1, "`NUMBER` of simulated GPUs")
	f.probes.register(fs)
}

// chosen reports whether the program gets a simulated GPU: where that is asked
// for, and where a probe needs a GPU and the machine has no driver.
func (f *simFlags) chosen(attach bool) bool {
	return f.gpu.Given || attach && !f.no && !HasDriver()
}

// decide takes the simulated GPU where it is chosen.
func (f *simFlags) decide(e *cli.Env, attach bool) error {
	if f.gpu.Given && f.no {
		return errors.New("--sim and --no-sim exclude each other")
	}
	if f.count < 1 || f.count > maxSimGPUs {
		return fmt.Errorf("--sim-gpus %d: want 1 to %d", f.count, maxSimGPUs)
	}
	if f.gpu.Given || !f.chosen(attach) {
		return nil
	}
	f.gpu.Given = true
	e.Notice("no NVIDIA driver on this machine: the program runs on a simulated GPU (--no-sim refuses that)")
	return nil
}

// HasDriver reports whether this machine has NVIDIA's kernel driver.
func HasDriver() bool {
	_, err := os.Stat("/proc/driver/nvidia/version")
	_, node := os.Stat("/dev/nvidiactl")
	return err == nil || node == nil
}

// simulation is the simulated GPU of a run.
type simulation struct {
	e        *cli.Env
	sim      *sim.Sim
	captured *capture.Feed                   // nil: images are not recorded
	recorder atomic.Pointer[record.Recorder] // set before the program begins
	cancel   context.CancelFunc
	served   chan error
}

// startSimulation prepares the simulated GPU for a program. Probes, if there are
// any, are woven into what it loads, and images recorded, if that was asked for. refuse
// ends the program where a kernel must have probes and can't.
func startSimulation(e *cli.Env, f *simFlags, command []string, probes *session.Session, refuse func(error), modules *moduleCapture) (*simulation, error) {
	model, err := sim.FindGPU(f.gpu.Value)
	if err != nil {
		return nil, err
	}
	if file, err := exec.LookPath(command[0]); err == nil {
		if err := sim.Check(file); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(command[0]), err)
		}
	}
	run := &simulation{e: e, served: make(chan error, 1)}
	var hooks sim.Hooks
	if probes != nil {
		gpu.NewSimulated(&gpu.SimulatedOptions{
			Session: probes, Model: model, Refuse: refuse, Report: func(text string) { e.Notice("%s", text) },
		}).Hook(&hooks)
	}
	if modules != nil {
		run.capture(modules, &hooks)
	}
	run.sim, err = sim.New(&sim.Options{GPU: model, Count: f.count, MemoryLimit: uint64(f.memory), Timeout: f.timeout, Hooks: &hooks})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	run.cancel = cancel
	go func() { run.served <- run.sim.Serve(ctx) }()
	return run, nil
}

// capture has the images that are loaded and the kernels that are launched recorded.
func (s *simulation) capture(modules *moduleCapture, hooks *sim.Hooks) {
	s.captured = capture.NewFeed(&capture.FeedOptions{
		Mode: traces.CaptureSimulator, Origin: "simulated GPU", Store: modules.opts.Store, Files: modules.opts.Files,
		Emit: func(ev *traces.Event) { s.recorder.Load().Send(ev) },
	})
	hooks.Loaded = func(p *sim.Process, im *sim.Image) {
		s.captured.Loaded(&capture.Load{
			PID: p.PID(), TID: im.TID, Function: im.Call, Caller: im.Caller, Addr: im.Addr, Result: int32(im.Result),
			Image: traces.Image{
				SHA256: hex.EncodeToString(im.Hash[:]), Size: int64(len(im.Data)), Format: fatbin.Sniff(im.Data).Word(),
				File: im.File, Handle: im.Handle,
			},
			Data: func() ([]byte, error) { return im.Data, nil }, Replaced: im.Replacement,
		})
	}
	probed := hooks.Launch
	hooks.Launch = func(p *sim.Process, l *sim.Launch) {
		s.captured.Launched(capture.Launch{PID: p.PID(), Kernel: l.Kernel, SHA256: hex.EncodeToString(l.Image[:])}, l.TID)
		if probed != nil {
			probed(p, l)
		}
	}
}

// extend adds what is captured on the simulated GPU to a recording.
func (s *simulation) extend(r *record.Recorder) record.Extension {
	s.recorder.Store(r)
	return record.Extension{Finish: func() {
		s.sim.AwaitGone()
		s.captured.Finish()
	}}
}

// prepare gives the program what it needs to find the simulated GPU.
func (s *simulation) prepare(o *record.Options) {
	env := o.Ptrace.Env
	if env == nil {
		env = os.Environ()
	}
	o.Ptrace.Env = s.sim.Env(env)
}

// Finish ends the simulation and says what happened in it; quiet: what went wrong
// alone.
func (s *simulation) Finish(quiet bool) {
	s.cancel()
	if err := <-s.served; err != nil && !errors.Is(err, context.Canceled) {
		s.e.Notice("the simulated GPU: %v", err)
	}
	r := s.sim.Report()
	if err := s.sim.Close(); err != nil {
		s.e.Notice("the simulated GPU: %v", err)
	}
	if quiet {
		r.Processes = 0
	}
	_, _ = s.e.Stderr.Write(r.AppendText(nil))
}
