package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/traces"
)

var (
	longCalls = flag.Int("long-calls", 200_000, "BenchmarkLong: library calls of the recording")
	longFile  = flag.String("long-file", "", "BenchmarkLong: keep the recording in this file")
)

// writeLong writes the recording of a training: n calls of CUDA's libraries by two threads,
// calls in calls, few ioctls.
func writeLong(f *os.File, n int) error {
	out, err := traces.NewFileWriter(f, &traces.Header{
		Schema: 1, Tool: "benchmark", Start: 1_700_000_000_000_000_000, Arch: "amd64", Driver: "580.142", Argv: []string{"python3", "train.py"}, PID: 100,
	}, nil)
	if err != nil {
		return err
	}
	const driver, runtime, blas = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.142", "/opt/venv/lib/libcudart.so.13", "/opt/venv/lib/libcublas.so.13"
	now := [2]int64{}
	seed := uint64(1)
	random := func(n uint64) uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return (seed >> 33) % n
	}
	var ev traces.Event
	made := 0
	call := func(th int, path, name string, args [6]uint64, inside func()) {
		made++
		start := now[th]
		ev = traces.Event{Kind: traces.KindCall, PID: 100, TID: int32(100 + th), Time: start, Name: name, Path: path, Args: args, FD: -1}
		out.Write(&ev)
		now[th] += 300
		if inside != nil {
			inside()
		}
		now[th] += int64(200 + random(3000))
		ev = traces.Event{Kind: traces.KindReturn, PID: 100, TID: int32(100 + th), Time: start, Dur: now[th] - start, Name: name, FD: -1}
		out.Write(&ev)
		now[th] += int64(random(2000))
	}
	launch := func(th int) {
		f := 0x5500 + 16*random(40)
		call(th, runtime, "cudaLaunchKernel", [6]uint64{f, 1 + random(64), 1, 128, 1, 0}, func() {
			call(th, driver, "cuLaunchKernel", [6]uint64{f, 1 + random(64), 1, 1, 128, 1}, nil)
		})
	}
	for step := 0; made < n; step++ {
		for i := 0; i < 400 && made < n; i++ {
			th := 0 // the one that is behind: events come in the order of their ends, about
			if now[1] < now[0] {
				th = 1
			}
			call(th, runtime, "cudaGetDevice", [6]uint64{0x7ffd1000 + 8*random(4)}, nil)
			switch random(5) {
			case 0:
				call(th, blas, "cublasGemmEx", [6]uint64{0xc0de, 0, 1, 1024, 512, 768}, func() { launch(th) })
			case 1:
				call(th, runtime, "cudaMemcpyAsync", [6]uint64{0x7f1200000000 + random(64)<<20, 0x7f1300000000, 4096 << random(8), 3, 0}, nil)
			default:
				launch(th)
			}
		}
		call(0, runtime, "cudaStreamSynchronize", [6]uint64{}, func() { now[0] += 2_000_000 })
		ev = traces.Event{Kind: traces.KindIoctl, PID: 100, TID: 100, Time: now[0], Dur: 4000, FD: 3, File: 1, Dev: "nvidiactl", Args: [6]uint64{3, 0xc0104629}}
		out.Write(&ev)
		now[0] += 4000
	}
	ev = traces.Event{Kind: traces.KindEnd, Time: max(now[0], now[1]), FD: -1, Cost: &traces.Cost{}}
	out.Write(&ev)
	return out.Close()
}

// BenchmarkLong reads a long recording by each verb that people do that with. -args
// -long-calls 10000000 makes it as long as a minute of training; -long-file keeps it, for
// runs of the binary under time(1).
func BenchmarkLong(b *testing.B) {
	dir := b.TempDir()
	file := *longFile
	if file == "" {
		file = filepath.Join(dir, "long.nvt")
	}
	f, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	if err := writeLong(f, *longCalls); err != nil {
		b.Fatal(err)
	}
	st, err := os.Stat(file)
	if err != nil {
		b.Fatal(err)
	}
	for _, row := range []struct {
		name string
		args []string
	}{
		{"report", []string{"report", file}},
		{"log", []string{"log", file}},
		{"perfetto", []string{"export", "--format", "perfetto", "-o", filepath.Join(dir, "x.perfetto-trace"), file}},
		{"pprof", []string{"export", "--format", "pprof", "-o", filepath.Join(dir, "x.pb.gz"), file}},
		{"parquet", []string{"export", "--format", "parquet", "-o", filepath.Join(dir, "tables"), file}},
	} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				var stderr bytes.Buffer
				e := &cli.Env{Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" }}
				if status := verbs.Main(e, row.args); status != cli.ExitOK {
					b.Fatalf("status %d: %s", status, &stderr)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(*longCalls)*1e9, "ns/call")
			b.ReportMetric(float64(st.Size())/float64(*longCalls), "file-B/call")
		})
	}
}
