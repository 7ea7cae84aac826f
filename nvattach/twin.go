package nvattach

import (
	"iter"
	"slices"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ptx"
)

// Twins say which kernels with programs keep a copy without: in an [Original], or in the same
// module, under the name [TwinName], where it shares the module's variables with the kernel.
type Twins uint8

// The choices.
const (
	TwinsNone   Twins = iota
	TwinsNeeded       // of kernels that may need more registers than a launch with as many threads as before has, and TwinsBlocks
	TwinsAll          // for comparisons; where machine code gets the programs, see Original
	TwinsAside        // for comparisons, of PTX too by an Original
	TwinsBlocks       // of kernels whose blocks have maps: these may need more shared memory than a launch has
)

// TwinName is the name of a kernel's copy without programs.
func TwinName(kernel string) string { return kernel + twinSuffix }

// TwinOf returns the kernel of whose copy without programs this is the name; ok is false for other
// names.
func TwinOf(name string) (kernel string, ok bool) { return strings.CutSuffix(name, twinSuffix) }

const twinSuffix = "__nvtrace_unprobed"

// twins returns a woven module's text with copies of kernels behind it. Where
// device functions have programs, the copies call copies of functions.
func twins(f *ptx.File, w *Woven, kernels []string) string {
	renamed := make(map[string]bool)
	if slices.ContainsFunc(w.Kernels, func(k KernelReport) bool { return k.Func }) {
		for i := range f.Funcs {
			if fn := &f.Funcs[i]; fn.Kind == ptx.FuncDevice && fn.HasBody() {
				renamed[f.Text(fn.Name)] = true
			}
		}
	}
	var heads, bodies strings.Builder
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		name := f.Text(fn.Name)
		entry := fn.Kind == ptx.FuncEntry && fn.HasBody() && slices.Contains(kernels, name)
		if !entry && (!renamed[name] || !fn.HasBody()) {
			continue
		}
		head := f.Src[fn.Pos:fn.Name.Pos] + TwinName(name) + renameAll(f.Src[fn.Name.End:fn.End], renamed)
		if !entry {
			heads.WriteString(head + ";\n")
		}
		bodies.WriteString(head + "\n" + renameAll(f.Src[f.Stmts[fn.Open].Pos:f.Stmts[fn.Close].End], renamed) + "\n")
	}
	return strings.TrimRight(w.Text, "\x00") + "\n" + heads.String() + bodies.String()
}

// renameAll makes the names of functions those of their copies.
func renameAll(text string, names map[string]bool) string {
	if len(names) == 0 {
		return text
	}
	var b strings.Builder
	last := 0
	for t := range ptx.Lex(text) {
		if word := text[t.Pos:t.End]; t.Kind == ptx.TokIdent && names[word] {
			b.WriteString(text[last:t.Pos] + TwinName(word))
			last = int(t.End)
		}
	}
	b.WriteString(text[last:])
	return b.String()
}

// compileWoven compiles a woven module, with the copies that are wanted and
// possible.
func (r *rewriting) compileWoven(f *ptx.File, w *Woven) (cubin []byte, err error) {
	r.progress(len(w.Kernels), 0)
	defer r.progress(0, len(w.Kernels))
	if r.o.Twins == TwinsAll {
		names := entriesOf(w)
		text := twins(f, w, names)
		if cubin, err = r.compile(text); err == nil {
			w.keep(f, text, names)
			if limited := r.limited(w, r.greedy(w, cubin), r.twinRegisters(cubin)); limited != nil {
				cubin = limited
			}
			return cubin, nil
		}
		reason := "no copy without programs: " + err.Error()
		for i := range w.Kernels {
			w.Kernels[i].NoTwin = reason
		}
	}
	cubin, err = r.compile(w.Text)
	if err != nil || r.o.Twins == TwinsNone {
		return cubin, err
	}
	cubin, within := r.needed(f, w, cubin)
	if r.o.Twins == TwinsAside && !within {
		r.besideText(f, f.Src, w, nil)
	}
	return cubin, nil
}

// needed gives a module that was woven and compiled the copies of TwinsNeeded and TwinsBlocks: within
// it, if its launches without programs are to have the module's own variables.
func (r *rewriting) needed(f *ptx.File, w *Woven, cubin []byte) (out []byte, within bool) {
	blocks := w.withBlocks()
	var greedy []string
	if r.o.Twins != TwinsBlocks {
		greedy = r.greedy(w, cubin)
	}
	names := append(slices.Clip(greedy), blocks...)
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return cubin, false
	}
	if r.o.Beside && !hasDeclared(f) {
		return r.neededBeside(f, w, cubin, greedy, blocks, names), false
	}
	if r.o.Twins == TwinsAside {
		names = entriesOf(w)
	}
	text := twins(f, w, names)
	both, err := r.compile(text)
	if err != nil {
		return cubin, false // without copies it compiles
	}
	if len(blocks) > 0 {
		w.keep(f, text, names)
		within = true
	}
	if limited := r.limited(w, greedy, r.twinRegisters(both)); limited != nil {
		return limited, within
	}
	w.keep(f, text, names)
	return both, true
}

// neededBeside keeps the original of a module without variables, whose kernels do the same wherever
// they are loaded: programs that list a module's kernels find their own alone.
func (r *rewriting) neededBeside(f *ptx.File, w *Woven, cubin []byte, greedy, blocks, names []string) []byte {
	if len(greedy) > 0 {
		if alone, err := r.compile(f.Src); err == nil {
			registers := r.registers(alone)
			if limited := r.limited(w, greedy, func(kernel string) int { return registers[kernel] }); limited != nil {
				cubin, names = limited, blocks
			}
		}
	}
	if len(names) > 0 {
		r.besideText(f, f.Src, w, names)
	}
	return cubin
}

