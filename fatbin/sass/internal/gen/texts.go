package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"nvtrace/fatbin/sass"
	"nvtrace/fatbin/sass/internal/syntax"
)

// texts asks nvdisasm how the opcodes of some architectures are written, and adds what it learns from that
// to a facts file. An architecture takes over what is known of an opcode from another one if that foretells
// nvdisasm's text of every word that is asked about.
func texts(nvdisasm, seedFile, out string, archs []string) error {
	o, err := newOracle(nvdisasm, "")
	if err != nil {
		return err
	}
	defer o.close()
	seeds, err := readSeeds(seedFile)
	if err != nil {
		return err
	}
	var facts []syntax.Facts
	head := ""
	if b, err := os.ReadFile(out); err == nil {
		if head, facts, err = syntax.Parse(string(b)); err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range archs {
		a, err := sass.ParseArch(name)
		if err != nil {
			return err
		}
		for i := range facts {
			facts[i].Archs = slices.DeleteFunc(facts[i].Archs, func(x int) bool { return x == int(a) })
		}
		if facts, err = o.learnArch(a, seeds, facts); err != nil {
			return err
		}
		facts = slices.DeleteFunc(facts, func(f syntax.Facts) bool { return len(f.Archs) == 0 })
		if err := os.WriteFile(out, []byte(syntax.Write(head, facts)), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// pupil learns how an opcode is written.
type pupil struct {
	op     uint16
	rng    *rand.Rand
	seeds  []syntax.Word
	probe  []shown
	lesson *lesson
	how    *syntax.Op
	err    error
	wrong  int // of the last words that it was asked about
	done   bool
}

const (
	mostSeeds  = 48   // of an opcode: as many words as are varied in all ways
	probeWords = 1500 // variants that decide whether what is known of another architecture holds
	examWords  = 3000 // variants that each round asks about
	rounds     = 7
)

// askEach has nvdisasm show words of several pupils at once, since it takes long to begin.
func (o *oracle) askEach(a sass.Arch, pupils []*pupil, words func(p *pupil) []syntax.Word, told func(p *pupil, list []shown)) error {
	var all []syntax.Word
	ends := make([]int, len(pupils))
	for i, p := range pupils {
		all = append(all, words(p)...)
		ends[i] = len(all)
	}
	list, err := o.show(a, all)
	if err != nil {
		return err
	}
	from := 0
	for i, p := range pupils {
		told(p, list[from:ends[i]])
		from = ends[i]
	}
	return nil
}

// learnArch learns an architecture's opcodes of which there are words.
func (o *oracle) learnArch(a sass.Arch, seeds map[sass.Arch][]sass.Word, facts []syntax.Facts) ([]syntax.Facts, error) {
	words, err := o.borrow(a, seeds)
	if err != nil {
		return nil, err
	}
	byOp := make(map[uint16][]syntax.Word)
	for _, w := range words {
		byOp[w.Opcode()] = append(byOp[w.Opcode()], syntax.Word{Lo: w.Lo, Hi: w.Hi})
	}
	var pupils []*pupil
	for _, op := range slices.Sorted(maps.Keys(byOp)) {
		rng := rand.New(rand.NewPCG(uint64(a), uint64(op)))
		list := byOp[op]
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		pupils = append(pupils, &pupil{op: op, rng: rng, seeds: list})
	}
	err = o.askEach(a, pupils, func(p *pupil) []syntax.Word {
		return slices.Concat(p.seeds[:min(len(p.seeds), 400)], variants(p.rng, p.seeds, probeWords))
	}, func(p *pupil, list []shown) { p.probe = list })
	if err != nil {
		return nil, err
	}
	all := len(pupils)
	pupils = slices.DeleteFunc(pupils, func(p *pupil) bool {
		for i := range facts {
			if f := &facts[i]; f.Opcode == int(p.op) && len(misses(f.Op, p.probe)) == 0 {
				f.Archs = append(f.Archs, int(a))
				slices.Sort(f.Archs)
				return true
			}
		}
		return false
	})
	fmt.Fprintf(os.Stderr, "%s: %d opcodes, %d as on others\n", a, all, all-len(pupils))
	err = o.askEach(a, pupils, func(p *pupil) []syntax.Word {
		var out []syntax.Word
		for _, w := range p.seeds[:min(len(p.seeds), mostSeeds)] {
			out = append(out, flips(w)...)
		}
		for _, w := range variants(p.rng, p.seeds, mostSeeds/3) {
			out = append(append(out, w), flips(w)...)
		}
		return out
	}, func(p *pupil, list []shown) {
		p.lesson = &lesson{at: make(map[syntax.Word]int)}
		p.lesson.add(p.probe)
		p.lesson.add(list)
		p.done = len(p.lesson.all) == 0
	})
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(slices.Clone(pupils), func(p *pupil) bool { return p.done })
	for range rounds {
		if rest, err = o.round(a, rest); err != nil {
			return nil, err
		}
	}
	for _, p := range pupils {
		name := "?"
		if in, ok := sass.Decode(a, sass.Word{Lo: p.seeds[0].Lo, Hi: p.seeds[0].Hi}); ok {
			name = in.Name()
		}
		switch {
		case p.err != nil:
			fmt.Fprintf(os.Stderr, "%s %03x %s: %v\n", a, p.op, name, p.err)
		case p.how == nil:
			fmt.Fprintf(os.Stderr, "%s %03x %s: nvdisasm shows none\n", a, p.op, name)
		case len(misses(p.how, p.probe)) > 0 || p.wrong > examWords*3/100:
			fmt.Fprintf(os.Stderr, "%s %03x %s: %d of those asked and %d of %d others are wrong\n", a, p.op, name, len(misses(p.how, p.probe)), p.wrong, examWords)
		default:
			if p.wrong > 0 {
				fmt.Fprintf(os.Stderr, "%s %03x %s: %d of %d are wrong, kept\n", a, p.op, name, p.wrong, examWords)
			}
			facts = append(facts, syntax.Facts{Archs: []int{int(a)}, Opcode: int(p.op), Op: p.how})
		}
	}
	return facts, nil
}

// round has pupils learn from what they were shown, and asks them for the texts of other words. It returns
// those that did not know all.
func (o *oracle) round(a sass.Arch, pupils []*pupil) ([]*pupil, error) {
	var wg sync.WaitGroup
	work := make(chan *pupil)
	for range 2 {
		wg.Go(func() {
			for p := range work {
				p.how, p.err = p.lesson.learn()
			}
		})
	}
	for _, p := range pupils {
		work <- p
	}
	close(work)
	wg.Wait()
	wrong := make(map[*pupil][]shown)
	err := o.askEach(a, pupils, func(p *pupil) []syntax.Word { return variants(p.rng, p.seeds, examWords) }, func(p *pupil, list []shown) {
		if p.err == nil {
			wrong[p] = misses(p.how, list)
		}
		if p.wrong = len(wrong[p]); p.wrong > 0 || p.err != nil {
			p.lesson.add(list)
		}
	})
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(slices.Clone(pupils), func(p *pupil) bool { return p.wrong == 0 && p.err == nil })
	// The words around some that it got wrong say why.
	err = o.askEach(a, rest, func(p *pupil) []syntax.Word {
		var out []syntax.Word
		for _, x := range wrong[p][:min(p.wrong, 20)] {
			out = append(out, flips(x.w)...)
		}
		return out
	}, func(p *pupil, list []shown) { p.lesson.add(list) })
	return rest, err
}
