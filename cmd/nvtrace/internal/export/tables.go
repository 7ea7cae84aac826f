package export

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
)

// The rows of the tables, as traces/SCHEMA.md describes them. Names and meanings of columns
// stay; new ones may come. There are no unsigned numbers and no timestamps of nanoseconds
// among them, which not all engines read.
type (
	// callRow is a library call, in table api.
	callRow struct {
		t           int64
		time        int64
		dur         int64
		self        int64
		pid         int32
		tid         int32
		depth       int32
		library     string
		name        string
		parent      string
		result      string
		failed      bool
		calls       int64
		ioctls      int64
		ioctlTime   int64
		description string
		allocated   int64
	}
	// kernelRow is a launch, in table kernels.
	kernelRow struct {
		t      int64
		time   int64
		dur    int64
		pid    int32
		tid    int32
		stream int64
		kernel string
		symbol string
		by     string
	}
	// gpuRow is what a GPU did for a call, in table gpu.
	gpuRow struct {
		t          int64
		time       int64
		dur        int64
		pid        int32
		tid        int32
		call       int64
		stream     int64
		context    int64
		kernel     string
		symbol     string
		by         string
		bytes      int64
		margin     int64
		endMargin  int64
		end, named string
		device     int32
		launch     int64
	}
	// stackRow is a function that had been called where a library call was made, or where a
	// thread waited in one, in table stacks.
	stackRow struct {
		t        int64
		time     int64
		pid      int32
		tid      int32
		call     int64
		name     string
		waits    bool
		frame    int32
		language string
		function string
		symbol   string
		file     string
		line     int32
		address  int64
	}
	// ioctlRow is a device call that is an ioctl, in table ioctls.
	ioctlRow struct {
		t         int64
		time      int64
		dur       int64
		pid       int32
		tid       int32
		device    string
		fd        int32
		file      int64
		request   int64
		name      string
		sub       string
		status    string
		failed    bool
		client    int64
		parent    int64
		object    int64
		new       int64
		bytes     int64
		allocated int64
		unknown   string
		during    string
	}
	// eventRow is a record that is in no other table of its own, in table events.
	eventRow struct {
		t      int64
		time   int64
		dur    int64
		pid    int32
		tid    int32
		kind   string
		flags  string
		fd     int32
		file   int64
		device string
		result int64
		child  int32
		addr   int64
		length int64
		name   string
		path   string
		text   string
		during string
	}
	// imageRow is a code image that was given to the driver, in table images.
	imageRow struct {
		t        int64
		time     int64
		pid      int32
		tid      int32
		loader   string
		library  string
		sha256   string
		size     int64
		format   string
		file     string
		offset   int64
		handle   int64
		origin   string
		replaced string
	}
	// memoryRow is what a process has of something from a moment on, in table memory.
	memoryRow struct {
		t     int64
		time  int64
		pid   int32
		what  string
		value int64
		owner string
	}
	// failureRow is a call that failed, in table failures.
	failureRow struct {
		t      int64
		time   int64
		dur    int64
		pid    int32
		tid    int32
		kind   string
		name   string
		sub    string
		status string
		during string
	}
	// runRow is the recording, in table runs.
	runRow struct {
		start     int64
		end       int64
		tool      string
		arch      string
		kernel    string
		driver    string
		host      string
		boot      string
		container string
		command   string
		pid       int32
		gpus      string
		launcher  string
		events    int64
		lost      int64
		gaps      int64
		complete  bool
		part      int32
		timed     bool
		state     traits.State
	}
)

// callRowColumns are the columns of a callRow.
var callRowColumns = []column[callRow]{
	int64s("t", func(r *callRow) int64 { return r.t }),
	int64s("time", func(r *callRow) int64 { return r.time }),
	times("dur", func(r *callRow) int64 { return r.dur }),
	times("self", func(r *callRow) int64 { return r.self }),
	int32s("pid", func(r *callRow) int32 { return r.pid }),
	int32s("tid", func(r *callRow) int32 { return r.tid }),
	int32s("depth", func(r *callRow) int32 { return r.depth }),
	texts("library", func(r *callRow) string { return r.library }),
	texts("name", func(r *callRow) string { return r.name }),
	maybeTexts("parent", func(r *callRow) string { return r.parent }),
	maybeTexts("result", func(r *callRow) string { return r.result }),
	bools("failed", func(r *callRow) bool { return r.failed }),
	int64s("calls", func(r *callRow) int64 { return r.calls }),
	int64s("ioctls", func(r *callRow) int64 { return r.ioctls }),
	int64s("ioctl_time", func(r *callRow) int64 { return r.ioctlTime }),
	texts("call", func(r *callRow) string { return r.description }),
	int64s("allocated", func(r *callRow) int64 { return r.allocated }),
}

