package export

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// library draws what an event does to library calls: those that have ended, and
// the one that begins if it is wanted.
func (t *Timeline) library(ev *traces.Event, wanted bool) {
	f := t.in
	if ev.Kind == traces.KindCall && f != nil && wanted {
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

// openCall draws the beginning of a library call.
func (t *Timeline) openCall(ev *traces.Event, f *api.Frame) {
	key := taskKey{f.PID, f.TID}
	th := t.thread(key)
	t.finish(key, th, ev.Time)
	th.end = max(th.end, ev.Time)
	t.begin('B', key, th.end)
	t.j.str("name", callName(f))
	t.j.str("cat", "api,"+libraryName(f))
	t.args()
	t.text = api.AppendCall(t.text[:0], f, ev, &t.tracker.Names, &api.Style{Demangle: t.Demangle})
	t.j.str("call", clip(string(t.text), maxText))
	t.j.opt("file", clip(f.Path, maxText))
	t.endArgs()
	th.calls = append(th.calls, f)
}

// callName and libraryName are what a call and its library are called in both views.
func callName(f *api.Frame) string { return cmp.Or(clip(f.Name, maxName), "(unnamed)") }

func libraryName(f *api.Frame) string { return cmp.Or(clip(f.LibraryName(), maxName), "(unknown)") }

// endCall draws the end of a library call, if its beginning was drawn. ev is
// its return if returned is set, else what ended it.
func (t *Timeline) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	key := taskKey{f.PID, f.TID}
	th := t.threads[key]
	if th == nil || len(th.calls) == 0 || th.calls[len(th.calls)-1] != f {
		return
	}
	at := f.End
	if at < 0 {
		at = ev.Time
		if ev.Kind == traces.KindReturn { // longjmp left it, at some time before that return's
			at = max(th.end, f.Start)
		}
	}
	t.finish(key, th, at)
	n := len(th.calls) - 1
	th.calls[n] = nil
	th.calls = th.calls[:n]
	th.end = max(th.end, at)
	t.begin('E', key, th.end)
	t.args()
	if !returned || ev.Flags&traces.FlagUnfinished != 0 {
		t.j.str("flags", "unfinished")
	} else {
		t.text = api.AppendReturn(t.text[:0], f, ev, nil)
		t.j.str("result", clip(strings.TrimLeft(string(t.text), " ="), maxText))
	}
	if f.Ioctls > 0 {
		t.j.uint("ioctls", f.Ioctls)
		t.j.int("ioctl_ns", f.IoctlTime)
	}
	t.endArgs()
	if returned && f.End >= 0 && f.Function.Failed(ev.Ret) {
		t.begin('i', key, th.end)
		t.j.str("s", "t")
		t.j.str("name", f.Function.ResultName(ev.Ret))
		t.j.str("cat", "failed")
		t.end()
	}
}

// closeCall ends the drawing of a thread's innermost call, which goes on.
func (t *Timeline) closeCall(key taskKey, th *thread, ns int64) {
	n := len(th.calls) - 1
	th.calls[n] = nil
	th.calls = th.calls[:n]
	th.end = max(th.end, ns)
	t.begin('E', key, th.end)
	t.end()
}

// kernelName is a kernel's name for people.
func (t *Timeline) kernelName(name string) string {
	if t.Demangle != nil {
		return t.Demangle(name)
	}
	return name
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
		t.j.opt("kernel", clip(ev.Name, maxText))
	} else {
		t.j.opt("via", clip(ev.Name, maxText))
		t.j.opt("library", clip(ev.Path, maxText))
	}
	im := ev.Image
	if im == nil {
		return
	}
	t.j.opt("sha256", clip(im.SHA256, maxName))
	t.j.opt("format", clip(im.Format, maxName))
	t.j.int("bytes", im.Size)
	t.j.opt("file", clip(im.File, maxText))
	if im.Handle != 0 {
		t.j.hex("handle", im.Handle)
	}
	t.j.opt("replaced", clip(im.Replaced, maxName))
}

// apiNode is a stack of library calls in a profile.
type apiNode struct {
	parent int32 // the calls around it, 0 none
	frame  *profile.Location
}

// apiKey identifies an apiNode.
type apiKey struct {
	parent int32
	frame  *profile.Location
}

// maxStacks bounds the distinct stacks of library calls that a profile keeps
// apart; calls in others count for the calls around them.
const maxStacks = 1 << 16

// What a frame's Mark holds for a Profile: its stack's number, and whether it is wanted.
const (
	markWanted = 1
	markShift  = 1
)

// stack returns the number of a frame's stack, 0 for none.
func (p *Profile) stack(f *api.Frame) int32 {
	if f == nil {
		return 0
	}
	if n := int32(f.Mark >> markShift); n != 0 {
		return n
	}
	k := apiKey{p.stack(f.Parent), p.frame(callName(f), "api/"+libraryName(f))}
	n, ok := p.stacks[k]
	if !ok {
		if len(p.nodes) >= maxStacks {
			return k.parent
		}
		n = int32(len(p.nodes))
		p.nodes = append(p.nodes, apiNode(k))
		p.stacks[k] = n
	}
	f.Mark |= int(n) << markShift
	return n
}

// appendStack appends the frames of a stack, the innermost first.
func (p *Profile) appendStack(dst []*profile.Location, n int32) []*profile.Location {
	for n != 0 {
		dst = append(dst, p.nodes[n].frame)
		n = p.nodes[n].parent
	}
	return dst
}

// library counts the library calls that an event ends, each with the time that
// it took itself. What happened during them has samples of its own.
func (p *Profile) library(ev *traces.Event, wanted bool) {
	f := p.in
	if ev.Kind == traces.KindCall && f != nil && wanted {
		f.Mark |= markWanted
	}
	for _, e := range p.tracker.Ended() {
		p.endCall(e, ev, false)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		p.endCall(f, ev, true)
	}
}

func (p *Profile) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	if f.Mark&markWanted == 0 {
		return
	}
	program := p.names[f.PID]
	if program == "" {
		program = "(unknown program)"
	}
	k := sampleKey{task: taskKey{f.PID, f.TID}, api: p.stack(f), program: p.frame(program, "")}
	status := "OK"
	switch {
	case !returned || f.End < 0:
		k.state, status = stateUntimed, "not observed"
	case f.Function.Failed(ev.Ret):
		k.state, k.errno, status = stateFailed, int32(ev.Ret), f.Function.ResultName(ev.Ret)
	}
	p.first = min(p.first, f.Start)
	p.last = max(p.last, f.Start, f.End)
	s := p.samples[k]
	switch {
	case s != nil:
	case len(p.samples) >= maxSamples:
		s = p.other()
	default:
		s = p.newSample(append(p.appendStack(nil, k.api), k.program))
		s.Label = map[string][]string{
			"pid": {strconv.Itoa(int(f.PID))}, "tid": {strconv.Itoa(int(f.TID))}, "status": {status},
		}
		p.samples[k] = s
	}
	s.Value[valueCalls]++
	s.Value[valueTime] += f.Self()
}
