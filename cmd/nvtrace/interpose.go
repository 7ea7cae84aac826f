package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/interpose"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// shimOnly is the value of --interpose for running without ptrace.
const shimOnly = "only"

// interposer is the preloaded view of a run. Its methods do nothing for nil.
type interposer struct {
	server *interpose.Server
	notice func(format string, args ...any)
	once   sync.Once

	mu       sync.Mutex
	gaps     []string
	recorder *record.Recorder // nil without ptrace
	emit     func(*traces.Event)
	store    *capture.Store
	ready    chan struct{}   // closed when the outputs are open
	seen     map[string]bool // images, by SHA-256
	stats    capture.Stats   // without ptrace
	start    int64           // CLOCK_MONOTONIC at time 0
}

// startInterposer has the interposer preloaded where images are captured: what it
// sees is held against what the breakpoints saw, or, without ptrace, is all there
// is. It returns nil where there is none.
func startInterposer(s *tracing) (*interposer, error) {
	i := &interposer{start: monotonic(), notice: s.e.notice, ready: make(chan struct{}), seen: make(map[string]bool)}
	// Without ptrace nobody waits for all.
	o := &interpose.Options{OnGap: i.gap, Outlived: s.f.orphans == "detach" || s.f.orphans == "auto" && s.f.seccomp == "off" || s.f.shim == shimOnly}
	switch s.f.shim {
	case "off":
		return nil, nil
	case "auto":
		// The simulated GPU tells of images itself.
		if s.modules == nil || s.f.sim.gpu.set {
			return nil, nil
		}
		o.OnNote = s.modules.noted
	case shimOnly:
		if s.modules == nil || s.f.pid != 0 {
			return nil, errors.New("--interpose=only wants --modules and a command")
		}
		if s.f.sim.gpu.set {
			return nil, errors.New("--interpose=only records what the GPU's own driver is given, and --sim takes its place")
		}
		o.Mode, o.OnImage, i.store = interpose.ModeCapture, i.image, s.modules.store
	default:
		return nil, fmt.Errorf("--interpose=%s: want auto, off or only", s.f.shim)
	}
	var err error
	i.server, err = interpose.Listen(o)
	if errors.Is(err, interpose.ErrUnsupported) && s.f.shim == "auto" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the interposer: %w; --interpose=off goes without", err)
	}
	s.modules.opts.Shim = i.server.Path()
	s.modules.opts.Settle = i.settle
	s.opts.Ptrace.Env = i.server.Env(os.Environ())
	return i, nil
}

func (i *interposer) gap(g *interpose.Gap) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gaps = append(i.gaps, fmt.Sprintf("the interposer: %s", g))
}

// noteTo says where what the interposer could not see is told.
func (i *interposer) noteTo(r *record.Recorder) {
	if i != nil {
		i.recorder = r
	}
}

// settle returns when all that the interposer saw is known. It is called on the
// tracing thread.
func (i *interposer) settle() {
	i.close()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, g := range i.gaps {
		i.recorder.Note(nil, g)
	}
	i.gaps = nil
}

func (i *interposer) close() {
	if i != nil {
		i.once.Do(func() {
			_ = i.server.Close() // what is left behind is a temporary file
			if n := i.server.Stats().Foreign; n > 0 {
				i.notice("the interposer refused %d connections of processes that are not of this run", n)
			}
		})
	}
}

// image keeps an image that a program is about to give to the driver.
func (i *interposer) image(im *interpose.Image) ([]byte, bool) {
	ev := traces.Event{
		Kind: traces.KindImage, PID: int32(im.PID), TID: int32(im.TID), Time: im.Time - i.start, FD: -1,
		Name: im.Function.Name, Path: im.Library, Args: im.Args,
		Image: &traces.Image{SHA256: im.SHA256, Size: im.Size, Format: im.Format.Word(), File: im.Text, Origin: "interposer"},
	}
	if im.Flags&interpose.FlagFile == 0 {
		ev.Image.File = ""
	}
	if i.store != nil {
		b := make([]byte, im.Size)
		<-i.ready // the program waits for the answer
		_, err := im.ReadAt(b, 0)
		if err == nil || errors.Is(err, io.EOF) {
			_, err = i.store.Put(b)
		}
		if err != nil {
			i.mu.Lock()
			i.gaps = append(i.gaps, fmt.Sprintf("image %.12s could not be kept: %v", im.SHA256, err))
			i.mu.Unlock()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.seen[im.SHA256] {
		i.seen[im.SHA256] = true
		i.stats.Images++
	}
	i.stats.Loads++
	i.stats.Bytes += uint64(im.Size)
	i.emit(&ev)
	return nil, false
}

// run runs the program without tracing it.
func (i *interposer) run(s *tracing) (record.Result, error) {
	sink := record.Guard(s.opts.Sinks, s.opts.OnFault, s.opts.Logger)
	i.emit = func(ev *traces.Event) { sink.Event(ev); sink.Idle() }
	res := record.Result{Result: new(ptrace.Result)}
	letImages := sync.OnceFunc(func() { close(i.ready) })
	defer letImages()
	defer func() { i.put(&traces.Event{Kind: traces.KindEnd, Cost: &traces.Cost{Wall: monotonic() - i.start}}) }()
	argv := s.opts.Ptrace.Argv
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.opts.Ptrace.Env, os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s: %w", argv[0], ptrace.ErrNotFound)
		} else if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%s: %w", argv[0], ptrace.ErrNotExecutable)
		}
		return res, err
	}
	pid := cmd.Process.Pid
	if err := s.ready(pid); err != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		return res, err
	}
	letImages()
	i.put(&traces.Event{Kind: traces.KindExec, PID: int32(pid), TID: int32(pid), Path: cmd.Path, Argv: argv})
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		for sig := range signals {
			// A terminal sends its signals to the program, too.
			if pg, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err != nil || pg != unix.Getpgrp() || sig != unix.SIGINT && sig != unix.SIGQUIT {
				_ = cmd.Process.Signal(sig) // it may have ended
			}
		}
	}()
	_ = cmd.Wait() // the status tells
	signal.Stop(signals)
	close(signals)
	res.PID, res.Ended = pid, true
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		res.Status = unix.WaitStatus(ws)
	}
	i.close()
	i.put(&traces.Event{Kind: traces.KindExit, PID: int32(pid), TID: int32(pid), Ret: int64(res.Status)})
	for _, g := range i.gaps {
		i.put(&traces.Event{Kind: traces.KindGap, Text: g})
	}
	i.stats.Gaps = len(i.gaps)
	i.put(i.stats.Captured(traces.CaptureInterposer))
	return res, nil
}

// put emits an event that happens now.
func (i *interposer) put(ev *traces.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ev.FD, ev.Time = -1, monotonic()-i.start
	i.emit(ev)
}

// monotonic returns CLOCK_MONOTONIC in ns.
func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}
