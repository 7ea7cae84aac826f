package view

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/traces"
	"nvtrace/traces/escape"
	"nvtrace/traces/record"
)

// exporter is the flags of nvtrace export.
type exporter struct {
	e           *cli.Env
	name        string // of the recording
	format, out string
	size        string
	limit       int64
	run, rank   string
	at          time.Duration
	exprs       cli.StringList
	filter      *ioctl.Filter
	parquet     *tablesOf // nil for another format
}

// ExportVerb converts a recording into the format of another tool.
func ExportVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	x := &exporter{e: e}
	fs := cli.NewFlagSet(e, "export", "--format FORMAT [flags] run.nvt")
	rf.Register(fs)
	fs.StringVar(&x.format, "format", "jsonl", formatUsage())
	fs.StringVar(&x.size, "max-size", "256M", "perfetto: make a timeline of `SIZE` at most, drawing short calls together where it must be; 0: no limit")
	fs.StringVar(&x.run, "run", "", "parquet: the tables are of the run `NAME` (default: the launcher's job, or the recording's name)")
	fs.StringVar(&x.rank, "rank", "", "parquet: the tables are of rank `N` (default: what the launcher said, or 0)")
	fs.DurationVar(&x.at, "at", 0, "pprof: live memory is that at `TIME` since the beginning (1.5s) (default: at the end)")
	fs.StringVar(&x.out, "o", "", "write to `FILE` instead of stdout; parquet: the folder")
	fs.Var(&x.exprs, "e", "export only what matches `EXPR`, as in nvtrace log")
	name, status, ok := e.OneRecording(fs, args, command)
	if !ok {
		return status
	}
	x.name = name
	err := x.check()
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	var before *export.Survey
	if x.format == "perfetto" && x.limit > 0 {
		before = survey(e, name)
	}
	r, d, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	// What could be read of a damaged recording is kept.
	if err := x.write(r, d, before); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if n := d.Notice(); n != "" {
		e.Notice("%s", n)
	}
	if x.format == "pprof" || x.format == "parquet" {
		held := heldOf(r.Header.API)
		if text := held.silent(); text != "" && held.known {
			e.Notice("%s: %s", name, text)
		}
	}
	return cli.ExitOK
}

// check refuses what flags can't mean.
func (x *exporter) check() (err error) {
	if err := checkFormat(x.format, x.out == "" && cli.IsTerminal(x.e.Stdout)); err != nil {
		return err
	}
	if x.filter, err = ioctl.ParseFilter(x.exprs...); err != nil {
		return err
	}
	if x.limit, err = cli.ParseSize(x.size); err != nil {
		return fmt.Errorf("--max-size: %w", err)
	}
	switch {
	case x.format != "parquet" && (x.run != "" || x.rank != ""):
		return fmt.Errorf("--run and --rank are for --format=parquet, whose folders they name")
	case x.at < 0 || x.at > 0 && x.format != "pprof":
		return fmt.Errorf("--at %s: want a time since the beginning; it is for --format=pprof", x.at)
	case x.format == "parquet" && x.out == "":
		return fmt.Errorf("--format=parquet writes a folder of files: say which by -o DIR")
	}
	return nil
}

// write writes the recording, and returns what was wrong with it, or with the output.
func (x *exporter) write(r *traces.Reader, d *ioctl.Decoder, before *export.Survey) error {
	mode := os.FileMode(cli.ModeFile)
	if x.format == "raw" {
		mode = cli.ModePrivate // it is a recording
	}
	var dst io.Writer
	var finishOut func(error) error
	var err error
	if x.format == "parquet" {
		x.parquet = &tablesOf{e: x.e, dir: x.out, run: x.run, rank: x.rank}
		x.parquet.place(x.name, &r.Header)
		dst, finishOut = io.Discard, x.parquet.Finish
	} else if dst, finishOut, err = x.e.Create(x.out, mode); err != nil {
		return err
	}
	if dst = cli.Beneath(dst); x.format == "jsonl" || x.format == "raw" { // which are text
		dst = escape.NewWriter(dst)
	}
	w := bufio.NewWriterSize(dst, 64<<10)
	damage, err := x.all(w, r, d, before)
	if err == nil {
		err = w.Flush()
	}
	return errors.Join(damage, finishOut(err))
}

