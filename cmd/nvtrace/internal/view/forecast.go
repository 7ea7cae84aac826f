package view

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/nvattach/api"
)

// paid is what a cost is paid for.
type paid int

const (
	perCall   paid = iota // a call of CUDA's libraries
	perWork               // a launch, copy or set
	perLaunch             // a launch
	perDevice             // a call of the driver's device files
	paidKinds
)

func (p paid) String() string {
	return [...]string{"call", "launch, copy or set", "launch", "device call"}[p]
}

// nanoseconds is a cost as it was measured: least and most, by machine and program.
type nanoseconds struct{ least, most float64 }

// wayCost is what a way of recording costs a program. docs/cost.md has a table of these.
type wayCost struct {
	flags string
	of    [paidKinds]nanoseconds
	also  string // what cannot be told from numbers of calls
}

// recordingCalls is what a call costs the program that is recorded: reading the clock, and the record.
// Decoding and writing are on other processors.
var recordingCalls = nanoseconds{80, 130}

// device is what a device call costs, with its reading.
var device = nanoseconds{800, 1100}

// attached is what a launch of a kernel with probes costs the host.
var attached = nanoseconds{70, 130}

// wayCosts are the ways, cheap ones first. docs/cost.md says by which measurements.
var wayCosts = []wayCost{
	{"-q", [paidKinds]nanoseconds{perDevice: device}, ""},
	{"--api=count", [paidKinds]nanoseconds{perCall: {28, 50}, perDevice: device}, ""},
	{"-e 'kernel:* { @[kernel] = count(); }'", [paidKinds]nanoseconds{perLaunch: attached, perDevice: device}, "kernels take 1.0x to 1.1x"},
	{"-e 'block:* { @ = count(); }'", [paidKinds]nanoseconds{perLaunch: attached, perDevice: device}, "kernels take 1.0x to 2.3x"},
	{"-e 'mem:* { @ = count(); }'", [paidKinds]nanoseconds{perLaunch: attached, perDevice: device}, "kernels take 1.0x to 2.2x"},
	{"--api -o run.nvt", [paidKinds]nanoseconds{perCall: recordingCalls, perDevice: device}, ""},
	{"--gpu-times=tracker -o run.nvt", [paidKinds]nanoseconds{perCall: recordingCalls, perDevice: device}, "two more processors are busy"},
	{"--gpu-times=probe -o run.nvt", [paidKinds]nanoseconds{perCall: recordingCalls, perLaunch: attached, perDevice: device}, "kernels take 0.5 to 0.8 µs more, of many short warps up to 3x"},
	{"--gpu-times=events -o run.nvt", [paidKinds]nanoseconds{perCall: recordingCalls, perWork: {1100, 9000}, perDevice: device}, ""},
}

// Forecast is what recording a program in each way would cost.
type Forecast struct {
	Command string        `json:"command"`
	Seconds float64       `json:"seconds"` // that were counted
	Calls   uint64        `json:"calls"`   // of CUDA's libraries
	Works   uint64        `json:"launches_copies_sets"`
	Launch  uint64        `json:"launches"`
	Device  uint64        `json:"device_calls"`
	Ways    []WayForecast `json:"ways"`
}

// WayForecast is what one way would cost.
type WayForecast struct {
	Flags string `json:"flags"`
	Least int64  `json:"least_ns"` // in all, in the time that was counted
	Most  int64  `json:"most_ns"`
	Also  string `json:"also,omitempty"`
}

// Forecast says what recording would cost, by what was counted or recorded.
func (s *Sink) Forecast(argv []string) *Forecast {
	r := s.Totals.Summary.Report()
	v := s.Totals.outline(r)
	f := &Forecast{Command: v.program, Seconds: float64(v.Wall) / 1e9, Device: r.Ioctls}
	if len(argv) > 0 && !v.attached {
		f.Command = strings.Join(argv, " ")
	}
	if calls := s.Totals.api(); calls != nil {
		f.Calls = calls.Calls
		launches, copies := calls.Made(api.Launching), calls.Made(api.Copying)
		f.Launch, f.Works = launches, launches+copies
	}
	n := [paidKinds]uint64{perCall: f.Calls, perWork: f.Works, perLaunch: f.Launch, perDevice: f.Device}
	for _, w := range wayCosts {
		var least, most float64
		for p, c := range w.of {
			least, most = least+float64(n[p])*c.least, most+float64(n[p])*c.most
		}
		f.Ways = append(f.Ways, WayForecast{w.flags, int64(least), int64(most), w.also})
	}
	return f
}

// Text prints a forecast.
func (f *Forecast) Text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "\n What recording '%s' would cost, by counts of %.6f s:\n\n %18s  calls of CUDA's libraries\n %18s  launches\n %18s  launches, copies and sets\n %18s  device calls\n\n",
		cli.Printable(f.Command), f.Seconds, cli.Grouped(f.Calls), cli.Grouped(f.Launch), cli.Grouped(f.Works), cli.Grouped(f.Device))
	if err != nil {
		return err
	}
	var rows [][]string
	for _, way := range f.Ways {
		costs, share := "nothing", ""
		if way.Most > 0 {
			costs, share = cli.Duration(way.Least)+" to "+cli.Duration(way.Most), f.share(way.Least)+" to "+f.share(way.Most)+" %"
		}
		rows = append(rows, []string{costs, share, way.Flags, way.Also})
	}
	if err := cli.RenderTable(w, "", []string{">costs", ">of the time", "way", "and"}, rows); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n Costs are sums over all threads: those of threads that run side by side are paid at the same time.\n They were measured on an H200's host; docs/cost.md says how. A slower processor pays more.\n\n")
	return err
}

// share is a part of the time, in percent.
func (f *Forecast) share(ns int64) string {
	if f.Seconds == 0 {
		return "0"
	}
	return strconv.FormatFloat(100*float64(ns)/1e9/f.Seconds, 'f', 1, 64)
}

// costTable is the table of docs/cost.md.
func costTable() string {
	var b strings.Builder
	b.WriteString("| way |")
	for p := range paidKinds {
		b.WriteString(" a " + p.String() + " |")
	}
	b.WriteString(" and |\n|---|" + strings.Repeat("---|", int(paidKinds)+1) + "\n")
	for _, w := range wayCosts {
		b.WriteString("| `" + w.flags + "` |")
		for _, c := range w.of {
			if c == (nanoseconds{}) {
				b.WriteString(" |")
				continue
			}
			b.WriteString(" " + c.String() + " |")
		}
		b.WriteString(strings.TrimSuffix(" "+w.also, " ") + " |\n")
	}
	return b.String()
}

// String is the cost in words.
func (c nanoseconds) String() string {
	if c.most < 1000 {
		return fmt.Sprintf("%.0f to %.0f ns", c.least, c.most)
	}
	return strconv.FormatFloat(c.least/1000, 'f', -1, 64) + " to " + strconv.FormatFloat(c.most/1000, 'f', -1, 64) + " µs"
}
