package push

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"nvtrace/internal/need"
)

func testProfile(t *testing.T) *Profile {
	t.Helper()
	f := []*profile.Function{{ID: 1, Name: "train", Filename: "train.py"}, {ID: 2, Name: "scale", Filename: "GPU"}}
	l := []*profile.Location{{ID: 1, Line: []profile.Line{{Function: f[0], Line: 7}}}, {ID: 2, Line: []profile.Line{{Function: f[1]}}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "calls", Unit: "count"}, {Type: "gpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "calls", Unit: "count"}, Period: 1, Function: f, Location: l,
		Sample: []*profile.Sample{
			{Location: []*profile.Location{l[1], l[0]}, Value: []int64{0, 500}, Label: map[string][]string{"kernel": {"scale"}}},
			{Location: []*profile.Location{l[0]}, Value: []int64{3, 0}},
		},
		TimeNanos: 1000, DurationNanos: 50,
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return &Profile{From: time.Unix(1, 0), To: time.Unix(2, 0), Pprof: b.Bytes(), Types: [][2]string{{"calls", "count"}, {"gpu", "nanoseconds"}}}
}

// check says what a profile has that is not as it was given.
func check(t *testing.T, b []byte) {
	t.Helper()
	p, err := profile.ParseData(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Sample) != 2 || p.Sample[0].Value[1] != 500 || p.Sample[0].Location[0].Line[0].Function.Name != "scale" {
		t.Errorf("%v", p)
	}
}

// await returns what a receiver has got. A sender is closed after that: the end gives less time than a busy machine takes.
func await[T any](t *testing.T, got <-chan T) (x T) {
	t.Helper()
	select {
	case x = <-got:
	case <-need.Limit(t).Done():
		t.Fatal("nothing came")
	}
	return x
}

// TestPyroscope sends a profile to a stand-in for Pyroscope: a server of HTTP, forms and pprof.
func TestPyroscope(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan map[string][]byte, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		user, password, _ := r.BasicAuth()
		if r.URL.Path != "/p/ingest" || q.Get("name") != "app{hostname=h,rank=3,x=a_b_c}" || q.Get("format") != "pprof" || q.Get("from") != strconv.Itoa(1e9) || q.Get("until") != strconv.Itoa(2e9) || user != "u" || password != "secret" {
			t.Errorf("%s, %s", r.URL, user)
		}
		kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "multipart/form-data" {
			t.Errorf("%s: %v", kind, err)
		}
		parts := make(map[string][]byte)
		for form := multipart.NewReader(r.Body, params["boundary"]); ; {
			p, err := form.NextPart()
			if err != nil {
				break
			}
			if parts[p.FormName()], err = io.ReadAll(p); err != nil {
				t.Error(err)
			}
		}
		got <- parts
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	var said notices
	p, err := NewProfiles("pyroscope=http://u:secret@"+l.Addr().String()+"/p/", "app", "v1", []string{"hostname", "h", "job_id", "", "rank", "3", "x", "a,b}c"}, said.say)
	if err != nil {
		t.Fatal(err)
	}
	p.Profile(testProfile(t))
	parts := await(t, got)
	if lost := p.Close(); lost != "" {
		t.Fatal(lost)
	}
	check(t, parts["profile"])
	if text := string(parts["sample_type_config"]); !strings.Contains(text, `"gpu":{"units":"lock_nanoseconds"`) || !strings.Contains(text, `"calls":{"units":"objects"`) {
		t.Errorf("%s", text)
	}
}

// rawCodec gives messages as they came.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// submessages returns the fields of a number that a message has.
func submessages(t *testing.T, b []byte, number protowire.Number) (list [][]byte) {
	t.Helper()
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			t.Fatalf("%q", b)
		}
		b = b[size:]
		value := protowire.ConsumeFieldValue(n, kind, b)
		if value < 0 {
			t.Fatalf("%q", b)
		}
		if n == number && kind == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			list = append(list, v)
		}
		b = b[value:]
	}
	return list
}

