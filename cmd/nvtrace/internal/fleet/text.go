package fleet

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nvtrace/traces/escape"
)

// Sources are what a job's ranks have left.
type Sources struct {
	Recordings []string // files
	Tables     []*Tables
}

// Find returns what words name, with what is in folders.
func Find(words []string) (s Sources, err error) {
	for _, w := range words {
		if w == "-" {
			s.Recordings = append(s.Recordings, w)
			continue
		}
		st, err := os.Stat(w)
		if err != nil {
			return s, err
		}
		if !st.IsDir() {
			s.Recordings = append(s.Recordings, w)
			continue
		}
		n := len(s.Recordings)
		err = filepath.WalkDir(w, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || path == w:
			case d.IsDir() && strings.HasPrefix(d.Name(), "run="):
				return fs.SkipDir // of tables
			case d.Type().IsRegular() && (strings.HasSuffix(path, ".nvt") || strings.HasSuffix(path, ".jsonl")):
				s.Recordings = append(s.Recordings, path)
			}
			return err
		})
		if err != nil {
			return s, err
		}
		tables, err := FindTables(w)
		if err != nil {
			return s, err
		}
		s.Tables = append(s.Tables, tables...)
		if len(s.Recordings) == n && len(tables) == 0 {
			return s, fmt.Errorf("%s: there are no recordings (*.nvt) in it, nor tables (runs/run=*/rank=*/*.parquet)", w)
		}
	}
	slices.Sort(s.Recordings)
	s.Recordings = slices.Compact(s.Recordings)
	return s, nil
}

// Write prints the report as text.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	of := ""
	if r.World > 0 {
		of = fmt.Sprintf(" of %d", r.World)
	}
	hosts := map[string]bool{}
	for i := range r.Ranks {
		hosts[r.Ranks[i].Host] = true
	}
	fmt.Fprintf(&b, "%s%s on %s", counted(len(r.Ranks), "rank"), of, counted(len(hosts), "host"))
	if r.Job != "" {
		fmt.Fprintf(&b, ", job %s", escape.String(r.Job))
	}
	fmt.Fprintf(&b, ": %s on %s in %s, from %s\n", counted(r.Collectives, "collective"), counted(r.Comms, "communicator"), span3(r.Wall), r.Start)
	wrong := false
	for i := range r.Findings {
		x := &r.Findings[i]
		wrong = wrong || x.Kind != Differs && x.Kind != Paused
		fmt.Fprintf(&b, "  %-8s  at %.6f s, %s: %s\n", x.Kind, float64(x.Since)/1e9, x.Cause, escape.String(x.Text))
		const most = 4
		for k, file := range x.Files {
			if k == most {
				fmt.Fprintf(&b, "            … and %d more recordings\n", len(x.Files)-most)
				break
			}
			fmt.Fprintf(&b, "            %s\n", escape.String(file))
		}
	}
	switch {
	case !wrong && r.By == "":
	case !wrong && r.By == "arrivals":
		b.WriteString("no rank comes late again and again, and none hangs, as far as calls tell; times of GPUs were not recorded (--gpu-times)\n")
	case !wrong:
		b.WriteString("no rank is slow, and none hangs\n")
	}
	for _, c := range r.Clocks {
		if len(r.Clocks) > 1 && c.Error >= 0 {
			fmt.Fprintf(&b, "clock of %s: %+.3f ms, drift %+.3f µs a second, by %d ends of collectives, half of them within %s\n",
				escape.String(c.Host), float64(c.Offset)/1e6, c.Drift/1e3, c.Pairs, span3(c.Error))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", escape.String(n))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// counted is a number of things.
func counted(n int, what string) string {
	return fmt.Sprintf("%d %s", n, plural(n, what, what+"s"))
}
