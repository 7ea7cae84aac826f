package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// A Program is an eBPF program with the functions that it calls, as
// github.com/cilium/ebpf's ELF reader gives it: the program's own instructions
// first, then those of its callees.
//
// Map loads refer to [Env.Maps] by their Reference, the map's name; without one,
// by the number in the lower half of the constant. The upper half is the offset
// into the value for direct loads of values (global data). Calls and jumps go
// by Reference to a Symbol, or by their raw offset. Source lines are taken from
// the instructions' metadata.
type Program struct {
	Name  string
	Insns asm.Instructions
}

// A RefusedError says why a program cannot be made safe.
type RefusedError struct {
	Program  string // its name
	Insn     int    // index into Program.Insns of the instruction; -1: the whole program
	Text     string // the instruction, disassembled; "" when Insn is -1
	Source   string // the source line as the object has it, "" when it has none
	Position string // the line's file and number, "probe.bpf.c:12"; "" when the object does not say
	Reason   string // what is wrong
	Hint     string // what to do about it, "" when there is nothing to say
}

// Error returns "program P: instruction N (text): reason; hint [position: source]".
func (e *RefusedError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "program %s: ", e.Program)
	if e.Insn >= 0 {
		fmt.Fprintf(&s, "instruction %d (%s): ", e.Insn, e.Text)
	}
	s.WriteString(e.Reason)
	if e.Hint != "" {
		s.WriteString("; " + e.Hint)
	}
	at := []string{e.Position, strings.TrimSpace(e.Source)}
	if at = slices.DeleteFunc(at, func(s string) bool { return s == "" }); len(at) > 0 {
		fmt.Fprintf(&s, " [%s]", strings.Join(at, ": "))
	}
	return s.String()
}
