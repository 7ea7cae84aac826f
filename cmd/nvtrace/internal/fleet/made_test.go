package fleet

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/traits"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

var steps = flag.Int("steps", 0, "of TestMillions' ranks; 0: it is skipped")

// made is a job whose recordings are made up: NCCL as it is on GPUs, whose kernels wait for each other.
type made struct {
	ranks, steps, perHost int
	fault                 string
	rank, from            int  // who has it, and from which step on
	noGPU                 bool // times of GPUs are not recorded
	more                  int  // collectives in a step, at once, beside the first; without times of GPUs
	fsdp                  bool // all-gathers and reduce-scatters in turn in place of all-reduces, with a send or receive before each
	ray                   bool // no launcher tells ranks
	noise                 int64
	random                *rand.Rand
}

// Times in ns.
const (
	madeCompute = 8_000_000
	madeHost    = 1_000_000
	madeCopy    = 500_000
	madeReduce  = 300_000
	madeCompile = 15_000_000_000 // all of them, at first: no measure of what a hang is
	madeFault   = 4_000_000
	madeOwn     = 1 << 20 // bytes that the program allocates, and a byte more for each rank
	madeOfNCCL  = 4 << 20 // that NCCL does
	madeStart   = 1_700_000_000_000_000_000
)

// step is when a rank comes to a step's collective, and what it did before.
type step struct{ begin, copy, copied, launched, arrive int64 }

// plan says when all ranks are where.
func (m *made) plan() (all [][]step, ends []int64) {
	all = make([][]step, m.ranks)
	now := int64(1_000_000)
	for s := range m.steps {
		last := int64(0)
		for r := range all {
			host, cpy, comp := int64(madeHost), int64(madeCopy), int64(madeCompute)
			if m.noise > 0 {
				host += m.random.Int64N(m.noise)
				comp += m.random.Int64N(m.noise)
			}
			if r == m.rank && s >= m.from {
				switch m.fault {
				case "sleep":
					host += madeFault
				case "copies":
					cpy += madeFault
				case "kernel":
					comp += madeFault
				case "input": // it comes in batches
					if s%2 == 0 {
						host += 2 * madeFault
					}
				case "hog":
					host += m.random.Int64N(2 * madeFault)
				}
			}
			if s == 3 {
				host += madeCompile
			}
			if r == m.rank && m.fault == "overlap" {
				host += madeFault / 2
			}
			if m.fault == "checkpoint" && r == 0 && s%50 == 49 {
				host += 40 * madeFault
			}
			x := step{begin: now, copy: now + host/2}
			x.copied = now + host/2 + cpy
			x.launched = x.copied + host/2
			x.arrive = x.launched + comp
			all[r], last = append(all[r], x), max(last, x.arrive)
		}
		now = last + madeReduce
		ends = append(ends, now)
	}
	return all, ends
}

// clockOf is by how much a host's clock is off: 3 ms a host, and 2 µs a second more.
func clockOf(host int, t int64) int64 {
	if host == 0 {
		return t
	}
	return t + int64(host)*3_000_000 + int64(float64(t)*float64(host)*2e-6)
}

const (
	madeNCCL   = "/usr/lib/libnccl.so.2"
	madeDriver = "/usr/lib/libcuda.so.580.1"
)

// record gives what a rank's recording says.
func (m *made) record(rank int, plan []step, ends []int64) *Part {
	r := NewRecorded(fmt.Sprintf("run.%d.nvt", rank), m.header(rank))
	feed := observe.NewFeed(nil, r)
	feed.Undecoded = true
	feed.Follow()
	r.Complete = m.events(rank, plan, ends, feed.Event)
	return r.Part(true)
}

