package sass

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Words that ptxas 13.0 made for sm_90, and what they do.
func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		word        Word
		name        string
		read, write string
	}{
		{Word{0x00000a00ff017b82, 0x000fe20000000800}, "LDC", "", "R1"},
		{Word{0x00008400ff027b82, 0x000e220000000a00}, "LDC", "", "R2-R3"},
		{Word{0x0000000605007c0c, 0x001fda000bf06070}, "ISETP", "R5,UR6", "P0"},
		{Word{0x0000000402007981, 0x000ea4000c1e1900}, "LDG", "R2-R3,UR4-UR5", "R0"},
		{Word{0x0000000402007981, 0x000ea4000c1e1d00}, "LDG", "R2-R3,UR4-UR5", "R0-R3"},
		{Word{0x0000000502007986, 0x000fe2000c101904}, "STG", "R2-R3,R5,UR4-UR5", ""},
		{Word{0x0000000405027825, 0x001fca00078e0002}, "IMAD", "R2-R3,R5", "R2-R3"},
		{Word{0x000000000000094d, 0x000fea0003800000}, "EXIT", "P0", ""},
		// Operands of matrix instructions may go on up to where the next one begins.
		{Word{0x000000100408723f, 0x004e240000001008}, "DMMA", "R4-R17", "R8-R15"},
		{Word{0x000000040808723f, 0x004e240000002010}, "DMMA", "R4-R23", "R8-R15"},
		{Word{0x000000201008723f, 0x004e240000003008}, "DMMA", "R8-R39", "R8-R15"},
		// Carries in predicates of all numbers.
		{Word{0x0000000569437c10, 0x040fe40009fe0448}, "IADD3", "R72,R105,P0,P3,UR5", "R67"},
		{Word{0x0000000569477c10, 0x000fc4000afe844c}, "IADD3", "R76,R105,P4-P5,UR5", "R71"},
		{Word{0x0000000569417c10, 0x000fc4000a7ea446}, "IADD3", "R70,R105,P4-P5,UR5", "R65"},
	} {
		in, ok := Decode(90, tc.word)
		if !ok {
			t.Errorf("%v (%s) is unknown", tc.word, tc.name)
			continue
		}
		read, write := in.Uses()
		if in.Name() != tc.name || read.String() != tc.read || write.String() != tc.write {
			t.Errorf("%v is %s, reads %q, writes %q, want %s, %q, %q", tc.word, in.Name(), read.String(), write.String(), tc.name, tc.read, tc.write)
		}
		// Operands tell the same.
		var r, w Set
		for _, o := range in.Operands(nil) {
			if o.Read {
				r.addOperand(&o)
			}
			if o.Write {
				w.addOperand(&o)
			}
			if o.Len > 0 && in.Set(&o, o.Reg) != tc.word {
				t.Errorf("%v: operand %v is not in bits %d+%d", tc.word, o, o.Pos, o.Len)
			}
		}
		if r != read || w != write {
			t.Errorf("%v: operands read %s and write %s", tc.word, r.String(), w.String())
		}
	}
	if in, ok := Decode(90, Word{0x7fff, 0}); ok || in.Known() || !in.pcRelative() {
		t.Error("an impossible opcode is known")
	}
	if _, ok := Decode(70, NOP()); ok {
		t.Error("an architecture without a table has instructions")
	}
}

func TestFlow(t *testing.T) {
	for _, a := range archs() {
		for _, d := range []int64{0, 16, -16, 1 << 20, -(1 << 20), 4096 - 16} {
			w, ok := BRA(a, d)
			in, known := Decode(a, w)
			if f := in.Flow(); !ok || !known || f.Kind != FlowBranch || f.Target != d {
				t.Errorf("%s: BRA by %d comes back as %+v", a, d, f)
			}
		}
	}
}

