package objects

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// ObjectLog follows the driver's objects through a recording: the tree, and
// what a reader wants to know beyond it.
type ObjectLog struct {
	objs    *ioctl.Objects
	Tree    *rm.Tree
	start   int64
	now     int64             // end of the latest event, ns
	pid     int32             // of the latest event, which is in pids
	exits   map[int32]int64   // when processes ended
	Details map[uint32]detail // by rm.Object.ID
	maps    []*mapRecord
	mapped  map[mapAt]*mapRecord // living ones
	latest  map[int32]*mapRecord // of each process
	ranges  []*rangeRecord
	gpuMaps []*gpuRecord
	gpuAt   map[fileAt]*gpuRecord // living ones
	dmas    []*rm.DMAMapping
	files   map[uint32]struct{} // open files that events named
	Unseen  uint64              // calls that were recorded without their results
	Pids    map[int32]struct{}  // processes that events named
	lost    uint64              // events that were not recorded

	// Bare is that mappings are left out, of which there may be far more than objects.
	Bare bool
}

// detail is what an object's allocation said beyond rm.Attr.
type detail struct {
	text       []string // "engineType=COPY2"
	Gpfifo     uint64   // a channel's gpFifoOffset, a GPU address
	Entries    uint64   // of that ring
	UserData   uint32   // a channel's hUserdMemory: the memory with its USERD
	UserDataAt uint64   // where in that
	errors     uint32   // a channel's hObjectError: the memory that faults are told in
}

// NewObjectLog begins a log of what d decodes.
func NewObjectLog(d *ioctl.Decoder) *ObjectLog {
	objs := ioctl.NewObjects(d, nil)
	return &ObjectLog{
		objs: objs, Tree: objs.Tree(), start: math.MaxInt64, exits: make(map[int32]int64), Details: make(map[uint32]detail),
		mapped: make(map[mapAt]*mapRecord), latest: make(map[int32]*mapRecord), gpuAt: make(map[fileAt]*gpuRecord), files: make(map[uint32]struct{}),
		Pids: make(map[int32]struct{}),
	}
}

// Observe implements observe.Observer.
func (l *ObjectLog) Observe(e *observe.Event) {
	ev, c := e.Event, e.Call
	l.now = max(l.now, ev.Time+ev.Dur)
	l.start = min(l.start, ev.Time)
	if ev.PID != 0 && ev.PID != l.pid {
		l.pid = ev.PID
		l.Pids[ev.PID] = struct{}{}
	}
	if ev.File != 0 {
		l.files[ev.File] = struct{}{}
	}
	if ev.Kind == traces.KindExit && ev.TID == ev.PID {
		l.exits[ev.PID] = l.now
	}
	l.objs.Add(ev, c)
	if ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn { // which are many, and make no objects
		return
	}
	if !l.Bare {
		l.addMap(ev, c)
	}
	if ev.Kind == traces.KindLost {
		l.lost += uint64(max(ev.Ret, 0))
	}
	if ev.Kind != traces.KindIoctl {
		return
	}
	if ev.Flags&traces.FlagNoExit != 0 {
		l.Unseen++
	}
	if c.Failed() || ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) != 0 {
		return
	}
	if c.Device == ioctl.DeviceUVM {
		if !l.Bare {
			l.addUVM(ev, c)
		}
		return
	}
	if c.Escape != nil && c.Nr == escMapDMA && !l.Bare {
		l.addDMA(c)
	}
	if c.Class != nil && c.New != 0 {
		if o := l.Tree.Object(rm.Ref{Client: c.Client, Handle: c.New}); o != nil {
			if d := detailOf(c, o.Kind); d.text != nil || d.errors != 0 {
				l.Details[o.ID] = d
			}
		}
	}
}

// escMapDMA is NV_ESC_RM_MAP_MEMORY_DMA (nv_escape.h).
const escMapDMA = 0x57

// attrLocation is NVOS32_ATTR_LOCATION, 26:25 (nvos.h), the same in all versions.
const attrLocation = 3 << 25

