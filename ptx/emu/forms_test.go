package emu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// The words that forms are made of.
var (
	formTypes    = strings.Fields("b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64 f32x2 u16x2 s16x2 tf32 pred")
	arithMods    = strings.Fields("lo hi wide cc approx full rn rz rm rp ftz NaN xorsign.abs sat relu")
	roundingMods = strings.Fields("rni rzi rmi rpi rn rz rm rp rna ftz sat relu satfinite")
	comparisons  = strings.Fields("eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan")
)

// subsets returns the choices of at most two words, in their order, each with a dot in front.
func subsets(words []string) []string {
	out := []string{""}
	for i, a := range words {
		out = append(out, "."+a)
		for _, b := range words[i+1:] {
			out = append(out, "."+a+"."+b)
		}
	}
	return out
}

// formReg is a register that holds a value of the type.
func formReg(typ string) string {
	switch typ {
	case "f32":
		return "f"
	case "f64":
		return "g"
	case "pred":
		return "p"
	case "b128":
		return "q"
	case "b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16":
		return "h"
	case "b64", "u64", "s64", "f32x2":
		return "d"
	}
	return "r"
}

// forms returns instructions of an opcode with sources of the type of the instruction, and d for its result.
func forms(ops string, n int, mods []string, types []string) []string {
	var out []string
	for op := range strings.FieldsSeq(ops) {
		for _, m := range subsets(mods) {
			for _, t := range types {
				s, d := formReg(t), formReg(t)
				last := s
				if strings.Contains(m, ".wide") {
					d = map[string]string{"h": "r", "r": "d"}[s]
					if op == "mad" && d != "" {
						last = d
					}
				}
				if d == "" {
					continue
				}
				args := slices.Repeat([]string{s}, n)
				args[n-1] = last
				if n == 2 && op == "mul" {
					args[n-1] = s
				}
				out = append(out, fmt.Sprintf("%s%s.%s %s, %s;", op, m, t, d, strings.Join(args, ", ")))
			}
		}
	}
	return out
}

