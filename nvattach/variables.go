package nvattach

import (
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ptx"
)

// Variables names the variables of its module that a kernel may use which was rewritten in
// an image, and that others can change. A copy of the module that is loaded beside it has its
// own. Where that can't be told, it names more.
func (r *Rewritten) Variables(image []byte, kernel string, arch fatbin.Arch) []string {
	machine := slices.ContainsFunc(r.Kernels, func(k KernelReport) bool { return k.Machine })
	data := image
	if c, _, err := fatbin.ParseContainer(image); err == nil {
		kind := fatbin.KindPTX
		if machine {
			kind = fatbin.KindELF
		}
		i := Prefers(c.Entries, kind, arch)
		if i < 0 {
			return nil
		}
		if data, err = c.Entries[i].Data(nil); err != nil {
			return nil // it could be read before
		}
	}
	if machine {
		return codeVariables(data, kernel)
	}
	f, err := ptx.Parse("image", strings.TrimRight(string(data), "\x00"), nil)
	if err != nil {
		return nil // it was parsed before
	}
	return textVariables(f, kernel)
}

// textVariables is Variables of PTX. Functions of the module count as if the kernel called
// them all.
func textVariables(f *ptx.File, kernel string) (list []string) {
	var names []string
	for i := range f.Stmts {
		if f.Stmts[i].Kind != ptx.StmtDecl {
			continue
		}
		if d := f.Decl(&f.Stmts[i]); d.Space == ptx.SpaceGlobal || d.Space == ptx.SpaceConst {
			for _, n := range f.Names(d) {
				names = append(names, f.Text(n.Name))
			}
		}
	}
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if !fn.HasBody() || fn.Kind == ptx.FuncEntry && f.Text(fn.Name) != kernel {
			continue
		}
		text := f.Src[f.Stmts[fn.Open].Pos:f.Stmts[fn.Close].End]
		for t := range ptx.Lex(text) {
			if word := text[t.Pos:t.End]; t.Kind == ptx.TokIdent && slices.Contains(names, word) && !slices.Contains(list, word) && !fixed(word) {
				list = append(list, word)
			}
		}
	}
	return list
}

// codeVariables is Variables of machine code.
func codeVariables(cubin []byte, kernel string) (list []string) {
	e, err := fatbin.NewCubinEditor(cubin, nil)
	if err != nil {
		return nil
	}
	used := e.Refers(kernel)
	for _, v := range e.Cubin().Variables {
		// Where in constant memory a variable is says no relocation.
		constant := strings.HasPrefix(v.Section, ".nv.constant3")
		global := strings.HasPrefix(v.Section, ".nv.global") && slices.Contains(used, v.Name)
		if v.Size > 0 && (constant || global) && !fixed(v.Name) {
			list = append(list, v.Name)
		}
	}
	return list
}

// fixed reports whether nobody changes a variable: the texts and tables of compilers, and the
// empty objects of their libraries.
func fixed(name string) bool {
	return isText(name) || strings.HasPrefix(name, "__cudart_") || strings.HasPrefix(name, "_ZN4cuda3std") ||
		strings.HasPrefix(name, "_ZN6thrust") && strings.Contains(name, "12placeholders")
}
