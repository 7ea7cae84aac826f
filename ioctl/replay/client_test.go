package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/traces"
)

// clientProgram builds the C client.
func clientProgram(t testing.TB) string {
	return buildOnce(t, "client", func(out string) *exec.Cmd {
		return exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", out, "testdata/client.c", "-lpthread")
	})
}

const (
	testCmd  = 0xf02
	recorded = 0xc1d00042 // handle of the recorded root client
)

// query records one call of the client's test control.
func (s *script) query(fd int32, client int, in, out uint32) {
	s.queryOn(fd, client, client, in, out)
}

func (s *script) queryOn(fd int32, client, object int, in, out uint32) {
	p := record{s.t, s.abi.Struct("NVOS54_PARAMETERS"), make([]byte, 32)}
	p.b[0] = byte(in)
	q := p.clone()
	q.b[4], q.b[5] = byte(out), byte(out>>8)
	s.control(fd, client, object, testCmd, p, q)
}

// clientScript records what the C client's behaviours have in common.
func clientScript(t testing.TB) *script {
	s := newScript(t)
	s.open(3, "nvidiactl")
	s.alloc(3, 0, 0, 0, recorded, 0x41, nil)
	s.query(3, recorded, 1, 1001)
	s.query(3, recorded, 2, 1002)
	s.query(3, recorded, 0, 1000)
	s.free(3, recorded, 0, recorded)
	s.open(4, "nvidia0")
	s.open(5, "nvidia-uvm")
	init := s.record("UVM_INITIALIZE_PARAMS")
	s.ioctl(5, 0x30000001, 0, init.b, init.clone().b, 0, nil, nil)
	s.open(6, "nvidia-caps/nvidia-cap1")
	s.add(&traces.Event{Kind: traces.KindOpen, FD: -1, Path: "/dev/nvidia1", Ret: -int64(unix.EACCES)})
	return s
}

func TestClient(t *testing.T) {
	rec := clientScript(t).bytes()
	for _, tt := range []struct {
		behaviour, stdout string
		status            int
	}{
		{"basic", "client 0xc1d00042\nquery 1: 0 1001\nquery 2: 0 1002\nquery 1: 0 1001\n", 42},
		{"files", "files ok\n", 0},
		{"maps", "maps ok\n", 0},
		{"descriptors", "descriptors ok\n", 0},
		{"threads", "threads ok\n", 0},
		{"forks", "forks ok\n", 0},
		{"exec", "exec ok\n", 0},
		{"passed", "passed ok\n", 0},
		{"limits", "limits ok\n", 0},
		{"signals", "signals ok\n", 0},
		{"killed", "killed ok\n", 0},
		{"orphan", "orphan: 0\n", 0},
	} {
		t.Run(tt.behaviour, func(t *testing.T) {
			got := replay(t, rec, nil, clientProgram(t), tt.behaviour)
			got.want(t, tt.status)
			if got.stdout != tt.stdout {
				t.Errorf("stdout %q, want %q", got.stdout, tt.stdout)
			}
			if got.Inexact != 0 {
				t.Errorf("%d inexact answers: %v", got.Inexact, got.Misses)
			}
			wantMisses := 0
			if tt.behaviour == "files" || tt.behaviour == "limits" { // they open /dev/nvidia7, and ask UVM for 0x90
				wantMisses = 1
			}
			if len(got.Misses) != wantMisses {
				t.Errorf("misses: %v", got.Misses)
			}
		})
	}
}

func TestObjects(t *testing.T) {
	const dev, sub, chosen = 0x5c000001, 0x5c000002, 0xcaf00007
	s := newScript(t)
	s.open(3, "nvidiactl")
	s.alloc(3, 0, 0, 0, recorded, 0x41, nil)
	dp := s.record("NV0080_ALLOC_PARAMETERS").set("hClientShare", recorded)
	s.alloc(3, recorded, recorded, dev, dev, 0x80, &dp)
	sp := s.record("NV2080_ALLOC_PARAMETERS")
	s.alloc(3, recorded, dev, sub, sub, 0x2080, &sp)
	s.alloc(3, recorded, dev, 0, chosen, 0x2081, nil)
	p := record{t, s.abi.Struct("NVOS54_PARAMETERS"), make([]byte, 32)}
	copy(p.b, words32(dev, sub))
	q := p.clone()
	copy(q.b, words32(dev, sub, sub, chosen, 4242))
	s.control(3, recorded, sub, 0x20800999, p, q)
	s.free(3, recorded, dev, sub)

	got := replay(t, s.bytes(), &Options{Strict: true}, clientProgram(t), "objects")
	got.want(t, 0)
	want := "chosen 0xcaf00007\ncontrol: 0 0x11110002 0xcaf00007 4242\nobjects ok\n"
	if got.stdout != want {
		t.Errorf("stdout %q, want %q", got.stdout, want)
	}
	if got.Missed != 0 || got.Unused != 0 {
		t.Errorf("missed %d, unused %d: %v", got.Missed, got.Unused, got.Misses)
	}
}

