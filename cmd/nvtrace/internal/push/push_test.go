package push

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // which senders may choose
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"nvtrace/cmd/nvtrace/internal/prom"
)

// receiver is a collector: it decodes by OpenTelemetry's own messages what comes.
type receiver struct {
	collector.UnimplementedMetricsServiceServer

	mu      sync.Mutex
	spans   []*collectortrace.ExportTraceServiceRequest
	metrics []*collector.ExportMetricsServiceRequest
	headers []string // what X-Test was
	fails   func() (rejected int64, err error)
	got     chan struct{}
}

type traceService struct {
	collectortrace.UnimplementedTraceServiceServer
	*receiver
}

func newReceiver() *receiver { return &receiver{got: make(chan struct{}, 1<<10)} }

func (r *receiver) fail() (int64, error) {
	if r.fails == nil {
		return 0, nil
	}
	return r.fails()
}

// Export implements the service of metrics.
func (r *receiver) Export(ctx context.Context, req *collector.ExportMetricsServiceRequest) (*collector.ExportMetricsServiceResponse, error) {
	rejected, err := r.fail()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics = append(r.metrics, req)
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		r.headers = append(r.headers, strings.Join(md.Get("x-test"), ""))
	}
	r.got <- struct{}{}
	a := new(collector.ExportMetricsServiceResponse)
	if rejected > 0 {
		a.PartialSuccess = &collector.ExportMetricsPartialSuccess{RejectedDataPoints: rejected, ErrorMessage: "no room"}
	}
	return a, nil
}

// Export implements the service of traces.
func (r traceService) Export(_ context.Context, req *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	rejected, err := r.fail()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, req)
	r.got <- struct{}{}
	a := new(collectortrace.ExportTraceServiceResponse)
	if rejected > 0 {
		a.PartialSuccess = &collectortrace.ExportTracePartialSuccess{RejectedSpans: rejected}
	}
	return a, nil
}

// ServeHTTP implements OTLP over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	var answer proto.Message
	switch {
	case err != nil:
	case req.URL.Path == "/base/v1/traces":
		in := new(collectortrace.ExportTraceServiceRequest)
		if err = proto.Unmarshal(b, in); err == nil {
			answer, err = traceService{receiver: r}.Export(req.Context(), in)
		}
	case req.URL.Path == "/base/v1/metrics":
		in := new(collector.ExportMetricsServiceRequest)
		if err = proto.Unmarshal(b, in); err == nil {
			ctx := metadata.NewIncomingContext(req.Context(), metadata.Pairs("x-test", req.Header.Get("X-Test")))
			answer, err = r.Export(ctx, in)
		}
	default:
		http.NotFound(w, req)
		return
	}
	if err != nil {
		code := http.StatusBadRequest
		if status.Code(err) == codes.Unavailable {
			w.Header().Set("Retry-After", "0")
			code = http.StatusServiceUnavailable
		}
		http.Error(w, err.Error(), code)
		return
	}
	if b, err = proto.Marshal(answer); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(b)
}

// listen serves at an address until the test ends, or stop is called; it returns the URL.
func (r *receiver) listen(t *testing.T, overGRPC bool, address string) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if overGRPC {
		s := grpc.NewServer()
		collector.RegisterMetricsServiceServer(s, r)
		collectortrace.RegisterTraceServiceServer(s, traceService{receiver: r})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		return "grpc://" + l.Addr().String(), s.Stop
	}
	s := &http.Server{Handler: r}
	go func() { _ = s.Serve(l) }()
	stop = func() { _ = s.Close() }
	t.Cleanup(stop)
	return "http://" + l.Addr().String() + "/base", stop
}

// env is an environment.
func env(pairs ...string) func(string) string {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

// notices gathers what is said.
type notices struct {
	mu   sync.Mutex
	said []string
}

func (n *notices) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

// wait waits for requests that a receiver has taken.
func (r *receiver) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-r.got:
		case <-time.After(time.Minute):
			t.Fatal("nothing came in a minute")
		}
	}
}

func testSpans() []Span {
	return []Span{
		{Trace: [16]byte{1, 2}, ID: [8]byte{3}, Name: "run", Start: 1000, End: 2000, Attrs: []Attr{{"n", int64(-5)}, {"f", 0.0}, {"b", true}, {"no", false}, {"s", ""}}},
		{Trace: [16]byte{1, 2}, ID: [8]byte{4}, Parent: [8]byte{3}, Name: "bad \xff", Start: 1100, End: 1200, Failed: true, Error: "CUDA_ERROR"},
	}
}

