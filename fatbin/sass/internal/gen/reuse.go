package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"

	"nvtrace/fatbin/sass"
	"nvtrace/fatbin/sass/internal/syntax"
)

var registerPattern = regexp.MustCompile(`\bR(?:\d+|Z)\b\|?(\.reuse)?`)

// reuse finds out for each opcode of a file that texts has written which registers the bits 122 to 124 are
// about: it has nvdisasm show words with each of them.
func reuse(nvdisasm, seedFile, file string) error {
	o, err := newOracle(nvdisasm, "")
	if err != nil {
		return err
	}
	defer o.close()
	seeds, err := readSeeds(seedFile)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, facts, err := syntax.Parse(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	archs := make(map[sass.Arch][]*syntax.Facts) // each opcode's first
	for i := range facts {
		a := sass.Arch(facts[i].Archs[0])
		archs[a] = append(archs[a], &facts[i])
	}
	for a, list := range archs {
		if err := o.reuse(a, seeds, list); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(syntax.Write(head, facts)), 0o666)
}

func (o *oracle) reuse(a sass.Arch, seeds map[sass.Arch][]sass.Word, list []*syntax.Facts) error {
	own, err := o.borrow(a, seeds)
	if err != nil {
		return err
	}
	byOp := make(map[uint16][]syntax.Word)
	for _, w := range own {
		byOp[w.Opcode()] = append(byOp[w.Opcode()], syntax.Word(w))
	}
	var words []sass.Word
	var of []*syntax.Facts
	rng := rand.New(rand.NewPCG(uint64(a), 122))
	for _, f := range list {
		if len(byOp[uint16(f.Opcode)]) == 0 {
			continue // what is known of it stays
		}
		f.Op.Reuse = [3]uint8{}
		for _, w := range slices.Concat(byOp[uint16(f.Opcode)][:min(20, len(byOp[uint16(f.Opcode)]))], variants(rng, byOp[uint16(f.Opcode)], 20)) {
			for bit := range uint(3) {
				words = append(words, plain(sass.Word(w).SetBits(12, 4, 7)).SetBits(122+bit, 1, 1))
				of = append(of, f)
			}
		}
	}
	texts, err := o.texts(a, words)
	if err != nil {
		return err
	}
	for i, text := range texts {
		if !usable(text) || !strings.Contains(text, ".reuse") {
			continue
		}
		_, operands, _ := strings.Cut(text, " ") // names have an .RZ
		marked := slices.IndexFunc(registerPattern.FindAllStringSubmatch(operands, -1), func(m []string) bool { return m[1] != "" })
		regs := of[i].Op.Registers(syntax.Word(words[i]))
		if marked < 0 || marked >= len(regs) {
			continue
		}
		at := &of[i].Op.Reuse[i%3]
		if *at != 0 && *at != regs[marked] {
			fmt.Fprintf(os.Stderr, "%s %03x: bit %d is about the registers at %d and %d: %s\n", a, of[i].Opcode, 122+i%3, *at, regs[marked], text)
		}
		*at = regs[marked]
	}
	return nil
}
