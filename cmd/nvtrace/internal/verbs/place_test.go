package verbs

import (
	"path/filepath"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/traces"
)

// TestVersionPlace: version tells where a recording was made.
func TestVersionPlace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run.nvt")
	w, err := clitest.CreateRecording(name, &traces.Header{
		Tool: "v1", Driver: "580.142", Host: "node7", Boot: "b0", GPUs: []string{"GPU-1", "GPU-2"}, Container: "c0ffee",
		Rank: map[string]string{"RANK": "3", "WORLD_SIZE": "8\x1b[2J"},
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	e, stdout, _ := clitest.Quiet()
	if status := versionVerb(e, []string{name}, nil); status != cli.ExitOK {
		t.Fatal(status)
	}
	clitest.Want(t, stdout.String(), "recorded by nvtrace v1, driver 580.142", "on host node7, boot b0, container c0ffee",
		"GPUs: GPU-1, GPU-2", `ranks: RANK=3, WORLD_SIZE=8\x1b[2J`)
}