// TestParca sends a profile to a stand-in for Parca: a server of gRPC, which reads the few messages that there are.
func TestParca(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw" {
			t.Errorf("%s", method)
		}
		var in, out []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		got <- in
		return stream.SendMsg(&out)
	}))
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	var said notices
	p, err := NewProfiles("parca=http://"+l.Addr().String(), "app", "v1", []string{"rank", "3"}, said.say)
	if err != nil {
		t.Fatal(err)
	}
	p.Profile(testProfile(t))
	request := await(t, got)
	if lost := p.Close(); lost != "" {
		t.Fatal(lost)
	}
	series := submessages(t, request, 2)
	if len(series) != 1 {
		t.Fatalf("%d series", len(series))
	}
	var labels []string
	for _, l := range submessages(t, submessages(t, series[0], 1)[0], 1) {
		labels = append(labels, string(submessages(t, l, 1)[0])+"="+string(submessages(t, l, 2)[0]))
	}
	if text := strings.Join(labels, " "); text != "__name__=nvtrace job=app rank=3" {
		t.Errorf("labels %s", text)
	}
	check(t, submessages(t, submessages(t, series[0], 2)[0], 1)[0])
}

// TestProfileWords: where profiles can go.
func TestProfileWords(t *testing.T) {
	for word, want := range map[string]string{
		"otlp": "", "pyroscope=http://h:4040": "", "parca=grpc://h:7070": "",
		"http://h:4040":  "http://h:4040: want pyroscope=http://HOST:4040, parca=http://HOST:7070 or otlp",
		"pyroscope=h:1":  "h:1 is no URL: want http://HOST:PORT",
		"pyroscope":      "pyroscope: want pyroscope=http://HOST:4040, parca=http://HOST:7070 or otlp",
		"phlare=http://": "phlare=http://: want pyroscope=http://HOST:4040, parca=http://HOST:7070 or otlp",
	} {
		otlp, err := ParseProfiles(word)
		if got := ""; err != nil && err.Error() != want || err == nil && want != got || otlp != (word == "otlp") {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// TestProfiles: in what is sent by OTLP all numbers of tables' entries are of entries that there are, and sums are the same.
func TestProfiles(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1development/profiles" {
			t.Errorf("%s: %v", r.URL, err)
		}
		got <- b
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	o, err := NewOTLP("http://"+l.Addr().String(), Resource{}, env(), func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Profile(testProfile(t)); err != nil {
		t.Fatal(err)
	}
	if lost := o.Close(); lost != "" {
		t.Fatal(lost)
	}
	request := <-got
	tables := submessages(t, request, 2)[0]
	var texts []string
	for _, b := range submessages(t, tables, 5) {
		texts = append(texts, string(b))
	}
	if texts[0] != "" || len(submessages(t, tables, 1)) != 1 || len(submessages(t, tables, 2)) != 3 || len(submessages(t, tables, 3)) != 3 || len(submessages(t, tables, 4)) != 1 || len(submessages(t, tables, 7)) != 3 {
		t.Errorf("tables of %q", texts)
	}
	list := submessages(t, submessages(t, submessages(t, request, 1)[0], 2)[0], 2)
	if len(list) != 2 {
		t.Fatalf("%d profiles", len(list))
	}
	for i, want := range []struct {
		kind, unit, stack string
		value             uint64
	}{{"calls", "count", "\x0a\x01\x01", 3}, {"gpu", "nanoseconds", "\x0a\x02\x02\x01", 500}} {
		p := list[i]
		number := func(b []byte, field protowire.Number) (v uint64) {
			fields(b, func(n int, x uint64, _ []byte) {
				if n == int(field) {
					v = x
				}
			})
			return v
		}
		kind := submessages(t, p, 1)[0]
		samples := submessages(t, p, 2)
		if texts[number(kind, 1)] != want.kind || texts[number(kind, 2)] != want.unit || len(samples) != 1 {
			t.Fatalf("%q, %d samples", kind, len(samples))
		}
		stack := submessages(t, tables, 7)[number(samples[0], 1)]
		if v, _ := protowire.ConsumeVarint(submessages(t, samples[0], 4)[0]); v != want.value || string(stack) != want.stack {
			t.Errorf("%d at %q, want %d at %q", v, stack, want.value, want.stack)
		}
	}
}