func (m *made) header(rank int) *traces.Header {
	host := rank / m.perHost
	h := &traces.Header{
		Schema: 2, Start: madeStart, Host: fmt.Sprintf("node%d", host), Boot: fmt.Sprintf("boot%d", host), Driver: "580.1", PID: 100, Arch: "amd64",
		Rank: map[string]string{"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(m.ranks), "SLURM_JOB_ID": "4711"},
	}
	if m.ray {
		h.Rank = map[string]string{"RAY_JOB_ID": "4711"}
	}
	if m.fault == "driver version" && rank == m.rank {
		h.Driver = "575.2"
	}
	return h
}

// events gives out what a rank's recording holds, and reports whether it has its end.
func (m *made) events(rank int, plan []step, ends []int64, emit func(*traces.Event)) bool {
	host := rank / m.perHost
	at := func(t int64) int64 { return clockOf(host, t) }
	add := func(ev traces.Event) {
		ev.PID, ev.TID, ev.FD = 100, 100, -1
		emit(&ev)
	}
	call := func(name, path string, from, to int64, mem []traces.Seg, out []traces.Seg, args ...uint64) {
		ev := traces.Event{Kind: traces.KindCall, Time: at(from), Name: name, Path: path, Mem: mem}
		copy(ev.Args[:], args)
		add(ev)
		if to >= 0 {
			add(traces.Event{Kind: traces.KindReturn, Time: at(from), Dur: at(to) - at(from), Name: name, Path: path, Mem: out})
		}
	}
	gpu := func(name string, launched, from, to int64, what uint64) {
		if m.noGPU {
			return
		}
		add(traces.Event{Kind: traces.KindGPU, Time: at(to), Name: name, Path: madeDriver, Args: [6]uint64{uint64(at(launched)), uint64(at(from)), uint64(at(to) - at(from)), 0x55, 1, what}})
	}
	id := make([]byte, 128)
	copy(id, "an id")
	alloc := func(from int64, size, addr uint64) {
		call("cuMemAlloc_v2", madeDriver, from, from+2000, nil, []traces.Seg{{Addr: 0x7f00, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, addr)}}, 0x7f00, size)
	}
	alloc(100, madeOwn+uint64(rank), 0xa000)
	add(traces.Event{Kind: traces.KindCall, Time: at(3000), Name: "ncclCommInitRank", Path: madeNCCL, Mem: []traces.Seg{{Addr: 0x7000, Len: 128, In: id}}, Args: [6]uint64{0x1000, uint64(m.ranks), uint64(rank)}})
	alloc(5000, madeOfNCCL, 0xb000)
	add(traces.Event{
		Kind: traces.KindReturn, Time: at(3000), Dur: at(900_000) - at(3000), Name: "ncclCommInitRank", Path: madeNCCL,
		Mem: []traces.Seg{{Addr: 0x1000, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, 0xc0)}},
	})
	stream := []traces.Seg{{Addr: 0x7000, Len: 8, In: binary.LittleEndian.AppendUint64(nil, 0x55)}}
	for s := range plan {
		x, end := plan[s], ends[s]
		fault := m.rank == rank && s >= m.from
		if fault && m.fault == "kill" {
			add(traces.Event{Kind: traces.KindExit, Time: at(x.begin), Ret: 9})
			return false
		}
		call("cuMemcpyHtoDAsync_v2", madeDriver, x.begin+1000, x.begin+2000, nil, nil, 1, 2, 4096, 0x55)
		gpu("cuMemcpyHtoDAsync_v2", x.begin+1000, x.copy, x.copied, 4096)
		call("cuLaunchKernel", madeDriver, x.launched, x.launched+2000, nil, nil, 77)
		gpu("cuLaunchKernel", x.launched, x.launched+3000, x.arrive, 77)
		if m.fault == "overlap" && rank != m.rank { // they have something else to do
			call("cuLaunchKernel", madeDriver, x.launched+2500, x.launched+2800, nil, nil, 78)
			gpu("cuLaunchKernel", x.launched+2500, x.arrive, end, 78)
		}
		if fault && m.fault == "stop" {
			add(traces.Event{Kind: traces.KindSignal, Time: at(x.launched + 2600), Ret: int64(unix.SIGSTOP)})
		}
		if fault && m.fault == "image" && s == m.from {
			add(traces.Event{Kind: traces.KindImage, Time: at(x.launched + 2600), Image: &traces.Image{SHA256: "other"}})
		}
		if fault && m.fault == "fails" && s%10 == 0 {
			add(traces.Event{Kind: traces.KindCall, Time: at(x.launched + 2600), Name: "cuMemAlloc_v2", Path: madeDriver, Args: [6]uint64{0x7f00, 5}})
			add(traces.Event{Kind: traces.KindReturn, Time: at(x.launched + 2600), Dur: 100, Name: "cuMemAlloc_v2", Path: madeDriver, Ret: 2})
		}
		if m.fsdp {
			call([]string{"ncclSend", "ncclRecv"}[rank%2], madeNCCL, x.launched+2800, x.launched+2900, nil, nil, 1, 256, 7, uint64(rank^1), 0xc0, 0x55)
		}
		if fault && (m.fault == "missing" || m.fault == "stop") {
			add(traces.Event{Kind: traces.KindExit, Time: at(ends[len(ends)-1] + 60e9), Ret: 15})
			return false
		}
		count := uint64(1024)
		if fault && m.fault == "size" && s == m.from {
			count = 512
		}
		hang := (m.fault == "missing" || m.fault == "stop") && s >= m.from || m.fault == "kill" && s >= m.from || m.fault == "network" && s >= m.from
		ev := traces.Event{Kind: traces.KindCall, Time: at(x.launched + 3000), Name: "ncclAllReduce", Path: madeNCCL, Mem: stream, Args: [6]uint64{1, 2, count, 7, 0, 0xc0}}
		switch {
		case m.fsdp && s%2 == 0:
			ev.Name, ev.Mem, ev.Args = "ncclAllGather", nil, [6]uint64{1, 2, count, 7, 0xc0, 0x55}
		case m.fsdp:
			ev.Name = "ncclReduceScatter"
		}
		add(ev)
		call("cuLaunchKernelExC", madeDriver, x.launched+5000, x.launched+6000, nil, nil, 1, 2)
		add(traces.Event{Kind: traces.KindReturn, Time: ev.Time, Dur: 4000, Name: ev.Name, Path: madeNCCL})
		for k := range m.more {
			at := at(x.launched + 6100 + int64(k)*200)
			add(traces.Event{Kind: traces.KindCall, Time: at, Name: "ncclAllReduce", Path: madeNCCL, Mem: stream, Args: [6]uint64{1, 2, 64, 7, 0, 0xc0}})
			add(traces.Event{Kind: traces.KindReturn, Time: at, Dur: 100, Name: "ncclAllReduce", Path: madeNCCL})
		}
		if hang {
			// It waits for what it has launched.
			call("cuStreamSynchronize", madeDriver, x.launched+7000, -1, nil, nil, 0x55)
			stop := at(ends[len(ends)-1] + 60e9)
			if !m.noGPU {
				add(traces.Event{
					Kind: traces.KindGPU, Flags: traces.FlagUnfinished, Time: stop, Name: "cuLaunchKernelExC", Path: madeDriver,
					Args: [6]uint64{uint64(at(x.launched + 5000)), uint64(at(x.arrive)), 60e9, 0x55, 1, 88},
				})
			}
			add(traces.Event{Kind: traces.KindExit, Time: stop, Ret: 15})
			return false
		}
		gpu("cuLaunchKernelExC", x.launched+5000, x.arrive, end+int64(rank%3)*500, 88)
		call("cuStreamSynchronize", madeDriver, x.launched+7000, end+2000, nil, nil, 0x55)
	}
	add(traces.Event{Kind: traces.KindExit, Time: at(ends[len(ends)-1] + 1e6)})
	return true
}

