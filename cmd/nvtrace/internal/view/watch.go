package view

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/prom"
)

// fleetWatch compares the ranks of a job while it runs: by recordings that are still written.
func fleetWatch(e *cli.Env, args, command []string) int {
	w := watching{e: e}
	fs := cli.NewFlagSet(e, "fleet", "watch [flags] DIR|run.nvt...")
	w.read.Register(fs)
	registerFleet(fs, &w.opts)
	asJSON := fs.Bool("json", false, "print each change as a line of JSON, and the report at the end as one")
	fs.StringVar(&w.prom, "prom", "", "give the state to Prometheus as metrics: `WHERE` is :PORT, or the name of a file for node_exporter (its textfile collector wants it to end in .prom)")
	every := fs.Duration("every", 2*time.Second, "look each `TIME`")
	words, status, ok := cli.ParseAnywhere(fs, args)
	switch {
	case !ok:
		return status
	case len(words) == 0 || command != nil:
		return e.Fail(cli.ExitUsage, "fleet watch wants the folder where a job's ranks put their recordings: nvtrace fleet watch DIR")
	case !fleetOK(&w.opts):
		return e.Fail(cli.ExitUsage, badFleet)
	case *every <= 0:
		return e.Fail(cli.ExitUsage, "--every wants a time above 0")
	}
	w.words, w.json = words, *asJSON
	for _, name := range words {
		if _, err := os.Stat(name); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	if w.prom != "" {
		to, err := prom.Open(w.prom, 0, e.WritePublic)
		if err != nil {
			return e.Fail(cli.ExitFailed, "--prom: %v", err)
		}
		defer to.Close()
		w.to = to
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	defer w.forget()
	for {
		began := time.Now()
		r := w.look(began)
		if err := w.tell(r, began); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		if r != nil && r.Ended() {
			break
		}
		// Reading takes no more than half of a processor's time.
		pause := time.After(max(*every-time.Since(began), time.Since(began)))
		select {
		case <-signals:
		case <-pause:
			continue
		}
		break
	}
	return w.end()
}

// watching is a job that is watched.
type watching struct {
	e     *cli.Env
	read  cli.ReadFlags
	opts  fleet.Options
	words []string
	json  bool
	prom  string // "": no metrics
	to    *prom.Target

	all   *fleet.Fleet
	files map[string]*growing // recordings
	taken map[string]string   // the last part of each recording in the form of tables
	table *fleet.TableReader  // nil: there were none
	watch fleet.Watch
	last  *fleet.Report // nil: there was none
}

// look reads what recordings have grown by; nil: there are none. Nothing that is in
// them by now was left out, but what nvtrace had not written yet.
func (w *watching) look(now time.Time) *fleet.Report {
	found, err := fleet.Find(w.words)
	if err != nil { // there may be some later
		return w.last
	}
	names := found.Recordings
	sizes := make(map[string]int64)
	for _, name := range names {
		st, err := os.Stat(name)
		if err != nil || st.Size() == 0 {
			continue
		}
		sizes[name] = st.Size()
		if g := w.files[name]; g != nil && g.replaced(st) { // by another run: all begins anew
			w.forget()
		}
	}
	if w.all == nil {
		w.all, w.files, w.taken = fleet.New(&w.opts), make(map[string]*growing), make(map[string]string)
		w.all.Look = whereRank
	}
	var awake []*growing
	for _, name := range names {
		switch g := w.files[name]; {
		case sizes[name] == 0:
		case g == nil:
			if g, err = follow(w.e, &w.read, name); err == nil {
				w.files[name], awake = g, append(awake, g)
			}
		case g.wake(sizes[name]):
			awake = append(awake, g)
		}
	}
	for _, g := range awake {
		if part := g.look(); part != nil { // nil: its beginning is not written yet
			w.all.Add(part)
		}
	}
	w.parts(found.Tables)
	w.all.At(now)
	if r := w.all.Report(); len(r.Ranks) > 0 {
		w.last = r
	}
	return w.last
}

// parts takes in the parts of tables that are new. Those that can't be read are told of, once.
func (w *watching) parts(list []*fleet.Tables) {
	for _, t := range list {
		for _, part := range t.Parts {
			if part <= w.taken[t.Name] { // by name: somebody may remove old ones
				continue
			}
			w.taken[t.Name] = part
			var err error
			if w.table == nil {
				w.table, err = fleet.NewTableReader()
			}
			if err == nil {
				err = w.all.AddPart(w.table, t, part)
			}
			if err != nil {
				w.e.Notice("%v", err)
			}
		}
	}
}

// forget ends the reading of recordings.
func (w *watching) forget() {
	for _, g := range w.files {
		g.close()
	}
	w.files, w.taken, w.all = nil, nil, nil
}

// tell prints what has changed.
func (w *watching) tell(r *fleet.Report, now time.Time) error {
	if r == nil {
		return nil
	}
	if err := w.to.Put(r.Prom(now)); err != nil { // a full disk does not end the watch
		w.e.Notice("--prom: %v", err)
	}
	for _, c := range w.watch.Next(r, now) {
		var err error
		if w.json {
			err = json.NewEncoder(w.e.Stdout).Encode(&c)
		} else {
			err = w.print(&c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watching) print(c *fleet.Change) error {
	x := &c.Finding
	text := fmt.Sprintf("%s, since %s: %s", x.Cause, x.At, x.Text)
	if c.State == fleet.Over {
		text = fmt.Sprintf("over: %s (%s)", x.Cause, strings.Join(x.Files, " "))
	}
	_, err := fmt.Fprintf(w.e.Stdout, "%s  %-8s  %s\n", c.Time, x.Kind, cli.Printable(text))
	return err
}

// end prints the report of all.
func (w *watching) end() int {
	if w.last == nil {
		return w.e.Fail(cli.ExitFailed, "there were no recordings")
	}
	var err error
	if w.json {
		err = json.NewEncoder(w.e.Stdout).Encode(map[string]*fleet.Report{"report": w.last})
	} else {
		err = w.last.Write(w.e.Stdout)
	}
	switch {
	case err != nil:
		return w.e.Fail(cli.ExitFailed, "%v", err)
	case w.watch.Found() || w.last.Found():
		return cli.ExitDiffers
	}
	return cli.ExitOK
}
