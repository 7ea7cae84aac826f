package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"nvtrace/fatbin/sass"
)

// pair is a dependence between two kinds of instructions.
type pair struct {
	arch     sass.Arch
	from, to string
	kind     sass.RegKind
	role     byte // r: read, g: guard, w: written again
}

// enough is how often a pair has to be seen for its number to count: compilers put
// what they can close together, if there is enough of it.
const enough = 500

// perArch is how much code of an architecture is looked at, in bytes.
const perArch = 1 << 30

// stalls finds the smallest number of cycles that compilers leave between an
// instruction of fixed latency and one that uses its result.
func stalls(out string, files []string) error {
	least := make(map[pair]int)
	count := make(map[pair]int)
	// What the file has already stays, or gets smaller. What it says of an instruction with
	// all others is from more code than is at hand, so that pairs that it lacks are added to
	// instructions alone that it lacks, too.
	known := make(map[pair]bool)
	old, err := os.ReadFile(out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kinds := map[string]sass.RegKind{"R": sass.GPR, "UR": sass.UGPR, "P": sass.Pred, "UP": sass.UPred}
	for line := range strings.Lines(string(old)) {
		f := strings.Fields(line)
		if len(f) != 6 {
			return fmt.Errorf("%s: line %q", out, line)
		}
		a, err := sass.ParseArch(f[0])
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(f[4])
		if err != nil {
			return err
		}
		for to := range strings.SplitSeq(f[5], ",") {
			p := pair{a, f[1], to, kinds[f[2]], f[3][0]}
			least[p], count[p], known[p] = n, enough, true
		}
	}
	size := make(map[sass.Arch]int)
	var mu sync.Mutex
	err = code(files, func(arch sass.Arch, name string, text []byte) {
		mu.Lock()
		have := size[arch]
		if have < perArch {
			size[arch] += len(text)
		}
		mu.Unlock()
		if have >= perArch {
			return
		}
		a, err := sass.Outline(&sass.Func{Arch: arch, Name: name, Code: sass.Words(text)})
		if err != nil {
			return
		}
		mine := make(map[pair]int)
		n := make(map[pair]int)
		a.Dependences(func(d sass.Dependence) {
			p := pair{sass.LatencyArch(arch), a.Insts[d.From].Name(), a.Insts[d.To].Name(), d.Kind, 'r'}
			switch {
			case d.Guard:
				p.role = 'g'
			case d.Write:
				p.role = 'w'
			}
			if m, ok := mine[p]; !ok || d.Cycles < m {
				mine[p] = d.Cycles
			}
			n[p]++
		})
		mu.Lock()
		defer mu.Unlock()
		for p, m := range mine {
			if l, ok := least[p]; !ok || m < l {
				least[p] = m
			}
			count[p] += n[p]
		}
	})
	if err != nil {
		return err
	}
	// One line for the pairs that have the same number: architecture, producer, kind
	// and role of the register, cycles, consumers. "*" stands for all others.
	any := make(map[pair]int)
	total := make(map[pair]int)
	for p, m := range least {
		q := p
		q.to = "*"
		if l, ok := any[q]; !ok || m < l {
			any[q] = m
		}
		total[q] += count[p]
		if count[p] < enough || known[q] && !known[p] {
			delete(least, p)
		}
	}
	for q, m := range any {
		if total[q] >= enough {
			least[q] = m
		}
	}
	lines := make(map[string][]string)
	for p, m := range least {
		k := fmt.Sprintf("%d %s %s %c %d", p.arch, p.from, p.kind, p.role, m)
		lines[k] = append(lines[k], p.to)
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(lines)) {
		slices.Sort(lines[k])
		fmt.Fprintf(&b, "%s %s\n", k, strings.Join(lines[k], ","))
	}
	return os.WriteFile(out, []byte(b.String()), 0o666)
}
