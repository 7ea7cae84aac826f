package export

import (
	"cmp"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// library draws what an event does to library calls: those that have ended, and
// the one that begins if it is wanted.
func (t *Timeline) library(ev *traces.Event, wanted bool) {
	f := t.in
	if ev.Kind == traces.KindCall && f != nil && wanted && !t.drawRange(ev, f) {
		t.openCall(ev, f)
	}
	if ev.Kind == traces.KindEnd { // what is open then is open at the end of the timeline
		return
	}
	for _, e := range t.tracker.Ended() {
		t.endCall(e, ev, false)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		t.endCall(f, ev, true)
	}
}

// openCall begins a library call: it is drawn at once, unless it may turn out to be short.
func (t *Timeline) openCall(ev *traces.Event, f *api.Frame) {
	th := t.thread(taskKey{f.PID, f.TID})
	t.finish(th, ev.Time)
	th.end = max(th.end, ev.Time)
	t.age(th, th.end)
	n := len(th.calls)
	if n < cap(th.calls) {
		th.calls = th.calls[:n+1] // with the memory of a call that has ended
	} else {
		th.calls = append(th.calls, slice{})
	}
	s := &th.calls[n]
	s.frame, s.begun, s.start, s.run, s.stack = f, false, th.end, run{}, ""
	if s.launch = t.launchOf(f, ev); s.launch.is {
		t.flows++
		s.launch.flow = t.flows
		for i := range th.calls[:n] {
			th.calls[i].launch.inner = true
		}
	}
	if t.least == 0 {
		t.draw(th, s, ev)
		return
	}
	copyCall(&s.ev, ev)
}

// calledFrom notes where the call was made that a thread is in, which its end shows.
func (t *Timeline) calledFrom(ev *traces.Event) {
	th := t.threads[taskKey{ev.PID, ev.TID}]
	if th == nil || len(th.calls) == 0 || th.calls[len(th.calls)-1].frame != t.in || t.in.Name != ev.Name {
		return // it is not drawn
	}
	var list []string
	for _, f := range ev.Stack() {
		list = append(list, f.Text(t.kernelName))
	}
	th.calls[len(th.calls)-1].stack = clip(strings.Join(list, " < "), maxText)
}

// copyCall copies what of a call's event is needed to draw it.
func copyCall(dst, ev *traces.Event) {
	dst.Reset()
	dst.Kind, dst.PID, dst.TID, dst.Args, dst.Time = ev.Kind, ev.PID, ev.TID, ev.Args, ev.Time
	for i := range ev.Mem {
		seg := ev.Mem[i]
		if seg.In != nil {
			in := dst.Alloc(len(seg.In))
			copy(in, seg.In)
			seg.In = in
		}
		seg.Out = nil
		dst.Mem = append(dst.Mem, seg)
	}
}

// begin draws the beginning of a call that was held back; those around it have begun.
func (t *Timeline) begin(th *thread, i int) {
	if i == 0 {
		t.endRun(th, &th.run)
	} else {
		t.endRun(th, &th.calls[i-1].run)
	}
	s := &th.calls[i]
	t.draw(th, s, &s.ev)
}

// draw draws the beginning of a call, whose event is ev.
func (t *Timeline) draw(th *thread, s *slice, ev *traces.Event) {
	f := s.frame
	s.begun = true
	o := &t.out
	o.start(th.seq, s.start, typeBegin)
	o.name(callName(f))
	o.category("api")
	o.category(libraryName(f))
	if s.launch.is {
		o.flowFrom(s.launch.flow)
	}
	t.text = api.AppendCall(t.text[:0], f, ev, &t.tracker.Names, &t.style)
	if len(t.text) > maxText {
		t.text = append(t.text[:maxText], "…"...)
	}
	o.text("call", t.text)
	o.finish(s.start)
}

// callName and libraryName are what a call and its library are called in both views.
func callName(f *api.Frame) string { return cmp.Or(clip(f.Name, maxName), "(unnamed)") }

func libraryName(f *api.Frame) string { return cmp.Or(clip(f.LibraryName(), maxName), "(unknown)") }

// endCall draws the end of a library call, if its beginning was drawn. ev is
// its return if returned is set, else what ended it.
func (t *Timeline) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	key := taskKey{f.PID, f.TID}
	th := t.threads[key]
	if th == nil || len(th.calls) == 0 || th.calls[len(th.calls)-1].frame != f {
		return
	}
	at := f.End
	if at < 0 {
		at = ev.Time
		if ev.Kind == traces.KindReturn { // longjmp left it, at some time before that return's
			at = max(th.end, f.Start)
		}
	}
	t.finish(th, at)
	failed := returned && f.End >= 0 && f.Function.Failed(ev.Ret)
	l := th.calls[len(th.calls)-1].launch
	alone := t.closeCall(th, at, failed, func() {
		o := &t.out
		if !returned || ev.Flags&traces.FlagUnfinished != 0 {
			o.str("flags", "unfinished")
		} else if t.text = api.AppendResult(t.text[:0], f, ev, nil); !succeeded(t.text, f.Function) {
			o.str("result", clip(strings.TrimLeft(string(t.text), " ="), maxText))
		}
		o.opt("called from", th.calls[len(th.calls)-1].stack)
		if f.Ioctls > 0 {
			o.uint("ioctls", f.Ioctls)
			o.int("ioctl_ns", f.IoctlTime)
		}
	})
	switch {
	case failed:
		t.failure(key, th.end, f.Function.ResultName(ev.Ret), []byte(callName(f)))
	case l.is && !l.inner:
		if alone {
			t.launching(callKey{key, f.Start}, l.flow)
		}
		if len(t.gpu.streams)+len(t.gpu.works) == 0 { // else what the GPU did is drawn
			t.launched(f.PID, &l, th.end, alone)
		}
	}
}

