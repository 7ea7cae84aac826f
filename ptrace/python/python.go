// Package python reads the stacks of Python's threads from outside, of CPython 3.9 to 3.14,
// while the thread stands still.
//
// The layouts of what the interpreter keeps are those of its headers; from 3.13 on it says
// them itself, at the beginning of its state. What is read is the program's word: all of
// it is bounded, and what makes no sense ends a stack.
package python

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// ErrNone says that there is no interpreter in the process, or none of a version that is known.
var ErrNone = errors.New("no Python that is known")

// Memory is a process's, as ptrace.Task reads it.
type Memory interface {
	ReadMem(addr uint64, b []byte) (n int, err error)
}

// Frame is a call in a stack.
type Frame struct {
	File string `json:"file"`
	Func string `json:"func"`           // with its class, from 3.11 on
	Line int    `json:"line,omitempty"` // 0: not known
	// Entry says that the interpreter's function for running code (IsEval) was called for this one: those in front
	// of it, back to the one before with Entry, run in the same call of that function.
	Entry bool `json:"-"`
}

// IsEval reports whether a function of the interpreter is that which runs Python's code.
func IsEval(function string) bool { return strings.HasPrefix(function, "_PyEval_EvalFrameDefault") }

// Bounds of what is read.
const (
	maxFrames  = 256     // of a stack, also those that are left out
	maxThreads = 1 << 12 // of an interpreter
	maxStates  = 64      // interpreters
	maxText    = 1 << 10 // bytes of a name
	maxTable   = 1 << 16 // of a table of lines
	maxCodes   = 1 << 14 // that are remembered
)

// Interpreter is that of a process.
type Interpreter struct {
	Major, Minor int
	File         string // that its code is in

	layout  layout
	runtime uint64 // address of _PyRuntime
	ready   bool   // the layout is known
	threads map[uint64]uint64
	codes   map[codeKey]*code
}

// layout is where things are, in bytes from the beginning of what they are in.
type layout struct {
	interpreters           uint64 // in _PyRuntime
	next, list             uint64 // in an interpreter's state
	threadNext, threadID   uint64 // in a thread's
	frame, inner           uint64 // in a thread's: of its frame; of that in a structure that it points to, if indirect
	indirect               bool
	code, previous, at     uint64 // in a frame
	owner                  uint64 // 0: there is none
	entry                  uint64 // whether it has been entered by a call; 0: what is further out says it
	file, name, line, rows uint64 // in a code object
	start                  uint64 // of its instructions; 0: `at` counts from there
	unit                   int64  // bytes that `at` counts, where it counts
	text, wide             uint64 // where an ASCII string's bytes are, and another's
	old                    bool   // frames are objects, whose `at` has 4 bytes
}

// The layouts by minor version of 3.
var layouts = map[int]layout{
	9: {
		interpreters: 32, list: 8, threadNext: 8, threadID: 176, frame: 24, previous: 24, code: 32, at: 104,
		file: 104, name: 112, line: 40, rows: 120, unit: 1, text: 48, wide: 72, old: true,
	},
	10: {
		interpreters: 32, list: 8, threadNext: 8, threadID: 176, frame: 24, previous: 24, code: 32, at: 96,
		file: 104, name: 112, line: 40, rows: 120, unit: 2, text: 48, wide: 72, old: true,
	},
	11: {
		interpreters: 40, list: 16, threadNext: 8, threadID: 152, frame: 56, indirect: true, inner: 8, code: 32, previous: 48, at: 56, owner: 69, entry: 68,
		file: 112, name: 128, line: 72, rows: 136, start: 184, text: 48, wide: 72,
	},
	12: {
		interpreters: 40, list: 72, threadNext: 8, threadID: 136, frame: 56, indirect: true, code: 0, previous: 8, at: 56, owner: 70,
		file: 112, name: 128, line: 68, rows: 136, start: 192, text: 40, wide: 56,
	},
}

// Find looks for the interpreter of a process: in its program, or in libpython.
func Find(pid int) (*Interpreter, error) {
	maps, err := proc.Maps(pid)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for i := range maps {
		m := &maps[i]
		base := filepath.Base(m.Path)
		if m.Inode == 0 || seen[m.Path] || !strings.HasPrefix(base, "libpython3.") && !strings.HasPrefix(base, "python3") {
			continue
		}
		seen[m.Path] = true
		if in, err := open(pid, m, base); err == nil {
			return in, nil
		}
	}
	return nil, ErrNone
}

