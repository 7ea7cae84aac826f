package view

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/internal/testrec"
	"nvtrace/traces"
)

// benchCalls is how many calls the recording of BenchmarkRead has.
const benchCalls = 1_000_000

// lines counts lines.
type lines struct{ n int }

func (l *lines) Write(b []byte) (int, error) {
	l.n += bytes.Count(b, []byte{'\n'})
	return len(b), nil
}

// BenchmarkRead reads a recording of many short library calls in each of the ways that users do.
// Larger recordings take as long per call; bench/recording makes some.
func BenchmarkRead(b *testing.B) {
	name := filepath.Join(b.TempDir(), "calls.nvt")
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	w, err := traces.NewFileWriter(f, testrec.TrainingHeader(), nil)
	if err != nil {
		b.Fatal(err)
	}
	testrec.Training(benchCalls, w.Write)
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{}})
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for _, row := range []struct {
		name string
		verb func(*cli.Env, []string, []string) int
		args []string
	}{
		{"report", ReportVerb, nil},
		{"log", LogVerb, nil},
		{"perfetto", ExportVerb, []string{"--format", "perfetto"}},
	} {
		b.Run(row.name, func(b *testing.B) {
			var out lines
			var errs bytes.Buffer
			for b.Loop() {
				e := &cli.Env{Stdin: os.Stdin, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
				if status := row.verb(e, append(row.args, name), nil); status != 0 {
					b.Fatal(status, errs.String())
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/benchCalls, "ns/call")
			if row.name == "log" {
				b.ReportMetric(float64(out.n)/b.Elapsed().Seconds(), "lines/s")
			}
		})
	}
	b.Run("events", func(b *testing.B) {
		for b.Loop() {
			r, err := traces.Open(name)
			if err != nil {
				b.Fatal(err)
			}
			var ev traces.Event
			for err = r.Next(&ev); err == nil; err = r.Next(&ev) {
			}
			if err != io.EOF { //nolint:errorlint // as Next has it
				b.Fatal(err)
			}
			if err := r.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/benchCalls, "ns/call")
	})
}
