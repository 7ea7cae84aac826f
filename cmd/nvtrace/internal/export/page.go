package export

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// Bounds of what a page shows.
const (
	pageBuckets = 4096    // of time
	pageLanes   = 128     // threads with a lane, those that came first
	pageNames   = 1 << 12 // different names; others are "(other)"
	pageNodes   = 1 << 13 // of the flame graph
	pageTop     = 3       // names that a bucket keeps apart
	pageTime    = 1 << 60 // ns; what is later is damage
)

// Page gathers what a page of HTML shows of a recording: where the time went on each thread,
// a flame graph of the calls, memory over time. It is for one goroutine, and takes memory
// that is bounded whatever the recording's length.
type Page struct {
	// Demangle, if not nil, names kernels for people. It may be set before the first event.
	Demangle func(name string) string

	scene
	h      *traces.Header
	width  int64 // of a bucket, ns
	last   int64
	names  map[string]int32
	list   []string
	lanes  map[laneKey]*lane
	order  []*lane
	probed probedLanes
	memory [quantities][]uint64 // at most, by bucket
	now    [quantities]uint64   // of all processes
	shown  int                  // buckets of memory that are filled
	root   *flame
	nodes  int
	buf    []byte
}

// lane is what a thread did: time by name in each bucket, for its outermost library calls
// and for its device calls; or what a GPU did on a stream.
type lane struct {
	key   laneKey
	name  string
	calls [2][]bucket
}

type bucket [pageTop]share

// share is the time of a name in a bucket.
type share struct {
	name int32
	ns   int64
}

// flame is a node of the flame graph.
type flame struct {
	name     int32
	self     int64
	calls    int64
	children map[int32]*flame
}

// NewPage returns a Page. The events that it will be given are decoded by d; h is the
// recording's header.
func NewPage(h *traces.Header, d *ioctl.Decoder) *Page {
	p := &Page{h: h, width: 1000, names: make(map[string]int32), lanes: make(map[laneKey]*lane), root: &flame{children: make(map[int32]*flame)}}
	p.init(h, d)
	p.name([]byte("(other)"))
	return p
}

// name returns a name's number.
func (p *Page) name(b []byte) int32 {
	n, ok := p.names[string(b)]
	if !ok {
		if len(p.list) >= pageNames {
			return 0
		}
		n = int32(len(p.list))
		s := clean(clip(string(b), maxName))
		p.names[string(b)] = n
		p.list = append(p.list, s)
	}
	return n
}

// Observe implements observe.Observer.
func (p *Page) Observe(e *observe.Event) {
	ev, c := e.Event, e.Call
	p.take(e)
	end := ev.Time + max(ev.Dur, 0)
	if ev.Time >= 0 && end >= ev.Time && end <= pageTime {
		p.last = max(p.last, end)
	}
	for _, f := range p.tracker.Ended() {
		p.ended(f)
	}
	switch {
	case ev.Kind == traces.KindReturn && p.in != nil:
		p.ended(p.in)
	case ev.Kind == traces.KindGPU:
		p.work(ev)
	case ev.Kind == traces.KindThread:
		if l := p.lanes[laneKey{task: taskKey{ev.PID, ev.TID}}]; l != nil {
			l.name = ev.Text
		}
	case isCall(ev.Kind) && !inferred(ev) && ev.Flags&untimed == 0 && ev.Dur >= 0:
		p.buf = p.appendCallName(p.buf[:0], ev, c)
		n := p.name(p.buf)
		p.spend(laneKey{task: taskKey{ev.PID, ev.TID}}, 1, n, ev.Time, end)
		node := p.child(p.stack(p.in, ev.PID), n)
		node.self += ev.Dur
		node.calls++
	}
	p.remember(end)
	p.ledger.clean()
}

// work takes in what a GPU did.
func (p *Page) work(ev *traces.Event) {
	w := ev.Work()
	name, kernel := p.tracker.Describe(ev)
	if kernel {
		if name == "" {
			name = "(unknown kernel)"
		} else if p.Demangle != nil {
			name = p.Demangle(name)
		}
	}
	p.spend(laneKey{task: taskKey{pid: ev.PID}, gpu: true, stream: p.probed.streamOf(ev.PID, &w)}, 0, p.name([]byte(name)), w.Start, w.Start+w.Dur)
}

// ended takes in a library call that has ended.
func (p *Page) ended(f *api.Frame) {
	if f.End < f.Start {
		return
	}
	if f.Parent == nil {
		p.spend(laneKey{task: taskKey{f.PID, f.TID}}, 0, p.name([]byte(callName(f))), f.Start, f.End)
	}
	node := p.stack(f, f.PID)
	node.self += f.Self()
	node.calls++
}

// stack returns the node of a library call, or of a program.
func (p *Page) stack(f *api.Frame, pid int32) *flame {
	if f == nil {
		name := cmp.Or(p.scene.names[pid], "(unknown program)")
		return p.child(p.root, p.name([]byte(name)))
	}
	return p.child(p.stack(f.Parent, pid), p.name([]byte(callName(f))))
}

