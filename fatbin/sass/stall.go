package sass

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

//go:generate go run ./internal/gen squeeze facts/stalls.txt zstalls.bin

//go:embed zstalls.bin
var packedStalls []byte

// stallKey is a dependence: kind of register, and how it is used ('r' read, 'g' as
// the guard, 'w' written again).
type stallKey struct {
	arch     Arch
	kind     RegKind
	role     byte
	from, to string
}

var (
	stallOnce sync.Once
	stallMin  map[stallKey]uint8
	stallMost int32 // the largest of all
)

// loadStalls reads the fewest cycles that compilers leave.
func loadStalls() {
	stallMin, stallMost = make(map[stallKey]uint8), predicateCycles
	b := inflate("stalls", packedStalls)
	kinds := make(map[string]RegKind)
	for k := GPR; k < numRegKinds; k++ {
		kinds[k.String()] = k
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 6 || strings.HasPrefix(line, "#") {
			continue
		}
		arch, err1 := strconv.ParseUint(f[0], 10, 16)
		n, err2 := strconv.ParseUint(f[4], 10, 8)
		if err1 != nil || err2 != nil {
			panic("BUG: sass stalls: " + line)
		}
		k := stallKey{arch: Arch(arch), kind: kinds[f[2]], role: f[3][0], from: f[1]}
		for to := range strings.SplitSeq(f[5], ",") {
			k.to = to
			stallMin[k] = uint8(n)
			stallMost = max(stallMost, int32(n))
		}
	}
}

// slack is how many cycles more than the quickest of all an instruction needs after the
// same one, at most: in pairs that compilers often write, it is 4 in nearly all. Predicates
// are there after predicateCycles for everybody.
const (
	slack           = 4
	predicateCycles = 13
)

// needed returns the cycles that have to be between two instructions, the second
// of which uses a result of the first; 0 if nothing is known, unless one of them is not the compiler's.
func needed(a Arch, from, to *Inst, d *Dependence, woven bool) int {
	k := stallKey{arch: LatencyArch(a), kind: d.Kind, role: 'r', from: from.op.name, to: to.op.name}
	switch {
	case d.Guard:
		k.role = 'g'
	case d.Write:
		k.role = 'w'
	}
	if n, ok := stallMin[k]; ok {
		// Where compilers seldom put both close together, their number says little: what
		// other instructions use sooner is there.
		k.to = "*"
		m, ok := stallMin[k]
		if k.kind == Pred || k.kind == UPred {
			m = max(m, predicateCycles)
		} else {
			m += slack
		}
		if ok {
			n = min(n, m)
		}
		return int(n)
	}
	k.to = "*"
	if n, ok := stallMin[k]; ok || !woven {
		return int(n)
	}
	// What compilers seldom write: as much as common arithmetic needs at most.
	switch {
	case k.role == 'w':
		return 1
	case k.kind == GPR:
		return 6
	}
	return predicateCycles
}

// stalls holds dependences on instructions of fixed latency against what compilers
// leave at least.
func (c *checker) stalls() {
	stallOnce.Do(loadStalls)
	a := c.a
	var seen [2]int
	a.dependences(stallMost-1, func(d Dependence) {
		if c.full() || seen == [2]int{d.From, d.To} {
			return
		}
		from := &a.Insts[d.From]
		woven := a.Func.Woven != nil && (a.Func.Woven(d.From) || a.Func.Woven(d.To))
		n := needed(a.Func.Arch, from, &a.Insts[d.To], &d, woven)
		if woven && !a.Func.Woven(d.From) && from.fixedMatrix() {
			n = int(stallMost) // see (*Weaver).afterMatrix
		}
		if d.Cycles < n {
			seen = [2]int{d.From, d.To}
			f := Finding{Hazard: HazardStall, Index: d.To, From: d.From, Need: n, Have: d.Cycles}
			f.Regs.Add(d.Kind, d.Reg, 1)
			c.add(f)
		}
	})
}
