package export

import (
	"cmp"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// What all files of a timeline share is here: its tracks and what is drawn on them.

// Timeline writes a recording as a trace for ui.perfetto.dev: TrackEvents of
// Perfetto's protobuf. There are
//
//	a track for each thread with its calls, which nest: those of CUDA's libraries (category
//	    api, then the library), the device calls in them (ioctl, mmap, open, …), with their
//	    arguments; instants for exec, exit, signals, code images, first launches of
//	    kernels, remarks
//	a track for each stream of a process: what the GPU did there, where that was timed, else an
//	    instant for each launch; an arrow leads there from the call that made it
//	a track for each process with the calls that failed (category failed)
//	counters of each process, above all of these: bytes mapped and allocated, objects
//	arrows from who forks to what is forked
//
// A call that had not returned when its thread ended ends there; one that had not at the
// end of the recording has no end. A call whose duration is not known, or that was
// inferred, is an instant. A call that overlaps the thread's previous one (that is
// damage, but no reason to hide it) has a track of its own.
//
// Calls shorter than what detail says are drawn together with their neighbours: a slice
// named by the most frequent of them, whose arguments say how often each was made. Failed
// calls never are.
//
// It is written as events come in, in memory that is bounded by what is alive. A Timeline
// is for one goroutine.
type Timeline struct {
	// Demangle, if not nil, names kernels for people. It may be set before the first event.
	Demangle func(name string) string

	among *Among // nil: it is of one recording

	scene
	detail
	gpu
	out     packets
	style   api.Style
	name    []byte
	text    []byte
	threads map[taskKey]*thread
	procs   map[int32]*process
	streams map[streamKey]*stream
	memory  uint64            // the track above all counters; 0 none yet
	common  map[string]string // names of calls, shared
	kernels map[string]string // names of kernels for people
	floor   int64             // no forgotten thread has a call that ends later
	home    int32             // process that remarks without one are shown with: the first
	flows   uint64
	last    int64 // time of the latest event that is drawn
	closed  bool
}

// process is the tracks that a process has beside its threads'.
type process struct {
	name     string
	track    uint64
	memory   uint64             // what is above its counters; 0 none yet
	counters [quantities]uint64 // likewise
	failures uint64             // likewise
}

// thread is a track of the timeline.
type thread struct {
	name  string
	seq   *sequence
	track uint64
	end   int64   // of its latest call, or beginning of its innermost library call
	open  bool    // that has a beginning without an end
	calls []slice // library calls that are drawn and open, the outermost first
	run   run     // of short outermost calls
	// ranges is the track of its NVTX ranges, nil if there are none.
	ranges *rangeTrack
}

// rangeTrack is the track of a thread's NVTX ranges and marks.
type rangeTrack struct {
	seq  *sequence
	end  int64 // of what is on it
	open int   // ranges
}

// gpu is what of a timeline is about the work of GPUs.
type gpu struct {
	works   []gpuWork
	streams map[streamKey]*stream
	flows   map[callKey]uint64 // of launches that are drawn
	probed  probedLanes
}

// gpuWork is a work that waits for those before it.
type gpuWork struct {
	traces.Work
	task taskKey
	name string
	by   string // the call
	// detail is of a work that was seen from outside.
	detail traces.WorkDetail
	flow   uint64 // 0: none
}

// probedLanes finds tracks for kernels of which it is not known on which stream they ran, as probes
// noted their times: those that ran at the same time have different ones.
type probedLanes map[int32][]int64 // by process, when each track is free

// detail is how much of a recording a timeline shows: the shorter a call, the sooner it is
// drawn together with its neighbours.
type detail struct {
	least int64  // calls shorter than this are, ns; 0: none
	max   int64  // bytes; 0: no limit
	next  int64  // at this size, step comes
	steps []step // that are left
	left  uint64 // events that found no room
}

// step makes a timeline coarser, where so much of its size is used up.
type step struct {
	percent int64
	least   int64
}

// streamKey names a stream of a process.
type streamKey struct {
	pid    int32
	stream uint64
}

// stream is a track of launches, or of what a GPU did.
type stream struct {
	seq *sequence
	run run
	end int64 // of the latest run, or work
}

func (a streamKey) compare(b streamKey) int {
	return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.stream, b.stream))
}

// slice is a library call that is open on a track.
type slice struct {
	frame  *api.Frame
	begun  bool // its beginning was written
	start  int64
	ev     traces.Event // the call, until it is written
	run    run          // of short calls directly inside
	launch launch
	stack  string // where it was made; "": not known
}

// run is short calls one after another, which are drawn as one.
type run struct {
	start, end int64
	busy       int64 // in them
	calls      uint64
	counts     [8]runCount // those that came first
	used       int
	others     uint64
}

type runCount struct {
	name string
	n    uint64
}

// launch is what a call launches.
type launch struct {
	is     bool
	inner  bool // another call inside of it did
	kernel string
	stream uint64
	flow   uint64
}

// taskKey names a thread.
type taskKey struct{ pid, tid int32 }

// callKey names a library call: of a thread, when it began.
type callKey struct {
	task  taskKey
	start int64
}

// laneKey names a thread, or what a GPU does on a stream of a process.
type laneKey struct {
	task   taskKey
	gpu    bool
	stream uint64
}