func (p *Page) child(of *flame, name int32) *flame {
	c := of.children[name]
	if c == nil {
		if p.nodes >= pageNodes {
			return of
		}
		p.nodes++
		c = &flame{name: name, children: make(map[int32]*flame)}
		of.children[name] = c
	}
	return c
}

// bucketOf returns the bucket that a time is in; where there are too few, each becomes
// twice as wide.
func (p *Page) bucketOf(ns int64) int {
	for ns/p.width >= pageBuckets {
		p.width *= 2
		for _, l := range p.order {
			for row := range l.calls {
				l.calls[row] = halve(l.calls[row], func(a, b bucket) bucket {
					for _, s := range b {
						a.add(s.name, s.ns)
					}
					return a
				})
			}
		}
		for q := range p.memory {
			p.memory[q] = halve(p.memory[q], func(a, b uint64) uint64 { return max(a, b) })
		}
		p.shown = (p.shown + 1) / 2
	}
	return int(ns / p.width)
}

// halve joins neighbours.
func halve[T any](list []T, join func(a, b T) T) []T {
	for i := 0; i < len(list); i += 2 {
		if i+1 < len(list) {
			list[i/2] = join(list[i], list[i+1])
		} else {
			list[i/2] = list[i]
		}
	}
	return list[:(len(list)+1)/2]
}

// add counts time for a name. Where there are too many, the least gives way: its time is
// then that of "(other)", in the last place.
func (b *bucket) add(name int32, ns int64) {
	if ns <= 0 {
		return
	}
	least := 0
	for i := range b {
		if b[i].ns > 0 && b[i].name == name {
			b[i].ns += ns
			return
		}
		if b[i].ns < b[least].ns {
			least = i
		}
	}
	if b[least].ns < ns {
		b[least], ns = share{name, ns}, b[least].ns
	}
	if ns > 0 {
		last := len(b) - 1
		if b[last].name != 0 {
			b[last] = share{0, b[last].ns}
		}
		b[last].ns += ns
	}
}

// spend counts the time from one moment to another on a thread.
func (p *Page) spend(key laneKey, row int, name int32, from, to int64) {
	if from < 0 || to < from || to > pageTime {
		return
	}
	l := p.lanes[key]
	if l == nil {
		if len(p.order) >= pageLanes {
			return
		}
		l = &lane{key: key, name: cmp.Or(p.scene.called[key.task], p.scene.names[key.task.pid], "process "+strconv.Itoa(int(key.task.pid)))}
		p.lanes[key] = l
		p.order = append(p.order, l)
	}
	p.bucketOf(to)
	for at := from; at < to; {
		i := int(at / p.width)
		end := min(to, (int64(i)+1)*p.width)
		if len(l.calls[row]) <= i {
			l.calls[row] = append(l.calls[row], make([]bucket, i+1-len(l.calls[row]))...)
		}
		l.calls[row][i].add(name, end-at)
		at = end
	}
}

// remember takes in what processes have of memory.
func (p *Page) remember(ns int64) {
	if len(p.ledger.dirty) == 0 || ns < 0 || ns > pageTime {
		return
	}
	i := p.bucketOf(ns)
	p.fill(i)
	for _, a := range p.ledger.dirty {
		for q := range a.have {
			p.now[q] += a.have[q] - a.shown[q]
		}
		a.shown = a.have
	}
	for q := range p.memory {
		p.memory[q][i] = max(p.memory[q][i], p.now[q])
	}
}

// fill extends what is known of memory to a bucket.
func (p *Page) fill(i int) {
	for ; p.shown <= i; p.shown++ {
		for q := range p.memory {
			p.memory[q] = append(p.memory[q], p.now[q])
		}
	}
}

// PageTable is a table of a page.
type PageTable struct {
	Title  string
	Header []string // one that begins with '>' is of numbers
	Rows   [][]string
}

// pageData is what the page's script draws.
type pageData struct {
	Width  int64               `json:"width"`
	Last   int64               `json:"last"`
	Names  []string            `json:"names"`
	Lanes  []pageLane          `json:"lanes"`
	Memory map[string][]uint64 `json:"memory"`
	Flame  *pageFlame          `json:"flame"`
}

type pageLane struct {
	Name string     `json:"name"`
	Rows [2][]int64 `json:"rows"` // bucket, then name and ns of each in it; flat: bucket, n, name, ns, …
}

type pageFlame struct {
	Name     int32        `json:"n"`
	Total    int64        `json:"t"`
	Self     int64        `json:"s"`
	Calls    int64        `json:"c"`
	Children []*pageFlame `json:"k,omitempty"`
}

func (f *flame) data() *pageFlame {
	d := &pageFlame{Name: f.name, Self: f.self, Total: f.self, Calls: f.calls}
	for _, c := range f.children {
		k := c.data()
		d.Total += k.Total
		d.Children = append(d.Children, k)
	}
	slices.SortFunc(d.Children, func(a, b *pageFlame) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name)) })
	return d
}