// stackRowColumns are the columns of a stackRow.
var stackRowColumns = []column[stackRow]{
	int64s("t", func(r *stackRow) int64 { return r.t }),
	int64s("time", func(r *stackRow) int64 { return r.time }),
	int32s("pid", func(r *stackRow) int32 { return r.pid }),
	int32s("tid", func(r *stackRow) int32 { return r.tid }),
	int64s("call", func(r *stackRow) int64 { return r.call }),
	texts("name", func(r *stackRow) string { return r.name }),
	bools("waits", func(r *stackRow) bool { return r.waits }),
	int32s("frame", func(r *stackRow) int32 { return r.frame }),
	texts("language", func(r *stackRow) string { return r.language }),
	maybeTexts("function", func(r *stackRow) string { return r.function }),
	maybeTexts("symbol", func(r *stackRow) string { return r.symbol }),
	maybeTexts("file", func(r *stackRow) string { return r.file }),
	int32s("line", func(r *stackRow) int32 { return r.line }),
	int64s("address", func(r *stackRow) int64 { return r.address }),
}

// kernelRowColumns are the columns of a kernelRow.
var kernelRowColumns = []column[kernelRow]{
	int64s("t", func(r *kernelRow) int64 { return r.t }),
	int64s("time", func(r *kernelRow) int64 { return r.time }),
	times("dur", func(r *kernelRow) int64 { return r.dur }),
	int32s("pid", func(r *kernelRow) int32 { return r.pid }),
	int32s("tid", func(r *kernelRow) int32 { return r.tid }),
	int64s("stream", func(r *kernelRow) int64 { return r.stream }),
	maybeTexts("kernel", func(r *kernelRow) string { return r.kernel }),
	maybeTexts("symbol", func(r *kernelRow) string { return r.symbol }),
	texts("by", func(r *kernelRow) string { return r.by }),
}

// gpuRowColumns are the columns of a gpuRow.
var gpuRowColumns = []column[gpuRow]{
	int64s("t", func(r *gpuRow) int64 { return r.t }),
	int64s("time", func(r *gpuRow) int64 { return r.time }),
	int64s("dur", func(r *gpuRow) int64 { return r.dur }),
	int32s("pid", func(r *gpuRow) int32 { return r.pid }),
	int32s("tid", func(r *gpuRow) int32 { return r.tid }),
	int64s("call", func(r *gpuRow) int64 { return r.call }),
	int64s("stream", func(r *gpuRow) int64 { return r.stream }),
	int64s("context", func(r *gpuRow) int64 { return r.context }),
	maybeTexts("kernel", func(r *gpuRow) string { return r.kernel }),
	maybeTexts("symbol", func(r *gpuRow) string { return r.symbol }),
	texts("by", func(r *gpuRow) string { return r.by }),
	int64s("bytes", func(r *gpuRow) int64 { return r.bytes }),
	int64s("margin", func(r *gpuRow) int64 { return r.margin }),
	int32s("device", func(r *gpuRow) int32 { return r.device }),
	int64s("launch", func(r *gpuRow) int64 { return r.launch }),
	int64s("end_margin", func(r *gpuRow) int64 { return r.endMargin }),
	maybeTexts("end", func(r *gpuRow) string { return r.end }),
	maybeTexts("named", func(r *gpuRow) string { return r.named }),
}

// ioctlRowColumns are the columns of a ioctlRow.
var ioctlRowColumns = []column[ioctlRow]{
	int64s("t", func(r *ioctlRow) int64 { return r.t }),
	int64s("time", func(r *ioctlRow) int64 { return r.time }),
	times("dur", func(r *ioctlRow) int64 { return r.dur }),
	int32s("pid", func(r *ioctlRow) int32 { return r.pid }),
	int32s("tid", func(r *ioctlRow) int32 { return r.tid }),
	texts("device", func(r *ioctlRow) string { return r.device }),
	int32s("fd", func(r *ioctlRow) int32 { return r.fd }),
	int64s("file", func(r *ioctlRow) int64 { return r.file }),
	int64s("request", func(r *ioctlRow) int64 { return r.request }),
	texts("name", func(r *ioctlRow) string { return r.name }),
	maybeTexts("sub", func(r *ioctlRow) string { return r.sub }),
	maybeTexts("status", func(r *ioctlRow) string { return r.status }),
	bools("failed", func(r *ioctlRow) bool { return r.failed }),
	int64s("client", func(r *ioctlRow) int64 { return r.client }),
	int64s("parent", func(r *ioctlRow) int64 { return r.parent }),
	int64s("object", func(r *ioctlRow) int64 { return r.object }),
	int64s("new", func(r *ioctlRow) int64 { return r.new }),
	int64s("bytes", func(r *ioctlRow) int64 { return r.bytes }),
	int64s("allocated", func(r *ioctlRow) int64 { return r.allocated }),
	maybeTexts("unknown", func(r *ioctlRow) string { return r.unknown }),
	maybeTexts("during", func(r *ioctlRow) string { return r.during }),
}

