package main

import (
	"errors"

	"nvtrace/ioctl"
	"nvtrace/ioctl/diff"
	"nvtrace/rm"
	"nvtrace/traces"
)

// pass decodes a recording and gives every event to f, once.
func (e *env) pass(rf *readFlags, name string, f func(*traces.Event, *ioctl.Call, *ioctl.Decoder)) error {
	r, d, err := rf.open(e, name)
	if err != nil {
		return err
	}
	err = e.each(r, name, func(format string, args ...any) { e.notice(name+": "+format, args...) }, func(ev *traces.Event) {
		c := d.Decode(ev)
		f(ev, &c, d)
	})
	if n := d.Notice(); n != "" {
		e.notice("%s: %s", name, n)
	}
	return errors.Join(err, r.Close())
}

// texter is a result that prints itself for people.
type texter interface{ AppendText([]byte) []byte }

// show prints a result: as text to stdout, or as JSON where the flag says.
func (e *env) show(asJSON *optString, r texter) error {
	if asJSON.set {
		return e.writeJSON(e.stdout, asJSON.value, r)
	}
	_, err := e.stdout.Write(r.AppendText(nil))
	return err
}

func diffVerb(e *env, args, command []string) int {
	var rf readFlags
	var asJSON optString
	var exprs stringList
	var o diff.Options
	fs := newFlagSet(e, "diff", "[flags] a.nvt b.nvt")
	rf.register(fs)
	asJSON.registerJSON(fs)
	fs.Var(&exprs, "e", "compare only calls that match `EXPR`, as in nvtrace log")
	fs.IntVar(&o.Window, "window", 100, "how many calls, `N`, apart a call may stand in the two runs and still count as moved (-1: compare no order)")
	names, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(names) != 2 || command != nil {
		return e.fail(exitUsage, "diff wants two recordings")
	}
	if o.Window < -1 || o.Window > 10_000 {
		return e.fail(exitUsage, "--window %d: want 1 to 10000, or -1", o.Window)
	}
	if o.Window == 0 {
		o.Window = -1
	}
	filter, err := ioctl.ParseFilter(exprs...)
	if err != nil {
		return e.fail(exitUsage, "%v", err)
	}
	var sides [2]*diff.Profile
	var damage error
	for i, name := range names {
		p, err := e.profile(&rf, name, filter, &o)
		if p == nil {
			return e.fail(exitFailed, "%v", err)
		}
		sides[i], damage = p, errors.Join(damage, err)
	}
	r := diff.Compare(sides[0], sides[1])
	if err := errors.Join(damage, e.show(&asJSON, r)); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if r.Same {
		return exitOK
	}
	return exitDiffers
}

// profile reads one side of a comparison. With a profile, an error means that
// the rest of the recording could not be read.
func (e *env) profile(rf *readFlags, name string, filter *ioctl.Filter, o *diff.Options) (*diff.Profile, error) {
	r, d, err := rf.open(e, name)
	if err != nil {
		return nil, err
	}
	p := diff.NewProfile(&r.Header, o)
	p.Name = name
	// A cut-off recording is a note of the result.
	calls := newAPITrace()
	library := func(ev *traces.Event, c *ioctl.Call) {
		for _, f := range calls.tracker.Ended() {
			if filter.Match(&traces.Event{Kind: traces.KindCall, PID: f.PID, TID: f.TID, Name: f.Name}, &ioctl.Call{Kind: traces.KindCall}) {
				p.AddLibrary(f.Name, ioctl.Returned{}, false)
			}
		}
		if f := calls.current; ev.Kind == traces.KindReturn && f != nil && filter.Match(ev, c) {
			p.AddLibrary(f.Name, c.Returned, ev.Flags&traces.FlagUnfinished == 0)
		}
	}
	damage := each(r, func(string, ...any) {}, func(ev *traces.Event) {
		c := d.Decode(ev)
		calls.take(ev, &c)
		library(ev, &c)
		if isContext(ev.Kind) || filter.Match(ev, &c) {
			p.Add(ev, &c, d)
		}
	})
	end := traces.Event{Kind: traces.KindEnd}
	calls.take(&end, new(ioctl.Call))
	library(&end, new(ioctl.Call))
	if n := d.Notice(); n != "" {
		e.notice("%s: %s", name, n)
	}
	return p, errors.Join(damage, r.Close())
}

// isContext reports whether events of a kind say who calls, rather than being
// calls that a filter chooses among.
func isContext(k traces.Kind) bool {
	switch k {
	case traces.KindFork, traces.KindExec, traces.KindExit, traces.KindLost, traces.KindEnd:
		return true
	}
	return false
}

func abiVerb(e *env, args, command []string) int {
	var asJSON optString
	fs := newFlagSet(e, "abi", "diff [flags] VERSION VERSION [NAMES]")
	asJSON.registerJSON(fs)
	words, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(words) < 3 || len(words) > 4 || words[0] != "diff" || command != nil {
		return e.fail(exitUsage, "want: nvtrace abi diff 570.211.01 580.142 ['*CHANNEL*']")
	}
	var sides [2]*rm.ABI
	for i := range sides {
		a, err := e.tables(words[i+1])
		if err != nil {
			return e.fail(exitUsage, "%v", err)
		}
		sides[i] = a
	}
	pattern := ""
	if len(words) == 4 {
		pattern = words[3]
	}
	r, err := diff.CompareABI(sides[0], sides[1], pattern)
	if err != nil {
		return e.fail(exitUsage, "%v", err)
	}
	if err := e.show(&asJSON, r); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if r.Same {
		return exitOK
	}
	return exitDiffers
}

// tables returns the tables of a driver version, and says so if they are a
// neighbour's.
func (e *env) tables(s string) (*rm.ABI, error) {
	v, err := rm.ParseVersion(s)
	if err != nil {
		return nil, err
	}
	a := rm.Load(v)
	if !a.Exact() {
		e.notice("driver %s is not in the tables: %s stands in", s, a.Version())
	}
	return a, nil
}
