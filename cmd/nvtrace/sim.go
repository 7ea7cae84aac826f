package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"nvtrace/ioctl/record"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
)

// simFlags say whether and how a program gets a simulated GPU.
type simFlags struct {
	gpu     optString
	no      bool
	timeout time.Duration
	memory  uint64
	count   int
}

func (f *simFlags) register(fs *flag.FlagSet) {
	var keys []string
	for _, g := range sim.GPUs() {
		keys = append(keys, g.Key)
	}
	fs.Var(&f.gpu, "sim", "run CUDA on a simulated GPU, =`GPU` one of "+strings.Join(keys, ", "))
	fs.BoolVar(&f.no, "no-sim", false, "with --attach, do not take the simulated GPU where there is no driver")
	fs.DurationVar(&f.timeout, "sim-timeout", 0, "stop a simulated kernel that runs longer than `TIME` (30s)")
	fs.Uint64Var(&f.memory, "sim-memory", 0, "`MIB` of memory that simulated GPUs may use")
	fs.IntVar(&f.count, "sim-gpus", 1, "`NUMBER` of simulated GPUs")
}

// decide takes the simulated GPU where it is wanted, and where a probe needs a
// GPU and the machine has no driver.
func (f *simFlags) decide(e *env, attach bool) error {
	switch {
	case f.gpu.set && f.no:
		return errors.New("--sim and --no-sim exclude each other")
	case f.gpu.set || f.no || !attach || hasDriver():
		return nil
	}
	f.gpu.set = true
	e.notice("no NVIDIA driver on this machine: the program runs on a simulated GPU (--no-sim refuses that)")
	return nil
}

// hasDriver reports whether this machine has NVIDIA's kernel driver.
func hasDriver() bool {
	_, err := os.Stat("/proc/driver/nvidia/version")
	_, node := os.Stat("/dev/nvidiactl")
	return err == nil || node == nil
}

// simulation is the simulated GPU of a run.
type simulation struct {
	e      *env
	sim    *sim.Sim
	cancel context.CancelFunc
	served chan error
}

// startSimulation prepares the simulated GPU for a program, and has probes, if
// there are any, woven into what it loads.
func startSimulation(e *env, f *simFlags, command []string, probes *session.Session) (*simulation, error) {
	gpu, err := sim.FindGPU(f.gpu.value)
	if err != nil {
		return nil, err
	}
	if file, err := exec.LookPath(command[0]); err == nil {
		if err := sim.Check(file); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(command[0]), err)
		}
	}
	o := &sim.Options{GPU: gpu, Count: f.count, MemoryLimit: f.memory << 20, Timeout: f.timeout}
	if probes != nil {
		p := &simProbes{e: e, session: probes, model: gpu, of: make(map[*sim.Process]*session.Context)}
		o.Hooks = &sim.Hooks{Image: p.image, Exit: p.exit}
	}
	s, err := sim.New(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &simulation{e: e, sim: s, cancel: cancel, served: make(chan error, 1)}
	go func() { run.served <- s.Serve(ctx) }()
	return run, nil
}

// prepare gives the program what it needs to find the simulated GPU.
func (s *simulation) prepare(o *record.Options) {
	env := o.Ptrace.Env
	if env == nil {
		env = os.Environ()
	}
	o.Ptrace.Env = s.sim.Env(env)
}

// finish ends the simulation and says what went wrong in it.
func (s *simulation) finish() {
	r := s.sim.Report()
	s.cancel()
	if err := <-s.served; err != nil && !errors.Is(err, context.Canceled) {
		s.e.notice("the simulated GPU: %v", err)
	}
	if err := s.sim.Close(); err != nil {
		s.e.notice("the simulated GPU: %v", err)
	}
	for i := range r.Faults {
		s.e.notice("simulated GPU: %s", r.Faults[i].String())
	}
	for _, h := range r.Hints {
		s.e.notice("simulated GPU: %s", h)
	}
	if len(r.Missing) > 0 {
		var names []string
		for _, m := range r.Missing {
			names = append(names, m.Name)
		}
		s.e.notice("simulated GPU: not implemented, CUDA_ERROR_NOT_SUPPORTED was returned: %s", strings.Join(names, ", "))
	}
}
