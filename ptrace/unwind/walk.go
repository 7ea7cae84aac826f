package unwind

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"sort"
	"strings"

	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// Regs are registers of a thread, by their numbers in DWARF; those that were not set are not known.
type Regs struct {
	v     [numRegs]uint64
	known uint32
}

// Get returns a register, and whether it is known.
func (r *Regs) Get(n int) (uint64, bool) {
	if n < 0 || n >= numRegs || r.known>>n&1 == 0 {
		return 0, false
	}
	return r.v[n], true
}

// Preserved returns the registers that functions preserve, of those that are known; and where the stack is.
func (r *Regs) Preserved() *Regs {
	return &Regs{v: r.v, known: r.known & (1<<RBX | 1<<RBP | 1<<RSP | 1<<R12 | 1<<R13 | 1<<R14 | 1<<R15)}
}

// Set sets a register.
func (r *Regs) Set(n int, v uint64) {
	r.v[n], r.known = v, r.known|1<<n
}

// Memory is a process's, as ptrace.Task reads it.
type Memory interface {
	ReadMem(addr uint64, b []byte) (n int, err error)
}

// A Frame is a function that has not returned.
type Frame struct {
	// PC is where the thread is; for all but the first, where it will return to.
	PC uint64
	// Exact says that the thread is at PC: it is the first, or a signal handler has interrupted it.
	// Others have called from the instruction before PC.
	Exact bool
	// Guessed says that nothing is said of the function before, whose frame pointer has led here, or
	// what is on top of its stack: functions may be missing in between.
	Guessed bool
}

// At returns an address of the instruction that the thread is in.
func (f *Frame) At() uint64 {
	if f.Exact {
		return f.PC
	}
	return f.PC - 1
}

// A Process lists callers in a process. Its methods are for one goroutine at a time.
type Process struct {
	// Return, if it is not nil, returns what a return address is that lies at an address and may
	// have been replaced, to see functions return.
	Return func(at, addr uint64) uint64

	pid     int
	maps    []proc.Mapping
	modules []*module // by where they begin
	fresh   bool      // maps are of this walk
}

// module is a file that is mapped.
type module struct {
	proc.Mapping        // its code
	bias         uint64 // added to the file's addresses
	table        *table // nil: there is none
	memory       *memory
	rows         map[uint64]*row // by address; nil rows: there are none
	symbols      Functions
	named        bool // symbols were read
}

// maxRows bounds what is kept of one module.
const maxRows = 1 << 16

// Of returns the process with an id. What it has mapped is looked at when a stack leads there.
func Of(pid int) *Process { return &Process{pid: pid} }

// ChangedAt says that the process has unmapped files from start on and before end, or mapped others:
// what is known of them is forgotten. It reports whether something was. New ones are found without it.
func (p *Process) ChangedAt(start, end uint64) bool {
	n := len(p.modules)
	p.maps = nil
	p.modules = slices.DeleteFunc(p.modules, func(x *module) bool { return x.Start < end && start < x.End })
	return len(p.modules) < n
}

// memory reads a process's, from an address on.
type memory struct {
	m    Memory
	base uint64
}

// ReadAt implements [io.ReaderAt].
func (r *memory) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.m.ReadMem(r.base+uint64(off), b)
	if n < len(b) && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// walker is one walk.
type walker struct {
	p *Process
	m Memory
}

func (w *walker) word(addr uint64) (uint64, bool) {
	var b [8]byte
	n, _ := w.m.ReadMem(addr, b[:])
	return le.Uint64(b[:]), n == len(b)
}

// Walk lists where a thread is whose registers are r, and its callers, most frames at most. r must have
// PC, RSP and RBP; more of them find more callers. m reads the memory of the process.
func (p *Process) Walk(m Memory, r *Regs, most int) []Frame {
	return p.walk(m, r, Frame{PC: r.v[PC], Exact: true}, most)
}