// eventRowColumns are the columns of a eventRow.
var eventRowColumns = []column[eventRow]{
	int64s("t", func(r *eventRow) int64 { return r.t }),
	int64s("time", func(r *eventRow) int64 { return r.time }),
	times("dur", func(r *eventRow) int64 { return r.dur }),
	int32s("pid", func(r *eventRow) int32 { return r.pid }),
	int32s("tid", func(r *eventRow) int32 { return r.tid }),
	texts("kind", func(r *eventRow) string { return r.kind }),
	maybeTexts("flags", func(r *eventRow) string { return r.flags }),
	int32s("fd", func(r *eventRow) int32 { return r.fd }),
	int64s("file", func(r *eventRow) int64 { return r.file }),
	maybeTexts("device", func(r *eventRow) string { return r.device }),
	int64s("result", func(r *eventRow) int64 { return r.result }),
	int32s("child", func(r *eventRow) int32 { return r.child }),
	int64s("address", func(r *eventRow) int64 { return r.addr }),
	int64s("length", func(r *eventRow) int64 { return r.length }),
	maybeTexts("name", func(r *eventRow) string { return r.name }),
	maybeTexts("path", func(r *eventRow) string { return r.path }),
	maybeTexts("text", func(r *eventRow) string { return r.text }),
	maybeTexts("during", func(r *eventRow) string { return r.during }),
}

// imageRowColumns are the columns of a imageRow.
var imageRowColumns = []column[imageRow]{
	int64s("t", func(r *imageRow) int64 { return r.t }),
	int64s("time", func(r *imageRow) int64 { return r.time }),
	int32s("pid", func(r *imageRow) int32 { return r.pid }),
	int32s("tid", func(r *imageRow) int32 { return r.tid }),
	texts("loader", func(r *imageRow) string { return r.loader }),
	maybeTexts("library", func(r *imageRow) string { return r.library }),
	texts("sha256", func(r *imageRow) string { return r.sha256 }),
	int64s("size", func(r *imageRow) int64 { return r.size }),
	texts("format", func(r *imageRow) string { return r.format }),
	maybeTexts("file", func(r *imageRow) string { return r.file }),
	int64s("offset", func(r *imageRow) int64 { return r.offset }),
	int64s("handle", func(r *imageRow) int64 { return r.handle }),
	maybeTexts("origin", func(r *imageRow) string { return r.origin }),
	maybeTexts("replaced", func(r *imageRow) string { return r.replaced }),
}

// memoryRowColumns are the columns of a memoryRow.
var memoryRowColumns = []column[memoryRow]{
	int64s("t", func(r *memoryRow) int64 { return r.t }),
	int64s("time", func(r *memoryRow) int64 { return r.time }),
	int32s("pid", func(r *memoryRow) int32 { return r.pid }),
	texts("what", func(r *memoryRow) string { return r.what }),
	int64s("value", func(r *memoryRow) int64 { return r.value }),
	maybeTexts("owner", func(r *memoryRow) string { return r.owner }),
}

// failureRowColumns are the columns of a failureRow.
var failureRowColumns = []column[failureRow]{
	int64s("t", func(r *failureRow) int64 { return r.t }),
	int64s("time", func(r *failureRow) int64 { return r.time }),
	times("dur", func(r *failureRow) int64 { return r.dur }),
	int32s("pid", func(r *failureRow) int32 { return r.pid }),
	int32s("tid", func(r *failureRow) int32 { return r.tid }),
	texts("kind", func(r *failureRow) string { return r.kind }),
	texts("name", func(r *failureRow) string { return r.name }),
	maybeTexts("sub", func(r *failureRow) string { return r.sub }),
	texts("status", func(r *failureRow) string { return r.status }),
	maybeTexts("during", func(r *failureRow) string { return r.during }),
}