// report compares the job's ranks, in an order by chance.
func (m *made) report(o *Options) *Report {
	m.random = rand.New(rand.NewPCG(uint64(m.ranks), uint64(len(m.fault))))
	plan, ends := m.plan()
	f := New(o)
	for _, rank := range m.random.Perm(m.ranks) {
		f.Add(m.record(rank, plan[rank], ends))
	}
	return f.Report()
}

// TestMade finds what was planted into recordings of 64 ranks on 8 hosts whose clocks are off.
func TestMade(t *testing.T) {
	for _, tt := range []struct {
		fault, kind, cause string
		noGPU              bool
		ranks              []int
	}{
		{"", "", "", false, nil},
		{"checkpoint", "", "", false, nil},
		{"overlap", "", "", false, nil},
		{"sleep", Slow, "host", false, []int{37}},
		{"kernel", Slow, "compute", false, []int{37}},
		{"copies", Slow, "copy", false, []int{37}},
		{"size", Mismatch, "signature differs", false, []int{37}},
		{"missing", Hang, "missing enter", false, []int{37}},
		{"kill", Hang, "missing enter", false, []int{37}},
		{"driver version", Differs, "driver", false, []int{37}},
		{"missing", Hang, "missing enter", true, []int{37}},
	} {
		m := &made{ranks: 64, steps: 120, perHost: 8, fault: tt.fault, rank: 37, from: 40, noGPU: tt.noGPU, noise: 300_000}
		r := m.report(nil)
		switch {
		case tt.kind == "" && len(r.Findings) == 0:
		case len(r.Findings) == 1 && r.Findings[0].Kind == tt.kind && r.Findings[0].Cause == tt.cause && slices.Equal(r.Findings[0].Ranks, tt.ranks):
		default:
			t.Errorf("%q: %+v\n%q", tt.fault, r.Findings, r.Notes)
		}
		if r.World != 64 || r.Missing != nil || r.Job != "4711" {
			t.Errorf("%q: %d ranks, without %v, of %s", tt.fault, r.World, r.Missing, r.Job)
		}
		if tt.kind == Slow {
			// It began with step 40, 10 ms each at first.
			plan, _ := m.plan()
			if want := plan[0][40].begin; len(r.Findings) == 1 && max(r.Findings[0].Since-want, want-r.Findings[0].Since) > 40_000_000 {
				t.Errorf("%q: since %d, want %d", tt.fault, r.Findings[0].Since, want)
			}
		}
	}
}

