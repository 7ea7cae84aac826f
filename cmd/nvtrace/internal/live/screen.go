package live

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ptrace/proc"
)

// A screen is what top shows, and what keys have changed of it. It knows no terminal.
type screen struct {
	rows    []screenRow
	elapsed time.Duration
	failed  uint64 // calls of all processes
	waited  int64  // time in which a thread of any waited, since the last time
	before  int64  // and until then
	timed   bool   // GPUs are timed
	outside bool   // nothing is known but what looks from outside show
	prev    map[int32]view.Counters
	kernels rates
	calls   rates
	stacks  rates

	sort   int    // column
	filter string // of names of processes
	typing bool   // the filter is being typed
	marked int32  // process
	inside bool   // its kernels, calls and stacks are shown
	help   bool
	escape int // of a key of several bytes: how many have come
}

// A screenRow is a process.
type screenRow struct {
	pid     int32
	name    string
	d       view.Counters // since the last time
	seconds float64
	mem     uint64
	failed  uint64 // in all
}

// rates are how often things of a name happened since the last time, and in all.
type rates struct {
	all   map[view.KernelKey]uint64
	since map[view.KernelKey]uint64
	took  float64 // seconds
}

func (r *rates) update(now map[view.KernelKey]uint64, seconds float64) {
	r.since, r.took = make(map[view.KernelKey]uint64, len(now)), seconds
	for k, n := range now {
		r.since[k] = n - r.all[k]
	}
	r.all = maps.Clone(now)
}

// A column of the table of processes.
type column struct {
	name  string
	width int
	value func(r *screenRow) float64 // it is sorted by
	text  func(r *screenRow) string
}

func perSecond(of func(d *view.Counters) uint64) column {
	v := func(r *screenRow) float64 { return float64(of(&r.d)) / r.seconds }
	return column{width: 8, value: v, text: func(r *screenRow) string { return rateText(v(r)) }}
}

func bytesPerSecond(of func(d *view.Counters) uint64) column {
	c := perSecond(of)
	value := c.value
	c.width, c.text = 7, func(r *screenRow) string { return shortSize(uint64(value(r))) }
	return c
}

func (c column) called(name string) column {
	c.name = name
	return c
}

// columns are those of the table. TO and FROM are bytes that are copied to and from the GPU, WAIT is the part of the
// time in which at least one thread of the process waited for the GPU: a process has at most 100.
var columns = []column{
	perSecond(func(d *view.Counters) uint64 { return d.Launches + d.Graphs }).called("KERN/s"),
	perSecond(func(d *view.Counters) uint64 { return d.Calls }).called("CALLS/s"),
	perSecond(func(d *view.Counters) uint64 { return d.Ioctls }).called("IOCTL/s"),
	{"WAIT%", 6, func(r *screenRow) float64 { return float64(r.d.Waited) }, func(r *screenRow) string {
		return fmt.Sprintf("%.0f", 100*float64(r.d.Waited)/1e9/r.seconds)
	}},
	bytesPerSecond(func(d *view.Counters) uint64 { return d.ToGPU.Bytes }).called("TO/s"),
	bytesPerSecond(func(d *view.Counters) uint64 { return d.FromGPU.Bytes }).called("FROM/s"),
	{"MEM", 7, func(r *screenRow) float64 { return float64(r.mem) }, func(r *screenRow) string { return shortSize(r.mem) }},
	{"FAILED", 7, func(r *screenRow) float64 { return float64(r.failed) }, func(r *screenRow) string { return strings.TrimSuffix(rateText(float64(r.failed)), ".0") }},
}

// busyColumn is there where GPUs are timed: the part of the time in which one worked for the process.
var busyColumn = column{"GPU%", 6, func(r *screenRow) float64 { return float64(r.d.Busy) }, func(r *screenRow) string {
	return fmt.Sprintf("%.0f", 100*float64(r.d.Busy)/1e9/r.seconds)
}}

// outsideColumns are all that looks from outside know.
var outsideColumns = []column{
	busyColumn,
	perSecond(func(d *view.Counters) uint64 { return d.Launches }).called("WORK/s"),
}

// columns are those of the table now.
func (s *screen) columns() []column {
	switch {
	case s.outside:
		return outsideColumns
	case !s.timed:
		return columns
	}
	return append([]column{busyColumn}, columns...)
}

