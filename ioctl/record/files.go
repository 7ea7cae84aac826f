package record

import (
	"bytes"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
)

// Files that the agent opens have numbers, by which its records name them. The
// tables of descriptors say nothing of them but for what sync enters.

// learn tells the agent of a device that was seen: from now on it may open it. Only
// of those whose name follows from their number.
func (r *Recorder) learn(rdev uint64, f *openFile) {
	if name, ok := r.opts.NodeName(rdev, ""); r.fast.on && ok && name == f.name {
		r.devices[rdev] = name
		r.agent.AddDevice(rdev, kindOf(f))
	}
}

// findNodes returns the nodes in /dev, of which the agent can be told before they
// are opened. name is as Options.NodeName.
func findNodes(name func(rdev uint64, path string) (string, bool)) (nodes []openFile) {
	list, _ := filepath.Glob("/dev/nvidia*") // fails only for a bad pattern
	for _, path := range list {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if name, ok := name(st.Rdev, path); ok {
			nodes = append(nodes, openFile{name: name, rdev: st.Rdev})
		}
	}
	return nodes
}

// current says whether what the table has of a descriptor is known to hold, whatever the
// agent has done to others.
func (r *Recorder) current(pid int, fd int32) bool {
	p := r.procs[pid]
	if p == nil || p.agent == nil {
		return false
	}
	file := p.agent.File(fd)
	if file == 0 {
		return false
	}
	if p.agents[fd] != file || p.fds[fd] == nil {
		files, _ := p.agent.Data.(map[uint32]*openFile)
		f := files[file]
		if f == nil {
			return false
		}
		p.enter(fd, file, f)
	}
	return true
}

// sync brings a process's table up to date with what the agent has done to
// descriptors. The process's thread that matters is stopped.
func (r *Recorder) sync(pid int) {
	p := r.procs[pid]
	if p == nil || p.agent == nil {
		return
	}
	n := p.agent.Changes()
	if n == p.changes {
		return
	}
	p.changes = n
	r.rec.Flush() // files are numbered in the order of events
	files, _ := p.agent.Data.(map[uint32]*openFile)
	now := make(map[int32]uint32)
	p.agent.Files(func(fd int32, file uint32) { now[fd] = file })
	for fd, file := range p.agents {
		if now[fd] != file {
			delete(p.fds, fd)
			delete(p.agents, fd)
		}
	}
	for fd, file := range now {
		if p.agents[fd] == file && p.fds[fd] != nil {
			continue
		}
		f := files[file]
		if f == nil { // its record is still to come
			if f = r.identify(pid, fd); f == nil || p.agent.File(fd) != file {
				continue // it is being closed: then its record says what it was
			}
			files[file] = f
		}
		p.enter(fd, file, f)
	}
}

// enter notes which file a descriptor is of that the agent has opened.
func (p *process) enter(fd int32, file uint32, f *openFile) {
	if p.agents == nil {
		p.agents = make(map[int32]uint32)
	}
	p.fds[fd], p.agents[fd] = f, file
}

// fileOf returns the open file that a record is about, or nil.
func (r *Recorder) fileOf(ap *agent.Process, rec *agent.Record) *openFile {
	if rec.File == 0 {
		f, _ := rec.Tag.(*openFile)
		return f
	}
	files, _ := ap.Data.(map[uint32]*openFile)
	f := files[rec.File]
	if name, ok := r.devices[rec.Rdev]; f == nil && ok && files != nil && rec.Rdev != 0 {
		f = r.newFile(name, rec.Rdev)
		files[rec.File] = f
	}
	if f == nil {
		f, _ = rec.Tag.(*openFile) // the record of the open was given up
	}
	return f
}

// agentSyscall completes the event of a call about a device other than an ioctl.
func (r *Recorder) agentSyscall(ev *traces.Event, rec *agent.Record, f *openFile) {
	if rec.Unfinished {
		ev.Flags |= traces.FlagUnfinished
		ev.Dur = 0
	}
	switch rec.Nr {
	case unix.SYS_MMAP:
		ev.Kind, ev.FD = traces.KindMmap, int32(uint32(rec.Args[4]))
	case unix.SYS_CLOSE:
		ev.Kind, ev.FD = traces.KindClose, int32(uint32(rec.Args[0]))
	case unix.SYS_DUP, unix.SYS_FCNTL:
		ev.Kind, ev.FD = traces.KindDup, int32(uint32(rec.Args[0]))
	default:
		r.agentOpen(ev, rec, f)
		return
	}
	if f == nil {
		return
	}
	setFile(ev, f)
	if p := r.procs[rec.PID]; p != nil && ev.Kind == traces.KindDup && rec.Ret >= 0 {
		r.reused(p, int32(rec.Ret), ev.Time+ev.Dur)
	}
	r.rec.Emit(ev)
}

// agentOpen completes the event of an open.
func (r *Recorder) agentOpen(ev *traces.Event, rec *agent.Record, f *openFile) {
	ev.Kind = traces.KindOpen
	if len(rec.Segs) > 0 {
		path, _, _ := bytes.Cut(rec.Segs[0].In, []byte{0})
		ev.Path = string(path)
	}
	switch {
	case rec.Unfinished:
	case rec.Ret < 0:
		if !failedOpen(ev.Path) {
			return
		}
	case f == nil:
		return
	default:
		ev.FD = int32(rec.Ret)
		setFile(ev, f)
		if p := r.procs[rec.PID]; p != nil {
			r.reused(p, ev.FD, ev.Time+ev.Dur)
		}
	}
	r.rec.Emit(ev)
}

// before is sync for what a task's event needs, which makes the agent forget.
func (r *Recorder) before(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		if e.Parent != nil && !e.Thread {
			r.sync(e.Parent.PID)
		}
	case ptrace.TaskExec, ptrace.TaskUnfinished:
		r.sync(t.PID)
	}
}
