package objects

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/rm"
)

// TreeVerb draws the objects of a recording.
func TreeVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	var at, since string
	var all bool
	fs := cli.NewFlagSet(e, "tree", "[flags] run.nvt")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	fs.StringVar(&at, "at", "end", "show the objects that lived at `TIME` since the beginning (1.5s), at the end of each process, or at the peak of memory")
	fs.StringVar(&since, "since", "", "only what was made after `TIME` and still lives at --at: what a program at work leaks")
	fs.BoolVar(&all, "all", false, "show all objects that ever lived, and how they ended")
	name, status, ok := e.OneRecording(fs, args, command)
	if !ok {
		return status
	}
	m, err := parseMoment(at)
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	if since != "" {
		from, err := parseMoment(since)
		switch {
		case err != nil || from.Word != "":
			return e.Fail(cli.ExitUsage, "--since %s: want a time since the recording began such as 1.5s", since)
		case m.Word == "" && from.at >= m.at:
			return e.Fail(cli.ExitUsage, "--since %s is not before --at %s", since, at)
		case all:
			return e.Fail(cli.ExitUsage, "--since and --all exclude each other")
		}
		m.since = from.at
	}
	l, damage := ReadObjects(e, &rf, name)
	if l == nil {
		return e.Fail(cli.ExitFailed, "%v", damage)
	}
	if err := errors.Join(l.check(m), l.check(Moment{at: m.since})); err != nil {
		return e.Fail(cli.ExitUsage, "%v", errors.Join(err, damage))
	}
	found := l.find(m)
	found.since = m.since
	r := l.report(found, all)
	return e.Answer(&asJSON, damage, r, func() error { return r.write(e) })
}

// TreeReport is a tree as plain data.
type TreeReport struct {
	At      string       `json:"at"` // the moment, in words
	All     bool         `json:"all,omitempty"`
	Objects []treeObject `json:"objects"`
	Totals  []treeTotal  `json:"totals"`
	Memory  []treeMemory `json:"gpu_memory"` // by process
	Left    []treeLeft   `json:"left"`       // what programs did not free; not of --since
	UVM     []treeUVM    `json:"uvm"`
	text    []byte
	since   int64
}

// treeObject is an object. Times are in ns since the recording began.
type treeObject struct {
	ID       uint32   `json:"id"`
	Parent   uint32   `json:"parent,omitempty"`
	Name     string   `json:"name"`
	Path     string   `json:"path"`
	Kind     string   `json:"kind"`
	Class    string   `json:"class,omitempty"`
	ClassID  string   `json:"class_id"`
	Client   string   `json:"client"`
	Handle   string   `json:"handle"`
	PID      int32    `json:"pid"`
	Size     uint64   `json:"size,omitempty"`
	Aperture string   `json:"aperture,omitempty"`
	Details  []string `json:"details,omitempty"`
	Roles    []string `json:"roles,omitempty"`
	SameAs   uint32   `json:"same_as,omitempty"`
	Import   uint32   `json:"imported_from,omitempty"`
	Exports  []uint32 `json:"exported_to,omitempty"`
	DMABufs  []int32  `json:"dma_bufs,omitempty"`
	Mapped   []string `json:"mapped,omitempty"` // user addresses
	GPU      []string `json:"gpu,omitempty"`    // GPU addresses
	Born     int64    `json:"born"`
	Died     int64    `json:"died"` // -1: it lives
	End      string   `json:"end"`
	By       uint32   `json:"by,omitempty"`
	Guessed  bool     `json:"guessed,omitempty"`
}

// treeTotal counts the objects of one kind and place.
type treeTotal struct {
	Kind     string `json:"kind"`
	Aperture string `json:"aperture,omitempty"`
	Objects  int    `json:"objects"` // at the moment; other handles of one object not counted
	Bytes    uint64 `json:"bytes"`
	Made     int    `json:"made"` // in the whole recording
	Peak     uint64 `json:"peak"`
	PeakTime int64  `json:"peak_time"`
}

// treeMemory is a process's memory on the GPU, counted as the driver counts it
// for nvidia-smi: the sizes of the memory objects there that its clients
// allocated (gpu_rmapi.c, _gpuCollectMemInfo).
type treeMemory struct {
	PID      int32  `json:"pid"`
	Bytes    uint64 `json:"bytes"` // at the moment
	Peak     uint64 `json:"peak"`
	PeakTime int64  `json:"peak_time"`
}

