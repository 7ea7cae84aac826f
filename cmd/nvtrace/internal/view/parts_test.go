package view

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/fleet"
)

// TestPartFails: where a table's file can't take its place, that of table runs, which is the last, doesn't either.
func TestPartFails(t *testing.T) {
	full := errors.New("disk full")
	var got []error
	var p tablesOf
	for i := range 3 {
		p.files = append(p.files, &partFile{bufio.NewWriter(io.Discard), func(err error) error {
			got = append(got, err)
			if i == 1 {
				return full
			}
			return err
		}})
	}
	if err := p.Finish(nil); !errors.Is(err, full) || strings.Count(err.Error(), full.Error()) != 1 {
		t.Errorf("%v, want %v", err, full)
	}
	if len(got) != 3 || got[0] != nil || got[1] != nil || !errors.Is(got[2], full) {
		t.Errorf("files ended with %v", got)
	}
}

// TestWatchParts: each part is looked at once, also where old ones have been removed.
func TestWatchParts(t *testing.T) {
	e, _, stderr := clitest.Quiet()
	w := &watching{e: e, all: fleet.New(nil), taken: make(map[string]string)}
	list := &fleet.Tables{Name: "job"} // whose files are not there, which is told of each
	for _, step := range []struct{ first, last, want int }{{1, 3, 3}, {1, 3, 3}, {3, 4, 4}, {4, 4, 4}, {6, 6, 5}} {
		list.Parts = nil
		for i := step.first; i <= step.last; i++ {
			list.Parts = append(list.Parts, fleet.PartName("x", i))
		}
		w.parts([]*fleet.Tables{list})
		if n := strings.Count(stderr.String(), "no such file"); n != step.want {
			t.Errorf("parts %d to %d: %d were looked at by now, want %d:\n%s", step.first, step.last, n, step.want, stderr)
		}
	}
}