// Open files are paired in the order in which they are opened, not used.
func TestPairs(t *testing.T) {
	s := newScript(t)
	for fd := range int32(2) {
		s.open(3+fd, "nvidiactl")
	}
	for fd := range int32(2) {
		p := s.record("nv_ioctl_sys_params_t")
		s.escape(3+fd, 0xd6, p, p.clone().set("memblock_size", 100+int(fd)))
	}
	got := replay(t, s.bytes(), nil, clientProgram(t), "pairs")
	got.want(t, 0)
	if want := "first 100, second 101\n"; got.stdout != want {
		t.Errorf("stdout %q, want %q", got.stdout, want)
	}
}

// A call is answered by its own object's record first, even a second time, then
// by that of an object of the same class, then by any.
func TestSubjects(t *testing.T) {
	const dev = 0x5c000001
	for _, tt := range []struct {
		name   string
		record func(s *script)
		v1, v2 int // answers to 1 and 2
		other  int // calls answered from another object
	}{
		{"own", func(s *script) {
			s.query(3, recorded, 1, 1001)
			s.query(3, recorded, 2, 1002)
		}, 1001, 1002, 0},
		{"class", func(*script) {}, 9001, 9002, 3},
		{"mixed", func(s *script) { s.query(3, recorded, 2, 1002) }, 9001, 1002, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.open(3, "nvidiactl")
			s.alloc(3, 0, 0, 0, recorded, 0x41, nil)
			dp := s.record("NV0080_ALLOC_PARAMETERS")
			s.alloc(3, recorded, recorded, dev, dev, 0x80, &dp)
			s.queryOn(3, recorded, dev, 1, 7)
			s.queryOn(3, recorded, dev, 2, 8)
			tt.record(s)
			s.open(4, "nvidiactl")
			s.alloc(4, 0, 0, 0, recorded+1, 0x41, nil)
			for range 2 {
				s.query(4, recorded+1, 1, 9001)
				s.query(4, recorded+1, 2, 9002)
			}
			got := replay(t, s.bytes(), nil, clientProgram(t), "basic")
			got.want(t, 42)
			for i := range got.Misses {
				if m := &got.Misses[i]; !strings.Contains(m.Reason, "on another object") {
					t.Errorf("reported: %v", m)
				}
			}
			if int(got.Inexact) != tt.other {
				t.Errorf("%d inexact, want %d", got.Inexact, tt.other)
			}
			want := fmt.Sprintf("client 0xc1d00042\nquery 1: 0 %d\nquery 2: 0 %d\nquery 1: 0 %[1]d\n", tt.v1, tt.v2)
			if got.stdout != want {
				t.Errorf("stdout %q, want %q", got.stdout, want)
			}
		})
	}
}

func words32(w ...uint32) (b []byte) {
	for _, x := range w {
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return b
}

func TestMissPolicy(t *testing.T) {
	rec := clientScript(t).bytes()
	const (
		refusedAll = "unknown control: 86\nother size: 86\nunknown escape: -1 Inappropriate ioctl for device\n"
		failedAll  = "unknown control: -25\nother size: -25\nunknown escape: -1 Inappropriate ioctl for device\n"
	)
	for _, tt := range []struct {
		name    string
		o       Options
		stdout  string
		missed  uint64
		inexact uint64
		refused string // how the report shows a missed control's result
		last    string // and that of the control with other input
	}{
		{"status", Options{}, refusedAll + "other input: 0 1001\n", 6, 1, "NV_ERR_NOT_SUPPORTED", "= 0"},
		{"errno", Options{OnMiss: MissErrno}, failedAll + "other input: 0 1001\n", 6, 1, "ENOTTY", "= 0"},
		{"strict", Options{Strict: true}, refusedAll + "other input: 86 0\n", 7, 0, "NV_ERR_NOT_SUPPORTED", "NV_ERR_NOT_SUPPORTED"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := replay(t, rec, &tt.o, clientProgram(t), "misses")
			got.want(t, 3)
			if got.stdout != tt.stdout {
				t.Errorf("stdout %q, want %q", got.stdout, tt.stdout)
			}
			if got.Missed != tt.missed || got.Inexact != tt.inexact {
				t.Errorf("missed %d, inexact %d, want %d, %d", got.Missed, got.Inexact, tt.missed, tt.inexact)
			}
			checkMisses(t, got.Misses, tt.refused, tt.last)
		})
	}
}