// treeLeft counts what a process did not free.
type treeLeft struct {
	PID      int32  `json:"pid"`
	Kind     string `json:"kind"`
	Aperture string `json:"aperture,omitempty"`
	Objects  int    `json:"objects"`
	Bytes    uint64 `json:"bytes"`
	Ended    bool   `json:"ended"` // the process ended, and the driver freed them; false: they live on
}

// treeUVM is a managed address space.
type treeUVM struct {
	PID      int32       `json:"pid"`
	File     uint32      `json:"file"`
	GPUs     []string    `json:"gpus"`
	Spaces   []string    `json:"spaces"` // GPU address spaces registered with it
	Channels int         `json:"channels"`
	Ranges   []treeRange `json:"ranges"`
	More     int         `json:"more_ranges,omitempty"` // that are counted and not listed
	Peak     uint64      `json:"peak_managed"`
	PeakExt  uint64      `json:"peak_external"`
}

// treeRange is a range of a managed address space.
type treeRange struct {
	Kind   string   `json:"kind"`
	Base   string   `json:"base"`
	Length uint64   `json:"length"`
	Mapped []string `json:"mapped,omitempty"` // objects in it
}

// report makes the data of a drawing.
func (l *ObjectLog) report(m Moment, all bool) *TreeReport {
	f := l.Facts(m, all)
	r := &TreeReport{At: m.text(), All: all, Objects: []treeObject{}, UVM: l.uvmReport(m, all), text: f.appendTree(nil)}
	nodes := l.visible(m, all)
	for _, n := range nodes {
		r.Objects = append(r.Objects, f.object(n.o))
	}
	r.Totals = l.totals(nodes)
	r.Memory = l.gpuMemory(nodes)
	if m.since == 0 {
		r.Left = l.left()
		return r
	}
	r.since = m.since
	r.Totals = slices.DeleteFunc(r.Totals, func(t treeTotal) bool { return t.Objects == 0 })
	r.Memory = slices.DeleteFunc(r.Memory, func(m treeMemory) bool { return m.Bytes == 0 })
	return r
}

func (f *facts) object(o *rm.Object) treeObject {
	t := treeObject{
		ID: o.ID, Name: o.Name(), Path: o.Path(), Kind: o.Kind.String(), ClassID: hex32(o.ClassID), Client: hex32(o.Ref.Client),
		Handle: hex32(o.Ref.Handle), PID: o.PID, Size: o.Attr.Size, Details: f.l.Details[o.ID].text, Roles: f.roles[o],
		Import: o.Import, Exports: f.exports[o], DMABufs: o.DMABufs, Born: o.Born, Died: o.Died, End: o.End.String(), Guessed: o.Guessed,
	}
	if o.Class != nil {
		t.Class = o.Class.Name
	}
	if o.Attr.Aperture != rm.ApertureUnknown {
		t.Aperture = o.Attr.Aperture.String()
	}
	for _, x := range []struct {
		id *uint32
		o  *rm.Object
	}{{&t.Parent, o.Parent}, {&t.SameAs, o.Dup}, {&t.By, o.By}} {
		if x.o != nil {
			*x.id = x.o.ID
		}
	}
	if o.Died == rm.Alive {
		t.Died = -1
	}
	for _, m := range f.maps[o] {
		t.Mapped = append(t.Mapped, fmt.Sprintf("%#x", m.Addr))
	}
	for _, s := range f.Gpu[o] {
		t.GPU = append(t.GPU, fmt.Sprintf("%#x", s.Base))
	}
	return t
}

func hex32(n uint32) string { return fmt.Sprintf("%#x", n) }

type totalKey struct {
	kind     rm.Kindred
	aperture rm.Aperture
}

// totals counts what is visible, beside what the whole recording had.
func (l *ObjectLog) totals(nodes []node) []treeTotal {
	now := make(map[totalKey]*treeTotal)
	var out []treeTotal
	for _, t := range l.Tree.Totals(0) {
		x := treeTotal{Kind: t.Kind.String(), Made: t.Made, Peak: t.PeakBytes, PeakTime: t.PeakTime}
		if t.Aperture != rm.ApertureUnknown {
			x.Aperture = t.Aperture.String()
		}
		out = append(out, x)
	}
	for i, t := range l.Tree.Totals(0) {
		now[totalKey{t.Kind, t.Aperture}] = &out[i]
	}
	for _, n := range nodes {
		if x := now[totalKey{n.o.Kind, n.o.Attr.Aperture}]; x != nil && n.o.Dup == nil {
			x.Objects++
			if isMemory(n.o) {
				x.Bytes += n.o.Attr.Size
			}
		}
	}
	return out
}

