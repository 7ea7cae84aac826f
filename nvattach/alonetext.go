package nvattach

import (
	"strings"

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
