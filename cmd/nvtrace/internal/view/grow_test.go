package view

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/traces"
)

// TestGrowing: a recording that is still written is read once, each look from where the one before ended; one that
// replaces it is read from its beginning.
func TestGrowing(t *testing.T) {
	for _, ext := range []string{".nvt", ".jsonl"} {
		dir := t.TempDir()
		name := filepath.Join(dir, "run"+ext)
		w := watching{e: &cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}, words: []string{dir}}
		if r := w.look(time.Now()); r != nil {
			t.Fatalf("%+v", r)
		}
		start := int64(1)
		write := func() (*os.File, *traces.Writer) {
			f, err := os.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			out, err := traces.NewFileWriter(f, &traces.Header{Schema: traces.SchemaVersion, Start: start, PID: 1, Rank: map[string]string{"RANK": "3"}}, &traces.WriterOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return f, out
		}
		_, out := write()
		events := uint64(0)
		for range 3 {
			for range 1000 {
				events++
				out.Write(&traces.Event{Kind: traces.KindNote, Time: int64(events), FD: -1, PID: 1, TID: 1, Text: "something to be read"})
			}
			if err := out.Flush(); err != nil {
				t.Fatal(err)
			}
			if r := w.look(time.Now()); r == nil || len(r.Ranks) != 1 || r.Ranks[0].Events != events || r.Ranks[0].Rank != 3 || r.Ended() {
				t.Fatalf("%s: after %d events: %+v", ext, events, r)
			}
			if st, err := os.Stat(name); err != nil || w.files[name].tail.read != st.Size() {
				t.Errorf("%s: %d bytes were read of %d", ext, w.files[name].tail.read, st.Size())
			}
		}
		// Nothing new: nothing is read.
		if r := w.look(time.Now()); r.Ranks[0].Events != events {
			t.Errorf("%s: %+v", ext, r)
		}
		out.Write(&traces.Event{Kind: traces.KindEnd, Time: 4000, FD: -1})
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if r := w.look(time.Now()); r.Ranks[0].Events != events+1 || !w.files[name].over || !r.Ranks[0].Complete {
			t.Errorf("%s: at the end: %+v", ext, r)
		}
		_, out = write()
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		if r := w.look(time.Now()); r.Ranks[0].Events != 0 || len(r.Ranks) != 1 {
			t.Errorf("%s: of another run: %+v", ext, r)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		// A longer one, in the same file and in its place.
		for _, remove := range []bool{false, true} {
			if remove {
				if err := os.Rename(name, name+".old"); err != nil {
					t.Fatal(err)
				}
			}
			start++
			_, out = write()
			for i := range 5000 {
				out.Write(&traces.Event{Kind: traces.KindNote, Time: int64(i), FD: -1, PID: 1, TID: 1, Text: "something else"})
			}
			if err := out.Close(); err != nil {
				t.Fatal(err)
			}
			if r := w.look(time.Now()); r.Ranks[0].Events != 5000 || len(r.Ranks) != 1 {
				t.Errorf("%s: of a longer one (moved: %v): %+v", ext, remove, r)
			}
		}
		w.forget()
	}
}