// Callers is Walk from the entry of a function on, without it: r's RSP is where the return address lies.
func (p *Process) Callers(m Memory, r *Regs, most int) []Frame {
	w := &walker{p, m}
	sp, _ := r.Get(RSP)
	pc, ok := w.word(sp)
	if !ok {
		return nil
	}
	if p.Return != nil {
		pc = p.Return(sp, pc)
	}
	regs := *r
	regs.Set(PC, pc)
	regs.Set(RSP, sp+8)
	return p.walk(m, &regs, Frame{PC: pc}, most)
}

func (p *Process) walk(m Memory, r *Regs, f Frame, most int) []Frame {
	w := &walker{p, m}
	p.fresh = false
	regs := *r
	var list []Frame
	for len(list) < most && f.PC != 0 {
		list = append(list, f)
		was := [2]uint64{regs.v[PC], regs.v[RSP]}
		var ok bool
		if f, ok = w.step(&f, &regs); !ok || was == [2]uint64{regs.v[PC], regs.v[RSP]} {
			break
		}
	}
	return list
}

// step goes to the caller.
func (w *walker) step(f *Frame, r *Regs) (Frame, bool) {
	if row := w.p.row(w.m, f.At()); row != nil {
		return w.apply(row, r)
	}
	if next, ok := w.signalFrame(r); ok {
		return next, true
	}
	if next, ok := w.leaf(f, r); ok {
		return next, true
	}
	return w.framePointer(r)
}

// apply makes of a function's registers those of its caller.
func (w *walker) apply(row *row, r *Regs) (next Frame, ok bool) {
	var cfa uint64
	switch row.cfa.kind {
	case ruleValue:
		if cfa, ok = r.Get(int(row.cfa.reg)); !ok {
			return w.framePointer(r)
		}
		cfa += uint64(row.cfa.off)
	default:
		if cfa, ok = w.evaluate(row.cfa.expr, r); !ok {
			return next, false
		}
	}
	caller := *r
	caller.known &^= 1<<RAX | 1<<RDX | 1<<RCX | 1<<RSI | 1<<RDI | 1<<R8 | 1<<R9 | 1<<R10 | 1<<R11
	caller.Set(RSP, cfa)
	if row.regs[PC].kind == ruleUndef {
		return next, false
	}
	for n := range row.regs {
		q := &row.regs[n]
		var v uint64
		ok := true
		at := cfa + uint64(q.off)
		switch q.kind {
		case ruleSame:
			continue
		case ruleUndef:
			ok = false
		case ruleOffset:
			v, ok = w.word(at)
		case ruleValue:
			v = at
		case ruleRegister:
			v, ok = r.Get(int(q.reg))
		case ruleExpr:
			if at, ok = w.evaluate(q.expr, r, cfa); ok {
				v, ok = w.word(at)
			}
		case ruleValExpr:
			v, ok = w.evaluate(q.expr, r, cfa)
		}
		if n == PC {
			if !ok {
				return next, false
			}
			if w.p.Return != nil && q.kind == ruleOffset {
				v = w.p.Return(at, v)
			}
		}
		caller.v[n] = v
		caller.known &^= 1 << n
		if ok {
			caller.known |= 1 << n
		}
	}
	if row.regs[PC].kind == ruleSame {
		return next, false
	}
	*r = caller
	return Frame{PC: r.v[PC], Exact: row.signal}, true
}

// leaf goes to the caller of a function without a description that has put nothing on the stack, as
// the jumps by which programs call libraries' functions: there is the address behind a call.
func (w *walker) leaf(f *Frame, r *Regs) (next Frame, ok bool) {
	sp, _ := r.Get(RSP)
	pc, got := w.word(sp)
	if w.p.Return != nil {
		pc = w.p.Return(sp, pc)
	}
	if !f.Exact || !got || w.p.mapping(pc) == nil || !w.behindCall(pc) {
		return next, false
	}
	r.Set(PC, pc)
	r.Set(RSP, sp+8)
	return Frame{PC: pc, Guessed: true}, true
}