// runRowColumns are the columns of a runRow.
var runRowColumns = []column[runRow]{
	int64s("start", func(r *runRow) int64 { return r.start }),
	int64s("end", func(r *runRow) int64 { return r.end }),
	texts("tool", func(r *runRow) string { return r.tool }),
	texts("arch", func(r *runRow) string { return r.arch }),
	texts("kernel", func(r *runRow) string { return r.kernel }),
	maybeTexts("driver", func(r *runRow) string { return r.driver }),
	maybeTexts("host", func(r *runRow) string { return r.host }),
	maybeTexts("boot", func(r *runRow) string { return r.boot }),
	maybeTexts("container", func(r *runRow) string { return r.container }),
	texts("command", func(r *runRow) string { return r.command }),
	int32s("pid", func(r *runRow) int32 { return r.pid }),
	maybeTexts("gpus", func(r *runRow) string { return r.gpus }),
	maybeTexts("launcher", func(r *runRow) string { return r.launcher }),
	int64s("events", func(r *runRow) int64 { return r.events }),
	int64s("lost", func(r *runRow) int64 { return r.lost }),
	int64s("gaps", func(r *runRow) int64 { return r.gaps }),
	bools("complete", func(r *runRow) bool { return r.complete }),
	int32s("part", func(r *runRow) int32 { return r.part }),
	bools("gpu_times", func(r *runRow) bool { return r.timed }),
	maybeTexts("doing", func(r *runRow) string { return r.state.Doing }),
	times("doing_since", func(r *runRow) int64 { return r.state.Since }),
	maybeTexts("exit", func(r *runRow) string { return r.state.Exit }),
	int64s("exited", func(r *runRow) int64 { return r.state.Exited }),
}

// memoryNames are the quantities in table memory.
var memoryNames = [quantities]string{"vidmem", "sysmem", "fabric", "mapped", "objects"}

// tableNames are the tables that [Tables] writes.
var tableNames = [...]string{"events", "api", "kernels", "ioctls", "images", "memory", "failures", "runs", "gpu", "stacks", "collectives", "communicators", "facts", "histograms"}

// Tables writes a recording as tables in Parquet files. It is for one goroutine.
type Tables struct {
	// Demangle, if not nil, names kernels for people.
	Demangle func(name string) string

	scene
	start       int64
	run         runRow
	events      *table[eventRow]
	calls       *table[callRow]
	kernels     *table[kernelRow]
	ioctls      *table[ioctlRow]
	images      *table[imageRow]
	memory      *table[memoryRow]
	failures    *table[failureRow]
	gpu         *table[gpuRow]
	stacks      *table[stackRow]
	collectives *table[collectiveRow]
	comms       *table[commRow]
	facts       *table[factRow]
	histograms  *table[histogramRow]
	process     *nccl.Process
	traits      *traits.Gatherer
	times       distributions
	owners      ownership
	began       int64 // of the part
	runs        *table[runRow]

	slots   []slot
	free    []int
	common  map[string]string
	symbols map[string]string
	scratch []byte
}

// slot is what is kept of a library call that is open; a frame's Mark is its number plus 1.
type slot struct {
	wanted bool
	launch launch
	symbol string
	text   string
}

// NewTables returns Tables whose files open makes, by the tables' names. The events that it
// will be given are decoded by d; h is the recording's header.
func NewTables(open func(table string) (io.Writer, error), h *traces.Header, d *ioctl.Decoder) (*Tables, error) {
	t, err := NewParts(open, h, d)
	if err != nil {
		return nil, err
	}
	t.run.part = 0
	return t, t.begin()
}

// begin makes all files.
func (t *Tables) begin() error {
	return errors.Join(t.events.begin(), t.calls.begin(), t.kernels.begin(), t.ioctls.begin(), t.images.begin(), t.memory.begin(), t.failures.begin(), t.gpu.begin(), t.stacks.begin(),
		t.collectives.begin(), t.comms.begin(), t.facts.begin(), t.histograms.begin(), t.runs.begin())
}

