package view

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/nvattach/session"
	"nvtrace/traces"
)

// found is what a recording holds beside the program's calls: what became of the probes,
// their maps, and the kernels that failed on the simulated GPU.
type found struct {
	probes   []foundEvent // KindProbe
	maps     []foundEvent // KindMap
	faults   []foundEvent // KindFault, the first of many
	failed   int          // how many there were
	bytes    int          // in maps
	moreMaps int          // that are not in maps
}

// foundEvent is what is kept of an event: whole ones take some 700 bytes each.
type foundEvent struct {
	PID              int32
	Device           uint64
	Name, Text, Data string
	Probe            *traces.Probe
}

func keepEvent(ev *traces.Event) foundEvent {
	ev = ev.Clone()
	return foundEvent{ev.PID, ev.Args[0], ev.Name, ev.Text, ev.Data, ev.Probe}
}

// Bounds of what is kept of a hostile recording.
const (
	maxFaults   = 64
	maxProbed   = 1 << 14
	maxMapBytes = 16 << 20
)

// Observe implements observe.Observer.
func (f *found) Observe(e *observe.Event) {
	ev := e.Event
	switch ev.Kind {
	case traces.KindFault:
		if f.failed++; len(f.faults) < maxFaults {
			f.faults = append(f.faults, keepEvent(ev))
		}
	case traces.KindProbe:
		if ev.Probe != nil && len(f.probes) < maxProbed {
			f.probes = append(f.probes, keepEvent(ev))
		}
	case traces.KindMap:
		const each = 512 // of a map beside its contents, with what shows it
		if n := len(ev.Text) + len(ev.Data) + len(ev.Name) + each; f.bytes+n <= maxMapBytes {
			f.bytes += n
			f.maps = append(f.maps, keepEvent(ev))
		} else {
			f.moreMaps++
		}
	}
}

// positions are what a reason says of places in a kernel's machine code: that of the one place, or
// how many there are and the first.
var positions = regexp.MustCompile(` \((?:\d+ places, the first )?\S+ at \+0x[0-9a-f]+\)`)

// summary says in a line which kernels were probed and which were not, "" if there were
// no probes.
func (f *found) summary() string {
	if len(f.probes) == 0 {
		return ""
	}
	full, ran, sites, idle, unprobed := 0, 0, 0, 0, 0
	var with, launches uint64
	var reasons []string
	without := make(map[string]int)
	for i := range f.probes {
		p := f.probes[i].Probe
		if !p.Launched {
			idle++
			continue
		}
		ran++
		launches += p.Launches
		if p.Images > 0 && p.Reason == "" {
			full++
			with += p.Launches - min(p.Launches, uint64(max(p.Unprobed, 0)))
		}
		if p.Images > 0 {
			sites += p.Sites
		}
		unprobed += p.Unprobed
		if p.Reason != "" {
			// Which places of a kernel have none says -v.
			r := positions.ReplaceAllString(p.Reason, "")
			if without[r]++; without[r] == 1 {
				reasons = append(reasons, r)
			}
		}
	}
	var text strings.Builder
	if full == ran {
		text.WriteString("in " + cli.Counted(uint64(ran), "kernel"))
	} else {
		fmt.Fprintf(&text, "in %d of %d launched kernels", full, ran)
	}
	if with < launches {
		text.WriteString(", " + session.Share(with, launches) + ",")
	}
	text.WriteString(" at " + cli.Counted(uint64(sites), "place"))
	slices.SortStableFunc(reasons, func(a, b string) int { return without[b] - without[a] })
	for _, r := range reasons[:min(2, len(reasons))] {
		fmt.Fprintf(&text, "; NOT in %s: %s", cli.Counted(uint64(without[r]), "kernel"), r)
	}
	if more := len(reasons) - 2; more > 0 {
		fmt.Fprintf(&text, "; NOT for %s", cli.CountedAs(uint64(more), "other reason", "other reasons"))
	}
	if unprobed > 0 {
		fmt.Fprintf(&text, "; %s without them", cli.CountedAs(uint64(unprobed), "launch", "launches"))
	}
	if idle > 0 {
		fmt.Fprintf(&text, "; not launched: %s", cli.Counted(uint64(idle), "kernel"))
	}
	return text.String()
}

