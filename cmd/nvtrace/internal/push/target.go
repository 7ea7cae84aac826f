package push

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/prom"
)

// Signals of OTLP.
const (
	traces   = "traces"
	metrics  = "metrics"
	profiles = "profiles"
)

// signals are what OTLP calls things that it carries: the path by HTTP and the method by gRPC.
var signals = map[string]struct{ path, method string }{
	traces:  {"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"},
	metrics: {"/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"},
	// These are an alpha version, which receivers may change their minds about.
	profiles: {"/v1development/profiles", "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"},
}

// ByEnvironment is the word for a receiver that only OTEL_EXPORTER_OTLP_* name.
const ByEnvironment = "env"

const grpcPort = "4317"

// OTLP sends spans, metrics and profiles to an OpenTelemetry collector.
type OTLP struct {
	*Sender
	of       Resource
	to       map[string]*endpoint // nil: that is not wanted
	Interval time.Duration        // between metrics
}

// otlpEnv looks a variable of OTEL_EXPORTER_OTLP_* up, of a signal if there is one for that.
func otlpEnv(getenv func(string) string, signal, name string) string {
	if v := strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_" + name)); v != "" {
		return v
	}
	return strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_" + name))
}

// CheckOTLP says what is wrong with where things are to be sent, by a word and the environment.
func CheckOTLP(word string, getenv func(string) string) error {
	_, err := otlpEndpoints(word, getenv)
	return err
}

// NewOTLP returns what sends to a URL, or, for [ByEnvironment], to where the environment says. Variables of OpenTelemetry's
// say how. notice gets what is wrong.
func NewOTLP(word string, of Resource, getenv func(string) string, notice func(format string, args ...any)) (*OTLP, error) {
	to, err := otlpEndpoints(word, getenv)
	if err != nil {
		return nil, err
	}
	o := &OTLP{Sender: newSender(notice), of: of, to: to, Interval: usualInterval}
	for _, e := range to {
		e.header.Set("User-Agent", "nvtrace/"+of.Version)
	}
	o.of.Attrs = nil
	for _, a := range append(of.Attrs, resourceAttrsOf(getenv)...) { // a key has one value
		o.of.Attrs = append(slices.DeleteFunc(o.of.Attrs, func(b Attr) bool { return a.Key == b.Key }), a)
	}
	if ms, err := strconv.ParseUint(getenv("OTEL_METRIC_EXPORT_INTERVAL"), 10, 31); err == nil && ms > 0 {
		o.Interval = max(time.Duration(ms)*time.Millisecond, leastInterval)
	}
	return o, nil
}

// Between metrics, where OTEL_METRIC_EXPORT_INTERVAL does not say it.
const (
	usualInterval = 10 * time.Second
	leastInterval = 100 * time.Millisecond
)

// resourceAttrsOf returns what OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say. What they say wins over what was known.
func resourceAttrsOf(getenv func(string) string) (list []Attr) {
	for _, kv := range pairs(getenv("OTEL_RESOURCE_ATTRIBUTES")) {
		list = append(list, Attr{kv[0], kv[1]})
	}
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		list = append(list, Attr{"service.name", name})
	}
	return list
}

// pairs reads "a=b,c=d", as OpenTelemetry's variables have it: percent-encoded.
func pairs(text string) (list [][2]string) {
	for kv := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(kv, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			continue
		}
		v = strings.TrimSpace(v)
		if plain, err := url.PathUnescape(v); err == nil {
			v = plain
		}
		list = append(list, [2]string{k, v})
	}
	return list
}

// otlpEndpoints returns where each signal goes.
func otlpEndpoints(word string, getenv func(string) string) (map[string]*endpoint, error) {
	to := make(map[string]*endpoint)
	clients := make(map[string]*http.Client)
	for signal := range signals {
		exporter := getenv("OTEL_" + strings.ToUpper(signal) + "_EXPORTER")
		if exporter == "none" {
			continue
		}
		e, client, err := otlpEndpoint(word, signal, getenv)
		if err != nil {
			return nil, err
		}
		// Signals that are sent in the same way share a connection.
		if clients[client.key] == nil {
			if clients[client.key], err = client.make(); err != nil {
				return nil, err
			}
		}
		e.client = clients[client.key]
		to[signal] = e
	}
	return to, nil
}

