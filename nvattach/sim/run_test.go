package sim_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/sim"
)

// A ran is what a program under the simulation did.
type ran struct {
	stdout, stderr string
	code           int
	report         *sim.Report
}

// run runs a program under a simulation.
func run(t testing.TB, o *sim.Options, env []string, argv ...string) *ran {
	t.Helper()
	s, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	cmd := exec.CommandContext(need.Limit(t), argv[0], argv[1:]...)
	cmd.Env = s.Env(append(os.Environ(), env...))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	r := &ran{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	r.report = s.Report()
	return r
}
