package prom

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestServe: an ordinary client gets what was put last. Clients that say nothing, or read nothing, keep neither it nor the
// program from going on.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := &Target{listen: l, asking: make(chan struct{}, maxAsking)}
	go target.serve()
	defer target.Close()
	m := NewMetrics("hostname", "a\"b", "job_id", "")
	m.One("nvtrace_test", "A test.", 1.5)
	if err := target.Put(m.Text()); err != nil {
		t.Fatal(err)
	}
	for range maxAsking - 1 { // they say nothing
		c, err := net.Dial("tcp", target.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	ask := func(path string) (int, string) {
		for deadline := time.Now().Add(time.Minute); ; {
			if time.Now().After(deadline) {
				t.Fatalf("no answer to %s in a minute", path)
			}
			r, err := http.Get("http://" + target.Addr() + path)
			if err != nil { // a silent one has not been accepted yet, or all places are taken: they are given up after a while
				time.Sleep(10 * time.Millisecond)
				continue
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			return r.StatusCode, string(b)
		}
	}
	want := "# HELP nvtrace_test A test.\n# TYPE nvtrace_test gauge\nnvtrace_test{hostname=\"a\\\"b\"} 1.5\n"
	if status, text := ask("/metrics"); status != 200 || text != want {
		t.Errorf("%d %q", status, text)
	}
	if status, _ := ask("/other"); status != 404 {
		t.Errorf("status %d", status)
	}
	for range 1000 { // nobody reads it
		if err := target.Put([]byte(strings.Repeat("x", 1<<16))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPortAlone: a number alone is neither a port nor a file.
func TestPortAlone(t *testing.T) {
	if _, err := Open("9400", 0, nil); err == nil || !strings.Contains(err.Error(), ":9400") {
		t.Errorf("%v", err)
	}
	if target, err := Open("./9400", 0, nil); err != nil || target.Addr() != "" {
		t.Errorf("%v", err)
	}
}

// TestFile: a file is written, and its first error told.
func TestFile(t *testing.T) {
	wrote, fails := "", errors.New("full")
	target, err := Open("state.prom", 3, func(name string, b []byte) error {
		wrote = name + " " + string(b)
		return fails
	})
	if err != nil || target.Addr() != "" {
		t.Fatal(err)
	}
	if err := target.Put([]byte("x 1\n")); !errors.Is(err, fails) || wrote != "state.prom x 1\n" {
		t.Errorf("%v, %q", err, wrote)
	}
	if err := target.Put(nil); err != nil {
		t.Errorf("told twice: %v", err)
	}
	if err := (*Target)(nil).Put(nil); err != nil {
		t.Error(err)
	}
	for word, want := range map[string]int{":9400": 9400, "localhost:80": 80, "[::1]:9": 9, "a.prom": 0, "/x/a:80": 0, "C:": 0} {
		if _, port := Port(word); port != want {
			t.Errorf("%s: port %d", word, port)
		}
	}
}

// TestNoPort: what looks like a port and is none is no file's name.
func TestNoPort(t *testing.T) {
	for _, word := range []string{":0", ":65536", ":http", "9400"} {
		if _, err := Open(word, 0, nil); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}
