package host

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ioctl/nearest"
	"nvtrace/nvattach/hostrun"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/traces/glob"
)

// A program can be compiled with probes of its own (sys/sdt.h): a nop where each is, and a
// note that says its name, where its arguments are, and which counter must not be 0 for
// the program to compute them.

// A usdt is one of them.
type usdt struct {
	provider, name string
	addr           uint64 // of the nop, as the file has it
	semaphore      uint64 // address of the counter, 0: none
	args           []usdtArg
}

// A usdtArg is where an argument is: a number, a register, or memory.
type usdtArg struct {
	text   string
	err    error // why it can't be read; nil if it can
	size   int   // bytes
	signed bool
	memory bool
	number int64 // or what is added to the registers
	linked bool  // number is an address of the file's
	base   int   // a register's field in struct pt_regs, or -1
	index  int   // likewise
	scale  uint64
	mask   uint64 // of the base's bits
	shift  int
}

// Bounds of what a file says.
const (
	maxNotes    = 4 << 20
	maxUSDT     = 1 << 16
	maxUSDTArgs = 12
)

// stapsdt is the owner of the notes, which have the type 3 (SystemTap's wiki, UserSpaceProbeImplementation).
const (
	stapsdt     = "stapsdt"
	stapsdtType = 3
)

// readUSDT lists the probes of a file.
func readUSDT(e *dso.File) ([]usdt, error) {
	s := e.Section(".note.stapsdt")
	if s == nil {
		return nil, nil
	}
	b, err := e.Data(s, maxNotes)
	if err != nil {
		return nil, err
	}
	base := uint64(0)
	if s := e.Section(".stapsdt.base"); s != nil {
		base = s.Addr
	}
	le, list, resolve := binary.LittleEndian, []usdt(nil), variables(e)
	for len(b) >= 12 && len(list) < maxUSDT {
		nameSize, size, kind := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		at := 12 + (nameSize+3)&^3
		end := at + (size+3)&^3
		if at > uint64(len(b)) || end > uint64(len(b)) || at+size > uint64(len(b)) {
			return list, errors.New("damaged notes of probes")
		}
		name, desc := bytes.TrimRight(b[12:12+nameSize], "\x00"), b[at:at+size]
		b = b[end:]
		if kind != stapsdtType || string(name) != stapsdt || len(desc) < 24 {
			continue
		}
		texts := strings.SplitN(string(desc[24:]), "\x00", 4)
		if len(texts) < 3 {
			continue
		}
		u := usdt{provider: texts[0], name: texts[1], addr: le.Uint64(desc), semaphore: le.Uint64(desc[16:])}
		if linked := le.Uint64(desc[8:]); base != 0 && linked != 0 { // it was moved since
			u.addr += base - linked
			if u.semaphore != 0 {
				u.semaphore += base - linked
			}
		}
		u.args = parseUSDTArgs(texts[2], resolve)
		list = append(list, u)
	}
	return list, nil
}

// parseUSDTArgs reads "-4@%edi 8@-8(%rbp) 4@$5 8@limit+8(%rip)"; resolve returns a variable's
// address. An argument that can't be read says why.
func parseUSDTArgs(text string, resolve func(name string) (uint64, error)) []usdtArg {
	var list []usdtArg
	for f := range strings.FieldsSeq(text) {
		if len(list) == maxUSDTArgs {
			break
		}
		a, err := parseUSDTArg(f, resolve)
		if err != nil {
			a = usdtArg{text: f, err: err}
		}
		list = append(list, a)
	}
	return list
}

// Reasons why an argument can't be read.
var (
	errUSDTForm   = errors.New("is of a form that is not known")
	errUSDTFloat  = errors.New("is a floating-point number, which programs do not have")
	errUSDTVector = errors.New("is in a vector register, which is not read")
	errUSDTThread = errors.New("is a variable that each thread has for itself, whose place is not known")
)

func parseUSDTArg(text string, resolve func(name string) (uint64, error)) (a usdtArg, err error) {
	size, where, ok := strings.Cut(text, "@")
	if strings.HasSuffix(size, "f") {
		return a, errUSDTFloat
	}
	n, err := strconv.Atoi(size)
	if !ok || err != nil || n != 1 && n != 2 && n != 4 && n != 8 && n != -1 && n != -2 && n != -4 && n != -8 {
		return a, errUSDTForm
	}
	a = usdtArg{text: text, size: max(n, -n), signed: n < 0, base: -1, index: -1, scale: 1, mask: ^uint64(0)}
	if number, ok := strings.CutPrefix(where, "$"); ok {
		return a, a.sum(number, resolve)
	}
	if reg, ok := strings.CutPrefix(where, "%"); ok && !strings.Contains(reg, ":") {
		return a, a.register(reg)
	}
	if strings.Contains(where, ":") || strings.Contains(strings.ToLower(where), "@tpoff") {
		return a, errUSDTThread
	}
	a.memory = true
	disp, regs, ok := strings.Cut(where, "(")
	if !ok {
		if err := a.sum(disp, resolve); err != nil || !a.linked {
			return a, cmp.Or(err, errUSDTForm)
		}
		return a, nil
	}
	regs, closed := strings.CutSuffix(regs, ")")
	if !closed {
		return a, errUSDTForm
	}
	if disp != "" {
		if err := a.sum(disp, resolve); err != nil {
			return a, err
		}
	}
	return a, a.registers(strings.Split(regs, ","))
}