func testMetrics() *prom.Metrics {
	m := prom.NewMetrics("hostname", "h")
	m.Begin("nvtrace_gpu_seconds_total", "Time.")
	m.Value(1.5, "work", "kernel")
	m.Value(0, "work", "copy")
	m.One("nvtrace_gpu_memory_allocated_bytes", "Memory.", 4096)
	return m
}

// attrs is attributes as text.
func attrs(list []*common.KeyValue) string {
	var all []string
	for _, a := range list {
		all = append(all, fmt.Sprintf("%s=%v", a.Key, a.Value.Value))
	}
	return strings.Join(all, " ")
}

// TestReceived: what OpenTelemetry's own messages and gRPC find in what is sent is what was given.
func TestReceived(t *testing.T) {
	for _, tt := range []struct {
		name       string
		grpc, gzip bool
	}{{"HTTP", false, false}, {"HTTP, gzip", false, true}, {"gRPC", true, false}, {"gRPC, gzip", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReceiver()
			at, _ := r.listen(t, tt.grpc, "127.0.0.1:0")
			compression := "none"
			if tt.gzip {
				compression = "gzip"
			}
			var said notices
			o, err := NewOTLP(at, Resource{Attrs: []Attr{{"service.name", "app"}}, Version: "v1", Start: 77}, env("OTEL_EXPORTER_OTLP_COMPRESSION", compression,
				"OTEL_EXPORTER_OTLP_HEADERS", "x-test=a%20b,y=", "OTEL_RESOURCE_ATTRIBUTES", "team=red", "OTEL_SERVICE_NAME", "mine"), said.say)
			if err != nil {
				t.Fatal(err)
			}
			o.Spans(testSpans())
			o.Metrics(testMetrics(), time.Unix(0, 99))
			r.wait(t, 2) // the end gives less time than a busy machine takes
			if lost := o.Close(); lost != "" || len(said.said) > 0 {
				t.Fatalf("%s, %q", lost, said.said)
			}
			if len(r.spans) != 1 || len(r.metrics) != 1 || r.headers[0] != "a b" {
				t.Fatalf("%d, %d requests, %q", len(r.spans), len(r.metrics), r.headers)
			}
			resource := r.spans[0].ResourceSpans[0]
			const wantResource = "team=&{red} service.name=&{mine}"
			if got := attrs(resource.Resource.Attributes); got != wantResource {
				t.Errorf("resource %s", got)
			}
			scope := resource.ScopeSpans[0]
			if scope.Scope.Name != "nvtrace" || scope.Scope.Version != "v1" || len(scope.Spans) != 2 {
				t.Fatalf("%v", scope)
			}
			run, bad := scope.Spans[0], scope.Spans[1]
			if hex.EncodeToString(run.TraceId) != "01020000000000000000000000000000" || len(run.ParentSpanId) != 0 || run.Name != "run" || run.StartTimeUnixNano != 1000 || run.EndTimeUnixNano != 2000 || run.Status != nil {
				t.Errorf("%v", run)
			}
			if got := attrs(run.Attributes); got != "n=&{-5} f=&{0} b=&{true} no=&{false} s=&{}" {
				t.Errorf("attributes %s", got)
			}
			if bad.Name != "bad \uFFFD" || hex.EncodeToString(bad.ParentSpanId) != "0300000000000000" || bad.Status.Code != 2 || bad.Status.Message != "CUDA_ERROR" {
				t.Errorf("%v", bad)
			}
			list := r.metrics[0].ResourceMetrics[0].ScopeMetrics[0].Metrics
			if len(list) != 2 {
				t.Fatalf("%v", list)
			}
			sum, gauge := list[0], list[1]
			if sum.Name != "nvtrace.gpu" || sum.Unit != "s" || sum.Description != "Time." || !sum.GetSum().IsMonotonic || sum.GetSum().AggregationTemporality != 2 || len(sum.GetSum().DataPoints) != 2 {
				t.Errorf("%v", sum)
			}
			p, zero := sum.GetSum().DataPoints[0], sum.GetSum().DataPoints[1]
			if p.GetAsDouble() != 1.5 || p.StartTimeUnixNano != 77 || p.TimeUnixNano != 99 || attrs(p.Attributes) != "work=&{kernel}" || zero.Value == nil || zero.GetAsDouble() != 0 {
				t.Errorf("%v", sum)
			}
			if gauge.Name != "nvtrace.gpu.memory.allocated" || gauge.Unit != "By" || gauge.GetGauge().DataPoints[0].GetAsDouble() != 4096 {
				t.Errorf("%v", gauge)
			}
		})
	}
}

