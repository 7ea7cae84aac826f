package dso

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// A Watcher says which code processes get. It is a [ptrace.Handler] for the calls that
// [Watcher.Rules] select; other handlers use its rules beside their own, and pass it what comes.
type Watcher struct {
	// Class is that of the system calls that Rules select. Others may have the same.
	Class uint16
	// Mapped is called on the tracing thread, before any of the code can run if a system
	// call of the program's has mapped it, or execve has.
	Mapped func(t *ptrace.Task, e *Event)
}

var _ ptrace.Handler = (*Watcher)(nil)

// Why says how code came into a process.
type Why uint8

// The ways.
const (
	ByMap     Why = iota // mmap
	ByProtect            // mprotect: it was there before, and could not be run
	ByExec               // the kernel has loaded a program, perhaps with its loader
	Attached             // the process had it before tracing began
)

// An Event says that a process has got code.
type Event struct {
	Why Why
	// Start and End are the addresses that it is about, all for ByExec and Attached. ByMap:
	// what was there before is gone.
	Start, End uint64

	pid    int
	fd     string // ByMap: names the descriptor of the file
	maps   []proc.Mapping
	listed bool
}

// A Code is a part of a file that is mapped to be executed.
type Code struct {
	proc.Mapping
	e *Event
}

// Rules select the calls that make memory executable.
func (w *Watcher) Rules() []ptrace.Rule {
	exec := ptrace.ArgMatch{Arg: 2, Mask: unix.PROT_EXEC, Value: unix.PROT_EXEC}
	file := ptrace.ArgMatch{Arg: 4, Op: ptrace.NotEqual, Value: 0xffffffff, Low: true} // anonymous memory holds nothing yet
	return []ptrace.Rule{
		{Names: []string{"mmap"}, Class: w.Class, Args: []ptrace.ArgMatch{exec, file}},
		{Names: []string{"mprotect", "pkey_mprotect"}, Class: w.Class, Args: []ptrace.ArgMatch{exec}},
	}
}

// concerns reports whether a call makes memory executable. 32-bit programs are nobody's business.
func concerns(s *ptrace.Syscall) bool {
	if s.Compat || s.Args[2]&unix.PROT_EXEC == 0 {
		return false
	}
	switch s.Nr {
	case unix.SYS_MMAP:
		return int32(uint32(s.Args[4])) >= 0
	case unix.SYS_MPROTECT, unix.SYS_PKEY_MPROTECT:
		return true
	}
	return false
}

// Enter implements [ptrace.Handler]; it skips calls that are not the Watcher's.
func (w *Watcher) Enter(_ *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if concerns(s) {
		return ptrace.WantExit
	}
	return ptrace.Skip
}

// Exit implements [ptrace.Handler]; calls that are not the Watcher's do nothing.
func (w *Watcher) Exit(t *ptrace.Task, s *ptrace.Syscall) {
	const page = pageSize - 1
	if !concerns(s) || s.Ret < 0 && s.Ret >= -4095 {
		return
	}
	e := &Event{Why: ByProtect, Start: s.Args[0], End: s.Args[0] + s.Args[1], pid: t.PID}
	if s.Nr == unix.SYS_MMAP {
		e.Why, e.Start, e.End = ByMap, uint64(s.Ret), uint64(s.Ret)+(s.Args[1]+page)&^page
		e.fd = proc.FD(t.TID, int32(uint32(s.Args[4])))
		if path, err := os.Readlink(e.fd); err == nil {
			e.maps, e.listed = []proc.Mapping{{
				Start: e.Start, End: e.End, Offset: s.Args[5], Read: s.Args[2]&unix.PROT_READ != 0, Write: s.Args[2]&unix.PROT_WRITE != 0, Exec: true,
				Private: s.Args[3]&unix.MAP_SHARED == 0, Path: path,
			}}, true
		}
	}
	w.Mapped(t, e)
}

// Task implements [ptrace.Handler]. A handler that has a Watcher calls it last: Mapped may be called in it.
func (w *Watcher) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch {
	case e.Kind == ptrace.TaskNew && e.Attached && !e.Thread: // it has not stopped yet
		t.Interrupt(func(t *ptrace.Task) { w.Mapped(t, &Event{Why: Attached, End: ^uint64(0), pid: t.PID}) })
	case e.Kind == ptrace.TaskExec:
		w.Mapped(t, &Event{Why: ByExec, End: ^uint64(0), pid: t.PID})
	}
}

// Files returns the parts of files that the event is about, ascending.
func (e *Event) Files() []Code {
	var list []Code
	if !e.listed {
		e.maps, _ = proc.Maps(e.pid) // none, if it died
		e.listed = true
	}
	for i := range e.maps {
		m := &e.maps[i]
		if m.Exec && m.Start < e.End && m.End > e.Start && (m.Inode != 0 || e.fd != "") && strings.HasPrefix(m.Path, "/") {
			list = append(list, Code{*m, e})
		}
	}
	return list
}

// Root returns the folder by which the process's files are reached, as it has them.
func (c *Code) Root() string { return Root(c.e.pid) }

// Open opens the file, as it was mapped, for reading. It never waits. The error matches
// [proc.ErrNotRegular] for what can't be read like a file.
func (c *Code) Open() (*os.File, proc.FileKey, error) {
	if c.e.fd == "" {
		return proc.OpenMapped(c.e.pid, &c.Mapping)
	}
	f, key, err := proc.OpenRegular(c.e.fd)
	if err == nil {
		return f, key, nil
	}
	if maps, merr := proc.Maps(c.e.pid); merr == nil { // the descriptor may be gone; the mapping has a name
		if m := proc.At(maps, c.Start); m != nil && m.Inode != 0 {
			return proc.OpenMapped(c.e.pid, m)
		}
	}
	return nil, proc.FileKey{}, err
}
