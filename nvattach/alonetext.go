package nvattach

import (
	"bytes"
	"errors"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ptx"
)

// kernelTexts is PTX of which kernels can be had alone.
type kernelTexts struct {
	src   string
	where map[string]ptx.Span // kernels with their bodies, by name
	cuts  []ptx.Span          // all kernels, and what declares some, in order
}

// splitText splits a module's PTX; nil where what is outside of kernels names some, or, as the tables of debuggers do,
// places in them.
func splitText(f *ptx.File) *kernelTexts {
	k := &kernelTexts{src: f.Src, where: make(map[string]ptx.Span)}
	all, inside := make(map[string]bool), make(map[string]bool)
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if fn.Kind != ptx.FuncEntry {
			continue
		}
		name, span := f.Text(fn.Name), ptx.Span{Pos: fn.Pos, End: fn.End}
		if fn.HasBody() {
			span.End = f.Stmts[fn.Close].End
			k.where[name] = span
			for _, s := range f.Stmts[fn.Open:fn.Close] {
				if s.Kind == ptx.StmtLabel {
					inside[f.Text(s.Name)] = true
				}
			}
		}
		all[name] = true
		k.cuts = append(k.cuts, span)
	}
	if names(k.cut(ptx.Span{}), all) {
		return nil
	}
	for i := range f.Stmts {
		if s := &f.Stmts[i]; s.Kind == ptx.StmtSection && names(f.Src[s.Pos:s.End], inside) {
			return nil
		}
	}
	return k
}

// cut returns the module without its kernels, but for one.
func (k *kernelTexts) cut(but ptx.Span) string {
	var out strings.Builder
	last := ptx.Pos(0)
	for _, c := range k.cuts {
		if c != but {
			out.WriteString(k.src[last:c.Pos])
			last = c.End
		}
	}
	out.WriteString(k.src[last:])
	return out.String()
}

// alone returns the module with one of its kernels; all else stays, also what only the others use. It returns false if
// the kernel names another one.
func (k *kernelTexts) alone(kernel string) (text string, ok bool) {
	span, ok := k.where[kernel]
	if !ok {
		return "", false
	}
	for t := range ptx.Lex(k.src[span.Pos:span.End]) {
		word := k.src[span.Pos:span.End][t.Pos:t.End]
		if _, other := k.where[word]; other && word != kernel && t.Kind == ptx.TokIdent {
			return "", false
		}
	}
	return k.cut(span), true
}

// names reports whether one of some words stands in PTX.
func names(text string, words map[string]bool) bool {
	if len(words) == 0 {
		return false
	}
	for t := range ptx.Lex(text) {
		if t.Kind == ptx.TokIdent && words[text[t.Pos:t.End]] {
			return true
		}
	}
	return false
}

// textByKernel is [Plan.ByKernel] of PTX.
func (p *Plan) textByKernel(src string, o *RewriteOptions) (alone func(kernel string) ([]byte, error), size int) {
	if o.JIT != (JIT{}) || strings.Contains(src, "LaunchDevice") || strings.Count(src, ".entry") < leastByKernel {
		return nil, 0
	}
	f, err := ptx.Parse("image", src, nil)
	if err != nil || !closed(f) {
		return nil, 0
	}
	k := splitText(f)
	if k == nil {
		return nil, 0
	}
	wanted := 0
	for name := range k.where {
		if p.Wants(name, false) {
			wanted++
		}
	}
	if wanted < leastByKernel {
		return nil, 0
	}
	return func(kernel string) ([]byte, error) {
		text, ok := k.alone(kernel)
		if !ok {
			return nil, errors.New("its code names another kernel of its module")
		}
		return append([]byte(text), 0), nil
	}, len(src)
}

// closed reports whether a module has nothing that two copies of it would each have of their own: variables, textures,
// functions that are called by their addresses; and nothing that others give it.
func closed(f *ptx.File) bool {
	for d, name := range declared(f) {
		switch {
		case (d.Space == ptx.SpaceGlobal || d.Space == ptx.SpaceConst) && !fixed(name) && !isTag(name):
			return false
		case d.Type == ptx.TexRef, d.Type == ptx.SamplerRef, d.Type == ptx.SurfRef:
			return false
		}
	}
	funcs := make(map[string]bool)
	for i := range f.Funcs {
		if fn := &f.Funcs[i]; fn.Kind == ptx.FuncDevice {
			funcs[f.Text(fn.Name)] = true
		}
	}
	for i := range f.Stmts {
		s := &f.Stmts[i]
		switch {
		case s.Kind == ptx.StmtInstr && s.Op != ptx.OpCall && names(f.Src[s.Pos:s.End], funcs):
			return false
		case s.Kind == ptx.StmtDecl && names(f.Src[s.Pos:s.End], funcs):
			return false
		}
	}
	return true
}

// textOf returns the PTX that a GPU's driver compiles of an image, "" if it takes machine code, or none.
func textOf(image []byte, o *RewriteOptions) string {
	switch fatbin.Sniff(image) {
	case fatbin.FormatPTX:
		return string(bytes.TrimRight(image, "\x00"))
	case fatbin.FormatContainer:
		c, _, err := fatbin.ParseContainer(image)
		if err != nil || Prefers(c.Entries, fatbin.KindELF, o.Arch) >= 0 {
			return ""
		}
		if i := Prefers(c.Entries, fatbin.KindPTX, o.Arch); i >= 0 {
			if data, err := c.Entries[i].Data(&fatbin.Options{MaxEntry: o.MaxEntry}); err == nil {
				return string(bytes.TrimRight(data, "\x00"))
			}
		}
	}
	return ""
}

// onlyText is the module of which the one kernel that gets programs is alone, where that can be; f if all do.
func (r *rewriting) onlyText(f *ptx.File) *ptx.File {
	if r.o.Only == "" {
		return f
	}
	k := splitText(f)
	if k == nil || len(k.cuts) == 1 {
		return f
	}
	text, ok := k.alone(r.o.Only)
	if !ok {
		return f
	}
	one, err := ptx.Parse("image", text, nil)
	if err != nil {
		return f
	}
	return one
}
