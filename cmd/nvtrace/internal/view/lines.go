package view

import (
	"bufio"
	"io"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// Lines prints a line for each event that is wanted, and, where they are asked for, lines for the
// library calls around it. It is an observe.Observer.
type Lines struct {
	W       *bufio.Writer
	decoder *ioctl.Decoder
	errs    *Once
	live    bool // leave out the record that ends a recording
	opts    *ioctl.LineOptions
	names   *objects.LineNames // nil: handles stay numbers
	matched bool               // an event was selected by the filter
	buf     []byte

	shown bool          // library calls are printed
	libs  api.Selection // of which libraries
	style api.Style
	text  []byte
	last  int64 // latest time seen
}

// newLines prints lines to w, as f says.
func newLines(e *cli.Env, w io.Writer, h *traces.Header, f *LineFlags, d *ioctl.Decoder, errs *Once, live bool) (*Lines, error) {
	opts, err := f.Options(e, h, w)
	if err != nil {
		return nil, err
	}
	l := &Lines{decoder: d, errs: errs, live: live, opts: opts}
	w = cli.Beneath(w)
	if opts.Color {
		w = escape.NewWriter(w, escape.Colors()...)
	} else {
		w = escape.NewWriter(w)
	}
	l.W = bufio.NewWriterSize(w, 64<<10)
	if !f.handles {
		l.names = objects.NewLineNames(d)
		opts.Name = l.names.Namer()
	}
	return l, nil
}

// showCalls makes it print the calls of some libraries.
func (l *Lines) showCalls(libs api.Selection) {
	l.shown, l.libs = true, libs
	l.style = api.Style{Color: l.opts.Color, Demangle: fatbin.Demangle}
}

// Observe implements observe.Observer.
func (l *Lines) Observe(e *observe.Event) {
	l.last = max(l.last, e.Time, e.Time+e.Dur)
	if l.names != nil {
		l.names.Around(e, func() { l.line(e) })
	} else {
		l.line(e)
	}
}

// Finish implements observe.Finisher.
func (l *Lines) Finish(e *observe.Event) { l.calls(e, false) }

// line prints the event if it is wanted.
func (l *Lines) line(e *observe.Event) {
	wanted := !e.Unwanted && (!l.live || e.Kind != traces.KindEnd)
	l.matched = l.matched || wanted && !isRemark(e.Kind)
	if l.calls(e, wanted) || !wanted {
		return
	}
	l.buf = e.Decoder.AppendCall(l.buf[:0], e.Event, e.Call, l.opts)
	_, err := l.W.Write(l.buf)
	l.errs.Report(err)
}

// isRemark reports whether a kind of event is about the recording, and no event of
// the program: filters let those through.
func isRemark(k traces.Kind) bool {
	return k == traces.KindNote || k == traces.KindLost || k == traces.KindGap || k == traces.KindEnd
}

// What a frame's Mark holds.
const (
	markWanted = 1 << iota // the filter selects the call
	markHidden             // its library is not asked for
	markOpened             // its line was printed, with a brace
)

// calls prints the lines that an event makes necessary: a call, the calls that
// the event is inside of, calls that have ended. It reports whether the event
// has had its line; wanted says that the filter selects it.
func (l *Lines) calls(e *observe.Event, wanted bool) (done bool) {
	ev, f := e.Event, e.Frame
	if !l.shown {
		return ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn
	}
	if ev.Kind == traces.KindCall && f != nil {
		f.Note = api.AppendCall(f.Note[:0], f, ev, &e.Tracker.Names, &l.style)
		if wanted {
			f.Mark[api.LinesMark] |= markWanted
		}
		if !l.libs.Has(f.Module.Library) && (f.Module.Library != api.Unknown || f.Function != nil) {
			f.Mark[api.LinesMark] |= markHidden
		}
	}
	for _, ended := range e.Tracker.Ended() {
		l.endCall(ended, ev, false)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		if wanted { // by its result
			f.Mark[api.LinesMark] |= markWanted
		}
		l.endCall(f, ev, true)
		return true
	}
	l.opts.Indent = 0
	switch {
	case ev.Kind == traces.KindCall:
		return true
	case ev.Kind == traces.KindReturn: // of a call that was not seen
		return !wanted || !l.libs.Has(api.MatchSymbol(ev.Name))
	case wanted:
		l.opts.Indent = l.openCalls(f)
	}
	return false
}

// depth is how far a call is moved to the right.
func depth(f *api.Frame) (n int) {
	for p := f.Parent; p != nil; p = p.Parent {
		if p.Mark[api.LinesMark]&markHidden == 0 {
			n += 2
		}
	}
	return n
}

// openCalls prints the calls that are not printed yet and that a line is to
// stand in, the outermost first. It returns how far that line is moved to the right.
func (l *Lines) openCalls(f *api.Frame) int {
	if f == nil {
		return 0
	}
	indent := l.openCalls(f.Parent)
	if f.Mark[api.LinesMark]&markHidden != 0 {
		return indent
	}
	if f.Mark[api.LinesMark]&markOpened == 0 {
		f.Mark[api.LinesMark] |= markOpened
		l.callLine(f, f.Start, append(f.Note, " {"...), indent)
	}
	return indent + 2
}

// endCall prints how a call ended, and the call where it has no line yet. ev is
// its return if returned is set.
func (l *Lines) endCall(f *api.Frame, ev *traces.Event, returned bool) {
	opened := f.Mark[api.LinesMark]&markOpened != 0
	if f.Mark[api.LinesMark]&markHidden != 0 || !opened && f.Mark[api.LinesMark]&markWanted == 0 {
		return
	}
	at := f.Start
	if opened {
		l.text = append(l.text[:0], '}')
		if at = f.End; at < 0 {
			at = l.last
		}
	} else {
		l.openCalls(f.Parent)
		l.text = append(l.text[:0], f.Note...)
	}
	if returned {
		l.text = api.AppendReturn(l.text, f, ev, &l.style)
	} else {
		l.text = api.AppendUnfinished(l.text, &l.style)
	}
	l.callLine(f, at, l.text, depth(f))
}

// callLine prints a line of a call's.
func (l *Lines) callLine(f *api.Frame, at int64, text []byte, indent int) {
	l.opts.Indent = indent
	ev := traces.Event{PID: f.PID, TID: f.TID, Time: at, FD: -1}
	l.buf = l.decoder.AppendText(l.buf[:0], &ev, text, l.opts)
	l.opts.Indent = 0
	_, err := l.W.Write(l.buf)
	l.errs.Report(err)
}