// NewParts returns Tables that are written in parts ([Tables.Next]): files that open makes, in the first part for all tables,
// then for those that have rows. That of the table runs is the last to be ended.
func NewParts(open func(table string) (io.Writer, error), h *traces.Header, d *ioctl.Decoder) (*Tables, error) {
	t := &Tables{start: h.Start, common: make(map[string]string), symbols: make(map[string]string), process: nccl.NewProcess(), traits: traits.New(h), times: make(distributions), owners: newOwnership()}
	t.init(h, d)
	t.run = runRow{
		start: h.Start, end: h.Start, tool: clean(h.Tool), arch: clean(h.Arch), kernel: clean(h.Kernel), driver: clean(h.Driver), host: clean(h.Host), boot: clean(h.Boot),
		container: clean(h.Container), command: clean(commandLine(h.Argv)), pid: h.PID, part: 1,
	}
	if h.GPUs != nil {
		t.run.gpus = clean(strings.Join(h.GPUs, " "))
	}
	for _, name := range slices.Sorted(maps.Keys(h.Rank)) {
		if t.run.launcher != "" {
			t.run.launcher += " "
		}
		t.run.launcher += clean(name + "=" + h.Rank[name])
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	t.events = newTable("events", open, enc, eventRowColumns, func(a, b *eventRow) int { return cmp.Compare(a.t, b.t) })
	t.calls = newTable("api", open, enc, callRowColumns, func(a, b *callRow) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.depth, b.depth)) })
	t.kernels = newTable("kernels", open, enc, kernelRowColumns, func(a, b *kernelRow) int { return cmp.Compare(a.t, b.t) })
	t.ioctls = newTable("ioctls", open, enc, ioctlRowColumns, func(a, b *ioctlRow) int { return cmp.Compare(a.t, b.t) })
	t.images = newTable("images", open, enc, imageRowColumns, func(a, b *imageRow) int { return cmp.Compare(a.t, b.t) })
	t.memory = newTable("memory", open, enc, memoryRowColumns, func(a, b *memoryRow) int { return cmp.Compare(a.t, b.t) })
	t.failures = newTable("failures", open, enc, failureRowColumns, func(a, b *failureRow) int { return cmp.Compare(a.t, b.t) })
	t.runs = newTable("runs", open, enc, runRowColumns, nil)
	t.gpu = newTable("gpu", open, enc, gpuRowColumns, func(a, b *gpuRow) int { return cmp.Compare(a.t, b.t) })
	t.stacks = newTable("stacks", open, enc, stackRowColumns, func(a, b *stackRow) int { return cmp.Compare(a.t, b.t) })
	t.collectives = newTable("collectives", open, enc, collectiveRowColumns, collectivesBefore)
	t.comms = newTable("communicators", open, enc, commRowColumns, nil)
	t.facts = newTable("facts", open, enc, factRowColumns, nil)
	t.histograms = newTable("histograms", open, enc, histogramRowColumns, nil)
	return t, nil
}

// TableNames returns the names of the tables that can be left out.
func TableNames() []string {
	return []string{"events", "api", "kernels", "ioctls", "images", "memory", "failures", "gpu", "stacks", "collectives", "histograms"}
}

// Only leaves out the tables that are not in a list, but those that say of which process a recording is and how far. It is for
// before the first event.
func (t *Tables) Only(names []string) {
	off := func(name string) bool { return !slices.Contains(names, name) }
	t.events.off, t.calls.off, t.kernels.off, t.ioctls.off, t.images.off, t.memory.off = off("events"), off("api"), off("kernels"), off("ioctls"), off("images"), off("memory")
	t.failures.off, t.gpu.off, t.stacks.off, t.collectives.off, t.histograms.off = off("failures"), off("gpu"), off("stacks"), off("collectives"), off("histograms")
}

// Observe implements observe.Observer.
func (t *Tables) Observe(e *observe.Event) {
	ev, wanted := e.Event, !e.Unwanted
	t.take(e)
	t.traits.Observe(e, t.process.Observe(ev, t.in, t.tracker))
	t.library(ev, wanted)
	if wanted {
		t.run.events++
		t.row(ev, e.Call)
	}
	end := ev.Time + max(ev.Dur, 0)
	t.run.end = max(t.run.end, t.start+end)
	for _, a := range t.ledger.dirty {
		for q, n := range a.have {
			if n != a.shown[q] {
				t.memory.add(&memoryRow{t: end, time: t.start + end, pid: a.pid, what: memoryNames[q], value: int64(min(n, math.MaxInt64))}, 0)
			}
		}
		a.shown = a.have
	}
	t.ledger.clean()
	t.owners.observe(ev, t.in, t.tracker, &t.ledger, func(o *api.OwnerMemory) {
		t.memory.add(&memoryRow{t: end, time: t.start + end, pid: o.PID, what: "allocated", value: int64(min(o.Live, math.MaxInt64)), owner: o.Owner}, 0)
	})
}