// twinRegisters says how many registers the copies of kernels take that a cubin has.
func (r *rewriting) twinRegisters(cubin []byte) func(kernel string) int {
	registers := r.registers(cubin)
	return func(kernel string) int { return registers[TwinName(kernel)] }
}

// greedy names the kernels of a woven module that may take more registers than there
// are for 1,024 threads. Where the driver compiles, nobody knows.
func (r *rewriting) greedy(w *Woven, cubin []byte) []string {
	registers := r.registers(cubin)
	var names []string
	for i := range w.Kernels {
		k := &w.Kernels[i]
		if n, known := registers[k.Name]; !k.Func && !k.Bounded && (!known || n > launchRegisters) {
			names = append(names, k.Name)
		}
	}
	return names
}

// registersOf says how many registers the kernels of a cubin take.
func registersOf(cubin []byte) map[string]int {
	registers := make(map[string]int)
	if c, err := fatbin.ParseCubin(cubin); err == nil {
		for i := range c.Kernels {
			registers[c.Kernels[i].Name] = c.Kernels[i].Registers
		}
	}
	return registers
}

// limited compiles a woven module with limits to the registers of kernels that take
// too many, now that it is known how many they took without programs. nil if that can't be.
func (r *rewriting) limited(w *Woven, kernels []string, took func(kernel string) int) (cubin []byte) {
	if len(kernels) == 0 {
		return nil
	}
	f, err := ptx.Parse("woven", w.Text, nil)
	if err != nil {
		return nil
	}
	edits := ptx.NewEdits(w.Text)
	for _, name := range kernels {
		fn := f.Lookup(name)
		n := took(name)
		if fn == nil || n == 0 {
			return nil
		}
		edits.InsertAfter(fn.End, "\n"+registerLimit(f, fn, n))
	}
	text, err := edits.Apply()
	if err != nil {
		return nil
	}
	if cubin, err = r.compile(text); err != nil {
		return nil
	}
	w.Text = text
	for i := range w.Kernels {
		if k := &w.Kernels[i]; slices.Contains(kernels, k.Name) {
			k.Bounded = true
		}
	}
	return cubin
}

// keep notes that kernels have copies.
func (w *Woven) keep(f *ptx.File, text string, kernels []string) {
	w.Text = text
	globals := globalsOf(f)
	for i := range w.Kernels {
		k := &w.Kernels[i]
		if fn := f.Lookup(k.Name); !k.Func && fn != nil && slices.Contains(kernels, k.Name) {
			k.Twin, k.Globals, k.Effect = true, globals, effectOf(f, fn)
		}
	}
}

// constants are how compilers call variables that hold texts.
var constants = []string{"$str", "__unnamed_", "__func__", "__FUNCTION__", "__PRETTY_FUNCTION__"}

// isText reports whether a variable is a constant text of a compiler's.
func isText(name string) bool {
	return slices.ContainsFunc(constants, func(c string) bool { return strings.Contains(name, c) })
}

// globalsOf names the variables of a module that its kernels may write.
func globalsOf(f *ptx.File) []string { return variablesOf(f, ptx.SpaceGlobal) }

// hasDeclared reports whether a module has variables that keep something between launches, or that
// the host can set. (Those in shared memory are each launch's own.)
func hasDeclared(f *ptx.File) bool {
	for d := range declared(f) {
		if d.Space == ptx.SpaceGlobal || d.Space == ptx.SpaceConst {
			return true
		}
	}
	return false
}

// variablesOf names the variables of a module in a state space.
func variablesOf(f *ptx.File, space ptx.Space) []string {
	var list []string
	for d, name := range declared(f) {
		if d.Space == space {
			list = append(list, name)
		}
	}
	return list
}

// declared yields the variables that a module has, with their names, without texts of compilers.
func declared(f *ptx.File) iter.Seq2[*ptx.Decl, string] {
	return func(yield func(*ptx.Decl, string) bool) {
		for i := range f.Stmts {
			if f.Stmts[i].Kind != ptx.StmtDecl {
				continue
			}
			d := f.Decl(&f.Stmts[i])
			if d.Linkage&ptx.Extern != 0 {
				continue
			}
			for _, n := range f.Names(d) {
				if name := f.Text(n.Name); !isText(name) && !yield(d, name) {
					return
				}
			}
		}
	}
}

// effects are functions and instructions by which a kernel does more than to change
// memory that the host knows of.
var effects = map[string]string{
	"vprintf": "it prints", "malloc": "it allocates memory", "free": "it allocates memory",
	"cudaLaunchDevice": "it launches kernels", "cudaLaunchDeviceV2": "it launches kernels",
	"__cudaCDP2LaunchDevice": "it launches kernels", "__cudaCDP2LaunchDeviceV2": "it launches kernels",
	"sust": "it writes surfaces", "sured": "it writes surfaces",
}

// effectOf says what keeps a kernel from being run several times with the same
// result, "" if nothing does. Functions of the module count as if it called them all.
func effectOf(f *ptx.File, kernel *ptx.Func) string {
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if !fn.HasBody() || fn != kernel && fn.Kind != ptx.FuncDevice {
			continue
		}
		text := f.Src[f.Stmts[fn.Open].Pos:f.Stmts[fn.Close].End]
		for t := range ptx.Lex(text) {
			if t.Kind != ptx.TokIdent {
				continue
			}
			if e := effects[text[t.Pos:t.End]]; e != "" {
				return e
			}
		}
	}
	return ""
}