var seeds = flag.Int("seeds", 1, "how often TestMadeKinds plants each fault")

// TestMadeKinds plants what TestMade does not, and what it does into a job with the signatures of FSDP and pipelines: into
// recordings of 64 ranks, with -args -seeds 3 three times each.
func TestMadeKinds(t *testing.T) {
	right, all := 0, 0
	for seed := range *seeds {
		for _, tt := range []struct {
			fault, kind, cause string
			fsdp               bool
		}{
			{"", "", "", true},
			{"input", Slow, "host", false},
			{"hog", Slow, "host", false},
			{"image", Differs, "image", false},
			{"fails", Differs, "failing calls", false},
			{"stop", Hang, "missing enter", false},
			{"sleep", Slow, "host", true},
			{"kernel", Slow, "compute", true},
			{"size", Mismatch, "signature differs", true},
			{"missing", Hang, "missing enter", true},
		} {
			rank := []int{37, 0, 63}[seed%3]
			m := &made{ranks: 64, steps: 140, perHost: 8, fault: tt.fault, rank: rank, from: 40, fsdp: tt.fsdp, noise: 300_000}
			m.random = rand.New(rand.NewPCG(uint64(seed), uint64(len(tt.fault))))
			plan, ends := m.plan()
			f := New(nil)
			for _, rank := range m.random.Perm(m.ranks) {
				f.Add(m.record(rank, plan[rank], ends))
			}
			r := f.Report()
			all++
			if tt.kind == "" && len(r.Findings) == 0 || len(r.Findings) == 1 && r.Findings[0].Kind == tt.kind && r.Findings[0].Cause == tt.cause && slices.Equal(r.Findings[0].Ranks, []int{rank}) {
				right++
				continue
			}
			t.Errorf("%q (FSDP: %v): %+v\n%q", tt.fault, tt.fsdp, r.Findings, r.Notes)
		}
	}
	t.Logf("%d of %d right", right, all)
}

