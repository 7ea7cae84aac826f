// Command events runs eBPF programs at events of its own: lines of text files. It shows how a
// kind of event is added to nvattach from outside: a section's name, what programs see and may call, what is refused,
// and one callback that runs them.
//
//	go run ./examples/events examples/events/probes/lines.bpf.o FILE...
//
// Programs in section "line/GLOB" run at each line of the files that the glob matches. One that calls
// bpf_override_return keeps the line from being printed.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nvtrace/nvattach"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
	"nvtrace/traces/glob"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: events PROBE.bpf.o FILE...")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "events:", err)
		os.Exit(1)
	}
}

// source is the lines of files, as a source of events.
type source struct {
	object.HostSource
	text string // of the line at hand
}

// helperText is line_text(ctx, to, size): the line's beginning.
const helperText = 1000

func newSource() *source {
	s := new(source)
	s.HostSource = object.HostSource{
		Section: "line", Fields: []string{"number", "bytes", "words"}, Override: true,
		Check: notEmpty,
		Helpers: map[int32]*bpf.Helper{helperText: {
			Name: "line_text", Args: []bpf.ArgSpec{{Kind: bpf.ArgContext}, {Kind: bpf.ArgWrite, SizeArg: 2, Whole: true}, {Kind: bpf.ArgScalar}},
			Interpret: func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
				to := make([]byte, a[2])
				n := copy(to, s.text)
				return uint64(n), in.WriteMem(a[1], to)
			},
		}},
	}
	return s
}

func notEmpty(config string) error {
	if config == "" {
		return errors.New("the glob is missing; write line/*.c, for example")
	}
	return nil
}

// self is this process, which programs run for.
type self struct{}

func (self) IDs() (pid, tid int)      { return os.Getpid(), os.Getpid() }
func (self) Comm() string             { return filepath.Base(os.Args[0]) }
func (self) User() (uid, gid uint32)  { return uint32(os.Getuid()), uint32(os.Getgid()) }
func (self) CPU() int                 { return 0 }
func (self) Read(uint64, []byte) int  { return 0 }   // programs get their text by a helper
func (self) Write(uint64, []byte) int { return 0 }   // they change nothing
func (self) Callers(int) []uint64     { return nil } // nobody asks at events
func (self) Now() (monotonic uint64)  { return uint64(time.Now().UnixNano()) }

// run prints the lines of files that no program has against it, and then the programs' maps.
func run(out io.Writer, program string, files []string) error {
	s := newSource()
	obj, err := object.Open(program, &s.HostSource)
	if err != nil {
		return err
	}
	plan, err := nvattach.NewPlan([]*object.Object{obj}, nil)
	if err != nil {
		return err
	}
	maps, mem, err := plan.NewHostMaps(nil, nil)
	if err != nil {
		return err
	}
	runner := hostrun.NewRunner(plan.Host, maps, mem, func(_ int, text string) { fmt.Fprint(out, text) }, func(*mapmem.Map, mapmem.Record) {})
	for _, name := range files {
		if err := s.file(out, plan, runner, name); err != nil {
			return err
		}
	}
	for _, m := range maps.All {
		t, err := maps.Read(mem, m)
		if err == nil {
			err = t.Print(out, nil)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(runner.Losses()...)
}

// file runs the programs at a file's lines.
func (s *source) file(out io.Writer, plan *nvattach.Plan, runner *hostrun.Runner, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for number := uint64(1); lines.Scan(); number++ {
		s.text = lines.Text()
		call := &hostrun.Call{Thread: self{}, Fields: []uint64{number, uint64(len(s.text)), uint64(len(strings.Fields(s.text)))}}
		for _, p := range plan.Host {
			if !glob.Match(p.Point.Config, filepath.Base(name)) || p.Point.Source != &s.HostSource {
				continue
			}
			if err := runner.Run(p, call); err != nil {
				return fmt.Errorf("program %s: %w", p.Name, err)
			}
		}
		if !call.Overridden {
			fmt.Fprintln(out, s.text)
		}
	}
	return lines.Err()
}