// registers reads what an address is made of: base, index, scale.
func (a *usdtArg) registers(parts []string) (err error) {
	name := func(s string) string { return strings.TrimPrefix(strings.TrimSpace(s), "%") }
	switch base := name(parts[0]); {
	case base == "rip" && a.linked && len(parts) == 1:
		return nil // the linker has made a distance of the address
	case base == "rip":
		return errUSDTForm
	case base != "":
		if err := a.register(base); err != nil {
			return err
		}
	}
	if len(parts) > 1 {
		var index usdtArg
		if err := index.register(name(parts[1])); err != nil {
			return err
		}
		a.index = index.base
	}
	if len(parts) > 2 {
		if a.scale, err = strconv.ParseUint(strings.TrimSpace(parts[2]), 0, 8); err != nil {
			return errUSDTForm
		}
	}
	if len(parts) > 3 {
		return errUSDTForm
	}
	return nil
}

// sum reads numbers and at most one variable, which are added or taken away: "limit+8", "-16".
func (a *usdtArg) sum(text string, resolve func(name string) (uint64, error)) error {
	for rest := text; rest != ""; {
		minus := rest[0] == '-'
		term := strings.TrimLeft(rest, "+-")
		if len(rest)-len(term) > 1 || term == "" {
			return errUSDTForm
		}
		end := strings.IndexAny(term, "+-")
		if end < 0 {
			end = len(term)
		}
		term, rest = term[:end], term[end:]
		n, err := strconv.ParseInt(term, 0, 64)
		if u, wide := strconv.ParseUint(term, 0, 64); err != nil && wide == nil {
			n, err = int64(u), nil
		}
		if err != nil {
			if a.linked || minus || term[0] >= '0' && term[0] <= '9' {
				return errUSDTForm
			}
			addr, err := resolve(term)
			if err != nil {
				return err
			}
			a.linked, n = true, int64(addr)
		}
		if minus {
			n = -n
		}
		a.number += n
	}
	if text == "" {
		return errUSDTForm
	}
	return nil
}

// variables returns what finds a variable of a file by its name.
func variables(e *dso.File) func(name string) (uint64, error) {
	var list map[string][]dso.Symbol
	return func(name string) (uint64, error) {
		if list == nil {
			symbols, _ := e.Symbols() // it may have been stripped of them
			dynamic, _ := e.DynamicSymbols()
			list = make(map[string][]dso.Symbol)
			for _, s := range slices.Concat(symbols, dynamic) {
				if s.Defined {
					list[s.Name] = append(list[s.Name], s)
				}
			}
		}
		found := list[name]
		switch {
		case len(found) == 0:
			return 0, fmt.Errorf("is in the variable %s, which the file does not list; it may have been stripped", name)
		case slices.ContainsFunc(found, func(s dso.Symbol) bool { return s.Addr != found[0].Addr }):
			return 0, fmt.Errorf("is in a variable %s, of which the file has several", name)
		case found[0].Type == elf.STT_TLS:
			return 0, errUSDTThread
		}
		return found[0].Addr, nil
	}
}

// register finds a register by any of its names.
func (a *usdtArg) register(name string) error {
	for field, names := range usdtRegisters {
		for i, n := range names {
			if n != name {
				continue
			}
			a.base = field
			if i < 4 { // of 64, 32, 16 and 8 bits, and bits 8 to 15
				a.mask = ^uint64(0) >> (64 - 64>>i)
			} else {
				a.mask, a.shift = 0xff, 8
			}
			return nil
		}
	}
	for _, prefix := range []string{"xmm", "ymm", "zmm", "mm", "st", "k"} {
		if strings.HasPrefix(name, prefix) {
			return errUSDTVector
		}
	}
	return errUSDTForm
}

