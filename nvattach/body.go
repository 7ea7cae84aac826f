package nvattach

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// A Body is a program as a function of its own, for kernels of which there is only
// machine code. What a place says of itself comes as parameters of the function, so that
// one compiled body serves all places of a program.
//
// The function is declared .noreturn and ends with exit instead of ret: a function that
// returns saves the registers that its caller may use, on a stack that kernels need not
// have, while the weaver of machine code chooses free registers anyway. So the compiled
// function has no RET but EXITs, in the place of which the kernel's code goes on. The weaver
// has the threads of a warp that come in together meet there. A trap ends the thread.
//
// Variables of the thread are in registers of the kernel, which the function takes for
// words of local memory at addresses of their own: see sass.VariableAddress.
type Body struct {
	// Text is a PTX module with one function, named [BodyName], for the compiler's
	// option --compile-as-tools-patch.
	Text string
	// Params are the function's parameters in order: first those of 8 bytes, then those
	// of 4, so that none is aligned by a gap.
	Params []proof.BodyParam
}

// BodyName is the name of a Body's function.
const BodyName = "nvtrace_probe"

// bodyVersion returns the PTX version in which a body for an architecture is written.
func bodyVersion(sm uint32) ptx.Version {
	major, minor := sass.Arch(sm).PTX()
	return ptx.Version{Major: major, Minor: minor}
}

// bodyForms are the forms that a program may be needed in.
func bodyForms(q *proof.Program, maps *mapmem.Maps) []bodyForm {
	if q.Plain != nil && q.HasPlaces(maps) {
		list := append([]bodyForm{{}, {guarded: true}}, bodyForms(q.Plain, maps)...)
		if sumsOf(q, maps) != nil {
			list = append(list, bodyForm{sum: sumHere, keys: 1}, bodyForm{sum: sumHere, guarded: true, keys: 1}, bodyForm{sum: sumEnd, keys: 2})
		}
		for i := range list[2:] {
			list[2+i].plain = list[2+i].sum == sumNone
		}
		return list
	}
	if q.Plain != nil {
		q = q.Plain
	}
	if sumsOf(q, maps) != nil {
		return []bodyForm{{sum: sumHere}, {sum: sumHere, guarded: true}, {sum: sumEnd}}
	}
	list := []bodyForm{{}, {guarded: true}}
	if q.ReadsValue() {
		list = append(list, bodyForm{copies: true}, bodyForm{guarded: true, copies: true}, bodyForm{rows: true}, bodyForm{guarded: true, rows: true})
	}
	return list
}

// bodyText writes a program as a function for an architecture. params are the kernel's,
// which only programs that ask for arguments depend on, and line is the instruction's text,
// which is the context of programs of KindCapture. f says for which places it is.
func (p *Plan) bodyText(q *proof.Program, maps *mapmem.Maps, arch fatbin.Arch, params []fatbin.Param, line string, f bodyForm) (*Body, error) {
	switch {
	case q.Report.TextInMemory:
		return nil, fmt.Errorf("program %s reads the instruction's text at a computed offset, which is possible in PTX only: %w", q.Name, ErrNotWoven)
	case q.UsesBlocks() != nil:
		return nil, errBlocks
	case q.Point.Kind == object.KindRun:
		return nil, fmt.Errorf("BUG: program %s is a kernel of its own", q.Name)
	}
	if f.plain && q.Plain != nil {
		q = q.Plain
	}
	if f.sum != sumNone {
		return p.sumText(q, sumsOf(q, maps), maps, arch, f)
	}
	return p.function(q, maps, arch, params, line, func(g *weaving, at *proof.Place) (code, active string, err error) {
		at.Guarded, g.dialect.each, g.dialect.leave = f.guarded, f.each, f.leave
		if f.copies || f.rows {
			var load strings.Builder
			addr, n := at.Given.Reg(proof.BodyParam{What: proof.BodyAddr, Wide: true}), at.Given.Reg(proof.BodyParam{What: proof.BodyCopied})
			if f.copies {
				at.Value, at.Value2 = g.bytesAt(&load, addr, n, mostCopied)
			} else {
				at.Value, at.Value2 = g.rowAt(&load, ".shared", addr, n)
			}
			at.Setup = load.String()
		}
		if code, err = g.code(q, at); err != nil {
			return "", "", err
		}
		if f.guarded {
			active = at.Given.Reg(proof.BodyParam{What: proof.BodyActive})
		}
		return at.Setup + code + g.keepOwn(q), active, nil
	})
}

// function writes the function of a Body; write returns what it does, and the register by which
// threads are kept from that, "" for none.
func (p *Plan) function(q *proof.Program, maps *mapmem.Maps, arch fatbin.Arch, params []fatbin.Param, line string, write func(g *weaving, at *proof.Place) (code, active string, err error)) (*Body, error) {
	src := ".version " + bodyVersion(arch.SM).String() + "\n.target sm_" + strconv.Itoa(int(arch.SM)) + "\n.address_size 64\n\n.visible .func " + BodyName + "() .noreturn\n{\n\texit;\n}\n"
	file, err := ptx.Parse(q.Name, src, nil)
	if err != nil {
		return nil, err
	}
	g := newWeaving(p, file, maps, &WeaveOptions{})
	g.dialect.patch = true
	st := g.allSites()[0]
	at := &proof.Place{Sites: st, Text: line, Given: &proof.Given{Kernel: params, Regs: map[proof.BodyParam]string{}}}
	code, active, err := write(g, at)
	if err != nil {
		return nil, err
	}
	b := new(Body)
	for bp := range at.Given.Regs {
		b.Params = append(b.Params, bp)
	}
	slices.SortFunc(b.Params, func(x, y proof.BodyParam) int {
		if x.Wide != y.Wide {
			return cmp.Compare(btoi(y.Wide), btoi(x.Wide))
		}
		return cmp.Or(cmp.Compare(x.What, y.What), cmp.Compare(x.Offset, y.Offset))
	})
	var list []string
	var loads strings.Builder
	for i, bp := range b.Params {
		size, reg := 4, at.Given.Regs[bp]
		if bp.Wide {
			size = 8
		}
		list = append(list, fmt.Sprintf(".param .b%d nvtrace_p%d", 8*size, i))
		// A narrow parameter becomes 64 bits with zeros above.
		fmt.Fprintf(&loads, "\t.reg .b64 %s;\n\tld.param.u%d %s, [nvtrace_p%d];\n", reg, 8*size, reg, i)
	}
	if err := g.w.Exit(st, &st.Exits[0], loads.String()+whereActive(code, active)); err != nil {
		return nil, err
	}
	text, err := g.w.Source()
	if err != nil {
		return nil, err
	}
	b.Text = strings.Replace(text, BodyName+"()", BodyName+"("+strings.Join(list, ", ")+")", 1)
	return b, nil
}

// whereActive is code that threads which are not active run nothing of.
func whereActive(code, active string) string {
	var before, after string
	if active != "" {
		before = "\t.reg .pred %nvtrace_off;\n\tsetp.eq.u64 %nvtrace_off, " + active + ", 0;\n\t@%nvtrace_off bra $nvtrace_end;\n"
		after = "$nvtrace_end:\n"
	}
	return before + "\t{\n" + strings.TrimSuffix(code, "\n") + "\n\t}\n" + after
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
