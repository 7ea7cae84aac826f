package main

import (
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/view"
)

// TestNoProgress: without a terminal nothing is said of how far a reader is.
func TestNoProgress(t *testing.T) {
	status, _, stderr := clitest.Run(t, view.ReportVerb, "../../traces/corpus/matmul.nvt")
	if status != cli.ExitOK || strings.Contains(stderr, "% of") {
		t.Errorf("%d %s", status, stderr)
	}
}
