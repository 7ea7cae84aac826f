package export

import (
	"cmp"
	"math"

	"nvtrace/nvattach/nccl"
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

	exposed int64
	spent   [nccl.Purposes]int64
	copied  bool
	open    bool
}

// commRow is how far a process has come in a communicator, in table communicators.
type commRow struct {
	t, time int64
	pid     int32
	nccl.Progress
}

// factRow is something that ranks are compared by, in table facts.
type factRow struct {
	t, time           int64
	pid               int32
	kind, name, value string
	n                 int64
}

// commRowColumns are the columns of a commRow.
var commRowColumns = []column[commRow]{
	int64s("t", func(r *commRow) int64 { return r.t }),
	int64s("time", func(r *commRow) int64 { return r.time }),
	int32s("pid", func(r *commRow) int32 { return r.pid }),
	int64s("comm", func(r *commRow) int64 { return int64(r.ID) }),
	int64s("parent", func(r *commRow) int64 { return int64(r.Parent) }),
	int32s("comm_rank", func(r *commRow) int32 { return r.Rank }),
	int32s("comm_size", func(r *commRow) int32 { return r.Size }),
	times("made", func(r *commRow) int64 { return r.Comm.Since }),
	times("ended", func(r *commRow) int64 { return r.Ended }),
	bools("aborted", func(r *commRow) bool { return r.Abort }),
	int64s("entered", func(r *commRow) int64 { return int64(r.Entered) }),
	int64s("entered_at", func(r *commRow) int64 { return r.Enter }),
	bools("known", func(r *commRow) bool { return r.Known }),
	int64s("over", func(r *commRow) int64 { return int64(r.Over) }),
	int64s("open", func(r *commRow) int64 { return int64(r.First) }),
	int64s("open_since", func(r *commRow) int64 { return r.Progress.Since }),
	bools("in_call", func(r *commRow) bool { return r.InCall }),
	int64s("seq", func(r *commRow) int64 { return int64(r.What.Seq) }),
	maybeTexts("name", func(r *commRow) string { return r.What.Name }),
	maybeTexts("type", func(r *commRow) string { return r.What.TypeName() }),
	maybeTexts("op", func(r *commRow) string { return r.What.RedName() }),
	int32s("root", func(r *commRow) int32 { return r.What.Root }),
	int64s("count", func(r *commRow) int64 { return int64(min(r.What.Count, math.MaxInt64)) }),
}

// factRowColumns are the columns of a factRow.
var factRowColumns = []column[factRow]{
	int64s("t", func(r *factRow) int64 { return r.t }),
	int64s("time", func(r *factRow) int64 { return r.time }),
	int32s("pid", func(r *factRow) int32 { return r.pid }),
	texts("kind", func(r *factRow) string { return r.kind }),
	maybeTexts("name", func(r *factRow) string { return r.name }),
	texts("value", func(r *factRow) string { return r.value }),
	int64s("n", func(r *factRow) int64 { return r.n }),
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
	int64s("exposed", func(r *collectiveRow) int64 { return r.exposed }),
	int64s("compute", func(r *collectiveRow) int64 { return r.spent[nccl.Compute] }),
	int64s("copy", func(r *collectiveRow) int64 { return r.spent[nccl.Copying] }),
	int64s("driver", func(r *collectiveRow) int64 { return r.spent[nccl.Driving] }),
	int64s("host", func(r *collectiveRow) int64 { return r.spent[nccl.Hosting] }),
	bools("repeated", func(r *collectiveRow) bool { return r.copied }),
	bools("not_over", func(r *collectiveRow) bool { return r.open }),
}

func collectivesBefore(a, b *collectiveRow) int { return cmp.Compare(a.t, b.t) }

// putCollectives writes the operations of NCCL's of which no more is to come, and how far communicators are.
func (t *Tables) putCollectives(end bool, now int64) {
	for _, o := range t.process.Take(end) {
		c := &t.process.Comms[o.Comm]
		r := collectiveRow{
			t: o.Enter, time: t.start + o.Enter, pid: o.PID, tid: o.TID, comm: int64(c.ID), member: c.Rank, size: c.Size, seq: int64(o.Seq),
			name: o.Name, typ: o.TypeName(), op: o.RedName(), root: o.Root, count: int64(min(o.Count, math.MaxInt64)), bytes: int64(min(o.Bytes(), math.MaxInt64)),
			stream: int64(o.Stream), group: max(o.Group, 1), called: -1, result: o.Result, launch: o.Launch, begin: o.Begin, dur: -1, in: o.Dur,
			exposed: o.Exposed, spent: o.Spent, copied: o.Repeated, open: o.NotOver,
		}
		if o.Exit >= 0 {
			r.called = o.Exit - o.Enter
		}
		if o.End >= 0 && !o.NotOver {
			r.dur = o.End - o.Begin
		}
		if o.Dur >= 0 && !o.Repeated {
			t.times.add("collective", o.Name, o.Dur)
		}
		t.collectives.add(&r, 0)
	}
	for _, p := range t.process.Progress() {
		t.comms.add(&commRow{now, t.start + now, t.run.pid, p}, 0)
	}
}

// MoreCollectives is how many operations of NCCL's found no room in table collectives.
func (t *Tables) MoreCollectives() uint64 { return t.process.More }
