package run

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/ptrace/agent"
	"nvtrace/traces/glob"
)

// stackFlag is --stacks=CALLS,…: a group of calls, or functions by their names, and of how many
// calls one has its stack recorded.
type stackFlag struct {
	list []stackRule
}

// stackRule is one of them.
type stackRule struct {
	what  string // a word of stackGroups, or a pattern; of a program also "alloc:PATTERN" and "free:PATTERN"
	every uint32 // 0: as often as costs little
	each  bool   // of a program of -e: every call counts
}

// The groups of calls that have words. They stand for functions of the driver, in which all calls end;
// but for failures, which are of any library.
var stackGroups = map[string]func(m api.Module, name string) bool{
	"alloc": api.Allocates,
	"free":  api.Frees,
	"sync": func(m api.Module, name string) bool {
		return m.Library == api.Driver && strings.Contains(name, "Synchronize")
	},
	"launch": api.Launches,
	"failed": func(api.Module, string) bool { return true },
}

// String implements flag.Value.
func (f *stackFlag) String() string { return "" }

// Set implements flag.Value.
func (f *stackFlag) Set(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		what, every, divided := strings.Cut(strings.TrimSpace(word), "/")
		r := stackRule{what: what}
		if divided {
			n, err := strconv.ParseUint(every, 10, 32)
			if err != nil || n == 0 || what == "failed" && n > 1 {
				return fmt.Errorf("%q: want how many calls there are for each stack behind the slash, as in launch/1000; of failures each has one", word)
			}
			r.every = uint32(n)
		}
		if what == "" {
			return fmt.Errorf("%q: want alloc, free, sync, launch, failed, or the name of a function, with * for any part of it", word)
		}
		if stackGroups[what] == nil && !glob.Is(what) && api.MatchSymbol(what) == api.Unknown {
			return fmt.Errorf("%q: CUDA's libraries have no function of that name%s", what, ioctl.Suggest(what, maps.Keys(stackGroups)))
		}
		f.list = append(f.list, r)
	}
	return nil
}

func (f *stackFlag) given() bool { return len(f.list) > 0 }

// libraries returns those whose functions are meant.
func (f *stackFlag) libraries() (s api.Selection) {
	for _, r := range f.list {
		name, _, _ := strings.Cut(r.what, "*")
		switch l := api.MatchSymbol(name); {
		case r.each: // they are the program's
		case stackGroups[r.what] != nil:
			s = s.With(api.Driver)
		case l != api.Unknown:
			s = s.With(l)
		}
	}
	return s
}

// Without a number behind the slash stacks are recorded of so many calls of a function at once, and of so
// many a second in the long run: at up to 100 µs each they cost 2 % of the time at most.
const (
	stackPause = 5 * time.Millisecond
	stackBurst = 2000
)

// wants says at which of a function's calls stacks are recorded.
func (f *stackFlag) wants(m api.Module, name string) (s calls.Stop) {
	for _, r := range f.list {
		what, pattern, divided := strings.Cut(r.what, ":")
		group := stackGroups[what]
		if !divided {
			pattern = what
		}
		if !glob.Match(pattern, name) && (group == nil || divided) {
			continue
		}
		if group != nil && (!group(m, name) || m.Library == api.Runtime && what != "failed") {
			continue
		}
		rate := agent.Rate{Every: r.every}
		if r.every == 0 && !r.each {
			rate = agent.Rate{Pause: stackPause, Burst: stackBurst}
		}
		switch {
		case r.what == "failed":
			if s.Failed = true; !s.Call {
				s.Rate = rate
			}
		case !s.Call || moreOften(rate, s.Rate):
			s.Call, s.Rate = true, rate
		}
	}
	return s
}

// moreOften reports whether a rate has more stops than another.
func moreOften(a, b agent.Rate) bool {
	if a.Pause == 0 && b.Pause == 0 {
		return a.Every < b.Every
	}
	return a.Pause == 0 && a.Every <= 1
}
