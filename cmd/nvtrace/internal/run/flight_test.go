package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/internal/need"
	"nvtrace/traces"
)

// newFlight begins a flight recorder that writes to a file of a new folder.
func newFlight(t *testing.T, stderr io.Writer, hang time.Duration) (f *flight, name string) {
	t.Helper()
	return newFlightOf(t, 7, stderr, hang)
}

// newFlightOf begins one of a process.
func newFlightOf(t *testing.T, pid int, stderr io.Writer, hang time.Duration) (f *flight, name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "run.nvt")
	f = &flight{
		e: &cli.Env{Stdout: io.Discard, Stderr: stderr, Getenv: func(string) string { return "" }}, window: 5 * time.Second, hang: hang,
		header: &traces.Header{Driver: "580.159.04", PID: int32(pid)}, name: func(int) (string, error) { return name, nil },
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
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != cli.ModePrivate {
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
		if !strings.Contains(s, "thread 7 of process 7 has been in cuCtxSynchronize for 1ms") {
			t.Errorf("said %q", s)
		}
	case <-need.Limit(t).Done():
		t.Fatal("no hang was seen")
	}
	var out bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	if status := view.LogVerb(e, []string{name}, nil); status != cli.ExitOK || !strings.Contains(out.String(), "cuCtxSynchronize() = ?") && !strings.Contains(out.String(), "cuCtxSynchronize(") {
		t.Errorf("status %d: %s", status, &out)
	}
	f.close()
	if len(said) > 0 {
		t.Errorf("said once more %q", <-said)
	}
}

// reported reads a recording's summary as JSON into v.
func reported(t *testing.T, name string, v any) {
	t.Helper()
	var out bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	if status := view.ReportVerb(e, []string{"--json", name}, nil); status != cli.ExitOK {
		t.Fatalf("status %d: %s", status, &out)
	}
	if err := json.Unmarshal(out.Bytes(), v); err != nil {
		t.Fatal(err)
	}
}

// TestFlightHangBesidePolling: a thread that polls doesn't hide one that hangs, whose call is in the file however
// old it is; and of calls that were dropped, handles keep their names, and shares of time are not made.
func TestFlightHangBesidePolling(t *testing.T) {
	said := make(linesTo, 8)
	f, name := newFlight(t, said, time.Second)
	call := func(tid int32, fn string, at int64, ret *traces.Event) {
		f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: tid, FD: -1, Time: at, Name: fn, Path: "libcuda.so.1"})
		if ret != nil {
			*ret = traces.Event{Kind: traces.KindReturn, PID: 7, TID: tid, FD: -1, Time: at, Dur: ret.Dur, Name: fn, Mem: ret.Mem}
			f.Event(ret)
		}
	}
	f.Event(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, FD: -1, Path: "/bin/app"})
	lookup := []traces.Seg{
		{Addr: 0x1000, Len: 8, Out: []byte{0x40, 0, 0, 0, 0, 0, 0, 0}},
		{Addr: 0x2000, Len: 6, In: []byte("spin_a\x00")},
	}
	f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Time: 1e6, Name: "cuModuleGetFunction", Path: "libcuda.so.1", Args: [6]uint64{0x1000, 1, 0x2000}, Mem: lookup})
	f.Event(&traces.Event{Kind: traces.KindReturn, PID: 7, TID: 7, FD: -1, Time: 1e6, Dur: 1000, Name: "cuModuleGetFunction", Mem: lookup})
	call(9, "cuInit", 2e6, &traces.Event{Dur: 500e6})
	call(7, "cuStreamSynchronize", 600e6, nil)
	hung := false
	for i := int64(0); !hung; i++ {
		call(8, "cuEventQuery", 1e9+i*1e7, &traces.Event{Dur: 1e6})
		if i == 10 {
			f.Event(&traces.Event{
				Kind: traces.KindGPU, PID: 7, TID: 7, FD: -1, Time: 1e9 + i*1e7, Name: "cuLaunchKernel", Path: "libcuda.so.1",
				Args: [6]uint64{599e6, 600e6, 400e6, 0x10, 0xc0, 0x40},
			})
		}
		select {
		case s := <-said:
			if hung = true; !strings.Contains(s, "thread 7 of process 7 has been in cuStreamSynchronize for 1s") {
				t.Errorf("said %q", s)
			}
		default:
			if i > 2_000 { // twenty seconds of the program's
				time.Sleep(time.Millisecond)
			}
		}
		if need.Limit(t).Err() != nil {
			t.Fatal("no hang was seen")
		}
	}
	f.close()
	var r struct {
		Verdict struct {
			Wall, Called int64
			CallsFrom    int64  `json:"calls_from"`
			Library      *int64 `json:"library_time"`
			GPU          *view.GPUTimes
		}
		API struct {
			Functions []struct {
				Name              string
				Calls, Unfinished uint64
			}
		}
		Cost *traces.Cost
	}
	reported(t, name, &r)
	calls := map[string]uint64{}
	for _, fn := range r.API.Functions {
		calls[fn.Name] = fn.Calls
		if fn.Name == "cuStreamSynchronize" && fn.Unfinished != 1 {
			t.Errorf("%+v", fn)
		}
	}
	if calls["cuStreamSynchronize"] != 1 || calls["cuEventQuery"] == 0 || calls["cuInit"] != 0 || calls["cuModuleGetFunction"] != 0 {
		t.Errorf("calls %v", calls)
	}
	if v := r.Verdict; v.CallsFrom == 0 || v.Called < 5e9 || v.Called > 6e9 || v.Wall < 20e9 || v.Library == nil || *v.Library > v.Called/5 {
		t.Errorf("%+v", v)
	}
	if g := r.Verdict.GPU; g == nil || len(g.Works) != 1 || g.Works[0].Name != "spin_a" {
		t.Errorf("what the GPU did: %+v", g)
	}
	if r.Cost != nil {
		t.Errorf("cost of a run that goes on: %+v", r.Cost)
	}
}