// gpuMemory counts what is visible on the GPU, by process.
func (l *ObjectLog) gpuMemory(nodes []node) []treeMemory {
	bytes := make(map[int32]uint64)
	for _, n := range nodes {
		if o := n.o; o.Kind == rm.Memory && o.Attr.Aperture == rm.ApertureVidmem && o.Dup == nil {
			bytes[o.PID] += o.Attr.Size
		}
	}
	out := []treeMemory{}
	for _, pid := range slices.Sorted(maps.Keys(l.Pids)) {
		for _, t := range l.Tree.Totals(pid) {
			if t.Kind == rm.Memory && t.Aperture == rm.ApertureVidmem {
				out = append(out, treeMemory{pid, bytes[pid], t.PeakBytes, t.PeakTime})
			}
		}
	}
	return out
}

func isMemory(o *rm.Object) bool { return o.Kind == rm.Memory || o.Kind == rm.Fabric }

// left counts what the programs did not free themselves.
func (l *ObjectLog) left() []treeLeft {
	type key struct {
		pid int32
		totalKey
	}
	m := make(map[key]*treeLeft)
	var keys []key
	for o := range l.Tree.Objects() {
		if l.freed(o) && o.End != rm.EndClosed || o.Dup != nil {
			continue
		}
		k := key{o.PID, totalKey{o.Kind, o.Attr.Aperture}}
		x := m[k]
		if x == nil {
			x = &treeLeft{PID: o.PID, Kind: o.Kind.String(), Ended: true}
			if o.Attr.Aperture != rm.ApertureUnknown {
				x.Aperture = o.Attr.Aperture.String()
			}
			m[k] = x
			keys = append(keys, k)
		}
		x.Objects++
		x.Ended = x.Ended && o.End != rm.EndNone
		if isMemory(o) {
			x.Bytes += o.Attr.Size
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.kind, b.kind), cmp.Compare(a.aperture, b.aperture))
	})
	out := []treeLeft{}
	for _, k := range keys {
		out = append(out, *m[k])
	}
	return out
}

// uvmReport describes the managed address spaces.
func (l *ObjectLog) uvmReport(m Moment, all bool) []treeUVM {
	out := []treeUVM{}
	spaces := l.Tree.UVMSpaces()
	var files []uint32
	for id, s := range spaces {
		if all || l.lived(m, s.PID, s.Born, s.Died) {
			files = append(files, id)
		}
	}
	slices.Sort(files)
	for _, id := range files {
		s := spaces[id]
		u := treeUVM{PID: s.PID, File: id, GPUs: []string{}, Spaces: []string{}, Ranges: []treeRange{}, Peak: s.Total.PeakManaged, PeakExt: s.Total.PeakExternal}
		for _, g := range s.GPUs {
			if !all && !l.lived(m, s.PID, g.Born, g.Died) {
				continue
			}
			u.GPUs = append(u.GPUs, g.UUID.String())
			if g.Space != nil {
				u.Spaces = append(u.Spaces, g.Space.Name())
			}
			u.Channels += len(g.Channels)
		}
		slices.Sort(u.GPUs)
		slices.Sort(u.Spaces)
		in := make(map[*rm.UVMRange][]string)
		for _, g := range l.gpuMaps {
			if g.File == id && (all || l.lived(m, g.PID, g.Born, g.until())) {
				in[g.In] = append(in[g.In], g.Object.Name())
			}
		}
		for _, r := range l.ranges {
			if r.File == id && (all || r.Born > m.since && l.lived(m, r.PID, r.Born, r.Died)) {
				if len(u.Ranges) == mostMappings {
					u.More++
					continue
				}
				u.Ranges = append(u.Ranges, treeRange{r.Kind.String(), fmt.Sprintf("%#x", r.Base), r.Length, in[r.UVMRange]})
			}
		}
		slices.SortStableFunc(u.Ranges, func(a, b treeRange) int {
			return cmp.Or(cmp.Compare(len(a.Base), len(b.Base)), cmp.Compare(a.Base, b.Base))
		})
		if m.since > 0 && len(u.Ranges) == 0 {
			continue
		}
		out = append(out, u)
	}
	return out
}

