// Package blob builds the agent's code from its C source. The result is committed, so that building
// nvtrace needs no C compiler; tests build it again.
package blob

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// sources are the files that the code is made from, in the folder src.
var sources = []string{"agent.c", "calls.c", "pass.c", "probes.c", "times.c", "helpers.c", "agent.h", "layout.h", "agent.ld"}

// flags are what the compiler is given. The code may use no vector registers,
// since those of a hooked function's caller are not saved, and no library.
var flags = []string{
	"-nostdlib", "-ffreestanding", "-fno-pic", "-static", "-fno-stack-protector", "-mgeneral-regs-only",
	"-O2", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-fno-asynchronous-unwind-tables", "-fcf-protection=none",
	"-Wall", "-Wextra", "-Werror",
}

// far are the sources that code in the memory of programs is in, or is called from: it is out
// of reach for a call of the usual kind, which the others have, as it costs less.
var far = []string{"probes.c", "helpers.c"}

// Blob is the code and where in it things are.
type Blob struct {
	Code    []byte
	Program []byte            // what lies in the memory of programs: their helpers
	Symbols map[string]uint64 // of functions, absolute
	Layout  []uint64          // the table `layout` of agent.c
}

// Names are the symbols that the Go side needs.
var Names = []string{"call_entry", "hook_entry", "return_entry", "break_entry", "break_stubs", "copy_insn", "tp_insn", "sys_in", "sys_out", "own_check", "own_insn", "own_not", "bell_load", "bell_insn", "probe_entry", "probe_watch", "probe_return"}

// Helpers are the numbers of those that programs may call; their symbols are helper_ and the
// number.
var Helpers = []int{
	1, 2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 25, 27, 45, 58, 67, 87, 88, 89, 105, 106, 112, 113, 114, 115, 125, 130, 131, 132, 133, 134,
	160, 165, 173, 174, 177, 182, 183, 184, 187, 600, 601, 605,
}

// AllNames are Names, those of Helpers, and the others that lie there.
func AllNames() []string {
	list := append(slices.Clone(Names), "helper_release", "program_unwind", "crit_begin", "crit_end")
	for _, n := range Helpers {
		list = append(list, "helper_"+strconv.Itoa(n))
	}
	return list
}

// Stamp identifies the sources in dir.
func Stamp(dir string) (string, error) {
	h := sha256.New()
	for _, name := range sources {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Build compiles the sources in dir with gcc.
func Build(dir string) (*Blob, error) {
	tmp, err := os.MkdirTemp("", "agent")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "agent.elf")
	link := append(slices.Clone(flags), "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,-T,"+filepath.Join(dir, "agent.ld"), "-o", out)
	for _, name := range sources {
		if filepath.Ext(name) != ".c" {
			continue
		}
		object := filepath.Join(tmp, name+".o")
		compile := append(slices.Clone(flags), "-c", filepath.Join(dir, name), "-o", object)
		if slices.Contains(far, name) {
			compile = append(compile, "-mcmodel=large")
		}
		if err := gcc(compile); err != nil {
			return nil, err
		}
		link = append(link, object)
	}
	if err := gcc(link); err != nil {
		return nil, err
	}
	return read(out)
}

func gcc(args []string) error {
	if msg, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, msg)
	}
	return nil
}

// read takes the code out of the linked file.
func read(file string) (*Blob, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, s := range f.Sections {
		if s.Type == elf.SHT_RELA || //nolint:misspell // ELF's name
			s.Type == elf.SHT_REL {
			return nil, fmt.Errorf("section %s: the code needs relocations", s.Name)
		}
	}
	text, layout, prog := f.Section(".text"), f.Section(".layout"), f.Section(".prog")
	if text == nil || layout == nil || prog == nil {
		return nil, errors.New("sections are missing")
	}
	b := &Blob{Symbols: make(map[string]uint64)}
	if b.Code, err = io.ReadAll(text.Open()); err != nil {
		return nil, err
	}
	if b.Program, err = io.ReadAll(prog.Open()); err != nil {
		return nil, err
	}
	table, err := io.ReadAll(layout.Open())
	if err != nil {
		return nil, err
	}
	for ; len(table) >= 8; table = table[8:] {
		b.Layout = append(b.Layout, binary.LittleEndian.Uint64(table))
	}
	syms, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	for _, s := range syms {
		b.Symbols[s.Name] = s.Value
	}
	for _, name := range AllNames() {
		if b.Symbols[name] == 0 {
			return nil, fmt.Errorf("symbol %s is missing", name)
		}
	}
	return b, nil
}
