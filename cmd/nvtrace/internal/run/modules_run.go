package run

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/interpose"
	"nvtrace/traces/record"
)

// moduleFlags are the flags of capturing images while a program runs.
type moduleFlags struct {
	modules cli.OptString
	limit   string
	watch   bool
}

func (f *moduleFlags) register(fs *flag.FlagSet) {
	fs.Var(&f.modules, "modules", "capture every code image that the CUDA driver is given, beside the recording; =`WHAT` hash: keep hashes only; refs: leave images that lie in files there")
	fs.StringVar(&f.limit, "modules-limit", "", "keep at most `SIZE` of images (64M, 10G); more is told of")
	fs.BoolVar(&f.watch, "modules-watch", false, "let the driver read the program's own buffers, and look afterwards whether they have changed")
}

// moduleCapture is capturing at work.
type moduleCapture struct {
	f       *moduleFlags
	store   *capture.Store
	capture atomic.Pointer[capture.Capture] // nil before the run
	opts    capture.Options
}

// start prepares capturing into the store of a recording ("" for none: images are
// hashed). It returns nil if it was not asked for.
func (f *moduleFlags) start(e *cli.Env, recording string) (*moduleCapture, error) {
	if !f.modules.Given {
		switch {
		case f.limit != "":
			return nil, errors.New("--modules-limit wants --modules")
		case f.watch:
			return nil, errors.New("--modules-watch wants --modules")
		}
		return nil, nil
	}
	c := &moduleCapture{f: f}
	switch f.modules.Value {
	case "":
		c.opts.Files = true
	case "hash", "refs":
	default:
		return nil, fmt.Errorf("--modules=%s: want hash, refs, or nothing", f.modules.Value)
	}
	limit, err := cli.ParseSize(f.limit)
	if err != nil {
		return nil, fmt.Errorf("--modules-limit: %w", err)
	}
	if recording != "" && recording != "-" && f.modules.Value != "hash" {
		c.store = capture.NewStore(limit)
	}
	if err := capture.PrepareNodes(context.Background(), nil); err != nil {
		e.Notice("device nodes: %v", err)
	}
	c.opts.Logger = e.Debug
	c.opts.Store, c.opts.Watch, c.opts.Cache = c.store, f.watch, capture.DefaultCache()
	return c, nil
}

// check is called before the recording of that name replaces an earlier one, and refuses a
// store that is another user's.
func (c *moduleCapture) check(recording string) error {
	if c == nil || c.store == nil {
		return nil
	}
	return capture.CheckStore(recording)
}

// begin is called when the recording of that name has begun, and has replaced an earlier
// one: its images go, too.
func (c *moduleCapture) begin(recording string) error {
	if c == nil || c.store == nil {
		return nil
	}
	return c.store.Begin(recording)
}

// extend adds capturing to a recording. The caller may have set more of c.opts.
func (c *moduleCapture) extend(r *record.Recorder) record.Extension {
	c.opts.Emit, c.opts.Now, c.opts.Flush = r.Emit, r.Now, r.Flush
	c.opts.Agent = r.Agent()
	if c.opts.Audit == capture.AuditOff {
		c.opts.Audit = capture.AuditHooks
	}
	at := capture.New(&c.opts, record.ExtensionClass)
	c.capture.Store(at)
	return record.Extension{Rules: at.Rules(), Handler: at, Finish: at.Finish}
}

// noted passes what the interposer saw. It may be called from any goroutine; the
// interposer's server must have been closed, which reads what is left, when
// c.opts.Settle returns.
func (c *moduleCapture) noted(n *interpose.Note) {
	if c == nil || c.capture.Load() == nil {
		return
	}
	seen := capture.Note{PID: n.PID, TID: n.TID, Function: n.Function.Name}
	switch n.Function.Class {
	case interpose.ClassLoad, interpose.ClassLoadFile, interpose.ClassLinkAdd, interpose.ClassLinkAddFile:
		if i := n.Function.Image; i >= 0 && int(i) < len(n.Args) {
			seen.Image = n.Args[i]
		}
	case interpose.ClassLaunch:
		seen.Kernel = n.Handle
	default:
		return
	}
	c.capture.Load().Noted(seen)
}

// close ends what is still at work when the program has ended.
func (c *moduleCapture) close() {
	if c == nil {
		return
	}
	if at := c.capture.Load(); at != nil {
		at.Close()
	}
}