// known returns a duration, -1 where it is not known.
func known(ns int64, is bool) int64 {
	if !is || ns < 0 {
		return -1
	}
	return ns
}

// shared returns a text that is fit for a table, of which there is one copy.
func (t *Tables) shared(b []byte) string {
	s, ok := t.common[string(b)]
	if !ok {
		s = clean(clip(string(b), maxText))
		if len(t.common) >= maxFrames {
			clear(t.common)
		}
		t.common[string(b)] = s
	}
	return s
}

// during names the library call that the latest event happened in.
func (t *Tables) during() string {
	if t.in == nil {
		return ""
	}
	return clean(callName(t.in))
}

func (t *Tables) row(ev *traces.Event, c *ioctl.Call) {
	timed := ev.Flags&untimed == 0
	switch ev.Kind {
	case traces.KindCall, traces.KindReturn:
		return
	case traces.KindIoctl:
		t.ioctl(ev, c, timed)
	case traces.KindImage:
		t.image(ev)
	case traces.KindGPU:
		if ev.Flags&traces.FlagUnfinished == 0 {
			t.work(ev)
		}
	case traces.KindLost:
		t.run.lost += ev.Ret
		fallthrough
	default:
		switch ev.Kind {
		case traces.KindGap:
			t.run.gaps++
		case traces.KindEnd:
			t.run.complete = true
		case traces.KindStack:
			t.calledFrom(ev)
		}
		r := eventRow{
			t: ev.Time, time: t.start + ev.Time, dur: known(ev.Dur, timed && isCall(ev.Kind)), pid: ev.PID, tid: ev.TID, kind: ev.Kind.String(), fd: ev.FD, file: int64(ev.File),
			device: clean(node(ev)), result: ev.Ret, child: ev.Child, name: clean(clip(ev.Name, maxText)), path: clean(clip(ev.Path, maxText)), text: clean(clip(ev.Text, maxText)), during: t.during(),
		}
		if ev.Flags != 0 {
			r.flags = ev.Flags.String()
		}
		switch ev.Kind {
		case traces.KindMmap:
			r.addr, r.length = ev.Ret, int64(ev.Args[1])
		case traces.KindMunmap, traces.KindMremap:
			r.addr, r.length = int64(ev.Args[0]), int64(ev.Args[1])
		case traces.KindExec:
			r.text = clean(commandLine(ev.Argv))
		}
		t.events.add(&r, len(r.name)+len(r.path)+len(r.text))
	}
	if isCall(ev.Kind) && failed(ev, c) {
		r := failureRow{t: ev.Time, time: t.start + ev.Time, dur: known(ev.Dur, true), pid: ev.PID, tid: ev.TID, kind: ev.Kind.String(), status: clean(result(c)), during: t.during()}
		r.name, r.sub = t.callNames(ev, c)
		t.failures.add(&r, 0)
	}
}

// work writes what a GPU did.
func (t *Tables) work(ev *traces.Event) {
	w := ev.Work()
	r := gpuRow{
		t: w.Start, time: t.start + w.Start, dur: w.Dur, pid: ev.PID, tid: ev.TID, call: w.Call, stream: int64(w.Stream), context: int64(w.Context),
		by: clean(clip(ev.Name, maxName)), margin: w.Margin, device: t.tracker.Names.Device(ev.PID, w.Context), launch: int64(w.Launch),
	}
	if !w.By.Called() {
		r.by = w.By.String()
	}
	if w.By.Outside() {
		d := ev.Detail()
		r.device, r.endMargin, r.end, r.named = w.Device, w.EndMargin, t.shared([]byte(d.End)), t.shared([]byte(d.Named))
	}
	symbol, kernel := t.tracker.Describe(ev)
	if kernel {
		r.kernel, r.symbol = clean(clip(t.demangle(symbol), maxText)), clean(clip(symbol, maxText))
	} else {
		r.bytes = int64(min(w.Subject, math.MaxInt64))
	}
	t.gpu.add(&r, len(r.kernel)+len(r.symbol))
	if kernel {
		t.times.add("kernel", cmp.Or(r.kernel, r.by), r.dur)
	} else {
		t.times.add("copy", r.by, r.dur)
	}
}

