package fleet

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/need"
	"nvtrace/ioctl"
)

// asked has DuckDB answer the questions of docs/sql about tables in a folder: rows by the file's name.
const asked = `
import sys, json, glob, os, duckdb
db = duckdb.connect()
db.execute("set threads = 1")
for t in os.listdir(sys.argv[1]):
    db.execute(f"create view {t} as select * from read_parquet('{sys.argv[1]}/{t}/*/*/part.parquet', hive_partitioning = true)")
print(json.dumps({os.path.basename(f): [list(r) for r in db.execute(open(f).read()).fetchall()] for f in glob.glob(sys.argv[2] + "/*.sql")}, default=float))
`

// TestSQL asks the questions of docs/sql about 64 ranks of which one is slow.
func TestSQL(t *testing.T) {
	python := need.Tool(t, "python3", "NVTRACE_PYTHON")
	cache, err := filepath.Abs("../../../../.cache/duckdb")
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PYTHONPATH="+cache)
	check := exec.Command(python, "-c", "import duckdb")
	if check.Env = env; check.Run() != nil {
		need.Missing(t, "duckdb", "no DuckDB: make deps-duckdb")
		return
	}
	const slow, from, steps = 37, 24, 60
	m := &made{ranks: 64, steps: steps, perHost: 8, fault: "kernel", rank: slow, from: from, random: rand.New(rand.NewPCG(1, 1)), noise: 300_000}
	plan, ends := m.plan()
	dir := t.TempDir()
	for rank := range m.ranks {
		h := m.header(rank)
		var files []*os.File
		tables, err := export.NewTables(func(table string) (io.Writer, error) {
			at := filepath.Join(dir, table, "run=1", "rank="+strconv.Itoa(rank))
			if err := os.MkdirAll(at, 0o777); err != nil {
				return nil, err
			}
			f, err := os.Create(filepath.Join(at, "part.parquet"))
			files = append(files, f)
			return f, err
		}, h, ioctl.NewDecoder(h))
		if err != nil {
			t.Fatal(err)
		}
		feed := observe.NewFeed(ioctl.NewDecoder(h), tables)
		feed.Follow()
		m.events(rank, plan[rank], ends, feed.Event)
		if err := tables.Close(); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(python, "-c", asked, dir, "../../../../docs/sql")
	cmd.Env = env
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said.Bytes())
	}
	var rows map[string][][]any
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 6 {
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
