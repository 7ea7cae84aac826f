// Gen makes the table of package sass.
//
//	gen harvest OUT FILE...           words of each kind in libraries
//	gen ask NVDISASM PTXAS SEEDS FACTS ARCH...
//	                                  what nvdisasm says of them, merged into a facts file
//	gen texts NVDISASM SEEDS SYNTAX ARCH...
//	                                  how nvdisasm writes them, merged into a facts file
//	gen reuse NVDISASM SEEDS SYNTAX   which registers it marks as used again, added to that
//	gen known FILE...                 counts what the table lacks
//	gen bars OUT FILE...              how often opcodes set scoreboards
//	gen stalls OUT FILE...            the fewest cycles between results and uses
//	gen squeeze FACTS OUT             a facts file, compressed
//	gen pack FACTS SCOREBOARDS OUT    the table
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"nvtrace/fatbin/sass"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 2 && args[0] == "harvest":
		return harvest(args[2:], args[1])
	case len(args) > 1 && args[0] == "known":
		return tallyFiles(args[1:])
	case len(args) > 2 && args[0] == "bars":
		return bars(args[1], args[2:])
	case len(args) > 2 && args[0] == "stalls":
		return stalls(args[1], args[2:])
	case len(args) > 5 && args[0] == "ask":
		return askAll(args[1], args[2], args[3], args[4], args[5:])
	case len(args) > 4 && args[0] == "texts":
		return texts(args[1], args[2], args[3], args[4:])
	case len(args) == 4 && args[0] == "reuse":
		return reuse(args[1], args[2], args[3])
	case len(args) == 3 && args[0] == "squeeze":
		return squeeze(args[1], args[2])
	case len(args) == 4 && args[0] == "pack":
		return pack(args[1], args[2], args[3])
	}
	return errors.New("want harvest, ask or pack; see the source")
}

func askAll(nvdisasm, ptxas, seedFile, out string, archs []string) error {
	o, err := newOracle(nvdisasm, ptxas)
	if err != nil {
		return err
	}
	defer o.close()
	seeds, err := readSeeds(seedFile)
	if err != nil {
		return err
	}
	for _, name := range archs {
		a, err := sass.ParseArch(name)
		if err != nil {
			return err
		}
		if len(seeds[a]) == 0 {
			return fmt.Errorf("%s: no word of %s", seedFile, a)
		}
		words, err := o.borrow(a, seeds)
		if err != nil {
			return err
		}
		asked := make(map[uint16]bool)
		for _, w := range words {
			asked[w.Opcode()] = true
		}
		head, blocks, err := readBlocks(out)
		if errors.Is(err, fs.ErrNotExist) {
			blocks, err = make(map[string][]sass.Arch), nil
		}
		if err != nil {
			return err
		}
		var others []string
		for b, as := range blocks {
			if len(as) != 1 || as[0] != a {
				others = append(others, b)
			}
		}
		slices.Sort(others)
		taken, rest, err := o.adopt(a, words, others)
		if err != nil {
			return err
		}
		facts, err := ask(o, a, rest)
		if err != nil {
			return err
		}
		for b, as := range blocks {
			if op, err := blockOpcode(b); err != nil || !asked[op] {
				continue // what is known of opcodes that were not asked for stays
			}
			blocks[b] = slices.DeleteFunc(as, func(x sass.Arch) bool { return x == a })
			if len(blocks[b]) == 0 {
				delete(blocks, b)
			}
		}
		for i := range facts {
			taken = append(taken, facts[i].block())
		}
		for _, b := range taken {
			blocks[b] = append(blocks[b], a)
			slices.Sort(blocks[b])
		}
		if err := writeBlocks(out, head, blocks); err != nil {
			return err
		}
	}
	return nil
}

// borrow returns the words found for an architecture, and of opcodes that were only
// found on others those that nvdisasm takes for it too.
func (o *oracle) borrow(a sass.Arch, seeds map[sass.Arch][]sass.Word) ([]sass.Word, error) {
	own := make(map[uint16]bool)
	for _, w := range seeds[a] {
		own[w.Opcode()] = true
	}
	const most = 40 // words of an opcode
	count := make(map[uint16]int)
	var more []sass.Word
	for _, b := range slices.Sorted(maps.Keys(seeds)) {
		// The number of URZ changed with sm_100.
		if (a >= 100) != (b >= 100) {
			continue
		}
		for _, w := range seeds[b] {
			if op := w.Opcode(); !own[op] && count[op] < most {
				count[op]++
				more = append(more, w)
			}
		}
	}
	texts, err := o.texts(a, more)
	if err != nil {
		return nil, err
	}
	words := slices.Clone(seeds[a])
	for i, w := range more {
		if usable(texts[i]) {
			words = append(words, w)
		}
	}
	return words, nil
}