// behindCall reports whether the instruction before an address is a call.
func (w *walker) behindCall(addr uint64) bool {
	const most = 7
	var b [most]byte
	if n, _ := w.m.ReadMem(addr-most, b[:]); n < most {
		return false
	}
	if b[most-5] == 0xe8 {
		return true
	}
	for _, n := range []int{2, 3, 4, 6, 7} { // call *…
		if b[most-n] == 0xff && b[most-n+1]&0x38 == 0x10 {
			return true
		}
	}
	return false
}

// framePointer goes to the caller of a function that keeps a frame pointer.
func (w *walker) framePointer(r *Regs) (next Frame, ok bool) {
	fp, known := r.Get(RBP)
	sp, _ := r.Get(RSP)
	if !known || fp < sp || fp%8 != 0 {
		return next, false
	}
	up, ok1 := w.word(fp)
	pc, ok2 := w.word(fp + 8)
	if w.p.Return != nil {
		pc = w.p.Return(fp+8, pc)
	}
	if !ok1 || !ok2 || w.p.mapping(pc) == nil {
		return next, false
	}
	var caller Regs
	caller.Set(PC, pc)
	caller.Set(RBP, up)
	caller.Set(RSP, fp+16)
	*r = caller
	return Frame{PC: pc, Guessed: true}, true
}

// inSigcontext are registers in the order of the kernel's struct sigcontext_64.
var inSigcontext = [...]int{R8, R9, R10, R11, R12, R13, R14, R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, PC}

// signalFrame recognises what a signal handler returns to by its instructions, in C libraries that say
// nothing else of it: mov $15,%rax; syscall.
func (w *walker) signalFrame(r *Regs) (next Frame, ok bool) {
	const (
		code = "\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
		regs = 40 // in struct ucontext
	)
	pc, _ := r.Get(PC)
	sp, _ := r.Get(RSP)
	b := make([]byte, len(code))
	if n, _ := w.m.ReadMem(pc, b); n < len(b) || string(b) != code {
		return next, false
	}
	b = make([]byte, 8*len(inSigcontext))
	if n, _ := w.m.ReadMem(sp+regs, b); n < len(b) {
		return next, false
	}
	for i, n := range inSigcontext {
		r.Set(n, le.Uint64(b[8*i:]))
	}
	return Frame{PC: r.v[PC], Exact: true}, true
}

// mapping returns the code that an address is in.
func (p *Process) mapping(addr uint64) *proc.Mapping {
	m := proc.At(p.maps, addr)
	if m == nil && !p.fresh {
		p.maps, _ = proc.Maps(p.pid) // none, if it died
		p.fresh = true
		m = proc.At(p.maps, addr)
	}
	if m == nil || !m.Exec {
		return nil
	}
	return m
}

// row returns what holds at an address, nil if nobody knows.
func (p *Process) row(m Memory, addr uint64) *row {
	x := p.module(m, addr)
	if x == nil || x.table == nil {
		return nil
	}
	row, known := x.rows[addr]
	if !known {
		x.memory.m = m
		row, _ = x.table.find(addr - x.bias) // nil where there is none
		x.memory.m = nil
		if len(x.rows) >= maxRows {
			clear(x.rows)
		}
		x.rows[addr] = row
	}
	return row
}

// module returns what is mapped at an address, nil if that is no code of a file or of the kernel's.
func (p *Process) module(m Memory, addr uint64) *module {
	i, found := slices.BinarySearchFunc(p.modules, addr, func(x *module, addr uint64) int {
		switch {
		case addr < x.Start:
			return 1
		case addr >= x.End:
			return -1
		}
		return 0
	})
	if found {
		return p.modules[i]
	}
	code := p.mapping(addr)
	if code == nil || code.Inode == 0 && code.Path != "[vdso]" {
		return nil
	}
	x := &module{Mapping: *code, memory: &memory{m: m}, rows: make(map[uint64]*row)}
	x.read(p.pid, p.maps)
	x.memory.m = nil
	p.modules = slices.Insert(p.modules, i, x)
	return x
}

