package view

import (
	"errors"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/ioctl/diff"
	"nvtrace/rm"
	"nvtrace/traces"
)

// pass gives every event of a recording to o, once.
func pass(e *cli.Env, rf *cli.ReadFlags, name string, o observe.Func) error {
	r, d, err := rf.Open(e, name)
	if err != nil {
		return err
	}
	err = e.Each(r, name, func(format string, args ...any) { e.Notice(name+": "+format, args...) }, observe.NewFeed(d, o).Event)
	if n := d.Notice(); n != "" {
		e.Notice("%s: %s", name, n)
	}
	return errors.Join(err, r.Close())
}

// texter is a result that prints itself for people.
type texter interface{ AppendText([]byte) []byte }

// show prints a result: as text to stdout, or as JSON where the flag says.
func show(e *cli.Env, asJSON *cli.OptString, r texter) error {
	if asJSON.Given {
		return e.WriteJSON(e.Stdout, asJSON.Value, r)
	}
	_, err := e.Stdout.Write(r.AppendText(nil))
	return err
}

// DiffVerb compares two recordings.
func DiffVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	var exprs cli.StringList
	var o diff.Options
	fs := cli.NewFlagSet(e, "diff", "[flags] a.nvt b.nvt")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	fs.Var(&exprs, "e", "compare only calls that match `EXPR`, as in nvtrace log")
	fs.IntVar(&o.Window, "window", 100, "how many calls, `N`, apart a call may stand in the two runs and still count as moved (-1: compare no order)")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(names) != 2 || command != nil {
		return e.Fail(cli.ExitUsage, "diff wants two recordings: nvtrace diff a.nvt b.nvt")
	}
	if o.Window < -1 || o.Window > 10_000 {
		return e.Fail(cli.ExitUsage, "--window %d: want 1 to 10000, or -1", o.Window)
	}
	if o.Window == 0 {
		o.Window = -1
	}
	filter, err := ioctl.ParseFilter(exprs...)
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	var sides [2]*diff.Profile
	var damage error
	for i, name := range names {
		p, err := profile(e, &rf, name, filter, &o)
		if p == nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		sides[i], damage = p, errors.Join(damage, err)
	}
	r := diff.Compare(sides[0], sides[1])
	if err := errors.Join(damage, show(e, &asJSON, r)); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if r.Same {
		return cli.ExitOK
	}
	return cli.ExitDiffers
}

// profile reads one side of a comparison. With a profile, an error means that
// the rest of the recording could not be read.
func profile(e *cli.Env, rf *cli.ReadFlags, name string, filter *ioctl.Filter, o *diff.Options) (*diff.Profile, error) {
	r, d, err := rf.Open(e, name)
	if err != nil {
		return nil, err
	}
	p := diff.NewProfile(&r.Header, o)
	p.Name = name
	// A cut-off recording is a note of the result.
	feed := observe.NewFeed(d, &profiler{p, filter})
	feed.Filter = filter
	feed.Follow()
	damage := cli.Each(r, func(string, ...any) {}, feed.Event)
	feed.Finish()
	if n := d.Notice(); n != "" {
		e.Notice("%s: %s", name, n)
	}
	return p, errors.Join(damage, r.Close())
}

// profiler takes what a filter selects into a profile. It is an observe.Observer.
type profiler struct {
	*diff.Profile
	filter *ioctl.Filter
}

// Observe implements observe.Observer.
func (p *profiler) Observe(e *observe.Event) {
	p.library(e)
	if isContext(e.Kind) || !e.Unwanted {
		p.Add(e.Event, e.Call, e.Decoder)
	}
}

// Finish implements observe.Finisher.
func (p *profiler) Finish(e *observe.Event) { p.library(e) }

// library takes in the library calls that an event ends.
func (p *profiler) library(e *observe.Event) {
	for _, f := range e.Tracker.Ended() {
		if p.filter.Match(&traces.Event{Kind: traces.KindCall, PID: f.PID, TID: f.TID, Name: f.Name}, &ioctl.Call{Kind: traces.KindCall}) {
			p.AddLibrary(f.Name, ioctl.Returned{}, false)
		}
	}
	if f := e.Frame; e.Kind == traces.KindReturn && f != nil && !e.Unwanted {
		p.AddLibrary(f.Name, e.Call.Returned, e.Flags&traces.FlagUnfinished == 0)
	}
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

// ABIVerb compares the tables of two driver versions.
func ABIVerb(e *cli.Env, args, command []string) int {
	var asJSON cli.OptString
	fs := cli.NewFlagSet(e, "abi", "diff [flags] VERSION VERSION [NAMES]")
	asJSON.RegisterJSON(fs)
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(words) < 3 || len(words) > 4 || words[0] != "diff" || command != nil {
		return e.Fail(cli.ExitUsage, "want: nvtrace abi diff 570.211.01 580.142 ['*CHANNEL*']")
	}
	var sides [2]*rm.ABI
	for i := range sides {
		a, err := tables(e, words[i+1])
		if err != nil {
			return e.Fail(cli.ExitUsage, "%v", err)
		}
		sides[i] = a
	}
	pattern := ""
	if len(words) == 4 {
		pattern = words[3]
	}
	r, err := diff.CompareABI(sides[0], sides[1], pattern)
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	if err := show(e, &asJSON, r); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if r.Same {
		return cli.ExitOK
	}
	return cli.ExitDiffers
}

// tables returns the tables of a driver version, and says so if they are a
// neighbour's.
func tables(e *cli.Env, s string) (*rm.ABI, error) {
	v, err := rm.ParseVersion(s)
	if err != nil {
		return nil, err
	}
	a := rm.Load(v)
	if !a.Exact() {
		e.Notice("driver %s is not in the tables: %s stands in", s, a.Version())
	}
	return a, nil
}
