package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
)

// flowShapes are the registers of instructions that transfer control, by name:
// what reads and writes the fields that were found, by kind.
func flowShape(f *opFacts) string {
	var ops []operand
	for _, x := range f.fields {
		p := operand{field: x, count: 1, read: true}
		switch x.kind {
		case sass.GPR, sass.UGPR:
			if f.name != "WARPSYNC" {
				p.count = 2 // an address
			}
		case sass.Barrier:
			p.write = f.name != "BSYNC"
			p.read = f.name != "BSSY"
		}
		ops = append(ops, p)
	}
	return shape(ops)
}

func ranges(bits []int) string {
	var b []string
	for i := 0; i < len(bits); i++ {
		j := i
		for j+1 < len(bits) && bits[j+1] == bits[j]+1 {
			j++
		}
		if i == j {
			b = append(b, strconv.Itoa(bits[i]))
		} else {
			b = append(b, fmt.Sprintf("%d-%d", bits[i], bits[j]))
		}
		i = j
	}
	if b == nil {
		return "-"
	}
	return strings.Join(b, ",")
}

func bitList(w sass.Word) []int {
	var out []int
	for p := range 128 {
		if w.Bits(uint(p), 1) != 0 {
			out = append(out, p)
		}
	}
	return out
}

// pick gathers the bits of w that key has.
func pick(w sass.Word, key []int) uint64 {
	var v uint64
	for i, p := range key {
		v |= w.Bits(uint(p), 1) << i
	}
	return v
}

// block is an opcode's facts as text, without architectures.
func (f *opFacts) block() string {
	var b strings.Builder
	bars := ""
	if f.writeBar {
		bars += "w"
	}
	if f.readBar {
		bars += "r"
	}
	fmt.Fprintf(&b, "%03x %s guard=%s bars=%s", f.op, f.name, f.guard, bars)
	key := bitList(f.key)
	if flow[f.name] {
		key = nil
	}
	one, zero := ^uint64(0), ^uint64(0)
	var hiOne, hiZero uint64 = ^uint64(0), ^uint64(0)
	byShape := make(map[string]map[uint64]bool)
	for _, v := range f.variants {
		one &= v.word.Lo
		zero &= ^v.word.Lo
		hiOne &= v.word.Hi
		hiZero &= ^v.word.Hi
		s := v.shape
		if flow[f.name] {
			s = flowShape(f)
		} else {
			for _, x := range f.fields {
				if x.kind == sass.Barrier {
					// Life ranges don't tell of barriers.
					s = strings.TrimSpace(fmt.Sprintf("%s rw:B@%d+%d*1", s, x.pos, x.len))
				}
			}
		}
		if byShape[s] == nil {
			byShape[s] = make(map[uint64]bool)
		}
		byShape[s][pick(v.word, key)] = true
	}
	fmt.Fprintf(&b, "\n\tkey %s\n", ranges(key))
	// Bits that have one value in all legal words, apart from fields.
	in := sass.Word{}.SetBits(0, 16, 0xffff)
	for _, x := range f.fields {
		in = in.SetBits(uint(x.pos), uint(x.len), 1<<x.len-1)
	}
	in.Hi |= ^uint64(1<<(lastBit-64) - 1)
	o, z := sass.Word{Lo: one &^ in.Lo, Hi: hiOne &^ in.Hi}, sass.Word{Lo: zero &^ in.Lo, Hi: hiZero &^ in.Hi}
	if !flow[f.name] {
		fmt.Fprintf(&b, "\tones %s zeros %s\n", ranges(bitList(o)), ranges(bitList(z)))
	}
	for _, s := range slices.Sorted(maps.Keys(byShape)) {
		vals := make([]string, 0, len(byShape[s]))
		sorted := slices.Sorted(maps.Keys(byShape[s]))
		for i := 0; i < len(sorted); i++ {
			j := i
			for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
				j++
			}
			if i == j {
				vals = append(vals, fmt.Sprintf("%x", sorted[i]))
			} else {
				vals = append(vals, fmt.Sprintf("%x-%x", sorted[i], sorted[j]))
			}
			i = j
		}
		if s == "" {
			s = "none"
		}
		fmt.Fprintf(&b, "\t%s = %s\n", s, strings.Join(vals, ","))
	}
	return b.String()
}

func writeBlocks(file, head string, archs map[string][]sass.Arch) error {
	blocks := slices.SortedFunc(maps.Keys(archs), func(x, y string) int {
		if x[:3] != y[:3] {
			return strings.Compare(x[:3], y[:3])
		}
		return slices.Compare(archs[x], archs[y])
	})
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprint(w, head)
	for _, b := range blocks {
		var as []string
		for _, a := range archs[b] {
			as = append(as, strconv.Itoa(int(a)))
		}
		fmt.Fprintf(w, "sm %s op %s", strings.Join(as, ","), b)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// readBlocks reads what writeBlocks writes.
func readBlocks(file string) (head string, archs map[string][]sass.Arch, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	archs = make(map[string][]sass.Arch)
	block := ""
	var as []sass.Arch
	end := func() {
		if block != "" {
			archs[block] = append(archs[block], as...)
			slices.Sort(archs[block])
		}
	}
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.HasPrefix(line, "#"):
			head += line
		case strings.HasPrefix(line, "sm "):
			end()
			list, rest, ok := strings.Cut(line[3:], " op ")
			if !ok {
				return "", nil, fmt.Errorf("%s: line %q", file, line)
			}
			block, as = rest, nil
			for n := range strings.SplitSeq(list, ",") {
				v, err := strconv.ParseUint(n, 10, 16)
				if err != nil {
					return "", nil, err
				}
				as = append(as, sass.Arch(v))
			}
		default:
			block += line
		}
	}
	end()
	return head, archs, nil
}

// blockOpcode returns the opcode that a block is about.
func blockOpcode(block string) (uint16, error) {
	name, _, _ := strings.Cut(block, " ")
	op, err := strconv.ParseUint(name, 16, 16)
	return uint16(op), err
}
