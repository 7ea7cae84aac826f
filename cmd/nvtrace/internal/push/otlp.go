package push

import (
	"encoding/binary"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/prom"
)

// Numbers of messages' fields, as in OpenTelemetry's protos (opentelemetry/proto/...): common, resource, trace, metrics and
// the requests of collector/*/v1.
const (
	requestResources = 1 // ResourceSpans, ResourceMetrics

	resourceOf    = 1 // of ResourceSpans, ResourceMetrics
	resourceScope = 2
	resourceAttrs = 1 // of Resource

	scopeOf      = 1 // of ScopeSpans, ScopeMetrics
	scopeItems   = 2
	scopeName    = 1
	scopeVersion = 2

	attrKey     = 1
	attrValue   = 2
	valueString = 1
	valueBool   = 2
	valueInt    = 3
	valueDouble = 4

	spanTrace  = 1
	spanID     = 2
	spanParent = 4
	spanName   = 5
	spanKind   = 6
	spanStart  = 7
	spanEnd    = 8
	spanAttrs  = 9
	spanStatus = 15

	kindInternal  = 1 // SPAN_KIND_INTERNAL
	statusMessage = 2
	statusCode    = 3
	codeError     = 2 // STATUS_CODE_ERROR

	metricName        = 1
	metricDescription = 2
	metricUnit        = 3
	metricGauge       = 5
	metricSum         = 7
	dataPoints        = 1 // of Gauge, Sum
	sumTemporality    = 2
	sumMonotonic      = 3
	cumulative        = 2 // AGGREGATION_TEMPORALITY_CUMULATIVE
	pointStart        = 2
	pointTime         = 3
	pointDouble       = 4
	pointAttrs        = 7

	responsePartial  = 1 // of Export…ServiceResponse
	partialRejected  = 1
	partialRejection = 2
)

// An Attr says something of a span or of what sends it: its Value is a string, a bool, an int64 or a float64.
type Attr struct {
	Key   string
	Value any
}

// Resource is what sends: a program that nvtrace traces.
type Resource struct {
	Attrs   []Attr
	Version string // of nvtrace
	Start   int64  // when it began, in nanoseconds since 1970
}

// Span is something that took a while. Times are in nanoseconds since 1970.
type Span struct {
	Trace      [16]byte
	ID, Parent [8]byte // a Parent of zeros: none
	Name       string
	Start, End int64
	Attrs      []Attr
	Failed     bool
	Error      string // what has failed
}

// text is a string as protobuf has it.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func (m *message) attr(field int, a Attr) {
	var v, kv message
	switch x := a.Value.(type) {
	case string:
		v.bytes(valueString, []byte(text(x)))
	case bool:
		v.tag(valueBool, wireVarint)
		v = append(v, 0)
		if x {
			v[len(v)-1] = 1
		}
	case int64:
		v.tag(valueInt, wireVarint)
		v = binary.AppendUvarint(v, uint64(x))
	case float64:
		v.double(valueDouble, x)
	}
	kv.text(attrKey, text(a.Key))
	kv.bytes(attrValue, v)
	m.bytes(field, kv)
}

// request is a request that has items of one scope and one resource.
func (r *Resource) request(items message) []byte {
	var resource, scope, inScope, inResource, all message
	for _, a := range r.Attrs {
		resource.attr(resourceAttrs, a)
	}
	scope.text(scopeName, "nvtrace")
	scope.text(scopeVersion, r.Version)
	inScope.bytes(scopeOf, scope)
	inScope = append(inScope, items...)
	inResource.bytes(resourceOf, resource)
	inResource.bytes(resourceScope, inScope)
	all.bytes(requestResources, inResource)
	return all
}

// spans is a request that has spans.
func (r *Resource) spans(list []Span) []byte {
	var items message
	for i := range list {
		s := &list[i]
		var m message
		m.bytes(spanTrace, s.Trace[:])
		m.bytes(spanID, s.ID[:])
		if s.Parent != [8]byte{} {
			m.bytes(spanParent, s.Parent[:])
		}
		m.text(spanName, text(s.Name))
		m.uint(spanKind, kindInternal)
		m.fixed64(spanStart, uint64(s.Start))
		m.fixed64(spanEnd, uint64(s.End))
		for _, a := range s.Attrs {
			m.attr(spanAttrs, a)
		}
		if s.Failed {
			var status message
			status.text(statusMessage, text(s.Error))
			status.uint(statusCode, codeError)
			m.bytes(spanStatus, status)
		}
		items.bytes(scopeItems, m)
	}
	return r.request(items)
}

// metrics is a request that has metrics, and how many values these are.
func (r *Resource) metrics(list *prom.Metrics, now time.Time) (_ []byte, values int) {
	var items message
	for i := range list.List {
		x := &list.List[i]
		var m, data message
		name, unit := metricOf(x)
		m.text(metricName, name)
		m.text(metricDescription, x.Help)
		m.text(metricUnit, unit)
		for _, v := range x.Values {
			var point message
			if x.Counter {
				point.fixed64(pointStart, uint64(r.Start))
			}
			point.fixed64(pointTime, uint64(now.UnixNano()))
			point.double(pointDouble, v.Value)
			for k := 0; k+1 < len(v.Labels); k += 2 {
				point.attr(pointAttrs, Attr{v.Labels[k], v.Labels[k+1]})
			}
			data.bytes(dataPoints, point)
			values++
		}
		if x.Counter {
			data.uint(sumTemporality, cumulative)
			data.uint(sumMonotonic, 1)
			m.bytes(metricSum, data)
		} else {
			m.bytes(metricGauge, data)
		}
		items.bytes(scopeItems, m)
	}
	return r.request(items), values
}

// metricOf returns the name and unit of a metric as OpenTelemetry writes them. Who makes Prometheus's name of both again, as
// its exporters do, comes to the one that --prom gives.
func metricOf(x *prom.Metric) (name, unit string) {
	name = strings.TrimSuffix(x.Name, "_total")
	for _, u := range [][2]string{{"_seconds", "s"}, {"_bytes", "By"}} {
		if rest, ok := strings.CutSuffix(name, u[0]); ok {
			name, unit = rest, u[1]
		}
	}
	return strings.ReplaceAll(name, "_", "."), unit
}