// TestFlightLooks: who writes a file first asks the tracing process to look, and waits until that has come; what
// hangs by a look is reported.
func TestFlightLooks(t *testing.T) {
	said := make(linesTo, 8)
	f, name := newFlightOf(t, os.Getpid(), said, time.Hour)
	l, err := net.Listen("unix", "@nvtrace-look-"+strconv.Itoa(int(f.header.PID)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := traces.Event{
		Kind: traces.KindChannels, PID: 7, TID: 7, FD: -1, Time: 5, Args: [6]uint64{1, 1},
		Text: "Channel 1 of GPU 0 has been in spin(int*) for about 94s; 2 jobs wait behind it.", Data: "{}",
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "1")
		time.Sleep(10 * time.Millisecond) // the pipe's way
		f.Event(&busy)
		last := busy
		last.PID, last.Args[1] = 8, 0
		f.Event(&last)
	}()
	f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Name: "cuInit"})
	var out bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	if status := DumpVerb(e, []string{strconv.Itoa(os.Getpid())}, nil); status != cli.ExitOK || out.String() != name+"\n" {
		t.Errorf("status %d: %s", status, &out)
	}
	out.Reset()
	if status := view.ReportVerb(e, []string{name}, nil); status != cli.ExitOK || strings.Count(out.String(), "GPU not over         at 0.000000 s in process ") != 2 || strings.Contains(out.String(), "nvtrace itself") {
		t.Errorf("status %d: %s", status, &out)
	}
	hung := busy
	hung.Flags, hung.Args = traces.FlagUnfinished, [6]uint64{2}
	f.Event(&hung)
	if s := <-said; !strings.Contains(s, "Channel 1 of GPU 0 has been in spin(int*) for about 94s; 2 jobs wait behind it: the last 5s are in ") {
		t.Errorf("said %q", s)
	}
	f.close()
}

// TestDump: a flight recorder writes its file when it is asked to.
func TestDump(t *testing.T) {
	f, name := newFlight(t, io.Discard, 0)
	f.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Name: "cuInit"})
	var out bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	pid := strconv.Itoa(os.Getpid())
	if status := DumpVerb(e, []string{pid}, nil); status != cli.ExitOK || out.String() != name+"\n" {
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
	if status := DumpVerb(e, []string{pid}, nil); status != cli.ExitFailed || !strings.Contains(out.String(), "not a directory") {
		t.Errorf("status %d: %s", status, &out)
	}
	f.close()
	for _, args := range [][]string{{pid}, {}, {"x"}, {"1", "2"}, {"-1"}} {
		if status := DumpVerb(e, args, nil); status == cli.ExitOK {
			t.Errorf("%q: status %d", args, status)
		}
	}
}
