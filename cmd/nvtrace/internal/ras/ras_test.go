package ras

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// server is a stand-in for NCCL's service: it takes lines in any case, answers as NCCL does, and closes the connection
// behind a status.
type server struct {
	old    bool   // without formats
	banner string // in place of its protocol
	mute   bool   // says nothing
	text   string
	got    []string
	l      net.Listener
	done   chan struct{}
}

func (s *server) start(t *testing.T) string {
	t.Helper()
	var err error
	if s.l, err = net.Listen("tcp", "localhost:0"); err != nil {
		t.Fatal(err)
	}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		s.serve(c)
	}()
	t.Cleanup(func() { _ = s.l.Close(); <-s.done })
	return s.l.Addr().String()
}

func (s *server) serve(c net.Conn) {
	format := "text"
	for lines := bufio.NewScanner(c); lines.Scan(); {
		line := strings.ToLower(strings.TrimSuffix(lines.Text(), "\r"))
		s.got = append(s.got, line)
		switch {
		case s.mute:
			return
		case s.banner != "":
			fmt.Fprintln(c, s.banner)
		case strings.HasPrefix(line, "client protocol "):
			fmt.Fprintln(c, "SERVER PROTOCOL 2")
		case strings.HasPrefix(line, "timeout "):
			fmt.Fprintln(c, "OK")
		case strings.HasPrefix(line, "set format ") && !s.old:
			format = strings.TrimPrefix(line, "set format ")
			fmt.Fprintln(c, "OK")
		case line == "status" || line == "verbose status":
			text := s.text
			if format == "json" {
				text = `{"communicators_count": 1}` + "\n"
			}
			half := len(text) / 2
			_, _ = io.WriteString(c, text[:half])
			_, _ = io.WriteString(c, text[half:])
			return
		default:
			fmt.Fprintf(c, "ERROR: Unknown command %s\n", line)
		}
	}
}

// TestAsk: what is asked for is said in NCCL's words, and the answer comes whole.
func TestAsk(t *testing.T) {
	long := strings.Repeat("Rank 3 has launched up to operation 7\n", 1000)
	for _, tt := range []struct {
		name   string
		server server
		q      Query
		want   string
		said   []string
		err    string
	}{
		{"text", server{text: long}, Query{Timeout: 1500 * time.Millisecond}, long, []string{"client protocol 2", "timeout 2", "status"}, ""},
		{"verbose json", server{}, Query{JSON: true, Verbose: true, Timeout: time.Second}, `{"communicators_count": 1}` + "\n", []string{"client protocol 2", "timeout 1", "set format json", "verbose status"}, ""},
		{"old", server{old: true}, Query{JSON: true}, "", []string{"client protocol 2", "timeout 0", "set format json"}, ErrFormat.Error()},
		{"empty", server{}, Query{}, "", []string{"client protocol 2", "timeout 0", "status"}, "without an answer"},
		{"other", server{banner: "SSH-2.0-x"}, Query{}, "", []string{"client protocol 2"}, `is not NCCL: it answers "SSH-2.0-x"`},
		{"mute", server{mute: true}, Query{}, "", []string{"client protocol 2"}, "no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Addr = tt.server.start(t)
			var out bytes.Buffer
			err := Ask(t.Context(), &tt.q, &out)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if out.String() != tt.want {
				t.Errorf("%d bytes, want %d", out.Len(), len(tt.want))
			}
			if <-tt.server.done; !slices.Equal(tt.server.got, tt.said) {
				t.Errorf("said %q, want %q", tt.server.got, tt.said)
			}
		})
	}
}

// TestNobody: where nobody listens, the error says where NCCL would.
func TestNobody(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	err = Ask(t.Context(), &Query{Addr: addr}, io.Discard)
	var op *net.OpError
	if !errors.As(err, &op) || !strings.Contains(err.Error(), "NCCL_RAS_ADDR") {
		t.Error(err)
	}
}

// TestAddress: a host alone has NCCL's port.
func TestAddress(t *testing.T) {
	for in, want := range map[string]string{
		"": "localhost:28028", "node7": "node7:28028", "node7:5": "node7:5", "::1": "[::1]:28028", "[::1]": "[::1]:28028", "[::1]:9": "[::1]:9", "10.0.0.1": "10.0.0.1:28028",
	} {
		if got := address(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
