package view

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/glob"
)

// LineFlags are the flags that choose lines and how they look, the same for a
// live log and for a recording's.
type LineFlags struct {
	Exprs             cli.StringList
	Programs          *cli.StringList // where -e 'PROGRAM' goes; nil: nowhere
	wall              cli.Times
	delta, took       bool
	hex, all, handles bool
	width, elems      int
	color             string
}

// about says what else than a filter -e may be.
func (f *LineFlags) about() string {
	if f.Programs == nil {
		return ""
	}
	return "with braces, run a program: 'kernel:* { @[kernel] = count(); }'; otherwise "
}

// An exprFlag is -e: a filter, or with braces a program for probes.
type exprFlag struct{ exprs, programs *cli.StringList }

// String implements flag.Value.
func (f *exprFlag) String() string { return "" }

// Set implements flag.Value.
func (f *exprFlag) Set(s string) error {
	switch {
	case !probe.IsProgram(s) && f.programs != nil && strings.Contains(s, ":") && !strings.Contains(s, "="):
		return fmt.Errorf("what is to be done there is missing: '%s { @ = count(); }'; a filter is KEY=VALUE", s)
	case !probe.IsProgram(s) && f.programs != nil && strings.HasPrefix(strings.TrimSpace(s), "@"):
		return fmt.Errorf("a program says where it runs: 'kernel:* { %s; }'; nvtrace list shows where that can be", strings.TrimRight(strings.TrimSpace(s), ";"))
	case !probe.IsProgram(s):
		if hint := filterHint(s, f.programs != nil); hint != "" {
			return errors.New(hint)
		}
		return f.exprs.Set(s)
	case f.programs == nil:
		return errors.New("a program for probes wants a program to run: nvtrace -e 'PROGRAM' -- command [args]")
	}
	return f.programs.Set(s)
}

// filterHint says what may have been meant by a filter without "=", or by one of strace's.
func filterHint(s string, runs bool) string {
	name := strings.TrimPrefix(s, "trace=")
	if strings.Contains(name, "=") || name == "" {
		return ""
	}
	for _, l := range api.Libraries() {
		for f := range api.Functions(l) {
			if glob.Match(name, f.Name) || strings.HasPrefix(f.Name, name+"_v") {
				return fmt.Sprintf("a filter is KEY=VALUE: api=%s*", strings.TrimSuffix(name, "*"))
			}
		}
	}
	isCall := false
	for nr := range uint64(probe.MostSyscalls) {
		isCall = isCall || ptrace.NativeSyscallName(nr) == name
	}
	if isCall && runs {
		return fmt.Sprintf("a filter is KEY=VALUE, of device calls and libraries' calls; system calls are counted by a program: 'syscall:%s { @ = count(); }'", name)
	}
	return ""
}

// Register adds the flags to a verb's.
func (f *LineFlags) Register(fs *flag.FlagSet) {
	fs.Var(&exprFlag{&f.Exprs, f.Programs}, "e", f.about()+"show only what matches `EXPR`: device=nvidia-uvm, ioctl=NV_ESC_RM_*, control=*GPU*, class=*CHANNEL*, status!=OK, api=cuMem*, pid=N; globs and comma lists, != negates (repeated, all must hold)")
	fs.Var(&f.wall, "t", "show the time of day; -ttt: as seconds since 1970")
	fs.BoolVar(&f.delta, "r", false, "show the time since the previous line")
	fs.BoolVar(&f.took, "T", false, "show how long each call took")
	fs.BoolVar(&f.hex, "x", false, "add the raw bytes in hexadecimal")
	fs.BoolVar(&f.all, "z", false, "show members that are zero too")
	fs.BoolVar(&f.handles, "handles", false, "show handles in hexadecimal instead of the objects' names")
	fs.IntVar(&f.width, "w", 0, "cut lines at `N` characters (0: no limit)")
	fs.IntVar(&f.elems, "s", 32, "show at most `N` elements of an array or characters of a string (-1: all)")
	fs.StringVar(&f.color, "color", "auto", "`WHEN` to colour: auto, always or never (NO_COLOR is respected)")
}

// Options returns the line options for output that goes to w.
func (f *LineFlags) Options(e *cli.Env, h *traces.Header, w io.Writer) (*ioctl.LineOptions, error) {
	o := &ioctl.LineOptions{Duration: f.took, Width: f.width, Elems: f.elems, Zeros: f.all, Hex: f.hex, Demangle: fatbin.Demangle}
	if h != nil {
		o.Start = h.Start
	}
	switch {
	case f.width < 0:
		return nil, fmt.Errorf("-w %d: want a number of characters, or 0 for no limit", f.width)
	case f.elems < -1:
		return nil, fmt.Errorf("-s %d: want a number of elements, or -1 for all", f.elems)
	case f.wall > 0 && f.delta:
		return nil, fmt.Errorf("-t and -r exclude each other")
	case f.wall > 2:
		o.Clock = ioctl.ClockEpoch
	case f.wall > 0:
		o.Clock = ioctl.ClockWall
	case f.delta:
		o.Clock = ioctl.ClockDelta
	}
	switch f.color {
	case "always":
		o.Color = true
	case "never":
	case "auto":
		o.Color = cli.IsTerminal(w) && e.Getenv("NO_COLOR") == "" && e.Getenv("TERM") != "dumb"
	default:
		return nil, fmt.Errorf("--color=%s: want auto, always or never", f.color)
	}
	return o, nil
}

// Once reports the first error of an output, and no more.
type Once struct {
	E    *cli.Env
	What string
	Live bool // of a program that is being traced
	Said bool
}

// Report says an error, if it is the first.
func (o *Once) Report(err error) {
	if err == nil || o.Said {
		return
	}
	o.Said = true
	rest := ""
	if o.Live {
		rest = "; the program goes on, what was written before can be read"
	}
	o.E.Notice("%s%v%s", o.What, err, rest)
}
