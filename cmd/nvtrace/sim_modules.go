package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
	"nvtrace/nvattach/sim"
	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// simModules records the images and kernels of a program on the simulated GPU,
// which tells of them itself: nothing needs to be caught. It is a ptrace.Handler
// that selects no calls.
type simModules struct {
	f     *moduleFlags
	store *capture.Store // nil: images are hashed
	sim   *sim.Sim

	mu       sync.Mutex
	recorder *record.Recorder
	task     *ptrace.Task         // any, by which the tracing thread is reached
	pending  []simEvent           // in order
	images   map[[32]byte]*kept   // by hash
	launched map[launchedKey]bool // kernels
	loads    uint64
	bytes    uint64   // of the images in these loads
	lost     []string // what could not be kept
}

// simEvent is an event with its time in CLOCK_MONOTONIC.
type simEvent struct {
	at int64
	ev traces.Event
}

// kept is an image that was met.
type kept struct {
	traces.Image
	stored bool
}

// launchedKey is a kernel of a process.
type launchedKey struct {
	pid    int
	kernel string
	image  [32]byte
}

func newSimModules(f *moduleFlags, store *capture.Store) *simModules {
	return &simModules{f: f, store: store, images: make(map[[32]byte]*kept), launched: make(map[launchedKey]bool)}
}

// loaded is the simulated GPU's hook for images that were loaded.
func (m *simModules) loaded(p *sim.Process, im *sim.Image) {
	ev := traces.Event{
		Kind: traces.KindImage, PID: int32(p.PID()), TID: int32(im.TID), FD: -1,
		Name: im.Call, Ret: int64(im.Result),
		Image: &traces.Image{
			SHA256: hex.EncodeToString(im.Hash[:]), Size: int64(len(im.Data)), Format: fatbin.Sniff(im.Data).Word(),
			File: im.File, Handle: im.Handle, Origin: "simulated GPU",
		},
	}
	maps, _ := proc.Maps(p.PID()) // none if it is gone
	if at := mappedFile(maps, im.Addr); at != nil && fileHolds(at, im.Addr, im.Data) {
		ev.Image.File, ev.Image.Offset = at.Path, int64(im.Addr-at.Start+at.Offset)
		ev.Path = at.Path // a guess: functions that are hooked return to the hook
	}
	if at := mappedFile(maps, im.Caller); at != nil {
		ev.Path = at.Path
	}
	if im.Replacement != nil {
		ev.Image.Replaced = hashOf(im.Replacement)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.images[im.Hash]
	if k == nil {
		k = &kept{Image: *ev.Image}
		m.images[im.Hash] = k
	}
	if inFile := m.f.modules.value == "refs" && ev.Image.File != ""; m.store != nil && !k.stored && !inFile {
		k.stored = true
		if _, err := m.store.Put(im.Data); err != nil {
			m.lost = append(m.lost, fmt.Sprintf("image %.12s of process %d could not be kept: %v", k.SHA256, p.PID(), err))
		}
	}
	m.loads++
	m.bytes += uint64(k.Size)
	m.add(&ev)
}

// launch is the simulated GPU's hook for kernels.
func (m *simModules) launch(p *sim.Process, l *sim.Launch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := launchedKey{p.PID(), l.Kernel, l.Image}
	if m.launched[key] {
		return
	}
	m.launched[key] = true
	ev := traces.Event{Kind: traces.KindKernel, PID: int32(p.PID()), TID: int32(l.TID), FD: -1, Name: l.Kernel}
	if l.TID == 0 {
		ev.TID = ev.PID
	}
	if k := m.images[l.Image]; k != nil {
		ev.Image = &traces.Image{SHA256: k.SHA256, Size: k.Size, Format: k.Format}
	}
	m.add(&ev)
}

// add has the tracing thread record an event.
func (m *simModules) add(ev *traces.Event) {
	m.pending = append(m.pending, simEvent{monotonic(), *ev})
	if m.task != nil {
		m.task.Post(m.flush)
	}
}

// extend adds what the simulated GPU tells to a recording.
func (m *simModules) extend(r *record.Recorder) record.Extension {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recorder = r
	return record.Extension{Handler: m, Finish: m.finish}
}

// flush records what has been told. It runs on the tracing thread.
func (m *simModules) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.pending {
		e := &m.pending[i]
		e.ev.Time = m.recorder.Time(e.at)
		m.recorder.Emit(&e.ev)
	}
	m.pending = m.pending[:0]
}

// simEnds is how long the end of the recording waits for programs to leave the
// simulated GPU: their kernels are being stopped.
const simEnds = 10 * time.Second

// waitGone waits for programs to leave the simulated GPU.
func waitGone(s *sim.Sim) {
	for end := time.Now().Add(simEnds); len(s.Processes()) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// finish says what came of it.
func (m *simModules) finish() {
	waitGone(m.sim)
	m.flush()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range m.lost {
		m.recorder.Emit(&traces.Event{Kind: traces.KindGap, Time: m.recorder.Now(), FD: -1, Text: text})
	}
	s := capture.Stats{
		Images: uint64(len(m.images)), Loads: m.loads, Bytes: m.bytes, Kernels: uint64(len(m.launched)), Gaps: len(m.lost),
	}
	ev := s.Captured(traces.CaptureSimulator)
	ev.Time = m.recorder.Now()
	m.recorder.Emit(ev)
}

// Enter implements ptrace.Handler.
func (m *simModules) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (m *simModules) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (m *simModules) Task(t *ptrace.Task, _ *ptrace.TaskEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.task == nil {
		m.task = t
	}
}

// mappedFile returns the mapping of a file that an address lies in; nil: none.
func mappedFile(maps []proc.Mapping, addr uint64) *proc.Mapping {
	if at := proc.At(maps, addr); at != nil && strings.HasPrefix(at.Path, "/") {
		return at
	}
	return nil
}

// fileHolds reports whether a mapping's file has these bytes where it shows them at an
// address.
func fileHolds(at *proc.Mapping, addr uint64, b []byte) bool {
	if !at.Contains(addr, uint64(len(b))) {
		return false
	}
	got, err := readRange(at.Path, int64(addr-at.Start+at.Offset), int64(len(b)))
	return err == nil && bytes.Equal(got, b)
}
