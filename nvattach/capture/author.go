package capture

import "nvtrace/traces"

// author makes a recording's events of images and kernels, and counts them: all that a
// recording has of them is its work, whoever saw the images.
type author struct {
	emit   func(*traces.Event)
	stats  Stats
	images map[string]bool // SHA-256 of what was captured
}

// load counts a call of a loader, whose images follow.
func (a *author) load() { a.stats.Loads++ }

// image emits the event of an image in a call of a loader, which is complete but for its
// kind.
func (a *author) image(ev *traces.Event) {
	ev.Kind = traces.KindImage
	if ev.Image.SHA256 != "" {
		a.images[ev.Image.SHA256] = true
		a.stats.Bytes += uint64(ev.Image.Size)
	}
	a.emit(ev)
}

// kernel emits the event of a kernel's first launch, which is complete but for its kind.
func (a *author) kernel(ev *traces.Event) {
	ev.Kind = traces.KindKernel
	a.stats.Kernels++
	a.emit(ev)
}

// captured emits what capturing came to, by one of the ways that package traces names.
func (a *author) captured(mode string, time int64, gaps int) {
	s := a.total(gaps)
	a.emit(&traces.Event{Kind: traces.KindCaptured, Time: time, FD: -1, Captured: &traces.Captured{
		Mode: mode, Images: s.Images, Loads: s.Loads, Bytes: s.Bytes, Drivers: uint64(s.Drivers), Kernels: s.Kernels, Gaps: uint64(s.Gaps),
	}})
}

// total returns what was done so far.
func (a *author) total(gaps int) Stats {
	s := a.stats
	s.Images, s.Gaps = uint64(len(a.images)), gaps
	return s
}

// Stats count what was done.
type Stats struct {
	Drivers  int    // mappings of CUDA drivers that were watched
	Hits     uint64 // breakpoints of this package that were reached
	Loads    uint64 // calls of loaders that were captured
	Images   uint64 // different images in them
	Bytes    uint64 // of the images in these calls
	Kernels  uint64 // kernels launched, one of several handles counted once
	Gaps     int
	Replaced uint64
}
