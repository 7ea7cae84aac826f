package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/internal/need"
	"nvtrace/traces"
)

// rankModel is what a synthetic rank did, written down while it is made: what tables of its
// recording are asked for is computed from this.
type rankModel struct {
	rank     int
	end      int64
	calls    []callModel
	mapped   int64 // at most, bytes
	images   map[string]int64
	ioctls   map[string][2]int64 // by device: how many, ns
	launches []callModel
	lines    map[int64]int64 // bytes allocated by line
}

type callModel struct {
	name, kernel string
	start, dur   int64
	failed       bool
}

// recordRank writes the recording of a rank: a training of a few steps.
func recordRank(t *testing.T, name string, rank int) *rankModel {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := traces.NewWriter(f, &traces.Header{
		Schema: 1, Tool: "test", Start: 1_700_000_000_000_000_000 + int64(rank), Arch: "amd64", Driver: "580.142", Argv: []string{"train"}, PID: int32(100 + rank),
		Host: fmt.Sprint("node", rank/8), Rank: map[string]string{"RANK": strconv.Itoa(rank), "WORLD_SIZE": "16", "SLURM_JOB_ID": "77"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &rankModel{rank: rank, images: map[string]int64{}, ioctls: map[string][2]int64{}, lines: map[int64]int64{}}
	rng := rand.New(rand.NewPCG(uint64(rank), 7))
	pid, now := int32(100+rank), int64(1000)
	write := func(ev traces.Event) {
		ev.PID, ev.TID = pid, pid
		w.Write(&ev)
		m.end = max(m.end, ev.Time+ev.Dur)
	}
	const driver = "/lib/libcuda.so.1"
	kernels := []string{"gemm", "softmax", "adam"}
	for i, k := range kernels { // each is looked up
		name := append([]byte(k), 0)
		write(traces.Event{Kind: traces.KindCall, Time: now, Name: "cuModuleGetFunction", Path: driver, Args: [6]uint64{0x10, 0x20, 0x30}, FD: -1, Mem: []traces.Seg{{Addr: 0x30, Len: uint32(len(name)), In: name}}})
		out := []byte{byte(i + 1), 0, 0, 0, 0, 0, 0, 0}
		write(traces.Event{Kind: traces.KindReturn, Time: now, Dur: 500, Name: "cuModuleGetFunction", FD: -1, Mem: []traces.Seg{{Addr: 0x10, Len: 8, Out: out}}})
		m.calls = append(m.calls, callModel{name: "cuModuleGetFunction", start: now, dur: 500})
		now += 1000
		sha := strings.Repeat(strconv.Itoa(i), 64)
		if i < 2 || rank%2 == 0 {
			size := int64(1000 * (i + 1))
			write(traces.Event{Kind: traces.KindImage, Time: now, Name: "cuModuleLoadData", FD: -1, Image: &traces.Image{SHA256: sha, Size: size, Format: "cubin"}})
			m.images[sha] = size
		}
	}
	live := int64(0)
	for step := range 20 {
		for range 30 + rng.IntN(10) {
			k := rng.IntN(3)
			start, dur := now, int64(2000+rng.IntN(3000)+100*rank)
			failed := rng.IntN(97) == 0
			c := callModel{name: "cuLaunchKernel", kernel: kernels[k], start: start, dur: dur, failed: failed}
			write(traces.Event{Kind: traces.KindCall, Time: now, Name: c.name, Path: driver, Args: [6]uint64{uint64(k + 1), 1, 1, 1, 32, 1}, FD: -1})
			if rng.IntN(5) == 0 {
				dev, d := []string{"nvidiactl", "nvidia-uvm"}[rng.IntN(2)], int64(rng.IntN(900))
				write(traces.Event{Kind: traces.KindIoctl, Time: now + 100, Dur: d, FD: 3, File: 1, Dev: dev, Args: [6]uint64{3, 0xc0104629}})
				n := m.ioctls[dev]
				m.ioctls[dev] = [2]int64{n[0] + 1, n[1] + d}
			}
			ret := int64(0)
			if failed {
				ret = 700 // CUDA_ERROR_ILLEGAL_ADDRESS
			}
			write(traces.Event{Kind: traces.KindReturn, Time: start, Dur: dur, Ret: ret, Name: c.name, FD: -1})
			m.calls = append(m.calls, c)
			if !failed {
				m.launches = append(m.launches, c)
			}
			now += dur + int64(rng.IntN(5000))
		}
		length := int64(4096 * (1 + rng.IntN(100)))
		addr := int64(0x7f0000000000 + step<<24)
		write(traces.Event{Kind: traces.KindMmap, Time: now, Dur: 10, FD: 3, File: 1, Dev: "nvidia0", Args: [6]uint64{0, uint64(length), 3, 1, 3}, Ret: addr})
		live += length
		m.mapped = max(m.mapped, live)
		if step%3 == 2 {
			write(traces.Event{Kind: traces.KindMunmap, Time: now + 20, Dur: 5, FD: -1, Args: [6]uint64{uint64(addr), uint64(length)}})
			live -= length
		}
		alloc, line, size := callModel{name: "cuMemAlloc_v2", start: now + 40, dur: 20}, 10+rng.IntN(3), int64(256*(1+rng.IntN(1000)))
		write(traces.Event{Kind: traces.KindCall, Time: alloc.start, Name: alloc.name, Path: driver, Args: [6]uint64{0x50, uint64(size)}, FD: -1})
		where := traces.Event{Kind: traces.KindStack, Time: alloc.start + 1, Name: alloc.name, FD: -1}
		where.SetStack([]traces.StackFrame{
			{Language: traces.LanguageNative, File: "/lib/libtorch.so", Func: "malloc", Offset: 0x10},
			{Language: "python", File: "model.py", Func: "forward", Line: line},
			{Language: "python", File: "train.py", Func: "step", Line: 3},
		})
		write(where)
		write(traces.Event{Kind: traces.KindReturn, Time: alloc.start, Dur: alloc.dur, Name: alloc.name, FD: -1})
		m.calls = append(m.calls, alloc)
		m.lines[int64(line)] += size
		d := int64(50_000 + rng.IntN(50_000)*(1+rank%5))
		write(traces.Event{Kind: traces.KindCall, Time: now + 100, Name: "cuCtxSynchronize", Path: driver, FD: -1})
		write(traces.Event{Kind: traces.KindReturn, Time: now + 100, Dur: d, Name: "cuCtxSynchronize", FD: -1})
		m.calls = append(m.calls, callModel{name: "cuCtxSynchronize", start: now + 100, dur: d})
		now += d + 1000
	}
	write(traces.Event{Kind: traces.KindExit, Time: now, FD: -1})
	write(traces.Event{Kind: traces.KindEnd, Time: now + 1, FD: -1, Cost: &traces.Cost{}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

// questions are asked of the tables of 16 ranks: SQL, and the answer from the models.
var questions = []struct {
	what, sql string
	answer    func(all []*rankModel) [][]any
}{
	{"the slowest ranks", "select rank, max(\"end\") - min(start) as ns from runs group by rank order by ns desc, rank limit 3", func(all []*rankModel) [][]any {
		list := slices.SortedFunc(slices.Values(all), func(a, b *rankModel) int { return cmp.Or(cmp.Compare(b.end, a.end), cmp.Compare(a.rank, b.rank)) })
		return [][]any{{list[0].rank, list[0].end}, {list[1].rank, list[1].end}, {list[2].rank, list[2].end}}
	}},
	{"calls by function", "select name, count(*), sum(dur), sum(case when failed then 1 else 0 end) from api group by name order by name", func(all []*rankModel) [][]any {
		return groupCalls(all, func(_ *rankModel, c *callModel) string { return c.name }, true)
	}},
	{"time in synchronisations by rank", "select rank, sum(dur) from api where name = 'cuCtxSynchronize' group by rank order by rank", func(all []*rankModel) (rows [][]any) {
		for _, m := range all {
			sum := int64(0)
			for _, c := range m.calls {
				if c.name == "cuCtxSynchronize" {
					sum += c.dur
				}
			}
			rows = append(rows, []any{m.rank, sum})
		}
		return rows
	}},
	{"the kernels whose launches take longest", "select kernel, count(*), sum(dur), max(dur) from kernels group by kernel order by sum(dur) desc", func(all []*rankModel) (rows [][]any) {
		sums := map[string][3]int64{}
		for _, m := range all {
			for _, c := range m.launches {
				s := sums[c.kernel]
				sums[c.kernel] = [3]int64{s[0] + 1, s[1] + c.dur, max(s[2], c.dur)}
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Compare(sums[b][1], sums[a][1]) }) {
			rows = append(rows, []any{k, sums[k][0], sums[k][1], sums[k][2]})
		}
		return rows
	}},
	{"the longest gap between launches by rank", "select rank, max(gap) from (select rank, t - lag(t + dur) over (partition by rank, tid order by t) as gap from kernels) as g group by rank order by rank", func(all []*rankModel) (rows [][]any) {
		for _, m := range all {
			gap := int64(0)
			for i := range m.launches[1:] {
				gap = max(gap, m.launches[i+1].start-m.launches[i].start-m.launches[i].dur)
			}
			rows = append(rows, []any{m.rank, gap})
		}
		return rows
	}},
	{"mapped memory by rank", "select rank, max(value) from memory where what = 'mapped' group by rank order by rank", func(all []*rankModel) (rows [][]any) {
		for _, m := range all {
			rows = append(rows, []any{m.rank, m.mapped})
		}
		return rows
	}},
	{"failing calls", "select rank, name, status, count(*) from failures group by rank, name, status order by rank", func(all []*rankModel) (rows [][]any) {
		for _, m := range all {
			n := 0
			for _, c := range m.calls {
				if c.failed {
					n++
				}
			}
			if n > 0 {
				rows = append(rows, []any{m.rank, "cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS", n})
			}
		}
		return rows
	}},
	{"ioctls by device, and the calls that they are made in", "select device, during, count(*), sum(dur) from ioctls group by device, during order by device", func(all []*rankModel) (rows [][]any) {
		sums := map[string][2]int64{}
		for _, m := range all {
			for d, n := range m.ioctls {
				s := sums[d]
				sums[d] = [2]int64{s[0] + n[0], s[1] + n[1]}
			}
		}
		for _, d := range slices.Sorted(maps.Keys(sums)) {
			rows = append(rows, []any{d, "cuLaunchKernel", sums[d][0], sums[d][1]})
		}
		return rows
	}},
	{"images that not all ranks load", "select sha256, max(size), count(distinct rank) from images group by sha256 having count(distinct rank) < 16 order by sha256", func(all []*rankModel) (rows [][]any) {
		loads, sizes := map[string]int{}, map[string]int64{}
		for _, m := range all {
			for sha, size := range m.images {
				loads[sha]++
				sizes[sha] = size
			}
		}
		for _, sha := range slices.Sorted(maps.Keys(loads)) {
			if loads[sha] < len(all) {
				rows = append(rows, []any{sha, sizes[sha], loads[sha]})
			}
		}
		return rows
	}},
	{"the median launch", "select max(dur) from (select dur, row_number() over (order by dur) as n, count(*) over () as launches from kernels) as k where n <= (launches + 1) / 2", func(all []*rankModel) [][]any {
		var durs []int64
		for _, m := range all {
			for _, c := range m.launches {
				durs = append(durs, c.dur)
			}
		}
		slices.Sort(durs)
		return [][]any{{durs[(len(durs)-1)/2]}}
	}},
	{"the lines that allocate most", "select s.file, s.line, s.function, sum(a.allocated) from api a join stacks s on s.run = a.run and s.rank = a.rank and s.tid = a.tid and s.call = a.t " +
		"where s.frame = 1 and a.allocated > 0 group by s.file, s.line, s.function order by sum(a.allocated) desc", func(all []*rankModel) (rows [][]any) {
		sums := map[int64]int64{}
		for _, m := range all {
			for line, n := range m.lines {
				sums[line] += n
			}
		}
		for _, line := range slices.SortedFunc(maps.Keys(sums), func(a, b int64) int { return cmp.Compare(sums[b], sums[a]) }) {
			rows = append(rows, []any{"model.py", line, "forward", sums[line]})
		}
		return rows
	}},
	{"events by kind and host", "select kind, count(*) from events where run = '77' and kind in ('mmap', 'exit', 'end') group by kind order by kind", func(all []*rankModel) [][]any {
		return [][]any{{"end", len(all)}, {"exit", len(all)}, {"mmap", 20 * len(all)}}
	}},
}

// groupCalls counts calls by a key.
func groupCalls(all []*rankModel, key func(*rankModel, *callModel) string, failures bool) (rows [][]any) {
	sums := map[string][3]int64{}
	for _, m := range all {
		for i := range m.calls {
			c := &m.calls[i]
			s := sums[key(m, c)]
			s = [3]int64{s[0] + 1, s[1] + c.dur, s[2]}
			if c.failed && failures {
				s[2]++
			}
			sums[key(m, c)] = s
		}
	}
	for _, k := range slices.Sorted(maps.Keys(sums)) {
		rows = append(rows, []any{k, sums[k][0], sums[k][1], sums[k][2]})
	}
	return rows
}

// engines are those that are asked: each is a module of Python's, and a program that reads
// questions as JSON and prints the answers, a line of JSON each. All are asked the same text.
var engines = []struct{ name, module, target, program string }{
	{"duckdb", "duckdb", "deps-duckdb", `
import sys, json, duckdb
db = duckdb.connect()
db.execute("set threads = 1")
tables, questions = json.load(sys.stdin)
for t in tables:
    db.execute(f"create view {t} as select * from read_parquet('{sys.argv[1]}/{t}/*/*/part.parquet', hive_partitioning = true)")
for q in questions:
    print(json.dumps([list(r) for r in db.execute(q).fetchall()], default=int))
`},
	{"clickhouse", "chdb", "deps-clickhouse", `
import sys, json
from chdb.session import Session
db = Session(sys.argv[2])
db.query("create database nvtrace")
db.query("use nvtrace")
tables, questions = json.load(sys.stdin)
for t in tables:
    db.query(f"create view {t} as select * from file('{sys.argv[1]}/{t}/*/*/part.parquet', Parquet) settings use_hive_partitioning = 1")
for q in questions:
    rows = db.query(q + " settings output_format_json_quote_64bit_integers = 0", "JSONCompactEachRow").data()
    print(json.dumps([json.loads(r) for r in rows.splitlines()]))
`},
	{"spark", "pyspark", "deps-spark", `
import sys, json
from pyspark.sql import SparkSession
db = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", 1)
      .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
      .config("spark.sql.warehouse.dir", sys.argv[2]).config("spark.local.dir", sys.argv[2])
      .config("spark.sql.ansi.doubleQuotedIdentifiers", "true").getOrCreate())
tables, questions = json.load(sys.stdin)
for t in tables:
    db.read.parquet(f"{sys.argv[1]}/{t}").createOrReplaceTempView(t)
for q in questions:
    print(json.dumps([list(r) for r in db.sql(q).collect()]))
db.stop()
`},
}

// TestTablesSQL asks engines about the tables of 16 ranks.
func TestTablesSQL(t *testing.T) {
	python := need.Tool(t, "python3", "NVTRACE_PYTHON")
	dir := t.TempDir()
	tables := filepath.Join(dir, "tables")
	var all []*rankModel
	for rank := range 16 {
		file := filepath.Join(dir, fmt.Sprint("run", rank, ".nvt"))
		all = append(all, recordRank(t, file, rank))
		var stderr bytes.Buffer
		e := &cli.Env{Stdout: os.Stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}
		if status := verbs.Main(e, []string{"export", "--format", "parquet", "-o", tables, file}); status != cli.ExitOK {
			t.Fatalf("status %d: %s", status, &stderr)
		}
	}
	entries, err := os.ReadDir(tables)
	if err != nil {
		t.Fatal(err)
	}
	var ask [2][]string // tables, questions
	for _, e := range entries {
		ask[0] = append(ask[0], e.Name())
	}
	for _, q := range questions {
		ask[1] = append(ask[1], q.sql)
	}
	in, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			fetched, err := filepath.Abs(filepath.Join("../../.cache", e.name))
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("PYTHONPATH", fetched+string(os.PathListSeparator)+os.Getenv("PYTHONPATH"))
			if out, err := exec.Command(python, "-c", "import "+e.module).CombinedOutput(); err != nil {
				need.Missing(t, e.name, fmt.Sprintf("python3 has no module %s (make %s fetches it): %s", e.module, e.target, out[max(0, len(out)-100):]))
			}
			if e.name == "spark" {
				need.Tool(t, "java", "")
			}
			temp := t.TempDir()
			cmd := exec.Command(python, "-c", e.program, tables, temp)
			cmd.Dir = temp
			cmd.Stdin = bytes.NewReader(in)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}
			answers := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(answers) != len(questions) {
				t.Fatalf("%d answers to %d questions: %s", len(answers), len(questions), out)
			}
			for i, q := range questions {
				want, err := json.Marshal(q.answer(all))
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.ReplaceAll(answers[i], ", ", ","); got != string(want) {
					t.Errorf("%s:\n%s\ngot  %s\nwant %s", q.what, q.sql, got, want)
				}
				if len(want) < len("[[1]]") {
					t.Errorf("%s: nothing to find", q.what)
				}
			}
		})
	}
}
