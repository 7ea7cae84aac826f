package objects

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/rm"
)

// MapsOf lists the device memory that processes map: those of a recording, or by ofLive one that runs.
func MapsOf(e *cli.Env, args, command []string, ofLive func(e *cli.Env, pid int, asJSON *cli.OptString) int) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	var at string
	var pid, live int
	var all bool
	fs := cli.NewFlagSet(e, "maps", "[flags] run.nvt | PID | pin ls | pin dump NAME | pin set NAME MAP[KEY]=VALUE... | pin rm NAME")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	fs.StringVar(&at, "at", "end", "show the mappings that were there at `TIME` since the beginning (1.5s), at the end of each process, or at the peak of memory")
	fs.BoolVar(&all, "all", false, "show all mappings that there ever were")
	fs.IntVar(&pid, "pid", 0, "only of the process `PID`")
	fs.IntVar(&live, "live", 0, "instead of a recording, look at the running process `PID`")
	fs.IntVar(&live, "p", 0, "the same as --live `PID`")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if live == 0 && len(names) == 1 && cli.IsPID(names[0]) {
		live, _ = strconv.Atoi(names[0]) // it is one
		names = nil
	}
	switch {
	case command != nil || live == 0 && len(names) != 1 || live != 0 && len(names) != 0:
		return e.Fail(cli.ExitUsage, "maps wants one recording, or the PID of a process")
	case pid < 0 || live < 0:
		return e.Fail(cli.ExitUsage, "a process id is not negative")
	case live != 0:
		return ofLive(e, live, &asJSON)
	}
	m, err := parseMoment(at)
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	l, damage := ReadObjects(e, &rf, names[0])
	if l == nil {
		return e.Fail(cli.ExitFailed, "%v", damage)
	}
	err = l.check(m)
	if _, ok := l.Pids[int32(pid)]; pid != 0 && !ok {
		err = fmt.Errorf("--pid %d: no such process in the recording; it has %s", pid, l.processList())
	}
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", errors.Join(err, damage))
	}
	r := l.mapReport(l.find(m), all, int32(pid))
	return e.Answer(&asJSON, damage, r, func() error { return r.write(e) })
}

// processList names the processes of a recording, the first of many.
func (l *ObjectLog) processList() string {
	const most = 8
	all := slices.Sorted(maps.Keys(l.Pids))
	var list []string
	for _, pid := range all[:min(len(all), most)] {
		list = append(list, l.processText(pid))
	}
	if more := len(all) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// mapReport is the mappings of processes as plain data.
type mapReport struct {
	At        string       `json:"at"`
	Processes []processMap `json:"processes"`
	More      int          `json:"more,omitempty"` // mappings that are counted and not listed
}

// mostMappings bounds what a report lists, and with it the memory that it takes.
const mostMappings = 10_000

// processMap is the mappings of one process, by address.
type processMap struct {
	PID   int32      `json:"pid"`
	Name  string     `json:"name"`
	Bytes uint64     `json:"bytes"`
	Maps  []mapEntry `json:"maps"`
	count int        // of mappings, listed or not
}

// mapEntry is one mapping.
type mapEntry struct {
	Addr   string   `json:"addr"`
	Size   uint64   `json:"size"`
	Access string   `json:"access"` // "rw-"
	Node   string   `json:"node"`
	File   uint32   `json:"file"` // open file; the descriptor is often closed right after
	FD     int32    `json:"fd"`
	What   string   `json:"what"`             // "doorbell", "vidmem (BAR1)", "managed"
	Object string   `json:"object,omitempty"` // "client0/dev0/chan2"
	Class  string   `json:"class,omitempty"`
	Offset uint64   `json:"offset,omitempty"` // in the object's memory
	Roles  []string `json:"roles,omitempty"`
	GPU    []string `json:"gpu,omitempty"`
	Born   int64    `json:"born"`
	Died   int64    `json:"died"` // -1: not seen
}

func (l *ObjectLog) mapReport(m Moment, all bool, pid int32) *mapReport {
	f := l.Facts(m, all)
	by := make(map[int32]*processMap)
	out := &mapReport{At: m.text(), Processes: []processMap{}}
	if all {
		out.At = "in the whole recording"
	}
	var pids []int32
	addrs := make(map[int32][]*mapRecord)
	listed := 0
	for _, r := range l.maps {
		if pid != 0 && r.PID != pid || !f.then(r.PID, r.Born, r.until()) {
			continue
		}
		if listed == mostMappings && by[r.PID] == nil {
			out.More++ // its process is not listed either
			continue
		}
		if by[r.PID] == nil {
			by[r.PID] = &processMap{PID: r.PID}
			if k := l.Tree.Task(r.PID); k != nil && k.Name != "." {
				by[r.PID].Name = k.Name
			}
			pids = append(pids, r.PID)
		}
		by[r.PID].Bytes += r.Size
		by[r.PID].count++
		if listed == mostMappings {
			out.More++
			continue
		}
		listed++
		addrs[r.PID] = append(addrs[r.PID], r)
	}
	ranges := make(map[uint64][]*rangeRecord)
	for _, list := range addrs {
		for _, r := range list {
			ranges[r.Addr] = nil
		}
	}
	for _, g := range l.ranges {
		if _, ok := ranges[g.Base]; ok {
			ranges[g.Base] = append(ranges[g.Base], g)
		}
	}
	slices.Sort(pids)
	for _, id := range pids {
		p := by[id]
		slices.SortStableFunc(addrs[id], func(a, b *mapRecord) int { return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Born, b.Born)) })
		for _, r := range addrs[id] {
			p.Maps = append(p.Maps, f.mapEntry(r, ranges[r.Addr]))
		}
		out.Processes = append(out.Processes, *p)
	}
	return out
}