// TestRay: where no launcher tells a rank, NCCL's communicator does.
func TestRay(t *testing.T) {
	m := &made{ranks: 8, steps: 100, perHost: 4, fault: "sleep", rank: 5, from: 20, ray: true, noise: 300_000}
	r := m.report(nil)
	if len(r.Findings) != 1 || !slices.Equal(r.Findings[0].Ranks, []int{5}) || r.World != 8 || r.Job != "4711" || r.Missing != nil {
		t.Errorf("%d ranks, job %s, missing %v: %+v", r.World, r.Job, r.Missing, r.Findings)
	}
}

// TestInKernels: what hooks can't see is named.
func TestInKernels(t *testing.T) {
	f := New(nil)
	for rank := range 4 {
		r := NewRecorded(strconv.Itoa(rank), &traces.Header{Schema: 2, Start: 1, PID: 1, Rank: map[string]string{"RANK": strconv.Itoa(rank), "WORLD_SIZE": "4"}})
		feed := observe.NewFeed(nil, r)
		feed.Undecoded = true
		feed.Follow()
		feed.Event(&traces.Event{Kind: traces.KindCall, Time: 1, PID: 1, TID: 1, FD: -1, Name: "ncclDevCommCreate", Path: madeNCCL})
		feed.Event(&traces.Event{Kind: traces.KindReturn, Time: 1, Dur: 1, PID: 1, TID: 1, FD: -1, Name: "ncclDevCommCreate", Path: madeNCCL})
		feed.Event(&traces.Event{Kind: traces.KindKernel, Time: 3, PID: 1, TID: 1, FD: -1, Name: "_Z20nvshmemi_init_kernelv"})
		f.Add(r.Part(true))
	}
	r := f.Report()
	for _, want := range []string{"ranks 0-3 use NVSHMEM in kernels", "ranks 0-3 use NCCL's functions for kernels"} {
		if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, want) }) {
			t.Errorf("no note %q: %q", want, r.Notes)
		}
	}
	if len(r.Findings) > 0 {
		t.Errorf("%+v", r.Findings)
	}
}

// TestNetwork: all ranks have come, and none gets out.
func TestNetwork(t *testing.T) {
	m := &made{ranks: 16, steps: 60, perHost: 8, fault: "network", rank: -1, from: 40}
	r := m.report(nil)
	if len(r.Findings) != 1 || r.Findings[0].Kind != Hang || r.Findings[0].Cause != "enter without exit" || len(r.Findings[0].Ranks) != 16 {
		t.Errorf("%+v", r.Findings)
	}
	// A shorter wait than was asked for is none.
	if r := m.report(&Options{Hang: 2 * time.Minute}); len(r.Findings) != 0 {
		t.Errorf("%+v", r.Findings)
	}
}

// TestClocks: hosts whose clocks are off and drift are aligned within the error that is said.
func TestClocks(t *testing.T) {
	m := &made{ranks: 16, steps: 400, perHost: 4}
	m.random = rand.New(rand.NewPCG(1, 2))
	plan, ends := m.plan()
	f := New(nil)
	for rank := range m.ranks {
		f.Add(m.record(rank, plan[rank], ends))
	}
	r := f.Report()
	if len(r.Clocks) != 4 {
		t.Fatalf("%+v", r.Clocks)
	}
	for host, c := range r.Clocks {
		boot := f.clocks[fmt.Sprintf("boot%d", host)]
		worst := int64(0)
		for _, at := range []int64{ends[0], ends[200], ends[399]} {
			off := boot.common(madeStart+clockOf(host, at)) - madeStart - at
			worst = max(worst, off, -off)
		}
		if c.Error < 0 || c.Error > 2000 || worst > 2000+2*c.Error {
			t.Errorf("host %d: off by %d ns, said %d; %+v", host, worst, c.Error, c)
		}
		if host > 0 && (c.Drift > -1000*float64(host) || c.Drift < -3000*float64(host)) {
			t.Errorf("host %d: drift %f ns a second, want %d", host, c.Drift, -2000*host)
		}
	}
}

