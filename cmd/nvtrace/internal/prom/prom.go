// Package prom gives metrics in Prometheus's text format to who asks for them over HTTP, or into a file. What is given
// was made before: who asks often, slowly or not at all holds nobody up.
package prom

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of what who asks can take.
const (
	maxAsking  = 8 // at a time
	askTime    = 5 * time.Second
	maxRequest = 8 << 10
)

// Target is where metrics go. A nil one takes none.
type Target struct {
	file   string
	write  func(name string, data []byte) error
	listen net.Listener
	asking chan struct{}
	text   atomic.Pointer[[]byte]
	failed bool
}

// Port returns the port, or the host and port, that a word names, 0 for a word that is a file's name.
func Port(word string) (host string, port int) {
	host, text, ok := strings.Cut(word, ":")
	if i := strings.LastIndexByte(word, ':'); ok && i > len(host) { // [::1]:9400
		host, text = strings.Trim(word[:i], "[]"), word[i+1:]
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || strings.Contains(host, "/") {
		return "", 0
	}
	return host, int(n)
}

// Check refuses words that are meant for a port and name none.
func Check(word string) error {
	_, port := Port(word)
	_, err := strconv.ParseUint(word, 10, 16)
	switch {
	case err == nil:
		return fmt.Errorf("%s: a port is written :%[1]s, and a file with this name ./%[1]s", word)
	case port == 0 && strings.HasPrefix(word, ":"):
		return fmt.Errorf("%s: want a port from 1 to 65535", word)
	}
	return nil
}

// Open opens a target: a port (":9400"), to whose number offset is added, or a file that write writes.
func Open(word string, offset int, write func(name string, data []byte) error) (*Target, error) {
	if err := Check(word); err != nil {
		return nil, err
	}
	host, port := Port(word)
	if port == 0 {
		return &Target{file: word, write: write}, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+offset)))
	if err != nil {
		return nil, err
	}
	t := &Target{listen: l, asking: make(chan struct{}, maxAsking)}
	go t.serve()
	return t, nil
}

// Addr is where a target listens; "": it is a file.
func (t *Target) Addr() string {
	if t.listen == nil {
		return ""
	}
	return t.listen.Addr().String()
}

// Put gives the metrics as they are now. The first error of a file is returned, later ones are not.
func (t *Target) Put(text []byte) error {
	switch {
	case t == nil:
	case t.listen != nil:
		text = bytes.Clone(text)
		t.text.Store(&text)
	default:
		if err := t.write(t.file, text); err != nil && !t.failed {
			t.failed = true
			return err
		}
	}
	return nil
}

// Close ends the target.
func (t *Target) Close() error {
	if t == nil || t.listen == nil {
		return nil
	}
	return t.listen.Close()
}

func (t *Target) serve() {
	for {
		c, err := t.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many descriptors
			time.Sleep(time.Second)
			continue
		}
		select {
		case t.asking <- struct{}{}:
			go func() {
				t.answer(c)
				<-t.asking
			}()
		default:
			_ = c.Close() // there are enough
		}
	}
}

// answer answers a request.
func (t *Target) answer(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(askTime)) // a connection that is closed fails below
	in := bufio.NewReader(io.LimitReader(c, maxRequest))
	first, err := in.ReadString('\n')
	for line := first; err == nil && strings.TrimSpace(line) != ""; {
		line, err = in.ReadString('\n')
	}
	if err != nil {
		return
	}
	words := strings.Fields(first)
	status, body := "200 OK", []byte{}
	switch {
	case len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1."):
		status = "400 Bad Request"
	case words[0] != "GET" && words[0] != "HEAD":
		status = "405 Method Not Allowed"
	case words[1] != "/metrics" && words[1] != "/" && !strings.HasPrefix(words[1], "/metrics?"):
		status, body = "404 Not Found", []byte("metrics are at /metrics\n")
	default:
		if text := t.text.Load(); text != nil {
			body = *text
		}
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status, len(body))
	if len(words) > 0 && words[0] == "HEAD" {
		body = nil
	}
	_, _ = c.Write(append([]byte(head), body...)) // who asks and goes has lost it
}

// Metrics are what was measured, before it has a form.
type Metrics struct {
	Labels []string // of all values, as name and value in turn
	List   []Metric
}

// Metric is a name with values.
type Metric struct {
	Name, Help string
	Counter    bool // else it is a gauge
	Values     []Value
}

// Value is one value of a metric, with labels of its own, as name and value in turn.
type Value struct {
	Labels []string
	Value  float64
}

// NewMetrics begins with labels that all values have; those without a value are left out.
func NewMetrics(labels ...string) *Metrics {
	return &Metrics{Labels: known(labels)}
}

// known returns the labels that have a value.
func known(labels []string) (list []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		if labels[i+1] != "" {
			list = append(list, labels[i], labels[i+1])
		}
	}
	return list
}

// Begin begins a metric, whose name ends in _total if it is a counter.
func (m *Metrics) Begin(name, help string) {
	m.List = append(m.List, Metric{Name: name, Help: help, Counter: strings.HasSuffix(name, "_total")})
}

// Value adds a value to the metric that was begun last, with labels of its own.
func (m *Metrics) Value(value float64, labels ...string) {
	last := &m.List[len(m.List)-1]
	last.Values = append(last.Values, Value{known(labels), value})
}

// One adds a metric that has one value.
func (m *Metrics) One(name, help string, value float64) {
	m.Begin(name, help)
	m.Value(value)
}

// Text returns the metrics in Prometheus's text format.
func (m *Metrics) Text() []byte {
	var t bytes.Buffer
	for i := range m.List {
		x := &m.List[i]
		kind := "gauge"
		if x.Counter {
			kind = "counter"
		}
		fmt.Fprintf(&t, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", x.Name, x.Help, kind)
		for _, v := range x.Values {
			t.WriteString(x.Name)
			for k, all := 0, slices.Concat(m.Labels, v.Labels); k+1 < len(all); k += 2 {
				t.WriteByte("{,"[min(k, 1)])
				t.WriteString(all[k] + "=" + Quote(all[k+1]))
			}
			if len(m.Labels)+len(v.Labels) > 0 {
				t.WriteByte('}')
			}
			t.WriteString(" " + strconv.FormatFloat(v.Value, 'f', -1, 64) + "\n")
		}
	}
	return t.Bytes()
}

// Quote is a label's value, quoted.
func Quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
