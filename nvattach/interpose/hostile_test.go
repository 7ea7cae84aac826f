package interpose

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"

	"golang.org/x/sys/unix"
)

func dial(t testing.TB, s *Server, name string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func helloBytes(s *Server, table uint32) []byte {
	m := wireHello{PID: int32(os.Getpid()), Libc: uint32(LibcGlibc), PathLen: 4, Born: 1, Table: table}
	if s != nil {
		m.Key = s.key
	}
	m.H = newHeader(typeHello, m)
	m.H.Length += 4
	return append(encode(m), "/exe"...)
}

// enter connects and is welcomed.
func enter(t testing.TB, s *Server) *net.UnixConn {
	t.Helper()
	c := dial(t, s, s.sock)
	if _, err := c.Write(helloBytes(s, TableSum())); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	limit, _ := need.Limit(t).Deadline()
	_ = c.SetReadDeadline(limit)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := parseHeader(b[:n]); err != nil || h.Type != typeWelcome {
		t.Fatalf("welcome: %+v, %v", h, err)
	}
	return c
}

func callBytes(kind uint16, change func(m *wireCall), tail string) []byte {
	m := wireCall{TID: 1, DataLen: uint16(len(tail))}
	m.H = newHeader(kind, m)
	m.H.Length += uint32(len(tail))
	if change != nil {
		change(&m)
	}
	return append(encode(m), tail...)
}

// ended waits for the server to end the connection.
func ended(t *testing.T, what string, c *net.UnixConn) {
	t.Helper()
	limit, _ := need.Limit(t).Deadline()
	_ = c.SetReadDeadline(limit)
	if n, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("%s: %d bytes came", what, n)
	} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Errorf("%s: the connection goes on", what)
	}
}

