// Command tables looks for loaders in the driver's hidden tables: it puts a
// breakpoint on every slot of every table that a program asks for, and reports
// the slots that are called with an argument that points to a code image.
//
//	go run ./nvattach/capture/testdata/tables -- program args
//
// It is how the list of known loaders (hidden.go) is checked against a new driver.
package main

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"nvtrace/ptrace"
)

const (
	wrapperMagic   = 0x466243b1
	containerMagic = 0xba55ed50
	elfMagic       = 0x464c457f
	maxSlots       = 128
)

// finder is the handler.
type finder struct {
	set   map[int]map[uint64]string // breakpoints by process: address -> name
	calls map[string]int
	found map[string]int
}

// Enter implements ptrace.Handler.
func (f *finder) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.WantExit }

// Task implements ptrace.Handler.
func (f *finder) Task(*ptrace.Task, *ptrace.TaskEvent) {}

// Exit implements ptrace.Handler: a library was mapped.
func (f *finder) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.TID, int32(c.Args[4])))
	if err != nil || !strings.Contains(path, "libcuda.so") || c.Ret < 0 {
		return
	}
	e, err := elf.Open(path)
	if err != nil {
		return
	}
	defer e.Close()
	symbols, _ := e.DynamicSymbols()
	for _, p := range e.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 || p.Off&^0xfff != c.Args[5] {
			continue
		}
		for _, s := range symbols {
			if s.Name == "cuGetExportTable" {
				f.at(t, uint64(c.Ret)-p.Vaddr&^0xfff+s.Value, "", f.asked)
			}
		}
	}
}

// at sets a breakpoint once.
func (f *finder) at(t *ptrace.Task, addr uint64, name string, fn func(t *ptrace.Task, name string)) {
	if f.set[t.PID] == nil {
		f.set[t.PID] = map[uint64]string{}
	}
	if had, ok := f.set[t.PID][addr]; ok {
		if had != name && !strings.Contains(had, name) {
			f.set[t.PID][addr] = had + "=" + name
		}
		return
	}
	f.set[t.PID][addr] = name
	if _, err := t.SetBreakpoint(addr, func(t *ptrace.Task, _ *ptrace.Breakpoint) { fn(t, f.set[t.PID][addr]) }); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
}

// asked is at the entry of cuGetExportTable(table, id).
func (f *finder) asked(t *ptrace.Task, _ string) {
	r, err := t.Regs()
	if err != nil {
		return
	}
	out := r.Arg(0)
	var id [16]byte
	if n, _ := t.ReadMem(r.Arg(1), id[:]); n < len(id) {
		return
	}
	name := strings.ToUpper(fmt.Sprintf("%x", id[:4]))
	_ = t.OnReturn(func(t *ptrace.Task, ret uint64) {
		if uint32(ret) != 0 {
			return
		}
		words := make([]byte, 8*maxSlots)
		table := word(t, out)
		n, _ := t.ReadMem(table, words)
		size := binary.LittleEndian.Uint64(words)
		slots, first := n/8, 0
		if size < 0x10000 {
			slots, first = min(slots, int(size/8)), 1
		}
		for i := first; i < slots; i++ {
			addr := binary.LittleEndian.Uint64(words[8*i:])
			if addr < 1<<16 || addr>>47 != 0 {
				if first == 0 {
					break // without a size, the table ends at the first word that is no address
				}
				continue
			}
			f.at(t, addr, fmt.Sprintf("%s[%d]", name, i), f.called)
		}
	})
}

func word(t *ptrace.Task, addr uint64) uint64 {
	var b [8]byte
	_, _ = t.ReadMem(addr, b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// called is at the entry of a slot's function.
func (f *finder) called(t *ptrace.Task, name string) {
	f.calls[name]++
	r, err := t.Regs()
	if err != nil {
		return
	}
	for i := range 6 {
		var b [16]byte
		if n, _ := t.ReadMem(r.Arg(i), b[:]); n < len(b) {
			continue
		}
		kind := ""
		switch magic := binary.LittleEndian.Uint32(b[:]); {
		case magic == wrapperMagic:
			kind = "wrapper"
		case magic == containerMagic:
			kind = "container"
		case magic == elfMagic:
			kind = "ELF"
		case strings.HasPrefix(string(b[:]), ".version"), strings.HasPrefix(string(b[:]), "//"):
			kind = "PTX"
		default:
			continue
		}
		f.found[fmt.Sprintf("%s argument %d: %s", name, i, kind)]++
	}
}

func main() {
	i := slices.Index(os.Args, "--")
	if i < 0 || i+1 == len(os.Args) {
		fmt.Fprintln(os.Stderr, "usage: tables -- program args")
		os.Exit(2)
	}
	f := &finder{set: map[int]map[uint64]string{}, calls: map[string]int{}, found: map[string]int{}}
	_, err := ptrace.Run(context.Background(), &ptrace.Options{
		Argv: os.Args[i+1:],
		Rules: []ptrace.Rule{{Names: []string{"mmap"}, Class: 1, Args: []ptrace.ArgMatch{
			{Arg: 2, Mask: 4, Value: 4}, {Arg: 4, Op: ptrace.NotEqual, Value: 0xffffffff, Low: true},
		}}},
	}, f)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "%d slots were called; with an image:\n", len(f.calls))
	for _, k := range slices.Sorted(maps.Keys(f.found)) {
		fmt.Fprintf(os.Stderr, "  %s, %d times\n", k, f.found[k])
	}
	for _, k := range slices.Sorted(maps.Keys(f.calls)) {
		fmt.Fprintf(os.Stderr, "%s:%d ", k, f.calls[k])
	}
	fmt.Fprintln(os.Stderr)
}
