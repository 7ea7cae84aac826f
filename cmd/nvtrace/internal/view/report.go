package view

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/traces"
)

// write draws a summary: what the run comes to, then the tables.
func (s *Totals) write(w io.Writer, r *ioctl.Report, l *Layout) error {
	if len(s.gathered.sampled) > 0 {
		return s.writeSampled(w, l)
	}
	if NoDevices(r) && s.api() == nil && s.gathered.found.json() == nil {
		if _, err := fmt.Fprintf(w, "nvtrace: no NVIDIA device was used by %s\n", processesText(r)); err != nil {
			return err
		}
		if !s.live && !s.held().any() {
			fmt.Fprintln(w, "calls of CUDA's libraries: "+notRecorded) // the next line has its error, too
		}
		return l.WriteTail(w, r)
	}
	if err := s.verdict(r).write(w); err != nil {
		return err
	}
	if g := s.gathered.gpuTimes(); g != nil {
		if err := l.write(w, []table{{"What GPUs did", []string{">times", ">total", ">mean", ">longest", ">%", "kernel or copy"}, workRows(g), fewWorks}}); err != nil {
			return err
		}
		if l.taken == nil && g.shortByEvents() {
			fmt.Fprintln(w, "  Times by events are 0.4 to 1.1 µs longer than the kernels were, as measured on an H200.") // the next line has its error, too
		}
	}
	if owners := s.gathered.owners(); len(owners) > 0 {
		if err := l.write(w, []table{ownerTable(owners, s.gathered.memory.OutOfMemory(), s.gathered.memoryReport() != nil)}); err != nil {
			return err
		}
	}
	if m := s.gathered.lineTimes(); m != nil {
		if err := l.write(w, []table{
			{"Waits for GPUs by line", []string{">time", ">longest", ">calls", "in", "line"}, lineTimeRows(m.Waits), fewWorks},
			{"Outside of CUDA's libraries, by the line of the call that followed", []string{">time", ">longest", ">times", "up to", "line"}, lineTimeRows(m.Outside), fewWorks},
		}); err != nil {
			return err
		}
	}
	if m := s.gathered.memoryReport(); m != nil {
		if err := l.write(w, lineTables(m)); err != nil {
			return err
		}
	}
	var tables []table
	if len(r.Processes) > 1 && !l.Brief {
		tables = []table{{"Processes", []string{"process", ">pid", ">threads", ">ioctls", ">failed", ">in ioctls", "end"}, processRows(r), fewProcesses}}
	}
	tables = append(tables, table{"Device calls", []string{">calls", ">failed", ">total", ">mean", ">p99", ">%", "call"}, callRows(r, l), fewCalls})
	if err := l.write(w, tables); err != nil {
		return err
	}
	if len(s.book.list) > 0 {
		if err := s.book.write(w, l); err != nil {
			return err
		}
	}
	if !l.Brief {
		if err := l.write(w, []table{
			{"Mapped device memory", []string{"node", "what", ">maps", ">peak", ">at the end"}, mapRows(r, l), fewMaps},
			{"Not in the tables", []string{">count", "why", ">bytes", "call"}, unknownRows(r), fewUnknown},
		}); err != nil {
			return err
		}
	}
	if err := s.writeAPI(w, l); err != nil {
		return err
	}
	if maps := s.gathered.found.maps; len(maps) > 0 && !s.live { // live, the session shows them
		if _, err := fmt.Fprintln(w, "Maps of the probes at the end"); err != nil {
			return err
		}
		if err := s.gathered.found.writeMaps(w, l.rows); err != nil {
			return err
		}
	}
	return l.WriteTail(w, r)
}

// writeSampled draws what looks from outside came to, which are all that such a recording has.
func (s *Totals) writeSampled(w io.Writer, l *Layout) error {
	for _, pid := range SortedKeys(s.gathered.sampled) {
		if err := WriteSampled(w, l, pid, s.gathered.sampled[pid]); err != nil {
			return err
		}
	}
	return nil
}

// NoDevices reports whether no device of NVIDIA's was touched.
func NoDevices(r *ioctl.Report) bool { return r.Ioctls == 0 && len(r.Opens) == 0 && len(r.Maps) == 0 }

// processesText names the traced programs in a few words.
func processesText(r *ioctl.Report) string {
	if len(r.Argv) > 0 {
		return cli.Printable(r.Argv[0])
	}
	return "the program"
}

