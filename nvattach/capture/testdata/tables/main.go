// Command tables looks for loaders in the driver's hidden tables: it puts a
// breakpoint on every slot of every table that a program asks for, and reports who
// asked for which table, and the calls with an argument that points to a code
// image: who made them, with which arguments, and what they returned.
//
//	go run ./nvattach/capture/testdata/tables -- program args
//
// It is how the list of known loaders (hidden.go) is checked against a new driver.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
)

const (
	wrapperMagic   = 0x466243b1
	containerMagic = 0xba55ed50
	elfMagic       = 0x464c457f
	ltoirMagic     = 0x7f4e43ed
	maxSlots       = 128
)

// finder is the handler.
type finder struct {
	dso.Watcher
	set    map[int]map[uint64]string // breakpoints by process: address -> name
	calls  map[string]int
	found  map[string]int
	tables map[string]int  // who asked for which
	told   map[string]int  // calls of a slot that were printed
	images map[string]bool // tables that have taken one
}

// maxTold is how many calls of each slot are printed in full.
const maxTold = 8

// mapped looks for drivers.
func (f *finder) mapped(t *ptrace.Task, e *dso.Event) {
	for _, m := range e.Files() {
		if !strings.Contains(m.Path, "libcuda.so") {
			continue
		}
		file, _, err := m.Open()
		if err != nil {
			continue
		}
		lib, err := dso.Read(file)
		if err == nil {
			found, _ := lib.Lookup("cuGetExportTable")
			for _, s := range found {
				off, _ := lib.Offset(s.Addr)
				if addr, ok := m.Addr(off, s.Size); ok {
					f.at(t, addr, "", f.asked)
				}
			}
		}
		file.Close()
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
	hex := strings.ToUpper(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
	name := hex[:8]
	who := caller(t, r.SP())
	_ = t.OnReturn(func(t *ptrace.Task, ret uint64) {
		if uint32(ret) != 0 {
			f.tables[fmt.Sprintf("%s is not there (error %d), asked for by %s", hex, uint32(ret), who)]++
			return
		}
		f.tables[hex+" asked for by "+who]++
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

// caller names the file that a function's return address lies in, and where.
func caller(t *ptrace.Task, sp uint64) string { return place(t.PID, word(t, sp)) }

// place names what an address lies in: "libcufft.so.12+0x1234", "[heap]".
func place(pid int, addr uint64) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // empty, if it died
	for line := range strings.Lines(string(b)) {
		var lo, hi, off uint64
		var perms, dev, ino string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %s", &lo, &hi, &perms, &off, &dev, &ino); n < 6 || addr < lo || addr >= hi {
			continue
		}
		name := "anonymous"
		if fields := strings.Fields(line); len(fields) > 5 {
			name = filepath.Base(fields[5])
		}
		return fmt.Sprintf("%s+%#x", name, addr-lo+off)
	}
	return fmt.Sprintf("%#x", addr)
}

// imageKind says what an address points to; "" for no image.
func imageKind(t *ptrace.Task, addr uint64) string {
	var b [24]byte
	if n, _ := t.ReadMem(addr, b[:]); n < 16 {
		return ""
	}
	switch magic := binary.LittleEndian.Uint32(b[:]); {
	case magic == wrapperMagic:
		return fmt.Sprintf("wrapper of version %d", binary.LittleEndian.Uint32(b[4:]))
	case magic == containerMagic:
		return fmt.Sprintf("container of %#x bytes", binary.LittleEndian.Uint64(b[8:]))
	case magic == elfMagic:
		return fmt.Sprintf("ELF of type %d, machine %d", binary.LittleEndian.Uint16(b[16:]), binary.LittleEndian.Uint16(b[18:]))
	case magic == ltoirMagic:
		return "LTO-IR"
	case strings.HasPrefix(string(b[:]), ".version"), strings.HasPrefix(string(b[:]), "//"):
		return "PTX"
	}
	return ""
}

// called is at the entry of a slot's function.
func (f *finder) called(t *ptrace.Task, name string) {
	f.calls[name]++
	r, err := t.Regs()
	if err != nil {
		return
	}
	image := false
	table, _, _ := strings.Cut(name, "[")
	for i := range 6 {
		if kind := imageKind(t, r.Arg(i)); kind != "" {
			f.found[fmt.Sprintf("%s argument %d: %s", name, i, kind)]++
			f.images[table], image = true, true
		}
	}
	// Once a table has taken an image, its other calls are of interest, too.
	told := maxTold
	if !image && !f.images[table] {
		told = 2
	}
	if f.told[name] >= told {
		return
	}
	f.told[name]++
	var line strings.Builder
	fmt.Fprintf(&line, "%s from %s (", name, caller(t, r.SP()))
	for i := range 6 {
		if i > 0 {
			line.WriteString(", ")
		}
		fmt.Fprintf(&line, "%#x%s", r.Arg(i), describe(t, r.Arg(i)))
	}
	fmt.Fprintf(&line, "; stack %#x %#x)", word(t, r.SP()+8), word(t, r.SP()+16))
	text, out := line.String(), r.Arg(0)
	if t.OnReturn(func(t *ptrace.Task, ret uint64) {
		fmt.Fprintf(os.Stderr, "%s = %#x, then *argument 0 = %#x\n", text, ret, word(t, out))
	}) != nil {
		fmt.Fprintln(os.Stderr, text)
	}
}

// describe says what an argument points to.
func describe(t *ptrace.Task, addr uint64) string {
	var b [32]byte
	n, _ := t.ReadMem(addr, b[:])
	if n == 0 {
		return ""
	}
	kind := imageKind(t, addr)
	if kind != "" {
		kind += ", "
	}
	return fmt.Sprintf(" {%sin %s: %q}", kind, place(t.PID, addr), b[:n])
}

func main() {
	i := slices.Index(os.Args, "--")
	if i < 0 || i+1 == len(os.Args) {
		fmt.Fprintln(os.Stderr, "usage: tables -- program args")
		os.Exit(2)
	}
	f := &finder{
		set: map[int]map[uint64]string{}, calls: map[string]int{}, found: map[string]int{}, tables: map[string]int{},
		told: map[string]int{}, images: map[string]bool{},
	}
	f.Watcher = dso.Watcher{Class: 1, Mapped: f.mapped}
	_, err := ptrace.Run(context.Background(), &ptrace.Options{Argv: os.Args[i+1:], Rules: f.Rules()}, f)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, k := range slices.Sorted(maps.Keys(f.tables)) {
		fmt.Fprintf(os.Stderr, "%s, %d times\n", k, f.tables[k])
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
