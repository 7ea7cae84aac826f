package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/traces"
)

// newFlight begins a flight recorder that writes to a file of a new folder.
func newFlight(t *testing.T, stderr io.Writer, hang time.Duration) (f *flight, name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "run.nvt")
	f = &flight{
		e: &env{stdout: io.Discard, stderr: stderr, getenv: func(string) string { return "" }}, window: 5 * time.Second, hang: hang,
		header: &traces.Header{Driver: "580.159.04", PID: 7}, name: func(int) (string, error) { return name, nil },
	}
	f.begin(os.Getpid())
	return f, name
}

// flown gives a flight recorder a hundred seconds of calls, with ioctls in some.
func flown(f *flight) (ioctls int) {
	f.Event(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, FD: -1, Path: "/bin/app"})
	for i := range 100_000 {
		at := int64(i) * int64(time.Millisecond)
		f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Time: at, Name: "cuMemAlloc_v2", Path: "libcuda.so.1"})
		if i%1000 == 0 {
			ioctls++
			f.Event(&traces.Event{Kind: traces.KindIoctl, PID: 7, TID: 7, FD: 3, File: 1, Dev: "nvidiactl", Time: at + 10, Dur: 5, Args: [6]uint64{3, 0xc020462a}})
		}
		f.Event(&traces.Event{Kind: traces.KindReturn, PID: 7, TID: 7, FD: -1, Time: at, Dur: 100, Name: "cuMemAlloc_v2"})
	}
	return ioctls
}

// TestFlight: a file has the library calls of the last seconds, and all else.
func TestFlight(t *testing.T) {
	var said bytes.Buffer
	f, name := newFlight(t, &said, 0)
	want := flown(f)
	f.Event(&traces.Event{Kind: traces.KindExit, PID: 7, TID: 7, FD: -1, Time: 100e9, Ret: 3 << 8})
	f.close()
	if !strings.Contains(said.String(), "process 7 exited with 3: the last 5s are in "+name) {
		t.Errorf("said %q", said.String())
	}
	r, err := traces.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	execs, ioctls, calls, returns, last := 0, 0, 0, 0, int64(0)
	for ev, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		if end := ev.Time + ev.Dur; end < last {
			t.Fatalf("%v at %d behind %d", ev.Kind, end, last)
		} else {
			last = end
		}
		switch ev.Kind {
		case traces.KindExec:
			execs++
		case traces.KindIoctl:
			ioctls++
		case traces.KindCall:
			calls++
			if ev.Time < 94e9 {
				t.Fatalf("a call of %d", ev.Time)
			}
		case traces.KindReturn:
			returns++
		}
	}
	if execs != 1 || ioctls != want || calls < 5000 || calls > 6000 || returns-calls > 1 || !r.Complete() {
		t.Errorf("%d execs, %d of %d ioctls, %d calls, %d returns; complete %v", execs, ioctls, want, calls, returns, r.Complete())
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != modePrivate {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestFlightFine: a program that ends well leaves no file.
func TestFlightFine(t *testing.T) {
	var said bytes.Buffer
	f, name := newFlight(t, &said, time.Hour)
	f.Event(&traces.Event{Kind: traces.KindExit, PID: 7, TID: 7, FD: -1})
	f.close()
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) || said.Len() > 0 {
		t.Errorf("%v; said %q", err, said.String())
	}
}

// lines sends what is written.
type linesTo chan string

func (l linesTo) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestFlightHang: a call that does not return is in the file, which is written once.
func TestFlightHang(t *testing.T) {
	said := make(linesTo, 8)
	f, name := newFlight(t, said, time.Millisecond)
	f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Name: "cuCtxSynchronize", Path: "libcuda.so.1"})
	select {
	case s := <-said:
		if !strings.Contains(s, "no library call has returned for 1ms") {
			t.Errorf("said %q", s)
		}
	case <-need.Limit(t).Done():
		t.Fatal("no hang was seen")
	}
	var out bytes.Buffer
	e := &env{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
	if status := main1(e, []string{"log", name}); status != exitOK || !strings.Contains(out.String(), "cuCtxSynchronize() = ?") && !strings.Contains(out.String(), "cuCtxSynchronize(") {
		t.Errorf("status %d: %s", status, &out)
	}
	f.close()
	if len(said) > 0 {
		t.Errorf("said once more %q", <-said)
	}
}

// TestDump: a flight recorder writes its file when it is asked to.
func TestDump(t *testing.T) {
	f, name := newFlight(t, io.Discard, 0)
	f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Name: "cuInit"})
	var out bytes.Buffer
	e := &env{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
	pid := strconv.Itoa(os.Getpid())
	if status := main1(e, []string{"dump", pid}); status != exitOK || out.String() != name+"\n" {
		t.Errorf("status %d: %s", status, &out)
	}
	if r, err := traces.Open(name); err != nil {
		t.Error(err)
	} else {
		_ = r.Close()
	}
	f.mu.Lock()
	f.name = func(int) (string, error) { return filepath.Join(name, "not/there"), nil }
	f.mu.Unlock()
	out.Reset()
	if status := main1(e, []string{"dump", pid}); status != exitFailed || !strings.Contains(out.String(), "not a directory") {
		t.Errorf("status %d: %s", status, &out)
	}
	f.close()
	for _, args := range [][]string{{"dump", pid}, {"dump"}, {"dump", "x"}, {"dump", "1", "2"}, {"dump", "-1"}} {
		if status := main1(e, args); status == exitOK {
			t.Errorf("%q: status %d", args, status)
		}
	}
}