// WriteTail prints what needs no table.
func (l *Layout) WriteTail(w io.Writer, r *ioctl.Report) error {
	var b strings.Builder
	if r.Ioctls > 0 {
		fmt.Fprintf(&b, "%d ioctls", r.Ioctls)
		if r.IoctlTime > 0 {
			fmt.Fprintf(&b, " in %s", cli.Duration(r.IoctlTime))
		}
		fmt.Fprintf(&b, ", %d failed, %d unknown", r.Failed, r.Unknown)
		if r.Closed > 0 {
			fmt.Fprintf(&b, ", %d of closed parts of the driver", r.Closed)
		}
		if r.Own > 0 {
			fmt.Fprintf(&b, "; %d more were nvtrace's own", r.Own)
		}
		if r.Driver != "" {
			fmt.Fprintf(&b, "; driver %s", cli.DriverText(r.Driver))
			if r.Tables != "" {
				fmt.Fprintf(&b, ", decoded by the tables of %s", r.Tables)
			}
		}
		b.WriteByte('\n')
	}
	if r.Untimed > 0 {
		fmt.Fprintf(&b, "%d ioctls were counted without their results\n", r.Untimed)
	}
	if r.Truncated > 0 {
		fmt.Fprintf(&b, "%d calls refer to memory that could not be copied whole\n", r.Truncated)
	}
	if r.Lost > 0 {
		fmt.Fprintf(&b, "%d events could not be recorded\n", r.Lost)
	}
	gaps := r.Gaps[:l.cut(len(r.Gaps), FewGaps)]
	for _, g := range gaps {
		fmt.Fprintf(&b, "incomplete: %s\n", cli.Printable(g))
	}
	if more := uint64(len(r.Gaps)-len(gaps)) + r.MoreGaps; more > 0 {
		fmt.Fprintf(&b, "incomplete: %d more reasons", more)
		if len(gaps) < len(r.Gaps) {
			fmt.Fprintf(&b, " (%s)", l.all)
		}
		b.WriteByte('\n')
	}
	if r.Captured != nil {
		fmt.Fprintf(&b, "captured: %s\n", cli.Printable(r.Captured.String()))
	}
	for _, n := range l.notes(r) {
		l.writeNote(&b, "note: ", n)
	}
	if r.MoreNotes > 0 {
		fmt.Fprintf(&b, "note: %d more remarks\n", r.MoreNotes)
	}
	if c := r.Cost; c != nil && r.Ioctls > 0 {
		fmt.Fprintf(&b, "nvtrace itself: %d stops, %s of CPU time in %s, %s copied\n",
			c.Stops, cli.Duration(c.TracerCPU), cli.Duration(c.Wall), cli.SizeText(c.Bytes))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notes returns the remarks of a recording. Where space is short, one stands for all
// libraries that have the CUDA runtime in them: a training loads a dozen.
func (l *Layout) notes(r *ioctl.Report) []string {
	var list []string
	var first string
	n, at := 0, 0
	for _, text := range r.Notes {
		if name, _, ok := strings.Cut(text, calls.NoteRuntime); ok && l.few {
			if n++; n > 1 {
				continue
			}
			first, at = name, len(list)
		}
		list = append(list, text)
	}
	if n > 1 {
		list[at] = fmt.Sprintf("%s and %d other files have the CUDA runtime in them: its functions are recorded (%s)", first, n-1, l.all)
	}
	return list
}

// writeNote prints a remark of the recording, a long list of files a line each, and cut.
func (l *Layout) writeNote(w io.Writer, head, text string) {
	list, ok := strings.CutPrefix(text, capture.NoteFiles)
	files := strings.Split(list, "), ")
	if !ok || len(files) == 1 {
		fmt.Fprintf(w, "%s%s\n", head, cli.Printable(text))
		return
	}
	fmt.Fprintf(w, "%s%s%d\n", head, capture.NoteFiles, len(files))
	shown := l.cut(len(files), fewFiles)
	for i, file := range files[:shown] {
		if i < len(files)-1 {
			file += ")"
		}
		fmt.Fprintf(w, "  %s\n", cli.Printable(file))
	}
	if more := len(files) - shown; more > 0 {
		fmt.Fprintf(w, "  … and %d more (%s)\n", more, l.all)
	}
}

func processRows(r *ioctl.Report) (rows [][]string) {
	for _, p := range r.Processes {
		name := filepath.Base(p.Exe)
		if p.Exe == "" {
			name = "?"
		}
		if p.Attached {
			name += " (attached)"
		}
		rows = append(rows, []string{
			name, strconv.Itoa(int(p.PID)), strconv.Itoa(p.Threads), cli.Count(p.Ioctls), cli.Count(p.Failed), cli.Duration(p.Time), endText(&p),
		})
	}
	return rows
}

// callText is how a table names a call: "NV_ESC_RM_CONTROL NV2080_CTRL_CMD_…".
func callText(name, sub string) string {
	if sub == "" {
		return name
	}
	return name + " " + sub
}

// callRows returns a row for each call; those that are cut are only counted.
func callRows(r *ioctl.Report, l *Layout) [][]string {
	rows := make([][]string, len(r.Calls))
	for i := range rows[:l.cut(len(rows), fewCalls)] {
		c := &r.Calls[i]
		share := ""
		if r.IoctlTime > 0 {
			share = strconv.FormatFloat(100*float64(c.Total)/float64(r.IoctlTime), 'f', 1, 64)
		}
		rows[i] = []string{
			cli.Count(c.Calls), cli.Count(c.Failed), cli.Duration(c.Total), cli.Duration(c.Mean), cli.Duration(c.P99), share, callText(c.Name, c.Sub),
		}
	}
	return rows
}

// mapRows returns a row for each kind of memory, and one for all, which is no row that
// may be cut.
func mapRows(r *ioctl.Report, l *Layout) (rows [][]string) {
	for _, m := range r.Maps {
		rows = append(rows, []string{m.Node, m.What, cli.Count(m.Maps), cli.SizeText(m.Peak), cli.SizeText(m.Live)})
	}
	if len(rows) > 1 {
		all := []string{"all", "", "", cli.SizeText(r.MapPeak), cli.SizeText(r.MapLive)}
		if at := l.cut(len(rows)+1, fewMaps) - 1; at < len(rows) {
			return slices.Insert(rows, at, all)
		}
		rows = append(rows, all)
	}
	return rows
}

// workRows returns a row for each kernel, and for each kind of copies.
func workRows(g *GPUTimes) (rows [][]string) {
	all := int64(0)
	for i := range g.Works {
		all += g.Works[i].Total
	}
	for i := range g.Works {
		k := &g.Works[i]
		name := cmp.Or(k.Name, "(unknown kernel)")
		if k.Kernel {
			name = fatbin.Demangle(name)
		}
		times, mean, longest := cli.Count(k.Works), cli.Duration(k.Total/int64(max(k.Works, 1))), cli.Duration(k.Max)
		if k.By == traces.ByLook.String() { // how many there were isn't known
			times, mean, longest = cli.Count(k.Works)+" looks", "", ""
		}
		rows = append(rows, []string{
			times, cli.Duration(k.Total), mean, longest, strings.TrimSuffix(cli.PercentText(k.Total, all), " %"), name,
		})
	}
	return rows
}

// shortByEvents reports whether there are kernels whose times by events are so short that what these add
// is a tenth and more.
func (g *GPUTimes) shortByEvents() bool {
	const short = 10_000 // ns
	events := slices.ContainsFunc(g.Contexts, func(c api.GPUTime) bool { return c.Streams > 0 })
	return events && slices.ContainsFunc(g.Works, func(k api.WorkTime) bool {
		return k.Kernel && !k.Probe && k.By == "" && k.Works > 0 && k.Total/int64(k.Works) < short
	})
}

// ownerTable is who allocated memory of GPUs; failed says that there was no more once, stacks that these were recorded.
func ownerTable(owners []api.OwnerMemory, failed, stacks bool) table {
	several := slices.ContainsFunc(owners, func(o api.OwnerMemory) bool { return o.PID != owners[0].PID })
	when := "at the end"
	if failed {
		when = "when there was no more"
	}
	var rows [][]string
	for _, o := range owners {
		name, count := o.Owner, cli.Count(o.Count)
		switch {
		case name == api.OwnerContext:
			name, count = "the driver: contexts, code, what its pools keep", ""
		case name == api.OwnerProgram && !stacks:
			name = "the program, or a framework in it (--stacks=alloc tells)"
		case name == api.OwnerProgram:
			name = "the program"
		}
		if several {
			name += fmt.Sprintf(" (process %d)", o.PID)
		}
		rows = append(rows, []string{objects.MemoryText(o.Most), objects.MemoryText(o.Live), count, name})
	}
	return table{"GPU memory by owner", []string{">most", ">" + when, ">allocations", "owner"}, rows, fewWorks}
}

// lineTimeRows are times by lines.
func lineTimeRows(list []api.LineTime) (rows [][]string) {
	for _, x := range list {
		rows = append(rows, []string{cli.Duration(x.Time), cli.Duration(x.Most), cli.Count(x.Count), x.In, cmp.Or(x.Line, "(without a stack)")})
	}
	return rows
}

// lineTables are what lines of Python allocated on GPUs.
func lineTables(m *api.MemoryReport) []table {
	when := "at the end"
	if m.Failed != nil {
		when = "when there was no more"
	}
	var lines, largest [][]string
	for _, l := range m.Lines {
		lines = append(lines, []string{objects.MemoryText(l.Live), objects.MemoryText(l.Most), cli.Count(l.Count), cmp.Or(l.Line, "(without a stack)")})
	}
	for _, a := range m.Largest {
		largest = append(largest, []string{objects.MemoryText(a.Bytes), fmt.Sprintf("%.6f", float64(a.Time)/1e9), cmp.Or(a.Line, "(without a stack)")})
	}
	return []table{
		{"GPU memory by line", []string{">" + when, ">most", ">allocations", "line"}, lines, fewWorks},
		{"The largest allocations " + when, []string{">size", ">since", "line"}, largest, fewMaps},
	}
}

func unknownRows(r *ioctl.Report) (rows [][]string) {
	for _, u := range r.Unknowns {
		rows = append(rows, []string{cli.Count(u.Count), u.Why, strconv.Itoa(u.Size), callText(u.Name, u.Sub)})
	}
	return rows
}

// innerRows returns a row for each function whose calls within those of another were only counted.
func innerRows(r *api.Report) (rows [][]string) {
	type inner struct {
		library, name string
		api.CountedWithin
	}
	var list []inner
	for _, c := range r.Functions {
		for _, in := range c.Within {
			list = append(list, inner{c.Library, c.Name, in})
		}
	}
	slices.SortStableFunc(list, func(a, b inner) int { return cmp.Compare(b.Calls, a.Calls) })
	for _, c := range list {
		rows = append(rows, []string{cli.Count(c.Calls), c.library, c.name, c.Name})
	}
	return rows
}

// writeAPI draws the table of library calls, if there were any.
func (s *Totals) writeAPI(w io.Writer, l *Layout) error {
	r := s.api()
	if r == nil {
		return nil
	}
	var rows [][]string
	for _, c := range r.Functions {
		rows = append(rows, []string{
			cli.Count(c.Calls), cli.Count(c.Failed), cli.Duration(c.Total), cli.Duration(c.Self), cli.Count(c.Ioctls), cli.Duration(c.IoctlTime), c.Library, c.Name,
		})
	}
	header := []string{">calls", ">failed", ">total", ">self", ">ioctls", ">in ioctls", "library", "call"}
	tables := []table{{"API calls by time, with the ioctls they caused", header, rows, fewAPI}}
	if inner := innerRows(r); len(inner) > 0 {
		tables = append(tables, table{"API calls that were only counted, by the call that they were made in", []string{">calls", "library", "call", "in"}, inner, fewAPI})
	}
	if err := l.write(w, tables); err != nil {
		return err
	}
	unfinished := ""
	if r.Unfinished > 0 {
		unfinished = fmt.Sprintf(", %d of them not seen to return", r.Unfinished)
	}
	if r.Counted > 0 {
		unfinished += fmt.Sprintf(", %d counted in the program, whose times are of one in 16 and not in the sum", r.Counted)
	}
	_, err := fmt.Fprintf(w, "%d API calls in %s, %d failed%s; %d ioctls in %s were made during them\n",
		r.Calls, cli.OrZero(cli.Duration(r.Time)), r.Failed, unfinished, r.Ioctls, cli.OrZero(cli.Duration(r.IoctlTime)))
	return err
}
