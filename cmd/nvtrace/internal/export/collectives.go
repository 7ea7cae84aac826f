package export

import (
	"cmp"
	"math"
)

// collectiveRow is an operation of NCCL's, in table collectives.
type collectiveRow struct {
	t      int64
	time   int64
	pid    int32
	tid    int32
	comm   int64
	member int32
	size   int32
	seq    int64
	name   string
	typ    string
	op     string
	root   int32
	count  int64
	bytes  int64
	stream int64
	group  int32
	called int64
	result int32
	launch int64
	begin  int64
	dur    int64
	in     int64
}

// collectiveRowColumns are the columns of a collectiveRow.
var collectiveRowColumns = []column[collectiveRow]{
	int64s("t", func(r *collectiveRow) int64 { return r.t }),
	int64s("time", func(r *collectiveRow) int64 { return r.time }),
	int32s("pid", func(r *collectiveRow) int32 { return r.pid }),
	int32s("tid", func(r *collectiveRow) int32 { return r.tid }),
	int64s("comm", func(r *collectiveRow) int64 { return r.comm }),
	int32s("comm_rank", func(r *collectiveRow) int32 { return r.member }),
	int32s("comm_size", func(r *collectiveRow) int32 { return r.size }),
	int64s("seq", func(r *collectiveRow) int64 { return r.seq }),
	texts("name", func(r *collectiveRow) string { return r.name }),
	maybeTexts("type", func(r *collectiveRow) string { return r.typ }),
	maybeTexts("op", func(r *collectiveRow) string { return r.op }),
	int32s("root", func(r *collectiveRow) int32 { return r.root }),
	int64s("count", func(r *collectiveRow) int64 { return r.count }),
	int64s("bytes", func(r *collectiveRow) int64 { return r.bytes }),
	int64s("stream", func(r *collectiveRow) int64 { return r.stream }),
	int32s("calls", func(r *collectiveRow) int32 { return r.group }),
	times("dur", func(r *collectiveRow) int64 { return r.called }),
	int32s("result", func(r *collectiveRow) int32 { return r.result }),
	times("launch", func(r *collectiveRow) int64 { return r.launch }),
	times("gpu_t", func(r *collectiveRow) int64 { return r.begin }),
	times("gpu_dur", func(r *collectiveRow) int64 { return r.dur }),
	times("waited", func(r *collectiveRow) int64 { return r.in }),
}

func collectivesBefore(a, b *collectiveRow) int { return cmp.Compare(a.t, b.t) }

// putCollectives writes the operations of NCCL's that were seen, when their times are all there.
func (t *Tables) putCollectives() {
	for i := range t.follow.Ops {
		o := &t.follow.Ops[i]
		c := &t.follow.Comms[o.Comm]
		r := collectiveRow{
			t: o.Enter, time: t.start + o.Enter, pid: o.PID, tid: o.TID, comm: int64(c.ID), member: c.Rank, size: c.Size, seq: int64(o.Seq),
			name: o.Name, typ: o.TypeName(), op: o.RedName(), root: o.Root, count: int64(min(o.Count, math.MaxInt64)), bytes: int64(min(o.Bytes(), math.MaxInt64)),
			stream: int64(o.Stream), group: max(o.Group, 1), called: -1, result: o.Result, launch: o.Launch, begin: o.Begin, dur: -1, in: -1,
		}
		if o.Exit >= 0 {
			r.called = o.Exit - o.Enter
		}
		if o.End >= 0 && !o.NotOver {
			r.dur = o.End - o.Begin
		}
		if _, _, in, ok := o.In(); ok {
			r.in = in
		}
		t.collectives.add(&r, 0)
	}
}

// MoreCollectives is how many operations of NCCL's found no room in table collectives.
func (t *Tables) MoreCollectives() uint64 { return t.follow.More }
