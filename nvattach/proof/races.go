package proof

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// Warnings says of each value that a program reads and writes back changed, where that
// could not be made atomic, where it is and what to write instead: what other threads
// write in between is lost.
func (q *Program) Warnings() []string {
	var list []string
	for i := range q.Report.Races {
		r := &q.Report.Races[i]
		if d := q.Unit.Defs[r.Map]; !d.PerThread() && !d.Thread {
			list = append(list, fmt.Sprintf("%s: program %s, %s: other threads' changes of %s between its read and its write are lost; %s",
				q.Object.Name, q.Name, placeOf(r.Insn, r.Position, r.Source), d.Name, q.instead(r)))
		}
	}
	return list
}

// placeOf names an instruction.
func placeOf(insn int, position, source string) string {
	e := bpf.End{Insn: insn, Position: position}
	s := e.Where()
	if source = strings.TrimSpace(source); source != "" {
		s += " (" + source + ")"
	}
	return s
}

// instead says what to write instead.
func (q *Program) instead(r *bpf.Race) string {
	if q.Object.Script {
		return "write +=, -=, |=, or an aggregation such as sum(), min() or max(), unless each thread has a key of its own"
	}
	size := ""
	if r.Size < 4 {
		size = ", in a field of 4 or 8 bytes"
	}
	if r.Call {
		return "change what bpf_map_lookup_elem returned, by __sync_fetch_and_add(p, n)"
	}
	name := map[asm.ALUOp]string{asm.Add: "add", asm.Sub: "sub", asm.Or: "or", asm.And: "and", asm.Xor: "xor"}[r.Op]
	if name == "" {
		return "write a loop with __sync_val_compare_and_swap" + size
	}
	return "write __sync_fetch_and_" + name + "(p, n)" + size
}

// Strict returns an error for each thing that is not proven.
func (q *Program) Strict() (errs []error) {
	for i := range q.Report.Ends {
		e := &q.Report.Ends[i]
		what := "needs a test at run time for: " + e.Kind.String()
		if e.Kind == bpf.EndLoop {
			what = "has a loop whose end is not proven within the fuel"
		}
		errs = append(errs, fmt.Errorf("%s: program %s, %s: %s (--strict)", q.Object.Name, q.Name, placeOf(e.Insn, e.Position, e.Source), what))
	}
	for _, w := range q.Warnings() {
		errs = append(errs, fmt.Errorf("%s (--strict)", w))
	}
	return errs
}