// told lists the members of allocation parameters that a tree shows, by the
// kindred of the object.
var told = map[rm.Kindred][]string{
	rm.Memory:       {"type", "flags", "attr"},
	rm.Channel:      {"gpFifoOffset", "engineType", "cid", "flags"},
	rm.ChannelGroup: {"engineType"},
	rm.Copy:         {"engineType"},
	rm.ContextShare: {"flags", "subctxId"},
	rm.VASpace:      {"flags", "vaBase", "vaSize"},
	rm.Event:        {"notifyIndex"},
}

// detailOf reads the details out of the call that made an object.
func detailOf(c *ioctl.Call, kind rm.Kindred) (d detail) {
	for i := range c.Parts {
		p := &c.Parts[i]
		s := p.Struct
		if s == nil || p.Latest() == nil {
			continue
		}
		names := told[kind]
		switch {
		case s != c.Class.Alloc && len(s.Fields) > 0 && s.Fields[0].Name == "params" && s.Fields[0].Struct != nil:
			s, names = s.Fields[0].Struct, []string{"flags"} // nv_ioctl_nvos02_parameters_with_fd
		case s != c.Class.Alloc:
			continue
		}
		for _, name := range names {
			f := s.Lookup(name)
			v, ok := s.Uint(name, p.Latest())
			if !ok || v == 0 {
				continue
			}
			if name == "gpFifoOffset" {
				d.Gpfifo = v
			}
			if name == "attr" {
				v &^= attrLocation // said by the aperture
			}
			d.text = append(d.text, name+"="+valueText(s.As(f, p.Latest()), v))
		}
		if v, ok := s.Uint("hObjectError", p.In); ok && kind == rm.Channel {
			d.errors = uint32(v)
			d.userDataOf(s, p.In)
		}
		if kind == rm.Event && c.Class.Name == "NV01_EVENT_OS_EVENT" {
			// The driver overwrites the descriptor with an address of its own.
			if v, ok := s.Uint("data", p.In); ok {
				d.text = append(d.text, "fd="+strconv.Itoa(int(int32(uint32(v)))))
			}
		}
	}
	return d
}

// userDataOf reads out of a channel's parameters where its USERD is, and how long its ring. Of arrays over the GPUs of
// a group the first counts.
func (d *detail) userDataOf(s *rm.Struct, b []byte) {
	d.Entries, _ = s.Uint("gpFifoEntries", b) // 0: the ring is not known
	if f := s.Lookup("hUserdMemory"); f != nil && f.Offset+4 <= len(b) {
		d.UserData = binary.LittleEndian.Uint32(b[f.Offset:])
	}
	if f := s.Lookup("userdOffset"); f != nil && f.Offset+8 <= len(b) {
		d.UserDataAt = binary.LittleEndian.Uint64(b[f.Offset:])
	}
}

// valueText prints a number with the names that the tables have for it.
func valueText(f *rm.Field, v uint64) string {
	if f.Domain == nil && strings.HasSuffix(strings.ToLower(f.Name), "flags") {
		return fmt.Sprintf("%#x", v)
	}
	return string(ioctl.AppendValue(nil, f, v))
}

// Moment is a point of a recording that a tree or a list of mappings is shown at.
type Moment struct {
	Word  string // "end" or "peak"; else at holds
	at    int64
	since int64 // what was there by then is left out; 0: nothing is
}

// parseMoment reads "1.5s", "250ms", "end" or "peak"; a number without a unit
// is seconds.
func parseMoment(s string) (Moment, error) {
	if s == "end" || s == "peak" {
		return Moment{Word: s}, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		var sec float64
		if sec, err = strconv.ParseFloat(s, 64); err == nil {
			d = time.Duration(sec * 1e9)
		}
	}
	if err != nil || d < 0 {
		return Moment{}, fmt.Errorf("--at %s: want a time since the recording began such as 1.5s, or end, or peak", s)
	}
	return Moment{at: int64(d)}, nil
}

