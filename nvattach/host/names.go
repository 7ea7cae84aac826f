package host

import (
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
)

// names knows what code processes had where, so that addresses have names when they are
// shown, though the processes may have ended by then. Its methods may be called by several
// goroutines.
type names struct {
	mu    sync.Mutex
	parts []codePart // in the order in which they were mapped
	files map[proc.FileKey]*namedFile
	held  map[proc.FileKey]*os.File // until their functions are read
}

// mostHeld bounds the files that are kept open. There may be few descriptors to be had.
const mostHeld = 128

// mostAtOnce is the size of files whose functions are read while a thread waits.
const mostAtOnce = 4 << 20

// keep sees to it that a file's functions can be named when the process has ended, though its path may lead to another
// by then. Files stay open only where that holds no file system that the program could want to unmount; those that no
// path of this process leads to, as in containers, are read at once if they are small.
func (n *names) keep(file *os.File, m *proc.Mapping, pid int, key proc.FileKey) {
	if _, known := n.files[key]; known || n.held[key] != nil {
		_ = file.Close()
		return
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && uint64(len(n.held)) < min(mostHeld, limit.Cur/8) && onOurMount(file) {
		if n.held == nil {
			n.held = make(map[proc.FileKey]*os.File)
		}
		n.held[key] = file
		return
	}
	var st unix.Stat_t
	if err := unix.Stat(m.Path, &st); (err != nil || proc.KeyOf(&st) != key) && key.Size <= mostAtOnce {
		n.read(file, m, pid, key)
	}
	_ = file.Close()
}

// onOurMount reports whether a file is on a mount that this process holds anyway: of its root or its folder.
func onOurMount(file *os.File) bool {
	mount := func(fd int, name string, flags int) uint64 {
		var st unix.Statx_t
		if unix.Statx(fd, name, flags, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
			return 0 // before Linux 5.8
		}
		return st.Mnt_id
	}
	id := mount(int(file.Fd()), "", unix.AT_EMPTY_PATH)
	return id != 0 && (id == mount(unix.AT_FDCWD, "/", 0) || id == mount(unix.AT_FDCWD, ".", 0))
}

// A codePart is a part of a file that a process has mapped to be executed.
type codePart struct {
	proc.Mapping
	pid int
	key proc.FileKey
}

// maxParts bounds what is kept of processes without an end.
const maxParts = 1 << 16

// A namedFile is what is known of a file.
type namedFile struct {
	file      *dso.File
	functions unwind.Functions
}

// mapped takes in that a process has got code.
func (n *names) mapped(pid int, e *dso.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range e.Files() {
		file, key, err := m.Open()
		if err != nil {
			continue // its addresses stay numbers
		}
		n.keep(file, &m.Mapping, pid, key)
		if len(n.parts) < maxParts {
			n.parts = append(n.parts, codePart{m.Mapping, pid, key})
		}
	}
}

// part finds the code at an address of a process: what was mapped there last. A process that
// was forked has that of another, at the same addresses.
func (n *names) part(pid int, addr uint64) *codePart {
	var other *codePart
	for i := len(n.parts) - 1; i >= 0; i-- {
		p := &n.parts[i]
		switch {
		case !p.Contains(addr, 1):
		case p.pid == pid:
			return p
		case other == nil:
			other = p
		}
	}
	return other
}

// Name says where an address of a process is: in no file that is known, it has no File, and its
// Offset is the address. returned says that the address is one to which a function returns,
// behind the call.
func (t *Tracer) Name(pid int, addr uint64, returned bool) unwind.Place {
	n := &t.names
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.part(pid, addr)
	if p == nil {
		return unwind.Place{Offset: addr}
	}
	return n.place(p, addr, returned)
}

// NameAnywhere is Name of an address in any of the processes: it has no File, too, where they had
// different code there.
func (t *Tracer) NameAnywhere(addr uint64, returned bool) unwind.Place {
	n := &t.names
	n.mu.Lock()
	defer n.mu.Unlock()
	var in *codePart
	for i := range n.parts {
		p := &n.parts[i]
		switch {
		case !p.Contains(addr, 1):
		case in != nil && (in.key != p.key || in.Start-in.Offset != p.Start-p.Offset):
			return unwind.Place{Offset: addr}
		default:
			in = p
		}
	}
	if in == nil {
		return unwind.Place{Offset: addr}
	}
	return n.place(in, addr, returned)
}

// place says where in its file an address is.
func (n *names) place(p *codePart, addr uint64, returned bool) unwind.Place {
	at := unwind.Place{File: p.Path, Offset: addr - p.Start + p.Offset}
	f := n.file(p)
	if f == nil {
		return at
	}
	bias, ok := f.file.Bias(&p.Mapping)
	if !ok {
		return at
	}
	at.Offset = addr - bias
	in := at.Offset
	if returned {
		in-- // the call may be a function's last instruction
	}
	name, into := f.functions.At(in)
	if at.Func = name; name != "" {
		at.Into = into + at.Offset - in
	}
	return at
}

// file reads the functions of the file, nil if it can't be read or is another by now.
func (n *names) file(p *codePart) *namedFile {
	if f, ok := n.files[p.key]; ok {
		return f
	}
	r := n.held[p.key]
	delete(n.held, p.key)
	if r == nil {
		r = p.open()
	}
	if r != nil {
		defer r.Close()
	}
	return n.read(r, &p.Mapping, p.pid, p.key)
}

// open opens the file by what the process has mapped, or by its path; nil: neither leads to it any more.
func (p *codePart) open() *os.File {
	for _, open := range []func() (*os.File, proc.FileKey, error){
		func() (*os.File, proc.FileKey, error) { return proc.OpenMapped(p.pid, &p.Mapping) },
		func() (*os.File, proc.FileKey, error) { return proc.OpenRegular(p.Path) },
	} {
		r, key, err := open()
		if err != nil {
			continue
		}
		if key == p.key {
			return r
		}
		_ = r.Close()
	}
	return nil
}

// read reads the functions of a file, of nil none.
func (n *names) read(r *os.File, m *proc.Mapping, pid int, key proc.FileKey) *namedFile {
	if n.files == nil {
		n.files = make(map[proc.FileKey]*namedFile)
	}
	n.files[key] = nil
	if r == nil {
		return nil
	}
	file, err := dso.Read(r)
	if err != nil {
		return nil
	}
	functions, _ := unwind.FunctionsOf(file, strings.TrimSuffix(m.Path, " (deleted)"), dso.Root(pid)) // none of one that was stripped of all
	file.Detach()
	f := &namedFile{file, functions}
	n.files[key] = f
	return f
}
