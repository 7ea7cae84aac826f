package view

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/fatbin"
	"nvtrace/traces"
)

// SortedKeys returns the keys of a map in order.
func SortedKeys[V any](m map[int]V) []int {
	var list []int
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// WriteSampled draws what looks at one process came to.
func WriteSampled(w io.Writer, l *Layout, pid int, r *traces.Sampled) error {
	var b strings.Builder
	how := "without pause"
	if r.Every > 0 {
		how = "each " + time.Duration(r.Every).String()
	}
	fmt.Fprintf(&b, "Process %d, looked at %s: %s looks in %s\n", pid, how, cli.Grouped(r.Looks), cli.OrZero(cli.Duration(r.Wall)))
	for _, d := range r.Devices {
		fmt.Fprintf(&b, "  GPU %d busy %s ± %s", d.Device, cli.PercentText(d.Busy, r.Wall), cli.PercentText(d.BusyError, r.Wall))
		done, seen, unread := uint64(0), uint64(0), uint64(0)
		for _, c := range r.Channels {
			if c.Device == d.Device {
				done, seen, unread = done+c.Done, seen+c.Seen, unread+c.Unread
			}
		}
		fmt.Fprintf(&b, "; %s submissions done", cli.Grouped(done))
		if r.Every == 0 && done > 0 {
			fmt.Fprintf(&b, ", of %s the time was seen", cli.PercentText(int64(seen), int64(done)))
			if unread > 0 {
				fmt.Fprintf(&b, ", %s were not read", cli.Grouped(unread))
			}
			if d.ClockMargin >= 0 {
				fmt.Fprintf(&b, "; its clock is known to ± %s", cli.Duration(d.ClockMargin))
			}
		}
		if d.Memory > 0 {
			fmt.Fprintf(&b, "; %s of its %s of memory used", units.Memory(d.MemoryUsed), units.Memory(d.Memory))
		}
		if text := readingsText(d.Readings); text != "" {
			b.WriteString("; " + text)
		}
		b.WriteString("\n")
	}
	if text := ringsText(r.Rings); text != "" {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if len(r.Devices) == 0 && r.Rings != "" {
		return nil
	}
	if len(r.Devices) == 0 {
		_, err := io.WriteString(w, "  No channel of a GPU was in use.\n")
		return err
	}
	if len(r.Works) == 0 {
		return nil
	}
	header := []string{">looks", ">time", ">%", ">± %", ">GPU", ">channel", "kernel or copy"}
	if r.Every == 0 {
		header = []string{">seen", ">missed", ">time", ">mean", ">longest", ">%", ">± %", ">GPU", ">channel", "kernel or copy"}
	}
	var rows [][]string
	for i := range r.Works {
		rows = append(rows, sampledRow(&r.Works[i], r.Every == 0))
	}
	return l.write(w, []table{{"What GPUs did", header, rows, fewWorks}})
}

// ringsText says why no ring was read, and what is missing for it.
func ringsText(rings string) string {
	switch rings {
	case "":
		return ""
	case traces.RingsLeft:
		return "Its rings were not read (--no-rings): channels without a pushbuffer in system memory are not recorded."
	case traces.RingsOfSeveral:
		return "Its rings were not read, and it has several GPUs: which of them a channel is of is not known, so nothing is recorded."
	}
	return "Its rings can't be read: channels without a pushbuffer in system memory are not recorded."
}

// readingsText says a GPU's clocks and power, as far as the driver tells them.
func readingsText(r *traces.GPUReadings) string {
	if r == nil {
		return ""
	}
	var list []string
	add := func(v *uint32, unit string) {
		if v != nil {
			list = append(list, fmt.Sprintf("%d %s", *v, unit))
		}
	}
	add(r.SMClock, "MHz")
	add(r.Utilisation, "% utilisation")
	if r.Power != nil {
		const perWatt = 1000
		list = append(list, fmt.Sprintf("%d W", (*r.Power+perWatt/2)/perWatt))
	}
	add(r.Temperature, "°C")
	return strings.Join(list, ", ")
}

// sampledRow is a line of the table.
func sampledRow(k *traces.SampledWork, each bool) (row []string) {
	if each {
		mean := ""
		if k.Seen > 0 {
			mean = cli.Duration(k.Time / int64(k.Seen))
		}
		row = []string{cli.Count(k.Seen), cli.Count(k.Missed), cli.Duration(k.Time), mean, cli.Duration(k.Max)}
	} else {
		row = []string{cli.Count(k.Looks), cli.Duration(k.Time)}
	}
	name := k.Name
	if k.Kernel && !strings.HasPrefix(name, "program ") && !strings.HasPrefix(name, "(") {
		name = fatbin.Demangle(name)
	}
	return append(row, fmt.Sprintf("%.2f", 100*k.Share), fmt.Sprintf("%.2f", 100*k.Error), strconv.Itoa(int(k.Device)), strconv.Itoa(k.Channel), name)
}
