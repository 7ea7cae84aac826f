package nvattach

import (
	"slices"
	"strings"
	"sync"

	"nvtrace/fatbin"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// matched notes which selectors have matched a kernel that was loaded, and the
// kernels' names, for what is said of those that have not.
type matched struct {
	mu       sync.Mutex
	names    map[string]bool // mangled; device functions with funcPrefix
	kernels  []bool          // by index of Plan.kernels
	programs map[*proof.Program]bool
}

// maxMet bounds the names that are kept.
const maxMet = 1 << 14

// meet takes in a kernel, or with fn set a device function, that was loaded.
func (p *Plan) meet(name string, fn bool) {
	key := name
	if fn {
		key = object.FuncPrefix + name
	}
	m := &p.matched
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[key] {
		return
	}
	if m.names == nil {
		m.names, m.programs = make(map[string]bool), make(map[*proof.Program]bool)
		m.kernels = make([]bool, len(p.kernels))
	}
	if len(m.names) < maxMet {
		m.names[strings.Clone(key)] = true
	}
	for i, glob := range p.kernels {
		m.kernels[i] = m.kernels[i] || object.Point{Kind: object.KindEntry, Kernel: glob, Func: fn}.Matches(name, fn)
	}
	for _, q := range p.Programs {
		if !m.programs[q] && q.Point.Matches(name, fn) {
			m.programs[q] = true
		}
	}
}

// Unmatched is a selector that has matched no kernel.
type Unmatched struct {
	Program *proof.Program // whose section it is; nil: it is one of PlanOptions.Kernels
	Pattern string
}

// Unmatched returns the selectors that no kernel has matched so far.
func (p *Plan) Unmatched() (list []Unmatched) {
	m := &p.matched
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, glob := range p.kernels {
		if m.kernels == nil || !m.kernels[i] {
			list = append(list, Unmatched{Pattern: glob})
		}
	}
	for _, q := range p.Programs {
		switch q.Point.Kind {
		case object.KindCapture, object.KindRun:
		default:
			if !m.programs[q] && !q.Object.Own {
				list = append(list, Unmatched{Program: q, Pattern: q.Point.Kernel})
			}
		}
	}
	return list
}

// Unplaced returns the programs of cuda.insn that kernels matched of which none has the
// opcode, as far as they were probed.
func (p *Plan) Unplaced() (list []*proof.Program) {
	placed := make(map[string]bool)
	for _, s := range p.Sites() {
		placed[s.Program] = true
	}
	p.matched.mu.Lock()
	defer p.matched.mu.Unlock()
	for _, q := range p.Programs {
		if q.Point.Kind == object.KindInsn && p.matched.programs[q] && !placed[q.Name] {
			list = append(list, q)
		}
	}
	return list
}

// Met returns the names of the kernels that were loaded, without parameters, in
// order: at most some thousands.
func (p *Plan) Met() []string {
	p.matched.mu.Lock()
	defer p.matched.mu.Unlock()
	var names []string
	for key := range p.matched.names {
		if strings.HasPrefix(key, object.FuncPrefix) {
			continue
		}
		name, _, _ := strings.Cut(fatbin.Demangle(key), "(")
		names = append(names, name[strings.LastIndexByte(name, ' ')+1:])
	}
	slices.Sort(names)
	return slices.Compact(names)
}