// read reads what there is of a module.
func (x *module) read(pid int, maps []proc.Mapping) {
	base := x.Start
	for i := range maps {
		m := &maps[i]
		if m.Start > x.Start {
			break
		}
		if m.Offset == 0 && m.Inode == x.Inode && m.Dev == x.Dev && m.Path == x.Path {
			base = m.Start // the last one before it
		}
	}
	x.memory.base = base
	f, err := dso.ReadMemory(x.memory, base)
	if err != nil {
		return
	}
	bias, ok := f.Bias(&x.Mapping)
	if !ok {
		return
	}
	x.bias = bias
	if x.table, err = readTable(f); err == nil {
		return
	}
	file, _, err := proc.OpenMapped(pid, &x.Mapping) // where its sections are is in the file only
	if err != nil {
		return
	}
	defer file.Close()
	if g, err := dso.Read(file); err == nil {
		if x.table, err = readTable(g); err == nil {
			x.table.f = f
		}
	}
}

// deleted stands behind the path of a mapping whose file is gone.
const deleted = " (deleted)"

// A Place is where an address is in a file.
type Place struct {
	File   string // its path, "" if it is in none
	Offset uint64 // the address, as the file has it
	Func   string // as the linker has it, "" if it has no symbol
	Into   uint64 // bytes from the function's beginning
}

// Functions are those of a file that have symbols, in the order of their addresses.
type Functions []symbol

type symbol struct {
	addr, end uint64
	name      string
}

// At returns the function that an address is in, as the file has that, and how far in; "" if it is in
// none.
func (l Functions) At(addr uint64) (name string, into uint64) {
	i := sort.Search(len(l), func(i int) bool { return l[i].addr > addr })
	if i == 0 || addr >= l[i-1].end {
		return "", 0
	}
	return l[i-1].name, addr - l[i-1].addr
}

// FunctionsOf reads the names of a file's functions, of a stripped one those of its debug file: path and root are as
// [dso.File.SymbolsOf] has them.
func FunctionsOf(f *dso.File, path, root string) (Functions, error) {
	all, err1 := f.SymbolsOf(path, root)
	dynamic, err2 := f.DynamicSymbols()
	var list Functions
	for _, s := range slices.Concat(all, dynamic) {
		if (s.Function() || s.Indirect()) && s.Addr != 0 {
			list = append(list, symbol{s.Addr, s.Addr + max(s.Size, 1), s.Name})
		}
	}
	slices.SortStableFunc(list, func(a, b symbol) int { return cmp.Compare(a.addr, b.addr) })
	list = slices.CompactFunc(list, func(a, b symbol) bool { return a.addr == b.addr })
	return list, errors.Join(err1, err2)
}

// Place says where an address is that a walk has found, for which [Frame.At] is meant.
func (p *Process) Place(m Memory, addr uint64) Place {
	x := p.module(m, addr)
	if x == nil {
		return Place{Offset: addr}
	}
	if !x.named {
		x.memory.m = m
		x.symbols, _ = x.readSymbols(p.pid) // none of a stripped file
		x.memory.m, x.named = nil, true
	}
	at := Place{File: strings.TrimSuffix(x.Path, deleted), Offset: addr - x.bias}
	at.Func, at.Into = x.symbols.At(at.Offset)
	return at
}

// readSymbols reads the functions' names.
func (x *module) readSymbols(pid int) (Functions, error) {
	var f *dso.File
	var err error
	if x.Inode == 0 { // the kernel's
		f, err = dso.Read(x.memory)
	} else {
		file, _, oerr := proc.OpenMapped(pid, &x.Mapping)
		if oerr != nil {
			return nil, oerr
		}
		defer file.Close()
		f, err = dso.Read(file)
	}
	if err != nil {
		return nil, err
	}
	return FunctionsOf(f, strings.TrimSuffix(x.Path, deleted), dso.Root(pid))
}
