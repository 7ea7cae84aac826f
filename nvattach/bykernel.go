package nvattach

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ptx"
)

// leastByKernel is how many kernels that programs want there are at least in machine code that is
// left as it is until they are looked up. Of fewer, a program is likely to look up most.
const leastByKernel = 8

// ByKernel returns what cuts single kernels out of the code in an image that a GPU would take, machine code or PTX,
// and the size of the code, where programs need not be put into all of its kernels when it is loaded:
// libraries bring images of hundreds, of which a run launches a few. Such a kernel gets its programs
// in an image of its own, which is loaded beside. nil is returned where that is not as good: of code
// that has variables, texture references or functions that are called by their addresses, of which each
// image would have its own, that launches kernels itself, and of machine code that could get programs in PTX. alone may be called from any goroutine.
func (p *Plan) ByKernel(image []byte, o *RewriteOptions) (alone func(kernel string) ([]byte, error), size int) {
	if o.Twins == TwinsAll || o.Twins == TwinsAside {
		return nil, 0
	}
	if text := textOf(image, o); text != "" {
		return p.textByKernel(text, o)
	}
	if o.CompileBody == nil {
		return nil, 0
	}
	data := image
	if fatbin.Sniff(image) == fatbin.FormatContainer {
		c, _, err := fatbin.ParseContainer(image)
		if err != nil || Prefers(c.Entries, fatbin.KindPTX, o.Arch) >= 0 {
			return nil, 0
		}
		i := Prefers(c.Entries, fatbin.KindELF, o.Arch)
		if i < 0 {
			return nil, 0
		}
		if data, err = c.Entries[i].Data(&fatbin.Options{MaxEntry: o.MaxEntry}); err != nil {
			return nil, 0
		}
	}
	c, err := fatbin.ParseCubin(data)
	if err != nil || len(c.Kernels) < leastByKernel || c.References || hasVariables(c) || bytes.Contains(data, []byte("LaunchDevice")) {
		return nil, 0
	}
	wanted := 0
	for i := range c.Kernels {
		if p.Wants(c.Kernels[i].Name, false) {
			wanted++
		}
	}
	if wanted < leastByKernel {
		return nil, 0
	}
	e, err := fatbin.NewCubinEditor(data, nil)
	if err != nil || e.Apart() != nil {
		return nil, 0
	}
	return e.Alone, len(data)
}

// Single returns an image in which, of the machine code that a GPU would take, there is one kernel alone, where it can
// do without the others; otherwise the image as it is.
func Single(image []byte, kernel string, gpu fatbin.Arch) []byte {
	c, n, err := fatbin.ParseContainer(image)
	if err != nil {
		return image
	}
	i := Prefers(c.Entries, fatbin.KindELF, gpu)
	if i < 0 {
		return image
	}
	old := &c.Entries[i]
	data, err := old.Data(nil)
	if err != nil {
		return image
	}
	e, err := EditCode(data, gpu)
	if err != nil || len(e.Cubin().Kernels) < 2 || e.Apart() != nil {
		return image
	}
	if data, err = e.Alone(kernel); err != nil {
		return image
	}
	alone, err := fatbin.NewEntry(fatbin.KindELF, old.Arch(), data, &fatbin.EntryOptions{Ident: old.Ident(), Options: old.Options()})
	if err != nil {
		return image
	}
	c.Entries[i] = alone
	return append(c.Append(nil), image[n:]...)
}

// hasVariables reports whether a module has variables that somebody can change.
func hasVariables(c *fatbin.Cubin) bool {
	return slices.ContainsFunc(c.Variables, func(v fatbin.Variable) bool {
		global, constant := changeable(&v)
		return global || constant
	})
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