// TestHostile: whatever comes, the server says so, ends that connection, and serves the next one.
func TestHostile(t *testing.T) {
	l := &log{}
	o := l.options(ModeCapture)
	o.MaxPerProcess, o.MaxImage, o.MaxTotal = 200, 1<<20, 3<<19
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	bad := map[string][]byte{
		"empty":       {},
		"one byte":    {1},
		"garbage":     []byte(strings.Repeat("garbage!", 50)),
		"long":        make([]byte, 60000),
		"magic":       encode(wireHeader{Version: wireVersion, Type: typeCall, Length: 16}),
		"version":     encode(wireHeader{Magic: wireMagic, Version: 9, Type: typeCall, Length: 16}),
		"type":        encode(wireHeader{Magic: wireMagic, Version: wireVersion, Type: 77, Length: 16}),
		"short call":  encode(wireHeader{Magic: wireMagic, Version: wireVersion, Type: typeCall, Length: 16}),
		"short gap":   encode(wireHeader{Magic: wireMagic, Version: wireVersion, Type: typeGap, Length: 16}),
		"function":    callBytes(typeCall, func(m *wireCall) { m.Fn = 60000 }, ""),
		"length":      callBytes(typeCall, func(m *wireCall) { m.H.Length = 1 << 31 }, ""),
		"caller":      callBytes(typeCall, func(m *wireCall) { m.CallerLen = 65535 }, ""),
		"data":        callBytes(typeCall, func(m *wireCall) { m.DataLen = 4000 }, "x"),
		"size":        callBytes(typeCall, func(m *wireCall) { m.Size = 1 << 60 }, ""),
		"hashed":      callBytes(typeCall, func(m *wireCall) { m.Hashed = 2; m.Size = 1 }, ""),
		"handles":     callBytes(typeCall, func(m *wireCall) { m.Flags = uint16(FlagHandles) }, "123"),
		"uuid":        callBytes(typeCall, func(m *wireCall) { m.Flags = uint16(FlagUUID) }, "123"),
		"no file":     callBytes(typeImage, func(m *wireCall) { m.Size = 1 }, ""),
		"hello again": helloBytes(s, TableSum()),
	}
	for what, b := range bad {
		c := enter(t, s)
		if _, err := c.Write(b); err != nil && what != "empty" {
			t.Fatalf("%s: %v", what, err)
		}
		ended(t, what, c)
	}
	for what, b := range map[string][]byte{"no hello": callBytes(typeCall, nil, ""), "other table": helloBytes(s, TableSum()+1), "garbage": []byte("GET / HTTP/1.1\r\n\r\n")} {
		c := dial(t, s, "@"+s.sock)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if what == "other table" {
			m := make([]byte, 100)
			if n, err := c.Read(m); err != nil || n != 32 || m[16] != byte(ModeOff) {
				t.Errorf("%s: %d bytes, mode %d, %v", what, n, m[16], err)
			}
		}
		ended(t, what, c)
	}
	images(t, s)
	c := enter(t, s)
	if _, err := c.Write(callBytes(typeCall, nil, "")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(l.notes) != 1 || len(l.images) != 2 {
		t.Errorf("%d notes, %d images, want 1 and 2", len(l.notes), len(l.images))
	}
	if st := s.Stats(); st.Broken < 25 || st.Broken > len(l.gaps) {
		t.Errorf("%+v with %d gaps", st, len(l.gaps))
	}
	for _, g := range l.gaps {
		if g.PID != os.Getpid() || g.String() == "" {
			t.Errorf("gap %+v", g)
		}
	}
}

// images sends files that are no images, and two that are.
func images(t *testing.T, s *Server) {
	t.Helper()
	send := func(what string, size uint64, fds []int, ok bool) {
		t.Helper()
		c := enter(t, s)
		b := callBytes(typeImage, func(m *wireCall) { m.Size = size }, "")
		if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !ok {
			ended(t, what, c)
			return
		}
		if _, err := c.Write(callBytes(typeGap, nil, "")); err != nil {
			t.Fatal(err)
		}
		ended(t, what, c) // a gap of a call's length
	}
	mem := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ffd, err := unix.Open(fifo, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := imageSeals
	zero, err := unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	send("pipe", 100, []int{pipe[0]}, false)
	send("fifo", 100, []int{ffd}, false)
	send("zero", 100, []int{zero}, false)
	send("not sealed", 100, []int{mem(100, 0)}, false)
	send("half sealed", 100, []int{mem(100, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)}, false)
	send("other size", 100, []int{mem(99, all)}, false)
	send("empty", 0, []int{mem(0, all)}, false)
	send("verdict to a pipe", 100, []int{mem(100, all), pipe[1]}, false)
	send("many files", 100, []int{pipe[0], pipe[0], pipe[0], pipe[0], pipe[0], pipe[0], pipe[0], pipe[0], pipe[0], pipe[0]}, false)
	send("above the limit", 2<<20, []int{mem(2<<20, all)}, true)
	send("an image", 1<<20, []int{mem(1<<20, all)}, true)
	send("above the sum", 1<<20, []int{mem(1<<20, all)}, true)
	if n, err := unix.Read(pipe[0], make([]byte, 8)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes were written to the pipe (%v)", n, err)
	}
}

// TestFlood: 10,000 connections and random packets neither stop nor grow the server.
func TestFlood(t *testing.T) {
	l := &log{}
	s, done := listen(t, l, ModeObserve)
	before := fds(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var wg sync.WaitGroup
	for range 4 {
		seed := rng.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for range 2500 {
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.sock, Net: "unixpacket"})
				if err != nil {
					continue // the queue is full
				}
				if r.IntN(2) == 0 {
					_, _ = c.Write(helloBytes(s, TableSum()))
				}
				for range r.IntN(4) {
					b := make([]byte, r.IntN(300))
					for i := range b {
						b[i] = byte(r.Uint32())
					}
					if len(b) > 8 {
						copy(b, encode(wireHeader{Magic: wireMagic, Version: wireVersion, Type: uint16(r.IntN(6)), Length: uint32(len(b))})[:min(16, len(b))])
					}
					_, _ = c.Write(b)
				}
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	// Idle ones are limited too.
	var idle []*net.UnixConn
	for range 50 {
		if c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.sock, Net: "unixpacket"}); err == nil {
			idle = append(idle, c)
		}
	}
	need.Until(t, func() bool { return s.Stats().Refused >= 42 })
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	if open > 8 {
		t.Errorf("%d connections of one process are open", open)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	done()
	runtime.GC()
	if after := fds(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 256<<20 {
		t.Errorf("%d bytes in use", m.HeapAlloc)
	}
}

func fds(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// slow is a program that loads an image for each line it is sent.
type slow struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startSlow(t *testing.T, w *world, env []string) *slow {
	t.Helper()
	p := &slow{cmd: exec.CommandContext(t.Context(), filepath.Join(w.dir, "prog"), "slow")}
	p.cmd.Env, p.cmd.Stderr = env, os.Stderr
	in, out := testprog.Start(t, p.cmd)
	p.in, p.out = in, bufio.NewScanner(out)
	return p
}

// load makes it load once, and returns how long that took.
func (p *slow) load(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := p.in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() || !strings.HasPrefix(p.out.Text(), "load = 0") || !p.out.Scan() || p.out.Text() != "ok" {
		t.Fatalf("the program said %q", p.out.Text())
	}
	return time.Since(start)
}

func (p *slow) end(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	for p.out.Scan() {
		t.Errorf("more: %s", p.out.Text())
	}
	if err := p.cmd.Wait(); err == nil || err.Error() != "exit status 8" {
		t.Errorf("it ended with %v", err)
	}
}

// TestServerEnds: the program goes on when the server ends, and is not slowed down.
func TestServerEnds(t *testing.T) {
	w := getWorld(t)
	for _, mode := range []Mode{ModeObserve, ModeCapture} {
		l := &log{replace: func(*Image) ([]byte, bool) { return nil, false }}
		if mode == ModeObserve {
			l.replace = nil
		}
		s, done := listen(t, l, mode)
		p := startSlow(t, w, s.Env(w.env()))
		p.load(t)
		p.load(t)
		done()
		if !fileExists(s.Path()) {
			t.Errorf("%s: the shim is gone, and a child of the program would complain", mode)
		}
		for range 5 {
			p.load(t)
		}
		p.end(t)
		if got := len(l.of("cuModuleLoadData")); got != 2 {
			t.Errorf("%s: %d loads told", mode, got)
		}
		_ = os.RemoveAll(s.dir.Path)
	}
}

// TestServerStalls: a server that does not answer costs the program a bounded time, once.
func TestServerStalls(t *testing.T) {
	w := getWorld(t)
	release := make(chan struct{})
	l := &log{replace: func(*Image) ([]byte, bool) { <-release; return []byte(".version 1.0 // late"), true }}
	o := l.options(ModeCapture)
	o.Wait = time.Second
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	p := startSlow(t, w, s.Env(w.env()))
	if d := p.load(t); d < o.Wait*9/10 {
		t.Errorf("the first load waited for %s", d)
	}
	p.load(t)
	loads := 2
	// The later ones wait less. What one takes on a busy machine says nothing.
	for short := false; !short; loads++ {
		if loads == 50 {
			t.Fatalf("each of %d loads took half of what one may wait", loads)
		}
		short = p.load(t) < o.Wait/2
	}
	close(release)
	p.end(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	timeouts := 0
	for _, g := range l.gaps {
		if g.Code == GapTimeout {
			timeouts++
		}
	}
	if timeouts != loads || len(l.images) != loads {
		t.Errorf("%d timeouts told, %d images, want %d of both: %v", timeouts, len(l.images), loads, l.gaps)
	}
}

// TestServerStopped: a server that does not even take connections, and one whose
// queue is full.
func TestServerStopped(t *testing.T) {
	w := getWorld(t)
	s, done := listen(t, &log{}, ModeObserve)
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first takes the queue's one place
		r := w.run(t, append(w.env(), "LD_PRELOAD="+s.Path(), envShim+"=1:"+path), "prog", "dlsym")
		if !strings.HasPrefix(r.out, "load = 0") {
			t.Errorf("%+v", r)
		}
		keep, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(keep) }()
		_ = unix.Connect(keep, &unix.SockaddrUnix{Name: path})
	}
	done()
}

// TestServerDoesNotRead: notes that nobody reads are dropped, and counted.
func TestServerDoesNotRead(t *testing.T) {
	w := getWorld(t)
	release := make(chan struct{})
	l := &log{}
	o := l.options(ModeObserve)
	inner := o.OnNote
	o.OnNote = func(n *Note) { <-release; inner(n) }
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	r := w.run(t, s.Env(w.env()), "prog", "threads")
	if r.out != "0 failed of 16000\n" {
		t.Errorf("%q", r.out)
	}
	p := startSlow(t, w, s.Env(w.env()))
	close(release)
	p.load(t)
	p.end(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := len(l.of("cuModuleLoadData")); got < 10 || got >= 16001 {
		t.Errorf("%d loads told", got)
	}
}

// FuzzMessage: no packet does more than end its connection.
func FuzzMessage(f *testing.F) {
	f.Add(helloBytes(nil, 1))
	f.Add(callBytes(typeCall, nil, "name"))
	f.Add(callBytes(typeCall, func(m *wireCall) { m.Flags = uint16(FlagHandles) }, "12345678"))
	f.Add(callBytes(typeImage, func(m *wireCall) { m.CallerLen, m.DataLen = 4, 0 }, "/lib"))
	f.Add(encode(wireGap{H: newHeader(typeGap, wireGap{}), Code: 2, Detail: -5}))
	functions := Functions()
	s := &Server{o: (*Options)(nil).withDefaults(), functions: functions, known: make(map[imageKey]string)}
	notes := 0
	s.o.OnNote = func(n *Note) {
		notes++
		if len(n.Text) > maxData || len(n.Handles) > maxData/8 || n.Size < 0 || n.Hashed > n.Size || len(n.Library) > maxPath {
			panic(fmt.Sprintf("%+v", n))
		}
	}
	s.o.OnGap = func(g *Gap) { _ = g.String() }
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{s: s, p: &Process{PID: 1}, pid: 1}
		_ = c.message(b, nil)
		if h, err := parseHeader(b); err == nil && h.Type == typeHello {
			if _, exe, err := parseHello(b); err == nil && len(exe) > maxPath {
				t.Errorf("a path of %d bytes", len(exe))
			}
		}
	})
}

// TestForeign: who does not have the run's key is not heard, and makes the run no
// less complete.
func TestForeign(t *testing.T) {
	if name := os.Getenv("NVTRACE_TEST_FOREIGN"); name != "" {
		forge(t, name)
		return
	}
	l := &log{}
	s, done := listen(t, l, ModeObserve)
	want := 40
	forge(t, s.sock)
	if os.Geteuid() == 0 {
		want *= 2
		// The name after the @ is in /proc/net/unix for everybody.
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestForeign$")
		cmd.Env = append(os.Environ(), "NVTRACE_TEST_FOREIGN=@"+s.sock)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	c := enter(t, s) // the run's own are served
	if _, err := c.Write(callBytes(typeCall, nil, "")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	done()
	if len(l.notes) != 1 || len(l.gaps) != 0 || len(l.hellos) != 1 {
		t.Errorf("%d notes, gaps %v, %d hellos, want 1, none and 1", len(l.notes), l.gaps, len(l.hellos))
	}
	if st := s.Stats(); st.Foreign != want || st.Refused != want || st.Broken != 0 {
		t.Errorf("%+v, want %d foreign", st, want)
	}
}

// forge tells of calls that were not made, 40 times.
func forge(t *testing.T, name string) {
	for i := range 40 {
		c := dial(t, nil, name)
		b := helloBytes(nil, TableSum())
		if i%2 == 1 {
			b[len(b)-5]++ // a key, but another
		}
		_, _ = c.Write(b)
		_, _ = c.Write(callBytes(typeCall, nil, "")) // it may have been refused already
		ended(t, "a stranger", c)
	}
}
