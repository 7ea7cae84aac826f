package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/need"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// engines are asked the questions of docs/sql about tables in a folder: each is a program in Python that prints rows by the
// file's name. The questions are DuckDB's; two words are others elsewhere, as docs/fleet.md says.
var engines = []struct{ name, module, target, program string }{
	{"duckdb", "duckdb", "deps-duckdb", `
import duckdb
db = duckdb.connect()
db.execute("set threads = 1")
for t in tables:
    db.execute(f"create view {t} as select * from read_parquet('{folder}/{t}/*/*/part*.parquet', hive_partitioning = true)")
ask = lambda q: [list(r) for r in db.execute(q).fetchall()]
`},
	{"clickhouse", "chdb", "deps-clickhouse", `
from chdb.session import Session
db = Session(temp)
db.query("create database nvtrace")
db.query("use nvtrace")
for t in tables:
    db.query(f"create view {t} as select * from file('{folder}/{t}/*/*/part*.parquet', Parquet) settings use_hive_partitioning = 1")
words = {"arg_min": "argMin", "arg_max": "argMax"}
ask = lambda q: [json.loads(r) for r in db.query(q + " settings output_format_json_quote_64bit_integers = 0", "JSONCompactEachRow").data().splitlines()]
`},
	{"spark", "pyspark", "deps-spark", `
from pyspark.sql import SparkSession
db = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", 1)
      .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
      .config("spark.sql.warehouse.dir", temp).config("spark.local.dir", temp).getOrCreate())
for t in tables:
    db.read.parquet(f"{folder}/{t}").createOrReplaceTempView(t)
words = {"arg_min": "min_by", "arg_max": "max_by"}
ask = lambda q: [list(r) for r in db.sql(q).collect()]
`},
}

// Around an engine's program.
const (
	beforeEngine = `
import sys, json, glob, os
folder, questions, temp = sys.argv[1:]
tables, words = os.listdir(folder), {}
`
	afterEngine = `
rows = {}
for f in glob.glob(questions + "/*.sql"):
    q = open(f).read().strip().rstrip(";")
    for word in words:
        q = q.replace(word + "(", words[word] + "(")
    rows[os.path.basename(f)] = ask(q)
print(json.dumps(rows, default=float))
`
)

// askEngine returns the rows that an engine answers with; nil: it is not here.
func askEngine(t *testing.T, name, folder string) (rows map[string][][]any) {
	t.Helper()
	python := need.Tool(t, "python3", "NVTRACE_PYTHON")
	i := slices.IndexFunc(engines, func(e struct{ name, module, target, program string }) bool { return e.name == name })
	e := &engines[i]
	cache, err := filepath.Abs("../../../../.cache/" + e.name)
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PYTHONPATH="+cache+string(os.PathListSeparator)+os.Getenv("PYTHONPATH"))
	check := exec.Command(python, "-c", "import "+e.module)
	if check.Env = env; check.Run() != nil {
		need.Missing(t, e.name, "python3 has no module "+e.module+": make "+e.target)
		return nil
	}
	if e.name == "spark" {
		need.Tool(t, "java", "")
	}
	questions, err := filepath.Abs("../../../../docs/sql")
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	cmd := exec.Command(python, "-c", beforeEngine+e.program+afterEngine, folder, questions, temp)
	cmd.Env, cmd.Dir = env, temp
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", e.name, err, said.Bytes())
	}
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// alike reports whether two engines' rows are the same, in any order, as those that are equal in what they are ordered by
// come in any: numbers within a millionth, as engines add in different orders.
func alike(a, b [][]any) bool {
	order := func(x, y []any) int { return strings.Compare(fmt.Sprint(x...), fmt.Sprint(y...)) } // names and numbers of ranks are in front
	a, b = slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order)
	return slices.EqualFunc(a, b, func(x, y []any) bool {
		return slices.EqualFunc(x, y, func(v, w any) bool {
			f, ok := v.(float64)
			g, ok2 := w.(float64)
			return v == w || ok && ok2 && math.Abs(f-g) <= 1e-6*max(math.Abs(f), math.Abs(g), 1e-3)
		})
	})
}

// write writes the ranks' recordings as tables, each in so many parts; 0: as wholes.
func (m *made) write(t *testing.T, dir string, parts int) {
	t.Helper()
	m.writeOnly(t, dir, parts, nil)
}

