package ptx

import (
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchSource joins the kernels of the corpus into sources of about a megabyte,
// by producer: a figure for one says nothing about the others.
func benchSources(b *testing.B) map[string]string {
	joined := map[string]*strings.Builder{}
	files := corpus(b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.Contains(name, "kernels/") {
			continue
		}
		kind := "clang"
		switch {
		case strings.Contains(name, ".nvcc"):
			kind = "nvcc"
		case strings.Contains(name, ".nvrtc"):
			kind = "nvrtc"
		}
		if joined[kind] == nil {
			joined[kind] = new(strings.Builder)
		}
		joined[kind].WriteString(files[name])
	}
	out := map[string]string{}
	for kind, j := range joined {
		src := j.String()
		for len(src) < 1<<20 {
			src += src
		}
		out[kind] = src
	}
	return out
}

// cpuTime returns the processor time that the process has used, collecting
// garbage included.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func eachSource(b *testing.B, run func(b *testing.B, src string)) {
	sources := benchSources(b)
	for _, kind := range slices.Sorted(maps.Keys(sources)) {
		src := sources[kind]
		b.Run(kind, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			before := cpuTime(b)
			run(b, src)
			// On a machine with other work the wall clock says little.
			used := cpuTime(b) - before
			b.ReportMetric(float64(len(src))*float64(b.N)/1e6/used.Seconds(), "cpu-MB/s")
		})
	}
}

func BenchmarkLex(b *testing.B) {
	eachSource(b, func(b *testing.B, src string) {
		for b.Loop() {
			n := 0
			for t := range Lex(src) {
				n += t.Len()
			}
			if n != len(src) {
				b.Fatal("tokens are missing")
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	eachSource(b, func(b *testing.B, src string) {
		for b.Loop() {
			f, err := Parse("bench", src, nil)
			if err != nil || len(f.Stmts) < len(src)/200 {
				b.Fatal("too few statements", err)
			}
		}
	})
}

func BenchmarkSites(b *testing.B) {
	eachSource(b, func(b *testing.B, src string) {
		f := mustParse(b, "bench", src)
		for b.Loop() {
			n := 0
			for _, st := range f.AllSites() {
				n += len(st.Accesses)
			}
			if n == 0 {
				b.Fatal("no memory accesses")
			}
		}
	})
}

// BenchmarkWeave parses, finds the sites, puts a no-op at every entry, exit and
// global access, and writes the result.
func BenchmarkWeave(b *testing.B) {
	eachSource(b, func(b *testing.B, src string) {
		for b.Loop() {
			f := mustParse(b, "bench", src)
			w := NewWeaver(f)
			probes := weaveNoops(b, w, f)
			out, err := w.Source()
			if err != nil || probes == 0 || len(out) < len(src)+probes*len(noop) {
				b.Fatal("probes are missing", err)
			}
		}
	})
}

const noop = "\t.reg .b32 %unused;"

func weaveNoops(b *testing.B, w *Weaver, f *File) (probes int) {
	for _, st := range f.AllSites() {
		if err := w.Entry(st, noop); err != nil {
			b.Fatal(err)
		}
		probes++
		for i := range st.Exits {
			if err := w.Exit(st, &st.Exits[i], noop); err != nil {
				b.Fatal(err)
			}
		}
		for i := range st.Accesses {
			if a := &st.Accesses[i]; a.Space == SpaceGlobal {
				if err := w.Before(st, a.Stmt, noop); err != nil {
					b.Fatal(err)
				}
				probes++
			}
		}
	}
	return probes
}