// allForms returns the instructions that TestForms asks ptxas about.
func allForms() []string {
	var out []string
	out = append(out, forms("add sub mul div rem min max mul24 addc subc copysign", 2, arithMods, formTypes)...)
	out = append(out, forms("mad fma sad mad24 madc min max", 3, arithMods, formTypes)...)
	out = append(out, forms("abs neg rcp sqrt rsqrt sin cos lg2 ex2 tanh", 1, arithMods, formTypes)...)
	out = append(out, forms("and or xor", 2, []string{"sat", "cc", "ftz"}, formTypes)...)
	out = append(out, forms("not cnot brev mov", 1, []string{"sat", "ftz", "rn"}, formTypes)...)
	for t := range strings.FieldsSeq("f16x2 bf16x2 e4m3x2 e5m2x2") {
		d := map[byte]string{'f': "r", 'b': "r", 'e': "h"}[t[0]]
		for _, m := range append(subsets(roundingMods), ".rn.satfinite.relu", ".rn.ftz.relu", ".rz.relu.satfinite") {
			out = append(out, fmt.Sprintf("cvt%s.%s.f32 %s, f, f;", m, t, d))
			for s := range strings.FieldsSeq("f16x2 e4m3x2 e5m2x2") {
				out = append(out, fmt.Sprintf("cvt%s.%s.%s %s, %s;", m, t, s, d, map[byte]string{'f': "r", 'e': "h"}[s[0]]))
			}
		}
	}
	for t := range strings.FieldsSeq("f16 f16x2 bf16 f32 f64") {
		r := formReg(t)
		for op := range strings.FieldsSeq("add sub mul") {
			out = append(out, fmt.Sprintf("%s.rn.ftz.sat.%s %s, %s, %s;", op, t, r, r, r))
		}
		for m := range strings.FieldsSeq("rn.ftz.sat rn.ftz.relu rz.ftz.sat rn.oob rn.oob.relu") {
			out = append(out, fmt.Sprintf("fma.%s.%s %s, %s, %s, %s;", m, t, r, r, r, r))
		}
		for m := range strings.FieldsSeq("ftz.NaN.xorsign.abs NaN.xorsign ftz.abs") {
			out = append(out, fmt.Sprintf("min.%s.%s %s, %s, %s;", m, t, r, r, r))
		}
		for s := range strings.FieldsSeq("s8 u32 s64 f16 bf16 f32 f64") {
			for m := range strings.FieldsSeq("rni.ftz.sat rn.ftz.sat rz.ftz.relu rn.relu.satfinite") {
				out = append(out, fmt.Sprintf("cvt.%s.%s.%s %s, %s;", m, t, s, r, formReg(s)), fmt.Sprintf("cvt.%s.%s.%s %s, %s;", m, s, t, formReg(s), r))
			}
		}
	}
	for _, t := range formTypes {
		r := formReg(t)
		for _, m := range subsets([]string{"clamp", "wrap", "sat", "shiftamt"}) {
			out = append(out, fmt.Sprintf("shl%s.%s %s, %s, r;", m, t, r, r), fmt.Sprintf("shr%s.%s %s, %s, r;", m, t, r, r),
				fmt.Sprintf("bfe%s.%s %s, %s, r, r;", m, t, r, r), fmt.Sprintf("bfi%s.%s %s, %s, %s, r, r;", m, t, r, r, r),
				fmt.Sprintf("bfind%s.%s r, %s;", m, t, r), fmt.Sprintf("clz%s.%s r, %s;", m, t, r), fmt.Sprintf("popc%s.%s r, %s;", m, t, r),
				fmt.Sprintf("shf.l%s.%s %s, %s, %s, r;", m, t, r, r, r), fmt.Sprintf("shf.r%s.%s %s, %s, %s, r;", m, t, r, r, r),
				fmt.Sprintf("bmsk%s.%s %s, %s, %s;", m, t, r, r, r), fmt.Sprintf("szext%s.%s %s, %s, %s;", m, t, r, r, r),
				fmt.Sprintf("lop3%s.%s %s, %s, %s, %s, 0x80;", m, t, r, r, r, r), fmt.Sprintf("prmt%s.%s %s, %s, %s, %s;", m, t, r, r, r, r),
				fmt.Sprintf("selp%s.%s %s, %s, %s, p;", m, t, r, r, r), fmt.Sprintf("slct%s.%s.s32 %s, %s, %s, r;", m, t, r, r, r),
				fmt.Sprintf("slct%s.%s.f32 %s, %s, %s, f;", m, t, r, r, r))
		}
		for _, m := range subsets([]string{"finite", "infinite", "number", "notanumber", "normal", "subnormal"})[1:] {
			out = append(out, fmt.Sprintf("testp%s.%s p, %s;", m, t, r))
		}
		for _, c := range comparisons {
			for _, m := range []string{"", ".ftz", ".sat"} {
				out = append(out, fmt.Sprintf("setp.%s%s.%s p, %s, %s;", c, m, t, r, r), fmt.Sprintf("setp.%s.and%s.%s p, %s, %s, p;", c, m, t, r, r))
				for d := range strings.FieldsSeq("u16 u32 s32 b32 f32 f16 bf16 u64 f16x2") {
					out = append(out, fmt.Sprintf("set.%s%s.%s.%s %s, %s, %s;", c, m, d, t, formReg(d), r, r))
				}
			}
		}
		for _, m := range subsets(roundingMods) {
			for _, s := range formTypes {
				out = append(out, fmt.Sprintf("cvt%s.%s.%s %s, %s;", m, t, s, r, formReg(s)))
			}
		}
		for o := range strings.FieldsSeq("add sub min max inc dec and or xor exch") {
			for _, m := range []string{"", ".noftz", ".relaxed.gpu", ".acquire.cta"} {
				out = append(out, fmt.Sprintf("atom%s.global.%s.%s %s, [d], %s;", strings.TrimSuffix(m, ".noftz"), o+strings.TrimPrefix(m, strings.TrimSuffix(m, ".noftz")), t, r, r))
				out = append(out, fmt.Sprintf("red%s.global.%s.%s [d], %s;", strings.TrimSuffix(m, ".noftz"), o+strings.TrimPrefix(m, strings.TrimSuffix(m, ".noftz")), t, r))
			}
			out = append(out, fmt.Sprintf("redux.sync.%s.%s %s, %s, -1;", o, t, r, r))
		}
		out = append(out, fmt.Sprintf("atom.global.cas.%s %s, [d], %s, %s;", t, r, r, r))
		for m := range strings.FieldsSeq("up down bfly idx") {
			out = append(out, fmt.Sprintf("shfl.sync.%s.%s %s, %s, r, r, -1;", m, t, r, r))
		}
		out = append(out, fmt.Sprintf("match.any.sync.%s r, %s, -1;", t, r), fmt.Sprintf("match.all.sync.%s r|p, %s, -1;", t, r))
		for m := range strings.FieldsSeq("all any uni ballot") {
			out = append(out, fmt.Sprintf("vote.sync.%s.%s %s, p, -1;", m, t, r))
		}
		for _, v := range []string{"", ".v2", ".v4"} {
			args := map[string]string{"": r, ".v2": "{" + r + ", " + r + "}", ".v4": "{" + r + ", " + r + ", " + r + ", " + r + "}"}[v]
			out = append(out, fmt.Sprintf("ld.global%s.%s %s, [d];", v, t, args), fmt.Sprintf("st.global%s.%s [d], %s;", v, t, args), fmt.Sprintf("ldu.global%s.%s %s, [d];", v, t, args))
		}
		for _, s := range formTypes {
			out = append(out, fmt.Sprintf("dp4a.%s.%s r, r, r, r;", t, s), fmt.Sprintf("dp2a.lo.%s.%s r, r, r, r;", t, s))
		}
	}
	return out
}

