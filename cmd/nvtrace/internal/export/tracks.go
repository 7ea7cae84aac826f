package export

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
)

// process returns the tracks of a process, naming it if it is new or its program is.
func (t *Timeline) process(pid int32) *process {
	name := t.processName(pid)
	p := t.procs[pid]
	switch {
	case p == nil:
		if len(t.procs) >= maxTasks {
			t.endStreams()
			t.endGPUStreams()
			clear(t.procs)
		}
		p = &process{track: t.out.uuid()}
		t.procs[pid] = p
	case p.name == name:
		return p
	}
	p.name = name
	t.out.descriptor(p.track, func(b []byte) []byte {
		b = appendUint(b, descriptorOrder, childrenExplicit)
		if pid <= 0 || t.among != nil { // 0 is the idle process of a machine for Perfetto
			return appendBytes(b, descriptorName, t.named(clean(name)))
		}
		b, at := begin(b, descriptorProcess)
		b = appendUint(b, processPID, uint64(pid))
		return end(appendBytes(b, processName, clean(name)), at)
	})
	return p
}

// named is a track's name as it is among those of several recordings.
func (t *Timeline) named(name string) string {
	if t.among == nil {
		return name
	}
	return clean(t.among.Name) + ": " + name
}

// processName returns the name that a process is shown with.
func (t *Timeline) processName(pid int32) string {
	if n := t.names[pid]; n != "" {
		return n
	}
	if pid == 0 {
		return "nvtrace"
	}
	return "process " + strconv.Itoa(int(pid))
}

// sortedThreads returns the threads in the order of their ids.
func (t *Timeline) sortedThreads() []taskKey {
	return slices.SortedFunc(maps.Keys(t.threads), func(a, b taskKey) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid))
	})
}

func (t *Timeline) account(pid int32) *account { return t.ledger.account(pid) }

// Where the tracks of a process stand, from above.
const (
	rankFailures = -2
	rankStreams  = -1
	rankRanges   = 0
)

// below writes what a track below another is.
func (t *Timeline) below(parent uint64, name string, rank int, f func(b []byte) []byte) uint64 {
	track := t.out.uuid()
	t.out.descriptor(track, func(b []byte) []byte {
		b = appendBytes(b, descriptorName, name)
		b = appendUint(b, descriptorParent, parent)
		b = appendUint(b, descriptorRank, uint64(rank))
		if f != nil {
			b = f(b)
		}
		return b
	})
	return track
}

// thread returns the track of a thread, naming it if it is new or its program is.
func (t *Timeline) thread(key taskKey) *thread {
	name := cmp.Or(t.called[key], t.names[key.pid])
	th := t.threads[key]
	if th != nil && th.name == name {
		return th
	}
	if th == nil {
		if len(t.threads) >= maxTasks {
			t.forget()
		}
		t.process(key.pid)
		track := t.out.uuid()
		th = &thread{end: t.floor, track: track, seq: t.out.sequence(track)}
		t.threads[key] = th
	}
	th.name = name
	p := t.process(key.pid)
	full := p.name
	if key.tid != key.pid {
		full = cmp.Or(t.called[key], "thread")
	}
	t.out.descriptor(th.track, func(b []byte) []byte {
		if key.pid <= 0 || key.tid <= 0 || t.among != nil {
			b = appendUint(b, descriptorParent, p.track)
			return appendBytes(b, descriptorName, clean(full+" "+strconv.Itoa(int(key.tid))))
		}
		// The viewer puts the thread's number behind its name.
		b, at := begin(b, descriptorThread)
		b = appendUint(b, threadPID, uint64(key.pid))
		b = appendUint(b, threadTID, uint64(key.tid))
		return end(appendBytes(b, threadName, clean(full)), at)
	})
	return th
}

// finish ends a thread's call that was not seen to return.
func (t *Timeline) finish(th *thread, ns int64) {
	if th.open {
		th.open, th.end = false, max(ns, th.end)
		t.out.start(th.seq, th.end, typeEnd)
		t.out.finish(th.end)
	}
}

// forget drops all threads, of which there are too many. A call that began
// before the latest end of theirs could overlap one of the same thread.
func (t *Timeline) forget() {
	for _, k := range t.sortedThreads() {
		th := t.threads[k]
		t.finish(th, th.end)
		for len(th.calls) > 0 {
			t.closeCall(th, th.end, false, func() {})
		}
		t.endRun(th, &th.run)
		t.endRanges(th)
		t.out.drop(th.seq)
		t.floor = max(t.floor, th.end)
	}
	clear(t.threads)
}

// callName returns a name that lives on, of which there is one copy.
func (t *Timeline) callName(name []byte) string {
	s, ok := t.common[string(name)]
	if !ok {
		if len(t.common) >= maxFrames {
			return "(other)"
		}
		s = string(name)
		t.common[s] = s
	}
	return s
}

// failure writes that a call failed, on its process's track of failures.
func (t *Timeline) failure(key taskKey, ns int64, status string, call []byte) {
	p := t.process(key.pid)
	if p.failures == 0 {
		p.failures = t.below(p.track, "failed calls", rankFailures, nil)
	}
	o := &t.out
	o.start(o.main, ns, typeInstant)
	o.on(p.failures)
	o.name(status)
	o.category("failed")
	o.text("call", call)
	o.int("thread", int64(key.tid))
	o.finish(ns)
}