// open looks for an interpreter in a file whose beginning is mapped by m.
func open(pid int, m *proc.Mapping, base string) (*Interpreter, error) {
	f, _, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e, err := dso.Read(f)
	if err != nil {
		return nil, err
	}
	symbols, err := e.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	bias, ok := e.Bias(m)
	if !ok {
		return nil, ErrNone
	}
	in := &Interpreter{Major: 3, File: m.Path, threads: make(map[uint64]uint64), codes: make(map[codeKey]*code)}
	for i := range symbols {
		switch s := &symbols[i]; {
		case !s.Defined:
		case s.Name == "_PyRuntime":
			in.runtime = bias + s.Addr
		case s.Name == "Py_Version": // from 3.11 on
			var b [8]byte
			if e.ReadAt(b[:], s.Addr) == nil {
				v := binary.LittleEndian.Uint64(b[:])
				in.Major, in.Minor = int(v>>24&0xff), int(v>>16&0xff)
			}
		}
	}
	if in.Minor == 0 {
		_, _ = fmt.Sscanf(strings.TrimPrefix(base, "lib"), "python3.%d", &in.Minor) // 0: not known
	}
	if in.runtime == 0 || in.Major != 3 || in.Minor < 9 || in.Minor > 14 {
		return nil, ErrNone
	}
	in.layout, in.ready = layouts[in.Minor], in.Minor < 13
	return in, nil
}