// rateText is a number in at most 6 characters.
func rateText(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.1fG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 1e5:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v > 0 && v < 9.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// shortSize is a number of bytes in at most 6 characters.
func shortSize(n uint64) string {
	v, unit := float64(n), 0
	for ; v >= 999.5 && unit < 4; unit++ {
		v /= 1024
	}
	if unit == 0 || v >= 9.95 {
		return fmt.Sprintf("%.0f%c", v, "BKMGT"[unit])
	}
	return fmt.Sprintf("%.1f%c", v, "BKMGT"[unit])
}

// update takes what was counted in a period.
func (s *screen) update(sink *view.Sink, period, elapsed time.Duration) {
	m := sink.Meter
	seconds := max(period.Seconds(), 1e-3)
	s.elapsed, s.failed = elapsed, m.All.Failed
	s.waited, s.before = m.Spent.Syncs.Time()-s.before, m.Spent.Syncs.Time()
	s.outside = m.Outside
	if m.Timed && !s.timed {
		s.timed = true
		if !s.outside {
			s.sort++ // the column that it was
		}
	}
	old := s.prev
	s.prev, s.rows = make(map[int32]view.Counters), s.rows[:0]
	for pid, c := range m.Of {
		before := old[pid]
		mem, _ := sink.Memory(pid)
		if c.Ioctls == 0 { // a simulated GPU, whose memory no ioctl tells of
			mem = m.Held[pid]
		}
		s.prev[pid] = *c
		s.rows = append(s.rows, screenRow{pid: pid, name: name(m, pid), d: c.Sub(&before), seconds: seconds, mem: mem, failed: c.Failed})
	}
	s.kernels.update(m.Kernels, seconds)
	s.calls.update(m.Calls, seconds)
	s.stacks.update(m.Stacks, seconds)
	m.Forget() // what has ended is shown once more
	if !slices.ContainsFunc(s.rows, func(r screenRow) bool { return r.pid == s.marked }) && !s.inside {
		s.marked = 0
	}
}

// name is what a process is called.
func name(m *view.Meter, pid int32) string {
	if m.Exe[pid] == "" {
		m.Exe[pid] = cmp.Or(proc.Exe(int(pid)), "?")
	}
	return filepath.Base(m.Exe[pid])
}

// visible are the processes that the filter lets through, sorted.
func (s *screen) visible() []screenRow {
	var list []screenRow
	for _, r := range s.rows {
		if strings.Contains(r.name, s.filter) || strings.Contains(fmt.Sprint(r.pid), s.filter) {
			list = append(list, r)
		}
	}
	by := s.columns()[s.sort].value
	slices.SortFunc(list, func(a, b screenRow) int { return cmp.Or(cmp.Compare(by(&b), by(&a)), cmp.Compare(a.pid, b.pid)) })
	return list
}

// line is what is shown where there is no terminal.
func (s *screen) line() string {
	all := screenRow{seconds: 1}
	for i := range s.rows {
		r := &s.rows[i]
		all.d, all.seconds, all.mem = all.d.Plus(&r.d), r.seconds, all.mem+r.mem
	}
	all.failed, all.d.Waited = s.failed, s.waited // processes that wait at the same time wait once
	var b strings.Builder
	fmt.Fprintf(&b, "%7.1fs", s.elapsed.Seconds())
	for _, c := range s.columns() {
		fmt.Fprintf(&b, "  %s %s", c.name, c.text(&all))
	}
	return b.String() + "\n"
}

// Of ECMA-48: what stands out.
const (
	reverse = "\x1b[7m"
	plain   = "\x1b[0m"
)

// draw returns the lines of a terminal.
func (s *screen) draw(width, height int) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, clip(fmt.Sprintf(format, args...), width)) }
	list := s.visible()
	add("nvtrace top  %s, %s", s.elapsed.Truncate(time.Second), cli.CountedAs(uint64(len(s.rows)), "process", "processes"))
	switch {
	case s.help:
		for _, l := range []string{
			"",
			"  GPU%       time in which a GPU worked for it (with -p PID alone, or --gpu-times=events)",
			"  WORK/s     submissions that GPUs are through with: launches, copies, events",
			"  KERN/s     launches of kernels and graphs",
			"  WAIT%      time in which at least one thread waited for the GPU",
			"  TO, FROM   bytes copied to and from the GPU, a second",
			"  MEM        GPU memory, as nvidia-smi counts it; of a simulated GPU what calls have allocated",
			"",
			"  < >        sort by another column", "  up, down   mark a process (also k, j)", "  Enter      its kernels, calls, and stacks (with --stacks); again, or Esc: back",
			"  /          show only processes whose name or number has a text", "  h          this help", "  q          end: a program that was attached to goes on",
		} {
			add("%s", l)
		}
		return lines
	case s.inside:
		return s.drawInside(lines, width, height)
	}
	if s.typing || s.filter != "" {
		cursor := ""
		if s.typing {
			cursor = "_"
		}
		add("filter: %s%s", s.filter, cursor)
	}
	var head strings.Builder
	fmt.Fprintf(&head, "%7s ", "PID")
	for i, c := range s.columns() {
		name := c.name
		if i == s.sort {
			name = "*" + name
		}
		fmt.Fprintf(&head, "%*s", c.width, name)
	}
	lines = append(lines, reverse+clip(pad(head.String()+"  NAME", width), width)+plain)
	if s.marked == 0 && len(list) > 0 {
		s.marked = list[0].pid
	}
	for i := range list {
		if len(lines) == height-2 && i+1 < len(list) {
			add("%d more", len(list)-i)
			break
		}
		r := &list[i]
		text := fmt.Sprintf("%7d ", r.pid)
		for _, c := range s.columns() {
			text += fmt.Sprintf("%*s", c.width, c.text(r))
		}
		text = clip(text+"  "+cli.Printable(r.name), width)
		if r.pid == s.marked {
			text = reverse + pad(text, width) + plain
		}
		lines = append(lines, text)
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	return append(lines, clip("q quit  < > sort  / filter  Enter kernels and calls  h help", width))
}