// all gives each event to what is made of the recording.
func (x *exporter) all(w *bufio.Writer, r *traces.Reader, d *ioctl.Decoder, before *export.Survey) (damage, err error) {
	if x.format == "raw" {
		if _, err := w.Write(traces.AppendHeader(nil, &r.Header)); err != nil {
			return nil, err
		}
	}
	var picture observe.Observer
	finish := func() error { return nil }
	feed := observe.NewFeed(d)
	feed.Filter = x.filter
	feed.Follow()
	if f := formatNamed(x.format); f != nil && f.view != nil {
		if picture, finish, err = f.view(x, w, &r.Header, d, before); err != nil {
			return nil, err
		}
	} else {
		picture = x.lines(w, &err)
	}
	feed.Register(picture)
	damage = x.e.Each(r, x.name, x.e.Notice, func(ev *traces.Event) {
		if err == nil {
			feed.Event(ev)
		}
	})
	if err == nil {
		err = finish()
	}
	return damage, err
}

// lines writes what is wanted line by line, and the first error to err.
func (x *exporter) lines(w io.Writer, err *error) observe.Observer {
	var buf []byte
	var calls callWords
	return observe.Func(func(e *observe.Event) {
		switch {
		case e.Unwanted:
			return
		case x.format == "raw":
			buf = traces.AppendEvent(buf[:0], e.Event)
		default:
			buf = calls.appendJSON(e.Decoder.AppendJSON(buf[:0], e.Event, e.Call), e)
		}
		_, *err = w.Write(buf)
	})
}

// timeline makes a trace for Perfetto.
func (x *exporter) timeline(w io.Writer, h *traces.Header, d *ioctl.Decoder, before *export.Survey) (observe.Observer, func() error, error) {
	t := export.NewTimeline(w, h, d)
	t.Demangle = fatbin.Demangle
	if x.limit > 0 {
		t.Limit(x.limit, before)
	}
	return t, func() error { return x.told(t) }, nil
}

// profile makes a profile for pprof.
func (x *exporter) profile(w io.Writer, h *traces.Header, d *ioctl.Decoder, _ *export.Survey) (observe.Observer, func() error, error) {
	p := export.NewProfile(h, d)
	p.Demangle, p.At, p.Rank = fatbin.Demangle, int64(x.at), x.rank
	if p.Rank == "" {
		p.Rank, _ = record.Rank(h)
	}
	return p, func() error { return p.Write(w) }, nil
}

// tables makes a folder of Parquet files.
func (x *exporter) tables(_ io.Writer, h *traces.Header, d *ioctl.Decoder, _ *export.Survey) (observe.Observer, func() error, error) {
	t, err := export.NewTables(x.parquet.open, h, d)
	if err != nil {
		return nil, nil, err
	}
	t.Demangle = fatbin.Demangle
	return t, func() error {
		err := t.Close()
		if n := t.MoreCollectives(); n > 0 {
			x.e.Notice("%d operations of NCCL's found no room in table collectives", n)
		}
		return err
	}, nil
}

// told ends a timeline, and says what it leaves out.
func (x *exporter) told(t *export.Timeline) error {
	if err := t.Close(); err != nil {
		return err
	}
	switch least, left := t.Merged(); {
	case left > 0:
		x.e.Notice("%d events found no room in the trace: --max-size makes it larger", left)
	case least > 0:
		x.e.Notice("calls shorter than %s are drawn together, so that the trace can be opened: --max-size sets how large it becomes", cli.Duration(least))
	}
	return nil
}

// exportFormat is a value of --format.
type exportFormat struct {
	name, what string
	binary     string // how to look at it; "": it is text, or makes files
	// view begins what draws or counts the events, and returns what writes the rest of it. It is
	// nil for a format whose lines are written one by one. before is what was seen of the
	// recording when it was read for the first time, nil if it is read once.
	view func(x *exporter, w io.Writer, h *traces.Header, d *ioctl.Decoder, before *export.Survey) (observe.Observer, func() error, error)
}

var exportFormats = []exportFormat{
	{name: "jsonl", what: "decoded calls"},
	{name: "raw", what: "the recording's own lines"},
	{name: "perfetto", what: "a timeline for ui.perfetto.dev", binary: "add -o run.perfetto-trace, then open it in https://ui.perfetto.dev", view: (*exporter).timeline},
	{name: "pprof", what: "a profile", binary: "add -o run.pb.gz, then look at it with: go tool pprof -top -cum run.pb.gz", view: (*exporter).profile},
	{name: "parquet", what: "tables", view: (*exporter).tables},
}

// ExportFormats returns the names of the formats.
func ExportFormats() (names []string) {
	for i := range exportFormats {
		names = append(names, exportFormats[i].name)
	}
	return names
}