// calledFrom writes the functions that led to the call that a thread is in.
func (t *Tables) calledFrom(ev *traces.Event) {
	r := stackRow{t: ev.Time, time: t.start + ev.Time, pid: ev.PID, tid: ev.TID, call: -1, name: t.shared([]byte(ev.Name)), waits: ev.Flags&traces.FlagUnfinished != 0}
	if t.in != nil && t.in.Name == ev.Name {
		r.call = t.in.Start
	}
	for i, f := range ev.Stack() {
		r.frame, r.language, r.file, r.line, r.address = int32(i), t.shared([]byte(f.Language)), t.shared([]byte(f.File)), int32(f.Line), int64(f.Offset)
		r.function, r.symbol = t.shared([]byte(f.Func)), ""
		if f.Language == traces.LanguageNative {
			r.function, r.symbol = t.shared([]byte(t.demangle(f.Func))), r.function
		}
		t.stacks.add(&r, 0)
	}
}

// callNames returns what a system call is called, and what it is about.
func (t *Tables) callNames(ev *traces.Event, c *ioctl.Call) (name, sub string) {
	if ev.Kind != traces.KindIoctl {
		return ev.Kind.String(), ""
	}
	t.scratch = c.AppendName(t.scratch[:0])
	name = t.shared(t.scratch)
	if c.HasSub || c.Sub != "" {
		t.scratch = c.AppendSub(t.scratch[:0], t.dec.ABI(ev.PID))
		sub = t.shared(t.scratch)
	}
	return name, sub
}

func (t *Tables) ioctl(ev *traces.Event, c *ioctl.Call, timed bool) {
	r := ioctlRow{
		t: ev.Time, time: t.start + ev.Time, dur: known(ev.Dur, timed), pid: ev.PID, tid: ev.TID, device: clean(node(ev)), fd: ev.FD, file: int64(ev.File), request: int64(ev.Request()),
		failed: failed(ev, c), client: int64(c.Client), parent: int64(c.Parent), object: int64(c.Object), new: int64(c.New),
		allocated: int64(min(t.ledger.made, math.MaxInt64)), during: t.during(),
	}
	r.name, r.sub = t.callNames(ev, c)
	if timed {
		r.status = clean(result(c))
	}
	for i := range c.Parts {
		r.bytes += int64(c.Parts[i].Len)
	}
	if c.Unknown != ioctl.Known {
		r.unknown = c.Unknown.String()
	}
	t.ioctls.add(&r, 0)
}

func (t *Tables) image(ev *traces.Event) {
	r := imageRow{t: ev.Time, time: t.start + ev.Time, pid: ev.PID, tid: ev.TID, loader: clean(clip(ev.Name, maxName)), library: clean(clip(ev.Path, maxText))}
	if im := ev.Image; im != nil {
		r.sha256, r.size, r.format, r.file, r.offset = clean(clip(im.SHA256, maxName)), im.Size, clean(clip(im.Format, maxName)), clean(clip(im.File, maxText)), im.Offset
		r.handle, r.origin, r.replaced = int64(im.Handle), clean(clip(im.Origin, maxName)), clean(clip(im.Replaced, maxName))
	}
	t.images.add(&r, 0)
}

// library follows library calls.
func (t *Tables) library(ev *traces.Event, wanted bool) {
	f := t.in
	if ev.Kind == traces.KindCall && f != nil {
		t.open(ev, f, wanted)
	}
	for _, e := range t.tracker.Ended() {
		t.end(e, nil)
	}
	if ev.Kind == traces.KindReturn && f != nil {
		t.end(f, ev)
	}
}

func (t *Tables) open(ev *traces.Event, f *api.Frame, wanted bool) {
	n := len(t.slots)
	if k := len(t.free); k > 0 {
		n = t.free[k-1]
		t.free = t.free[:k-1]
	} else {
		t.slots = append(t.slots, slot{})
	}
	f.Mark[api.TablesMark] = n + 1
	s := slot{wanted: wanted}
	if symbol, stream, ok := f.Launch(ev, &t.tracker.Names); ok {
		s.launch, s.symbol = launch{is: true, stream: stream}, symbol
		for p := f.Parent; p != nil; p = p.Parent {
			if p.Mark[api.TablesMark] > 0 {
				t.slots[p.Mark[api.TablesMark]-1].launch.inner = true
			}
		}
	}
	if wanted {
		t.scratch = api.AppendCall(t.scratch[:0], f, ev, &t.tracker.Names, &api.Style{Demangle: t.demangle})
		s.text = t.shared(t.scratch)
	}
	t.slots[n] = s
}

func (t *Tables) demangle(symbol string) string {
	name, ok := t.symbols[symbol]
	if !ok {
		if name = symbol; t.Demangle != nil {
			name = t.Demangle(symbol)
		}
		if len(t.symbols) >= maxFrames {
			clear(t.symbols)
		}
		t.symbols[symbol] = name
	}
	return name
}

