package live

import (
	"io"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl/channels"
)

// TestPlaces holds where channels are by the ioctls of testdata/channels.nvt against where they are found by shape in the
// process that it is of (ioctl/channels/testdata/spin.h200.snapshot.gz, work.c on an H200).
func TestPlaces(t *testing.T) {
	e := &cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	const pid = 1538
	list, err := placesOf(e, "../../testdata/channels.nvt", pid)
	if err != nil {
		t.Fatal(err)
	}
	const found = 20
	if len(list) != found {
		t.Fatalf("%d channels, want %d: %+v", len(list), found, list)
	}
	for i, p := range list {
		// As the snapshot has them.
		if want := (channels.Place{Ring: 0x200600000 + 0x3000*uint64(i), UserData: 0x200602000 + 0x3000*uint64(i), Entries: 1024}); p != want {
			t.Errorf("channel %d is at %+v, want %+v", i, p, want)
		}
	}
	if _, err := placesOf(e, "../../testdata/channels.nvt", pid+1); err == nil {
		t.Error("a process that isn't there has channels")
	}
}