// formatNamed returns a format, nil if there is none of that name.
func formatNamed(name string) *exportFormat {
	for i := range exportFormats {
		if f := &exportFormats[i]; f.name == name {
			return f
		}
	}
	return nil
}

// formatUsage lists the formats, as the help has them.
func formatUsage() string {
	var list []string
	for _, f := range exportFormats {
		list = append(list, f.name+": "+f.what)
	}
	return "`FORMAT` " + strings.Join(list, "; ")
}

// checkFormat refuses formats that there are not, and binary ones on a terminal.
func checkFormat(format string, terminal bool) error {
	f := formatNamed(format)
	if f == nil {
		names := ExportFormats()
		last := len(names) - 1
		instead := map[string]string{
			"chrome": "; chrome's traces are perfetto", "json": "; a line of JSON an event is jsonl, a summary nvtrace report --json", "sqlite": "; tables are parquet", "csv": "; tables are parquet",
			"nsys": "; a timeline is perfetto", "nsys-rep": "; a timeline is perfetto", "flamegraph": "; pprof draws flame graphs", "folded": "; pprof draws flame graphs",
			"html": "; a page is written by nvtrace report --html", "txt": "; lines are written by nvtrace log", "text": "; lines are written by nvtrace log",
		}[format]
		return fmt.Errorf("--format=%s: want %s or %s%s", format, strings.Join(names[:last], ", "), names[last], instead)
	}
	if terminal && f.binary != "" {
		return fmt.Errorf("--format=%s is binary and would garble the terminal: %s", format, f.binary)
	}
	return nil
}

// surveyed is the size of a recording from which on it is read twice for a timeline: to see
// how much of it that can show, then to draw it.
const surveyed = 1 << 20

// survey reads a recording before a timeline is made of it. It is nil where the recording
// is small, or can't be read twice.
func survey(e *cli.Env, name string) *export.Survey {
	if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() || st.Size() < surveyed {
		return nil
	}
	r, err := traces.Open(name)
	if err != nil {
		return nil // is told of when it is read to be drawn
	}
	defer r.Close()
	s := export.NewSurvey()
	feed := observe.NewFeed(nil, s)
	feed.Undecoded = true
	feed.Follow()
	_ = cli.Each(r, func(string, ...any) {}, feed.Event)
	return s
}

// tablesOf writes a recording as tables: a file for each in dir, below folders that say of
// which run and rank it is.
type tablesOf struct {
	e         *cli.Env
	dir       string
	run, rank string
	part      string // the name of its files; "": part.parquet
	files     []*partFile
}

// partFile is a table's file that is not whole yet.
type partFile struct {
	*bufio.Writer
	finish func(error) error
}

// place says which run and rank a recording is of, where the user has not.
func (p *tablesOf) place(name string, h *traces.Header) {
	if p.rank == "" {
		p.rank, _ = record.Rank(h)
		p.rank = cmp.Or(p.rank, "0")
	}
	for _, job := range []string{"SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE"} {
		p.run = cmp.Or(p.run, h.Rank[job])
	}
	if p.run == "" {
		base := filepath.Base(name)
		p.run = strings.TrimSuffix(base, filepath.Ext(base))
	}
}

// open makes the file of a table.
func (p *tablesOf) open(table string) (io.Writer, error) {
	dir := filepath.Join(p.dir, table, "run="+partition(p.run), "rank="+partition(p.rank))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	w, finish, err := p.e.Create(filepath.Join(dir, cmp.Or(p.part, "part.parquet")), cli.ModeFile)
	if err != nil {
		return nil, err
	}
	f := &partFile{bufio.NewWriterSize(cli.Beneath(w), 256<<10), finish}
	p.files = append(p.files, f)
	return f, nil
}

// Finish ends the files, which take their places unless err says that they are not whole. Those behind one that can't do not
// either: that of table runs, the last, says that all are there.
func (p *tablesOf) Finish(err error) error {
	for _, f := range p.files {
		if err == nil {
			err = f.Flush()
		}
	}
	errs := []error{err}
	for _, f := range p.files {
		if e := f.finish(err); e != nil && !errors.Is(e, err) {
			errs = append(errs, e)
			err = cmp.Or(err, e)
		}
	}
	return errors.Join(errs...)
}

// partition is the value of a column in a folder's name, as Hive has it.
func partition(v string) string {
	var b strings.Builder
	for i := range len(v) {
		switch c := v[i]; {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c == '-', c == '_', c == '.':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