// checkMisses compares the report of the behaviour "misses".
func checkMisses(t *testing.T, misses []Miss, refused, last string) {
	t.Helper()
	want := []struct {
		line, result, reason string
		count                int
	}{
		{"0x1234", refused, "not in the recording", 4},
		{"0xf02", refused, "parameters of this size", 1},
		{"0x7f", "ENOTTY", "not in the recording", 1},
		{"0xf02", last, "differ", 1},
	}
	if len(misses) != len(want) {
		t.Fatalf("%d misses, want %d: %v", len(misses), len(want), misses)
	}
	for i, w := range want {
		m := &misses[i]
		if !strings.Contains(m.Line, w.line) || !strings.Contains(m.Line, "= ") || !strings.Contains(m.Line[strings.LastIndex(m.Line, "= "):], w.result) || !strings.Contains(m.Reason, w.reason) || m.Count != w.count {
			t.Errorf("miss %d is %+v, want %+v", i, *m, w)
		}
		if s := m.String(); !strings.Contains(s, m.Line) || !strings.Contains(s, m.Reason) || strings.Contains(s, "\n") {
			t.Errorf("miss %d prints as %q", i, s)
		}
	}
}

func TestMissAbort(t *testing.T) {
	got := replay(t, clientScript(t).bytes(), &Options{OnMiss: MissAbort}, clientProgram(t), "misses")
	miss, ok := errors.AsType[*MissError](got.err)
	if !ok || !strings.Contains(miss.Miss.Line, "0x1234") {
		t.Fatalf("error %v, want a MissError of control 0x1234", got.err)
	}
	if !got.Ended || !got.Status.Signaled() || got.Status.Signal() != unix.SIGKILL || got.stdout != "" {
		t.Errorf("ended %v, status %#x, stdout %q", got.Ended, got.Status, got.stdout)
	}
}

func TestEnd(t *testing.T) {
	rec := clientScript(t).bytes()
	got := replay(t, rec, nil, clientProgram(t), "crash")
	if got.err != nil || !got.Status.Signaled() || got.Status.Signal() != unix.SIGSEGV {
		t.Errorf("a crash: error %v, status %#x", got.err, got.Status)
	}
}

func TestCancel(t *testing.T) {
	rec := clientScript(t).bytes()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	go func() {
		need.Until(t, func() bool {
			b, _ := os.ReadFile(out.Name())
			return bytes.Contains(b, []byte("ready"))
		})
		cancel(reason)
	}()
	res, err := run(ctx, bytes.NewReader(rec), []string{clientProgram(t), "sleep"}, &Options{Stdout: out, NoSignals: true})
	skipUnsupported(t, err)
	if !errors.Is(err, reason) || !res.Ended || res.Status.Signal() != unix.SIGKILL {
		t.Errorf("error %v, ended %v, status %#x", err, res.Ended, res.Status)
	}
	if unix.Kill(res.PID, 0) == nil {
		t.Errorf("process %d is still there", res.PID)
	}
}

// A damaged recording serves up to the damage.
func TestDamaged(t *testing.T) {
	rec := clientScript(t).bytes()
	rec = append(rec[:len(rec)-40], "garbage"...)
	got := replay(t, rec, nil, clientProgram(t), "basic")
	got.want(t, 42)
}

func BenchmarkIoctl(b *testing.B) {
	rec := clientScript(b).bytes()
	const calls = 20000
	var ns float64
	n := 0
	for b.Loop() {
		got := replay(b, rec, nil, clientProgram(b), "bench", strconv.Itoa(calls))
		got.want(b, 0)
		v, err := strconv.ParseFloat(strings.TrimSpace(got.stdout), 64)
		if err != nil || got.Answered != calls+1 {
			b.Fatalf("%q, %d answered: %v", got.stdout, got.Answered, err)
		}
		ns += v
		n++
	}
	b.ReportMetric(ns/float64(n), "ns/ioctl")
}
