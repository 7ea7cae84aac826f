package nvattach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"nvtrace/ptx"
)

// BenchmarkWeave weaves programs into a module of 64 short kernels, and into what
// compilers made of longer ones, in processor time. MB-in/s and MB-out/s are those of the module and of the woven text; "of-parse" is the time as a
// multiple of what parsing the module alone takes, "of-ptxas" as a part of what
// NVIDIA's assembler, where there is one, takes for the woven text.
func BenchmarkWeave(b *testing.B) {
	small := vectorAdd
	for i := range 63 {
		small += fmt.Sprintf("\n.visible .entry k%d%s", i, vectorAdd[strings.IndexByte(vectorAdd, '('):])
	}
	for _, c := range []struct{ name, src, testObject string }{
		{"small-kernels/count", small, "example_count"},
		{"small-kernels/memory", small, "example_memory"},
		{"sha256/count", corpusFile(b, "integer/sha256.nvcc13.0.sm_90"), "example_count"},
		{"sha256/blocks", corpusFile(b, "integer/sha256.nvcc13.0.sm_90"), "example_blocks"},
		{"bitonic/count", corpusFile(b, "sort/bitonic.nvcc13.0.sm_90"), "example_count"},
		{"triton/count", corpusFile(b, "triton/matmul.triton3.6.0.sm_90a"), "example_count"},
	} {
		b.Run(c.name, func(b *testing.B) { benchWeave(b, c.src, c.testObject) })
	}
}

func corpusFile(b *testing.B, name string) string {
	b.Helper()
	src, err := os.ReadFile(filepath.Join("..", "ptx", "testdata", "kernels", name+".ptx"))
	if err != nil {
		b.Fatal(err)
	}
	return string(src)
}

func benchWeave(b *testing.B, src, name string) {
	parse := func() *ptx.File {
		f, err := ptx.Parse("bench.ptx", src, nil)
		if err != nil {
			b.Fatal(err)
		}
		return f
	}
	r := newRig(b, nil, testObject(b, name))
	var w *Woven
	places, rounds := 0, 0
	weave, alone := time.Duration(0), time.Duration(0)
	for b.Loop() {
		rounds++
		start := cpuTime(b)
		var err error
		w, err = r.plan.Weave(parse(), r.maps, nil)
		if err != nil {
			b.Fatal(err)
		}
		weave += cpuTime(b) - start
		r.plan.sites = nil
		start = cpuTime(b)
		parse()
		alone += cpuTime(b) - start
	}
	for i := range w.Kernels {
		places += w.Kernels[i].Sites()
	}
	if err := checkWoven(src, w.Text); places == 0 || err != nil {
		b.Fatal(places, err)
	}
	b.SetBytes(0)
	each := weave.Seconds() / float64(rounds)
	b.ReportMetric(float64(len(src))/1e6/each, "MB-in/s")
	b.ReportMetric(float64(len(w.Text))/1e6/each, "MB-out/s")
	b.ReportMetric(float64(places), "places")
	b.ReportMetric(weave.Seconds()/alone.Seconds(), "of-parse")
	if d := assembleTime(b, w.Text, parse().Target().String()); d > 0 {
		b.ReportMetric(100*each/d.Seconds(), "%of-ptxas")
	}
}

// cpuTime is the processor time that was used so far: on a machine with other work the
// clock on the wall says little.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// assembleTime is how long the assembler takes for a text, 0 without one.
func assembleTime(b *testing.B, text, arch string) time.Duration {
	path := os.Getenv("NVTRACE_PTXAS")
	if path == "" {
		path, _ = exec.LookPath("ptxas")
	}
	if path == "" {
		return 0
	}
	in := filepath.Join(b.TempDir(), "woven.ptx")
	if err := os.WriteFile(in, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	if out, err := exec.CommandContext(b.Context(), path, "-arch="+arch, "-o", os.DevNull, in).CombinedOutput(); err != nil {
		b.Fatalf("%v: %.2000s", err, out)
	}
	return time.Since(start)
}
