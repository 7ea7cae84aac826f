package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/interpose"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// interposer is the preloaded view of a run. Its methods do nothing for nil.
type interposer struct {
	server *interpose.Server
	notice func(format string, args ...any)
	once   sync.Once

	mu       sync.Mutex
	gaps     []string
	recorder *record.Recorder // nil without ptrace

	// Without ptrace:
	ready    chan struct{} // closed when the outputs are open
	program  *record.Untraced
	captured *capture.Feed
}

// startInterposer has the interposer preloaded where images are captured: what it
// sees is compared with what the breakpoints saw, or, without ptrace, is all there
// is. It returns nil where there is none.
func startInterposer(s *tracing) (*interposer, error) {
	i := &interposer{notice: s.e.Notice, ready: make(chan struct{})}
	// Without ptrace nobody waits for all.
	o := &interpose.Options{OnGap: i.gap, Outlived: s.f.orphans == "detach" || s.f.orphans == "auto" && s.f.seccomp == "off" || s.f.shim == shimOnly}
	switch s.f.shim {
	case "off":
		return nil, nil
	case "auto":
		// The simulated GPU tells of images itself.
		if s.modules == nil || s.f.sim.gpu.Given {
			return nil, nil
		}
		o.OnNote = s.modules.noted
	case shimOnly:
		if s.modules == nil || s.f.pid() != 0 {
			return nil, errors.New("--interpose=only wants --modules and a command")
		}
		if s.f.sim.gpu.Given {
			return nil, errors.New("--interpose=only records what the GPU's own driver is given, and --sim takes its place")
		}
		o.Mode, o.OnImage = interpose.ModeCapture, i.image
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
	s.modules.opts.Settle = i.drain
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

// drain returns when all that the interposer saw is known. It is called on the
// tracing thread.
func (i *interposer) drain() {
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

// image records an image that a program is about to give to the driver.
func (i *interposer) image(im *interpose.Image) ([]byte, bool) {
	l := &capture.Load{
		PID: im.PID, TID: im.TID, Time: im.Time, Function: im.Function.Name, Library: im.Library, Args: im.Args,
		Image: traces.Image{SHA256: im.SHA256, Size: im.Size, Format: im.Format.Word()},
		Data: func() ([]byte, error) {
			<-i.ready // the program waits for the answer
			b := make([]byte, im.Size)
			if _, err := im.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return b, nil
		},
	}
	if im.Flags&interpose.FlagFile != 0 {
		l.Image.File = im.Text
	}
	i.captured.Loaded(l)
	return nil, false
}

// run runs the program without tracing it.
func (i *interposer) run(s *tracing) (record.Result, error) {
	i.program = record.NewUntraced(&s.opts)
	i.captured = capture.NewFeed(&capture.FeedOptions{
		Mode: traces.CaptureInterposer, Origin: "interposer", Emit: i.program.Send, Store: s.modules.opts.Store, Files: true,
	})
	letImages := sync.OnceFunc(func() { close(i.ready) })
	defer letImages()
	begun := func(pid int) error {
		if err := s.ready(pid); err != nil {
			return err
		}
		letImages()
		return nil
	}
	return i.program.Run(begun, func() {
		i.close()
		for _, g := range i.gaps {
			i.captured.Gap(g)
		}
		i.captured.Finish()
	})
}