// drawInside draws what the marked process launches and calls most, and from where.
func (s *screen) drawInside(lines []string, width, height int) []string {
	parts := 2
	if s.outside {
		parts = 1
	}
	if len(s.stacks.all) > 0 {
		parts = 3
	}
	room := max((height-len(lines)-2-parts)/parts, 1)
	part := func(title string, r *rates, name func(string) string) {
		lines = append(lines, reverse+clip(pad(fmt.Sprintf("%9s %12s  %s of process %d", "PER s", "IN ALL", title, s.marked), width), width)+plain)
		var keys []view.KernelKey
		for k := range r.all {
			if k.Pid == s.marked {
				keys = append(keys, k)
			}
		}
		slices.SortFunc(keys, func(a, b view.KernelKey) int {
			return cmp.Or(cmp.Compare(r.since[b], r.since[a]), cmp.Compare(r.all[b], r.all[a]), strings.Compare(a.Name, b.Name))
		})
		for _, k := range keys[:min(len(keys), room)] {
			lines = append(lines, clip(fmt.Sprintf("%9s %12s  %s", rateText(float64(r.since[k])/max(r.took, 1e-3)), cli.Grouped(r.all[k]), cli.Printable(name(k.Name))), width))
		}
	}
	if s.outside {
		part("LOOKS AT KERNELS", &s.kernels, view.KernelText)
		return append(lines, clip("Enter or Esc back  q quit", width))
	}
	part("KERNELS", &s.kernels, view.KernelText)
	asIs := func(s string) string { return s }
	part("CALLS", &s.calls, asIs)
	if parts == 3 {
		part("STACKS", &s.stacks, asIs)
	}
	return append(lines, clip("Enter or Esc back  q quit", width))
}

func clip(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	return string(r[:max(width-1, 0)]) + "…"
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// key does what a key says; true ends the work. Keys with arrows are three bytes: ESC [ A.
func (s *screen) key(k byte) bool {
	const esc, del, backspace = 0x1b, 0x7f, 0x08
	switch {
	case s.escape == 1 && k == '[':
		s.escape = 2
		return false
	case s.escape == 2:
		s.escape = 0
		switch k {
		case 'A':
			s.move(-1)
		case 'B':
			s.move(1)
		}
		return false
	}
	s.escape = 0
	if k == esc {
		s.escape = 1
		s.typing, s.help, s.inside = false, false, false
		return false
	}
	if s.typing {
		switch {
		case k == '\n' || k == '\r':
			s.typing = false
		case k == del || k == backspace:
			s.filter = s.filter[:max(len(s.filter)-1, 0)]
		case k >= ' ' && k < del:
			s.filter += string(rune(k))
		}
		return false
	}
	switch k {
	case 'q':
		return true
	case '<':
		s.sort = max(s.sort-1, 0)
	case '>':
		s.sort = min(s.sort+1, len(s.columns())-1)
	case 'j':
		s.move(1)
	case 'k':
		s.move(-1)
	case '/':
		s.typing, s.filter = true, ""
	case 'h', '?':
		s.help = !s.help
	case '\n', '\r':
		s.inside = !s.inside
	}
	return false
}

// move marks another process.
func (s *screen) move(by int) {
	list := s.visible()
	at := slices.IndexFunc(list, func(r screenRow) bool { return r.pid == s.marked })
	if len(list) > 0 {
		s.marked = list[min(max(at+by, 0), len(list)-1)].pid
	}
}
