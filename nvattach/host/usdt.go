package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"nvtrace/nvattach"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
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
	size   int // bytes
	signed bool
	memory bool
	number int64 // or what is added to the registers
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
	le, list := binary.LittleEndian, []usdt(nil)
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
		u.args = parseUSDTArgs(texts[2])
		list = append(list, u)
	}
	return list, nil
}

// parseUSDTArgs reads "-4@%edi 8@-8(%rbp) 4@$5". An argument that is not understood has no
// size.
func parseUSDTArgs(text string) []usdtArg {
	var list []usdtArg
	for f := range strings.FieldsSeq(text) {
		if len(list) == maxUSDTArgs {
			break
		}
		a, err := parseUSDTArg(f)
		if err != nil {
			a = usdtArg{}
		}
		list = append(list, a)
	}
	return list
}

func parseUSDTArg(text string) (a usdtArg, err error) {
	size, where, ok := strings.Cut(text, "@")
	n, err := strconv.Atoi(size)
	if !ok || err != nil || n != 1 && n != 2 && n != 4 && n != 8 && n != -1 && n != -2 && n != -4 && n != -8 {
		return a, fmt.Errorf("argument %q", text)
	}
	a = usdtArg{size: max(n, -n), signed: n < 0, base: -1, index: -1, scale: 1, mask: ^uint64(0)}
	if number, ok := strings.CutPrefix(where, "$"); ok {
		a.number, err = strconv.ParseInt(number, 0, 64)
		return a, err
	}
	if reg, ok := strings.CutPrefix(where, "%"); ok {
		return a, a.register(reg)
	}
	disp, regs, ok := strings.Cut(where, "(")
	regs, closed := strings.CutSuffix(regs, ")")
	if !ok || !closed {
		return a, fmt.Errorf("argument %q", text)
	}
	a.memory = true
	if disp != "" {
		if a.number, err = strconv.ParseInt(disp, 0, 64); err != nil {
			return a, err
		}
	}
	parts := strings.Split(regs, ",")
	if base := strings.TrimPrefix(strings.TrimSpace(parts[0]), "%"); base != "" {
		if err := a.register(base); err != nil {
			return a, err
		}
	}
	if len(parts) > 1 {
		var index usdtArg
		if err := index.register(strings.TrimPrefix(strings.TrimSpace(parts[1]), "%")); err != nil {
			return a, err
		}
		a.index = index.base
	}
	if len(parts) > 2 {
		a.scale, err = strconv.ParseUint(strings.TrimSpace(parts[2]), 0, 8)
	}
	return a, err
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
	return fmt.Errorf("register %q", name)
}

// usdtRegisters are names of registers, by field of struct pt_regs of x86-64.
var usdtRegisters = func() map[int][]string {
	list := map[int][]string{
		4: {"rbp", "ebp", "bp", "bpl"}, 5: {"rbx", "ebx", "bx", "bl", "bh"}, 10: {"rax", "eax", "ax", "al", "ah"}, 11: {"rcx", "ecx", "cx", "cl", "ch"},
		12: {"rdx", "edx", "dx", "dl", "dh"}, 13: {"rsi", "esi", "si", "sil"}, 14: {"rdi", "edi", "di", "dil"}, 16: {"rip"}, 19: {"rsp", "esp", "sp", "spl"},
	}
	for n, field := range map[int]int{8: 9, 9: 8, 10: 7, 11: 6, 12: 3, 13: 2, 14: 1, 15: 0} {
		r := "r" + strconv.Itoa(n)
		list[field] = []string{r, r + "d", r + "w", r + "b"}
	}
	return list
}()

// value computes an argument from the registers of a stopped thread.
func (a *usdtArg) value(regs []uint64, read func(addr uint64, buf []byte) int) (uint64, bool) {
	if a.size == 0 {
		return 0, false
	}
	v := uint64(a.number)
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

// addUSDT adds the probes of a file that a program wants.
func (t *Tracer) addUSDT(e *dso.File, places map[uint64]*target, q *nvattach.PlannedHost, path string) error {
	list, err := readUSDT(e)
	for i := range list {
		u := &list[i]
		if !nvattach.Glob(q.Point.Provider, u.provider) || !nvattach.Glob(q.Point.Probe, u.name) {
			continue
		}
		off, ok := e.Offset(u.addr)
		if !ok {
			continue
		}
		x := t.add(places, q, off, fmt.Sprintf("%s:%s in %s", u.provider, u.name, path))
		x.usdt = u
		x.vaddr = u.addr
	}
	return err
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