// The number of a register does not change what an instruction does with registers: the
// bits of an operand's field are there, whatever their values are.
func TestShapesKeepOperands(t *testing.T) {
	for _, a := range archs() {
		for code, op := range table(a) {
			if op == nil {
				continue
			}
			for value, shape := range shapesByKey(op) {
				for _, o := range op.shapes[shape] {
					for _, r := range op.key {
						for b := range r.n {
							if p := r.pos + b; o.len == 0 || p < o.pos || p >= o.pos+o.len {
								continue
							}
							other, ok := shapesByKey(op)[value^1<<(r.at+b)]
							if ok && !slices.ContainsFunc(op.shapes[other], func(x template) bool { return x.kind == o.kind && x.pos == o.pos && x.len == o.len }) {
								t.Errorf("%s: %s (%03x), key %x: bit %d takes the %s at %d away", a, op.name, code, value, r.pos+b, o.kind, o.pos)
							}
						}
					}
				}
			}
		}
	}
}

// shapesByKey gives the index of a shape by the value of the key.
func shapesByKey(o *opInfo) map[uint64]int {
	out := make(map[uint64]int)
	for v, i := range o.dense {
		if i > 0 {
			out[uint64(v)] = int(i) - 1
		}
	}
	for v, i := range o.sparse {
		out[v] = int(i) - 1
	}
	return out
}

// archs returns the architectures of the table, in order.
func archs() []Arch {
	loadOnce.Do(load)
	return slices.Sorted(maps.Keys(tables))
}

// The text of a load or store has the registers, the offset and the size that nvdisasm's has.
func TestAccessText(t *testing.T) {
	operand := regexp.MustCompile(`^(@!?U?P\d )?(LD|ST)([GSL]?)(\S*) (?:(R\w+), )?(?:desc\[UR\d+\])?\[([^]]*)\](?:, (R\w+))?$`)
	parts := regexp.MustCompile(`^(R\w+?)?(?:\.64|\.U32|\.reuse)*(?:\+?(UR\d+))?(?:\+?(-?0x[0-9a-f]+))?$`)
	for _, a := range archs() {
		_, secs := readCubin(t, filepath.Join("testdata", "kernels_"+a.String()+".cubin"))
		var words []Word
		var texts []string
		for _, name := range slices.Sorted(maps.Keys(secs)) {
			for _, w := range Words(secs[name]) {
				in, ok := Decode(a, w)
				if !ok {
					continue
				}
				if text, ok := in.AccessText(); ok {
					words, texts = append(words, w), append(texts, text)
				}
			}
		}
		if len(words) < 8 {
			t.Errorf("%s: %d loads and stores", a, len(words))
		}
		for i, want := range disassemble(t, a, words) {
			m := operand.FindStringSubmatch(strings.ReplaceAll(want, ".reuse", ""))
			if m == nil {
				t.Errorf("%s: nvdisasm has %s", a, want)
				continue
			}
			at := parts.FindStringSubmatch(m[6])
			if at == nil {
				t.Errorf("%s: nvdisasm has the address %q", a, m[6])
				continue
			}
			size := "32"
			for mod := range strings.SplitSeq(m[4], ".") {
				switch mod {
				case "U8", "S8":
					size = "8"
				case "U16", "S16":
					size = "16"
				case "64", "128":
					size = mod
				}
			}
			base := cmp.Or(at[1], "RZ")
			if at[2] != "" {
				base = strings.TrimPrefix(base+"+"+at[2], "RZ+")
			}
			if at[3] != "" {
				n, err := strconv.ParseInt(at[3], 0, 32)
				if err != nil {
					t.Fatal(err)
				}
				base += fmt.Sprintf("%+d", n)
			}
			text := m[1] + strings.ToLower(m[2]) + map[string]string{"": "", "G": ".global", "S": ".shared", "L": ".local"}[m[3]] + ".b" + size + " "
			if m[2] == "LD" {
				text += m[5] + ", [" + base + "];"
			} else {
				text += "[" + base + "], " + m[7] + ";"
			}
			if texts[i] != text {
				t.Errorf("%s: %s is %q, want %q", a, want, texts[i], text)
			}
		}
	}
}