// find turns peak into a time: when most memory was allocated, on the GPU if
// there was any there.
func (l *ObjectLog) find(m Moment) Moment {
	if m.Word != "peak" {
		return m
	}
	totals := slices.DeleteFunc(l.Tree.Totals(0), func(t rm.Total) bool {
		return t.PeakBytes == 0 || t.Aperture == rm.ApertureVirtual
	})
	if len(totals) == 0 {
		return Moment{Word: "end"}
	}
	best := slices.MaxFunc(totals, func(a, b rm.Total) int {
		av, bv := a.Aperture == rm.ApertureVidmem, b.Aperture == rm.ApertureVidmem
		if av != bv {
			if av {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.PeakBytes, b.PeakBytes)
	})
	return Moment{at: best.PeakTime}
}

// lived reports whether something of process pid that was there from born to
// died was there at the moment. The end of a process's life comes before what
// the driver then frees.
func (l *ObjectLog) lived(m Moment, pid int32, born, died int64) bool {
	if m.Word == "end" {
		end, ok := l.exits[pid]
		if !ok {
			end = l.now
		}
		return born <= end && died >= end
	}
	return born <= m.at && m.at < died
}

// check refuses a moment after the end of the recording, where everything would seem
// to be gone.
func (l *ObjectLog) check(m Moment) error {
	if m.Word == "" && m.at > l.now {
		return fmt.Errorf("--at %v: the recording ends at %.6f s", time.Duration(m.at), float64(l.now)/1e9)
	}
	return nil
}

// text says the moment in words.
func (m Moment) text() string {
	if since := m.since; since != 0 {
		m.since = 0
		return fmt.Sprintf("made after %.6f s that lived %s", float64(since)/1e9, m.text())
	}
	if m.Word == "end" {
		return "at the end of each process"
	}
	return fmt.Sprintf("at %.6f s", float64(m.at)/1e9)
}

// visible returns the objects that lived at the moment, or all, with their
// parents' objects before them, in the order of a drawing.
func (l *ObjectLog) visible(m Moment, all bool) []node {
	under := make(map[*rm.Object][]*rm.Object)
	var roots []*rm.Object
	for o := range l.Tree.Objects() {
		if !all && !l.objectLived(m, o) {
			continue
		}
		if o.Parent == nil || m.since > 0 && o.Parent.Born <= m.since {
			roots = append(roots, o)
		} else {
			under[o.Parent] = append(under[o.Parent], o)
		}
	}
	slices.SortStableFunc(roots, func(a, b *rm.Object) int { return cmp.Compare(a.PID, b.PID) })
	var nodes, todo []node
	for _, o := range slices.Backward(roots) {
		todo = append(todo, node{o, 0})
	}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		nodes = append(nodes, n)
		for _, o := range slices.Backward(under[n.o]) {
			todo = append(todo, node{o, n.depth + 1})
		}
	}
	return nodes
}

// node is an object in a drawing of the tree.
type node struct {
	o     *rm.Object
	depth int
}

// objectLived is lived for objects: what the program freed itself, even just
// before it ended, was gone at the end.
func (l *ObjectLog) objectLived(m Moment, o *rm.Object) bool {
	if o.Born <= m.since && m.since > 0 {
		return false
	}
	if m.Word == "end" {
		return !l.freed(o)
	}
	return o.Born <= m.at && m.at < o.Died
}

// freed reports whether the program ended the object by its own doing.
func (l *ObjectLog) freed(o *rm.Object) bool {
	return o.End != rm.EndNone && o.End != rm.EndExit
}

// ReadObjects makes an objectLog of a recording. With a log, an error means that
// the rest of the recording could not be read.
func ReadObjects(e *cli.Env, rf *cli.ReadFlags, name string) (*ObjectLog, error) {
	r, d, err := rf.Open(e, name)
	if err != nil {
		return nil, err
	}
	l := NewObjectLog(d)
	feed := observe.NewFeed(d, l)
	err = e.Each(r, name, func(format string, args ...any) { e.Notice(name+": "+format, args...) }, feed.Event)
	if n := d.Notice(); n != "" {
		e.Notice("%s: %s", name, n)
	}
	l.Caution(e, name)
	return l, errors.Join(err, r.Close())
}

// Caution says what the recording does not tell of objects.
func (l *ObjectLog) Caution(e *cli.Env, name string) {
	if l.Unseen > 0 {
		e.Notice("%s: %d calls were recorded without their results (--counts): what they made is not known", name, l.Unseen)
	}
	if l.lost > 0 {
		e.Notice("%s: %d events were not recorded: objects may be missing", name, l.lost)
	}
}