// mapEntry says what a mapping is. ranges are those that begin where it does.
func (f *facts) mapEntry(r *mapRecord, ranges []*rangeRecord) mapEntry {
	x := mapEntry{
		Addr: fmt.Sprintf("%#x", r.Addr), Size: r.Size, Access: access(r.Prot), Node: r.Node, File: r.File, FD: r.FD,
		What: "unknown", Born: r.Born, Died: r.until(),
	}
	if x.Died == rm.Alive {
		x.Died = -1
	}
	switch {
	case r.Managed:
		x.What = rm.UVMManaged.String()
		for _, g := range ranges {
			if g.File == r.File && g.Born <= r.until() && r.Born <= g.Died {
				x.What = g.Kind.String()
			}
		}
	case r.Of != nil:
		o := r.Of.Object
		x.Object, x.Offset, x.Roles = o.Path(), r.Of.Offset, f.roles[o]
		if k := r.Of.Shows(); k != rm.MapNone {
			x.What = k.String()
		} else {
			x.What = o.Kind.String()
		}
		if o.Class != nil {
			x.Class = o.Class.Name
		}
		for _, s := range f.Gpu[o] {
			x.GPU = append(x.GPU, fmt.Sprintf("%#x", s.Base))
		}
	}
	return x
}

// access prints PROT_* as /proc/PID/maps does.
func access(prot uint64) string {
	b := []byte("---")
	for i, c := range []byte("rwx") {
		if prot&(1<<i) != 0 {
			b[i] = c
		}
	}
	return string(b)
}

func (r *mapReport) write(e *cli.Env) error {
	buf := cli.NewPage(e.Stdout)
	if len(r.Processes) == 0 {
		fmt.Fprintf(buf, "No device memory was mapped %s\n", r.At)
	}
	for i, p := range r.Processes {
		if i > 0 {
			fmt.Fprintln(buf)
		}
		title := fmt.Sprintf("pid %d", p.PID)
		if p.Name != "" {
			title += " (" + cli.Printable(p.Name) + ")"
		}
		title += fmt.Sprintf(": %d mappings, %s, %s", p.count, cli.SizeText(p.Bytes), r.At)
		var rows [][]string
		for _, x := range p.Maps {
			rows = append(rows, []string{x.Addr, cli.SizeText(x.Size), x.Access, x.Node, fmt.Sprint(x.File), x.What, x.about()})
		}
		if err := cli.RenderTable(buf, title, []string{"address", ">size", "access", "node", ">file", "what", "object"}, rows); err != nil {
			return err
		}
	}
	if r.More > 0 {
		fmt.Fprintf(buf, "\n… and %d more mappings; nvtrace export --format parquet has all\n", r.More)
	}
	_, err := e.Stdout.Write(buf.Bytes())
	return err
}

// about describes the mapped object.
func (x *mapEntry) about() string {
	var parts []string
	if x.Object != "" {
		parts = append(parts, strings.TrimSpace(x.Object+" "+x.Class))
	} else if x.What == "unknown" {
		parts = append(parts, "what the file maps was said before it was traced")
	}
	if x.Offset != 0 {
		parts = append(parts, fmt.Sprintf("from %#x on", x.Offset))
	}
	parts = append(parts, x.Roles...)
	if len(x.GPU) > 0 {
		parts = append(parts, "GPU "+strings.Join(x.GPU, " "))
	}
	return strings.Join(parts, ", ")
}
