package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"nvtrace/fatbin/sass"
)

type tally struct{ words, unknown, changed int }

// tallyFiles counts the words in libraries that the table lacks, and those that don't
// come back as they were when each register is put where it was read.
func tallyFiles(files []string) error {
	all := make(map[sass.Arch]tally)
	lacking := make(map[string]int)
	var mu sync.Mutex
	err := code(files, func(arch sass.Arch, _ string, text []byte) {
		var t tally
		mine := make(map[string]int)
		var ops []sass.Operand
		for i := 0; i+sass.WordSize <= len(text); i += sass.WordSize {
			w := sass.WordAt(text[i:])
			t.words++
			in, ok := sass.Decode(arch, w)
			if !ok {
				t.unknown++
				mine[fmt.Sprintf("%d %03x", arch, w.Opcode())]++
				continue
			}
			ops = in.Operands(ops[:0])
			back := in
			for j := range ops {
				if ops[j].Len != 0 {
					back.Word = back.Set(&ops[j], 0)
				}
			}
			for j := range ops {
				if ops[j].Len != 0 {
					back.Word = back.Set(&ops[j], ops[j].Reg)
				}
			}
			if back.Word != w {
				t.changed++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		s := all[arch]
		all[arch] = tally{s.words + t.words, s.unknown + t.unknown, s.changed + t.changed}
		for k, n := range mine {
			lacking[k] += n
		}
	})
	if err != nil {
		return err
	}
	for _, a := range slices.Sorted(maps.Keys(all)) {
		fmt.Printf("%s: %d instructions, %d unknown, %d changed\n", a, all[a].words, all[a].unknown, all[a].changed)
	}
	for _, k := range slices.Sorted(maps.Keys(lacking)) {
		fmt.Fprintf(os.Stdout, "unknown: sm_%s: %d\n", k, lacking[k])
	}
	return nil
}
