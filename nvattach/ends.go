package nvattach

import (
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// Ended says how many runs of a program one of its tests ended.
type Ended struct {
	bpf.End
	Program string
	Runs    uint64
	Site    *Site // where the last of them was, nil if that is not known
}

// String says it in one line.
func (e *Ended) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs of %s were ended: %v at %s", e.Runs, e.Program, e.Kind, e.Where())
	if src := strings.TrimSpace(e.Source); src != "" {
		fmt.Fprintf(&b, " (%s)", src)
	}
	if e.Site != nil {
		fmt.Fprintf(&b, ", in %s", fatbin.Demangle(e.Site.Kernel))
	}
	return b.String()
}

// Ended returns which of a program's tests ended runs of it.
func (p *Plan) Ended(maps *mapmem.Maps, mem mapmem.Memory, q *proof.Program) ([]Ended, error) {
	var list []Ended
	for i := range q.Report.Ends {
		slot := q.FirstEnd + emit.EndSlots*i
		n, err := maps.Counter(mem, slot)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			continue
		}
		e := Ended{End: q.Report.Ends[i], Program: q.Name, Runs: n}
		number, err := maps.Highest(mem, slot+1)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		if number > 0 && number <= uint64(len(p.sites)) {
			s := p.sites[number-1]
			e.Site = &s
		}
		p.mu.Unlock()
		list = append(list, e)
	}
	return list, nil
}
