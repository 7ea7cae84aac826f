package nvattach

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/ptx"
)

// Variables names the variables of its module that a kernel may use which was rewritten in
// an image, and that others can change: those in global memory, and those in constant memory. A
// copy of the module that is loaded beside it has its own. Where that can't be told, it names more.
func (r *Rewritten) Variables(image []byte, kernel string, arch fatbin.Arch) (global, constant []string) {
	machine := slices.ContainsFunc(r.Kernels, func(k KernelReport) bool { return k.Machine })
	data := image
	if c, _, err := fatbin.ParseContainer(image); err == nil {
		kind := fatbin.KindPTX
		if machine {
			kind = fatbin.KindELF
		}
		i := Prefers(c.Entries, kind, arch)
		if i < 0 {
			return nil, nil
		}
		if data, err = c.Entries[i].Data(nil); err != nil {
			return nil, nil // it could be read before
		}
	}
	if machine {
		return codeVariables(data, kernel)
	}
	f, err := ptx.Parse("image", strings.TrimRight(string(data), "\x00"), nil)
	if err != nil {
		return nil, nil // it was parsed before
	}
	return textVariables(f, kernel, ptx.SpaceGlobal), textVariables(f, kernel, ptx.SpaceConst)
}

// textVariables is Variables of PTX, in a state space. Functions of the module count as if the
// kernel called them all.
func textVariables(f *ptx.File, kernel string, space ptx.Space) (list []string) {
	names := variablesOf(f, space)
	if len(names) == 0 {
		return nil
	}
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if !fn.HasBody() || fn.Kind == ptx.FuncEntry && f.Text(fn.Name) != kernel {
			continue
		}
		text := f.Src[f.Stmts[fn.Open].Pos:f.Stmts[fn.Close].End]
		for t := range ptx.Lex(text) {
			if word := text[t.Pos:t.End]; t.Kind == ptx.TokIdent && slices.Contains(names, word) && !slices.Contains(list, word) && !fixed(word) && !isTag(word) {
				list = append(list, word)
			}
		}
	}
	return list
}

// codeVariables is Variables of machine code.
func codeVariables(cubin []byte, kernel string) (global, constant []string) {
	e, err := fatbin.NewCubinEditor(cubin, nil)
	if err != nil {
		return nil, nil
	}
	used := e.Refers(kernel)
	reads := sync.OnceValue(func() bool { return readsConstants(e, kernel) })
	for _, v := range e.Cubin().Variables {
		switch isGlobal, isConstant := changeable(&v); {
		case isConstant && reads(): // which of them no relocation says
			constant = append(constant, v.Name)
		case isGlobal && slices.Contains(used, v.Name):
			global = append(global, v.Name)
		}
	}
	return global, constant
}

// changeable reports whether a variable of machine code is one that somebody can change, in global memory or in
// constant memory.
func changeable(v *fatbin.Variable) (global, constant bool) {
	if v.Size == 0 || fixed(v.Name) || v.Size == 1 && isTag(v.Name) {
		return false, false
	}
	return strings.HasPrefix(v.Section, ".nv.global"), strings.HasPrefix(v.Section, ".nv.constant3")
}

// readsConstants reports whether a kernel, or one of the functions of its file, reads the
// bank of constant memory that variables are in.
func readsConstants(e *fatbin.CubinEditor, kernel string) bool {
	const bank = 3
	code, err := e.Code(kernel)
	if err != nil || sass.ReadsBank(code.Code, bank) {
		return true
	}
	for i := range e.Cubin().Functions {
		if sass.ReadsBank(e.SectionBytes(e.Cubin().Functions[i].Section), bank) {
			return true
		}
	}
	return false
}

// fixed reports whether nobody changes a variable: the texts and tables of compilers and of
// cuRAND's header.
func fixed(name string) bool {
	return isText(name) || strings.HasPrefix(name, "__cudart_") || name == "__cr_lgamma_table"
}

// isTag reports whether a variable is one of the empty objects, such as policies and
// placeholders, that the headers of NVIDIA's C++ libraries define in each file that includes them.
func isTag(name string) bool {
	rest, ok := strings.CutPrefix(name, "_ZN")
	if !ok {
		return false
	}
	for {
		var part string
		if part, rest = namePart(rest); part == "" {
			return false
		}
		switch {
		case strings.HasPrefix(part, "_INTERNAL_"), strings.HasPrefix(part, "_GLOBAL__N_"): // a file's own
		default:
			return slices.Contains([]string{"cuda", "thrust", "cub", "cute", "cutlass"}, part)
		}
	}
}

// namePart cuts the first part of a mangled name, which its length precedes; "" if there is none.
func namePart(s string) (part, rest string) {
	i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.Atoi(s[:max(i, 0)])
	if err != nil || n > len(s)-i {
		return "", ""
	}
	return s[i : i+n], s[i+n:]
}