// writeMaps prints the maps as they were at the end, the first lines of each; lines 0
// stands for all.
func (f *found) writeMaps(w io.Writer, lines int) error {
	var b strings.Builder
	of := int32(0)
	for i := range f.maps {
		m := &f.maps[i]
		if several := f.maps[0].PID != f.maps[len(f.maps)-1].PID; several && m.PID != of {
			fmt.Fprintf(&b, "process %d, device %d:\n", m.PID, m.Device)
			of = m.PID
		}
		n, cut := 0, 0
		for line := range strings.Lines(m.Text) {
			if n++; lines > 0 && n > lines+1 {
				cut++
				continue
			}
			b.WriteString(cli.Printable(strings.TrimSuffix(line, "\n")) + "\n")
		}
		if cut > 0 {
			fmt.Fprintf(&b, "  … and %d more lines\n", cut)
		}
	}
	if f.moreMaps > 0 {
		fmt.Fprintf(&b, "  … and %d more maps; nvtrace export --format raw has all\n", f.moreMaps)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeProbes prints what became of each kernel that probes were to run in.
func (f *found) writeProbes(w io.Writer) error {
	var b strings.Builder
	for i := range f.probes {
		p := f.probes[i].Probe
		name := cli.Printable(fatbin.Demangle(f.probes[i].Name))
		idle := ""
		if !p.Launched {
			idle = ", not launched"
		}
		if p.Images > 0 {
			fmt.Fprintf(&b, "probed %s (%s%s)\n", name, cli.CountOf(p.Sites, "site"), idle)
		}
		if p.Reason != "" {
			fmt.Fprintf(&b, "NOT probed %s%s: %s\n", name, idle, cli.Printable(p.Reason))
		}
		if p.Unprobed > 0 {
			fmt.Fprintf(&b, "  %s ran without probes: %s\n", cli.CountedAs(uint64(p.Unprobed), "launch", "launches"), cli.Printable(p.UnprobedWhy))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// foundJSON is found for machines.
type foundJSON struct {
	Kernels []probedJSON `json:"kernels,omitempty"`
	Maps    []mapJSON    `json:"maps,omitempty"`
	More    int          `json:"more_maps,omitempty"` // that are not in Maps
	Faults  []faultJSON  `json:"faults,omitempty"`
}

type probedJSON struct {
	Kernel    string `json:"kernel"`
	Demangled string `json:"demangled"`
	*traces.Probe
}

type mapJSON struct {
	PID    int32           `json:"pid"`
	Device uint64          `json:"device"`
	Name   string          `json:"name"`
	Map    json.RawMessage `json:"map,omitempty"` // absent: too large for the recording
}

type faultJSON struct {
	PID    int32  `json:"pid"`
	Kernel string `json:"kernel"`
	Text   string `json:"text"`
}

// json returns it as plain data, nil if there is nothing.
func (f *found) json() *foundJSON {
	if len(f.probes)+len(f.maps)+len(f.faults) == 0 {
		return nil
	}
	j := &foundJSON{More: f.moreMaps}
	for i := range f.probes {
		j.Kernels = append(j.Kernels, probedJSON{f.probes[i].Name, fatbin.Demangle(f.probes[i].Name), f.probes[i].Probe})
	}
	for i := range f.maps {
		m := &f.maps[i]
		x := mapJSON{PID: m.PID, Device: m.Device, Name: m.Name}
		if json.Valid([]byte(m.Data)) {
			x.Map = json.RawMessage(m.Data)
		}
		j.Maps = append(j.Maps, x)
	}
	for i := range f.faults {
		j.Faults = append(j.Faults, faultJSON{f.faults[i].PID, f.faults[i].Name, f.faults[i].Text})
	}
	return j
}

// IsRecording reports whether a file is, or is meant to be, a recording.
func IsRecording(name string) bool {
	if strings.HasSuffix(name, ".nvt") {
		return true
	}
	r, err := traces.Open(name)
	if err == nil {
		_ = r.Close()
	}
	return err == nil
}

// AttachedVerb shows what the probes of a recorded run found.
func AttachedVerb(e *cli.Env, name string, asJSON *cli.OptString) int {
	var rf cli.ReadFlags
	r, _, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	var f found
	feed := observe.NewFeed(nil, &f)
	feed.Undecoded = true
	damage := e.Each(r, name, e.Notice, feed.Event)
	if len(f.probes)+len(f.maps) == 0 && damage == nil {
		return e.Fail(cli.ExitFailed, "%s: no probes were attached in this recording", name)
	}
	return e.Answer(asJSON, damage, f.json(), func() error {
		if err := f.writeMaps(e.Stdout, 0); err != nil {
			return err
		}
		return f.writeProbes(e.Stdout)
	})
}