// TestManyAtOnce: what ranks wait for in several collectives at a time is lost once.
func TestManyAtOnce(t *testing.T) {
	m := &made{ranks: 4, steps: 200, perHost: 4, fault: "sleep", rank: 3, from: 40, noGPU: true, more: 4}
	r := m.report(nil)
	if r.By != "arrivals" || len(r.Findings) != 1 {
		t.Fatalf("by %q: %+v", r.By, r.Findings)
	}
	const lost = 160 * madeFault
	if x := r.Findings[0]; x.Kind != Slow || x.Waited < lost*95/100 || x.Waited > lost*105/100 {
		t.Errorf("%d ns were lost: %+v", int64(lost), x)
	}
}

// TestNotRecorded: what recordings lack is not taken for an answer.
func TestNotRecorded(t *testing.T) {
	m := &made{ranks: 8, steps: 100, perHost: 8, fault: "kernel", rank: 3, from: 40, noGPU: true}
	r := m.report(nil)
	for _, x := range r.Findings {
		if x.Cause != CannotTell {
			t.Errorf("%+v", x)
		}
	}
	if r.By != "arrivals" {
		t.Errorf("by %q", r.By)
	}
	f := New(nil)
	f.Add(NewRecorded("a", &traces.Header{Start: 1}).Part(true))
	f.Add(NewRecorded("b", &traces.Header{Start: 1}).Part(true))
	if r := f.Report(); r.Found() || len(r.Notes) == 0 {
		t.Errorf("%+v", r)
	}
	// A rank without a recording.
	m = &made{ranks: 4, steps: 10, perHost: 4}
	plan, ends := m.plan()
	f = New(nil)
	for _, rank := range []int{0, 1, 3} {
		f.Add(m.record(rank, plan[rank], ends))
	}
	if r := f.Report(); !slices.Equal(r.Missing, []int{2}) || r.Found() {
		t.Errorf("%+v", r)
	}
}

// TestCut: what came behind the cut is not held against a recording that was cut off.
func TestCut(t *testing.T) {
	for _, complete := range []bool{false, true} {
		f := New(nil)
		for rank := range 3 {
			p := &Part{File: strconv.Itoa(rank), Start: 1, Place: ranks.Place{Rank: rank, World: 3}, Complete: rank < 2 || complete}
			p.Traits = []traits.Trait{{Kind: traits.Has, Name: "kernel", Value: "first", N: 1}, {Kind: traits.Is, Name: "environment A", Value: "1", N: 1}}
			if rank < 2 {
				p.Traits = append(p.Traits, traits.Trait{Kind: traits.Has, Name: "kernel", Value: "second", N: 1}, traits.Trait{Kind: traits.Is, Name: "environment B", Value: "1", N: 1})
			}
			f.Add(p)
		}
		r := f.Report()
		if want := map[bool]int{false: 0, true: 2}[complete]; len(r.Findings) != want {
			t.Errorf("complete %v: %+v", complete, r.Findings)
		}
	}
}

// TestMillions compares 1,024 ranks: -args -steps 10000 are 100 million events.
func TestMillions(t *testing.T) {
	if *steps == 0 {
		t.Skip("-args -steps N runs it")
	}
	m := &made{ranks: 1024, steps: *steps, perHost: 8, fault: "sleep", rank: 700, from: *steps / 3, noise: 300_000}
	begin := time.Now()
	r := m.report(nil)
	events := uint64(0)
	for i := range r.Ranks {
		events += r.Ranks[i].Events
	}
	t.Logf("%d events in %s, made up and compared: %+v", events, time.Since(begin), r.Findings)
	if len(r.Findings) != 1 || !slices.Equal(r.Findings[0].Ranks, []int{700}) || r.Findings[0].Cause != "host" {
		t.Error("not found")
	}
}
