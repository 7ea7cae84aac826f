package view

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// merging is what fleet merge was told.
type merging struct {
	e            *cli.Env
	read         cli.ReadFlags
	ranks        ranks.Set
	since, until time.Duration
	out, size    string
	limit        int64
	names        []string // of recordings, in the order of their ranks
	titles       []string
	all          *fleet.Fleet
	left         uint64
	merged       time.Duration
}

// fleetMerge draws ranks on one timeline for Perfetto.
func fleetMerge(e *cli.Env, args, command []string) int {
	m := &merging{e: e}
	fs := cli.NewFlagSet(e, "fleet", "merge [flags] -o FILE DIR|run.nvt...")
	m.read.Register(fs)
	fs.Var(&m.ranks, "ranks", "draw the ranks in `LIST`, such as 0,8,16-23 (default: all)")
	fs.DurationVar(&m.since, "since", 0, "begin at `TIME` since the first recording's start, as fleet report tells times, such as 3.4s")
	fs.DurationVar(&m.until, "until", 0, "end at `TIME` since then (0: at the end)")
	fs.StringVar(&m.out, "o", "", "write the timeline to `FILE` instead of stdout")
	fs.StringVar(&m.size, "max-size", "256M", "make a timeline of `SIZE` at most, drawing short calls together where it must be; 0: no limit")
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	var err error
	if m.limit, err = cli.ParseSize(m.size); err != nil {
		return e.Fail(cli.ExitUsage, "--max-size: %v", err)
	}
	switch {
	case len(words) == 0 || command != nil:
		return e.Fail(cli.ExitUsage, "fleet merge wants the recordings of a job's ranks, or their folder: nvtrace fleet merge -o job.pftrace DIR")
	case m.since < 0 || m.until < 0 || m.until > 0 && m.until <= m.since:
		return e.Fail(cli.ExitUsage, "--since and --until want times since the first recording's start, the second one later")
	}
	if err := checkFormat("perfetto", m.out == "" && cli.IsTerminal(e.Stdout)); err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	if err := m.align(words); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	dst, finish, err := e.Create(m.out, cli.ModeFile)
	if err == nil {
		w := bufio.NewWriterSize(cli.Beneath(dst), 64<<10)
		if err = m.write(w); err == nil {
			err = w.Flush()
		}
		err = finish(err)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	switch {
	case m.left > 0:
		e.Notice("%d events found no room in the timeline: --max-size makes it larger, --ranks, --since and --until choose", m.left)
	case m.merged > 0:
		e.Notice("calls shorter than %s are drawn together in some ranks, so that the timeline can be opened: --max-size sets how large it becomes", cli.Duration(int64(m.merged)))
	}
	for _, c := range m.all.Report().Clocks {
		if c.Error < 0 {
			e.Notice("the clock of %s could not be compared with the first host's, and is taken as it is", cmp.Or(c.Host, "a host"))
		}
	}
	return cli.ExitOK
}

// align finds the recordings of the ranks that were asked for, and by how much their clocks differ.
func (m *merging) align(words []string) error {
	found, err := fleet.Find(words)
	if err != nil {
		return err
	}
	if len(found.Tables) > 0 {
		m.e.Notice("tables are not drawn, only recordings")
	}
	type ranked struct {
		name  string
		place ranks.Place
	}
	var list []ranked
	for _, name := range found.Recordings {
		r, err := traces.Open(name)
		if err != nil {
			m.e.Notice("%s: %v", name, err)
			continue
		}
		place := ranks.Of(r.Header.Rank)
		if err := r.Close(); err != nil {
			return err
		}
		if !m.ranks.Given() || m.ranks.Has(place.Rank) {
			list = append(list, ranked{name, place})
		}
	}
	switch {
	case len(list) == 0:
		return errors.New("there are no recordings of these ranks")
	case len(list) > export.MaxAmong:
		return fmt.Errorf("%d recordings: a timeline can have %d; choose by --ranks", len(list), export.MaxAmong)
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.place.Rank, b.place.Rank) })
	m.all = fleet.New(nil)
	for _, r := range list {
		if err := addRank(m.e, m.all, &m.read, r.name); err != nil {
			m.e.Notice("%s: %v", r.name, err) // what could be read is drawn
		}
		title := filepath.Base(r.name)
		if r.place.Rank != ranks.Unknown {
			title = "rank " + strconv.Itoa(r.place.Rank)
		}
		m.names, m.titles = append(m.names, r.name), append(m.titles, title)
	}
	return nil
}

// write writes one recording behind the other: packets of a timeline need no order.
func (m *merging) write(w io.Writer) error {
	for i, name := range m.names {
		if err := m.one(w, i, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *merging) one(w io.Writer, i int, name string) error {
	var before *export.Survey
	if m.limit > 0 {
		before = survey(m.e, name)
	}
	r, d, err := m.read.Open(m.e, name)
	if err != nil {
		return nil // that was told
	}
	defer r.Close()
	at := m.all.Common(&r.Header)
	since, until := int64(m.since), int64(math.MaxInt64)
	if m.until > 0 {
		until = int64(m.until)
	}
	t := export.NewTimelineAmong(w, &r.Header, d, &export.Among{
		Index: i, Name: m.titles[i], Begin: m.all.Begin(),
		At: func(ns int64) int64 { return min(max(at(ns), since), until) },
	})
	t.Demangle = fatbin.Demangle
	if m.limit > 0 {
		t.Limit(m.limit/int64(len(m.names)), before)
	}
	feed := observe.NewFeed(d)
	feed.Follow()
	feed.Register(observe.Func(func(e *observe.Event) {
		if from, to := when(e.Event); at(to) < since || at(from) > until {
			e.Unwanted = true
			defer func() { e.Unwanted = false }()
		}
		t.Observe(e)
	}))
	_ = cli.Each(r, func(string, ...any) {}, feed.Event) // damage was told
	if err := t.Close(); err != nil {
		return err
	}
	least, left := t.Merged()
	m.left, m.merged = m.left+left, max(m.merged, time.Duration(least))
	return nil
}

// when is the time that an event is about.
func when(ev *traces.Event) (from, to int64) {
	if ev.Kind == traces.KindGPU {
		w := ev.Work()
		return w.Start, w.Start + w.Dur
	}
	return ev.Time, ev.Time + max(ev.Dur, 0)
}