// usdtRegisters are names of registers, by field of struct pt_regs of x86-64.
var usdtRegisters = func() map[int][]string {
	list := map[int][]string{
		4: {"rbp", "ebp", "bp", "bpl"}, 5: {"rbx", "ebx", "bx", "bl", "bh"}, 10: {"rax", "eax", "ax", "al", "ah"}, 11: {"rcx", "ecx", "cx", "cl", "ch"},
		12: {"rdx", "edx", "dx", "dl", "dh"}, 13: {"rsi", "esi", "si", "sil"}, 14: {"rdi", "edi", "di", "dil"}, 19: {"rsp", "esp", "sp", "spl"},
	}
	for n, field := range map[int]int{8: 9, 9: 8, 10: 7, 11: 6, 12: 3, 13: 2, 14: 1, 15: 0} {
		r := "r" + strconv.Itoa(n)
		list[field] = []string{r, r + "d", r + "w", r + "b"}
	}
	return list
}()

// value computes an argument from the registers of a stopped thread, in which the file's
// addresses are higher by bias.
func (a *usdtArg) value(regs []uint64, bias uint64, read func(addr uint64, buf []byte) int) (uint64, bool) {
	if a.err != nil {
		return 0, false
	}
	v := uint64(a.number)
	if a.linked {
		v += bias
	}
	if a.base >= 0 {
		v += regs[a.base] >> a.shift & a.mask
	}
	if a.index >= 0 {
		v += regs[a.index] * a.scale
	}
	if a.memory {
		var b [8]byte
		if read(v, b[:a.size]) < a.size {
			return 0, false
		}
		v = binary.LittleEndian.Uint64(b[:])
	}
	unused := 64 - 8*a.size
	if a.signed {
		return uint64(int64(v<<unused) >> unused), true
	}
	return v << unused >> unused, true
}

// lacks returns why an argument that a program asks for is not to be had; nil if all are.
func (u *usdt) lacks(q *hostrun.Program) error {
	for _, n := range q.Arguments() {
		switch {
		case n < uint64(len(u.args)) && u.args[n].err != nil:
			return fmt.Errorf("arg%d, %s, %w", n, u.args[n].text, u.args[n].err)
		case n >= uint64(len(u.args)) && q.Object.Script:
			return fmt.Errorf("there is no arg%d; it has %d", n, len(u.args))
		}
	}
	return nil
}

// addUSDT adds the probes of a file that a program wants.
func (t *Tracer) addUSDT(e *dso.File, places map[uint64]*target, q *hostrun.Program, path string, r *refused) error {
	list, err := readUSDT(e)
	there := false
	for i := range list {
		u := &list[i]
		if !glob.Match(q.Point.Provider, u.provider) || !glob.Match(q.Point.Probe, u.name) {
			continue
		}
		there = true
		off, ok := e.Offset(u.addr)
		if !ok {
			continue
		}
		if err := u.lacks(q); err != nil {
			t.found[q] = true
			r.add(u.provider+":"+u.name, err)
			continue
		}
		x := t.add(places, q, off, fmt.Sprintf("%s:%s in %s", u.provider, u.name, path))
		x.usdt = u
		x.vaddr = u.addr
	}
	if !there && !t.found[q] && len(t.near[q]) < mostNear {
		for _, name := range nearest.Names(q.Point.Probe, markerNames(list), mostNear) {
			if len(t.near[q]) < mostNear && !slices.Contains(t.near[q], name) {
				t.near[q] = append(t.near[q], name)
			}
		}
	}
	return err
}

// markerNames yields the names of probes.
func markerNames(list []usdt) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range list {
			if !yield(list[i].name) {
				return
			}
		}
	}
}

// arm makes the counters of probes in a process say that somebody looks. One whose memory
// is not mapped yet is left for the next time.
func (t *Tracer) arm(task *ptrace.Task, p *process) {
	if len(p.semaphores) == 0 {
		return
	}
	list, err := proc.Maps(task.PID)
	if err != nil {
		return
	}
	left := p.semaphores[:0]
	for _, addr := range p.semaphores {
		var b [2]byte
		m := proc.At(list, addr) // what a loader maps first, to keep the room, can't be written
		if m == nil || !m.Write {
			left = append(left, addr)
			continue
		}
		if n, _ := task.ReadMem(addr, b[:]); n < len(b) {
			continue
		}
		binary.LittleEndian.PutUint16(b[:], binary.LittleEndian.Uint16(b[:])+1)
		if n, err := task.WriteMem(addr, b[:]); n < len(b) {
			t.report(fmt.Sprintf("a probe's counter at %#x can't be changed: %v", addr, err))
		}
	}
	p.semaphores = left
}

// A Marker is a probe that a file was compiled with.
type Marker struct {
	Provider, Name string
	Args           []string // where they are, as sys/sdt.h writes it
}

// Markers lists the USDT probes of a file.
func Markers(e *dso.File) ([]Marker, error) {
	found, err := readUSDT(e)
	list := make([]Marker, 0, len(found))
	for i := range found {
		m := Marker{Provider: found[i].provider, Name: found[i].name}
		for _, a := range found[i].args {
			m.Args = append(m.Args, a.text)
		}
		list = append(list, m)
	}
	return list, err
}
