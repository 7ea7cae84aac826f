package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"nvtrace/fatbin/sass"
)

type barKey struct {
	arch sass.Arch
	op   uint16
}

type barCount struct{ all, write, read int }

// bars counts how often each opcode sets a scoreboard in compilers' code.
// nvdisasm accepts barriers on instructions of fixed latency too, so that this is
// what tells them apart.
func bars(out string, files []string) error {
	counts := make(map[barKey]barCount)
	var mu sync.Mutex
	err := code(files, func(arch sass.Arch, _ string, text []byte) {
		var mine [4096]barCount
		for i := 0; i+16 <= len(text); i += 16 {
			w := sass.WordAt(text[i:])
			n := &mine[w.Opcode()]
			c := w.Control()
			n.all++
			if c.WriteBar < 6 {
				n.write++
			}
			if c.ReadBar < 6 {
				n.read++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for op, n := range mine {
			if n.all == 0 {
				continue
			}
			k := barKey{arch, uint16(op)}
			c := counts[k]
			counts[k] = barCount{c.all + n.all, c.write + n.write, c.read + n.read}
		}
	})
	if err != nil {
		return err
	}
	byCount := make(map[uint16]map[sass.Arch]barCount)
	for k, c := range counts {
		if byCount[k.op] == nil {
			byCount[k.op] = make(map[sass.Arch]barCount)
		}
		byCount[k.op][k.arch] = c
	}
	var b strings.Builder
	for _, op := range slices.Sorted(maps.Keys(byCount)) {
		for _, a := range slices.Sorted(maps.Keys(byCount[op])) {
			c := byCount[op][a]
			fmt.Fprintf(&b, "%03x %d seen %d write %d read %d\n", op, a, c.all, c.write, c.read)
		}
	}
	return os.WriteFile(out, []byte(b.String()), 0o666)
}
