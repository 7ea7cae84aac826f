// Package observe decodes each event of a run or a recording once, follows the library calls
// that it is part of, and gives all of it to everything that observes the run: lines, summaries,
// exports and programs. It does not know what they make of it.
package observe

import (
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// Event is an event with what is known of it. It is the Feed's: who keeps any of it copies that.
type Event struct {
	*traces.Event
	Call    *ioctl.Call    // what the event means
	Decoder *ioctl.Decoder // has decoded it; knows the tables of the driver and the names of descriptors
	Tracker *api.Tracker   // of library calls; nil where nobody asked for them
	Frame   *api.Frame     // the library call that the event is or happened in, nil for none
	// Unwanted says that the filter of the user does not select the event. What it changes
	// may still matter to later ones.
	Unwanted bool
}

// An Observer gets every event of a run, in order.
type Observer interface {
	Observe(e *Event)
}

// An OwnObserver is an Observer that is given nvtrace's own work, too (see ioctl.Call.Own). It is not the
// program's, so that others never see it.
type OwnObserver interface {
	ObserveOwn(e *Event)
}

// A Finisher is an Observer that has something to do where events end without saying so, as those
// of a recording that was cut off do: library calls that have not returned never will. The event
// that it gets is no event of the run.
type Finisher interface {
	Finish(e *Event)
}

// Func is an Observer that is a function.
type Func func(e *Event)

// Observe implements Observer.
func (f Func) Observe(e *Event) { f(e) }

// A Feed decodes events and gives them to observers. It has the methods of a record.Sink except Idle.
type Feed struct {
	Filter    *ioctl.Filter // nil: all events are wanted
	Notice    func(string)  // gets the decoder's notices; nil: they stay there
	Undecoded bool          // nobody asks what events mean: Call has but how library calls ended
	event     Event
	call      ioctl.Call // of the event at hand; one for all, as it is large
	observers []Observer
	results   results
}

// NewFeed returns a Feed of events that d decodes, which has some observers from the beginning. d may
// be nil where events stay undecoded.
func NewFeed(d *ioctl.Decoder, observers ...Observer) *Feed {
	return &Feed{event: Event{Decoder: d}, observers: observers}
}

// Decoder returns what decodes the events.
func (f *Feed) Decoder() *ioctl.Decoder { return f.event.Decoder }

// Follow makes the feed follow library calls, and returns what does.
func (f *Feed) Follow() *api.Tracker {
	if f.event.Tracker == nil {
		f.event.Tracker = api.NewTracker()
	}
	return f.event.Tracker
}

// Register adds an observer, which gets events after those that were registered before.
func (f *Feed) Register(o Observer) { f.observers = append(f.observers, o) }

// Event takes in the next event.
func (f *Feed) Event(ev *traces.Event) {
	if len(f.observers) == 0 && (ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn || ev.Kind == traces.KindGPU) {
		return // nobody is to be shown anything of them, and decoding others may give a notice
	}
	e := f.take(ev)
	if e.Call.Own {
		for _, o := range f.observers {
			if o, ok := o.(OwnObserver); ok {
				o.ObserveOwn(e)
			}
		}
		return
	}
	e.Unwanted = !f.Filter.Match(ev, e.Call)
	for _, o := range f.observers {
		o.Observe(e)
	}
	if f.Notice != nil {
		if n := e.Decoder.Notice(); n != "" {
			f.Notice(n)
		}
	}
}

// take makes an Event of an event.
func (f *Feed) take(ev *traces.Event) *Event {
	e := &f.event
	e.Event, e.Call = ev, &f.call
	if f.Undecoded {
		e.Call.Returned, e.Call.Own = ioctl.Returned{}, ev.Flags&traces.FlagOwn != 0
	} else {
		e.Decoder.DecodeTo(e.Call, ev)
	}
	if e.Tracker == nil || e.Call.Own {
		return e
	}
	e.Frame = e.Tracker.Add(ev)
	if fr := e.Frame; ev.Kind == traces.KindReturn && fr != nil && fr.Function != nil && fr.Function.Result.Status && ev.Flags&traces.FlagUnfinished == 0 {
		e.Call.Returned = ioctl.Returned{Known: true, Failed: fr.Function.Failed(ev.Ret), Name: f.results.name(fr.Function, ev.Ret), Code: int32(ev.Ret)}
	}
	return e
}

// Finish ends the library calls that are open: nothing may follow.
func (f *Feed) Finish() {
	if f.event.Tracker == nil {
		return
	}
	e := f.take(&traces.Event{Kind: traces.KindEnd, FD: -1})
	e.Unwanted = true
	for _, o := range f.observers {
		if o, ok := o.(Finisher); ok {
			o.Finish(e)
		}
	}
}
