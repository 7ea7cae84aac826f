package main

import (
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/live"
)

// TestDoctorHere runs it on this machine.
func TestDoctorHere(t *testing.T) {
	status, out, stderr := clitest.Run(t, live.DoctorVerb)
	if status != cli.ExitOK || !strings.Contains(out, "programs that nvtrace starts can be traced") {
		t.Errorf("%d %s%s", status, out, stderr)
	}
}