const formHead = `.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a)
{
	.reg .b16 h;
	.reg .b32 r;
	.reg .b64 d;
	.reg .b128 q;
	.reg .f32 f;
	.reg .f64 g;
	.reg .pred p;
`

var formError = regexp.MustCompile(`(?m)^ptxas \S+, line (\d+); error\s*: (.*)$`)

// askPtxas returns what ptxas says of each instruction that it refuses. A syntax error hides what comes behind it, so
// that it is asked again without those.
func askPtxas(t *testing.T, as string, instrs []string) map[string]string {
	said := map[string]string{}
	first := strings.Count(formHead, "\n") + 1
	for {
		var left []string
		for _, in := range instrs {
			if said[in] == "" {
				left = append(left, in)
			}
		}
		file := filepath.Join(t.TempDir(), "forms.ptx")
		if err := os.WriteFile(file, []byte(formHead+strings.Join(left, "\n")+"\nret;\n}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(need.Limit(t), as, "-arch=sm_90a", "-O0", file, "-o", os.DevNull)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if cmd.Run() == nil {
			return said
		}
		news := false
		for _, m := range formError.FindAllStringSubmatch(out.String(), -1) {
			line, _ := strconv.Atoi(m[1])
			if i := line - first; i >= 0 && i < len(left) && said[left[i]] == "" {
				said[left[i]], news = m[2], true
			}
		}
		if !news {
			t.Fatalf("ptxas: %.2000s", out.String())
		}
	}
}

// TestForms compares what ptxas takes with what the check and the machine do: an instruction that ptxas refuses is
// refused by the check, or not executed; the check refuses none that ptxas takes.
func TestForms(t *testing.T) {
	as := need.Tool(t, "ptxas", "NVTRACE_PTXAS")
	all := allForms()
	taken := 0
	for part := range slices.Chunk(all, 4000) {
		said := askPtxas(t, as, part)
		f, err := ptx.Parse("forms.ptx", formHead+strings.Join(part, "\n")+"\nret;\n}\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		refused, lacks := map[int]string{}, map[int]bool{}
		for _, e := range f.CheckFeatures() {
			refused[e.At.Line] = e.Error()
		}
		for _, m := range Missing(f) {
			line, _ := strconv.Atoi(strings.Split(m, ":")[1])
			lacks[line] = true
		}
		for i, in := range part {
			line := strings.Count(formHead, "\n") + 1 + i
			switch {
			case said[in] != "" && refused[line] == "" && !lacks[line]:
				t.Errorf("%s runs; ptxas: %s", in, said[in])
			case said[in] == "" && refused[line] != "":
				t.Errorf("ptxas takes %s; the check: %s", in, refused[line])
			case said[in] == "":
				taken++
			}
		}
	}
	t.Logf("ptxas takes %d of %d forms", taken, len(all))
}

// TestNoSuchForm has some of them without ptxas.
func TestNoSuchForm(t *testing.T) {
	no := strings.Fields("min.sat.f32 mul.lo.u16x2 setp.lo.s32 sub.sat.u32 add.cc.u16 min.relu.u32 cvt.sat.u8.u8 atom.global.add.s64 red.acquire.gpu.global.add.u32 set.ltu.f32.u32 fma.f32 abs.u32 shl.u32 brev.u32 ld.global.f16")
	yes := strings.Fields("min.ftz.NaN.f32 mul.lo.u16 setp.lo.and.u32 add.sat.s32 add.sat.u16x2 add.cc.u64 min.relu.s16x2 cvt.sat.u8.u16 atom.relaxed.gpu.global.add.u32 set.ltu.u32.f32 fma.rn.ftz.sat.f32 ld.global.nc.L1::no_allocate.v4.f32 wgmma.fence.sync.aligned")
	for i, list := range [][]string{no, yes} {
		for _, op := range list {
			f, err := ptx.Parse("x.ptx", formHead+op+" r, r, r;\n}\n", nil)
			if err != nil {
				t.Fatal(err)
			}
			st := &f.Stmts[len(f.Stmts)-2]
			if got := ptx.HasForm(st.Op, f.AppendMods(nil, st), 3); got != (i == 1) {
				t.Errorf("%s: %v", op, got)
			}
		}
	}
}