// TestRefused: a receiver refuses, takes a part, is not ready at first, or is none. What is lost is counted, nothing is sent
// again that was refused, and all is that was not.
func TestRefused(t *testing.T) {
	for _, overGRPC := range []bool{false, true} {
		for _, tt := range []struct {
			name       string
			rejected   int64
			err        error
			times      int // that it fails
			want, said string
			taken      int
		}{
			{"refuses", 0, status.Error(codes.InvalidArgument, "what is this?"), 1, "2 spans not delivered; the latest failure: ", "://127.0.0.1", 0},
			{"takes a part", 1, nil, 1, "1 span not delivered", "", 1},
			{"is not ready", 0, status.Error(codes.Unavailable, "wait"), 1, "", "; it is tried again", 1},
		} {
			r := newReceiver()
			at, _ := r.listen(t, overGRPC, "127.0.0.1:0")
			failed := 0
			r.fails = func() (int64, error) {
				if failed++; failed > tt.times {
					return 0, nil
				}
				return tt.rejected, tt.err
			}
			var said notices
			o, err := NewOTLP(at, Resource{}, env(), said.say)
			if err != nil {
				t.Fatal(err)
			}
			o.Spans(testSpans())
			if tt.taken > 0 {
				r.wait(t, tt.taken)
			}
			if lost := o.Close(); !strings.HasPrefix(lost, tt.want) || tt.want == "" && lost != "" {
				t.Errorf("%s: %q", tt.name, lost)
			}
			// What has failed at the end is not told twice.
			if text := strings.Join(said.said, "\n"); !strings.Contains(text, tt.said) && tt.want == "" || tt.said == "" && text != "" || len(said.said) > 1 {
				t.Errorf("%s: said %q", tt.name, said.said)
			}
			if len(r.spans) != tt.taken {
				t.Errorf("%s: took %d", tt.name, len(r.spans))
			}
		}
	}
}

// TestDead: receivers that are not there, say nothing, answer drop by drop or with rubbish keep nobody waiting, and the queue
// does not grow. All that is lost is counted.
func TestDead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	serve := func(answer func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				go answer(c)
			}
		}()
		return l.Addr().String()
	}
	for name, address := range map[string]string{
		"gone":   gone,
		"silent": serve(func(net.Conn) {}),
		"drops": serve(func(c net.Conn) {
			for {
				if _, err := c.Write([]byte("H")); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}),
		"rubbish": serve(func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("rubbish ", 1<<10))) }),
		"endless": serve(func(c net.Conn) {
			for _, err := c.Write([]byte("HTTP/1.1 200 OK\r\n")); err == nil; {
				_, err = c.Write([]byte("X: " + strings.Repeat("y", 1<<10) + "\r\n"))
			}
		}),
	} {
		for _, scheme := range []string{"http://", "grpc://"} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				t.Parallel()
				o, err := NewOTLP(scheme+address, Resource{}, env(), func(string, ...any) {})
				if err != nil {
					t.Fatal(err)
				}
				const rounds = 2000
				big := testSpans()
				big[0].Name = strings.Repeat("x", 4<<10)
				for range rounds {
					o.Spans(big)
					o.mu.Lock()
					size, n := o.size, len(o.queue)
					o.mu.Unlock()
					if size > maxQueued || n > maxItems {
						t.Fatalf("%d bytes in %d requests wait", size, n)
					}
				}
				lost := o.Close()
				if want := fmt.Sprintf("%d spans not delivered; the latest failure: %s", 2*rounds, strings.Replace(scheme, "grpc", "http", 1)); !strings.HasPrefix(lost, want) && !strings.HasSuffix(lost, "the receiver was too slow") {
					t.Errorf("%s", lost)
				}
			})
		}
	}
}

// TestRestarted: what is sent while a receiver is away comes when it is back.
func TestRestarted(t *testing.T) {
	for _, overGRPC := range []bool{false, true} {
		r := newReceiver()
		at, stop := r.listen(t, overGRPC, "127.0.0.1:0")
		var said notices
		o, err := NewOTLP(at, Resource{}, env(), said.say)
		if err != nil {
			t.Fatal(err)
		}
		names := make(map[string]bool) // of requests that are to come
		send := func(name string) {
			list := testSpans()
			list[0].Name, names[name] = name, true
			o.Spans(list)
		}
		send("first")
		r.wait(t, 1)
		stop()
		for i := range 5 {
			send(fmt.Sprint(i))
		}
		_, host, _ := strings.Cut(strings.TrimSuffix(at, "/base"), "://")
		r.listen(t, overGRPC, host)
		for len(names) > 0 { // one may come twice: its answer got lost
			r.mu.Lock()
			for _, x := range r.spans {
				delete(names, x.ResourceSpans[0].ScopeSpans[0].Spans[0].Name)
			}
			r.mu.Unlock()
			if len(names) > 0 {
				r.wait(t, 1)
			}
		}
		if lost := o.Close(); lost != "" {
			t.Errorf("%s", lost)
		}
	}
}

