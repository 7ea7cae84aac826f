package fleet

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/parquet"
	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces/ranks"
)

// Tables is a recording in the form of tables: a folder that has one for each table, with files in it.
type Tables struct {
	Name  string // what files of all parts in table runs have in common
	dir   string
	place string   // run=R/rank=N
	Parts []string // names of the files of each part
}

// PartName is the name of the file of a part of a recording that is written as tables, from 1 on. Parts of one recording
// have what is before their number in common.
func PartName(recording string, part int) string {
	return fmt.Sprintf("part-%s-%06d.parquet", recording, part)
}

// wholeName is the name of the file of a recording that was exported.
const wholeName = "part.parquet"

// FindTables returns the recordings that are in a folder as tables, with those of their parts that are whole: the file
// of table runs is the last that is written.
func FindTables(dir string) ([]*Tables, error) {
	files, err := fs.Glob(os.DirFS(dir), "runs/run=*/rank=*/part*.parquet") // dir may have what means something in a pattern
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var list []*Tables
	for _, file := range files {
		folder, name := filepath.Split(filepath.Join(dir, file))
		stem := wholeName
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			stem = name[:i+1] + "*.parquet"
		}
		label := filepath.Join(folder, stem)
		if n := len(list); n == 0 || list[n-1].Name != label {
			rank := filepath.Base(folder)
			list = append(list, &Tables{Name: label, dir: dir, place: filepath.Join(filepath.Base(filepath.Dir(filepath.Clean(folder))), rank)})
		}
		last := list[len(list)-1]
		last.Parts = append(last.Parts, name)
	}
	slices.SortStableFunc(list, func(a, b *Tables) int { return cmp.Compare(a.rank(), b.rank()) })
	return list, nil
}

