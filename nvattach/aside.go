package nvattach

import (
	"crypto/sha256"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/ptx"
)

// An Original is an image as it was, which is loaded beside the one with programs where
// that has no copies of its kernels without: machine code can't be copied within a file, and
// a program that lists the kernels of its module is to find no others. The variables of an
// Original are others than those that the program knows.
type Original struct {
	Image []byte // cubin, or PTX with a zero byte behind it
	Sum   [sha256.Size]byte
	// Globals and Constants are the module's variables in global memory and in constant
	// memory.
	Globals, Constants []string
}

// originalOf makes an Original of an image with these variables.
func originalOf(image []byte, globals, constants []string) *Original {
	return &Original{Image: image, Sum: sha256.Sum256(image), Globals: globals, Constants: constants}
}

// besideCode notes that kernels in machine code can be compared with the original.
func (r *rewriting) besideCode(data []byte, e *fatbin.CubinEditor, reports []KernelReport) {
	if r.o.Twins != TwinsAll && r.o.Twins != TwinsAside {
		return
	}
	var globals, constants []string
	for _, v := range e.Cubin().Variables {
		constant := strings.HasPrefix(v.Section, ".nv.constant3")
		if v.Size == 0 || !constant && !strings.HasPrefix(v.Section, ".nv.global") || isText(v.Name) {
			continue
		}
		if constant {
			constants = append(constants, v.Name)
		} else {
			globals = append(globals, v.Name)
		}
	}
	r.out.Original = originalOf(data, globals, constants)
	for i := range reports {
		k := &reports[i]
		k.Twin, k.Globals, k.Effect = true, globals, codeEffect(e, k.Name)
	}
}

// codeEffect is effectOf for machine code.
func codeEffect(e *fatbin.CubinEditor, kernel string) string {
	code, err := e.Code(kernel)
	if err != nil {
		return "its code can't be read"
	}
	calls := false
	for _, w := range sass.Words(code.Code) {
		in, ok := sass.Decode(sass.Arch(e.Cubin().Arch.SM), w)
		switch {
		case !ok:
			return "it has an instruction that is not known, such as those that write surfaces"
		case strings.HasPrefix(in.Name(), "SUST"), strings.HasPrefix(in.Name(), "SURED"), strings.HasPrefix(in.Name(), "SUATOM"):
			return effects["sust"]
		}
		calls = calls || in.Flow().Kind == sass.FlowCall
	}
	for _, name := range e.Externs(kernel) {
		if why := effects[name]; why != "" && calls {
			return why
		}
	}
	return ""
}

// HasVariables reports whether its kernels do something else than those of the program's module,
// unless the values of variables are copied.
func (o *Original) HasVariables() bool { return len(o.Globals)+len(o.Constants) > 0 }

// besideText is besideCode for a woven module, whose original text is given. names are the kernels
// that need it, nil for all.
func (r *rewriting) besideText(f *ptx.File, src string, w *Woven, names []string) {
	globals := globalsOf(f)
	r.out.Original = originalOf(append([]byte(src), 0), globals, variablesOf(f, ptx.SpaceConst))
	for i := range w.Kernels {
		k := &w.Kernels[i]
		if fn := f.Lookup(k.Name); !k.Func && fn != nil && (names == nil || slices.Contains(names, k.Name)) {
			k.Twin, k.Globals, k.Effect = true, globals, effectOf(f, fn)
		}
	}
}
