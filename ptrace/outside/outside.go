// Package outside says where a process's threads are: by what /proc says of a thread that is in a
// system call, and what stands in the memory of Python's interpreter. Threads that run can be stopped
// for a moment.
package outside

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/python"
	"nvtrace/ptrace/unwind"
)

// A Thread is a thread of a process and where it is.
type Thread struct {
	TID  int    `json:"tid"`
	Name string `json:"name"`

	// Running says that the thread is in no system call: its functions of machine code are only known
	// if it was stopped.
	Running bool `json:"running"`

	Native []Function     `json:"native,omitempty"` // the innermost first; nil: not known
	Python []python.Frame `json:"python,omitempty"` // the innermost first; nil: the thread runs no Python
}

// A Function is one of machine code.
type Function struct {
	Name string `json:"name,omitempty"` // the symbol; "": the file has none there
	File string `json:"file,omitempty"` // its file's path; "": it is in none
}

// String returns the function as text: name of the file, or the file alone.
func (f *Function) String() string {
	switch file := filepath.Base(f.File); {
	case f.File == "":
		return "?"
	case f.Name == "":
		return file
	default:
		return f.Name + " of " + file
	}
}

const (
	maxNative = 64
	maxPython = 64
)

// memory reads a process's.
type memory struct {
	*os.File
	kept []byte // what was at an address when a thread was stopped
	at   uint64
}

// maxKept is how much of a thread's stack is kept, from its innermost frame on.
const maxKept = 256 << 10

// keep returns memory with the stack from sp on as it is now.
func (m memory) keep(sp uint64) memory {
	b := make([]byte, maxKept)
	n, _ := m.ReadMem(sp, b) // a smaller stack ends before
	m.kept, m.at = b[:n], sp
	return m
}

// ReadMem implements the interfaces of packages python and unwind.
func (m memory) ReadMem(addr uint64, b []byte) (int, error) {
	if off := addr - m.at; off < uint64(len(m.kept)) && uint64(len(m.kept))-off >= uint64(len(b)) {
		return copy(b, m.kept[off:]), nil
	}
	if addr >= 1<<63 {
		return 0, fmt.Errorf("address %#x is not a program's", addr)
	}
	return m.ReadAt(b, int64(addr))
}

// Threads lists a process's threads in the order of their ids. What of a thread can't be read is
// left out; an error says that nothing can. With stop, threads that run are stopped one by one, each for
// as long as its stack is copied: what functions it is in is found out when it has gone on, as the files
// of large libraries take long to read.
func Threads(pid int, stop bool) ([]Thread, error) {
	mem, err := os.Open(proc.Path(pid, "mem"))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	tids, err := proc.Threads(pid)
	if err != nil {
		return nil, err
	}
	slices.Sort(tids)
	m := memory{File: mem}
	pythons := pythonStacks(pid, m, tids)
	natives := unwind.Of(pid)
	var list []Thread
	for _, tid := range tids {
		t := Thread{TID: tid, Name: proc.Comm(tid), Python: pythons[tid]}
		t.Native, t.Running = nativeStack(pid, tid, m, natives)
		if t.Running && stop {
			var regs *unwind.Regs
			var kept memory
			if stopped(tid, func(r *unwind.Regs) {
				sp, _ := r.Get(unwind.RSP)
				regs, kept = r, m.keep(sp)
			}) {
				t.Native = functions(natives, kept, regs)
			}
		}
		list = append(list, t)
	}
	return list, nil
}

// nativeStack returns the functions that a thread is in which waits in a system call.
func nativeStack(pid, tid int, m memory, p *unwind.Process) (list []Function, running bool) {
	text, err := os.ReadFile(proc.Path(pid, "task/"+strconv.Itoa(tid)+"/syscall"))
	if err != nil {
		return nil, false
	}
	// "running", or the call's number, six arguments, the stack pointer and the program counter.
	words := strings.Fields(string(text))
	if len(words) < 3 {
		return nil, len(words) == 1 && words[0] == "running"
	}
	sp, err1 := strconv.ParseUint(words[len(words)-2], 0, 64)
	pc, err2 := strconv.ParseUint(words[len(words)-1], 0, 64)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	var regs unwind.Regs
	regs.Set(unwind.RSP, sp)
	regs.Set(unwind.PC, pc)
	return functions(p, m, &regs), false
}

// functions returns those that a thread is in with these registers.
func functions(p *unwind.Process, m memory, regs *unwind.Regs) (list []Function) {
	for _, f := range p.Walk(m, regs, maxNative) {
		at := p.Place(m, f.At())
		list = append(list, Function{Name: at.Func, File: at.File})
	}
	return list
}

// threadID is where glibc keeps a thread's id, from its thread pointer on (struct pthread's tid on
// x86-64, the same from 2.4 to 2.41). What stands there is checked against the process's threads.
const threadID = 0x2d0

// pythonStacks returns the stacks of Python by thread.
func pythonStacks(pid int, m memory, tids []int) map[int][]python.Frame {
	in, err := python.Find(pid)
	if err != nil {
		return nil
	}
	pointers, err := in.Threads(m)
	if err != nil {
		return nil
	}
	stacks := map[int][]python.Frame{}
	for _, pointer := range pointers {
		var b [4]byte
		if n, err := m.ReadMem(pointer+threadID, b[:]); err != nil || n < len(b) {
			continue
		}
		tid := int(int32(binary.LittleEndian.Uint32(b[:])))
		if !slices.Contains(tids, tid) {
			continue
		}
		if frames, err := in.Stack(m, pointer, maxPython); err == nil {
			stacks[tid] = frames
		}
	}
	return stacks
}