// write prints the report for people.
func (r *TreeReport) write(e *cli.Env) error {
	buf := cli.NewPage(e.Stdout)
	title := "Objects " + r.At
	if r.All {
		title = "All objects of the recording"
	}
	fmt.Fprintf(buf, "%s\n", title)
	if len(r.Objects) == 0 {
		fmt.Fprintf(buf, "  none\n")
	}
	buf.Write(r.text)
	var rows [][]string
	for _, t := range r.Totals {
		rows = append(rows, []string{
			fmt.Sprint(t.Objects), bytesOrDash(t.Bytes), fmt.Sprint(t.Made), bytesOrDash(t.Peak), peakTime(t), t.Kind + " " + t.Aperture,
		})
	}
	if len(rows) > 0 {
		fmt.Fprintln(buf)
	}
	if err := cli.RenderTable(buf, "Totals by kind and place", []string{">objects", ">bytes", ">made", ">peak", ">at", "kind"}, rows); err != nil {
		return err
	}
	for i, m := range r.Memory {
		if i == 0 {
			fmt.Fprintln(buf)
		}
		if r.since > 0 {
			fmt.Fprintf(buf, "GPU memory of pid %d allocated since %.6f s: %s\n", m.PID, float64(r.since)/1e9, MemoryText(m.Bytes))
			continue
		}
		fmt.Fprintf(buf, "GPU memory of pid %d: %s, at most %s at %.6f s\n", m.PID, MemoryText(m.Bytes), MemoryText(m.Peak), float64(m.PeakTime)/1e9)
	}
	r.writeUVM(&buf.Buffer)
	r.writeLeft(&buf.Buffer)
	_, err := e.Stdout.Write(buf.Bytes())
	return err
}

// writeLeft says what processes did not free themselves, in a line each: a healthy program
// leaves its contexts to the driver.
func (r *TreeReport) writeLeft(buf *bytes.Buffer) {
	if len(r.Left) > 0 {
		fmt.Fprintln(buf)
	}
	for i := 0; i < len(r.Left); {
		pid, ended, objects, sizes := r.Left[i].PID, true, 0, []string(nil)
		for ; i < len(r.Left) && r.Left[i].PID == pid; i++ {
			t := &r.Left[i]
			ended = ended && t.Ended
			objects += t.Objects
			if t.Bytes > 0 && t.Aperture != rm.ApertureVirtual.String() {
				sizes = append(sizes, MemoryText(t.Bytes)+" "+t.Aperture)
			}
		}
		how := "freed by the driver when it closed its files"
		if !ended {
			how = "some of them live on"
		}
		fmt.Fprintf(buf, "Not freed by pid %d itself: %s; %s\n", pid,
			strings.Join(append([]string{cli.Counted(uint64(objects), "object")}, sizes...), ", "), how)
	}
}

func (r *TreeReport) writeUVM(buf *bytes.Buffer) {
	for _, u := range r.UVM {
		fmt.Fprintf(buf, "\nUnified memory of pid %d (open file %d): %d GPUs, %d address spaces, %d channels; peak %s managed, %s external\n",
			u.PID, u.File, len(u.GPUs), len(u.Spaces), u.Channels, cli.SizeText(u.Peak), cli.SizeText(u.PeakExt))
		for _, g := range u.GPUs {
			fmt.Fprintf(buf, "  %s\n", g)
		}
		for _, x := range u.Ranges {
			fmt.Fprintf(buf, "  %s %s %s", x.Base, cli.SizeText(x.Length), x.Kind)
			for i, o := range x.Mapped {
				sep := ", "
				if i == 0 {
					sep = ": "
				}
				fmt.Fprintf(buf, "%s%s", sep, o)
			}
			fmt.Fprintln(buf)
		}
		if u.More > 0 {
			fmt.Fprintf(buf, "  … and %d more ranges\n", u.More)
		}
	}
}

func bytesOrDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return MemoryText(n)
}

// MemoryText prints whole MiB as such, as nvidia-smi does.
func MemoryText(n uint64) string { return units.Memory(n) }

func peakTime(t treeTotal) string {
	if t.Peak == 0 {
		return "-"
	}
	return fmt.Sprintf("%.6f", float64(t.PeakTime)/1e9)
}
