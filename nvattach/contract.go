package nvattach

import (
	"slices"
	"strconv"
	"strings"

	"nvtrace/nvattach/object"
	"nvtrace/ptx"
)

// ptxas makes one instruction (fma) of a product and a sum that say no rounding, where both are in one
// stretch of code: the product is not rounded then. A program between them has branches of its own, and
// ends the stretch.

// contractions notes that programs may keep products and sums of a function apart; sites are the places
// that have some.
func (g *weaving) contractions(fn *ptx.Func, sites []Site) {
	var places []uint32 // numbers of instructions, with a program before them
	for i := range sites {
		switch sites[i].Kind {
		case object.KindMem, object.KindInsn, object.KindBlock, object.KindCapture:
			places = append(places, sites[i].Insn)
		}
	}
	if len(places) == 0 {
		return
	}
	slices.Sort(places)
	if n := separated(g.f, fn, places); n > 0 {
		g.note("%s with a program between: the compiler may round twice there, and once without (fma), so that last bits of results may differ",
			countOf(n, "sum of a product", "sums of products"))
	}
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// separated counts the sums of a product with a place between, as far as that is seen by names of registers.
func separated(f *ptx.File, fn *ptx.Func, places []uint32) (n int) {
	products := make(map[string]uint32) // by register, the number of the instruction
	insn := uint32(0)
	for i := fn.Open; i < fn.Close; i++ {
		s := &f.Stmts[i]
		if s.Kind != ptx.StmtInstr {
			continue
		}
		args := f.Args(s)
		switch {
		case len(args) < 3:
		case s.Op == ptx.OpMul && unrounded(f, s):
			products[f.Text(args[0].Span())] = insn
			insn++
			continue
		case (s.Op == ptx.OpAdd || s.Op == ptx.OpSub) && unrounded(f, s):
			for j := range args[1:] {
				at, ok := products[strings.TrimPrefix(f.Text(args[1+j].Span()), "-")]
				if !ok {
					continue
				}
				if k, _ := slices.BinarySearch(places, at+1); k < len(places) && places[k] <= insn {
					n++
					break
				}
			}
		}
		if len(args) > 0 {
			delete(products, f.Text(args[0].Span()))
		}
		insn++
	}
	return n
}

// unrounded reports whether an instruction is of floats and leaves the rounding to the compiler.
func unrounded(f *ptx.File, s *ptx.Stmt) bool {
	mods := strings.Split(f.Src[s.Name.End:s.Mods], ".")
	float := slices.ContainsFunc(mods, func(m string) bool {
		return m == "f32" || m == "f64" || m == "f16" || m == "f16x2" || m == "bf16" || m == "bf16x2" || m == "f32x2"
	})
	return float && !slices.ContainsFunc(mods, func(m string) bool { return m == "rn" || m == "rz" || m == "rm" || m == "rp" })
}