// rank is the rank in the name of the folder; -1: it is no number.
func (t *Tables) rank() int {
	_, text, _ := strings.Cut(filepath.Base(t.place), "=")
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// TableReader reads recordings in the form of tables. It is for one goroutine.
type TableReader struct {
	r       *parquet.Reader
	columns map[string]*parquet.Column
}

// NewTableReader returns a TableReader.
func NewTableReader() (*TableReader, error) {
	r, err := parquet.NewReader()
	return &TableReader{r: r, columns: make(map[string]*parquet.Column)}, err
}

// AddTables takes in all parts of a recording in the form of tables.
func (f *Fleet) AddTables(r *TableReader, t *Tables) error {
	if f.foreign(r, t) {
		for _, part := range t.Parts {
			if err := r.part(t, part, true, f.Align); err != nil {
				return err
			}
		}
	}
	for _, part := range t.Parts {
		if err := f.AddPart(r, t, part); err != nil {
			return err
		}
	}
	return nil
}

// AddPart takes in a part of a recording in the form of tables.
func (f *Fleet) AddPart(r *TableReader, t *Tables, part string) error {
	return r.part(t, part, false, f.Add)
}

// foreign reports whether a recording is of a host whose clock is to be compared.
func (f *Fleet) foreign(r *TableReader, t *Tables) bool {
	p := &Part{}
	if len(f.clocks) == 0 || r.run(t, t.Parts[0], p) != nil {
		return false // an error is told when the part is taken in
	}
	c := f.clocks[cmp.Or(p.Boot, p.Host)]
	return c == nil || !c.first && c.by == ""
}

// part gives a part in pieces to add: the last one has the rest. ops says that only operations are wanted.
func (r *TableReader) part(t *Tables, name string, ops bool, add func(*Part)) error {
	p := &Part{File: t.Name}
	if err := r.run(t, name, p); err != nil {
		return err
	}
	if err := r.comms(t, name, p); err != nil {
		return err
	}
	indexes := make(map[uint64]int32)
	for i := range p.Comms {
		indexes[p.Comms[i].ID] = int32(i)
	}
	events := p.Events
	p.Events = 0
	if err := r.ops(t, name, p, indexes, add); err != nil || ops {
		return err
	}
	p.Ops, p.Events = p.Ops[:0], events
	if err := r.facts(t, name, p); err != nil {
		return err
	}
	add(p)
	return nil
}

// rows is what a table's rows are read by.
type rows struct {
	*TableReader
	columns []*parquet.Column
}

// column returns a column of numbers or truths of the table, which is to be read.
func (r *rows) column(name string) *parquet.Column { return r.add(name, false) }

// text returns a column of texts.
func (r *rows) text(name string) *parquet.Column { return r.add(name, true) }

func (r *rows) add(name string, text bool) *parquet.Column {
	c := r.TableReader.columns[name]
	if c == nil {
		c = &parquet.Column{Name: name, Null: -1}
		r.TableReader.columns[name] = c
	}
	c.IsText = text
	r.columns = append(r.columns, c)
	return c
}

// each reads a table's file, if there is one, and calls group for each group of rows.
func (r *rows) each(t *Tables, table, name string, group func(rows int) error) error {
	path := filepath.Join(t.dir, table, t.place, name)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // nothing waits for who writes to a FIFO
	if os.IsNotExist(err) && table != "runs" {
		return nil // it has no rows
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", path)
	}
	file, err := parquet.Open(f, st.Size())
	if err == nil {
		err = r.r.Each(file, r.columns, group)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// run reads table runs.
func (r *TableReader) run(t *Tables, name string, p *Part) error {
	w := &rows{TableReader: r}
	start, end, host, boot, launcher := w.column("start"), w.column("end"), w.text("host"), w.text("boot"), w.text("launcher")
	events, complete, gpu := w.column("events"), w.column("complete"), w.column("gpu_times")
	pid := w.column("pid")
	doing, since, exit, exited := w.text("doing"), w.column("doing_since"), w.text("exit"), w.column("exited")
	n := 0
	err := w.each(t, "runs", name, func(rows int) error {
		for i := range rows {
			n++
			p.Start, p.Host, p.Boot, p.Last = start.Numbers[i], host.Text(i), boot.Text(i), end.Numbers[i]-start.Numbers[i]
			p.Events, p.Complete, p.GPU = uint64(events.Numbers[i]), complete.Numbers[i] != 0, gpu.Numbers[i] != 0
			p.PID = int32(pid.Numbers[i])
			p.State = traits.State{Doing: doing.Text(i), Since: since.Numbers[i], Exit: exit.Text(i), Exited: exited.Numbers[i]}
			set := make(map[string]string)
			for word := range strings.FieldsSeq(launcher.Text(i)) {
				if name, value, ok := strings.Cut(word, "="); ok {
					set[name] = value
				}
			}
			p.Place = ranks.Of(set)
		}
		return nil
	})
	if err == nil && n != 1 {
		return fmt.Errorf("%s: %d rows, where the recording has one", t.Name, n)
	}
	return err
}

// comms reads table communicators.
func (r *TableReader) comms(t *Tables, name string, p *Part) error {
	w := &rows{TableReader: r}
	id, parent, rank, size := w.column("comm"), w.column("parent"), w.column("comm_rank"), w.column("comm_size")
	entered, at, known, over := w.column("entered"), w.column("entered_at"), w.column("known"), w.column("over")
	open, since, inCall := w.column("open"), w.column("open_since"), w.column("in_call")
	seq, op, typ, red, root, count := w.column("seq"), w.text("name"), w.text("type"), w.text("op"), w.column("root"), w.column("count")
	return w.each(t, "communicators", name, func(rows int) error {
		for i := range rows {
			c := nccl.Progress{
				Comm:    nccl.Comm{ID: uint64(id.Numbers[i]), Parent: uint64(parent.Numbers[i]), Rank: int32(rank.Numbers[i]), Size: int32(size.Numbers[i])},
				Entered: uint64(entered.Numbers[i]), Enter: at.Numbers[i], Known: known.Numbers[i] != 0, Over: uint64(over.Numbers[i]),
				First: uint64(open.Numbers[i]), Since: since.Numbers[i], InCall: inCall.Numbers[i] != 0,
			}
			c.What = nccl.Op{
				Seq: uint64(seq.Numbers[i]), Name: op.Text(i), Type: nccl.TypeNamed(typ.Text(i)), Red: nccl.RedNamed(red.Text(i)), Root: int32(root.Numbers[i]), Count: uint64(count.Numbers[i]),
			}
			p.Comms = append(p.Comms, c)
		}
		return nil
	})
}

// ops reads table collectives, and gives them to add in pieces.
func (r *TableReader) ops(t *Tables, name string, p *Part, indexes map[uint64]int32, add func(*Part)) error {
	w := &rows{TableReader: r}
	at, id, seq, op, typ, red := w.column("t"), w.column("comm"), w.column("seq"), w.text("name"), w.text("type"), w.text("op")
	root, count, called, begin, gpu := w.column("root"), w.column("count"), w.column("dur"), w.column("gpu_t"), w.column("gpu_dur")
	waited, exposed, again, open := w.column("waited"), w.column("exposed"), w.column("repeated"), w.column("not_over")
	spent := [nccl.Purposes]*parquet.Column{w.column("compute"), w.column("copy"), w.column("driver"), w.column("host")}
	return w.each(t, "collectives", name, func(rows int) error {
		types, reds := make([]int8, len(typ.Texts)), make([]int32, len(red.Texts))
		for i, text := range typ.Texts {
			types[i] = nccl.TypeNamed(text)
		}
		for i, text := range red.Texts {
			reds[i] = nccl.RedNamed(text)
		}
		p.Ops = slices.Grow(p.Ops[:0], rows)[:rows]
		for i := range rows {
			comm, ok := indexes[uint64(id.Numbers[i])]
			if !ok {
				return fmt.Errorf("collective %d of communicator %016x, which is not in table communicators", seq.Numbers[i], uint64(id.Numbers[i]))
			}
			d := &p.Ops[i]
			*d = nccl.Done{Over: -1, Dur: waited.Numbers[i], Exposed: exposed.Numbers[i], Repeated: again.Numbers[i] != 0}
			d.Comm, d.Name, d.Type, d.Red, d.Root = comm, op.Text(i), types[typ.IDs[i]], reds[red.IDs[i]], int32(root.Numbers[i])
			d.Count, d.Seq, d.Enter, d.Exit, d.NotOver = uint64(count.Numbers[i]), uint64(seq.Numbers[i]), at.Numbers[i], -1, open.Numbers[i] != 0
			if called.Numbers[i] >= 0 {
				d.Exit = d.Enter + called.Numbers[i]
			}
			if d.Dur >= 0 {
				d.Over = max(begin.Numbers[i]+gpu.Numbers[i], d.Exit)
			}
			for k, c := range spent {
				d.Spent[k] = c.Numbers[i]
				d.Window += c.Numbers[i]
			}
		}
		add(p)
		return nil
	})
}

// facts reads table facts.
func (r *TableReader) facts(t *Tables, name string, p *Part) error {
	w := &rows{TableReader: r}
	kind, what, value, n := w.text("kind"), w.text("name"), w.text("value"), w.column("n")
	return w.each(t, "facts", name, func(rows int) error {
		for i := range rows {
			p.Traits = append(p.Traits, traits.Trait{Kind: kind.Text(i), Name: what.Text(i), Value: value.Text(i), N: uint64(n.Numbers[i])})
		}
		return nil
	})
}
