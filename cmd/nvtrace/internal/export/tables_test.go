package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	own "nvtrace/cmd/nvtrace/internal/parquet"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// exportTables makes tables of events, and reads them with a library that has nothing to do
// with how they were written.
func exportTables(t testing.TB, h *traces.Header, events func(yield func(*traces.Event) bool)) map[string][]map[string]any {
	t.Helper()
	files := map[string]*bytes.Buffer{}
	d := ioctl.NewDecoder(h)
	tables, err := NewTables(func(name string) (io.Writer, error) {
		files[name] = new(bytes.Buffer)
		return files[name], nil
	}, h, d)
	if err != nil {
		t.Fatal(err)
	}
	feed := following(d, tables)
	for ev := range events {
		feed.Event(ev)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string][]map[string]any{}
	for name, b := range files {
		got[name] = readParquet(t, name, b.Bytes())
	}
	if len(got) != len(tableNames) || len(got["runs"]) != 1 {
		t.Fatalf("%d tables, %d runs", len(got), len(got["runs"]))
	}
	return got
}

func readParquet(t testing.TB, name string, b []byte) []map[string]any {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	columns := f.Schema().Columns()
	var rows []map[string]any
	for _, g := range f.RowGroups() {
		r := g.Rows()
		buf := make([]parquet.Row, 100)
		last := int64(math.MinInt64)
		for {
			n, err := r.ReadRows(buf)
			for _, row := range buf[:n] {
				m := map[string]any{}
				for _, v := range row {
					key := columns[v.Column()][0]
					switch {
					case v.IsNull():
					case v.Kind() == parquet.ByteArray:
						m[key] = v.String()
					case v.Kind() == parquet.Boolean:
						m[key] = v.Boolean()
					case v.Kind() == parquet.Int32:
						m[key] = int64(v.Int32())
					default:
						m[key] = v.Int64()
					}
				}
				if at, ok := m["t"].(int64); ok {
					if at < last {
						t.Fatalf("%s: %d after %d", name, at, last)
					}
					last = at
				}
				rows = append(rows, m)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// TestTables holds the tables of real programs' recordings against their summaries.
func TestTables(t *testing.T) {
	for _, file := range append(corpus(t), "testdata/api.jsonl", "testdata/small.jsonl") {
		h, events := recording(t, file)
		for _, ev := range events {
			ev.Dur = max(ev.Dur, 0) // a table has no value for what can't be
		}
		compareTables(t, file, h, events)
	}
}

type tableFigures struct{ Calls, Failed, Time int64 }

func compareTables(t *testing.T, file string, h *traces.Header, events []*traces.Event) {
	t.Helper()
	d := ioctl.NewDecoder(h)
	sum, tracker, calls := ioctl.NewSummary(h), api.NewTracker(), api.NewSummary()
	others := map[string]int64{}
	for _, ev := range events {
		c := d.Decode(ev)
		sum.Add(ev, &c)
		calls.Add(ev, tracker, tracker.Add(ev))
		switch ev.Kind {
		case traces.KindIoctl, traces.KindCall, traces.KindReturn, traces.KindImage, traces.KindGPU:
		default:
			others[ev.Kind.String()]++
		}
	}
	want, got := map[string]tableFigures{}, map[string]tableFigures{}
	add := func(key string, calls, failed, time int64) {
		f := got[key]
		got[key] = tableFigures{f.Calls + calls, f.Failed + failed, f.Time + time}
	}
	r := sum.Report()
	for _, c := range r.Calls {
		key := c.Name + " " + c.Sub
		f := want[key]
		want[key] = tableFigures{f.Calls + int64(c.Calls), f.Failed + int64(c.Failed), f.Time + c.Total}
	}
	tables := exportTables(t, h, slices.Values(events))
	b2i := func(b any) int64 { return map[any]int64{true: 1}[b] }
	for _, row := range tables["ioctls"] {
		dur, _ := row["dur"].(int64)
		sub, _ := row["sub"].(string)
		add(row["name"].(string)+" "+sub, 1, b2i(row["failed"]), dur)
	}
	for _, c := range calls.Report().Functions {
		want["api "+c.Library+" "+c.Name] = tableFigures{int64(c.Calls), int64(c.Failed), c.Self}
	}
	for _, row := range tables["api"] {
		self, _ := row["self"].(int64)
		add(fmt.Sprint("api ", row["library"], " ", row["name"]), 1, b2i(row["failed"]), self)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-summary +tables):\n%s", file, d)
	}
	for _, row := range tables["events"] {
		others[row["kind"].(string)]--
	}
	for kind, n := range others {
		if n != 0 {
			t.Errorf("%s: %d events of kind %s are missing", file, n, kind)
		}
	}
	run := tables["runs"][0]
	complete, _ := run["complete"].(bool)
	if run["events"] != int64(len(events)) || run["start"] != h.Start || !complete {
		t.Errorf("%s: %d events: %v", file, len(events), run)
	}
}

// TestTablesStacks has where calls were made, and what they allocated.
func TestTablesStacks(t *testing.T) {
	stack := func(at int64, name string, flags traces.Flags, frames ...traces.StackFrame) *traces.Event {
		ev := &traces.Event{Kind: traces.KindStack, PID: 1, TID: 2, Time: at, FD: -1, Name: name, Flags: flags}
		ev.SetStack(frames)
		return ev
	}
	python := traces.StackFrame{Language: "python", File: "/app/train.py", Func: "step", Line: 12}
	got := exportTables(t, &traces.Header{Start: 1000, PID: 1}, slices.Values([]*traces.Event{
		{Kind: traces.KindCall, PID: 1, TID: 2, Time: 10, FD: -1, Name: "cuMemAlloc_v2", Path: "/lib/libcuda.so.1", Args: [6]uint64{0x50, 4096}},
		stack(12, "cuMemAlloc_v2", 0, traces.StackFrame{Language: traces.LanguageNative, File: "/lib/libtorch.so", Func: "_Z4gemmv", Offset: 0x123}, python),
		{Kind: traces.KindReturn, PID: 1, TID: 2, Time: 10, Dur: 20, FD: -1, Name: "cuMemAlloc_v2", Mem: []traces.Seg{{Addr: 0x50, Len: 8, Out: []byte{0, 0x10, 0, 0, 0, 0, 0, 0}}}},
		{Kind: traces.KindCall, PID: 1, TID: 2, Time: 40, FD: -1, Name: "cuMemFree_v2", Path: "/lib/libcuda.so.1", Args: [6]uint64{0x1000}},
		{Kind: traces.KindReturn, PID: 1, TID: 2, Time: 40, Dur: 5, FD: -1, Name: "cuMemFree_v2"},
		{Kind: traces.KindCall, PID: 1, TID: 2, Time: 50, FD: -1, Name: "cuCtxSynchronize", Path: "/lib/libcuda.so.1"},
		stack(90, "cuCtxSynchronize", traces.FlagUnfinished, python),
		stack(91, "cuCtxDestroy", 0, python), // the thread is in no such call
		{Kind: traces.KindEnd, Time: 100, FD: -1},
	}))
	row := func(at, call int64, name string, waits bool, frame int64, more map[string]any) map[string]any {
		r := map[string]any{"t": at, "time": at + 1000, "pid": int64(1), "tid": int64(2), "call": call, "name": name, "waits": waits, "frame": frame, "line": int64(0), "address": int64(0)}
		maps.Copy(r, more)
		return r
	}
	step := map[string]any{"language": "python", "function": "step", "file": "/app/train.py", "line": int64(12)}
	want := []map[string]any{
		row(12, 10, "cuMemAlloc_v2", false, 0, map[string]any{"language": "native", "function": "_Z4gemmv", "symbol": "_Z4gemmv", "file": "/lib/libtorch.so", "address": int64(0x123)}),
		row(12, 10, "cuMemAlloc_v2", false, 1, step),
		row(90, 50, "cuCtxSynchronize", true, 0, step),
		row(91, -1, "cuCtxDestroy", false, 0, step),
	}
	if d := cmp.Diff(want, got["stacks"]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for i, allocated := range []int64{4096, 0, 0} {
		if row := got["api"][i]; row["allocated"] != allocated {
			t.Errorf("%v allocated %v, want %d", row["name"], row["allocated"], allocated)
		}
	}
}

// TestTableForms writes rows in numbers and lengths at which the format takes another form.
func TestTableForms(t *testing.T) {
	type row struct {
		t          int64
		same, many string
		maybe      string
		dur        int64
		flag       bool
		small      int32
	}
	columns := []column[row]{
		int64s("t", func(r *row) int64 { return r.t }),
		texts("same", func(r *row) string { return r.same }),
		texts("many", func(r *row) string { return r.many }),
		maybeTexts("maybe", func(r *row) string { return r.maybe }),
		times("dur", func(r *row) int64 { return r.dur }),
		bools("flag", func(r *row) bool { return r.flag }),
		int32s("small", func(r *row) int32 { return r.small }),
	}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 7, 8, 9, 129, 1025, 3000, groupRows + 5} {
		var out bytes.Buffer
		tab := newTable("rows", func(string) (io.Writer, error) { return &out, nil }, enc, columns, func(a, b *row) int { return int(a.t - b.t) })
		for i := range n {
			r := row{t: int64((i * 7919) % (n + 1)), same: fmt.Sprint(i % 3), many: fmt.Sprint("text ", i), dur: int64(i%5) - 1, flag: i%3 == 0, small: int32(-i)}
			if i%4 > 1 {
				r.maybe = fmt.Sprint(i % 200)
			}
			tab.add(&r, len(r.many))
		}
		if err := tab.close(); err != nil {
			t.Fatal(err)
		}
		got := readParquet(t, fmt.Sprint(n), out.Bytes())
		if len(got) != n {
			t.Fatalf("%d rows of %d", len(got), n)
		}
		seen := make([]bool, n)
		for _, m := range got {
			i := -int(m["small"].(int64))
			want := map[string]any{"t": int64((i * 7919) % (n + 1)), "same": fmt.Sprint(i % 3), "many": fmt.Sprint("text ", i), "flag": i%3 == 0, "small": int64(-i)}
			if i%4 > 1 {
				want["maybe"] = fmt.Sprint(i % 200)
			}
			if i%5 > 0 {
				want["dur"] = int64(i%5) - 1
			}
			if d := cmp.Diff(want, m); d != "" || seen[i] {
				t.Fatalf("%d rows, row %d, again %v:\n%s", n, i, seen[i], d)
			}
			seen[i] = true
		}
		readOwn(t, out.Bytes(), got)
	}
}

// readOwn compares what our reader reads with rows.
func readOwn(t *testing.T, file []byte, want []map[string]any) {
	t.Helper()
	f, err := own.Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := own.NewReader()
	if err != nil {
		t.Fatal(err)
	}
	var columns []*own.Column
	for _, name := range []string{"t", "same", "many", "maybe", "dur", "flag", "small"} {
		columns = append(columns, &own.Column{Name: name, Null: -1, IsText: slices.Contains([]string{"same", "many", "maybe"}, name)})
	}
	at := 0
	err = r.Each(f, columns, func(rows int) error {
		for i := range rows {
			got := map[string]any{
				"t": columns[0].Numbers[i], "same": columns[1].Text(i), "many": columns[2].Text(i), "flag": columns[5].Numbers[i] != 0, "small": columns[6].Numbers[i],
			}
			if s := columns[3].Text(i); s != "" {
				got["maybe"] = s
			}
			if n := columns[4].Numbers[i]; n >= 0 {
				got["dur"] = n
			}
			if d := cmp.Diff(want[at], got); d != "" {
				t.Fatalf("row %d: %s", at, d)
			}
			at++
		}
		return nil
	})
	if err != nil || at != len(want) || f.Rows() != int64(at) {
		t.Fatalf("%d rows of %d: %v", at, len(want), err)
	}
	if err := r.Each(f, []*own.Column{{Name: "none"}}, nil); err == nil {
		t.Error("a column that there is not")
	}
	for _, c := range []*own.Column{{Name: "t", IsText: true}, {Name: "same"}} {
		if err := r.Each(f, []*own.Column{c}, func(int) error { return nil }); err == nil {
			t.Errorf("column %s was read as what it is not", c.Name)
		}
	}
	// Damage is an error, never a panic.
	for i := range 64 {
		bad := bytes.Clone(file)
		bad[len(bad)-1-i*len(bad)/80] ^= 0x55
		if f, err := own.Open(bytes.NewReader(bad), int64(len(bad))); err == nil {
			_ = r.Each(f, columns, func(int) error { return nil })
		}
		if f, err := own.Open(bytes.NewReader(file[i:]), int64(len(file)-i)); err == nil {
			_ = r.Each(f, columns, func(int) error { return nil })
		}
	}
}

// TestTableMemory: the rows of a table that wait take no more memory than a group may, however large they and
// their texts are.
func TestTableMemory(t *testing.T) {
	type row struct {
		t    int64
		text string
		_    [40]int64
	}
	columns := []column[row]{int64s("t", func(r *row) int64 { return r.t }), texts("text", func(r *row) string { return r.text })}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{0, 100, 100_000} {
		var out bytes.Buffer
		tab := newTable("rows", func(string) (io.Writer, error) { return &out, nil }, enc, columns, nil)
		text, most, rows := strings.Repeat("x", length), 0, 3*groupBytes/(350+length)
		for i := range rows {
			tab.add(&row{t: int64(i), text: text}, length)
			most = max(most, len(tab.rows)*int(reflect.TypeFor[row]().Size())+tab.text)
		}
		if err := tab.close(); err != nil {
			t.Fatal(err)
		}
		if most > groupBytes || most < groupBytes*9/10 || tab.ngroups < 3 {
			t.Errorf("texts of %d bytes: at most %d bytes wait, a group may have %d; %d groups", length, most, groupBytes, tab.ngroups)
		}
		if got := readParquet(t, "rows", out.Bytes()); len(got) != rows {
			t.Errorf("%d rows of %d", len(got), rows)
		}
	}
}

// TestTablesFull has a disk on which there is no room.
func TestTablesFull(t *testing.T) {
	h, events := recording(t, "../../../../traces/corpus/matmul.nvt")
	d := ioctl.NewDecoder(h)
	tables, err := NewTables(func(string) (io.Writer, error) { return &fullDisk{n: 1000}, nil }, h, d)
	if err != nil {
		t.Fatal(err)
	}
	feed := following(d, tables)
	for _, ev := range events {
		feed.Event(ev)
	}
	if err := tables.Close(); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if _, err := NewTables(func(string) (io.Writer, error) { return nil, errFull }, h, d); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}
