package script

import "fmt"

// endless warns of loops that nothing ends: whose condition no statement of theirs changes, and
// which have no break and no return. What is there is only ended by the bound of a probe's run.
func (p *parser) endless(probes []*probe) (warnings []string) {
	for _, b := range probes {
		walkStmt(b.body, func(s stmt) {
			w, ok := s.(*whileStmt)
			if !ok || leaves(w.body) || !fixed(w.c, assigned(w.body)) {
				return
			}
			if n, isConst := w.c.(*intLit); isConst && n.n == 0 {
				return
			}
			e := p.errorAt(w.span, "")
			warnings = append(warnings, fmt.Sprintf("%s:%d:%d: nothing in this loop ends it; each run of the probe is ended after a million instructions (--fuel)", e.File, e.Line, e.Col))
		})
	}
	return warnings
}

// walkStmt calls f for a statement and all in it.
func walkStmt(s stmt, f func(stmt)) {
	f(s)
	var in []*block
	switch s := s.(type) {
	case *block:
		for _, x := range s.list {
			walkStmt(x, f)
		}
	case *ifStmt:
		in = append(in, s.then)
		if s.els != nil {
			in = append(in, s.els)
		}
	case *whileStmt:
		in = append(in, s.body)
	case *forStmt:
		in = append(in, s.body)
	case *rangeStmt:
		in = append(in, s.body)
	case *unrollStmt:
		in = append(in, s.body)
	}
	for _, b := range in {
		walkStmt(b, f)
	}
}

// leaves reports whether a loop's body has a break of that loop, or a return.
func leaves(body *block) (yes bool) {
	for _, s := range body.list {
		switch s := s.(type) {
		case *jump:
			yes = yes || s.word != "continue"
		case *block:
			yes = yes || leaves(s)
		case *ifStmt:
			yes = yes || leaves(s.then) || s.els != nil && leaves(s.els)
		case *unrollStmt:
			yes = yes || leaves(s.body)
		case *whileStmt, *forStmt, *rangeStmt: // whose break is their own
			walkStmt(s, func(x stmt) {
				j, ok := x.(*jump)
				yes = yes || ok && j.word == "return"
			})
		}
	}
	return yes
}

// assigned returns the variables and maps that statements change.
func assigned(body *block) map[string]bool {
	names := make(map[string]bool)
	walkStmt(body, func(s stmt) {
		switch s := s.(type) {
		case *assign:
			switch to := s.to.(type) {
			case *varRef:
				names[to.name] = true
			case *mapRef:
				names[to.name] = true
			}
		case *rangeStmt:
			names[s.v.name] = true
		}
	})
	return names
}

// fixed reports whether a condition is made of literals and variables that do not change: all
// else, as time and maps that other threads change, may.
func fixed(x expr, changed map[string]bool) bool {
	switch x := x.(type) {
	case *intLit, *strLit:
		return true
	case *varRef:
		return !changed[x.name]
	case *unary:
		return fixed(x.x, changed)
	case *binExpr:
		return fixed(x.x, changed) && fixed(x.y, changed)
	case *choice:
		return fixed(x.c, changed) && fixed(x.x, changed) && fixed(x.y, changed)
	}
	return false
}