// end writes a library call that has ended; ev is its return, nil if that was not seen.
func (t *Tables) end(f *api.Frame, ev *traces.Event) {
	if f.Mark[api.TablesMark] == 0 {
		return
	}
	s := &t.slots[f.Mark[api.TablesMark]-1]
	t.free = append(t.free, f.Mark[api.TablesMark]-1)
	f.Mark[api.TablesMark] = 0
	if !s.wanted {
		return
	}
	returned := ev != nil && f.End >= 0
	r := callRow{
		t: f.Start, time: t.start + f.Start, dur: known(f.Dur(), returned), self: known(f.Self(), returned), pid: f.PID, tid: f.TID, depth: int32(f.Depth),
		library: clean(libraryName(f)), name: clean(callName(f)), failed: returned && f.Function.Failed(ev.Ret), calls: int64(f.Calls), ioctls: int64(f.Ioctls), ioctlTime: f.IoctlTime, description: s.text,
	}
	if f.Parent != nil {
		r.parent = clean(callName(f.Parent))
	}
	if returned {
		r.result = f.Function.ResultName(ev.Ret)
		for _, m := range f.Memory() {
			if !m.Failed && !m.Freed && !m.Host {
				r.allocated = int64(min(m.Size, math.MaxInt64))
			}
		}
	}
	t.calls.add(&r, len(r.description))
	if returned {
		t.times.add("call", r.name, r.dur)
	}
	switch {
	case r.failed:
		t.failures.add(&failureRow{t: r.t, time: r.time, dur: r.dur, pid: r.pid, tid: r.tid, kind: "api", name: r.name, sub: r.library, status: r.result, during: r.parent}, 0)
	case s.launch.is && !s.launch.inner:
		t.kernels.add(&kernelRow{
			t: r.t, time: r.time, dur: r.dur, pid: r.pid, tid: r.tid, stream: int64(s.launch.stream),
			kernel: clean(clip(t.demangle(s.symbol), maxText)), symbol: clean(clip(s.symbol, maxText)), by: r.name,
		}, 0)
	}
}

// Close ends the tables and returns the first error.
func (t *Tables) Close() error {
	t.endCalls()
	t.put(true)
	return errors.Join(t.events.close(), t.calls.close(), t.kernels.close(), t.ioctls.close(), t.images.close(), t.memory.close(), t.failures.close(), t.gpu.close(), t.stacks.close(),
		t.collectives.close(), t.comms.close(), t.facts.close(), t.histograms.close(), t.runs.close())
}

// endCalls ends the calls that are open: they have not returned.
func (t *Tables) endCalls() {
	if t.run.complete || t.tracker == nil {
		return
	}
	end := traces.Event{Kind: traces.KindEnd, FD: -1}
	t.in = t.tracker.Add(&end)
	t.library(&end, false)
}

// Next ends a part, up to a time of the recording, and returns the first error. What follows comes into the next one, unless
// end says that nothing will.
func (t *Tables) Next(now int64, end bool) error {
	t.run.end = max(t.run.end, t.start+now)
	if end {
		t.endCalls()
	}
	t.put(end)
	if t.run.part == 1 { // what is asked of a table needs to find one
		if err := t.begin(); err != nil {
			return err
		}
	}
	err := errors.Join(t.events.end(), t.calls.end(), t.kernels.end(), t.ioctls.end(), t.images.end(), t.memory.end(), t.failures.end(), t.gpu.end(), t.stacks.end(),
		t.collectives.end(), t.comms.end(), t.facts.end(), t.histograms.end(), t.runs.end())
	t.run.part++
	t.run.events, t.run.lost, t.run.gaps = 0, 0, 0
	return err
}

// put adds the rows that come at the end of a part.
func (t *Tables) put(end bool) {
	now := t.run.end - t.start
	t.putCollectives(end, now)
	for _, x := range t.traits.Take() {
		t.facts.add(&factRow{now, t.run.end, t.run.pid, x.Kind, clean(x.Name), clean(clip(x.Value, maxText)), int64(x.N)}, len(x.Value))
	}
	t.times.put(func(r *histogramRow) {
		r.t, r.time, r.pid, r.until = t.began, t.start+t.began, t.run.pid, now
		t.histograms.add(r, 0)
	})
	t.began = now
	t.run.timed, t.run.state = t.process.GPU, t.traits.State()
	t.run.state.Doing = clean(t.run.state.Doing)
	t.runs.add(&t.run, 0)
}