// clientOf says how a client is made; those with the same key are alike.
type clientOf struct {
	key  string
	make func() (*http.Client, error)
}

// otlpEndpoint returns where a signal goes, without its client.
func otlpEndpoint(word, signal string, getenv func(string) string) (*endpoint, clientOf, error) {
	env := func(name string) string { return otlpEnv(getenv, signal, name) }
	at, whole := word, false
	if word == ByEnvironment {
		at = strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_ENDPOINT"))
		if whole = at != ""; !whole {
			at = strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
		}
	}
	protocol := env("PROTOCOL")
	switch protocol {
	case "", "grpc", "http/protobuf":
	default:
		return nil, clientOf{}, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: want grpc or http/protobuf", protocol)
	}
	if at == "" {
		if at = "http://localhost:4318"; protocol == "grpc" {
			at = "http://localhost:" + grpcPort
		}
	}
	u, err := parseURL(at)
	if err != nil {
		return nil, clientOf{}, err
	}
	grpc := protocol == "grpc" || protocol == "" && (strings.HasPrefix(u.Scheme, "grpc") || u.Port() == grpcPort)
	if u.Scheme = strings.Replace(u.Scheme, "grpc", "http", 1); grpc {
		u.Path = signals[signal].method
	} else if !whole {
		u.Path = strings.TrimSuffix(u.Path, "/") + signals[signal].path
	}
	e := &endpoint{url: u.String(), grpc: grpc, otlp: true, timeout: usualTimeout, header: make(http.Header)}
	for _, kv := range pairs(env("HEADERS")) {
		if strings.ContainsAny(kv[0]+kv[1], "\r\n") {
			return nil, clientOf{}, errors.New("OTEL_EXPORTER_OTLP_HEADERS: a header has one line")
		}
		e.header.Set(kv[0], kv[1])
	}
	e.header.Set("Content-Type", contentType(grpc))
	if text := env("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return nil, clientOf{}, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT=%s: want milliseconds", text)
		}
		e.timeout = time.Duration(ms) * time.Millisecond
	}
	switch c := env("COMPRESSION"); c {
	case "", "none":
	case "gzip":
		e.gzip = true
	default:
		return nil, clientOf{}, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION=%s: want gzip or none", c)
	}
	ca, cert, key := env("CERTIFICATE"), env("CLIENT_CERTIFICATE"), env("CLIENT_KEY")
	return e, clientOf{strings.Join([]string{u.Scheme, u.Host, strconv.FormatBool(grpc), ca, cert, key}, "\x00"), func() (*http.Client, error) {
		config, err := tlsConfig(ca, cert, key)
		if err != nil {
			return nil, err
		}
		return newClient(transport(grpc, config)), nil
	}}, nil
}

const usualTimeout = 10 * time.Second

func contentType(grpc bool) string {
	if grpc {
		return "application/grpc"
	}
	return "application/x-protobuf"
}

// transport returns what makes connections: gRPC is HTTP/2, in the clear as well.
func transport(grpc bool, config *tls.Config) *http.Transport {
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	if grpc {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP2(true)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

// parseURL reads a URL of a receiver.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https" || u.Scheme == "grpc" || u.Scheme == "grpcs") {
		u.RawQuery, u.Fragment = "", ""
		return u, nil
	}
	if !strings.Contains(text, "://") {
		return nil, fmt.Errorf("%s is no URL: want http://HOST:PORT", text)
	}
	return nil, fmt.Errorf("%s: want http, https, grpc or grpcs and a host, such as http://localhost:4318", shown(text))
}

// tlsConfig returns how receivers are known, and the sender to them.
func tlsConfig(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Spans sends spans.
func (o *OTLP) Spans(list []Span) {
	if e := o.to[traces]; e != nil && len(list) > 0 {
		o.add(item{e, o.of.spans(list), "span", len(list)})
	}
}

// Metrics sends metrics.
func (o *OTLP) Metrics(list *prom.Metrics, now time.Time) {
	if e := o.to[metrics]; e != nil {
		body, values := o.of.metrics(list, now)
		o.add(item{e, body, "value", values})
	}
}
