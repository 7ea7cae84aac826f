// Package telemetry makes the messages that OpenTelemetry's receivers take of a run: spans, metrics and profiles.
package telemetry

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/push"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/fatbin"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Options say where what a run does is sent.
type Options struct {
	OTLP     string        // URL of a collector, or [push.ByEnvironment]; "": none
	Profiles string        // where profiles go, as [push.ParseProfiles] has it; "": nowhere
	Long     time.Duration // from how long on calls and ranges have spans
}

// Given reports whether anything is sent.
func (o *Options) Given() bool { return o.OTLP != "" || o.Profiles != "" }

// Check says what is wrong with them, before anything is begun.
func (o *Options) Check(getenv func(string) string) error {
	if o.Long <= 0 {
		return fmt.Errorf("--otlp-long=%s: want a time above 0", o.Long)
	}
	if o.OTLP != "" {
		if err := push.CheckOTLP(o.OTLP, getenv); err != nil {
			return fmt.Errorf("--otlp: %w", err)
		}
	}
	if o.Profiles == "" {
		return nil
	}
	byOTLP, err := push.ParseProfiles(o.Profiles)
	switch {
	case err != nil:
		return fmt.Errorf("--profiles=%w", err)
	case byOTLP && o.OTLP == "":
		return fmt.Errorf("--profiles=otlp: say where the collector is, by --otlp")
	}
	return nil
}

// Sending sends what a run does to receivers.
type Sending struct {
	otlp     *push.OTLP     // nil: there is none
	profiles *push.Profiles // likewise, for Pyroscope or Parca
	metrics  *Metrics
	spans    *Spans
	profile  *export.Profile // nil: no profiles are wanted
	start    int64
	from     time.Time // of the next profile
	notice   func(format string, args ...any)
}

// Times between what is sent.
const (
	spansEvery    = time.Second
	profilesEvery = 15 * time.Second
)

// Tick is what is to be done again and again.
type Tick struct {
	Every time.Duration
	Do    func(time.Time)
}

// NewSending has the sink send what it gets. metrics is what counts.
func NewSending(o *Options, s *view.Sink, h *traces.Header, metrics *Metrics, getenv func(string) string, notice func(format string, args ...any)) (_ *Sending, err error) {
	x := &Sending{metrics: metrics, start: h.Start, from: time.Unix(0, h.Start), notice: notice}
	of := resourceOf(h)
	said := func(flag string) func(format string, args ...any) {
		return func(format string, args ...any) { notice(flag+": "+format, args...) }
	}
	if o.OTLP != "" {
		if x.otlp, err = push.NewOTLP(o.OTLP, of, getenv, said("--otlp")); err != nil {
			return nil, fmt.Errorf("--otlp: %w", err)
		}
		x.spans = newSpans(h, o.Long, getenv("TRACEPARENT"))
		metrics.Took = func(d *nccl.Done) { x.spans.took(d, metrics.process.Comms[d.Comm].Size) }
		s.Follow()
		s.Show(x.spans)
	}
	if o.Profiles == "" {
		return x, nil
	}
	if byOTLP, _ := push.ParseProfiles(o.Profiles); !byOTLP {
		place := ranks.Of(h.Rank)
		labels := []string{"hostname", h.Host, "job_id", place.Job, "rank", place.Label(), "pid", strconv.Itoa(int(h.PID))}
		if x.profiles, err = push.NewProfiles(o.Profiles, serviceOf(h, getenv), h.Tool, labels, said("--profiles")); err != nil {
			return nil, fmt.Errorf("--profiles=%w", err)
		}
	}
	x.profile = export.NewProfile(h, s.Decoder())
	x.profile.Demangle, x.profile.Rank = fatbin.Demangle, ranks.Of(h.Rank).Label()
	s.Follow()
	s.Show(x.profile)
	return x, nil
}

// serviceOf is what receivers call the program.
func serviceOf(h *traces.Header, getenv func(string) string) string {
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		return name
	}
	if len(h.Argv) == 0 {
		return "nvtrace"
	}
	return path.Base(h.Argv[0])
}

// resourceOf says what sends, by the names that OpenTelemetry has for it.
func resourceOf(h *traces.Header) push.Resource {
	place := ranks.Of(h.Rank)
	of := push.Resource{Version: h.Tool, Start: h.Start}
	add := func(key string, value any) {
		if value != "" {
			of.Attrs = append(of.Attrs, push.Attr{Key: key, Value: value})
		}
	}
	add("service.name", serviceOf(h, func(string) string { return "" }))
	add("service.instance.id", fmt.Sprintf("%s-%d-%d", h.Host, h.PID, h.Start))
	add("host.name", h.Host)
	add("process.pid", int64(h.PID))
	if len(h.Argv) > 0 {
		add("process.command", h.Argv[0])
	}
	add("container.id", h.Container)
	add("hw.id", h.OnlyGPU())
	add("nvtrace.driver.version", h.Driver)
	add("nvtrace.job.id", place.Job)
	if place.Rank >= 0 {
		add("nvtrace.rank", int64(place.Rank))
	}
	if place.World >= 0 {
		add("nvtrace.world_size", int64(place.World))
	}
	return of
}

// Ticks is what is to be done while the program runs.
func (x *Sending) Ticks() (list []Tick) {
	if x.otlp != nil {
		list = append(list, Tick{spansEvery, func(now time.Time) { x.sendSpans(now, false) }}, Tick{x.otlp.Interval, x.sendMetrics})
	}
	if x.profile != nil {
		list = append(list, Tick{profilesEvery, x.sendProfile})
	}
	return list
}

func (x *Sending) sendSpans(now time.Time, end bool) {
	list, dropped := x.spans.take(now, end)
	x.otlp.Spans(list)
	if dropped > 0 {
		x.otlp.Lose("span", dropped)
	}
}

func (x *Sending) sendMetrics(now time.Time) { x.otlp.Metrics(x.metrics.Measure(now), now) }

func (x *Sending) sendProfile(now time.Time) {
	var b bytes.Buffer
	if err := x.profile.Part(&b, now.UnixNano()-x.start); err != nil {
		x.notice("--profiles: %v", err)
		return
	}
	p := &push.Profile{From: x.from, To: now, Pprof: b.Bytes(), Types: x.profile.ValueTypes()}
	if x.from = now; x.profiles != nil {
		x.profiles.Profile(p)
	} else if err := x.otlp.Profile(p); err != nil {
		x.notice("--profiles: %v", err)
	}
}

// End sends the rest, which takes no longer than two seconds, and says what was lost.
func (x *Sending) End(now time.Time) {
	if x.otlp != nil {
		x.sendMetrics(now) // which makes spans, too
		x.sendSpans(now, true)
	}
	if x.profile != nil {
		x.sendProfile(now)
	}
	var all sync.WaitGroup
	texts := make([]string, 2)
	if x.otlp != nil {
		all.Go(func() { texts[0] = x.otlp.Close() })
	}
	if x.profiles != nil {
		all.Go(func() { texts[1] = x.profiles.Close() })
	}
	all.Wait()
	for i, flag := range []string{"--otlp", "--profiles"} {
		if texts[i] != "" {
			x.notice("%s: %s", flag, strings.TrimSpace(texts[i]))
		}
	}
}