func (p *Page) data() *pageData {
	d := &pageData{Width: p.width, Last: p.last, Names: p.list, Lanes: []pageLane{}, Memory: map[string][]uint64{}, Flame: p.root.data()}
	slices.SortStableFunc(p.order, func(a, b *lane) int { // GPUs above all threads
		switch {
		case a.key.gpu == b.key.gpu:
			return 0
		case a.key.gpu:
			return -1
		}
		return 1
	})
	for _, l := range p.order {
		out := pageLane{Name: clean(fmt.Sprintf("%s %d", clip(l.name, maxName), l.key.task.tid))}
		if l.key.gpu {
			out.Name = clean(fmt.Sprintf("%s %d: %s", clip(l.name, maxName), l.key.task.pid, gpuStreamName(l.key.stream)))
		}
		for row, list := range l.calls {
			out.Rows[row] = []int64{}
			for i, b := range list {
				n := 0
				at := len(out.Rows[row])
				out.Rows[row] = append(out.Rows[row], int64(i), 0)
				for _, s := range b {
					if s.ns > 0 {
						n++
						out.Rows[row] = append(out.Rows[row], int64(s.name), s.ns)
					}
				}
				if n == 0 {
					out.Rows[row] = out.Rows[row][:at]
					continue
				}
				out.Rows[row][at+1] = int64(n)
			}
		}
		d.Lanes = append(d.Lanes, out)
	}
	for q, values := range p.memory {
		if slices.ContainsFunc(values, func(v uint64) bool { return v > 0 }) {
			d.Memory[memoryNames[q]] = values
		}
	}
	return d
}

// Write writes the page: one file that needs nothing else, and asks no network. summary is
// text above the tables.
func (p *Page) Write(w io.Writer, summary string, tables []PageTable) error {
	p.fill(p.bucketOf(p.last))
	data, err := json.Marshal(p.data()) // it escapes what could end a script
	if err != nil {
		return err
	}
	title := "nvtrace"
	if p.h != nil && len(p.h.Argv) > 0 {
		title = clean(clip(programName(p.h.Argv[0]), maxName)) + " - nvtrace"
	}
	b := []byte("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" +
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n")
	text := func(s string) string { return html.EscapeString(s) }
	b = fmt.Appendf(b, "<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>%s</h1>\n", text(title), pageStyle, text(title))
	if p.h != nil {
		b = fmt.Appendf(b, "<p class=\"command\">%s</p>\n", text(clean(commandLine(p.h.Argv))))
	}
	b = append(b, "<div class=\"summary\">"...)
	for line := range strings.SplitSeq(strings.TrimSuffix(summary, "\n"), "\n") { // a line that is broken is indented
		b = fmt.Appendf(b, "<div>%s</div>", text(line))
	}
	b = append(b, "</div>\n"...)
	b = append(b, `<section id="timeline"><h2>Timeline</h2><p class="hint">Drag to move, pinch or Ctrl and wheel to zoom, tap for what it is. GPUs are above, by stream, where their times were recorded; then threads: library calls, and below them calls of the driver.</p><canvas></canvas><output></output></section>
<section id="memory"><h2>Memory</h2><canvas></canvas><output></output></section>
<section id="flame"><h2>Time by call</h2><p class="hint">Tap a call to see what is in it.</p><div></div><output></output></section>
`...)
	for i := range tables {
		b = appendTable(b, &tables[i])
	}
	b = append(b, `<script type="application/json" id="data">`...)
	b = append(b, data...)
	b = append(b, "</script>\n<script>\n"...)
	b = append(b, pageScript...)
	b = append(b, "</script>\n</body>\n</html>\n"...)
	_, err = w.Write(b)
	return err
}

// longCell is how many bytes a cell has that is broken where there is no room.
const longCell = 24

// appendTable appends a table, columns of text first: they say what a row is of, and a
// phone shows only the first columns.
func appendTable(b []byte, t *PageTable) []byte {
	if len(t.Rows) == 0 {
		return b
	}
	b = fmt.Appendf(b, "<section><h2>%s</h2><div class=\"scroll\"><table>\n<tr>", html.EscapeString(t.Title))
	number := func(column int) bool { return strings.HasPrefix(t.Header[column], ">") }
	var order []int
	for _, numbers := range []bool{false, true} {
		for i := range t.Header {
			if number(i) == numbers {
				order = append(order, i)
			}
		}
	}
	class := make([]string, len(t.Header))
	for _, i := range order {
		switch {
		case number(i):
			class[i] = ` class="n"`
		case slices.ContainsFunc(t.Rows, func(row []string) bool { return i < len(row) && len(row[i]) > longCell }):
			class[i] = ` class="w"`
		}
		b = fmt.Appendf(b, "<th%s>%s</th>", class[i], html.EscapeString(strings.TrimPrefix(t.Header[i], ">")))
	}
	b = append(b, "</tr>\n"...)
	for _, row := range t.Rows {
		b = append(b, "<tr>"...)
		for _, i := range order {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			b = fmt.Appendf(b, "<td%s>%s</td>", class[i], html.EscapeString(clean(cell)))
		}
		b = append(b, "</tr>\n"...)
	}
	return append(b, "</table></div></section>\n"...)
}