// describe reads the layout that an interpreter says itself: numbers of 8 bytes behind a word,
// the version and whether there is no lock.
func (in *Interpreter) describe(m Memory) error {
	var b [8 * 50]byte
	if err := read(m, in.runtime, b[:]); err != nil {
		return err
	}
	if !bytes.HasPrefix(b[:], []byte("xdebugpy")) {
		return fmt.Errorf("%w: its state has no description", ErrNone)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	const states = 6 // before that the runtime's
	threads := states + 13
	if in.Minor >= 14 {
		threads += 3
	}
	frames := threads + 9
	codes := frames + 6
	if in.Minor >= 14 {
		codes += 2
	}
	in.layout = layout{
		interpreters: at(5), next: at(states + 2), list: at(states + 3), threadNext: at(threads + 2), frame: at(threads + 4), threadID: at(threads + 5),
		previous: at(frames + 1), code: at(frames + 2), at: at(frames + 3), owner: at(frames + 5),
		file: at(codes + 1), name: at(codes + 3), rows: at(codes + 4), line: at(codes + 5), start: at(codes + 9), text: 40, wide: 56,
	}
	l := &in.layout
	for _, v := range []uint64{l.threadNext, l.frame, l.threadID, l.previous, l.code, l.at, l.owner, l.file, l.name, l.rows, l.line, l.start} {
		if v > maxObject-8 {
			return fmt.Errorf("%w: a member %d bytes from its beginning", ErrNone, v)
		}
	}
	in.ready = true
	return nil
}

// maxObject is how much of an object is read at most.
const maxObject = 1024

func read(m Memory, addr uint64, b []byte) error {
	n, err := m.ReadMem(addr, b)
	if err == nil && n < len(b) {
		err = fmt.Errorf("%d bytes of %d at %#x", n, len(b), addr)
	}
	return err
}

func word(m Memory, addr uint64) (uint64, error) {
	var b [8]byte
	err := read(m, addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// Stack returns the calls of the thread with a thread pointer, the innermost first, at most as
// many as most. There are none in a thread that runs no Python.
func (in *Interpreter) Stack(m Memory, threadPointer uint64, most int) ([]Frame, error) {
	if !in.ready {
		if err := in.describe(m); err != nil {
			return nil, err
		}
	}
	l := &in.layout
	state, err := in.thread(m, threadPointer)
	if err != nil || state == 0 {
		return nil, err
	}
	at, err := word(m, state+l.frame)
	if err == nil && l.indirect && at != 0 {
		at, err = word(m, at+l.inner)
	}
	var frames []Frame
	b := make([]byte, max(l.code, l.previous, l.at, l.owner, l.entry)+8)
	le := binary.LittleEndian
	for n := 0; err == nil && at != 0 && n < maxFrames && len(frames) < most; n++ {
		if err = read(m, at, b); err != nil {
			break
		}
		const native = 3 // the owner from which on it is no call of Python
		if l.owner == 0 || b[l.owner] < native {
			c, err := in.code(m, le.Uint64(b[l.code:])&^7)
			if err != nil {
				break
			}
			f := Frame{File: c.file, Func: c.name, Entry: l.old || l.entry != 0 && b[l.entry] != 0}
			if l.old {
				f.Line = c.lineAt(in.Minor, int64(int32(le.Uint32(b[l.at:])))*l.unit)
			} else {
				f.Line = c.lineAt(in.Minor, int64(le.Uint64(b[l.at:])-c.start))
			}
			frames = append(frames, f)
		} else if len(frames) > 0 { // it stands for the call
			frames[len(frames)-1].Entry = true
		}
		at = le.Uint64(b[l.previous:])
	}
	if len(frames) > 0 {
		frames[len(frames)-1].Entry = true // if it is the outermost
		err = nil                          // what is further out is not known
	}
	return frames, err
}

// thread returns the address of a thread's state, 0 if it has none.
func (in *Interpreter) thread(m Memory, threadPointer uint64) (uint64, error) {
	l := &in.layout
	if s, ok := in.threads[threadPointer]; ok {
		if id, err := word(m, s+l.threadID); err == nil && id == threadPointer {
			return s, nil
		}
		delete(in.threads, threadPointer)
	}
	var found uint64
	err := in.states(m, func(id, state uint64) bool {
		if id != threadPointer {
			return true
		}
		if len(in.threads) >= maxThreads {
			clear(in.threads)
		}
		in.threads[threadPointer], found = state, state
		return false
	})
	return found, err
}

// Threads returns the thread pointers of all threads that can run Python.
func (in *Interpreter) Threads(m Memory) ([]uint64, error) {
	if !in.ready {
		if err := in.describe(m); err != nil {
			return nil, err
		}
	}
	var list []uint64
	err := in.states(m, func(id, _ uint64) bool {
		list = append(list, id)
		return true
	})
	return list, err
}

// states yields each thread's thread pointer and where its state is.
func (in *Interpreter) states(m Memory, yield func(id, state uint64) bool) error {
	l := &in.layout
	interp, err := word(m, in.runtime+l.interpreters)
	for i := 0; err == nil && interp != 0 && i < maxStates; i++ {
		var s uint64
		s, err = word(m, interp+l.list)
		for k := 0; err == nil && s != 0 && k < maxThreads; k++ {
			id, err := word(m, s+l.threadID)
			if err != nil {
				return err
			}
			if !yield(id, s) {
				return nil
			}
			if s, err = word(m, s+l.threadNext); err != nil {
				return err
			}
		}
		if err == nil {
			interp, err = word(m, interp+l.next)
		}
	}
	return err
}

// codeKey tells code objects apart, whose memory may come to be another's.
type codeKey struct{ addr, file, name, rows, line uint64 }

// code is what is known of a code object.
type code struct {
	file, name string
	line       int
	rows       []byte
	start      uint64
}

func (in *Interpreter) code(m Memory, addr uint64) (*code, error) {
	l := &in.layout
	b := make([]byte, max(l.file, l.name, l.line, l.rows)+8)
	if err := read(m, addr, b); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	k := codeKey{addr, le.Uint64(b[l.file:]), le.Uint64(b[l.name:]), le.Uint64(b[l.rows:]), uint64(le.Uint32(b[l.line:]))}
	if c := in.codes[k]; c != nil {
		return c, nil
	}
	c := &code{line: int(int32(k.line)), start: addr + l.start}
	var err error
	if c.file, err = in.str(m, k.file); err != nil {
		return nil, err
	}
	if c.name, err = in.str(m, k.name); err != nil {
		return nil, err
	}
	var head [32]byte // of a bytes object: its length at 16, then a hash
	if err := read(m, k.rows, head[:]); err != nil {
		return nil, err
	}
	c.rows = make([]byte, min(le.Uint64(head[16:]), maxTable))
	if err := read(m, k.rows+uint64(len(head)), c.rows); err != nil && len(c.rows) > 0 {
		return nil, err
	}
	if len(in.codes) >= maxCodes {
		clear(in.codes)
	}
	in.codes[k] = c
	return c, nil
}

// str reads a string of Python's.
func (in *Interpreter) str(m Memory, addr uint64) (string, error) {
	var head [40]byte // length at 16, state at 32
	if err := read(m, addr, head[:]); err != nil {
		return "", err
	}
	le := binary.LittleEndian
	n, state := le.Uint64(head[16:]), le.Uint32(head[32:])
	kind, compact, ascii := uint64(state>>2&7), state>>5&1, state>>6&1
	if compact == 0 || kind != 1 && kind != 2 && kind != 4 {
		return "", errors.New("no string")
	}
	at := in.layout.wide
	if ascii != 0 {
		at = in.layout.text
	}
	n = min(n, maxText)
	b := make([]byte, n*kind)
	if err := read(m, addr+at, b); err != nil && len(b) > 0 {
		return "", err
	}
	var s strings.Builder
	for i := range n {
		var r rune
		switch kind {
		case 1:
			r = rune(b[i])
		case 2:
			r = rune(le.Uint16(b[2*i:]))
		case 4:
			r = rune(le.Uint32(b[4*i:]))
		}
		s.WriteRune(r)
	}
	return s.String(), nil
}