// writeOnly writes some of the tables.
func (m *made) writeOnly(t *testing.T, dir string, parts int, only []string) {
	t.Helper()
	plan, ends := m.plan()
	for rank := range m.ranks {
		if _, err := os.Stat(filepath.Join(dir, "runs", "run=1", "rank="+strconv.Itoa(rank), PartName("made", parts))); err == nil {
			continue // by a run of the test that was cut short
		}
		h := m.header(rank)
		var files []*os.File
		part := 1
		open := func(table string) (io.Writer, error) {
			name := wholeName
			if parts > 0 {
				name = PartName("made", part)
			}
			at := filepath.Join(dir, table, "run=1", "rank="+strconv.Itoa(rank))
			if err := os.MkdirAll(at, 0o777); err != nil {
				return nil, err
			}
			f, err := os.Create(filepath.Join(at, name))
			files = append(files, f)
			return f, err
		}
		begin := export.NewTables
		if parts > 0 {
			begin = export.NewParts
		}
		tables, err := begin(open, h, ioctl.NewDecoder(h))
		if err != nil {
			t.Fatal(err)
		}
		if only != nil {
			tables.Only(only)
		}
		feed := observe.NewFeed(ioctl.NewDecoder(h), tables)
		feed.Follow()
		each := ends[len(ends)-1]/int64(max(parts, 1)) + 1
		whole := m.events(rank, plan[rank], ends, func(ev *traces.Event) {
			if parts > 0 && ev.Time > clockOf(rank/m.perHost, each*int64(part)) && part < parts {
				if err := tables.Next(ev.Time, false); err != nil {
					t.Fatal(err)
				}
				part++
			}
			feed.Event(ev)
		})
		if whole {
			feed.Event(&traces.Event{Kind: traces.KindEnd, Time: clockOf(rank/m.perHost, ends[len(ends)-1]) + 2e6, FD: -1})
		}
		if parts > 0 {
			err = tables.Next(0, true)
		} else {
			err = tables.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFIFO: nothing waits for who would write to a part.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	place := filepath.Join(dir, "runs", "run=1", "rank=0")
	if err := errors.Join(os.MkdirAll(place, 0o700), unix.Mkfifo(filepath.Join(place, wholeName), 0o600)); err != nil {
		t.Fatal(err)
	}
	list, err := FindTables(dir)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	r, err := NewTableReader()
	if err != nil {
		t.Fatal(err)
	}
	if err := New(nil).AddTables(r, list[0]); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}

// TestTables: recordings in the form of tables, whole or in parts, come to what they come to as recordings.
func TestTables(t *testing.T) {
	for _, fault := range []string{"", "sleep", "kernel", "copies", "size", "missing", "kill", "driver version"} {
		m := &made{ranks: 16, steps: 90, perHost: 4, fault: fault, rank: 5, from: 40, noise: 300_000}
		want := m.report(nil)
		for _, parts := range []int{0, 4} {
			dir := filepath.Join(t.TempDir(), "job[1]") // no pattern
			m.random = rand.New(rand.NewPCG(uint64(m.ranks), uint64(len(m.fault))))
			m.write(t, dir, parts)
			list, err := FindTables(dir)
			if err != nil || len(list) != m.ranks {
				t.Fatalf("%d recordings: %v", len(list), err)
			}
			r, err := NewTableReader()
			if err != nil {
				t.Fatal(err)
			}
			f := New(nil)
			for _, x := range list {
				if len(x.Parts) != max(parts, 1) {
					t.Errorf("%s: %q", x.Name, x.Parts)
				}
				if err := f.AddTables(r, x); err != nil {
					t.Fatal(err)
				}
			}
			got := f.Report()
			if len(got.Findings) != len(want.Findings) || got.Collectives != want.Collectives || got.By != want.By || got.World != m.ranks || got.Job != want.Job || got.Comms != want.Comms {
				t.Errorf("%q in %d parts: %+v\nwant %+v", fault, parts, got, want)
				continue
			}
			for i, x := range got.Findings {
				w := want.Findings[i]
				if x.Kind != w.Kind || x.Cause != w.Cause || len(x.Ranks) != 1 || x.Ranks[0] != w.Ranks[0] || x.Late != w.Late || x.Of != w.Of || max(x.Since-w.Since, w.Since-x.Since) > 100_000 {
					t.Errorf("%q in %d parts: %+v, want %+v", fault, parts, x, w)
				}
			}
			for i, c := range got.Clocks {
				if c.Error < 0 || c.Error > 2000 || i > 0 && c.Drift > -1000*float64(i) && m.steps >= driftPairs && fault != "missing" && fault != "kill" {
					t.Errorf("%q in %d parts: %+v", fault, parts, c)
				}
			}
		}
	}
}

var tables = flag.String("tables", "", "where TestMillionsOfTables keeps its tables, to go on where it was cut short")

// TestMillionsOfTables has nvtrace report on 1,024 ranks by tables: -args -steps 10000 are 100 million events. It is compared
// with 16 ranks.
func TestMillionsOfTables(t *testing.T) {
	if *steps == 0 {
		t.Skip("-args -steps N runs it")
	}
	nvtrace := filepath.Join(t.TempDir(), "nvtrace")
	build := exec.Command("go", "build", "-o", nvtrace, "nvtrace/cmd/nvtrace")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	for _, ranks := range []int{16, 1024} {
		m := &made{ranks: ranks, steps: *steps, perHost: 8, fault: "sleep", rank: ranks * 7 / 10, from: *steps / 3, noise: 300_000, random: rand.New(rand.NewPCG(1, 1))}
		dir := filepath.Join(*tables, strconv.Itoa(ranks))
		if *tables == "" {
			dir = t.TempDir()
		}
		m.writeOnly(t, dir, 10, []string{"collectives"})
		cmd := exec.Command(nvtrace, "fleet", "report", "--json", dir)
		begin := time.Now()
		out, _ := cmd.Output() // its status says that something is wrong
		took := time.Since(begin)
		var r Report
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		events := uint64(0)
		for i := range r.Ranks {
			events += r.Ranks[i].Events
		}
		t.Logf("%d ranks, %d events: %v, %v of processors' time", ranks, events, took, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		if len(r.Findings) != 1 || r.Findings[0].Ranks[0] != m.rank || r.Findings[0].Cause != "host" {
			t.Errorf("%+v", r.Findings)
		}
	}
}

// TestSQL asks the questions of docs/sql about 64 ranks of which one is slow. Engines that are here give the same answers.
func TestSQL(t *testing.T) {
	const slow, from, steps = 37, 24, 60
	m := &made{ranks: 64, steps: steps, perHost: 8, fault: "kernel", rank: slow, from: from, random: rand.New(rand.NewPCG(1, 1)), noise: 300_000}
	dir := t.TempDir()
	m.write(t, dir, 3)
	rows := askEngine(t, "duckdb", dir)
	for _, other := range []string{"clickhouse", "spark"} {
		t.Run(other, func(t *testing.T) {
			theirs := askEngine(t, other, dir)
			for name, r := range rows {
				if got := theirs[name]; !alike(got, r) {
					t.Errorf("%s: %d rows, %.1000v\nDuckDB: %d rows, %.1000v", name, len(got), got, len(r), r)
				}
			}
		})
	}
	if rows == nil {
		return
	}
	if r := rows["slow-in-what.sql"]; len(r) != m.ranks || r[0][1] != float64(slow) || r[0][2].(float64) < 1.5 || r[0][5].(float64) > 0.5 {
		t.Errorf("slow in %v", r)
	}
	// Its compute kernel takes half as long again; in the kernels of NCCL the others wait.
	slower := 0
	for _, r := range rows["slow-kernels.sql"] {
		if r[1] == float64(slow) && r[4].(float64) > 1.2*r[5].(float64) {
			slower++
		}
	}
	if slower != 1 {
		t.Errorf("slow kernels: %v", rows["slow-kernels.sql"])
	}
	var owned [][]any
	for rank := range m.ranks {
		owned = append(owned, []any{"1", float64(rank), "nccl", float64(madeOfNCCL), float64(madeOfNCCL)}, []any{"1", float64(rank), "program", float64(madeOwn + rank), float64(madeOwn + rank)})
	}
	if r := rows["memory-by-owner.sql"]; fmt.Sprint(r) != fmt.Sprint(owned) {
		t.Errorf("memory by owner: %v\nwant %v", r, owned)
	}
	if len(rows) < 9 {
		t.Errorf("%d questions", len(rows))
	}
	// The others wait a bit less than the fault, as each is late by chance, too.
	if r := rows["slowest-rank.sql"]; len(r) == 0 || r[0][1] != float64(slow) || r[0][3].(float64) < 0.9*madeFault*(steps-from)/1e9 || r[0][3].(float64) > 1.1*madeFault*(steps-from)/1e9 {
		t.Errorf("the slowest ranks are %v", r)
	}
	for i, r := range rows["stragglers.sql"] {
		if late := r[2] == float64(slow) && r[3].(float64) > 0.9; late != (i >= from*10/steps) {
			t.Errorf("part %d: %v", i, r)
		}
	}
	if r := rows["collective-skew.sql"]; len(r) != 1 || r[0][0] != "AllReduce" || r[0][1] != float64(4096) || r[0][2] != float64(steps) || r[0][3].(float64) < 4 {
		t.Errorf("skew %v", r)
	}
	for _, name := range []string{"memory-by-rank.sql", "failing-ioctls.sql", "different-kernels.sql"} {
		if r, ok := rows[name]; !ok || len(r) > 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
}
