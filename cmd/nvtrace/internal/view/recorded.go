package view

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
	"nvtrace/traces/glob"
)

// What was not recorded is no zero: views say so in its place, with the flag that records it.
const notRecorded = "not recorded (--api)"

// heldCalls says of which calls of CUDA's libraries a run or a recording holds each.
type heldCalls struct {
	known     bool          // it says so itself; else what is there tells
	libraries api.Selection // of which it has calls
	counted   bool          // it has their numbers alone
}

// holdings is what a run or a recording says that it holds, and what of it came.
type holdings struct {
	header  heldCalls
	heard   bool              // a library call came
	imaged  bool              // something of code images came
	counted map[string]uint64 // calls of functions that were only counted
}

// mostCounted bounds the functions of which holdings know how often they were called: libraries have less.
const mostCounted = 1 << 14

// heldOf reads what a header says.
func heldOf(text string) (h heldCalls) {
	h.known = text != ""
	for word := range strings.SplitSeq(text, ",") {
		if word == "count" {
			h.counted = true
		} else if s, err := api.ParseSelection(word); err == nil && word != "" {
			h.libraries |= s
		}
	}
	return h
}

// held says which library calls there are. Of a recording that does not say so, all
// libraries count as recorded if there is any call; counted is what was only counted of them,
// nil for nothing.
func (s *holdings) held(counted *api.Report) heldCalls {
	h := s.header
	if !h.known && (s.heard || counted != nil) {
		h.libraries, _ = api.ParseSelection("all") // which is one
		h.counted = !s.heard
	}
	return h
}

// Observe implements observe.Observer: it notes what events there are, for what a recording does not
// say of itself.
func (s *holdings) Observe(e *observe.Event) {
	switch e.Kind {
	case traces.KindCall, traces.KindReturn:
		s.heard = true
	case traces.KindImage, traces.KindKernel, traces.KindCaptured:
		s.imaged = true
	case traces.KindCount:
		if _, known := s.counted[e.Name]; known || len(s.counted) < mostCounted {
			if s.counted == nil {
				s.counted = make(map[string]uint64)
			}
			s.counted[e.Name] += e.Args[0]
		}
	}
}

// onlyCounted says which calls that probes of a program are at are there as numbers alone, "" if none are.
func (s *holdings) onlyCounted(p *script.Program) string {
	var names []string
	calls := uint64(0)
	for name, n := range s.counted {
		if slices.ContainsFunc(append(p.Wants("api"), p.Wants("apiret")...), func(pattern string) bool { return glob.Match(pattern, name) }) {
			names = append(names, name)
			calls += n
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("%s: %s only counted, not recorded (--api=all)", cli.SomeOf(names, 4), cli.Counted(calls, "call"))
}

// any reports whether there are calls.
func (h heldCalls) any() bool { return h.libraries != 0 }

// each reports whether there are the calls themselves of one of the libraries through which
// programs use a GPU.
func (h heldCalls) each() bool {
	return !h.counted && (h.libraries.Has(api.Driver) || h.libraries.Has(api.Runtime))
}

// silent says which calls there are not, "" if there are all that a program makes to use a GPU.
func (h heldCalls) silent() string {
	switch {
	case !h.any():
		return "calls of CUDA's libraries: " + notRecorded
	case h.counted:
		return "calls of CUDA's libraries: only counted (--api)"
	case !h.each():
		return "calls of CUDA's libraries: those" + h.only() + " were recorded (--api)"
	}
	return ""
}

// calls reports whether there are calls of one of the functions that a pattern names.
func (h heldCalls) calls(pattern string) bool {
	for _, l := range api.Libraries() {
		if !h.libraries.Has(l) {
			continue
		}
		for f := range api.Functions(l) {
			if glob.Match(pattern, f.Name) {
				return true
			}
		}
	}
	return false
}

// only names the libraries, where the driver's calls are not among them.
func (h heldCalls) only() string {
	if h.libraries == 0 || h.libraries.Has(api.Driver) {
		return ""
	}
	return " of " + h.libraries.String() + " alone"
}

// lacks says which probes of a program are at what was not recorded, "" if none is, and whether all are.
func (s *holdings) lacks(p *script.Program) (text string, all bool) {
	h := s.held(nil)
	missing := make(map[string][]string) // places, by the flag that records them
	var flags []string
	n, places := 0, p.HostPlaces()
	for _, place := range places {
		flag := ""
		kind, pattern, _ := strings.Cut(place, ":")
		switch {
		case kind == "image" && !s.imaged:
			flag = "--modules"
		case (kind == "api" || kind == "apiret") && (h.counted || !h.calls(pattern)), (kind == "alloc" || kind == "free" || kind == "launch") && !h.each():
			flag = "--api"
		default:
			continue
		}
		n++
		if missing[flag] == nil {
			flags = append(flags, flag)
		}
		if !slices.Contains(missing[flag], place) {
			missing[flag] = append(missing[flag], place)
		}
	}
	var list []string
	for _, flag := range flags {
		list = append(list, fmt.Sprintf("%s: not recorded (%s)", cli.SomeOf(missing[flag], 4), flag))
	}
	if p.Ranges() && !h.libraries.Has(api.NVTX) {
		list = append(list, "nvtx: not recorded (--api)")
	}
	return strings.Join(list, "; "), n > 0 && n == len(places)
}
