package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// gathered is a collector.
type gathered struct {
	collector.UnimplementedMetricsServiceServer
	mu     sync.Mutex
	spans  map[string]int
	values map[string]float64 // the latest
}

type gatheredSpans struct {
	collectortrace.UnimplementedTraceServiceServer
	*gathered
}

// Export implements the service of metrics.
func (g *gathered) Export(_ context.Context, r *collector.ExportMetricsServiceRequest) (*collector.ExportMetricsServiceResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range r.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
			name := m.Name
			for _, a := range p.Attributes {
				name += " " + a.Value.GetStringValue()
			}
			g.values[name] = p.GetAsDouble()
		}
	}
	return new(collector.ExportMetricsServiceResponse), nil
}

// Export implements the service of traces.
func (g gatheredSpans) Export(_ context.Context, r *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range r.ResourceSpans[0].ScopeSpans[0].Spans {
		g.spans[s.Name]++
	}
	return new(collectortrace.ExportTraceServiceResponse), nil
}

// TestOTLP: a program's steps, calls and numbers come to a collector; a receiver that is dead, or takes what comes and never
// answers, changes nothing for the program, and what is lost is said.
func TestOTLP(t *testing.T) {
	nvtrace, dir := filepath.Join(t.TempDir(), "nvtrace"), t.TempDir()
	buildNvtrace(t, nvtrace)
	ranges, errors := filepath.Join(dir, "ranges"), filepath.Join(dir, "errors")
	if !compileVictim(t, "../../nvattach/nvtx/testdata/client.c", ranges) || !compileVictim(t, "../../nvattach/sim/testdata/drv_errors.c", errors) {
		t.Skip("no gcc")
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	l := listen()
	g := &gathered{spans: make(map[string]int), values: make(map[string]float64)}
	s := grpc.NewServer()
	collector.RegisterMetricsServiceServer(s, g)
	collectortrace.RegisterTraceServiceServer(s, gatheredSpans{gathered: g})
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	silent, gone := listen(), listen() // nobody accepts, and the kernel takes what comes
	gone.Close()

	run := func(program string, flags ...string) (out, said string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, nvtrace, append(append([]string{"-q", "--sim"}, flags...), "--", program)...)
		cmd.Dir = dir
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		return fmt.Sprint(addresses.ReplaceAllString(stdout.String(), "0x"), err), stderr.String()
	}
	want := make(map[string]string)
	for _, program := range []string{ranges, errors} {
		want[program], _ = run(program, "--api", "-o", "x.nvt")
		for _, flags := range [][]string{
			{"--otlp", "grpc://" + l.Addr().String(), "--otlp-long", "1ns"},
			{"--otlp", "grpc://" + gone.Addr().String(), "--profiles", "otlp"},
			{"--otlp", "http://" + silent.Addr().String(), "--profiles", "parca=http://" + gone.Addr().String()},
			{"--profiles", "pyroscope=http://" + silent.Addr().String()},
		} {
			got, said := run(program, append(flags, "--api")...)
			if got != want[program] {
				t.Errorf("%q: %s\nwant %s", flags, got, want[program])
			}
			// A busy machine may lose something at the end to the collector that there is.
			if live := flags[1] == "grpc://"+l.Addr().String(); !live && !strings.Contains(said, " not delivered") {
				t.Errorf("%q: said %s", flags, said)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range []string{"ranges", "errors", "step 1", "train", "load", "cuInit"} {
		if g.spans[name] == 0 {
			t.Errorf("no span %s: %v", name, g.spans)
		}
	}
	for _, name := range []string{"nvtrace.api.calls", "nvtrace.api.failures", "nvtrace.kernel.launches"} {
		if g.values[name] == 0 {
			t.Errorf("no %s: %v", name, g.values)
		}
	}
}

// addresses differ from run to run.
var addresses = regexp.MustCompile(`0x[0-9a-f]+`)