// closeCall ends the drawing of a thread's innermost call, and reports whether it is drawn
// alone: a short one that has not failed is drawn with its neighbours. args writes what its
// end shows.
func (t *Timeline) closeCall(th *thread, ns int64, failed bool, args func()) (alone bool) {
	n := len(th.calls) - 1
	s := &th.calls[n]
	th.end = max(th.end, ns)
	if !s.begun && !failed && th.end-s.start < t.least {
		th.calls = th.calls[:n]
		t.mergeWith(th, callName(s.frame), s.start, th.end, &s.run)
		s.frame = nil
		return false
	}
	t.beginAll(th)
	t.endRun(th, &s.run)
	t.out.start(th.seq, th.end, typeEnd)
	args()
	t.out.finish(th.end)
	s.frame = nil
	th.calls = th.calls[:n]
	return true
}

// succeeded reports whether a result says that the call succeeded, and nothing else.
func succeeded(result []byte, f *api.Function) bool {
	const before = " = "
	return f != nil && f.Result.Status && len(result) > len(before) && string(result[len(before):]) == f.Result.ValueName(0)
}

// launchOf says what a call launches.
func (t *Timeline) launchOf(f *api.Frame, ev *traces.Event) launch {
	kernel, stream, ok := f.Launch(ev, &t.tracker.Names)
	if !ok {
		return launch{}
	}
	return launch{is: true, kernel: clip(t.kernelName(kernel), maxName), stream: stream}
}

// kernelName is a kernel's name for people.
func (t *Timeline) kernelName(name string) string {
	if t.Demangle == nil {
		return name
	}
	known, ok := t.kernels[name]
	if !ok {
		known = t.Demangle(name)
		if t.kernels == nil || len(t.kernels) >= maxFrames {
			t.kernels = make(map[string]string)
		}
		t.kernels[name] = known
	}
	return known
}

// imageName is what a code image is called in a view: the beginning of its
// hash, and its format.
func imageName(im *traces.Image) string {
	if im == nil {
		return "of unknown content"
	}
	return im.SHA256[:min(len(im.SHA256), 12)] + " (" + clip(im.Format, maxName) + ")"
}

// imageArgs writes what a click on a loaded image, or on a first launch, shows.
func (t *Timeline) imageArgs(ev *traces.Event) {
	if ev.Kind == traces.KindKernel {
		t.out.opt("kernel", clip(ev.Name, maxText))
	} else {
		t.out.opt("via", clip(ev.Name, maxText))
		t.out.opt("library", clip(ev.Path, maxText))
	}
	im := ev.Image
	if im == nil {
		return
	}
	t.out.opt("sha256", clip(im.SHA256, maxName))
	t.out.opt("format", clip(im.Format, maxName))
	t.out.int("bytes", im.Size)
	t.out.opt("file", clip(im.File, maxText))
	if im.Handle != 0 {
		t.out.hex("handle", im.Handle)
	}
	t.out.opt("replaced", clip(im.Replaced, maxName))
}

// What a frame's Mark holds for a Profile: its stack's number, and whether it is wanted.
const (
	markWanted = 1
	markShift  = 1
)