// TestEndpoints: where and how things are sent, by the word and OpenTelemetry's variables.
func TestEndpoints(t *testing.T) {
	const prefix = "OTEL_EXPORTER_OTLP_"
	trace := signals[traces].method
	for _, tt := range []struct {
		word string
		env  []string
		want string // where spans go, where metrics go; or the error
	}{
		{"http://h:4318", nil, "http://h:4318/v1/traces http://h:4318/v1/metrics"},
		{"http://h:4318/a/", nil, "http://h:4318/a/v1/traces http://h:4318/a/v1/metrics"},
		{"https://h", nil, "https://h/v1/traces https://h/v1/metrics"},
		{"grpc://h:1", nil, "http://h:1" + trace + " gRPC http://h:1" + signals[metrics].method},
		{"grpcs://h:1", nil, "https://h:1" + trace + " gRPC https://h:1" + signals[metrics].method},
		{"http://h:4317", nil, "http://h:4317" + trace + " gRPC http://h:4317" + signals[metrics].method},
		{"http://h:4317", []string{prefix + "PROTOCOL", "http/protobuf"}, "http://h:4317/v1/traces http://h:4317/v1/metrics"},
		{"http://h:1", []string{prefix + "PROTOCOL", "grpc"}, "http://h:1" + trace + " gRPC http://h:1" + signals[metrics].method},
		{"http://h:1", []string{prefix + "TRACES_ENDPOINT", "http://other"}, "http://h:1/v1/traces http://h:1/v1/metrics"},
		{"env", nil, "http://localhost:4318/v1/traces http://localhost:4318/v1/metrics"},
		{"env", []string{prefix + "PROTOCOL", "grpc"}, "http://localhost:4317" + trace + " gRPC http://localhost:4317" + signals[metrics].method},
		{"env", []string{prefix + "ENDPOINT", "http://e:1/x"}, "http://e:1/x/v1/traces http://e:1/x/v1/metrics"},
		{"env", []string{prefix + "ENDPOINT", "http://e:1", prefix + "TRACES_ENDPOINT", "http://t:2/whole"}, "http://t:2/whole http://e:1/v1/metrics"},
		{"env", []string{"OTEL_TRACES_EXPORTER", "none"}, "- http://localhost:4318/v1/metrics"},
		{"http://user:secret@h:1", nil, "http://user:secret@h:1/v1/traces http://user:secret@h:1/v1/metrics"},
		{"h:4318", nil, "h:4318 is no URL: want http://HOST:PORT"},
		{"localhost", nil, "localhost is no URL: want http://HOST:PORT"},
		{"ftp://h", nil, "ftp://h: want http, https, grpc or grpcs and a host, such as http://localhost:4318"},
		{"http://h", []string{prefix + "PROTOCOL", "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json: want grpc or http/protobuf"},
		{"http://h", []string{prefix + "TIMEOUT", "10s"}, "OTEL_EXPORTER_OTLP_TIMEOUT=10s: want milliseconds"},
		{"http://h", []string{prefix + "COMPRESSION", "br"}, "OTEL_EXPORTER_OTLP_COMPRESSION=br: want gzip or none"},
		{"https://h", []string{prefix + "CERTIFICATE", "/nowhere"}, "open /nowhere: no such file or directory"},
	} {
		to, err := otlpEndpoints(tt.word, env(tt.env...))
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			var words []string
			for _, signal := range []string{traces, metrics} {
				e := to[signal]
				switch {
				case e == nil:
					words = append(words, "-")
				case e.grpc && signal == traces:
					words = append(words, e.url, "gRPC")
				default:
					words = append(words, e.url)
				}
			}
			got = strings.Join(words, " ")
		}
		if got != tt.want {
			t.Errorf("%s %q: %s\nwant %s", tt.word, tt.env, got, tt.want)
		}
	}
}

// TestSecrets: what fails is told without passwords.
func TestSecrets(t *testing.T) {
	e := &endpoint{client: newClient(transport(false, nil)), url: "http://user:secret@127.0.0.1:1/x?token=secret", timeout: time.Minute, header: make(http.Header)}
	_, err := e.send(t.Context(), nil)
	var again *againError
	if !errors.As(err, &again) || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

// TestRedirected: a receiver can't send requests elsewhere.
func TestRedirected(t *testing.T) {
	var asked atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	o, err := NewOTLP("http://"+l.Addr().String(), Resource{}, env(), func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	o.Spans(testSpans())
	if lost := o.Close(); !strings.Contains(lost, "status 307") || asked.Load() != 1 {
		t.Errorf("%s, asked %d times", lost, asked.Load())
	}
}
