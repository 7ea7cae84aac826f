package sass

import (
	"fmt"
	"slices"
)

// Finish writes the code. It may be called once.
func (w *Weaver) Finish() (*Woven, error) {
	out := &Woven{Code: slices.Clone(w.a.Func.Code), Registers: w.facts.Registers}
	e := emitter{w: w, out: out, moved: make(map[int]int), calls: make(map[int]*sharedCopy), ends: make(map[int]Word)}
	if len(w.sites) == 0 && len(w.exits) == 0 {
		e.listExits()
		return out, nil
	}
	if len(w.own) > 0 {
		// Variables get their first values, also where no probe is.
		for _, o := range w.own {
			i, err := w.first(o.local)
			if err != nil {
				return nil, fmt.Errorf("function %s: %w", w.a.Func.Name, err)
			}
			s := w.siteAt(i)
			s.begins = append(s.begins, o)
		}
	}
	if err := e.emit(); err != nil {
		return nil, fmt.Errorf("function %s: %w", w.a.Func.Name, err)
	}
	out.Growth = WordSize * (len(out.Code) - len(w.a.Func.Code))
	if w.top >= 0 {
		out.Registers = max(out.Registers, w.top+hiddenRegisters+1)
	}
	if err := w.check(out, &e); err != nil {
		return nil, fmt.Errorf("function %s: %w: %w", w.a.Func.Name, ErrUnsafe, err)
	}
	e.endThreads()
	e.listExits()
	return out, nil
}
