package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profiles sends profiles in pprof's form.
type Profiles struct {
	*Sender
	to      endpoint
	parca   bool
	name    string
	labels  []string // name and value in turn, by name
	version string
}

// A Profile is what a program did from one time to another.
type Profile struct {
	From, To time.Time
	Pprof    []byte      // gzipped profile.proto
	Types    [][2]string // names and units of its values
}

// profileWords are how receivers of profiles are named.
const profileWords = "pyroscope=http://HOST:4040, parca=http://HOST:7070 or otlp"

// ParseProfiles reads where profiles are to go: OTLP's receiver, or another one.
func ParseProfiles(word string) (otlp bool, err error) {
	if word == "otlp" {
		return true, nil
	}
	_, _, err = profileTarget(word)
	return false, err
}

func profileTarget(word string) (parca bool, u *url.URL, err error) {
	kind, at, ok := strings.Cut(word, "=")
	if !ok || kind != "pyroscope" && kind != "parca" {
		return false, nil, fmt.Errorf("%s: want %s", word, profileWords)
	}
	u, err = parseURL(at)
	return kind == "parca", u, err
}

// NewProfiles returns what sends profiles of a program to Pyroscope or Parca.
func NewProfiles(word, name, version string, labels []string, notice func(format string, args ...any)) (*Profiles, error) {
	parca, u, err := profileTarget(word)
	if err != nil {
		return nil, err
	}
	u.Scheme = strings.Replace(u.Scheme, "grpc", "http", 1)
	p := &Profiles{Sender: newSender(notice), parca: parca, name: name, version: version}
	for pair := range slices.Chunk(labels, 2) {
		if pair[1] != "" {
			p.labels = append(p.labels, pair...)
		}
	}
	p.to = endpoint{grpc: parca, timeout: usualTimeout, header: http.Header{"User-Agent": {"nvtrace/" + version}}}
	p.to.client = newClient(transport(parca, nil))
	if parca {
		u.Path = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
		p.to.header.Set("Content-Type", contentType(true))
		if user := u.User; user != nil { // a token, which gRPC has in a header
			if token, ok := user.Password(); ok {
				p.to.header.Set("Authorization", "Bearer "+token)
			}
			u.User = nil
		}
	} else {
		u.Path = strings.TrimSuffix(u.Path, "/") + "/ingest"
	}
	p.to.url = u.String()
	return p, nil
}

// Profile sends a profile.
func (p *Profiles) Profile(x *Profile) {
	to := p.to
	var body []byte
	if p.parca {
		body = p.parcaRequest(x)
	} else {
		to.header = to.header.Clone()
		var query url.Values
		body, query = p.ingest(x, to.header)
		to.url += "?" + query.Encode()
	}
	p.add(item{&to, body, "profile", 1})
}

// ingest makes a request for Pyroscope's /ingest: a form with the profile and what its values are.
func (p *Profiles) ingest(x *Profile, header http.Header) ([]byte, url.Values) {
	type config struct {
		Units       string `json:"units"`
		Aggregation string `json:"aggregation"`
		Cumulative  bool   `json:"cumulative"`
		Sampled     bool   `json:"sampled"`
	}
	types := make(map[string]config)
	for _, t := range x.Types {
		units := map[string]string{"nanoseconds": "lock_nanoseconds", "bytes": "bytes", "count": "objects"}[t[1]]
		aggregation := "sum"
		if t[0] == "live" {
			aggregation = "average"
		}
		types[t[0]] = config{Units: units, Aggregation: aggregation}
	}
	text, err := json.Marshal(types)
	if err != nil {
		panic("BUG: texts as JSON: " + err.Error())
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for _, part := range []struct {
		name, file string
		data       []byte
	}{{"profile", "profile.pprof", x.Pprof}, {"sample_type_config", "sample_type_config.json", text}} {
		w, err := form.CreateFormFile(part.name, part.file)
		if err == nil {
			_, err = w.Write(part.data)
		}
		if err != nil {
			panic("BUG: memory can't be written to")
		}
	}
	if err := form.Close(); err != nil {
		panic("BUG: memory can't be written to")
	}
	header.Set("Content-Type", form.FormDataContentType())
	var labels []string
	for pair := range slices.Chunk(p.labels, 2) {
		labels = append(labels, pair[0]+"="+strings.Map(unbraced, pair[1]))
	}
	return body.Bytes(), url.Values{
		"name": {strings.Map(unbraced, p.name) + "{" + strings.Join(labels, ",") + "}"}, "format": {"pprof"}, "spyName": {"nvtrace"},
		"from": {strconv.FormatInt(x.From.UnixNano(), 10)}, "until": {strconv.FormatInt(x.To.UnixNano(), 10)},
	}
}

// unbraced replaces what would end a label's value in Pyroscope's names.
func unbraced(c rune) rune {
	if strings.ContainsRune(`{},="`, c) || c < ' ' {
		return '_'
	}
	return c
}

// Numbers of messages' fields, as in Parca's parca/profilestore/v1alpha1/profilestore.proto.
const (
	writeSeries    = 2 // of WriteRawRequest
	seriesLabels   = 1 // of RawProfileSeries
	seriesSamples  = 2
	labelSetLabels = 1
	labelName      = 1
	labelValue     = 2
	sampleRaw      = 1 // of RawSample
)

// parcaRequest makes a request for Parca's WriteRaw.
func (p *Profiles) parcaRequest(x *Profile) []byte {
	var labels, series, sample, all message
	for pair := range slices.Chunk(append([]string{"__name__", "nvtrace", "job", p.name}, p.labels...), 2) {
		var l message
		l.text(labelName, pair[0])
		l.text(labelValue, text(pair[1]))
		labels.bytes(labelSetLabels, l)
	}
	sample.bytes(sampleRaw, x.Pprof)
	series.bytes(seriesLabels, labels)
	series.bytes(seriesSamples, sample)
	all.bytes(writeSeries, series)
	return all
}
